"""Motions in CSV: our own, with a row of names; and the Unitree G1's, without one."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies.rotations import about_axis, multiply, rotate
from ludus.envs.humanoid.importing.hinges import axis, turn
from ludus.envs.humanoid.importing.motion import Motion, check_size, read_text, short_lines, whole_rate
from ludus.envs.humanoid.importing.quaternions import sliding_of, w_first
from ludus.envs.humanoid.importing.retarget import from_rotations, our_leg
from ludus.envs.humanoid.importing.skeleton import HINGES, JOINTS
from ludus.errors import DataError, did_you_mean, plain_text

_MOST_COLUMNS = 200
_MOST_CELLS = 4_000_000
ROOT = ("root_x", "root_y", "root_z", "root_qw", "root_qx", "root_qy", "root_qz")
_LAYOUTS = (
    f"either a first row that names {', '.join(ROOT)} and the humanoid's {len(JOINTS)} joints, or no such row and "
    "the 36 columns of a Unitree G1 (position, quaternion, 29 joints)"
)
# The Unitree G1 --------------------------------------------------------------------------------------
G1_FPS = 30.0  # of the published clips: their files do not say
_LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
_ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")
_G1 = (
    *(f"{side}_{joint}" for side in ("left", "right") for joint in _LEG),
    "waist_yaw", "waist_roll", "waist_pitch",
    *(f"{side}_{joint}" for side in ("left", "right") for joint in _ARM),
)  # fmt: skip
_G1_THIGH, _G1_SHIN = 0.336, 0.318  # m
_G1_LEG = _G1_THIGH + _G1_SHIN
_G1_HIPS = 0.133  # m that its hips lie below the origin of its pelvis
_G1_HIP_TILT, _G1_SHOULDER_TILT = 10.0, 16.0  # degrees that its motors are mounted aslant


class Columns(NamedTuple):
    """A table, with its columns in the order that was asked for."""

    values: np.ndarray  # [rows, columns]
    named: bool  # whether its first row named them
    fps: float | None  # where a column of times tells


def read_columns(path: Path, wanted: Sequence[str], expected: str, fps: float | None) -> Columns:
    """A table of these columns: named, in any order and beside a column of times; or unnamed, in this order.

    `fps` goes before what its times say.
    """
    rows = _rows(path, read_text(path), expected)
    if not rows:
        raise DataError(f"{path} is empty; a motion needs at least 2 frames.")
    if _numeric(rows[0]):
        table = _table(path, rows, first_line=1)
        if table.shape[1] != len(wanted):
            raise DataError(f"{path} has {table.shape[1]} columns without names. {expected}.")
        return Columns(table.numpy(), named=False, fps=None)
    column = _named_columns(path, rows, wanted, expected)
    values = torch.stack([column[name] for name in wanted], dim=1).numpy()
    rate = _rate(path, column["time"]) if "time" in column and fps is None else fps
    return Columns(values, named=True, fps=rate)


def _rate(path: Path, times: Tensor) -> float:
    steps = times.diff()
    if not len(steps) or float(steps.min()) <= 0:
        raise DataError(f"{path}: its times do not rise from row to row.")
    step = float(steps.mean())  # single ones are rounded, often to milliseconds
    even = times[0] + step * torch.arange(len(times), dtype=times.dtype)
    if float((times - even).abs().max()) > 0.1 * step:
        raise DataError(f"{path}: its times are not evenly spaced; write it at one rate, or give --fps.")
    return whole_rate(1 / step)


def read_csv(path: Path, text: str, fps: float | None, quaternion: str) -> Motion:
    rows = _rows(path, text, f"Expected is {_LAYOUTS}")
    if not rows:
        raise DataError(f"{path} is empty; a motion needs at least 2 frames.")
    if _numeric(rows[0]):
        return _read_g1(path, _table(path, rows, first_line=1), fps, quaternion)
    if quaternion == "xyzw":
        raise DataError(f"{path} names its columns, among them root_qw: leave out --quaternion.")
    return _read_own(path, rows, fps)


def _rows(path: Path, text: str, expected: str) -> list[list[str]]:
    """Those that are not empty. Looked at one by one: a table without end is refused at its first row."""
    lines = text.splitlines()
    check_size(str(path), len(lines), len(JOINTS))
    rows: list[list[str]] = []
    cells = 0
    try:
        for row in csv.reader(short_lines(path, lines)):
            cells += len(row)
            if len(row) > _MOST_COLUMNS or cells > _MOST_CELLS:
                raise DataError(f"{path}: row {len(rows) + 1} has {len(row):,} columns. {expected}.")
            if any(cell.strip() for cell in row):
                rows.append(row)
    except csv.Error as error:
        raise DataError(f"{path}: row {len(rows) + 1} is not CSV: {error}.") from error
    return rows


def _numeric(row: list[str]) -> bool:
    try:
        return bool([float(cell) for cell in row])
    except ValueError:
        return False


def _table(path: Path, rows: list[list[str]], first_line: int) -> Tensor:
    if not rows:
        raise DataError(f"{path} has names but no frames.")
    width = len(rows[0])
    for line, row in enumerate(rows, first_line):
        if len(row) != width:
            raise DataError(f"{path}: row {line} has {len(row)} columns, the one before it {width}.")
        if not _numeric(row):
            raise DataError(f"{path}: row {line} holds something that is not a number.")
    table = torch.tensor([[float(cell) for cell in row] for row in rows], dtype=torch.float64)
    bad = ~table.isfinite().all(dim=1)
    if bad.any():
        line = int(bad.int().argmax()) + first_line
        raise DataError(f"{path}: row {line} holds something that is not a finite number.")
    return table


def _named_columns(path: Path, rows: list[list[str]], wanted: Sequence[str], expected: str) -> dict[str, Tensor]:
    """Each wanted column by its name, and perhaps one of times."""
    names, table = [name.strip() for name in rows[0]], _table(path, rows[1:], first_line=2)
    if len(names) != table.shape[1]:
        raise DataError(f"{path} names {len(names)} columns, but its rows have {table.shape[1]}.")
    if len(set(names)) != len(names):
        raise DataError(f"{path} names a column twice: {next(n for n in names if names.count(n) > 1)}.")
    extra, missing = [n for n in names if n not in (*wanted, "time")], [n for n in wanted if n not in names]
    if missing or extra:
        hint = did_you_mean(extra[0], missing) if extra else ""
        extra = [plain_text(name, 60) for name in extra[:20]]
        told = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has {', '.join(extra)}"] * bool(extra)
        raise DataError(f"{path}: among its columns it {' and '.join(told)}.{hint} {expected}.")
    return dict(zip(names, table.unbind(1), strict=True))


def _read_own(path: Path, rows: list[list[str]], fps: float | None) -> Motion:
    column = _named_columns(path, rows, (*ROOT, *JOINTS), f"Expected is {_LAYOUTS}")
    frames = len(rows) - 1
    if fps is not None:
        times = torch.arange(frames, dtype=torch.float64) / fps
    elif "time" in column:
        times = column["time"] - column["time"][0]
    else:
        raise DataError(f"{path} does not say its rate: add a column 'time' in seconds, or give --fps.")
    quats = torch.stack([column[name] for name in ROOT[3:]], dim=1)
    return Motion(
        times=times,
        root_pos=torch.stack([column[name] for name in ROOT[:3]], dim=1),
        root_quat=_unit(path, quats),
        balls={
            joint: _turns(*((letter, column[f"{joint}_{letter}"]) for letter in order))
            for joint, order in HINGES.items()
            if len(order) == 3
        },
        hinges={joint: column[joint] for joint, order in HINGES.items() if len(order) == 1},
    )


def _unit(path: Path, quats: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(quats, dim=1, keepdim=True)
    if float((length - 1).abs().max()) > 0.05:
        frame = int((length - 1).abs().argmax())
        raise DataError(f"{path}: the root's rotation in frame {frame} is no unit quaternion; check the columns.")
    return quats / length


def _turns(*turns: tuple[str, Tensor]) -> Tensor:
    """One turn after the other, outer first, each about an axis that those before it have turned."""
    quat = about_axis(axis(turns[0][0]), turns[0][1])
    for letter, angle in turns[1:]:
        quat = multiply(quat, about_axis(axis(letter), angle))
    return quat


def _read_g1(path: Path, table: Tensor, fps: float | None, quaternion: str) -> Motion:
    """By the meaning of its joints; arms hang at its zero, the forearms point forward."""
    if table.shape[1] != 7 + len(_G1):
        raise DataError(f"{path} has {table.shape[1]} columns without names; expected is {_LAYOUTS}.")
    angle = dict(zip(_G1, table[:, 7:].unbind(1), strict=True))
    rate = fps or G1_FPS
    quats = _unit(path, table[:, 3:7]).numpy()
    pelvis = torch.as_tensor(
        w_first(path, quats, quaternion, lambda quat: sliding_of(_g1_ankles(table[:, :3], quat, angle), rate))
    )
    torso = multiply(
        pelvis, _turns(("z", angle["waist_yaw"]), ("x", angle["waist_roll"]), ("y", angle["waist_pitch"]))
    )
    rotations = {"pelvis": pelvis, "torso": torso, "head": torso}
    for side, sign in (("right", -1), ("left", 1)):
        rotations |= _g1_leg(side, pelvis, angle) | _g1_arm(side, sign, torso, angle)
    hips = table[:, :3] - rotate(pelvis, _G1_HIPS * axis("z"))
    times = torch.arange(len(table), dtype=torch.float64) / rate
    return from_rotations(times, hips * (our_leg() / _G1_LEG), rotations)


def _g1_leg(side: str, pelvis: Tensor, angle: dict[str, Tensor]) -> dict[str, Tensor]:
    tilt = torch.full_like(angle["left_knee"], np.radians(_G1_HIP_TILT))
    pitch, roll, yaw = (angle[f"{side}_hip_{name}"] for name in ("pitch", "roll", "yaw"))
    thigh = multiply(pelvis, _turns(("y", pitch - tilt), ("x", roll), ("z", yaw), ("y", tilt)))
    shin = multiply(thigh, _turns(("y", angle[f"{side}_knee"])))
    foot = multiply(shin, _turns(("y", angle[f"{side}_ankle_pitch"]), ("x", angle[f"{side}_ankle_roll"])))
    return {f"{side}_thigh": thigh, f"{side}_shin": shin, f"{side}_foot": foot}


def _g1_ankles(place: Tensor, quats: np.ndarray, angle: dict[str, Tensor]) -> np.ndarray:
    """[frames, 2, 3] about where they are, to see which one slides."""
    pelvis, down = torch.as_tensor(quats), -axis("z")
    hips = place + rotate(pelvis, _G1_HIPS * down)
    ankles = []
    for side in ("left", "right"):
        thigh, shin, _ = _g1_leg(side, pelvis, angle).values()
        ankles.append(hips + rotate(thigh, _G1_THIGH * down) + rotate(shin, _G1_SHIN * down))
    return torch.stack(ankles, dim=1).numpy()


def _g1_arm(side: str, sign: int, torso: Tensor, angle: dict[str, Tensor]) -> dict[str, Tensor]:
    tilt = torch.full_like(angle["left_elbow"], sign * np.radians(_G1_SHOULDER_TILT))
    pitch, roll, yaw = (angle[f"{side}_shoulder_{name}"] for name in ("pitch", "roll", "yaw"))
    hanging = multiply(torso, _turns(("x", tilt), ("y", pitch), ("x", roll - tilt), ("z", yaw)))
    lower = multiply(hanging, _turns(("y", angle[f"{side}_elbow"] - torch.pi / 2)))
    from_ours = turn("x", -90.0 * sign).expand_as(hanging)  # our arms are stretched sideways at zero
    return {f"{side}_upper_arm": multiply(hanging, from_ours), f"{side}_lower_arm": multiply(lower, from_ours)}
