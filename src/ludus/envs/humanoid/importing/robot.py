"""Motions that were recorded or made for the robot itself: CSV tables, npz files of trackers, GMR's pickles."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import rotate
from ludus.envs.humanoid.clip import MOST_FRAMES, Clip, check_clip
from ludus.envs.humanoid.importing.floor import put_on_floor
from ludus.envs.humanoid.importing.motion import check_size, read_source
from ludus.envs.humanoid.importing.pickles import numbers, unpickled
from ludus.envs.humanoid.importing.table import ROOT, read_columns
from ludus.envs.humanoid.npz import read_npz
from ludus.envs.humanoid.seam import close_seam
from ludus.errors import MALFORMED, DataError

ROBOT_SUFFIXES = (".csv", ".npz", ".pkl", ".pickle")
CSV_FPS = 30.0  # of published tables, which do not say
_MOST_BYTES = 200_000_000
_MOST_VALUES = 50_000_000
_UPRIGHT = 0.5  # how far up the root's z axis points at least, of a robot that stands
_SLIDES_MORE = 1.5  # times: then a reading is the worse one
_AGREES = 0.05  # m between bodies of a file and where its joints lead
_SAME = 0.02  # rad: readings that differ by less need no choice


class Poses(NamedTuple):
    """Of a robot, as a file has them."""

    fps: float
    root_pos: np.ndarray  # [frames, 3]
    root_quat: np.ndarray  # [frames, 4] in the file's order
    joint_pos: np.ndarray  # [frames, joints] in the body's order
    order: str = ""  # of root_quat: wxyz, xyzw; "" where the file's kind leaves it open


def import_robot_motion(
    path: Path, body: Body, name: str, fps: float | None = None, loop: bool | None = None, quaternion: str = ""
) -> Clip:
    """A clip of `body` out of a file for it. `quaternion`: wxyz or xyzw, goes before what the file looks like."""
    poses = _read(path, body, fps)
    poses = poses._replace(fps=fps or poses.fps, order=quaternion or poses.order)
    _check(path, body, poses)
    clip = Clip(
        name=name,
        fps=poses.fps,
        root_pos=poses.root_pos,
        root_quat=_w_first(path, body, poses),
        joint_pos=poses.joint_pos,
        loop=bool(loop),
        source=path.name,
        body=body,
    )
    check_clip(clip, str(path))
    return put_on_floor(close_seam(clip) if clip.loop else clip)


def is_ludus_clip(path: Path) -> bool:
    """Whether an npz file is a clip of Ludus rather than a tracker's."""
    return "format" in read_npz(path, ("format",), 100)


def _read(path: Path, body: Body, fps: float | None) -> Poses:
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _read_table(path, body, fps)
    return _read_npz(path, body) if suffix == ".npz" else _read_gmr(path, body)


# CSV ------------------------------------------------------------------------------------------------
def _read_table(path: Path, body: Body, fps: float | None) -> Poses:
    """Columns with names in any order; or without names, as Unitree has them: position, quaternion, joints."""
    expected = (
        f"{path} must have a first row that names {', '.join(ROOT)} and the {len(body.joints)} joints of "
        f"{body.name}, or no such row and {7 + len(body.joints)} columns: position, quaternion, joints in the "
        "model's order"
    )
    columns = read_columns(path, (*ROOT, *body.joints), expected)
    rate = fps or columns.fps or CSV_FPS
    values = columns.values
    return Poses(rate, values[:, :3], values[:, 3:7], values[:, 7:], "wxyz" if columns.named else "")


# npz ------------------------------------------------------------------------------------------------
def _read_npz(path: Path, body: Body) -> Poses:
    """BeyondMimic's and mjlab's motion.npz, which name nothing, and holosoma's, which name their joints."""
    wanted = ("fps", "joint_pos", "joint_names", "body_names", "body_pos_w", "body_quat_w")
    values = read_npz(path, wanted, _MOST_VALUES)
    if "joint_pos" not in values or "fps" not in values:
        raise DataError(
            f"{path} is neither a clip of Ludus nor a motion of BeyondMimic, mjlab or holosoma: they have fps and "
            "joint_pos."
        )
    joints, count = np.asarray(values["joint_pos"], dtype=np.float64), len(body.joints)
    if joints.ndim != 2:
        raise DataError(f"{path}: joint_pos has the shape {joints.shape}; it must be (frames, joints).")
    fps = float(np.asarray(values["fps"]).ravel()[0])
    order = _named_order(path, body, values)
    if joints.shape[1] == 7 + count:  # holosoma's begin with the root
        return Poses(fps, joints[:, :3], joints[:, 3:7], joints[:, 7:][:, order], "wxyz")
    if joints.shape[1] != count:
        raise DataError(f"{path} has {joints.shape[1]} joints; {body.name} has {count}.")
    places, turns = (np.asarray(values.get(key, ()), dtype=np.float64) for key in ("body_pos_w", "body_quat_w"))
    if places.ndim != 3 or turns.ndim != 3 or len(places) != len(joints) or len(turns) != len(joints):
        raise DataError(f"{path} lacks body_pos_w and body_quat_w of every frame, which tell where the root is.")
    root = _root_column(path, body, values)
    poses = Poses(fps, places[:, root], turns[:, root], joints, "wxyz")
    if "joint_names" in values:
        return poses._replace(joint_pos=joints[:, order])
    return _with_found_order(path, body, poses, places)


