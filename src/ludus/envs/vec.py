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

    `update` never reads a value back to the host; `read` does, once, and starts a new count. A metric that
    is NaN was not reported by that episode and does not count.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._return = torch.zeros(num_rows, dtype=torch.float64, device=device)
        self._length = torch.zeros(num_rows, dtype=torch.float64, device=device)
        self._sums: dict[str, Tensor] = {}  # each [2]: sum over ended episodes, their number

    def update(self, step: Step) -> None:
        self._return += step.reward
        self._length += 1
        done = step.done
        weight = done.to(torch.float64)
        episodes = weight.sum()
        self._add("ep_rew_mean", self._return @ weight, episodes)
        self._add("ep_len_mean", self._length @ weight, episodes)
        for name, value in step.metrics.items():
            known = weight * ~torch.isnan(value)
            self._add(name, value.to(torch.float64).nan_to_num() @ known, known.sum())
        self._return.masked_fill_(done, 0.0)
        self._length.masked_fill_(done, 0.0)

    def _add(self, name: str, total: Tensor, count: Tensor) -> None:
        pair = torch.stack([total, count])
        self._sums[name] = self._sums[name] + pair if name in self._sums else pair

    def read(self) -> dict[str, tuple[float, float]]:
        """(sum, number of episodes) of every metric since the last read."""
        sums = {name: (float(total), float(count)) for name, (total, count) in self._sums.items()}
        self._sums.clear()
        return sums

    def state(self) -> State:
        return {"return": self._return.clone(), "length": self._length.clone(), "sums": dict(self._sums)}

    def load_state(self, state: State) -> None:
        self._return.copy_(state["return"])
        self._length.copy_(state["length"])
        self._sums = dict(state["sums"])


def combine_stats(parts: list[dict[str, tuple[float, float]]]) -> dict[str, float]:
    """Means over the episodes of several groups; a metric no episode reported is left out."""
    names = {name: None for part in parts for name in part}  # in order of appearance
    means: dict[str, float] = {}
    for name in names:
        total = sum(part[name][0] for part in parts if name in part)
        count = sum(part[name][1] for part in parts if name in part)
        if name == "ep_rew_mean":
            means["episodes"] = count
        if count > 0:
            means[name] = total / count
    return means


def derive_seed(seed: int, *path: int) -> int:
    """An independent seed for a part of a run: its group, its evaluation, its worker …"""
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0] >> np.uint64(1))
