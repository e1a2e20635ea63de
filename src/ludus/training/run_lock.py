"""One training at a time in a run folder; two would write into each other's metrics and checkpoints.

The lock is the system's (flock), on the file train.lock, and goes when its process ends, however it ends. The file
says who trains and is removed at an orderly end; one that a killed process left behind locks nothing.
"""

import contextlib
import errno
import fcntl
import os
import platform
import re
import stat
import time
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from ludus.errors import CheckpointError, LudusError, plain_text
from ludus.files import open_regular
from ludus.training.run_folder import LOCK

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)  # file systems that know none
_HOLDER = re.compile(rb"$|process \d+ on ")  # what a lock says of who holds it; nothing yet, or on a full disk
_held: set[FileIO] = set()  # by this process
_LOOKS, _PAUSE_S = 5, 0.02  # at a lock that another has: whoever asks `is_held` has it for a moment


@contextlib.contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Make the folder if need be and be the only one who trains in it; refused while another does."""
    path, process = folder / LOCK, os.getpid()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _take(path)
    except OSError as error:
        raise CheckpointError(
            f"The run folder {folder} cannot be written: {error.strerror}. Make it writable, or choose another "
            "for a new run with --run-dir."
        ) from error
    _held.add(file)
    try:
        with contextlib.suppress(OSError):  # on a full disk it locks all the same
            file.truncate(0)
            file.write(f"process {process} on {platform.node()} since {time.strftime('%Y-%m-%d %H:%M')}".encode())
        yield
    finally:
        if os.getpid() == process:  # and not one forked from it, which has nothing to let go
            with contextlib.suppress(OSError):
                if _is_at(path, file):
                    path.unlink()  # before the lock goes: afterwards it may be another's
            _held.discard(file)
            file.close()


def is_held(folder: Path) -> bool:
    """Whether the run is being trained now. On a file system without locks its lock file is believed."""
    try:
        with open_regular(folder / LOCK) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError as error:
        return error.errno in _NO_LOCKS
    except LudusError:  # no lock, but a folder or a pipe
        return False
    return False


def _take(path: Path) -> FileIO:
    """The file, open and locked."""
    looks = 0
    while True:
        file = _open(path)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            looks += 1
            if looks < _LOOKS:
                file.close()
                time.sleep(_PAUSE_S)
                continue
            with file:
                file.seek(0)
                holder = plain_text(file.read(200).decode(errors="replace")) or "another process"
            raise CheckpointError(
                f"{path.parent} is being trained by {holder}: wait for it, or stop it first."
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.close()
                raise
        if _is_at(path, file):
            return file
        file.close()  # its last holder has just removed it: once more


def _open(path: Path) -> FileIO:
    """The file, made where it is missing; refused where it is not a lock of ours, and would be overwritten."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = FileIO(os.open(path, flags, 0o666), "a+")
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a socket, a folder
            raise _not_a_lock(path) from error
        raise
    facts = os.fstat(file.fileno())
    if not stat.S_ISREG(facts.st_mode) or facts.st_nlink > 1 or not _HOLDER.match(os.pread(file.fileno(), 200, 0)):
        file.close()
        raise _not_a_lock(path)
    return file


def _not_a_lock(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} is not a lock that a training left: move it away, or choose another folder.")


def _is_at(path: Path, file: FileIO) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _let_go() -> None:
    """In a forked process, which would hold the lock of a parent that was killed. The parent keeps it."""
    for file in _held:
        file.close()
    _held.clear()


os.register_at_fork(after_in_child=_let_go)
