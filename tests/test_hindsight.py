"""Hindsight experience replay: against a slow version, bit-equal after a stop, and worth its name."""

import importlib.util
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import ludus
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.hindsight import Hindsight, hindsight_warnings
from ludus.buffers.episodes import EpisodeStore, TransitionDraw
from ludus.envs import make_vec_env
from ludus.envs.abilities import goals_of
from ludus.envs.check import check_env
from ludus.envs.goals import Goals
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.kuka.config import KukaConfig
from ludus.envs.row_space import RowSpace
from ludus.errors import ConfigError, EnvError
from ludus.presets import find_preset
from ludus.show.console import Console
from stopped_runs import StopAfter, assert_same_run, metric_rows, resume

BOX = gym.spaces.Box(-9.0, 9.0, (2,), np.float32)
SPACE = RowSpace(gym.spaces.Dict(achieved_goal=BOX, desired_goal=BOX, observation=BOX))  # a row is in this order
ACTION = ((2,), torch.float32)
GAMMA, NEAR = 0.9, 0.4
BATCHES, BATCH = 12, 50

SMALL: dict[str, Any] = {
    "policy.hidden": (64, 64),
    "replay.batch_size": 128,
    "replay.capacity": 20_000,
    "replay.learning_rate": 1e-3,
    "replay.gamma": 0.95,
    "env.max_steps": 15,
    "eval.episodes": 50,
    "eval.stochastic": False,
    "eval.final_episodes": 0,
    "log.report": False,
}


def near(achieved: torch.Tensor, desired: torch.Tensor) -> torch.Tensor:
    return (achieved - desired).norm(dim=-1) < NEAR


def judged(ends: bool) -> Goals:
    return Goals(lambda a, d: near(a, d).float() - (a - d).abs().sum(-1), near if ends else None)


# Against a slow version -------------------------------------------------------------------------------
def filled_store() -> EpisodeStore:
    """More episodes than the ring can hold, and two open ones. Rows say of which episode and step they are."""
    random = np.random.default_rng(0)
    store = EpisodeStore({"obs": ((6,), torch.float32)}, ACTION, 90, 2, 12, "cpu")
    for number in range(30):
        steps = int(random.integers(1, 9))
        reward = torch.tensor(random.normal(size=steps), dtype=torch.float32)
        over = bool(random.random() < 0.5)
        store.add({"obs": rows(random, number, steps + 1)}, torch.zeros(steps, 2), reward, over)
    for lane, steps in enumerate((4, 7)):
        episode, here = rows(random, 100 + lane, steps + 1), slice(lane, lane + 1)
        store.begin(slice(0, 1), {"obs": episode[:1]}, here)
        for t in range(steps):
            store.append(torch.zeros(1, 2), torch.ones(1), {"obs": episode[t + 1 : t + 2]}, None, here)
    return store


def rows(random: np.random.Generator, number: int, count: int) -> torch.Tensor:
    goals = random.normal(size=(count, 2)).cumsum(0) * 0.5, np.repeat(random.normal(size=(1, 2)), count, 0)
    seen = np.stack([np.full(count, number), np.arange(count)], 1)
    return torch.tensor(np.concatenate([*goals, seen], 1), dtype=torch.float32)


def episodes_in(store: EpisodeStore) -> dict[int, tuple[int, int, bool]]:
    """Number of an episode → (first row, steps, terminated), found by looking at every row of the table."""
    found = {}
    for start, length, over in zip(
        store.start.tolist(), store.length.tolist(), store.terminated.tolist(), strict=True
    ):
        if length:
            found[int(store.obs["obs"][start, 4])] = (start, length, over)
    return found


