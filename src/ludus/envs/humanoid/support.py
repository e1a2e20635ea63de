"""What bears the weight of a body: recorded people sit on chairs and lean on walls, which clips do not have."""

import numpy as np
from torch import Tensor

from ludus.envs.humanoid.clip import Clip

_TOUCHING = 0.1  # m: what is lower may bear weight; recordings are not exact
_SMOOTHING = 0.2  # s
_DIRECTIONS = 32  # in which it is asked how far a support reaches
_LEAST_PULL = 3.0  # m/s²: what falls weighs little, and needs no support
GRAVITY = 9.81  # m/s²


def weight_beside_support(clip: Clip, positions: Tensor, rotations: Tensor, centre: np.ndarray) -> np.ndarray:
    """[frames] m from what touches the floor to where the weight would have to be borne; 0 in the air.

    That is the zero moment point of `centre` [frames, 3], the centre of mass (Vukobratović 1969), without the
    angular momentum: no swing of the limbs makes up for it for long.
    """
    angle = np.linspace(0, 2 * np.pi, _DIRECTIONS, endpoint=False)
    directions = np.stack([np.cos(angle), np.sin(angle)])
    pushed = _acceleration(centre, clip.fps)
    pull = np.maximum(GRAVITY + pushed[:, 2:], _LEAST_PULL)
    point = (centre[:, :2] - centre[:, 2:] / pull * pushed[:, :2]) @ directions
    kinematics, reach = clip.body.kinematics, []
    at_once = kinematics.poses_at_once()
    for places, turns in zip(positions.split(at_once), rotations.split(at_once), strict=True):
        ends = kinematics.lowest_ends(places, turns)[0].numpy()  # [frames, points, 3]
        touching = ends[:, :, 2] < _TOUCHING
        far = [  # one direction at a time: all together would take 32 times the memory
            np.where(touching, ends[:, :, :2] @ direction, -np.inf).max(axis=1) for direction in directions.T
        ]
        reach.append(np.stack(far, axis=1))
    beside = (point - np.concatenate(reach)).max(axis=1)
    return np.where(np.isfinite(beside), beside.clip(min=0), 0.0)


def _acceleration(places: np.ndarray, fps: float) -> np.ndarray:
    """[frames, 3] of a course that is smoothed first."""
    frames = 2 * int(fps * _SMOOTHING / 2) + 1
    for _ in range(2):
        padded = np.pad(places, ((frames // 2, frames // 2), (0, 0)), mode="edge")
        places = np.lib.stride_tricks.sliding_window_view(padded, frames, axis=0).mean(axis=-1)
    return np.gradient(np.gradient(places, axis=0), axis=0) * fps**2
