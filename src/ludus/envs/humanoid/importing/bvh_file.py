"""The BVH format: a tree of joints with channels in any order, and a line of numbers a frame."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ludus.envs.bodies.rotations import about_axis, multiply, rotate
from ludus.envs.humanoid.importing.hinges import axis
from ludus.envs.humanoid.importing.motion import check_size, short_lines
from ludus.errors import DataError

_CHANNELS = {f"{letter}{kind}": (kind, letter.lower()) for letter in "XYZ" for kind in ("position", "rotation")}
_BY_LOWER = {channel.lower(): channel for channel in _CHANNELS}
_MOST_CHANNELS = 6  # of a joint
_MOST_LINES = 600_000  # of the tree and of all frames: listed, each takes fifty times its two shortest characters
_LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LARGEST = torch.finfo(torch.float32).max
_WHOLE_DEGREES = 1e-3  # that angles of an added pose may be away from whole ones
_REST_JUMP_DEGREES, _REST_JUMP_TIMES = 10.0, 5.0  # from it to the motion: at least, and of a usual step


@dataclass
class Joint:
    name: str
    parent: int  # −1 for the root
    offset: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    channels: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Bvh:
    """A file's content."""

    joints: list[Joint]  # ends of chains are joints too, called after their parent with _end
    frame_time: float  # s
    values: Tensor  # [frames, channels]


def parse_bvh(path: Path, text: str, fps: float | None = None) -> Bvh:
    """The file's content, or a sentence with the number of the line that is wrong. `fps` goes before its own."""
    if sum(map(text.count, _LINE_ENDS)) > _MOST_LINES:
        raise DataError(f"{path} has more than {_MOST_LINES:,} lines; cut it into shorter motions.")
    lines = short_lines(path, text.splitlines())
    motion = next((i for i, line in enumerate(lines) if line.strip().upper() == "MOTION"), None)
    if motion is None or not lines or "HIERARCHY" not in lines[0].upper():
        raise DataError(f"{path} is not a whole BVH file: it needs HIERARCHY in its first line, and MOTION.")
    joints = _parse_tree(path, lines[1:motion])
    header = [line.split(":") for line in lines[motion + 1 : motion + 3]]
    try:
        frames, frame_time = int(header[0][1]), float(header[1][1])
    except (IndexError, ValueError) as error:
        raise DataError(f"{path}: after MOTION there must be 'Frames: N' and 'Frame Time: S'.") from error
    if frames < 2:
        raise DataError(f"{path} has {frames} frames; a motion needs at least 2.")
    frame_time = 1 / fps if fps else frame_time
    if not 1e-3 <= frame_time <= 1:
        raise DataError(
            f"{path} has a frame time of {frame_time:g} s; it must be from 0.001 to 1, or say the rate with --fps."
        )
    width = sum(len(joint.channels) for joint in joints)
    check_size(str(path), frames, len(joints))
    rows = [(i, line) for i, line in enumerate(lines[motion + 3 :], motion + 4) if line.strip()]
    if len(rows) != frames:
        raise DataError(f"{path} says {frames} frames, but has {len(rows)}; it may be cut off.")
    values = torch.empty(frames, width)
    for row, (i, line) in enumerate(rows):
        values[row] = torch.tensor(_numbers(path, i, line.split(), width))
    return Bvh(joints, frame_time, values)


def _parse_tree(path: Path, lines: list[str]) -> list[Joint]:
    joints: list[Joint] = []
    open_joints: list[int] = []
    for number, line in enumerate(lines, 2):
        words = line.split()
        kind = words[0].upper() if words else ""
        try:
            if kind in ("ROOT", "JOINT", "END"):
                check_size(str(path), 1, len(joints) + 1)
                parent = open_joints[-1] if open_joints else -1
                name = f"{joints[parent].name}_end" if kind == "END" else " ".join(words[1:])
                joints.append(Joint(name.split(":")[-1], parent))
            elif kind == "{":
                open_joints.append(len(joints) - 1)
            elif kind == "}":
                open_joints.pop()
            elif kind == "OFFSET":
                joints[-1].offset = torch.tensor(_numbers(path, number, words[1:], 3))
            elif kind == "CHANNELS":
                joints[-1].channels = [_BY_LOWER[word.lower()] for word in words[2 : 2 + _MOST_CHANNELS + 1]]
                if len(joints[-1].channels) > _MOST_CHANNELS:
                    raise ValueError(kind)
            elif kind:
                raise ValueError(kind)
        except (IndexError, KeyError, ValueError) as error:
            raise DataError(f"{path}: line {number} is not BVH: {line.strip()[:60]!r}.") from error
    if not joints or open_joints:
        raise DataError(f"{path}: its tree of joints is not closed; it may be cut off.")
    return joints


def _numbers(path: Path, line: int, words: list[str], count: int) -> list[float]:
    try:
        values = [float(word) for word in words]
    except ValueError as error:
        raise DataError(f"{path}: line {line} holds something that is not a number.") from error
    if len(values) != count:
        raise DataError(f"{path}: line {line} has {len(values)} numbers; it must have {count}.")
    if not all(abs(value) <= _LARGEST for value in values):
        raise DataError(f"{path}: line {line} holds something that is not a finite number.")
    return values


def begins_with_rest_pose(bvh: Bvh) -> bool:
    """Whether a T-pose was put before the motion, as conversions of CMU's clips have it: it is no part of it.

    It was made by hand, so all its angles are whole degrees; and the motion begins far from it.
    """
    turns = [channel for joint in bvh.joints for channel in joint.channels]
    columns = [i for i, channel in enumerate(turns) if _CHANNELS[channel][0] != "position"]
    if len(bvh.values) < 4 or not columns:
        return False
    angles = bvh.values[:, columns]
    around = (angles.diff(dim=0) + 180).remainder(360) - 180  # degrees, the shorter way
    steps = around.abs().amax(dim=1)
    by_hand = float((angles[0] - angles[0].round()).abs().max()) < _WHOLE_DEGREES
    return by_hand and float(steps[0]) > max(_REST_JUMP_DEGREES, _REST_JUMP_TIMES * float(steps[1:].median()))


def world_poses(bvh: Bvh) -> tuple[Tensor, Tensor]:
    """([frames, joints, 3] in the file's unit, [frames, joints, 4]) in the file's axes."""
    values = bvh.values.double()
    positions: list[Tensor] = []
    rotations: list[Tensor] = []
    column = 0
    for joint in bvh.joints:
        moved = joint.offset.double().expand(len(values), 3).clone()
        turned = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).expand(len(values), 4)
        for channel in joint.channels:
            kind, letter = _CHANNELS[channel]
            if kind == "position":  # stands for the offset
                moved[:, "xyz".index(letter)] = values[:, column]
            else:
                turned = multiply(turned, about_axis(axis(letter), torch.deg2rad(values[:, column])))
            column += 1
        if joint.parent >= 0:
            moved = positions[joint.parent] + rotate(rotations[joint.parent], moved)
            turned = multiply(rotations[joint.parent], turned)
        positions.append(moved)
        rotations.append(turned)
    return torch.stack(positions, dim=1), torch.stack(rotations, dim=1)


def rest_positions(bvh: Bvh) -> Tensor:
    """[joints, 3] where all channels are zero, the root at the origin."""
    positions: list[Tensor] = []
    for joint in bvh.joints:
        positions.append(joint.offset.double() + (positions[joint.parent] if joint.parent >= 0 else 0))
    return torch.stack(positions)
