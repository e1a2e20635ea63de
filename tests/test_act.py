"""A policy acts on what an environment observes, in the form that the environment takes, alone or for a batch."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

import ludus
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.errors import LudusError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_actor_critic, policy_from
from ludus.policies.policy import Policy
from ludus.show.console import Console

IMAGE = spaces.Box(0, 255, (9, 10, 3), np.uint8)
OBSERVATIONS: dict[str, gym.Space] = {
    "discrete": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "bits": spaces.MultiBinary(3),
    "vector": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "matrix": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "image": IMAGE,
    "dict": spaces.Dict(
        {"camera": IMAGE, "kind": spaces.Discrete(4), "pose": spaces.Box(-1.0, 1.0, (2,), np.float32)}
    ),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]),
}
ACTIONS: dict[str, gym.Space] = {
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "matrix of choices": spaces.MultiDiscrete(np.array([[3, 4], [2, 5]])),
    "bits": spaces.MultiBinary(4),
    "vector": spaces.Box(-2.0, 1.0, (2,), np.float32),
    "matrix": spaces.Box(-2.0, 1.0, (2, 3), np.float64),
    "integers": spaces.Box(0, 9, (2,), np.int64),
    "dict": spaces.Dict({"arm": spaces.Box(-1.0, 1.0, (2,), np.float32), "grip": spaces.Discrete(2)}),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]),
}


class AnySpaces(gym.Env):
    """Observes at random, and insists on actions of its own space."""

    def __init__(self, obs: str, action: str) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[obs], ACTIONS[action]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 0.0, False, False, {}


def policy_for(obs: str, action: str) -> Policy:
    """As a checkpoint gives it back."""
    env = make_gym(GymConfig("test_act:AnySpaces", kwargs={"obs": obs, "action": action}), 1)
    policy = make_actor_critic(env, PolicyConfig(hidden=(8,), image_features=8, initial_std=3.0), seed=0)
    loaded = policy_from(policy.description())
    loaded.load_state_dict(policy.state_dict())
    env.close()
    return loaded


PAIRS = [(obs, "discrete") for obs in OBSERVATIONS] + [("vector", action) for action in ACTIONS]


@pytest.mark.parametrize(("obs", "action"), PAIRS)
def test_a_policy_plays_in_the_environment_itself(obs: str, action: str) -> None:
    policy, env = policy_for(obs, action), AnySpaces(obs, action)
    seen, _ = env.reset(seed=0)
    for deterministic in (True, False, False):
        seen, *_ = env.step(policy.act(seen, deterministic))


@pytest.mark.parametrize(("obs", "action"), PAIRS)
def test_a_policy_plays_in_a_vector_environment(obs: str, action: str) -> None:
    policy, envs = policy_for(obs, action), SyncVectorEnv([lambda: AnySpaces(obs, action)] * 3)
    seen, _ = envs.reset(seed=0)
    for _ in range(3):
        seen, *_ = envs.step(policy.act(seen))


@pytest.mark.parametrize("obs", ["dict", "tuple"])
def test_a_list_of_observations_gives_a_list_of_actions(obs: str) -> None:
    policy = policy_for(obs, "dict")
    seen = [OBSERVATIONS[obs].sample() for _ in range(3)]
    together, apart = policy.act(seen), [policy.act(one) for one in seen]
    assert isinstance(together, list)
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one["arm"], other["arm"], rtol=1e-5)
        assert one["grip"] == other["grip"]


def test_whole_numbers_are_choices_and_floats_are_rows() -> None:
    policy = policy_for("discrete", "discrete")
    batch = policy.act(np.arange(-2, 3))
    assert batch.tolist() == [policy.act(choice) for choice in range(-2, 3)]
    assert batch.tolist() == policy.act(np.eye(5, dtype=np.float32)).tolist()
    assert batch.tolist() == policy.act(torch.eye(5)).tolist()
    assert type(policy.act(0)) is int
    with pytest.raises(LudusError, match=r"does not fit Discrete\(5, start=-2\): 3 is not in it"):
        policy.act(3)


def test_a_policy_saved_before_it_knew_its_environments_spaces_is_readable() -> None:
    new = policy_for("discrete", "bits")
    description = new.description()
    assert [description[k]["kind"] for k in ("obs_space", "action_space")] == ["ChoiceRow", "FlatChoices"]
    box = {"kind": "Box", "shape": [5], "dtype": "float32", "low": ["0.0"] * 5, "high": ["1.0"] * 5}
    choices = {"kind": "MultiDiscrete", "nvec": [2] * 4, "start": [0] * 4}
    old = policy_from({**description, "obs_space": box, "action_space": choices})
    old.load_state_dict(new.state_dict())
    assert old.act(np.eye(5, dtype=np.float32)).tolist() == new.act(np.arange(-2, 3)).tolist()
    with pytest.raises(LudusError, match="rows of"):
        old.act(1)


def test_a_trained_policy_takes_a_number_in_frozen_lake(tmp_path: Path) -> None:
    small = {"total_steps": 256, "env.num_envs": 2, "ppo.horizon": 32, "log.report": False, "eval.episodes": 2}
    small |= {"eval.final_episodes": 0, "log.tensorboard": False}
    run = ludus.train("gym:FrozenLake-v1", tmp_path / "run", console=Console("quiet"), overrides=small)
    env = gym.make("FrozenLake-v1")
    obs, _ = env.reset(seed=0)
    env.step(run.policy().act(obs))
    assert run.policy().act(obs) in range(4)
