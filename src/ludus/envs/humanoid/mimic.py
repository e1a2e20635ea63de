"""Follow a clip of motion, pose by pose."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import conjugate, heading, multiply, rotate, rotation_vector, two_axes
from ludus.envs.humanoid.config import HumanoidConfig, TrackingReward
from ludus.envs.humanoid.evaluation_starts import EvaluationStarts, Plan, evaluation_plan
from ludus.envs.humanoid.flight import lift_of_steps
from ludus.envs.humanoid.motions import MotionLibrary, Reference
from ludus.envs.humanoid.task import FEELING, HumanoidTask
from ludus.envs.humanoid.tracking import TrackingMeasures, clip_table, farthest_followed
from ludus.envs.mujoco.simulator import Simulator
from ludus.envs.mujoco.task import Rows, Score
from ludus.envs.mujoco.terms import Table, Term
from ludus.envs.vec import State
from ludus.errors import CheckpointError, ConfigError


def reward_terms(r: TrackingReward) -> Table:
    """A squared error of 0 is worth a term's weight, a large one nothing."""
    return {
        "position": Term(lambda task: torch.exp(-r.position_sharpness * task.errors["position"]), r.position),
        "pose": Term(lambda task: torch.exp(task.pose_exponent()), r.pose),
        "velocity": Term(lambda task: torch.exp(-r.velocity_sharpness * task.errors["velocity"]), r.velocity),
        "root_velocity": Term(
            lambda task: torch.exp(-r.root_velocity_sharpness * task.errors["root_velocity"]), r.root_velocity
        ),
        "power": Term(lambda task: -1e-3 * task.power(), r.power),  # a weight is the cost of a kilowatt
    }


TERMINATIONS = {"lost": Term(lambda task: task.lost)}
OBSERVATIONS = {
    **FEELING,
    "phase": Term(lambda task, rows: task.phase(rows)),
    "reference": Term(lambda task, rows: task.coming(rows)),
    # The same without places, which a robot can only estimate; it stands in for `reference` where that is null.
    "reference_pose": Term(lambda task, rows: task.coming(rows, places=False), 0.0),
}
ESTIMATED = ("height", "velocity", "reference")  # terms for which a robot has no sensor


class ClipRoles(NamedTuple):
    """The first clips of a library are trained on and evaluated. In training their mirrored ones follow, in an
    evaluation those that were kept out of the training.
    """

    seen: int
    unseen: tuple[str, ...] = ()  # names


