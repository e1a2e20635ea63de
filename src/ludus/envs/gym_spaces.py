"""What a policy sees of a Gymnasium environment's spaces: flat float32 vectors, images, numbered choices."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError


class Spaces(NamedTuple):
    """What a policy sees of an environment's spaces, and the ways there and back."""

    obs: spaces.Box  # of one row: a float32 vector, or a uint8 image as it is
    action: ActionSpace  # of one row: a flat vector, or choices, numbered as the environment numbers them
    to_row: Callable[[Any], np.ndarray] | None  # an environment's observation → a row; None: it is one
    to_env: Callable[[np.ndarray], Sequence[Any]]  # [rows, ...] actions → one for each row, as it takes it


def adapt_spaces(obs_space: gym.Space, action_space: gym.Space, name: str) -> Spaces:
    for what, space in (("observation", obs_space), ("action", action_space)):
        if not isinstance(space, gym.Space):
            raise ConfigError(f"{name} has no {what} space: it says {type(space).__name__} where a Space belongs.")
    obs, to_row = _adapt_obs(obs_space, name)
    action, to_env = _adapt_action(action_space, name)
    return Spaces(obs, action, to_row, to_env)


def _adapt_obs(space: gym.Space, name: str) -> tuple[spaces.Box, Callable[[Any], np.ndarray] | None]:
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1:  # an image
        return space, None
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return _float_box(space), None
    if not space.is_np_flattenable:
        raise ConfigError(f"{name} observes {space}, which is no fixed set of numbers: wrap it to give a Box.")
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    return _float_box(flat), lambda obs: np.asarray(spaces.flatten(space, obs))


def _adapt_action(space: gym.Space, name: str) -> tuple[ActionSpace, Callable[[np.ndarray], Sequence[Any]]]:
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n), start=int(space.start)), np.ndarray.tolist
    if isinstance(space, spaces.MultiDiscrete):
        flat = spaces.MultiDiscrete(space.nvec.reshape(-1), start=space.start.reshape(-1))
        return flat, lambda action: _choices(space, action)
    if isinstance(space, spaces.Box):
        return _float_box(space), lambda action: _bounded(space, action)
    raise ConfigError(f"{name} acts in {space}; Ludus can act in Box, Discrete and MultiDiscrete spaces.")


# Both make new arrays at every call: an environment may keep the action it was given.
def _choices(space: spaces.MultiDiscrete, action: np.ndarray) -> list[np.ndarray]:
    return list(action.reshape(-1, *space.shape).astype(space.dtype))


def _bounded(space: spaces.Box, action: np.ndarray) -> list[np.ndarray]:
    bounded = np.minimum(np.maximum(action.reshape(-1, *space.shape), space.low), space.high)
    if space.dtype.kind != "f":
        bounded = np.rint(bounded)
    return list(bounded.astype(space.dtype, copy=False))


def _float_box(space: spaces.Box) -> spaces.Box:
    with np.errstate(over="ignore"):  # bounds beyond float32 are no bounds
        low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.float32)
