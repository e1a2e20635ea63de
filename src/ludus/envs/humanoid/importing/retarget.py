"""From the rotations of another skeleton's bones to ours: knees and elbows here have one hinge alone."""

import torch
from torch import Tensor

from ludus.envs.bodies import find_body
from ludus.envs.bodies.rotations import (
    about_axis,
    conjugate,
    from_rotation_vector,
    multiply,
    rotate,
    rotate_back,
)
from ludus.envs.humanoid.importing.hinges import axis
from ludus.envs.humanoid.importing.motion import Motion

# limb → (upper body, lower body, where the bones point at zero, the hinge's axis, the sign of a natural bend)
LIMBS = {
    "right_elbow": ("right_upper_arm", "right_lower_arm", -axis("y"), axis("z"), 1),
    "left_elbow": ("left_upper_arm", "left_lower_arm", axis("y"), axis("z"), -1),
    "right_knee": ("right_thigh", "right_shin", -axis("z"), axis("y"), 1),
    "left_knee": ("left_thigh", "left_shin", -axis("z"), axis("y"), 1),
}
_BALLS = {  # joint → its bodies: the parent, the child
    "abdomen": ("pelvis", "torso"), "neck": ("torso", "head"), "right_shoulder": ("torso", "right_upper_arm"),
    "left_shoulder": ("torso", "left_upper_arm"), "right_hip": ("pelvis", "right_thigh"),
    "left_hip": ("pelvis", "left_thigh"), "right_ankle": ("right_shin", "right_foot"),
    "left_ankle": ("left_shin", "left_foot"),
}  # fmt: skip
_STRAIGHT, _BENT = 0.1, 0.35  # rad: below the one a limb's plane says nothing, above the other all
_BACKWARD = 0.5  # rad: so far a limb may be bent backward; beyond, its plane is turned instead


def from_rotations(times: Tensor, root_pos: Tensor, rotations: dict[str, Tensor], loop: bool = False) -> Motion:
    """`rotations` are those of our bodies in the world [keys, 4], at zero as ours are; hands are not needed."""
    turned, hinges = dict(rotations), {}
    for joint, (upper, lower, bone, hinge, sign) in LIMBS.items():
        twist, hinges[joint] = bend(rotations[upper], rotations[lower], bone, hinge, sign)
        turned[upper] = multiply(rotations[upper], twist)
        turned[lower] = multiply(turned[upper], about_axis(hinge, hinges[joint]))
    balls = {
        joint: multiply(conjugate(turned[parent]), turned[child]) for joint, (parent, child) in _BALLS.items()
    }
    return Motion(times, root_pos, turned["pelvis"], balls, hinges, loop)


def bend(upper: Tensor, lower: Tensor, bone: Tensor, hinge: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """([keys, 4] twist of the upper bone about itself, [keys] angle of the hinge) that lead the lower bone there.

    A source's elbow turns about any axis. Turning the upper bone about itself first brings the bend into the
    plane of our hinge; where the limb is almost straight there is no such plane, and the twist fades out.
    """
    twist, size = limb_plane(upper, lower, bone, hinge, sign)
    backward = (twist.abs() > torch.pi / 2) & (size < _BACKWARD)
    twist = torch.where(backward, twist - torch.pi * twist.sign(), twist)
    share = ((size - _STRAIGHT) / (_BENT - _STRAIGHT)).clamp(0, 1)
    turn = about_axis(bone, twist * share * share * (3 - 2 * share))
    forward = sign * torch.linalg.cross(hinge, bone)
    pointing = rotate(conjugate(turn), rotate_back(upper, rotate(lower, bone)))
    return turn, sign * torch.atan2(pointing @ forward, pointing @ bone)


def limb_plane(upper: Tensor, lower: Tensor, bone: Tensor, hinge: Tensor, sign: int) -> tuple[Tensor, Tensor]:
    """([keys] rad by which the plane of the bend is turned about the upper bone, [keys] rad of the bend)."""
    pointing = rotate_back(upper, rotate(lower, bone))
    aside, forward = sign * (pointing @ hinge), sign * (pointing @ torch.linalg.cross(hinge, bone))
    return torch.atan2(aside, forward), torch.atan2(torch.hypot(aside, forward), pointing @ bone)


def shortest_turn(start: Tensor, end: Tensor, if_opposite: Tensor) -> Tensor:
    """[4] from one direction to another; about `if_opposite` where they are opposite and any axis would do."""
    start, end = start / torch.linalg.vector_norm(start), end / torch.linalg.vector_norm(end)
    across = torch.linalg.cross(start, end)
    length = torch.linalg.vector_norm(across)
    angle = torch.atan2(length, start @ end)
    if float(length) < 1e-4:
        return about_axis(if_opposite / torch.linalg.vector_norm(if_opposite), angle)
    return from_rotation_vector(across / length * angle)


def our_leg() -> float:
    """m from the hip to the ankle."""
    model = find_body("humanoid").model
    return float(sum(abs(model.body(name).pos[2]) for name in ("right_shin", "right_foot")))
