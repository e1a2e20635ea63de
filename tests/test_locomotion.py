"""The locomotion tasks are Gymnasium's, step by step, and keep the contract of an environment."""

import io
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import ludus
from ludus.envs.locomotion.config import LocomotionConfig
from ludus.envs.locomotion.task import TASKS, LocomotionTask, make_locomotion
from ludus.envs.mujoco.simulator import CpuSimulator
from ludus.envs.mujoco.task import ALL_ROWS, Score
from ludus.envs.vec import Step
from ludus.errors import ConfigError
from ludus.show.console import Console

GYMNASIUM = {
    "half-cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker2d": "Walker2d-v5",
    "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
}
every_task = pytest.mark.parametrize("task", sorted(TASKS))


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings into a file where it runs


def make(task: str, num_envs: int = 3, max_steps: int = 1000, threads: int = 2) -> LocomotionTask:
    env = make_locomotion(LocomotionConfig(task=task, max_steps=max_steps), num_envs, threads)
    assert isinstance(env, LocomotionTask)
    return env


def make_gymnasium(task: str) -> Any:
    return gym.make(GYMNASIUM[task]).unwrapped


def random_actions(env: LocomotionTask, steps: int, seed: int = 0) -> Tensor:
    """[steps, rows, action] float32, uniform in the action space."""
    space = env.action_space
    assert isinstance(space, gym.spaces.Box)
    unit = torch.rand((steps, env.num_rows, *space.shape), generator=torch.Generator().manual_seed(seed))
    return torch.as_tensor(space.low) + torch.as_tensor(space.high - space.low) * unit


def start_gymnasium(reference: Any, env: LocomotionTask, row: int) -> np.ndarray:
    """Put the reference into the state of `env`'s row; its observation."""
    reference.reset()
    reference.set_state(env.sim.field("qpos")[row].numpy(), env.sim.field("qvel")[row].numpy())
    return reference._get_obs()


def assert_steps_equal(one: Step, two: Step, rows: slice = slice(None)) -> None:
    for a, b in zip(one[:5], two[:5], strict=True):
        assert torch.equal(a[rows], b[rows])
    for name in one.metrics:
        assert torch.equal(one.metrics[name][rows], two.metrics[name][rows])


def record_scores(env: LocomotionTask) -> list[Score]:
    """The scores of the coming steps, in float64 before the contract's cast to float32."""
    scores: list[Score] = []
    score = env.score
    env.score = lambda: scores.append(score()) or scores[-1]  # type: ignore[method-assign,func-returns-value]
    return scores


@every_task
def test_every_step_equals_gymnasium(task: str) -> None:
    env = make(task, max_steps=90)  # HalfCheetah ends no episode itself
    references = [make_gymnasium(task) for _ in range(env.num_rows)]
    assert env.action_space == references[0].action_space
    assert env.obs_space.shape == references[0].observation_space.shape
    first = env.reset(seed=1).numpy()
    for row, reference in enumerate(references):
        assert np.array_equal(first[row], start_gymnasium(reference, env, row).astype(np.float32))
    scores = record_scores(env)
    ends = contacts = 0
    for action in random_actions(env, 250):
        step = env.step(action)
        for row, reference in enumerate(references):
            # As float64: in float32 Gymnasium would round the cost of control.
            obs, reward, terminated, _, info = reference.step(action[row].numpy().astype(np.float64))
            contacts += "reward_contact" in info and info["reward_contact"] < 0
            assert np.array_equal(step.final_obs[row].numpy(), obs.astype(np.float32))
            assert abs(scores[-1].reward[row].item() - float(reward)) < 1e-11
            assert bool(step.terminated[row]) == terminated
            assert step.metrics["x_position"][row].item() == np.float32(info["x_position"])
            if step.done[row]:
                ends += 1
                fresh = start_gymnasium(reference, env, row).astype(np.float32)
                assert np.array_equal(step.obs[row].numpy(), fresh)
    assert ends >= 6
    assert contacts > 50 or task not in ("ant", "humanoid")
    env.close()


@every_task
def test_first_states_are_distributed_as_gymnasiums(task: str) -> None:
    env = make(task, num_envs=500)
    env.reset(seed=0)
    reference = make_gymnasium(task)
    reference.reset(seed=0)
    theirs: dict[str, list[np.ndarray]] = {"qpos": [], "qvel": []}
    for _ in range(500):
        reference.reset()
        for name, values in theirs.items():
            values.append(getattr(reference.data, name).copy())
    for name, center in (("qpos", reference.init_qpos), ("qvel", reference.init_qvel)):
        ours = (env.sim.field(name).numpy() - center).ravel()
        gymnasiums = (np.stack(theirs[name]) - center).ravel()
        scale = TASKS[task].reset_noise
        gaussian = np.abs(gymnasiums).max() > 1.01 * scale
        assert gaussian == (np.abs(ours).max() > 1.01 * scale)
        assert abs(ours.mean()) < 0.03 * scale
        assert ours.std() == pytest.approx(gymnasiums.std(), rel=0.05)
        # Fourth moments tell a normal (3) from a uniform (1.8).
        kurtosis = [np.mean(x**4) / np.mean(x**2) ** 2 for x in (ours, gymnasiums)]
        assert kurtosis[0] == pytest.approx(kurtosis[1], abs=0.25)
    env.close()


