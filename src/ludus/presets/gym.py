"""Any Gymnasium environment: defaults that work on most, and better ones for a few we have measured."""

import dataclasses
from collections.abc import Callable

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.envs.given import Given, given
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.finding import find_spec
from ludus.envs.importing import is_given
from ludus.policies.config import PolicyConfig
from ludus.presets import locomotion
from ludus.presets.preset import Preset
from ludus.ranks import available_cores

_DEFAULT = PPOTrainConfig(
    policy=PolicyConfig(hidden=(64, 64)),
    ppo=PPOConfig(horizon=128, minibatches=8, update_epochs=10, learning_rate=3e-4, entropy_coef=0.0),
    loop=LoopConfig(total_steps=1_000_000),
    eval=EvalConfig(every=50_000, episodes=20),
)


def _cart_pole(config: PPOTrainConfig) -> PPOTrainConfig:
    return dataclasses.replace(
        config,
        ppo=dataclasses.replace(config.ppo, horizon=32, minibatches=4, learning_rate=1e-3),
        loop=LoopConfig(total_steps=100_000),
        eval=EvalConfig(every=20_000, episodes=20),
    )


def _hidden_cart_pole(config: PPOTrainConfig) -> PPOTrainConfig:
    config = _cart_pole(config)
    return dataclasses.replace(
        config,
        env=GymConfig(id=config.env.id, num_envs=16),  # type: ignore[union-attr]
        policy=PolicyConfig(hidden=(64,), memory="lstm", memory_size=64),
        ppo=dataclasses.replace(config.ppo, horizon=32, minibatches=4, update_epochs=4, learning_rate=1e-3),
        loop=LoopConfig(total_steps=200_000),
    )


def _pendulum(config: PPOTrainConfig) -> PPOTrainConfig:
    return dataclasses.replace(
        config,
        ppo=dataclasses.replace(config.ppo, horizon=64, minibatches=8, learning_rate=1e-3, gamma=0.95),
        loop=LoopConfig(total_steps=100_000),
        eval=EvalConfig(every=20_000, episodes=20),
    )


def _runner(config: PPOTrainConfig) -> PPOTrainConfig:
    return dataclasses.replace(config, ppo=locomotion.PPO, policy=locomotion.POLICY)


def _lunar_lander(config: PPOTrainConfig) -> PPOTrainConfig:
    """rl-zoo3's discounts: a landing pays hundreds of steps after what led to it."""
    return dataclasses.replace(
        config,
        env=GymConfig(id=config.env.id, num_envs=16),  # type: ignore[union-attr]
        ppo=dataclasses.replace(
            config.ppo,
            minibatches=16,
            update_epochs=4,
            learning_rate=1e-3,
            gamma=0.999,
            gae_lambda=0.98,
            entropy_coef=0.01,
        ),
        loop=LoopConfig(total_steps=1_000_000),
        eval=EvalConfig(every=50_000, episodes=50, stochastic=False),
    )


