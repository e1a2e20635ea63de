"""Environments. `make_vec_env` turns a configuration into a group of rows."""

import os

from ludus.envs.gym import GymConfig, make_gym
from ludus.envs.kuka.task import KukaConfig, KukaPickPlace
from ludus.envs.locomotion import LocomotionConfig, make_locomotion
from ludus.envs.vec import VecEnv

EnvConfig = KukaConfig | LocomotionConfig | GymConfig

# The name of each kind of environment in a configuration file.
ENV_KINDS: dict[str, type[KukaConfig] | type[LocomotionConfig] | type[GymConfig]] = {
    "kuka": KukaConfig,
    "locomotion": LocomotionConfig,
    "gym": GymConfig,
}


def make_vec_env(config: EnvConfig, num_envs: int, evaluation: bool = False) -> VecEnv:
    """A group of `num_envs` environments; for evaluation without any help a task gives in training."""
    if isinstance(config, KukaConfig):
        return KukaPickPlace(config, num_envs, config.threads or available_cores(), evaluation)
    if isinstance(config, LocomotionConfig):
        return make_locomotion(config, num_envs, config.threads or available_cores())
    return make_gym(config, num_envs)


def available_cores() -> int:
    """Cores this process may use, which containers and schedulers limit below the machine's number."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
