"""From rotations to angles of hinges that turn one after the other, without jumps."""

from itertools import product

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import find_body
from ludus.envs.bodies.rotations import about_axis, rotate

_AXES = {"x": (1.0, 0.0, 0.0), "y": (0.0, 1.0, 0.0), "z": (0.0, 0.0, 1.0)}
_SMOOTHNESS = 1e3  # what a squared radian between two frames costs, against one beyond a limit
_REST = 1e-3  # what one away from 0 costs: limits that are wide leave a choice of whole turns
_TURNS = np.array(list(product((-1, 0, 1), (0,), (-1, 0, 1)))) * 2 * np.pi  # of the outer and the inner hinge


def axis(letter: str) -> Tensor:
    return torch.tensor(_AXES[letter], dtype=torch.float64)


def turn(letter: str, degrees: float) -> Tensor:
    """The rotation about an axis, as a quaternion [4]."""
    return about_axis(axis(letter), torch.tensor(np.radians(degrees), dtype=torch.float64))


def hinge_angles(quats: Tensor, joint: str, order: str) -> np.ndarray:
    """[frames, 3] angles of a joint's hinges, outer first.

    Every rotation has two solutions, and each angle may have whole turns more. Of all paths through them this is
    the smoothest, among equally smooth ones that which stays within the joint's limits, and of those the one with
    the smallest angles.
    """
    first = euler(quats, order).numpy()
    other = np.stack([first[:, 0] + np.pi, np.pi - first[:, 1], first[:, 2] + np.pi], axis=1)
    both = np.stack([first, (other + np.pi) % (2 * np.pi) - np.pi], axis=1)  # [frames, 2, 3]
    choices = (both[:, :, None] + _TURNS).reshape(len(first), -1, 3)  # [frames, 18, 3]
    return _smoothest(choices, _beyond(choices, joint, order) + _REST * (choices**2).sum(axis=-1))


def euler(quats: Tensor, order: str) -> Tensor:
    """[..., 3] angles of turns about `order`'s axes, each in the frame that those before it have turned."""
    a, b, c = (axis(letter) for letter in order)
    sign = float(torch.dot(torch.linalg.cross(a, b), c))  # +1 for xyz, −1 for yxz
    turned_b, turned_c = rotate(quats, b), rotate(quats, c)
    middle = torch.asin((sign * (turned_c @ a)).clamp(-1, 1))
    outer = torch.atan2(-sign * (turned_c @ b), turned_c @ c)
    inner = torch.atan2(-sign * (turned_b @ a), rotate(quats, a) @ a)
    return torch.stack([outer, middle, inner], dim=-1)


def _beyond(choices: np.ndarray, joint: str, order: str) -> np.ndarray:
    """[...] squared radians beyond the joint's limits."""
    body = find_body("humanoid")
    low, high = body.limits
    rows = [body.joints.index(f"{joint}_{letter}") for letter in order]
    outside = np.maximum(low[rows] - choices, 0) + np.maximum(choices - high[rows], 0)
    return (outside**2).sum(axis=-1)


def _smoothest(choices: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """The cheapest path through [frames, choices, 3], by dynamic programming."""
    total, origins = cost[0], []
    for before, now, own in zip(choices[:-1], choices[1:], cost[1:], strict=True):
        steps = ((now[:, None] - before[None]) ** 2).sum(-1) * _SMOOTHNESS + total  # [now, before]
        origins.append(steps.argmin(axis=1))
        total = steps.min(axis=1) + own
    picked = [int(total.argmin())]
    for origin in reversed(origins):
        picked.append(int(origin[picked[-1]]))
    return choices[np.arange(len(choices)), picked[::-1]]