# Toy text: an observation is one number of a few, seen as a one in a row of zeros: nothing to standardise.
# Where luck decides an episode, an evaluation needs many of them before the best policy is a better one.
def _toy_text(config: PPOTrainConfig, ppo: PPOConfig, steps: int, episodes: int) -> PPOTrainConfig:
    return dataclasses.replace(
        config,
        env=GymConfig(id=config.env.id, num_envs=2048 // ppo.horizon),  # type: ignore[union-attr]
        policy=dataclasses.replace(config.policy, normalize_obs=False),
        ppo=dataclasses.replace(ppo, update_epochs=4, learning_rate=3e-3),
        loop=LoopConfig(total_steps=steps),
        eval=EvalConfig(every=steps // 4, episodes=episodes, stochastic=False),
    )


def _frozen_lake(config: PPOTrainConfig) -> PPOTrainConfig:
    return _toy_text(config, PPOConfig(entropy_coef=0.01), steps=100_000, episodes=500)


def _blackjack(config: PPOTrainConfig) -> PPOTrainConfig:
    return _toy_text(config, PPOConfig(), steps=100_000, episodes=5_000)


def _taxi(config: PPOTrainConfig) -> PPOTrainConfig:
    """Much entropy at first: picking up and setting down cost 10 until they are learned, and would be given up."""
    ppo = PPOConfig(horizon=64, minibatches=8, gamma=0.98, entropy_coef=0.3)
    return _toy_text(config, ppo, steps=300_000, episodes=200)


def _min_atar(config: PPOTrainConfig) -> PPOTrainConfig:
    """Small images; an episode may go on for ever once the game is mastered."""
    return dataclasses.replace(
        config,
        torch_threads=2,
        env=GymConfig(id=config.env.id, num_envs=32, max_steps=5_000),  # type: ignore[union-attr]
        policy=PolicyConfig(hidden=(), image_features=128),
        ppo=PPOConfig(horizon=64, minibatches=8, update_epochs=4, learning_rate=1e-3, entropy_coef=0.01),
        loop=LoopConfig(total_steps=1_000_000),
        eval=EvalConfig(every=250_000, episodes=50, stochastic=False),
    )


def _atari(config: PPOTrainConfig) -> PPOTrainConfig:
    """CleanRL's settings of PPO for Atari."""
    return dataclasses.replace(
        config,
        torch_threads=2,
        env=GymConfig(id=config.env.id, num_envs=16, workers=2),  # type: ignore[union-attr]
        policy=PolicyConfig(hidden=(), image_features=512),
        ppo=PPOConfig(
            horizon=128, minibatches=8, update_epochs=4, learning_rate=2.5e-4, entropy_coef=0.01, clip=0.1
        ),
        loop=LoopConfig(total_steps=10_000_000),
        eval=EvalConfig(every=500_000, episodes=10, stochastic=False),
    )


_TUNED: dict[str, Callable[[PPOTrainConfig], PPOTrainConfig]] = {
    "CartPole-v1": _cart_pole,
    "ludus/CartPoleNoVelocity-v1": _hidden_cart_pole,
    "Pendulum-v1": _pendulum,
    "LunarLander-v3": _lunar_lander,
    "FrozenLake-v1": _frozen_lake,
    "Blackjack-v1": _blackjack,
    "Taxi-v3": _taxi,  # of Gymnasium before 1.3
    "Taxi-v4": _taxi,
    "HalfCheetah-v5": _runner,
    "Hopper-v5": _runner,
    "Walker2d-v5": _runner,
    "Ant-v5": _runner,
    "Humanoid-v5": _runner,
}


_TUNED_FAMILIES: dict[str | None, Callable[[PPOTrainConfig], PPOTrainConfig]] = {
    "MinAtar": _min_atar,
    "ALE": _atari,
}


def preset_for(env_id: str) -> Preset:
    spec = find_spec(env_id)  # an unknown id is refused here, before anything is built
    if is_given(env_id):
        return _preset_for_given(env_id, given(env_id))
    config = dataclasses.replace(_DEFAULT, env=GymConfig(id=env_id))
    if env_id in _TUNED:
        config = _TUNED[env_id](config)
    elif spec.namespace in _TUNED_FAMILIES:
        config = _TUNED_FAMILIES[spec.namespace](config)
    if config.ppo is locomotion.PPO:
        config = dataclasses.replace(config, env=GymConfig(id=env_id, num_envs=64))
    module = env_id.rpartition(":")[0]
    summary = f"The environment {spec.id} of {module}." if module else f"Gymnasium's {spec.id}."
    return Preset(f"gym:{env_id}", summary, config)


def _preset_for_given(env_id: str, made: Given) -> Preset:
    """An object is trained with the settings of the registered environment that it is one of."""
    config = preset_for(made.like).config if made.like else dataclasses.replace(_DEFAULT, env=GymConfig())
    number = made.num_envs or config.env.num_envs
    workers = min(available_cores(), number) if made.in_processes else 0
    env = GymConfig(id=env_id, num_envs=number, workers=workers)
    return Preset(
        f"gym:{env_id}", "An environment handed over by a program.", dataclasses.replace(config, env=env)
    )
