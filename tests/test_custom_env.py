"""A user's own batched environment, found by the name of its factory."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
from torch import Tensor

from ludus.envs import make_vec_env
from ludus.envs.check import check_env
from ludus.envs.config import VecConfig
from ludus.envs.custom import find_env_factory, make_custom
from ludus.envs.vec import State, Step, VecEnv
from ludus.errors import ConfigError, EnvError
from ludus.presets.custom import preset_for

CPU = torch.device("cpu")
told: dict[str, Any] = {}  # what the last factory was given


class Line(VecEnv):
    """Points on a line; two agents in each environment if asked for."""

    obs_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, num_envs: int, agents: int = 1, device: torch.device = CPU) -> None:
        self.name, self.device, self.agents_per_env = "line", device, agents
        self.num_rows = num_envs * agents

    def reset(self, seed: int) -> Tensor:
        self.rng = torch.Generator().manual_seed(seed)
        self.obs, self.count = torch.rand((self.num_rows, 1), generator=self.rng), 0
        return self.obs.clone()

    def begin_step(self, action: Tensor) -> None:
        self.action = action

    def end_step(self) -> Step:
        self.count += 1
        final = self.obs + 0.1 * self.action
        done = torch.full((self.num_rows,), self.count % 10 == 0)
        fresh = torch.rand((self.num_rows, 1), generator=self.rng) if self.count % 10 == 0 else final
        self.obs = fresh.clone()
        return Step(self.obs.clone(), final[:, 0].clone(), done & False, done, final, {})

    def state(self) -> State:
        return {"obs": self.obs.clone(), "count": self.count, "rng": self.rng.get_state()}

    def load_state(self, state: State) -> None:
        self.rng = torch.Generator()
        self.rng.set_state(state["rng"])
        self.obs, self.count = state["obs"].clone(), state["count"]


def plain(num_envs: int) -> VecEnv:
    told.clear()
    return Line(num_envs)


def curious(num_envs: int, *, device: torch.device, evaluation: bool = False, agents: int = 1) -> VecEnv:
    told.update(num_envs=num_envs, device=device, evaluation=evaluation, agents=agents)
    return Line(num_envs, agents, device)


def no_vec_env(num_envs: int) -> Any:
    return gym.make("CartPole-v1")


def bare(num_envs: int) -> VecEnv:
    env = Line(num_envs)
    del env.name, env.device
    return env


def changed(num_envs: int, what: str) -> VecEnv:
    env = Line(num_envs)
    changes = {"obs": ("obs_space", gym.spaces.Discrete(3)), "action": ("action_space", gym.spaces.MultiBinary(3))}
    setattr(env, *changes.get(what, ("num_rows", 7)))
    return env


def broken(num_envs: int) -> VecEnv:
    raise TypeError("the simulator is gone")


def refused(num_envs: int) -> VecEnv:
    raise ConfigError("There is no such scene.")


NOT_CALLABLE = 3


def make(name: str, num_envs: int = 4, evaluation: bool = False, **kwargs: Any) -> VecEnv:
    return make_custom(VecConfig(f"{__name__}:{name}", kwargs=kwargs), num_envs, "cpu", evaluation)


@pytest.mark.parametrize("name", ["plain", "curious", "Line"])
def test_a_function_or_class_makes_the_environment(name: str) -> None:
    findings = check_env(lambda num_envs: make(name, num_envs))
    assert [finding for finding in findings if finding.level != "ok"] == []


def test_a_factory_is_told_what_it_asks_for_and_no_more() -> None:
    make("plain")
    assert told == {}
    make("curious", 6, evaluation=True, agents=2)
    assert told == {"num_envs": 6, "device": CPU, "evaluation": True, "agents": 2}


def test_rows_are_environments_times_agents() -> None:
    env = make("curious", 3, agents=2)
    assert (env.num_rows, env.agents_per_env) == (6, 2)


def test_a_module_in_the_present_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_module.py").write_text(
        "import test_custom_env\n\ndef make_env(**given): return test_custom_env.plain(**given)"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert make_custom(VecConfig("my_own_module:make_env"), 2, CPU, False).num_rows == 2


def test_kwargs_can_be_given_as_flags() -> None:
    config = tyro.cli(VecConfig, args=["--factory", "my_module:make_env", "--kwargs", "agents", "2"])
    assert (config.factory, config.kwargs) == ("my_module:make_env", {"agents": 2})


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("", "Say which batched environment as 'module:callable'"),
        ("test_custom_env", "Say which batched environment as 'module:callable', not 'test_custom_env'"),
        ("no_such_module:make", "'no_such_module' cannot be found.*is it installed"),
        ("test_custom_env:plane", "has no 'plane'. Did you mean 'plain'"),
        ("test_custom_env:NOT_CALLABLE", "is a int; it must be a function or class"),
    ],
)
def test_a_wrong_name_is_refused_with_a_reason(factory: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_env_factory(factory)


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        (
            "plain",
            {"agents": 2},
            r"plain\(num_envs: int\).* cannot be called with num_envs, agents: got an unexpected",
        ),
        ("changed", {}, "missing a required argument: 'what'"),
        ("no_vec_env", {}, "must be a ludus.envs.vec.VecEnv"),
        ("bare", {}, "without name and device"),
        ("changed", {"what": "obs"}, r"obs_space is Discrete\(3\); it must be a Box"),
        ("changed", {"what": "action"}, r"action_space is MultiBinary\(3\); it must be a Box, Discrete or"),
        ("changed", {"what": "rows"}, "of 7 rows; 4 environments of 1 agents are 4"),
        ("refused", {}, "There is no such scene"),
    ],
)
def test_what_breaks_the_contract_is_refused_with_a_reason(
    name: str, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **kwargs)


def test_a_factory_that_raises_is_named() -> None:
    with pytest.raises(EnvError, match="broken could not be made: TypeError: the simulator is gone"):
        make("broken")


def test_no_environments_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        make_vec_env(VecConfig("test_custom_env:plain"), 0)


def test_any_factory_has_a_preset_and_a_wrong_name_none() -> None:
    preset = preset_for("test_custom_env:plain")
    assert preset.name == "vec:test_custom_env:plain"
    assert preset.config.env == VecConfig("test_custom_env:plain")
    with pytest.raises(ConfigError, match="Did you mean 'plain'"):
        preset_for("test_custom_env:plane")
