"""Where a run is, and which evaluation was its best: what every checkpoint counts."""

import math
from dataclasses import asdict, dataclass
from typing import Any

_BEST = ("best_success", "best_reward", "best_step", "best_task")
# Older checkpoints lack these.
_NEWER = ("best_task", "epoch_loss", "epoch_batches", "episode_lines", "stage", "stage_passed")


@dataclass
class Counters:
    """Where a run is. Saved with every checkpoint."""

    iteration: int = 0
    metric_rows: int = 0
    seconds: float = 0.0
    best_success: float = float("-inf")  # of the best evaluation so far; the success rate first, then the return
    best_reward: float = float("-inf")
    best_step: int = -1
    best_task: str = ""  # what was judged; a resume may change it, and then the search begins anew
    evaluation_owed: bool = False  # an interrupt cut the epoch's evaluation short
    rollbacks: int = 0
    stage: int = 0
    stage_passed: bool = False  # an evaluation was as good as the stage asks for
    logged_batches: int = 0  # whose losses are in the batch log
    epoch_loss: float = 0.0  # the sum of those of the present epoch …
    epoch_batches: int = 0  # … and how many they are
    episode_lines: int = 0  # in the log of evaluated episodes

    @property
    def best(self) -> tuple[Any, ...]:
        """Success, reward, step and task of the best evaluation."""
        return tuple(getattr(self, name) for name in _BEST)

    @best.setter
    def best(self, best: tuple[Any, ...]) -> None:
        for name, value in zip(_BEST, best, strict=True):
            setattr(self, name, value)

    def saved(self) -> dict[str, Any]:
        """JSON has no infinity, which is where the search for the best begins."""
        return asdict(self) | {name: str(getattr(self, name)) for name in ("best_success", "best_reward")}


def counters_from(saved: dict[str, Any]) -> Counters:
    """Counters from a checkpoint, which must be numbers of the right kind."""
    kinds = {name: type(value) for name, value in asdict(Counters()).items()}
    saved = {name: getattr(Counters(), name) for name in _NEWER} | saved
    values = {name: kind(saved[name]) for name, kind in kinds.items()}
    counts = [value for value in values.values() if type(value) is int]
    if min(counts) < -1 or max(counts) > 10**15 or not math.isfinite(values["seconds"]):
        raise ValueError("a counter is out of its range")
    return Counters(**values)
