"""FlashSAC: learning from a replay that environments or recorded episodes fill."""

import dataclasses
from typing import Any

from ludus.algorithms.flash.config import FlashTrainConfig
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.registry import Algorithm
from ludus.algorithms.replay.defaults import adapted, has_many
from ludus.config import EvalConfig, LoopConfig, TrainConfig
from ludus.envs.kuka.config import KukaConfig


def _adapted(config: TrainConfig) -> FlashTrainConfig:
    """Published settings, whatever the task: but for networks and batches, those of SAC."""
    changed, usual = adapted(config, FlashTrainConfig), FlashTrainConfig()
    settings: dict[str, Any] = {"polyak": usual.replay.polyak}
    if not has_many(config):
        settings["batch_size"] = usual.replay.batch_size
    published = dataclasses.replace(
        changed,
        precision=usual.precision,
        policy=dataclasses.replace(changed.policy, hidden=usual.policy.hidden),
        replay=dataclasses.replace(changed.replay, **settings),
    )
    if getattr(config.env, "id", "") == "Pendulum-v1":
        return _narrow(published, policy_width=32, critic_width=64, batch_size=128)
    if isinstance(config, PPOTrainConfig) and isinstance(config.env, KukaConfig):
        return _kuka(published, config) if config.device == "cpu" else _kuka_on_a_gpu(published, config)
    return published


def _narrow(config: FlashTrainConfig, policy_width: int, critic_width: int, batch_size: int) -> FlashTrainConfig:
    """Networks and batches for a task that is learned on a CPU, where bfloat16 would make all products coarse."""
    return dataclasses.replace(
        config,
        precision="float32",
        policy=dataclasses.replace(config.policy, hidden=(policy_width, policy_width)),
        replay=dataclasses.replace(config.replay, batch_size=batch_size),
        flash=dataclasses.replace(config.flash, critic_width=critic_width),
    )


def _kuka(config: FlashTrainConfig, preset: PPOTrainConfig) -> FlashTrainConfig:
    """Rewards of three steps at a time tell the critics sooner; then an update every second step will do."""
    arms: dict[str, Any] = {"num_envs": min(preset.env.num_envs, 32)}
    pace: dict[str, Any] = {"warmup": 5_000, "steps": 512, "train_batches": 256}
    narrow = _narrow(config, policy_width=64, critic_width=64, batch_size=128)
    return dataclasses.replace(
        narrow,
        env=dataclasses.replace(narrow.env, **arms),
        replay=dataclasses.replace(narrow.replay, **pace, n_step=3, learning_rate=1e-3, gamma=preset.ppo.gamma),
        # Stages are made for the preset's steps.
        loop=LoopConfig(total_steps=preset.loop.total_steps if preset.stages else 100_000, iterations=10),
        eval=EvalConfig(every=10_000, episodes=100, stochastic=False, final_episodes=200),
    )


def _kuka_on_a_gpu(config: FlashTrainConfig, preset: PPOTrainConfig) -> FlashTrainConfig:
    """Every step is drawn as often as on a CPU, 64 times: 32 batches of 2,048 for 1,024 steps."""
    pace: dict[str, Any] = {"train_batches": 256, "n_step": 3, "gamma": preset.ppo.gamma}
    return dataclasses.replace(
        config,
        replay=dataclasses.replace(config.replay, **pace),
        loop=dataclasses.replace(config.loop, total_steps=800_000),
        eval=dataclasses.replace(config.eval, every=100_000),
    )


ALGORITHMS = (
    Algorithm(
        "flash-sac",
        "FlashSAC (Holiday-Robot 2026): SAC with normed networks and critics of distributions; wants a GPU.",
        FlashTrainConfig,
        "ludus.algorithms.flash.job:make_flash_job",
        _adapted,
    ),
)
