"""Small clips, the humanoid's tasks on them, and slow versions of what several tests hold them against."""

import math
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("scipy", reason="SciPy is not installed")
from scipy.spatial.transform import Rotation

from humanoid_body import BODIES, DT, JOINTS, SUBSTEPS, body_model, load_body
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.evaluation_starts import evaluation_plan
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.motions import MotionLibrary, Reference
from ludus.envs.humanoid.speed import SpeedTask
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.mujoco.simulator import CpuSimulator

STANDING = 0.421546 + 0.40987 + 0.05  # m, of the pelvis over the soles, legs straight
EXTREMITIES = [BODIES.index(name) for name in ("head", "right_hand", "left_hand", "right_foot", "left_foot")]


def angles(**moving: np.ndarray) -> np.ndarray:
    """[frames, 28] joints, all 0 but the named."""
    values = np.zeros((len(next(iter(moving.values()))), len(JOINTS)))
    for name, angle in moving.items():
        values[:, JOINTS.index(name)] = angle
    return values


def about_z(angle: np.ndarray | float) -> Rotation:
    return Rotation.from_rotvec(np.asarray(angle)[..., None] * np.array([0.0, 0.0, 1.0]))


def quat_of(rotation: Rotation) -> np.ndarray:
    return rotation.as_quat(scalar_first=True)


def walk_clip(
    name: str = "walk",
    fps: float = 60.0,
    seconds: float = 1.2,
    loop: bool = True,
    turn: float = 0.0,
    yaw: float = 0.0,
) -> Clip:
    """Legs and arms swing while the pelvis goes forward, wobbling, and turns by `turn` in all."""
    frames = round(seconds * fps) + 1
    t = np.arange(frames) / fps
    phase, heading, rate = 2 * np.pi * t / seconds, yaw + turn * t / seconds, turn / seconds
    way = (
        [np.sin(heading) - np.sin(yaw), np.cos(yaw) - np.cos(heading)] if turn else
        [t * np.cos(yaw), t * np.sin(yaw)]
    )  # fmt: skip
    x, y = 1.1 * np.array(way) / (rate if turn else 1.0)
    wobble = Rotation.from_euler("yx", np.stack([0.1 + 0.08 * np.sin(phase), 0.07 * np.cos(phase)], 1))
    joints = angles(
        right_hip_y=0.4 * np.sin(phase), left_hip_y=-0.4 * np.sin(phase),
        right_knee=0.3 + 0.25 * np.cos(phase), left_knee=0.3 - 0.25 * np.cos(phase),
        right_shoulder_x=1.3 + 0.05 * np.sin(phase), left_shoulder_x=-1.3 + 0.05 * np.sin(phase),
        right_shoulder_z=0.3 * np.sin(phase), abdomen_z=0.1 * np.cos(phase),
    )  # fmt: skip
    root = np.stack([x + 0.3, y - 0.2, STANDING - 0.03 + 0.02 * np.sin(2 * phase)], 1)
    return Clip(name, fps, root, quat_of(about_z(heading) * wobble), joints, loop)


def standing_clip(name: str = "stand", fps: float = 30.0, seconds: float = 2.0, loop: bool = False) -> Clip:
    """On the spot; the arms hang and swing a little."""
    t = np.arange(round(seconds * fps) + 1) / fps
    swing = 0.3 * np.sin(2 * np.pi * t / seconds)
    joints = angles(right_shoulder_x=1.4 - 0.1 * swing, left_shoulder_x=-1.4 + swing, right_elbow=0.4 + swing)
    root = np.tile([0.0, 0.0, STANDING], (len(t), 1))
    return Clip(name, fps, root, np.tile([1.0, 0.0, 0.0, 0.0], (len(t), 1)), joints, loop)


def flight_clip(name: str = "flight") -> Clip:
    """Rises as nobody can."""
    clip = standing_clip(name, seconds=1.5)
    t = np.arange(clip.frames) / clip.fps
    return replace(clip, root_pos=clip.root_pos + np.outer(2.0 * t, [0.0, 0.0, 1.0]))


def moved(clip: Clip, yaw: float, shift: tuple[float, float]) -> Clip:
    """The whole clip turned about the vertical axis and shifted over the floor."""
    turn = about_z(yaw)
    root = turn.apply(clip.root_pos) + np.array([*shift, 0.0])
    quat = quat_of(turn * Rotation.from_quat(clip.root_quat, scalar_first=True))
    return replace(clip, root_pos=root, root_quat=quat)


