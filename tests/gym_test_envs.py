"""Small Gymnasium environments, good and bad, for the tests of `ludus.envs.gym.env`."""

import enum
import os
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Scripted(gym.Env):
    """Observes (rows of) its own step number. `script` says what happens at which step: {"3": "raise"}."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, script: dict[str, str] | None = None, once: str = "", meet: str = "") -> None:
        self.script = script or {}
        self.once = once  # a file that remembers, across processes, that the script was played
        self.meet = meet  # a folder in which two processes wait for each other
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        self.offset = self.np_random.uniform()
        self._play("reset")
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.count += 1
        event = self._play(str(self.count))
        obs = {"nan": self._obs() * np.nan, "shape": np.zeros(3, np.float32), "scalar": np.float32(0)}.get(
            event, self._obs()
        )
        reward = np.inf if event == "infinite reward" else 1.0
        info = {"is_success": True} if event == "success" else {}
        terminated = event in ("terminated", "both", "success")
        return obs, reward, terminated, event in ("truncated", "both"), info

    def _play(self, moment: str) -> str:
        event = self.script.get(moment, "")
        if event and self.once:
            try:
                Path(self.once).touch(exist_ok=False)  # one process alone succeeds
            except FileExistsError:
                return ""
        if event == "raise":
            raise ValueError("the gripper fell off")
        if event == "meet":
            (Path(self.meet) / str(os.getpid())).touch()
            while len(list(Path(self.meet).iterdir())) < 2:
                time.sleep(0.01)
        if event == "hang":
            time.sleep(1000)
        return event

    def _obs(self) -> np.ndarray:
        return np.array([self.count, self.offset], np.float32)


SPACES = {
    "offset": spaces.Discrete(3, start=5),
    "matrix": spaces.Box(-2.0, 3.0, (2, 3), np.float64),
    "multi": spaces.MultiDiscrete([3, 4], start=[1, 2]),
    "integers": spaces.Box(0, 9, (2,), np.int32),
    "binary": spaces.MultiBinary(3),
    "text": spaces.Text(3),
}


class Echo(gym.Env):
    """Observes the last action in an unusual space; checks that actions are as Gymnasium's own would be."""

    def __init__(self, kind: str) -> None:
        self.action_space = SPACES[kind]
        self.observation_space = spaces.Dict(
            {"action": SPACES[kind], "where": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}
        )
        self.seen: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.action_space.seed(0)
        return self._obs(self.action_space.sample()), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.seen.append(action)
        return self._obs(action), 0.0, False, False, {}

    def _obs(self, action: Any) -> dict[str, Any]:
        return {"action": action, "where": (np.int64(2), np.array([1, 0], np.int8))}


class Picture(gym.Env):
    """Observes a uint8 image."""

    observation_space = spaces.Box(0, 255, (4, 5, 3), np.uint8)
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 (as gymnasium.Env declares it)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return self._obs(), 0.0, False, False, {}

    def render(self) -> np.ndarray:
        return np.full((8, 8, 3), 7, np.uint8)

    def _obs(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (4, 5, 3), np.uint8)


class Direction(enum.Enum):
    LEFT = -1
    RIGHT = 1


class Pose(NamedTuple):
    x: float
    y: float


@dataclass(frozen=True)
class Weather:
    wind: float


CALM = Weather(0.0)


class Body:
    """A plain object with a reference back to the world it is in."""

    def __init__(self, world: "Attributes") -> None:
        self.world = world
        self.mass = 1.0


class Attributes(gym.Env):
    """Keeps its state in every kind of attribute that a snapshot can hold."""

    observation_space = spaces.Box(-np.inf, np.inf, (8,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.body = Body(self)
        self.callback = lambda x: x
        self.twister = random.Random(3)
        self.legacy = np.random.RandomState(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.direction = Direction.LEFT
        self.pose = Pose(0.0, -0.0)
        self.weather = CALM
        self.recent = deque([0.0, float("inf")], maxlen=3)
        self.visits: Counter[int] = Counter()
        self.grid = np.asfortranarray(self.np_random.uniform(size=(3, 4)))
        self.same_grid = self.grid  # written through one, read through the other
        self.nested: dict[Any, Any] = {"list": [np.float32(1.5), (1, 2)], 7: {"big": 2**100}, "set": {1, 2}}
        self.body.mass = 1.0
        self.count = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.count += 1
        self.direction = Direction.RIGHT if action else Direction.LEFT
        self.pose = Pose(self.pose.x + self.direction.value * self.np_random.normal(), self.twister.random())
        self.weather = replace(self.weather, wind=self.weather.wind + self.legacy.normal())
        self.recent.append(self.pose.x)
        self.visits[self.count % 3] += 1
        self.grid[0, 0] += 1.0
        self.nested["list"][0] += np.float32(0.1)
        self.body.world.body.mass *= 1.01
        return self._obs(), 0.0, self.count >= 7, False, {}

    def _obs(self) -> np.ndarray:
        finite = [v for v in self.recent if np.isfinite(v)]
        values = [self.pose.x, self.pose.y, self.weather.wind, sum(finite), self.visits[1]]
        values += [self.same_grid.sum(), self.nested["list"][0], self.body.mass]
        return np.array(values, np.float32)


class Opaque(Scripted):
    """Part of its state is an object that nothing can look into."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.world = iter(range(1000))
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        next(self.world)
        return super().step(action)


class OwnState(Opaque):
    """… but it knows how to save itself."""

    def ludus_state(self) -> dict[str, Any]:
        return {"count": self.count, "offset": self.offset, "rng": self.np_random.bit_generator.state}

    def load_ludus_state(self, state: dict[str, Any]) -> None:
        self.count, self.offset = state["count"], state["offset"]
        self.np_random.bit_generator.state = state["rng"]
        self.world = iter(range(self.count, 1000))


class Wild(gym.Env):
    """Breaks every rule of good taste: no seed, a shared counter, huge rewards, no end."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    total = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        return np.array([0.5, 10.0], np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Wild.total += float(action[0])
        return np.array([Wild.total, 1e6], np.float32), 1e6, False, False, {}


for cls in (Scripted, Echo, Picture, Attributes, Opaque, OwnState, Wild):
    gym.register(f"ludus-test/{cls.__name__}-v0", entry_point=f"{__name__}:{cls.__name__}")
gym.register("ludus-test/Short-v0", entry_point=f"{__name__}:Scripted", max_episode_steps=4)
