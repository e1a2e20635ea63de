"""A comparison as plain values, for JSON."""

import json
import math
from collections.abc import Sequence
from typing import Any

from ludus.show.comparison import Numbers, Summary, told_value


def as_plain(numbers: Numbers) -> dict[str, Any]:
    groups = []
    for i, (group, reached) in enumerate(zip(numbers.groups, numbers.reached, strict=True)):
        groups.append({
            "name": group.name,
            "settings": {name: _plain(values[i]) for name, values in numbers.settings.items()},
            "steps_to_threshold": reached.median_steps,
            "seconds_to_threshold": reached.median_seconds,
            "reached_threshold": reached.count,
            "runs": [_run_as_dict(numbers, i, j) for j in range(len(group.runs))],
        })  # fmt: skip
    return {
        "metric": numbers.metric,
        "higher_is_better": numbers.higher_is_better,
        "threshold": numbers.threshold,
        "groups": groups,
        "figures": [
            {"title": figure.title, "about": figure.about, "groups": _summaries(numbers, figure.summaries)}
            for figure in numbers.figures
        ],
        "warnings": list(numbers.warnings),
    }


def _plain(setting: Any) -> Any:
    """As it is, or its text where JSON has no such value: YAML knows dates, bytes, sets and NaN."""
    try:
        json.dumps(setting, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return told_value(setting)
    return setting


def _run_as_dict(numbers: Numbers, group: int, place: int) -> dict[str, Any]:
    run, reached = numbers.groups[group].runs[place], numbers.reached[group].steps[place]
    return {
        "run": str(run.path),
        "seed": run.seed,
        "finished": run.finished,
        "steps": run.step,
        "seconds": run.seconds,
        "steps_to_threshold": reached if math.isfinite(reached) else None,
        "figures": [figure.summaries[group].values[place] for figure in numbers.figures],
        "version": run.version,
    }


def _summaries(numbers: Numbers, summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    told = []
    for group, own in zip(numbers.groups, summaries, strict=True):
        told.append({
            "name": group.name,
            "n": own.n,
            "mean": own.mean and own.mean._asdict(),
            "iqm": own.iqm and own.iqm._asdict(),
            "worst": None if own.worst is None else {
                "value": own.values[own.worst], "seed": group.runs[own.worst].seed},
            "better_than": {
                other.name: better._asdict()
                for other, theirs in zip(numbers.groups, summaries, strict=True)
                if other is not group and (better := own.better_than(theirs)) is not None
            },
        })  # fmt: skip
    return told
