"""Observations and actions that have parts, as one row of numbers: Dict and Tuple spaces, images, masks.

Everything between an environment and a network carries rows of one type and size: buffers, worker processes,
checkpoints, transfers to a GPU. Without images a row is float32, one part after the other. With images it is
bytes: all vectors first, as the bytes of their float32 numbers, then every image as it is. Each part begins at a
multiple of 16 bytes, so that a view of a row is a tensor of the part's own type, and nothing is ever copied.
A mask of valid actions is the last part.
"""

import itertools
import math
import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from ludus.errors import ConfigError

MASK = "action_mask"  # the key by which PettingZoo, Gymnasium's infos and this row name a mask
OBSERVATION = "observation"  # the key of what is seen, where a mask comes from elsewhere than the observation
ONLY_PART = "obs"  # the name of the part of a row that has one
_ALIGNMENT = 16  # bytes
_SMALLEST_IMAGE = 8  # pixels each way; smaller ones are tables of numbers

Kind = Literal["vector", "image", "mask"]


class Part(NamedTuple):
    """A named piece of a row."""

    path: tuple[Any, ...]  # the keys that lead to it in an observation
    kind: Kind
    space: gym.Space  # as the environment gives it
    shape: tuple[int, ...]  # (numbers,) of a vector or a mask; an image as it is
    start: int  # in the row: in numbers of a float32 row, in bytes of another

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path)) or ONLY_PART

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class RowSpace(spaces.Box):
    """One row of several parts. `raw` is what the environment observes: a Dict or Tuple."""

    def __init__(self, raw: gym.Space, masks: bool = True) -> None:
        """Without `masks` a part named as one is a vector like others."""
        self.raw, self.masks = raw, masks
        leaves = sorted(
            _leaves(raw, masks), key=lambda leaf: _ORDER.index(leaf[1])
        )  # stable: vectors stay in order
        self.packed = any(kind == "image" for _, kind, _ in leaves)
        parts, at = [], 0
        for path, kind, space in leaves:
            shape = space.shape if kind == "image" else (spaces.flatdim(space),)
            assert shape is not None
            if self.packed and kind != "vector":
                at += -at % _ALIGNMENT
            parts.append(Part(path, kind, space, tuple(shape), at))
            at += parts[-1].size * (4 if self.packed and kind == "vector" else 1)
        self.parts = tuple(parts)
        self._places = [_place_of(part) for part in parts]
        names = [part.name for part in parts]
        if len(set(names)) < len(names) or not any(part.kind != "mask" and part.size for part in parts):
            told = "two parts of one name" if len(set(names)) < len(names) else "nothing to see"
            raise ConfigError(f"Observations of {raw} have {told}: wrap the environment to give others.")
        if not all(isinstance(key, str | int) for part in parts for key in part.path):
            raise ConfigError(f"The keys of {raw} must be text.")
        self.numbers = sum(part.size for part in parts if part.kind == "vector")
        if self.packed:
            super().__init__(0, 255, (at + -at % _ALIGNMENT,), np.uint8)
        else:
            low, high = _bounds([part.space for part in parts])
            super().__init__(low, high, dtype=np.float32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSpace) and (self.raw, self.masks) == (other.raw, other.masks)

    @property
    def mask(self) -> Part | None:
        last = self.parts[-1]
        return last if last.kind == "mask" else None

    # The environment's side -----------------------------------------------------------------------
    def to_row(self, obs: Any, left_out: frozenset[str] = frozenset()) -> np.ndarray:
        """An observation of `raw` as a new row."""
        row = np.empty(self.shape, self.dtype)
        self.write(obs, row, left_out)
        return row

    def write(self, obs: Any, row: np.ndarray, left_out: frozenset[str] = frozenset()) -> None:
        """Put an observation of `raw` into a row, with zeros in parts that are `left_out`.

        What does not fit is a ValueError, TypeError or KeyError.
        """
        row.fill(0)
        for part, place, choices in self._places:  # at every step of every environment: few calls
            if left_out and part.name in left_out:
                continue
            value = obs
            for key in part.path:
                value = value[key]
            if part.kind == "mask":
                row[place] = _numbers_of(value, part).astype(bool)
            elif self.packed:
                self._view(row[None], part)[0] = _numbers_of(value, part)
            elif choices is None:
                row[place] = _numbers_of(value, part)
            else:
                chosen = _index_in(choices, value)
                if chosen is None:
                    raise ValueError(f"its part {part.name!r} is {value}; its space says {part.space}")
                row[place.start + chosen] = 1.0

    def _view(self, rows: np.ndarray, part: Part) -> np.ndarray:
        """[n, *shape] the part of rows, to be read or written."""
        if self.packed and part.kind == "vector":
            return rows[:, part.start : part.start + 4 * part.size].view(np.float32)
        return rows[:, part.start : part.start + part.size].reshape(len(rows), *part.shape)

    def vectors_of(self, rows: np.ndarray) -> np.ndarray:
        """[n, numbers] all vectors of rows, as a view."""
        return rows[:, : 4 * self.numbers].view(np.float32) if self.packed else rows[:, : self.numbers]

    def mask_of(self, rows: np.ndarray) -> np.ndarray:
        assert self.mask is not None
        return self._view(rows, self.mask)

    def pack(self, obs: Any, needed: Collection[str]) -> tuple[np.ndarray, bool]:
        """(rows, whether `obs` was one observation rather than a batch). Only `needed` parts must be there."""
        left_out = frozenset(p.name for p in self.parts if p.name not in needed and not _has(obs, p.path))
        first = next(part for part in self.parts if part.name not in left_out)
        leaf = _follow(obs, first.path)
        if np.ndim(leaf) == len(first.space.shape or ()):
            return self.to_row(obs, left_out)[None], True
        return np.stack([self.to_row(_at(obs, i), left_out) for i in range(len(leaf))]), False

    # The policy's side ----------------------------------------------------------------------------
    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Views of a batch of rows by the names of the parts; an image as [n, *shape], all else as [n, size]."""
        return {part.name: self.part_of(rows, part) for part in self.parts}

    def part_of(self, rows: Tensor, part: Part) -> Tensor:
        if self.packed and part.kind == "vector":
            return rows[:, part.start : part.start + 4 * part.size].view(torch.float32)
        piece = rows[:, part.start : part.start + part.size]
        return piece.unflatten(1, part.shape) if part.kind == "image" else piece

    def columns_of(self, part: Part) -> slice:
        """Of a vector in `numbers_of`."""
        start = part.start // 4 if self.packed else part.start
        return slice(start, start + part.size)

    def numbers_of(self, rows: Tensor) -> Tensor:
        """[n, numbers] all vectors of a batch of rows, as a view."""
        return rows[:, : 4 * self.numbers].view(torch.float32) if self.packed else rows[:, : self.numbers]


class ChoiceRow(spaces.Box):
    """Choices that are observed, as a row of zeros with a one for each. `raw` is what the environment observes."""

    def __init__(self, raw: spaces.Discrete | spaces.MultiDiscrete) -> None:
        self.raw = raw
        flat = spaces.flatten_space(raw)
        assert isinstance(flat, spaces.Box)
        super().__init__(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
        self._only = _choices_in(raw) if isinstance(raw, spaces.Discrete) else None

    def write(self, obs: Any, row: np.ndarray) -> None:
        """Put what an environment observed into a row.

        What does not fit is a ValueError, TypeError or IndexError.
        """
        if self._only is None:
            row[...] = spaces.flatten(self.raw, obs)
            return
        chosen = _index_in(self._only, obs)
        if chosen is None:
            raise ValueError(f"{obs} is not in it")
        row.fill(0.0)
        row[chosen] = 1.0

    def to_row(self, obs: Any) -> np.ndarray:
        """What does not fit is a ValueError."""
        obs = np.asarray(obs)
        if not self.raw.contains(obs if obs.ndim else int(obs)):
            raise ValueError(f"{obs.tolist()} is not in it")
        return np.asarray(spaces.flatten(self.raw, obs), np.float32)

    def pack(self, obs: Any) -> tuple[np.ndarray, bool]:
        """(rows, whether `obs` was one observation rather than a batch), of whole numbers."""
        numbers, shape = np.asarray(obs), self.raw.shape
        if numbers.shape == shape:
            return self.to_row(numbers)[None], True
        if numbers.shape[1:] != shape:
            raise ValueError(f"it has the shape {numbers.shape}")
        return np.stack([self.to_row(one) for one in numbers]), False


_ORDER: tuple[Kind, ...] = ("vector", "image", "mask")


def with_mask(raw: gym.Space, size: int) -> gym.Space:
    """The space of observations to which a mask is added that comes from elsewhere."""
    parts = dict(raw.spaces) if isinstance(raw, spaces.Dict) else {OBSERVATION: raw}
    return spaces.Dict({**parts, MASK: spaces.MultiBinary(size)})


def add_mask(obs: Any, mask: Any) -> dict[str, Any]:
    """An observation of `with_mask(raw, size)`."""
    return {**obs, MASK: mask} if hasattr(obs, "keys") else {OBSERVATION: obs, MASK: mask}


def is_image(space: gym.Space) -> bool:
    """Bytes or flags on a grid of pixels, perhaps with channels, perhaps several frames."""
    if (
        not isinstance(space, spaces.Box)
        or space.dtype not in (np.uint8, np.bool_)
        or len(space.shape) not in (3, 4)
    ):
        return False
    return sum(side >= _SMALLEST_IMAGE for side in space.shape) >= 2


def parts_of(space: spaces.Box) -> tuple[Part, ...]:
    """What a row is made of: its parts, or the one that it is."""
    if isinstance(space, RowSpace):
        return space.parts
    kind: Kind = "image" if is_image(space) else "vector"
    shape = space.shape if kind == "image" else (int(np.prod(space.shape)),)
    return (Part((), kind, space, tuple(shape), 0),)


def numbers_in(space: spaces.Box) -> int:
    """How many numbers the vectors of a row have."""
    return sum(part.size for part in parts_of(space) if part.kind == "vector")


def _leaves(
    space: gym.Space, masks: bool = True, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], Kind, gym.Space]]:
    """Path, kind and space of every part."""
    children: Mapping[Any, gym.Space] | None = None
    if isinstance(space, spaces.Dict):
        children = space.spaces
    elif isinstance(space, spaces.Tuple):
        children = dict(enumerate(space.spaces))
    if children is None:
        yield path, "image" if is_image(space) else "vector", space
        return
    for key, child in children.items():
        if masks and key == MASK and not path:
            yield (MASK,), "mask", child
        else:
            yield from _leaves(child, masks, (*path, key))


def _place_of(part: Part) -> tuple[Part, slice, range | None]:
    """(part, where it is in a row that is not packed, what can be chosen where it is one choice)."""
    space, place = part.space, slice(part.start, part.start + part.size)
    return part, place, _choices_in(space) if isinstance(space, spaces.Discrete) else None


def _choices_in(space: spaces.Discrete) -> range:
    return range(int(space.start), int(space.start) + int(space.n))


def _index_in(choices: range, value: Any) -> int | None:
    """Which of the choices a value is; None: none of them."""
    if isinstance(value, np.ndarray) and value.size == 1:  # as many give it
        value = value.item()
    chosen = operator.index(value) - choices.start
    return chosen if 0 <= chosen < len(choices) else None


def _follow(obs: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        obs = obs[key]
    return obs


def _has(obs: Any, path: tuple[Any, ...]) -> bool:
    try:
        _follow(obs, path)
    except (KeyError, IndexError, TypeError):
        return False
    return True


def _at(obs: Any, index: int) -> Any:
    """One observation of a batch."""
    if isinstance(obs, Mapping):
        return {key: _at(value, index) for key, value in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_at(value, index) for value in obs)
    return obs[index]


def _numbers_of(value: Any, part: Part) -> np.ndarray:
    space = part.space
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        array = np.asarray(value)
        if array.shape != space.shape:
            raise ValueError(f"its part {part.name!r} has shape {array.shape}; its space says {space.shape}")
        if array.dtype.kind not in "fiub":
            raise ValueError(f"its part {part.name!r} is not made of real numbers")
        if part.kind == "image" and not _are_bytes(array):
            raise ValueError(f"its part {part.name!r} is {array.dtype}; its space says {space.dtype}")
        return array if array.shape == part.shape else array.reshape(part.shape)
    return np.asarray(spaces.flatten(space, value))


def _are_bytes(array: np.ndarray) -> bool:
    if array.dtype in (np.uint8, np.bool_):
        return True
    return array.dtype.kind in "iu" and bool(((array >= 0) & (array <= 255)).all())


def _bounds(parts: list[gym.Space]) -> tuple[np.ndarray, np.ndarray]:
    flat = [spaces.flatten_space(part) for part in parts]
    with np.errstate(over="ignore"):  # bounds beyond float32 are no bounds
        low, high = (
            np.concatenate([np.asarray(getattr(box, name)).reshape(-1).astype(np.float32) for box in flat])
            for name in ("low", "high")
        )
    return low, high


# Actions ------------------------------------------------------------------------------------------
class ActionRow(spaces.Box):
    """Actions of several parts as one float32 row: continuous numbers, and choices by their numbers.

    `flat` are the parts in the order of the row, each a Box of one dimension or a MultiDiscrete.
    """

    def __init__(self, raw: gym.Space) -> None:
        self.raw = raw
        self.flat = tuple(_flat_action(leaf) for leaf in _action_leaves(raw))
        bounds = [_action_bounds(part) for part in self.flat]
        low, high = (np.concatenate(side).astype(np.float32) for side in zip(*bounds, strict=True))
        super().__init__(low, high, dtype=np.float32)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionRow) and self.raw == other.raw

    def to_raw(self, row: np.ndarray) -> Any:
        """One action as the environment takes it."""
        edges = np.cumsum([part.shape[0] for part in self.flat])[:-1]
        pieces = iter(np.split(row, edges))
        return _build_action(self.raw, pieces)


class FlatBox(spaces.Box):
    """Continuous actions as a float32 row. `raw` is as the environment takes them: a matrix, float64, integers."""

    def __init__(self, raw: spaces.Box) -> None:
        self.raw = raw
        flat = float_box(raw)
        super().__init__(flat.low, flat.high, dtype=np.float32)


class FlatChoices(spaces.MultiDiscrete):
    """Choices side by side. `raw` is as the environment takes them: a matrix, or bits."""

    def __init__(self, raw: spaces.MultiDiscrete | spaces.MultiBinary) -> None:
        self.raw = raw
        flat = flat_choices(raw)
        super().__init__(flat.nvec, start=flat.start)


def raw_actions(space: gym.Space, rows: np.ndarray, form: Literal["one", "batch", "list"]) -> Any:
    """Rows of actions as the environment takes them: the only one, a vector environment's batch, or a list."""
    if isinstance(space, ActionRow):
        actions: Any = [space.to_raw(row) for row in rows]
    elif isinstance(space, FlatBox | FlatChoices):
        actions = as_env_takes(space.raw, rows)
    else:
        actions = rows.tolist() if isinstance(space, spaces.Discrete) and form != "batch" else rows
    if form == "one":
        return actions[0]
    return _stacked(actions) if form == "batch" else list(actions)


