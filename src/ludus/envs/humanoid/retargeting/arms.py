"""Arms beside the body, not inside it: a robot's hips may be wider than a human's, or its hands bigger.

Where a forearm is inside another part, its goals are pushed out of it, along with the upper arm's.
"""

import mujoco
import numpy as np
import torch

from ludus.envs.bodies import Body
from ludus.envs.humanoid.retargeting.figure import SIDES, Figure
from ludus.envs.humanoid.retargeting.goals import Goals
from ludus.envs.humanoid.retargeting.solver import Poses

_DEEP = 0.005  # m inside another part that nobody notices
_FARTHEST = 0.05  # m, of one push
_SMOOTH_S = 0.15  # s before and after, over which a push grows and fades


def push_arms_out(goals: Goals, poses: Poses, target: Figure, fps: float) -> None:
    """Changes the directions of the arms' bones, by what is inside another part in these poses."""
    bones = {side: [f"{side}_shoulder", f"{side}_elbow", f"{side}_hand"] for side in SIDES}
    bones = {side: parts for side, parts in bones.items() if {*parts} <= {*target.parts}}
    pushes = _pushes(target.body, poses, [_arm(target, side) for side in bones])
    for parts, push in zip(bones.values(), pushes, strict=True):
        smooth = torch.as_tensor(_smoothed(push, max(1, round(_SMOOTH_S * fps))))
        whole = target.lengths[parts[0], parts[1]] + target.lengths[parts[1], parts[2]]
        for upper, lower in ((parts[0], parts[1]), (parts[1], parts[2])):
            bone = goals.bones.index((target.parts[upper], target.parts[lower]))
            pushed = goals.directions[:, bone] + smooth / whole
            goals.directions[:, bone] = torch.nn.functional.normalize(pushed, dim=-1)


def _arm(target: Figure, side: str) -> tuple[set[int], set[int]]:
    """(the forearm's bodies, the whole arm's), as the model numbers them."""
    moves, root = target.body.kinematics.moves(), target.body.root

    def below(part: str) -> set[int]:
        """Bodies that all joints move which move a part."""
        body = target.parts[part]
        return {root + i for i in range(body, len(moves)) if bool((moves[i] | ~moves[body]).all())}

    return below(f"{side}_elbow"), below(f"{side}_shoulder")


def _pushes(body: Body, poses: Poses, arms: list[tuple[set[int], set[int]]]) -> np.ndarray:
    """[arms, frames, 3] m by which each forearm's deepest point would have to be moved to be outside."""
    model, data = body.model, mujoco.MjData(body.model)
    qpos = torch.cat([poses.root_pos, poses.root_quat, poses.joint_pos], dim=1).numpy()
    pushes = np.zeros((len(arms), len(qpos), 3))
    for frame, pose in enumerate(qpos):
        data.qpos[:] = pose
        mujoco.mj_kinematics(model, data)
        mujoco.mj_collision(model, data)
        contact = data.contact
        for i in np.flatnonzero(contact.dist < -_DEEP):
            bodies = model.geom_bodyid[contact.geom[i]]
            for arm, (forearm, whole) in enumerate(arms):
                for inside, other, sign in ((bodies[0], bodies[1], -1), (bodies[1], bodies[0], 1)):
                    if inside in forearm and other not in whole and other >= body.root:
                        push = sign * contact.frame[i, :3] * min(-contact.dist[i], _FARTHEST)
                        if np.linalg.norm(push) > np.linalg.norm(pushes[arm, frame]):
                            pushes[arm, frame] = push
    return pushes


def _smoothed(push: np.ndarray, width: int) -> np.ndarray:
    """[frames, 3] the largest nearby, averaged over no more than nearby."""
    size = np.pad(np.linalg.norm(push, axis=1), 2 * width, mode="edge")
    most = np.lib.stride_tricks.sliding_window_view(size, 2 * width + 1).argmax(axis=1)
    at = np.clip(np.arange(len(most)) + most - 2 * width, 0, len(push) - 1)
    kernel = np.hanning(2 * width + 3)[1:-1]
    return np.stack([np.convolve(axis, kernel / kernel.sum(), mode="valid") for axis in push[at].T], axis=1)
