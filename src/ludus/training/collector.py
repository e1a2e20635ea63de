"""Fills the segment buffer: the policy acts for one group of environments while the others simulate."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.buffers.segments import SegmentBuffer, Segments
from ludus.envs.vec import EpisodeStats, State, Step, VecEnv, combine_stats, derive_seed
from ludus.errors import EnvError
from ludus.policies.policy import Policy


@dataclass
class Timing:
    """Seconds spent since the last reading."""

    simulate: float = 0.0  # waiting for environments
    act: float = 0.0


class Collector:
    """Owns the training environments' current observations and the randomness of acting."""

    def __init__(self, groups: list[VecEnv], policy: Policy, horizon: int, seed: int) -> None:
        self.groups, self.policy, self.horizon = groups, policy, horizon
        device = policy.value_head.weight.device
        self.rows = sum(env.num_rows for env in groups)
        self._slices: list[slice] = []
        for env in groups:
            start = self._slices[-1].stop if self._slices else 0
            self._slices.append(slice(start, start + env.num_rows))
        self.buffer = SegmentBuffer(
            self.rows,
            horizon,
            tuple(groups[0].obs_space.shape),
            _torch_dtype(groups[0]),
            policy.head.action_size,
            device,
        )
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, 1))
        self.stats = [EpisodeStats(env.num_rows, env.device) for env in groups]
        self.timing = Timing()
        self._last_metrics: dict[str, float] = {}
        self._obs = [
            env.reset(derive_seed(seed, 0, i)).to(device) for i, env in enumerate(groups)
        ]  # per group [rows, *obs]

    @torch.no_grad()
    def collect(self, on_step: Callable[[int], None] = lambda t: None) -> Segments:
        """One rollout of `horizon` steps in every row."""
        noise = self.policy.head.noise((self.horizon, self.rows), self.generator)
        for t in range(self.horizon):
            for group in range(len(self.groups)):
                if t > 0:
                    self._receive(group, t - 1)
                self._send(group, t, noise[t, self._slices[group]])
            on_step(t)
        for group in range(len(self.groups)):
            self._receive(group, self.horizon - 1)
        segments = self.buffer.finish(torch.cat(self._obs))
        _refuse_non_finite(segments, self.groups[0].name)
        return segments

    def _send(self, group: int, t: int, noise: Tensor) -> None:
        start = time.perf_counter()
        obs, head = self._obs[group], self.policy.head
        params = self.policy.params_of(self.policy.normalize(obs))
        action = head.sample(params, noise)
        self.buffer.write_action(self._slices[group], t, obs, action)
        self.groups[group].begin_step(head.to_env(action))
        self.timing.act += time.perf_counter() - start

    def _receive(self, group: int, t: int) -> None:
        start = time.perf_counter()
        step: Step = self.groups[group].end_step()
        self.timing.simulate += time.perf_counter() - start
        self.stats[group].update(step)
        self.buffer.write_outcome(
            self._slices[group], t, step.reward, step.terminated, step.truncated, step.final_obs
        )
        self._obs[group] = step.obs.to(self.buffer.device)

    def episode_metrics(self) -> dict[str, float]:
        """`rollout/…` means over the episodes that ended since the last reading; the last known where none did."""
        means = combine_stats([stats.read() for stats in self.stats])
        if "success" in means:
            means["success_rate"] = means.pop("success")
        self._last_metrics |= {f"rollout/{name}": value for name, value in means.items()}
        return dict(self._last_metrics)

    def take_timing(self) -> Timing:
        timing, self.timing = self.timing, Timing()
        return timing

    def set_progress(self, fraction: float) -> None:
        for env in self.groups:
            env.set_progress(fraction)

    def state(self) -> State:
        return {
            "envs": [env.state() for env in self.groups],
            "obs": list(self._obs),
            "stats": [stats.state() for stats in self.stats],
            "generator": self.generator.get_state(),
            "last_metrics": self._last_metrics,
        }

    def load_state(self, state: State) -> None:
        for env, saved in zip(self.groups, state["envs"], strict=True):
            env.load_state(saved)
        for stats, saved in zip(self.stats, state["stats"], strict=True):
            stats.load_state(saved)
        self._obs = [obs.to(self.buffer.device) for obs in state["obs"]]
        self.generator.set_state(state["generator"])
        self._last_metrics = dict(state["last_metrics"])

    def close(self) -> None:
        for env in self.groups:
            env.close()


def _torch_dtype(env: VecEnv) -> torch.dtype:
    return torch.uint8 if env.obs_space.dtype == "uint8" else torch.float32


def _refuse_non_finite(segments: Segments, name: str) -> None:
    """NaN in a rollout would poison the normaliser and the weights for good: stop before it is used."""
    for what, values in (("reward", segments.reward), ("observation", segments.obs)):
        finite = torch.isfinite(values)
        if not bool(finite.all()):
            row, t = finite.logical_not().nonzero()[0, :2].tolist()
            raise EnvError(
                f"{name} gave a {what} that is not a finite number (row {row}, step {t} of the rollout). "
                f"Run 'ludus check {name}' to find out where it comes from."
            )
