"""Feet on the floor: as high over it as the source's, and those that stand do not slide."""

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import rotate
from ludus.envs.humanoid.clip import Clip

_STANDS_M, _STANDS_SPEED = 0.03, 0.5  # m above the floor, m/s along it: at half of both a foot stands firmly
_LOOSE = 0.005  # a change of a foot's way counts so much where it does not stand at all
_FADE = 0.08  # s, about, in which a change fades away


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
        self._fps = clip.fps
        self._height, way = _lowest(clip.body, foot, positions[:, foot], rotations[:, foot])
        height = torch.maximum(self._height[:-1], self._height[1:])
        speed = torch.linalg.vector_norm(way, dim=1) * clip.fps
        low, slow = ((2 - 2 * a / most).clamp(0, 1) for a, most in ((height, _STANDS_M), (speed, _STANDS_SPEED)))
        self._stands = (low * slow).numpy() ** 3  # [frames - 1] 0: not at all, to 1

    def placed(self, place: Tensor, rotation: Tensor, body: Body, foot: int, scale: float) -> Tensor:
        """[frames, 3] a foot's way as near `place` as can be, when it is turned like `rotation`."""
        height, way = _lowest(body, foot, place, rotation)
        placed = place.clone()
        placed[:, 2] += (self._height * scale).clamp(min=0) - height
        placed[:, :2] += torch.as_tensor(_held(way.numpy(), self._stands, self._fps))
        return placed


def _held(way: np.ndarray, stands: np.ndarray, fps: float) -> np.ndarray:
    """[frames, 2] the change c that takes sliding out of a way where a foot stands, and is small and smooth.

    The least Σ stands · (Δc + way)² + _LOOSE · (Δc² + (c / _FADE)²): equations with three diagonals.
    """
    firm = stands + _LOOSE
    pull = _LOOSE / (_FADE * fps) ** 2
    diagonal = pull + np.append(firm, 0) + np.append(0, firm)
    right = np.zeros((len(way) + 1, 2))
    right[:-1] += stands[:, None] * way
    right[1:] -= stands[:, None] * way
    for frame in range(1, len(right)):
        share = firm[frame - 1] / diagonal[frame - 1]
        diagonal[frame] -= share * firm[frame - 1]
        right[frame] += share * right[frame - 1]
    change = right / diagonal[:, None]
    for frame in range(len(right) - 2, -1, -1):
        change[frame] += firm[frame] / diagonal[frame] * change[frame + 1]
    return change
