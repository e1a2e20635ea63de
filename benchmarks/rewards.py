"""Rewards from recorded episodes of our own KUKA task, half of them failures, measured on a held-out third.

python benchmarks/rewards.py             from vectors, three seeds: a minute
python benchmarks/rewards.py --images    from one camera, 64 × 64: minutes a seed
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import ludus
from ludus.recording import RecordConfig, record
from ludus.rewards import held_out_metrics
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


def measure(data: Path, folder: Path, settings: dict[str, Any], seed: int) -> dict[str, float]:
    overrides = {**settings, "loop.epochs": 1, "data": str(data), "log.report": False, "log.tensorboard": False}
    run = ludus.train("rrd-libero", folder, console=Console("quiet"), seed=seed, overrides=overrides)
    return {name.removeprefix("reward/"): value for name, value in held_out_metrics(run).items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--episodes", type=int, default=0, help="0: 400, with images 240")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    episodes = arguments.episodes or (240 if arguments.images else 400)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "kuka.hdf5"
        record("scripted", data, RecordConfig(episodes=episodes, images=64 if arguments.images else 0))
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
