"""Learning from one return per episode: return decomposition online, and from recorded episodes."""

import dataclasses
from typing import Any

from ludus.algorithms.replay.config import ReplayConfig, SACTrainConfig
from ludus.algorithms.reward.config import RewardConfig
from ludus.algorithms.reward.train_config import RewardTrainConfig
from ludus.config import EvalConfig, LoopConfig
from ludus.data.config import DataConfig
from ludus.envs.gym.config import GymConfig
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.policies.config import PolicyConfig
from ludus.presets.preset import Preset

_ENVS = 10  # which share an iteration's 100 steps

# Rewards of a step stay in the environment's units: the spread of returns at the start, of a policy that acts at
# random, says nothing about that of a good one.
_MUJOCO = SACTrainConfig(
    episodic_reward=True,
    env=LocomotionConfig(task="half-cheetah", num_envs=_ENVS),
    policy=PolicyConfig(hidden=(256, 256), activation="relu", normalize_obs=False),
    replay=ReplayConfig(steps=100, train_batches=100, batch_size=256),
    reward=RewardConfig(method="rrd", rrd_batch_size=256, rrd_sample_size=64, normalize_returns=False),
    loop=LoopConfig(epochs=3, cycles=100, iterations=100),
    eval=EvalConfig(episodes=10, stochastic=False, each_cycle=True),
)

_LIBERO = RewardTrainConfig(
    replay=ReplayConfig(train_batches=50, batch_size=32),
    reward=RewardConfig(method="rrd", rrd_batch_size=32, rrd_sample_size=32, weight_decay=3.0),
    data=DataConfig(),
    loop=LoopConfig(epochs=10, cycles=100, iterations=100),
    eval=EvalConfig(each_cycle=True),
)

PRESETS = [
    Preset("rrd-mujoco", "A MuJoCo runner that is paid once per episode (SAC and return decomposition).", _MUJOCO),
    Preset("rrd-libero", "A reward from recorded episodes, LIBERO's or your own (--data FILE).", _LIBERO),
]


def preset_for(name: str) -> Preset:
    """The job behind `rrd-mujoco:NAME`: one of the batched tasks, or any Gymnasium environment."""
    from ludus.envs.gym.finding import find_spec  # with Gymnasium and MuJoCo, which the presets do not need
    from ludus.envs.locomotion.task import TASKS

    env: Any = LocomotionConfig(task=name, num_envs=_ENVS)
    if name not in TASKS:
        find_spec(name)  # an unknown one is refused here, before anything is built
        env = GymConfig(id=name, num_envs=1)
    summary = f"{name}, paid once per episode (SAC and return decomposition)."
    return Preset(f"rrd-mujoco:{name}", summary, dataclasses.replace(_MUJOCO, env=env))
