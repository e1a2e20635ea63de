"""Settings of distillation."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Self

from ludus.algorithms.on_policy.config import OnPolicyTrainConfig, RolloutConfig
from ludus.errors import ConfigError
from ludus.ranges import Range


@dataclass(frozen=True)
class DistillConfig(RolloutConfig):
    """A trained policy teaches one that sees less."""

    teacher: str = ""
    """The run whose best policy teaches, or RUN@STEP for another."""
    teacher_part: str = ""
    """The part of an observation that the teacher sees; empty: all of it."""
    horizon: Annotated[int, Range(1, 2**16)] = 16
    """Steps of a segment, which is a piece of one row's trajectory."""
    update_epochs: Annotated[int, Range(1, 10_000)] = 2
    """Passes over an iteration's steps."""
    learning_rate: Annotated[float, Range(0, 1_000)] = 1e-3
    """Adam's step size at the start."""
    learning_rate_final: Annotated[float, Range(0, 1_000)] = 1e-4
    """Step size at the end, reached linearly."""


@dataclass(frozen=True)
class DistillTrainConfig(OnPolicyTrainConfig):
    """A run of distillation."""

    algo: str = "distill"
    distill: DistillConfig = field(default_factory=DistillConfig)
    """A trained policy teaches one that sees less."""

    section: ClassVar[str] = "distill"
    has_ranks: ClassVar[bool] = True
    short_names: ClassVar[Mapping[str, str]] = {"batch_size": "distill.batch_size"}

    def check(self) -> None:
        super().check()
        if self.episodic_reward:
            raise ConfigError("Distillation learns from its teacher alone: leave --episodic-reward out.")

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        foreign = setting.partition(".")[0] in ("data", "reward")
        if foreign:
            return "distillation learns from its teacher alone; leave it out."
        return super().why_useless(setting, given)

    def with_whole_paths(self) -> Self:
        config, teacher = super().with_whole_paths(), self.distill.teacher
        if not teacher:
            return config
        whole = str(Path(teacher).expanduser().resolve())
        return dataclasses.replace(config, distill=dataclasses.replace(self.distill, teacher=whole))

    def with_pinned_runs(self, pin: Callable[[str, str], str]) -> Self:
        config, teacher = super().with_pinned_runs(pin), self.distill.teacher
        if not teacher:
            return config
        pinned = pin("--distill.teacher", teacher)
        return dataclasses.replace(config, distill=dataclasses.replace(self.distill, teacher=pinned))
