"""Motions that were recorded or made for the robot itself: CSV tables, npz files of trackers, GMR's pickles."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import rotate
from ludus.envs.humanoid.clip import MOST_FRAMES, Clip, check_clip
from ludus.envs.humanoid.importing.floor import put_on_floor
from ludus.envs.humanoid.importing.motion import MOST_POSES, check_size, read_source
from ludus.envs.humanoid.importing.pickles import numbers, unpickled
from ludus.envs.humanoid.importing.quaternions import ORDERS, read_as, sliding_of, w_first
from ludus.envs.humanoid.importing.table import ROOT, read_columns
from ludus.envs.humanoid.npz import read_npz
from ludus.envs.humanoid.seam import close_seam
from ludus.errors import MALFORMED, DataError

ROBOT_SUFFIXES = (".csv", ".npz", ".pkl", ".pickle")
CSV_FPS = 30.0  # of published tables, which do not say
_MOST_BYTES = 200_000_000
_MOST_VALUES = 4 * MOST_POSES
_MOST_NAMES = 1_000
_AGREES = 0.05  # m between bodies of a file and where its joints lead
_NO_WORSE = 1e-3  # m: a reading that is farther off by less is as good
_OTHER_ANGLE = 0.02  # rad: readings that differ by less are the same


class Poses(NamedTuple):
    """Of a robot, as a file has them."""

    fps: float
    root_pos: np.ndarray  # [frames, 3]
    root_quat: np.ndarray  # [frames, 4] in the file's order
    joint_pos: np.ndarray  # [frames, joints] in the body's order
    order: str = ""  # of root_quat: wxyz, xyzw; "" where the file's kind leaves it open


class _Told(NamedTuple):
    """What a tracker's npz says."""

    fps: float
    joints: np.ndarray  # [frames, joints]
    places: np.ndarray  # [frames, bodies, 3]
    turns: np.ndarray  # [frames, bodies, 4]
    order: list[int] | None  # where the body's joints stand, if it names them
    bodies: dict[int, int] | None  # where its bodies do, by their numbers


