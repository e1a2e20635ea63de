"""What makes a policy follow motions it never saw: starts beside the reference, pushes, mirrored clips, other
rates, clips that are kept apart, and starts drawn from a thousand clips.
"""

import importlib.util
import json
import math
import warnings
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="SciPy is not installed")
from scipy.spatial.transform import Rotation
from torch import Tensor

import ludus
from humanoid_body import DT, HUMANOID, JOINTS, lowest_points
from humanoid_envs import (
    Still,
    arrays,
    flight_clip,
    library_of,
    make,
    make_speed,
    moved,
    random_actions,
    reference_in,
    set_time,
    standing_clip,
    walk_clip,
)
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.envs import make_eval_env, make_vec_env
from ludus.envs.bodies import Body, find_body
from ludus.envs.bodies.mirror import mirror_of, partners_in
from ludus.envs.check import check_env
from ludus.envs.humanoid.clip import mirrored, save_clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.evaluation_starts import evaluation_plan
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.humanoid.starts import StartWeights
from ludus.envs.humanoid.tracking import clip_table
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.envs.mujoco.randomization import JointOffset
from ludus.envs.mujoco.task import SimTask
from ludus.envs.showing import make_shown_env, make_trial_env
from ludus.errors import ConfigError
from ludus.show.console import Console
from ludus.show.report import write_report
from ludus.show.text import evaluation_line
from ludus.training.evaluator import Evaluation, evaluate, judged_task
from ludus.training.loop import Trainer
from stopped_runs import StopAfterCycle, assert_same_run, metric_rows, resume

PUSH: dict[str, Any] = {"push": {"kind": "push", "speed": 0.5, "turning": 0.6, "every": [5, 15]}}
EVERYTHING: dict[str, Any] = {"start_noise": 1.0, "playback": (0.8, 1.25), "randomization": PUSH}


# Start noise ------------------------------------------------------------------------------------------
def test_starts_lie_beside_the_reference_and_no_farther_than_is_said() -> None:
    env = make([walk_clip(turn=0.5)], rows=256, start_noise=1.0)
    env.reset(0)
    reference, (qpos, qvel, _) = reference_in(env, 0), arrays(env)
    away = qpos - reference.qpos.double().numpy()
    one, other = (Rotation.from_quat(q[:, 3:7], scalar_first=True) for q in (qpos, reference.qpos.numpy()))
    turn = (one * other.inv()).as_rotvec()
    speed = qvel - reference.qvel.double().numpy()
    expected = {"place": (away[:, :2], 0.05), "lean": (turn[:, :2], 0.1), "yaw": (turn[:, 2], 0.2),
                "joints": (away[:, 7:], 0.1), "velocity": (speed[:, :2], 0.5),
                "turning": (speed[:, 5], 0.78)}  # fmt: skip
    for name, (values, most) in expected.items():
        assert np.abs(values).max() <= most + 1e-4, name
        assert np.abs(values).max() > 0.9 * most, name
    assert (speed[:, 6:] == 0).all()
    assert away[:, 2].min() >= -0.01 - 1e-6


def test_start_noise_pushes_no_foot_into_the_floor_and_no_joint_over_its_limit() -> None:
    env = make([standing_clip(loop=True)], rows=128, start_noise=2.0, termination=9.0)
    env.reset(0)
    low, high = HUMANOID.limits
    for _ in range(2):
        qpos = torch.from_numpy(arrays(env)[0])
        lowest = lowest_points(*HUMANOID.kinematics.forward(qpos[:, :3], qpos[:, 3:7], qpos[:, 7:])).amin(1)
        assert float(lowest.min()) >= -1e-9
        assert float(lowest.min()) < 1e-3  # some were lifted
        reference = reference_in(env, 0).qpos[:, 7:].double().numpy()
        beyond = np.maximum(np.minimum(low, reference) - qpos[:, 7:].numpy(), 0)
        assert beyond.max() < 1e-6
        assert (np.maximum(qpos[:, 7:].numpy() - np.maximum(high, reference), 0) < 1e-6).all()
        env.restart(torch.arange(0, 128, 2))


def test_the_speed_task_starts_with_noise_as_well() -> None:
    plain, noisy = (make_speed([walk_clip()], start_noise=noise) for noise in (0.0, 1.0))
    assert not torch.equal(plain.reset(0), noisy.reset(0))


