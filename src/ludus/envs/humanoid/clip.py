"""A clip of motion: how it is kept in a file, and what must be true of it. Plain npz; nothing is unpickled."""

import hashlib
import io
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body, find_body
from ludus.envs.bodies.body import SHIPPED_BODIES
from ludus.envs.bodies.mirror import mirror_of
from ludus.envs.humanoid.npz import read_npz
from ludus.errors import ConfigError, DataError, plain_text
from ludus.files import write_whole

FORMAT = "ludus-motion-1"
MOST_FRAMES = 500_000
FARTHEST = 1e5  # m or rad: what is beyond is no motion, and no simulation can follow it
_TEXTS = ("source", "licence")
_NUMBERS = ("fps", "loop", "height_fix", "root_pos", "root_quat", "joint_pos")
_WANTED = ("format", *_TEXTS, "body_names", "joint_names", *_NUMBERS)
_OLDEST_BODY = "humanoid"  # of clips from before there were others
_MOST_VALUES = 15_000_000  # of one part: half a million frames of a robot with 30 joints
_MOST_TEXT = 1000  # characters of a source or licence


class UnknownBodyError(DataError):
    """A clip of a body that is not here."""

    def __init__(self, told: str, body: str) -> None:
        super().__init__(told)
        self.body = body


@dataclass(frozen=True)
class Clip:
    """Poses of a body at a fixed rate. The last pose of a looping clip is the first of the next cycle."""

    name: str
    fps: float
    root_pos: np.ndarray  # [frames, 3] m
    root_quat: np.ndarray  # [frames, 4] w first
    joint_pos: np.ndarray  # [frames, joints] rad, in the order of the body's joints, without jumps of 2π
    loop: bool = False
    height_fix: float = 0.0  # m, the most that importing has lifted (+) or lowered (−) a pose
    source: str = ""
    licence: str = ""
    body: Body = field(default_factory=lambda: find_body("humanoid"))

    @property
    def frames(self) -> int:
        return len(self.root_pos)

    @property
    def qpos(self) -> np.ndarray:
        """[frames, 7 + joints] the poses as MuJoCo has them."""
        return np.concatenate([self.root_pos, self.root_quat, self.joint_pos], axis=1)

    def bodies(self) -> tuple[Tensor, Tensor]:
        """([frames, bodies, 3] positions, [frames, bodies, 4] rotations) of all bodies, in the world."""
        root_pos, root_quat, joint_pos = map(torch.as_tensor, (self.root_pos, self.root_quat, self.joint_pos))
        return self.body.kinematics.forward(root_pos, root_quat, joint_pos)

    @property
    def duration(self) -> float:
        """Seconds from the first pose to the last."""
        return (self.frames - 1) / self.fps


