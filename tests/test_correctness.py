"""What was wrong at the edges, one test a finding: it fails where the finding comes back."""

from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces

import ludus
from ludus.errors import ConfigError


# Actions keep the numbers of their space ------------------------------------------------------------
@pytest.mark.parametrize(("kind", "lowest", "highest"), [("offset", 5, 7), ("multi", [1, 2], [3, 5])])
def test_correctness_02_act_keeps_the_start_of_a_discrete_space(
    kind: str, lowest: int | list[int], highest: int | list[int], tmp_path: Path
) -> None:
    run = ludus.train(
        "gym:gym_test_envs:ludus-test/Echo-v0",
        run_dir=tmp_path / "run",
        env={"kwargs": {"kind": kind}, "max_steps": 4, "num_envs": 2},
        ppo={"horizon": 4, "minibatches": 1, "update_epochs": 1},
        total_steps=8,
        eval={"episodes": 1},
        log={"tensorboard": False, "report": False},
    )
    policy = ludus.load(run)
    env = gym.make("gym_test_envs:ludus-test/Echo-v0", kind=kind)
    obs = spaces.flatten(env.observation_space, env.reset(seed=0)[0])
    actor = policy.actor(deterministic=False, generator=torch.Generator().manual_seed(0))
    seen = np.stack([actor.act(obs.astype(np.float32)) for _ in range(60)])
    assert seen.min(0).tolist() == lowest
    assert seen.max(0).tolist() == highest
    assert env.action_space.contains(policy.act(obs.astype(np.float32)))


def record(path: Path, actions: list[int]) -> Path:
    """Two episodes in D4RL's layout."""
    steps = len(actions)
    last = np.arange(steps) % (steps // 2) == steps // 2 - 1
    with h5py.File(path, "w") as file:
        file["observations"] = np.eye(8, dtype=np.float32)[np.arange(steps) % 8]
        file["actions"] = np.array(actions)
        file["rewards"] = np.arange(steps, dtype=np.float32)
        file["terminals"], file["timeouts"] = last, np.zeros(steps, bool)
    return path


def train_offline(data: Path, run: Path) -> Path:
    return ludus.train(
        "gym:gym_test_envs:ludus-test/Echo-v0",
        run_dir=run,
        algo="dqn",
        env={"kwargs": {"kind": "offset"}, "max_steps": 4},
        data=str(data),
        replay={"train_batches": 4, "batch_size": 8},
        loop={"total_steps": 8, "iterations": 1},
        eval={"episodes": 1, "every": 8},
        policy={"hidden": (8,)},
        log={"tensorboard": False, "report": False},
    )


def test_correctness_02_offline_dqn_reads_recorded_actions_by_the_numbers_of_the_space(tmp_path: Path) -> None:
    train_offline(record(tmp_path / "good.hdf5", [5, 6, 7, 5, 6, 7, 6, 6]), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"A recorded action is 0, which is none of Discrete\(3, start=5\)\."):
        train_offline(record(tmp_path / "bad.hdf5", [0, 1, 2, 0, 1, 2, 1, 7]), tmp_path / "other")
