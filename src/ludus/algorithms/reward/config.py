"""Settings of a learned reward."""

from dataclasses import dataclass
from typing import Annotated, Literal

from ludus.errors import ConfigError
from ludus.ranges import LAYERS, MOST_ENVS, WIDEST_LAYER, Range, check_fields


@dataclass(frozen=True)
class RewardConfig:
    """Where the agent's reward comes from."""

    method: Literal["none", "rrd", "rrd-unbiased", "rd", "ircr"] = "none"
    """none: the environment. rrd: a network that decomposes each episode's return, from steps drawn at random;
    rrd-unbiased: the same, corrected for the variance of sampling; rd: from whole episodes; ircr: the episode's
    return, scaled to 0 … 1, on each of its steps."""
    rrd_batch_size: Annotated[int, Range(1, MOST_ENVS)] = 256
    """Steps of each reward batch."""
    rrd_sample_size: Annotated[int, Range(1, MOST_ENVS)] = 64
    """Steps drawn from each episode (K)."""
    learning_rate: Annotated[float, Range(above=0, most=1_000)] = 3e-4
    """Step size of Adam for the reward network."""
    weight_decay: Annotated[float, Range(0)] = 0.0
    """A step makes the reward network's weights smaller by learning_rate × this; against learning few episodes by
    heart."""
    hidden: Annotated[tuple[int, ...], LAYERS] = (256, 256)
    """Widths of the reward network's hidden layers."""
    normalize_returns: bool = True
    """Scale returns until return / length has a standard deviation of 1; the inverse is kept with the network."""
    progress: Annotated[float, Range(0)] = 0.0
    """Weight of a head that learns how far a successful episode has come, t / T; 0: none."""
    success: Annotated[float, Range(0)] = 0.0
    """Weight of a head that tells successes from failures; 0: none."""
    encoder: Literal["conv", "frozen"] = "conv"
    """Images: a convolution that learns along, or fixed random features, computed once per frame."""
    image_features: Annotated[int, Range(1, WIDEST_LAYER)] = 64
    """Numbers that a camera's picture becomes."""
    augment: Annotated[int, Range(0, 1_024)] = 4
    """Images are shifted by up to so many pixels at random; 0: not. A frozen encoder sees them unshifted."""

    @property
    def sequences(self) -> int:
        """Sub-sequences of each reward batch."""
        return self.rrd_batch_size // self.rrd_sample_size

    def told(self) -> str:
        """In the plan of a run."""
        steps = "whole episodes" if self.method == "rd" else f"× {self.rrd_sample_size} steps"
        return f"{self.method} {self.sequences} {steps}"

    @property
    def learned(self) -> bool:
        """Whether there is a reward network."""
        return self.method in ("rrd", "rrd-unbiased", "rd")


def check_reward_config(config: RewardConfig, longest: int | None) -> list[str]:
    """A clear error where numbers do not fit each other; otherwise warnings. `longest`: steps of any episode."""
    check_fields(config, "reward.")
    if (config.progress or config.success) and not config.learned:
        raise ConfigError(
            f"--reward.progress and --reward.success are heads of the reward network, and --reward.method "
            f"{config.method} has none; use rrd, rrd-unbiased or rd."
        )
    if not config.learned:
        return []
    batch, sample = config.rrd_batch_size, config.rrd_sample_size
    if batch < sample:
        raise ConfigError(
            f"--reward.rrd-batch-size {batch} is less than --reward.rrd-sample-size {sample}: not one "
            f"sub-sequence fits into a batch. Use a batch of {sample}, or draw {batch} steps from each episode."
        )
    if batch % sample:
        below = batch - batch % sample
        raise ConfigError(
            f"--reward.rrd-batch-size {batch} is not a multiple of --reward.rrd-sample-size {sample}; "
            f"{below} and {below + sample} are."
        )
    if config.method == "rrd-unbiased" and sample == 1:
        raise ConfigError(
            "--reward.method rrd-unbiased needs the variance of the drawn steps: --reward.rrd-sample-size must be "
            "at least 2. With 1, use rrd."
        )
    if longest is not None and sample > longest and config.method != "rd":
        return [
            f"--reward.rrd-sample-size {sample} is more than the {longest} steps of the longest episode: steps "
            f"are drawn with replacement. With {longest} or fewer none is drawn twice."
        ]
    return []
