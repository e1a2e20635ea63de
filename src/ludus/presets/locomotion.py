"""Gymnasium's MuJoCo runners on the batched simulator, with one set of hyper-parameters for all."""

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

# Large numbers of short rollouts, many small batches, advantages from the newest critic at every pass:
# the recipe that Tianshou's MuJoCo benchmark reports as its best.
PPO = PPOConfig(
    horizon=32,
    minibatches=32,
    update_epochs=10,
    learning_rate=3e-4,
    entropy_coef=0.002,  # without it a hopper may settle for standing still
    value_coef=0.25,
    recompute_advantages=True,
)
POLICY = PolicyConfig(hidden=(64, 64), initial_std=0.6)


def config_for(task: str) -> PPOTrainConfig:
    return PPOTrainConfig(
        env=LocomotionConfig(task=task, num_envs=64),
        policy=POLICY,
        ppo=PPO,
        loop=LoopConfig(total_steps=1_000_000),
        eval=EvalConfig(every=100_000, episodes=10, stochastic=False),
    )


PRESETS = [
    Preset("half-cheetah", "Gymnasium's HalfCheetah-v5, batched (PPO).", config_for("half-cheetah")),
    Preset("hopper", "Gymnasium's Hopper-v5, batched (PPO).", config_for("hopper")),
    Preset("walker2d", "Gymnasium's Walker2d-v5, batched (PPO).", config_for("walker2d")),
    Preset("ant", "Gymnasium's Ant-v5, batched (PPO).", config_for("ant")),
    Preset("humanoid", "Gymnasium's Humanoid-v5, batched (PPO).", config_for("humanoid")),
]
