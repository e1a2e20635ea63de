"""What every importer hands over, and how a clip is made of it: at one rate, an angle a hinge, on the floor."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies.rotations import slerp
from ludus.envs.humanoid.clip import FARTHEST, Clip, check_clip
from ludus.envs.humanoid.importing.floor import put_on_floor
from ludus.envs.humanoid.importing.hinges import hinge_angles
from ludus.envs.humanoid.importing.skeleton import HINGES
from ludus.envs.humanoid.seam import close_seam
from ludus.errors import DataError, LudusError
from ludus.files import read_bounded

FPS = 60.0  # of every imported clip
MAX_SECONDS = 3600.0
MOST_JOINTS = 1000
MOST_POSES = 4_000_000  # of single joints: half an hour of a body with 38, at 60 frames a second
HELD_SHARE = 0.4  # of poses that equal the one before: a lower rate stored as a higher one
_SAME = 1e-5
_MOST_TEXT_BYTES = 50_000_000  # an hour of a robot's motion has 40
_LONGEST_LINE = 100_000  # characters: a thousand joints with six numbers each


@dataclass(frozen=True)
class Motion:
    """Poses of our humanoid at the times of the source, each joint still a rotation. All float64."""

    times: Tensor  # [keys] s, from 0
    root_pos: Tensor  # [keys, 3]
    root_quat: Tensor  # [keys, 4]
    balls: dict[str, Tensor]  # joint with three hinges → [keys, 4], relative to its parent
    hinges: dict[str, Tensor]  # joint with one hinge → [keys] rad
    loop: bool = False


def read_source(path: Path, most_bytes: int) -> bytes:
    """All of a source's file, with a sentence where it cannot be one."""
    try:
        return read_bounded(path, most_bytes)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    except LudusError as error:
        raise DataError(f"{error} Cut it into shorter motions, if it is one.") from error


def read_text(path: Path) -> str:
    try:
        return read_source(path, _MOST_TEXT_BYTES).decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text, though its name says so.") from error


def check_size(where: str, frames: int, joints: int) -> None:
    """Before poses are worked out, which takes a hundred times the memory of the file."""
    if joints > MOST_JOINTS:
        raise DataError(f"{where} has {joints:,} joints; a body that is read here has at most {MOST_JOINTS:,}.")
    if frames * joints > MOST_POSES:
        raise DataError(f"{where} has {frames:,} frames of {joints:,} joints; cut it into shorter motions.")


def short_lines(path: Path, lines: list[str]) -> list[str]:
    """The same lines; refused where one is longer than any row of numbers."""
    for number, line in enumerate(lines, 1):
        if len(line) > _LONGEST_LINE:
            raise DataError(f"{path}: line {number} has {len(line):,} characters; a row of a motion has fewer.")
    return lines


def whole_rate(rate: float) -> float:
    """Frames a second: files round times, and 0.033333 s means 30."""
    return float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else rate


def make_clip(motion: Motion, name: str, source: str, where: str, on_floor: bool = True) -> Clip:
    """`where` names the source in errors; `on_floor` False leaves the heights as they are."""
    _check(motion, where)
    motion = resample(without_held_poses(motion), FPS)
    clip = Clip(
        name=name,
        fps=FPS,
        root_pos=motion.root_pos.numpy(),
        root_quat=motion.root_quat.numpy(),
        joint_pos=joint_angles(motion),
        loop=motion.loop,
        source=source,
    )
    check_clip(clip, where)
    clip = close_seam(clip)
    return put_on_floor(clip) if on_floor else clip


def joint_angles(motion: Motion) -> np.ndarray:
    """[frames, 28] in the order of the humanoid's joints."""
    columns = []
    for joint, order in HINGES.items():
        if joint in motion.balls:
            columns.append(hinge_angles(motion.balls[joint], joint, order))
        else:
            columns.append(motion.hinges[joint].numpy()[:, None])
    return np.concatenate(columns, axis=1)


