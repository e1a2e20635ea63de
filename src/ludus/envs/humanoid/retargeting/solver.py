"""Poses that reach goals: least squares over all frames at once, within the joints' limits.

Gauss–Newton steps with damping, projected onto the limits: a joint at its limit that would go farther is left out
of a step. Neighbouring frames are tied together, so that where a pose is not determined it changes little.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import conjugate, from_rotation_vector, multiply, rotate, rotation_vector
from ludus.envs.humanoid.retargeting.goals import Goals

_DAMPING = 1e-4
_TO_DEFAULT = 0.03  # a rad away from the default pose counts so much
_TO_NEIGHBOUR = 4.0 / 30  # a rad/frame at 30 frames a second, likewise
_FRESH_TIE, _FRESH_STEPS = 300.0, 10
_LONGEST_STEP = 0.5  # rad
_NEAR_ENOUGH = 1e-4  # rad, likewise
_WINDOW = 32  # frames that are solved together; where windows begin, changes from step to step
_CHUNK = 1024  # frames, a multiple of it
_ROOT = 6  # unknowns: where it is, how it is turned


@dataclass
class Poses:
    root_pos: Tensor  # [frames, 3]
    root_quat: Tensor  # [frames, 4]
    joint_pos: Tensor  # [frames, joints]


class Solver:
    def __init__(self, body: Body, goals: Goals, fps: float) -> None:
        self._kinematics, self.goals = body.kinematics, goals
        self._low, self._high = map(torch.as_tensor, body.limits)
        self._default = torch.as_tensor(body.default_qpos[7:])
        self._tie = (_TO_NEIGHBOUR * fps / 30) ** 2
        self._used = sorted({*sum(goals.bones, ()), *goals.turned, *goals.hinges, *sum(goals.places, ())})
        self._moves, self._slides = body.kinematics.moves()[self._used, :, None], body.kinematics.slides()[:, None]
        self._before = 0  # frames of the first window that are before the first frame

    def improve(self, poses: Poses, steps: int, fresh: bool = False) -> None:
        """At first with strong ties, where `fresh`: frames whose poses have a choice make the same one."""
        for number in range(steps):
            loosening = _FRESH_TIE ** (1 - number / _FRESH_STEPS) if fresh and number < _FRESH_STEPS else 1.0
            if self._step(poses, loosening * self._tie) < _NEAR_ENOUGH and loosening == 1:
                break

    def _step(self, poses: Poses, tie: float) -> float:
        """Changes the poses, and says by how much at most."""
        away = poses.joint_pos - self._default
        pull = _TO_DEFAULT**2 * away
        apart = tie * poses.joint_pos.diff(dim=0)
        pull[1:] += apart
        pull[:-1] -= apart
        self._before = _WINDOW // 2 - self._before
        starts = range(0, len(pull), _CHUNK)
        step = torch.cat([self._chunk(poses, pull, tie, slice(start, start + _CHUNK)) for start in starts])
        most = step[:, 3:].abs().amax(dim=1, keepdim=True)
        step = step * (_LONGEST_STEP / most.clamp(min=_LONGEST_STEP))
        poses.root_pos = poses.root_pos + step[:, :3]
        turned = multiply(from_rotation_vector(step[:, 3:6]), poses.root_quat)
        poses.root_quat = torch.nn.functional.normalize(turned, dim=-1)
        poses.joint_pos = (poses.joint_pos + step[:, _ROOT:]).clamp(self._low, self._high)
        return float(most.max())

    def _chunk(self, poses: Poses, pull: Tensor, tie: float, part: slice) -> Tensor:
        """[frames of the part, unknowns] the step of some frames; all at once would take much memory."""
        joints = poses.joint_pos[part]
        jacobian, residual = self._linear(Poses(poses.root_pos[part], poses.root_quat[part], joints), part)
        square = jacobian.transpose(1, 2) @ jacobian
        gradient = (jacobian.transpose(1, 2) @ residual[..., None])[..., 0]
        gradient[:, _ROOT:] += pull[part]
        stuck = (joints <= self._low) & (gradient[:, _ROOT:] > 0) | (joints >= self._high) & (
            gradient[:, _ROOT:] < 0
        )
        free = torch.cat([torch.ones_like(gradient[:, :_ROOT]), (~stuck).double()], dim=1)
        own = torch.full_like(gradient[0], _DAMPING)
        own[_ROOT:] += _TO_DEFAULT**2 + 2 * tie
        square.diagonal(dim1=1, dim2=2).add_(own)
        return -_tied_solve(square, gradient, free, tie, self._before)

    def _linear(self, poses: Poses, part: slice) -> tuple[Tensor, Tensor]:
        """([frames, goals, unknowns] what each unknown changes, [frames, goals] how far off the goals are)."""
        goals, at = self.goals, self._used.index
        positions, rotations = self._kinematics.forward(poses.root_pos, poses.root_quat, poses.joint_pos)
        points, axes = self._kinematics.axes(positions, rotations, poses.joint_pos)
        shifts, turns = self._jacobians(positions, points, axes)
        positions, rotations = positions[:, self._used], rotations[:, self._used]
        upper, lower = [at(a) for a, _ in goals.bones], [at(b) for _, b in goals.bones]
        bone = positions[:, lower] - positions[:, upper]
        length = torch.linalg.vector_norm(bone, dim=-1, keepdim=True)
        hinged, turned = [at(body) for body in goals.hinges], [at(body) for body in goals.turned]
        axis = rotate(rotations[:, hinged], goals.hinge_axes)
        off = rotation_vector(multiply(rotations[:, turned], conjugate(goals.rotations[part])))
        places = [[at(body) for body in place] for place in goals.places]
        here = torch.stack([positions[:, place].mean(dim=1) for place in places], dim=1)
        found = [
            ((shifts[:, lower] - shifts[:, upper]) / length[..., None], bone / length - goals.directions[part]),
            (torch.linalg.cross(turns[:, hinged], axis[:, :, None]), axis - goals.axes[part]),
            (turns[:, turned], off),
            (torch.stack([shifts[:, p].mean(dim=1) for p in places], dim=1), here - goals.positions[part]),
        ]
        jacobian, residual = (torch.cat([pair[i] for pair in found], dim=1) for i in (0, 1))
        jacobian, residual = jacobian * goals.weights[:, None, None], residual * goals.weights[:, None]
        return jacobian.transpose(2, 3).flatten(1, 2), residual.flatten(1)

    def _jacobians(self, positions: Tensor, points: Tensor, axes: Tensor) -> tuple[Tensor, Tensor]:
        """([frames, used bodies, unknowns, 3] how each unknown shifts every body, [...] how it turns it)."""
        root, positions = positions[:, :1], positions[:, self._used]
        from_axis = positions[:, :, None] - points[:, None]
        axes = axes[:, None].expand_as(from_axis)
        shift = torch.where(self._slides, axes, torch.linalg.cross(axes, from_axis)) * self._moves
        turn = axes * (self._moves & ~self._slides)
        one = torch.eye(3, dtype=torch.float64).expand(*positions.shape[:2], 3, 3)
        from_root = (positions - root)[:, :, None].expand_as(one)
        return (
            torch.cat([one, torch.linalg.cross(one, from_root), shift], dim=2),
            torch.cat([torch.zeros_like(one), one, turn], dim=2),
        )


def _tied_solve(square: Tensor, gradient: Tensor, free: Tensor, tie: float, before: int) -> Tensor:
    """[frames, unknowns] what solves all frames' equations, in which a joint's neighbours in time are tied.

    Block-tridiagonal systems, one a window of frames: forth with what each frame leaves to the next, and back.
    Between windows ties count as the poses are now. Unknowns that are not `free` stay 0, and so do `before` frames
    that fill the first window.
    """
    frames = len(gradient)
    square = square * free[:, :, None] * free[:, None, :]
    squares, lefts, frees = (_windows(values, before) for values in (square, (gradient * free)[..., None], free))
    squares.diagonal(dim1=2, dim2=3).add_(1 - frees)
    ties = tie * frees[:, 1:] * frees[:, :-1]
    ties[..., :_ROOT] = 0
    inverses = [torch.linalg.inv(squares[:, 0])]
    solved = [inverses[0] @ lefts[:, 0]]
    for frame in range(1, _WINDOW):
        bound = ties[:, frame - 1, :, None]
        inverses.append(torch.linalg.inv(squares[:, frame] - bound * inverses[-1] * bound.transpose(1, 2)))
        solved.append(inverses[-1] @ (lefts[:, frame] + bound * solved[-1]))
    for frame in range(_WINDOW - 2, -1, -1):
        solved[frame] = solved[frame] + inverses[frame] @ (ties[:, frame, :, None] * solved[frame + 1])
    return torch.stack(solved, dim=1).flatten(0, 1)[before : before + frames, :, 0]


def _windows(values: Tensor, before: int) -> Tensor:
    """[windows, frames of each, …] of [frames, …], filled up with 0 at both ends."""
    whole = torch.zeros((before + len(values) + -(before + len(values)) % _WINDOW, *values.shape[1:])).double()
    whole[before : before + len(values)] = values
    return whole.unflatten(0, (-1, _WINDOW))
