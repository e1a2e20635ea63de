"""Any Gymnasium environment behind the `VecEnv` contract, in this process.

    env = make_gym(GymConfig("CartPole-v1"), num_envs=8)

With `workers` the same environments run in processes of their own (`gym_workers.py`), with the same results.
"""

import importlib
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from ludus.envs.gym_block import EnvBlock, Recipe, Rows, make_envs, warn_inexact
from ludus.envs.gym_spaces import adapt_spaces
from ludus.envs.vec import State, Step, VecEnv
from ludus.errors import CheckpointError, ConfigError, did_you_mean


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment."""

    id: str = "CartPole-v1"
    """Its registered id. "my_package:MyEnv-v0" imports my_package first."""
    num_envs: int = 8
    """Environments that step together."""
    workers: int = 0
    """Processes that step them; 0: this one. Worth it from about 100 µs a step."""
    max_steps: int = 0
    """Steps after which an episode is truncated; 0: the environment's own limit."""
    kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Passed to gymnasium.make. A configuration file or a program may give any values."""


def make_gym(config: GymConfig, num_envs: int) -> VecEnv:
    """A group of `num_envs` environments."""
    if num_envs < 1 or config.workers < 0 or config.max_steps < 0:
        raise ConfigError("A Gymnasium group needs num_envs >= 1, workers >= 0 and max_steps >= 0.")
    module = config.id.rpartition(":")[0]
    recipe = Recipe(f"gym:{config.id}", module, find_spec(config.id), config.max_steps, dict(config.kwargs))
    if config.workers == 0:
        return GymVecEnv(recipe, num_envs)
    from ludus.envs.gym_workers import GymWorkersVecEnv  # which imports this file

    return GymWorkersVecEnv(recipe, num_envs, min(config.workers, num_envs))


def find_spec(env_id: str) -> EnvSpec:
    """The registration of "CartPole-v1" or "my_package:MyEnv-v0"."""
    module, _, name = env_id.rpartition(":")
    if module:
        _import_registering(module, env_id)
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        raise ConfigError(
            f"There is no Gymnasium environment {name!r}.{did_you_mean(name, gym.registry)} One of another "
            "package is named with the module that registers it, as in 'my_package:MyEnv-v0'."
        ) from error


def _import_registering(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = f"Its module {module!r}" if error.name == module else f"The package {error.name!r} that it needs"
        raise ConfigError(f"{missing} cannot be found for the environment {env_id!r}; is it installed?") from error
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise ConfigError(f"The module {module!r} of environment {env_id!r} fails to import: {problem}") from error


class GymVecEnv(VecEnv):
    """Environments that step one after the other in this process."""

    def __init__(self, recipe: Recipe, num_envs: int) -> None:
        self.name = recipe.name
        self.num_rows = num_envs
        self.device = torch.device("cpu")
        envs, limit = make_envs(recipe, num_envs)
        self._spaces = adapt_spaces(envs[0], recipe.name)
        self.obs_space, self.action_space = self._spaces.obs, self._spaces.action
        memory = np.zeros(Rows.num_bytes(num_envs, self._spaces), np.uint8)
        rows = Rows.over(memory, num_envs, self._spaces)
        self._block = EnvBlock(recipe.name, envs, limit, self._spaces, rows)
        self._actions: Any = None

    def reset(self, seed: int) -> Tensor:
        self._block.reset(seed)
        return torch.from_numpy(self._block.rows.obs.copy())

    def begin_step(self, action: Tensor) -> None:
        self._actions = self._spaces.to_env(action.numpy(force=True))

    def end_step(self) -> Step:
        self._block.step(self._actions)
        return step_of(self._block.rows, self._block.success_seen)

    def state(self) -> State:
        block = self._block
        state = {
            "seed": block.seed,
            "tick": block.tick,
            "obs": torch.from_numpy(block.rows.obs.copy()),
            **block.state(),
        }
        warn_inexact(self.name, [env["why"] for env in state["envs"] if not env["exact"]])
        return state

    def load_state(self, state: State) -> None:
        check_fits(self, state)
        self._block.rows.obs[:] = state["obs"].numpy()
        warn_inexact(self.name, self._block.load_state(state["seed"], state["tick"], state))

    def close(self) -> None:
        self._block.close()

    # For viewers ----------------------------------------------------------------------------------
    def frame(self, row: int) -> np.ndarray | None:
        """A picture of `row`, [height, width, 3] uint8, if the kwargs say render_mode="rgb_array"."""
        env = self._block.envs[row]
        picture = env.render() if env.render_mode == "rgb_array" else None
        return np.asarray(picture) if picture is not None else None

    @property
    def substeps(self) -> int:
        """Physics steps of one step of a MuJoCo environment."""
        return int(getattr(self._block.envs[0].unwrapped, "frame_skip", 1))

    @property
    def mj_model(self) -> mujoco.MjModel | None:
        """The model of row 0, where this is a MuJoCo environment."""
        model = getattr(self._block.envs[0].unwrapped, "model", None)
        return model if isinstance(model, mujoco.MjModel) else None

    def mj_data(self, row: int) -> mujoco.MjData | None:
        """The live simulation of `row`, where this is a MuJoCo environment."""
        data = getattr(self._block.envs[row].unwrapped, "data", None)
        return data if isinstance(data, mujoco.MjData) else None


def step_of(rows: Rows, success_seen: bool, **metrics: Tensor) -> Step:
    """The caller's own copy of what the arrays hold."""
    if success_seen:
        metrics["success"] = torch.from_numpy(rows.success.copy())
    return Step(
        torch.from_numpy(rows.obs.copy()),
        torch.from_numpy(rows.reward.copy()),
        torch.from_numpy(rows.terminated.copy()),
        torch.from_numpy(rows.truncated.copy()),
        torch.from_numpy(rows.final_obs.copy()),
        metrics,
    )


def check_fits(env: VecEnv, state: State) -> None:
    """A state can only go on in as many rows, each with the same observation."""
    saved, here = tuple(state["obs"].shape), (env.num_rows, *env.obs_space.shape)
    if saved != here:
        raise CheckpointError(
            f"The checkpoint holds {saved[0]} environments that observe {saved[1:]}, but {env.name} has "
            f"{here[0]} of {here[1:]}. Resume with the configuration it was saved with."
        )