def slow_judge(
    store: EpisodeStore, row: int, end: int, over: bool, goal: np.ndarray, n_step: int, ends: bool
) -> tuple[int, float, float]:
    """(next row, reward, discount) of a transition with another goal, step by step; `end` is the last row."""
    achieved, total, power = store.obs["obs"][:, :2].double().numpy(), 0.0, 1.0
    for _ in range(n_step):
        row += 1
        total += power * (
            float(np.linalg.norm(achieved[row] - goal) < NEAR) - float(np.abs(achieved[row] - goal).sum())
        )
        power *= GAMMA
        if ends and np.linalg.norm(achieved[row] - goal) < NEAR:
            return row, total, 0.0
        if row == end:
            return row, total, 0.0 if over else power
    return row, total, power


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_relabelled_transitions_are_those_of_a_slow_version(n_step: int, ends: bool) -> None:
    store, generator = filled_store(), torch.Generator().manual_seed(0)
    hindsight = Hindsight(judged(ends), SPACE, 0.8, BATCH)
    drawn = store.draw_transitions(BATCHES, BATCH, generator, n_step, GAMMA)
    made, goals = hindsight.relabel(store, drawn, n_step, GAMMA, generator)
    assert goals.shape == (BATCHES, 40, 2)
    for field in TransitionDraw._fields:  # the others stay as they were drawn
        assert torch.equal(getattr(made, field)[:, 40:], getattr(drawn, field)[:, 40:])
    assert torch.equal(made.row, drawn.row)
    episodes, all_obs = episodes_in(store), store.obs["obs"]
    assert len(episodes) > 10
    assert {100, 101} <= episodes.keys()
    ended = 0
    for batch in range(BATCHES):
        for i in range(40):
            row = int(made.row[batch, i])
            start, length, over = episodes[int(all_obs[row, 4])]
            goal = goals[batch, i]
            later = [r for r in range(row + 1, start + length + 1) if torch.equal(all_obs[r, :2], goal)]
            assert len(later) == 1  # which its own episode reached, after the action
            told = slow_judge(store, row, start + length, over, goal.double().numpy(), n_step, ends)
            assert int(made.next_row[batch, i]) == told[0]
            assert float(made.reward[batch, i]) == pytest.approx(told[1], abs=1e-5)
            assert float(made.discount[batch, i]) == pytest.approx(told[2], abs=1e-6)
            ended += told[2] == 0
    assert 0 < ended < BATCHES * 40


def test_every_later_step_is_as_likely_to_give_the_goal() -> None:
    store = EpisodeStore({"obs": ((6,), torch.float32)}, ACTION, 50, 0, 12, "cpu")
    store.add({"obs": rows(np.random.default_rng(1), 0, 6)}, torch.zeros(5, 2), torch.zeros(5), False)
    generator = torch.Generator().manual_seed(0)
    drawn = store.draw_transitions(1, 50_000, generator)
    later = store.draw_later(drawn, generator)[0]
    for t in range(5):
        of_step = later[drawn.row[0] == t]
        counts = torch.bincount(of_step, minlength=6)
        assert counts[: t + 1].sum() == 0
        expected = len(of_step) / (5 - t)
        assert ((counts[t + 1 :] - expected).abs() < 5 * expected**0.5).all()


def test_a_batch_shows_the_goal_before_and_after_and_nothing_else_changes() -> None:
    hindsight = Hindsight(judged(False), SPACE, 0.5, 4)
    obs = torch.arange(24.0).view(4, 6)
    shown = obs.clone()
    hindsight.show(shown, torch.full((2, 2), -1.0))
    assert torch.equal(shown[:2, 2:4], torch.full((2, 2), -1.0))
    kept = [0, 1, 4, 5]
    assert torch.equal(shown[:2, kept], obs[:2, kept])
    assert torch.equal(shown[2:], obs[2:])


# Environments -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("ends", ["", "one", "arrays"])
def test_an_environment_judges_its_own_goals_as_its_steps_do(ends: str) -> None:
    env = make_gym(GymConfig("goal_envs:Reach", kwargs={"ends": ends, "length": 40}), 4)
    assert_judges_its_steps(env, bool(ends))


def assert_judges_its_steps(env: Any, ends: bool, steps: int = 60) -> None:
    goals = goals_of(env)
    assert goals is not None
    assert (goals.ended is not None) == ends
    env.reset(0)
    torch.manual_seed(0)
    parts = {part.name: part for part in env.obs_space.parts}
    for _ in range(steps):
        step = env.step(torch.rand(env.num_rows, *env.action_space.shape) * 2 - 1)
        after = torch.where(step.done[:, None], step.final_obs, step.obs)
        pair = [env.obs_space.part_of(after, parts[name]) for name in ("achieved_goal", "desired_goal")]
        assert torch.equal(goals.reward(*pair), step.reward)
        if goals.ended is not None:
            assert torch.equal(goals.ended(*pair), step.terminated)
    env.close()


def test_the_kuka_judges_its_own_goals_as_its_steps_do() -> None:
    env = make_vec_env(KukaConfig(goals=True, num_envs=4, assist=1.0), 4)
    assert_judges_its_steps(env, ends=True, steps=30)


def test_the_kuka_is_a_goal_environment_of_gymnasium() -> None:
    env = gym.make("ludus/KukaPickPlace-v0", goals=True, assist=1.0)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    judge = env.get_wrapper_attr("compute_reward")
    obs, reward, terminated, _, info = env.step(env.action_space.sample())
    pair = obs["achieved_goal"], obs["desired_goal"]
    assert judge(*pair, info) == reward
    assert env.get_wrapper_attr("compute_terminated")(*pair, info) == terminated
    assert judge(*(np.stack([goal] * 3) for goal in pair), info).shape == (3,)
    assert judge(pair[1], pair[1], info) == 0
    env.close()


