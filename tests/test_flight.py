"""Starts in the air land with their clip, held to MuJoCo."""

import math
from dataclasses import replace
from importlib.util import find_spec

import mujoco
import numpy as np
import pytest
import torch
from torch import Tensor

from humanoid_body import DT, HUMANOID
from humanoid_envs import Still, flight_clip, make, standing_clip, walk_clip
from ludus.envs.bodies import find_body
from ludus.envs.humanoid.catalogue import find_clips
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.feedforward import Moving
from ludus.envs.humanoid.flight import launches, lift_of_steps
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.errors import CheckpointError
from ludus.training.evaluator import evaluate
from test_feedforward import parts_of, swinging

FPS, GRAVITY = 60.0, 9.81
G1 = pytest.mark.skipif(find_spec("mjlab") is None, reason="the G1's model is in the package mjlab")


def jump_clip(gravity: float, flight: float = 0.5, spin: float = 0.0, forward: float = 0.0) -> Clip:
    """Stands for half a second, is in the air for `flight` seconds under such a gravity, and stands again.

    `spin`: rad about the vertical axis, all of them in the second half of the flight.
    """
    clip = standing_clip(fps=FPS, seconds=1.0 + flight)
    time = np.arange(clip.frames) / FPS
    air = np.clip(time - 0.5, 0.0, flight)
    up = gravity * air * (flight - air) / 2
    turned = spin * np.clip(2 * air / flight - 1, 0, 1)
    quat = np.stack([np.cos(turned / 2), 0 * turned, 0 * turned, np.sin(turned / 2)], axis=1)
    root = clip.root_pos + np.stack([forward * air, 0 * air, up], axis=1)
    return replace(clip, name="jump", root_pos=root, root_quat=quat)


def launched(clip: Clip) -> Tensor:
    qpos, qvel, places, stretches = parts_of(clip)
    return launches(clip.body, qpos, qvel, places, stretches)


def landing(clip: Clip, start: float, end: float, change: np.ndarray, rate: float = 1.0) -> np.ndarray:
    """Where the root is, as MuJoCo throws it with joints that are held, at the end of the flight."""
    model = HUMANOID.new_model()
    model.opt.timestep, model.opt.integrator = 1e-3, mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_CONTACT.value)
    data, library = mujoco.MjData(model), MotionLibrary([clip], 0.0)
    at = library.at(torch.tensor([0]), torch.tensor([start], dtype=torch.float64))
    data.qpos[:], data.qvel[:] = at.qpos[0], rate * at.qvel[0]
    data.qvel[:6] += rate * change[:6]
    data.qvel[2] += change[6] / rate
    for step in range(round((end - start) / rate / model.opt.timestep)):
        now = library.at(torch.tensor([0]), torch.tensor([start + rate * step * 1e-3], dtype=torch.float64))
        data.ctrl[:] = now.qpos[0, 7:]
        mujoco.mj_step(model, data)
    return np.array(data.qpos[:7])


@pytest.mark.parametrize("name", ["humanoid", pytest.param("g1", marks=G1)])
def test_a_body_as_a_whole_is_mujocos(name: str) -> None:
    body = find_body(name)
    qpos, qvel, _ = swinging(body, FPS)
    poses = torch.as_tensor(qpos)
    places = body.kinematics.forward(poses[:, :3], poses[:, 3:7], poses[:, 7:])
    whole = Moving(body, poses, torch.as_tensor(qvel), places).whole()
    data = mujoco.MjData(body.model)
    for frame in range(0, len(qpos), 7):
        data.qpos[:], data.qvel[:] = qpos[frame], qvel[frame]
        mujoco.mj_forward(body.model, data)
        mujoco.mj_subtreeVel(body.model, data)
        np.testing.assert_allclose(whole.centre[frame], data.subtree_com[body.root], atol=1e-9)
        np.testing.assert_allclose(whole.velocity[frame], data.subtree_linvel[body.root], atol=1e-9)
        np.testing.assert_allclose(whole.spin[frame], data.subtree_angmom[body.root], atol=1e-8)
        # Turning all of it about its centre of mass changes the angular momentum by inertia · turning.
        turn = np.array([0.3, -0.7, 0.5])
        back = np.zeros(3)
        mujoco.mju_rotVecQuat(back, turn, data.qpos[3:7] * [1, -1, -1, -1])
        data.qvel[3:6] += back
        data.qvel[:3] += np.cross(turn, data.qpos[:3] - data.subtree_com[body.root])
        mujoco.mj_forward(body.model, data)
        mujoco.mj_subtreeVel(body.model, data)
        gained = data.subtree_angmom[body.root] - whole.spin[frame].numpy()
        np.testing.assert_allclose(whole.inertia[frame].numpy() @ turn, gained, atol=1e-8)


