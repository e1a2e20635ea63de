"""What a discriminator sees of the humanoid, and the task that leaves the style to it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from humanoid_body import DT, FRAME_SIZE, JOINTS
from humanoid_envs import (
    arrays,
    make,
    make_speed,
    random_actions,
    seen_from_root,
    slow_frame,
    standing_clip,
    walk_clip,
    yaw_of,
)
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.task import HumanoidTask
from ludus.errors import ConfigError
from ludus.presets import find_preset
from ludus.settings import apply_overrides


# What a discriminator sees ----------------------------------------------------------------------------
def slow_windows(env: HumanoidTask, clip: Clip, window: int) -> list[list[np.ndarray]]:
    """[rows][window] frames of the reference up to now; before a clip's beginning its last cycle, or its start,
    not moving."""
    windows = []
    for row in range(env.num_rows):
        times = [float(env.memory["time"][row]) - k * DT for k in range(window - 1, -1, -1)]
        times = [t + clip.duration if clip.loop else t for t in times]
        at = env.library.at(torch.zeros(window, dtype=torch.int64), torch.tensor(times, dtype=torch.float64))
        qvel = [velocity if t >= 0 else torch.zeros(34) for t, velocity in zip(times, at.qvel, strict=True)]
        frames = zip(at.qpos, qvel, at.body_pos, strict=True)
        windows.append([slow_frame(*(v.double().numpy() for v in frame)) for frame in frames])
    return windows


@pytest.mark.parametrize(
    "clip", [walk_clip(turn=0.6), walk_clip("once", loop=False, seconds=2.4)], ids=["loop", "once"]
)
@pytest.mark.parametrize("goal", ["track", "speed"])
def test_the_window_of_motion_holds_the_last_frames(clip: Clip, goal: str) -> None:
    builder: Callable[..., HumanoidTask] = make if goal == "track" else make_speed
    env = builder([clip], discriminate="motion", window=6, termination=9.0)
    env.reset(0)
    set_times = torch.tensor([0.05, 0.2, 0.9, 0.4])
    chosen = torch.zeros(4, dtype=torch.int64), set_times.double()
    env.choose_starts = lambda rows, n: chosen  # type: ignore[method-assign]
    env.restart(torch.arange(4))
    frames = slow_windows(env, clip, 6)
    assert env.motion is not None
    assert env.motion.shape == (4, 6 * FRAME_SIZE)
    for number, action in enumerate(random_actions(env, 8, 0.4)):
        for row in range(4):
            np.testing.assert_allclose(env.motion[row], np.concatenate(frames[row][-6:]), atol=1e-3)
        step = env.step(action)
        assert not step.done.any(), number
        for row, (qpos, qvel, bodies) in enumerate(zip(*arrays(env), strict=True)):
            frames[row].append(slow_frame(qpos, qvel, bodies))


@pytest.mark.parametrize("discriminate", ["motion", "error"])
@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_the_motion_of_a_last_step_is_still_to_be_seen_after_it(discriminate: str, ending: str) -> None:
    """As `VecEnv.motion` says; a discriminator would otherwise take the next episode's start for the policy's."""
    limits: dict[str, Any] = {"max_steps": 3} if ending == "truncated" else {"termination": 0.15}
    short, long = (
        make([walk_clip()], discriminate=discriminate, **(limits if cut else {"termination": 9.0}))
        for cut in (True, False)
    )
    short.reset(0)
    long.load_state(short.state())
    actions = random_actions(short, 12)
    for action in actions:
        step = short.step(action)
        long.step(action)
        assert short.motion is not None
        assert long.motion is not None
        if step.done.any():
            assert bool(getattr(step, ending).any())
            assert torch.equal(short.motion[step.done], long.motion[step.done])
            return
    pytest.fail("no episode ended")


@pytest.mark.parametrize("discriminate", ["motion", "error"])
def test_a_diverged_row_shows_the_motion_it_had_before(discriminate: str) -> None:
    env = make([walk_clip()], discriminate=discriminate)
    env.reset(0)
    actions = random_actions(env, 2, 0.2)
    env.step(actions[0])
    assert env.motion is not None
    before = env.motion.clone()
    env.sim.field("qvel")[2] = 1e30
    step = env.step(actions[1])
    assert step.metrics["diverged"].tolist() == [0, 0, 1, 0]
    assert torch.equal(env.motion[2], before[2])
    assert not torch.equal(env.motion[1], before[1])


def test_demonstrations_are_windows_cut_from_the_clips() -> None:
    clip = standing_clip("clock", fps=60.0, seconds=2.0)
    clip.joint_pos[:, JOINTS.index("neck_z")] = np.arange(clip.frames) / clip.fps  # a frame tells its time
    env = make([clip], discriminate="motion", window=5)
    demos = env.demonstrations(400, torch.Generator().manual_seed(0)).view(400, 5, FRAME_SIZE)
    times = demos[:, :, 13 + JOINTS.index("neck_z")].double()
    newest = times[:, -1]
    expected = (newest[:, None] - DT * torch.arange(4, -1, -1)).clamp(min=0.0)
    np.testing.assert_allclose(times, expected, atol=1e-5)
    np.testing.assert_allclose(np.sort(newest), np.linspace(0, 2, 400), atol=0.15)  # all times alike
    early = demos[newest < 4 * DT]
    assert len(early) == 19
    for demo in (*demos[:20], *early):
        moments = demo[:, 13 + JOINTS.index("neck_z")].double()
        at = env.library.at(torch.zeros(5, dtype=torch.int64), moments)
        for k in range(5):
            before = k < 4 and bool(moments[k] == 0)  # the clip has not begun: it does not move
            qvel = torch.zeros(34) if before else at.qvel[k]
            frame = slow_frame(*(v.double().numpy() for v in (at.qpos[k], qvel, at.body_pos[k])))
            np.testing.assert_allclose(demo[k], frame, atol=1e-3)
    again = env.demonstrations(400, torch.Generator().manual_seed(0)).view(400, 5, FRAME_SIZE)
    assert torch.equal(demos, again)


# Speed ------------------------------------------------------------------------------------------------
def test_speed_is_rewarded_by_the_slow_formula_and_a_fall_ends_it() -> None:
    env = make_speed([walk_clip(yaw=0.7)], rows=32, speed=(0.5, 2.0), max_steps=40)
    env.reset(0)
    asked = env.memory["speed"].clone()
    assert 0.5 <= float(asked.min()) < 0.8
    assert 1.7 < float(asked.max()) <= 2.0
    seen = env.observe(slice(None))
    np.testing.assert_allclose(seen[:, -3], asked, atol=1e-6)
    for row in range(4):  # where the asked direction (x) lies, seen from the humanoid
        yaw = yaw_of(arrays(env)[0][row, 3:7])
        np.testing.assert_allclose(seen[row, -2:], [math.cos(-yaw), math.sin(-yaw)], atol=1e-5)
    total, fallen = np.zeros(32), np.zeros(32, dtype=bool)
    ends: list[bool] = []
    score = env.score

    def watched() -> Any:
        qpos, qvel, _ = arrays(env)
        error = np.hypot(qvel[:, 0] - env.memory["speed"].numpy(), qvel[:, 1])
        total[:] += error
        result = score()
        np.testing.assert_allclose(result.reward, np.exp(-4 * error**2), atol=1e-5)
        assert result.terminated.tolist() == (qpos[:, 2] < 0.5).tolist()
        np.testing.assert_allclose(result.metrics["speed_error"], total / env.elapsed.numpy(), rtol=1e-4)
        return result

    env.score = watched  # type: ignore[method-assign]
    for action in random_actions(env, 45):
        step = env.step(action)
        assert torch.equal(step.metrics["success"], (~step.terminated).float())
        total[step.done.numpy()] = 0.0
        fallen |= step.terminated.numpy()
        ends += step.truncated[step.done].tolist()
    assert fallen.any()
    assert len(ends) >= 32


def test_an_evaluation_of_speed_tells_how_far_poses_are_from_the_clips() -> None:
    clip = walk_clip(fps=30.0)
    env = make_speed([clip], rows=3, evaluation=True, discriminate="motion")
    env.reset(0)
    score, expected = env.score, np.zeros(3)
    frames = torch.arange(clip.frames)
    bank = env.library.at(torch.zeros_like(frames), frames / clip.fps)
    poses = [seen_from_root(q.double().numpy(), b.numpy()) for q, b in zip(bank.qpos, bank.body_pos, strict=True)]

    def watched() -> Any:
        for row, (qpos, _, bodies) in enumerate(zip(*arrays(env), strict=True)):
            mine = seen_from_root(qpos, bodies)
            expected[row] += min(math.sqrt(((mine - pose) ** 2).sum(1).mean()) for pose in poses)
        return score()

    env.score = watched  # type: ignore[method-assign]
    for number, action in enumerate(random_actions(env, 5, 0.5), 1):
        step = env.step(action)
        assert not step.done.any()
        np.testing.assert_allclose(step.metrics["pose_error"], 1000 * expected / number, rtol=5e-3, atol=0.1)


def test_an_evaluation_rewards_style_where_a_discriminator_judges_it() -> None:
    free, judged = (make_speed([walk_clip()], 8, evaluation=True, discriminate=d) for d in ("nothing", "motion"))
    for env in (free, judged):
        env.reset(0)
    speed, both = (env.step(random_actions(env, 1, 0.5)[0]) for env in (free, judged))
    assert "pose_error" not in speed.metrics
    style = np.exp(-100 * (both.metrics["pose_error"].double().numpy() / 1000) ** 2)  # of the one step so far
    np.testing.assert_allclose(both.reward, (speed.reward.numpy() + style) / 2, rtol=1e-4)
    assert np.abs(style - speed.reward.numpy()).max() > 0.01  # else nothing is told apart


@pytest.mark.parametrize(
    ("preset", "setting", "told"),
    [
        (
            "humanoid-amp",
            {"env.termination": 0.2},
            r"--env\.termination: with --env\.goal speed no clip is followed",
        ),
        ("humanoid-amp", {"env.reward.pose": 0.2}, r"with --env\.goal speed"),
        ("humanoid-mimic", {"env.speed": (1.0, 2.0)}, r"--env\.speed: it is of --env\.goal speed"),
        ("humanoid-mimic", {"env.window": 5}, r"--env\.window: it is of --env\.discriminate motion"),
    ],
)
def test_settings_that_do_nothing_are_refused(preset: str, setting: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        apply_overrides(find_preset(preset).config, setting)
