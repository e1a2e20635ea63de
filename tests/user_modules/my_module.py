"""A module of the user's, as the pages name it: an environment, an algorithm, a term."""

from typing import Any

from my_package import MyEnv as MyEnv
from own_algorithm import A2C_ALGORITHM as MY_ALGORITHM  # noqa: F401
from pettingzoo import ParallelEnv
from pettingzoo.butterfly import knights_archers_zombies_v11
from torch import Tensor

from ludus.envs.mujoco.task import SimTask
from ludus.envs.vec import VecEnv
from ludus.runs import make_env as make_vec


def smooth(task: SimTask) -> Tensor:
    """A reward term."""
    return (task.action - task.last_action).square().sum(1)


def make(**settings: Any) -> ParallelEnv:
    """A PettingZoo environment."""
    return knights_archers_zombies_v11.parallel_env(**settings)


def make_env(num_envs: int) -> VecEnv:
    """A batched environment."""
    return make_vec("forage", num_envs=num_envs)