def test_what_flies_as_bodies_do_keeps_its_velocity() -> None:
    added = launched(jump_clip(GRAVITY, forward=1.0))
    velocity = added[:, :6].clone()
    velocity[:, 2] += added[:, 6]
    flying = added[:, 6] > 0
    assert flying.sum() > 20  # it does fly
    in_the_air = flying.clone()
    in_the_air[:33] = False  # the last frames on the floor are still getting up speed
    assert velocity[in_the_air].abs().max() < 0.1


@pytest.mark.parametrize("gravity", [5.0, 14.0])
@pytest.mark.parametrize("start", [0.5, 0.6, 0.8])
def test_a_start_in_the_air_lands_where_and_when_the_clip_does(gravity: float, start: float) -> None:
    """Flights that take longer or shorter than a fall from their height."""
    clip = jump_clip(gravity, forward=0.8)
    change = launched(clip)[round(start * FPS)].numpy()
    wanted = clip.root_pos[round(1.0 * FPS)]
    assert np.linalg.norm(landing(clip, start, 1.0, change)[:3] - wanted) < 0.04
    assert np.linalg.norm(landing(clip, start, 1.0, 0 * change)[:3] - wanted) > 0.06


def test_a_turn_that_begins_in_the_air_is_begun_at_take_off() -> None:
    clip = jump_clip(7.0, spin=1.5)
    change = launched(clip)[round(0.5 * FPS)].numpy()
    turned, plain = (landing(clip, 0.5, 1.0, c)[3:7] for c in (change, 0 * change))
    angles = [2 * np.arctan2(quat[3], quat[0]) for quat in (turned, plain)]
    assert angles[0] - angles[1] == pytest.approx(1.5, abs=0.15)
    assert abs(angles[1]) < 0.3  # of arms that swing


def test_a_clip_that_is_played_slower_jumps_higher() -> None:
    clip, rate = jump_clip(5.0, forward=0.8), 0.8
    change = launched(clip)[round(0.6 * FPS)].numpy()
    wanted = clip.root_pos[round(1.0 * FPS)]
    assert np.linalg.norm(landing(clip, 0.6, 1.0, change, rate)[:3] - wanted) < 0.04


def hovering() -> Clip:
    clip = walk_clip()
    return replace(clip, root_pos=clip.root_pos + np.array([0.0, 0.0, 0.2]))


@pytest.mark.parametrize("clip", [standing_clip(), jump_clip(0.5), hovering(), *find_clips("stroll,squat,wave")])
def test_what_stands_or_hovers_is_not_launched(clip: Clip) -> None:
    assert not launched(clip).any()


