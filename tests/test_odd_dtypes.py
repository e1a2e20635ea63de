"""Observations of types that nobody expects: every number arrives in the row, and a policy acts on it."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.row_space import RowSpace
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.spaces import describe_space, space_from

DTYPES = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool",
          "float16", "float32", "float64"]  # fmt: skip
FORMS = ["vector", "scalar", "matrix", "grid", "dict", "beside an image"]
SHAPES = {"scalar": (), "matrix": (2, 3), "grid": (2, 2, 2, 2)}


def box_of(dtype: str, shape: tuple[int, ...]) -> spaces.Box:
    if dtype == "bool":
        return spaces.Box(0, 1, shape, np.bool_)  # type: ignore[arg-type]
    if np.dtype(dtype).kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.dtype(dtype).type)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, shape, np.dtype(dtype).type)


def numbers(dtype: str, shape: tuple[int, ...], time: int) -> np.ndarray:
    """The least and largest, and some between; of floats one that float32 cannot hold exactly."""
    if np.dtype(dtype).kind == "f":
        some: list[Any] = [-1.5, 0.1, 1e-3, 1234.5, 60_000.0, 0.0]
    elif dtype == "bool":
        some = [True, False, True, True, False, True]
    else:
        limits = np.iinfo(dtype)
        some = [limits.min, limits.max, 1, limits.max // 3, limits.min // 2, 7]
    count = int(np.prod(shape))
    return np.array([some[(i + time) % len(some)] for i in range(count)], dtype).reshape(shape)


class Odd(gym.Env):
    def __init__(self, dtype: str, form: str) -> None:
        self.dtype, self.form = dtype, form
        self.shape = SHAPES.get(form, (5,))
        self.odd, self.action_space = box_of(dtype, self.shape), spaces.Discrete(2)
        parts: dict[str, gym.Space] = {"odd": self.odd, "plain": spaces.Box(-1, 1, (2,), np.float32)}
        if form == "beside an image":
            parts["image"] = spaces.Box(0, 255, (8, 9, 3), np.uint8)
        self.observation_space = spaces.Dict(parts) if form in ("dict", "beside an image") else self.odd

    def obs(self) -> Any:
        odd: Any = numbers(self.dtype, self.shape, self.time)
        if not isinstance(self.observation_space, spaces.Dict):
            return odd
        parts = {"odd": odd, "plain": np.array([0.25, -0.5], np.float32)}
        if "image" in self.observation_space.spaces:
            parts["image"] = np.full((8, 9, 3), 200, np.uint8)
        return parts

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.obs(), 0.0, False, False, {}


gym.register("ludus-test/Odd-v0", entry_point=Odd)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_any_type_arrive(dtype: str, form: str) -> None:
    env = make_gym(GymConfig("ludus-test/Odd-v0", 2, 0, kwargs={"dtype": dtype, "form": form}), 2)
    seen = [env.reset(0).clone()]
    for _ in range(3):
        env.begin_step(torch.zeros(2, dtype=torch.int64))
        seen.append(env.end_step().obs.clone())
    space, shape = env.obs_space, SHAPES.get(form, (5,))
    for time, rows in enumerate(seen):
        expected = numbers(dtype, shape, time).astype(np.float64).reshape(-1)
        odd = space.split(rows)["odd"] if isinstance(space, RowSpace) else rows.flatten(1)
        assert len(odd) == 2
        for row in odd.double().numpy():
            np.testing.assert_allclose(row, expected, rtol=2**-24, atol=0)
            if np.dtype(dtype).itemsize <= 2:
                np.testing.assert_array_equal(row, expected)
    env.close()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_policy_acts_on_them_as_on_their_rows(dtype: str, form: str) -> None:
    env = make_gym(GymConfig("ludus-test/Odd-v0", 1, 0, kwargs={"dtype": dtype, "form": form}), 1)
    row = env.reset(0).clone()
    assert space_from(describe_space(env.obs_space)) == env.obs_space
    torch.manual_seed(0)
    policy = ActorCritic(env.obs_space, env.action_space, PolicyConfig(hidden=(8,), image_features=8))
    policy.learn_scales([row, row + 1 if row.dtype == torch.float32 else row])
    raw, _ = Odd(dtype, form).reset(seed=0)
    assert int(policy.act(raw)) == int(policy.act(row)[0])
    env.close()