def _check(motion: Motion, where: str) -> None:
    """What resampling and the hinges rely on; a broken number is told with its frame."""
    if len(motion.times) < 2:
        raise DataError(f"{where} has {len(motion.times)} frames; a motion needs at least 2.")
    parts = [motion.times, motion.root_pos, motion.root_quat, *motion.balls.values(), *motion.hinges.values()]
    bad = ~torch.stack([part.reshape(len(motion.times), -1).isfinite().all(dim=1) for part in parts]).all(dim=0)
    if bad.any():
        raise DataError(f"{where}: frame {int(bad.int().argmax())} holds something that is not a finite number.")
    far = torch.stack([part.reshape(len(motion.times), -1).abs().amax(dim=1) for part in parts[1:]]).amax(dim=0)
    if float(far.max()) > FARTHEST:
        raise DataError(f"{where}: frame {int(far.argmax())} holds a number beyond {FARTHEST:g}.")
    if (motion.times.diff() < 0).any() or float(motion.times[-1]) < 1 / FPS:
        seconds = float(motion.times[-1])
        raise DataError(
            f"{where} lasts {seconds:g} s; times must rise and the clip last at least {1 / FPS:.3f} s."
        )
    if float(motion.times[-1]) > MAX_SECONDS:
        raise DataError(f"{where} lasts over {MAX_SECONDS:g} s; cut it, or say its rate with --fps.")


def without_held_poses(motion: Motion) -> Motion:
    """Where every pose is stored twice or more often, each once: held poses move by jerks.

    CMU's clips of AMP are such: 30 poses a second, said to be 60. Poses of someone who stands still remain.
    """
    parts = [motion.root_pos, motion.root_quat, *motion.balls.values(), *motion.hinges.values()]
    values = torch.cat([part.reshape(len(motion.times), -1) for part in parts], dim=1)
    new = torch.ones(len(values), dtype=torch.bool)
    new[1:] = values.diff(dim=0).abs().amax(dim=1) > _SAME
    held = torch.nonzero(new)[:, 0].diff()
    if int(new.sum()) < 3 or float((~new).double().mean()) < HELD_SHARE or int(held.max()) > 4:
        return motion
    return Motion(
        times=motion.times[new],
        root_pos=motion.root_pos[new],
        root_quat=motion.root_quat[new],
        balls={joint: quats[new] for joint, quats in motion.balls.items()},
        hinges={joint: angles[new] for joint, angles in motion.hinges.items()},
        loop=motion.loop,
    )


def resample(motion: Motion, fps: float) -> Motion:
    """At a constant rate. A loop keeps its last pose, at the cost of half a frame's difference in length."""
    length = float(motion.times[-1])
    frames = round(length * fps) if motion.loop else int(length * fps + 1e-3)
    frames = max(frames, 1)
    end = length if motion.loop else min(frames / fps, length)
    wanted = torch.linspace(0, end, frames + 1, dtype=torch.float64)
    after = torch.searchsorted(motion.times, wanted).clamp(1, len(motion.times) - 1)
    before = after - 1
    gap = (motion.times[after] - motion.times[before]).clamp(min=1e-9)
    share = ((wanted - motion.times[before]) / gap).clamp(0, 1)

    def line(values: Tensor) -> Tensor:
        weight = share.reshape(-1, *[1] * (values.ndim - 1))
        return values[before] * (1 - weight) + values[after] * weight

    def arc(quats: Tensor) -> Tensor:
        quats = quats / torch.linalg.vector_norm(quats, dim=-1, keepdim=True)
        return slerp(quats[before], quats[after], share)

    return Motion(
        times=torch.arange(frames + 1, dtype=torch.float64) / fps,
        root_pos=line(motion.root_pos),
        root_quat=arc(motion.root_quat),
        balls={joint: arc(quats) for joint, quats in motion.balls.items()},
        hinges={joint: line(angles) for joint, angles in motion.hinges.items()},
        loop=motion.loop,
    )
