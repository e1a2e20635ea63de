"""Small PettingZoo environments, good and bad, for the tests of `ludus.envs.gym.pettingzoo`."""

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv, register
from pettingzoo.utils.conversions import parallel_to_aec

Dicts = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]]


class Base(ParallelEnv):
    """Agents observe (steps of the episode, own number, a random number that their actions change)."""

    metadata = {"name": "arena", "render_modes": ["rgb_array"]}  # noqa: RUF012 (PettingZoo's own form)
    possible_agents = ["ann", "bob", "cleo", "dan"]  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1000.0, 1000.0, (3,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3, start=1)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.rng = np.random.default_rng(seed)  # as many do: without a seed it could not be repeated
        self.count, self.drift = 0, float(self.rng.uniform())
        self.agents = list(self.possible_agents)
        return self._all_obs(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Dicts:
        assert set(actions) == set(self.agents), "actions come from those who are there"
        assert all(action in (1, 2, 3) for action in actions.values())
        self.count += 1
        self.drift += sum(actions.values()) * float(self.rng.normal())
        everyone = list(self.agents)
        rewards = {agent: actions[agent] * 0.5 + self.number(agent) for agent in everyone}
        off = dict.fromkeys(everyone, False)
        infos: dict[str, dict[str, Any]] = {agent: {} for agent in everyone}
        return self._all_obs(), rewards, off, dict(off), infos

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.count, np.uint8)

    def number(self, agent: str) -> int:
        return self.possible_agents.index(agent)

    def _all_obs(self) -> dict[str, Any]:
        return {agent: self._obs(agent) for agent in self.agents}

    def _obs(self, agent: str) -> Any:
        return np.array([self.count, self.number(agent), self.drift], np.float32)


class Arena(Base):
    """Agents die at random times in every way there is, one comes late, one comes back, and time runs out."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed)
        self.agents = ["ann", "bob", "cleo"]
        self.ends = {agent: int(self.rng.integers(2, 9)) for agent in self.possible_agents}
        self.last = int(self.rng.integers(6, 12))
        return self._all_obs(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Dicts:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        for agent in list(self.agents):
            if self.ends[agent] == self.count:
                self._die(agent, obs, terminated, truncated, infos)
        if self.count >= self.last:
            truncated.update(dict.fromkeys(self.agents, True))
            self.agents = []
            return obs, rewards, terminated, truncated, infos
        if self.count == 3:
            self._appear("dan", obs)
        if self.count == self.ends["ann"] + 2:
            self._appear("ann", obs)
        return obs, rewards, terminated, truncated, infos

    def _die(self, agent: str, obs: Any, terminated: Any, truncated: Any, infos: Any) -> None:
        self.agents.remove(agent)
        if agent == "cleo":  # gone without a word
            del obs[agent], terminated[agent], truncated[agent]
            return
        terminated[agent] = agent == "ann"
        truncated[agent] = agent in ("bob", "dan")
        infos[agent]["is_success"] = self.number(agent) % 2 == 0

    def _appear(self, agent: str, obs: dict[str, Any]) -> None:
        if agent not in self.agents:
            self.agents.append(agent)
            obs[agent] = self._obs(agent)


class Scripted(Base):
    """`script` says what happens at which step, mostly to bob: {"3": "raise"}."""

    def __init__(
        self, script: dict[str, str] | None = None, once: str = "", render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode)
        self.script, self.once = script or {}, once

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        obs, infos = super().reset(seed)
        event = self._event("reset")
        if event == "nobody":
            self.agents = []
        if event == "old style":
            return obs
        return obs, infos

    def step(self, actions: dict[str, int]) -> Dicts:
        obs, rewards, terminated, truncated, infos = super().step(actions)
        event = self._event(str(self.count))

        def come_back() -> None:
            self.agents.append("bob")
            obs.update(bob=self._obs("bob"))

        changes: dict[str, Any] = {
            "nan": lambda: obs.update(bob=obs["bob"] * np.nan),
            "infinite reward": lambda: rewards.update(bob=np.inf),
            "shape": lambda: obs.update(bob=np.zeros(2, np.float32)),
            "blind": lambda: obs.pop("bob"),
            "stranger": lambda: self.agents.append("eve"),
            "dies": lambda: [terminated.update(bob=True), self.agents.pop(self.agents.index("bob"))],
            "dies twice over": lambda: (terminated.update(bob=True), truncated.update(bob=True)),
            "comes back": come_back,
            "all vanish": lambda: self.agents.clear(),
            "all say so but stay": lambda: terminated.update(dict.fromkeys(self.agents, True)),
        }
        if event:
            changes[event]()
        return obs, rewards, terminated, truncated, infos

    def _event(self, moment: str) -> str:
        event = self.script.get(moment, "")
        if event and self.once:
            try:
                Path(self.once).touch(exist_ok=False)  # one process alone succeeds
            except FileExistsError:
                return ""
        if event == "raise":
            raise ValueError("the goalkeeper fell asleep")
        return event


class Opaque(Arena):
    """Part of its state is an object that nothing can look into."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.world = iter(range(1000))
        return super().reset(seed)


class OwnState(Opaque):
    """… but it knows how to save itself."""

    def ludus_state(self) -> dict[str, Any]:
        kept = {name: value for name, value in vars(self).items() if name not in ("world", "rng")}
        return {"kept": kept, "rng": self.rng.bit_generator.state}

    def load_ludus_state(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["kept"])
        self.rng.bit_generator.state = state["rng"]


class Masked(Base):
    """Observes which actions are allowed, as PettingZoo's classic games do."""

    def observation_space(self, agent: str) -> spaces.Space:
        mask = spaces.Box(0, 1, (3,), np.int8)
        return spaces.Dict({"action_mask": mask, "observation": spaces.Box(-1000.0, 1000.0, (3,), np.float32)})

    def _obs(self, agent: str) -> dict[str, Any]:
        return {"observation": super()._obs(agent), "action_mask": np.array([1, 0, 1], np.int8)}


class TwoKinds(Base):
    """The agents do not have the same spaces."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def observation_space(self, agent: str) -> spaces.Space:
        size = 4 if self.what == "observation" and agent == "cleo" else 3
        return spaces.Box(-1000.0, 1000.0, (size,), np.float32)

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(5 if self.what == "action" and agent == "dan" else 3)


class Anonymous(ParallelEnv):
    """Does not say which agents there may be."""


class InTurn(AECEnv):
    """Agents act one after the other, and each sees what the others did."""

    metadata = {"name": "in_turn"}  # noqa: RUF012
    possible_agents = ["ann", "bob"]  # noqa: RUF012


def turns() -> Any:
    """The arena as an AECEnv."""
    return parallel_to_aec(Arena())


def no_environment() -> object:
    return object()


def broken() -> Any:
    raise RuntimeError("no grass today")


def needs_a_package() -> Any:
    import no_such_package  # type: ignore[import-not-found]  # noqa: F401


not_callable = 3

register("parallel", "ludus-test/arena-v0", entry_point=f"{__name__}:Arena")