# Pushes -----------------------------------------------------------------------------------------------
def test_a_push_moves_and_turns_the_root_of_any_body_without_naming_it() -> None:
    env = make([standing_clip()], rows=64, randomization=PUSH)
    env.reset(0)
    changes, gaps = [], torch.zeros(64)
    for _ in range(15):
        before = env.sim.field("qvel").clone()
        for term in env.randomization:
            term.disturb(env)
        changes.append(env.sim.field("qvel") - before)
        gaps += (changes[-1] != 0).any(1)
    change = torch.stack(changes)
    assert (gaps >= 1).all()
    assert (gaps <= 3).all()
    assert (change[..., 6:] == 0).all()
    for part, most in ((change[..., :3], 0.5), (change[..., 3:6], 0.6)):
        assert 0.9 * most < float(part.abs().max()) <= most


def test_what_has_no_root_must_say_what_is_pushed() -> None:
    with pytest.raises(ConfigError, match="0 free joints: name the joints"):
        make_vec_env(LocomotionConfig("hopper", randomization={"push": {"kind": "push"}}), 1)


# Joints that are measured wrongly, masses that lie elsewhere -------------------------------------------
def test_a_joint_that_is_measured_wrongly_is_seen_and_pulled_beside() -> None:
    plain, wrong = (
        make([standing_clip()], randomization={"zero": {"kind": "joint_offset", "most": m}}) for m in (0.0, 0.05)
    )
    offsets = []
    for env in (plain, wrong):
        seen = env.reset(0)
        columns = env.observation_columns()["joints"]
        offset = env.memory["zero/offset"]
        torch.testing.assert_close(seen[:, columns], env.sim.field("qpos")[:, 7:].float() + offset)
        offsets.append(offset)
        # The servo is at rest where the reading is the control.
        bias = env.sim.model_field("actuator_biasprm")
        torch.testing.assert_close((bias[..., 0] / bias[..., 1]).float(), offset)
    assert float(offsets[0].abs().max()) == 0
    assert 0.04 < float(offsets[1].abs().max()) <= 0.05


def test_a_gear_makes_more_of_what_is_measured_wrongly() -> None:
    """A servo's length is its gear times its joint's angle."""
    env = make([standing_clip()])
    env.mj_model.actuator_gear[:, 0] = 2.0
    term, values = JointOffset(most=0.05, terms=()), dict[str, torch.Tensor]()
    term.name = "zero"
    term.prepare(env)
    term.begin(env, 1, values)
    bias = values["actuator_biasprm"]
    torch.testing.assert_close((bias[..., 0] / bias[..., 1]).float(), 2 * values["zero/offset"])


def test_what_a_function_of_the_users_shows_is_not_taken_for_angles() -> None:
    own = {"reference": {"function": "term_modules:speeds"}}
    zero = {"zero": {"kind": "joint_offset", "most": 0.05}}
    plain, wrong = (make([standing_clip()], observations=own, randomization=terms) for terms in ({}, zero))
    seen, off = plain.reset(0), wrong.reset(0)
    columns = wrong.observation_columns()["joints"]
    off[:, columns] -= wrong.memory["zero/offset"]
    torch.testing.assert_close(off, seen)


def test_the_centre_of_mass_is_shifted_within_the_body() -> None:
    env = make([standing_clip()], randomization={"centre": {"kind": "centre_of_mass", "shift": [0.05, 0.0, 0.02]}})
    env.reset(0)
    shift = env.sim.model_field("body_ipos") - torch.as_tensor(HUMANOID.model.body_ipos)
    assert (shift[:, 0] == 0).all()  # the world
    assert shift[:, 1:].abs().amax((0, 1)).tolist() == pytest.approx([0.05, 0.0, 0.02], rel=0.1)
    data = mujoco.MjData(model := HUMANOID.new_model())
    model.body_ipos[:] = env.sim.model_field("body_ipos")[1].numpy()
    mujoco.mj_setConst(model, data)
    data.qpos[:] = env.sim.field("qpos")[1].numpy()
    mujoco.mj_forward(model, data)
    np.testing.assert_allclose(env.sim.field("xipos")[1], data.xipos, atol=1e-12)


# Mirrored clips ---------------------------------------------------------------------------------------
MIRRORED_BODIES = {"humanoid": 1e-9, "g1": 1.1e-5}  # m; the G1's file has its shoulders 0.01 mm apart


