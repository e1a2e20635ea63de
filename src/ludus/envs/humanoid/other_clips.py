"""A trained body on chosen clips: to measure it there, and to look at it with the ghost of its reference."""

import dataclasses
from collections.abc import Mapping
from math import inf
from typing import Any

import mujoco
import torch
from torch import Tensor

from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.evaluation_starts import evaluation_plan
from ludus.envs.humanoid.factory import library_of, trained_pose
from ludus.envs.humanoid.ghost import ghost_model, ghost_qpos
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.mujoco.simulator import Simulator, make_simulator
from ludus.envs.vec import Step
from ludus.errors import ConfigError


def on_clips(config: Any, names: str) -> HumanoidConfig:
    """The configuration of an environment with other clips; refused where no clips are followed."""
    if not isinstance(config, HumanoidConfig) or config.goal != "track":
        raise ConfigError("--clip is for runs of a body that follows clips; this one follows none.")
    return dataclasses.replace(config, clips=names, test_clips="")


def act_as_trained(task: HumanoidTask, trained: HumanoidConfig) -> None:
    """Actions mean what they meant in training, whatever clips `task` has.

    Absolute ones are added to the mean pose of the clips trained on. Residual ones need nothing of those clips,
    whose files may be gone.
    """
    others = task.config.clips != trained.clips or trained.test_clips or trained.mirror
    if task.config.actions == "absolute" and others:
        task.act_around(trained_pose(trained))


class ShownMimic(MimicTask):
    """One body, which plays the clip that was asked for last; see `showing.Shown`."""

    next_label = "Next clip"

    def __init__(
        self, config: HumanoidConfig, library: MotionLibrary, sim: Simulator, beside: float = 0.0
    ) -> None:
        """`beside`: metres between the body and its ghost; 0 lays one over the other."""
        super().__init__(config, library, sim, evaluation=True)
        self._beside = beside
        self._plans = evaluation_plan(dataclasses.replace(config, eval_starts=1), library)  # one for every clip
        self._evaluated = evaluation_plan(config, library)
        self.show(0)

    @property
    def pieces(self) -> list[str]:
        return self.library.names

    @property
    def scene_model(self) -> mujoco.MjModel:
        return ghost_model(self.body)

    def piece_of(self, start: Mapping[str, float | str]) -> int | None:
        clip, time = start.get("clip"), start.get("time")
        return self.pieces.index(clip) if clip in self.pieces and isinstance(time, int | float) else None

    def show(self, piece: int, start: Mapping[str, float | str] | None = None) -> None:
        plans, row = self._plans, piece
        if start is not None:  # its record is rounded: the start of an evaluation that comes nearest is meant
            plans, away = self._evaluated, (self._evaluated[1] - float(start["time"])).abs()
            row = int(away.masked_fill(plans[0] != piece, inf).argmin())
        clip, began, steps = (part[row : row + 1] for part in plans)
        self._play((clip, began, steps))

    def drawn(self) -> dict[str, Any]:
        return {"qpos": ghost_qpos(self._qpos[0].numpy(), self.reference().qpos[0].numpy(), self._beside)}

    def told(self) -> dict[str, float | str]:
        return {
            "clip": self.pieces[int(self.memory["clip"][0])],
            "time": f"{float(self.elapsed[0]) * self.body.dt:.1f} s",
            "off by": f"{1000 * float(self._distance().mean()):.0f} mm",
        }

    def _distance(self) -> Tensor:
        """[key bodies] m, of every body to its reference."""
        return torch.linalg.vector_norm(self.key_places()[0].float() - self.reference().body_pos[0], dim=-1)

    def outcome(self, last: Step, steps: int) -> str:
        began, seconds = float(self._starts_played.began[0]), steps * self.body.dt
        whence = f"from {began:.1f} s, " if began else ""
        if not bool(last.metrics["success"][0]):
            return f"{whence}lost after {seconds:.1f} s"
        return f"{whence}tracked {seconds:.1f} s, {float(last.metrics['mpjpe'][0]):.0f} mm"


def make_shown(config: HumanoidConfig, trained: HumanoidConfig, beside: float = 0.0) -> ShownMimic:
    """The clips of `config`, one at a time, for a policy that was trained on those of `trained`."""
    library = library_of(config, "cpu", evaluation=True)
    body = library.body
    sim = make_simulator(body.new_model(), 1, body.substeps, 1, "cpu", "threads", "positions")
    task = ShownMimic(config, library, sim, beside)
    act_as_trained(task, trained)
    return task
