"""What a mask of valid actions costs: PPO with and without one, by turns.

A training is that of Taxi, whose masks are heeded on one side and ignored on the other. The bar is for a learning
rate of 0, with which both sides act at random: a side that learns sooner ends more episodes, and the time of its
resets is not the cost of its masks. A training that learns is told beside. The learner alone has an environment
that takes no time: the most that a mask can cost. Times are of the processor, and each figure is a ratio of lower
quartiles: what else the machine does mostly adds.

python benchmarks/masks.py
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Protocol

import gymnasium as gym
import numpy as np
import torch

from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.algorithms.ppo.update import PPO
from ludus.algorithms.registry import make_job
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.gym.config import GymConfig
from ludus.envs.row_space import MASK, RowSpace
from ludus.envs.vec import State, Step, VecEnv
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.presets import find_preset

ROWS, NUMBERS, CHOICES = 64, 32, 12
TURNS, PARTS = 500, 5  # iterations of each, and parts of them that show the spread
MOST = 1.05  # times as long


class Noise(VecEnv):
    """Random observations: nearly all of the time is the learner's."""

    name, num_rows, device = "noise", ROWS, torch.device("cpu")
    action_space = gym.spaces.Discrete(CHOICES)

    def __init__(self, masked: bool) -> None:
        seen = gym.spaces.Box(-np.inf, np.inf, (NUMBERS,), np.float32)
        raw = gym.spaces.Dict({"seen": seen, MASK: gym.spaces.MultiBinary(CHOICES)})
        self.obs_space = RowSpace(raw) if masked else seen
        self._obs = torch.randn(ROWS, NUMBERS)
        if masked:
            mask = (torch.rand(ROWS, CHOICES) < 0.5).float()
            mask[:, 0] = 1.0
            self._obs = torch.cat([self._obs, mask], 1)
        self._none = torch.zeros(ROWS, dtype=torch.bool)

    def reset(self, seed: int) -> torch.Tensor:
        return self._obs.clone()

    def begin_step(self, action: torch.Tensor) -> None:
        pass

    def end_step(self) -> Step:
        return Step(self._obs.clone(), torch.randn(ROWS), self._none, self._none, self._obs, {})

    def state(self) -> State:
        return {}

    def load_state(self, state: State) -> None:
        pass


class Loop(Protocol):
    def iterate(self) -> tuple[float, ...]:
        """Seconds of the parts of an iteration."""
        ...


class Training:
    """A real one, by the preset."""

    def __init__(self, masked: bool, learns: bool) -> None:
        config = find_preset("gym:Taxi-v4").config
        assert isinstance(config, PPOTrainConfig)
        assert isinstance(config.env, GymConfig)
        env = dataclasses.replace(config.env, action_masks=masked, workers=0)
        ppo = config.ppo if learns else dataclasses.replace(config.ppo, learning_rate=0.0)
        self._job = make_job(dataclasses.replace(config, env=env, ppo=ppo), torch.device("cpu"))
        self._iteration = 0

    def iterate(self) -> tuple[float, ...]:
        started = time.process_time()
        self._job.iteration(self._iteration, 0.0, lambda share, batch: None)
        self._iteration += 1
        return (time.process_time() - started,)


class Learner:
    """Nothing but acting and learning."""

    def __init__(self, masked: bool) -> None:
        torch.manual_seed(0)
        env, schedule = Noise(masked), SegmentSchedule(ROWS, ROWS, 32)
        policy = ActorCritic(env.obs_space, env.action_space, PolicyConfig())
        self.ppo = PPO(policy, PPOConfig(minibatches=8, update_epochs=4, entropy_coef=0.01), schedule, 0)
        self.collector = Collector([env], policy, schedule, 0.99, 0)
        self.iteration = 0

    def iterate(self) -> tuple[float, ...]:
        """Seconds of acting and of learning."""
        started = time.process_time()
        segments = self.collector.collect(self.iteration)
        acted = time.process_time()
        self.ppo.update(segments, 0.0)
        self.iteration += 1
        return acted - started, time.process_time() - acted


def by_turns(loops: Sequence[Loop], turns: int) -> np.ndarray:
    """[turns, loops, parts] seconds. Each loop is the first of every other turn."""
    for loop in [*loops] * 4:  # warm
        loop.iterate()
    seconds = np.empty((turns, len(loops), len(loops[0].iterate())))
    for turn in range(turns):
        for i in range(len(loops))[:: 1 if turn % 2 else -1]:
            seconds[turn, i] = loops[i].iterate()
    return seconds


def ratio(seconds: np.ndarray) -> float:
    """With a mask to without one, of [turns, loops]."""
    plain, masked = np.quantile(seconds, 0.25, axis=0)
    return float(masked / plain)


def tell(name: str, seconds: np.ndarray, bar: str = "") -> float:
    whole = seconds.sum(2)
    parts = sorted(map(ratio, np.array_split(whole, PARTS)))
    spread = f"{parts[0]:.3f} to {parts[-1]:.3f} in {PARTS} parts of {len(whole)} turns"
    print(f"{name:14} {ratio(whole):.3f} × as long with a mask   {spread}{bar}")
    return ratio(whole)


def main() -> None:
    torch.set_num_threads(1)
    training, learned = (
        by_turns([Training(masked, learns) for masked in (False, True)], TURNS // 5) for learns in (False, True)
    )
    alone = by_turns([Learner(False), Learner(True)], TURNS)
    bar = f"   bar {MOST}"
    met = tell("training", training, bar) <= MOST
    tell("  that learns", learned)
    met &= tell("learner", alone, bar) <= MOST
    tell("  acting", alone[:, :, :1])
    tell("  learning", alone[:, :, 1:])
    print("ok" if met else "MISSED")


if __name__ == "__main__":
    main()