@pytest.mark.parametrize("name", MIRRORED_BODIES)
def test_a_mirrored_pose_has_its_bodies_where_a_mirror_shows_them(name: str) -> None:
    if name == "g1" and importlib.util.find_spec("mjlab") is None:
        pytest.skip("the G1 comes with mjlab")
    body = find_body(name)
    mirror, rng = mirror_of(body), np.random.default_rng(3)
    low, high = body.limits
    poses = np.concatenate([rng.normal(size=(40, 7)), rng.uniform(low, high, (40, len(low)))], axis=1)
    poses[:, 3:7] /= np.linalg.norm(poses[:, 3:7], axis=1, keepdims=True)
    partners = partners_in(body.bodies)
    assert sum(i != p for i, p in enumerate(partners)) >= 12
    for pose, other in zip(poses, mirror.qpos(poses), strict=True):
        places, shown = (slow_places(body, q) for q in (pose, other))
        np.testing.assert_allclose(shown[partners], places * [1, -1, 1], atol=MIRRORED_BODIES[name])
    np.testing.assert_allclose(mirror.qpos(mirror.qpos(poses)), poses, atol=1e-12)
    ranges = np.stack([low, high])[:, mirror.partners] * mirror.signs
    np.testing.assert_allclose(np.sort(ranges, axis=0), np.stack([low, high]), atol=2e-3)


def slow_places(body: Body, qpos: np.ndarray) -> np.ndarray:
    """MuJoCo's own kinematics."""
    data = mujoco.MjData(body.model)
    data.qpos[:] = qpos
    mujoco.mj_kinematics(body.model, data)
    return data.xpos[body.root : body.root + len(body.bodies)].copy()


def test_partners_are_found_by_the_usual_names() -> None:
    names = [
        "left_knee",
        "right_knee",
        "L_hip",
        "R_hip",
        "arm_l",
        "arm_r",
        "LeftFoot",
        "RightFoot",
        "neck",
        "roll",
    ]
    assert partners_in(names) == [1, 0, 3, 2, 5, 4, 7, 6, 8, 9]


CROOKED = """<mujoco><option timestep="0.01"/><worldbody><body name="hips" pos="0 0 1"><freejoint/>
<geom size="0.1" mass="5"/>
<body name="left_leg" pos="0 0.1 0"><joint name="left_hip" axis="0 1 0"/><geom size="0.05" mass="1"/></body>
<body name="right_leg" pos="0 -0.1 {drop}"><joint name="right_hip" axis="0 1 0"/>
<geom size="0.05" mass="1"/></body>
</body></worldbody><actuator><position joint="left_hip" kp="10"/><position joint="right_hip" kp="10"/></actuator>
</mujoco>"""


def test_a_body_that_is_not_symmetric_is_refused(tmp_path: Path) -> None:
    for drop in (0.0, -0.02):
        (tmp_path / f"robot{drop}.xml").write_text(CROOKED.format(drop=drop))
    assert mirror_of(find_body(str(tmp_path / "robot0.0.xml"))).signs.tolist() == [1, 1]
    crooked = find_body(str(tmp_path / "robot-0.02.xml"))
    with pytest.raises(ConfigError, match=r"not symmetric: in a mirror left_leg comes to lie 20 mm beside where"):
        mirror_of(crooked)


def test_a_joint_that_turns_otherwise_at_the_end_of_a_limb_is_seen(tmp_path: Path) -> None:
    """Of a leaf only how it is turned tells, not where it is."""
    (tmp_path / "robot.xml").write_text(
        CROOKED.format(drop=0.0).replace('right_hip" axis="0 1 0"', 'right_hip" axis="1 0 0"')
    )
    with pytest.raises(
        ConfigError, match=r"not symmetric: in a mirror left_leg is turned by .*° against right_leg"
    ):
        mirror_of(find_body(str(tmp_path / "robot.xml")))


