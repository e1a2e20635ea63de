"""A vector environment of Gymnasium behind the `VecEnv` contract.

By default such an environment gives a filler row after every episode: its next step ignores the action and begins
the new one. Meanwhile the row counts as one without an agent (`VecEnv.present`), so nothing is learned from it.
"""

import math
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate
from torch import Tensor

from ludus.envs.gym.block import NUM_SEEDS, warn_inexact
from ludus.envs.gym.infos import SUCCESS_KEYS
from ludus.envs.gym.spaces import adapt_spaces
from ludus.envs.gym.state import restore, snapshot
from ludus.envs.row_state import check_fits
from ludus.envs.vec import State, Step, VecEnv, derive_seed
from ludus.errors import ConfigError, EnvError, LudusError, tell_exception


class VectorRows(VecEnv):
    """One row for each environment of a `gymnasium.vector.VectorEnv`, which steps them as it likes."""

    def __init__(self, env: VectorEnv, name: str) -> None:
        self.name, self._env = name, env
        self.device = torch.device("cpu")
        self.num_rows = int(env.num_envs)
        self._of = adapt_spaces(env.single_observation_space, env.single_action_space, name)
        self.obs_space, self.action_space = self._of.obs, self._of.action
        self._mode = _autoreset_mode(env, name)
        self._seed = self._tick = 0
        self._actions: Any = None
        self._success_seen = False
        self._obs = np.zeros((self.num_rows, *self.obs_space.shape), self.obs_space.dtype)  # the newest
        self._lost = False  # the saved episodes could not be restored: all end at the next step
        if self._mode is AutoresetMode.NEXT_STEP:
            self.present = torch.ones(self.num_rows, dtype=torch.bool)

    def reset(self, seed: int) -> Tensor:
        self._seed, self._tick, self._lost = seed, 0, False
        self._obs = self._first_rows(seed)
        if self.present is not None:
            self.present = torch.ones_like(self.present)
        return torch.from_numpy(self._obs.copy())

    def _first_rows(self, seed: int) -> np.ndarray:
        return self._rows(self._call(self._env.reset, seed=seed % NUM_SEEDS)[0])

    def begin_step(self, action: Tensor) -> None:
        space, actions = self._env.single_action_space, self._of.to_env(action.numpy(force=True))
        batch: Any = create_empty_array(space, self.num_rows)
        self._actions = concatenate(space, actions, batch)

    def end_step(self) -> Step:
        self._tick += 1
        if self._lost:
            return self._end_lost()
        result = self._call(self._env.step, self._actions)
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvError(f"{self.name}: step() must give (obs, rewards, terminated, truncated, infos).")
        obs, reward, terminated, truncated, info = result
        terminated, truncated = np.array(terminated, bool), np.array(truncated, bool)
        ended = terminated | truncated
        final = rows = self._rows(obs)
        if self._mode is AutoresetMode.SAME_STEP and ended.any():
            final = self._final_rows(rows, ended, info)
        elif self._mode is AutoresetMode.DISABLED and ended.any():
            anew = self._call(self._env.reset, options={"reset_mask": ended})[0]
            rows = np.where(ended.reshape(-1, *[1] * (rows.ndim - 1)), self._rows(anew), rows)
        elif self.present is not None:
            rows = rows.copy()
            rows[ended] = 0  # the next step begins the new episode
            self.present = torch.from_numpy(~ended)
        self._obs = rows
        return Step(
            torch.from_numpy(rows.copy()),
            torch.from_numpy(np.array(reward, np.float32)),
            torch.from_numpy(terminated),
            torch.from_numpy(truncated & ~terminated),
            torch.from_numpy(final.copy()),
            self._metrics(info, ended),
        )

    def _call(self, method: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return method(*arguments, **named)
        except (KeyboardInterrupt, LudusError):
            raise
        except BaseException as error:
            raise EnvError(f"{self.name} raised in {method.__name__}(): {tell_exception(error)}") from error

    def _rows(self, obs: Any) -> np.ndarray:
        """What all environments observed, as rows."""
        to_row = self._of.to_row
        try:
            rows = (
                np.asarray(obs) if to_row is None else np.stack([to_row(o) for o in iterate(self._observed, obs)])
            )
            return rows.astype(self.obs_space.dtype).reshape(self._obs.shape)
        except (KeyError, TypeError, ValueError) as error:
            raise EnvError(f"{self.name} gives observations that do not fit their space: {error}") from error

    @property
    def _observed(self) -> Any:
        return self._env.observation_space

    def _final_rows(self, rows: np.ndarray, ended: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        """Where an episode ended and a new one began in the same step, what the old one observed last."""
        last = info.get("final_obs", info.get("final_observation"))
        if last is None:
            raise EnvError(f"{self.name} restarts in the same step, but gives no 'final_obs' in its infos.")
        final, to_row = rows.copy(), self._of.to_row or np.asarray
        for row in np.flatnonzero(ended):
            final[row] = to_row(last[row]).reshape(rows.shape[1:])
        return final

    def _metrics(self, info: dict[str, Any], ended: np.ndarray) -> dict[str, Tensor]:
        """The success that ended episodes told."""
        told_last = info.get("final_info", info) if self._mode is AutoresetMode.SAME_STEP else info
        key = next((key for key in SUCCESS_KEYS if isinstance(told_last, dict) and key in told_last), None)
        self._success_seen |= key is not None
        if not self._success_seen:
            return {}
        success = np.full(self.num_rows, math.nan, np.float32)
        if key is not None:
            known = ended & np.asarray(told_last.get(f"_{key}", ended), bool)
            success[known] = np.asarray(told_last[key], np.float32)[known]
        return {"success": torch.from_numpy(success)}

    def _end_lost(self) -> Step:
        """Every episode ends at what it observed last, and a new one begins."""
        final, self._lost = self._obs, False
        self._obs = self._first_rows(derive_seed(self._seed, self._tick))
        ended = torch.ones(self.num_rows, dtype=torch.bool)
        if self.present is not None:
            self.present = ended.clone()
        metrics = {"success": torch.full((self.num_rows,), math.nan)} if self._success_seen else {}
        rows = (torch.from_numpy(part.copy()) for part in (self._obs, final))
        obs, last = rows
        return Step(obs, torch.zeros(self.num_rows), torch.zeros_like(ended), ended, last, metrics)

    def state(self) -> State:
        env = snapshot(self._env)
        warn_inexact(self.name, [] if env["exact"] else [env["why"]])
        return {
            "seed": self._seed,
            "tick": self._tick,
            "elapsed": [],
            "obs": torch.from_numpy(self._obs.copy()),
            **({} if self.present is None else {"present": self.present.clone()}),
            "success_seen": self._success_seen,
            "env": env,
        }

    def load_state(self, state: State) -> None:
        check_fits(self, state)
        self._seed, self._tick, self._success_seen = state["seed"], state["tick"], bool(state["success_seen"])
        self._first_rows(self._seed)  # attributes that only exist after a reset must be there
        self._obs = state["obs"].numpy().copy()
        if "present" in state:
            self.present = state["present"].clone()
        reason = restore(self._env, state["env"])
        self._lost = bool(reason)
        warn_inexact(self.name, [reason] if reason else [])

    def close(self) -> None:
        self._env.close()


def _autoreset_mode(env: VectorEnv, name: str) -> AutoresetMode:
    """When an ended episode begins anew; Gymnasium's own default where nobody says it."""
    told_mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode", AutoresetMode.NEXT_STEP)
    try:
        return AutoresetMode(told_mode)
    except ValueError:
        raise ConfigError(f"{name} has the autoreset_mode {told_mode!r}, which Gymnasium does not know.") from None
