"""The loop over a block of Gymnasium environments, the same in-process and in a worker process.

Gymnasium's vector environments are not used: by default they give a filler row after every episode.
Here an ended episode restarts inside the same step, and all results go to arrays allocated once.
"""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from ludus.envs.gym_spaces import Spaces
from ludus.envs.gym_state import lost_state, restore, snapshot
from ludus.envs.vec import State, derive_seed
from ludus.errors import ConfigError, EnvError

_NO_LIMIT = 2**62  # steps
_NUM_SEEDS = 2**31  # some environments hand their seed to C code, which takes no more
_LOST = "its episode was lost before"
_SUCCESS_KEYS = ("is_success", "success")


class EnvRaisedError(EnvError):
    """The environment's own code raised. A worker it happens in is restarted."""


class _LostEpisodeError(Exception):
    """Raised in place of a step by an episode that could not be continued."""


# Making one environment -----------------------------------------------------------------------------
class Recipe(NamedTuple):
    """All that a process needs to make the environment."""

    name: str  # for messages: "gym:CartPole-v1"
    module: str  # imported first, if any
    spec: EnvSpec
    max_steps: int  # 0 = the environment's own limit
    kwargs: dict[str, Any]


def make_envs(recipe: Recipe, count: int) -> tuple[list[gym.Env], int]:
    """Environments and their time limit in steps."""
    with _each_mujoco_warning_once(recipe.name):
        made = [_make_env(recipe) for _ in range(count)]
    return [env for env, _ in made], made[0][1]


def _make_env(recipe: Recipe) -> tuple[gym.Env, int]:
    """Without the wrappers that only check or count; the time limit is left to the block."""
    try:
        env = gym.make(
            recipe.spec,
            max_episode_steps=recipe.max_steps or None,
            disable_env_checker=True,
            **recipe.kwargs,
        )
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ConfigError(f"{recipe.name} needs a package that is not installed: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{recipe.name} cannot be made with kwargs {recipe.kwargs}: {error}") from error
    except Exception as error:
        raise EnvRaisedError(f"{recipe.name} could not be made: {type(error).__name__}: {error}") from error
    limit = _NO_LIMIT
    # Gymnasium's own outermost wrappers only: the block counts steps and calls in the right order itself.
    if type(env) is TimeLimit:
        assert env.spec is not None
        assert env.spec.max_episode_steps is not None
        limit, env = env.spec.max_episode_steps, env.env
    if type(env) is OrderEnforcing:
        env = env.env
    _quicken(env.unwrapped.action_space)
    return env, limit


@contextlib.contextmanager
def _each_mujoco_warning_once(name: str) -> Iterator[None]:
    """MuJoCo would say the same for every environment, and write it to a file in this folder.

    What is deprecated concerns the author of the model, not its user.
    """
    before, texts = mujoco.get_mju_user_warning(), dict[str, None]()
    mujoco.set_mju_user_warning(lambda text: texts.update({text: None}))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
    for text in texts:
        if "deprecated" not in text:
            warnings.warn(f"{name}: MuJoCo says: {text.strip()}", RuntimeWarning, stacklevel=4)


class _QuickDiscrete(spaces.Discrete):
    """Discrete with a `contains` that does not go through numpy: a quarter of CartPole's step."""

    quick_range = range(0)

    def contains(self, x: Any) -> bool:
        return x in self.quick_range if type(x) is int else super().contains(x)


def _quicken(space: gym.Space) -> None:
    if type(space) is spaces.Discrete:
        space.__class__ = _QuickDiscrete
        space.quick_range = range(int(space.start), int(space.start + space.n))  # type: ignore[attr-defined]


