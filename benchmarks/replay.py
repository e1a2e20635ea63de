"""Gradient steps a second of SAC, TD3, FlashSAC and return decomposition, beside Stable-Baselines3's SAC.

python benchmarks/replay.py                    one core, HalfCheetah sizes, both in turns in one process
python benchmarks/replay.py --device cuda      on a GPU, ours alone
python benchmarks/replay.py --only FlashSAC    with batches of 512, twice those of the others; 21 GFLOP each
python benchmarks/replay.py --device cuda --only FlashSAC --processes 6     six at once: start NVIDIA's MPS before,
    and keep each to a part of the GPU by CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25
python benchmarks/replay.py --stepping half-cheetah    FlashSAC while 1,024 environments step on the same GPU
python benchmarks/replay.py --collecting gym:HalfCheetah-v4    what a step of one environment on a CPU costs
"""

import argparse
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from ludus.algorithms.flash.agent import make_flash_agent
from ludus.algorithms.flash.config import FlashTrainConfig
from ludus.algorithms.flash.job import FlashJob, make_flash_job
from ludus.algorithms.replay.agents import Agent, make_agent
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.job import make_learner, make_policy
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.buffers.episodes import EpisodeStore
from ludus.envs.vec import derive_seed
from ludus.policies.flash_policy import FlashPolicy
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.training.device import PRECISIONS, find_device
from ludus.training.timing import Timing

OBS, ACTIONS, EPISODE = 17, 6, 1000  # HalfCheetah
MANY = 1_024  # environments on a GPU
_NAME = 22  # letters of a line that are its case
CASES: dict[str, dict[str, Any]] = {
    "SAC": {"reward.method": "none"},
    "TD3": {"reward.method": "none"},
    "FlashSAC": {"reward.method": "none"},
    "SAC + RRD": {},
    "SAC + RRD, unbiased": {"reward.method": "rrd-unbiased"},
}


def config_of(case: str, device: str, batches: int) -> ReplayTrainConfig:
    algo = {"TD3": "td3", "FlashSAC": "flash-sac"}.get(case, "sac")
    config = apply_overrides(find_preset("rrd-mujoco", algo).config, CASES[case])
    assert isinstance(config, ReplayTrainConfig)
    replay = dataclasses.replace(config.replay, train_batches=batches)
    return dataclasses.replace(config, device=device, replay=replay)


def learner_of(config: ReplayTrainConfig, episodes: int) -> ReplayLearner:
    device = find_device(config.device)
    obs_space, action_space = gym.spaces.Box(-np.inf, np.inf, (OBS,)), gym.spaces.Box(-1.0, 1.0, (ACTIONS,))
    policy = make_policy(config, obs_space, action_space, device)
    fields: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"obs": ((OBS,), torch.float32)}
    rows = episodes * (EPISODE + 1) + 2
    store = EpisodeStore(fields, ((ACTIONS,), torch.float32), rows, 0, 0, device)
    generator = torch.Generator().manual_seed(0)
    for _ in range(episodes):
        obs = torch.randn((EPISODE + 1, OBS), generator=generator)
        action = torch.rand((EPISODE, ACTIONS), generator=generator) * 2 - 1
        store.add({"obs": obs}, action, torch.randn(EPISODE, generator=generator), terminated=False)
    seed = derive_seed(config.seed, 6)
    if isinstance(config, FlashTrainConfig):
        assert isinstance(policy, FlashPolicy)
        agent: Agent = make_flash_agent(policy, config, seed)
    else:
        agent = make_agent(policy, config, seed)
    learner = make_learner(config, agent, store)
    if learner.reward_learner is not None:
        learner.reward_learner.fit(*store.returns_and_lengths())
    return learner


def seconds_of_update(learner: ReplayLearner) -> float:
    started = time.perf_counter()
    skipped = int(learner.update()["train/skipped_updates"])  # which waits for the device
    if skipped:
        sys.exit(f"{skipped} gradients were not finite: this is no speed.")
    return time.perf_counter() - started


def measure_stepping(preset: str, precision: str, ratio: int, batch_size: int, iterations: int) -> None:
    """FlashSAC on a GPU, alone and while the environments step there; `ratio` batches for every 1,024 steps."""
    steps, batches = 8 * MANY, 8 * ratio
    overrides: dict[str, Any] = {
        "device": "cuda",
        "precision": precision,
        "env.num_envs": MANY,
        "replay.steps": steps,
        "replay.train_batches": batches,
        "replay.batch_size": batch_size,
        "replay.warmup": 4 * steps,
        "replay.capacity": 10_000_000,
        "loop.total_steps": 10_000_000,
    }
    config = apply_overrides(find_preset(preset, "flash-sac").config, overrides)
    assert isinstance(config, FlashTrainConfig)
    torch.set_float32_matmul_precision(PRECISIONS[config.precision])
    job = make_flash_job(config, find_device("cuda"))
    done = 0

    def iterate(times: int) -> None:
        nonlocal done
        for _ in range(times):
            job.iteration(done, 0.0, lambda steps, batch: None)
            done += 1

    iterate(10)
    together = seconds_of(lambda: iterate(iterations)) / iterations
    assert isinstance(job, FlashJob)
    learner, collector, each = job.learner, job.collector, steps // MANY
    alone = seconds_of(lambda: [learner.update() for _ in range(iterations)]) / iterations
    collect = seconds_of(lambda: [collector.collect(each, False) for _ in range(iterations)]) / iterations
    print(
        f"{preset}, {MANY:,} environments, batches of {batch_size:,}: {batches / together:.0f} updates/s and "
        f"{steps / together:,.0f} steps/s; learning alone {batches / alone:.0f} updates/s, stepping alone "
        f"{steps / collect:,.0f} steps/s"
    )
    job.close()


