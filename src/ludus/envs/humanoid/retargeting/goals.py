"""What a body is to reach in every frame so that it moves as another one does.

Limbs point where the source's point; pelvis, chest, head and feet are turned as its are; the hips go its way,
scaled by the length of the legs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.envs.bodies.rotations import conjugate, multiply, rotate
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.retargeting.figure import LIMBS, SIDES, Figure

# How much each goal counts. Directions are of unit length, rotations in rad, places in leg lengths.
_BONE, _BEND = 1.0, 0.4
_TURNS = {"pelvis": 1.0, "chest": 1.0, "head": 0.5, "left_foot": 0.5, "right_foot": 0.5}
_HIPS, _FOOT = 4.0, 15.0


@dataclass
class Goals:
    """Of every frame. All float64."""

    bones: list[tuple[int, int]]  # the bodies at both ends,
    directions: Tensor  # [frames, bones, 3] of unit length
    hinges: list[int]  # the bodies that they turn,
    hinge_axes: Tensor  # [hinges, 3] in the body's frame
    axes: Tensor  # [frames, hinges, 3] and where they are to point
    turned: list[int]  # bodies
    rotations: Tensor  # [frames, turned, 4]
    places: list[tuple[int, ...]]  # bodies whose mean is to be there: both hips, and each foot
    positions: Tensor  # [frames, places, 3]
    weights: Tensor  # [bones + hinges + turned + places]

    @property
    def frames(self) -> int:
        return len(self.positions)


def goals_of(clip: Clip, source: Figure, target: Figure) -> Goals:
    positions, rotations = clip.bodies()
    bones = [bone for bone in target.lengths if bone in source.lengths]
    ways = {bone: _direction(positions, source, bone) for bone in bones}
    hinges = [part for part in target.bends if part in source.bends]
    turned = [part for part in _TURNS if part in target.parts and part in source.parts]
    turns = {part: _turned(rotations, source, target, part) for part in turned}
    hips = _hips(positions, source, target)
    pelvis = multiply(turns["pelvis"], conjugate(target.rest[target.parts["pelvis"]])[None])
    feet = [_foot(side, hips, pelvis, ways, target) for side in SIDES]
    bends = [rotate(rotations[:, source.parts[part]], source.bends[part]) for part in hinges]
    place_weights = [_HIPS / target.leg] + [_FOOT / target.leg] * len(SIDES)
    weights = [_BONE] * len(bones) + [_BEND] * len(hinges) + [_TURNS[part] for part in turned] + place_weights
    return Goals(
        bones=[(target.parts[upper], target.parts[lower]) for upper, lower in bones],
        directions=torch.stack([ways[bone] for bone in bones], dim=1),
        hinges=[target.parts[part] for part in hinges],
        hinge_axes=torch.stack([target.bends[part] for part in hinges]) if hinges else hips.new_zeros((0, 3)),
        axes=torch.stack(bends, dim=1) if hinges else hips.new_zeros((clip.frames, 0, 3)),
        turned=[target.parts[part] for part in turned],
        rotations=torch.stack([turns[part] for part in turned], dim=1),
        places=[
            tuple(target.parts[f"{side}_hip"] for side in SIDES),
            *((target.parts[f"{side}_foot"],) for side in SIDES),
        ],
        positions=torch.stack([hips, *feet], dim=1),
        weights=torch.tensor(weights, dtype=torch.float64),
    )


def _foot(side: str, hips: Tensor, pelvis: Tensor, ways: dict[tuple[str, str], Tensor], target: Figure) -> Tensor:
    """[frames, 3] where the target's foot comes to with the source's directions. `pelvis`: turned from upright."""
    hip, knee, foot = (f"{side}_{part}" for part in LIMBS[0])
    start = hips + rotate(pelvis, target.hips[side])
    return start + ways[hip, knee] * target.lengths[hip, knee] + ways[knee, foot] * target.lengths[knee, foot]


def _direction(positions: Tensor, figure: Figure, bone: tuple[str, str]) -> Tensor:
    """[frames, 3] of unit length"""
    upper, lower = (figure.parts[part] for part in bone)
    return torch.nn.functional.normalize(positions[:, lower] - positions[:, upper], dim=-1)


def _turned(rotations: Tensor, source: Figure, target: Figure, part: str) -> Tensor:
    """[frames, 4] of the target's part: turned from standing upright as the source's is."""
    mine, other = source.parts[part], target.parts[part]
    rest = multiply(conjugate(source.rest[mine]), target.rest[other])
    return multiply(rotations[:, mine], rest.expand_as(rotations[:, mine]))


def _hips(positions: Tensor, source: Figure, target: Figure) -> Tensor:
    """[frames, 3] where the middle between the hips is to be."""
    middle = (positions[:, source.parts["left_hip"]] + positions[:, source.parts["right_hip"]]) / 2
    up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    return (middle - source.ankle * up) * (target.leg / source.leg) + target.ankle * up
