"""Could a body without strings move like this? The floor's push that a motion needs, and where it must press.

A motion is possible only where the floor's push can come from the soles: the point it acts at, the zero-moment
point (ZMP), has to lie inside the area that the soles span. `pressed_points` and `support_margin` tell; `balanced`
moves a pelvis until it does.
"""

from dataclasses import dataclass, replace
from functools import cache

import mujoco
import numpy as np
import torch

from ludus.envs.bodies import find_body
from ludus.envs.bodies.rotations import rotate
from ludus.envs.humanoid.clip import Clip
from posing import HEEL, TOE, Poses, qpos_of

GRAVITY = 9.81
_SOLE = np.array([[x, y, -0.05] for x in (-HEEL, TOE) for y in (-0.045, 0.045)])  # corners in the foot's frame
_TOUCHES = 0.005  # m over the floor at which a corner of a sole still counts as touching
_STILL = 1e-5  # m: moving the pelvis by less is not worth another round
_FLYING = 0.1  # of its weight: with less push than this a body flies, and presses nowhere


@dataclass(frozen=True)
class Push:
    """What the floor does to the body in each frame."""

    force: np.ndarray  # [frames, 3] N
    moment: np.ndarray  # [frames, 3] N m, about the world's origin
    torque: np.ndarray  # [frames, 28] N m that the joints would need if the floor pushed at the pelvis

    @property
    def point(self) -> np.ndarray:
        """[frames, 2] the zero-moment point; not a number in flight."""
        up = self.force[:, 2:]
        at = np.stack([-self.moment[:, 1], self.moment[:, 0]], axis=1)
        weight = GRAVITY * float(_model().body_mass.sum())
        return np.where(up > _FLYING * weight, at / np.where(up == 0, 1.0, up), np.nan)


def floor_push(qpos: np.ndarray, fps: float, loop: bool) -> Push:
    """Inverse dynamics by differences of the frames: the wrench that the root lacks is the floor's."""
    model, data = _model(), mujoco.MjData(_model())
    before, after = _neighbours(qpos, loop)
    frames = np.concatenate([before[None], qpos, after[None]])
    half = np.stack([_velocity(frames[i], frames[i + 1], fps) for i in range(len(frames) - 1)])
    force, moment, torque = np.zeros((len(qpos), 3)), np.zeros((len(qpos), 3)), np.zeros((len(qpos), model.nu))
    for i in range(len(qpos)):
        data.qpos[:] = qpos[i]
        data.qvel[:] = (half[i] + half[i + 1]) / 2
        data.qacc[:] = (half[i + 1] - half[i]) * fps
        mujoco.mj_inverse(model, data)
        force[i] = data.qfrc_inverse[:3]
        turned = data.xmat[1].reshape(3, 3) @ data.qfrc_inverse[3:6]  # the root's torques are in its own frame
        moment[i] = turned + np.cross(qpos[i, :3], force[i])
        torque[i] = data.qfrc_inverse[6:]
    return Push(force, moment, torque)


def pressed_points(clip: Clip) -> np.ndarray:
    """[frames, 2] where the floor has to push for the clip to happen; not a number in flight."""
    return floor_push(clip.qpos, clip.fps, clip.loop).point


def sole_corners(qpos: np.ndarray) -> np.ndarray:
    """[frames, 8, 3] corners of the right sole, then of the left."""
    pose = torch.as_tensor(qpos)
    places, turns = find_body("humanoid").kinematics.forward(pose[:, :3], pose[:, 3:7], pose[:, 7:])
    corners = [places[:, foot, None] + rotate(turns[:, foot, None], torch.as_tensor(_SOLE)) for foot in (11, 14)]
    return torch.cat(corners, dim=1).numpy()


def support_margin(clip: Clip) -> np.ndarray:
    """[frames] m that the zero-moment point lies inside (+) or outside (−) what the soles span; nan in flight."""
    corners = sole_corners(clip.qpos)
    points = pressed_points(clip)
    return np.array([_margin(p, c[c[:, 2] < _TOUCHES, :2]) for p, c in zip(points, corners, strict=True)])


def _margin(point: np.ndarray, corners: np.ndarray) -> float:
    """How far inside the hull of some corners a point is. The corners are few: no hull has to be found first."""
    if np.isnan(point).any():
        return float("nan")
    if len(corners) < 2:
        return -float("inf")
    pairs = [(a, b) for i, a in enumerate(corners) for b in corners[i + 1 :]]
    inside = min(_inside_edge(point, a, b, corners) for a, b in pairs)
    return inside if inside >= 0 else -min(_distance_to_segment(point, a, b) for a, b in pairs)


