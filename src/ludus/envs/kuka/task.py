"""Pick a cube up from anywhere on the table and place it, at rest and released, on a pad anywhere on the table."""

from pathlib import Path
from typing import NamedTuple

import gymnasium as gym
import mujoco
import numpy as np
import torch
from torch import Tensor

from ludus.envs.kuka.config import KukaConfig
from ludus.envs.kuka.kinematics import joints_for
from ludus.envs.mujoco.simulator import make_simulator
from ludus.envs.mujoco.task import ALL_ROWS, Rows, SimTask
from ludus.envs.mujoco.terms import Term
from ludus.envs.row_space import RowSpace

TABLE_TOP = 0.20  # m
TABLE_CENTER, TABLE_HALF = (0.575, 0.0), (0.20, 0.34)
CUBE_HALF = 0.02
PAD_HALF = 0.06
PAD_TOP = TABLE_TOP + 0.05
CUBE_ON_PAD = PAD_TOP + CUBE_HALF  # height of a placed cube's centre
PLACE_LOW, PLACE_HIGH = (0.45, -0.25), (0.70, 0.25)  # m, where cubes and pads stand
WORKSPACE_LOW, WORKSPACE_HIGH = (0.40, -0.32, 0.22), (0.75, 0.32, 0.42)  # m, of the grip point
HOME = (0.55, 0.0, 0.38)  # m, the grip point when an episode begins
FIXED_CUBE, FIXED_PAD = (0.55, -0.12), (0.55, 0.14)
FINGER_OPEN = 0.0425  # m, each finger's stroke
GRIP_FORCE = 20.0  # N
SUBSTEPS = 10  # of 5 ms: 20 Hz control
START_NOISE = 0.02  # rad, on every joint
STRIDE = 0.03  # m the target moves per step at action 1
LEASH = 0.08  # m the target may run ahead of the hand
REST_SPEED = 0.05  # m/s, below which the cube is at rest
GRIP_BLEND = 0.3  # share of the newest gripper action in the running average that the gripper obeys
OBS_SIZE = 34
FULL_POTENTIAL = 95.0  # of a cube at rest on the middle of the pad, the open hand around it


def scene_path() -> Path:
    return Path(__file__).with_name("scene.xml")


class Worth(NamedTuple):
    """What the terms of a step read, each [rows]."""

    progress: Tensor  # how much farther the job has come than ever before in the episode
    success: Tensor  # bool
    fallen: Tensor  # bool: the cube left the table


class Sight(NamedTuple):
    """What the observation terms of some rows read."""

    sensors: Tensor  # [n, 11] hand's place and velocity, cube's velocity, touches
    qpos: Tensor  # [n, 16]
    to_goal: Tensor  # [n, 3] from the cube


REWARDS = {
    "progress": Term(lambda task: task.worth.progress),
    "time": Term(lambda task: task.one, -0.1),
    "success": Term(lambda task: task.worth.success, 20.0),
    "fallen": Term(lambda task: task.worth.fallen, -5.0),
}
TERMINATIONS = {
    "success": Term(lambda task: task.worth.success),
    "fallen": Term(lambda task: task.worth.fallen),
}
OBSERVATIONS = {
    "hand": Term(lambda task, rows: task.sight.sensors[:, :6]),  # position and velocity
    "opening": Term(lambda task, rows: task.sight.qpos[:, 7:8] / FINGER_OPEN),
    "grip": Term(lambda task, rows: task.memory["grip"][rows, None]),
    "cube": Term(lambda task, rows: task.sight.qpos[:, 9:12]),
    "cube_rotation": Term(lambda task, rows: upright(task.cube_matrix[rows])[:, :6]),
    "cube_velocity": Term(lambda task, rows: task.sight.sensors[:, 6:9]),
    "to_cube": Term(lambda task, rows: task.sight.qpos[:, 9:12] - task.sight.sensors[:, :3]),
    "to_goal": Term(lambda task, rows: task.sight.to_goal),
    # The way to carry, once there is something to carry.
    "to_carry": Term(lambda task, rows: task.sight.to_goal * task.grasped(rows)[:, None]),
    "lag": Term(lambda task, rows: task.memory["target"][rows] - task.sight.sensors[:, :3]),
    "touch": Term(lambda task, rows: (task.sight.sensors[:, 9:11] > 0).to(task.dtype)),  # each fingertip the cube
}
COLUMNS = {
    "hand": ("x", "y", "z", "vx", "vy", "vz"),
    "touch": ("left", "right"),
    **dict.fromkeys(("cube", "cube_velocity", "to_cube", "to_goal", "to_carry", "lag"), "xyz"),
}


