"""What is known of a running training, for whoever shows it: updated all the time, read now and then."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ludus.display import Display

_HISTORY_ROWS = 400
_HISTORY_OF = (
    "rollout/success_rate",
    "rollout/ep_rew_mean",
    "eval/success_rate",
    "eval/mean_reward",
    "train/r_loss",
)


def quality(metrics: Mapping[str, float]) -> tuple[float, float]:
    """What 'best' means of an evaluation: (success, reward), the second to break ties.

    Where sampled actions were evaluated too, the best policy is good with both. Where no policy was evaluated
    but a learned reward on held-out episodes, they are its AUC and its R² (or its correlation).
    """
    if not any(name.startswith(("eval/", "eval_stochastic/")) for name in metrics):
        # To two digits: of two that tell nearly all episodes apart, the better is the one that fits their returns.
        told_apart = round(_first_known(metrics, "reward/AUC"), 2)
        return told_apart, _first_known(metrics, "reward/R2", "reward/correlation")

    def mean(name: str) -> float:
        values = [metrics[p + name] for p in ("eval/", "eval_stochastic/") if p + name in metrics]
        known = [value for value in values if not math.isnan(value)]
        return sum(known) / len(known) if known else -math.inf

    return mean("success_rate"), mean("mean_reward")


def is_other_task(metrics: Mapping[str, float], others: Mapping[str, float]) -> bool:
    """Whether two evaluations are of different stages of a curriculum, and so cannot be compared."""
    return metrics.get("eval/task", 1.0) != others.get("eval/task", 1.0)


def _first_known(metrics: Mapping[str, float], *names: str) -> float:
    return next((metrics[n] for n in names if not math.isnan(metrics.get(n, math.nan))), -math.inf)


class Level(NamedTuple):
    """How far one of the nested loops is: 12 of 100 cycles."""

    name: str
    done: int
    total: int


class Course:
    """A value over the whole run, as means over ever longer stretches: never more than _HISTORY_ROWS of them."""

    def __init__(self, before: Iterable[float] = ()) -> None:
        self.means: list[float] = []
        self._stretch = 1
        self._sum, self._count = 0.0, 0
        for value in before:
            self.add(value)

    def add(self, value: float) -> None:
        if not math.isfinite(value):  # one bad batch would spoil the mean of a whole stretch
            return
        self._sum, self._count = self._sum + value, self._count + 1
        if self._count < self._stretch:
            return
        self.means.append(self._sum / self._count)
        self._sum, self._count = 0.0, 0
        if len(self.means) >= _HISTORY_ROWS:  # a new list: the drawing thread may be reading the old one
            self.means = [(a + b) / 2 for a, b in zip(self.means[::2], self.means[1::2], strict=True)]
            self._stretch *= 2


@dataclass
class Evaluation:
    step: int
    metrics: dict[str, float]


@dataclass
class RunState:
    title: str = ""
    display: Display = field(default_factory=Display)  # what the task has to show besides
    every_row: bool = False  # whether a plain log is wanted in full
    total_steps: int = 0
    start_step: int = 0
    step: int = 0
    unit: str = "steps"  # what is counted: steps of the environment, or batches where there is none
    note: str = ""
    iteration: str = ""  # what the newest iteration said of itself
    levels: tuple[Level, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)  # the newest value of every metric
    logged: tuple[str, ...] = ()  # those that a user's callbacks have logged
    history: dict[str, deque[float]] = field(default_factory=dict)
    courses: dict[str, Course] = field(default_factory=dict)  # told between the rows
    last_evaluation: Evaluation | None = None
    best_evaluation: Evaluation | None = None
    training_time: float | None = None  # in seconds, when it has come to its end
    clock: Callable[[], float] = time.monotonic  # seconds since any moment
    started_at: float = field(init=False)
    _told_at: dict[str, int] = field(default_factory=dict)  # the newest step in the history of a metric
    _row_at: float = 0.0  # when the newest row came: elapsed and remaining time run on from there

    def __post_init__(self) -> None:
        self.started_at = self.clock()

    def start(self, total_steps: int, start_step: int, unit: str = "steps") -> None:
        self.total_steps, self.start_step, self.step, self.unit = total_steps, start_step, start_step, unit
        self.started_at = self._row_at = self.clock()

    def add_row(self, step: int, metrics: dict[str, float]) -> None:
        self.step = max(self.step, step)
        self._row_at = self.clock()
        self.metrics = self.metrics | metrics  # a new dict: the drawing thread may be reading the old one
        self._add_history(step, metrics)
        held_out = self.reward_only and any(name.startswith("reward/") for name in metrics)
        if "eval/mean_reward" in metrics or "eval/success_rate" in metrics or held_out:
            self._note_evaluation(step, metrics)

    def add_recent(self, name: str, value: float) -> None:
        """A value of between two rows."""
        if name not in self.courses:  # a new dict: the drawing thread may be reading the old one
            self.courses = self.courses | {name: Course(self.history.get(name, ()))}
        self.courses[name].add(value)
        self.metrics = self.metrics | {name: value}

    def past(self, name: str) -> Sequence[float]:
        """The metric's values so far, oldest first."""
        course = self.courses.get(name)
        return tuple(self.history.get(name, ())) if course is None else tuple(course.means)

    @property
    def reward_only(self) -> bool:
        """Whether only a reward is learned, from recorded data: nobody acts, so there is no return to show."""
        names = self.metrics
        if any(name.startswith(("rollout/", "eval/")) for name in names):
            return False
        return self.unit != "steps" or any(n == "train/r_loss" or n.startswith("reward/") for n in names)

    def add_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        self.metrics = self.metrics | metrics
        self._add_history(step, {name: v for name, v in metrics.items() if name.startswith("reward/")})
        self._note_evaluation(step, metrics)

    def _add_history(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            told = name.startswith("reward/") and self._told_at.get(name) == step  # as a row and as an evaluation
            if told or not (name in _HISTORY_OF or name in self.logged or name.startswith("reward/")):
                continue
            self._told_at[name] = step
            if name not in self.history:
                self.history = self.history | {name: deque(maxlen=_HISTORY_ROWS)}
            self.history[name].append(value)

    def _note_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        self.last_evaluation = Evaluation(step, metrics)
        best = self.best_evaluation
        compared = best is not None and not is_other_task(best.metrics, metrics)
        if quality(metrics) > (quality(best.metrics) if best and compared else (-math.inf, -math.inf)):
            self.best_evaluation = self.last_evaluation

    @property
    def fraction(self) -> float:
        return min(1.0, self.step / self.total_steps) if self.total_steps > 0 else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds of training, with those before a resume where the rows tell them."""
        if self.training_time is not None:
            return self.training_time
        now = self.clock()
        told = self.metrics.get("time/time_elapsed")
        return now - self.started_at if told is None else told + now - self._row_at

    @property
    def eta(self) -> float | None:
        told = self.metrics.get("time/eta_s")
        if told is not None and math.isfinite(told):
            return max(0.0, told - (self.clock() - self._row_at)) if self.fraction < 1 else 0.0
        speed = self.speed
        return (self.total_steps - self.step) / speed if speed and self.total_steps else None

    @property
    def speed(self) -> float | None:
        """Steps a second: the newest told, or the mean since the start."""
        told = self.metrics.get("time/fps")
        if told is not None:
            return told
        seconds = self.clock() - self.started_at
        done = self.step - self.start_step
        return done / seconds if seconds > 1 and done > 0 else None
