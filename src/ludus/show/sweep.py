"""The numbers of a sweep, and what they say."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ludus.show import text
from ludus.show.comparison import Group, Numbers, Summary
from ludus.show.statistics import Estimate, difference

FEW_SEEDS = 3  # with which the interval of a difference is wide


@dataclass(frozen=True)
class ShownTrial:
    """A trial at a glance."""

    number: int
    values: Mapping[str, str]  # as a flag takes them
    places: Mapping[str, float]  # of the values in their ranges, 0 to 1
    scores: Sequence[float]  # one a rung
    steps: int = 0  # of all its seeds
    failed: str = ""
    is_default: bool = False

    @property
    def rung(self) -> int:
        """Counted from 1; 0: none yet."""
        return len(self.scores)

    @property
    def name(self) -> str:
        return f"trial {self.number}" + (" (default)" if self.is_default else "")


@dataclass(frozen=True)
class ShownParameter:
    name: str
    range: str
    ends: Sequence[tuple[float, str]]  # places between 0 and 1, and the values there

    @property
    def short(self) -> str:
        return self.name.rpartition(".")[2]


@dataclass(frozen=True)
class SweepNumbers:
    """A sweep as it is shown."""

    title: str
    folder: str
    metric: str
    higher_is_better: bool
    parameters: Sequence[ShownParameter]
    trials: Sequence[ShownTrial]
    best: Sequence[int]  # numbers of the trials, the best first
    planned: int  # trials; 0: as many as the time allows
    rung_steps: Sequence[int]
    eta: int
    seeds: Sequence[int]
    steps_used: int = 0
    steps_anew: int = 0  # of halving that begins again at every rung
    importances: Mapping[str, float] = field(default_factory=dict)
    commands: Mapping[int, str] = field(default_factory=dict)  # that train a trial alone
    default_command: str = ""  # that trains the preset's own settings
    confirmation: Numbers | None = None  # its first group are the preset's own settings

    @property
    def label(self) -> str:
        return Numbers(self.metric, ()).label if self.metric else "score"

    @property
    def failed(self) -> list[ShownTrial]:
        return [trial for trial in self.trials if trial.failed]

    @property
    def default(self) -> ShownTrial | None:
        return next((trial for trial in self.trials if trial.is_default), None)

    def at_rung(self) -> list[int]:
        """How many trials have come to each rung."""
        return [sum(t.rung > rung and not t.failed for t in self.trials) for rung in range(len(self.rung_steps))]

    def show(self, value: float | None) -> str:
        if self.metric.endswith("success_rate"):
            return text.percent(value)
        if value is None or not 1e-3 <= self._size < 1e9:
            return text.number(value)
        return f"{value:,.{max(0, 3 - math.floor(math.log10(self._size)))}f}"

    @cached_property
    def _size(self) -> float:
        return max((abs(score) for trial in self.trials for score in trial.scores), default=0.0)


def told_group(group: Group) -> str:
    """'trial 7', or 'default'."""
    number = number_of(group)
    return group.name if number is None else f"trial {number}"


def number_of(group: Group) -> int | None:
    """Of a confirmed trial; None of the preset's own settings."""
    digits = group.name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else None


# The verdict ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Verdict:
    """A trial against the preset's own settings, on seeds that no trial has seen."""

    group: Group
    mean: float
    gain: Estimate  # more is better, whatever the metric
    share: float | None  # of the default's mean; None where that makes no sense

    @property
    def is_better(self) -> bool:
        return self.gain.low is not None and self.gain.low > 0

    @property
    def is_worse(self) -> bool:
        return self.gain.high is not None and self.gain.high < 0


def verdicts(confirmation: Numbers) -> list[Verdict]:
    """Of every confirmed trial, the best first."""
    summaries = confirmation.figures[0].summaries
    default, sign = summaries[0], 1 if confirmation.higher_is_better else -1
    found = [_verdict(*pair, default, sign) for pair in zip(confirmation.groups[1:], summaries[1:], strict=True)]
    return sorted((verdict for verdict in found if verdict is not None), key=lambda v: -v.gain.value)


def _verdict(group: Group, own: Summary, default: Summary, sign: int) -> Verdict | None:
    if not own.known or not default.known or own.mean is None or default.mean is None:
        return None
    gain = difference([sign * v for v in own.known], [sign * v for v in default.known])
    share = gain.value / default.mean.value if default.mean.value > 0 else None
    return Verdict(group, own.mean.value, gain, share)


def verdict_lines(confirmation: Numbers) -> list[str]:
    """What the confirmation says, in words; the first line is the one to remember."""
    found = verdicts(confirmation)
    default = confirmation.figures[0].summaries[0]
    if not found or default.mean is None:
        return ["The confirmation has no result."]
    best, n, show = found[0], default.n, confirmation.show
    name, told = told_group(best.group), confirmation.label
    if best.gain.value <= 0:
        head = f"The default is as good as the best of these trials, or better: keep it. {name.capitalize()}"
    elif best.is_better:
        head = f"{name.capitalize()} is better than the default"
    else:
        head = f"{name.capitalize()} is ahead of the default, but within what chance does with {n} seeds"
    share = "" if best.share is None else f", {100 * best.share:+.1f} %"
    interval = (
        ""
        if best.gain.low is None
        else f" (95 % interval {_signed(best.gain.low, show)} to {_signed(best.gain.high, show)})"
    )
    lines = [
        f"{head}: {told} {show(best.mean)} against {show(default.mean.value)}{share}; "
        f"difference {_signed(best.gain.value, show)}{interval}."
    ]
    if best.gain.value > 0 and not best.is_better:
        lines.append("More seeds would tell: go on with --confirm-seeds 10.")
    return lines


def _signed(value: float | None, show: Any) -> str:
    return "–" if value is None else ("+" if value >= 0 else "−") + show(abs(value))
