"""Any Gymnasium environment behind the `VecEnv` contract, in this process.

    env = make_gym(GymConfig("CartPole-v1"), num_envs=8)

With `workers` the same environments run in processes of their own (`workers.py`), with the same results.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from torch import Tensor

from ludus.envs.given import given, is_given, told_name
from ludus.envs.gym.block import GrowthGuard, Recipe, warn_inexact
from ludus.envs.gym.make import ATARI, GymRecipe
from ludus.envs.gym.rows import info_metrics, step_of
from ludus.envs.gym.workers import GymWorkersVecEnv
from ludus.envs.importing import find_callable, import_module_of
from ludus.envs.interface import Interface, column_names
from ludus.envs.mujoco.robot import control_bounds, control_names, control_units
from ludus.envs.row_space import ONLY_PART, RowSpace
from ludus.envs.row_state import check_fits
from ludus.envs.vec import State, Step, VecEnv
from ludus.errors import ConfigError, did_you_mean
from ludus.ranges import MOST_ENVS, MOST_THREADS, Range


@dataclass(frozen=True)
class GymConfig:
    """A Gymnasium environment."""

    id: str = "CartPole-v1"
    """Its registered id. "my_package:MyEnv-v0" imports my_package first; "my_module:MyEnv" is a class or function
    there that makes it, registered or not."""
    num_envs: Annotated[int, Range(1, MOST_ENVS)] = 8
    """Environments that step together."""
    workers: Annotated[int, Range(0, MOST_THREADS)] = 0
    """Processes that step them; 0: this one. Worth it from about 100 µs a step."""
    max_steps: Annotated[int, Range(0, 10**9)] = 0
    """Steps after which an episode is truncated; 0: the environment's own limit."""
    action_masks: bool = True
    """Choose among the valid actions only, where the environment says which they are (docs/actions.md)."""
    kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Its arguments: NAME VALUE …. A configuration file or a program may give any values."""

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names."""
        module = self.id.rpartition(":")[0]
        return (module,) if module else ()


def make_gym(config: GymConfig, num_envs: int) -> VecEnv:
    """A group of `num_envs` environments."""
    module = config.id.rpartition(":")[0] or (ATARI if config.id.startswith("ALE/") else "")
    spec, make = find_env(config.id)
    recipe = GymRecipe(
        told_name(f"gym:{config.id}"),
        module if make is None else "",
        spec,
        config.max_steps,
        dict(config.kwargs),
        config.action_masks,
        make,
    )
    if config.workers == 0:
        env: VecEnv = GymVecEnv(recipe, num_envs)
    else:
        env = GymWorkersVecEnv(recipe, num_envs, min(config.workers, num_envs))
    env.max_steps = config.max_steps or recipe.spec.max_episode_steps or env.max_steps
    return env


class FoundEnv(NamedTuple):
    """What an id stands for."""

    spec: EnvSpec
    make: Callable[..., gym.Env] | None = None  # of one that is not registered


def find_env(env_id: str) -> FoundEnv:
    """The registration of "CartPole-v1" or "my_package:MyEnv-v0", or the class or function "my_module:MyEnv"."""
    module, _, name = env_id.rpartition(":")
    if is_given(env_id):
        return _unregistered(told_name(env_id), given(env_id).make)
    found = import_module_of(module, env_id) if module else None  # which may register it
    if name.startswith("ALE/") and not module:
        _import_atari(env_id)
    try:
        return FoundEnv(gym.spec(name))
    except gym.error.Error as error:
        if callable(getattr(found, name, None)):
            return _unregistered(name, find_callable(env_id, "", "Gymnasium environment", ("Env",)))
        if module:
            raise ConfigError(_absent(module, name, vars(found))) from error
        raise ConfigError(
            f"There is no Gymnasium environment {name!r}.{did_you_mean(name, gym.registry)} One of another "
            "package is named with the module that registers it or has its class, as in 'my_package:MyEnv-v0'."
        ) from error


def _absent(module: str, name: str, members: Mapping[str, Any]) -> str:
    """The module has no such environment; those that it has are named."""
    classes = [n for n, value in members.items() if isinstance(value, type) and issubclass(value, gym.Env)]
    own = [n for n in classes if members[n].__module__ == module]
    near = did_you_mean(name, own) or did_you_mean(name, gym.registry)
    has = "" if near or not own else f" It has {', '.join(map(repr, own[:5]))}."
    return f"The module {module!r} neither has nor registers an environment {name!r}.{near}{has}"


