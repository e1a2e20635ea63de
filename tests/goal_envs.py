"""Small goal environments: `gym:goal_envs:BitFlip` and others train on them."""

from typing import Any

import gymnasium as gym
import numpy as np

Seen = dict[str, np.ndarray]


class GoalEnv(gym.Env):
    """A reached goal pays 0, every other step costs 1. `ends`: it ends the episode, as the environment can say."""

    def __init__(self, goal: gym.Space, action: gym.Space, length: int, ends: str) -> None:
        self.ends = ends
        if ends:
            self.compute_terminated = self.all_terminated if ends == "arrays" else self.one_terminated
        self.observation_space = gym.spaces.Dict(observation=goal, achieved_goal=goal, desired_goal=goal)
        self.action_space, self.length = action, length

    def start(self) -> np.ndarray:
        raise NotImplementedError

    def move(self, action: Any) -> None:
        raise NotImplementedError

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Seen, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal, self.left = self.start(), self.start(), self.length
        return self.seen(), {}

    def seen(self) -> Seen:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}

    def reached(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return (achieved == desired).all(-1)

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return self.reached(achieved, desired).astype(np.float32) - 1.0

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.move(action)
        self.left -= 1
        reward, success = self.compute_reward(self.at, self.goal, {}), bool(self.reached(self.at, self.goal))
        return self.seen(), float(reward), bool(self.ends) and success, self.left == 0, {"is_success": success}

    def all_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> Any:
        return self.reached(achieved, desired)

    def one_terminated(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> bool:
        """As the mazes of Gymnasium-Robotics do, which can say it of one goal only."""
        return bool(self.reached(achieved.ravel(), desired.ravel()))


class BitFlip(GoalEnv):
    """Every action flips one bit; the bits should become those of the goal."""

    def __init__(self, bits: int = 10) -> None:
        super().__init__(gym.spaces.MultiBinary(bits), gym.spaces.Discrete(bits), bits, ends="arrays")
        self.bits = bits

    def start(self) -> np.ndarray:
        return self.np_random.integers(0, 2, self.bits, dtype=np.int8)

    def move(self, action: Any) -> None:
        self.at[action] ^= 1


class Reach(GoalEnv):
    """A point in a square should get to another."""

    def __init__(self, ends: str = "", length: int = 15) -> None:
        box = gym.spaces.Box(-1.0, 1.0, (2,), np.float64)
        super().__init__(box, gym.spaces.Box(-1.0, 1.0, (2,), np.float32), length, ends)

    def start(self) -> np.ndarray:
        return self.np_random.uniform(-1.0, 1.0, 2)

    def move(self, action: Any) -> None:
        self.at = np.clip(self.at + 0.25 * np.asarray(action, np.float64), -1.0, 1.0)

    def reached(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        return np.linalg.norm(achieved - desired, axis=-1) < 0.1


class OneByOne(Reach):
    """Cannot judge several goals at once."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: Any) -> float:
        return -float(np.linalg.norm(achieved - desired))


class NoJudge(Reach):
    """Observes goals, but cannot judge steps by others."""

    compute_reward = None  # type: ignore[assignment]

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        self.move(action)
        self.left -= 1
        return self.seen(), -1.0, False, self.left == 0, {}


class Raised(gym.wrappers.TransformReward):
    """What it says of goals is said by what it wraps."""

    def __init__(self) -> None:
        super().__init__(Reach(), lambda reward: 10.0 * float(reward))


class Taxed(Reach):
    """Its steps cost more than it says of goals."""

    def step(self, action: Any) -> tuple[Seen, float, bool, bool, dict[str, Any]]:
        obs, reward, over, late, info = super().step(action)
        return obs, reward - 1.0, over, late, info
