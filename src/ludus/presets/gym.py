"""Any Gymnasium environment: defaults that work on most, and better ones for a few we have measured."""

import dataclasses
from collections.abc import Callable

from ludus.algorithms.ppo import PPOConfig
from ludus.config import EvalConfig, LoopConfig, TrainConfig
from ludus.envs.gym import GymConfig, find_spec
from ludus.policies.policy import PolicyConfig
from ludus.presets import Preset, locomotion

_DEFAULT = TrainConfig(
    policy=PolicyConfig(hidden=(64, 64)),
    ppo=PPOConfig(horizon=128, minibatches=8, update_epochs=10, learning_rate=3e-4, entropy_coef=0.0),
    loop=LoopConfig(total_steps=1_000_000),
    eval=EvalConfig(every=50_000, episodes=20),
)


def _cart_pole(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(
        config,
        ppo=dataclasses.replace(config.ppo, horizon=32, minibatches=4, learning_rate=1e-3),
        loop=LoopConfig(total_steps=100_000),
        eval=EvalConfig(every=20_000, episodes=20),
    )


def _hidden_cart_pole(config: TrainConfig) -> TrainConfig:
    config = _cart_pole(config)
    return dataclasses.replace(
        config,
        env=GymConfig(id=config.env.id, num_envs=16),  # type: ignore[union-attr]
        policy=PolicyConfig(hidden=(64,), memory="lstm", memory_size=64),
        ppo=dataclasses.replace(config.ppo, horizon=32, minibatches=4, update_epochs=4, learning_rate=1e-3),
        loop=LoopConfig(total_steps=200_000),
    )


def _pendulum(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(
        config,
        ppo=dataclasses.replace(config.ppo, horizon=64, minibatches=8, learning_rate=1e-3, gamma=0.95),
        loop=LoopConfig(total_steps=100_000),
        eval=EvalConfig(every=20_000, episodes=20),
    )


def _runner(config: TrainConfig) -> TrainConfig:
    return dataclasses.replace(config, ppo=locomotion.PPO, policy=locomotion.POLICY)


_TUNED: dict[str, Callable[[TrainConfig], TrainConfig]] = {
    "CartPole-v1": _cart_pole,
    "ludus/CartPoleNoVelocity-v1": _hidden_cart_pole,
    "Pendulum-v1": _pendulum,
    "HalfCheetah-v5": _runner,
    "Hopper-v5": _runner,
    "Walker2d-v5": _runner,
    "Ant-v5": _runner,
    "Humanoid-v5": _runner,
}


def preset_for(env_id: str) -> Preset:
    spec = find_spec(env_id)  # an unknown id is refused here, before anything is built
    config = dataclasses.replace(_DEFAULT, env=GymConfig(id=env_id))
    if env_id in _TUNED:
        config = _TUNED[env_id](config)
    if config.ppo is locomotion.PPO:
        config = dataclasses.replace(config, env=GymConfig(id=env_id, num_envs=64))
    return Preset(f"gym:{env_id}", f"Gymnasium's {spec.id}.", config)