def make(
    clips: list[Clip],
    rows: int = 0,
    evaluation: bool = False,
    **settings: Any,
) -> MimicTask:
    """`rows`: 0 for as many as an evaluation has starts, else for 4."""
    config = HumanoidConfig(**settings)
    library = library_of(clips, config)
    rows = rows or (len(evaluation_plan(config, library)[0]) if evaluation else 4)
    return MimicTask(config, library, CpuSimulator(load_body(), rows, SUBSTEPS, 1), evaluation)


def make_speed(clips: list[Clip], rows: int = 4, evaluation: bool = False, **settings: Any) -> SpeedTask:
    config = HumanoidConfig(goal="speed", actions="absolute", **settings)
    return SpeedTask(config, library_of(clips, config), CpuSimulator(load_body(), rows, SUBSTEPS, 1), evaluation)


def library_of(clips: list[Clip], config: HumanoidConfig) -> MotionLibrary:
    return MotionLibrary(clips, DT * config.max_steps, ahead=DT * (max(config.future) + config.window + 1))


def random_actions(env: HumanoidTask, steps: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return scale * (2 * torch.rand((steps, env.num_rows, len(JOINTS)), generator=g) - 1)


def set_time(env: HumanoidTask, time: Tensor) -> None:
    """As if the rows had come so far in their clips."""
    state = env.state()
    state["memory"]["time"] = time.double()
    env.load_state(state)


def set_pose(env: HumanoidTask, qpos: Tensor, qvel: Tensor) -> None:
    env.sim.field("qpos").copy_(qpos)
    env.sim.field("qvel").copy_(qvel)
    env.sim.forward()


def reference_in(env: HumanoidTask, steps: int) -> Reference:
    return env.library.at(env.memory["clip"], env.memory["time"] + steps * DT)


def disturb(reference: Reference, size: float, seed: int) -> tuple[Tensor, Tensor]:
    """Poses and velocities near the reference."""
    rng = np.random.default_rng(seed)
    qpos, qvel = reference.qpos.double().numpy().copy(), reference.qvel.double().numpy().copy()
    turn = Rotation.from_rotvec(rng.normal(scale=size, size=(len(qpos), 3)))
    qpos[:, 3:7] = (turn * Rotation.from_quat(qpos[:, 3:7], scalar_first=True)).as_quat(scalar_first=True)
    qpos[:, :3] += rng.normal(scale=size / 3, size=(len(qpos), 3))
    qpos[:, 7:] += rng.normal(scale=size, size=(len(qpos), 28))
    return torch.from_numpy(qpos), torch.from_numpy(qvel + rng.normal(scale=3 * size, size=qvel.shape))


def arrays(env: HumanoidTask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    qpos, qvel, bodies = (env.sim.field(name).clone().numpy() for name in ("qpos", "qvel", "xpos"))
    return qpos, qvel, bodies[:, 1:]


def slow_kinematics(qpos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """MuJoCo's own, one pose."""
    data = mujoco.MjData(body_model())
    data.qpos[:] = qpos
    mujoco.mj_kinematics(body_model(), data)
    return data.xpos[1:].copy(), data.xquat[1:].copy()


def yaw_of(quat: np.ndarray) -> float:
    x, y, _ = Rotation.from_quat(quat, scalar_first=True).apply([1.0, 0.0, 0.0])
    return math.atan2(y, x)


def slow_self(qpos: np.ndarray, qvel: np.ndarray) -> list[np.ndarray]:
    """One row: height, lean, velocities in the heading's frame, joints."""
    root = Rotation.from_quat(qpos[3:7], scalar_first=True)
    back = about_z(-yaw_of(qpos[3:7]))
    lean = (back * root).as_matrix()
    turning = back.apply(root.apply(qvel[3:6]))  # own frame → world → heading
    return [qpos[2:3], lean[:, 0], lean[:, 2], back.apply(qvel[:3]), turning, qpos[7:], qvel[6:]]


def seen_from_root(qpos: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    return about_z(-yaw_of(qpos[3:7])).apply(bodies - bodies[0])


def slow_frame(qpos: np.ndarray, qvel: np.ndarray, bodies: np.ndarray) -> np.ndarray:
    """Of a discriminator's window."""
    return np.concatenate([*slow_self(qpos, qvel), seen_from_root(qpos, bodies)[EXTREMITIES].ravel()])


class Still:
    """A policy that never acts."""

    device = torch.device("cpu")

    def actor(self, deterministic: bool, generator: torch.Generator) -> "Still":
        return self

    def act(self, obs: Tensor) -> Tensor:
        return torch.zeros(len(obs), 28)

    def forget(self, done: Tensor) -> None:
        pass
