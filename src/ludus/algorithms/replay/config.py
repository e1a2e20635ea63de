"""Settings of the algorithms that learn from a replay."""

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

from ludus.algorithms.reward.config import RewardConfig, check_reward_config
from ludus.config import TrainConfig
from ludus.data.config import DataConfig
from ludus.errors import ConfigError
from ludus.ranges import MOST_ENVS, MOST_STEPS, SHARE, Range

_IMITATION = ("bc", "advantage")  # settings of a replay that recorded actions are needed for
_NOBODY_COLLECTS = "recorded episodes are all there is, and nobody collects more; leave it out."
_NOBODY_EXPLORES = "nobody explores on recorded episodes; leave it out."
_EXPLORATION = ("td3.exploration", "dqn.epsilon", "dqn.epsilon_final", "dqn.epsilon_until")
_USELESS_OFFLINE = {
    **dict.fromkeys([f"replay.{name}" for name in ("capacity", "warmup", "steps", "longest")], _NOBODY_COLLECTS),
    "flash.longest_noise": _NOBODY_EXPLORES,
    "data.held_out": "environments measure the policy, and all episodes are learned from; leave it out.",
    "policy.normalize_obs": "with recorded episodes it is --data.normalize-obs.",
}


@dataclass(frozen=True)
class ReplayConfig:
    """What SAC, TD3 and DQN share: the replay and the pace of learning."""

    capacity: Annotated[int, Range(1, 10**10)] = 1_000_000
    """Rows of the replay; an episode of T steps takes T + 1. The oldest episodes leave first."""
    warmup: Annotated[int, Range(0, MOST_STEPS)] = 10_000
    """Steps of random actions before the first gradient step."""
    steps: Annotated[int, Range(1, 10**9)] = 100
    """Environment steps an iteration, over all environments; train_batches / steps is the updates per step."""
    train_batches: Annotated[int, Range(1, 1_000_000)] = 100
    """Gradient steps an iteration."""
    batch_size: Annotated[int, Range(1, MOST_ENVS)] = 256
    """Transitions of each gradient step."""
    learning_rate: Annotated[float, Range(above=0, most=1_000)] = 3e-4
    """Adam's step size, of all networks."""
    gamma: Annotated[float, SHARE] = 0.99
    """Discount of the future."""
    n_step: Annotated[int, Range(1, 10_000)] = 1
    """Rewards summed before the critic is asked for the rest."""
    segment: Annotated[int, Range(1, 10_000)] = 16
    """With a memory: consecutive steps that are learned from together; batch_size is a multiple of it."""
    burn_in: Annotated[int, Range(0, 10_000)] = 16
    """With a memory: steps before each segment that only bring its stored hidden state up to date."""
    her: Annotated[float, Range(-1, 1)] = -1.0
    """Goal environments: share of drawn transitions whose goal is replaced by one that their episode reached later
    (hindsight experience replay); 0: none; -1: 0.8 where the environment has goals."""
    train_target: Annotated[int, Range(1, MOST_STEPS)] = 1
    """Gradient steps between updates of the target networks."""
    polyak: Annotated[float, Range(0, below=1)] = 0.995
    """What target networks keep of themselves at an update; 0 copies."""
    average: Annotated[int, Range(0, 10**9)] = 0
    """Evaluate and save the mean of the policy's weights over about so many gradient steps, once an iteration, but
    of no more than the newest twentieth of all; 0: the newest weights."""
    longest: Annotated[int, Range(0, 10**9)] = 0
    """Longest episode the replay must hold, in steps; 0: what the environment says, else 1,000."""
    shift: Annotated[int, Range(-1, 1_000)] = -1
    """Drawn images are shifted at random by up to so many pixels, against overfitting (DrQ); 0:
    not; -1: by 4 of 84 pixels, by as much of images of other sizes."""
    bc: Annotated[float, Range(0)] = 0.0
    """Offline: weight of the critic beside imitation (TD3+BC's alpha, usually 2.5); 0: the critic alone."""
    advantage: Annotated[float, Range(0, 100)] = 0.0
    """Offline: imitate recorded actions with the weight exp(this × their advantage over the policy's own,
    standardised), at most 20; 0: all alike. With bc at 0 the policy does nothing else."""

    @property
    def imitates(self) -> bool:
        """Whether the policy follows recorded actions."""
        return self.bc > 0 or self.advantage > 0


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic."""

    alpha: Annotated[float, Range(above=0)] = 1.0
    """Weight of the entropy (temperature) at the start."""
    learn_alpha: bool = True
    """Adapt the temperature so that the entropy comes to target_entropy."""
    target_entropy: Annotated[float, Range()] = 0.0
    """Wanted entropy of the policy; 0: minus the number of actions."""


@dataclass(frozen=True)
class TD3Config:
    """Twin delayed deep deterministic policy gradient."""

    exploration: Annotated[float, Range(0)] = 0.1
    """Spread of the noise on actions in training, where 1 is half of the action range."""
    target_noise: Annotated[float, Range(0)] = 0.2
    """Spread of the noise on the target policy's actions."""
    target_noise_clip: Annotated[float, Range(0)] = 0.5
    """Limit of that noise."""
    policy_delay: Annotated[int, Range(1, 1_000_000)] = 2
    """Critic updates between those of the policy."""
    tutor: Annotated[float, Range(0, 0.99)] = 0.0
    """Offline, with --policy.critic-parts: for this part of the training a second policy, which sees what the
    critics see, learns with them alone; then the policy imitates the recorded steps that they value. 0: none."""


