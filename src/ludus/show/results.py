"""results.json: what was measured of a run's policies on new starts, after its training and by `ludus eval`.

A list of measurements, the oldest first. A reader takes from it what is as it should be, and leaves out the rest.
Before a file of which something was left out is written anew, it is set aside as damaged_results.json.
"""

import contextlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ludus.errors import LudusError, plain_text
from ludus.files import parse_json, persistently, read_bounded, write_whole

MOST_EPISODES = 1_000  # of one measurement whose every episode is kept
_MOST_MEASUREMENTS = 50  # kept, besides the newest of a training
_MOST_BYTES = 20_000_000
_LONGEST_WORD, _MOST_WORDS, _MOST_NAMES = 200, 5_000, 100
_LARGEST = 1e100


@dataclass(frozen=True)
class Episode:
    """One episode of a measurement or of an evaluation."""

    number: int
    total: float  # its return
    length: int
    success: float | None  # None: the environment does not tell
    start: Mapping[str, float | str] = field(default_factory=dict)
    cut: bool = False  # not played to its end

    @property
    def failed(self) -> bool:
        return self.success is not None and self.success < 0.5


@dataclass(frozen=True)
class Measurement:
    """How good one policy is on new starts."""

    by: Literal["train", "eval"]
    checkpoint: str  # "step_000100352"
    step: int
    trained: int  # steps that the run had been trained for
    best: bool  # whether that was the run's best checkpoint
    actions: Literal["deterministic", "sampled"]
    seed: int
    result: dict[str, float]  # Evaluation.summary
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
    settings: dict[str, Any] = field(default_factory=dict)  # that differ from the run's own
    fixed_starts: bool = False  # the environment has no others; see `chose_the_best`
    episodes: dict[str, Any] = field(default_factory=dict)  # Evaluation.record, of the first MOST_EPISODES
    words: dict[str, list[str]] = field(default_factory=dict)  # what numbers of a start stand for

    @property
    def chose_the_best(self) -> bool:
        """Whether the best policy was chosen by these very starts."""
        return self.fixed_starts and "clip" not in self.settings

    @property
    def usual(self) -> bool:
        """Whether it tells how good its policy is in the task that it was trained for."""
        return self.actions == "deterministic" and not self.settings


def keep_measurement(path: Path, measurement: Measurement) -> str:
    """Add to the file; of very many measurements the oldest are forgotten, but not the training's own.

    Returns a warning, or nothing.
    """
    measured, damaged = _read(path)
    kept, own = measured[-_MOST_MEASUREMENTS:], [m for m in measured if m.by == "train"][-1:]
    warning = _set_aside(path) if damaged else ""
    _write(path, _that_fit([*(m for m in own if m not in kept), *kept, measurement]))
    return warning


