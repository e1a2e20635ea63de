"""The main job: a KUKA iiwa picks and places a cube."""

from ludus.algorithms.ppo import PPOConfig
from ludus.config import CheckpointConfig, EvalConfig, LoopConfig, TrainConfig
from ludus.envs.kuka.task import KukaConfig
from ludus.policies.policy import PolicyConfig
from ludus.presets import Preset

PRESETS = [
    Preset(
        "kuka-pick-place",
        "A KUKA iiwa picks a cube up from anywhere on the table and places it on a pad (PPO).",
        TrainConfig(
            groups=2,
            env=KukaConfig(num_envs=128),
            policy=PolicyConfig(hidden=(128, 128), initial_std=0.8),
            ppo=PPOConfig(
                horizon=32,
                minibatches=16,
                update_epochs=8,
                learning_rate=1e-3,
                learning_rate_final=1e-4,
                gamma=0.97,
                entropy_coef=0.005,
                std_final=0.3,
            ),
            loop=LoopConfig(total_steps=1_200_000),
            eval=EvalConfig(every=100_000, episodes=100),
            checkpoint=CheckpointConfig(),
        ),
    )
]
