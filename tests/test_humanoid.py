"""The humanoid's tasks: what they show and reward, how episodes begin and end, and that it learns."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("scipy", reason="SciPy is not installed")
from safetensors.torch import load_file
from scipy.spatial.transform import Rotation
from torch import Tensor

import ludus
from humanoid_body import DT, JOINTS
from humanoid_envs import (
    Still,
    about_z,
    arrays,
    disturb,
    flight_clip,
    make,
    make_speed,
    moved,
    random_actions,
    reference_in,
    seen_from_root,
    set_pose,
    set_time,
    slow_kinematics,
    slow_self,
    standing_clip,
    walk_clip,
    yaw_of,
)
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.registry import make_job
from ludus.envs import make_vec_env
from ludus.envs.check import check_env
from ludus.envs.humanoid.catalogue import shipped_folder
from ludus.envs.humanoid.clip import load_clip, save_clip
from ludus.envs.humanoid.config import HumanoidConfig, TrackingReward
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.motions import Reference
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.vec import Step
from ludus.errors import CheckpointError, ConfigError
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.training.checkpoint import newest_intact
from ludus.training.evaluator import evaluate
from ludus.training.loop import Trainer
from stopped_runs import SignalAtCycle, StopAfterCycle, assert_same_run, metric_rows, resume

Settings = dict[str, Any]


# The slow versions ------------------------------------------------------------------------------------
def slow_obs(env: MimicTask, row: int) -> np.ndarray:
    qpos, qvel, bodies = (values[row] for values in arrays(env))
    back, root = about_z(-yaw_of(qpos[3:7])), Rotation.from_quat(qpos[3:7], scalar_first=True)
    clip = env.library.clips[int(env.memory["clip"][row])]
    phase = (2 if clip.loop else 1) * math.pi * float(env.memory["time"][row]) / clip.duration
    parts = [*slow_self(qpos, qvel), seen_from_root(qpos, bodies)[1:].ravel()]
    parts.append(np.array([math.sin(phase), math.cos(phase)]))
    for steps in env.config.future:
        ahead = reference_in(env, steps)
        aim = ahead.qpos[row].double().numpy()
        turn = (root.inv() * Rotation.from_quat(aim[3:7], scalar_first=True)).as_matrix()
        offset = back.apply(ahead.body_pos[row].numpy() - bodies)
        parts += [offset.ravel(), turn[:, 0], turn[:, 2], aim[7:] - qpos[7:], ahead.qvel[row, 6:].numpy()]
    return np.concatenate(parts)


def slow_reward(
    r: TrackingReward, aim: Reference, row: int, qpos: np.ndarray, qvel: np.ndarray, bodies: np.ndarray
) -> float:
    """Of one row, without the power's cost."""
    want_qpos, want_qvel = aim.qpos[row].double().numpy(), aim.qvel[row].double().numpy()
    one, other = (Rotation.from_quat(q[3:7], scalar_first=True) for q in (qpos, want_qpos))
    place = np.mean([np.sum((b - w) ** 2) for b, w in zip(bodies, aim.body_pos[row].numpy(), strict=True)])
    pose = np.mean((qpos[7:] - want_qpos[7:]) ** 2)
    root = (one.inv() * other).magnitude() ** 2
    speed = np.mean((qvel[6:] - want_qvel[6:]) ** 2)
    root_speed = np.sum((qvel[:3] - want_qvel[:3]) ** 2)
    return (
        r.position * math.exp(-r.position_sharpness * place)
        + r.pose * math.exp(-r.pose_sharpness * pose - r.root_sharpness * root)
        + r.velocity * math.exp(-r.velocity_sharpness * speed)
        + r.root_velocity * math.exp(-r.root_velocity_sharpness * root_speed)
    )


