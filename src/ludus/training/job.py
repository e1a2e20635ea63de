"""What a run does: the part of the loop that differs from one kind of training to another."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ludus.config import Plan
from ludus.envs.vec import State
from ludus.training.callbacks import Watcher
from ludus.training.checkpoint import Model
from ludus.training.timing import Timing

# Told how far an iteration is: the share of its steps that is done, and the number of batches.
Show = Callable[[float, int], None]
OnBatch = Callable[[int], None]  # told how many batches of the iteration are done
REWARD_SCALE = "reward_scale"  # in the state of a job whose rewards are divided: by what


class Job(ABC):
    """One kind of training. The `Trainer` gives it iterations and keeps what they make."""

    plan: Plan
    device: torch.device
    timing: Timing
    models: Mapping[str, Model]  # saved under these names: "policy" acts, "reward" judges
    batch_loss: str = ""  # a loss that is kept of every batch, in NAME.f32, and shown as train/name; empty: none
    rate_name: str  # of the setting to make smaller when training diverges
    cautions: tuple[str, ...] = ()  # to be said when it starts
    warnings: tuple[str, ...] = ()  # to be said when it starts, and again when it ends
    grows_by: int = 0  # bytes that checkpoints will have more than at the start
    waits: bool = True  # False: an iteration may still be under way on a GPU when it returns

    @abstractmethod
    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        """Iteration 0, 1, …, when `progress` (0 to 1) of the training is done; returns what it measured."""

    @property
    def judged_batches(self) -> int:
        """How many gradient steps `train/skipped_updates` is of: where nobody waits, all of the cycle so far."""
        return self.plan.batches_per_iteration

    def watch(self, watcher: Watcher) -> bool:
        """Tell `watcher` of every step from now on; False where no environment is stepped."""
        return False

    @abstractmethod
    def evaluate(self, interrupted: Callable[[], bool]) -> dict[str, float]:
        """How good what was learned is; empty when interrupted."""

    @abstractmethod
    def cycle_metrics(self) -> dict[str, float]:
        """What a cycle's row says besides, since the last one."""

    def table(self) -> list[dict[str, Any]]:
        """Of the newest evaluation, a line for each kind of episode; empty where there are no kinds."""
        return []

    def evaluated_episodes(self) -> list[dict[str, Any]]:
        """Every episode of the newest evaluation: an `Evaluation.record` for each way of acting."""
        return []

    def start_words(self) -> dict[str, list[str]]:
        """What the numbers that tell those episodes' starts stand for."""
        return {}

    def fault_advice(self) -> Mapping[str, str]:
        """What the metrics of a row that count faults mean, to be said after their numbers."""
        return {}

    def other_names(self, metrics: dict[str, float], seconds: float) -> dict[str, float]:
        """What a row, which took so long, is also written as: names that others' plots know."""
        return {}

    def newest_losses(self) -> Tensor | None:
        """`batch_loss` of every batch of the newest iteration."""
        return None

    def take_batch_losses(self) -> Tensor | None:
        """The same of all iterations since the last call."""
        return None

    @abstractmethod
    def weights(self) -> list[Tensor]:
        """All that is learned, to be asked whether it is finite."""

    @abstractmethod
    def set_rate_factor(self, factor: float) -> None:
        """Learn at this part of the set step sizes, after trouble."""

    @property
    @abstractmethod
    def rate_factor(self) -> float: ...

    def refuse_faulty_environments(self) -> None:  # noqa: B027 (most look at every step)
        """Those that gave what is no number, unseen so far: asked when gradients fail, which explains that."""

    @abstractmethod
    def suspects(self) -> dict[str, Tensor]:
        """What the newest iteration learned from, to be looked at after trouble."""

    def learned_beside(self) -> dict[str, tuple[str, Tensor]]:
        """What learns beside `models` and may start another training, by name: its path in `state`, itself."""
        return {}

    def take_reward_scale(self, scale: float) -> None:  # noqa: B027 (most divide no rewards)
        """All of the policy and what learns beside it were taken from a run that divided its rewards by this."""

    def begin_with_new_weights(self) -> None:  # noqa: B027 (most have no copies)
        """The models were given weights before the first iteration: copies of them follow."""

    @abstractmethod
    def lines(self) -> list[str]:
        """The numbers of the run, before it starts."""

    @abstractmethod
    def state(self, whole: bool) -> State:
        """All that an exact continuation needs besides `models`; if not `whole`, without the environments."""

    def own_paths(self) -> tuple[str, ...]:
        """Where in `state` lies what every rank has for itself: "collector", "ppo/generator"."""
        return ()

    def carried(self) -> State:
        """What one stage of a curriculum hands to the next besides `models`."""
        return self.state(whole=False)

    @abstractmethod
    def load_state(self, state: State, iteration: int) -> bool:
        """Go on after so many iterations; False if the environments were not in the state and begin anew."""

    @abstractmethod
    def close(self) -> None:
        """Give back processes and threads."""
