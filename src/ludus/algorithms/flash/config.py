"""Settings of FlashSAC."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ludus.algorithms.replay.config import ReplayConfig, ReplayTrainConfig
from ludus.policies.config import PolicyConfig
from ludus.ranges import WIDEST_LAYER, Range

_OWN_LAYERS = (
    "FlashSAC has layers of its own, which see vectors: with images or a network of your own take --algo sac."
)
_USELESS = {
    **dict.fromkeys(
        (f"policy.{name}" for name in ("activation", "cnn", "image_features", "network")), _OWN_LAYERS
    ),
    **dict.fromkeys(("replay.segment", "replay.burn_in"), "FlashSAC has no memory: for one take --algo sac."),
}
"""Settings of others."""


@dataclass(frozen=True)
class FlashConfig:
    """FlashSAC: normed networks, critics of distributions, noise that is held."""

    critic_width: Annotated[int, Range(1, WIDEST_LAYER)] = 256
    """Width of the critics' blocks; policy.hidden has the policy's, and how many blocks both have."""
    alpha: Annotated[float, Range(above=0)] = 0.01
    """Weight of the entropy (temperature) at the start."""
    target_std: Annotated[float, Range(above=0, most=100)] = 0.15
    """The target entropy is that of a normal with this standard deviation in each action; 1: half its range."""
    policy_delay: Annotated[int, Range(1, 1_000_000)] = 2
    """Critic updates between those of the policy."""
    final_rate: Annotated[float, Range(above=0, most=1)] = 0.5
    """Share of the critics' learning rate that is left at the end (cosine); the policy's falls by half as much."""
    longest_noise: Annotated[int, Range(1, 10_000)] = 16
    """Steps for which noise is held at most; n steps are as likely as 1/n². 1: new noise every step."""
    bins: Annotated[int, Range(2, 10_000)] = 101
    """Bins of the critics' distribution over returns."""
    highest_value: Annotated[float, Range(above=0, most=1e6)] = 5.0
    """Value of the last bin, and minus that of the first; rewards are scaled so that returns fit."""


@dataclass(frozen=True)
class FlashTrainConfig(ReplayTrainConfig):
    """A run of FlashSAC, with the published settings for one environment."""

    algo: str = "flash-sac"
    precision: Literal["float32", "tf32", "bfloat16"] = "bfloat16"
    policy: PolicyConfig = field(
        default_factory=lambda: PolicyConfig(hidden=(128, 128), activation="relu", normalize_obs=False)
    )
    replay: ReplayConfig = field(default_factory=lambda: ReplayConfig(batch_size=512, polyak=0.99))
    flash: FlashConfig = field(default_factory=FlashConfig)
    """FlashSAC's own."""

    head: ClassVar[str] = "flash-sac"
    can_remember: ClassVar[bool] = False
    has_ranks: ClassVar[bool] = False  # a batch norm would need the rows of all ranks

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        return _USELESS.get(setting) or super().why_useless(setting, given)
