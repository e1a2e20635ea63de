"""A user's own batched environment, with the defaults of `gym:ID` for more rows and shorter rollouts."""

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.envs.config import VecConfig
from ludus.envs.custom import find_env_factory
from ludus.envs.given import given
from ludus.envs.importing import is_given
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

_PPO = PPOConfig(horizon=32, minibatches=8, update_epochs=10, learning_rate=3e-4)


def preset_for(factory: str) -> Preset:
    find_env_factory(factory)  # an unknown one is refused here, before anything is built
    number = given(factory).num_envs if is_given(factory) else 0
    config = PPOTrainConfig(
        env=VecConfig(factory=factory, num_envs=number) if number else VecConfig(factory=factory),
        policy=PolicyConfig(hidden=(64, 64)),
        ppo=_PPO,
        loop=LoopConfig(total_steps=1_000_000),
        eval=EvalConfig(every=50_000, episodes=20),
    )
    return Preset(f"vec:{factory}", f"The batched environment of {factory}.", config)
