"""The KUKA's task as goals: where the cube should be, and that it should lie there on its own.

A goal is four numbers: the place of the cube's centre, and whether the cube is free, at rest and touched by no
fingertip. Every step costs 1 until the goal is reached, which ends the episode. Nothing else pays: such a reward
can be judged for any goal, and so be learned with hindsight (HER).
"""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.goals import ACHIEVED, DESIRED, Goals
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.task import OBSERVATIONS, KukaPickPlace
from ludus.envs.mujoco.task import Rows
from ludus.envs.mujoco.terms import Term
from ludus.envs.row_space import OBSERVATION, RowSpace
from ludus.errors import ConfigError

_GOAL_SIZE = 4
_TOLERANCE = (0.04, 0.04, 0.008, 0.5)  # m, m, m, and the same freedom
_SEEN = {name: term for name, term in OBSERVATIONS.items() if name not in ("to_goal", "to_carry")}
_SEEN_SIZE = 28
_REWARDS = {"goal": Term(lambda task: task.worth.success.to(task.dtype) - 1.0)}
# A lost cube ends nothing: an end that costs no further steps would be worth looking for.
_TERMINATIONS = {"success": Term(lambda task: task.worth.success)}


class KukaGoals(KukaPickPlace):
    """Observes `observation` (28 numbers, none of which tells of the pad), `achieved_goal` and `desired_goal`."""

    obs_space: RowSpace
    tables = (_REWARDS, _TERMINATIONS, _SEEN)

    def __init__(
        self,
        config: KukaConfig,
        num_envs: int,
        threads: int,
        evaluation: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        if config.image_size or config.rewards or config.terminations:
            raise ConfigError(
                "--env.goals pays and ends by the goal alone, and sees no images: leave --env.image-size, "
                "--env.rewards and --env.terminations out."
            )
        sizes = {ACHIEVED: _GOAL_SIZE, DESIRED: _GOAL_SIZE, OBSERVATION: _SEEN_SIZE}
        parts: dict[str, gym.Space] = {
            name: gym.spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in sizes.items()
        }
        super().__init__(config, num_envs, threads, evaluation, device, RowSpace(gym.spaces.Dict(parts)))
        self._tolerance = torch.tensor(_TOLERANCE, device=self.device)

    def observe(self, rows: Rows) -> Tensor:
        seen = super().observe(rows)
        wanted = self.memory["goal"][rows].float()
        achieved = torch.cat([self.sight.qpos[:, 9:12].float(), self.free(rows)[:, None].float()], 1)
        return torch.cat([achieved, wanted, torch.ones_like(wanted[:, :1]), seen], 1)

    def goals(self) -> Goals:
        return Goals(lambda achieved, desired: self._reached(achieved, desired).float() - 1.0, self._reached)

    def _reached(self, achieved: Tensor, desired: Tensor) -> Tensor:
        return ((achieved - desired).abs() < self._tolerance.to(achieved.device)).all(1)
