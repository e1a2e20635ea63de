"""What motors have to pull with along a clip: inverse dynamics, with forces of the floor that bear the root.

A motor holds its joint in place only if its target is ahead by torque / stiffness: on soft robots by half a rad.
A policy that is given this *lead* has to learn no more than to keep its balance.
"""

import mujoco
import numpy as np
import torch

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import rotate

_SMOOTH_S = 0.05  # velocities are smoothed over so long before accelerations are taken of them
_NEAR_M = 0.03  # a point that is lower may be pressed by the floor, the more the lower
_ROUNDS = 3  # in which points are left out that the floor would have to pull
_EASE = 1e-4  # of the forces' cost against that of a root that is not borne, which is small


def motor_lead(body: Body, qpos: np.ndarray, qvel: np.ndarray, fps: float) -> np.ndarray:
    """[frames, motors] rad by which targets are ahead of joints that move along `qpos` and `qvel`.

    A motor pulls with stiffness · (target − angle); damping, weight, inertia and the floor take it up.
    """
    velocity = _smoothed(qvel, fps)
    wanted = _torques_in_the_air(body, qpos, velocity, np.gradient(velocity, 1 / fps, axis=0))
    points, bodies, weights = _contacts(body, qpos)
    forces = _floor_forces(qpos, wanted[:, :6], points, weights)
    torques = wanted - _through_the_body(body, qpos, points, bodies, forces)
    dofs = body.model.jnt_dofadr[body.motors + 1]
    return np.clip(torques[:, dofs], -body.effort, body.effort) / body.stiffness


def _smoothed(values: np.ndarray, fps: float) -> np.ndarray:
    reach = max(1, round(3 * _SMOOTH_S * fps))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / (_SMOOTH_S * fps)) ** 2)
    padded = np.pad(values, ((reach, reach), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=0)
    return windows @ (kernel / kernel.sum())


def _torques_in_the_air(body: Body, qpos: np.ndarray, qvel: np.ndarray, qacc: np.ndarray) -> np.ndarray:
    """[frames, nv] generalised forces that lead to these accelerations where nothing touches."""
    model = body.new_model()
    off = mujoco.mjtDisableBit
    model.opt.disableflags |= int(off.mjDSBL_CONSTRAINT.value) | int(off.mjDSBL_ACTUATION.value)
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER  # others answer for accelerations of whole time steps
    data, found = mujoco.MjData(model), np.zeros((len(qpos), model.nv))
    for frame in range(len(qpos)):
        data.qpos[:], data.qvel[:], data.qacc[:] = qpos[frame], qvel[frame], qacc[frame]
        mujoco.mj_inverse(model, data)
        found[frame] = data.qfrc_inverse
    return found


def _contacts(body: Body, qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """([frames, points, 3] lowest ends of the geometry, [points] their bodies, [frames, points] weights).

    A weight is 1 on the floor and falls to 0 where the floor cannot press.
    """
    pose = torch.as_tensor(qpos)
    places, turns = body.kinematics.forward(pose[:, :3], pose[:, 3:7], pose[:, 7:])
    found, bodies = [], []
    for number in range(len(body.bodies)):
        points, radii = body.kinematics.surface_of(number)
        ends = places[:, number, None] + rotate(turns[:, number, None], points)
        ends[..., 2] -= radii
        found.append(ends)
        bodies += [number] * len(points)
    lowest = torch.cat(found, dim=1).numpy()
    return lowest, np.array(bodies), np.clip(1 - lowest[..., 2] / _NEAR_M, 0, 1)


def _floor_forces(qpos: np.ndarray, wanted: np.ndarray, points: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[frames, points, 3] N, the smallest that give the root what is wanted [frames, 6]; none pulls down."""
    effect = _effects(qpos, points)
    forces = np.zeros((*weights.shape, 3))
    for _ in range(_ROUNDS):
        spread = np.einsum("fpij,fp,fpkj->fik", effect, weights, effect)
        ease = _EASE * (1 + np.trace(spread, axis1=1, axis2=2))
        borne = np.linalg.solve(spread + ease[:, None, None] * np.eye(6), wanted[..., None])[..., 0]
        forces = weights[..., None] * np.einsum("fpij,fi->fpj", effect, borne)
        weights = np.where(forces[..., 2] < 0, 0.0, weights)
    return forces * (weights > 0)[..., None]


def _effects(qpos: np.ndarray, points: np.ndarray) -> np.ndarray:
    """[frames, points, 6, 3] how a force at each point moves the root, and turns it in its own frame."""
    quat = torch.as_tensor(qpos[:, None, 3:7])
    back = rotate(quat, torch.eye(3, dtype=torch.float64)).numpy()  # [frames, 3, 3] from the world to the root
    x, y, z = np.einsum("fij,fpj->ifp", back, points - qpos[:, None, :3])
    zero = np.zeros_like(x)
    cross = np.stack([zero, -z, y, z, zero, -x, -y, x, zero], axis=-1).reshape(*x.shape, 3, 3)
    effect = np.zeros((*x.shape, 6, 3))
    effect[:, :, :3] = np.eye(3)
    effect[:, :, 3:] = cross @ back[:, None]
    return effect


def _through_the_body(
    body: Body, qpos: np.ndarray, points: np.ndarray, bodies: np.ndarray, forces: np.ndarray
) -> np.ndarray:
    """[frames, nv] what the floor's forces do at the root and the joints."""
    data, found = mujoco.MjData(body.model), np.zeros((len(qpos), body.model.nv))
    for frame in np.flatnonzero(np.abs(forces).sum(axis=(1, 2))):
        data.qpos[:] = qpos[frame]
        mujoco.mj_kinematics(body.model, data)
        mujoco.mj_comPos(body.model, data)
        pressed = np.flatnonzero(np.abs(forces[frame]).sum(axis=1))
        for number in np.unique(bodies[pressed]):
            mine = pressed[bodies[pressed] == number]
            force, place = forces[frame, mine].sum(axis=0), points[frame, mine].mean(axis=0)
            turning = np.cross(points[frame, mine] - place, forces[frame, mine]).sum(axis=0)
            mujoco.mj_applyFT(body.model, data, force, turning, place, body.root + int(number), found[frame])
    return found
