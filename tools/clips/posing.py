"""Poses of the humanoid from what an author thinks in: pelvis, feet on the floor, angles of the upper body."""

from dataclasses import dataclass

import numpy as np

from ludus.envs.bodies import find_body
from ludus.envs.humanoid.importing.skeleton import JOINTS

SIDES = ("right", "left")
ANKLE_HEIGHT = 0.05  # m, of the ankle over a flat sole
TOE, HEEL = 0.1335, 0.0435  # m, from the ankle forward and backward to the sole's edges
_SHORTEST_BEND = 0.02  # rad that a knee stays bent where the foot is out of reach

Angles = dict[str, np.ndarray]  # of hinges named as in body.JOINTS, [frames] rad each


@dataclass
class Foot:
    """Where a foot is: its ankle, and how it is turned."""

    ankle: np.ndarray  # [frames, 3] m
    turn: np.ndarray  # [frames, 3] rad: yaw, then pitch (toes down +), then roll


@dataclass
class Poses:
    pelvis: np.ndarray  # [frames, 3] m
    turn: np.ndarray  # [frames, 3] rad: yaw, then pitch (forward +), then roll (left side up +)
    feet: dict[str, Foot]  # by side
    upper: Angles


def qpos_of(poses: Poses) -> np.ndarray:
    """[frames, 35] positions of the model: the legs reach for the feet, all else is taken as it is said."""
    angles = dict(poses.upper)
    for side in SIDES:
        angles |= _leg_angles(poses, side)
    none = np.zeros(len(poses.pelvis))
    joints = np.stack([angles.get(name, none) for name in JOINTS], axis=1)
    return np.concatenate([poses.pelvis, _quaternion(poses.turn), joints], axis=1)


def arm(side: str, out: np.ndarray, forward: np.ndarray, twist: np.ndarray, elbow: np.ndarray) -> Angles:
    """Angles of an arm that hangs at zero: lifted sideways, swung forward, twisted, and bent at the elbow.

    The humanoid's own zero is a T-pose; for a hanging arm its last shoulder hinge swings forward. A mirrored
    rotation keeps its sign about the axis across the mirror and changes it about the others.
    """
    sign = 1.0 if side == "right" else -1.0
    return {
        f"{side}_shoulder_x": sign * (np.pi / 2 - out),
        f"{side}_shoulder_y": twist,
        f"{side}_shoulder_z": sign * forward,
        f"{side}_elbow": sign * elbow,
    }


def _leg_angles(poses: Poses, side: str) -> Angles:
    """Two-link inverse kinematics in closed form; the knee points where the toes do."""
    thigh, shin = _bone(f"{side}_shin"), _bone(f"{side}_foot")
    pelvis, foot = _matrix(poses.turn), poses.feet[side]
    hip = poses.pelvis + pelvis @ np.array(find_body("humanoid").model.body(f"{side}_thigh").pos)
    reach = foot.ankle - hip
    distance = np.linalg.norm(reach, axis=1)
    bent = (distance**2 - thigh**2 - shin**2) / (2 * thigh * shin)  # the cosine of the knee's angle
    knee = np.arccos(np.clip(bent, -1.0, np.cos(_SHORTEST_BEND)))
    none = np.zeros_like(knee)
    leg = np.stack([-shin * np.sin(knee), none, -thigh - shin * np.cos(knee)], axis=1)  # as the thigh sees it
    sideways = np.stack([-np.sin(foot.turn[:, 0]), np.cos(foot.turn[:, 0]), none], axis=1)
    thigh_turn = _frame(reach, sideways) @ _frame(leg, np.array([0.0, 1.0, 0.0])).swapaxes(1, 2)
    shin_turn = thigh_turn @ _about("y", knee)
    hip_angles = _angles_yxz(pelvis.swapaxes(1, 2) @ thigh_turn)
    ankle_angles = _angles_yxz(shin_turn.swapaxes(1, 2) @ _matrix(foot.turn))
    angles = {f"{side}_knee": knee}
    for axis, at_hip, at_ankle in zip("yxz", hip_angles, ankle_angles, strict=True):
        angles |= {f"{side}_hip_{axis}": at_hip, f"{side}_ankle_{axis}": at_ankle}
    return angles


def _bone(body: str) -> float:
    """The length of the bone that ends where `body` begins."""
    return float(np.linalg.norm(find_body("humanoid").model.body(body).pos))


def _frame(along: np.ndarray, sideways: np.ndarray) -> np.ndarray:
    """[frames, 3, 3] axes: the first along a vector, the second as near to another as can be."""
    first = along / np.linalg.norm(along, axis=1, keepdims=True)
    second = sideways - (first * sideways).sum(axis=1, keepdims=True) * first
    second = second / np.linalg.norm(second, axis=1, keepdims=True)
    return np.stack([first, second, np.cross(first, second)], axis=2)


def _about(axis: str, angle: np.ndarray) -> np.ndarray:
    """[frames, 3, 3] rotations about one axis."""
    i = "xyz".index(axis)
    j, k = (i + 1) % 3, (i + 2) % 3
    turned = np.zeros((len(angle), 3, 3))
    turned[:, i, i] = 1.0
    turned[:, j, j] = turned[:, k, k] = np.cos(angle)
    turned[:, k, j] = np.sin(angle)
    turned[:, j, k] = -np.sin(angle)
    return turned


def _matrix(turn: np.ndarray) -> np.ndarray:
    yaw, pitch, roll = turn.T
    return _about("z", yaw) @ _about("y", pitch) @ _about("x", roll)


def _quaternion(turn: np.ndarray) -> np.ndarray:
    (cz, cy, cx), (sz, sy, sx) = np.cos(turn.T / 2), np.sin(turn.T / 2)
    return np.stack(
        [
            cz * cy * cx + sz * sy * sx,
            cz * cy * sx - sz * sy * cx,
            cz * sy * cx + sz * cy * sx,
            sz * cy * cx - cz * sy * sx,
        ],
        axis=1,
    )


def _angles_yxz(turned: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The angles of three hinges, outermost first, that make these rotations."""
    y = np.arctan2(turned[:, 0, 2], turned[:, 2, 2])
    x = -np.arcsin(np.clip(turned[:, 1, 2], -1.0, 1.0))
    z = np.arctan2(turned[:, 1, 0], turned[:, 1, 1])
    return np.unwrap(y), x, np.unwrap(z)
