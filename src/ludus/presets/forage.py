"""Foraging with a memory: many agents, recurrent PPO on segments."""

import dataclasses

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.envs.config import ForageConfig
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

_SMALL = PPOTrainConfig(
    env=ForageConfig(num_envs=128),
    policy=PolicyConfig(hidden=(128,), activation="relu", memory="lstm", memory_size=128, normalize_obs=False),
    ppo=PPOConfig(
        horizon=16,
        minibatches=4,
        update_epochs=1,
        learning_rate=2e-3,
        gamma=0.97,
        gae_lambda=0.92,
        value_coef=0.44,
        entropy_coef=0.01,
        max_grad_norm=1.0,
    ),
    loop=LoopConfig(total_steps=2_000_000),
    eval=EvalConfig(every=500_000, episodes=512, stochastic=False),
)

# The shape of a public system's daily run: 8,160 agents, 8,192 segments of 64 steps, 32 minibatches of 256. There
# two groups hide the simulation behind the policy; on a GPU that does both, one large group is faster.
_LARGE = dataclasses.replace(
    _SMALL,
    device="cuda",
    precision="bfloat16",
    env=ForageConfig(num_envs=2_720, agents=3),
    policy=dataclasses.replace(_SMALL.policy, hidden=(256,), memory_size=256),
    ppo=dataclasses.replace(
        _SMALL.ppo,
        segments=8_192,
        horizon=64,
        minibatches=32,
        learning_rate=5e-4,
        clip=0.1,
        entropy_coef=0.0021,
        entropy_coef_final=0.0021,
    ),
    loop=LoopConfig(total_steps=10_000_000_000, iterations=20),
    eval=EvalConfig(every=500_000_000, episodes=4_096, stochastic=False),
)

PRESETS = [
    Preset("forage", "Agents gather berries of the colour they were shown at first (recurrent PPO).", _SMALL),
    Preset("forage-large", "The same with 8,160 agents and 524,288 steps an iteration, for a GPU.", _LARGE),
]