# Seeing -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("future", [(1,), (1, 3, 10), (2,)])
def test_observations_equal_the_slow_version(future: tuple[int, ...]) -> None:
    env = make([walk_clip(turn=0.8), standing_clip(seconds=1.0)], rows=6, future=future)
    first = env.reset(1)
    seen = [first] + [env.step(action).obs for action in random_actions(env, 5)]
    assert seen[-1].shape == (6, *env.obs_space.shape)
    for row in range(6):
        np.testing.assert_allclose(seen[-1][row], slow_obs(env, row), atol=2e-4)
    env.reset(1)
    np.testing.assert_allclose(first[0], slow_obs(env, 0), atol=2e-4)


def test_bodies_are_where_the_joints_put_them_after_a_step() -> None:
    """Not a substep behind."""
    env = make([walk_clip()])
    env.reset(0)
    for action in random_actions(env, 3):
        env.step(action)
    qpos, _, bodies = arrays(env)
    np.testing.assert_allclose(bodies[0], slow_kinematics(qpos[0])[0], atol=1e-9)


PLACES = {"in the air": 3.0, "on the floor": 0.0}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("discriminate", ["motion", "error"])
def test_nothing_changes_when_the_whole_clip_is_turned_and_shifted(place: str, discriminate: str) -> None:
    clip = walk_clip(turn=0.5)
    clip = replace(clip, root_pos=clip.root_pos + np.array([0.0, 0.0, PLACES[place]]))
    clips = clip, moved(clip, 1.1, (3.0, -2.0))
    envs = [make([c], discriminate=discriminate) for c in clips]
    one, other = (env.reset(3) for env in envs)
    torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
    for action in random_actions(envs[0], 10, scale=0.3):
        a, b = (env.step(action) for env in envs)
        torch.testing.assert_close(a.obs, b.obs, atol=5e-3, rtol=1e-3)
        torch.testing.assert_close(a.reward, b.reward, atol=1e-3, rtol=1e-3)
        assert torch.equal(a.done, b.done)
        if discriminate == "motion":
            torch.testing.assert_close(envs[0].motion, envs[1].motion, atol=5e-3, rtol=1e-3)
    assert not torch.equal(a.reward, torch.ones(4))


def test_what_happens_does_not_depend_on_where_the_humanoid_faces() -> None:
    """Nothing tells the policy its heading, so nothing may depend on it."""
    clip = walk_clip(turn=0.5)
    envs = [make([c], rows=16) for c in (clip, moved(clip, 1.1, (0.0, 0.0)))]
    for env in envs:
        env.reset(3)
    a, b = (env.step(torch.zeros(16, 28)) for env in envs)
    torch.testing.assert_close(a.obs, b.obs, atol=5e-3, rtol=1e-3)


# Acting -----------------------------------------------------------------------------------------------
def test_actions_are_added_to_the_coming_pose_or_to_the_mean_pose() -> None:
    clips = [walk_clip(), standing_clip(seconds=1.5)]
    for kind in ("residual", "absolute"):
        env = make(clips, actions=kind, action_scale=0.3)
        env.reset(0)
        env.step(random_actions(env, 1)[0])
        ahead = reference_in(env, 1)
        action = 2 * random_actions(env, 1, seed=1)[0]  # some of it out of bounds
        env.begin_step(action)
        center = ahead.qpos[:, 7:] + 0.05 * ahead.qvel[:, 6:]
        if kind == "absolute":
            center = torch.from_numpy(np.mean([clip.joint_pos.mean(0) for clip in clips], axis=0)).float()
        expected = center + 0.3 * action.clamp(-1, 1)
        torch.testing.assert_close(env.sim.field("ctrl").float(), expected, atol=1e-5, rtol=0)
        env.end_step()


