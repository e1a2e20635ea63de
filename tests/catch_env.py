"""A ball falls, and a paddle must be under it: seen as an image, as numbers or both, acted in many ways."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

MOVES = 3  # left, stay, right


class Catch(gym.Env):
    """`see`: image, state or both; `masks`: key, info, method or none; `act`: the form of the action.

    With masks a move against the wall is an error, so that an invalid action ends a test.
    """

    def __init__(self, see: str = "image", masks: str = "", act: str = "discrete", size: int = 8) -> None:
        self.see, self.masks, self.act, self.size = see, masks, act, size
        parts: dict[str, gym.Space] = {
            "image": spaces.Box(0, 255, (size, size, 3), np.uint8),
            "state": spaces.Box(-1.0, 1.0, (3,), np.float32),
        }
        if see == "both":
            mask = {"action_mask": spaces.Box(0, 1, (MOVES,), np.int8)} if masks == "key" else {}
            self.observation_space: gym.Space = spaces.Dict({**parts, **mask})
        else:
            self.observation_space = parts[see]
        self.action_space = {
            "discrete": spaces.Discrete(MOVES, start=5),
            "bits": spaces.MultiBinary(2),
            "mixed": spaces.Dict(
                {
                    "aim": spaces.Box(-2.0, 4.0, (1, 2), np.float64),
                    "move": spaces.Discrete(MOVES, start=5),
                    "switch": spaces.Tuple([spaces.MultiBinary(2), spaces.MultiDiscrete([2, 4])]),
                }
            ),
        }[act]
        if masks == "method":
            self.action_masks = self._mask

    def _mask(self) -> np.ndarray:
        moves = np.array([self.paddle > 0, True, self.paddle < self.size - 1], np.int8)
        if self.act == "mixed":  # the other choices, two bits and six numbers, are free
            return np.concatenate([moves, np.ones(2 * 2 + 2 + 4, np.int8)])
        return moves

    def _obs(self) -> Any:
        image = np.zeros((self.size, self.size, 3), np.uint8)
        image[self.height, self.ball, 0] = 255
        image[self.size - 1, self.paddle, 1] = 255
        state = np.array([self.ball, self.height, self.paddle], np.float32) / self.size
        if self.see != "both":
            return image if self.see == "image" else state
        return {"image": image, "state": state} | ({"action_mask": self._mask()} if self.masks == "key" else {})

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self._mask()} if self.masks == "info" else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.height, self.ball, self.paddle = 0, *(int(n) for n in self.np_random.integers(self.size, size=2))
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        move = {"discrete": lambda: action - 5, "bits": lambda: action[0], "mixed": lambda: action["move"] - 5}
        moved = int(move[self.act]())
        assert not self.masks or self._mask()[moved], "a move against the wall"
        self.paddle = int(np.clip(self.paddle + moved - 1, 0, self.size - 1))
        self.height += 1
        done = self.height == self.size - 1
        caught = done and self.ball == self.paddle
        return self._obs(), float(caught), done, False, self._info() | {"is_success": caught}


gym.register("ludus-test/Catch-v0", entry_point="catch_env:Catch")
