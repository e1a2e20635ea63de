"""By how much motors' targets lead the reference, held to MuJoCo's dynamics."""

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from humanoid_body import HUMANOID
from ludus.envs.bodies import Body, find_body
from ludus.envs.humanoid import feedforward
from ludus.envs.humanoid.catalogue import find_clips
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.factory import make_humanoid
from ludus.envs.humanoid.feedforward import Moving, Stretch
from ludus.envs.humanoid.motions import MotionLibrary

FPS = 60.0
G1 = pytest.mark.skipif(find_spec("mjlab") is None, reason="the G1's model is in the package mjlab")


def still(body: Body, height: float, frames: int = 40) -> Clip:
    poses = np.tile(body.default_qpos, (frames, 1))
    poses[:, 2] += height
    return Clip("still", FPS, poses[:, :3], poses[:, 3:7], poses[:, 7:], body=body)


def parts_of(clip: Clip) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], list[Stretch]]:
    """Poses, velocities, places and stretches of a clip."""
    joints = len(clip.body.joints)
    table = MotionLibrary([clip], 0.0).table.double()[: clip.frames]
    return torch.as_tensor(clip.qpos), table[:, 7 + joints : 13 + 2 * joints], clip.bodies(), [
        Stretch(clip.frames, clip.fps)
    ]  # fmt: skip


def led(clip: Clip, change: Callable[[Tensor], object] = lambda qvel: None) -> np.ndarray:
    qpos, qvel, places, stretches = parts_of(clip)
    change(qvel)
    return feedforward.motor_lead(clip.body, qpos, qvel, places, stretches).numpy()


