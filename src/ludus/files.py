"""Reading of files that a stranger may have made: regular files only, and no more of them than was asked for.

A FIFO would hang, a device never end, and a folder raise something else on every platform. All are told apart
on the open file, so nothing can be put in its place in between.
"""

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from ludus.errors import LudusError

_BINARY = getattr(os, "O_BINARY", 0)  # Windows turns line ends otherwise
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # a FIFO without a writer opens at once, to be refused


def open_regular(path: Path) -> BinaryIO:
    """The open file. OSError where it cannot be opened, LudusError where it is no regular file."""
    try:
        number = os.open(path, os.O_RDONLY | _BINARY | _NONBLOCK | getattr(os, "O_CLOEXEC", 0))
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


def parse_json(content: str | bytes) -> Any:
    """What a JSON text says; ValueError whatever is wrong with it, also where it is nested without end."""
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