@dataclass(frozen=True)
class DQNConfig:
    """Deep Q-learning, with the next action chosen by the network that learns (double DQN)."""

    epsilon: Annotated[float, SHARE] = 1.0
    """Share of random actions at the start."""
    epsilon_final: Annotated[float, SHARE] = 0.05
    """Share of random actions in the end."""
    epsilon_until: Annotated[float, SHARE] = 0.1
    """Part of the training over which that share falls."""


@dataclass(frozen=True)
class StoreTrainConfig(TrainConfig):
    """A run that learns from stored episodes, be they collected or recorded."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The replay, and the pace of learning."""
    reward: RewardConfig = field(default_factory=RewardConfig)
    """A learned reward."""
    data: DataConfig = field(default_factory=DataConfig)
    """Recorded episodes, instead of an environment's."""

    has_ranks: ClassVar[bool] = True
    short_names: ClassVar[Mapping[str, str]] = {
        "train_batches": "replay.train_batches",
        "batch_size": "replay.batch_size",
        "train_target": "replay.train_target",
        "rrd_batch_size": "reward.rrd_batch_size",
        "rrd_sample_size": "reward.rrd_sample_size",
        "data": "data.path",
    }

    @property
    def per_rank(self) -> tuple[str, ...]:
        stepped = () if self.offline else (*super().per_rank, "replay.steps")
        return (*stepped, "replay.batch_size")

    @property
    def memory_advice(self) -> str:
        if self.offline:
            return (
                "Shrink images with --data.image-size, leave some out with --data.keys, or make "
                "--replay.batch-size or --replay.train-batches smaller."
            )
        return "Make --replay.capacity, --replay.batch-size or --replay.train-batches smaller."

    @property
    def offline(self) -> bool:
        return bool(self.data.path)

    def check(self) -> None:
        super().check()
        check_reward_config(self.reward, None)

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        section = setting.partition(".")[0]
        compares = "reward.method" in given  # whoever compares methods leaves the rest as it is
        if section == "reward" and not self.reward.learned and not compares:
            return f"with --reward.method {self.reward.method} no reward is learned, and it would do nothing."
        return super().why_useless(setting, given)

    def with_whole_paths(self) -> Self:
        config = super().with_whole_paths()
        return dataclasses.replace(config, data=self.data.with_whole_path())


