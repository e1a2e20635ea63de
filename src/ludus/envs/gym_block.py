"""The loop over a block of Gymnasium environments, the same in-process and in a worker process.

Gymnasium's vector environments are not used: by default they give a filler row after every episode.
Here an ended episode restarts inside the same step, and all results go to arrays allocated once.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ludus.envs.gym_state import lost_state, restore, snapshot
from ludus.envs.vec import ActionSpace, State, derive_seed
from ludus.errors import ConfigError, EnvError

_NO_LIMIT = 2**62  # steps
_NUM_SEEDS = 2**31  # some environments hand their seed to C code, which takes no more
_SUCCESS_KEYS = ("is_success", "success")


class EnvRaisedError(EnvError):
    """The environment's own code raised. A worker it happens in is restarted."""


class _LostEpisodeError(Exception):
    """Raised in place of a step by an episode that could not be continued."""


# Spaces ---------------------------------------------------------------------------------------------
class Spaces(NamedTuple):
    """What a policy sees of an environment's spaces, and the ways there and back."""

    obs: spaces.Box  # of one row: a float32 vector, or a uint8 image as it is
    action: ActionSpace  # of one row: a flat vector, or numbers from 0
    to_row: Callable[[Any], np.ndarray] | None  # an environment's observation → a row; None: it is one
    to_env: Callable[[np.ndarray], Sequence[Any]]  # [rows, ...] actions → one for each environment


def adapt_spaces(env: gym.Env, name: str) -> Spaces:
    obs, to_row = _adapt_obs(env.observation_space, name)
    action, to_env = _adapt_action(env.action_space, name)
    return Spaces(obs, action, to_row, to_env)


def _adapt_obs(space: gym.Space, name: str) -> tuple[spaces.Box, Callable[[Any], np.ndarray] | None]:
    if not space.is_np_flattenable:
        raise ConfigError(
            f"{name} observes {space}, which has no fixed number of values: wrap it so that it observes a Box."
        )
    if isinstance(space, spaces.Box):
        if space.dtype == np.uint8 and len(space.shape) > 1:  # an image
            return space, None
        if len(space.shape) == 1:
            return _float_box(space), None
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    return _float_box(flat), lambda obs: spaces.flatten(space, obs)  # type: ignore[return-value]


def _adapt_action(space: gym.Space, name: str) -> tuple[ActionSpace, Callable[[np.ndarray], Sequence[Any]]]:
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        if start == 0:
            return spaces.Discrete(int(space.n)), np.ndarray.tolist
        return spaces.Discrete(int(space.n)), lambda action: (action + start).tolist()
    # Below, every call makes a new array: environments may keep the action they were given.
    if isinstance(space, spaces.MultiDiscrete):
        dtype, shape, starts = space.dtype, space.shape, space.start
        flat = spaces.MultiDiscrete(space.nvec.reshape(-1))
        return flat, lambda action: list(action.reshape(-1, *shape).astype(dtype) + starts)
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        box = _float_box(space)
        if space.dtype.kind == "f":
            return box, lambda action: list(
                np.minimum(np.maximum(action.reshape(-1, *shape_of(space)), low), high).astype(space.dtype, copy=False)
            )
    raise ConfigError(f"{name} acts in {space}; Ludus can act in Box, Discrete and MultiDiscrete spaces.")


def shape_of(space: gym.Space) -> tuple[int, ...]:
    assert space.shape is not None
    return space.shape
