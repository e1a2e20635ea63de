"""Fills a replay: the policy explores, and whole episodes and open ones are there to be learned from."""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from ludus import ranks
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.replay import Replay, after_step
from ludus.envs.finite import refuse_non_finite
from ludus.envs.vec import (
    EpisodeStats,
    State,
    Step,
    VecEnv,
    derive_seed,
    env_faults,
    restore_generator,
    rollout_metrics,
)
from ludus.errors import ConfigError
from ludus.graphs import Graphed
from ludus.policies.heads import Head
from ludus.policies.replay_policy import ReplayPolicy
from ludus.training.callbacks import Watcher
from ludus.training.timing import Timing


class Noise(Protocol):
    """The randomness of exploring."""

    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """[steps, rows, noise of the head]"""

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class FreshNoise:
    """New for every step."""

    def __init__(self, head: Head) -> None:
        self._head = head

    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        return self._head.noise(shape, generator)

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        """There is none."""


class Follower(Protocol):
    """Is told of every step, those of each environment in their order."""

    def add(self, reward: Tensor, done: Tensor, lanes: slice) -> None:
        """[steps, rows] of the environments of these lanes."""

    def begin_anew(self) -> None:
        """All episodes."""

    def state(self) -> State: ...

    def load_state(self, state: State) -> None: ...


class _Group:
    """One group of environments, and the lanes of the store their episodes go to."""

    def __init__(self, env: VecEnv, policy: ReplayPolicy, first: int, seed: int) -> None:
        self.env = env
        self.lanes = slice(first, first + env.num_rows)
        self.begin(policy, seed)
        if env.present is not None:  # which some say only now
            raise ConfigError(f"In {env.name} agents come and go, which only PPO can learn from: take --algo ppo.")
        self.action: Tensor | None = None  # in the head's units, while the environments step
        self.untold: list[tuple[Tensor, Tensor]] | None = None  # rewards and ends that a follower will be told of

    def begin(self, policy: ReplayPolicy, seed: int) -> None:
        """All episodes."""
        self.stats = EpisodeStats(self.env.num_rows, self.env.device)
        self.obs = self.env.reset(seed).clone()
        self.state = policy.start(self.env.num_rows)  # what the policy remembers, before it acts
        self.next_state = self.state  # and after that

    def saved(self) -> State:
        remembered = {"state": self.state.clone()} if self.state.numel() else {}
        return {"env": self.env.state(), "stats": self.stats.state(), "obs": self.obs.clone(), **remembered}


