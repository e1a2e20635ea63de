"""This state of the code against an earlier one: the speed of training, and whether the same is learned.

    python benchmarks/against.py COMMIT                    all cases
    python benchmarks/against.py COMMIT kuka cartpole      some

Both train the same preset with the same seed in processes of their own, by turns, so that a busy machine disturbs
both alike. Speed is counted per second and per second of processor time, which other work on the machine moves
less: that one has the bar. The ratios are medians of new/old over the rounds; beside them stands whether the
weights are equal bit by bit at the end. The earlier state is checked out into a temporary folder.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# preset, iterations, algorithm ("": the preset's). Long enough to be timed, short enough for three rounds in
# minutes.
CASES = {
    "kuka": ("kuka-pick-place", 10, ""),
    "half-cheetah": ("half-cheetah", 12, ""),
    "cartpole": ("gym:CartPole-v1", 200, ""),
    "forage": ("forage", 4, ""),
    "humanoid": ("humanoid-mimic", 15, ""),
    "rrd": ("rrd-mujoco:Pendulum-v1", 40, ""),
    "sac": ("gym:Pendulum-v1", 120, "sac"),
    "td3": ("gym:Pendulum-v1", 120, "td3"),
    "dqn": ("gym:CartPole-v1", 60, "dqn"),
}
LEAST = 0.97  # of the earlier speed

# Uses nothing but what every state of the code has.
PROGRAM = """
import hashlib, json, os, sys, tempfile, time
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
from dataclasses import replace
from pathlib import Path
import ludus
from ludus.config import EvalConfig, LogConfig, LoopConfig
from ludus.presets import find_preset
try:
    from ludus.show.console import Console
except ImportError:  # where it was in earlier states
    from ludus.logging.console import Console
from ludus.training.callbacks import Callback

class Clock(Callback):
    def on_start(self, run):
        self.times, self.run = [], run
    def on_iteration(self, run):
        self.times.append((time.perf_counter(), time.process_time()))
        return len(self.times) <= ITERATIONS

preset, ITERATIONS, algo = sys.argv[1], int(sys.argv[2]), sys.argv[3]
config = find_preset(preset, algo).config
config = replace(config, eval=EvalConfig(every=10**12, episodes=1, stochastic=False), log=LogConfig(report=False))
clock = Clock()
with tempfile.TemporaryDirectory() as folder, Console("quiet") as console:
    run = ludus.train("benchmark", run_dir=Path(folder) / "run", callbacks=[clock], console=console, config=config)
    steps = clock.run.plan.steps_per_iteration
    weights = sorted(Path(folder).glob("run/checkpoints/*/policy.safetensors"))[-1].read_bytes()
rates = [steps * (len(clock.times) - 1) / (last - first) for first, last in zip(clock.times[0], clock.times[-1])]
print(json.dumps({"rates": rates, "weights": hashlib.sha256(weights).hexdigest()}))
"""


def measure(tree: Path, preset: str, iterations: int, algo: str) -> tuple[tuple[float, float], str]:
    """Steps per second and per processor second after the first iteration; a digest of the weights at the end."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}
    command = [sys.executable, "-c", PROGRAM, preset, str(iterations), algo]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{preset} failed in {tree}:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return found["rates"], found["weights"]


def compare(name: str, earlier: Path, repeats: int) -> bool:
    rates, by_second, by_work, equal = [], [], [], True
    for i in range(repeats):
        order = (earlier, ROOT) if i % 2 == 0 else (ROOT, earlier)
        found = {tree: measure(tree, *CASES[name]) for tree in order}
        (new, new_weights), (old, old_weights) = found[ROOT], found[earlier]
        rates.append(new[0])
        by_second.append(new[0] / old[0])
        by_work.append(new[1] / old[1])
        equal &= new_weights == old_weights
    ratio = statistics.median(by_work)
    print(
        f"{name:13} {statistics.median(rates):8,.0f} steps/s   new/old {statistics.median(by_second):.2f} "
        f"({min(by_second):.2f}–{max(by_second):.2f})   by processor time {ratio:.3f} ({min(by_work):.2f}–"
        f"{max(by_work):.2f})   bar {LEAST}   {'ok' if ratio >= LEAST else 'MISSED'}   "
        f"weights {'equal' if equal else 'differ'}",
        flush=True,
    )
    return ratio >= LEAST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier state")
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="which (all by default)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        earlier = Path(folder) / "earlier"
        subprocess.run(
            ["git", "-C", ROOT, "worktree", "add", "-q", "--detach", earlier, arguments.commit], check=True
        )
        try:
            passed = [compare(name, earlier, arguments.repeats) for name in arguments.cases or CASES]
        finally:
            subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", earlier], check=True)
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
