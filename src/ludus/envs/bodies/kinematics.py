"""Where a robot's bodies are, from the joints' angles: MuJoCo's kinematics for any batch on any device."""

import math
from typing import NamedTuple

import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies.rotations import about_axis, conjugate, multiply, rotate

_DIRECTIONS = 256  # in which the outermost points of round or rough shapes are taken
_CORNERS_AT_ONCE = 1 << 20  # of the geometry, over all poses: robots of meshes have thousands


class _Joint(NamedTuple):
    number: int  # among the angles
    slide: bool
    off_centre: bool  # whether it turns about another point than the body's origin
    shifted: bool  # whether its angle is not 0 in the model's own pose


class _Link(NamedTuple):
    parent: int
    turned: bool  # whether it is mounted aslant
    joints: tuple[_Joint, ...]


class _Numbers(NamedTuple):
    """Of the model, on one device."""

    offsets: Tensor  # [bodies, 3]
    mounts: Tensor  # [bodies, 4]
    axes: Tensor  # [joints, 3]
    anchors: Tensor  # [joints, 3]
    zeros: Tensor  # [joints]


class _Surface(NamedTuple):
    """Points whose spheres' lowest ends are the geometry's."""

    bodies: Tensor  # [points]
    points: Tensor  # [points, 3] in the body's frame
    radii: Tensor  # [points]


