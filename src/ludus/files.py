"""Files that a stranger may have laid out, read and written so that they can do no harm.

Reading takes regular files only, and no more of them than was asked for. A FIFO would hang, a device never end,
and a folder raise something else on every platform. All are told apart on the open file, so nothing can be put in
its place in between.

Writing never follows a link. A file is written under a random name that nobody could have prepared, and put in its
place by a rename, which replaces a link and leaves alone what the link points to.
"""

import errno
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from ludus.errors import LudusError

T = TypeVar("T")

_BINARY = getattr(os, "O_BINARY", 0)  # Windows turns line ends otherwise
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a FIFO without a writer opens at once, to be refused
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # a link in the last place of the path is an error
# A parsed JSON value takes more memory than its text: so many bytes for a list or dict, and for any other value.
_JSON_CONTAINER, _JSON_VALUE, _JSON_NAME = 72, 40, 100
_JSON_MEMORY = 700_000_000
# Errors that pass by themselves: of network file systems, and of disks that were not ready.
TRANSIENT = frozenset({errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN, errno.ETIMEDOUT, errno.EBUSY})
_PAUSES_S = (0.05, 0.2, 1.0)  # before each new attempt
_TEMPORARY = ".ludus-tmp"  # ending of the names under which files are written


def open_regular(path: Path) -> BufferedReader:
    """The open file. OSError where it cannot be opened, LudusError where it is no regular file."""
    try:
        number = os.open(path, os.O_RDONLY | _BINARY | _NONBLOCK | _CLOSE_ON_EXEC)
    except ValueError as error:  # a zero byte in the path
        raise OSError(str(error)) from error
    try:
        mode = os.fstat(number).st_mode
        if not stat.S_ISREG(mode):
            raise LudusError(f"{path} is {_kind(mode)}, not a file.")
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a regular file of at most so many bytes; LudusError where it has more."""
    with open_regular(path) as file:
        content = file.read(most_bytes + 1)  # not by its size: it may grow, or belong to /proc and have none
    if len(content) > most_bytes:
        raise LudusError(f"{path} has more than {most_bytes:,} bytes, which is more than such a file needs.")
    return content


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISFIFO(mode):
        return "a named pipe"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return "a device"
    return "no regular file"


def read_json(path: Path, most_bytes: int) -> Any:
    """A JSON file of at most so many bytes. LudusError, with the reason, where it is not one."""
    content = read_bounded(path, most_bytes)
    try:
        return parse_json(content)
    except ValueError as error:
        raise LudusError(f"{path} is not JSON that can be read: {error}") from error


def parse_json(content: str | bytes) -> Any:
    """What a JSON text says. ValueError whatever is wrong: no JSON, nested without end, more than memory holds."""
    text = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    containers = text.count(b"[") + text.count(b"{")
    needed = containers * _JSON_CONTAINER + text.count(b",") * _JSON_VALUE + text.count(b":") * _JSON_NAME
    needed += len(text) * (1 if text.isascii() else 5)  # as one text, and again as its parts
    if needed > _JSON_MEMORY:
        raise ValueError("it holds more values than such a text needs")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


# Writing ----------------------------------------------------------------------------------------
def create(path: Path) -> BinaryIO:
    """A new file, open for writing; an error where there is anything at the path already, a link included."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | _BINARY | _CLOSE_ON_EXEC
    return os.fdopen(os.open(path, flags, 0o666), "wb")


def write_whole(path: Path, content: str | bytes) -> None:
    """Put a file in its place whole or not at all, synced to the disk; a link at the path is replaced."""
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    temporary = temporary_beside(path)
    try:
        with create(temporary) as file:
            file.write(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def temporary_beside(path: Path) -> Path:
    """A name beside the path that nobody could have guessed."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{_TEMPORARY}")


def is_temporary(path: Path) -> bool:
    """Whether a process that was killed left this, a file or a folder, while it was writing."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


def open_to_append(path: Path) -> BinaryIO:
    """A regular file, made where it is missing, to be read and appended to, unbuffered.

    Where the file has a second name (a hard link), this name gets a copy, and the other stays as it is.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | _NO_LINK | _NONBLOCK | _BINARY | _CLOSE_ON_EXEC
    number = os.open(path, flags, 0o666)
    try:
        facts = os.fstat(number)
        if not stat.S_ISREG(facts.st_mode):
            raise LudusError(f"{path} is {_kind(facts.st_mode)}, not a file.")
    except BaseException:
        os.close(number)
        raise
    if facts.st_nlink == 1:
        return os.fdopen(number, "ab+", buffering=0)
    os.close(number)
    temporary = temporary_beside(path)
    shutil.copyfile(path, temporary, follow_symlinks=False)
    os.replace(temporary, path)
    return open_to_append(path)


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to an unbuffered file. A nearly full disk takes a part, and says so only at the next write."""
    while content:
        content = content[file.write(content) :]


def write_line(file: BinaryIO, line: bytes) -> None:
    """Append to an unbuffered file whole or not at all."""
    whole = os.fstat(file.fileno()).st_size
    try:
        write_all(file, line)
    except OSError:
        os.ftruncate(file.fileno(), whole)
        raise


def sync_folder(path: Path) -> None:
    """Make renames in a folder survive a crash of the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def persistently(action: Callable[[], T]) -> T:
    """Do something with files, again after pauses of up to a second where an error may pass by itself."""
    for seconds in _PAUSES_S:
        try:
            return action()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
            time.sleep(seconds)
    return action()
