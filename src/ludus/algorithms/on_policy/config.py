"""Settings of every algorithm that learns from each rollout once and forgets it."""

import dataclasses
import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar

from ludus.buffers.schedule import SegmentSchedule
from ludus.config import EvalConfig, LoopConfig, TrainConfig, convert
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
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
    batch_size: Annotated[int, Range(0, MOST_ENVS)] = 0
    """Steps of a minibatch; 0: an iteration's steps are split into so many parts as minibatches says."""
    update_epochs: Annotated[int, Range(1, 10_000)] = 10
    """Passes over an iteration's steps."""
    learning_rate: Annotated[float, Range(0, 1_000)] = 3e-4
    """Adam's step size at the start."""
    learning_rate_final: Annotated[float, Range(0, 1_000)] = 0.0
    """Step size at the end, reached linearly; the same as learning_rate keeps it constant."""
    max_grad_norm: Annotated[float, Range(above=0)] = 0.5
    """Gradients longer than this are shortened to it."""
    average: Annotated[int, Range(0, 10**9)] = 0
    """Evaluate and save the mean of the policy's weights over about so many gradient steps, once an iteration, but
    of no more than the newest twentieth of all; 0: the newest weights."""


def count_minibatches(
    config: RolloutConfig, schedule: SegmentSchedule, whole_segments: bool, section: str = "ppo"
) -> int:
    """Parts of an iteration; a clear error with the nearest numbers that would divide it."""
    segments, horizon, size = schedule.segments, schedule.horizon, config.batch_size
    steps = segments * horizon
    units = segments if whole_segments else steps
    parts = config.minibatches if not size else steps // size
    if parts and units % parts == 0 and (not size or steps % size == 0):
        return parts
    divisors = _divisors(units)
    if size:
        wanted, name = f"minibatches of {size} steps", "batch-size"
        works = _nearest([steps // parts for parts in divisors], size)
    else:
        wanted, name, works = f"{parts} minibatches", "minibatches", _nearest(divisors, parts)
    whole = " of whole segments, which a memory and priorities need" if whole_segments else ""
    raise ConfigError(
        f"{segments} segments × horizon {horizon} = {steps} steps do not divide into {wanted}{whole}. Try "
        f"--{section}.{name} {' or '.join(map(str, works))}, or change --{section}.segments, "
        f"--{section}.horizon or --env.num-envs."
    )


def _divisors(count: int) -> list[int]:
    low = [d for d in range(1, math.isqrt(count) + 1) if count % d == 0]
    return sorted({*low, *(count // d for d in low)})


def _nearest(choices: list[int], wanted: int) -> list[int]:
    """The next below and the next above."""
    below, above = [c for c in choices if c < wanted], [c for c in choices if c > wanted]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


@dataclass(frozen=True)
class OnPolicyTrainConfig(TrainConfig):
    """A run of an algorithm that learns from its own rollouts."""

    section: ClassVar[str]
    """The name of the algorithm's section."""
    can_remember: ClassVar[bool] = True

    @property
    def rollout(self) -> RolloutConfig:
        """The algorithm's section."""
        section: RolloutConfig = getattr(self, self.section)
        return section

    def settled(self, given: Collection[str]) -> Self:
        config, size, parts = super().settled(given), f"{self.section}.batch_size", f"{self.section}.minibatches"
        if parts not in given or not self.rollout.batch_size:
            return config
        if size in given:
            raise ConfigError(
                f"--{size.replace('_', '-')} and --{parts} both say how an iteration is split: give one of them."
            )
        return config.with_rollout(batch_size=0)

    def with_rollout(self, **changes: Any) -> Self:
        """The same, with changes of the algorithm's section."""
        section: dict[str, Any] = {self.section: dataclasses.replace(self.rollout, **changes)}
        return dataclasses.replace(self, **section)

    @property
    def memory_advice(self) -> str:
        section = self.section
        return (
            f"Make --env.num-envs, --{section}.segments or --{section}.horizon smaller, or take more "
            f"--{section}.minibatches."
        )

    @property
    def per_rank(self) -> tuple[str, ...]:
        return (*super().per_rank, f"{self.section}.segments", f"{self.section}.batch_size")

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
    return SegmentSchedule(rows, rollout.segments or rows, rollout.horizon)


def with_minibatches(config: C, schedule: SegmentSchedule) -> C:
    """The same, with as many minibatches as `batch_size` asks for; refused where they do not divide the steps, or
    where a mean of weights would be of less than one iteration.
    """
    rollout, section = config.rollout, config.section
    parts = count_minibatches(rollout, schedule, config.whole_segments, section)
    batches = parts * rollout.update_epochs
    if 0 < rollout.average <= batches:
        raise ConfigError(
            f"--{section}.average {rollout.average:,} is too short for a mean: give more than the {batches:,} "
            f"gradient steps of an iteration (--{section}.minibatches × --{section}.update-epochs), or 0."
        )
    return config.with_rollout(minibatches=parts)