# Worth ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("discriminate", ["nothing", "error"])
def test_being_on_the_reference_is_worth_all_and_its_error_is_zero(discriminate: str) -> None:
    env = make([walk_clip(turn=0.7)], discriminate=discriminate)
    env.reset(0)
    set_time(env, torch.tensor([0.1, 0.2, 0.5, 1.3]))  # on frames, also after one step
    ahead = reference_in(env, 1)
    set_pose(env, ahead.qpos, ahead.qvel)
    score = env.score()
    np.testing.assert_allclose(score.reward, 1.0, atol=1e-5)
    assert not score.terminated.any()
    if discriminate == "error":
        assert env.motion is not None
        np.testing.assert_allclose(env.motion, 0.0, atol=1e-4)
        np.testing.assert_array_equal(env.demonstrations(3, torch.Generator()), np.zeros((3, env.motion.shape[1])))


def test_reward_equals_the_slow_formula_on_random_states() -> None:
    weights = TrackingReward(0.3, 40.0, 0.4, 2.0, 1.0, 0.2, 0.05, 0.1, 0.5)
    env = make([walk_clip(turn=0.7), standing_clip()], rows=16, reward=weights, discriminate="error")
    env.reset(2)
    ahead = reference_in(env, 1)
    set_pose(env, *disturb(ahead, 0.2, seed=0))
    score = env.score()
    qpos, qvel, bodies = arrays(env)
    for row in range(16):
        expected = slow_reward(weights, ahead, row, qpos[row], qvel[row], bodies[row])
        assert float(score.reward[row]) == pytest.approx(expected, abs=2e-5)
    lost = np.linalg.norm(bodies - ahead.body_pos.numpy(), axis=2).max(1) > 0.5
    assert score.terminated.tolist() == lost.tolist()
    assert score.metrics["success"].tolist() == (~lost).tolist()
    assert env.motion is not None
    for row in range(16):  # the bodies' offsets, as the reference sees them
        quat = ahead.qpos[row, 3:7].numpy()
        offset = (bodies[row] - ahead.body_pos[row].numpy()) @ Rotation.from_euler("z", yaw_of(quat)).as_matrix()
        np.testing.assert_allclose(env.motion[row, :45], offset.ravel(), atol=1e-5)
    assert float(env.motion.abs().max()) < 5


def test_power_costs_what_it_says() -> None:
    plain, costly = (make([walk_clip()], reward=TrackingReward(power=p), termination=9.0) for p in (0.0, 0.7))
    for env in (plain, costly):
        env.reset(0)
    for action in random_actions(plain, 4):
        free, paid = plain.step(action), costly.step(action)
        force, qvel = (costly.sim.field(name).numpy() for name in ("actuator_force", "qvel"))
        expected = 0.7 * 1e-3 * np.abs(force * qvel[:, 6:]).sum(1)
        assert expected.min() > 0
        np.testing.assert_allclose(free.reward - paid.reward, expected, atol=1e-5)
    with pytest.raises(ConfigError, match="power is a cost per kilowatt"):  # as it was written before
        make([walk_clip()], rewards={"power": -0.0005})


# Ending -----------------------------------------------------------------------------------------------
def test_an_episode_of_training_ends_when_any_body_is_lost_and_an_evaluation_when_the_mean_is() -> None:
    clip = standing_clip()
    for evaluation, rows in ((False, 1), (True, 1)):
        env = make([clip], rows, evaluation)
        env.reset(0)
        set_time(env, torch.zeros(1))
        ahead = reference_in(env, 1)
        qpos = ahead.qpos.double()
        qpos[:, 7 + JOINTS.index("right_shoulder_x")] -= 1.6  # only the right arm is far away
        set_pose(env, qpos, ahead.qvel)
        score = env.score()
        assert bool(score.terminated) is not evaluation
        assert float(score.metrics["success"]) == evaluation
        if evaluation:
            assert float(score.metrics["success_strict"]) == 0
        set_pose(env, ahead.qpos + torch.tensor([0.0, 0.0, 0.6] + [0.0] * 32), ahead.qvel)
        assert bool(env.score().terminated)


