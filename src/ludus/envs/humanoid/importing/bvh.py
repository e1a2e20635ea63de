"""BVH onto our humanoid, for skeletons with the names of CMU, LAFAN1 or Mixamo; y is up.

Zero poses differ: CMU's is a T-pose, in LAFAN1's all bones point the same way. So nothing is taken from them but
where bones point in their own frame; how limbs are turned about themselves is read off the planes they bend in.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ludus.envs.bodies.rotations import about_axis, multiply, rotate, rotate_back
from ludus.envs.humanoid.importing.bvh_file import (
    Bvh,
    begins_with_rest_pose,
    parse_bvh,
    rest_positions,
    world_poses,
)
from ludus.envs.humanoid.importing.hinges import axis
from ludus.envs.humanoid.importing.motion import Motion, whole_rate
from ludus.envs.humanoid.importing.retarget import LIMBS, from_rotations, limb_plane, our_leg, shortest_turn
from ludus.errors import DataError, did_you_mean

_LAYOUTS = "CMU's or LAFAN1's (Hips, LeftUpLeg, LeftLeg, LeftFoot, Head, LeftArm, LeftForeArm, LeftHand, Right…)"
_SIDES = {"right": "Right", "left": "Left"}
_PARTS = {  # our body → the names it may have, after Left or Right
    "upper_arm": ("Arm",), "lower_arm": ("ForeArm",), "hand": ("Hand",), "thigh": ("UpLeg",), "shin": ("Leg",),
    "foot": ("Foot",), "toe": ("ToeBase", "Toe", "Foot_end"),
}  # fmt: skip
_UPRIGHT = 0.9  # cosine between a rest pose's spine and the vertical
_LOW_FEET = 0.25  # share of the frames in which a foot is taken to stand flat
_TURN = torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64)  # (x, y, z) → (z, x, y): from y up to z up


@dataclass(frozen=True)
class _Source:
    """The joints that matter, in our axes, y of the file up."""

    index: dict[str, int]  # our body → the file's joint
    rest: Tensor  # [joints, 3] zero pose, in the file's axes
    positions: Tensor  # [frames, joints, 3]
    rotations: Tensor  # [frames, joints, 4] of the file's joints, to vectors in the file's axes

    def rest_of(self, body: str) -> Tensor:
        return self.rest[self.index[body]]

    def world(self, body: str) -> Tensor:
        return self.positions[:, self.index[body]]

    def turned(self, body: str, zero: Tensor) -> Tensor:
        """[frames, 4] of our body, where `zero` turns our axes to how they lie in the joint's frame."""
        rotations = self.rotations[:, self.index[body]]
        return multiply(rotations, zero.expand_as(rotations))


def read_bvh(path: Path, text: str, fps: float | None = None) -> Motion:
    """`fps` goes before what the file says."""
    bvh = parse_bvh(path, text, fps)
    if begins_with_rest_pose(bvh):
        warnings.warn(f"{path}: its first frame is a T-pose that was added, and is left out.", stacklevel=2)
        bvh = replace(bvh, values=bvh.values[1:])
    positions, rotations = world_poses(bvh)
    turn = _TURN.expand_as(rotations)
    source = _Source(
        index=_find_bodies(path, bvh),
        rest=rest_positions(bvh),
        positions=rotate(_TURN, positions),
        rotations=multiply(turn, rotations),
    )
    bodies = _trunk(source)
    for limb in LIMBS:
        bodies |= _limb(source, limb)
    for side in _SIDES:
        bodies[f"{side}_foot"] = _foot(source, side)
    hips = (source.world("right_thigh") + source.world("left_thigh")) / 2
    times = torch.arange(len(positions), dtype=torch.float64) / whole_rate(1 / bvh.frame_time)
    return from_rotations(times, hips * _scale(path, source), bodies)


def _find_bodies(path: Path, bvh: Bvh) -> dict[str, int]:
    names = {joint.name.lower(): i for i, joint in reversed(list(enumerate(bvh.joints)))}
    found: dict[str, int] = {}
    missing: list[str] = []
    wanted = {f"{side}_{part}": [prefix + name for name in _PARTS[part]] for part in _PARTS
              for side, prefix in _SIDES.items()} | {"head": ["Head"]}  # fmt: skip
    for body, options in wanted.items():
        index = next((names[option.lower()] for option in options if option.lower() in names), None)
        if index is None:
            missing.append(options[0])
        else:
            found[body] = index
    if missing:
        unused = (joint.name for i, joint in enumerate(bvh.joints) if i not in found.values())
        there = [name for name in unused if not name.endswith("_end")]
        hint = did_you_mean(missing[0], there[:200])
        raise DataError(
            f"{path} lacks the joints {', '.join(missing)}.{hint} Skeletons are read whose names are {_LAYOUTS}."
        )
    # The root may be a point on the floor that the hips hang on.
    return found | {"pelvis": _shared(path, bvh, found, "thigh"), "torso": _shared(path, bvh, found, "upper_arm")}


def _shared(path: Path, bvh: Bvh, found: dict[str, int], part: str) -> int:
    """The nearest joint that both sides' limbs hang on."""
    left, right = (_ancestors(bvh, found[f"{side}_{part}"]) for side in ("left", "right"))
    shared = [joint for joint in left if joint in right]
    if not shared:
        limbs = "legs" if part == "thigh" else "arms"
        raise DataError(f"{path}: its {limbs} have no joint in common that they hang on.")
    return shared[0]


def _ancestors(bvh: Bvh, joint: int) -> list[int]:
    above = []
    while (joint := bvh.joints[joint].parent) >= 0:
        above.append(joint)
    return above


