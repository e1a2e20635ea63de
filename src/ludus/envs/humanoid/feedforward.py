"""What motors have to pull with along a clip: inverse dynamics, with forces of the floor that bear the root.

A motor holds its joint in place only if its target is ahead by torque / stiffness: on soft robots by half a rad.
A policy that is given this *lead* has to learn no more than to keep its balance.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import conjugate, multiply, rotate, rotate_back

_SMOOTH_S = 0.05  # velocities are smoothed over so long before accelerations are taken of them
_NEAR_M = 0.03  # a point that is lower may be pressed by the floor, the more the lower
_ROUNDS = 3  # in which points are left out that the floor would have to pull
_EASE = 1e-4  # of the forces' cost against that of a root that is not borne, which is small


class Stretch(NamedTuple):
    """Frames of one clip: what is before and after them is another's."""

    frames: int
    fps: float


class Wrenches(NamedTuple):
    """On every body: forces, and what they turn about the world's origin."""

    force: Tensor  # [frames, bodies, 3]
    moment: Tensor  # [frames, bodies, 3]


class Whole(NamedTuple):
    """A body as one piece, along its frames."""

    centre: Tensor  # [frames, 3] of mass
    velocity: Tensor  # [frames, 3] of it
    spin: Tensor  # [frames, 3] angular momentum about it
    inertia: Tensor  # [frames, 3, 3] about it


class _Parts(NamedTuple):
    """The bodies of one body, along its frames."""

    mass: Tensor  # [bodies]
    centres: Tensor  # [frames, bodies, 3] of mass
    velocity: Tensor  # [frames, bodies, 3] of them
    spin: Tensor  # [frames, bodies, 3] angular momentum about them
    axes: Tensor  # [frames, bodies, 4] of inertia
    spread: Tensor  # [bodies, 3] inertia about these axes


