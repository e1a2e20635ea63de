"""A batched environment of your own: points on a line that have to reach their marks.

The comments mark usual mistakes.

    cd examples
    ludus check vec:batched_environment:Follow
    ludus train vec:batched_environment:Follow --total-steps 100000

`docs/environments.md` has the rules, `examples/batched_memory.py` an environment for a GPU.
"""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.vec import State, Step, VecEnv


class Follow(VecEnv):
    name = "follow"
    obs_space = gym.spaces.Box(-4.0, 4.0, (2,), np.float32)  # point, mark
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    device = torch.device("cpu")
    max_steps = 50

    def __init__(self, num_envs: int) -> None:
        self.num_rows = num_envs
        self.generator = torch.Generator()
        self.obs = torch.zeros(num_envs, 2)
        self.elapsed = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, seed: int) -> Tensor:
        self.generator.manual_seed(seed)
        self._begin(torch.arange(self.num_rows))
        return self.obs.clone()  # the caller's own: later steps must not change it

    def begin_step(self, action: Tensor) -> None:
        self._action = action.clamp(-1, 1)

    def end_step(self) -> Step:
        self.obs[:, 0] = (self.obs[:, 0] + 0.2 * self._action[:, 0]).clamp(-2, 2)
        self.elapsed += 1
        distance = (self.obs[:, 0] - self.obs[:, 1]).abs()
        terminated = distance < 0.05
        truncated = (self.elapsed >= self.max_steps) & ~terminated  # never both
        final_obs = self.obs.clone()  # before the new episodes begin
        self._begin((terminated | truncated).nonzero().squeeze(1))
        return Step(self.obs.clone(), -distance, terminated, truncated, final_obs, {"success": terminated.float()})

    def state(self) -> State:
        return {"obs": self.obs.clone(), "elapsed": self.elapsed.clone(), "generator": self.generator.get_state()}

    def load_state(self, state: State) -> None:
        self.obs.copy_(state["obs"])
        self.elapsed.copy_(state["elapsed"])
        self.generator.set_state(state["generator"])

    def _begin(self, rows: Tensor) -> None:
        self.obs[rows] = 2 * torch.rand((len(rows), 2), generator=self.generator) - 1
        self.elapsed[rows] = 0
