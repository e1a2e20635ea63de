"""What a body sees of itself and of the coming reference, as Triton kernels. Needs a GPU: import it only there.

The observation of a tracker is some 350 operations on a few numbers per row, and on a GPU each costs its launch.
Here a program owns a row, or a coming frame of one, and works its numbers out from the simulator's state and the
table of motions. The formulas are those of `self_state`, `from_root` (task.py) and `MimicTask.coming` (mimic.py).

Nothing waits for the device, so all of it can be captured in a CUDA graph after one ordinary call, which compiles
the kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]


class Bodies(NamedTuple):
    """The state of some rows, as a simulator has it."""

    qpos: Tensor  # [n, 7 + joints]
    qvel: Tensor  # [n, 6 + joints]
    places: Tensor  # [n, all bodies, 3]
    key: Tensor  # [key bodies] int32, their places among all


class Coming(NamedTuple):
    """Where the reference is read."""

    table: Tensor  # [frames of all clips, width] of a `MotionLibrary`
    first: Tensor  # [clips] int64, the first frame of each
    last: Tensor  # [clips] int64, the last of each that has one after it, counted from its first
    fps: Tensor  # [clips] float64
    clip: Tensor  # [n] int64
    time: Tensor  # [n] float64, s
    rate: Tensor | None  # [n] float64, seconds of the clip in one of the simulation
    ahead: Tensor  # [coming frames] float64, s of the simulation


def feel(bodies: Bodies) -> tuple[Tensor, Tensor]:
    """([n, size] `self_state` and where the other key bodies are, seen from the root; [n, 4] the heading)."""
    n, joints = len(bodies.qpos), bodies.qpos.shape[1] - 7
    size = 13 + 2 * joints + 3 * (len(bodies.key) - 1)
    felt, facing = (torch.empty((n, width), device=bodies.qpos.device) for width in (size, 4))
    state = (bodies.qpos, bodies.qvel, bodies.places, bodies.key)
    strides = (bodies.qpos.stride(0), bodies.qvel.stride(0), bodies.places.stride(0))
    _feel[(n,)](*state, felt, facing, *strides, joints, size, triton.next_power_of_2(size), num_warps=2)
    return felt, facing


def coming(bodies: Bodies, reference: Coming, places: bool) -> Tensor:
    """[n, coming frames · size] as `MimicTask.coming`."""
    n, frames = len(bodies.qpos), len(reference.ahead)
    joints, key = bodies.qpos.shape[1] - 7, len(bodies.key)
    size = 3 * key * places + 6 + 2 * joints
    seen = torch.empty((n, frames * size), device=bodies.qpos.device)
    strides = (reference.table.stride(0), bodies.qpos.stride(0), bodies.places.stride(0))
    sizes = (joints, key, places, size, triton.next_power_of_2(size))
    state = (bodies.qpos, bodies.places, bodies.key)
    _coming[(n, frames)](*reference, *state, seen, *strides, *sizes, num_warps=2)
    return seen


@triton.jit
def _heading(w: tensor, x: tensor, y: tensor, z: tensor) -> tuple[tensor, tensor]:
    """Cosine and sine of the angle by which a rotation turns about the vertical."""
    along, aside = 1 - 2 * (y * y + z * z), 2 * (w * z + x * y)
    length = tl.sqrt(along * along + aside * aside)
    safe = tl.where(length > 0, length, 1.0)
    return tl.where(length > 0, along / safe, 1.0), aside / safe


@triton.jit
def _half(cosine: tensor, sine: tensor) -> tuple[tensor, tensor]:
    """Those of half the angle, by the one of both that is not small."""
    large = tl.sqrt((1 + tl.abs(cosine)) / 2)
    small = tl.abs(sine) / (2 * large)
    ahead = cosine >= 0
    half_cosine, half_sine = tl.where(ahead, large, small), tl.where(ahead, small, large)
    return half_cosine, tl.where(sine < 0, -half_sine, half_sine)


@triton.jit
def _axes(w: tensor, x: tensor, y: tensor, z: tensor, col: tensor) -> tensor:
    """`two_axes`: the number that stands in each of the columns 0 to 5."""
    value = tl.where(col == 0, 1 - 2 * (y * y + z * z), 0.0)
    value = tl.where(col == 1, 2 * (x * y + w * z), value)
    value = tl.where(col == 2, 2 * (x * z - w * y), value)
    value = tl.where(col == 3, 2 * (x * z + w * y), value)
    value = tl.where(col == 4, 2 * (y * z - w * x), value)
    return tl.where(col == 5, 1 - 2 * (x * x + y * y), value)


@triton.jit
def _by_axis(axis: tensor, x: tensor, y: tensor, z: tensor) -> tensor:
    return tl.where(axis == 0, x, tl.where(axis == 1, y, z))


@triton.jit
def _feel(
    qpos: tensor, qvel: tensor, places: tensor, key: tensor, felt: tensor, facing: tensor, qpos_stride: tensor,
    qvel_stride: tensor, places_stride: tensor, joints: constexpr, size: constexpr, block: constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    qpos += row * qpos_stride
    qvel += row * qvel_stride
    places += row * places_stride
    col = tl.arange(0, block)
    w, x, y, z = tl.load(qpos + 3), tl.load(qpos + 4), tl.load(qpos + 5), tl.load(qpos + 6)
    cosine, sine = _heading(w, x, y, z)
    half_cosine, half_sine = _half(cosine, sine)
    # The lean is what is left of the rotation without its heading.
    lw, lz = half_cosine * w + half_sine * z, half_cosine * z - half_sine * w
    lx, ly = half_cosine * x + half_sine * y, half_cosine * y - half_sine * x
    value = tl.where(col == 0, tl.load(qpos + 2), _axes(lw, lx, ly, lz, col - 1))
    vx, vy, vz = tl.load(qvel), tl.load(qvel + 1), tl.load(qvel + 2)
    moving = _by_axis(col - 7, cosine * vx + sine * vy, cosine * vy - sine * vx, vz)
    value = tl.where((col >= 7) & (col < 10), moving, value)
    ax, ay, az = tl.load(qvel + 3), tl.load(qvel + 4), tl.load(qvel + 5)
    tx, ty, tz = 2 * (ly * az - lz * ay), 2 * (lz * ax - lx * az), 2 * (lx * ay - ly * ax)
    turning = _by_axis(
        col - 10,
        ax + lw * tx + ly * tz - lz * ty,
        ay + lw * ty + lz * tx - lx * tz,
        az + lw * tz + lx * ty - ly * tx,
    )
    value = tl.where((col >= 10) & (col < 13), turning, value)
    joint, speed = col - 13, col - 13 - joints
    is_joint, is_speed = (joint >= 0) & (joint < joints), (speed >= 0) & (speed < joints)
    value = tl.where(is_joint, tl.load(qpos + 7 + joint, mask=is_joint, other=0.0), value)
    value = tl.where(is_speed, tl.load(qvel + 6 + speed, mask=is_speed, other=0.0), value)
    # The root is the first key body; the others follow.
    number = col - 13 - 2 * joints
    is_place = (number >= 0) & (col < size)
    root = places + 3 * tl.load(key)
    body = places + 3 * tl.load(key + 1 + number // 3, mask=is_place, other=0)
    dx = tl.load(body, mask=is_place, other=0.0) - tl.load(root)
    dy = tl.load(body + 1, mask=is_place, other=0.0) - tl.load(root + 1)
    dz = tl.load(body + 2, mask=is_place, other=0.0) - tl.load(root + 2)
    seen = _by_axis(number % 3, cosine * dx + sine * dy, cosine * dy - sine * dx, dz)
    tl.store(felt + row * size + col, tl.where(is_place, seen, value), mask=col < size)
    at = facing + row * 4
    tl.store(at, half_cosine)
    tl.store(at + 1, 0.0)
    tl.store(at + 2, 0.0)
    tl.store(at + 3, half_sine)


@triton.jit
def _between(at: tensor, stride: tensor, share: tensor) -> tensor:
    before = tl.load(at)
    return before + share * (tl.load(at + stride) - before)


@triton.jit
def _between_where(at: tensor, stride: tensor, share: tensor, where: tensor) -> tensor:
    before = tl.load(at, mask=where, other=0.0)
    return before + share * (tl.load(at + stride, mask=where, other=0.0) - before)


@triton.jit
def _coming(
    table: tensor, first: tensor, last: tensor, fps: tensor, clip: tensor, time: tensor, rate: tensor,
    ahead: tensor, qpos: tensor, places: tensor, key: tensor, seen: tensor, table_stride: tensor,
    qpos_stride: tensor, places_stride: tensor, joints: constexpr, bodies: constexpr, with_places: constexpr,
    size: constexpr, block: constexpr,
) -> None:  # fmt: skip
    row, number = tl.program_id(0).to(tl.int64), tl.program_id(1)
    qpos += row * qpos_stride
    places += row * places_stride
    col = tl.arange(0, block)
    which = tl.load(clip + row)
    later, pace = tl.load(ahead + number), 1.0
    if rate is not None:
        quick = tl.load(rate + row)
        later, pace = later * quick, quick.to(tl.float32)
    frame = tl.maximum((tl.load(time + row) + later) * tl.load(fps + which), 0.0)
    before = tl.minimum(frame.to(tl.int64), tl.load(last + which))
    share = tl.minimum(frame - before, 1.0).to(tl.float32)
    here = table + (tl.load(first + which) + before) * table_stride
    w, x, y, z = tl.load(qpos + 3), tl.load(qpos + 4), tl.load(qpos + 5), tl.load(qpos + 6)

    value = tl.zeros([block], tl.float32)
    start = 0
    place_at = 13 + 2 * joints  # in a row of the table
    if with_places:
        start = 3 * bodies
        cosine, sine = _heading(w, x, y, z)
        is_place = col < start
        body = here + place_at + 3 * (col // 3)
        own = places + 3 * tl.load(key + col // 3, mask=is_place, other=0)
        dx = _between_where(body, table_stride, share, is_place) - tl.load(own, mask=is_place, other=0.0)
        dy = _between_where(body + 1, table_stride, share, is_place) - tl.load(own + 1, mask=is_place, other=0.0)
        dz = _between_where(body + 2, table_stride, share, is_place) - tl.load(own + 2, mask=is_place, other=0.0)
        value = tl.where(is_place, _by_axis(col % 3, cosine * dx + sine * dy, cosine * dy - sine * dx, dz), value)
    quat = here + place_at + 3 * bodies  # the root's is the first of the bodies'
    rw = _between(quat, table_stride, share)
    rx = _between(quat + 1, table_stride, share)
    ry = _between(quat + 2, table_stride, share)
    rz = _between(quat + 3, table_stride, share)
    length = tl.sqrt(rw * rw + rx * rx + ry * ry + rz * rz)
    rw, rx, ry, rz = rw / length, rx / length, ry / length, rz / length
    turn = _axes(
        w * rw + x * rx + y * ry + z * rz,
        w * rx - x * rw - y * rz + z * ry,
        w * ry + x * rz - y * rw - z * rx,
        w * rz - x * ry + y * rx - z * rw,
        col - start,
    )
    value = tl.where((col >= start) & (col < start + 6), turn, value)
    joint, speed = col - start - 6, col - start - 6 - joints
    is_joint, is_speed = (joint >= 0) & (joint < joints), (speed >= 0) & (speed < joints)
    pose = _between_where(here + 7 + joint, table_stride, share, is_joint)
    value = tl.where(is_joint, pose - tl.load(qpos + 7 + joint, mask=is_joint, other=0.0), value)
    moving = _between_where(here + 13 + joints + speed, table_stride, share, is_speed)
    value = tl.where(is_speed, moving * pace, value)
    tl.store(seen + (row * tl.num_programs(1) + number) * size + col, value, mask=col < size)
