"""The contract of an environment: a batch of rows that step together.

A row is one agent in one environment (rows = environments × agents). Everything is a tensor whose
first dimension is the rows. An ended episode restarts inside the same step: `obs` is then the first
observation of the new episode and `final_obs` the last one of the old, so no step is a filler. A row
may be without an agent for a while (`VecEnv.present`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus import ranks
from ludus.envs.random_state import refuse_wild_torch

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

    A trainer that holds two groups lets one simulate while the policy acts for the other. What a few environments
    do besides is in abilities.py.
    """

    name: str  # for messages: "gym:CartPole-v1"
    num_rows: int
    agents_per_env: int = 1
    obs_space: gym.spaces.Box  # of one row
    action_space: ActionSpace  # of one row
    device: torch.device
    # So many newest frames make an observation, the oldest first; an episode begins with its first repeated.
    stacked_frames: int = 1
    max_steps: int = 0  # the longest an episode can be; 0: not known
    truncates: bool = True  # False: no episode is ever truncated, and nobody need look at `final_obs`
    capturable: bool = False  # steps are work on the device alone, on tensors that stay in place: see graphs.py
    # Random streams that a recorded step draws from: a graph must be told of them, or it repeats its numbers.
    generators: tuple[torch.Generator, ...] = ()
    # Rows whose agent is there to act on the newest observation, [rows] bool; None: all are, always. A row without
    # one observes zeros, its action is ignored and it is never trained on. One that appears begins an episode.
    present: Tensor | None = None
    # What a fault (see `faults`) means and what to do about it, by its name, to be said after its number.
    fault_advice: Mapping[str, str] = MappingProxyType({})
    # [rows] what the newest step was really worth, where the learner is paid otherwise; only to measure by.
    hidden_reward: Tensor | None = None
    # Metrics that no mean is taken of: which episode it was, or what `adapt` asks of each; "weight" is how much it
    # counts in a mean.
    labels: tuple[str, ...] = ()
    # [rows] so many episodes of each row are an evaluation, which plays fixed starts; None: any number is.
    fixed_starts: Tensor | None = None
    own_starts: slice = slice(None)  # which of all starts these are, where ranks share them out
    # [rows, size] the newest window of motion of every row, as a discriminator sees it; of the step just made,
    # also where that ended an episode. Stays in place. None: there is nothing to imitate.
    motion: Tensor | None = None

    @abstractmethod
    def reset(self, seed: int) -> Tensor:
        """Start a new episode in every row, from a random stream that `seed` alone determines."""

    @abstractmethod
    def begin_step(self, action: Tensor) -> None:
        """Hand over one action a row, in the units of `action_space`. It is the environment's until `end_step`."""

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

    def faults(self) -> dict[str, float]:
        """What went wrong in the environments since the last call without ending an episode; 0 where all is well.

        May wait for the device: asked once a cycle, not every step.
        """
        return {}

    def demonstrations(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, size] windows of what is to be imitated, drawn from `generator`, which is on `device`."""
        raise NotImplementedError(f"{self.name} has nothing to imitate.")

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Give back processes and threads."""


class EndedEpisode(NamedTuple):
    """An episode of one row that has just ended in training."""

    reward: float  # the sum of its rewards
    length: int  # steps
    success: bool  # False where the environment does not tell
    metrics: dict[str, float]  # what else was told of it: "success", "env/distance"
    row: int


