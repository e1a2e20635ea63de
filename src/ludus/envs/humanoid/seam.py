"""The seam of a loop: its last pose is the first of the next cycle, moved and turned on the floor."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies.rotations import conjugate, from_rotation_vector, multiply, rotation_vector
from ludus.envs.humanoid.clip import Clip

CLOSE_RAD = 1.0  # a larger jump of a joint at the seam is left as it is, and reported
CLOSE_M = 0.05
TWIST_RAD = np.radians(45)  # a cycle that turns by less goes straight on, unless
MEETS_RAD = 1e-3  # its ends then meet as exactly as this


def seam_turn(clip: Clip) -> Tensor:
    """[4] the turn about the vertical that leads from the first pose to the last one.

    Of all such turns the nearest: unlike the heading of the pelvis it is defined in every pose, crawling too. A
    small one after which the poses do not meet is a twist of the pelvis, which the chest takes back, and no turn
    of the way: to turn the way by it would swing the feet aside at every seam.
    """
    first, last = torch.as_tensor(clip.root_quat[[0, -1]])
    whole = multiply(last, conjugate(first))
    upright = whole * torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=whole.dtype)
    length = float(torch.linalg.vector_norm(upright))
    straight = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=whole.dtype)
    if length < 1e-6:
        return straight
    turn = upright / length
    angle = 2 * np.arctan2(abs(float(turn[3])), abs(float(turn[0])))
    meets = max(np.abs(_joint_gap(clip)).max(), np.abs(_tilt(clip, turn)).max()) < MEETS_RAD
    return turn if angle > (MEETS_RAD if meets else TWIST_RAD) else straight


def cycle_later(clip: Clip, cycles: int) -> tuple[Tensor, Tensor]:
    """([4] turn, [3] shift) over the floor of a cycle so many after the first: p → rotate(turn, p) + shift.

    Each begins where the one before ended: on the floor, not in height, which must not drift.
    """
    turn = seam_turn(clip)
    angle = 2 * np.arctan2(float(turn[3]), float(turn[0]))
    start, end = clip.root_pos[[0, -1], 0] + 1j * clip.root_pos[[0, -1], 1]
    step = end - np.exp(1j * angle) * start  # a cycle takes a place z of the floor to e^(i angle) · z + step
    shift = step * np.exp(1j * angle * np.arange(cycles)).sum()
    half = cycles * angle / 2
    return (
        torch.tensor([np.cos(half), 0.0, 0.0, np.sin(half)], dtype=turn.dtype),
        torch.tensor([shift.real, shift.imag, 0.0], dtype=turn.dtype),
    )


def seam_jumps(clip: Clip) -> tuple[np.ndarray, np.ndarray, float]:
    """What the last pose lacks to be the first: ([28] rad a joint, [3] rad of the root's tilt, m of height)."""
    return _joint_gap(clip), _tilt(clip, seam_turn(clip)), float(clip.root_pos[0, 2] - clip.root_pos[-1, 2])


def _joint_gap(clip: Clip) -> np.ndarray:
    """[28] rad, the short way round."""
    return (clip.joint_pos[0] - clip.joint_pos[-1] + np.pi) % (2 * np.pi) - np.pi


def _tilt(clip: Clip, turn: Tensor) -> np.ndarray:
    """[3] rad from the root's last rotation to its first one, turned by `turn`."""
    first, last = torch.as_tensor(clip.root_quat[[0, -1]])
    return rotation_vector(multiply(conjugate(last), multiply(turn, first))).numpy()


def seam_turns(clip: Clip) -> np.ndarray:
    """[28] whole turns that hinges gain in a cycle: a body of hinges cannot go on turning."""
    return np.rint((clip.joint_pos[-1] - clip.joint_pos[0]) / (2 * np.pi)).astype(int)


def close_seam(clip: Clip) -> Clip:
    """Bends a looping clip until its ends meet, where they are near each other already.

    Sources are rarely exact here: mocap is never quite periodic. The gap is shared out evenly over the whole
    cycle: closed within a quarter of a second, that of DeepMimic's walk would drag a standing foot 4 cm to the
    side, which no body that walks can follow. A wide gap stays, since bending over it would invent motion.
    """
    if not clip.loop:
        return clip
    if seam_turns(clip).any():  # a cycle that begins anew would turn an arm back by a whole turn at once
        return replace(clip, loop=False)
    joints, tilt, height = seam_jumps(clip)
    if max(np.abs(joints).max(), np.abs(tilt).max()) > CLOSE_RAD or abs(height) > CLOSE_M:
        return clip
    share = np.linspace(-0.5, 0.5, clip.frames)
    root_pos = clip.root_pos.copy()
    root_pos[:, 2] += share * height
    bend = from_rotation_vector(torch.as_tensor(share[:, None] * tilt))
    root_quat = multiply(torch.as_tensor(clip.root_quat), bend).numpy()
    return replace(
        clip, root_pos=root_pos, root_quat=root_quat, joint_pos=clip.joint_pos + share[:, None] * joints
    )
