"""Fills the segment buffer: the policy acts for one group of environments while the others simulate."""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from ludus import ranks
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import SegmentBuffer, Segments
from ludus.envs.abilities import adapt, adapt_every, lessons_of, load_lessons
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
from ludus.graphs import Graphed
from ludus.policies.actor_critic import ActorCritic
from ludus.training.callbacks import Watcher
from ludus.training.timing import Timing


class _Group:
    """One group of environments and where its rows are. On a GPU the tensors stay in place, as graphs need."""

    def __init__(self, env: VecEnv, first_row: int, policy: ActorCritic, seed: int) -> None:
        device = policy.device
        self.env = env
        self.rows = slice(first_row, first_row + env.num_rows)
        self.stats = EpisodeStats(env.num_rows, env.device)
        self.obs = env.reset(seed).to(device, copy=True)
        self.state = policy.start(env.num_rows)  # of the memory
        self.discounted = torch.zeros(env.num_rows, device=device)  # return of the episode so far
        # Rows whose agent is there, where the environments are and where the policy is.
        self.present = None if env.present is None else env.present.clone()
        self.seen_present = None if self.present is None else self.present.to(device)
        self.action = policy.head.to_env(torch.zeros((env.num_rows, policy.head.action_size), device=device))
        self.noise = policy.head.noise((env.num_rows,), torch.Generator(device=device))
        self.column = torch.zeros(1, dtype=torch.int64, device=device)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.mover = _Mover(self.stream) if self.stream is not None and env.device.type != device.type else None

    def look_who_is_present(self) -> None:
        if self.present is not None:
            assert self.env.present is not None
            assert self.seen_present is not None
            self.present.copy_(self.env.present)
            self.seen_present.copy_(self.env.present)

    def begin(self, seed: int) -> None:
        """New episodes in all rows, of which nothing is remembered yet."""
        self.obs.copy_(self.env.reset(seed))
        self.state.zero_()
        self.discounted.zero_()
        self.stats.forget_running()
        self.look_who_is_present()

    def saved(self) -> State:
        tensors = {name: getattr(self, name).clone() for name in ("obs", "state", "discounted")}
        return {"env": self.env.state(), "stats": self.stats.state(), **tensors}

    def load(self, saved: State) -> None:
        self.env.load_state(saved["env"])
        self.stats.load_state(saved["stats"])
        for name in ("obs", "state", "discounted"):
            getattr(self, name).copy_(saved[name])
        self.look_who_is_present()