def _named_order(path: Path, body: Body, values: dict[str, np.ndarray]) -> list[int]:
    """Where each of the body's joints stands in the file; as in the body where the file names none."""
    if "joint_names" not in values:
        return list(range(len(body.joints)))
    names = [str(name) for name in values["joint_names"].ravel()]
    missing = [name for name in body.joints if name not in names]
    if missing:
        raise DataError(f"{path} is of another robot than {body.name}: it lacks {', '.join(missing[:10])}.")
    return [names.index(name) for name in body.joints]


def _root_column(path: Path, body: Body, values: dict[str, np.ndarray]) -> int:
    if "body_names" not in values:
        return 0
    names = [str(name) for name in values["body_names"].ravel()]
    if body.bodies[0] not in names:
        raise DataError(f"{path} is of another robot than {body.name}: it lacks the body {body.bodies[0]}.")
    return names.index(body.bodies[0])


def _with_found_order(path: Path, body: Body, poses: Poses, places: np.ndarray) -> Poses:
    """Files without names have the joints limb by limb, as MuJoCo, or level by level, as Isaac.

    Where the joints lead tells which: to where the file says that the bodies are.
    """
    if places.shape[1] != len(body.bodies):
        raise DataError(
            f"{path} does not name its joints, and has {places.shape[1]} bodies, {body.name} {len(body.bodies)}: "
            "its order cannot be told. Add joint_names and body_names."
        )
    off = {}
    some = np.linspace(0, len(places) - 1, min(50, len(places))).astype(int)
    for name, (joints, bodies) in orders_of(body).items():
        part = map(
            torch.as_tensor, (poses.root_pos[some], poses.root_quat[some], poses.joint_pos[some][:, joints])
        )
        found = body.kinematics.forward(*part)[0].numpy()
        off[name] = float(np.linalg.norm(found - places[some][:, bodies], axis=-1).mean())
    best = min(off, key=lambda name: off[name])
    if off[best] > _AGREES:
        raise DataError(
            f"{path}: with its joints in the order of {' or '.join(off)} the bodies are {100 * off[best]:.0f} cm "
            f"or more from where it says. Is it of another robot than {body.name}?"
        )
    return poses._replace(joint_pos=poses.joint_pos[:, orders_of(body)[best][0]])


def orders_of(body: Body) -> dict[str, tuple[list[int], list[int]]]:
    """Where the body's joints and bodies stand in files of simulators that order them by limbs or by levels."""
    model, count = body.model, len(body.bodies)
    parents = [int(model.body_parentid[body.root + i]) - body.root for i in range(count)]
    depth = [0] * count
    for i in range(1, count):
        depth[i] = depth[parents[i]] + 1
    levels = sorted(range(count), key=lambda i: depth[i])  # a stable order: as in the model within a level
    joint_body = [int(model.jnt_bodyid[j]) - body.root for j in range(1, model.njnt)]
    by_level = sorted(range(len(joint_body)), key=lambda j: levels.index(joint_body[j]))
    return {
        "MuJoCo": (list(range(len(joint_body))), list(range(count))),
        "Isaac": ([by_level.index(j) for j in range(len(joint_body))], [levels.index(i) for i in range(count)]),
    }


# GMR ------------------------------------------------------------------------------------------------
def _read_gmr(path: Path, body: Body) -> Poses:
    content = unpickled(path, read_source(path, _MOST_BYTES), "a motion of GMR")
    try:
        fps = float(numbers(content["fps"]))
        root_pos, root_rot, dof_pos = (
            numbers(content[key]).astype(np.float64) for key in ("root_pos", "root_rot", "dof_pos")
        )
    except MALFORMED as error:
        raise DataError(
            f"{path} is not a motion of GMR: {error} is wrong or missing; it has fps, root_pos, "
            "root_rot and dof_pos."
        ) from error
    if dof_pos.ndim != 2 or dof_pos.shape[1] != len(body.joints):
        raise DataError(
            f"{path}: dof_pos has the shape {dof_pos.shape}; {body.name} has {len(body.joints)} joints."
        )
    return Poses(fps, root_pos, root_rot, dof_pos, "xyzw")


