"""Runs to compare, found in folders and read. Only files of bounded size are read, and no code is imported."""

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.config import flat
from ludus.config_files import read_values
from ludus.errors import CheckpointError, ConfigError, LudusError, plain_text
from ludus.listing import find_runs
from ludus.show.comparison import Curve, value_at
from ludus.show.jsonl import read_metrics
from ludus.show.metric_rows import along_batches, is_reward_only
from ludus.show.results import Measurement, read_measurements
from ludus.training.run_facts import read_facts
from ludus.training.run_folder import BEST, CHECKPOINTS, CONFIG, FINAL, RESULTS, pointed_by, refuse_strange_files

USUAL_METRICS = (
    ("eval/success_rate", "eval/mean_reward"),
    ("rollout/success_rate", "rollout/ep_rew_mean"),
    ("reward/AUC",),
)
_NO_SETTINGS = ("seed", "log.")  # by how a setting's name begins
_MOST_RUNS, _LONGEST_NAME = 500, 200

Rows = list[dict[str, float]]


@dataclass(frozen=True)
class SavedRun:
    """What was read of one run."""

    path: Path
    source: Path | None  # the folder of runs that was named; None of a single run
    settings: Mapping[str, Any]
    facts: Mapping[str, Any]
    curves: Mapping[str, Curve]  # of the metrics that may be compared
    names: frozenset[str]  # of all its metrics
    step: int
    unit: str  # of the steps: "batches", where only a reward was learned
    finished: bool
    measurements: Sequence[Measurement]  # of its best policy, in its own task

    @property
    def kind(self) -> str:
        """The same for runs of the same settings."""
        return repr(sorted(self.settings.items()))


def read_runs(paths: Sequence[str | os.PathLike[str]], metric: str) -> tuple[list[SavedRun], list[str]]:
    """All runs that can be read, and why others cannot."""
    found: dict[Path, SavedRun] = {}
    trouble = []
    for path in map(Path, paths):
        source = None if _is_run(path) else path
        for folder in [path] if source is None else _runs_in(path):
            if len(found) >= _MOST_RUNS:
                raise ConfigError(f"There are more than {_MOST_RUNS} runs. Name fewer folders.")
            if folder.resolve() in found:
                trouble.append(f"{folder} was named twice; it counts once.")
                continue
            try:
                found[folder.resolve()] = _read(folder, source, metric)
            except LudusError as error:
                trouble.append(f"{folder} is left out: {error}")
    if not found:
        raise CheckpointError(" ".join(trouble) or "Name at least one run, or a folder of runs.")
    return list(found.values()), trouble


def _is_run(path: Path) -> bool:
    return os.path.lexists(path / CONFIG)


def _runs_in(folder: Path) -> list[Path]:
    found = sorted((run for found in find_runs(folder) for run in found.runs), key=_in_order)
    if not found:
        raise CheckpointError(f"{folder} is not a run of Ludus, and holds none.")
    return found


def _in_order(path: Path) -> tuple[Path, int, str]:
    """seed_2 before seed_10."""
    number = path.name.rpartition("_")[2]
    return path.parent, int(number) if number.isdecimal() and len(number) < 19 else 0, path.name


def _read(folder: Path, source: Path | None, metric: str) -> SavedRun:
    try:
        refuse_strange_files(folder)
        settings = flat(read_values(folder / CONFIG))
        rows = read_metrics(folder / "metrics.jsonl")
        finished = pointed_by(folder / FINAL) is not None
        measured = read_measurements(folder / RESULTS)
        best = pointed_by(folder / CHECKPOINTS / BEST)
    except OSError as error:
        raise CheckpointError(f"it cannot be read: {error.strerror}.") from error
    alone = is_reward_only(rows)
    rows = along_batches(rows) if alone else rows
    own = [m for m in measured if m.usual and best is not None and m.checkpoint == best.name]
    told = {plain_text(name, _LONGEST_NAME): value for name, value in settings.items()}
    learned = {name: value for name, value in told.items() if not name.startswith(_NO_SETTINGS)}
    wanted = {metric, *itertools.chain(*USUAL_METRICS)}
    names = frozenset(name for row in rows for name in row if name != "step")
    curves = {name: _curve(rows, name) for name in wanted if name in names}
    step = int(max((row["step"] for row in rows), default=0))
    unit = "batches" if alone else "steps"
    facts = read_facts(folder) | {"seed": settings.get("seed")}
    return SavedRun(folder, source, learned, facts, curves, names, step, unit, finished, own)


def _curve(rows: Rows, metric: str) -> Curve:
    points = _rising([(row["step"], row.get(metric, math.nan)) for row in rows])
    times = [(row["step"], row.get("time/time_elapsed", math.nan)) for row in rows]
    clock = _rising([(step, seconds) for step, seconds in times if seconds >= 0])
    steps, values = [step for step, _ in points], [value for _, value in points]
    seconds = [value_at(*clock_of, step) for step in steps] if (clock_of := _columns(clock)) else []
    return Curve(steps, seconds, values)


def _rising(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The finite points, each further than all before it."""
    kept: list[tuple[float, float]] = []
    for step, value in points:
        if math.isfinite(value) and (not kept or step > kept[-1][0]):
            kept.append((step, value))
    return kept


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]] | None:
    return ([a for a, _ in points], [b for _, b in points]) if points else None
