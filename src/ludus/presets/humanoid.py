"""A humanoid that imitates motion."""

import dataclasses

from ludus.algorithms.ppo import PPOConfig
from ludus.config import EvalConfig, LoopConfig, TrainConfig
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.policies.policy import PolicyConfig
from ludus.presets import Preset

_MIMIC = TrainConfig(
    groups=2,
    env=HumanoidConfig(num_envs=128),
    policy=PolicyConfig(hidden=(320, 160), activation="elu", initial_std=0.24, learn_std=False),
    ppo=PPOConfig(
        horizon=16,
        minibatches=4,
        update_epochs=4,
        learning_rate=3e-4,
        learning_rate_final=3e-5,
        gamma=0.96,
        bound_coef=1.0,
        target_kl=0.025,
        kl_control="adapt",
        max_grad_norm=1.0,
    ),
    loop=LoopConfig(total_steps=1_000_000),
    eval=EvalConfig(every=100_000, stochastic=False),
)

_LARGE = dataclasses.replace(
    _MIMIC,
    device="cuda",
    precision="tf32",
    groups=1,
    env=HumanoidConfig(num_envs=8_192),
    policy=dataclasses.replace(_MIMIC.policy, hidden=(1024, 512)),
    ppo=dataclasses.replace(
        _MIMIC.ppo,
        horizon=16,
        minibatches=8,
        gamma=0.97,
        target_kl=0.02,
    ),
    loop=LoopConfig(total_steps=500_000_000, iterations=20),
    eval=EvalConfig(every=25_000_000, stochastic=False),
)

PRESETS = [
    Preset("humanoid-mimic", "A humanoid imitates clips of motion, pose by pose (PPO).", _MIMIC),
    Preset("humanoid-mimic-large", "The same with 8,192 humanoids on a GPU, for many clips.", _LARGE),
]
