"""The numbers of a comparison between groups of runs. A group is one setting, trained with some seeds."""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ludus.errors import plain_text
from ludus.show import text
from ludus.show.meanings import meaning
from ludus.show.statistics import (
    FEWEST_FOR_IQM,
    Estimate,
    interquartile_mean,
    mean,
    median,
    probability_of_improvement,
)

FEWEST_SEEDS = 5  # with which a group is no longer warned about
_SUCCESS_THRESHOLD = 0.9
_WAY_THRESHOLD = 0.9  # of the way from where the runs began to where the best group ended
_LAST_SHARE = 0.1  # of the common steps, over whose evaluations the end of a curve is averaged
_MOST_PLACES = 200  # at which a mean curve is drawn
_LONGEST_VALUE = 200


@dataclass(frozen=True)
class Curve:
    """A metric of one run, where it was finite."""

    steps: Sequence[float]
    seconds: Sequence[float]  # of training; empty where they are not known
    values: Sequence[float]


@dataclass(frozen=True)
class ComparedRun:
    """One run of a group."""

    path: Path
    seed: str
    curve: Curve
    step: int  # trained so far
    finished: bool
    measured: float | None = None  # the metric of its best policy on new starts
    version: str = ""

    @property
    def seconds(self) -> float | None:
        return self.curve.seconds[-1] if self.curve.seconds else None


@dataclass(frozen=True)
class Group:
    name: str
    runs: Sequence[ComparedRun]


@dataclass(frozen=True)
class Summary:
    """One figure of a group, over its seeds."""

    values: Sequence[float | None]  # in the order of the group's runs; None where a run has none
    higher_is_better: bool

    @cached_property
    def known(self) -> list[float]:
        return [value for value in self.values if value is not None]

    @property
    def n(self) -> int:
        return len(self.known)

    @cached_property
    def mean(self) -> Estimate | None:
        return mean(self.known) if self.known else None

    @cached_property
    def iqm(self) -> Estimate | None:
        """From five seeds on."""
        return interquartile_mean(self.known) if self.n >= FEWEST_FOR_IQM else None

    @property
    def worst(self) -> int | None:
        """Which of the group's runs."""
        places = [i for i, value in enumerate(self.values) if value is not None]
        sign = 1 if self.higher_is_better else -1
        return min(places, key=lambda i: sign * (self.values[i] or 0.0), default=None)

    def better_than(self, other: "Summary") -> Estimate | None:
        """The probability that a seed of this group is better than one of the other."""
        if not (self.known and other.known):
            return None
        pair = (self.known, other.known) if self.higher_is_better else (other.known, self.known)
        return probability_of_improvement(*pair)


@dataclass(frozen=True)
class Figure:
    """One way to say how good a run is, over all groups."""

    title: str
    about: str
    summaries: Sequence[Summary]  # one a group


@dataclass(frozen=True)
class Reached:
    """When the runs of a group reached the threshold."""

    steps: Sequence[float]  # of every run, infinite where it did not
    seconds: Sequence[float]

    @property
    def count(self) -> int:
        return sum(map(math.isfinite, self.steps))

    @property
    def median_steps(self) -> float | None:
        return _finite(median(self.steps)) if self.steps else None

    @property
    def median_seconds(self) -> float | None:
        return _finite(median(self.seconds)) if self.seconds else None


class Band(NamedTuple):
    """The mean of some curves, and its interval where there are several."""

    places: list[float]
    means: list[float]
    lows: list[float]
    highs: list[float]


