"""Environments. `make_vec_env` turns a configuration into a group of rows.

What makes an environment is imported when one is made: settings are read without torch and MuJoCo.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from ludus import ranks
from ludus.display import Display
from ludus.envs.config import (
    EnvConfig,
    ForageConfig,
    GymConfig,
    HumanoidConfig,
    KukaConfig,
    LocomotionConfig,
    MettagridConfig,
    PettingZooConfig,
    VecConfig,
)
from ludus.envs.mujoco.settings import TermSettings
from ludus.errors import ConfigError
from ludus.ranges import check_fields

if TYPE_CHECKING:
    import torch

    from ludus.envs.vec import VecEnv

_SIMULATED = (KukaConfig, HumanoidConfig, LocomotionConfig)  # by MuJoCo, on CPU threads or on a GPU


def make_vec_env(
    config: EnvConfig,
    num_envs: int,
    evaluation: bool = False,
    device: "torch.device | str" = "cpu",
    starts: slice = slice(None),
) -> "VecEnv":
    """A group of `num_envs` environments; for evaluation without any help a task gives in training.

    Environments that are written in torch live on `device`, and MuJoCo tasks if MuJoCo Warp simulates them; the
    others stay on the CPU. `starts`: of the fixed starts of an evaluation, those to play.
    """
    asked: dict[str, Any] = {"num_envs": num_envs}
    check_fields(dataclasses.replace(config, **asked), "env.")
    if num_envs < 1:
        raise ConfigError(f"A group needs at least 1 environment, not {num_envs}.")
    threads = getattr(config, "threads", 0) or ranks.available_cores()
    match config:
        case KukaConfig() if config.goals:
            from ludus.envs.kuka.goals import KukaGoals

            return KukaGoals(config, num_envs, threads, evaluation, device)
        case KukaConfig() if config.image_size:
            from ludus.envs.kuka.pixels import KukaPixels

            return KukaPixels(config, num_envs, threads, evaluation, device)
        case KukaConfig():
            from ludus.envs.kuka.task import KukaPickPlace

            return KukaPickPlace(config, num_envs, threads, evaluation, device)
        case HumanoidConfig():
            from ludus.envs.humanoid.factory import make_humanoid

            return make_humanoid(config, num_envs, threads, evaluation, device, starts)
        case LocomotionConfig():
            from ludus.envs.locomotion.task import make_locomotion

            return make_locomotion(config, num_envs, threads, device)
        case ForageConfig():
            from ludus.envs.forage import Forage

            return Forage(config, num_envs, device, evaluation)
        case GymConfig():
            from ludus.envs.gym.env import make_gym

            return make_gym(config, num_envs)
        case PettingZooConfig():
            from ludus.envs.gym.pettingzoo import make_pettingzoo

            return make_pettingzoo(config, num_envs)
        case MettagridConfig():
            from ludus.envs.mettagrid import make_mettagrid

            return make_mettagrid(config, num_envs)
        case VecConfig():
            from ludus.envs.custom import make_custom

            return make_custom(config, num_envs, device, evaluation)


def make_groups(
    config: EnvConfig, groups: int, device: "torch.device | str" = "cpu", episodic_reward: bool = False
) -> "list[VecEnv]":
    """The training environments in equal groups, which share the worker processes out among them; so do ranks."""
    shared = config
    if isinstance(config, GymConfig | PettingZooConfig):
        workers = config.workers // (groups * ranks.core_sharers())
        shared = dataclasses.replace(config, workers=max(workers, min(config.workers, 1)))
    envs = [make_vec_env(shared, config.num_envs // groups, device=device) for _ in range(groups)]
    if not episodic_reward:
        return envs
    from ludus.envs.episodic import EpisodicReward

    return [EpisodicReward(env) for env in envs]


def on_threads(config: EnvConfig) -> EnvConfig:
    """To measure and to watch: what MuJoCo simulates, on CPU threads, wherever it is trained.

    For a few episodes they are quicker than a GPU, and MuJoCo's own engine is the judge.
    """
    return dataclasses.replace(config, simulator="threads") if isinstance(config, _SIMULATED) else config


def as_evaluated(config: EnvConfig) -> EnvConfig:
    """Without what is randomised in the training alone."""
    if isinstance(config, TermSettings) and not config.eval_randomized:
        return dataclasses.replace(config, randomization={})
    return config


def sees_by_warp(config: EnvConfig, device: "torch.device | str") -> bool:
    """Whether the images of a training on `device` are drawn by MuJoCo Warp."""
    if not isinstance(config, KukaConfig) or not config.image_size:
        return False
    import torch

    from ludus.envs.mujoco.simulator import wants_warp

    return torch.device(device).type == "cuda" and wants_warp(config.simulator, device, config.num_envs)


def make_eval_env(
    config: EnvConfig, episodes: int, device: "torch.device | str" = "cpu", starts: slice = slice(None)
) -> "VecEnv":
    """Environments for so many episodes, no more of them than in training; or for these `starts`, if fixed."""
    config = as_evaluated(config)
    if isinstance(config, KukaConfig) and sees_by_warp(config, device):
        config = dataclasses.replace(config, simulator="warp")  # another renderer's images look a little different
    elif isinstance(config, _SIMULATED):
        config, device = on_threads(config), "cpu"
    env = make_vec_env(config, min(episodes, config.num_envs), evaluation=True, device=device, starts=starts)
    wanted = -(-episodes // env.agents_per_env)  # every agent's episode counts
    if wanted >= min(episodes, config.num_envs):
        return env
    env.close()
    return make_vec_env(config, wanted, evaluation=True, device=device)


def display_of(config: EnvConfig) -> Display:
    """What an environment has to show besides what every environment has."""
    if not isinstance(config, HumanoidConfig):
        return Display()
    from ludus.envs.humanoid.display import humanoid_display

    return humanoid_display(config)