def upright(matrix: Tensor) -> Tensor:
    """[n, 9] the rotation matrices of cubes, taken as the one of the 24 alike that has the top up and x ahead.

    A cube that has tipped over looks as before, and is to be grasped as before.
    """
    axes = matrix.view(-1, 3, 3)  # columns: those of the cube, in the world
    up = axes[:, 2].abs().argmax(dim=1, keepdim=True)
    ahead = axes[:, 0].abs().scatter(1, up, -1.0).argmax(dim=1, keepdim=True)
    order = torch.cat([ahead, 3 - up - ahead, up], dim=1)
    sign_up, sign_ahead = axes[:, 2].gather(1, up).sign(), axes[:, 0].gather(1, ahead).sign()
    handed = 1 - 2 * ((ahead - up) % 3 - 1)  # whether the third axis follows the two others, or its opposite
    signs = torch.cat([sign_ahead, sign_up * sign_ahead * handed, sign_up], dim=1)
    return (axes.gather(2, order[:, None].expand_as(axes)) * signs[:, None]).flatten(1)


class KukaPickPlace(SimTask):
    """Observation: 34 numbers; action: 3 for the hand's motion, 1 for the gripper (its average ≥ 0 opens)."""

    def __init__(
        self,
        config: KukaConfig,
        num_envs: int,
        threads: int,
        evaluation: bool = False,
        device: torch.device | str = "cpu",
        obs: int | RowSpace = OBS_SIZE,
    ) -> None:
        model = mujoco.MjModel.from_xml_path(str(scene_path()))
        sim = make_simulator(model, num_envs, SUBSTEPS, threads, device, config.simulator)
        action_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
        super().__init__("kuka-pick-place", sim, config.max_steps, obs, action_space)
        self._config = config
        # A tensor: a recorded step reads it anew.
        self._assist = self._vector((0.0 if evaluation else config.assist,))
        self._evaluation = evaluation
        self._assists = not evaluation and max(config.assist, config.assist_final) > 0
        self._qpos, self._ctrl = sim.field("qpos"), sim.field("ctrl")
        self._sensors = sim.field("sensordata")
        self.cube_matrix = sim.field("xmat")[:, model.body("cube").id]  # [rows, 9]
        self._workspace = self._vector(WORKSPACE_LOW), self._vector(WORKSPACE_HIGH)
        self._home, self._fixed_places = self._vector(HOME), self._vector((*FIXED_CUBE, *FIXED_PAD))
        self._over_cube = self._vector((0.0, 0.0, 0.008))  # a hand that starts at the cube
        self._table_center, self._table_half = self._vector(TABLE_CENTER), self._vector(TABLE_HALF)
        self._on_pad = self._vector((0.04, 0.04, 0.008))  # how far the cube's centre may be from the goal
        self._nearness = self._vector((4.0, 2.5))[:, None]  # 1/m: how sharply nearness to cube and goal counts
        self.memory = {
            "target": self._home.repeat(num_envs, 1),  # [rows, 3] where the hand is told to be
            "grip": torch.ones(num_envs, dtype=self.dtype, device=self.device),  # average gripper action
            "goal": self._vector((0.0, 0.0, CUBE_ON_PAD)).repeat(num_envs, 1),  # [rows, 3] for the cube's centre
            "best_potential": torch.zeros(num_envs, dtype=self.dtype, device=self.device),  # of the episode
        }
        self.one = torch.ones(num_envs, dtype=self.dtype, device=self.device)
        self.use_terms(config, *self.tables)

    worth: Worth
    sight: Sight
    tables = (REWARDS, TERMINATIONS, OBSERVATIONS)
    column_names = COLUMNS
    action_names = ("hand.x", "hand.y", "hand.z", "gripper")
    action_units = (*[f"× {STRIDE:g} m a step"] * 3, "(0 and more opens)")

    def _vector(self, values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values, dtype=self.dtype, device=self.device)

    def set_progress(self, fraction: float) -> None:
        if not self._evaluation:
            self._assist.fill_(self._config.assist if fraction < 0.8 else self._config.assist_final)

    # Acting -------------------------------------------------------------------------------------
    def control(self, action: Tensor) -> None:
        hand, target = self._sensors[:, :3], self.memory["target"]
        target += STRIDE * action[:, :3]
        torch.clamp(target, hand - LEASH, hand + LEASH, out=target)
        torch.clamp(target, *self._workspace, out=target)
        self._ctrl[:, :7] = joints_for(target)
        # One noisy action would open the hand and drop the cube: the gripper obeys a running average.
        grip = self.memory["grip"].lerp_(action[:, 3].to(self.dtype), GRIP_BLEND)
        self._ctrl[:, 7] = torch.where(grip >= 0, GRIP_FORCE, -GRIP_FORCE)

    # Seeing -------------------------------------------------------------------------------------
    def look_at(self, rows: Rows) -> None:
        qpos = self._qpos[rows]
        self.sight = Sight(self._sensors[rows], qpos, self.memory["goal"][rows] - qpos[:, 9:12])

    # Worth --------------------------------------------------------------------------------------
    def measure(self) -> dict[str, Tensor]:
        potential, on_pad = self._potential(ALL_ROWS)
        best = self.memory["best_potential"]
        # Paying only for new bests: dropping the cube is not punished, so that picking it up is never
        # a risk. A symmetric difference teaches the policy not to touch it.
        progress = (potential - best).clamp(min=0)
        torch.maximum(best, potential, out=best)
        success = on_pad & self.free(ALL_ROWS)
        fallen = ((self._qpos[:, 9:11] - self._table_center).abs() > self._table_half).any(dim=1)
        self.worth = Worth(progress, success, fallen)
        grasped = self.grasped(ALL_ROWS)
        return {"success": success.float(), "grasped": grasped.float(), "fallen": fallen.float()}

    def _potential(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """([n] how far the job has come, [n] bool cube lies on the pad)."""
        sensors, qpos = self._sensors[rows], self._qpos[rows]
        cube = qpos[:, 9:12]
        offset = self.memory["goal"][rows] - cube
        on_pad = (offset.abs() < self._on_pad).all(dim=1)
        lift = ((cube[:, 2] - TABLE_TOP - CUBE_HALF) / 0.05).clamp(0, 1)
        # A cube on the pad has been grasped and lifted; what is left to do there is to open the hand.
        held = 10.0 * self.grasped(rows) * (1.0 + lift)
        hold = torch.where(on_pad, 20.0 + 5.0 / FINGER_OPEN * qpos[:, 7], held)
        distance = torch.linalg.vector_norm(torch.stack([cube - sensors[:, :3], offset]), dim=2)  # [2, n]
        reach, goal = torch.tanh(distance * self._nearness)
        # Carrying is worth the most, and worth something from the far end of the table: beside the jumps of
        # grasping and lifting, a weak slope towards the pad is lost in noise.
        return hold + 10.0 * (1 - reach) + 60.0 * (1 - goal), on_pad

    def progress(self, rows: Rows = ALL_ROWS) -> Tensor:
        """[n] how far the job of `rows` has come, from about 0 to about 1: a measure, paid to nobody."""
        return self._potential(rows)[0] / FULL_POTENTIAL

    def grasped(self, rows: Rows) -> Tensor:
        """[n] bool: both fingertips touch the cube and it is between them; a closed fist may push with both."""
        return (self._sensors[rows, 9:11] > 0).all(dim=1) & (self._qpos[rows, 7] > 0.5 * CUBE_HALF)

    def free(self, rows: Rows) -> Tensor:
        """[n] bool: the cube is at rest, and no fingertip touches it."""
        resting = torch.linalg.vector_norm(self._sensors[rows, 6:9], dim=1) < REST_SPEED
        return resting & ~(self._sensors[rows, 9:11] > 0).any(dim=1)

    # Beginning ----------------------------------------------------------------------------------
    def new_episodes(self, rows: Rows, n: int) -> dict[str, Tensor]:
        cube, pad = self._places(n)
        kind = self.uniform(0, 1, n)
        in_hand = kind < 0.5 * self._assist
        at_cube = (kind < self._assist) & ~in_hand
        hand = self._home.repeat(n, 1)
        hand = torch.where(at_cube[:, None], self._around(cube), hand)
        hand = torch.where(in_hand[:, None], self._above_table(n), hand)
        cube = torch.where(in_hand[:, None], hand, cube)
        finger = torch.where(in_hand, CUBE_HALF - 0.0005, FINGER_OPEN)  # half a millimetre of squeeze
        grip = torch.where(in_hand, -1.0, 1.0).to(self.dtype)
        if self._assists:  # else nothing more is drawn, and evaluations begin as they always have
            lost = at_cube & (self.uniform(0, 1, n) < 0.5)
            hand = torch.where(lost[:, None], self._beside(cube), hand)
            finger = torch.where(lost, self.uniform(0, FINGER_OPEN, n), finger)
            grip = torch.where(lost, self.uniform(-1, 1, n), grip)
        yaw = torch.where(in_hand, 0.0, self.uniform(-np.pi / 4, np.pi / 4, n) * (not self._config.fixed))

        joints = joints_for(hand)
        qpos = torch.zeros((n, 16), dtype=self.dtype, device=self.device)
        qpos[:, :7] = joints + self.uniform(-START_NOISE, START_NOISE, n, 7) * ~in_hand[:, None]
        qpos[:, 7:9] = finger[:, None]
        qpos[:, 9:12] = cube
        qpos[:, 12], qpos[:, 15] = torch.cos(yaw / 2), torch.sin(yaw / 2)
        goal = torch.cat([pad[:, :2], torch.full_like(pad[:, :1], CUBE_ON_PAD)], dim=1)
        return {
            "qpos": qpos,
            "ctrl": torch.cat([joints, torch.where(grip >= 0, GRIP_FORCE, -GRIP_FORCE)[:, None]], dim=1),
            "mocap_pos": pad[:, None],
            "goal": goal,
            "target": hand,
            "grip": grip,
        }

    def begun(self, rows: Rows) -> dict[str, Tensor]:
        return {"best_potential": self._potential(rows)[0]}

    def describe_starts(self) -> dict[str, Tensor]:
        """Where cube and pad stand on the table, in metres."""
        cube, pad = self._qpos[:, 9:11], self.memory["goal"][:, :2]
        return {"cube_x": cube[:, 0], "cube_y": cube[:, 1], "pad_x": pad[:, 0], "pad_y": pad[:, 1]}

    def start_words(self) -> dict[str, list[str]]:
        return {}

    def _places(self, n: int) -> tuple[Tensor, Tensor]:
        """([n, 3], [n, 3]) centres of cube and pad, standing apart from each other."""
        cube = torch.full((n, 3), TABLE_TOP + CUBE_HALF, dtype=self.dtype, device=self.device)
        pad = torch.full((n, 3), (TABLE_TOP + PAD_TOP) / 2, dtype=self.dtype, device=self.device)
        if self._config.fixed:
            cube[:, :2], pad[:, :2] = self._fixed_places[:2], self._fixed_places[2:]
            return cube, pad
        cube[:, :2] = self._anywhere(n, 1)[:, 0]
        candidates = self._anywhere(n, 16)
        apart = (candidates - cube[:, None, :2]).norm(dim=2) > 0.15
        first = apart.int().argmax(dim=1)
        pad[:, :2] = candidates[torch.arange(n, device=self.device), first]
        return cube, pad

    def _anywhere(self, n: int, k: int) -> Tensor:
        x = self.uniform(PLACE_LOW[0], PLACE_HIGH[0], n, k)
        y = self.uniform(PLACE_LOW[1], PLACE_HIGH[1], n, k)
        return torch.stack([x, y], dim=2)

    def _around(self, cube: Tensor) -> Tensor:
        return cube + self.uniform(-0.008, 0.008, *cube.shape) + self._over_cube

    def _beside(self, cube: Tensor) -> Tensor:
        """Where a hand is that has lost the cube: over it, or as low as it on the side where there is room."""
        n, inwards = len(cube), torch.sign(self._table_center[0] - cube[:, 0])
        low = self.uniform(0, 1, n) < 0.5
        x = torch.where(low, inwards * self.uniform(0.045, 0.08, n), self.uniform(-0.05, 0.05, n))
        z = torch.where(low, self.uniform(0.0, 0.05, n), self.uniform(0.045, 0.12, n))
        return cube + torch.stack([x, self.uniform(-0.05, 0.05, n), z], dim=1)

    def _above_table(self, n: int) -> Tensor:
        xy = self._anywhere(n, 1)[:, 0]
        return torch.cat([xy, self.uniform(CUBE_ON_PAD + 0.02, 0.40, n, 1)], dim=1)
