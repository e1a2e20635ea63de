"""Environments that leave, hang and return rubbish: `gym:chaos.liars:chaos/Liar-v0`."""

import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

LIES = ("raises", "leaves", "text", "nan", "shape", "nothing", "hangs")


class Liar(gym.Env):
    """Observes its step number. In its `at`-th step it lies; once, if `once` names a file to remember it in."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, lie: str = "", at: int = 5, once: str = "") -> None:
        self.lie, self.at, self.once = lie, at, once
        self.count = self.lived = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count, self.offset = 0, self.np_random.uniform()
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.count += 1
        self.lived += 1
        lie = self.lie if self.lived == self.at and self._may() else ""
        if lie == "raises":
            raise ValueError("the gripper fell off")
        if lie == "leaves":
            sys.exit()
        if lie == "hangs":
            time.sleep(1000)
        seen: Any = {
            "text": np.array(["left", "right"]),
            "nan": self._obs() * np.nan,
            "shape": np.zeros(3, np.float32),
            "nothing": None,
        }.get(lie, self._obs())
        return seen, float(action), False, self.count >= 10, {}

    def _may(self) -> bool:
        if not self.once:
            return True
        try:
            Path(self.once).touch(exist_ok=False)  # one process alone succeeds
        except FileExistsError:
            return False
        return True

    def _obs(self) -> np.ndarray:
        return np.array([self.count, self.offset], np.float32)


gym.register("chaos/Liar-v0", entry_point=f"{__name__}:Liar")