class ReplayCollector:
    """Owns the training environments and the randomness of exploring."""

    def __init__(
        self,
        envs: list[VecEnv],
        policy: ReplayPolicy,
        store: Replay,
        seed: int,
        noise: Noise | None = None,
        follower: Follower | None = None,
        cuda_graphs: bool = True,
        beside: bool = False,
    ) -> None:
        """`beside`: it collects while the policy learns, both on one device."""
        self.store, self._seed = store, seed
        self._noise, self._follower = noise or FreshNoise(policy.head), follower
        self.groups: list[_Group] = []
        self.actor = _actor(policy, envs[0], beside)
        for i, env in enumerate(envs):
            first = self.groups[-1].lanes.stop if self.groups else 0
            group = _Group(env, self.actor.policy, first, _seed_of(seed, i))
            store.begin_all(group.obs, group.lanes)
            self.groups.append(group)
        self.rows = self.groups[-1].lanes.stop
        stream = derive_seed(seed, *ranks.own_stream(1))
        self.generator = torch.Generator(device=self.actor.policy.device).manual_seed(stream)
        self.timing = Timing()
        self._last_metrics: dict[str, float] = {}
        self._watcher: Watcher | None = None
        # Where a recorded graph stands, the noise it takes, and which rows have given what is no number.
        self._tick = torch.zeros(1, dtype=torch.int64, device=store.device)
        self._drawn = torch.zeros(0, device=store.device)
        self._faulty = torch.zeros(self.rows, dtype=torch.bool, device=store.device)
        streams = [generator for env in envs for generator in env.generators]
        self._device_steps = [
            Graphed(partial(self._device_step, at_random), store.device, cuda_graphs, generators=streams)
            for at_random in (False, True)
        ]

    def watch(self, watcher: Watcher) -> None:
        """Tell of every step; a recorded graph, in which the host sees none, is not used then."""
        self._watcher = watcher

    @torch.no_grad()
    def collect(self, steps: int, at_random: bool, on_step: Callable[[int], None] = lambda t: None) -> None:
        """Step every environment so many times, with random actions or the policy's sampled ones."""
        policy, head = self.actor.newest(), self.actor.policy.head
        draws = head.random if at_random and policy.mask is None else self._noise.draw
        drawn = draws((steps, self.rows), self.generator)
        if self.store.recorded_by_graphs and self._watcher is None:
            self._collect_on_device(drawn, at_random, on_step)
            return
        # Steps on a device that somebody watches are those that its graphs would make, to the last bit.
        with nullcontext() if self.store.recorded_by_graphs else self._together(policy):
            for t in range(steps):
                for group in self.groups:
                    started = time.perf_counter()
                    group.action = self._choose(policy, group, drawn[t, group.lanes], at_random)
                    group.env.begin_step(head.to_env(group.action))
                    self.timing.act += time.perf_counter() - started
                for group in self.groups:
                    started = time.perf_counter()
                    step = group.env.end_step()
                    self.timing.simulate += time.perf_counter() - started
                    self._refuse_non_finite(group.env, step)
                    self._record(group, step)
                on_step(t)

    @contextmanager
    def _together(self, policy: ReplayPolicy) -> Iterator[None]:
        """In here, what can be done once for all steps is not done for each."""
        with policy.settled(), self.store.written_together(), self._told_together():
            yield

    @contextmanager
    def _told_together(self) -> Iterator[None]:
        """The follower hears of the steps that are made in here at the end."""
        if self._follower is None:
            yield
            return
        for group in self.groups:
            group.untold = []
        try:
            yield
        finally:
            for group in self.groups:
                if group.untold:
                    reward, done = map(torch.stack, zip(*group.untold, strict=True))
                    self._follower.add(reward, done, group.lanes)
                group.untold = None

    def _collect_on_device(self, drawn: Tensor, at_random: bool, on_step: Callable[[int], None]) -> None:
        """Without waiting for the device: acting, stepping and recording are one graph."""
        started = time.perf_counter()
        if self._drawn.shape != drawn.shape:
            self._drawn = torch.empty_like(drawn)
            for graphed in self._device_steps:
                graphed.forget()
        self._drawn.copy_(drawn)
        self._tick.zero_()
        for t in range(len(drawn)):
            self._device_steps[at_random]()
            on_step(t)
        self.timing.act += time.perf_counter() - started  # acting and simulating cannot be told apart

    def _device_step(self, at_random: bool) -> None:
        policy, drawn = self.actor.policy, self._drawn.index_select(0, self._tick)[0]
        for group in self.groups:
            group.action = self._choose(policy, group, drawn[group.lanes], at_random)
            group.env.begin_step(policy.head.to_env(group.action))
        for group in self.groups:
            step = group.env.end_step()
            finite = step.reward.isfinite() & self._numbers(after_step(step)).flatten(1).isfinite().all(1)
            self._faulty[group.lanes] |= ~(finite & self._numbers(step.obs).flatten(1).isfinite().all(1))
            self._record(group, step)
        self._tick.add_(1)

    def _choose(self, policy: ReplayPolicy, group: _Group, drawn: Tensor, at_random: bool) -> Tensor:
        if at_random and policy.mask is None and not policy.recurrent:
            return drawn
        x = policy.prepare(group.obs)
        if not at_random or policy.recurrent:  # which remembers what it sees, whoever acts
            params, group.next_state = policy.params_of(x, group.state)
        if not at_random:
            return policy.head.sample(params, drawn)
        if policy.mask is None:
            return drawn
        # Among the valid actions: the first of the noise is DQN's, whether to explore.
        return policy.head.mode(policy.masked(drawn[:, 1:], policy.apart(x)[1]))

    def _record(self, group: _Group, step: Step) -> None:
        if self._watcher is not None:
            self._watcher(step, group.stats, None)
        group.stats.update(step)
        if group.untold is not None:
            group.untold.append((step.reward.clone(), step.done.clone()))
        elif self._follower is not None:
            self._follower.add(step.reward[None], step.done[None], group.lanes)
        assert group.action is not None
        if self.actor.policy.recurrent:
            assert isinstance(self.store, EpisodeStore)
            self.store.remember(group.state, group.lanes)
            group.state = group.next_state.masked_fill(step.done[:, None], 0.0)
        self.store.record(group.action, step, group.env.hidden_reward, group.lanes)
        if self.store.recorded_by_graphs:
            group.obs.copy_(step.obs)  # in place, as graphs need
        else:
            group.obs = step.obs

    def _refuse_non_finite(self, env: VecEnv, step: Step) -> None:
        """One NaN in the replay would be drawn again and again."""
        given = {"reward": step.reward, "observation": self._numbers(step.obs)}
        if bool(step.done.any()):
            given["last observation"] = self._numbers(after_step(step))
        refuse_non_finite(given, env.num_rows, env.name)

    def _numbers(self, obs: Tensor) -> Tensor:
        """What of observations may be NaN."""
        rows = self.actor.policy.rows
        return obs if rows is None else rows.numbers_of(obs)

    # Metrics and state --------------------------------------------------------------------------
    def episode_metrics(self) -> dict[str, float]:
        self.refuse_faulty_rows()
        metrics = rollout_metrics([group.stats for group in self.groups], self._last_metrics)
        return metrics | env_faults([group.env for group in self.groups])

    def refuse_faulty_rows(self) -> None:
        """Of steps that no host saw. What was learned from such numbers must not be saved."""
        for group in self.groups if self.store.recorded_by_graphs else ():
            faulty = torch.where(self._faulty[group.lanes], torch.nan, 0.0)
            refuse_non_finite({"reward or observation": faulty[:, None]}, group.env.num_rows, group.env.name)

    def set_progress(self, fraction: float) -> None:
        for group in self.groups:
            group.env.set_progress(fraction)

    def state(self) -> State:
        return {
            "groups": [group.saved() for group in self.groups],
            "generator": self.generator.get_state(),
            "last_metrics": self._last_metrics,
            "noise": self._noise.state(),
            "follower": None if self._follower is None else self._follower.state(),
        }

    def load_state(self, state: State) -> None:
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.env.load_state(saved["env"])
            group.stats.load_state(saved["stats"])
            if "state" in saved:
                group.state = saved["state"].to(group.env.device)
            if self.store.recorded_by_graphs:
                group.obs.copy_(saved["obs"])
            else:
                group.obs = saved["obs"].to(group.env.device)
        restore_generator(self.generator, state["generator"])
        self._last_metrics = dict(state["last_metrics"])
        self._faulty.zero_()
        self._noise.load_state(state.get("noise", {}))  # older checkpoints have none
        if self._follower is not None:
            self._follower.load_state(state["follower"])

    def begin_anew(self) -> None:
        """The episodes that were open are lost."""
        self._faulty.zero_()
        if self._follower is not None:
            self._follower.begin_anew()
        for graphed in self._device_steps:
            graphed.forget()
        for number, group in enumerate(self.groups):
            group.begin(self.actor.policy, _seed_of(self._seed, number))
            self.store.begin_all(group.obs, group.lanes)

    def close(self) -> None:
        for group in self.groups:
            group.env.close()


