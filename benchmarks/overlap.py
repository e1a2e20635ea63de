"""What two groups in flight save: while one simulates, the policy acts for the other.

    python benchmarks/overlap.py [--save MACHINE]

Rollouts with the same rows in one group and in two, in turns: Gymnasium environments in worker processes, whose
step waits as one does that talks to another program, and the KUKA task on simulator threads. The network is large
enough to take about as long as the environments, where there is most to save: half of the time.
"""

import argparse
import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch

import keeping
from ludus.algorithms.on_policy.collector import Collector
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs import make_groups
from ludus.envs.gym.config import GymConfig
from ludus.envs.kuka.config import KukaConfig
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_actor_critic

HORIZON = 16
WAIT_S = 0.001


class Slow(gym.Env[np.ndarray, Any]):
    """Every step waits for something outside."""

    observation_space = gym.spaces.Box(-1, 1, (32,), np.float32)
    action_space = gym.spaces.Discrete(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(32, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(WAIT_S)
        return np.zeros(32, np.float32), 0.0, False, False, {}


if "Slow-v0" not in gym.registry:  # this file is also imported by the workers
    gym.register("Slow-v0", entry_point="overlap:Slow")

CASES: dict[str, tuple[GymConfig | KukaConfig, tuple[int, ...]]] = {
    # The environments, and the hidden layers of the network.
    "worker processes": (GymConfig(id="overlap:Slow-v0", num_envs=256, workers=16), (2048, 2048)),
    "simulator threads": (KukaConfig(num_envs=256, threads=1), (2048, 2048, 1024)),
}

TOLD = {
    "worker processes": "256 Gymnasium environments in 16 workers, waiting 1 ms a step",
    "simulator threads": "256 KUKAs, one simulation thread a group",
}


def collectors(name: str) -> dict[int, Collector]:
    config, hidden = CASES[name]
    made = {}
    for groups in (1, 2):
        envs = make_groups(config, groups)
        policy = make_actor_critic(envs[0], PolicyConfig(hidden=hidden, shared_trunk=True), seed=0)
        schedule = SegmentSchedule(config.num_envs, config.num_envs, HORIZON)
        made[groups] = Collector(envs, policy, schedule, gamma=0.99, seed=0)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    keeping.add_option(parser)
    arguments = parser.parse_args()
    repeats = arguments.repeats
    torch.set_num_threads(1)
    kept = []
    for name in CASES:
        both = collectors(name)
        times: dict[int, list[float]] = {1: [], 2: []}
        shares = []
        for update in range(repeats + 1):
            for groups, collector in both.items():
                start = time.perf_counter()
                collector.collect(update)
                seconds = time.perf_counter() - start
                acting = collector.timing.shares(seconds)["time/act_share"]
                if update:  # the first one warms up
                    times[groups].append(seconds)
                    shares += [acting] if groups == 1 else []
        one, two = (statistics.median(times[groups]) for groups in (1, 2))
        act = statistics.median(shares)
        told = (
            f"{name:18} one group {1e3 * one:5.0f} ms (the policy {act:.0%} of it), two groups {1e3 * two:5.0f} ms"
        )
        print(f"{told}: {one / two:.2f} times as fast", flush=True)
        kept.append([TOLD[name], *(f"{1e3 * part:,.0f} ms" for part in (one, two)), f"{one / two:.2f}"])
        for collector in both.values():
            collector.close()
    if arguments.save:
        keeping.keep("overlap", "rollouts", arguments.save, ("", "one group", "two groups", "ratio"), kept)


if __name__ == "__main__":
    main()
