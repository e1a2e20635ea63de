"""What a policy sees of a Gymnasium environment's spaces: rows of numbers, images, numbered choices."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from ludus.envs.row_space import (
    MASK,
    ActionRow,
    ChoiceRow,
    FlatBox,
    FlatChoices,
    RowSpace,
    as_env_takes,
    can_act_in,
    choices_of,
    flat_choices,
    float_box,
    is_image,
    with_mask,
)
from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError

# Where an environment says which actions are valid, besides a key of its observations: in the info of step() and
# reset(), or by a method action_masks().
MaskSource = Literal["", "info", "method"]


class Spaces(NamedTuple):
    """What a policy sees of an environment's spaces, and the ways there and back."""

    obs: spaces.Box  # of one row: a float32 vector, an image as it is, or several parts (RowSpace)
    seen: spaces.Box  # what of a row comes from an observation: all of it but a mask that comes from elsewhere
    action: ActionSpace  # of one row: a flat vector, or choices, numbered as the environment numbers them
    to_row: Callable[[Any], np.ndarray] | None  # an environment's observation → a row of `seen`; None: it is one
    to_env: Callable[[np.ndarray], Sequence[Any]]  # [rows, ...] actions → one for each row, as it takes it
    mask: MaskSource = ""
    stacked_frames: int = 1  # as in VecEnv


def adapt_spaces(
    obs_space: gym.Space, action_space: gym.Space, name: str, mask: MaskSource = "", masks: bool = True
) -> Spaces:
    """`mask` says where masks of valid actions come from; without `masks` even an observed one is none."""
    for what, space in (("observation", obs_space), ("action", action_space)):
        if not isinstance(space, gym.Space):
            raise ConfigError(f"{name} has no {what} space: it says {type(space).__name__} where a Space belongs.")
    action, to_env = _adapt_action(action_space, name)
    seen, to_row = _adapt_obs(obs_space, name, masks)
    obs = RowSpace(with_mask(obs_space, choices_of(action))) if mask else seen
    if isinstance(obs, RowSpace) and obs.mask is not None:
        _check_mask(obs.mask.size, action, name)
    return Spaces(obs, seen, action, to_row, to_env, mask)


def _adapt_obs(space: gym.Space, name: str, masks: bool) -> tuple[spaces.Box, Callable[[Any], np.ndarray] | None]:
    if is_image(space):
        assert isinstance(space, spaces.Box)
        return spaces.Box(
            space.low.astype(np.uint8), space.high.astype(np.uint8), dtype=np.uint8
        ), None  # flags, too
    if isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) > 1:  # a table of bytes
        return space, None
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return float_box(space), None
    if not space.is_np_flattenable:
        raise ConfigError(f"{name} observes {space}, which is no fixed set of numbers: wrap it to give a Box.")
    if isinstance(space, spaces.Dict | spaces.Tuple):
        row = RowSpace(space, masks)
        return row, row.to_row
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        choices = ChoiceRow(space)
        return choices, lambda obs: np.asarray(spaces.flatten(space, obs))
    flat = spaces.flatten_space(space)
    assert isinstance(flat, spaces.Box)
    return float_box(flat), lambda obs: np.asarray(spaces.flatten(space, obs))


def may_be_masked(obs_space: Any, action_space: Any) -> bool:
    """Whether it is worth asking for masks elsewhere than in the observations."""
    if isinstance(obs_space, spaces.Dict) and MASK in obs_space.spaces:
        return False
    if not isinstance(obs_space, gym.Space) or not isinstance(action_space, gym.Space):
        return False
    return can_act_in(action_space) and not isinstance(action_space, spaces.Box)


def mask_in_info(result: Any) -> MaskSource:
    """Of what reset() gave."""
    has_info = isinstance(result, tuple | list) and len(result) == 2 and isinstance(result[1], dict)
    return "info" if has_info and MASK in result[1] else ""


def _check_mask(size: int, action: ActionSpace, name: str) -> None:
    choices = choices_of(action)
    if choices == 0:
        raise ConfigError(f"{name} masks actions ({MASK!r}), but acts in {action}: only choices can be masked.")
    if size != choices:
        raise ConfigError(
            f"{name} gives a mask of {size} numbers; its actions have {choices} choices, side by side."
        )


def _adapt_action(space: gym.Space, name: str) -> tuple[ActionSpace, Callable[[np.ndarray], Sequence[Any]]]:
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n), start=int(space.start)), np.ndarray.tolist
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        plain = isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1
        return flat_choices(space) if plain else FlatChoices(space), partial(as_env_takes, space)
    if isinstance(space, spaces.Box):
        plain = len(space.shape) == 1 and space.dtype == np.float32
        return float_box(space) if plain else FlatBox(space), partial(as_env_takes, space)
    if isinstance(space, spaces.Dict | spaces.Tuple) and len(space) and can_act_in(space):
        row = ActionRow(space)
        return row, lambda action: [row.to_raw(values) for values in action]
    raise ConfigError(
        f"{name} acts in {space}; Ludus can act in Box, Discrete, MultiDiscrete and MultiBinary spaces, and in "
        "Dict and Tuple spaces of them."
    )
