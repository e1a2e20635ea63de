"""Where the bodies are, from the joints' angles: MuJoCo's kinematics for any batch on any device."""

from functools import cache

import mujoco
import torch
from torch import Tensor

from ludus.envs.humanoid.body import body_model
from ludus.envs.humanoid.rotations import about_axis, multiply, rotate


def forward_kinematics(root_pos: Tensor, root_quat: Tensor, joint_pos: Tensor) -> tuple[Tensor, Tensor]:
    """([..., 15, 3] positions, [..., 15, 4] rotations) of the bodies in the world.

    `root_pos` is [..., 3], `root_quat` [..., 4], `joint_pos` [..., 28], in the order of `body.JOINTS`.
    """
    model = body_model()
    turns = about_axis(_axes(joint_pos.device, joint_pos.dtype), joint_pos)  # [..., 28, 4]
    positions, rotations = [root_pos], [root_quat]
    for body in range(2, model.nbody):  # 0 is the world, 1 the pelvis
        parent = int(model.body_parentid[body]) - 1
        offset = _offsets(joint_pos.device, joint_pos.dtype)[body - 1]
        positions.append(positions[parent] + rotate(rotations[parent], offset))
        rotation = rotations[parent]
        first = int(model.body_jntadr[body]) - 1  # the root's free joint is not among the angles
        for joint in range(first, first + int(model.body_jntnum[body])):
            rotation = multiply(rotation, turns[..., joint, :])
        rotations.append(rotation)
    return torch.stack(positions, dim=-2), torch.stack(rotations, dim=-2)


def lowest_points(positions: Tensor, rotations: Tensor) -> Tensor:
    """[..., 15] height of the lowest point of every body's geometry; the floor is at 0."""
    bodies, points, radii = _surface(positions.device, positions.dtype)
    heights = (positions[..., bodies, :] + rotate(rotations[..., bodies, :], points))[..., 2] - radii
    lowest = torch.full_like(positions[..., 0], torch.inf)
    return lowest.scatter_reduce(-1, bodies.expand(heights.shape), heights, "amin")


@cache
def _axes(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(body_model().jnt_axis[1:].copy(), dtype=dtype, device=device)


@cache
def _offsets(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.as_tensor(body_model().body_pos[1:].copy(), dtype=dtype, device=device)


@cache
def _surface(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Points whose spheres' lowest ends are the geometry's: ([n] body, [n, 3] point, [n] radius)."""
    model = body_model()
    bodies, points, radii = [], [], []
    for geom in range(1, model.ngeom):  # 0 is the floor
        size, kind = model.geom_size[geom], model.geom_type[geom]
        if kind == mujoco.mjtGeom.mjGEOM_BOX:
            corners = torch.cartesian_prod(*(torch.tensor([-1.0, 1.0], dtype=torch.float64) for _ in range(3)))
            local, radius = corners * torch.as_tensor(size), 0.0
        else:
            half = size[1] if kind == mujoco.mjtGeom.mjGEOM_CAPSULE else 0.0
            local, radius = (
                torch.tensor([[0.0, 0.0, -half], [0.0, 0.0, half]], dtype=torch.float64),
                float(size[0]),
            )
        turned = rotate(torch.as_tensor(model.geom_quat[geom].copy()), local)
        points.append(turned + torch.as_tensor(model.geom_pos[geom].copy()))
        bodies += [int(model.geom_bodyid[geom]) - 1] * len(local)
        radii += [radius] * len(local)
    places, sizes = torch.cat(points), torch.tensor(radii, dtype=torch.float64)
    return torch.tensor(bodies, device=device), places.to(device, dtype), sizes.to(device, dtype)
