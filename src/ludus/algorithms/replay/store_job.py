"""What all learning from a store has in common, whoever fills it."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from ludus.algorithms.replay.batches import Batches
from ludus.algorithms.replay.config import StoreTrainConfig
from ludus.algorithms.replay.recorded import Recorded
from ludus.buffers.replay import Replay
from ludus.envs.vec import State
from ludus.training.checkpoint import Model
from ludus.training.job import Job
from ludus.training.timing import Timing

# Our names, and those of return decomposition's table.
_TABLE = {
    "train/r_loss": "R_loss",
    "train/critic_loss": "Q_loss",
    "train/loss": "Q_loss",  # DQN's
    "train/actor_loss": "Pi_loss",
}


class StoreJob(Job):
    """A store and the batches that are made of it."""

    batch_loss = "R_loss"

    _skipped: Tensor
    _tried: int
    recorded: Recorded | None = None  # where the store was filled from files, which are not in a checkpoint

    def __init__(
        self,
        config: StoreTrainConfig,
        device: torch.device,
        store: Replay,
        batches: Batches,
        models: dict[str, Model],
    ) -> None:
        self.config, self.device, self.store, self.models = config, device, store, models
        self.batches = batches
        self.timing = Timing()
        self.tabulated = config.reward.method != "none"  # rows have the names of return decomposition's table, too
        self._means = Means()
        self._losses: list[Tensor] = []  # of the batches since the last call of `take_batch_losses`
        self._rate_factor = 1.0
        self._judge_anew()

    def _learn(self, on_batch: Callable[[int], None]) -> dict[str, Tensor]:
        """The batches of an iteration."""
        started = time.perf_counter()
        metrics = self.batches.update(on_batch)
        if "reward" in self.models:
            self._losses.append(self.batches.reward_losses.clone())
        self._means.add(metrics)
        if not self.waits:  # asked once a cycle: of all its iterations
            self._tried += self.plan.batches_per_iteration
            self._skipped = self._skipped + metrics["train/skipped_updates"]
            metrics["train/skipped_updates"] = self._skipped
        self.timing.learn += time.perf_counter() - started
        return metrics

    def _judge_anew(self) -> None:
        self._skipped = torch.zeros((), device=self.device)  # gradient steps of the cycle that were not finite
        self._tried = 0  # all of them

    @property
    def judged_batches(self) -> int:
        return super().judged_batches if self.waits else self._tried

    def cycle_metrics(self) -> dict[str, float]:
        store = self.store
        self._judge_anew()
        seen = {"Episodes": store.total_episodes_added, "Timesteps": store.steps + store.open_steps}
        return {**self._means.take(), **(seen if self.tabulated else {})}

    def other_names(self, metrics: dict[str, float], seconds: float) -> dict[str, float]:
        """Of return decomposition's table."""
        if not self.tabulated:
            return {}
        if "loop/epoch" not in metrics:  # an evaluation
            return {"TimeCost(sec)/test": seconds}
        place = {"Epoch": metrics["loop/epoch"], "Cycle": metrics["loop/cycle"], "TimeCost(sec)/train": seconds}
        return place | {public: metrics[ours] for ours, public in _TABLE.items() if ours in metrics}

    def newest_losses(self) -> Tensor | None:
        return self._losses[-1] if self._losses else None

    def take_batch_losses(self) -> Tensor | None:
        if not self._losses:
            return None
        losses, self._losses = torch.cat(self._losses), []
        return losses

    @property
    def rate_factor(self) -> float:
        return self._rate_factor

    def set_rate_factor(self, factor: float) -> None:
        self._rate_factor = factor
        self.batches.set_rate_factor(factor)

    def suspects(self) -> dict[str, Tensor]:
        return self.batches.drawn()

    def weights(self) -> list[Tensor]:
        return self.batches.weights()

    def state(self, whole: bool) -> State:
        return {
            "batches": self.batches.state(),
            "means": self._means.state(),
            "rate_factor": self._rate_factor,
            "data": None if self.recorded is None else self.recorded.fingerprint(),
        }

    def own_paths(self) -> tuple[str, ...]:
        return ("batches/generator",)

    def load_state(self, state: State, iteration: int) -> bool:
        if self.recorded is not None:
            self.recorded.check_same(state["data"])
        self.batches.load_state(state["batches"])
        self._means.load_state(state["means"])
        self.set_rate_factor(state["rate_factor"])
        self._losses = []
        self._judge_anew()
        return True

    def _batches_line(self, total: int = 0) -> str:
        """How much there is to learn, by default in the batches of the plan."""
        total = total or self.plan.total_batches
        return f"{total:,} batch{'es' * (total > 1)}"


class Means:
    """Means of metrics over the iterations of a cycle, kept on the device until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, metrics: dict[str, Tensor]) -> None:
        for name, value in metrics.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
        self._count += 1

    def take(self) -> dict[str, float]:
        means = {name: float(value) / self._count for name, value in self._sums.items()}
        self._sums, self._count = {}, 0
        return means

    def state(self) -> State:
        return {"sums": {name: value.clone() for name, value in self._sums.items()}, "count": self._count}

    def load_state(self, state: State) -> None:
        self._sums, self._count = dict(state["sums"]), state["count"]