def test_training_has_every_clip_twice_and_evaluations_play_the_originals(tmp_path: Path) -> None:
    config = saved(tmp_path, walk_clip("walk", turn=0.4), standing_clip("stand"), mirror=True)
    training, evaluation = mimic(config, 8), mimic(config, 8, evaluation=True)
    assert training.library.names == ["stand", "walk", "stand~mirrored", "walk~mirrored"]
    assert evaluation.library.names == ["stand", "walk"]
    clip, times = torch.tensor([1, 3]), torch.full((2,), 0.37)
    plain, other = (part.numpy() for part in training.library.at(clip, times).body_pos)
    partners = [HUMANOID.key_names.index(HUMANOID.bodies[p]) for p in partners_in(HUMANOID.bodies)]
    np.testing.assert_allclose(other[partners], plain * [1, -1, 1], atol=1e-5)
    # What fails is hard in a mirror, too; the table counts both together.
    labels = {"clip": [0.0, 1.0], "began": [0.0, 0.0], "ended": [1.0, 0.5]}
    training.adapt({"success": [1.0, 0.0]}, labels)
    shares = training.starts.shares()
    assert float(shares[1]) == pytest.approx(float(shares[3]))
    lines = training.tabulate({"success": [1.0, 0.0]}, {"clip": [0.0, 1.0]})
    assert {line["clip"]: line["share"] for line in lines} == {
        "walk": pytest.approx(float(shares[1] + shares[3])), "stand": pytest.approx(float(shares[0] + shares[2]))
    }  # fmt: skip


def test_absolute_actions_mean_in_an_evaluation_what_they_meant_in_training(tmp_path: Path) -> None:
    clips = walk_clip("a"), standing_clip("b"), standing_clip("b7")
    config = saved(tmp_path, *clips, mirror=True, test_clips="*7", actions="absolute")
    training, evaluation = mimic(config, 2), mimic(config, 2, evaluation=True)
    shown, chosen = make_shown_env(config), make_trial_env(config, config.clips, 2)
    expected = np.mean([c.joint_pos.mean(0) for clip in clips[:2] for c in (clip, mirrored(clip))], axis=0)
    for env in (training, evaluation, shown, chosen):
        np.testing.assert_allclose(env._mean_pose, expected, atol=1e-6)  # type: ignore[attr-defined]


