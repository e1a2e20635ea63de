"""Settings of proximal policy optimisation."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from ludus.algorithms.on_policy.config import OnPolicyTrainConfig, RolloutConfig
from ludus.errors import ConfigError
from ludus.ranges import SHARE, Range


@dataclass(frozen=True)
class PPOConfig(RolloutConfig):
    """Proximal policy optimisation."""

    gamma: Annotated[float, SHARE] = 0.99
    """Discount of the future, per step."""
    gae_lambda: Annotated[float, SHARE] = 0.95
    """How far advantages look ahead: 0 one step, 1 the whole episode."""
    clip: Annotated[float, Range(0)] = 0.2
    """How far the probability of an action may move in one iteration, as a ratio."""
    value_clip: Annotated[float, Range(0)] = 0.0
    """How far a value may move in one iteration, in units of normalised return; 0 does not limit it."""
    value_coef: Annotated[float, Range(0)] = 0.5
    """Weight of the value loss."""
    entropy_coef: Annotated[float, Range()] = 0.0
    """Weight of the entropy bonus at the start."""
    entropy_coef_final: Annotated[float, Range()] = 0.0
    """Weight of the entropy bonus at the end of the training (linear)."""
    std_final: Annotated[float, Range(0, 100)] = 0.0
    """Cap on the standard deviation of actions at the end; 0 leaves it free."""
    std_closing: Annotated[tuple[float, ...], Range(0, 1, longest=2)] = (0.5, 1.0)
    """The shares of the training done where that cap begins to close, and where it is closed (0.3 0.8)."""
    bound_coef: Annotated[float, Range(0)] = 0.0
    """Weight of the squared excess of a continuous action's mean over the action bounds."""
    l2_init: Annotated[float, Range(0)] = 0.0
    """Weight of the squared distance of all weights to their initial values: keeps a network able to learn."""
    normalize_advantage: bool = True
    """Standardise advantages over each iteration's steps."""
    normalize_returns: bool = True
    """Divide rewards by the running standard deviation of the discounted return."""
    recompute_advantages: bool = False
    """Estimate advantages anew, with the newest critic, before each pass; the value of what a truncated episode
    ended with stays as it was seen."""
    rho_clip: Annotated[float, Range(0)] = 0.0
    """V-trace: an action counts in advantages by how much more likely it has become, up to this; 0: all alike."""
    c_clip: Annotated[float, Range(0)] = 1.0
    """V-trace: the same limit for what is passed on from later steps; used with rho_clip."""
    prio_alpha: Annotated[float, Range(0, 100)] = 0.0
    """Choose segments with probability ∝ (Σ|advantage|)^prio_alpha; 0: each exactly once a pass."""
    prio_beta: Annotated[float, SHARE] = 0.2
    """How far such a choice is corrected by weights at the start; fully (1) at the end of the training."""
    target_kl: Annotated[float, Range(0)] = 0.0
    """Target KL divergence of an iteration; 0: none."""
    kl_control: Literal["stop", "adapt"] = "stop"
    """Above 1.5 × target_kl, stop the iteration's updates; or adapt the learning rate between iterations."""

    def check_values(self, path: str) -> None:
        if len(self.std_closing) != 2 or self.std_closing[0] >= self.std_closing[1]:
            raise ConfigError(
                f"--{path}std-closing is {self.std_closing}; it needs the share of the training where the "
                "cap begins to close, and a later one where it is closed: 0.5 1."
            )


@dataclass(frozen=True)
class PPOTrainConfig(OnPolicyTrainConfig):
    """A run of PPO."""

    algo: str = "ppo"
    ppo: PPOConfig = field(default_factory=PPOConfig)
    """Proximal policy optimisation."""

    section: ClassVar[str] = "ppo"
    has_ranks: ClassVar[bool] = True
    short_names: ClassVar[Mapping[str, str]] = {"batch_size": "ppo.batch_size"}

    @property
    def gamma(self) -> float:
        return self.ppo.gamma

    @property
    def whole_segments(self) -> bool:
        return super().whole_segments or self.ppo.prio_alpha > 0

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        if setting == "ppo.std_closing" and not self.ppo.std_final:
            return "the spread of actions has no cap; give --ppo.std-final, or leave it out."
        instead = _INSTEAD.get(setting) or _INSTEAD.get(setting.partition(".")[0])
        return instead or super().why_useless(setting, given)


_INSTEAD = {  # what PPO does in the place of other algorithms' settings
    "replay.batch_size": "PPO has minibatches of --ppo.batch-size steps.",
    "replay.train_batches": "PPO takes --ppo.minibatches × --ppo.update-epochs gradient steps an iteration.",
    "replay.average": "PPO has --ppo.average.",
    "reward": "PPO learns from its own rollouts, and is paid by the environment; take --algo sac or td3.",
    "data": "PPO learns from its own rollouts, not from recorded episodes; take --algo sac or td3.",
}
