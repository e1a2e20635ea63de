"""By how much motors' targets lead the reference, held to MuJoCo's forward dynamics."""

from collections.abc import Callable

import mujoco
import numpy as np
import torch

from humanoid_body import HUMANOID
from humanoid_envs import library_of, make
from ludus.envs.bodies import Body
from ludus.envs.humanoid import feedforward
from ludus.envs.humanoid.catalogue import find_clips
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.factory import make_humanoid
from ludus.envs.humanoid.motions import MotionLibrary

FPS = 60.0


def still(body: Body, height: float, frames: int = 40) -> Clip:
    poses = np.tile(body.default_qpos, (frames, 1))
    poses[:, 2] += height
    return Clip("still", FPS, poses[:, :3], poses[:, 3:7], poses[:, 7:], body=body)


def led(clip: Clip, change: Callable[[np.ndarray], None] = lambda qvel: None) -> tuple[np.ndarray, np.ndarray]:
    """(velocities, leads) at every frame of a clip."""
    table = MotionLibrary([clip], 0.0).table.double().numpy()
    joints = len(clip.body.joints)
    qvel = table[: clip.frames, 7 + joints : 13 + 2 * joints]
    change(qvel)
    return qvel, feedforward.motor_lead(clip.body, clip.qpos, qvel, clip.fps)


def test_motors_and_floor_together_are_what_inverse_dynamics_asks_for() -> None:
    """MuJoCo's own motors at these targets, and the floor's forces applied point by point."""
    (clip,) = find_clips("stroll")
    qvel, lead = led(clip)
    smooth = feedforward._smoothed(qvel, clip.fps)
    acceleration = np.gradient(smooth, 1 / clip.fps, axis=0)
    wanted = feedforward._torques_in_the_air(HUMANOID, clip.qpos, smooth, acceleration)
    points, bodies, weights = feedforward._contacts(HUMANOID, clip.qpos)
    forces = feedforward._floor_forces(clip.qpos, wanted[:, :6], points, weights)
    model, data, borne = HUMANOID.model, mujoco.MjData(HUMANOID.model), 0
    for frame in range(clip.frames):
        data.qpos[:], data.qvel[:] = clip.qpos[frame], smooth[frame]
        data.ctrl[:] = clip.joint_pos[frame] + lead[frame]
        mujoco.mj_forward(model, data)
        done = data.qfrc_actuator.copy()
        for point, body, force in zip(points[frame], bodies, forces[frame], strict=True):
            mujoco.mj_applyFT(model, data, force, np.zeros(3), point, HUMANOID.root + int(body), done)
        np.testing.assert_allclose(done[6:], wanted[frame, 6:], atol=1e-6)
        borne += bool(np.linalg.norm((wanted[frame] - done)[:3]) < 0.02 * 9.81 * model.body_mass.sum())
    assert borne > 0.8 * clip.frames  # the root, which no motor moves; both feet may be about to lift


def test_inverse_dynamics_give_the_accelerations_back() -> None:
    (clip,) = find_clips("jog")
    qvel, _ = led(clip)
    acceleration = np.gradient(qvel, 1 / clip.fps, axis=0)
    wanted = feedforward._torques_in_the_air(HUMANOID, clip.qpos, qvel, acceleration)
    model = HUMANOID.new_model()
    off = mujoco.mjtDisableBit
    model.opt.disableflags |= int(off.mjDSBL_CONSTRAINT.value) | int(off.mjDSBL_ACTUATION.value)
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    data = mujoco.MjData(model)
    for frame in range(0, clip.frames, 5):
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = clip.qpos[frame], qvel[frame], wanted[frame]
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(data.qacc, acceleration[frame], atol=1e-6)


def test_what_stands_is_borne_by_its_feet_alone() -> None:
    _, lead = led(still(HUMANOID, 0.0))
    torques = lead * HUMANOID.stiffness
    model, data = HUMANOID.new_model(), mujoco.MjData(HUMANOID.model)
    data.qpos[:], data.ctrl[:] = HUMANOID.default_qpos, HUMANOID.default_qpos[7:] + lead[20]
    mujoco.mj_step(model, data, 30)  # half a second: nothing moves that was in balance
    np.testing.assert_allclose(data.qpos[7:], HUMANOID.default_qpos[7:], atol=0.02)
    assert np.abs(torques[20]).max() > 5  # arms that are stretched are heavy


def test_what_falls_needs_nothing() -> None:
    """Far above the floor, accelerating as gravity does."""
    clip = still(HUMANOID, 3.0)
    _, lead = led(clip, lambda qvel: qvel.__setitem__((slice(None), 2), -9.81 * np.arange(len(qvel)) / FPS))
    np.testing.assert_allclose(lead[15:-15], 0, atol=1e-9)


def test_the_floor_never_pulls() -> None:
    (clip,) = find_clips("jog")
    qvel, _ = led(clip)
    points, _, weights = feedforward._contacts(HUMANOID, clip.qpos)
    air = feedforward._torques_in_the_air(HUMANOID, clip.qpos, qvel, np.gradient(qvel, 1 / FPS, axis=0))
    forces = feedforward._floor_forces(clip.qpos, air[:, :6], points, weights)
    assert forces[..., 2].min() >= 0
    assert not forces[weights == 0].any()


def test_the_task_leads_its_motors() -> None:
    (clip,) = find_clips("stroll")
    config = HumanoidConfig(actions="feedforward")
    plain = make([clip], actions="feedforward")
    plain.library = library_of([clip], config)
    library = MotionLibrary([clip], 10.0, ahead=1.0, lead=True)
    assert library.table.shape[1] == plain.library.table.shape[1] + 28
    reference = library.at(torch.tensor([0]), torch.tensor([0.4]))
    assert reference.lead.shape == (1, 28)
    at = library.table[24, -28:]
    torch.testing.assert_close(reference.lead[0], at, atol=2e-3, rtol=0)


def test_actions_of_zero_follow_better_with_a_lead() -> None:
    assert unled("feedforward") < 0.75 * unled("residual")


def unled(kind: str) -> float:
    """mm off after three steps without a policy."""
    env = make_humanoid(HumanoidConfig(clips="stroll", actions=kind), 8, 1, True, "cpu")  # type: ignore[arg-type]
    env.reset(0)
    steps = [env.step(torch.zeros((env.num_rows, 28))) for _ in range(3)]
    env.close()
    return float(steps[-1].metrics["mpjpe"].mean())