def _stacked(actions: Sequence[Any]) -> Any:
    """Several actions as one, whose arrays have a first dimension more."""
    first = actions[0]
    if isinstance(first, dict):
        return {key: _stacked([action[key] for action in actions]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stacked(part) for part in zip(*actions, strict=True))
    return actions if isinstance(actions, np.ndarray) else np.stack([np.asarray(action) for action in actions])


def _action_bounds(part: spaces.Box | spaces.MultiDiscrete) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(part, spaces.MultiDiscrete):
        return part.start, part.start + part.nvec - 1
    return part.low, part.high


def flat_choices(space: spaces.MultiDiscrete | spaces.MultiBinary) -> spaces.MultiDiscrete:
    """Choices side by side; of a bit there are two."""
    if isinstance(space, spaces.MultiBinary):
        return spaces.MultiDiscrete(np.full(int(np.prod(space.shape)), 2))
    return spaces.MultiDiscrete(space.nvec.reshape(-1), start=space.start.reshape(-1))


def float_box(space: spaces.Box) -> spaces.Box:
    with np.errstate(over="ignore"):  # bounds beyond float32 are no bounds
        low, high = (bound.reshape(-1).astype(np.float32) for bound in (space.low, space.high))
    return spaces.Box(low, high, dtype=np.float32)


def as_env_takes(space: gym.Space, action: np.ndarray) -> Sequence[Any]:
    """Actions of a Box, Discrete, MultiDiscrete or MultiBinary, one for each row of numbers.

    New arrays at every call: an environment may keep the action it was given.
    """
    if isinstance(space, spaces.Discrete):
        return action.reshape(-1).astype(np.int64).tolist()
    assert space.shape is not None
    shaped = action.reshape(-1, *space.shape)
    if not isinstance(space, spaces.Box):
        return list(shaped.astype(space.dtype))
    bounded = np.minimum(np.maximum(shaped, space.low), space.high)
    if space.dtype.kind != "f":
        bounded = np.rint(bounded)
    return list(bounded.astype(space.dtype, copy=False))


def can_act_in(space: gym.Space) -> bool:
    known = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    return all(isinstance(leaf, known) for leaf in _action_leaves(space))


def choices_of(space: gym.Space) -> int:
    """How many logits a policy has for the choices of an action; 0 where all is continuous."""
    return max((part.stop for part in choice_slices(space)), default=0)


def choice_slices(space: gym.Space) -> list[slice]:
    """Where each choice lies when the logits of all are side by side."""
    if isinstance(space, ActionRow):
        counts = [int(n) for part in space.flat if isinstance(part, spaces.MultiDiscrete) for n in part.nvec]
    elif isinstance(space, spaces.MultiDiscrete):
        counts = [int(n) for n in space.nvec]
    else:
        counts = [int(space.n)] if isinstance(space, spaces.Discrete) else []
    edges = np.cumsum([0, *counts]).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def _action_leaves(space: gym.Space) -> Iterator[gym.Space]:
    if isinstance(space, spaces.Dict):
        children: Any = space.spaces.values()
    elif isinstance(space, spaces.Tuple):
        children = space.spaces
    else:
        yield space
        return
    for child in children:
        yield from _action_leaves(child)


def _flat_action(space: gym.Space) -> spaces.Box | spaces.MultiDiscrete:
    if isinstance(space, spaces.Box):
        return float_box(space)
    if isinstance(space, spaces.Discrete):
        return spaces.MultiDiscrete([int(space.n)], start=[int(space.start)])
    assert isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
    return flat_choices(space)


def _build_action(space: gym.Space, pieces: Iterator[np.ndarray]) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: _build_action(child, pieces) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_build_action(child, pieces) for child in space.spaces)
    return as_env_takes(space, next(pieces)[None])[0]