def test_an_episode_is_cut_at_its_time_limit_with_its_last_observation() -> None:
    clips = [walk_clip(), standing_clip(seconds=10.0)]
    short, long = (make(clips, max_steps=n, termination=9.0) for n in (5, 300))
    short.reset(4)
    long.load_state(short.state())
    for number, action in enumerate(random_actions(short, 5), 1):
        cut, going = short.step(action), long.step(action)
        assert not going.done.any()
        assert cut.truncated.tolist() == [number == 5] * 4
        assert torch.equal(cut.final_obs, going.obs)
        assert torch.equal(cut.reward, going.reward)
    assert not torch.equal(cut.obs, going.obs)
    assert short.elapsed.tolist() == [0] * 4


def test_a_clip_that_does_not_loop_is_cut_at_its_end() -> None:
    clip = standing_clip(seconds=1.0)
    env = make([clip], rows=8)
    env.reset(5)
    ends = 0
    for _ in range(45):
        time = env.memory["time"].clone()
        step = env.step(torch.zeros(8, 28))
        assert not step.terminated.any()
        over = time + 2 * DT > clip.duration + 1e-9  # no whole step is left
        sure = (time + 2 * DT - clip.duration).abs() > 1e-6
        assert torch.equal(step.truncated[sure], over[sure])
        assert bool((env.memory["time"] <= clip.duration).all())
        ends += int(step.truncated.sum())
    assert ends > 8


def test_a_diverged_row_of_an_evaluation_still_tells_which_episode_it_was() -> None:
    env = make([standing_clip("a"), walk_clip("b")], evaluation=True, eval_starts=2)
    env.reset(0)
    env.step(torch.zeros(3, 28))
    env.sim.field("qvel")[2] = 1e30
    step = env.step(torch.zeros(3, 28))
    assert step.metrics["diverged"].tolist() == [0, 0, 1]
    assert step.metrics["success"][2] == 0
    assert step.metrics["clip"].tolist() == [0, 1, 1]
    assert step.metrics["weight"].tolist() == [1, 0.5, 0.5]
    assert step.metrics["success_strict"][2] == 0
    assert step.metrics["mpjpe"].isnan().tolist() == [False, False, True]  # it measured nothing


# Exact state ------------------------------------------------------------------------------------------
def assert_same_step(one: Step, other: Step) -> None:
    for name, a, b in zip(Step._fields[:5], one[:5], other[:5], strict=True):
        assert torch.equal(a, b), name
    for name, value in one.metrics.items():
        assert torch.equal(value, other.metrics[name]), name


@pytest.mark.parametrize("discriminate", ["nothing", "motion", "error"])
def test_a_saved_state_goes_on_bit_by_bit(discriminate: str) -> None:
    env, other = (make([walk_clip(), standing_clip()], discriminate=discriminate, window=4) for _ in range(2))
    start, end = torch.tensor([[0.0, 0.0], [0.5, 2.0]], dtype=torch.float64)
    env.starts.learn(torch.tensor([0, 1]), start, end, torch.tensor([True, False]))
    env.reset(0)
    actions = random_actions(env, 60)
    for action in actions[:20]:
        env.step(action)
    saved = env.state()
    ended = 0
    straight = []
    for action in actions[20:]:
        straight.append((env.step(action), None if env.motion is None else env.motion.clone()))
        ended += int(straight[-1][0].done.sum())
    assert ended > 4
    other.reset(9)
    other.load_state(saved)
    for action, (step, motion) in zip(actions[20:], straight, strict=True):
        assert_same_step(other.step(action), step)
        if discriminate == "nothing":
            assert other.motion is None
        else:
            assert motion is not None
            assert other.motion is not None
            assert torch.equal(motion, other.motion)
    assert torch.equal(env.starts.probability, other.starts.probability)


@pytest.mark.parametrize(("name", "value"), [("clip", -1), ("clip", 2), ("time", math.nan), ("rate", math.inf)])
def test_a_checkpoint_of_clips_and_times_that_there_are_not_is_refused(name: str, value: float) -> None:
    env = make([standing_clip("a"), standing_clip("b")], rows=3, playback=(0.8, 1.25))
    env.reset(0)
    state = env.state()
    env.load_state(state)
    state["memory"][name][1] = value
    with pytest.raises(CheckpointError, match="damaged"):
        env.load_state(state)


