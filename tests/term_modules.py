"""Terms of a user's, for tests: `--env.rewards '{"high": {"function": "term_modules:high"}}'`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.envs.mujoco.randomization import Randomization
from ludus.envs.mujoco.task import Rows, SimTask


def high(task: SimTask, over: float = 0.0) -> Tensor:
    """How high the cube is."""
    return task.sim.field("qpos")[:, 11] - over


def impatient(task: SimTask, steps: int = 5) -> Tensor:
    return task.elapsed >= steps


def speeds(task: SimTask, rows: Rows) -> Tensor:
    return task.sim.field("qvel")[rows, :2]


def wrong_shape(task: SimTask) -> Tensor:
    return torch.zeros(3, 3)


@dataclass
class Tilted(Randomization):
    """Gravity that points somewhere else in every episode: a kind of a user's."""

    most: float = 1.0

    def prepare(self, task: SimTask) -> None:
        task.randomized_field("opt.gravity")

    def begin(self, task: SimTask, n: int, values: dict[str, Tensor]) -> None:
        gravity = torch.tensor([0.0, 0.0, -9.81], dtype=task.dtype).repeat(n, 1)
        gravity[:, 0] = task.uniform(-self.most, self.most, n)
        values["opt.gravity"] = gravity


class NoDataclass(Randomization):
    pass
