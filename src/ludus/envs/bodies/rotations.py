"""Rotations as unit quaternions [..., 4], w first, on any device."""

import torch
from torch import Tensor


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The rotation `b`, then `a`."""
    aw, ax, ay, az = a.unbind(-1)
    bw, bx, by, bz = b.unbind(-1)
    return torch.stack(
        [
            aw * bw - ax * bx - ay * by - az * bz,
            aw * bx + ax * bw + ay * bz - az * by,
            aw * by - ax * bz + ay * bw + az * bx,
            aw * bz + ax * by - ay * bx + az * bw,
        ],
        dim=-1,
    )


def conjugate(q: Tensor) -> Tensor:
    return torch.cat([q[..., :1], -q[..., 1:]], dim=-1)


def rotate(q: Tensor, v: Tensor) -> Tensor:
    """The vectors `v` [..., 3], turned."""
    w, axis = q[..., :1], q[..., 1:]
    axis, v = torch.broadcast_tensors(axis, v)
    t = 2 * torch.linalg.cross(axis, v)
    return v + w * t + torch.linalg.cross(axis, t)


def rotate_back(q: Tensor, v: Tensor) -> Tensor:
    """The vectors `v`, turned the other way: world vectors as the turned frame sees them."""
    return rotate(conjugate(q), v)


def about_axis(axis: Tensor, angle: Tensor) -> Tensor:
    """Turned by `angle` [...] about unit vectors `axis` [..., 3]."""
    half = angle[..., None] / 2
    return torch.cat([torch.cos(half), torch.sin(half) * axis], dim=-1)


def heading(q: Tensor) -> Tensor:
    """The part of a rotation that turns about the vertical: where its x axis points, seen from above."""
    w, x, y, z = q.unbind(-1)
    angle = torch.atan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))
    zero = torch.zeros_like(angle)
    return torch.stack([torch.cos(angle / 2), zero, zero, torch.sin(angle / 2)], dim=-1)


def rotation_vector(q: Tensor) -> Tensor:
    """[..., 3] axis times angle, the shorter way."""
    q = torch.where(q[..., :1] < 0, -q, q)
    length = torch.linalg.vector_norm(q[..., 1:], dim=-1, keepdim=True)
    angle = 2 * torch.atan2(length, q[..., :1])
    # Near no rotation the ratio tends to 2.
    return q[..., 1:] * torch.where(length > 1e-8, angle / length.clamp(min=1e-8), 2.0)


def two_axes(q: Tensor) -> Tensor:
    """[..., 6] where the x and z axes point: a description of a rotation without jumps."""
    w, x, y, z = q.unbind(-1)
    return torch.stack(
        [
            1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y),
            2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y),
        ],
        dim=-1,
    )  # fmt: skip


def slerp(a: Tensor, b: Tensor, share: Tensor) -> Tensor:
    """Between `a` and `b`, the shorter way; `share` [...] of it from 0 to 1."""
    turn = rotation_vector(multiply(conjugate(a), b)) * share[..., None]
    return multiply(a, from_rotation_vector(turn))


def from_rotation_vector(v: Tensor) -> Tensor:
    angle = torch.linalg.vector_norm(v, dim=-1)
    return about_axis(v / angle.clamp(min=1e-12)[..., None], angle)