# The contract -----------------------------------------------------------------------------------------
CONTRACT: dict[str, Callable[[int], HumanoidTask]] = {
    "mimic": lambda n: make([walk_clip(), standing_clip()], n),
    "motion": lambda n: make([walk_clip(), standing_clip()], n, discriminate="motion", future=(1, 2)),
    "error": lambda n: make([walk_clip()], n, discriminate="error", actions="absolute"),
    "evaluation": lambda n: make([walk_clip()], n, evaluation=True, eval_starts=4, max_steps=60),
    "speed": lambda n: make_speed([walk_clip()], n, discriminate="motion"),
    "speed evaluation": lambda n: make_speed([walk_clip()], n, evaluation=True),
}


@pytest.mark.parametrize("kind", CONTRACT)
def test_the_tasks_keep_the_contract(kind: str) -> None:
    findings = check_env(CONTRACT[kind], num_envs=4, steps=80)
    assert [f.what for f in findings if f.level == "error"] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"future": (0,)}, "env.future"), ({"future": ()}, "env.future"), ({"goal": "speed"}, "goal speed"),
     ({"speed": (2.0, 1.0)}, "env.speed"), ({"clips": "no-such-clip"}, "no clip"),
     ({"clips": " "}, "which clips")],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong: Settings, message: str, tmp_path: Path) -> None:
    save_clip(standing_clip(), tmp_path / "stand.npz")
    config = HumanoidConfig(**{"clips": str(tmp_path / "stand.npz"), **wrong})
    with pytest.raises(ConfigError, match=message):
        make_vec_env(config, 1)


@pytest.mark.parametrize(
    "wrong",
    [{"eval_starts": 0}, {"resample_floor": 1.5}, {"resample_floor": -0.1}, {"resample_smoothing": 2.0},
     {"window": 0, "discriminate": "motion"}, {"max_steps": 0}, {"termination": 0.0}, {"action_scale": -0.5},
     {"action_scale": math.nan}, {"future": (1, 0)}, {"speed": (0.5,)}, {"speed": (0.5, math.inf)}],
    ids=str,
)  # fmt: skip
def test_numbers_out_of_range_are_refused(wrong: Settings, tmp_path: Path) -> None:
    save_clip(walk_clip(), tmp_path / "walk.npz")
    settings = {"env.clips": str(tmp_path / "walk.npz")} | {f"env.{name}": value for name, value in wrong.items()}

    def make_it() -> None:
        config = apply_overrides(find_preset("humanoid-mimic").config, settings)
        config.check()
        make_vec_env(config.env, 1, evaluation=True)

    with pytest.raises(ConfigError, match=f"--env.{next(iter(wrong)).replace('_', '-')}"):
        make_it()


@pytest.mark.parametrize("algo", ["ppo", "sac", "td3", "dqn"])
@pytest.mark.parametrize("discriminate", ["motion", "error"])
def test_only_amp_has_a_discriminator(algo: str, discriminate: str) -> None:
    preset = find_preset("humanoid-mimic", algo).config
    preset.check()
    with pytest.raises(
        ConfigError, match=f"--env.discriminate {discriminate} is for a discriminator: take --algo amp"
    ):
        apply_overrides(preset, {"env.discriminate": discriminate}).check()


def test_a_speed_may_be_asked_for_without_a_discriminator(tmp_path: Path) -> None:
    save_clip(walk_clip(), tmp_path / "walk.npz")
    config = HumanoidConfig(clips=str(tmp_path / "walk.npz"), goal="speed", actions="absolute")
    assert make_vec_env(config, 1).motion is None
    with pytest.raises(ConfigError, match=r"--env.actions absolute, and --env.discriminate motion, or nothing"):
        make_vec_env(replace(config, discriminate="error"), 1)


