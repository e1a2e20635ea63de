"""Errors that are sentences to a user: what was wrong, where, and what to do."""

import difflib
import itertools
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar

DEBUG = "LUDUS_DEBUG"  # the variable of the environment that asks for stack traces as well
_LONGEST_WORD, _MOST_CHOICES = 100, 2000  # that are compared for a hint: a stranger's file may name millions
# Lines in these folders say less about an error than those of the user's own files.
_INSTALLED = (*sysconfig.get_paths().values(), str(Path(__file__).parent), "<frozen")
_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


class LudusError(Exception):
    """A mistake or a failure the user can act on. The command line prints it without a stack trace.

    Its text is plain: names out of a stranger's file cannot steer the terminal that shows it.
    """

    exit_code: ClassVar[int] = 2
    """Of the command that ends with it."""

    def __str__(self) -> str:
        return plain_text(super().__str__(), keep_lines=True)


class ConfigError(LudusError):
    """A configuration, preset or flag that cannot be used."""


class EnvError(LudusError):
    """An environment that broke the contract: it raised, returned NaN or a wrong shape."""


class DataError(LudusError):
    """Recorded data that cannot be read or written: which file, which episode, which key, and what to do."""


class CheckpointError(LudusError):
    """A run folder or checkpoint that cannot be read or written."""


class UnsavedError(CheckpointError):
    """Something was not written because of an error that may pass by itself; it can be written later."""


class TrustError(LudusError):
    """Code that a run folder or a file names, and that may be a stranger's."""


class TrainingError(LudusError):
    """Training that cannot go on, with what was saved and how to continue."""


# What reading a tree of plain values can raise where a stranger has put other values into it.
MALFORMED = (
    KeyError,
    IndexError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    RuntimeError,  # torch's word for shapes that do not fit; RecursionError is one
    MemoryError,
)


def plain_text(text: str, most: int | None = None, keep_lines: bool = False) -> str:
    """Text from a file, to be shown: what a terminal would obey or cannot print becomes �.

    That is control characters and escape codes, marks that turn the reading direction, and the halves of
    characters by which Python names paths that are not UTF-8. `most`: the longest text; more is cut, with a …
    """
    if most is not None and len(text) > most:
        text = text[:most] + "…"
    if text.isprintable():
        return text
    kept = "\n\t" if keep_lines else ""
    return "".join(c if c.isprintable() or c in kept else " " if c.isspace() else "�" for c in text)


def listable(path: Path) -> str:
    """The path, to stand in a list with commas; refused where it has one itself."""
    if "," in str(path):
        raise ConfigError(f"{path} has a comma in it, which would separate it from others: take a path without.")
    return str(path)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """' Did you mean …?' for the nearest choices, or nothing."""
    known = [c for c in itertools.islice(choices, _MOST_CHOICES) if len(c) <= _LONGEST_WORD]
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.51) if len(word) <= _LONGEST_WORD else []
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""


def tell_exception(error: BaseException) -> str:
    """An exception of a user's code in words, with its place there.

    'ZeroDivisionError: division by zero, at my_env.py, line 12, in step: `x = 1 / 0`'. One that would end Python
    is not taken for a wish of the user's.
    """
    if isinstance(error, SystemExit):
        words = f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        words = f"{type(error).__name__}: {error}".rstrip(": ")
    place = users_line(error) or _last_line(error, lambda file: file.startswith(_PACKAGES))
    return f"{words}, {place}" if place else words


def users_line(error: BaseException) -> str:
    """The last line of the user's own files that an exception came through; empty where there is none."""
    return _last_line(error, lambda file: not file.startswith(_INSTALLED) and not file.endswith(".pyx"))


def _last_line(error: BaseException, is_wanted: Callable[[str], bool]) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_wanted(frame.filename)]
    if not frames:
        return ""
    last, here = frames[-1], os.getcwd() + os.sep
    code = f": `{last.line}`" if last.line else ""
    return f"at {last.filename.removeprefix(here)}, line {last.lineno}, in {last.name}{code}"