def measure_collecting(preset: str, device: str, repeats: int, steps: int = 1_000) -> None:
    """Steps without any learning: how long each takes, and what of it. The policy learns on `device`."""
    overrides: dict[str, Any] = {"device": device, "replay.capacity": 10 * steps, "env.num_envs": 1}
    config = apply_overrides(find_preset(preset, "flash-sac").config, overrides)
    assert isinstance(config, FlashTrainConfig)
    job = make_flash_job(config, find_device(device))
    assert isinstance(job, FlashJob)
    collector, measured = job.collector, []
    for _ in range(repeats + 1):
        collector.timing = Timing()
        started = time.perf_counter()
        for _ in range(steps // 100):  # as many as an iteration
            collector.collect(100, at_random=False)
            collector.actor.note()
        whole = time.perf_counter() - started
        parts = collector.timing.act, collector.timing.simulate
        measured.append((whole, *parts, whole - sum(parts)))
    whole, act, simulate, record = (1e6 * second / steps for second in min(measured[1:]))
    parts_of_it = f"{act:.0f} act, {simulate:.0f} simulate, {record:.0f} else"
    print(f"{preset}: {1e6 / whole:.0f} steps/s; µs of a step: {parts_of_it}")
    job.close()


def seconds_of(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def run_processes(count: int, arguments: list[str]) -> None:
    """The same command so many times at once; what each reached lies in its output."""
    command = [sys.executable, *sys.argv[:1], *arguments]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    rates: dict[str, list[float]] = {}
    for process in processes:
        for line in process.communicate()[0].splitlines():
            name, rate = line[:_NAME].strip(), line[_NAME:].split()[0]
            rates.setdefault(name, []).append(float(rate))
    for name, values in rates.items():
        print(f"{name:{_NAME}} {sum(values):8.0f} updates/s of {len(values)} processes together")


def seconds_of_drawing(learner: ReplayLearner) -> float:
    """Drawing the iteration's batches and gathering one after another, without learning."""
    rows = [learner._drawn["rows"][i] for i in range(learner.train_batches)]
    started = time.perf_counter()
    with torch.inference_mode():
        learner._draw()
        for row in rows:
            learner.store.obs["obs"].index_select(0, row)
            learner.store.action.index_select(0, row[: len(row) // 2])
    return time.perf_counter() - started


class PeerSAC:
    """Stable-Baselines3's SAC at its defaults, which are the same sizes."""

    def __init__(self, steps: int) -> None:
        from stable_baselines3 import SAC

        self.model = SAC("MlpPolicy", "HalfCheetah-v5", device="cpu", learning_starts=10**9, buffer_size=100_000)
        self.model.learn(steps)

    def seconds(self, batches: int) -> float:
        started = time.perf_counter()
        self.model.train(gradient_steps=batches, batch_size=256)
        return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=PRECISIONS)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, default=0, help="of one measurement; 0: 100, on a GPU 1000")
    parser.add_argument("--processes", type=int, default=1, help="at once; how fast all are together")
    parser.add_argument("--stepping", default="", metavar="PRESET", help="FlashSAC while 1,024 of these step")
    parser.add_argument("--ratio", type=int, default=4, help="of --stepping: batches for every 1,024 steps")
    parser.add_argument(
        "--collecting", default="", metavar="PRESET", help="steps of one of these, without learning"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.collecting:
        measure_collecting(arguments.collecting, arguments.device, arguments.repeats)
        return
    if arguments.stepping:
        measure_stepping(arguments.stepping, arguments.precision, arguments.ratio, 2_048, 20)
        return
    if arguments.processes > 1:
        own = ["--device", arguments.device, "--precision", arguments.precision, "--only", *arguments.only]
        pace = ["--repeats", str(arguments.repeats), "--batches", str(arguments.batches)]
        run_processes(arguments.processes, [*own, *pace])
        return
    torch.set_float32_matmul_precision(PRECISIONS[arguments.precision])
    batches = arguments.batches or (100 if arguments.device == "cpu" else 1000)
    learners = {case: learner_of(config_of(case, arguments.device, batches), 100) for case in arguments.only}
    peer = PeerSAC(2_000) if arguments.device == "cpu" else None
    times: dict[str, list[float]] = {case: [] for case in arguments.only}
    if peer:
        times["Stable-Baselines3 SAC"] = []
    for repeat in range(arguments.repeats + 1):
        for case, learner in learners.items():
            times[case].append(seconds_of_update(learner))
        if peer:
            times["Stable-Baselines3 SAC"].append(peer.seconds(batches))
        if not repeat:  # warm-up, and recording of graphs
            times = {name: [] for name in times}
    rates = {name: batches / statistics.median(values) for name, values in times.items()}
    for name, rate in rates.items():
        beside = f", {rate / rates['Stable-Baselines3 SAC']:.2f} × Stable-Baselines3's SAC" if peer else ""
        print(f"{name:{_NAME}} {rate:8.0f} updates/s ({1e3 / rate:.2f} ms){beside}")
    if peer and "SAC + RRD" in learners:
        case = "SAC + RRD"
        share = statistics.median(seconds_of_drawing(learners[case]) for _ in range(5)) / statistics.median(
            times[case]
        )
        print(f"drawing and gathering batches: {share:.1%} of {case}'s time")


if __name__ == "__main__":
    main()
