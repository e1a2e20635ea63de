"""What all tasks of motion share: acting, feeling the own body, starting in the middle of a clip."""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body
from ludus.envs.bodies.rotations import conjugate, heading, multiply, rotate, two_axes
from ludus.envs.humanoid.checks import gross_errors
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.motions import MotionLibrary, Reference
from ludus.envs.humanoid.start_noise import StartNoise
from ludus.envs.humanoid.starts import StartWeights
from ludus.envs.interface import Interface, changed_facts
from ludus.envs.mujoco.randomization import Latency, Randomization
from ludus.envs.mujoco.simulator import Simulator
from ludus.envs.mujoco.task import ALL_ROWS, Rows, SimTask
from ludus.envs.mujoco.terms import Term
from ludus.envs.vec import State
from ludus.errors import CheckpointError, plain_text

if TYPE_CHECKING:
    from ludus.envs.humanoid.sight_triton import Bodies

_HAS_TRITON = importlib.util.find_spec("triton") is not None


class Sight(NamedTuple):
    """What the observation terms of some rows read."""

    qpos: Tensor  # [n, 7 + joints]
    bodies: Tensor  # [n, key bodies, 3]
    facing: Tensor  # [n, 4] the rotation of the heading
    felt: Sequence[Tensor]  # of `self_state`
    around: Tensor  # [n, 3 · (key bodies − 1)] where the others are, seen from the root


FEELING = {  # observation terms of every body
    "height": Term(lambda task, rows: task.sight.felt[0]),
    "lean": Term(lambda task, rows: task.sight.felt[1]),
    "velocity": Term(lambda task, rows: task.sight.felt[2]),
    "turning": Term(lambda task, rows: task.sight.felt[3]),
    "joints": Term(lambda task, rows: task.sight.felt[4]),
    "joint_velocity": Term(lambda task, rows: task.sight.felt[5]),
    "bodies": Term(lambda task, rows: task.sight.around),
}


_MOST_NAMED = 5  # clips in the plan
_MOST_LOOKED_AT = 200  # clips, before a training