# Playback ---------------------------------------------------------------------------------------------
def test_a_clip_played_faster_is_the_clip_with_more_frames_a_second() -> None:
    """Row by row against a clip whose own rate is another."""
    clip, rate = walk_clip(turn=0.4), 1.25
    env = make([clip], rows=6, playback=(rate, rate), future=(1, 4), termination=9.0)
    slow = make([replace(clip, fps=clip.fps * rate)], rows=6, future=(1, 4), termination=9.0)
    for each in (env, slow):
        each.reset(0)
    state = slow.state()
    state["memory"]["time"] = env.memory["time"] / rate
    state["sim"] = env.state()["sim"]
    slow.load_state(state)
    for action in random_actions(env, 8, 0.3):
        one, other = env.step(action), slow.step(action)
        torch.testing.assert_close(one.obs[:, 1:], other.obs[:, 1:], atol=2e-3, rtol=1e-3)
        torch.testing.assert_close(one.reward, other.reward, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(env.memory["time"], slow.memory["time"] * rate)


def test_rates_are_drawn_evenly_in_their_logarithm_and_episodes_end_with_the_clip() -> None:
    env = make([standing_clip(seconds=1.0)], rows=512, playback=(0.8, 1.25), termination=9.0)
    env.reset(0)
    rate = env.memory["rate"].clone()
    assert 0.8 <= float(rate.min()) < 0.81
    assert 1.24 < float(rate.max()) <= 1.25
    assert float(rate.log().mean()) == pytest.approx(0.0, abs=0.03)
    reference = env.library.at(env.memory["clip"], env.memory["time"])
    torch.testing.assert_close(env.sim.field("qvel"), reference.qvel * rate[:, None])
    left = ((1.0 - env.memory["time"]) / (DT * rate) + 1e-6).floor().clamp(min=1)
    ended = torch.zeros(512, dtype=torch.int64)
    for number in range(1, 39):
        step = env.step(torch.zeros(512, 28))
        first = step.done & (ended == 0)
        assert (step.metrics["completion"][first & step.truncated] == 1).all()
        ended[first] = number
    assert torch.equal(ended, left.long())


# A rough world ----------------------------------------------------------------------------------------
def test_targets_that_come_late_are_those_of_an_earlier_time() -> None:
    late = {"late": {"kind": "latency", "steps": [3, 3]}}
    prompt, delayed = (make([walk_clip()], termination=9.0, randomization=each) for each in ({}, late))
    rng = torch.Generator().manual_seed(0)
    sent: list[Tensor] = []
    arrived: list[Tensor] = []
    for env in (prompt, delayed):
        env.reset(0)
        set_time(env, torch.full((env.num_rows,), 0.4, dtype=torch.float64))
    for _ in range(8):
        action = torch.rand(prompt.num_rows, 28, generator=rng) - 0.5
        for env, kept in ((prompt, sent), (delayed, arrived)):
            env.begin_step(action)
            kept.append(env.sim.field("ctrl").clone())
            env.end_step()
    for step in range(3, 8):
        torch.testing.assert_close(arrived[step], sent[step - 3], atol=1e-6, rtol=0)


def test_a_joint_that_is_measured_wrongly_is_so_wherever_it_is_seen() -> None:
    shown = {"joints": 0.5, "reference": 2.0, "phase": None}
    kinds = ({"zero": {"kind": "joint_offset", "most": most}} for most in (0.1, 0.0))
    off, plain = (make([walk_clip()], observations=shown, future=(1, 3), randomization=each) for each in kinds)
    obs = []
    for env in (plain, off):
        env.reset(0)
        set_time(env, torch.full((env.num_rows,), 0.2, dtype=torch.float64))
        obs.append(env.observe(slice(None)))
    offset, columns = off.memory["zero/offset"], off.observation_columns()
    wrong = obs[1] - obs[0]
    torch.testing.assert_close(wrong[:, columns["joints"]], 0.5 * offset, atol=1e-5, rtol=0)
    frames = wrong[:, columns["reference"]].view(len(offset), 2, -1)
    for frame in range(2):
        torch.testing.assert_close(frames[:, frame, 51:79], -2.0 * offset, atol=1e-5, rtol=0)
    assert not frames[:, :, :51].any()


# Kept to training, exact ------------------------------------------------------------------------------
def test_an_evaluation_knows_nothing_of_noise_pushes_and_rates(tmp_path: Path) -> None:
    plain = saved(tmp_path, walk_clip("walk"), standing_clip("stand"))
    rough = replace(plain, **EVERYTHING, mirror=True, eval_randomized=False)
    one, other = (make_eval_env(config, 8) for config in (plain, rough))
    torch.testing.assert_close(one.reset(0), other.reset(1), rtol=0, atol=0)
    for action in random_actions(one, 20, 0.3):  # type: ignore[arg-type]
        a, b = one.step(action), other.step(action)
        assert torch.equal(a.final_obs, b.final_obs)
        assert torch.equal(a.reward, b.reward)
    pushed, shown = make_eval_env(replace(rough, eval_randomized=True), 8), make_shown_env(rough)
    assert isinstance(pushed, SimTask)
    assert isinstance(shown, SimTask)
    assert pushed.randomization
    assert not shown.randomization  # what is looked at is what was evaluated
    assert judged_task(rough) != judged_task(plain)  # it has a randomisation
    practised = replace(plain, mirror=True, start_noise=1.0, playback=(0.8, 1.25), strict_termination=0.3)
    assert judged_task(practised) == judged_task(plain)
    assert judged_task(replace(plain, test_clips="walk")) != judged_task(plain)


@pytest.mark.parametrize("discriminate", ["nothing", "error"])
def test_a_saved_state_goes_on_bit_by_bit_with_everything_on(discriminate: str) -> None:
    clips = [walk_clip(), standing_clip()]
    env, other = (make(clips, discriminate=discriminate, **EVERYTHING) for _ in range(2))
    env.reset(0)
    actions = random_actions(env, 50)
    for action in actions[:20]:
        env.step(action)
    saved_state = env.state()
    straight = [env.step(action) for action in actions[20:]]
    assert sum(int(step.done.sum()) for step in straight) > 4
    other.reset(9)
    other.load_state(saved_state)
    for action, step in zip(actions[20:], straight, strict=True):
        again = other.step(action)
        assert torch.equal(again.obs, step.obs)
        assert torch.equal(again.reward, step.reward)


def test_restarting_by_mask_is_restarting_by_rows() -> None:
    """As on a GPU, where no row's number is asked for."""
    env, other = (make([walk_clip(), standing_clip()], rows=6, **EVERYTHING) for _ in range(2))
    for each in (env, other):
        each.reset(0)
    ended = torch.ones(6, dtype=torch.bool)
    state = env.generator.get_state()
    env._restart_rows(torch.arange(6))
    other.generator.set_state(state)
    other.sim.capturable = True
    other.sim.reset, reset = lambda rows: reset(rows.nonzero().squeeze(1)), other.sim.reset  # type: ignore[method-assign]
    other.sim.forward, forward = (  # type: ignore[method-assign]
        lambda rows=None: forward(rows if rows is None else rows.nonzero().squeeze(1)), other.sim.forward
    )  # fmt: skip
    other._restart_where(ended)
    assert torch.equal(env._obs, other._obs)


def test_the_contract_is_kept_with_everything_on() -> None:
    findings = check_env(lambda n: make([walk_clip(), standing_clip()], n, **EVERYTHING), num_envs=4, steps=30)
    assert [f.what for f in findings if f.level == "error"] == []


def saved(folder: Path, *clips: Any, **settings: Any) -> HumanoidConfig:
    """A configuration of these clips."""
    for clip in clips:
        save_clip(clip, folder / "clips" / f"{clip.name}.npz")
    return HumanoidConfig(clips=str(folder / "clips"), threads=1, **settings)


def mimic(config: HumanoidConfig, rows: int, evaluation: bool = False) -> MimicTask:
    env = make_vec_env(config, rows, evaluation)
    assert isinstance(env, MimicTask)
    return env


def train(folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    """Three clips, one of them kept out, with everything on: 8 iterations, four evaluations."""
    saved(folder.parent, standing_clip("stand", seconds=1.0), flight_clip("flight"), standing_clip("test7"))
    settings: dict[str, Any] = {
        "env.clips": str(folder.parent / "clips"), "env.num_envs": 16, "env.max_steps": 30, "env.threads": 1,
        "torch_threads": 1, "ppo.horizon": 16, "ppo.minibatches": 4, "ppo.update_epochs": 2, "policy.hidden": (8,),
        "loop.total_steps": 8 * 256, "eval.every": 2 * 256, "log.report": False, "env.test_clips": "*7",
        "env.mirror": True, **{f"env.{name}": value for name, value in EVERYTHING.items()},
    }  # fmt: skip
    return ludus.train("humanoid-mimic", folder, callbacks, Console("quiet"), overrides=settings | changes)


def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    seen: set[str] = set()

    class Look(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            assert isinstance(run.job, OnPolicyJob)
            for group in run.job.collector.groups:
                assert isinstance(group.env, MimicTask)
                seen.update(group.env.library.names[i] for i in group.env.memory["clip"].tolist())

    straight = train(tmp_path / "straight", Look())
    stopped = train(tmp_path / "stopped", StopAfterCycle(3))
    resume(stopped)
    assert_same_run(stopped, straight)
    # Training never sees the clip that was kept out; evaluations tell of it apart.
    assert seen == {"stand", "flight", "stand~mirrored", "flight~mirrored"}
    last = [row for row in metric_rows(straight) if "eval/success_rate" in row][-1]
    assert last["eval/test_episodes"] == 1
    assert last["eval/episodes"] == 2
    table = {line["clip"]: line for line in json.loads((straight / "evaluation.json").read_text())["rows"]}
    assert {name: line["unseen"] for name, line in table.items()} == {"stand": 0, "flight": 0, "test7": 1}
    assert last["eval/test_success_rate"] == table["test7"]["success_rate"]
    assert last["eval/test_completion"] == pytest.approx(table["test7"]["completion"])
    both = [table[name]["completion"] for name in ("stand", "flight")]
    assert last["eval/completion"] == pytest.approx(np.mean(both))
    assert 0 < table["flight"]["completion"] < 1
    assert table["test7"]["share"] == 0
    page = write_report(straight).read_text()
    assert "success with what was kept out of the training" in page
    assert "evaluation, unseen" in page


# Completion, and clips that are kept out --------------------------------------------------------------
def test_completion_is_the_share_of_frames_before_it_failed() -> None:
    env = make([standing_clip(seconds=1.0), flight_clip(), walk_clip()], evaluation=True, eval_starts=2)
    result = evaluate(Still(), env, 1, 0, True)  # type: ignore[arg-type]
    _, _, steps = evaluation_plan(env.config, env.library)
    for place, number in enumerate(result.numbers):
        done, lost = result.lengths[place], result.metrics["success"][place] == 0
        assert result.metrics["completion"][place] == pytest.approx((done - lost) / int(steps[number]))
    completion, clip = (np.array(values) for values in (result.metrics["completion"], result.labels["clip"]))
    by_clip = [completion[clip == i].mean() for i in range(3)]
    assert result.summary()["completion"] == pytest.approx(np.mean(by_clip))
    assert by_clip[1] < 1


def test_a_diverged_row_has_completed_nothing() -> None:
    env = make([standing_clip()], evaluation=True)
    env.reset(0)
    env.sim.field("qvel")[0] = 1e30
    assert env.step(torch.zeros(1, 28)).metrics["completion"].tolist() == [0]


def test_a_summary_tells_of_unseen_clips_apart() -> None:
    result = Evaluation(
        returns=[1.0, 2.0, 9.0, 9.0], lengths=[10, 20, 30, 30],
        metrics={"success": [1.0, 0.0, 1.0, 0.0], "completion": [1.0, 0.5, 1.0, math.nan], "reward/x": [1.0] * 4},
        labels={"weight": [1.0, 1.0, 0.5, 0.5], "clip": [0, 1, 2, 2], "unseen": [0, 0, 1, 1]}, cut={3},
    )  # fmt: skip
    told = result.summary()
    assert (told["success_rate"], told["completion"], told["mean_reward"], told["episodes"]) == (0.5, 0.75, 1.5, 2)
    assert (told["test_success_rate"], told["test_completion"], told["test_cut_episodes"]) == (0.5, 1.0, 1)
    assert "test_reward/x" not in told
    assert "cut_episodes" not in told


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"test_clips": "*9"}, "means none of the clips"), ({"test_clips": "*"}, "no clip to train on"),
     ({"playback": (1.25, 0.8)}, "the slowest rate and the fastest"), ({"playback": (0.0, 1.0)}, "env.playback"),
     ({"playback": (0.8, 1.0), "discriminate": "motion"}, "Leave it at 1 1"),
     ({"start_noise": -1.0}, "start-noise")],
    ids=str,
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vec_env(saved(tmp_path, standing_clip("a"), standing_clip("b7"), **wrong), 1)


