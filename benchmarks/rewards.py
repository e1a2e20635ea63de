"""Rewards from recorded episodes of our own KUKA task, half of them failures, measured on a held-out third.

python benchmarks/rewards.py             from vectors, three seeds: a minute
python benchmarks/rewards.py --images    from one camera, 64 × 64: minutes a seed
python benchmarks/rewards.py --policies  policies from them: imitation of all, of successes, and joint learning
python benchmarks/rewards.py --policies --images --jobs 2    the same, seen in two images of 32 × 32: an hour
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ludus
from ludus.recording import RecordConfig, record
from ludus.rewards import held_out_metrics
from ludus.runs import evaluate_run
from ludus.show.console import Console

VECTORS: dict[str, Any] = {
    "data.keys": ["state"],
    "reward.rrd_batch_size": 512,
    "reward.rrd_sample_size": 2,
    "reward.weight_decay": 5.0,
    "loop.cycles": 8,
    "loop.iterations": 10,
}
IMAGES: dict[str, Any] = {
    "data.keys": ["agentview_rgb"],
    "reward.rrd_batch_size": 64,
    "reward.rrd_sample_size": 4,
    "reward.learning_rate": 1e-3,
    "loop.cycles": 8,
    "loop.iterations": 5,
}
BARS = {False: {"AUC": 0.99, "correlation_within": 0.8}, True: {"AUC": 0.99, "correlation_within": 0.6}}

# Policies, each evaluated at new starts. Joint learning sees all episodes and their returns.
POLICIES: dict[str, dict[str, Any]] = {
    "imitation of all": {"replay.bc": 0.01},
    "imitation of successes": {"replay.bc": 0.01, "data.filter": "success"},
    "joint": {
        "replay.advantage": 1.0,
        "reward.method": "rrd",
        "reward.rrd_batch_size": 256,
        "reward.rrd_sample_size": 2,
        "reward.weight_decay": 5.0,
    },
}
SEEN: dict[bool, dict[str, Any]] = {
    False: {"data.keys": ["state"]},
    True: {  # the policy sees images alone; what only learning needs sees the state
        "data.keys": ["state", "agentview_rgb", "eye_in_hand_rgb"],
        "env.image_size": 32,
        "policy.actor_parts": ["agentview", "eye_in_hand"],
        "policy.critic_parts": ["state"],
        "policy.cnn": "residual",
        "policy.image_features": 64,
        "replay.batch_size": 64,
        "replay.average": 500,
        "td3.policy_delay": 1,
    },
}
BATCHES = {False: 5_000, True: 3_000}
# From images a tutor learns alone first. Then the policy makes as many updates as it does by plain imitation.
TUTOR_BATCHES = 34_000
STARTS = 200


def measure_policy(data: Path, folder: Path, settings: dict[str, Any], seed: int, batches: int) -> float:
    """Share of new starts that succeed."""
    quick = {"eval.episodes": 4, "eval.final_episodes": 0, "log.report": False, "log.tensorboard": False}
    overrides = settings | quick | {"data": str(data), "loop.total_steps": batches, "eval.every": batches}
    quiet = Console("quiet")
    run = ludus.train("kuka-pick-place", folder, console=quiet, algo="td3", seed=seed, overrides=overrides)
    return evaluate_run(run, STARTS, deterministic=True).summary()["success_rate"]


def policies(data: Path, folder: Path, images: bool, seeds: int, batches: int, jobs: int, only: str) -> int:
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        started = {}
        for name, settings in POLICIES.items():
            if only not in name:
                continue
            seen, count = SEEN[images] | settings, batches
            if images and name == "joint":
                count += TUTOR_BATCHES
                seen |= {"td3.tutor": TUTOR_BATCHES / count, "td3.policy_delay": 2}
            started[name] = [
                pool.submit(measure_policy, data, folder / f"{name} {seed}", seen, seed, count)
                for seed in range(seeds)
            ]
        means = [_tell_policy(name, [run.result() for run in runs]) for name, runs in started.items()]
    if only:
        return 0
    *others, joint = means
    print(f"joint learning is {'better: ok' if joint > max(others) else 'not better: MISSED'}")
    return 0 if joint > max(others) else 1


def _tell_policy(name: str, shares: list[float]) -> float:
    mean, each = statistics.mean(shares), ", ".join(f"{100 * share:.1f}" for share in shares)
    print(f"{name:24} {100 * mean:5.1f} % of {STARTS} new starts ({each})", flush=True)
    return mean


def measure(data: Path, folder: Path, settings: dict[str, Any], seed: int) -> dict[str, float]:
    overrides = {**settings, "loop.epochs": 1, "data": str(data), "log.report": False, "log.tensorboard": False}
    run = ludus.train("rrd-libero", folder, console=Console("quiet"), seed=seed, overrides=overrides)
    return {name.removeprefix("reward/"): value for name, value in held_out_metrics(run).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--episodes", type=int, default=0, help="0: 400, with images 240")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--policies", action="store_true")
    parser.add_argument("--only", default="", help="policies whose name has this")
    parser.add_argument("--batches", type=int, default=0, help="of policies; 0: 5,000, with images 3,000")
    parser.add_argument("--jobs", type=int, default=1, help="policies that are trained at a time")
    arguments = parser.parse_args()
    if not any(arguments.only in name for name in POLICIES):
        parser.error(f"--only {arguments.only}: policies are {', '.join(POLICIES)}")
    episodes = arguments.episodes or (240 if arguments.images and not arguments.policies else 400)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "kuka.hdf5"
        pixels = 32 if arguments.policies else 64
        record("scripted", data, RecordConfig(episodes=episodes, images=pixels if arguments.images else 0))
        if arguments.policies:
            batches = arguments.batches or BATCHES[arguments.images]
            how = arguments.images, arguments.seeds, batches, arguments.jobs, arguments.only
            return policies(data, Path(folder), *how)
        settings = IMAGES if arguments.images else VECTORS
        found = []
        for seed in range(arguments.seeds):
            found.append(measure(data, Path(folder) / str(seed), settings, seed))
            told = ", ".join(f"{name} {value:.3f}" for name, value in found[-1].items())
            print(f"seed {seed}: {told}", flush=True)
    good = True
    for name, bar in BARS[arguments.images].items():
        mean = statistics.mean(metrics[name] for metrics in found)
        good &= mean >= bar
        print(f"{name:20} {mean:.3f}  bar {bar}  {'ok' if mean >= bar else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
