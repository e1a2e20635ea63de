"""`check_env` finds what is wrong with an environment and says how to repair it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import gym_test_envs  # noqa: F401 (registers the environments)
from ludus.envs import check
from ludus.envs.check import check_env
from ludus.envs.findings import Finding, format_findings
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.vec import State, Step, VecEnv


class Counting(VecEnv):
    """A faultless environment: counts to a random length. Subclasses break one rule each."""

    name = "counting"
    obs_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
    device = torch.device("cpu")

    def __init__(self, num_envs: int) -> None:
        self.num_rows = num_envs

    def reset(self, seed: int) -> Tensor:
        self.generator = torch.Generator().manual_seed(seed)
        self.obs = torch.rand((self.num_rows, 2), generator=self.generator)
        self.count = 0
        return self.obs.clone()

    def begin_step(self, action: Tensor) -> None:
        self.action = action

    def end_step(self) -> Step:
        self.count += 1
        self.obs = self.obs + 0.1 * self.action
        final_obs, done = self.obs.clone(), torch.full((self.num_rows,), self.count % 10 == 0)
        if self.count % 10 == 0:
            self.obs = torch.rand((self.num_rows, 2), generator=self.generator)
        nobody = torch.zeros(self.num_rows, dtype=torch.bool)
        return Step(self.obs.clone(), final_obs[:, 0].clone(), nobody, done, final_obs, {})

    def state(self) -> State:
        return {"obs": self.obs.clone(), "count": self.count, "rng": self.generator.get_state()}

    def load_state(self, state: State) -> None:
        self.generator = torch.Generator()
        self.generator.set_state(state["rng"])
        self.obs, self.count = state["obs"].clone(), state["count"]


class DoubleReward(Counting):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(reward=step.reward.double())


class FlatObs(Counting):
    def reset(self, seed: int) -> Tensor:
        return super().reset(seed)[:, 0]


class BothFlags(Counting):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(terminated=step.truncated)


class ForgottenFinal(Counting):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(final_obs=step.obs)


class OneBuffer(Counting):
    buffer: Tensor | None = None

    def end_step(self) -> Step:
        step = super().end_step()
        self.buffer = step.obs if self.buffer is None else self.buffer.copy_(step.obs)
        return step._replace(obs=self.buffer)


class Unseeded(Counting):
    def reset(self, seed: int) -> Tensor:
        return super().reset(int(torch.randint(10**6, (1,))))


class AlwaysTheSameStart(Counting):
    def reset(self, seed: int) -> Tensor:
        return super().reset(0)


class Entangled(Counting):
    def begin_step(self, action: Tensor) -> None:
        super().begin_step(action + action[0])


class ForgottenRandomness(Counting):
    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.generator.manual_seed(0)


class PickledState(Counting):
    def state(self) -> State:
        return {**super().state(), "memory": [{"deep": np.zeros(3)}]}


class NanReward(Counting):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(reward=step.reward * np.nan)


class Crash(Counting):
    def end_step(self) -> Step:
        raise ZeroDivisionError("no wheels")


class Constant(Counting):
    def end_step(self) -> Step:
        step = super().end_step()
        return step._replace(obs=torch.zeros_like(step.obs))


def problems(env: Any, **options: Any) -> list[Finding]:
    return [finding for finding in check_env(env, **options) if finding.level != "ok"]


def test_a_faultless_environment_has_no_problems() -> None:
    assert problems(Counting) == []
    assert problems(Counting(3)) == []


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_gymnasiums_classics_have_no_problems_in_process_and_in_workers(env_id: str) -> None:
    assert problems(lambda n: make_gym(GymConfig(env_id), n)) == []
    assert problems(lambda n: make_gym(GymConfig(env_id, workers=2), n), steps=60) == []


@pytest.mark.parametrize(
    ("cls", "level", "what"),
    [
        (DoubleReward, "error", "Step.reward is torch.float64 [4]; the contract says torch.float32 [4]"),
        (FlatObs, "error", "What reset() returns is torch.float32 [4]"),
        (BothFlags, "error", "terminated and truncated at once"),
        (ForgottenFinal, "warning", "final_obs equals the new episode's first observation"),
        (OneBuffer, "error", "Later steps change the tensors of earlier ones"),
        (Unseeded, "error", "The same seed and actions give another trajectory"),
        (AlwaysTheSameStart, "warning", "Every seed gives the same first observations"),
        (Entangled, "error", "The actions of one environment change what another observes"),
        (ForgottenRandomness, "warning", "A resumed run differs from step"),
        (PickledState, "error", "state['memory'][0]['deep'] (ndarray) cannot be in a checkpoint"),
        (NanReward, "error", "A reward is NaN or infinite"),
        (Crash, "error", "It raised ZeroDivisionError: no wheels"),
        (Constant, "warning", "The observation never changes"),
    ],
)
def test_each_broken_rule_is_found_and_comes_with_a_remedy(cls: type[VecEnv], level: str, what: str) -> None:
    found = [finding for finding in problems(cls) if what in finding.what]
    assert [finding.level for finding in found] == [level]
    assert found[0].fix.endswith(".")


def test_a_wild_gymnasium_environment_gets_all_the_warnings_it_deserves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check, "LONG_EPISODE", 300)
    text = format_findings(check_env(lambda n: make_gym(GymConfig("ludus-test/Wild-v0"), n)))
    for part in (
        "infinite bounds",
        "outside the space",
        "Rewards reach ±1e+06",
        "No episode ended in 300 steps",
        "time limit (max_steps)",
        "another trajectory",
        "Every seed gives the same first observations",
        "change what another observes",
        "observation normaliser",
    ):
        assert part in text, text


def test_an_environment_that_raises_is_one_finding_and_no_exception() -> None:
    kwargs: dict[str, Any] = {"script": {"3": "raise"}}
    config = GymConfig("ludus-test/Scripted-v0", kwargs=kwargs)
    (finding,) = problems(lambda n: make_gym(config, n))
    assert "the gripper fell off" in finding.what


def test_groups_made_by_a_factory_are_closed_and_a_given_group_is_not() -> None:
    closed: list[Counting] = []

    class Closing(Counting):
        def close(self) -> None:
            closed.append(self)

    check_env(Closing)
    assert len(closed) == 3
    check_env(Closing(2))
    assert len(closed) == 3


def test_the_text_has_a_line_a_finding_the_remedy_below_and_a_count() -> None:
    findings = [Finding("ok", "Fine."), Finding("error", "Broken.", "Repair it.")]
    lines = format_findings(findings).splitlines()
    assert lines == [
        "ok       Fine.",
        "error    Broken.",
        "         → Repair it.",
        "1 error, 0 warnings, 1 fine",
    ]