@dataclass(frozen=True)
class Numbers:
    """All numbers of a comparison; the first group is the one that the others are held against."""

    metric: str
    groups: Sequence[Group]
    settings: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # that differ: one value a group
    measured_on: str = ""  # which new starts; empty where the runs were not measured alike
    asked_threshold: float | None = None
    unit: str = "steps"  # or "batches", where only a reward was learned
    warnings: Sequence[str] = ()

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for group in self.groups for run in group.runs]

    @property
    def higher_is_better(self) -> bool:
        known = meaning(self.metric)
        return known is None or not known.usual.startswith("falls")

    @property
    def is_share(self) -> bool:
        """Whether the metric lies between 0 and 1."""
        return self.metric.endswith("success_rate")

    @property
    def label(self) -> str:
        """The metric in words."""
        words = {"success_rate": "success rate", "mean_reward": "return", "ep_rew_mean": "return in training"}
        return words.get(self.metric.rpartition("/")[2]) or text.label(self.metric)

    def show(self, value: float | None) -> str:
        """With as many digits as all others of the metric, so that they stand below each other."""
        if self.is_share or value is None or not self._size:
            return text.percent(value) if self.is_share else text.number(value)
        if not 1e-3 <= self._size < 1e9:
            return f"{value:.3g}"
        return f"{value:,.{max(0, 3 - math.floor(math.log10(self._size)))}f}"

    @cached_property
    def _size(self) -> float:
        """Of the largest figure."""
        return max((abs(v) for figure in self.figures for own in figure.summaries for v in own.known), default=0.0)

    def show_threshold(self) -> str:
        return text.percent(self.threshold, 0) if self.is_share else text.number(self.threshold)

    def show_estimate(self, estimate: Estimate | None) -> str:
        """'487.2 (451.0 – 523.4)'."""
        if estimate is None:
            return text.MISSING
        value, low, high = estimate
        if low is None or high is None:
            return self.show(value)
        if self.is_share:  # where the t interval of a few seeds may end outside
            low, high = max(low, 0.0), min(high, 1.0)
            return f"{text.percent(value)} ({100 * low:.1f} – {100 * high:.1f})"
        return f"{self.show(value)} ({self.show(low)} – {self.show(high)})"

    @cached_property
    def common_step(self) -> int:
        """Up to which every run has come."""
        return int(min((run.curve.steps[-1] for run in self.runs if run.curve.steps), default=0))

    @cached_property
    def figures(self) -> list[Figure]:
        """The result on new starts, where all runs have one, and the end of the curves."""
        about = f"mean of the last tenth of {self.common_step:,} {self.unit}, which all runs have"
        found = [self._figure("End of training", about, lambda run: end_of(run.curve, self.common_step))]
        if self.measured_on:
            found.insert(0, self._figure("Best policy on new starts", self.measured_on, lambda run: run.measured))
        return found

    def _figure(self, title: str, about: str, value: Callable[[ComparedRun], float | None]) -> Figure:
        better = self.higher_is_better
        return Figure(title, about, [Summary([value(run) for run in g.runs], better) for g in self.groups])

    @cached_property
    def threshold(self) -> float | None:
        """As asked; else a success rate of 90 %, or 90 % of the way from the first evaluations to the best end."""
        if self.asked_threshold is not None:
            return self.asked_threshold
        if self.is_share:
            return _SUCCESS_THRESHOLD
        starts = [run.curve.values[0] for run in self.runs if run.curve.values]
        ends = [summary.mean.value for summary in self.figures[-1].summaries if summary.mean is not None]
        if not (starts and ends):
            return None
        start, end = sum(starts) / len(starts), (max if self.higher_is_better else min)(ends)
        return float(f"{start + _WAY_THRESHOLD * (end - start):.3g}")  # a number that a user can say again

    @cached_property
    def reached(self) -> list[Reached]:
        """When each group came to the threshold."""
        return [Reached(*map(list, zip(*map(self._reached_by, group.runs), strict=True))) for group in self.groups]

    def _reached_by(self, run: ComparedRun) -> tuple[float, float]:
        if self.threshold is None:
            return math.inf, math.inf
        sign, curve = 1 if self.higher_is_better else -1, run.curve
        places = (i for i, value in enumerate(curve.values) if sign * value >= sign * self.threshold)
        first = next(places, None)
        if first is None:
            return math.inf, math.inf
        return curve.steps[first], curve.seconds[first] if curve.seconds else math.inf


def told_value(value: Any) -> str:
    """Of a setting, which may be a stranger's."""
    try:
        told = value if isinstance(value, str) else json.dumps(value, default=str)
    except (ValueError, TypeError, RecursionError):
        told = "…"
    return plain_text(told, _LONGEST_VALUE)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def end_of(curve: Curve, step: float) -> float | None:
    """The mean over the last tenth before a step, or the last value before it."""
    end = bisect_right(curve.steps, step)
    if not end:
        return None
    begin = min(bisect_right(curve.steps, (1 - _LAST_SHARE) * step), end - 1)
    return math.fsum(curve.values[begin:end]) / (end - begin)


def mean_curve(curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Band:
    """The mean of curves (places, values), with its t interval, over the places that all of them span."""
    curves = [curve for curve in curves if curve[0]]
    if not curves:
        return Band([], [], [], [])
    low, high = max(places[0] for places, _ in curves), min(places[-1] for places, _ in curves)
    places = sorted({place for own, _ in curves for place in own if low <= place <= high})
    places = places[:: 1 + len(places) // _MOST_PLACES] + places[-1:]
    found = [mean([value_at(*curve, place) for curve in curves]) for place in dict.fromkeys(places)]
    lows = [estimate.low for estimate in found if estimate.low is not None]
    highs = [estimate.high for estimate in found if estimate.high is not None]
    return Band([*dict.fromkeys(places)], [estimate.value for estimate in found], lows, highs)


def value_at(places: Sequence[float], values: Sequence[float], place: float) -> float:
    """Of a curve between its points, by a straight line."""
    after = bisect_right(places, place)
    if after == 0 or after == len(places):
        return values[max(after - 1, 0)]
    x0, x1 = places[after - 1], places[after]
    return values[after - 1] + (values[after] - values[after - 1]) * (place - x0) / (x1 - x0)