def import_robot_motion(
    path: Path, body: Body, name: str, fps: float | None = None, loop: bool | None = None, quaternion: str = ""
) -> Clip:
    """A clip of `body` out of a file for it. `quaternion`: wxyz or xyzw, goes before what the file looks like."""
    poses = _read(path, body, fps, quaternion)
    poses = poses._replace(fps=fps or poses.fps, order=quaternion or poses.order)
    _check(path, body, poses)
    clip = Clip(
        name=name,
        fps=poses.fps,
        root_pos=poses.root_pos,
        root_quat=w_first(path, poses.root_quat, poses.order, lambda quats: _sliding(body, poses, quats)),
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


def _read(path: Path, body: Body, fps: float | None, quaternion: str) -> Poses:
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _read_table(path, body, fps)
    return _read_npz(path, body, fps, quaternion) if suffix == ".npz" else _read_gmr(path, body)


# CSV ------------------------------------------------------------------------------------------------
def _read_table(path: Path, body: Body, fps: float | None) -> Poses:
    """Columns with names in any order; or without names, as Unitree has them: position, quaternion, joints."""
    expected = (
        f"{path} must have a first row that names {', '.join(ROOT)} and the {len(body.joints)} joints of "
        f"{body.name}, or no such row and {7 + len(body.joints)} columns: position, quaternion, joints in the "
        "model's order"
    )
    columns = read_columns(path, (*ROOT, *body.joints), expected, fps)
    rate = fps or columns.fps
    if rate is None and columns.named:
        raise DataError(
            f"{path} does not say its rate: add a column 'time' in seconds, or give 'ludus motions import' --fps, "
            "and follow the clip that it makes."
        )
    rate = rate or CSV_FPS
    values = columns.values
    return Poses(rate, values[:, :3], values[:, 3:7], values[:, 7:], "wxyz" if columns.named else "")


# npz ------------------------------------------------------------------------------------------------
def _read_npz(path: Path, body: Body, fps: float | None, quaternion: str) -> Poses:
    """BeyondMimic's and mjlab's motion.npz, which name nothing, and holosoma's, which name their joints."""
    wanted = ("fps", "joint_pos", "joint_names", "body_names", "body_pos_w", "body_quat_w")
    values = read_npz(path, wanted, _MOST_VALUES)
    if "joint_pos" not in values or (fps is None and "fps" not in values):
        raise DataError(
            f"{path} is neither a clip of Ludus nor a motion of BeyondMimic, mjlab or holosoma: they have fps and "
            "joint_pos."
        )
    joints, count = _array(path, values, "joint_pos", (None, None)), len(body.joints)
    fps = float(_array(path, values, "fps", None).ravel()[0]) if fps is None else fps
    order = _named_joints(path, body, values)
    if joints.shape[1] == 7 + count:  # holosoma's begin with the root
        own = list(range(count)) if order is None else order
        return Poses(fps, joints[:, :3], joints[:, 3:7], joints[:, 7:][:, own], "wxyz")
    if joints.shape[1] != count:
        raise DataError(f"{path} has {joints.shape[1]} joints; {body.name} has {count}.")
    if "body_pos_w" not in values or "body_quat_w" not in values:
        raise DataError(f"{path} lacks body_pos_w and body_quat_w of every frame, which tell where the root is.")
    places = _array(path, values, "body_pos_w", (len(joints), None, 3))
    turns = _array(path, values, "body_quat_w", (len(joints), places.shape[1], 4))
    told = _Told(fps, joints, places, turns, order, _named_bodies(path, body, values))
    return _with_found_orders(path, body, told, quaternion)


def _array(
    path: Path, values: dict[str, np.ndarray], name: str, shape: tuple[int | None, ...] | None
) -> np.ndarray:
    """An array of finite numbers. `shape`: None is any length; None instead of all is any shape with a number."""
    array = values[name]
    fits = array.size > 0 if shape is None else array.ndim == len(shape) and array.size > 0
    if fits and shape is not None:
        fits = all(wanted in (None, there) for wanted, there in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "fiu":
        raise DataError(f"{path}: {name} is {array.dtype} {list(array.shape)}, which a motion's is not.")
    if array.ndim > 1:
        check_size(f"{path}: {name}", *array.shape[:2])
    if not np.isfinite(array).all():
        raise DataError(f"{path}: {name} holds something that is not a finite number.")
    return array.astype(np.float64)


def _names(path: Path, values: np.ndarray) -> list[str]:
    if values.size > _MOST_NAMES:
        raise DataError(f"{path} holds {values.size:,} names; a robot has fewer.")
    return [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in values.ravel()]


def _named_joints(path: Path, body: Body, values: dict[str, np.ndarray]) -> list[int] | None:
    """Where each of the body's joints stands in the file; None where it names none."""
    if "joint_names" not in values:
        return None
    names = _names(path, values["joint_names"])
    missing = [name for name in body.joints if name not in names]
    if missing:
        raise DataError(f"{path} is of another robot than {body.name}: it lacks {', '.join(missing[:10])}.")
    if len(names) != len(body.joints):
        raise DataError(f"{path} has {len(names)} joint_names; {body.name} has {len(body.joints)} joints.")
    return [names.index(name) for name in body.joints]


def _named_bodies(path: Path, body: Body, values: dict[str, np.ndarray]) -> dict[int, int] | None:
    """By the numbers of the body's parts, where they stand in the file; None where it names none."""
    if "body_names" not in values:
        return None
    names = _names(path, values["body_names"])
    found = {number: names.index(name) for number, name in enumerate(body.bodies) if name in names}
    if 0 not in found:
        raise DataError(f"{path} is of another robot than {body.name}: it lacks the body {body.bodies[0]}.")
    if len(names) > values["body_pos_w"].shape[1]:
        raise DataError(f"{path} has {len(names)} body_names, but {values['body_pos_w'].shape[1]} bodies.")
    return found


def _with_found_orders(path: Path, body: Body, told: _Told, quaternion: str) -> Poses:
    """Files without names have the joints limb by limb, as MuJoCo, or level by level, as Isaac; and in a few the w
    of rotations stands last. Where the joints lead tells: to where the file says that the bodies are.
    """
    if told.bodies is None and told.places.shape[1] != len(body.bodies):
        if told.order is None:
            raise DataError(
                f"{path} does not name its joints, and has {told.places.shape[1]} bodies, {body.name} "
                f"{len(body.bodies)}: its order cannot be told. Add joint_names and body_names."
            )
        root = told.places[:, 0], told.turns[:, 0]
        return Poses(told.fps, *root, told.joints[:, told.order], quaternion or "wxyz")
    readings: list[tuple[float, Poses]] = []
    for joints, usual in orders_of(body).values():
        bodies = told.bodies or dict(enumerate(usual))
        root, angles = (told.places[:, bodies[0]], told.turns[:, bodies[0]]), told.joints[:, told.order or joints]
        for each in (quaternion,) if quaternion else ORDERS:
            poses = Poses(told.fps, *root, angles, each)
            readings.append((_off(body, poses, told.places, bodies), poses))
    off, best = min(readings, key=lambda reading: reading[0])
    if not off <= _AGREES:
        order = "as it names its joints" if told.order else f"in the order of {' or '.join(orders_of(body))}"
        doubt = f", or are its quaternions not {quaternion}" if quaternion else ""
        raise DataError(
            f"{path}: with its joints {order} the bodies are {100 * off:.0f} cm or more from where it says. Is it "
            f"of another robot than {body.name}{doubt}?"
        )
    rivals = [poses for other, poses in readings if other - off < _NO_WORSE]
    if any(np.abs(poses.joint_pos - best.joint_pos).max() > _OTHER_ANGLE for poses in rivals):
        raise DataError(
            f"{path} does not name its joints, and the bodies that it tells of are too few to find their order: "
            "add joint_names, or more body_names."
        )
    return best if all(poses.order == best.order for poses in rivals) else best._replace(order="")


def _off(body: Body, poses: Poses, places: np.ndarray, bodies: dict[int, int]) -> float:
    """m, the mean distance of bodies, by their columns in the file, to where the joints lead."""
    some = np.linspace(0, len(places) - 1, min(50, len(places))).astype(int)
    parts = poses.root_pos[some], read_as(poses.root_quat[some], poses.order), poses.joint_pos[some]
    leads = body.kinematics.forward(*map(torch.as_tensor, parts))[0].numpy()
    return float(np.linalg.norm(leads[:, list(bodies)] - places[some][:, list(bodies.values())], axis=-1).mean())


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
    if not places:
        return 0.0
    return sliding_of(torch.cat(places, dim=1).numpy(), poses.fps)