def _seed_of(seed: int, group: int) -> int:
    """Of a group's environments on this rank."""
    return derive_seed(seed, *ranks.own_stream(0, group))


# Who acts ---------------------------------------------------------------------------------------
def _actor(policy: ReplayPolicy, env: VecEnv, beside: bool) -> "_Itself | _Copy | _LaggingCopy":
    if policy.device.type != env.device.type:
        return _LaggingCopy(policy, env.device)
    return _Copy(policy) if beside else _Itself(policy)


class _Itself:
    """Environments beside the policy: it acts itself."""

    def __init__(self, policy: ReplayPolicy) -> None:
        self.policy = policy

    def newest(self) -> ReplayPolicy:
        return self.policy

    def note(self) -> None:
        """The weights have changed."""


class _Copy:
    """Environments beside the policy that learns meanwhile: a copy acts, with the weights as they were noted."""

    def __init__(self, policy: ReplayPolicy) -> None:
        self.policy = copy.deepcopy(policy)
        self._source, self._copies = _learned(policy), _learned(self.policy)

    def note(self) -> None:
        for here, source in zip(self._copies, self._source, strict=True):
            here.data.copy_(source.detach())

    def newest(self) -> ReplayPolicy:
        return self.policy


class _LaggingCopy:
    """Environments on the CPU, learning on a GPU: a copy acts here while the GPU goes on learning.

    It is one iteration behind. Asking for the newest weights would wait for all updates under way, and neither
    environments nor GPU would do anything while the other works. How much it explores is not behind: that its
    agent tells it.
    """

    def __init__(self, policy: ReplayPolicy, device: torch.device) -> None:
        self._source = _learned(policy)
        self.policy = copy.deepcopy(policy).to(device)
        self._copies = _learned(self.policy)
        on_gpu = policy.device.type == "cuda"
        self._on_the_way: list[list[Tensor]] = [
            [torch.empty(t.shape, dtype=t.dtype, pin_memory=on_gpu) for t in self._source] for _ in range(2)
        ]
        self._arrived = [torch.cuda.Event() for _ in range(2)] if on_gpu else []
        self._noted = 0
        self.note()
        self.note()

    def note(self) -> None:
        """The weights have changed: begin to bring them here."""
        place = self._noted % 2
        for host, source in zip(self._on_the_way[place], self._source, strict=True):
            host.copy_(source.detach(), non_blocking=True)
        if self._arrived:
            self._arrived[place].record()
        self._noted += 1

    def newest(self) -> ReplayPolicy:
        place = self._noted % 2  # the older of the two
        if self._arrived:
            self._arrived[place].synchronize()
        for here, host in zip(self._copies, self._on_the_way[place], strict=True):
            here.data.copy_(host)
        return self.policy


def _learned(policy: ReplayPolicy) -> list[Tensor]:
    """All that learning changes: not what a schedule says of exploring."""
    buffers = [tensor for name, tensor in policy.named_buffers() if name != "head.epsilon"]
    return [*policy.parameters(), *buffers]
