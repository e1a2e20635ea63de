"""Kill a random rank at random moments of a training, again and again: it must go on without a hand, and learn.

python benchmarks/lost_ranks.py --kills 20 --seed 0
"""

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

_SOLVED = 475.0  # CartPole-v1, of 500
_SETTINGS = (
    "--procs 2 --env.num-envs 4 --env.workers 0 --ppo.horizon 32 --eval.every 2000 --eval.episodes 4 "
    "--eval.final-episodes 50 --log.no-report --log.no-tensorboard --total-steps"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    parser.add_argument("--steps", type=int, default=80_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ludus-lost-ranks-") as folder:
        run = Path(folder) / "run"
        words = ["train", "gym:CartPole-v1", "--run-dir", str(run), *_SETTINGS.split(), str(options.steps)]
        with (Path(folder) / "log").open("w+") as log:
            training = subprocess.Popen([sys.executable, "-m", "ludus", *words], stdout=log, stderr=log)
            try:
                kills = _kill(training, run, options.kills, random.Random(options.seed))
                code = training.wait()
            finally:
                training.kill()
            log.seek(0)
            restarts = log.read().count("All ranks go on from")
        reward = _final_reward(run) if code == 0 else float("nan")
    print(f"{kills} kills, {restarts} times gone on, exit code {code}, mean return on new starts {reward:.1f}")
    return 0 if kills == restarts == options.kills and code == 0 and reward >= _SOLVED else 1


def _kill(training: "subprocess.Popen[bytes]", run: Path, kills: int, draw: random.Random) -> int:
    """After none to two new checkpoints and up to 1.5 s, while the ranks start as well as while they train."""
    for number in range(kills):
        wanted, pause, rank = draw.choice([0, 1, 1, 2]), draw.uniform(0.0, 1.5), draw.randrange(2)
        before = _newest(run)
        ranks = _ranks(training)
        while len(ranks) < 2 or (wanted and _newest(run) < before + wanted * 2000):
            if training.poll() is not None:
                return number
            time.sleep(0.05)
            ranks = _ranks(training)
        time.sleep(pause)
        print(f"kill {number + 1}: rank {rank} after step {_newest(run):,}", flush=True)
        with contextlib.suppress(psutil.NoSuchProcess):
            ranks[rank].kill()
        while set(_ranks(training)) & set(ranks) and training.poll() is None:
            time.sleep(0.05)
    return kills


def _ranks(training: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    try:
        return psutil.Process(training.pid).children()
    except psutil.NoSuchProcess:
        return []


def _newest(run: Path) -> int:
    return max((int(path.name.removeprefix("step_")) for path in run.glob("checkpoints/step_*")), default=0)


def _final_reward(run: Path) -> float:
    return float(json.loads((run / "standing.json").read_text())["final"]["value"])


if __name__ == "__main__":
    sys.exit(main())
