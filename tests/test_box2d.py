"""Gymnasium's environments on Box2D: trained, saved, resumed and evaluated. What is not exact is said."""

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import ludus
from ludus.envs.check import check_env
from ludus.envs.findings import format_findings
from ludus.envs.gym import block as gym_block
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.vec import VecEnv
from ludus.runs import evaluate_run
from ludus.show.console import Console

pytest.importorskip("Box2D", reason="needs the extra ludus[box2d]")

INEXACT = (
    r"cannot be saved exactly \(its \w+ is a part of Box2D, which cannot be read exactly\): its episodes restart"
)


def zeros(env: VecEnv) -> torch.Tensor:
    dtype = torch.float32 if env.action_space.shape else torch.int64
    return torch.zeros((env.num_rows, *(env.action_space.shape or ())), dtype=dtype)


@pytest.mark.parametrize("env_id", ["LunarLander-v3", "BipedalWalker-v3", "CarRacing-v3"])
def test_correctness_06_a_box2d_world_is_saved_as_lost_and_says_so_once(env_id: str) -> None:
    gym_block._told.clear()
    env = make_gym(GymConfig(env_id), 1)
    env.reset(0)
    last = env.step(zeros(env))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        state = env.state()
        env.state()
        env.load_state(state)
    (warning,) = [w for w in caught if w.category is RuntimeWarning]
    assert re.search(f"gym:{env_id} {INEXACT}", str(warning.message))
    step = env.step(zeros(env))
    assert step.truncated.all()
    assert torch.equal(step.final_obs, last.obs)
    assert not env.step(zeros(env)).done.any()
    env.close()


def test_correctness_06_the_check_says_what_is_true_of_lunar_lander() -> None:
    findings = check_env(lambda num_envs: make_gym(GymConfig("LunarLander-v3"), num_envs), steps=60)
    text = format_findings(findings)
    assert "Episodes restart on resume: its world is a part of Box2D" in text
    assert "Training, saving and resuming work" in text
    assert not [finding for finding in findings if finding.level == "error"]


SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "policy.hidden": (8,),
    "ppo.horizon": 4,
    "ppo.minibatches": 1,
    "ppo.update_epochs": 1,
    "eval.episodes": 1,
    "eval.every": 8,
    "eval.max_steps": 5,
    "eval.stochastic": False,
    "log.report": False,
    "log.tensorboard": False,
}


@pytest.mark.parametrize(
    ("env_id", "workers"),
    [("LunarLander-v3", 0), ("LunarLander-v3", 1), ("BipedalWalker-v3", 0), ("CarRacing-v3", 0)],
)
def test_correctness_06_box2d_environments_train_are_saved_resumed_and_evaluated(
    env_id: str, workers: int, tmp_path: Path
) -> None:
    gym_block._told.clear()
    settings = SMALL | {"env.workers": workers, "loop.total_steps": 8}
    with pytest.warns(RuntimeWarning, match=INEXACT):
        run = ludus.train(f"gym:{env_id}", run_dir=tmp_path / "run", console=Console("plain"), overrides=settings)
    ludus.resume(run, console=Console("plain"), overrides={"loop.total_steps": 16})
    assert (run / "checkpoints" / "step_000000016").is_dir()
    assert len(evaluate_run(run, 1, deterministic=True).returns) == 1
