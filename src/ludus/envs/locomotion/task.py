"""Gymnasium's five running tasks (v5), equal to the originals step by step.

The models are the installed Gymnasium's. What differs between the tasks is data (`TASKS`); what they share,
progress forward minus the cost of control and contact while the body stays healthy, is `LocomotionTask`.
"""

from dataclasses import dataclass
from importlib.resources import as_file, files
from math import inf, nextafter
from typing import Literal

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.locomotion.config import LocomotionConfig
from ludus.envs.locomotion.gymnasium_sim import GymnasiumSimulator
from ludus.envs.mujoco.robot import control_names, control_units
from ludus.envs.mujoco.settings import TermSettings
from ludus.envs.mujoco.simulator import Simulator, make_simulator
from ludus.envs.mujoco.task import Rows, SimTask
from ludus.envs.mujoco.terms import Table, Term
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Seen:
    """A part of the observation: a simulator field, flattened."""

    field: str
    skip: int = 0
    """Leading entries left out: the distance run, or the world's body."""
    clip: float = inf
    """Bound on the size of every entry."""


@dataclass(frozen=True)
class Limit:
    """A healthy body has low < value < high in these columns of its state (qpos, then qvel)."""

    columns: slice
    low: float
    high: float


@dataclass(frozen=True)
class TaskSpec:
    """What sets one task apart from the others."""

    xml: str
    frame_skip: int
    seen: tuple[Seen, ...]
    reset_noise: float
    """Half width of the uniform noise on the first qpos, and on the first qvel if that is uniform."""
    ctrl_cost: float
    """Weight of the squared controls."""
    gaussian_qvel: bool = False
    """Whether the first qvel is normal, with `reset_noise` as its standard deviation."""
    runner: Literal["root", "torso", "mass_center"] = "root"
    """Whose x velocity is rewarded: the first joint's, the torso's or that of the centre of mass."""
    forward_reward: float = 1.0
    """Weight of the x velocity in m/s."""
    healthy_reward: float = 0.0
    """Reward of every healthy step."""
    healthy: tuple[Limit, ...] = ()
    """Outside these the episode ends."""
    contact_cost: float = 0.0
    """Weight of the squared contact forces."""
    contact_clip: float = inf
    """Bound on each force before it is squared."""
    contact_cost_max: float = inf
    """Bound on the weighted sum."""


TASKS: dict[str, TaskSpec] = {
    "half-cheetah": TaskSpec(
        xml="half_cheetah.xml",
        frame_skip=5,
        seen=(Seen("qpos", skip=1), Seen("qvel")),
        reset_noise=0.1,
        gaussian_qvel=True,
        ctrl_cost=0.1,
    ),
    "hopper": TaskSpec(
        xml="hopper.xml",
        frame_skip=4,
        seen=(Seen("qpos", skip=1), Seen("qvel", clip=10.0)),
        reset_noise=5e-3,
        ctrl_cost=1e-3,
        healthy_reward=1.0,
        healthy=(
            Limit(slice(1, 2), 0.7, inf),  # height
            Limit(slice(2, 3), -0.2, 0.2),  # lean
            Limit(slice(3, None), -100.0, 100.0),
        ),
    ),
    "walker2d": TaskSpec(
        xml="walker2d_v5.xml",
        frame_skip=4,
        seen=(Seen("qpos", skip=1), Seen("qvel", clip=10.0)),
        reset_noise=5e-3,
        ctrl_cost=1e-3,
        healthy_reward=1.0,
        healthy=(Limit(slice(1, 2), 0.8, 2.0), Limit(slice(2, 3), -1.0, 1.0)),  # height, lean
    ),
    "ant": TaskSpec(
        xml="ant.xml",
        frame_skip=5,
        seen=(Seen("qpos", skip=2), Seen("qvel"), Seen("cfrc_ext", skip=1, clip=1.0)),
        reset_noise=0.1,
        gaussian_qvel=True,
        ctrl_cost=0.5,
        runner="torso",
        healthy_reward=1.0,
        # Height; here Gymnasium counts the bounds themselves as healthy.
        healthy=(Limit(slice(2, 3), nextafter(0.2, -inf), nextafter(1.0, inf)),),
        contact_cost=5e-4,
        contact_clip=1.0,
    ),
    "humanoid": TaskSpec(
        xml="humanoid.xml",
        frame_skip=5,
        seen=(
            Seen("qpos", skip=2),
            Seen("qvel"),
            Seen("cinert", skip=1),
            Seen("cvel", skip=1),
            Seen("qfrc_actuator", skip=6),  # the free root has no motors
            Seen("cfrc_ext", skip=1),
        ),
        reset_noise=1e-2,
        ctrl_cost=0.1,
        runner="mass_center",
        forward_reward=1.25,
        healthy_reward=5.0,
        healthy=(Limit(slice(2, 3), 1.0, 2.0),),  # height
        contact_cost=5e-7,
        contact_cost_max=10.0,
    ),
}