def _unregistered(name: str, make: Callable[..., gym.Env]) -> FoundEnv:
    return FoundEnv(EnvSpec(name, entry_point=make), make)


def find_spec(env_id: str) -> EnvSpec:
    """The registration alone."""
    return find_env(env_id).spec


def _import_atari(env_id: str) -> None:
    packages = {ATARI: "ale-py", "cv2": "opencv-python"}
    missing = [package for module, package in packages.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise ConfigError(f"{env_id} needs {' and '.join(missing)}: pip install 'ludus[atari]'")
    import_module_of(ATARI, env_id, search_here=False)


class BlockVecEnv(VecEnv):
    """Environments that step one after the other in this process."""

    def __init__(self, recipe: Recipe, num_envs: int) -> None:
        self.name = recipe.name
        self.device = torch.device("cpu")
        self._block = block = recipe.make_block(num_envs)
        self.agents_per_env = block.agents_per_env
        self.num_rows = num_envs * block.agents_per_env
        self.obs_space, self.action_space = block.of.obs, block.of.action
        self.stacked_frames = block.of.stacked_frames
        self.max_steps = block.limit
        self._actions: Any = None
        self._growth = GrowthGuard()

    @property
    def envs(self) -> list[Any]:
        """The environments themselves, of the first row first."""
        return self._block.envs

    def reset(self, seed: int) -> Tensor:
        self._block.reset(seed)
        self._note_present()
        return torch.from_numpy(self._block.rows.obs.copy())

    def begin_step(self, action: Tensor) -> None:
        self._actions = self._block.of.to_env(action.numpy(force=True))

    def end_step(self) -> Step:
        self._block.step(self._actions)
        self._note_present()
        rows, names = self._block.rows, self._block.infos.names
        return step_of(rows, self._block.success_seen, info_metrics(rows.info, names))

    def state(self) -> State:
        block = self._block
        state = {
            "seed": block.seed,
            "tick": block.tick,
            "obs": torch.from_numpy(block.rows.obs.copy()),
            **({} if self.present is None else {"present": self.present.clone()}),
            **block.state(),
        }
        warn_inexact(self.name, [env["why"] for env in state["envs"] if not env["exact"]])
        self._growth.look_at(self.name, state["envs"])
        return state

    def load_state(self, state: State) -> None:
        check_fits(self, state)
        self._block.rows.obs[:] = state["obs"].numpy()
        if "present" in state:
            self._block.rows.present[:] = state["present"].numpy()
        self._note_present()
        warn_inexact(self.name, self._block.load_state(state["seed"], state["tick"], state))

    def close(self) -> None:
        self._block.close()

    def frame(self, row: int) -> np.ndarray | None:
        """A picture of `row`, [height, width, 3] uint8, if the kwargs say render_mode="rgb_array"."""
        env = self._block.envs[row // self.agents_per_env]
        picture = env.render() if getattr(env, "render_mode", None) == "rgb_array" else None
        return np.asarray(picture) if picture is not None else None

    def _note_present(self) -> None:
        if self._block.agents_come_and_go:
            self.present = torch.from_numpy(self._block.rows.present.copy())


class GymVecEnv(BlockVecEnv):
    """Gymnasium environments, and what a viewer can see of those with MuJoCo inside."""

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

    def interface(self) -> Interface:
        """Of Gymnasium's own MuJoCo environments, whose actions are the controls; of others the time of a step."""
        model = self.mj_model
        if model is None:
            return Interface()
        control_dt = self.substeps * float(model.opt.timestep)
        env, space = self._block.envs[0].unwrapped, self.action_space
        if not type(env).__module__.startswith("gymnasium.envs.mujoco.") or not isinstance(space, gym.spaces.Box):
            return Interface(control_dt=control_dt)
        controlled = space.shape == (model.nu,) and np.allclose((space.low, space.high), control_bounds(model))
        seen = self._column_names(getattr(env, "observation_structure", {}))
        if not controlled:
            return Interface(seen, control_dt=control_dt)
        return Interface(seen, control_names(model), control_units(model), control_dt)

    def _column_names(self, structure: dict[str, int]) -> dict[str, list[str]]:
        """Of an observation that the environment says is made of so many numbers of these fields of MjData."""
        sizes = {name: size for name, size in structure.items() if not name.startswith("skipped")}
        if isinstance(self.obs_space, RowSpace) or sum(sizes.values()) != self.obs_space.shape[0]:
            return {}
        return {ONLY_PART: [column for name, size in sizes.items() for column in column_names(name, size)]}