def _that_fit(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The newest that a file can hold which is read again, and the training's own."""
    own = max((i for i, m in enumerate(measurements) if m.by == "train"), default=0)
    fit, room = set[int](), _MOST_BYTES - 1_000
    for i in dict.fromkeys((len(measurements) - 1, own, *reversed(range(len(measurements))))):
        room -= len(_text_of(measurements[i])) + 2
        if room < 0:
            break
        fit.add(i)
    return [m for i, m in enumerate(measurements) if i in fit]


def forget_later(path: Path, step: int) -> str:
    """Forget what was measured after so many steps of training: a run that went back trains them anew.

    Returns a warning, or nothing.
    """
    measured, damaged = _read(path)
    kept = [m for m in measured if m.trained <= step]
    warning = _set_aside(path) if damaged else ""
    if damaged or len(kept) < len(measured):
        _write(path, kept)
    return warning


def _set_aside(path: Path) -> str:
    aside = path.with_name(f"damaged_{path.name}")
    path.replace(aside)
    return f"{path} is damaged. It is kept as {aside}; what can be read of it goes into a new {path.name}."


def _write(path: Path, measurements: Sequence[Measurement]) -> None:
    text = ",\n".join(map(_text_of, measurements))
    persistently(lambda: write_whole(path, f"[\n{text}\n]\n"))


def _text_of(measurement: Measurement) -> str:
    return json.dumps(asdict(measurement), separators=(",", ":"))


def read_measurements(path: Path) -> list[Measurement]:
    """All measurements; none where the file is missing, damaged or a stranger's."""
    return _read(path)[0]


def _read(path: Path) -> tuple[list[Measurement], bool]:
    """What can be read, and whether there is something that cannot."""
    try:
        found = parse_json(read_bounded(path, _MOST_BYTES))
    except FileNotFoundError:
        return [], False
    except (OSError, ValueError, LudusError):
        return [], True
    if not isinstance(found, list):
        return [], True
    measured = [m for row in found[-1000:] if (m := _measurement(row)) is not None]
    return measured, len(measured) < len(found)


def headline(measurements: Sequence[Measurement], checkpoint: str) -> Measurement | None:
    """The measurement that tells how good the policy of a checkpoint is: with the most episodes, the newest."""
    usual = [m for m in measurements if m.usual and m.checkpoint == checkpoint]
    return max(reversed(usual), key=lambda m: m.result.get("episodes", 0), default=None)


def newest_evaluation(path: Path, step: int | None = None) -> tuple[int, list[Episode]]:
    """Step and episodes of the newest evaluation in episodes.jsonl, or of that at `step`; most likely actions."""
    try:
        lines = read_bounded(path, 60_000_000).splitlines()
    except (OSError, LudusError):
        return 0, []
    words = _words(_row(lines[0]).get("words")) if lines else {}
    for row in map(_row, reversed(lines)):
        if row.get("actions") == "deterministic" and _is_count(row.get("step")) and step in (None, row["step"]):
            return row["step"], episodes_of(row, words)
    return 0, []


def episodes_of(record: Mapping[str, Any], words: Mapping[str, Sequence[str]]) -> list[Episode]:
    """The episodes of a record (Evaluation.record) of which every number is one."""
    columns = [record.get(name) for name in ("episode", "return", "length")]
    if not all(isinstance(column, list) for column in columns):
        return []
    successes = _column(record.get("success"))
    found = record.get("starts")
    named = [*found.items()][:_MOST_NAMES] if isinstance(found, dict) else []
    starts = {_plain(name): _column(values) for name, values in named}
    cut = set(_column(record.get("cut")))
    episodes = []
    for i, (number, total, length) in enumerate(zip(*columns, strict=False)):
        if not (_is_count(number) and _is_count(length) and _is_number(total)):
            continue
        start = {name: _told(values[i], words.get(name)) for name, values in starts.items() if i < len(values)}
        known = {name: value for name, value in start.items() if value is not None}
        success = successes[i] if i < len(successes) else None
        episodes.append(Episode(number, total, length, success, known, number in cut))
    return episodes


def _told(value: float | None, words: Sequence[str] | None) -> float | str | None:
    if words and value is not None and value == int(value) and 0 <= value < len(words):
        return words[int(value)]
    return value


# Reading what may be a stranger's -------------------------------------------------------------------
def _measurement(row: Any) -> Measurement | None:
    if not isinstance(row, dict) or row.get("by") not in ("train", "eval"):
        return None
    tables: list[Any] = [row.get(name) for name in ("result", "settings", "episodes")]
    right = all(isinstance(table, dict) and _is_shallow(table) for table in tables)
    right &= all(isinstance(row.get(name), str) for name in ("checkpoint", "date"))
    right &= all(_is_count(row.get(name)) for name in ("step", "trained", "seed"))
    if not right or row.get("actions") not in ("deterministic", "sampled"):
        return None
    result, settings, record = tables
    told = {_plain(n): v for n, v in [*result.items()][:_MOST_NAMES] if _is_number(v)}
    return Measurement(
        row["by"], _plain(row["checkpoint"]), row["step"], row["trained"], row.get("best") is True, row["actions"],
        row["seed"], told, _plain(row["date"]), {_plain(n): v for n, v in [*settings.items()][:_MOST_NAMES]},
        row.get("fixed_starts") is True, record, _words(row.get("words")),
    )  # fmt: skip


def _row(line: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        row = parse_json(line)
        return row if isinstance(row, dict) else {}
    return {}


def _words(found: Any) -> dict[str, list[str]]:
    if not isinstance(found, dict):
        return {}
    lists = {n: v for n, v in [*found.items()][:_MOST_NAMES] if isinstance(v, list)}
    return {_plain(name): [_plain(str(word)) for word in words[:_MOST_WORDS]] for name, words in lists.items()}


def _is_shallow(value: Any, most: int = 6) -> bool:
    """Nested no further than what Ludus writes."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not inner or (most > 0 and all(_is_shallow(part, most - 1) for part in inner))


def _column(found: Any) -> list[float | None]:
    return [value if _is_number(value) else None for value in found] if isinstance(found, list) else []


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) <= _LARGEST and not math.isnan(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**63


def _plain(text: str) -> str:
    return plain_text(text, _LONGEST_WORD)