def test_clips_of_a_library_are_launched_each_by_itself() -> None:
    clips = [standing_clip(), jump_clip(5.0), standing_clip("again", fps=24.0), jump_clip(14.0)]
    library = MotionLibrary(clips, 2.0)
    for number, clip in enumerate(clips):
        found = library.launch(torch.full((clip.frames,), number), torch.arange(clip.frames).double() / clip.fps)
        torch.testing.assert_close(found, launched(clip).float(), atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("playback", [(1.0, 1.0), (0.8, 0.8)])
def test_episodes_begin_with_it(playback: tuple[float, float]) -> None:
    clip, rate = jump_clip(5.0, forward=0.8), playback[0]
    env = make([clip], rows=64, playback=playback)
    env.reset(0)
    time = env.memory["time"]
    start = env.library.at(env.memory["clip"], time)
    qvel = env.sim.field("qvel") - rate * start.qvel
    launch = env.library.launch(env.memory["clip"], time)
    flying = (time > 0.5) & (time < 0.8)
    assert flying.any()
    assert (~flying).any()
    rise = rate * launch[:, 2] + launch[:, 6] / rate + lift_of_steps(env.body.model) * (launch[:, 6] > 0)
    torch.testing.assert_close(qvel[:, 2].float(), rise, atol=1e-4, rtol=1e-4)
    assert (qvel[flying, 2] > 0.3).all()
    assert qvel[time > 1.0].abs().max() < 1e-6
    assert qvel[:, 6:].abs().max() < 1e-6
    env.close()


@pytest.mark.parametrize("flight", [0.4, 0.8])
def test_a_start_in_the_air_falls_by_the_time_steps_of_the_physics(flight: float) -> None:
    """A sixtieth of a second each: by smooth falling it would be 30 and 60 mm too low at the end."""
    env = make([jump_clip(GRAVITY, flight=flight)], rows=128, termination=9.0)
    env.reset(0)
    began, landing = env.memory["time"].clone(), 0.5 + flight
    flying, off = (began > 0.5) & (began < 0.5 + flight / 4), []
    for _ in range(round(flight / DT)):
        env.step(torch.zeros(128, 28))
        time = env.memory["time"]
        wanted = env.library.at(env.memory["clip"], time).qpos[:, 2]
        near = flying & (time > landing - DT) & (time < landing)
        off += (env.sim.field("qpos")[near, 2] - wanted[near]).tolist()
    assert len(off) > 5
    assert np.abs(off).max() < 0.006
    env.close()


def test_a_model_that_is_integrated_smoothly_needs_no_lift() -> None:
    model = HUMANOID.new_model()
    assert lift_of_steps(model) == pytest.approx(GRAVITY / 120)
    model.opt.integrator = mujoco.mjtIntegrator.mjINT_RK4
    assert lift_of_steps(model) == 0.0


def test_a_take_off_is_not_begun_before_the_landing_of_the_flight_before() -> None:
    """One frame on the floor between two flights: what still falls must not be thrown upwards."""
    one, touch = jump_clip(GRAVITY, flight=0.4), round(0.9 * FPS)
    both = [*range(touch + 1), *range(round(0.5 * FPS) + 1, one.frames)]
    clip = replace(one, root_pos=one.root_pos[both], root_quat=one.root_quat[both], joint_pos=one.joint_pos[both])
    added = launched(clip)
    assert not added[touch - 2 : touch].any()
    assert added[touch + 2].any()


# The strict rule ------------------------------------------------------------------------------------
def heard(env: object, *outcomes: tuple[int, float, float]) -> None:
    """An evaluation with these (clip, start in seconds, farthest that a body was off)."""
    clips, began, farthest = ([float(part) for part in parts] for parts in zip(*outcomes, strict=True))
    later = [at + 0.5 for at in began]
    labels = {"clip": clips, "began": began, "farthest": farthest, "ended": later, "strayed": later}
    env.adapt({"success": [float(not off > 0.6) for off in farthest]}, labels)  # type: ignore[attr-defined]


def test_what_is_followed_closely_is_to_stay_so() -> None:
    clips = [standing_clip("a"), standing_clip("b"), standing_clip("c", loop=True)]  # of two seconds each
    env = make(clips, rows=4, termination=0.5, strict_termination=0.25)
    env.reset(0)
    env.memory["clip"].copy_(torch.tensor([0, 1, 2, 2]))
    # The last two began a second ago, in the first and in the second part of a loop that one has begun anew.
    env.memory["time"].copy_(torch.tensor([1.5, 1.5, 1.3, 2.5]))
    env.elapsed.copy_(torch.tensor([15, 15, 30, 30]))
    off = torch.full((4, 15), 0.1)
    off[:, 4] = 0.3
    assert env._is_lost(off).tolist() == [False] * 4
    heard(env, (0, 0.0, 0.1), (1, 0.0, 0.9), (2, 0.2, 0.15), (2, 0.4, 0.18), (2, 1.2, 0.32))
    assert env._limits.tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.25, 0.32])
    assert env._is_lost(off).tolist() == [True, False, True, False]
    state = env.state()
    heard(env, (0, 0.0, 0.9), (1, 0.0, 0.22), (2, 0.2, 0.9), (2, 1.2, 0.1))
    assert env._is_lost(off).tolist() == [False, True, False, True]
    env.load_state(state)
    assert env._limits.tolist() == pytest.approx([0.25, 0.25, 0.5, 0.5, 0.25, 0.32])
    state["limits"][1] = torch.nan
    with pytest.raises(CheckpointError, match="damaged"):
        env.load_state(state)
    env.close()