class Moving:
    """A body along its poses. `qpos` [frames, 7 + joints] and `qvel` are float64, as MuJoCo orders them."""

    def __init__(self, body: Body, qpos: Tensor, qvel: Tensor, places: tuple[Tensor, Tensor]) -> None:
        """`places`: positions and rotations of all bodies, by `body.kinematics.forward`."""
        self.body, self.qpos, self.qvel = body, qpos, qvel
        self.positions, self.rotations = places
        self._points, self._axes = body.kinematics.axes(*places, qpos[:, 7:])
        self._moves = body.kinematics.moves().double()  # [bodies, joints]
        self._slides = body.kinematics.slides()[:, None]

    def inertia(self, stretches: Sequence[Stretch]) -> Wrenches:
        """What moves the bodies as they move, against their weight."""
        parts, gravity = self._parts(), torch.as_tensor(self.body.model.opt.gravity.copy())
        force = parts.mass[:, None] * (_rate(parts.velocity, stretches) - gravity)
        return Wrenches(force, torch.linalg.cross(parts.centres, force) + _rate(parts.spin, stretches))

    def whole(self) -> Whole:
        """All bodies together."""
        parts = self._parts()
        share = (parts.mass / parts.mass.sum())[:, None]
        centre, velocity = (share * parts.centres).sum(dim=1), (share * parts.velocity).sum(dim=1)
        arms, momentum = (
            parts.centres - centre[:, None],
            parts.mass[:, None] * (parts.velocity - velocity[:, None]),
        )
        spin = (parts.spin + torch.linalg.cross(arms, momentum)).sum(dim=1)
        one = torch.eye(3, dtype=torch.float64)
        turned = rotate(parts.axes[:, :, None], one)  # [frames, bodies, axis, 3]
        own = torch.einsum("fbai,ba,fbaj->fij", turned, parts.spread, turned)
        far = arms.square().sum(dim=-1)[..., None, None] * one - arms[..., :, None] * arms[..., None, :]
        return Whole(centre, velocity, spin, own + (parts.mass[:, None, None] * far).sum(dim=1))

    def _parts(self) -> _Parts:
        model, own = self.body.model, slice(self.body.root, self.body.root + len(self.body.bodies))
        inside, frame, mass, spread = (
            torch.as_tensor(values[own].copy())
            for values in (model.body_ipos, model.body_iquat, model.body_mass, model.body_inertia)
        )
        centres = self.positions + rotate(self.rotations, inside)
        turning, velocity = self._velocities(centres)
        axes = multiply(self.rotations, frame.expand_as(self.rotations))
        spin = rotate(axes, spread * rotate(conjugate(axes), turning))
        return _Parts(mass, centres, velocity, spin, axes, spread)

    def _velocities(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """([frames, bodies, 3] rad/s, m/s of points [frames, bodies, 3] of the bodies) in the world."""
        speed = self.qvel[:, 6:, None]
        turns = torch.where(self._slides, 0.0, self._axes) * speed
        shifts = torch.where(self._slides, self._axes, torch.linalg.cross(self._points, self._axes)) * speed
        root = rotate(self.qpos[:, 3:7], self.qvel[:, 3:6])[:, None]
        turning = root + self._moves @ turns
        from_root = torch.linalg.cross(root.expand_as(points), points - self.qpos[:, None, :3])
        by_joints = torch.linalg.cross(self._moves @ turns, points) + self._moves @ shifts
        return turning, self.qvel[:, None, :3] + from_root + by_joints

    def generalised(self, wrenches: Wrenches) -> tuple[Tensor, Tensor]:
        """([frames, 6] at the root, [frames, joints]) what wrenches on the bodies come to."""
        force, moment = wrenches.force.sum(dim=1), wrenches.moment.sum(dim=1)
        about_root = moment - torch.linalg.cross(self.qpos[:, :3], force)
        root = torch.cat([force, rotate_back(self.qpos[:, 3:7], about_root)], dim=1)
        force, moment = (self._moves.T @ part for part in wrenches)
        turned = moment - torch.linalg.cross(self._points, force)
        return root, (self._axes * torch.where(self._slides, force, turned)).sum(dim=-1)


def motor_lead(
    body: Body, qpos: Tensor, qvel: Tensor, places: tuple[Tensor, Tensor], stretches: Sequence[Stretch]
) -> Tensor:
    """[frames, motors] rad by which targets are ahead of joints that move along `qpos` and `qvel`.

    A motor pulls with stiffness · (target − angle); damping, weight, inertia and the floor take it up.
    """
    smooth = _smoothed(qvel, stretches)
    moving = Moving(body, qpos, smooth, places)
    root, joints = moving.generalised(moving.inertia(stretches))
    joints = joints - moving.generalised(_borne(body, qpos, root, places))[1]
    joints = joints + _of_joints(body, qpos, smooth, _rate(smooth, stretches))
    effort, stiffness = (torch.as_tensor(values) for values in (body.effort, body.stiffness))
    damping = torch.as_tensor(-body.model.actuator_biasprm[:, 2])  # which stands in the motor, if any does
    force = joints[:, body.motors].clamp(-effort, effort)  # a motor's limit is of both of its parts together
    return (force + damping * smooth[:, 6:][:, body.motors]) / stiffness


def _of_joints(body: Body, qpos: Tensor, qvel: Tensor, qacc: Tensor) -> Tensor:
    """[frames, joints] what rotors, damping and springs of the joints take up."""
    model = body.model
    armature, damping = (torch.as_tensor(values[6:].copy()) for values in (model.dof_armature, model.dof_damping))
    spring, rest = (torch.as_tensor(v.copy()) for v in (model.jnt_stiffness[1:], model.qpos_spring[7:]))
    return armature * qacc[:, 6:] + damping * qvel[:, 6:] + spring * (qpos[:, 7:] - rest)


def _smoothed(values: Tensor, stretches: Sequence[Stretch]) -> Tensor:
    parts = []
    for part, (_, fps) in zip(values.split([s.frames for s in stretches]), stretches, strict=True):
        reach = max(1, round(3 * _SMOOTH_S * fps))
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / (_SMOOTH_S * fps)) ** 2)
        padded = np.pad(part.numpy(), ((reach, reach), (0, 0)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1, axis=0)
        parts.append(torch.as_tensor(windows @ (kernel / kernel.sum())))
    return torch.cat(parts)


def _rate(values: Tensor, stretches: Sequence[Stretch]) -> Tensor:
    """Per second, from the frame before to the one after."""
    parts = zip(values.split([s.frames for s in stretches]), stretches, strict=True)
    return torch.cat([torch.gradient(part, spacing=1 / fps, dim=0)[0] for part, (_, fps) in parts])


# The floor ------------------------------------------------------------------------------------------
def _borne(body: Body, qpos: Tensor, root: Tensor, places: tuple[Tensor, Tensor]) -> Wrenches:
    """What the floor does to the bodies where it gives the root what is wanted, [frames, 6]."""
    parts = []
    for some in torch.arange(len(qpos)).split(body.kinematics.poses_at_once()):
        points, bodies, weights = _contacts(body, (places[0][some], places[1][some]))
        forces = _floor_forces(qpos[some], root[some], points, weights)
        parts.append(_pressed(points, bodies, forces, len(body.bodies)))
    return Wrenches(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _contacts(body: Body, places: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """([frames, points, 3] lowest ends of the geometry, [points] their bodies, [frames, points] weights).

    A weight is 1 on the floor and falls to 0 where the floor cannot press.
    """
    points, bodies = body.kinematics.lowest_ends(*places)
    return points, bodies, (1 - points[..., 2] / _NEAR_M).clamp(0, 1)


def _floor_forces(qpos: Tensor, wanted: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """[frames, points, 3] N, the smallest that give the root what is wanted [frames, 6]; none pulls down."""
    effect = _effects(qpos, points)
    one, forces = torch.eye(6, dtype=torch.float64), torch.zeros_like(points)
    for _ in range(_ROUNDS):
        spread = torch.einsum("fpij,fp,fpkj->fik", effect, weights, effect)
        ease = _EASE * (1 + spread.diagonal(dim1=1, dim2=2).sum(dim=1))
        borne = torch.linalg.solve(spread + ease[:, None, None] * one, wanted)
        forces = weights[..., None] * torch.einsum("fpij,fi->fpj", effect, borne)
        weights = torch.where(forces[..., 2] < 0, 0.0, weights)
    return forces * (weights > 0)[..., None]


def _effects(qpos: Tensor, points: Tensor) -> Tensor:
    """[frames, points, 6, 3] how a force at each point moves the root, and turns it in its own frame."""
    one = torch.eye(3, dtype=torch.float64)
    back = rotate(qpos[:, None, 3:7], one)  # [frames, 3, 3] from the world to the root
    arms = (points - qpos[:, None, :3]) @ back.transpose(1, 2)
    cross = torch.linalg.cross(arms[..., None, :].expand(*arms.shape, 3), one.expand(*arms.shape, 3)).mT
    return torch.cat([one.expand(*arms.shape, 3), cross @ back[:, None]], dim=2)


def _pressed(points: Tensor, bodies: Tensor, forces: Tensor, count: int) -> Wrenches:
    """Forces at points, [points] of these bodies, as wrenches of all bodies."""
    nothing = forces.new_zeros((len(forces), count, 3))
    moments = torch.linalg.cross(points, forces)
    return Wrenches(*(nothing.index_add(1, bodies, part) for part in (forces, moments)))
