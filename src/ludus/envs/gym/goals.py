"""Goal environments of Gymnasium: what `compute_reward` and `compute_terminated` say of arrays, for tensors."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.goals import Goals, goal_parts
from ludus.envs.row_space import Part
from ludus.errors import EnvError, tell_exception

_REWARD, _TERMINATED = "compute_reward", "compute_terminated"
_FORMS = (gym.spaces.Box, gym.spaces.MultiBinary)


def goals_of_env(name: str, env: gym.Env, space: gym.spaces.Box) -> Goals | None:
    """None for an environment that has no goals, or no `compute_reward`."""
    parts = goal_parts(space)
    if parts is None or not all(isinstance(part.space, _FORMS) for part in parts):
        return None
    if not _has(env, _REWARD):
        return None
    judge = _ArrayJudge(name, env, parts[1])
    return Goals(judge.reward, judge.ended if judge.ends_when_reached() else None, _changed_by(env))


def _changed_by(env: gym.Env) -> str:
    """The outermost wrapper around what judges goals that changes rewards."""
    while isinstance(env, gym.Wrapper) and not hasattr(type(env), _REWARD):
        if isinstance(env, gym.RewardWrapper | gym.wrappers.NormalizeReward):
            return type(env).__name__
        env = env.env
    return ""


class _ArrayJudge:
    """Hands goals to an environment as arrays in the form of its own."""

    def __init__(self, name: str, env: gym.Env, goal: Part) -> None:
        self._name, self._env, self._goal = name, env, goal

    def reward(self, achieved: Tensor, desired: Tensor) -> Tensor:
        told = self._ask(_REWARD, self._array(achieved), self._array(desired))
        reward = np.asarray(told)
        if reward.shape != (len(achieved),) or reward.dtype.kind not in "fiub":
            raise EnvError(
                f"{self._name}: {_REWARD}() gave {reward.dtype} of the shape {reward.shape} for {len(achieved)} "
                "goals at once. It must take arrays whose first dimension is the goals, and give one for each."
            )
        return torch.from_numpy(reward.astype(np.float32)).to(achieved.device)

    def ended(self, achieved: Tensor, desired: Tensor) -> Tensor:
        reached, wanted = self._array(achieved), self._array(desired)
        told = np.asarray(self._ask(_TERMINATED, reached, wanted))
        if told.shape != (len(reached),):  # most say it of one goal only
            told = np.array([bool(self._ask(_TERMINATED, *pair)) for pair in zip(reached, wanted, strict=True)])
        return torch.from_numpy(told.astype(bool)).to(achieved.device)

    def ends_when_reached(self) -> bool:
        """Asked once, of a goal that is reached."""
        if not _has(self._env, _TERMINATED):
            return False
        goal = self._array(torch.zeros(1, self._goal.size))[0]
        return bool(np.all(self._ask(_TERMINATED, goal, goal)))

    def _array(self, goals: Tensor) -> np.ndarray:
        space = self._goal.space
        assert space.shape is not None
        return goals.numpy(force=True).astype(space.dtype).reshape(-1, *space.shape)

    def _ask(self, method: str, achieved: np.ndarray, desired: np.ndarray) -> Any:
        ask: Callable[..., Any] = self._env.get_wrapper_attr(method)
        try:
            return ask(achieved, desired, {})
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise EnvError(
                f"{self._name} raised in {method}() of {achieved.shape} goals: {tell_exception(error)}. It must "
                "take arrays of goals, and an empty info."
            ) from error


def _has(env: gym.Env, method: str) -> bool:
    return env.has_wrapper_attr(method) and callable(env.get_wrapper_attr(method))