def test_a_clip_that_changed_is_read_anew(tmp_path: Path) -> None:
    config = HumanoidConfig(clips=str(tmp_path / "clip.npz"))
    for seconds in (1.0, 2.0):
        save_clip(standing_clip(seconds=seconds), tmp_path / "clip.npz")
        env = make_vec_env(config, 1)
        assert isinstance(env, HumanoidTask)
        assert env.library.durations.tolist() == pytest.approx([seconds])


# Training ---------------------------------------------------------------------------------------------
MLP: Settings = {"policy.hidden": (32,)}
LSTM: Settings = {"policy.memory": "lstm", "policy.memory_size": 16, "policy.hidden": (16,)}
UNEVEN: Settings = LSTM | {"ppo.segments": 20}  # half recorded when the starts move
ADD: Settings = MLP | {
    "algo": "amp", "env.discriminate": "error", "adversary.hidden": (16,), "adversary.batches": 2,
    "adversary.batch_size": 32, "adversary.replay": 200,
}  # fmt: skip
AMP: Settings = ADD | {"env.discriminate": "motion", "env.window": 4}
VARIANTS: dict[str, Settings] = {"mlp": MLP, "lstm": LSTM, "uneven": UNEVEN, "amp": AMP, "add": ADD}


def train(folder: Path, variant: str, *callbacks: ludus.Callback, **changes: Any) -> Path:
    """Two clips, of which one cannot be followed: 12 iterations of 256 steps, four evaluations."""
    clips = folder.parent / "clips"
    save_clip(standing_clip("stand", seconds=1.0), clips / "stand.npz")
    save_clip(flight_clip("flight"), clips / "flight.npz")
    steps = VARIANTS[variant].get("ppo.segments", 16) * 16
    settings: Settings = {
        "env.clips": str(clips), "env.num_envs": 16, "env.max_steps": 30, "env.threads": 1, "torch_threads": 1,
        "ppo.horizon": 16, "ppo.minibatches": 4, "ppo.update_epochs": 2, "loop.total_steps": 12 * steps,
        "eval.every": 3 * steps, "log.report": False,
    }  # fmt: skip
    overrides = settings | VARIANTS[variant] | {key.replace("__", "."): value for key, value in changes.items()}
    return ludus.train("humanoid-mimic", folder, callbacks, Console("quiet"), overrides=overrides)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stopped_and_resumed_run_equals_one_that_never_stopped(variant: str, tmp_path: Path) -> None:
    straight = train(tmp_path / "straight", variant)
    stop = SignalAtCycle(6) if variant == "mlp" else StopAfterCycle(7)  # before an evaluation, or between two
    stopped = train(tmp_path / "stopped", variant, stop)
    assert not (stopped / "final").exists()
    resume(stopped)
    assert_same_run(stopped, straight)
    tensors = load_file(newest_intact(straight / "checkpoints", pytest.fail) / "training.safetensors")
    failures = [value for name, value in tensors.items() if name.endswith("env/starts/failures")]
    assert len(failures) == 2  # groups
    assert torch.equal(*failures)
    assert float(failures[0].sum()) > 0.5
    tables = [json.loads((run / "evaluation.json").read_text()) for run in (straight, stopped)]
    assert tables[0] == tables[1]


def test_a_run_does_not_go_on_with_other_clips(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "mlp", StopAfterCycle(7))
    save_clip(standing_clip("stand", seconds=2.5), tmp_path / "clips" / "stand.npz")
    with pytest.raises(CheckpointError, match=r"not those this run began with \(stand lasts 2.50 s, not 1.00 s"):
        resume(folder)
    save_clip(standing_clip("stand", seconds=1.0), tmp_path / "clips" / "stand.npz")
    resume(folder)