def test_starts_are_drawn_to_what_is_not_followed_closely() -> None:
    clips = [standing_clip("a"), standing_clip("b"), standing_clip("c")]
    for rule, drawn in ((0.3, True), (0.0, False)):
        env = make(clips, strict_termination=rule)
        heard(env, (0, 0.0, 0.24), (1, 0.0, 0.26), (2, 0.0, 0.1))
        assert bool(env.starts.failures.any()) == drawn
        assert (env.starts.shares()[1] > 0.5) == drawn
        heard(env, (0, 0.0, 0.1), (1, 0.0, 0.9), (2, 0.0, 0.1))  # which fails by both rules
        assert env.starts.shares()[1] > 0.5
        env.close()


def test_without_the_rule_all_clips_have_one_limit_and_nothing_is_kept() -> None:
    env = make([standing_clip("a")], rows=1, termination=0.4)
    env.reset(0)
    heard(env, (0, 0.0, 0.1))
    off = torch.full((1, 15), 0.39)
    assert env._is_lost(off).tolist() == [False]
    assert env._is_lost(off + 0.02).tolist() == [True]
    assert "limits" not in env.lessons()
    env.close()


def test_mirrored_clips_are_held_to_the_rule_of_theirs() -> None:
    from ludus.envs.humanoid.config import HumanoidConfig
    from ludus.envs.humanoid.factory import make_humanoid

    config = HumanoidConfig(clips="bow,squat", mirror=True, strict_termination=0.25)
    env = make_humanoid(config, 4, 1, False, "cpu")
    heard(env, (0, 0.0, 0.1), (1, 0.0, 0.9))
    by_clip = dict(zip(env.starts.clip.tolist(), env._limits.tolist(), strict=True))  # type: ignore[attr-defined]
    assert by_clip == {0: 0.25, 1: 0.5, 2: 0.25, 3: 0.5}
    env.close()


def test_an_evaluation_teaches_how_far_its_episodes_were_off() -> None:
    """Told at the end of an episode, when its row has begun another."""
    clips = [standing_clip("a"), flight_clip("b"), walk_clip("c")]
    evaluated = make(clips, evaluation=True, eval_starts=3, strict_termination=0.1)
    result = evaluate(Still(), evaluated, 1, 0, True)  # type: ignore[arg-type]
    lost = [success < 0.5 for success in result.metrics["success"]]
    assert {True, False} == set(lost)
    for off, failed in zip(result.labels["farthest"], lost, strict=True):
        assert off > 0.5 if failed else off > 0.0
    told = (result.labels[name] for name in ("began", "ended", "farthest", "strayed"))
    for began, ended, off, strayed in zip(*told, strict=True):
        assert began < strayed < ended if off > 0.3 else strayed > ended
    assert sorted(result.labels["began"]) == pytest.approx([0.0, 0.0, 0.0, 0.4, 0.8])
    env = make(clips, strict_termination=0.1)
    env.adapt(result.metrics, result.labels)
    failures = {int(clip) for clip, failed in zip(result.labels["clip"], lost, strict=True) if failed}
    for clip, limit in zip(env.starts.clip.tolist(), env._limits.tolist(), strict=True):
        assert (limit == 0.5) == (clip in failures) or clip == 2  # of the walk's parts each by its own starts


def test_a_start_that_failed_or_diverged_is_asked_for_nothing() -> None:
    env = make([standing_clip("a"), standing_clip("b")], termination=1.0, strict_termination=0.25)
    heard(env, (0, 0.0, math.nan), (1, 0.0, 0.7))
    assert env._limits.tolist() == [1.0] * 4


def test_limits_of_another_rule_are_not_taken_over() -> None:
    env = make([standing_clip("a")], strict_termination=0.25)
    heard(env, (0, 0.0, 0.1))
    assert env._limits.tolist() == [0.25, 0.25]
    env.load_lessons(env.lessons() | {"limits": torch.tensor([0.3])})  # one a clip, as it was
    assert env._limits.tolist() == [0.5, 0.5]
