"""The contract of an environment: a batch of rows that step together.

A row is one agent in one environment (rows = environments × agents). Everything is a tensor whose
first dimension is the rows. An ended episode restarts inside the same step: `obs` is then the first
observation of the new episode and `final_obs` the last one of the old, so no row is ever a filler.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

# A tree of dicts and lists whose leaves are tensors or plain JSON values: what a checkpoint can hold.
State = dict[str, Any]

ActionSpace = gym.spaces.Box | gym.spaces.Discrete | gym.spaces.MultiDiscrete


class Step(NamedTuple):
    """What one step of every row gave."""

    obs: Tensor  # [rows, ...] what the policy sees next; where an episode ended, the new episode's first
    reward: Tensor  # [rows] float32
    terminated: Tensor  # [rows] bool: the task ended, the future is worth nothing
    truncated: Tensor  # [rows] bool: time ran out, the future has a value
    final_obs: Tensor  # [rows, ...] the last observation of an ended episode; other rows are not read
    metrics: dict[str, Tensor]  # each [rows] float32, e.g. "success"; read only where an episode ended

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated


class VecEnv(ABC):
    """A group of environments. `begin_step` may return while the group simulates; `end_step` waits for it.

    A trainer that holds two groups lets one simulate while the policy acts for the other.
    """

    name: str  # for messages: "gym:CartPole-v1"
    num_rows: int
    agents_per_env: int = 1
    obs_space: gym.spaces.Box  # of one row
    action_space: ActionSpace  # of one row
    device: torch.device

    @abstractmethod
    def reset(self, seed: int) -> Tensor:
        """Start a new episode in every row, from a random stream that `seed` alone determines."""

    @abstractmethod
    def begin_step(self, action: Tensor) -> None:
        """Hand over one action a row, in the units of `action_space`."""

    @abstractmethod
    def end_step(self) -> Step:
        """Wait for the step begun last. The tensors are the caller's: later steps do not change them."""

    def step(self, action: Tensor) -> Step:
        self.begin_step(action)
        return self.end_step()

    @abstractmethod
    def state(self) -> State:
        """Everything an exact continuation needs. Not called between `begin_step` and `end_step`."""

    @abstractmethod
    def load_state(self, state: State) -> None:
        """Continue exactly from `state`."""

    def set_progress(self, fraction: float) -> None:  # noqa: B027 (most environments have no curriculum)
        """Told before each rollout how much of the training is done (0 to 1), for curricula."""

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Give back processes and threads."""


class EpisodeStats:
    """Returns, lengths and task metrics of ended episodes, accumulated on the device.

    `update` never reads a value back to the host; `read` does, once, and starts a new count.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._return = torch.zeros(num_rows, dtype=torch.float64, device=device)
        self._length = torch.zeros(num_rows, dtype=torch.float64, device=device)
        self._sums: dict[str, Tensor] = {}
        self._last: dict[str, float] = {}

    def update(self, step: Step) -> None:
        self._return += step.reward
        self._length += 1
        done = step.done
        weight = done.to(torch.float64)
        self._add("episodes", weight.sum())
        self._add("ep_rew_mean", self._return @ weight)
        self._add("ep_len_mean", self._length @ weight)
        for name, value in step.metrics.items():
            self._add(name, value.to(torch.float64).nan_to_num() @ weight)
        self._return.masked_fill_(done, 0.0)
        self._length.masked_fill_(done, 0.0)

    def _add(self, name: str, value: Tensor) -> None:
        self._sums[name] = self._sums[name] + value if name in self._sums else value

    def read(self) -> dict[str, float]:
        """Means over the episodes that ended since the last read; the previous ones where none ended."""
        sums = {name: float(value) for name, value in self._sums.items()}
        episodes = sums.pop("episodes", 0.0)
        self._sums.clear()
        if episodes > 0:
            self._last = {name: value / episodes for name, value in sums.items()}
        return {"episodes": episodes, **self._last} if self._last else {}

    def state(self) -> State:
        return {"return": self._return, "length": self._length, "sums": dict(self._sums), "last": self._last}

    def load_state(self, state: State) -> None:
        self._return.copy_(state["return"])
        self._length.copy_(state["length"])
        self._sums = dict(state["sums"])
        self._last = dict(state["last"])


def combine_stats(parts: list[dict[str, float]]) -> dict[str, float]:
    """Means over several groups' statistics, weighted by their numbers of episodes."""
    parts = [p for p in parts if p]
    if not parts:
        return {}
    # Groups without a newly ended episode still carry their last means: give those a small say only
    # when nobody has anything new.
    total = sum(p["episodes"] for p in parts)
    weights = [p["episodes"] if total > 0 else 1.0 for p in parts]
    names = [name for name in parts[0] if name != "episodes"]
    means = {n: sum(w * p[n] for w, p in zip(weights, parts, strict=True)) / sum(weights) for n in names}
    return {"episodes": total, **means}


def derive_seed(seed: int, *path: int) -> int:
    """An independent seed for a part of a run: its group, its evaluation, its worker …"""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0] >> np.uint64(1))