class EpisodeStats:
    """Returns, lengths and task metrics of ended episodes, accumulated on the device.

    `update` never reads a value back to the host; `read` does, once, and starts a new count. A metric that
    is NaN was not reported by that episode and does not count.
    """

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._running = torch.zeros((2, num_rows), device=device)  # of the present episode:
        self._return, self._length = self._running.unbind()
        self._names: list[str] = []  # of the sums' columns
        self._sums = torch.zeros((2, 0), dtype=torch.float64, device=device)  # sums over episodes; their number

    def update(self, step: Step, present: Tensor | None = None) -> None:
        """`present`: rows that had an agent before the step; None: all."""
        if ["ep_rew_mean", "ep_len_mean", *step.metrics] != self._names:
            self._extend(step)
        self._return += step.reward
        self._length += 1 if present is None else present
        done = step.done
        if not done.is_cuda and not bool(done.any()):
            return  # free to ask on a CPU
        # One matrix for all metrics: a handful of calls however many there are.
        values = torch.stack([*self._running, *step.metrics.values()])  # [metrics, rows]
        counted = done & ~torch.isnan(values)
        self._sums[0] += torch.where(counted, values, 0.0).sum(1, dtype=torch.float64)
        self._sums[1] += counted.sum(1)
        self._running.masked_fill_(done, 0.0)

    def ending(self, step: Step, present: Tensor | None = None) -> list[EndedEpisode]:
        """The episodes that a step has ended which `update` has not seen yet."""
        rows = step.done.nonzero().squeeze(1)
        returns = (self._return + step.reward)[rows].tolist()
        lengths = (self._length + (1 if present is None else present))[rows].tolist()
        told = {name: values[rows].tolist() for name, values in step.metrics.items()}
        ended = []
        for i, row in enumerate(rows.tolist()):
            metrics = {name: values[i] for name, values in told.items() if values[i] == values[i]}
            success = metrics.get("success", 0.0) > 0
            ended.append(EndedEpisode(returns[i], int(lengths[i]), success, metrics, row))
        return ended

    def forget_running(self) -> None:
        """The present episodes were broken off: they do not count."""
        self._running.zero_()

    def _extend(self, step: Step) -> None:
        """A metric is seen for the first time: give it a column."""
        names = ["ep_rew_mean", "ep_len_mean", *step.metrics]
        assert set(self._names) <= set(names), f"metrics {set(self._names) - set(names)} are no longer reported"
        sums = self._sums.new_zeros((2, len(names)))
        for column, name in enumerate(self._names):
            sums[:, names.index(name)] = self._sums[:, column]
        self._names, self._sums = names, sums

    def read(self) -> dict[str, tuple[float, float]]:
        """(sum, number of episodes) of every metric since the last read."""
        totals, counts = self._sums.tolist()
        self._sums.zero_()
        return {name: (totals[i], counts[i]) for i, name in enumerate(self._names)}

    def state(self) -> State:
        return {"running": self._running.clone(), "sums": self._sums.clone(), "names": list(self._names)}

    def load_state(self, state: State) -> None:
        self._running.copy_(state["running"])
        self._names, saved = list(state["names"]), state["sums"]
        # In place where possible: a recorded CUDA graph knows the tensor by its address.
        if self._sums.shape != saved.shape:
            self._sums = torch.zeros_like(saved, device=self._sums.device)
        self._sums.copy_(saved)


def rollout_metrics(groups: list[EpisodeStats], known: dict[str, float]) -> dict[str, float]:
    """`rollout/…` means over the episodes that ended since the last reading; the last `known` where none did.

    Over those of all ranks. What an environment told in its infos has names of its own, `env/…`.
    """
    readings = ranks.gather_plain([stats.read() for stats in groups])
    means = combine_stats([reading for own in readings for reading in own])
    if "success" in means:
        means["success_rate"] = means.pop("success")
    known.update({name if name.startswith("env/") else f"rollout/{name}": v for name, v in means.items()})
    return dict(known)


def env_faults(envs: list[VecEnv]) -> dict[str, float]:
    """`rollout/…` sums of what went wrong in several groups, on all ranks."""
    sums: dict[str, float] = {}
    told = ranks.gather_plain([env.faults() for env in envs])
    for faults in (faults for own in told for faults in own):
        for name, count in faults.items():
            sums[f"rollout/{name}"] = sums.get(f"rollout/{name}", 0.0) + count
    return sums


def advice_on_faults(env: VecEnv) -> dict[str, str]:
    """`fault_advice` by the names that `env_faults` gives faults."""
    return {f"rollout/{name}": advice for name, advice in env.fault_advice.items()}


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
    """An independent seed for a part of a run.

    The paths: `0, i` the environments of group i, `1` acting, `2` shuffling and drawing batches, `3` evaluation
    during training, `4` initial weights, `5` `ludus eval`, `6` critics, `7` the reward network, `8` its
    augmentation, `9` which episodes are held out, `10` the discriminator.
    """
    return int(np.random.SeedSequence([seed, *path]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def restore_generator(generator: torch.Generator, saved: Tensor | None) -> None:
    """A random stream goes on where it was. Those of CPU and GPU differ: on the other device a new one begins.

    None: of a rank that was not there when the others were saved; its stream begins anew.
    """
    if saved is not None and saved.numel() == generator.get_state().numel():
        refuse_wild_torch(saved)
        generator.set_state(saved)
