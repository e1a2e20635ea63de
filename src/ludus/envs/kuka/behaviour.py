"""What goes wrong in recorded episodes, so that failures are many-sided and look like successes until they fail.

Every row may be given a disturbance: the cube or the pad is believed to be elsewhere, the hand closes on nothing
and carries it, lets go on the way, or stops. In an episode that is to succeed it passes; in one that is to fail
it stays. The same noise is on all actions and detours are everywhere, so neither tells them apart.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Act = Callable[[Tensor], Tensor]  # [rows, 34] observations → [rows, 4] actions

NONE, CUBE, PAD, EMPTY, DROP, PAUSE = range(6)
NEVER = 1_000_000  # steps
_CUBE_AT, _TO_CUBE, _TO_GOAL, _TO_GOAL_HELD = slice(8, 11), slice(20, 23), slice(23, 26), slice(26, 29)
_TOUCH = slice(32, 34)  # all of the task's observation
_PATIENCE = 6  # steps with a closed hand after which it is believed to hold something


class Behaviour:
    """A policy in a batch of rows, with a disturbance, a detour and noise on top."""

    def __init__(self, act: Act, rows: int, noise: float, seed: int) -> None:
        self._act, self._noise = act, noise
        self._generator = torch.Generator().manual_seed(seed)
        self.kind = torch.zeros(rows, dtype=torch.int64)
        self._elapsed, self._held, self._closed, self._start, self.stop, self._detour_at = torch.zeros(
            (6, rows), dtype=torch.int64
        )
        self._offset, self._detour = torch.zeros((2, rows, 3))

    def begin(self, rows: Tensor, succeed: Tensor) -> None:
        """New episodes in `rows` (indices), which are to succeed or not ([n] bool)."""
        n = rows.numel()
        kind = self._integers(CUBE, PAUSE + 1, n)
        untroubled = succeed & (self._uniform(0, 1, n) < 0.7)
        self.kind[rows] = torch.where(untroubled, NONE, kind)
        # In steps after the beginning, or, of the hand that lets go, after the grasp.
        start = torch.where(kind == PAUSE, self._integers(4, 36, n), self._integers(2, 15, n))
        start = torch.where(kind <= EMPTY, 0, start)
        lasting = torch.where(kind <= EMPTY, self._integers(10, 25, n), self._integers(4, 12, n))
        self._start[rows], self.stop[rows] = start, torch.where(succeed, start + lasting, NEVER)
        self._offset[rows] = self._beside(kind)
        self._detour_at[rows] = torch.where(self._uniform(0, 1, n) < 0.5, self._integers(0, 30, n), NEVER)
        self._detour[rows] = self._uniform(-0.7, 0.7, n, 3)
        self._elapsed[rows], self._held[rows], self._closed[rows] = 0, 0, 0

    def act(self, obs: Tensor) -> Tensor:
        """[rows, 4] actions within [-1, 1]."""
        since_grasp = self.kind == DROP
        clock = torch.where(since_grasp, self._held, self._elapsed)
        active = (self.kind != NONE) & (clock >= self._start) & (clock < self.stop)
        action = self._act(self._believed(obs, active))
        action[active & (self.kind == DROP), 3] = 1.0
        action[active & (self.kind == PAUSE), :3] = 0.0
        detour = (self._elapsed >= self._detour_at) & (self._elapsed < self._detour_at + 5)
        action[:, :3] += self._detour * (detour & ~(active & (self.kind == PAUSE)))[:, None]
        action += self._noise * torch.randn(action.shape, generator=self._generator)
        self._count(obs, action)
        return action.clamp(-1, 1)

    def _count(self, obs: Tensor, action: Tensor) -> None:
        touching = (obs[:, _TOUCH] > 0).all(dim=1)
        self._elapsed += 1
        self._held += (touching | (self._held > 0)).long()  # from the first grasp on
        self._closed = torch.where(action[:, 3] < 0, self._closed + 1, 0)

    def _believed(self, obs: Tensor, active: Tensor) -> Tensor:
        """What the policy is told: the cube or the pad elsewhere, or nothing in the hand taken for a cube."""
        obs = obs.clone()
        cube = self._offset * (active & ((self.kind == CUBE) | (self.kind == EMPTY)))[:, None]
        pad = self._offset * (active & (self.kind == PAD))[:, None]
        held = (obs[:, _TOUCH] > 0).all(dim=1)
        obs[:, _CUBE_AT] += cube
        obs[:, _TO_CUBE] += cube
        obs[:, _TO_GOAL] += pad - cube
        obs[:, _TO_GOAL_HELD] += (pad - cube) * held[:, None]
        carrying = active & (self.kind == EMPTY) & (self._closed > _PATIENCE)
        to_goal = obs[:, _TO_CUBE] + obs[:, _TO_GOAL]  # of the hand
        obs[:, _TO_GOAL] = torch.where(carrying[:, None], to_goal, obs[:, _TO_GOAL])
        obs[:, _TO_GOAL_HELD] = torch.where(carrying[:, None], to_goal, obs[:, _TO_GOAL_HELD])
        obs[:, _TO_CUBE] *= ~carrying[:, None]
        obs[carrying, _TOUCH] = 1.0
        return obs

    def _beside(self, kind: Tensor) -> Tensor:
        """[n, 3] level offsets: beside the cube for a hand, beside the pad's middle for a cube."""
        n = kind.numel()
        angle = self._uniform(0, 2 * torch.pi, n)
        distance = torch.where(kind == PAD, self._uniform(0.10, 0.20, n), self._uniform(0.035, 0.08, n))
        return torch.stack([distance * angle.cos(), distance * angle.sin(), torch.zeros(n)], dim=1)

    def _integers(self, low: int, high: int, n: int) -> Tensor:
        return torch.randint(low, high, (n,), generator=self._generator)

    def _uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self._generator)