# Arrays ---------------------------------------------------------------------------------------------
@dataclass
class Rows:
    """What goes in and out of a step, in memory that a worker may share."""

    action: np.ndarray  # [rows, ...]
    obs: np.ndarray  # [rows, ...]
    reward: np.ndarray  # [rows]
    terminated: np.ndarray  # [rows] bool
    truncated: np.ndarray  # [rows] bool
    final_obs: np.ndarray  # [rows, ...]
    success: np.ndarray  # [rows], NaN where an ended episode did not say

    @staticmethod
    def layout(num_rows: int, of: Spaces) -> list[tuple[tuple[int, ...], np.dtype]]:
        """(shape, dtype) of each array."""
        row: list[tuple[Any, Any]] = [(of.action.shape, of.action.dtype), (of.obs.shape, of.obs.dtype)]
        row += [((), np.float32), ((), bool), ((), bool), row[1], ((), np.float32)]
        return [((num_rows, *shape), np.dtype(dtype)) for shape, dtype in row]

    @classmethod
    def over(cls, buffer: Any, num_rows: int, of: Spaces) -> "Rows":
        """Arrays one after the other in `buffer`."""
        arrays, at = [], 0
        for shape, dtype in cls.layout(num_rows, of):
            arrays.append(np.ndarray(shape, dtype, buffer, at))
            at += -(-arrays[-1].nbytes // 64) * 64  # each on a cache line of its own
        return cls(*arrays)

    @classmethod
    def num_bytes(cls, num_rows: int, of: Spaces) -> int:
        return sum(math.prod(shape) * dtype.itemsize + 64 for shape, dtype in cls.layout(num_rows, of))

    def part(self, start: int, stop: int) -> "Rows":
        return Rows(*(getattr(self, field.name)[start:stop] for field in fields(self)))


# The loop -------------------------------------------------------------------------------------------
class EnvBlock:
    """Environments `first_row` … of a group, one a row of `rows`."""

    def __init__(
        self, name: str, envs: list[gym.Env], limit: int, of: Spaces, rows: Rows, first_row: int = 0
    ) -> None:
        self.name = name
        self.envs = envs
        self.rows = rows
        self.seed = 0
        self.tick = 0  # steps since `reset`
        self.success_seen = False
        self._first_row = first_row
        self._to_row = of.to_row
        self._shape = of.obs.shape
        self._may_be_nan = of.obs.dtype == np.float32
        self._limit = limit
        self._steps: list[Callable[[Any], Any]] = [env.step for env in self.envs]
        self._started = [0] * len(self.envs)  # tick at which the episode began
        self._lost: dict[int, int] = {}  # rows whose episode cannot go on → seed of the next
        self._flags_set = True  # by the last step; shared memory may hold those of a worker that died

    def reset(self, seed: int) -> None:
        self.seed, self.tick = seed, 0
        self._lost.clear()
        self._steps = [env.step for env in self.envs]
        for row in range(len(self.envs)):
            self._begin_episode(row, _row_seed(seed, self._first_row + row))

    def step(self, actions: Sequence[Any]) -> None:
        """One step of every environment, each with an action as it takes it; ended episodes begin anew."""
        self.tick += 1
        rows, deadline, started = self.rows, self.tick - self._limit, self._started
        obs_out, reward_out, shape, plain = rows.obs, rows.reward, self._shape, self._to_row is None
        ended: list[tuple[int, Any, dict[str, Any]]] = []
        info: dict[str, Any] = {}
        for row, (step, action) in enumerate(zip(self._steps, actions, strict=True)):
            try:
                obs, reward, terminated, truncated, info = step(action)
                reward_out[row] = reward
            except _LostEpisodeError:  # the last observation is still in its place
                reward_out[row] = 0.0
                ended.append((row, False, {}))
                continue
            except Exception as error:
                raise self._raised(row, "step", error) from error
            if plain and type(obs) is np.ndarray and obs.shape == shape:
                obs_out[row] = obs
            else:
                self._store(row, obs)
            if terminated or truncated or started[row] <= deadline:
                ended.append((row, terminated, info))
        if self._may_be_nan:
            self._check_finite("observation", obs_out)
        self._check_finite("reward", reward_out)
        if self._flags_set:
            rows.terminated.fill(False)
            rows.truncated.fill(False)
        self._flags_set = bool(ended)
        rows.final_obs[...] = obs_out
        if self.success_seen:
            rows.success.fill(np.nan)
        for row, terminated, info in ended:
            self._end_episode(row, bool(terminated), info)
        if self.tick == 1:
            self._look_for_success(info)

    def lose_episodes(self, seed: int, tick: int, attempt: int) -> None:
        """Take the place of a block that died: the next step ends every row, at what it observed last."""
        self.seed, self.tick = seed, tick
        for row in range(len(self.envs)):
            self._lose(row, attempt)

    def state(self) -> State:
        envs = [lost_state(_LOST) if row in self._lost else snapshot(env) for row, env in enumerate(self.envs)]
        elapsed = [self.tick - started for started in self._started]
        return {"elapsed": elapsed, "success_seen": self.success_seen, "envs": envs}

    def load_state(self, seed: int, tick: int, state: State) -> list[str]:
        """Continue; `rows.obs` holds the last observations already. Why episodes were lost, if any were."""
        self.seed, self.tick, self.success_seen = seed, tick, state["success_seen"]
        self._lost.clear()
        self._steps = [env.step for env in self.envs]
        self._started = [tick - elapsed for elapsed in state["elapsed"]]
        reasons = []
        for row, (env, saved) in enumerate(zip(self.envs, state["envs"], strict=True)):
            self._reset_env(row, seed=0)  # attributes that only exist after a reset must be there
            reason = restore(env, saved)
            if reason:
                self._lose(row, attempt=0)
                reasons.append(reason)
        return reasons

    def close(self) -> None:
        for env in self.envs:
            try:
                env.close()
            except Exception as error:  # noqa: BLE001 (whatever it is, there is nothing left to lose)
                warnings.warn(f"{self.name} failed to close: {error}", RuntimeWarning, stacklevel=2)
        self.envs = []

    def _begin_episode(self, row: int, seed: int | None) -> None:
        obs, info = self._reset_env(row, seed)
        self._started[row] = self.tick
        self._store(row, obs)
        if self._may_be_nan:
            self._check_finite("first observation", self.rows.obs[row : row + 1], row)
        if self.tick == 0:
            self._look_for_success(info)

    def _reset_env(self, row: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        try:
            obs, info = self.envs[row].reset(seed=seed)
        except Exception as error:
            raise self._raised(row, "reset", error) from error
        return obs, info

    def _end_episode(self, row: int, terminated: bool, info: dict[str, Any]) -> None:
        rows = self.rows
        rows.terminated[row] = terminated
        rows.truncated[row] = not terminated  # an episode that did both was over anyway
        self._look_for_success(info)
        rows.success[row] = _success_of(info)
        seed = self._lost.pop(row, None)
        if seed is not None:
            self._steps[row] = self.envs[row].step
        self._begin_episode(row, seed)

    def _lose(self, row: int, attempt: int) -> None:
        self._lost[row] = _row_seed(self.seed, self._first_row + row, self.tick, attempt)
        self._steps[row] = _step_of_lost_episode

    def _look_for_success(self, info: dict[str, Any]) -> None:
        self.success_seen = self.success_seen or any(key in info for key in _SUCCESS_KEYS)

    def _store(self, row: int, obs: Any) -> None:
        where = f"{self.name}: the observation of row {self._first_row + row} at step {self.tick}"
        try:
            array = np.asarray(obs) if self._to_row is None else self._to_row(obs)
        except Exception as error:
            raise EnvError(f"{where} does not fit its space: {type(error).__name__}: {error}") from error
        if array.shape != self._shape:
            raise EnvError(f"{where} has shape {array.shape}; its observation space says {self._shape}.")
        try:
            self.rows.obs[row] = array
        except (TypeError, ValueError) as error:
            raise EnvError(f"{where} is not made of numbers: {error}") from error

    def _check_finite(self, what: str, values: np.ndarray, first: int = 0) -> None:
        if math.isfinite(np.add.reduce(values, axis=None)):  # quicker than looking at each
            return
        finite = np.isfinite(values)
        if finite.all():  # only their sum was too large
            return
        row, *index = (int(i) for i in np.argwhere(~finite)[0])
        place = f" at index {index[0]}" if index else ""
        raise EnvError(
            f"{self.name}: the {what} of row {self._first_row + first + row} at step {self.tick} is "
            f"{values[(row, *index)]}{place}. An environment must give finite numbers."
        )

    def _raised(self, row: int, where: str, error: Exception) -> EnvRaisedError:
        problem = f"{type(error).__name__}: {error}"
        return EnvRaisedError(
            f"{self.name} raised in {where}() of row {self._first_row + row} at step {self.tick}: {problem}"
        )


def _success_of(info: dict[str, Any]) -> float:
    value = next((info[key] for key in _SUCCESS_KEYS if key in info), None)
    return float(value) if isinstance(value, (bool, int, float, np.generic)) else math.nan


def _step_of_lost_episode(action: Any) -> Any:
    raise _LostEpisodeError


def _row_seed(seed: int, *path: int) -> int:
    return derive_seed(seed, *path) % _NUM_SEEDS


_told: set[str] = set()


def warn_inexact(name: str, reasons: Sequence[str]) -> None:
    """Once for each environment: a long run saves many times."""
    unexpected = [reason for reason in reasons if reason != _LOST]
    if unexpected and name not in _told:
        _told.add(name)
        warnings.warn(
            f"{name} cannot be saved exactly ({unexpected[0]}): its episodes restart on resume.",
            RuntimeWarning,
            stacklevel=3,
        )
