"""Environments that leave, hang, grow or return rubbish, for Gymnasium and for PettingZoo."""

import os
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Stop(BaseException):
    """Neither an Exception nor Ctrl-C."""


def leave(how: str) -> None:
    if how == "sys.exit":
        sys.exit(3)
    if how == "sys.exit with words":
        sys.exit("no licence")
    if how == "base exception":
        raise Stop("enough")
    if how == "os._exit":
        os._exit(7)
    if how == "hang":
        time.sleep(1000)


GOOD = np.zeros(2, np.float32)
# What step() may give instead of (obs, reward, terminated, truncated, info); "obs" stands for a good observation.
RUBBISH: dict[str, Any] = {
    "string array": (np.array(["a", "b"]), 0.0, False, False, {}),
    "numeric strings": (np.array(["1.5", "2.5"]), 0.0, False, False, {}),
    "object array": (np.array([None, 1.0], object), 0.0, False, False, {}),
    "no observation": (None, 0.0, False, False, {}),
    "complex": (np.zeros(2, np.complex64), 0.0, False, False, {}),
    "ragged": ([1.0, [2.0]], 0.0, False, False, {}),
    "huge integers": ([10**400, 0], 0.0, False, False, {}),
    "wrong shape": (np.zeros(3, np.float32), 0.0, False, False, {}),
    "nan": (GOOD * np.nan, 0.0, False, False, {}),
    "reward text": (GOOD, "1.5", False, False, {}),
    "reward array": (GOOD, np.zeros(2), False, False, {}),
    "reward none": (GOOD, None, False, False, {}),
    "reward complex": (GOOD, 1j, False, False, {}),
    "reward huge": (GOOD, 10**400, False, False, {}),
    "reward nan": (GOOD, float("nan"), False, False, {}),
    "terminated array": (GOOD, 0.0, np.array([True, False]), False, {}),
    "terminated none": (GOOD, 0.0, None, False, {}),
    "terminated text": (GOOD, 0.0, "False", False, {}),
    "truncated list": (GOOD, 0.0, False, [], {}),
    "no info": (GOOD, 0.0, True, False, None),
    "four values": (GOOD, 0.0, False, {}),
    "six values": (GOOD, 0.0, False, False, {}, {}),
    "nothing": None,
}
RESETS: dict[str, Any] = {
    "old style reset": GOOD,
    "reset nothing": None,
    "reset strings": (np.array(["a", "b"]), {}),
    "reset no info": (GOOD, None),
}


class Rude(gym.Env):
    """`event` happens at step 3 of every episode, or where it says "reset" or "make"."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, event: str = "", at: str = "step", first: int = 3) -> None:
        self.event, self.at, self.first, self.count = event, at, first, 0
        if event == "no space":
            self.observation_space = None
        if at == "make":
            leave(event)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        if self.at == "reset":
            leave(self.event)
        return RESETS.get(self.event, (GOOD, {})) if self.event in RESETS else (GOOD, {})

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count == self.first and self.at == "step":
            leave(self.event)
            if self.event in RUBBISH:
                return RUBBISH[self.event]
        return GOOD, 1.0, False, False, {}

    def close(self) -> None:
        if self.at == "close":
            leave(self.event)


class Hoarder(gym.Env):
    """Keeps all it has ever seen."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, what: str = "arrays") -> None:
        self.what = what
        self.log: dict[str, list[Any]] = {"pictures": []}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return GOOD, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.log["pictures"] += [np.zeros(50_000, np.uint8)] if self.what == "arrays" else [0.5] * 2_000
        return GOOD, 1.0, False, False, {}


class Endless(gym.Env):
    """Ends only where action 1 is taken; action 0 goes on for ever."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return GOOD, {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        done = bool(action == 1)
        return GOOD, 1.0, done, False, {"is_success": True} if done else {}


class RudeParallel(ParallelEnv):
    """The same for two agents; rubbish is what bob gets."""

    metadata = {"name": "rude", "render_modes": []}  # noqa: RUF012 (PettingZoo's own form)
    possible_agents = ["ann", "bob"]  # noqa: RUF012

    def __init__(self, event: str = "", at: str = "step") -> None:
        self.event, self.at, self.agents = event, at, list[Any]()
        if at == "make":
            leave(event)

    def observation_space(self, agent: str) -> Any:
        return None if self.event == "no space" else spaces.Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.count, self.agents, self.log = 0, list(self.possible_agents), list[Any]()
        if self.at == "reset":
            leave(self.event)
        return dict.fromkeys(self.agents, GOOD), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.count += 1
        good: tuple[Any, ...] = (GOOD, 1.0, False, False, {})
        result = [dict.fromkeys(self.agents, value) for value in good]
        if self.event == "hoards":
            self.log.append(np.zeros(50_000, np.uint8))
        if self.count != 3 or self.at != "step":
            return tuple(result)
        leave(self.event)
        if self.event == "agents are a number":
            self.agents = 7  # type: ignore[assignment]
        if self.event == "agents are lists":
            self.agents = [["ann"]]
        if self.event == "rewards are a list":
            return result[0], [1.0, 1.0], *result[2:]
        if self.event == "four values":
            return tuple(result[:4])
        if self.event in RUBBISH and RUBBISH[self.event] is not None and len(RUBBISH[self.event]) == 5:
            for values, value in zip(result, RUBBISH[self.event], strict=True):
                values["bob"] = value
        return tuple(result)


for cls in (Rude, Hoarder, Endless):
    gym.register(f"ludus-test/{cls.__name__}-v0", entry_point=f"{__name__}:{cls.__name__}")
