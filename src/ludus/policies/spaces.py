"""Spaces as plain JSON, for a policy that is saved."""

import math
from typing import Any

import gymnasium as gym
import numpy as np

from ludus.envs.row_space import ActionRow, RowSpace
from ludus.errors import LudusError

_DEEPEST = 16  # spaces within spaces
_MOST_NUMBERS = 2**26  # of one space: a stranger's file may name any


def describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    if isinstance(space, RowSpace):
        return {"kind": "RowSpace", "raw": describe_space(space.raw), "masks": space.masks}
    if isinstance(space, ActionRow):
        return {"kind": "ActionRow", "raw": describe_space(space.raw)}
    if isinstance(space, gym.spaces.Box):
        # JSON has no infinity: bounds are written as strings.
        bounds = {k: [str(float(v)) for v in _bounds(getattr(space, k))] for k in ("low", "high")}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": list(space.n) if isinstance(space.n, tuple) else int(space.n)}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": [[key, describe_space(part)] for key, part in space.spaces.items()]}
    assert isinstance(space, gym.spaces.Tuple), f"no policy has a space {space}"
    return {"kind": "Tuple", "spaces": [describe_space(part) for part in space.spaces]}


def _bounds(values: np.ndarray) -> np.ndarray:
    """One number where all are the same: an image has thousands."""
    flat = values.reshape(-1)
    return flat[:1] if flat.size > 1 and (flat == flat[0]).all() and flat.size >= 256 else flat


def space_from(description: dict[str, Any], depth: int = 0) -> Any:
    """The space that `describe_space` described."""
    if depth > _DEEPEST:
        raise LudusError(f"A space has more than {_DEEPEST} spaces within each other.")
    kind = description["kind"]
    sizes = {"Box": "shape", "MultiBinary": "n", "Discrete": "n"}
    if kind in sizes and math.prod(np.atleast_1d(description[sizes[kind]]).tolist()) > _MOST_NUMBERS:
        raise LudusError(f"A {kind} has more than {_MOST_NUMBERS:,} numbers.")
    if kind == "Box":
        return _box(description)
    if kind == "Discrete":
        return gym.spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(np.array(description["nvec"]), start=np.array(description["start"]))
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(description["n"])
    if kind == "Dict":
        return gym.spaces.Dict([(key, space_from(part, depth + 1)) for key, part in description["spaces"]])
    if kind == "Tuple":
        return gym.spaces.Tuple([space_from(part, depth + 1) for part in description["spaces"]])
    if kind == "RowSpace":
        return RowSpace(space_from(description["raw"], depth + 1), bool(description["masks"]))
    if kind == "ActionRow":
        return ActionRow(space_from(description["raw"], depth + 1))
    raise LudusError(
        f"There is no space {kind!r}; Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple are known."
    )


def _box(description: dict[str, Any]) -> gym.spaces.Box:
    dtype, shape = np.dtype(description["dtype"]), tuple(description["shape"])
    low, high = (np.array([float(v) for v in description[k]]) for k in ("low", "high"))
    if low.size == high.size == 1:
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
    return gym.spaces.Box(low.reshape(shape).astype(dtype), high.reshape(shape).astype(dtype), shape, dtype.type)
