"""A clip of motion: how it is kept in a file, and what must be true of it. Plain npz; nothing is unpickled."""

import io
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ludus.envs.humanoid.body import BODIES, JOINTS
from ludus.envs.humanoid.npz import read_npz
from ludus.errors import DataError, plain_text
from ludus.files import write_whole

FORMAT = "ludus-motion-1"
MOST_FRAMES = 500_000
FARTHEST = 1e5  # m or rad: what is beyond is no motion, and no simulation can follow it
_TEXTS = ("source", "licence")
_NUMBERS = ("fps", "loop", "height_fix", "root_pos", "root_quat", "joint_pos")
_WANTED = ("format", *_TEXTS, "body_names", "joint_names", *_NUMBERS)
_MOST_VALUES = MOST_FRAMES * len(JOINTS)
_MOST_TEXT = 1000  # characters of a source or licence


@dataclass(frozen=True)
class Clip:
    """Poses of the humanoid at a fixed rate. The last pose of a looping clip is the first of the next cycle."""

    name: str
    fps: float
    root_pos: np.ndarray  # [frames, 3] m
    root_quat: np.ndarray  # [frames, 4] w first
    joint_pos: np.ndarray  # [frames, 28] rad, in the order of body.JOINTS, without jumps of 2π
    loop: bool = False
    height_fix: float = 0.0  # m, the most that importing has lifted (+) or lowered (−) a pose
    source: str = ""
    licence: str = ""

    @property
    def frames(self) -> int:
        return len(self.root_pos)

    @property
    def qpos(self) -> np.ndarray:
        """[frames, 35] the poses as MuJoCo has them."""
        return np.concatenate([self.root_pos, self.root_quat, self.joint_pos], axis=1)

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
        body_names=np.array(BODIES),
        joint_names=np.array(JOINTS),
        root_pos=clip.root_pos.astype(np.float32),
        root_quat=clip.root_quat.astype(np.float32),
        joint_pos=clip.joint_pos.astype(np.float32),
    )
    write_whole(path, packed.getvalue())


def load_clip(path: Path) -> Clip:
    """The clip in a file, whose name is the clip's; a clear error where something is wrong with it."""
    values = read_npz(path, _WANTED, _MOST_VALUES)
    if str(values.get("format")) != FORMAT:
        raise DataError(
            f"{path} is not a clip of Ludus ({FORMAT}). If another program made it, export it as BVH or CSV: "
            "'ludus motions import' reads those."
        )
    missing = [name for name in _WANTED if name not in values]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}: it is not whole.")
    words = [name for name in _NUMBERS if values[name].dtype.kind not in "biuf"]
    if words:
        raise DataError(f"{path}: {words[0]} is {values[words[0]].dtype}, not numbers.")
    _check_names(path, "bodies", values["body_names"], BODIES)
    _check_names(path, "joints", values["joint_names"], JOINTS)
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
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{path} is not a clip of motion: {error}") from error
    check_clip(clip, str(path))
    return with_unit_rotations(clip)


def with_unit_rotations(clip: Clip) -> Clip:
    """The same clip: files are rounded, but a heading or a product takes rotations to be of unit length."""
    return replace(clip, root_quat=clip.root_quat / np.linalg.norm(clip.root_quat, axis=1, keepdims=True))


def _check_names(path: Path, what: str, found: np.ndarray, wanted: tuple[str, ...]) -> None:
    names = [str(name) for name in found.ravel()]
    if names == list(wanted):
        return
    if sorted(names) == sorted(wanted):
        raise DataError(f"{path} has the humanoid's {what} in another order; import it anew from its source.")
    extra, missing = sorted(set(names) - set(wanted))[:20], sorted(set(wanted) - set(names))
    told = [f"has {', '.join(extra)}"] * bool(extra) + [f"lacks {', '.join(missing)}"] * bool(missing)
    raise DataError(f"{path} is of another body: among its {what} it {' and '.join(told)}.")


def check_clip(clip: Clip, where: str) -> None:
    """What must be true of every clip; `ludus motions check` looks for what is merely suspicious."""
    if clip.root_pos.ndim != 2:
        raise DataError(f"{where}: root_pos has the shape {clip.root_pos.shape}; it must be (frames, 3).")
    if clip.frames > MOST_FRAMES:
        raise DataError(f"{where} has {clip.frames:,} frames; cut it into clips of at most {MOST_FRAMES:,}.")
    if clip.frames < 2:
        raise DataError(f"{where} has {clip.frames} frames; a motion needs at least 2.")
    shapes = {"root_pos": (clip.frames, 3), "root_quat": (clip.frames, 4), "joint_pos": (clip.frames, len(JOINTS))}
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