class LocomotionTask(SimTask):
    """Run forward along x. Actions are the controls; a clipped action is also charged as clipped."""

    def __init__(
        self, name: str, spec: TaskSpec, sim: Simulator, max_steps: int, terms: TermSettings | None = None
    ) -> None:
        self._spec = spec
        self._dt = sim.model.opt.timestep * spec.frame_skip
        self._qpos, self._qvel, self._ctrl = (sim.field(f) for f in ("qpos", "qvel", "ctrl"))
        # Views of the live fields, each [rows, width]: to observe is to concatenate them.
        self.seen = {s.field: sim.field(s.field)[:, s.skip :].view(sim.num_sims, -1) for s in spec.seen}
        self._contact_forces = sim.field("cfrc_ext").view(sim.num_sims, -1) if spec.contact_cost else None
        self._bodies_x, self._body_weights = _runner(spec.runner, sim)
        self._healthy_low, self._healthy_high = _healthy_bounds(spec.healthy, sim)
        low, high = sim.model.actuator_ctrlrange.astype(np.float32).T
        obs_size = sum(view.shape[1] for view in self.seen.values())
        super().__init__(name, sim, max_steps, obs_size, gym.spaces.Box(low, high, dtype=np.float32))
        self.action_names, self.action_units = control_names(sim.model), control_units(sim.model)
        # Kept, not read before each step: Gymnasium's lags the state, and a resumed state could not give it.
        self.memory["runner_x"] = self._runner_x()
        self._qpos0 = torch.as_tensor(sim.model.qpos0, dtype=self.dtype, device=self.device)
        self.use_terms(terms or TermSettings(), *tables(spec))
        if "body_mass" in self._randomized and spec.runner == "mass_center":
            self._body_weights = sim.model_field("body_mass")

    def control(self, action: Tensor) -> None:
        self._ctrl.copy_(action)

    def measure(self) -> dict[str, Tensor]:
        x = self._runner_x()
        self.forward = (x - self.memory["runner_x"]) * (self._spec.forward_reward / self._dt)
        self.memory["runner_x"].copy_(x)
        if self._spec.healthy:
            self.healthy = self._is_healthy()
        return {"x_position": self._qpos[:, 0].float()}

    forward: Tensor  # [rows] progress along x in the newest step, as Gymnasium pays it
    healthy: Tensor  # [rows] bool

    def squared_control(self) -> Tensor:
        """[rows]"""
        return torch.linalg.vecdot(self._ctrl, self._ctrl)

    def contact_cost(self) -> Tensor:
        """[rows] weighted and bounded."""
        assert self._contact_forces is not None
        clip = self._spec.contact_clip
        bounded = self._contact_forces if clip == inf else self._contact_forces.clamp(-clip, clip)
        cost = self._spec.contact_cost * torch.linalg.vecdot(bounded, bounded)
        return cost.clamp(max=self._spec.contact_cost_max)

    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        scale = self._spec.reset_noise
        qpos = self._qpos0 + self.uniform(-scale, scale, n, self._qpos.shape[1])
        shape = (n, self._qvel.shape[1])
        if self._spec.gaussian_qvel:
            normal = torch.randn(shape, generator=self.generator, dtype=self.dtype, device=self.device)
            return {"qpos": qpos, "qvel": scale * normal}
        return {"qpos": qpos, "qvel": self.uniform(-scale, scale, *shape)}

    def begun(self, rows: Rows) -> dict[str, Tensor]:
        return {"runner_x": self._runner_x()[rows]}

    def _runner_x(self) -> Tensor:
        """[rows] the x whose progress is rewarded."""
        weights = self._body_weights
        if weights.dim() == 2:  # masses that differ between simulations
            return torch.linalg.vecdot(self._bodies_x, weights) / weights.sum(1)
        return self._bodies_x @ weights

    def _is_healthy(self) -> Tensor:
        """[rows] bool"""
        state = torch.cat((self._qpos, self._qvel), dim=1)
        return ((self._healthy_low < state) & (state < self._healthy_high)).all(dim=1)


