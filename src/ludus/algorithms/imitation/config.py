"""Settings of adversarial imitation."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.ranges import LAYERS, MOST_ENVS, SHARE, Range


@dataclass(frozen=True)
class AdversaryConfig:
    """Adversarial imitation, where the environment shows motion to imitate."""

    task_weight: Annotated[float, Range(0)] = 0.5
    """Weight of the task's own reward."""
    style_weight: Annotated[float, Range(0)] = 0.5
    """Weight of the discriminator's reward."""
    style_scale: Annotated[float, Range(0)] = 2.0
    """The discriminator's reward is multiplied by this."""
    reward: Literal["log", "square"] = "log"
    """log: −log(1 − D), learned by cross-entropy. square: 1 − ¼ (d − 1)², at least 0, learned by least squares
    towards 1 (demonstrations) and −1, as in the paper on AMP."""
    hidden: Annotated[tuple[int, ...], LAYERS] = (512, 256)
    """Widths of the discriminator's hidden layers."""
    learning_rate: Annotated[float, Range(0, 1_000)] = 1e-4
    """Step size of Adam for the discriminator."""
    batches: Annotated[int, Range(1, 1_000_000)] = 4
    """Gradient steps an iteration."""
    batch_size: Annotated[int, Range(1, MOST_ENVS)] = 512
    """Windows of each batch: so many demonstrated ones and as many of the policy."""
    replay: Annotated[int, Range(0, 10**9)] = 10_000
    """Windows of earlier policies that are kept; 0: none."""
    replay_share: Annotated[float, SHARE] = 0.5
    """Part of the policy's windows in a batch that is drawn from those."""
    gradient_penalty: Annotated[float, Range(0)] = 5.0
    """Weight of the squared slope of the discriminator."""
    penalized: Literal["demonstrations", "policy", "both"] = "demonstrations"
    """At which windows the slope is taken. demonstrations: AMP; policy: ADD; both: the mean of the two."""
    logit_regularizer: Annotated[float, Range(0)] = 0.01
    """Weight of the last layer's squared weights."""
    weight_decay: Annotated[float, Range(0)] = 1e-4
    """Weight of all layers' squared weights."""


@dataclass(frozen=True)
class AMPTrainConfig(PPOTrainConfig):
    """A run of PPO with a discriminator."""

    algo: str = "amp"
    adversary: AdversaryConfig = field(default_factory=AdversaryConfig)
    """The discriminator."""

    imitates: ClassVar[bool] = True

    @property
    def per_rank(self) -> tuple[str, ...]:
        return (*super().per_rank, "adversary.batch_size")
