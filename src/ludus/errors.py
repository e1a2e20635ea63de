"""Errors that are sentences to a user: what was wrong, where, and what to do."""

import difflib
from collections.abc import Iterable
from pathlib import Path


class LudusError(Exception):
    """A mistake or a failure the user can act on. The command line prints it without a stack trace."""


class ConfigError(LudusError):
    """A configuration, preset or flag that cannot be used."""


class EnvError(LudusError):
    """An environment that broke the contract: it raised, returned NaN or a wrong shape."""


class DataError(LudusError):
    """Recorded data that cannot be read or written: which file, which episode, which key, and what to do."""


class CheckpointError(LudusError):
    """A run folder or checkpoint that cannot be read or written."""


class TrainingError(LudusError):
    """Training that cannot go on, with what was saved and how to continue."""


def listable(path: Path) -> str:
    """The path, to stand in a list with commas; refused where it has one itself."""
    if "," in str(path):
        raise ConfigError(f"{path} has a comma in it, which would separate it from others: take a path without.")
    return str(path)


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """' Did you mean …?' for the nearest choices, or nothing."""
    close = difflib.get_close_matches(word, list(choices), n=3, cutoff=0.51)
    return f" Did you mean {' or '.join(repr(c) for c in close)}?" if close else ""