class MimicTask(HumanoidTask):
    """Reward for being where the reference is; an episode ends when the body has lost it."""

    def __init__(
        self,
        config: HumanoidConfig,
        library: MotionLibrary,
        sim: Simulator,
        evaluation: bool = False,
        starts: slice = slice(None),
        roles: ClipRoles | None = None,
    ) -> None:
        """`starts`: of the episodes of an evaluation, those that these rows play. `roles`: all clips are seen."""
        goal_size = 2 + len(config.future) * _seen_size(library.body)
        super().__init__(f"{library.body.name}-mimic", config, library, sim, goal_size, evaluation)
        self._roles = roles or ClipRoles(len(library))
        self._farthest = farthest_followed(self.body)
        self._lift = lift_of_steps(self.body.model)
        if config.discriminate == "error":
            self._hold_motion(_error_size(self.body))
        # m, how far off an episode may be that starts in a part of a clip.
        self._limits = torch.full((len(self.starts.clip),), config.termination, device=self.device)
        self._seconds_ahead = self.body.dt * torch.tensor(config.future, dtype=torch.float64, device=self.device)
        self.memory["error_sum"] = torch.zeros(self.num_rows, device=self.device)  # m, of the episode so far
        self._measures = self._new_measures() if evaluation else None
        if evaluation:
            strict = ("farthest", "strayed") if config.strict_termination else ()
            self.labels = ("weight", "clip", "began", "ended", *strict, *["unseen"] * bool(self._roles.unseen))
            clip, began, steps = evaluation_plan(config, library)
            self._tries = torch.bincount(clip, minlength=len(library)).to(self.device)  # of each clip
            self._play((clip[starts], began[starts], steps[starts]))
            self.own_starts, self.max_steps = starts, int(self._starts_played.steps.max())
        self.use_terms(config, reward_terms(config.reward), TERMINATIONS, OBSERVATIONS, fused=False)
        if (power := self.rewards.terms.get("power")) is not None:
            self._force = sim.field("actuator_force")
            if power.weight < 0 and not evaluation:  # older runs are evaluated all the same
                raise ConfigError(
                    "--env.rewards: power is a cost per kilowatt, 0.5 where older settings had -0.0005."
                )
        lost = self.terminations.terms.get("lost")
        if lost is None or lost.own:  # then an episode goes on, and may find back
            self.memory["followed"] = torch.zeros(self.num_rows, dtype=torch.int64, device=self.device)
            self.labels = (*self.labels, *["lost"] * evaluation)

    def _new_measures(self) -> TrackingMeasures:
        return TrackingMeasures(self.num_rows, len(self.body.key), self.body.dt, self.device, self._farthest[1])

    errors: dict[str, Tensor]  # [rows] squared, of the newest step
    lost: Tensor  # [rows] bool

    # Seeing -------------------------------------------------------------------------------------
    def coming(self, rows: Rows, places: bool = True) -> Tensor:
        """[n, size] the coming frames of the reference, as seen from here; `places`: also where its bodies are."""
        if self._fused:
            return self._coming_fused(rows, places)
        sight, ahead = self.sight, self.library.reference_of(self._frames_ahead(rows))  # [n, frames, …]
        own = sight.qpos[:, None]
        turn = two_axes(multiply(conjugate(own[..., 3:7]), ahead.qpos[..., 3:7]))
        parts = [turn, ahead.qpos[..., 7:] - own[..., 7:], ahead.qvel[..., 6:]]
        if places:
            back = conjugate(sight.facing)[:, None, None]
            parts.insert(0, rotate(back, ahead.body_pos - sight.bodies[:, None]).flatten(2))
        return torch.cat(parts, dim=2).flatten(1)

    def _frames_ahead(self, rows: Rows) -> Tensor:
        """[n, frames, width] of the library's table, all coming frames at once."""
        if self.config.future == (1,):
            return self._next[rows][:, None]
        clip, time = self.memory["clip"][rows, None], self.memory["time"][rows, None]
        ahead, rate = self._seconds_ahead, None
        if self._plays_at_rates:
            rate = self.memory["rate"][rows, None]
            ahead = ahead * rate
        frames = torch.broadcast_tensors(clip, time + ahead)
        found = self.library.rows(*(each.flatten() for each in frames)).unflatten(0, frames[0].shape)
        if rate is not None:
            found[..., self.library.velocities] *= rate[..., None].to(found.dtype)
        return found

    def _coming_fused(self, rows: Rows, places: bool) -> Tensor:
        from ludus.envs.humanoid.sight_triton import Coming, coming

        clip, time = self.memory["clip"][rows], self.memory["time"][rows]
        rate = self.memory["rate"][rows] if self._plays_at_rates else None
        return coming(
            self._state_of(rows), Coming(*self.library.frames, clip, time, rate, self._seconds_ahead), places
        )

    def angle_differences(self) -> dict[str, list[tuple[int, str]]]:
        """A robot computes them from the angles that it measures."""
        found = {}
        for term, places in (("reference", 3 * len(self.body.key)), ("reference_pose", 0)):
            size = places + 6 + 2 * len(self.body.joints)
            firsts = [frame * size + places + 6 for frame in range(len(self.config.future))]
            found[term] = [(first + i, name) for first in firsts for i, name in enumerate(self.body.joints)]
        return found

    def phase(self, rows: Rows) -> Tensor:
        """[n, 2] how far the clip has come, as a point on a circle: a loop ends where it begins.

        Other clips go half round, so that their end does not look like their beginning.
        """
        clip = self.memory["clip"][rows]
        halves = 1 + self.library.loops[clip].long()
        angle = self.memory["time"][rows] * (torch.pi * halves / self.library.durations[clip])
        return torch.stack([angle.sin(), angle.cos()], dim=1).float()

    # Worth --------------------------------------------------------------------------------------
    def measure(self) -> dict[str, Tensor]:
        self.memory["time"] += self.clip_dt
        reference = self.library.reference_of(self._next)  # it was one step ahead, and now is the present
        qpos, qvel, bodies = self._qpos.float(), self._qvel.float(), self.key_places().float()
        distance = torch.linalg.vector_norm(bodies - reference.body_pos, dim=-1)  # [rows, key bodies]
        self.errors = self._errors(reference, qpos, qvel, distance)
        if self.config.discriminate == "motion":
            self._remember_frame()
        elif self.config.discriminate == "error":
            self._remember_error(reference, qpos, qvel, bodies)
        self.lost = self._is_lost(distance)
        self.memory["error_sum"] += distance.mean(1)
        metrics = self._metrics(bodies, reference, self._followed())
        self._advance()
        return metrics

    def _followed(self) -> Tensor:
        """[rows] steps of the episode before the reference was lost for the first time."""
        if "followed" not in self.memory:
            return self.elapsed - self.lost.long()
        followed = self.memory["followed"]
        followed += (followed == self.elapsed - 1) & ~self.lost
        return followed.clone()

    def _errors(self, reference: Reference, qpos: Tensor, qvel: Tensor, distance: Tensor) -> dict[str, Tensor]:
        """[rows] squared errors."""
        turn = rotation_vector(multiply(conjugate(qpos[:, 3:7]), reference.qpos[:, 3:7]))
        return {
            "position": distance.square().mean(1),
            "pose": (qpos[:, 7:] - reference.qpos[:, 7:]).square().mean(1),
            "root": turn.square().sum(1),
            "velocity": (qvel[:, 6:] - reference.qvel[:, 6:]).square().mean(1),
            "root_velocity": (qvel[:, :3] - reference.qvel[:, :3]).square().sum(1),
        }

    def pose_exponent(self) -> Tensor:
        """[rows] of the joints and the root together."""
        r = self.config.reward
        return -r.pose_sharpness * self.errors["pose"] - r.root_sharpness * self.errors["root"]

    def power(self) -> Tensor:
        """[rows] W, of all motors."""
        return (self._force * self._qvel[:, 6:][:, self._motors]).abs().sum(1).float()

    def _is_lost(self, distance: Tensor) -> Tensor:
        """[rows] bool: in training any body is too far off; in an evaluation the mean is, as others count."""
        if self._evaluation:
            return distance.mean(1) > self._farthest[0]
        if not self.config.strict_termination:
            return (distance > self.config.termination).any(dim=1)
        began = self.memory["time"] - self.elapsed * self.clip_dt
        return (distance > self._limits[self.starts.part_at(self.memory["clip"], began), None]).any(dim=1)

    def _metrics(self, bodies: Tensor, reference: Reference, followed: Tensor) -> dict[str, Tensor]:
        """`followed`: [rows] steps before the reference was lost."""
        lost, completion = followed < self.elapsed, (followed / self._planned_steps()).clamp(max=1.0).float()
        if self._measures is None:
            steps = self.elapsed.clamp(min=1)
            off = 1000 * self.memory["error_sum"] / steps
            return {"success": (~lost).float(), "mpjpe": off, "completion": completion}
        self._measures.add(bodies, reference.body_pos)
        clip = self.memory["clip"]
        labels = {"weight": 1 / self._tries[clip], "clip": clip.float()}
        began = self._starts_played.began[self.memory["start"]]
        labels |= {"began": began.float(), "ended": self.memory["time"].float()}
        if "lost" in self.labels:
            labels["lost"] = (began + (followed + 1) * self.body.dt).float()
        if self.config.strict_termination:
            # A copy: rows that have ended begin anew before anybody reads it.
            labels["farthest"] = self._measures.farthest.clone()
            labels["strayed"] = (began + (self._measures.closely + 1) * self.body.dt).float()
        if self._roles.unseen:
            labels["unseen"] = (clip >= self._roles.seen).float()
        return self._measures.results(lost) | {"completion": completion} | labels

    def score(self) -> Score:
        """Whoever is ended before the end, be it by a term of the user's, has not succeeded."""
        score = super().score()
        ends = self.terminations.terms
        if ends.keys() <= {"lost"} and not any(term.own for term in ends.values()):
            return score
        for name in score.metrics:
            if name.startswith("success"):
                score.metrics[name] = score.metrics[name].masked_fill(score.terminated, 0.0)
            elif name.endswith("_succeeded"):
                score.metrics[name] = score.metrics[name].masked_fill(score.terminated, torch.nan)
        return score

    def _planned_steps(self) -> Tensor:
        """[rows] control steps of the episode if it is followed to its end."""
        if self._evaluation:
            return self._starts_played.steps[self.memory["start"]]
        dt = self.clip_dt
        left = self.library.ends[self.memory["clip"]] - (self.memory["time"] - self.elapsed * dt)
        return (left / dt + 1e-6).floor().clamp(1, self.max_steps)

    def _remember_error(self, reference: Reference, qpos: Tensor, qvel: Tensor, bodies: Tensor) -> None:
        """What a differential discriminator sees: all of it is zero where the reference is met.

        As the reference sees it, so that it is the same whichever way that faces.
        """
        back = conjugate(heading(reference.qpos[:, 3:7]))
        turn = rotation_vector(multiply(conjugate(reference.qpos[:, 3:7]), qpos[:, 3:7]))
        joints = qpos[:, 7:] - reference.qpos[:, 7:], 0.1 * (qvel[:, 6:] - reference.qvel[:, 6:])
        offset = rotate(back[:, None], bodies - reference.body_pos)
        velocity = rotate(back, qvel[:, :3] - reference.qvel[:, :3])
        self._remember_motion(torch.cat([offset.flatten(1), turn, *joints, velocity], dim=1))

    # Evaluation ---------------------------------------------------------------------------------
    def _play(self, plan: Plan) -> None:
        """Let the rows play these starts from now on."""
        self._starts_played = EvaluationStarts(plan, self.num_rows, self.device)
        self.fixed_starts = self._starts_played.of_rows
        self.memory["start"] = self._starts_played.before_first.clone()

    def reset(self, seed: int) -> Tensor:
        if self._evaluation:
            self.memory["start"].copy_(self._starts_played.before_first)
        return super().reset(seed)

    @property
    def adapt_every(self) -> int:
        return self.config.resample_every if self.config.resample else 0

    def adapt(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> bool:
        if not (self.config.resample or self.config.strict_termination):
            return False
        heard = labels | {"failed": [float(success < 0.5) for success in metrics["success"]]}
        seen = self._roles.seen
        trained = [clip < seen for clip in labels["clip"]]  # the others are none of the training's business
        told = {
            name: torch.tensor(values, dtype=torch.float64, device=self.device)[trained]
            for name, values in heard.items()
        }
        if self.config.mirror:  # what is hard is so in a mirror, too
            told = {name: values.repeat(2) for name, values in told.items()}
            told["clip"][len(told["clip"]) // 2 :] += seen
        clip = told["clip"].long()
        failed, lost = told["failed"] > 0, told.get("lost")
        if self.config.strict_termination:
            farthest = told["farthest"].masked_fill(failed, torch.inf).nan_to_num(torch.inf)
            self._be_strict(clip, told["began"], farthest)
            failed, lost = farthest > self._farthest[1], told["strayed"]
        if self.config.resample:
            self.starts.learn(clip, told["began"], told["ended"], failed, lost)
        return True

    def _be_strict(self, clip: Tensor, began: Tensor, farthest: Tensor) -> None:
        """What is followed closely is to stay so, though a training explores. From a start that has to find back
        first nothing is asked: its episodes would end before it is learned.
        """
        widest = self.config.termination
        reach = farthest.clamp(min=self.config.strict_termination).clamp(max=widest)
        of_clips, of_parts = (farthest.new_zeros(n) for n in (len(self.library), len(self._limits)))
        of_clips.scatter_reduce_(0, clip, reach, "amax")
        of_parts.scatter_reduce_(0, self.starts.part_at(clip, began), reach, "amax")
        # Where no start was evaluated, the clip's farthest counts.
        limits = torch.where(of_parts > 0, of_parts, of_clips[self.starts.clip])
        self._limits.copy_(limits.masked_fill(limits == 0, widest))

    def lessons(self) -> State:
        own = {"limits": self._limits.clone()} if self.config.strict_termination else {}
        return super().lessons() | own

    def load_state(self, state: State) -> None:
        if "followed" in self.memory:  # which older checkpoints do not have
            state = state | {"memory": {"followed": state["elapsed"]} | state["memory"]}
        super().load_state(state)

    def load_lessons(self, lessons: State) -> None:
        super().load_lessons(lessons)
        if self.config.strict_termination:
            self._limits.fill_(self.config.termination)  # a run that had no such rule, or another, knows none
            if "limits" in lessons and lessons["limits"].shape == self._limits.shape:
                if not bool((lessons["limits"] > 0).all()):
                    raise CheckpointError("Its limits of how far off an episode may be are damaged.")
                self._limits.copy_(lessons["limits"])

    def tabulate(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> list[dict[str, Any]]:
        seen, unseen = self._roles
        shares = None
        if not self._evaluation:  # mirrored clips are counted with their originals
            shares = self.starts.shares().view(-1, seen).sum(0).tolist()
        return clip_table([*self.library.names[:seen], *unseen], labels["clip"], metrics, shares, unseen)

    def describe_starts(self) -> dict[str, Tensor]:
        """Which clip is followed, and from which second of it."""
        return {"clip": self.memory["clip"], "time": self.memory["time"]}

    def start_words(self) -> dict[str, list[str]]:
        return {"clip": list(self.library.names)}

    # Beginning and ending -----------------------------------------------------------------------
    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        values = super().new_episodes(rows, n) | {"error_sum": torch.zeros(n, device=self.device)}
        if self._evaluation:
            values["start"] = self._start_after(rows)
        if "followed" in self.memory:
            values["followed"] = torch.zeros(n, dtype=torch.int64, device=self.device)
        if self.config.discriminate == "error":
            values["motion"] = torch.zeros((n, _error_size(self.body)), device=self.device)
        return values

    def launched(self, qvel: Tensor, clip: Tensor, time: Tensor, rate: Tensor | None) -> Tensor:
        """A start in the air lands with the clip: see flight.py."""
        launch = self.library.launch(clip, time)
        root, rise = launch[:, :6], launch[:, 6]
        if rate is not None:
            root, rise = root * rate[:, None], rise / rate
        qvel = qvel.clone()
        qvel[:, :6] += root.to(qvel.dtype)
        qvel[:, 2] += (rise + self._lift * (rise > 0)).to(qvel.dtype)
        return qvel

    def choose_starts(self, rows: Rows, n: int) -> tuple[Tensor, Tensor]:
        if not self._evaluation:
            return super().choose_starts(rows, n)
        starts, number = self._starts_played, self._start_after(rows)
        return starts.clip[number], starts.began[number]

    def _start_after(self, rows: Rows) -> Tensor:
        """[n] the number of the start that rows of an evaluation play next."""
        return self._starts_played.after[self.memory["start"][rows]]

    def begun(self, rows: Rows) -> dict[str, Tensor]:
        if self._measures is not None:
            self._measures.begin(self.elapsed == 0)  # `rows` may be all of them, also those in mid-episode
        return super().begun(rows)

    def out_of_time(self) -> Tensor:
        if self._evaluation:
            return self.elapsed >= self._planned_steps()
        ended = self.memory["time"] + self.clip_dt > self.library.ends[self.memory["clip"]]
        return ended | (self.elapsed >= self.max_steps)


def _seen_size(body: Body) -> int:
    """Numbers of one coming frame of the reference."""
    return 3 * len(body.key) + 6 + 2 * len(body.joints)


def _error_size(body: Body) -> int:
    """Numbers of an error that a differential discriminator sees."""
    return 3 * len(body.key) + 3 + 2 * len(body.joints) + 3
