"""Any Gymnasium environment behind the `VecEnv` contract, in this process.

    env = make_gym(GymConfig("CartPole-v1"), num_envs=8)

With `workers` the same environments run in processes of their own (`workers.py`), with the same results.
"""

from typing import Any

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.goals import Goals
from ludus.envs.gym.block import GrowthGuard, Recipe, warn_inexact
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.finding import find_env, package_of
from ludus.envs.gym.goals import goals_of_env
from ludus.envs.gym.make import GymRecipe
from ludus.envs.gym.rows import info_metrics, step_of
from ludus.envs.gym.workers import GymWorkersVecEnv
from ludus.envs.importing import told_name
from ludus.envs.interface import Interface, column_names
from ludus.envs.mujoco.robot import control_bounds, control_names, control_units
from ludus.envs.row_space import ONLY_PART, RowSpace
from ludus.envs.row_state import check_fits
from ludus.envs.vec import State, Step, VecEnv


def make_gym(config: GymConfig, num_envs: int) -> VecEnv:
    """A group of `num_envs` environments."""
    module = config.id.rpartition(":")[0] or package_of(config.id)
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

    def goals(self) -> Goals | None:
        return goals_of_env(self.name, self._block.envs[0], self.obs_space)

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