@pytest.mark.parametrize(("name", "level"), [("Reach", "ok"), ("Taxed", "warning")])
def test_check_compares_rewards_with_those_of_goals(name: str, level: str) -> None:
    env = make_gym(GymConfig(f"goal_envs:{name}", max_steps=15), 2)
    findings = check_env(env, steps=20)
    assert [found.level for found in findings if "compute_reward()" in found.what] == [level]


def test_a_wrapper_that_changes_rewards_around_what_judges_goals_is_named() -> None:
    env = make_gym(GymConfig("goal_envs:Raised", max_steps=15), 1)
    config = find_preset("gym:Pendulum-v1", algo="sac").config
    assert isinstance(config, ReplayTrainConfig)
    (told,) = hindsight_warnings(config, env)
    assert "Raised changes rewards" in told
    plain = make_gym(GymConfig("goal_envs:Reach", max_steps=15), 1)
    assert hindsight_warnings(config, plain) == ()


def test_the_kuka_has_no_goal_in_its_observation() -> None:
    env = make_vec_env(KukaConfig(goals=True, num_envs=1), 1)
    obs = env.reset(0)
    env.memory["goal"] += 0.1  # type: ignore[attr-defined]
    moved = env.observe(slice(None))  # type: ignore[attr-defined]
    assert torch.equal(moved[:, 8:], obs[:, 8:])
    assert not torch.equal(moved[:, 4:7], obs[:, 4:7])
    env.close()