def swinging(body: Body, fps: float, frames: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Poses, velocities and accelerations of a body that turns, falls and moves all its joints."""
    model, rng = body.model, np.random.default_rng(0)
    qpos, qvel, time = np.zeros((frames, model.nq)), np.zeros((frames, model.nv)), np.arange(frames) / fps
    swing, phase = rng.uniform(-4, 4, model.nv), rng.uniform(0, 6, model.nv)
    qvel[:] = swing * np.cos(3 * time[:, None] + phase)
    qpos[0, :] = body.default_qpos
    qpos[0, 3:7] = [0.5, 0.5, -0.5, 0.5]
    for frame in range(1, frames):
        middle = (qvel[frame - 1] + qvel[frame]) / 2
        qpos[frame] = qpos[frame - 1]
        mujoco.mj_integratePos(model, qpos[frame], middle, 1 / fps)
    return qpos, qvel, -3 * swing * np.sin(3 * time[:, None] + phase)


@pytest.mark.parametrize("name", ["humanoid", pytest.param("g1", marks=G1)])
def test_the_torques_are_those_of_mujocos_inverse_dynamics(name: str) -> None:
    body, fps = find_body(name), 2000.0
    qpos, qvel, qacc = swinging(body, fps)
    poses, stretches = torch.as_tensor(qpos), [Stretch(len(qpos), fps)]
    places = body.kinematics.forward(poses[:, :3], poses[:, 3:7], poses[:, 7:])
    moving = Moving(body, poses, torch.as_tensor(qvel), places)
    root, joints = moving.generalised(moving.inertia(stretches))
    joints = joints + feedforward._of_joints(body, poses, torch.as_tensor(qvel), torch.as_tensor(qacc))
    model = body.new_model()
    off = mujoco.mjtDisableBit
    model.opt.disableflags |= int(off.mjDSBL_CONSTRAINT.value) | int(off.mjDSBL_ACTUATION.value)
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER  # others answer for accelerations of whole time steps
    data = mujoco.MjData(model)
    for frame in range(5, len(qpos) - 5, 5):
        data.qpos[:], data.qvel[:], data.qacc[:] = qpos[frame], qvel[frame], qacc[frame]
        mujoco.mj_inverse(model, data)
        scale = np.abs(data.qfrc_inverse).max()
        np.testing.assert_allclose(root[frame], data.qfrc_inverse[:6], atol=2e-3 * scale)
        np.testing.assert_allclose(joints[frame], data.qfrc_inverse[6:], atol=2e-3 * scale)


def test_stretches_know_nothing_of_each_other() -> None:
    """Two clips side by side are led as each alone."""
    clips = [*find_clips("stroll"), *find_clips("bow")]
    both = [torch.cat(values) for values in zip(*(parts_of(clip)[:2] for clip in clips), strict=True)]
    places = [torch.cat(values) for values in zip(*(clip.bodies() for clip in clips), strict=True)]
    stretches = [Stretch(clip.frames, clip.fps) for clip in clips]
    lead = feedforward.motor_lead(HUMANOID, both[0], both[1], (places[0], places[1]), stretches)
    np.testing.assert_allclose(lead, np.concatenate([led(clip) for clip in clips]), atol=1e-9)


def test_the_floors_forces_go_through_the_body_as_mujocos_do_and_bear_the_root() -> None:
    (clip,) = find_clips("stroll")
    qpos, qvel, places, stretches = parts_of(clip)
    moving = Moving(HUMANOID, qpos, feedforward._smoothed(qvel, stretches), places)
    wanted, _ = moving.generalised(moving.inertia(stretches))
    points, bodies, weights = feedforward._contacts(HUMANOID, places)
    forces = feedforward._floor_forces(qpos, wanted, points, weights)
    root, joints = moving.generalised(feedforward._pressed(points, bodies, forces, 15))
    data, borne = mujoco.MjData(HUMANOID.model), 0
    for frame in range(clip.frames):
        data.qpos[:], done = clip.qpos[frame], np.zeros(HUMANOID.model.nv)
        mujoco.mj_forward(HUMANOID.model, data)
        for point, body, force in zip(points[frame].numpy(), bodies, forces[frame].numpy(), strict=True):
            mujoco.mj_applyFT(HUMANOID.model, data, force, np.zeros(3), point, HUMANOID.root + int(body), done)
        np.testing.assert_allclose(torch.cat([root[frame], joints[frame]]), done, atol=1e-6)
        borne += bool((wanted[frame] - root[frame])[:3].norm() < 0.02 * 9.81 * 50)
    assert borne > 0.8 * clip.frames  # in the others both feet are about to lift
    assert float(forces[..., 2].min()) >= 0
    assert not bool(forces[weights == 0].any())


def test_what_stands_is_borne_by_its_feet_alone() -> None:
    lead = led(still(HUMANOID, 0.0))
    model, data = HUMANOID.new_model(), mujoco.MjData(HUMANOID.model)
    data.qpos[:], data.ctrl[:] = HUMANOID.default_qpos, HUMANOID.default_qpos[7:] + lead[20]
    mujoco.mj_step(model, data, 30)  # half a second: nothing moves that was in balance
    np.testing.assert_allclose(data.qpos[7:], HUMANOID.default_qpos[7:], atol=0.02)
    assert np.abs(lead[20] * HUMANOID.stiffness).max() > 5  # N m: arms that are stretched are heavy


def test_what_falls_needs_nothing() -> None:
    """Far above the floor, accelerating as gravity does."""
    fall = -9.81 * torch.arange(40, dtype=torch.float64) / FPS
    lead = led(still(HUMANOID, 3.0), lambda qvel: qvel[:, 2].copy_(fall))
    np.testing.assert_allclose(lead[15:-15], 0, atol=1e-9)


def test_a_library_knows_the_lead_where_it_is_asked_for() -> None:
    (clip,) = find_clips("bow")
    plain, library = MotionLibrary([clip], 10.0), MotionLibrary([clip], 10.0, lead=True)
    assert plain.at(torch.tensor([0]), torch.tensor([0.4])).lead.shape == (1, 0)
    reference = library.at(torch.tensor([0]), torch.tensor([0.4]))
    np.testing.assert_allclose(reference.lead[0], led(clip)[24], atol=1e-5)


def test_actions_of_zero_follow_better_with_a_lead() -> None:
    assert unled("feedforward") < 0.75 * unled("residual")


def unled(kind: str) -> float:
    """mm off after three steps without a policy."""
    env = make_humanoid(HumanoidConfig(clips="stroll", actions=kind), 8, 1, True, "cpu")  # type: ignore[arg-type]
    env.reset(0)
    steps = [env.step(torch.zeros((env.num_rows, 28))) for _ in range(3)]
    env.close()
    return float(steps[-1].metrics["mpjpe"].mean())


ARM = """<mujoco><worldbody><body name="hull" pos="0 0 2"><freejoint/><geom size="0.2" mass="9"/>
  <body name="arm"><joint name="arm" axis="0 0 1" damping="{joint}"/>
  <geom size="0.1" pos="0 0 0.3" mass="0.1"/></body></body></worldbody>
  <actuator><position joint="arm" kp="50" {motor}/></actuator></mujoco>"""


def test_damping_that_stands_in_the_motor_counts_as_that_of_the_joint(tmp_path: Path) -> None:
    """The usual <position kp= kv=> of other people's models."""
    leads = []
    for name, joint, motor in (("in_joint", 5, ""), ("in_motor", 0, 'kv="5"')):
        (tmp_path / f"{name}.xml").write_text(ARM.format(joint=joint, motor=motor))
        body = find_body(str(tmp_path / f"{name}.xml"))
        clip = still(body, 1.0)
        turning = replace(clip, joint_pos=clip.joint_pos + np.arange(clip.frames)[:, None] / FPS)  # 1 rad/s
        leads.append(led(turning))
    np.testing.assert_allclose(leads[0][10:-10], 0.1, atol=1e-3)
    np.testing.assert_allclose(leads[1], leads[0], atol=1e-9)


def test_a_limited_motor_pulls_with_what_is_needed_though_it_brakes_itself(tmp_path: Path) -> None:
    """The limit is of the motor's whole force, its own damping included."""
    (tmp_path / "fast.xml").write_text(ARM.format(joint=0, motor='kv="5" forcerange="-20 20"'))
    body = find_body(str(tmp_path / "fast.xml"))
    clip = still(body, 1.0)
    lead = led(replace(clip, joint_pos=clip.joint_pos + 8 * np.arange(clip.frames)[:, None] / FPS))  # 8 rad/s
    np.testing.assert_allclose(lead[10:-10], 8 * 5 / 50, atol=1e-3)


def test_a_lead_is_found_some_frames_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    (clip,) = find_clips("bow")
    whole = led(clip)
    monkeypatch.setattr("ludus.envs.bodies.kinematics._CORNERS_AT_ONCE", 1_000)
    assert HUMANOID.kinematics.poses_at_once() < clip.frames / 4
    np.testing.assert_allclose(led(clip), whole, atol=1e-9)
