"""Numbers in an environment's infos become `env/…`: their means over an episode, and over episodes."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import ludus
from ludus.envs.gym.config import GymConfig, PettingZooConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.gym.infos import MOST_NAMES, InfoMeans
from ludus.envs.gym.pettingzoo import make_pettingzoo
from ludus.envs.vec import VecEnv
from ludus.show.console import Console
from stopped_runs import StopAfter

pettingzoo = pytest.importorskip("pettingzoo")
ALONE = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)


def told_at(step: int, over: bool) -> dict[str, Any]:
    """The infos of an episode: what they say is known."""
    info: dict[str, Any] = {"height": 2.0 * step, "up": np.bool_(step % 2), "name": "x", "place": np.ones(3)}
    info |= {"odd": math.nan if step == 1 else np.float32(step), "is_success": over, "_hidden": 1}
    return info | ({"score": 7} if over else {})


class Tells(gym.Env):
    """Episodes of 3, 4, 5, 3 … steps."""

    observation_space = action_space = ALONE
    length = 5

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.at = 3 + (self.length - 2) % 3, 0
        return np.zeros(1, np.float32), {"height": 100.0}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        over = self.at == self.length
        return np.zeros(1, np.float32), 0.0, over, False, told_at(self.at, over)


class Pair(pettingzoo.ParallelEnv):  # type: ignore[name-defined]
    """Two agents, of which one tells."""

    possible_agents = ["a", "b"]  # noqa: RUF012 (PettingZoo's own form)
    metadata = {"name": "pair"}  # noqa: RUF012

    def observation_space(self, agent: str) -> gym.Space:
        return ALONE

    action_space = observation_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.at = list(self.possible_agents), 0
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.at += 1
        over, agents = self.at == 3, self.agents
        self.agents = [] if over else agents
        nothing = dict.fromkeys(agents, 0.0)
        seen = {agent: np.zeros(1, np.float32) for agent in agents}
        ends, cut = dict.fromkeys(agents, over), dict.fromkeys(agents, False)
        return seen, nothing, ends, cut, {"a": told_at(self.at, over), "b": {}}


def play(env: VecEnv, steps: int) -> list[dict[str, float]]:
    """What the ended episodes told, in the order of steps and rows."""
    told = []
    for _ in range(steps):
        step = env.step(torch.zeros((env.num_rows, 1)))
        for row in step.done.nonzero().flatten().tolist():
            values = {name: float(values[row]) for name, values in step.metrics.items() if name.startswith("env/")}
            told.append({name: value for name, value in values.items() if value == value})
    return told


THREE = {"env/height": 4.0, "env/up": pytest.approx(2 / 3), "env/odd": 2.5, "env/score": 7.0}
FOUR = {"env/height": 5.0, "env/up": 0.5, "env/odd": 3.0, "env/score": 7.0}


@pytest.mark.parametrize("workers", [0, 2])
def test_numbers_are_averaged_over_an_episode(workers: int) -> None:
    env = make_gym(GymConfig("test_infos:Tells", workers=workers), 2)
    try:
        env.reset(0)
        assert play(env, 8) == [THREE, THREE, FOUR, FOUR]
        env.reset(0)
        assert play(env, 1) == []
        saved = env.state()
        rest = play(env, 7)
        env.load_state(saved)
        assert play(env, 7) == rest, "an episode that was saved in its middle"
    finally:
        env.close()


class InTurn(Tells):
    """Which of two numbers is told first, is asked for."""

    def __init__(self, first: str = "up") -> None:
        self.first = first

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        *rest, told = super().step(action)
        return *rest, {name: told[name] for name in sorted(("up", "height"), key=lambda n: n != self.first)}  # type: ignore[return-value]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_state_that_names_the_numbers_in_another_order_is_understood(workers: int) -> None:
    settings = [GymConfig("test_infos:InTurn", workers=workers, kwargs={"first": n}) for n in ("up", "height")]
    one, other = (make_gym(config, 1) for config in settings)
    try:
        for env in (one, other):
            env.reset(0)
            play(env, 1)
        other.load_state(one.state())
        assert play(other, 2) == [{name: THREE[name] for name in ("env/up", "env/height")}]
    finally:
        one.close()
        other.close()


def test_agents_of_pettingzoo_tell_each_its_own() -> None:
    env = make_pettingzoo(PettingZooConfig("test_infos:Pair"), 1)
    env.reset(0)
    assert play(env, 3) == [THREE, {}]
    env.close()


def test_the_number_of_names_is_bounded() -> None:
    means = InfoMeans(1)
    means.add(0, {f"n{i}": i for i in range(100)} | {3: 3.0, "x" * 100: 1.0, "big": 10**400, "inf": math.inf})
    assert means.names == [f"n{i}" for i in range(MOST_NAMES)]
    assert means.take(0) == list(range(MOST_NAMES))
    assert all(map(math.isnan, means.take(0))), "a new episode"
    for i in range(5_000):
        means.add(0, {f"at {i}": 1.0})
    assert len(means._columns) < 2_000
    means.add(0, {"n3": 5})
    assert means.take(0)[3] == 5


SAC = {
    "replay.steps": 10,
    "replay.warmup": 20,
    "replay.batch_size": 4,
    "replay.train_batches": 1,
    "policy.hidden": (8,),
}


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_run_has_them_in_training_and_evaluation_and_goes_on_exactly(algo: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env.num_envs": 2, "loop.total_steps": 40, "eval.every": 40, "eval.episodes": 3}
    settings |= {"log.tensorboard": False, "log.report": False, "eval.stochastic": False, "eval.final_episodes": 0}
    settings |= {"ppo.horizon": 5, "ppo.minibatches": 1} if algo == "ppo" else SAC
    quiet: dict[str, Any] = {"console": Console("quiet"), "overrides": settings, "algo": algo}
    whole = ludus.train(Tells, tmp_path / "whole", **quiet)
    cut = ludus.train(Tells, tmp_path / "cut", callbacks=[StopAfter(2)], **quiet)
    cut.resume(console=Console("quiet"))
    for run in (whole, cut):
        assert set(run.metrics["env/score"].values) == {7.0}
        assert run.metrics["eval/env/height"].values.tolist() == [pytest.approx(13 / 3)], "of 3, 3 and 4 steps"
    names = [name for name in whole.metrics if name.startswith("env/")]
    assert sorted(names) == ["env/height", "env/odd", "env/score", "env/up"]
    for name in names:
        assert cut.metrics[name].values.tolist() == whole.metrics[name].values.tolist()