def tables(spec: TaskSpec) -> tuple[Table, Table, Table]:
    """Reward, termination and observation terms of a task."""
    rewards = {
        "forward": Term(lambda task: task.forward),
        "control": Term(LocomotionTask.squared_control, -spec.ctrl_cost),
    }
    if spec.contact_cost:
        rewards["contact"] = Term(LocomotionTask.contact_cost, -1.0)
    if spec.healthy:
        rewards["healthy"] = Term(lambda task: task.healthy, spec.healthy_reward)
    ends = {"unhealthy": Term(lambda task: ~task.healthy)} if spec.healthy else {}
    return rewards, ends, {part.field: _shown(part) for part in spec.seen}


def _shown(part: Seen) -> Term:
    name, clip = part.field, part.clip
    if clip == inf:
        return Term(lambda task, rows: task.seen[name][rows])
    return Term(lambda task, rows: task.seen[name][rows].clamp(-clip, clip))


def make_locomotion(
    config: LocomotionConfig, num_envs: int, threads: int, device: torch.device | str = "cpu"
) -> VecEnv:
    """The task `config` names, as a group of `num_envs` environments, on `threads` threads or on `device`."""
    if config.task not in TASKS:
        known = ", ".join(TASKS)
        hint = did_you_mean(config.task, TASKS)
        raise ConfigError(f"There is no locomotion task {config.task!r}.{hint} The tasks are {known}.")
    spec = TASKS[config.task]
    sim = make_simulator(
        load_model(spec.xml),
        num_envs,
        spec.frame_skip,
        threads,
        device,
        config.simulator,
        derived="as_stepped",
        threaded=GymnasiumSimulator,
    )
    return LocomotionTask(f"locomotion:{config.task}", spec, sim, config.max_steps, config)


def load_model(xml: str) -> mujoco.MjModel:
    # HalfCheetah's file has an attribute that MuJoCo deprecates, which would print a warning and write
    # MUJOCO_LOG.TXT into the working folder at every start.
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        with as_file(files("gymnasium") / "envs" / "mujoco" / "assets" / xml) as path:
            return mujoco.MjModel.from_xml_path(str(path))
    finally:
        mujoco.set_mju_user_warning(handler)


def _runner(runner: str, sim: Simulator) -> tuple[Tensor, Tensor]:
    """A live [rows, n] of x coordinates and the [n] weights that make the runner's x of them."""
    if runner == "root":
        return sim.field("qpos")[:, :1], torch.ones(1, dtype=sim.dtype, device=sim.device)
    if runner == "torso":
        return sim.field("xpos")[:, 1:2, 0], torch.ones(1, dtype=sim.dtype, device=sim.device)
    mass = torch.as_tensor(sim.model.body_mass, dtype=sim.dtype, device=sim.device)
    return sim.field("xipos")[:, :, 0], mass / mass.sum()


def _healthy_bounds(limits: tuple[Limit, ...], sim: Simulator) -> tuple[Tensor, Tensor]:
    """The limits as two [nq + nv] bounds on the whole state."""
    low = torch.full((sim.model.nq + sim.model.nv,), -inf, dtype=sim.dtype, device=sim.device)
    high = -low
    for limit in limits:
        low[limit.columns] = limit.low
        high[limit.columns] = limit.high
    return low, high
