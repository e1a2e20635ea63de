"""DeepMimic's clips of humanoid3d: JSON, y up, z to the right, arms hanging at zero; the bones are ours."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ludus.envs.bodies.rotations import multiply
from ludus.envs.humanoid.importing.hinges import turn
from ludus.envs.humanoid.importing.motion import Motion, check_size
from ludus.errors import DataError, plain_text
from ludus.files import parse_json

_LAYOUT = (
    ("duration", 1), ("root_pos", 3), ("root_quat", 4), ("abdomen", 4), ("neck", 4), ("right_hip", 4),
    ("right_knee", 1), ("right_ankle", 4), ("right_shoulder", 4), ("right_elbow", 1), ("left_hip", 4),
    ("left_knee", 1), ("left_ankle", 4), ("left_shoulder", 4), ("left_elbow", 1),
)  # fmt: skip
_MOST_CHARACTERS = 20_000_000  # twelve minutes; what is written in few may take a hundred times the memory
_COLUMNS = sum(size for _, size in _LAYOUT)
_SIGNS = {"right_knee": -1, "left_knee": -1, "left_elbow": -1, "right_elbow": 1}
# Our zero is a T-pose: from there to hanging arms.
_ARMS = {"right_shoulder": turn("x", 90), "left_shoulder": turn("x", -90)}


def read_deepmimic(path: Path, text: str) -> Motion:
    try:
        if len(text) > _MOST_CHARACTERS:
            raise DataError(f"{path} has {len(text):,} characters, more than a clip of DeepMimic.")
        content = parse_json(text)
    except ValueError as error:
        raise DataError(
            f"{path} is not JSON: {error}. If a download was cut off, fetch it again; if it is no motion, move it "
            "away from those that are."
        ) from error
    columns = dict(zip((name for name, _ in _LAYOUT), _columns(path, content), strict=True))
    durations = columns["duration"][:-1, 0]  # the last pose has none: it ends the clip
    if (durations < 0).any():
        raise DataError(f"{path}: frame {int((durations < 0).int().argmax())} has a negative duration.")
    times = torch.cat([torch.zeros(1, dtype=torch.float64), durations.cumsum(0)])
    balls = {name: _unit(path, name, _turn_axes(columns[name])) for name, size in _LAYOUT[3:] if size == 4}
    for shoulder, arms_down in _ARMS.items():
        balls[shoulder] = multiply(balls[shoulder], arms_down.expand_as(balls[shoulder]))
    return Motion(
        times=times,
        root_pos=_turn_axes(columns["root_pos"]),
        root_quat=_unit(path, "the root", _turn_axes(columns["root_quat"])),
        balls=balls,
        hinges={name: sign * columns[name][:, 0] for name, sign in _SIGNS.items()},
        loop=_loop(path, content),
    )


def _columns(path: Path, content: Any) -> list[Tensor]:
    frames = content.get("Frames") if isinstance(content, dict) else None
    if not isinstance(frames, list) or not frames:
        raise DataError(f"{path} has no 'Frames': it is not a clip of DeepMimic, or an empty one.")
    check_size(str(path), len(frames), 15)
    for i, frame in enumerate(frames):
        if not isinstance(frame, list) or len(frame) != _COLUMNS:
            size = len(frame) if isinstance(frame, list) else "no"
            raise DataError(f"{path}: frame {i} has {size} numbers; humanoid3d has {_COLUMNS}.")
        if not all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in frame):
            raise DataError(f"{path}: frame {i} holds something that is not a number.")
    try:
        table = torch.tensor([[float(value) for value in frame] for frame in frames], dtype=torch.float64)
    except OverflowError as error:
        raise DataError(f"{path} holds a number too large to be one of a motion.") from error
    if not table.isfinite().all():
        frame = int((~table.isfinite().all(dim=1)).int().argmax())
        raise DataError(f"{path}: frame {frame} holds something that is not a finite number.")
    return list(table.split([size for _, size in _LAYOUT], dim=1))


def _turn_axes(values: Tensor) -> Tensor:
    """From y up to z up: vectors [..., 3], and rotations [..., 4] whose axis is such a vector."""
    *w, x, y, z = values.unbind(-1)
    return torch.stack([*w, x, -z, y], dim=-1)


def _unit(path: Path, name: str, quats: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(quats, dim=-1, keepdim=True)
    if float((length - 1).abs().max()) > 0.5:  # the published clips are off by up to 0.1
        frame = int((length - 1).abs().argmax())
        raise DataError(f"{path}: the rotation of {name} in frame {frame} is no unit quaternion.")
    return quats / length


def _loop(path: Path, content: dict[str, Any]) -> bool:
    loop = content.get("Loop", "none")
    if loop not in ("wrap", "none", True, False):
        raise DataError(f"{path}: 'Loop' is {plain_text(repr(loop), 60)}; it must be 'wrap' or 'none'.")
    return loop in ("wrap", True)
