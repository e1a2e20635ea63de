"""Brings a clip of one body onto another: `retarget`."""

from dataclasses import replace

import torch

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import conjugate, multiply, rotate
from ludus.envs.humanoid.clip import Clip, check_clip
from ludus.envs.humanoid.importing.floor import put_on_floor
from ludus.envs.humanoid.motions import unrolled
from ludus.envs.humanoid.retargeting.arms import push_arms_out
from ludus.envs.humanoid.retargeting.feet import Steps
from ludus.envs.humanoid.retargeting.figure import SIDES, Figure, figure_of
from ludus.envs.humanoid.retargeting.goals import Goals, goals_of
from ludus.envs.humanoid.retargeting.solver import Poses, Solver
from ludus.envs.humanoid.seam import close_seam, cycle_later

__all__ = ["retarget"]

_FIRST_STEPS, _STEPS, _ROUNDS = 20, 4, 5


def retarget(clip: Clip, body: Body) -> Clip:
    """The same motion of another body, on the floor. Both bodies' files say what stands for a human's parts."""
    source, target = figure_of(clip.body), figure_of(body)
    # The ends of a loop are neighbours: what is before and after it is worked out too, and left out again.
    whole = unrolled(clip, 3 * clip.duration) if clip.loop else clip
    poses = _solve(whole, source, target)
    if clip.loop:
        poses = _middle_cycle(poses, clip, target.leg / source.leg)
    made = replace(
        clip,
        root_pos=poses.root_pos.numpy(),
        root_quat=poses.root_quat.numpy(),
        joint_pos=poses.joint_pos.numpy(),
        body=body,
    )
    check_clip(made, clip.name)
    return put_on_floor(close_seam(made))


def _solve(clip: Clip, source: Figure, target: Figure) -> Poses:
    positions, rotations = clip.bodies()
    steps = [Steps(clip, source.parts[f"{side}_foot"], positions, rotations) for side in SIDES]
    goals = goals_of(clip, source, target)
    solver = Solver(target.body, goals, clip.fps)
    feet = [goals.turned.index(target.parts[f"{side}_foot"]) for side in SIDES]
    ways, turns = goals.positions[:, 1:].clone(), goals.rotations[:, feet]
    poses = _start(goals, target)
    for number in range(_ROUNDS):
        for side, step in enumerate(steps):
            foot = target.parts[f"{SIDES[side]}_foot"]
            scale = target.leg / source.leg
            goals.positions[:, 1 + side] = step.placed(ways[:, side], turns[:, side], target.body, foot, scale)
        solver.improve(poses, _STEPS if number else _FIRST_STEPS, fresh=not number)
        turns = _foot_rotations(poses, target)
        if number < _ROUNDS - 1:
            push_arms_out(goals, poses, target, clip.fps)
    return poses


def _foot_rotations(poses: Poses, target: Figure) -> torch.Tensor:
    """[frames, 2, 4]"""
    kinematics = target.body.kinematics
    _, rotations = kinematics.forward(poses.root_pos, poses.root_quat, poses.joint_pos)
    return rotations[:, [target.parts[f"{side}_foot"] for side in SIDES]]


def _start(goals: Goals, target: Figure) -> Poses:
    """The default pose, with the pelvis where it is to be."""
    body, pelvis = target.body, target.parts["pelvis"]
    default = torch.as_tensor(body.default_qpos)
    turn = multiply(goals.rotations[:, goals.turned.index(pelvis)], conjugate(target.rest[pelvis])[None])
    rotation = multiply(turn, default[3:7].expand_as(turn))
    joints = default[7:].expand(goals.frames, -1)
    poses = Poses(torch.zeros_like(goals.positions[:, 0]), rotation, joints)
    positions, _ = body.kinematics.forward(poses.root_pos, poses.root_quat, poses.joint_pos)
    poses.root_pos = goals.positions[:, 0] - positions[:, list(goals.places[0])].mean(dim=1)
    return poses


def _middle_cycle(poses: Poses, clip: Clip, scale: float) -> Poses:
    """The second of three cycles, where the first would be."""
    frames = slice(clip.frames - 1, 2 * clip.frames - 1)
    turn, shift = cycle_later(clip, 1)
    back = conjugate(turn)
    return Poses(
        rotate(back, poses.root_pos[frames] - shift * scale),
        multiply(back.expand_as(poses.root_quat[frames]), poses.root_quat[frames]),
        poses.joint_pos[frames],
    )
