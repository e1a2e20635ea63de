"""Atari games: seen as usual, in this process and in workers."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

import ludus
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.errors import ConfigError

has_atari = all(importlib.util.find_spec(module) is not None for module in ("ale_py", "cv2"))
needs_atari = pytest.mark.skipif(not has_atari, reason="needs ludus[atari]")
PONG = "ALE/Pong-v5"


@needs_atari
@pytest.mark.parametrize("workers", [0, 2])
def test_four_grey_frames_are_seen(workers: int) -> None:
    env = make_gym(GymConfig(PONG, workers=workers), 2)
    assert env.obs_space.shape == (4, 84, 84)
    assert env.stacked_frames == 4
    obs = env.reset(0)
    for _ in range(3):
        step = env.step(torch.tensor([2, 3]))
    assert step.obs.dtype == torch.uint8
    assert not torch.equal(step.obs[0], obs[0])
    env.close()


@needs_atari
def test_who_sets_the_frame_skip_gets_the_emulator_as_it_is() -> None:
    env = make_gym(GymConfig(PONG, kwargs={"frameskip": 4}), 1)
    assert env.obs_space.shape == (210, 160, 3)


@needs_atari
def test_a_game_is_trained_and_resumed(tmp_path: Path) -> None:
    run = ludus.train(
        f"gym:{PONG}",
        tmp_path / "run",
        env={"num_envs": 2, "workers": 0, "max_steps": 40},
        policy={"image_features": 16},
        ppo={"horizon": 8, "minibatches": 2, "update_epochs": 1},
        loop={"total_steps": 64},
        eval={"every": 64, "episodes": 1},
        log={"report": False},
    )
    ludus.resume(run, overrides={"loop.total_steps": 128})
    policy = ludus.load(run)
    assert policy.act(np.zeros((4, 84, 84), np.uint8)) in range(6)


@pytest.mark.skipif(has_atari, reason="Atari is installed")
def test_without_the_packages_a_sentence_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[atari\]'"):
        make_gym(GymConfig(PONG), 1)