class Collector:
    """Owns the training environments, the policy's memory of their episodes, and the randomness of acting."""

    def __init__(
        self,
        envs: list[VecEnv],
        policy: ActorCritic,
        schedule: SegmentSchedule,
        gamma: float,
        seed: int,
        cuda_graphs: bool = True,
    ) -> None:
        self.policy, self.schedule, self.gamma = policy, schedule, gamma
        device = policy.device
        # Values and log-probabilities of a rollout without a hidden state are found faster in one go, by the
        # update. Not where a newer policy finishes the segments; and it does not pay where a step is a recorded
        # graph, or where seeing an image is most of the work and gives the value, too.
        in_one_go = schedule.aligned and not policy.recurrent and not policy.has_images
        self._judges = device.type == "cuda" or not in_one_go
        self.groups: list[_Group] = []
        for i, env in enumerate(envs):
            first = self.groups[-1].rows.stop if self.groups else 0
            self.groups.append(_Group(env, first, policy, derive_seed(seed, *ranks.own_stream(0, i))))
        obs_space = envs[0].obs_space
        self.buffer = SegmentBuffer(
            schedule,
            tuple(obs_space.shape),
            torch.uint8 if obs_space.dtype == "uint8" else torch.float32,
            policy.head.action_size,
            policy.state_size,
            device,
        )
        self.buffer.track.present.fill_(True)
        self.buffer.all_present = all(env.present is None for env in envs)
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, *ranks.own_stream(1)))
        self.timing = Timing()
        self._last_metrics: dict[str, float] = {}
        self._watcher: Watcher | None = None
        # Where a recorded graph stands: the column it writes, and the noise it takes.
        self._column, self._tick = (torch.zeros(1, dtype=torch.int64, device=device) for _ in range(2))
        longest = schedule.columns - 1
        self._noise = torch.zeros((longest, schedule.rows, policy.head.noise_size), device=device)
        self._on_device = device.type == "cuda" and all(
            env.capturable and env.device.type == "cuda" for env in envs
        )
        streams = [generator for env in envs for generator in env.generators] if self._on_device else []
        self._step_all = Graphed(self._device_step, device, cuda_graphs, generators=streams)
        self._decisions = [
            Graphed(partial(self._decide_here, group), device, cuda_graphs) for group in self.groups
        ]

    def watch(self, watcher: Watcher) -> None:
        """Tell of every step; a recorded graph, in which the host sees none, is not used then."""
        self._watcher, self._on_device = watcher, False

    # One rollout --------------------------------------------------------------------------------
    @torch.no_grad()
    def collect(self, update: int, on_step: Callable[[int], None] = lambda t: None) -> Segments:
        """Step until the segments of update 0, 1, … are complete, and return them."""
        steps = self.schedule.end(update) - self.buffer.time
        self._draw_noise(steps)
        self._forget_final_values(steps)
        start = time.perf_counter()
        if self._on_device:
            self._collect_on_device(steps, on_step)
        else:
            self._collect_in_turns(steps, on_step)
        self._look_ahead()
        segments = self.buffer.take(update, self._judges)
        self._refuse_non_finite(segments)
        if self._on_device:  # the check has waited for the device: acting and simulating cannot be told apart
            self.timing.act += time.perf_counter() - start
        return segments

    def _refuse_non_finite(self, segments: Segments) -> None:
        """NaN in a rollout would poison the normaliser and the weights for good: stop before it is used."""
        obs, space = segments.track.obs, self.policy.rows
        numbers = space.numbers_of(obs) if space is not None and space.packed else obs
        given = {"reward": segments.track.reward, "observation": numbers}
        refuse_non_finite(given, self.schedule.rows, self.groups[0].env.name)

    def _forget_final_values(self, steps: int) -> None:
        """Where episodes never run out of time nobody writes final values, but `_begin_anew` may have."""
        if self.schedule.aligned:
            return
        columns = torch.arange(self.buffer.time, self.buffer.time + steps, device=self.buffer.device)
        for group in self.groups:
            if not group.env.truncates:
                written = self.buffer.track.final_value[:, group.rows]
                written.index_fill_(0, columns % self.buffer.columns, 0.0)

    def _draw_noise(self, steps: int) -> None:
        self._noise[:steps] = self.policy.head.noise((steps, self.schedule.rows), self.generator)

    def _collect_in_turns(self, steps: int, on_step: Callable[[int], None]) -> None:
        """While one group's environments simulate, the policy acts for the next."""
        buffer = self.buffer
        for t in range(steps):
            for number, group in enumerate(self.groups):
                with _stream_of(group):
                    if t > 0:
                        self._receive(group, (buffer.time - 1) % buffer.columns)
                    self._send(number, buffer.time % buffer.columns, self._noise[t, group.rows])
            buffer.time += 1
            on_step(t)
        for group in self.groups:
            with _stream_of(group):
                if steps:
                    self._receive(group, (buffer.time - 1) % buffer.columns)
            if group.stream is not None:
                torch.cuda.current_stream().wait_stream(group.stream)

    def _send(self, number: int, column: int, noise: Tensor) -> None:
        start, group = time.perf_counter(), self.groups[number]
        self.buffer.keep_state(group.rows, group.state)
        if group.mover is None:
            self._decide(group, column, noise)
            group.env.begin_step(group.action)
        else:
            group.noise.copy_(noise)
            group.column.fill_(column)
            self._decisions[number]()
            group.env.begin_step(group.mover.to_env(group.action))
        self.timing.act += time.perf_counter() - start

    def _decide_here(self, group: _Group) -> None:
        self._decide(group, group.column, group.noise)

    def _receive(self, group: _Group, column: int) -> None:
        start = time.perf_counter()
        step = group.env.end_step()
        self.timing.simulate += time.perf_counter() - start
        self._digest(group, column, step)

    def _collect_on_device(self, steps: int, on_step: Callable[[int], None]) -> None:
        self._column.fill_(self.buffer.time % self.buffer.columns)
        self._tick.zero_()
        for t in range(steps):
            for group in self.groups:
                self.buffer.keep_state(group.rows, group.state)
            self._step_all()
            self.buffer.time += 1
            on_step(t)

    def _device_step(self) -> None:
        """One step of every group, all of it on the device, side by side."""
        here = torch.cuda.current_stream()
        for group in self.groups:
            assert group.stream is not None
            group.stream.wait_stream(here)
            with torch.cuda.stream(group.stream):
                self._decide(group, self._column, self._noise.index_select(0, self._tick)[0, group.rows])
                group.env.begin_step(group.action)
                self._digest(group, self._column, group.env.end_step())
        for group in self.groups:
            assert group.stream is not None
            here.wait_stream(group.stream)
        self._column.add_(1).remainder_(self.buffer.columns)
        self._tick.add_(1)

    # The two halves of a step -------------------------------------------------------------------
    def _decide(self, group: _Group, column: int | Tensor, noise: Tensor) -> None:
        """The policy's actions for the newest observations."""
        policy, head = self.policy, self.policy.head
        x, record = policy.prepare(group.obs), {"obs": group.obs}
        if self._judges:
            params, record["value"], state = policy.params_and_value_of(x, group.state)
        else:
            params, state = policy.params_of(x, group.state)
        record["action"] = action = head.sample(params, noise)
        if self._judges:
            record["log_prob"] = head.log_prob(params, action)
        if group.seen_present is not None:
            record["present"] = group.seen_present
        self.buffer.write(group.rows, column, **record)
        if group.stream is None:
            group.state, group.action = state, head.to_env(action)
        else:  # in place, as graphs need
            group.state.copy_(state)
            group.action.copy_(head.to_env(action))

    def _digest(self, group: _Group, column: int | Tensor, step: Step) -> None:
        """What came of them: recorded, counted, and forgotten where an episode ended."""
        if self._watcher is not None:
            self._watcher(step, group.stats, group.present)
        group.stats.update(step, group.present)
        if group.mover is not None:
            step = group.mover.to_device(step)
        done = step.done
        group.discounted.mul_(self.gamma).add_(step.reward)
        outcome = {"reward": step.reward, "done": done, "discounted": group.discounted}
        some_ended = done.is_cuda or bool(done.any())  # asking costs nothing on a CPU, and saves much
        if some_ended and group.env.truncates:  # else it stays 0; it is only read where an episode ended
            outcome["final_value"] = self._final_value(group, step)
        self.buffer.write(group.rows, column, **outcome)
        if some_ended:
            group.discounted.masked_fill_(done, 0.0)
        if self.policy.state_size and (some_ended or group.seen_present is not None):
            ended = done if group.seen_present is None else done | ~group.seen_present
            group.state.masked_fill_(ended[:, None], 0.0)
        if group.stream is None:
            group.obs = step.obs
        else:  # in place, as graphs need
            group.obs.copy_(step.obs)
        group.look_who_is_present()

    def _final_value(self, group: _Group, step: Step) -> Tensor:
        """V of the observation at which time ran out, which is no longer to be seen afterwards; 0 elsewhere."""
        final = torch.zeros_like(step.reward)
        if final.is_cuda:
            return torch.where(step.truncated, self._value(step.final_obs, group.state), final)
        rows = step.truncated.nonzero().squeeze(1)  # few
        if len(rows):
            final[rows] = self._value(step.final_obs[rows], group.state[rows])
        return final

    def _value(self, obs: Tensor, state: Tensor) -> Tensor:
        return self.policy.value_of(self.policy.prepare(obs), state)

    def _look_ahead(self) -> None:
        """What follows the newest step is needed for its value; the next rollout begins with it."""
        column = self.buffer.time % self.buffer.columns
        for group in self.groups:
            value = {"value": self._value(group.obs, group.state)} if self._judges else {}
            self.buffer.write(group.rows, column, obs=group.obs, **value)

    # Metrics and state --------------------------------------------------------------------------
    def lessons(self) -> list[State]:
        """What evaluations have taught each group."""
        return [lessons_of(group.env) for group in self.groups]

    def begin_at(self, update: int, lessons: list[State]) -> None:
        """Record the segments of this update from their first step on: what was recorded of them is lost."""
        for group, learned in zip(self.groups, lessons, strict=False):  # older checkpoints have none
            if learned:
                load_lessons(group.env, learned)
                self._begin_anew(group)
        self.buffer.time = self.schedule.start(update * self.schedule.segments)

    def episode_metrics(self) -> dict[str, float]:
        metrics = rollout_metrics([group.stats for group in self.groups], self._last_metrics)
        return metrics | env_faults([group.env for group in self.groups])

    @property
    def adapt_every(self) -> int:
        """Steps between evaluations for `adapt` alone; 0: it is told of the run's own."""
        return adapt_every(self.groups[0].env)

    def adapt(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> None:
        """Tell the environments of an evaluation; where they start elsewhere now, all episodes begin anew."""
        for group in self.groups:
            if adapt(group.env, metrics, labels):
                self._begin_anew(group)

    def _begin_anew(self, group: _Group) -> None:
        """As if time had run out in every episode."""
        buffer, rows = self.buffer, group.rows
        if buffer.time and not self.schedule.aligned:  # aligned, nothing half recorded is left
            last, ahead = ((buffer.time + k) % buffer.columns for k in (-1, 0))
            done, final_value = (getattr(buffer.track, name)[last, rows] for name in ("done", "final_value"))
            # Episodes that ended of themselves have their final value already.
            final_value.copy_(torch.where(done, final_value, buffer.track.value[ahead, rows]))
            done.fill_(True)
        seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
        group.begin(int(seed))

    def set_progress(self, fraction: float) -> None:
        for group in self.groups:
            group.env.set_progress(fraction)

    def state(self) -> State:
        return {
            "groups": [group.saved() for group in self.groups],
            "buffer": self.buffer.state(),
            "generator": self.generator.get_state(),
            "last_metrics": self._last_metrics,
        }

    def load_state(self, state: State) -> None:
        for group, saved in zip(self.groups, state["groups"], strict=True):
            group.load(saved)
        self.buffer.load_state(state["buffer"])
        restore_generator(self.generator, state["generator"])
        self._last_metrics = dict(state["last_metrics"])

    def close(self) -> None:
        for group in self.groups:
            group.env.close()


class _Mover:
    """Carries steps from environments on the CPU to a GPU and actions back, on their group's own stream."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._pinned: dict[str, Tensor] = {}

    def to_env(self, action: Tensor) -> Tensor:
        host = self._staging("action", action)
        host.copy_(action, non_blocking=True)
        self._stream.synchronize()  # for this group's work alone; all copies through pinned memory are done, too
        return host

    def to_device(self, step: Step) -> Step:
        move = self._move
        return Step(
            move("obs", step.obs),
            move("reward", step.reward),
            move("terminated", step.terminated),
            move("truncated", step.truncated),
            move("final_obs", step.final_obs),
            step.metrics,
        )

    def _move(self, name: str, tensor: Tensor) -> Tensor:
        return self._staging(name, tensor).copy_(tensor).to(self._stream.device, non_blocking=True)

    def _staging(self, name: str, like: Tensor) -> Tensor:
        if name not in self._pinned:
            self._pinned[name] = torch.empty(like.shape, dtype=like.dtype, pin_memory=True)
        return self._pinned[name]


@contextlib.contextmanager
def _stream_of(group: _Group) -> Iterator[None]:
    if group.stream is None:
        yield
        return
    group.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(group.stream):
        yield
