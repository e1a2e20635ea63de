"""A body seen as a human: which of its bodies stand for which parts, how long they are, which way they bend."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.errors import ConfigError

SIDES = ("left", "right")
LIMBS = (("hip", "knee", "foot"), ("shoulder", "elbow", "hand"))
_NEEDED = ("pelvis", *(f"{side}_{part}" for side in SIDES for part in LIMBS[0]))
_SHORTEST = 1e-3  # m, of a bone that has a direction
_ANGLES = 181  # tried of a knee or elbow, to find where it is straight


@dataclass(frozen=True)
class Figure:
    body: Body
    parts: dict[str, int]  # part of a human → its body
    rest: Tensor  # [bodies, 4] rotations where it stands upright
    leg: float  # m from the hip over the knee to the foot
    lengths: dict[tuple[str, str], float]  # m, of bones
    hips: dict[str, Tensor]  # side → [3] from the middle between the hips, where it stands upright
    ankle: float  # m from the sole to the foot's origin
    bends: dict[str, Tensor]  # knee or elbow with one hinge → [3] its axis in its body's frame; + bends it


@lru_cache(maxsize=8)
def figure_of(body: Body) -> Figure:
    """A sentence where the body's file does not say what is needed."""
    _check(body)
    pose = torch.as_tensor(body.default_qpos)
    positions, rotations = body.kinematics.forward(pose[:3], pose[3:7], pose[7:])
    parts = body.human
    limbs = [[f"{side}_{part}" for part in limb] for side in SIDES for limb in LIMBS]
    bones = [pair for limb in limbs for pair in pairwise(limb) if {*pair} <= {*parts}]
    lengths = {
        (upper, lower): float(torch.linalg.vector_norm(positions[parts[lower]] - positions[parts[upper]]))
        for upper, lower in bones
    }
    for (upper, lower), length in lengths.items():
        if length < _SHORTEST:
            raise ConfigError(
                f"{body.file}: [human] has {upper} and {lower} at the same place: name bodies at the two ends of "
                "the bone."
            )
    middle = (positions[parts["left_hip"]] + positions[parts["right_hip"]]) / 2
    feet = [parts[f"{side}_foot"] for side in SIDES]
    lowest = body.kinematics.lowest_points(positions, rotations)[feet]
    heights = torch.where(lowest.isfinite(), positions[feet, 2] - lowest, 0.0)
    bends = {limb[1]: _bend(body, *(parts[part] for part in limb)) for limb in limbs if {*limb} <= {*parts}}
    return Figure(
        body=body,
        parts=parts,
        rest=rotations,
        leg=sum(length for (_, lower), length in lengths.items() if lower.endswith(("knee", "foot"))) / 2,
        lengths=lengths,
        hips={side: positions[parts[f"{side}_hip"]] - middle for side in SIDES},
        ankle=float(heights.mean()),
        bends={part: axis for part, axis in bends.items() if axis is not None},
    )


def _check(body: Body) -> None:
    missing = [part for part in _NEEDED if part not in body.human]
    if not missing:
        return
    wanted = ", ".join(f'{part} = "…"' for part in missing)
    if not body.human:
        told = "does not say which of its bodies stand for which parts of a human, which a motion of another body "
        told += f"needs: add a table [human] with {wanted}"
    else:
        told = f"lacks parts of a human that a motion of another body needs: add {wanted} to [human]"
    where = body.file if body.file.suffix == ".toml" else f"{body.file} (with a TOML file beside it)"
    raise ConfigError(f"{where} {told}; better also chest, shoulders, elbows and hands.")


def _bend(body: Body, upper: int, middle: int, lower: int) -> Tensor | None:
    """The axis of the one hinge between two bones. It bends them to the side to which it can turn farther."""
    model, number = body.model, body.root + middle
    joint = int(model.body_jntadr[number]) - 1
    if model.body_jntnum[number] != 1 or body.kinematics.slides()[joint]:
        return None
    low, high = (float(np.clip(limit[joint], -np.pi, np.pi)) for limit in body.limits)
    poses = torch.as_tensor(body.default_qpos).repeat(_ANGLES, 1)
    poses[:, 7 + joint] = angles = torch.linspace(low, high, _ANGLES, dtype=torch.float64)
    positions, _ = body.kinematics.forward(poses[:, :3], poses[:, 3:7], poses[:, 7:])
    straight = angles[torch.linalg.vector_norm(positions[:, lower] - positions[:, upper], dim=1).argmax()]
    axis = torch.as_tensor(model.jnt_axis[joint + 1].copy())
    return axis if high - straight > straight - low else -axis
