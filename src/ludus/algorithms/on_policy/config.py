"""Settings of every algorithm that learns from each rollout once and forgets it."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, TypeVar

from ludus.buffers.segments import SegmentSchedule
from ludus.config import EvalConfig, LoopConfig, TrainConfig, convert
from ludus.errors import ConfigError
from ludus.policies.policy import PolicyConfig
from ludus.ranges import MOST_ENVS, Range


@dataclass(frozen=True)
class RolloutConfig:
    """A rollout, and the gradient steps made of it."""

    horizon: Annotated[int, Range(1, 2**16)] = 32
    """Steps of a segment, which is a piece of one row's trajectory."""
    segments: Annotated[int, Range(0, MOST_ENVS)] = 0
    """Segments of one iteration; 0: one of every row. The rows need not divide it: they record without a break."""
    minibatches: Annotated[int, Range(1, MOST_ENVS)] = 4
    """Parts an iteration is split into, each one gradient step: steps, or with a memory whole segments."""
    update_epochs: Annotated[int, Range(1, 10_000)] = 10
    """Passes over an iteration's steps."""
    learning_rate: Annotated[float, Range(0, 1_000)] = 3e-4
    """Adam's step size at the start."""
    learning_rate_final: Annotated[float, Range(0, 1_000)] = 0.0
    """Step size at the end, reached linearly; the same as learning_rate keeps it constant."""
    max_grad_norm: Annotated[float, Range(above=0)] = 0.5
    """Gradients longer than this are shortened to it."""


def check_divides(
    config: RolloutConfig, schedule: SegmentSchedule, whole_segments: bool, section: str = "ppo"
) -> None:
    """What divides what, and the nearest numbers that would."""
    segments, horizon, parts = schedule.segments, schedule.horizon, config.minibatches
    count = segments if whole_segments else segments * horizon
    if count % parts == 0:
        return
    low = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    divisors = sorted({*low, *(count // d for d in low)})
    nearest = {max(d for d in divisors if d < parts), min((d for d in divisors if d > parts), default=count)}
    whole = " of whole segments, which a memory and priorities need" if whole_segments else ""
    choices = " or ".join(map(str, sorted(nearest)))
    raise ConfigError(
        f"{segments} segments × horizon {horizon} = {segments * horizon} steps do not divide into {parts} "
        f"minibatches{whole}. Try --{section}.minibatches {choices}, or change --{section}.segments, "
        f"--{section}.horizon or --env.num-envs."
    )


@dataclass(frozen=True)
class OnPolicyTrainConfig(TrainConfig):
    """A run of an algorithm that learns from its own rollouts."""

    section: ClassVar[str]
    """The name of the algorithm's section."""

    @property
    def rollout(self) -> RolloutConfig:
        """The algorithm's section."""
        section: RolloutConfig = getattr(self, self.section)
        return section

    @property
    def gamma(self) -> float:
        """Discount of the returns that rollouts are measured by."""
        return 0.99

    @property
    def whole_segments(self) -> bool:
        """Whether minibatches are of whole segments. A network of the user's tells it once it is made."""
        return self.policy.memory != "none" and not self.policy.network


C = TypeVar("C", bound=OnPolicyTrainConfig)


def adapted(config: TrainConfig, kind: type[C]) -> C:
    """Any preset as `kind`'s algorithm would train it. Networks and plan of a replay do not suit rollouts."""
    if isinstance(config, OnPolicyTrainConfig):
        return convert(config, kind)
    return convert(config, kind, policy=PolicyConfig(), loop=LoopConfig(), eval=EvalConfig())


def make_schedule(config: OnPolicyTrainConfig, rows: int) -> SegmentSchedule:
    """Segments of so many rows (environments × agents)."""
    rollout = config.rollout
    schedule = SegmentSchedule(rows, rollout.segments or rows, rollout.horizon)
    check_divides(rollout, schedule, config.whole_segments, config.section)
    return schedule
