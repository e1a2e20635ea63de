"""Feet on the floor: as high over it as the source's, and those that stand do not slide."""

import numpy as np
import torch
from torch import Tensor

from ludus.bodies import Body
from ludus.bodies.rotations import rotate
from ludus.envs.humanoid.clip import Clip

_STANDS_M, _STANDS_SPEED = 0.03, 0.5  # m above the floor, m/s along it: lower and slower, a foot stands
_SHORTEST_STAND = 0.07  # s


def sole_of(body: Body, foot: int) -> tuple[Tensor, Tensor]:
    """([n, 3] points of a foot, [n] radii about them); the origin where it touches nothing."""
    points, radii = body.kinematics.surface_of(foot)
    return (points, radii) if len(points) else (torch.zeros((1, 3)).double(), torch.zeros(1).double())


def _lowest(body: Body, foot: int, place: Tensor, rotation: Tensor) -> tuple[Tensor, Tensor]:
    """([frames] height of a foot's lowest point, [frames - 1, 2] m that it goes along the floor in a frame)."""
    points, radii = sole_of(body, foot)
    world = place[:, None] + rotate(rotation[:, None], points)
    heights = world[..., 2] - radii
    low = heights.argmin(dim=1)[:-1]
    rows = torch.arange(len(low))
    return heights.amin(dim=1), (world[rows + 1, low] - world[rows, low])[:, :2]


class Steps:
    """How high a foot of the source is in every frame, and when it stands."""

    def __init__(self, clip: Clip, foot: int, positions: Tensor, rotations: Tensor) -> None:
        self.height, way = _lowest(clip.body, foot, positions[:, foot], rotations[:, foot])
        near = torch.maximum(self.height[:-1], self.height[1:]) < _STANDS_M
        slow = torch.linalg.vector_norm(way, dim=1) * clip.fps < _STANDS_SPEED
        self.stands = _runs((near & slow).numpy(), max(2, round(_SHORTEST_STAND * clip.fps)))

    def placed(self, place: Tensor, rotation: Tensor, body: Body, foot: int, scale: float) -> Tensor:
        """[frames, 3] a foot's way as near `place` as can be, when it is turned like `rotation`."""
        height, way = _lowest(body, foot, place, rotation)
        placed = place.clone()
        placed[:, 2] += (self.height * scale).clamp(min=0) - height
        placed[:, :2] += torch.as_tensor(_held(way.numpy(), self.stands, len(place)))
        return placed


def _runs(true: np.ndarray, shortest: int) -> list[tuple[int, int]]:
    """(first, one after the last) of every stretch that is long enough."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], true, [0]]).astype(int)))
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= shortest]


def _held(way: np.ndarray, stands: list[tuple[int, int]], frames: int) -> np.ndarray:
    """[frames, 2] what takes sliding out of a way: all of it where a foot stands, a smooth change between."""
    change, known = np.zeros((frames, 2)), np.zeros(frames, dtype=bool)
    for first, last in stands:
        slid = np.concatenate([np.zeros((1, 2)), way[first:last].cumsum(axis=0)])
        change[first : last + 1] = slid.mean(axis=0) - slid
        known[first : last + 1] = True
    if not known.any():
        return change
    at = np.flatnonzero(known)
    before = at[np.maximum(np.searchsorted(at, np.arange(frames), side="right") - 1, 0)]
    after = at[np.minimum(np.searchsorted(at, np.arange(frames)), len(at) - 1)]
    share = (np.arange(frames) - before) / np.maximum(after - before, 1)
    share = np.clip(share, 0, 1)
    share = (share * share * (3 - 2 * share))[:, None]
    return change[before] * (1 - share) + change[after] * share