# Trainings --------------------------------------------------------------------------------------------
def train(env: str, algo: str, folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    settings = SMALL | {name.replace("__", "."): value for name, value in changes.items()}
    return ludus.train(env, folder, callbacks, Console("quiet"), algo=algo, overrides=settings)


def success_of(folder: Path) -> float:
    return [row for row in metric_rows(folder) if "eval/success_rate" in row][-1]["eval/success_rate"]


BITS: dict[str, Any] = {"env.num_envs": 4, "env.kwargs": {"bits": 8}, "replay.warmup": 200, "replay.steps": 40}
BITS |= {"replay.train_batches": 20, "replay.train_target": 50, "dqn.epsilon_final": 0.2}
BITS |= {"loop.total_steps": 2_000, "loop.iterations": 50}


def test_dqn_flips_bits_with_hindsight_and_not_without(tmp_path: Path) -> None:
    """Of 256 goals chance reaches one in some thirty episodes."""
    flips = "gym:goal_envs:BitFlip"
    assert success_of(train(flips, "dqn", tmp_path / "with", **BITS)) > 0.8
    assert success_of(train(flips, "dqn", tmp_path / "without", **BITS | {"replay.her": 0.0})) < 0.3


STEER: dict[str, Any] = {"replay.warmup": 200, "replay.steps": 50, "replay.train_batches": 25, "env.num_envs": 5}
STEER |= {"loop.total_steps": 2_000, "loop.iterations": 40}
OWN: dict[str, dict[str, Any]] = {"sac": {"sac.alpha": 0.1}, "td3": {}}


@pytest.mark.parametrize("ends", ["", "one"])
@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_point_is_steered_to_any_goal(algo: str, ends: str, tmp_path: Path) -> None:
    changes = STEER | OWN[algo] | {"env.kwargs": {"ends": ends}}
    assert success_of(train("gym:goal_envs:Reach", algo, tmp_path / "run", **changes)) > 0.8


BRIEF: dict[str, Any] = {"policy.hidden": (8,), "policy.normalize_obs": True, "replay.warmup": 40}
BRIEF |= {"replay.batch_size": 8, "replay.steps": 40, "replay.train_batches": 4, "replay.capacity": 100}
BRIEF |= {"env.num_envs": 2, "loop.total_steps": 240, "loop.iterations": 3, "eval.episodes": 2}


def test_a_run_stopped_in_the_middle_equals_one_that_never_stopped(tmp_path: Path) -> None:
    changes = BRIEF | {"env.kwargs": {"ends": "arrays"}, "replay.n_step": 2}
    whole = train("gym:goal_envs:Reach", "sac", tmp_path / "whole", **changes)
    halves = train("gym:goal_envs:Reach", "sac", tmp_path / "halves", StopAfter(4), **changes)
    assert not (halves / "final").exists()
    resume(halves)
    assert_same_run(halves, whole)


def test_environments_in_worker_processes_learn_the_same(tmp_path: Path) -> None:
    made = [
        train("gym:goal_envs:Reach", "sac", tmp_path / str(workers), **BRIEF, env__workers=workers)
        for workers in (0, 1)
    ]
    here, there = (
        [row["train/critic_loss"] for row in metric_rows(run) if "train/critic_loss" in row] for run in made
    )
    assert here == there
    assert here


@pytest.mark.parametrize("algo", ["sac", "flash-sac"])
def test_hindsight_is_said(algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SMALL | BRIEF | {"loop.total_steps": 80, "policy.normalize_obs": False}
    ludus.train("gym:goal_envs:Reach", tmp_path / "run", algo=algo, overrides=settings)
    assert "HER: 6 of the 8 transitions" in capsys.readouterr().out


def test_one_return_an_episode_leaves_goals_as_they_are_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decomposed = {"reward.method": "rrd", "reward.rrd_batch_size": 8, "reward.rrd_sample_size": 4}
    settings = (
        SMALL
        | BRIEF
        | decomposed
        | {"episodic_reward": True, "loop.total_steps": 80, "policy.normalize_obs": False}
    )
    ludus.train("gym:goal_envs:Reach", tmp_path / "run", algo="flash-sac", overrides=settings)
    told = capsys.readouterr().out
    assert "HER is off with --episodic-reward" in told
    assert "HER: " not in told


# What cannot be ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("env", "changes", "told"),
    [
        ("gym:Pendulum-v1", {"replay.her": 0.5}, "Pendulum-v1 has none: a goal environment observes a Dict"),
        ("gym:goal_envs:NoJudge", {"replay.her": 0.5}, "has no compute_reward"),
        ("gym:goal_envs:Reach", {"replay.her": -0.5}, "is no share"),
        (
            "gym:goal_envs:Reach",
            {"replay.her": 0.5, "episodic_reward": True},
            "does not go with --episodic-reward",
        ),
        ("kuka-goals", {"env.image_size": 32}, "leave --env.image-size"),
    ],
)
def test_hindsight_without_goals_is_refused(env: str, changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        train(env, "sac", tmp_path / "run", **changes)


def test_goals_that_cannot_be_judged_at_once_are_told(tmp_path: Path) -> None:
    with pytest.raises(EnvError, match=r"compute_reward\(\) gave float64 of the shape \(\)"):
        train("gym:goal_envs:OneByOne", "sac", tmp_path / "run", **BRIEF)


def test_goals_without_a_judge_are_learned_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert metric_rows(train("gym:goal_envs:NoJudge", "sac", tmp_path / "run", **BRIEF))
    assert "observes goals, but has no compute_reward" in capsys.readouterr().out


# Gymnasium-Robotics -----------------------------------------------------------------------------------
has_robotics = importlib.util.find_spec("gymnasium_robotics") is not None
needs_robotics = pytest.mark.skipif(not has_robotics, reason="needs ludus[robotics]")


@needs_robotics
@pytest.mark.parametrize("name", ["FetchPickAndPlace-v4", "HandReach-v3", "PointMaze_UMaze-v3"])
def test_robots_judge_their_own_goals_as_their_steps_do(name: str) -> None:
    assert_judges_its_steps(make_gym(GymConfig(name), 2), ends=False, steps=3)


@needs_robotics
def test_a_maze_that_ends_says_so_of_other_goals() -> None:
    env = make_gym(GymConfig("PointMaze_UMaze-v3", kwargs={"continuing_task": False}), 1)
    goals = goals_of(env)
    assert goals is not None
    assert goals.ended is not None
    pair = torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.1, 0.1], [0.0, 0.0]])
    assert goals.ended(*pair).tolist() == [True, False]


@needs_robotics
def test_a_fetch_robot_goes_on_exactly_where_it_was_saved() -> None:
    one, two = (make_gym(GymConfig("FetchPush-v4"), 2) for _ in range(2))
    one.reset(0), two.reset(1)
    actions = torch.rand(6, 2, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    for action in actions[:3]:
        one.step(action)
    two.load_state(one.state())
    for action in actions[3:]:
        assert torch.equal(one.step(action).obs, two.step(action).obs)


@needs_robotics
def test_only_the_package_itself_is_mended() -> None:
    import gymnasium_robotics.utils.mujoco_utils as reader
    import mujoco

    make_gym(GymConfig("FetchReach-v4"), 1)
    hinge = mujoco.mjtJoint.mjJNT_HINGE
    works = np.int32(hinge) in (hinge,)
    assert (reader.mujoco is mujoco) == works
    assert np.int32(hinge) in (reader.mujoco.mjtJoint.mjJNT_HINGE,)
    assert reader.mujoco.mj_name2id is mujoco.mj_name2id


@pytest.mark.skipif(has_robotics, reason="Gymnasium-Robotics is installed")
def test_without_the_package_a_sentence_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[robotics\]'"):
        make_gym(GymConfig("FetchReach-v4"), 1)
