"""The humanoid moves at a given speed. A discriminator, where there is one, pays for moving as in the clips."""

import torch
from torch import Tensor

from ludus.envs.bodies.rotations import conjugate, heading, rotate
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.humanoid.task import FEELING, HumanoidTask, from_root
from ludus.envs.mujoco.simulator import Simulator
from ludus.envs.mujoco.task import Rows
from ludus.envs.mujoco.terms import Term
from ludus.envs.vec import State

_SHARPNESS = 4.0  # per (m/s)²
_MOST_POSES = 512  # of the clips, that a pose is compared with
_STYLE_SHARPNESS = 100.0  # per square metre, of the distance to the nearest pose; in evaluations


REWARDS = {"speed": Term(lambda task: torch.exp(-_SHARPNESS * task.error))}
JUDGED = {  # in evaluations of AMP, where the discriminator that judged the style in training has no say
    "speed": Term(lambda task: torch.exp(-_SHARPNESS * task.error), 0.5),
    "style": Term(lambda task: torch.exp(-_STYLE_SHARPNESS * task.distance.square()), 0.5),
}
TERMINATIONS = {"fallen": Term(lambda task: task.fallen)}
OBSERVATIONS = {
    **FEELING,
    "speed": Term(lambda task, rows: task.memory["speed"][rows, None]),
    "way": Term(lambda task, rows: rotate(conjugate(task.sight.facing), task.ahead)[:, :2]),
}


class SpeedTask(HumanoidTask):
    """Reward for the asked velocity along x; an episode ends with a fall.

    Where a discriminator judges the style in training, half of an evaluation's reward is for being near the clips:
    so that the best policy has it.
    """

    def __init__(
        self, config: HumanoidConfig, library: MotionLibrary, sim: Simulator, evaluation: bool = False
    ) -> None:
        super().__init__(f"{library.body.name}-speed", config, library, sim, 3, evaluation)
        for name in ("speed", "speed_error", "pose_error"):  # asked for; sums over the episode so far
            self.memory[name] = torch.zeros(self.num_rows, device=self.device)
        self._poses = _pose_bank(library) if evaluation and config.discriminate == "motion" else None
        self.ahead = torch.tensor([1.0, 0.0, 0.0], device=self.device)
        rewards = REWARDS if self._poses is None else JUDGED
        self.use_terms(config, rewards, TERMINATIONS, OBSERVATIONS, fused=False)
        if "fallen" not in self.terminations.terms:  # then an episode goes on, and the body may rise
            self.memory["upright"] = torch.ones(self.num_rows, device=self.device)

    error: Tensor  # [rows] (m/s)², of the newest step
    distance: Tensor  # [rows] m, to the nearest pose
    fallen: Tensor  # [rows] bool

    def measure(self) -> dict[str, Tensor]:
        self.memory["time"] += self.body.dt
        velocity = self._qvel[:, :2].float()
        wanted = self.ahead[:2] * self.memory["speed"][:, None]
        self.error = (velocity - wanted).square().sum(1)
        self.memory["speed_error"] += self.error.sqrt()
        if self.config.discriminate == "motion":
            self._remember_frame()
        self.fallen = self._qpos[:, 2] < self.body.fallen_height
        steps = self.elapsed.clamp(min=1)
        upright = (~self.fallen).float()
        if "upright" in self.memory:
            upright = self.memory["upright"].mul_(upright).clone()
        metrics = {"success": upright, "speed_error": self.memory["speed_error"] / steps}
        if self._poses is not None:
            self.distance = self._distance_to_nearest_pose()
            self.memory["pose_error"] += self.distance
            metrics["pose_error"] = 1000 * self.memory["pose_error"] / steps
        return metrics

    def _distance_to_nearest_pose(self) -> Tensor:
        """[rows] m, of the bodies as seen from the root to that pose of the clips which is most like it."""
        assert self._poses is not None
        return _nearest(_seen_from_root(self._qpos.float(), self.key_places().float()), self._poses)

    def begun(self, rows: Rows) -> dict[str, Tensor]:
        return {}  # no reference is followed

    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        slow, fast = self.config.speed
        zero = torch.zeros(n, device=self.device)
        speed = self.uniform(slow, fast, n).float()
        begun = {"speed": speed, "speed_error": zero, "pose_error": zero}
        begun |= {"upright": zero + 1} if "upright" in self.memory else {}
        return super().new_episodes(rows, n) | begun

    def load_state(self, state: State) -> None:
        if "upright" in self.memory:  # which older checkpoints do not have
            state = state | {"memory": {"upright": torch.ones_like(self.memory["upright"])} | state["memory"]}
        super().load_state(state)


def _pose_bank(library: MotionLibrary) -> Tensor:
    """[poses, 3 · key bodies] of all clips, evenly spaced in time."""
    frames = sum(clip.frames for clip in library.clips)
    step = -(-frames // _MOST_POSES)
    poses = []
    for number, clip in enumerate(library.clips):
        time = torch.arange(0, clip.frames, step, device=library.device) / clip.fps
        at = library.at(torch.full_like(time, number, dtype=torch.int64), time)
        poses.append(_seen_from_root(at.qpos, at.body_pos))
    return torch.cat(poses)


def _seen_from_root(qpos: Tensor, bodies: Tensor) -> Tensor:
    return from_root(bodies, heading(qpos[:, 3:7])).flatten(1)


def _nearest(poses: Tensor, bank: Tensor) -> Tensor:
    """[n] root mean square distance of the bodies to the nearest pose of the bank."""
    return torch.cdist(poses, bank).amin(1) / (poses.shape[1] / 3) ** 0.5