class HumanoidTask(SimTask):
    """One body a row, with motors that pull its joints to angles."""

    def __init__(
        self,
        name: str,
        config: HumanoidConfig,
        library: MotionLibrary,
        sim: Simulator,
        goal_size: int,
        evaluation: bool = False,
    ) -> None:
        self.config, self.library, self.body = config, library, library.body
        self._evaluation = evaluation
        body, joints = library.body, library.body.joints
        space = gym.spaces.Box(-1.0, 1.0, (len(body.motors),), np.float32)
        super().__init__(name, sim, config.max_steps, self_size(body) + goal_size, space)
        self.column_names = {"joints": joints, "joint_velocity": joints}
        self.action_names = tuple(joints[i] for i in body.motors)
        scale = np.full(len(body.motors), config.action_scale) if config.action_scale else body.action_scale
        self.action_units = tuple(f"× {each:.3g} rad" for each in scale)
        self._qpos, self._qvel, self._ctrl = (sim.field(field) for field in ("qpos", "qvel", "ctrl"))
        self._places = sim.field("xpos")
        key = np.array(body.key) + body.root
        self._key = _selection(key, self.device)
        self._key_numbers = torch.as_tensor(key, dtype=torch.int32, device=self.device)
        # What is seen in a few kernels instead of some hundred: sight_triton.py.
        self._fused = self.device.type == "cuda" and self.dtype == torch.float32 and _HAS_TRITON
        self._motors = _selection(body.motors, self.device)
        self._action_scale, self._motor_lag = (
            torch.as_tensor(values, dtype=torch.float32, device=self.device) for values in (scale, body.lag)
        )
        self._end_effectors = torch.tensor(body.end_effectors, device=self.device)
        self._mean_pose = library.mean_pose()
        self.starts = StartWeights(
            library,
            config.resample_floor,
            config.resample_smoothing,
            config.resample_spread,
            longest=config.max_steps * body.dt,
        )
        self.memory = {
            "clip": torch.zeros(self.num_rows, dtype=torch.int64, device=self.device),
            "time": torch.zeros(self.num_rows, dtype=torch.float64, device=self.device),  # s in that clip
        }
        self._plays_at_rates = not evaluation and config.playback != (1.0, 1.0)
        if self._plays_at_rates:  # seconds of the clip in one of the simulation
            self.memory["rate"] = torch.ones(self.num_rows, dtype=torch.float64, device=self.device)
        self._noise: StartNoise | None = None
        if config.start_noise and not evaluation:
            self._noise = StartNoise(body, config.start_noise, self._qpos)
            self._settles, self._rotations = True, sim.field("xquat")
        # The reference one control step ahead; of the present step, once that is done.
        self._next = library.rows(self.memory["clip"], self.memory["time"])
        if config.discriminate == "motion":
            self._hold_motion(config.window * self._frame_size)

    # Acting -------------------------------------------------------------------------------------
    _delay: list[str] | None = None  # where `memory` has the control steps by which actions are late

    def control(self, action: Tensor) -> None:
        center = self._mean_pose[self._motors]
        if self.config.actions != "absolute":
            ahead = self.library.reference_of(self._next if self._delay is None else self._delayed())
            center = ahead.qpos[:, 7:][:, self._motors] + self._lead(ahead)
        self._ctrl.copy_(center + self._action_scale * action)

    def _randomize(self, terms: list[Randomization]) -> None:
        super()._randomize(terms)
        delays = [term for term in terms if isinstance(term, Latency)]
        self._delay = [f"{term.name}/steps" for term in delays] if delays else None

    def _delayed(self) -> Tensor:
        """[rows, width] of the reference that motors' targets are of which arrive now."""
        assert self._delay is not None
        late = sum((self.memory[name] for name in self._delay), torch.zeros_like(self.elapsed))
        return self.rows_ahead(ALL_ROWS, 1 - late)

    def _lead(self, ahead: Reference) -> Tensor:
        """[rows, motors] rad by which targets are ahead of the reference."""
        if self.config.actions == "feedforward":
            return ahead.lead
        return self._motor_lag * ahead.qvel[:, 6:][:, self._motors]

    # Seeing -------------------------------------------------------------------------------------
    sight: Sight

    def look_at(self, rows: Rows) -> None:
        qpos, bodies = self._qpos[rows].float(), self.key_places()[rows].float()
        felt: Sequence[Tensor]
        if self._fused:
            from ludus.envs.humanoid.sight_triton import feel

            whole, facing = feel(self._state_of(rows))
            *felt, around = whole.split(_felt_sizes(self.body), dim=1)
        else:
            facing = heading(qpos[:, 3:7])
            felt = self_state(qpos, self._qvel[rows].float(), facing)
            around = from_root(bodies, facing)[:, 1:].flatten(1)
        self.sight = Sight(qpos, bodies, facing, felt, around)

    def _state_of(self, rows: Rows) -> "Bodies":
        from ludus.envs.humanoid.sight_triton import Bodies

        return Bodies(self._qpos[rows], self._qvel[rows], self._places[rows], self._key_numbers)

    def key_places(self) -> Tensor:
        """[rows, key bodies, 3] where they are, as the simulator has it."""
        return self._places[:, self._key]

    # Time ---------------------------------------------------------------------------------------
    def _advance(self) -> None:
        """The step is scored: time goes on."""
        self._next.copy_(self.rows_ahead(ALL_ROWS, 1))

    def rows_ahead(self, rows: Rows, steps: int | Tensor) -> Tensor:
        """[n, width] of the library's table: the reference so many ([n]) control steps ahead, at its rate."""
        clip, time = self.memory["clip"][rows], self.memory["time"][rows]
        if not self._plays_at_rates:
            return self.library.rows(clip, time + steps * self.body.dt)
        rate = self.memory["rate"][rows]
        found = self.library.rows(clip, time + steps * self.body.dt * rate)
        found[:, self.library.velocities] *= rate[:, None].to(found.dtype)
        return found

    @property
    def clip_dt(self) -> float | Tensor:
        """Seconds, or [rows] of them, by which a clip goes on in a control step."""
        return self.body.dt * self.memory["rate"] if self._plays_at_rates else self.body.dt

    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        clip, time = self.choose_starts(rows, n)
        start = self.library.at(clip, time)
        ctrl = start.qpos[:, 7:][:, self._motors]
        values = {"clip": clip, "time": time, "qpos": start.qpos, "qvel": start.qvel, "ctrl": ctrl}
        if self._plays_at_rates:
            slow, fast = (math.log(rate) for rate in self.config.playback)
            values["rate"] = self.uniform(slow, fast, n).double().exp()
            values["qvel"] = start.qvel * values["rate"][:, None]
        values["qvel"] = self.launched(values["qvel"], clip, time, values.get("rate"))
        if self._noise is not None:
            unit = self.uniform(-1, 1, n, self._noise.size)
            values["qpos"], values["qvel"] = self._noise.beside(values["qpos"], values["qvel"], unit)
        if self.config.discriminate == "motion":
            values["motion"] = self._windows_before(clip, time)
        return {name: value.to(self._kind_of(name)) for name, value in values.items()}

    def launched(self, qvel: Tensor, clip: Tensor, time: Tensor, rate: Tensor | None) -> Tensor:
        """[n, …] velocities at starts, which a task may change where they are in the air."""
        return qvel

    def _kind_of(self, name: str) -> torch.dtype:
        return self.memory[name].dtype if name in self.memory else self.dtype

    def restart(self, rows: Tensor) -> Tensor:
        obs = super().restart(rows)
        if self.motion is not None:  # no step was made: what is to be seen is the start
            self.motion[rows] = self.memory["motion"][rows]
        return obs

    def choose_starts(self, rows: Rows, n: int) -> tuple[Tensor, Tensor]:
        """([n] clip, [n] seconds) at which episodes begin."""
        return self.starts.draw(self.uniform(0, 1, n), self.uniform(0, 1, n))

    def begun(self, rows: Rows) -> dict[str, Tensor]:
        self._next[rows] = self.rows_ahead(rows, 1)
        return {}

    def settled(self, rows: Rows) -> dict[str, Tensor]:
        """Start noise pushes nothing into the floor: the root is lifted by what would be below it."""
        bodies = slice(self.body.root, self.body.root + len(self.body.bodies))
        places, rotations = self._places[rows][:, bodies], self._rotations[rows][:, bodies]
        lowest = self.body.kinematics.lowest_points(places, rotations).amin(dim=1)
        qpos = self._qpos[rows].clone()
        qpos[:, 2] += (-lowest).clamp(min=0.0)
        return {"qpos": qpos}

    # What a discriminator sees ------------------------------------------------------------------
    def _hold_motion(self, size: int) -> None:
        """Room for what is seen of the present episode and, in `motion`, of the newest step, which may end it.

        `motion` is read right after a step, so only the other is saved.
        """
        self.memory["motion"], self.motion = (
            torch.zeros((self.num_rows, size), device=self.device) for _ in range(2)
        )

    @property
    def _frame_size(self) -> int:
        """Numbers of a frame of a discriminator's window."""
        return _felt_size(self.body) + 3 * len(self.body.end_effectors)

    def _remember_frame(self) -> None:
        """The newest frame joins the window, the oldest leaves it."""
        window = self.memory["motion"].view(self.num_rows, self.config.window, self._frame_size)
        newest = self._frame(self._qpos.float(), self._qvel.float(), self.key_places().float())
        self._remember_motion(torch.cat([window[:, 1:], newest[:, None]], dim=1).flatten(1))

    def _remember_motion(self, motion: Tensor) -> None:
        """[rows, size] after this step. A row that diverged keeps what it had: its numbers may not be finite."""
        assert self.motion is not None
        if self.diverged is not None:
            motion = torch.where(self.diverged[:, None], self.memory["motion"], motion)
        self.memory["motion"].copy_(motion)
        self.motion.copy_(motion)

    def _frame(self, qpos: Tensor, qvel: Tensor, bodies: Tensor) -> Tensor:
        """[..., size] of a pose, the same wherever it is and whichever way it faces."""
        facing = heading(qpos[..., 3:7])
        ends = from_root(bodies, facing)[..., self._end_effectors, :]
        return torch.cat([*self_state(qpos, qvel, facing), ends.flatten(-2)], dim=-1)

    def _windows_before(self, clip: Tensor, time: Tensor) -> Tensor:
        """[n, window · frame] of the reference, the last frame at `time`."""
        back = self.body.dt * torch.arange(self.config.window - 1, -1, -1, device=self.device)
        times = time[:, None] - back
        # A looping clip has a cycle before; others stand still in their first pose for as long as needed.
        times = torch.where(self.library.loops[clip][:, None], times + self._cycle_before(clip)[:, None], times)
        times = times.flatten()
        frames = self.library.at(clip.repeat_interleave(len(back)), times)
        qvel = frames.qvel.masked_fill((times < 0)[:, None], 0.0)
        return self._frame(frames.qpos, qvel, frames.body_pos).view(len(clip), -1)

    def _cycle_before(self, clip: Tensor) -> Tensor:
        """[n] seconds after which a looping clip is at the same pose with at least a window behind it."""
        duration = self.library.durations[clip]
        return duration * torch.ceil(self.config.window * self.body.dt / duration)

    def demonstrations(self, count: int, generator: torch.Generator) -> Tensor:
        """Drawn as starts are: the first windows of episodes have nothing that demonstrations lack."""
        if self.config.discriminate == "error":
            assert self.motion is not None
            return torch.zeros((count, self.motion.shape[1]), device=self.device)
        choice, place = torch.rand((2, count), generator=generator, dtype=torch.float64, device=self.device)
        clip, time = self.starts.draw(choice, place)
        return self._windows_before(clip, time)

    # Exact state --------------------------------------------------------------------------------
    def state(self) -> State:
        return super().state() | {"body": self.body.facts()} | self.lessons()

    def load_state(self, state: State) -> None:
        _check_same(state.get("body", self.body.facts()), self.body)  # older checkpoints do not say
        super().load_state(state)
        self.load_lessons(state)  # which tells of other clips
        self._refuse_nonsense()
        self._advance()

    def _refuse_nonsense(self) -> None:
        """Clips and times that a checkpoint gave: kernels read the table of motions at them unasked."""
        clip = self.memory["clip"]
        times = [self.memory[name] for name in ("time", "rate") if name in self.memory]
        known = ((clip >= 0) & (clip < len(self.library))).all()
        if not (known and all(time.isfinite().all() for time in times)):
            raise CheckpointError("Its episodes are in clips or at times that there are not: it is damaged.")

    def interface(self) -> Interface:
        return replace(super().interface(), robot=self.body.facts())

    def _own_clips(self) -> Sequence[Clip]:
        """Without the mirrored ones, which come last."""
        clips = self.library.clips
        return clips[: len(clips) // 2] if self.config.mirror else clips

    def plan_lines(self) -> list[str]:
        clips = self._own_clips()
        names = ", ".join(clip.name for clip in clips[:_MOST_NAMED]) + ", …" * (len(clips) > _MOST_NAMED)
        several = f"{len(clips):,} clips" if len(clips) > 1 else "a clip"
        seconds = sum(clip.duration for clip in clips)
        return [plain_text(f"{self.body.name}; {several}, {seconds:,.1f} s: {names}")]  # of files of strangers

    def doubts(self) -> list[str]:
        clips = self._own_clips()[:_MOST_LOOKED_AT]
        found = [error for clip in clips for error in gross_errors(clip)]
        more = f" And {len(found) - 1} more errors." if len(found) > 1 else ""
        return [plain_text(f"{found[0]}{more} 'ludus motions check' tells all.")] if found else []

    def lessons(self) -> State:
        return {"starts": self.starts.state()}

    def load_lessons(self, lessons: State) -> None:
        if self.config.resample:
            self.starts.load_state(lessons["starts"])
        else:  # all clips alike, whatever the run did before
            self.starts.refuse_other_clips(lessons["starts"])

    def act_around(self, pose: Tensor) -> None:
        """Add absolute actions to this pose [joints]: that of the clips which a policy was trained on."""
        self._mean_pose.copy_(pose)

    def reference(self) -> Reference:
        """What is to be imitated at the present time, for viewers."""
        return self.library.at(self.memory["clip"], self.memory["time"])


def self_state(qpos: Tensor, qvel: Tensor, facing: Tensor) -> list[Tensor]:
    """Height, lean, velocities as felt from inside, joints: [..., n] each, whatever the place and the heading."""
    back = conjugate(facing)
    lean = multiply(back, qpos[..., 3:7])
    # MuJoCo gives the root's velocity in the world's frame but its turning in the root's own.
    return [
        qpos[..., 2:3],
        two_axes(lean),
        rotate(back, qvel[..., :3]),
        rotate(lean, qvel[..., 3:6]),
        qpos[..., 7:],
        qvel[..., 6:],
    ]


def from_root(bodies: Tensor, facing: Tensor) -> Tensor:
    """[..., key bodies, 3] where the bodies are, seen from the root."""
    return rotate(conjugate(facing)[..., None, :], bodies - bodies[..., :1, :])


def self_size(body: Body) -> int:
    """Numbers by which a body feels itself: `FEELING`."""
    return sum(_felt_sizes(body))


def _felt_sizes(body: Body) -> list[int]:
    """Of `self_state`, and at last of where the other key bodies are."""
    joints = len(body.joints)
    return [1, 6, 3, 3, joints, joints, 3 * (len(body.key) - 1)]


def _felt_size(body: Body) -> int:
    return sum(_felt_sizes(body)[:-1])


def _selection(numbers: np.ndarray, device: torch.device) -> slice | Tensor:
    """What takes these columns: a slice where they lie side by side, which copies nothing."""
    first, last = int(numbers[0]), int(numbers[-1])
    if np.array_equal(numbers, np.arange(first, last + 1)):
        return slice(first, last + 1)
    return torch.as_tensor(numbers, device=device)


def _check_same(then: dict[str, object], body: Body) -> None:
    """A policy learned to move the body that it had."""
    if changed := changed_facts(then, body.facts()):
        raise CheckpointError(
            f"The body {body.name} ({body.file}) is not the one this run began with: its {', '.join(changed)} "
            "changed. Put the file back, or begin a new run; a newer Ludus may also read it otherwise."
        )
