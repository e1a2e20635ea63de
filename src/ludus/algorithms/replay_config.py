"""Settings of the algorithms that learn from a replay."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReplayConfig:
    """What SAC, TD3 and DQN share: the replay and the pace of learning."""

    capacity: int = 1_000_000
    """Rows of the replay; an episode of T steps takes T + 1. The oldest episodes leave first."""
    warmup: int = 10_000
    """Steps of random actions before the first gradient step."""
    steps: int = 100
    """Environment steps an iteration, over all environments; train_batches / steps is the updates per step."""
    train_batches: int = 100
    """Gradient steps an iteration."""
    batch_size: int = 256
    """Transitions of each gradient step."""
    learning_rate: float = 3e-4
    """Adam's step size, of all networks."""
    gamma: float = 0.99
    """Discount of the future."""
    n_step: int = 1
    """Rewards summed before the critic is asked for the rest."""
    train_target: int = 1
    """Gradient steps between updates of the target networks."""
    polyak: float = 0.995
    """What target networks keep of themselves at an update; 0 copies."""
    longest: int = 0
    """Longest episode the replay must hold, in steps; 0: what the environment says, else 1,000."""
    bc: float = 0.0
    """Offline: how much the critic counts beside imitating the data (TD3+BC's alpha, mostly 2.5); 0: it alone."""


@dataclass(frozen=True)
class SACConfig:
    """Soft actor-critic."""

    alpha: float = 1.0
    """Weight of the entropy (temperature) at the start."""
    learn_alpha: bool = True
    """Adapt the temperature so that the entropy comes to target_entropy."""
    target_entropy: float = 0.0
    """Wanted entropy of the policy; 0: minus the number of actions."""


@dataclass(frozen=True)
class TD3Config:
    """Twin delayed deep deterministic policy gradient."""

    exploration: float = 0.1
    """Spread of the noise on actions in training, where 1 is half of the action range."""
    target_noise: float = 0.2
    """Spread of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Limit of that noise."""
    policy_delay: int = 2
    """Critic updates between those of the policy."""


@dataclass(frozen=True)
class DQNConfig:
    """Deep Q-learning, with the next action chosen by the network that learns (double DQN)."""

    epsilon: float = 1.0
    """Share of random actions at the start."""
    epsilon_final: float = 0.05
    """Share of random actions in the end."""
    epsilon_until: float = 0.1
    """Part of the training over which that share falls."""


Algorithm = Literal["ppo", "sac", "td3", "dqn", "reward"]
