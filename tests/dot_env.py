"""A dot must go to a target, both seen in an image alone: continuous moves, a cost for the distance left."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

STRIDE = 5.0  # pixels of the largest move
STEPS = 12  # of an episode


class Dot(gym.Env):
    """`see`: image, both (with how much time is left), or critic (with where dot and target are)."""

    def __init__(self, see: str = "image", size: int = 40) -> None:
        self.see, self.size = see, size
        parts: dict[str, gym.Space] = {"image": spaces.Box(0, 255, (size, size, 3), np.uint8)}
        if see in ("both", "critic"):
            parts["left"] = spaces.Box(0.0, 1.0, (1,), np.float32)
        if see == "critic":
            parts["places"] = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.observation_space = parts["image"] if see == "image" else spaces.Dict(parts)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def _obs(self) -> Any:
        image = np.zeros((self.size, self.size, 3), np.uint8)
        for channel, place in enumerate((self.dot, self.target)):
            y, x = np.rint(place).astype(int)
            image[max(y - 2, 0) : y + 3, max(x - 2, 0) : x + 3, channel] = 255
        parts = {
            "image": image,
            "left": np.array([1 - self.time / STEPS], np.float32),
            "places": np.concatenate([self.dot, self.target]).astype(np.float32) / self.size,
        }
        seen = self.observation_space
        return {name: parts[name] for name in seen} if isinstance(seen, spaces.Dict) else image

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.dot, self.target = self.np_random.uniform(0, self.size - 1, (2, 2))
        self.time = 0
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.dot = np.clip(self.dot + STRIDE * np.clip(action, -1, 1), 0, self.size - 1)
        self.time += 1
        cost = float(np.abs(self.dot - self.target).mean()) / STRIDE
        return self._obs(), -cost / 10, False, False, {}


gym.register("ludus-test/Dot-v0", entry_point="dot_env:Dot", max_episode_steps=STEPS)
