"""What a mask of valid actions costs: PPO on the same observations with and without one, by turns.

python benchmarks/masks.py
"""

import statistics
import time

import gymnasium as gym
import numpy as np
import torch

from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.row_space import MASK, RowSpace
from ludus.envs.vec import State, Step, VecEnv
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig

ROWS, NUMBERS, CHOICES, ROUNDS = 64, 32, 12, 40
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


class Loop:
    def __init__(self, masked: bool) -> None:
        torch.manual_seed(0)
        env, schedule = Noise(masked), SegmentSchedule(ROWS, ROWS, 32)
        policy = ActorCritic(env.obs_space, env.action_space, PolicyConfig())
        self.ppo = PPO(policy, PPOConfig(minibatches=8, update_epochs=4, entropy_coef=0.01), schedule, 0)
        self.collector = Collector([env], policy, schedule, 0.99, 0)
        self.iteration = 0

    def seconds(self, times: int = 2) -> float:
        started = time.process_time()
        for _ in range(times):
            self.ppo.update(self.collector.collect(self.iteration), 0.0)
            self.iteration += 1
        return (time.process_time() - started) / times


def main() -> None:
    torch.set_num_threads(1)
    plain, masked = Loop(False), Loop(True)
    for loop in (plain, masked):
        loop.seconds()
    rounds = [(plain.seconds(), masked.seconds()) for _ in range(ROUNDS)]
    best = [min(part) for part in zip(*rounds, strict=True)]  # of each: what else the machine does only adds
    ratio = best[1] / best[0]
    median = statistics.median(two / one for one, two in rounds)
    verdict = "ok" if ratio <= MOST else "MISSED"
    print(f"with a mask {ratio:.3f} × as long (median of {ROUNDS} rounds {median:.2f})   bar {MOST}   {verdict}")


if __name__ == "__main__":
    main()