def _inside_edge(point: np.ndarray, a: np.ndarray, b: np.ndarray, corners: np.ndarray) -> float:
    """How far a point lies inwards of an edge of the hull; infinite where the line is no edge of it."""
    along = b - a
    normal = np.array([-along[1], along[0]]) / max(float(np.linalg.norm(along)), 1e-9)
    sides, at = (corners - a) @ normal, float((point - a) @ normal)
    left, right = bool((sides > -1e-6).all()), bool((sides < 1e-6).all())
    if left and right:  # all corners on one line: only points of it are inside
        return -abs(at)
    return at if left else -at if right else float("inf")


def _distance_to_segment(point: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    share = np.clip((point - a) @ (b - a) / max(float((b - a) @ (b - a)), 1e-12), 0.0, 1.0)
    return float(np.linalg.norm(point - a - share * (b - a)))


def balanced(
    poses: Poses, pressed: np.ndarray, fps: float, rise: np.ndarray | None = None, rounds: int = 20
) -> Poses:
    """The same motion with the pelvis moved so that the floor is pressed where it should be.

    `poses` go once around (the last frame is the first of the next round, up to a straight way walked);
    `pressed` [frames, 2] is the wished zero-moment point, `rise` [frames] how the centre of mass should go up and
    down; without it the pelvis stays as high as it is. An inverted pendulum answers how far to move the pelvis
    for what is still wrong; since the legs are heavy too, it is asked again.
    """
    count = len(poses.pelvis) - 1
    curvature = fps**2 * (
        np.roll(np.eye(count), 1, axis=1) - 2 * np.eye(count) + np.roll(np.eye(count), -1, axis=1)
    )
    mass = float(_model().body_mass.sum())
    for _ in range(rounds):
        qpos = qpos_of(poses)
        centre = _centre_of_mass(qpos)
        push = floor_push(qpos, fps, loop=True)
        up = push.force[:count, 2]
        wrong = push.force[:, 2:] * pressed - np.stack([-push.moment[:, 1], push.moment[:, 0]], axis=1)
        pendulum = np.diag(up) - mass * centre[:count, 2:] * curvature
        shift = np.zeros((count, 3))
        shift[:, :2] = np.linalg.solve(pendulum, wrong[:count])
        if rise is not None:
            missing = (rise - centre[:, 2])[:count]
            shift[:, 2] = missing - missing.mean()
        poses = replace(poses, pelvis=poses.pelvis + np.concatenate([shift, shift[:1]]))
        if np.abs(shift).max() < _STILL:
            break
    return poses


def _centre_of_mass(qpos: np.ndarray) -> np.ndarray:
    """[frames, 3]"""
    model, pose = _model(), torch.as_tensor(qpos)
    places, turns = find_body("humanoid").kinematics.forward(pose[:, :3], pose[:, 3:7], pose[:, 7:])
    centres = (places + rotate(turns, torch.as_tensor(model.body_ipos[1:].copy()))).numpy()
    centre: np.ndarray = np.average(centres, axis=1, weights=model.body_mass[1:])
    return centre


def _velocity(a: np.ndarray, b: np.ndarray, fps: float) -> np.ndarray:
    velocity = np.zeros(_model().nv)
    mujoco.mj_differentiatePos(_model(), velocity, 1 / fps, a, b)
    return velocity


def _neighbours(qpos: np.ndarray, loop: bool) -> tuple[np.ndarray, np.ndarray]:
    """The frames before the first and after the last; a clip that does not loop rests at its ends."""
    if not loop:
        return qpos[0], qpos[-1]
    first, last = qpos[0], qpos[-1]
    return _moved(qpos[-2], last, first), _moved(qpos[1], first, last)


def _moved(frame: np.ndarray, start: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """The frame moved over the floor as `start` has to be to become `goal`."""
    angle = _yaw(goal) - _yaw(start)
    cos, sin = np.cos(angle), np.sin(angle)
    moved = frame.copy()
    moved[:2] = goal[:2] + np.array([[cos, -sin], [sin, cos]]) @ (frame[:2] - start[:2])
    mujoco.mju_mulQuat(moved[3:7], np.array([np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)]), frame[3:7])
    return moved


def _yaw(frame: np.ndarray) -> float:
    w, x, y, z = frame[3:7]
    return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))


@cache
def _model() -> mujoco.MjModel:
    """The body without contacts, limits or damping: a motion's needs are then the floor's and the motors'."""
    model = find_body("humanoid").new_model()
    model.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
    model.dof_damping[:] = 0.0
    return model