def test_an_episode_is_truncated_after_max_steps() -> None:
    env = make("half-cheetah", max_steps=5)
    env.reset(seed=0)
    steps = [env.step(action) for action in random_actions(env, 12)]
    assert [bool(s.truncated.all()) for s in steps] == [(t + 1) % 5 == 0 for t in range(12)]
    assert not any(bool(s.terminated.any()) for s in steps)
    env.close()


@every_task
def test_a_loaded_state_continues_bit_equal(task: str) -> None:
    env, other = make(task, max_steps=40), make(task, max_steps=40, threads=1)
    env.reset(seed=3)
    other.reset(seed=99)
    actions = random_actions(env, 130)
    for action in actions[:50]:
        env.step(action)
    other.load_state(env.state())
    for action in actions[50:]:
        assert_steps_equal(env.step(action), other.step(action))
    env.close()
    other.close()


@every_task
def test_begin_and_end_step_equal_step(task: str) -> None:
    env, other = make(task), make(task)
    assert torch.equal(env.reset(seed=4), other.reset(seed=4))
    for action in random_actions(env, 40):
        env.begin_step(action)
        assert_steps_equal(env.end_step(), other.step(action))
    env.close()
    other.close()


@every_task
def test_a_row_does_not_depend_on_the_others(task: str) -> None:
    env, alone = make(task, num_envs=5), make(task, num_envs=1)
    env.reset(seed=5)
    alone.reset(seed=5)
    for name in ("qpos", "qvel"):
        alone.sim.field(name)[0] = env.sim.field(name)[3]
    alone.sim.forward()
    alone.memory.update(alone.begun(ALL_ROWS))
    for action in random_actions(env, 100):
        step, single = env.step(action), alone.step(action[3:4])
        assert torch.equal(step.final_obs[3], single.final_obs[0])
        assert torch.equal(step.reward[3], single.reward[0])
        assert torch.equal(step.terminated[3], single.terminated[0])
        if step.done[3]:
            break
    env.close()
    alone.close()


@every_task
def test_a_diverged_simulation_is_truncated_and_restarted_alone(task: str) -> None:
    env, healthy = make(task, num_envs=4), make(task, num_envs=4)
    env.reset(seed=6)
    healthy.reset(seed=6)
    actions = random_actions(env, 6)
    for action in actions[:2]:
        before = env.step(action)
        healthy.step(action)
    env.sim.field("qvel")[1, 0] = torch.nan
    step, undisturbed = env.step(actions[2]), healthy.step(actions[2])
    assert step.truncated.tolist() == [False, True, False, False]
    assert step.metrics["diverged"].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert not step.terminated.any()
    assert step.reward[1] == 0.0
    assert torch.equal(step.final_obs[1], before.obs[1])  # the last one that meant something
    assert_steps_equal(step, undisturbed, slice(2, 4))
    for action in actions[3:]:  # the restarted row lives on
        step, undisturbed = env.step(action), healthy.step(action)
        assert not step.metrics["diverged"].any()
        assert not step.truncated.any()
        assert step.obs.isfinite().all()
        assert_steps_equal(step, undisturbed, slice(2, 4))
    env.close()
    healthy.close()


def test_an_unknown_task_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'HalfCheetah'.* Did you mean 'half-cheetah'\? The tasks are .*ant"):
        make_locomotion(LocomotionConfig(task="HalfCheetah"), 1, 1)


def test_loading_a_model_leaves_no_log_file_behind() -> None:
    make("half-cheetah").close()
    assert not Path("MUJOCO_LOG.TXT").exists()


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_simulations_that_lack_room_are_told_of_once(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As MuJoCo Warp counts them; here they are made up."""
    monkeypatch.setattr(CpuSimulator, "faults", lambda self: {"contact_overflow": 3.0, "constraint_overflow": 0.0})
    lacking = {"contact_overflow": "contacts", "constraint_overflow": "constraints"}
    advice = {name: f"simulations had no room for all their {what}." for name, what in lacking.items()}
    monkeypatch.setattr(CpuSimulator, "fault_advice", advice)
    settings = {
        "env.num_envs": 4, "env.max_steps": 10, "env.threads": 1, "groups": 1, "policy.hidden": (8,),
        "loop.total_steps": 96, "eval.every": 96, "eval.episodes": 1, "log.report": False,
    }  # fmt: skip
    rollout: dict[str, Any] = {"ppo.horizon": 8, "ppo.minibatches": 1}
    replay = {"replay.steps": 8, "replay.train_batches": 1, "replay.warmup": 8, "replay.capacity": 200}
    settings |= rollout if algo == "ppo" else replay
    output = io.StringIO()
    folder = ludus.train("hopper", "run", console=Console("plain", output), algo=algo, overrides=settings)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [row["rollout/contact_overflow"] for row in rows if "rollout/contact_overflow" in row]
    assert told == [3.0] * (3 if algo == "ppo" else 2)
    assert output.getvalue().count("3 simulations had no room for all their contacts") == 1
    assert "constraints" not in output.getvalue()