def save_clip(clip: Clip, path: Path) -> None:
    check_clip(clip, clip.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    np.savez_compressed(
        packed,
        format=np.array(FORMAT),
        fps=np.array(clip.fps),
        loop=np.array(clip.loop),
        height_fix=np.array(clip.height_fix),
        source=np.array(clip.source),
        licence=np.array(clip.licence),
        body=np.array(clip.body.name),
        body_names=np.array(clip.body.bodies),
        joint_names=np.array(clip.body.joints),
        root_pos=clip.root_pos.astype(np.float32),
        root_quat=clip.root_quat.astype(np.float32),
        joint_pos=clip.joint_pos.astype(np.float32),
    )
    write_whole(path, packed.getvalue())


def load_clip(path: Path, body: Body | None = None) -> Clip:
    """The clip in a file, whose name is the clip's; a clear error where something is wrong with it.

    `body`: whose clip it must be; by default the one that comes with Ludus and that the file names.
    """
    values = read_npz(path, (*_WANTED, "body"), _MOST_VALUES)
    if str(values.get("format")) != FORMAT:
        raise DataError(
            f"{path} is not a clip of Ludus ({FORMAT}). If it is a robot's, say of which: --body g1. If another "
            "program made it, export it as BVH or CSV: 'ludus motions import' reads those."
        )
    missing = [name for name in _WANTED if name not in values]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}: it is not whole.")
    words = [name for name in _NUMBERS if values[name].dtype.kind not in "biuf"]
    if words:
        raise DataError(f"{path}: {words[0]} is {values[words[0]].dtype}, not numbers.")
    body = body or _named_body(path, values)
    _check_names(path, body, "bodies", values["body_names"], body.bodies)
    _check_names(path, body, "joints", values["joint_names"], body.joints)
    try:
        clip = Clip(
            name=path.stem,
            fps=float(values["fps"]),
            root_pos=values["root_pos"].astype(np.float64),
            root_quat=values["root_quat"].astype(np.float64),
            joint_pos=values["joint_pos"].astype(np.float64),
            loop=bool(values["loop"]),
            height_fix=float(values["height_fix"]),
            source=plain_text(str(values["source"]), _MOST_TEXT),
            licence=plain_text(str(values["licence"]), _MOST_TEXT),
            body=body,
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is not a clip of motion: {error}") from error
    check_clip(clip, str(path))
    return with_unit_rotations(clip)


def is_clip_of_another(path: Path, body: Body) -> bool:
    """Whether it is of another body, and one that comes with Ludus: then it can be brought onto this one."""
    values = read_npz(path, ("body", "body_names", "joint_names"), _MOST_VALUES)
    names = [
        [str(name) for name in values.get(part, np.zeros(0)).ravel()] for part in ("body_names", "joint_names")
    ]
    if names == [list(body.bodies), list(body.joints)]:
        return False
    return str(values.get("body", _OLDEST_BODY)) in SHIPPED_BODIES and _named_body(path, values) is not body


def with_unit_rotations(clip: Clip) -> Clip:
    """The same clip: files are rounded, but a heading or a product takes rotations to be of unit length."""
    return replace(clip, root_quat=clip.root_quat / np.linalg.norm(clip.root_quat, axis=1, keepdims=True))


def motion_of(clip: Clip) -> bytes:
    """The same for two clips of one motion, whatever they are called, where they stand and how fast they are."""
    poses = np.concatenate([clip.root_pos[:, 2:], clip.joint_pos], axis=1)
    return hashlib.sha256((np.round(poses, 3) + 0.0).tobytes()).digest()  # + 0: there are two zeros


MIRRORED = "~mirrored"  # after the name of a clip


def mirrored(clip: Clip) -> Clip:
    """The same motion with left and right exchanged; refused of a body that is not symmetric."""
    qpos = mirror_of(clip.body).qpos(clip.qpos)
    parts = {"root_pos": qpos[:, :3], "root_quat": qpos[:, 3:7], "joint_pos": qpos[:, 7:]}
    return replace(clip, name=clip.name + MIRRORED, **parts)  # type: ignore[arg-type]


def _named_body(path: Path, values: dict[str, np.ndarray]) -> Body:
    """The body that a file names; never another file that a stranger's clip would have read."""
    name = plain_text(str(values.get("body", _OLDEST_BODY)), 100)
    if name not in SHIPPED_BODIES:
        told = f"{path} is of the body {name}, which does not come with Ludus: give its file, --body FILE."
        raise UnknownBodyError(told, name)
    try:
        return find_body(name)
    except ConfigError as error:  # its model is not installed
        raise UnknownBodyError(f"{path} is of the body {name}. {error}", name) from error


def _check_names(path: Path, body: Body, what: str, found: np.ndarray, wanted: tuple[str, ...]) -> None:
    names = [str(name) for name in found.ravel()]
    if names == list(wanted):
        return
    if sorted(names) == sorted(wanted):
        raise DataError(f"{path} has the {what} of {body.name} in another order; import it anew from its source.")
    extra, missing = sorted(set(names) - set(wanted))[:10], sorted(set(wanted) - set(names))[:10]
    told = [f"has {', '.join(extra)}"] * bool(extra) + [f"lacks {', '.join(missing)}"] * bool(missing)
    raise DataError(
        f"{path} is of another body than {body.name}: among its {what} it {' and '.join(told)}. Give its own body "
        "(--body), or import its source for this one."
    )


def check_clip(clip: Clip, where: str) -> None:
    """What must be true of every clip; `ludus motions check` looks for what is merely suspicious."""
    if clip.root_pos.ndim != 2:
        raise DataError(f"{where}: root_pos has the shape {clip.root_pos.shape}; it must be (frames, 3).")
    if clip.frames > MOST_FRAMES:
        raise DataError(f"{where} has {clip.frames:,} frames; cut it into clips of at most {MOST_FRAMES:,}.")
    if clip.frames < 2:
        raise DataError(f"{where} has {clip.frames} frames; a motion needs at least 2.")
    joints = len(clip.body.joints)
    shapes = {"root_pos": (clip.frames, 3), "root_quat": (clip.frames, 4), "joint_pos": (clip.frames, joints)}
    for name, shape in shapes.items():
        values = getattr(clip, name)
        if values.shape != shape:
            raise DataError(f"{where}: {name} has the shape {values.shape}; it must be {shape}.")
        bad = ~np.isfinite(values).all(axis=1)
        if bad.any():
            raise DataError(f"{where}: {name} is not a finite number in frame {int(bad.argmax())}.")
        far = np.abs(values).max(axis=1) > FARTHEST
        if far.any():
            raise DataError(f"{where}: {name} is beyond {FARTHEST:g} in frame {int(far.argmax())}.")
    if not 1 <= clip.fps <= 1000:
        raise DataError(f"{where} has {clip.fps:g} frames a second; it must be from 1 to 1000.")
    if not abs(clip.height_fix) <= FARTHEST:
        raise DataError(f"{where}: height_fix is {clip.height_fix:g}, which no import has moved a pose by.")
    length = np.linalg.norm(clip.root_quat, axis=1)
    if np.abs(length - 1).max() > 1e-2:
        frame = int(np.abs(length - 1).argmax())
        raise DataError(f"{where}: the root's rotation in frame {frame} is no unit quaternion.")
