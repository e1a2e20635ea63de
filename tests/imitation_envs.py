"""A tiny world with motion to imitate. `vec:imitation_envs:make_…` trains on it."""

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.vec import State, Step, VecEnv, restore_generator

WANTED = (0.5, -0.3)  # mean of the demonstrated velocities
SPREAD = 0.15


class Drift(VecEnv):
    """A point moves with the velocity it is told, for `length` steps. Its task pays for standing still.

    Its motion is that velocity, and demonstrated are velocities around WANTED. Or its motion is how far it is
    from a velocity that it sees, another one in each episode, and demonstrated is no difference.
    """

    name = "drift"
    motion: Tensor

    def __init__(self, num_envs: int, differences: bool, length: int, device: torch.device) -> None:
        self.num_rows, self.length, self.max_steps, self.device = num_envs, length, length, device
        self.differences, self.capturable = differences, device.type == "cuda"
        self.obs_space = gym.spaces.Box(-2.0, 2.0, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.random = torch.Generator(device=device)
        self.generators = (self.random,)
        self.wanted, self.motion = (torch.zeros((num_envs, 2), device=device) for _ in range(2))
        self.left = torch.zeros(num_envs, dtype=torch.int64, device=device)

    def _draw(self) -> Tensor:
        return torch.rand((self.num_rows, 2), generator=self.random, device=self.device) * 1.6 - 0.8

    def _observe(self) -> Tensor:
        return torch.cat([self.wanted, self.left[:, None] / self.length], 1)

    def reset(self, seed: int) -> Tensor:
        self.random.manual_seed(seed)
        self.wanted.copy_(self._draw())
        self.motion.zero_()
        rows = torch.arange(self.num_rows, device=self.device)
        self.left.copy_(1 + rows % self.length)  # rows end apart
        return self._observe()

    def begin_step(self, action: Tensor) -> None:
        self.action = action.clone()

    def end_step(self) -> Step:
        self.motion.copy_(self.action - self.wanted if self.differences else self.action)
        self.left -= 1
        final, over = self._observe(), self.left == 0
        error = self.motion.norm(dim=1) if self.differences else (self.motion - _wanted(self.device)).norm(dim=1)
        self.wanted.copy_(torch.where(over[:, None], self._draw(), self.wanted))
        self.left.masked_fill_(over, self.length)
        reward = -self.action.square().sum(1)
        return Step(self._observe(), reward, torch.zeros_like(over), over, final, {"error": error})

    def demonstrations(self, count: int, generator: torch.Generator) -> Tensor:
        if self.differences:
            return torch.zeros((count, 2), device=self.device)
        return _wanted(self.device) + SPREAD * torch.randn((count, 2), generator=generator, device=self.device)

    def state(self) -> State:
        tensors = {name: getattr(self, name).clone() for name in ("wanted", "left", "motion")}
        return {**tensors, "random": self.random.get_state()}

    def load_state(self, state: State) -> None:
        for name in ("wanted", "left", "motion"):
            getattr(self, name).copy_(state[name])
        restore_generator(self.random, state["random"])


_kept: dict[torch.device, Tensor] = {}


def _wanted(device: torch.device) -> Tensor:
    """Made once: a recorded step must not copy from the host."""
    if device not in _kept:
        _kept[device] = torch.tensor(WANTED, device=device)
    return _kept[device]


def make_drift(
    num_envs: int, differences: bool = False, length: int = 10, device: torch.device | str = "cpu"
) -> Drift:
    return Drift(num_envs, differences, length, torch.device(device))
