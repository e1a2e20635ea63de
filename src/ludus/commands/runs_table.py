"""The table of `ludus runs`: as many columns as the terminal is wide, one line a run where that is possible."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ludus.errors import plain_text
from ludus.listing import STATES, RunSummary
from ludus.show import text
from ludus.training.run_facts import Labels
from ludus.training.standing import Score

_GAP = "  "
_NARROWEST_NAME, _NARROWEST_LABELS, _WIDEST_LABELS = 16, 40, 100
_IF_THERE_IS_ROOM = ("seed", "algo", "preset")  # in this order
_COLUMNS = ("run", "preset", "algo", "seed", "state", "steps", "best", "final", "age")
_NUMBERS = ("seed", "steps", "best", "final", "age")  # stand to the right
_COLOURS = {"running": 36, "finished": 32, "stopped": 33, "failed": 31, "damaged": 31}
_UNITS = [(604_800, "w"), (86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")]


def table_lines(
    runs: Sequence[RunSummary], folder: Path, width: int, now: datetime, coloured: bool = False
) -> list[str]:
    """Within `width`: what does not fit is left out (preset, algorithm, seed) or cut short (paths).

    Tags, notes and troubles have a column where there is room for one, else a line of their own.
    """
    cells = [_cells(run, folder, now) for run in runs]
    shown = _shown_columns(cells, width)
    widths = {name: max(len(name), *(len(row[name]) for row in cells)) for name in shown}
    too_wide = sum(widths.values()) + len(_GAP) * (len(shown) - 1) - width
    if too_wide > 0:
        widths["run"] = max(_NARROWEST_NAME, widths["run"] - too_wide)
    left = width - sum(widths.values()) - len(_GAP) * len(shown)
    beside = left >= _NARROWEST_LABELS
    lines = [_line({name: name for name in shown}, widths)]
    for run, row in zip(runs, cells, strict=True):
        line = _line(row, widths)
        told = _labels(run)
        if coloured:
            line = line.replace(f"{_GAP}{run.state}", f"{_GAP}\x1b[{_COLOURS[run.state]}m{run.state}\x1b[0m", 1)
        if beside:
            lines.append(f"{line}{_GAP}{_cut(told, min(left, _WIDEST_LABELS))}".rstrip())
        else:
            lines += [line.rstrip(), *([f"    {_cut(told, width - 4)}"] if told else [])]
    return [*lines, "", *_last_words(runs)]


def _shown_columns(cells: Sequence[dict[str, str]], width: int) -> list[str]:
    """All that every terminal has, and of the others those that fit."""
    shown = [name for name in _COLUMNS if name not in _IF_THERE_IS_ROOM]
    for name in _IF_THERE_IS_ROOM:
        more = [column for column in _COLUMNS if column in (*shown, name)]
        needed = sum(max(len(column), *(len(row[column]) for row in cells)) + len(_GAP) for column in more)
        if needed <= width:
            shown = more
    return shown


def _cells(run: RunSummary, folder: Path, now: datetime) -> dict[str, str]:
    path = run.path.relative_to(folder) if run.path != folder else run.path
    return {
        "run": plain_text(str(path)),
        "preset": run.preset or text.MISSING,
        "algo": run.algo or text.MISSING,
        "seed": _seeds(run),
        "state": run.state,
        "steps": _steps(run),
        "best": _score(run.best),
        "final": _score(run.final),
        "age": _age((now - run.started).total_seconds()),
    }


def _seeds(run: RunSummary) -> str:
    if run.trials:
        return f"{run.trials} trial{'s' * (run.trials != 1)}"
    if run.runs:
        return f"{len(run.runs)} seed{'s' * (len(run.runs) != 1)}"
    return str(run.seeds[0]) if run.seeds else text.MISSING


def _line(cells: dict[str, str], widths: dict[str, int]) -> str:
    parts = []
    for name, width in widths.items():
        cell = cells[name]
        if len(cell) > width:
            cell = f"…{cell[1 - width :]}"  # of a path its end tells more
        parts.append(f"{cell:>{width}}" if name in _NUMBERS else f"{cell:{width}}")
    return _GAP.join(parts)


def _steps(run: RunSummary) -> str:
    """'100k', or '51.2k/100k' where there are more to do."""
    done = _short(run.step)
    return done if run.state == "finished" or run.step >= run.planned else f"{done}/{_short(run.planned)}"


def _short(count: int) -> str:
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g}{unit}" if count < 1000 * size else f"{count / size:,.0f}{unit}"
    return str(count)


def _score(score: Score | None) -> str:
    if score is None:
        return text.MISSING
    if score.judged == "success_rate":
        return text.percent(score.value)
    told = text.number(score.value)
    return told if score.judged == "mean_reward" else f"{score.judged} {told}"


def _age(seconds: float) -> str:
    for size, unit in _UNITS:
        if seconds >= size * (2 if unit == "w" else 1):
            return f"{seconds / size:.0f}{unit}"
    return "now"


def _labels(run: RunSummary) -> str:
    name = "" if run.name in (run.path.name, plain_text(run.path.resolve().name)) else run.name
    told = str(Labels(name, run.tags, run.note))
    return " · ".join(part for part in (" ".join(run.problem.split()), told) if part)


def _cut(told: str, most: int) -> str:
    told = plain_text(told)
    return told if len(told) <= most else f"{told[: most - 1].rstrip()}…"


def _last_words(runs: Sequence[RunSummary]) -> list[str]:
    single = [one for run in runs for one in _single_runs(run)]
    counts = [(sum(one.state == state for one in single), state) for state in STATES]
    told = ", ".join(f"{count} {state}" for count, state in counts if count)
    lines = ["best: evaluated in training; final: on new starts; % is success, else reward"]
    if any(run.runs and not run.trials for run in runs):
        lines.append("of several seeds: the means")
    if any(run.trials for run in runs):
        lines.append("of a sweep: all steps, the best trial, and the best that was confirmed")
    return [*lines, f"{len(single)} run{'s' * (len(single) != 1)}: {told}"]


def _single_runs(run: RunSummary) -> list[RunSummary]:
    return [one for part in run.runs for one in _single_runs(part)] if run.runs else [run]