class Kinematics:
    """Of the `count` bodies from `root` on: a body that floats, and those that hang on it by hinges and slides."""

    def __init__(self, model: mujoco.MjModel, root: int, count: int) -> None:
        self._model, self._root, self._count = model, root, count
        self._links = [self._link(body) for body in range(root + 1, root + count)]
        self._any_shifted = any(joint.shifted for link in self._links for joint in link.joints)
        self._numbers: dict[tuple[torch.device, torch.dtype], _Numbers] = {}
        self._surfaces: dict[tuple[torch.device, torch.dtype], _Surface] = {}

    def forward(self, root_pos: Tensor, root_quat: Tensor, joint_pos: Tensor) -> tuple[Tensor, Tensor]:
        """([..., bodies, 3] positions, [..., bodies, 4] rotations) in the world.

        `root_pos` is [..., 3], `root_quat` [..., 4], `joint_pos` [..., joints].
        """
        numbers = self._on(joint_pos)
        turns = about_axis(numbers.axes, joint_pos - numbers.zeros if self._any_shifted else joint_pos)
        positions, rotations = [root_pos], [root_quat]
        for body, link in enumerate(self._links, 1):
            rotation = rotations[link.parent]
            position = positions[link.parent] + rotate(rotation, numbers.offsets[body])
            if link.turned:
                rotation = multiply(rotation, numbers.mounts[body].expand_as(rotation))
            for joint in link.joints:
                position, rotation = self._moved(joint, position, rotation, turns, joint_pos, numbers)
            positions.append(position)
            rotations.append(rotation)
        return torch.stack(positions, dim=-2), torch.stack(rotations, dim=-2)

    def _moved(
        self, joint: _Joint, position: Tensor, rotation: Tensor, turns: Tensor, angles: Tensor, numbers: _Numbers
    ) -> tuple[Tensor, Tensor]:
        """A body's place and rotation after one of its joints has moved it."""
        if joint.slide:
            way = (angles[..., joint.number] - numbers.zeros[joint.number])[..., None]
            return position + rotate(rotation, numbers.axes[joint.number]) * way, rotation
        turned = multiply(rotation, turns[..., joint.number, :])
        if joint.off_centre:
            anchor = numbers.anchors[joint.number]
            position = position + rotate(rotation, anchor) - rotate(turned, anchor)
        return position, turned

    def axes(self, positions: Tensor, rotations: Tensor, joint_pos: Tensor) -> tuple[Tensor, Tensor]:
        """([..., joints, 3] a point on every joint's axis, [..., joints, 3] where the axis points) in the world.

        From where the bodies are, back through their joints: the last of a body turns it with all others before.
        """
        numbers = self._on(joint_pos)
        ways = joint_pos - numbers.zeros
        points = torch.zeros_like(joint_pos)[..., None].expand(*joint_pos.shape, 3).clone()
        axes = points.clone()
        for bodies, joints, slides in self._from_the_last():
            position, rotation, anchor = (
                positions[..., bodies, :],
                rotations[..., bodies, :],
                numbers.anchors[joints],
            )
            axis = rotate(rotation, numbers.axes[joints])
            point = position + rotate(rotation, anchor)
            axes[..., joints, :], points[..., joints, :] = axis, point
            way, slide = ways[..., joints], slides[:, None].to(axis.device)
            before = multiply(rotation, conjugate(about_axis(numbers.axes[joints], way)))
            slid = position - axis * way[..., None]
            position = torch.where(slide, slid, point - rotate(before, anchor))
            positions, rotations = positions.clone(), rotations.clone()
            positions[..., bodies, :], rotations[..., bodies, :] = position, torch.where(slide, rotation, before)
        return points, axes

    def _from_the_last(self) -> list[tuple[list[int], list[int], Tensor]]:
        """(bodies, a joint of each, whether it is a slide): the last joints of all bodies, then those before, …"""
        chains = [(body, link.joints[::-1]) for body, link in enumerate(self._links, 1)]
        rows = []
        for place in range(max(len(joints) for _, joints in chains)):
            there = [(body, joints[place]) for body, joints in chains if len(joints) > place]
            slides = torch.tensor([joint.slide for _, joint in there])
            rows.append(([body for body, _ in there], [joint.number for _, joint in there], slides))
        return rows

    def moves(self) -> Tensor:
        """[bodies, joints] whether a joint moves a body."""
        moved = torch.zeros((self._count, self._model.njnt - 1), dtype=torch.bool)
        for body, link in enumerate(self._links, 1):
            moved[body] = moved[link.parent]
            moved[body, [joint.number for joint in link.joints]] = True
        return moved

    def slides(self) -> Tensor:
        """[joints] whether a joint is a slide."""
        found = torch.zeros(self._model.njnt - 1, dtype=torch.bool)
        for link in self._links:
            for joint in link.joints:
                found[joint.number] = joint.slide
        return found

    def lowest_points(self, positions: Tensor, rotations: Tensor) -> Tensor:
        """[..., bodies] height of the lowest point of every body's geometry that touches; the floor is at 0.

        Infinite for a body that touches nothing.
        """
        poses, rows = positions.shape[:-2], self.poses_at_once()
        listed = (places.reshape(math.prod(poses), *places.shape[-2:]) for places in (positions, rotations))
        parts = zip(*(places.split(rows) for places in listed), strict=True)
        return torch.cat([self._lowest_points(*part) for part in parts]).reshape(positions.shape[:-1])

    def _lowest_points(self, positions: Tensor, rotations: Tensor) -> Tensor:
        ends, bodies = self.lowest_ends(positions, rotations)
        lowest = torch.full_like(positions[..., 0], torch.inf)
        return lowest.scatter_reduce(-1, bodies.expand(ends.shape[:-1]), ends[..., 2], "amin")

    def poses_at_once(self) -> int:
        """Of how many the corners of the geometry are found together."""
        corners = len(self._surface_on(torch.zeros((), dtype=torch.float64)).bodies)
        return max(1, _CORNERS_AT_ONCE // max(1, corners))

    def lowest_ends(self, positions: Tensor, rotations: Tensor) -> tuple[Tensor, Tensor]:
        """([..., points, 3] the lowest end of every corner of the geometry that touches, [points] its body)."""
        surface = self._surface_on(positions)
        places = positions[..., surface.bodies, :] + rotate(rotations[..., surface.bodies, :], surface.points)
        places[..., 2] -= surface.radii
        return places, surface.bodies

    def lowest_point(self, qpos: np.ndarray) -> float:
        """Of a single pose."""
        pose = torch.as_tensor(qpos)
        return float(self.lowest_points(*self.forward(pose[:3], pose[3:7], pose[7:])).min())

    def surface_of(self, body: int) -> tuple[Tensor, Tensor]:
        """([n, 3] points in a body's frame, [n] radii of spheres about them) that its geometry lies within."""
        surface = self._surface_on(torch.zeros((), dtype=torch.float64))
        chosen = surface.bodies == body
        return surface.points[chosen], surface.radii[chosen]

    # The model ----------------------------------------------------------------------------------
    def _link(self, body: int) -> _Link:
        model = self._model
        first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
        joints = tuple(self._joint(number) for number in range(first, first + count)) if count else ()
        turned = not np.allclose(model.body_quat[body], [1, 0, 0, 0], atol=1e-12)
        return _Link(int(model.body_parentid[body]) - self._root, turned, joints)

    def _joint(self, number: int) -> _Joint:
        model = self._model
        return _Joint(
            number=number - 1,  # the root's free joint is not among the angles
            slide=int(model.jnt_type[number]) == int(mujoco.mjtJoint.mjJNT_SLIDE),
            off_centre=bool(model.jnt_pos[number].any()),
            shifted=bool(model.qpos0[model.jnt_qposadr[number]]),
        )

    def _on(self, like: Tensor) -> _Numbers:
        key = (like.device, like.dtype)
        if key not in self._numbers:
            model, bodies = self._model, slice(self._root, self._root + self._count)
            parts = (
                model.body_pos[bodies],
                model.body_quat[bodies],
                model.jnt_axis[1:],
                model.jnt_pos[1:],
                model.qpos0[7:],
            )
            self._numbers[key] = _Numbers(
                *(torch.as_tensor(part.copy(), dtype=like.dtype, device=like.device) for part in parts)
            )
        return self._numbers[key]

    def _surface_on(self, like: Tensor) -> _Surface:
        key = (like.device, like.dtype)
        if key not in self._surfaces:
            bodies, points, radii = self._surface()
            self._surfaces[key] = _Surface(
                bodies.to(like.device), points.to(like.device, like.dtype), radii.to(like.device, like.dtype)
            )
        return self._surfaces[key]

    def _surface(self) -> _Surface:
        model = self._model
        bodies, points, radii = [], [torch.zeros((0, 3), dtype=torch.float64)], []
        for geom in range(model.ngeom):
            body = int(model.geom_bodyid[geom]) - self._root
            touches = model.geom_contype[geom] or model.geom_conaffinity[geom]
            if not (0 <= body < self._count and touches):
                continue
            local, radius = _outline(model, geom)
            turned = rotate(torch.as_tensor(model.geom_quat[geom].copy()), local)
            points.append(turned + torch.as_tensor(model.geom_pos[geom].copy()))
            bodies += [body] * len(local)
            radii += [radius] * len(local)
        return _Surface(
            torch.tensor(bodies, dtype=torch.int64), torch.cat(points), torch.tensor(radii, dtype=torch.float64)
        )


def _outline(model: mujoco.MjModel, geom: int) -> tuple[Tensor, float]:
    """([n, 3] points of a geom in its own frame, the radius of spheres about them)."""
    size, kinds = torch.as_tensor(model.geom_size[geom].copy()), mujoco.mjtGeom
    kind = kinds(int(model.geom_type[geom]))
    if kind == kinds.mjGEOM_BOX:
        return torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3) * size, 0.0
    if kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_CAPSULE):
        half = float(size[1]) if kind == kinds.mjGEOM_CAPSULE else 0.0
        return torch.tensor([[0.0, 0.0, -half], [0.0, 0.0, half]], dtype=torch.float64), float(size[0])
    if kind == kinds.mjGEOM_CYLINDER:
        angle = torch.arange(32, dtype=torch.float64) * (2 * torch.pi / 32)
        rim = torch.stack([size[0] * angle.cos(), size[0] * angle.sin(), size[1].expand_as(angle)], dim=1)
        return torch.cat([rim, rim * torch.tensor([1.0, 1.0, -1.0], dtype=torch.float64)]), 0.0
    ways = _directions()
    if kind == kinds.mjGEOM_ELLIPSOID:  # the outermost point in a direction
        return ways * size**2 / torch.linalg.vector_norm(ways * size, dim=1, keepdim=True), 0.0
    mesh = int(model.geom_dataid[geom])
    if kind != kinds.mjGEOM_MESH or mesh < 0:
        return torch.zeros((1, 3), dtype=torch.float64), float(model.geom_rbound[geom])
    first, count = int(model.mesh_vertadr[mesh]), int(model.mesh_vertnum[mesh])
    points = torch.as_tensor(model.mesh_vert[first : first + count].astype(np.float64))
    return points[(points @ ways.T).argmax(dim=0).unique()], 0.0


def _directions() -> Tensor:
    """[n, 3] unit vectors, spread evenly over the sphere."""
    i = torch.arange(_DIRECTIONS, dtype=torch.float64) + 0.5
    z, angle = 1 - 2 * i / _DIRECTIONS, i * (torch.pi * (1 + 5**0.5))
    side = (1 - z**2).sqrt()
    return torch.stack([side * angle.cos(), side * angle.sin(), z], dim=1)
