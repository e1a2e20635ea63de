"""Learning something small and known, in seconds, through the whole system."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import ludus
from ludus.runs import evaluate_run
from ludus.show.console import Console


# Tasks whose best return is known -------------------------------------------------------------------
class OneStep(gym.Env):
    """Observes a target, is paid for the action that fits it, and ends."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.target = self.draw()
        return self.observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self.observation(), self.reward(action), True, False, {}

    def draw(self) -> np.ndarray:
        raise NotImplementedError

    def observation(self) -> np.ndarray:
        raise NotImplementedError

    def reward(self, action: Any) -> float:
        raise NotImplementedError


class Aim(OneStep):
    """Reward 1 − (squared distance of the action to the target); `scale` and `shift` disguise the target."""

    action_space = spaces.Box(np.array([-1, 0], np.float32), np.array([1, 6], np.float32))
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, scale: float = 1.0, shift: float = 0.0) -> None:
        self.scale, self.shift = scale, shift

    def draw(self) -> np.ndarray:
        return self.np_random.uniform([-0.8, 0.5], [0.8, 5.5])

    def observation(self) -> np.ndarray:
        return (self.shift + self.scale * self.target).astype(np.float32)

    def reward(self, action: np.ndarray) -> float:
        return 1.0 - float((((action - self.target) / [1.0, 3.0]) ** 2).sum())


class Match(OneStep):
    """Reward 1 for each of two choices that is the one observed."""

    action_space = spaces.MultiDiscrete([3, 4], start=[0, 2])
    observation_space = spaces.Box(0.0, 1.0, (7,), np.float32)

    def draw(self) -> np.ndarray:
        return self.np_random.integers([0, 2], [3, 6])

    def observation(self) -> np.ndarray:
        return np.concatenate([np.eye(3)[self.target[0]], np.eye(4)[self.target[1] - 2]]).astype(np.float32)

    def reward(self, action: np.ndarray) -> float:
        return float((np.asarray(action) == self.target).sum())


class Clock(gym.Env):
    """Reward 1 a step for ten steps, whatever is done; observes the time, which starts anew at the end."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    length = 10

    def __init__(self, end: str) -> None:
        self.end = end  # "terminated", "truncated", or "never": left to a time limit around it

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time == self.length
        return self.observation(), 1.0, over and self.end == "terminated", over and self.end == "truncated", {}

    def observation(self) -> np.ndarray:
        return np.array([self.time % self.length / self.length], np.float32)


for cls in (Aim, Match, Clock):
    gym.register(f"ludus-test/{cls.__name__}-v0", entry_point=f"{__name__}:{cls.__name__}")


def train(name: str, folder: Path, steps: int, **settings: Any) -> Path:
    preset = f"gym:{__name__}:ludus-test/{name}-v0" if name in ("Aim", "Match", "Clock") else f"gym:{name}"
    quiet = {"log.report": False, "log.tensorboard": False, "loop.total_steps": steps, "eval.every": steps}
    quiet |= {"eval.episodes": 1, "eval.stochastic": False, "eval.final_episodes": 0}  # a test measures by itself
    overrides = {**quiet, **{key.replace("__", "."): value for key, value in settings.items()}}
    return ludus.train(preset, folder, console=Console("quiet"), overrides=overrides)


ONE_STEP = {"env__num_envs": 32, "ppo__horizon": 16, "ppo__minibatches": 4, "ppo__learning_rate": 3e-3}


# Acting -----------------------------------------------------------------------------------------------
def test_a_gaussian_policy_learns_to_aim(tmp_path: Path) -> None:
    run = train("Aim", tmp_path / "run", 25_000, **ONE_STEP)
    result = evaluate_run(run, 200, deterministic=True)
    assert np.mean(result.returns) > 0.99  # of 1; a policy that ignores the target gets about 0.4
    assert np.mean(evaluate_run(run, 200, deterministic=False).returns) > 0.9  # it has become sure of itself


def test_a_multi_discrete_policy_learns_both_choices(tmp_path: Path) -> None:
    run = train("Match", tmp_path / "run", 20_000, **ONE_STEP)
    assert np.mean(evaluate_run(run, 200, deterministic=True).returns) > 1.98  # of 2; by chance 0.58


def test_a_categorical_policy_solves_cart_pole_in_40_000_steps(tmp_path: Path) -> None:
    run = train("CartPole-v1", tmp_path / "run", 40_000)
    result = evaluate_run(run, 20, deterministic=True)
    assert np.mean(result.returns) >= 475


@pytest.mark.parametrize(("scale", "shift"), [(1e3, 1e4), pytest.param(1e-3, 0.0, marks=pytest.mark.slow)])
def test_inputs_of_any_scale_are_learned_from_because_the_policy_normalises_them(
    tmp_path: Path, scale: float, shift: float
) -> None:
    run = train("Aim", tmp_path / "run", 25_000, env__kwargs={"scale": scale, "shift": shift}, **ONE_STEP)
    assert np.mean(evaluate_run(run, 200, deterministic=True).returns) > 0.99
    policy = ludus.load(run)
    assert policy.normalizer is not None
    mean = shift + scale * np.array([0.0, 3.0])
    spread = scale * np.array([1.6, 5.0]) / math.sqrt(12)
    np.testing.assert_allclose(policy.normalizer.mean.numpy(), mean, atol=0.05 * spread.max())
    variance = (policy.normalizer.m2 / policy.normalizer.count).numpy()
    np.testing.assert_allclose(np.sqrt(variance), spread, rtol=0.03)
    # All of it is inside the policy: raw observations in, actions in the environment's units out.
    target = np.array([[0.5, 1.0], [-0.5, 5.0]])
    action = policy.act((shift + scale * target).astype(np.float32))
    np.testing.assert_allclose(action, target, atol=0.15)


# Valuing ----------------------------------------------------------------------------------------------
GAMMA = 0.9
FOR_EVER = 1 / (1 - GAMMA)


@pytest.mark.parametrize("end", ["terminated", "truncated", pytest.param("never", marks=pytest.mark.slow)])
def test_a_time_limit_does_not_end_the_future_and_a_termination_does(tmp_path: Path, end: str) -> None:
    """Constant reward 1: behind a truncation lies as much again, 1 / (1 − γ); behind a termination nothing."""
    run = train(
        "Clock",
        tmp_path / "run",
        15_000,
        env__num_envs=16,
        env__kwargs={"end": end},
        env__max_steps=Clock.length,
        ppo__horizon=32,
        ppo__gamma=GAMMA,
        ppo__learning_rate=3e-3,
        ppo__value_coef=1.0,
        ppo__max_grad_norm=10.0,
        ppo__normalize_returns=False,
    )
    policy: Any = ludus.load(run)
    clock = torch.arange(Clock.length)
    with torch.no_grad():
        value = policy.value_of(policy.prepare(clock[:, None] / Clock.length), policy.start(len(clock)))
    if end == "terminated":
        expected = (1 - GAMMA ** (Clock.length - clock.double())) / (1 - GAMMA)
    else:
        expected = torch.full((Clock.length,), FOR_EVER, dtype=torch.float64)
    np.testing.assert_allclose(value.numpy(), expected.numpy(), atol=0.4)
