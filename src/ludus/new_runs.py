"""Folders of new runs: chosen, refused where something lies in them, and begun."""

import itertools
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from ludus.config import TrainConfig, to_dict
from ludus.config_files import PlainDumper
from ludus.errors import ConfigError
from ludus.files import persistently, write_whole
from ludus.training.run_facts import put_facts
from ludus.training.run_folder import CONFIG, is_sweep, taken_names
from ludus.trust import MARK, is_mark, mark_as_ours


def command_for(verb: str, folder: Path) -> str:
    """A command about a run, as a shell takes it."""
    return f"ludus {verb} {shlex.quote(str(folder))}"


def refuse_taken(folder: Path) -> None:
    """A folder that holds a run, or files of the user's that one would overwrite, is left alone."""
    if is_sweep(folder):
        raise ConfigError(
            f"{folder} already holds a sweep. Choose another --run-dir, or continue it with: "
            f"{command_for('resume', folder)}"
        )
    taken = taken_names(folder)
    if not taken or (taken == [MARK] and is_mark(folder / MARK)):  # a training was killed between the first files
        return
    if CONFIG in taken:
        raise ConfigError(
            f"{folder} already holds a run. Choose another --run-dir or --name, or continue it with: "
            f"{command_for('resume', folder)}"
        )
    raise ConfigError(
        f"{folder} holds {', '.join(taken)}, which a run would overwrite. Choose another --run-dir, or move what "
        "is there."
    )


def create_run(folder: Path, config: TrainConfig, facts: dict[str, Any]) -> None:
    """The mark and the configuration first: with these alone, a run that was killed here goes on."""
    try:
        write_config(folder, config)
        put_facts(folder, facts)
    except OSError as error:
        raise ConfigError(
            f"The run folder {folder} cannot be written: {error.strerror}. Choose another with --run-dir."
        ) from error


def write_config(folder: Path, config: TrainConfig) -> None:
    """A configuration, and the mark that this user trains it here: `trusted_config` reads both."""
    text = yaml.dump(to_dict(config), Dumper=PlainDumper, sort_keys=False)
    persistently(lambda: mark_as_ours(folder, config))
    persistently(lambda: write_whole(folder / CONFIG, text))


@contextmanager
def new_folder(told: str, name: str, ending: str) -> Iterator[Path]:
    """Below runs/: of that name, or by default one that no other training has, however soon it begins.

    It is made at once, so that nobody else takes it, and goes again where the training leaves nothing in it.
    """
    parent = Path("runs") / told.replace(":", "-")
    if name:
        yield parent / name
        return
    folder = _made_folder(parent, f"{time.strftime('%Y%m%d-%H%M%S')}-{ending}")
    try:
        yield folder
    finally:
        with suppress(OSError):  # a run lies there
            for place in (folder, *folder.parents[:-1]):
                place.rmdir()


def _made_folder(parent: Path, name: str) -> Path:
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    with suppress(OSError):  # whoever writes there tells what is wrong
        parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = parent / next(names)
        with suppress(OSError):
            folder.mkdir()
            return folder
        if not folder.exists():
            return folder