# Checks ---------------------------------------------------------------------------------------------
def _check(path: Path, body: Body, poses: Poses) -> None:
    frames = len(poses.joint_pos)
    check_size(str(path), frames, len(body.joints))
    if not 2 <= frames <= MOST_FRAMES:
        raise DataError(f"{path} has {frames:,} frames; a motion has 2 to {MOST_FRAMES:,}.")
    if poses.root_pos.shape != (frames, 3) or poses.root_quat.shape != (frames, 4):
        shapes = f"{poses.root_pos.shape} and {poses.root_quat.shape}"
        raise DataError(f"{path}: the root's places and rotations have the shapes {shapes}, for {frames} frames.")
    for what, values in (("root", poses.root_pos), ("rotation", poses.root_quat), ("joints", poses.joint_pos)):
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            raise DataError(f"{path}: the {what} in frame {int(bad.argmax())} is not a finite number.")
    length = np.linalg.norm(poses.root_quat, axis=1)
    if np.abs(length - 1).max() > 0.05:
        frame = int(np.abs(length - 1).argmax())
        raise DataError(f"{path}: the root's rotation in frame {frame} is no unit quaternion; check the columns.")


def _w_first(path: Path, body: Body, poses: Poses) -> np.ndarray:
    """[frames, 4] w first. Tables differ in where w stands; the wrong reading lays the robot down or turns it.

    So the right one is told by what it leads to: a robot that stands upright, on feet that do not slide.
    """
    quats = poses.root_quat / np.linalg.norm(poses.root_quat, axis=1, keepdims=True)
    readings = {"wxyz": quats, "xyzw": quats[:, [3, 0, 1, 2]]}
    if poses.order:
        return _not_upside_down(path, poses.order, readings)
    if np.abs((readings["wxyz"] * readings["xyzw"]).sum(1)).min() > np.cos(_SAME / 2):
        return readings["wxyz"]
    upright = {order: float(np.median(_up(reading))) for order, reading in readings.items()}
    standing = [order for order, up in upright.items() if up > _UPRIGHT]
    if len(standing) == 1:
        return readings[standing[0]]
    slides = {order: _sliding(body, poses, readings[order]) for order in standing}
    if len(standing) == 2 and max(slides.values()) > _SLIDES_MORE * min(slides.values()):
        return readings[min(slides, key=lambda order: slides[order])]
    raise DataError(
        f"{path} does not say where the w of its quaternions stands, and neither reading is clearly right. "
        "Say it: ludus motions import … --quaternion wxyz (or xyzw)."
    )


def _not_upside_down(path: Path, order: str, readings: dict[str, np.ndarray]) -> np.ndarray:
    other = readings["xyzw" if order == "wxyz" else "wxyz"]
    if np.median(_up(readings[order])) < -_UPRIGHT < _UPRIGHT < np.median(_up(other)):
        raise DataError(
            f"{path}: read as {order} the robot stands on its head, read the other way on its feet. Say which is "
            "meant: ludus motions import … --quaternion wxyz (or xyzw)."
        )
    return readings[order]


def _up(quats: np.ndarray) -> np.ndarray:
    """[frames] how far up the root's z axis points, from −1 to 1."""
    return 1 - 2 * (quats[:, 1] ** 2 + quats[:, 2] ** 2)


def _sliding(body: Body, poses: Poses, quats: np.ndarray) -> float:
    """m/s, the median speed over the floor of the body's lowest point."""
    kinematics = body.kinematics
    positions, rotations = kinematics.forward(*map(torch.as_tensor, (poses.root_pos, quats, poses.joint_pos)))
    places = []
    for number in body.feet or range(len(body.bodies)):
        points, radii = kinematics.surface_of(number)
        if len(points):
            moved = positions[:, number, None] + rotate(rotations[:, number, None], points)
            places.append(torch.cat([moved[..., :2], moved[..., 2:] - radii[:, None]], dim=-1))
    surface = torch.cat(places, dim=1).numpy()  # [frames, points, 3]
    lowest = surface[:-1, :, 2].argmin(axis=1)
    rows = np.arange(len(lowest))
    step = surface[rows + 1, lowest, :2] - surface[rows, lowest, :2]
    return float(np.median(np.linalg.norm(step, axis=1)) * poses.fps) + 1e-6