@dataclass(frozen=True)
class ReplayTrainConfig(StoreTrainConfig):
    """A run that learns a policy from a replay."""

    can_remember: ClassVar[bool] = True
    head: ClassVar[str]
    """Whose actions the policy has: "sac", "td3", "dqn" or "flash-sac"."""

    def why_useless(self, setting: str, given: Collection[str]) -> str:
        has_memory = self.policy.memory != "none" or self.policy.network
        if setting in ("replay.segment", "replay.burn_in") and not has_memory:
            return "it is of a policy with a memory, and there is none: add --policy.memory gru, or leave it out."
        if self.offline and setting in _USELESS_OFFLINE:
            return _USELESS_OFFLINE[setting]
        if self.offline and setting in _EXPLORATION and not self.eval.stochastic:
            return _NOBODY_EXPLORES
        if self.offline and setting == "episodic_reward" and self.episodic_reward:
            return "recorded steps are paid as in their file; --reward.method rrd learns from returns alone."
        if not self.offline and setting.startswith("data.") and setting != "data.path":
            return "it is about recorded episodes: give some with --data, or leave it out."
        return super().why_useless(setting, given)

    def settled(self, given: Collection[str]) -> Self:
        config = super().settled(given)
        if "reward.method" not in given or "replay.n_step" in given or self.reward.method == "none":
            return config
        # It pays step by step: what a preset says of longer sums is not for it.
        return dataclasses.replace(config, replay=dataclasses.replace(config.replay, n_step=1))

    @property
    def why_no_hindsight(self) -> str:
        """What forbids to judge steps by other goals than their own; empty: nothing."""
        if self.offline:
            return "recorded episodes (--data), whose goals no environment judges"
        if self.episodic_reward:
            return "--episodic-reward, which pays a whole episode for its own goal"
        if self.reward.method != "none":
            return f"--reward.method {self.reward.method}, which learns what whole episodes were worth"
        return ""

    def check(self) -> None:
        super().check()
        method, her = self.reward.method, self.replay.her
        if -1 < her < 0:
            raise ConfigError(f"--replay.her {her:g} is no share: give 0 to 1, or -1 for the usual one.")
        if her > 0 and (why := self.why_no_hindsight):
            raise ConfigError(f"--replay.her {her:g} does not go with {why}: leave it out.")
        average, batches = self.replay.average, self.replay.train_batches
        if 0 < average <= batches:
            wanted = f"more than the {batches:,} gradient steps of an iteration (--train-batches)"
            raise ConfigError(f"--replay.average {average:,} is too short for a mean: give {wanted}, or 0.")
        if method != "none" and self.replay.n_step > 1:
            raise ConfigError(f"--replay.n-step must be 1 with --reward.method {method}, which pays step by step.")
        for name in _IMITATION:
            if getattr(self.replay, name) > 0 and not self.offline:
                imitated = f"--replay.{name} imitates recorded episodes"
                raise ConfigError(f"{imitated}: give some with --data, or leave it at 0.")


@dataclass(frozen=True)
class SACTrainConfig(ReplayTrainConfig):
    """A run of SAC."""

    algo: str = "sac"
    sac: SACConfig = field(default_factory=SACConfig)
    """Soft actor-critic."""

    head: ClassVar[str] = "sac"
    layers_after_network: ClassVar[bool] = True


@dataclass(frozen=True)
class TD3TrainConfig(ReplayTrainConfig):
    """A run of TD3."""

    algo: str = "td3"
    td3: TD3Config = field(default_factory=TD3Config)
    """Twin delayed deep deterministic policy gradient."""

    head: ClassVar[str] = "td3"
    layers_after_network: ClassVar[bool] = True

    def check(self) -> None:
        super().check()
        if not self.td3.tutor:
            return
        if not self.offline:
            raise ConfigError("--td3.tutor teaches on recorded episodes: give some with --data, or leave it out.")
        if not self.policy.critic_parts:
            raise ConfigError(
                "--td3.tutor is for critics that see other parts of observations than the policy: name them with "
                "--policy.critic-parts."
            )


@dataclass(frozen=True)
class DQNTrainConfig(ReplayTrainConfig):
    """A run of DQN."""

    algo: str = "dqn"
    dqn: DQNConfig = field(default_factory=DQNConfig)
    """Deep Q-learning."""

    head: ClassVar[str] = "dqn"

    def check(self) -> None:
        super().check()
        for name in _IMITATION:
            if getattr(self.replay, name) > 0:
                whose = f"--replay.{name} is of --algo sac, td3 and flash-sac"
                raise ConfigError(f"{whose}: with dqn nothing is imitated; leave it at 0.")
