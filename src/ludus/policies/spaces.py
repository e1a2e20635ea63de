"""Spaces as plain JSON, for a policy that is saved."""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from ludus.envs.row_space import ActionRow, ChoiceRow, FlatBox, FlatChoices, RowSpace
from ludus.errors import LudusError

_DEEPEST = 16  # spaces within spaces
_MOST_NUMBERS = 2**24  # a stranger's file may name any
# Rows that know what the environment observes or takes, and what that may be.
_WITH_RAW = (ActionRow, ChoiceRow, FlatBox, FlatChoices)
_BY_NAME: dict[str, Any] = {kind.__name__: kind for kind in _WITH_RAW}
_RAW_KINDS: dict[str, tuple[type, ...]] = {
    "ActionRow": (gym.spaces.Dict, gym.spaces.Tuple),
    "ChoiceRow": (gym.spaces.Discrete, gym.spaces.MultiDiscrete),
    "FlatBox": (gym.spaces.Box,),
    "FlatChoices": (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary),
}


def describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    if isinstance(space, RowSpace):
        return {"kind": "RowSpace", "raw": describe_space(space.raw), "masks": space.masks}
    if isinstance(space, _WITH_RAW):
        return {"kind": type(space).__name__, "raw": describe_space(space.raw)}
    if isinstance(space, gym.spaces.Box):
        # JSON has no infinity: bounds are written as strings.
        exact = int if space.dtype.kind in "iu" else float  # float64 has not every int64
        bounds = {k: [str(exact(v)) for v in _bounds(getattr(space, k))] for k in ("low", "high")}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": list(space.n) if isinstance(space.n, tuple) else int(space.n)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": [[key, describe_space(part)] for key, part in space.spaces.items()]}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "spaces": [describe_space(part) for part in space.spaces]}
    return describe_space(gym.spaces.flatten_space(space))  # what a policy sees of others


def _bounds(values: np.ndarray) -> np.ndarray:
    """One number where all are the same: an image has thousands."""
    flat = values.reshape(-1)
    return flat[:1] if flat.size > 1 and (flat == flat[0]).all() and flat.size >= 256 else flat


def space_from(description: dict[str, Any]) -> Any:
    """The space that `describe_space` described, unless it is too large for a description to be honest."""
    numbers = _numbers(description)
    if numbers > _MOST_NUMBERS:
        raise LudusError(f"A space of {numbers:,} numbers is too large; up to {_MOST_NUMBERS:,} are known.")
    return _space(description)


def _numbers(description: dict[str, Any], depth: int = 0) -> int:
    """How many numbers a space has, before anything is allocated for it."""
    if depth > _DEEPEST:
        raise LudusError(f"A space has more than {_DEEPEST} spaces within each other.")
    kind = description["kind"]
    if kind == "RowSpace" or kind in _BY_NAME:
        return _numbers(description["raw"], depth + 1)
    if kind in ("Dict", "Tuple"):
        inner = [part[1] if kind == "Dict" else part for part in description["spaces"]]
        return sum(_numbers(part, depth + 1) for part in inner)
    sizes = {"Box": "shape", "MultiBinary": "n", "Discrete": "n"}
    if kind == "MultiDiscrete":
        return sum(np.ravel(description["nvec"]).tolist())
    return math.prod(np.ravel(description[sizes[kind]]).tolist()) if kind in sizes else 0


def _space(description: dict[str, Any]) -> Any:
    kind = description["kind"]
    if kind == "Box":
        return _box(description)
    if kind == "Discrete":
        return gym.spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(np.array(description["nvec"]), start=np.array(description["start"]))
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(description["n"])
    if kind == "Dict":
        return gym.spaces.Dict([(key, _space(part)) for key, part in description["spaces"]])
    if kind == "Tuple":
        return gym.spaces.Tuple([_space(part) for part in description["spaces"]])
    if kind == "RowSpace":
        return RowSpace(_space(description["raw"]), bool(description["masks"]))
    if kind in _BY_NAME:
        return _BY_NAME[kind](_expect_raw(_space(description["raw"]), kind))
    raise LudusError(
        f"There is no space {kind!r}; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are known."
    )


def _expect_raw(raw: Any, kind: str) -> Any:
    if not isinstance(raw, _RAW_KINDS[kind]):
        raise LudusError(f"A {kind} is not made of {type(raw).__name__}.")
    return raw


def _box(description: dict[str, Any]) -> gym.spaces.Box:
    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise LudusError(f"A Box of {dtype} is none that a policy can see.")
    low, high = (np.array([_bound(v, dtype) for v in description[k]], dtype) for k in ("low", "high"))
    if low.size == high.size == 1:
        low, high = (np.broadcast_to(bound.reshape(()), shape) for bound in (low, high))
    return gym.spaces.Box(low.reshape(shape), high.reshape(shape), shape, dtype.type)


def _bound(text: str, dtype: np.dtype) -> int | float:
    if dtype.kind not in "iu":
        return float(text)
    if text.lstrip("-").isdigit():
        return int(text)
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max  # older policies wrote floats, the largest rounded up
    number = float(text)
    return most if number >= most else least if number <= least else int(number)
