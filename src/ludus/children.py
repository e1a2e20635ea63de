"""Processes that do not outlive the one that started them, however that one ends."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ludus.errors import ConfigError
from ludus.files import open_to_append

_PARENT = "LUDUS_PARENT"  # the variable in which a process is told with whom it ends
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_LOOK_S = 0.5


def start_command(words: Sequence[object], log: Path, launcher: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    """`start_process`; what it prints is appended to the log."""
    with open_log(log) as written:
        return start_process(words, written.fileno(), written.fileno(), launcher=launcher)


def open_log(log: Path) -> BinaryIO:
    """To be appended to."""
    try:
        return open_to_append(log)
    except OSError as error:
        reason = "it is a link" if log.is_symlink() else error.strerror
        raise ConfigError(f"{log} cannot be written: {reason}. Move it away, or make it writable.") from error


def start_process(
    words: Sequence[object],
    stdout: int | None,
    stderr: int,
    keep: Sequence[int] = (),
    launcher: Sequence[str] = (),
    **variables: str,
) -> "subprocess.Popen[bytes]":
    """`ludus words…` in a process that ends with this one.

    It finds the modules that this program finds. A Ctrl-C in the terminal reaches this process alone. `keep` are
    file descriptors that stay open there, `variables` what it has besides in its environment. `launcher` are the
    first words of a command that starts it, perhaps elsewhere (srun …): then that command ends with this process.
    """
    path = os.pathsep.join(place for place in sys.path if place)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    if not launcher:
        environment[_PARENT] = str(os.getpid())
    return subprocess.Popen(
        [*launcher, sys.executable, "-P", "-m", "ludus", *map(str, words)],
        env=environment | variables,
        preexec_fn=_die_politely if launcher and sys.platform == "linux" else None,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=keep,
        start_new_session=True,
    )


def end_with_parent() -> None:
    """In a process that `start_process` has started: ask the system to kill it when its parent ends."""
    parent = os.environ.pop(_PARENT, "")
    if parent.isdigit():
        end_with(int(parent))


def end_with(parent: int) -> None:
    """Ask the system to kill this process when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it has ended before the system was asked
        os._exit(1)


def _die_politely() -> None:
    """A launcher is told to stop, and passes it on; killed, it would leave its process behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