def test_a_pattern_means_subjects(tmp_path: Path) -> None:
    names = ["07_01", "08_07", "127_03", "71_02"]
    env = mimic(saved(tmp_path, *(standing_clip(name) for name in names), test_clips="*7_*"), 1)
    assert env.library.names == [name for name in names if not fnmatchcase(name, "*7_*")] == ["08_07", "71_02"]


def test_a_clip_kept_out_that_is_trained_on_under_another_name_is_told(tmp_path: Path) -> None:
    twin = replace(moved(standing_clip("twin7"), yaw=1.0, shift=(3.0, -1.0)), fps=60.0)  # elsewhere, and faster
    config = saved(tmp_path, standing_clip("stand"), twin, flight_clip("flight7"), test_clips="*7")
    with pytest.warns(UserWarning, match=r"1 of the 2 clips .*\(twin7 is stand\): they are no test"):
        mimic(config, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mimic(saved(tmp_path / "other", standing_clip("stand"), flight_clip("flight7"), test_clips="*7"), 1)


# Many clips -------------------------------------------------------------------------------------------
def many_clips(count: int) -> MotionLibrary:
    clip = standing_clip(seconds=1.5)
    return MotionLibrary([replace(clip, name=f"c{i}", fps=30.0 + i % 7) for i in range(count)], 10.0)


def test_a_thousand_clips_are_laid_out_drawn_from_and_learned_of() -> None:
    count = 1_441
    library = many_clips(count)
    starts = StartWeights(library, 0.1, 1.0, 0.05)
    draws = torch.rand((2, 4096), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    clip, second = starts.draw(*draws)
    assert (second <= library.durations[clip]).all()
    assert len(clip.unique()) > 0.9 * count
    failed = torch.arange(count) % 100 == 0
    starts.learn(torch.arange(count), torch.zeros(count).double(), torch.full((count,), 0.5).double(), failed)
    assert float(starts.shares().sum()) == pytest.approx(1.0)
    lines = clip_table(library.names, list(range(count)), {f"m{i}": [0.5] * count for i in range(20)})
    assert len(lines) == count


@pytest.mark.parametrize("spread", [0.0, 0.05])
def test_a_clip_that_nobody_can_follow_does_not_take_the_others_starts(spread: float) -> None:
    library = many_clips(200)
    starts = StartWeights(library, 0.1, 1.0, spread)
    failed, began, ended = torch.arange(200) == 7, torch.zeros(200).double(), torch.full((200,), 0.5).double()
    starts.learn(torch.arange(200), began, ended, failed)
    worst = float(starts.shares()[7])
    hard = 0.9 / max(1.0, spread * 200)
    assert worst == pytest.approx(hard + (1 - hard) / 200)
    starts.learn(torch.arange(200), began, ended, torch.ones(200, dtype=torch.bool))
    assert starts.shares().tolist() == pytest.approx([1 / 200] * 200)


def test_groups_share_one_table(tmp_path: Path) -> None:
    config = saved(tmp_path, standing_clip("a"))
    one, other, evaluation = mimic(config, 1), mimic(config, 1), mimic(config, 1, evaluation=True)
    assert one.library is other.library is evaluation.library


def test_clips_that_do_not_fit_are_refused_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(available=1000)
    monkeypatch.setattr("ludus.envs.humanoid.motions.psutil.virtual_memory", lambda: memory)
    with pytest.raises(ConfigError, match=r"61 frames, which take 0.0 GB on cpu, but 0.0 GB are free"):
        library_of([standing_clip()], HumanoidConfig())
    memory.available = 500_000  # the table would fit
    with pytest.raises(ConfigError, match=r"stand has 61 frames; working them out takes 0.0 GB.* Cut it"):
        library_of([standing_clip()], HumanoidConfig())


# Learning, and MuJoCo Warp ----------------------------------------------------------------------------
def test_training_with_noise_and_pushes_improves(tmp_path: Path) -> None:
    changes = {
        "env.clips": "shipped:stroll", "env.test_clips": "", "env.mirror": False, "env.max_steps": 300,
        "env.num_envs": 64, "policy.hidden": (128, 64), "ppo.learning_rate": 1e-3, "ppo.horizon": 32,
        "loop.total_steps": 32_768, "eval.every": 32_768,
    }  # fmt: skip
    rows = [row for row in metric_rows(train(tmp_path / "run", **changes)) if "rollout/ep_rew_mean" in row]
    rewards = [row["rollout/ep_rew_mean"] for row in rows]
    assert np.mean(rewards[-2:]) > 1.15 * np.mean(rewards[:2])


@pytest.mark.slow
def test_on_warp_starts_and_pushes_are_as_on_threads(tmp_path: Path) -> None:
    warp = pytest.importorskip("warp", reason="MuJoCo Warp is not installed: pip install 'ludus[gpu]'")
    pytest.importorskip("mujoco_warp")
    warp.config.optimization_level = 0  # on the CPU, where kernels take longer to compile than to run
    config = saved(tmp_path, walk_clip("walk"), standing_clip("stand"), simulator="warp", **EVERYTHING)
    env, threads = (mimic(replace(config, simulator=kind), 4) for kind in ("warp", "threads"))
    env.reset(0)
    threads.reset(0)
    for action in random_actions(env, 25):
        env.step(action)
    rows: Tensor = env.restart(torch.arange(4))
    qpos = env.sim.field("qpos").double()
    lowest = lowest_points(*HUMANOID.kinematics.forward(qpos[:, :3], qpos[:, 3:7], qpos[:, 7:])).amin(1)
    assert float(lowest.min()) > -1e-5
    threads.load_state(env.state())
    torch.testing.assert_close(threads.observe(slice(None)), rows, atol=2e-3, rtol=1e-3)
    action = torch.zeros(4, len(JOINTS))
    state = env.state()
    before = env.step(action).obs
    env.load_state(state)
    assert torch.equal(env.step(action).obs, before)
    env.close()


def test_an_evaluation_of_unseen_clips_is_told_in_its_line() -> None:
    metrics = {
        "eval/success_rate": 0.9,
        "eval/success_low": 0.85,
        "eval/success_high": 0.93,
        "eval/mean_reward": 3.0,
    }
    assert evaluation_line(metrics) == "success 90.0 % (85–93) · reward 3"
    unseen = {"eval/test_success_rate": 0.78, "eval/test_mpjpe": 40.0}
    assert evaluation_line(metrics | unseen) == "success 90.0 % (85–93) · unseen 78.0 % · reward 3"
