"""A package of the user's, as the pages name it: it registers environments."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from pettingzoo import register


class MyEnv(CartPoleEnv):
    """An environment of the user's."""


class CameraEnv(gym.Env):
    """Sees an image and a pose."""

    observation_space = gym.spaces.Dict(
        {
            "camera": gym.spaces.Box(0, 255, (16, 16, 3), np.uint8),
            "pose": gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._seen(), 1.0, self.steps == 8, False, {}

    def _seen(self) -> dict[str, np.ndarray]:
        pose = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return {"camera": self.np_random.integers(0, 256, (16, 16, 3), np.uint8), "pose": pose}


register("parallel", "my_space/my_env-v0", entry_point="my_module:make")
gym.register("CameraEnv-v0", entry_point="my_package:CameraEnv")
for name in ("MyEnv-v0", "Game-v0"):
    gym.register(name, entry_point="my_package:MyEnv", max_episode_steps=200)
