"""`ludus.compare`, and what it returns."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ludus.comparing.grouping import differing, grouped, names_of
from ludus.comparing.new_starts import measure_all, measured_alike
from ludus.comparing.plain_values import as_plain
from ludus.comparing.reading import USUAL_METRICS, SavedRun, read_runs
from ludus.comparing.warnings import warnings_of
from ludus.errors import ConfigError, LudusError, did_you_mean, plain_text
from ludus.files import open_regular
from ludus.show.comparison import ComparedRun, Group, Numbers
from ludus.show.comparison_page import GENERATOR, comparison_page
from ludus.show.comparison_text import comparison_lines
from ludus.show.pages import write_page

Runs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class Comparison(Numbers):
    """What `ludus.compare` returns: the numbers, and the page that shows them. `print` shows a table."""

    @property
    def page(self) -> str:
        """The whole page as HTML, with nothing to fetch."""
        return comparison_page(self)

    def write_page(self, path: str | Path = "comparison.html") -> Path:
        """Write the page; a file that is no comparison is not overwritten."""
        path = Path(path)
        if os.path.lexists(path) and not _is_comparison(path):
            raise ConfigError(f"{path} is there already, and is no comparison of Ludus'. Choose another file.")
        write_page(path, self.page)
        return path

    def as_dict(self) -> dict[str, Any]:
        """All numbers as plain values, as `--json` prints them."""
        return as_plain(self)

    def __str__(self) -> str:
        return "\n".join(comparison_lines(self))


def compare(
    runs: Runs, metric: str = "", threshold: float | None = None, measure: int = 0, trust: bool = False
) -> Comparison:
    """Hold groups of runs against each other: `ludus.compare(["runs/a", "runs/b"])`.

    `runs`: folders of runs that differ in their seed, or single runs. `metric`: by default the success rate in
    evaluations, else the return. `threshold`: of the metric, for the steps until it is reached. `measure`: play
    every run's best policy on so many common new starts first, and keep the results in the runs. `trust` as in
    `ludus.resume`.
    """
    if measure < 0:
        raise ConfigError(f"--measure is {measure}; it must be at least 1.")
    if threshold is not None and not math.isfinite(threshold):
        raise ConfigError(f"--threshold is {threshold}; it must be a number.")
    found, trouble = read_runs([runs] if isinstance(runs, str | os.PathLike) else list(runs), metric)
    metric = metric or _usual_metric(found)
    _refuse_unknown(metric, found)
    found = [run for run in found if _has(run, metric, trouble)]
    if measure:
        measure_all(found, measure, trust)
    measured_on, values = measured_alike(found, metric, measure)
    compared = {run.path: _compared(run, metric, value) for run, value in zip(found, values, strict=True)}
    saved = grouped(found)
    settings = differing(saved)
    names = names_of(saved, settings)
    groups = [Group(name, [compared[run.path] for run in own]) for name, own in zip(names, saved, strict=True)]
    comparison = Comparison(metric, groups, settings, measured_on, threshold, found[0].unit)
    return replace(comparison, warnings=[*map(plain_text, (*trouble, *warnings_of(comparison, found)))])


def _is_comparison(path: Path) -> bool:
    try:
        with open_regular(path) as file:
            return GENERATOR.encode() in file.read(100_000)
    except (OSError, LudusError):
        return False


# Metric ------------------------------------------------------------------------------------------
def _usual_metric(found: Sequence[SavedRun]) -> str:
    """Of evaluations, else of training, else of a learned reward; of several that which the most runs have."""
    for kind in USUAL_METRICS:
        counts = {name: sum(_knows(run, name) for run in found) for name in kind}
        if any(counts.values()):
            return max(counts, key=lambda name: counts[name])
    raise ConfigError(f"Nothing was measured yet in {found[0].path}: there is nothing to compare.")


def _knows(run: SavedRun, metric: str) -> bool:
    return metric in run.curves and bool(run.curves[metric].steps)


def _refuse_unknown(metric: str, found: Sequence[SavedRun]) -> None:
    if not any(_knows(run, metric) for run in found):
        names = sorted({name for run in found for name in run.names})
        hint = did_you_mean(metric, names) or f" They have {', '.join(names[:20]) or 'none yet'}."
        raise ConfigError(f"No run has a value of the metric {metric!r}.{hint}")


def _has(run: SavedRun, metric: str, trouble: list[str]) -> bool:
    if not _knows(run, metric):
        trouble.append(f"{run.path} is left out: it has no {metric} yet.")
    return _knows(run, metric)


def _compared(run: SavedRun, metric: str, measured: float | None) -> ComparedRun:
    seed = plain_text(str(run.facts.get("seed", "")), 20)
    return ComparedRun(run.path, seed, run.curves[metric], run.step, run.finished, measured, _version(run))


def _version(run: SavedRun) -> str:
    """'0.1.0, commit 1a2b3c': of Ludus, and of the user's own repository."""
    versions, commit = run.facts.get("versions"), run.facts.get("commit")
    version = versions.get("ludus") if isinstance(versions, dict) else None
    told = [str(version)] * bool(version) + [f"commit {commit}"] * bool(commit)
    return plain_text(", ".join(told), 100)
