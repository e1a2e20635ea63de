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

_PARENT = "LUDUS_PARENT"  # the variable in which a process is told with whom it ends
_PR_SET_PDEATHSIG = 1  # of Linux' prctl
_LOOK_S = 0.5


def start_command(words: Sequence[object], log: Path) -> "subprocess.Popen[bytes]":
    """`ludus words…` in a process that ends with this one; what it prints is appended to the log.

    It finds the modules that this program finds. A Ctrl-C in the terminal reaches this process alone.
    """
    path = os.pathsep.join(place for place in sys.path if place)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", _PARENT: str(os.getpid())}
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(log, flags, 0o666)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "ludus", *map(str, words)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=number,
            stderr=number,
            start_new_session=True,
        )
    finally:
        os.close(number)


def end_with_parent() -> None:
    """In a process that `start_command` has started: ask the system to kill it when its parent ends."""
    parent = os.environ.pop(_PARENT, "")
    if not parent.isdigit():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(int(parent),), daemon=True).start()
    if os.getppid() != int(parent):  # it has ended before the system was asked
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)