def _scale(path: Path, source: _Source) -> float:
    leg = sum(
        float(torch.linalg.vector_norm(source.rest_of(f"right_{end}") - source.rest_of(f"right_{start}")))
        for start, end in (("thigh", "shin"), ("shin", "foot"))
    )
    if leg < 1e-6:
        raise DataError(f"{path}: its legs have no length.")
    return our_leg() / leg


# How our axes lie in the frames of the file's joints ---------------------------------------------------
def _trunk(source: _Source) -> dict[str, Tensor]:
    hips = source.rest_of("left_thigh") - source.rest_of("right_thigh")
    shoulders = source.rest_of("left_upper_arm") - source.rest_of("right_upper_arm")
    neck = (source.rest_of("left_upper_arm") + source.rest_of("right_upper_arm")) / 2
    hips_centre = (source.rest_of("left_thigh") + source.rest_of("right_thigh")) / 2
    spine, head = neck - hips_centre, source.rest_of("head") - source.rest_of("torso")
    if _is_upright(source):
        spine = head = axis("y")
    lying = {"pelvis": _frame(hips, spine), "torso": _frame(shoulders, spine), "head": _frame(shoulders, head)}
    return {body: source.turned(body, zero) for body, zero in lying.items()}


def _is_upright(source: _Source) -> bool:
    """Whether the zero pose stands: the spine up, the legs down."""
    spine = source.rest_of("head") - source.rest_of("pelvis")
    leg = source.rest_of("right_foot") - source.rest_of("right_thigh")
    return min(float(_unit(spine)[1]), -float(_unit(leg)[1])) > _UPRIGHT


def _frame(left: Tensor, up: Tensor) -> Tensor:
    """[4] that turns our y to `left`, and our z as near to `up` as goes."""
    y = _unit(left)
    z = _unit(up - (up @ y) * y)
    return _quat(torch.stack([torch.linalg.cross(y, z), y, z], dim=1))


def _limb(source: _Source, limb: str) -> dict[str, Tensor]:
    """Both bodies of an arm or leg, the upper one turned about itself as the limb's bends say."""
    upper, lower, bone, hinge, sign = LIMBS[limb]
    side, end = upper.split("_")[0], "foot" if "knee" in limb else "hand"
    hips = source.rest_of("left_thigh") - source.rest_of("right_thigh")
    spine = source.rest_of("head") - source.rest_of("pelvis")
    trunk = _frame(hips, axis("y") if _is_upright(source) else spine)
    aside = rotate(trunk, hinge)
    directions = (
        source.rest_of(lower) - source.rest_of(upper),
        source.rest_of(f"{side}_{end}") - source.rest_of(lower),
    )
    zeros = [multiply(shortest_turn(rotate(trunk, bone), direction, aside), trunk) for direction in directions]
    turned, below = source.turned(upper, zeros[0]), source.turned(lower, zeros[1])
    twist = about_axis(bone, _usual_twist(*limb_plane(turned, below, bone, hinge, sign)))
    return {upper: multiply(turned, twist.expand_as(turned)), lower: below}


def _usual_twist(twist: Tensor, size: Tensor) -> Tensor:
    """[] rad: the mean over the clip, bent limbs counting more; 0 where it is never bent."""
    weight = torch.where(size > 0.2, size.sin() ** 2, 0)
    if float(weight.sum()) < 1e-6:
        return torch.zeros((), dtype=twist.dtype)
    return torch.atan2((weight * twist.sin()).sum(), (weight * twist.cos()).sum())


def _foot(source: _Source, side: str) -> Tensor:
    """[frames, 4]. Flat where the foot is lowest in the clip, as far as the zero pose leaves it open."""
    foot, shin, toe = f"{side}_foot", f"{side}_shin", f"{side}_toe"
    height = source.world(foot)[:, 2]
    low = height <= torch.quantile(height, _LOW_FEET)
    if _is_upright(source):
        options = [source.turned(foot, zero) for zero in _standing_feet(source, side)]
        return max(options, key=lambda turned: float(rotate(turned[low], axis("z"))[:, 2].mean()))
    rotations = source.rotations[:, source.index[foot]]
    forward, up = source.world(toe) - source.world(foot), source.world(shin) - source.world(foot)
    left = _unit(rotate_back(rotations, torch.linalg.cross(up, forward)).mean(dim=0))
    pointing = source.rest_of(toe) - source.rest_of(foot)
    pointing = _unit(pointing - (pointing @ left) * left)
    rise = torch.asin((forward[:, 2] / torch.linalg.vector_norm(forward, dim=1)).clamp(-1, 1))
    x = rotate(about_axis(left, rise[low].median()), pointing)
    return source.turned(foot, _quat(torch.stack([x, left, torch.linalg.cross(x, left)], dim=1)))


def _standing_feet(source: _Source, side: str) -> list[Tensor]:
    """A zero pose with its legs apart may have feet flat on the floor, or, as CMU's, square to the shins."""
    hips = _unit(source.rest_of("left_thigh") - source.rest_of("right_thigh"))
    forward = torch.linalg.cross(hips, axis("y"))
    shin = source.rest_of(f"{side}_shin") - source.rest_of(f"{side}_foot")
    up = _unit(shin - (shin @ forward) * forward)
    return [_frame(hips, axis("y")), _frame(hips - (hips @ up) * up, up)]


def _unit(vector: Tensor) -> Tensor:
    return vector / torch.linalg.vector_norm(vector, dim=-1, keepdim=True).clamp(min=1e-9)


def _quat(matrix: Tensor) -> Tensor:
    """[4] of a rotation matrix whose columns are the turned axes."""
    first = shortest_turn(axis("x"), matrix[:, 0], axis("z"))
    y = rotate_back(first, matrix[:, 1])
    return multiply(first, about_axis(axis("x"), torch.atan2(y[2], y[1])))
