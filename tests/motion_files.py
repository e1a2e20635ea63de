"""Small files of motion in other formats, and slow kinematics of their own to measure imports against."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

SHARED = Path(__file__).parents[2] / "shared" / "motions"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder of shared motions is not here")
DEEPMIMIC = sorted((SHARED / "deepmimic").glob("*.txt"))
DEEPMIMIC = [path for path in DEEPMIMIC if path.stem.startswith("humanoid3d_")]
CMU = sorted((SHARED / "amp_cmu").glob("*.npy"))
G1 = sorted((SHARED / "g1_kimodo").glob("*.csv"))

Skeleton = Sequence[tuple[str, str, tuple[float, float, float]]]  # joint, its parent, offset

# Standing in a T-pose at zero, y up, facing z, in inches or so.
CMU_SKELETON: Skeleton = (
    ("Hips", "", (0, 0, 0)),
    ("LHipJoint", "Hips", (0, 0, 0)), ("LeftUpLeg", "LHipJoint", (1.7, -1.7, 0.8)),
    ("LeftLeg", "LeftUpLeg", (2.2, -6.4, 0)), ("LeftFoot", "LeftLeg", (2.3, -6.7, 0)),
    ("LeftToeBase", "LeftFoot", (0.2, -0.5, 2)),
    ("RHipJoint", "Hips", (0, 0, 0)), ("RightUpLeg", "RHipJoint", (-1.7, -1.7, 0.8)),
    ("RightLeg", "RightUpLeg", (-2.2, -6.4, 0)), ("RightFoot", "RightLeg", (-2.3, -6.7, 0)),
    ("RightToeBase", "RightFoot", (-0.2, -0.5, 2)),
    ("LowerBack", "Hips", (0, 0, 0)), ("Spine", "LowerBack", (0, 2.2, 0)), ("Spine1", "Spine", (0, 2.2, -0.1)),
    ("Neck", "Spine1", (0, 0, 0)), ("Neck1", "Neck", (0, 1.4, 0.2)), ("Head", "Neck1", (0, 1.4, -0.2)),
    ("LeftShoulder", "Spine1", (0, 0, 0)), ("LeftArm", "LeftShoulder", (3.2, 0.9, 0)),
    ("LeftForeArm", "LeftArm", (5, 0, 0)), ("LeftHand", "LeftForeArm", (3.4, 0, 0)),
    ("RightShoulder", "Spine1", (0, 0, 0)), ("RightArm", "RightShoulder", (-3.2, 0.9, 0)),
    ("RightForeArm", "RightArm", (-5, 0, 0)), ("RightHand", "RightForeArm", (-3.4, 0, 0)),
)  # fmt: skip
# All bones along x at zero, in cm: legs and arms have to be turned to stand.
LAFAN_SKELETON: Skeleton = (
    ("Hips", "", (0, 0, 0)),
    ("LeftUpLeg", "Hips", (0, 1.8, 10)), ("LeftLeg", "LeftUpLeg", (43, 0, 0)), ("LeftFoot", "LeftLeg", (42, 0, 0)),
    ("LeftToe", "LeftFoot", (17, 0, 0)),
    ("RightUpLeg", "Hips", (0, 1.8, -10)), ("RightLeg", "RightUpLeg", (43, 0, 0)),
    ("RightFoot", "RightLeg", (42, 0, 0)), ("RightToe", "RightFoot", (17, 0, 0)),
    ("Spine", "Hips", (7, -2, 0)), ("Spine1", "Spine", (12, 0, 0)), ("Spine2", "Spine1", (12, 0, 0)),
    ("Neck", "Spine2", (25, 0, 0)), ("Head", "Neck", (12, 0, 0)),
    ("LeftShoulder", "Spine2", (20, -1.5, 6)), ("LeftArm", "LeftShoulder", (11, 0, 0)),
    ("LeftForeArm", "LeftArm", (33, 0, 0)), ("LeftHand", "LeftForeArm", (25, 0, 0)),
    ("RightShoulder", "Spine2", (20, -1.5, -6)), ("RightArm", "RightShoulder", (11, 0, 0)),
    ("RightForeArm", "RightArm", (33, 0, 0)), ("RightHand", "RightForeArm", (25, 0, 0)),
)  # fmt: skip
# Degrees about z, y, x that make the second one stand, arms aside, facing z.
LAFAN_STANCE = {
    "Hips": (90, 0, 90), "LeftUpLeg": (0, 180, 0), "RightUpLeg": (0, 180, 0),
    "LeftFoot": (65, 0, 0), "RightFoot": (65, 0, 0), "LeftShoulder": (180, -90, 0), "RightShoulder": (180, 90, 0),
}  # fmt: skip


def matrix(axis: str, degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return {
        "x": np.array([[1, 0, 0], [0, c, -s], [0, s, c]]),
        "y": np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]),
        "z": np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]),
    }[axis]


def quat_matrix(wxyz: np.ndarray) -> np.ndarray:
    w, x, y, z = wxyz / np.linalg.norm(wxyz)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def write_bvh(
    path: Path, skeleton: Skeleton, frames: Sequence[Mapping[str, tuple[float, float, float]]], fps: float
) -> Path:
    """`frames`: degrees about z, y, x a joint; "root" is its position."""
    lines = ["HIERARCHY", *_tree(skeleton, "")]
    lines += ["MOTION", f"Frames: {len(frames)}", f"Frame Time: {1 / fps:.7f}"]
    for frame in frames:
        values = [*frame.get("root", (0, 0, 0))]
        values += [value for name in _in_tree_order(skeleton, "") for value in frame.get(name, (0, 0, 0))]
        lines.append(" ".join(f"{value:.6f}" for value in values))
    path.write_text("\n".join(lines) + "\n")
    return path


def _in_tree_order(skeleton: Skeleton, parent: str) -> list[str]:
    return [n for name, above, _ in skeleton if above == parent for n in (name, *_in_tree_order(skeleton, name))]


def _tree(skeleton: Skeleton, parent: str) -> list[str]:
    lines = []
    for name, _, offset in (joint for joint in skeleton if joint[1] == parent):
        position = "" if parent else "Xposition Yposition Zposition "
        below = _tree(skeleton, name) or ["End Site", "{", "OFFSET 1 0 0", "}"]
        lines += [f"JOINT {name}" if parent else f"ROOT {name}", "{", "OFFSET " + " ".join(map(str, offset))]
        lines += [f"CHANNELS {6 if position else 3} {position}Zrotation Yrotation Xrotation", *below, "}"]
    return lines


def bvh_positions(skeleton: Skeleton, frame: dict[str, tuple[float, float, float]]) -> dict[str, np.ndarray]:
    """Where the joints are, in our axes (z up, x forward), in the file's unit."""
    positions: dict[str, np.ndarray] = {}
    turns: dict[str, np.ndarray] = {"": np.eye(3)}
    for name, parent, offset in skeleton:
        z, y, x = frame.get(name, (0, 0, 0))
        start = positions[parent] if parent else np.array(frame.get("root", (0, 0, 0)), dtype=float)
        positions[name] = start + turns[parent] @ np.array(offset) * bool(parent)
        turns[name] = turns[parent] @ matrix("z", z) @ matrix("y", y) @ matrix("x", x)
    return {name: position[[2, 0, 1]] for name, position in positions.items()}