def test_an_emergency_checkpoint_keeps_where_episodes_start(tmp_path: Path) -> None:
    class Trouble(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            if run.counters.iteration == 5:
                raise ZeroDivisionError

    class Look(ludus.Callback):
        def on_start(self, run: Trainer) -> None:
            assert isinstance(run.job, OnPolicyJob)
            shares.extend(group.env.starts.shares()[0] for group in run.job.collector.groups)  # type: ignore[attr-defined]

    shares: list[Tensor] = []
    folder = tmp_path / "run"
    with pytest.raises(ZeroDivisionError):
        train(folder, "mlp", Trouble())  # after the first evaluation
    resume(folder, Look())
    assert len(shares) == 2  # groups
    assert all(float(share) == pytest.approx(0.5 * 0.55 + 0.45) for share in shares)


def test_training_writes_a_line_for_every_clip_and_starts_where_it_fails(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "mlp")
    table = json.loads((folder / "evaluation.json").read_text())
    last = [row for row in metric_rows(folder) if "eval/success_rate" in row][-1]
    assert table["step"] == last["step"] == 12 * 256
    assert [line["clip"] for line in table["rows"]] == ["flight", "stand"]
    flight, stand = table["rows"]
    assert (flight["success_rate"], stand["success_rate"]) == (0.0, 1.0)
    assert flight["share"] > 0.9
    assert flight["share"] + stand["share"] == pytest.approx(1.0)
    assert last["eval/success_rate"] == pytest.approx(0.5)
    assert last["eval/mpjpe"] == pytest.approx((flight["mpjpe"] + stand["mpjpe"]) / 2)
    assert last["eval/mpjpe_succeeded"] == pytest.approx(stand["mpjpe"])
    measures = ("success_strict", "mpjpe_local", "mpjpe_aligned", "velocity_error", "acceleration_error")
    for name in measures:
        assert math.isfinite(last[f"eval/{name}"])
    assert last["eval/episodes"] == 2
    assert not any(name in last for name in ("eval/clip", "eval/weight", "eval/ended"))


def test_ppo_learns_to_follow_a_walk_for_longer(tmp_path: Path) -> None:
    shipped = shipped_folder() / "stroll.npz"
    if not shipped.is_file():
        pytest.skip("the clip stroll does not come with this installation")
    without = evaluate(Still(), make([load_clip(shipped)], evaluation=True), 0, 0, True)  # type: ignore[arg-type]
    before = without.summary()["mean_ep_length"]
    settings: Settings = {
        "env.clips": str(shipped), "env.num_envs": 64, "policy.hidden": (128, 64), "ppo.learning_rate": 1e-3,
        "loop.total_steps": 76_800, "eval.every": 38_400, "torch_threads": 1, "log.report": False,
    }  # fmt: skip
    folder = ludus.train("humanoid-mimic", tmp_path / "run", (), Console("quiet"), overrides=settings)
    lengths = [row["eval/mean_ep_length"] for row in metric_rows(folder) if "eval/mean_ep_length" in row]
    assert lengths[-1] > 1.5 * before


def test_episodes_broken_off_between_rollouts_keep_what_the_ended_ones_were_worth() -> None:
    """Where segments go on over an evaluation, its restart ends them as if time had run out."""
    settings = {"env.num_envs": 8, "env.threads": 1, "ppo.segments": 5, "ppo.horizon": 8, "ppo.minibatches": 5}
    config = apply_overrides(find_preset("humanoid-mimic").config, {**settings, "env.clips": "squat", "groups": 1})
    job = make_job(config, torch.device("cpu"))
    assert isinstance(job, OnPolicyJob)
    job.iteration(0, 0.0, lambda share, batch: None)
    collector, track = job.collector, job.collector.buffer.track
    last, ahead = ((collector.buffer.time + k) % collector.buffer.columns for k in (-1, 0))
    track.done[last, 3], track.final_value[last, 3] = True, 0.0
    collector.adapt({"success": [0.0]}, {"clip": [0.0], "began": [0.0], "ended": [0.5]})  # it starts elsewhere now
    assert bool(track.done[last].all())
    assert float(track.final_value[last, 3]) == 0.0
    others = [row for row in range(8) if row != 3]
    assert torch.equal(track.final_value[last, others], track.value[ahead, others])
    job.close()
