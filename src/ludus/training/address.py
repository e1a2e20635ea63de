"""Which checkpoint of which run: `RUN`, `RUN@best`, `RUN@final`, `RUN@newest`, `RUN@100000`.

Paths into a run are read as the same: `RUN/final`, `RUN/checkpoints/best`, `RUN/checkpoints/step_000100000`.
"""

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ludus.errors import CheckpointError, plain_text
from ludus.training.checkpoint import (
    best_checkpoint,
    checkpoint_path,
    checkpoints_in,
    newest_intact,
    problem_of,
    step_of,
)
from ludus.training.run_folder import (
    BEST,
    CHECKPOINT_NAME,
    CHECKPOINTS,
    CONFIG,
    FINAL,
    pointed_by,
    refuse_strange_files,
)

NEWEST = "newest"
_WORDS = (BEST, FINAL, NEWEST)
_UNITS = {"k": 1_000, "m": 1_000_000}
_NAMED_STEPS = 4  # in an error, the nearest


class Address(NamedTuple):
    """A run, and which of its checkpoints."""

    folder: Path
    which: str = ""  # best, final, newest, or a step in digits; empty: not said

    def __str__(self) -> str:
        return f"{self.folder}@{self.which}" if self.which else str(self.folder)


def read_address(run: str | os.PathLike[str]) -> Address:
    """The run and the checkpoint that the text names. The run is there, and nothing in it leads elsewhere.

    A `ludus.Run` is a path that knows which of its checkpoints is meant.
    """
    folder, which = _read(Path(run))
    address = Address(folder, which or getattr(run, "which", ""))
    try:
        if not folder.exists():
            raise CheckpointError(f"There is no run folder {folder}.{_runs_near(folder)}")
        if not _is_run(folder):
            raise CheckpointError(f"{folder} is not a run of Ludus: it has no {CONFIG}.{_runs_near(folder)}")
        refuse_strange_files(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}.") from error
    return address


_MOST_SEARCHED = 1_000  # runs, of which the newest is named


def _runs_near(folder: Path) -> str:
    """The newest runs in a folder that is none, or beside one that is not there, or in runs/."""
    around = [place for place in (folder, *folder.parents[:-1]) if place.is_dir()]  # not the present folder
    for place in dict.fromkeys((*around[:1], Path("runs"))):
        # A run lies at most four folders below, runs/gym-ALE/Pong-v5/DATE; more would take long in a home folder.
        found = (file for depth in range(1, 5) for file in place.glob("*/" * depth + CONFIG))
        runs = sorted(itertools.islice(found, _MOST_SEARCHED), key=lambda file: -file.stat().st_mtime)
        if runs:
            return f" The newest run in {place}: {runs[0].parent}"
    return " 'ludus train' makes one, in runs/."


def _read(path: Path) -> Address:
    if _is_run(path):  # whatever its name, also one with "@" in it
        return Address(path)
    if inside := _read_path(path):
        return inside
    before, at, which = str(path).rpartition("@")
    folder = Path(before)
    if not at:
        return Address(path)
    if step := _step_in(which):
        return Address(folder, step)
    if which in _WORDS:
        return Address(folder, which)
    if _is_run(folder):
        words = ", ".join(f"@{word}" for word in _WORDS)
        raise CheckpointError(f"{path}: '@{which}' names no checkpoint. Say {words}, or a step: @100000.")
    return Address(path)


def _read_path(path: Path) -> Address | None:
    """A path into a run: to `final`, `best`, `checkpoints` or one of those."""
    folder = path.parent.parent if path.parent.name == CHECKPOINTS else path.parent
    if not _is_run(folder):
        return None
    if path.name in _WORDS:
        return Address(folder, path.name)
    if CHECKPOINT_NAME.fullmatch(path.name):
        return Address(folder, str(step_of(path)))
    return Address(folder) if path.name == CHECKPOINTS else None


def _step_in(text: str) -> str:
    """100000 in digits, also for 1e5, 100k, 0.1M, 100_000 and step_000100000; empty if it is no number."""
    number = text.removeprefix("step_").lower()
    factor = _UNITS.get(number[-1:], 1)
    try:
        step = float(number[:-1] if factor > 1 else number) * factor
    except ValueError:
        return ""
    return str(int(step)) if 0 <= step < 10**18 and step == int(step) else ""


def _is_run(folder: Path) -> bool:
    return os.path.lexists(folder / CONFIG)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def find_checkpoint(address: Address, to_resume: bool = False, warn: Callable[[str], None] = _warn) -> Path:
    """The checkpoint that an address names, intact. Where it names none: to resume the newest, else the best.

    One that is named is that one or an error. Otherwise damaged ones are passed over, which `warn` is told.
    """
    checkpoints = address.folder / CHECKPOINTS
    if address.which:
        named = _named_checkpoint(address)
        if problem := problem_of(named, to_resume):
            raise CheckpointError(f"{address} is damaged: {problem}. {_there_are(address)}")
        return named
    best = None if to_resume else best_checkpoint(checkpoints)
    if best is not None and problem_of(best, to_resume=False) is None:
        return best
    return newest_intact(checkpoints, warn, to_resume)


def _named_checkpoint(address: Address) -> Path:
    folder, which = address
    checkpoints = folder / CHECKPOINTS
    made = checkpoints_in(checkpoints)
    if not made:
        raise CheckpointError(f"There is no checkpoint in {checkpoints}.")
    if which == NEWEST:
        return made[-1]
    if which == BEST:
        found, why = best_checkpoint(checkpoints), "no evaluation has chosen a best policy yet"
    elif which == FINAL:
        found, why = pointed_by(folder / FINAL), "the run has not been trained to its end"
    else:
        found = checkpoint_path(checkpoints, int(which))
        found, why = found if found in made else None, f"there is no checkpoint at step {int(which):,}"
    if found is None:
        raise CheckpointError(f"{address}: {why}. {_there_are(address)}")
    return found


def _there_are(address: Address) -> str:
    """Which checkpoints there are; of many, those nearest to the step that was asked for."""
    steps = [step_of(path) for path in checkpoints_in(address.folder / CHECKPOINTS)]
    wanted = int(address.which) if address.which.isdigit() else steps[-1]
    near = sorted(sorted(steps, key=lambda step: abs(step - wanted))[:_NAMED_STEPS])
    told = ", ".join(f"@{step}" for step in near)
    if len(near) == len(steps):
        return f"It has {told}."
    return f"The nearest of its {len(steps)} are {told}."


def told_checkpoint(address: Address) -> str:
    """An address' checkpoint in words, for a title: 'step 100,000'."""
    which = plain_text(address.which)
    return f"step {int(which):,}" if which.isdigit() else which
