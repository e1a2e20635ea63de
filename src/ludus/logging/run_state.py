"""What is known of a running training, for whoever shows it: updated all the time, read now and then."""

import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import psutil
import torch

_HISTORY_ROWS = 400
_HISTORY_OF = ("rollout/success_rate", "rollout/ep_rew_mean", "eval/success_rate", "eval/mean_reward")


def quality(metrics: Mapping[str, float]) -> tuple[float, float]:
    """What 'best' means of an evaluation: (success, reward), the second to break ties.

    Where sampled actions were evaluated too, the best policy is good with both.
    """

    def mean(name: str) -> float:
        values = [metrics[p + name] for p in ("eval/", "eval_stochastic/") if p + name in metrics]
        known = [value for value in values if not math.isnan(value)]
        return sum(known) / len(known) if known else -math.inf

    return mean("success_rate"), mean("mean_reward")


@dataclass
class Evaluation:
    step: int
    metrics: dict[str, float]


@dataclass
class RunState:
    title: str = ""
    total_steps: int = 0
    start_step: int = 0
    step: int = 0
    note: str = ""
    metrics: dict[str, float] = field(default_factory=dict)  # the newest value of every metric
    history: dict[str, deque[float]] = field(default_factory=dict)
    last_evaluation: Evaluation | None = None
    best_evaluation: Evaluation | None = None
    started_at: float = field(default_factory=time.monotonic)
    _row_at: float = 0.0  # when the newest row came: elapsed and remaining time run on from there

    def start(self, total_steps: int, start_step: int) -> None:
        self.total_steps, self.start_step, self.step = total_steps, start_step, start_step
        self.started_at = self._row_at = time.monotonic()

    def add_row(self, step: int, metrics: dict[str, float]) -> None:
        self.step = max(self.step, step)
        self._row_at = time.monotonic()
        if "system/memory_mb" not in metrics:
            metrics = metrics | system_metrics()
        self.metrics = self.metrics | metrics  # a new dict: the drawing thread may be reading the old one
        for name in _HISTORY_OF:
            if name in metrics:
                self.history.setdefault(name, deque(maxlen=_HISTORY_ROWS)).append(metrics[name])
        if "eval/mean_reward" in metrics or "eval/success_rate" in metrics:
            self._note_evaluation(step, metrics)

    def add_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        self._note_evaluation(step, metrics)
        self.metrics = self.metrics | metrics

    def _note_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        self.last_evaluation = Evaluation(step, metrics)
        if self.best_evaluation is None or quality(metrics) > quality(self.best_evaluation.metrics):
            self.best_evaluation = self.last_evaluation

    @property
    def fraction(self) -> float:
        return min(1.0, self.step / self.total_steps) if self.total_steps > 0 else 0.0

    @property
    def elapsed(self) -> float:
        """Seconds of training, with those before a resume where the rows tell them."""
        now = time.monotonic()
        told = self.metrics.get("time/elapsed_s")
        return now - self.started_at if told is None else told + now - self._row_at

    @property
    def eta(self) -> float | None:
        told = self.metrics.get("time/eta_s")
        if told is not None and math.isfinite(told):
            return max(0.0, told - (time.monotonic() - self._row_at)) if self.fraction < 1 else 0.0
        speed = self.speed
        return (self.total_steps - self.step) / speed if speed and self.total_steps else None

    @property
    def speed(self) -> float | None:
        """Steps a second: the newest told, or the mean since the start."""
        told = self.metrics.get("time/fps")
        if told is not None:
            return told
        seconds = time.monotonic() - self.started_at
        done = self.step - self.start_step
        return done / seconds if seconds > 1 and done > 0 else None


def system_metrics() -> dict[str, float]:
    """Memory of this process and its children, and of the GPU where there is one."""
    try:
        process = psutil.Process()
        family = [process, *process.children(recursive=True)]
        metrics = {"system/memory_mb": sum(_resident_mb(p) for p in family)}
    except psutil.Error:
        return {}
    if torch.cuda.is_available():
        metrics["system/gpu_memory_mb"] = torch.cuda.max_memory_reserved() / 2**20
    return metrics


def _resident_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.Error:  # it has just ended
        return 0.0
