"""Does it learn? Trains the presets on several seeds and holds the policies against the bars.

    python benchmarks/learning.py                         everything that needs no GPU, one run after the other
    python benchmarks/learning.py kuka --jobs 2           one case
    python benchmarks/learning.py kuka-large              the main job on a GPU
    python benchmarks/learning.py --jobs 16 --threads 1   on a machine with many cores

Every run is `ludus train` and `ludus eval` on new starts, in processes of their own.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Case:
    """A preset, its seeds and what the policies must reach."""

    preset: str
    seeds: int
    episodes: int
    metric: str
    bar: float  # of the mean over seeds
    every_seed: float | None = None  # of the worst seed
    stochastic_bar: float | None = None
    flags: tuple[str, ...] = ()


CASES = {
    "kuka": Case("kuka-pick-place", 5, 200, "success_rate", 0.98, 0.98, 0.95),
    "kuka-fixed": Case(
        "kuka-pick-place", 3, 200, "success_rate", 0.99, None, None, ("--env.fixed", "--total-steps", "200000")
    ),
    "kuka-sb3": Case("kuka-sb3", 3, 100, "success_rate", 0.90),
    "kuka-large": Case("kuka-pick-place-large", 3, 200, "success_rate", 0.97, 0.90, 0.95),
    "kuka-flash": Case("kuka-pick-place", 3, 200, "success_rate", 0.97, None, None, ("--algo", "flash-sac")),
    "kuka-goals": Case("kuka-goals", 3, 200, "success_rate", 0.97, None, None, ("--device", "cuda")),
    "fetch-reach": Case(
        "gym:FetchReach-v4", 3, 200, "success_rate", 0.99, 0.95, None, ("--algo", "sac")
    ),  # needs ludus[robotics]
    "fetch-pick-place": Case(
        "gym:FetchPickAndPlace-v4",
        3,
        200,
        "success_rate",
        0.95,
        None,
        None,
        ("--algo", "flash-sac", "--device", "cuda", "--env.num-envs", "4", "--env.workers", "4"),
    ),  # needs ludus[robotics]
    "cartpole": Case("gym:CartPole-v1", 3, 100, "mean_reward", 475),
    "cartpole-hidden": Case("gym:ludus/CartPoleNoVelocity-v1", 3, 100, "mean_reward", 500),
    "pendulum": Case("gym:Pendulum-v1", 6, 100, "mean_reward", -180),
    "lunar-lander": Case("gym:LunarLander-v3", 3, 100, "mean_reward", 200),  # needs Box2D
    "blackjack": Case("gym:Blackjack-v1", 3, 20_000, "mean_reward", -0.08),  # standard error 0.007
    "frozen-lake": Case("gym:FrozenLake-v1", 3, 2_000, "mean_reward", 0.65),
    "taxi": Case("gym:Taxi-v4", 3, 1_000, "mean_reward", 6),
    "half-cheetah": Case("half-cheetah", 3, 20, "mean_reward", 5800),
    "hopper": Case("hopper", 3, 20, "mean_reward", 2600),
    "walker2d": Case("walker2d", 3, 20, "mean_reward", 3600),
}
NEED_GPU = {"kuka-large", "kuka-goals", "fetch-pick-place"}


@dataclass
class Result:
    deterministic: float
    stochastic: float
    seconds: float
    reached: float  # seconds of training before the first evaluation at the bar; NaN: none was


def ludus(*arguments: str) -> str:
    command = [sys.executable, "-m", "ludus.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def train_and_measure(case: Case, seed: int, folder: Path, threads: int) -> Result:
    run = str(folder / f"{case.preset.replace(':', '-')}-{'-'.join(case.flags).strip('-')}-{seed}")
    thread_flags = [f"--env.threads={threads}"] if threads and not case.preset.startswith("gym:") else []
    started = time.perf_counter()
    flags = [*case.flags, *thread_flags, "--log.no-report", "--log.no-tensorboard"]
    ludus("train", case.preset, "--seed", str(seed), "--run-dir", run, *flags)
    seconds = time.perf_counter() - started
    values = [
        json.loads(ludus("eval", run, "--episodes", str(case.episodes), "--json", *extra))[case.metric]
        for extra in ([], ["--stochastic"])
    ]
    return Result(values[0], values[1], seconds, seconds_to_bar(Path(run) / "metrics.jsonl", case))


def seconds_to_bar(metrics: Path, case: Case) -> float:
    elapsed = 0.0
    for row in map(json.loads, metrics.read_text().splitlines()):
        elapsed = row.get("time/time_elapsed", elapsed)
        if row.get(f"eval/{case.metric}", -math.inf) >= case.bar:
            return elapsed
    return math.nan


def report(name: str, case: Case, results: list[Result]) -> bool:
    values = [r.deterministic for r in results]
    mean, sampled = statistics.mean(values), statistics.mean(r.stochastic for r in results)
    passed = mean >= case.bar
    passed &= case.every_seed is None or min(values) >= case.every_seed
    passed &= case.stochastic_bar is None or sampled >= case.stochastic_bar
    shown = ", ".join(f"{v:.3g}" if abs(v) < 10 else f"{v:,.0f}" for v in values)
    print(
        f"{name:13} {case.metric:12} mean {mean:9,.3f}  sampled {sampled:9,.3f}  seeds {shown:32}  "
        f"bar {case.bar:g}  {'ok' if passed else 'MISSED'}  ({max(r.seconds for r in results):.0f} s a run, "
        f"evaluated at the bar after {', '.join(f'{r.reached:.0f}' for r in results)} s of training)",
        flush=True,
    )
    return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=0, help="simulation threads of a run; 0: all cores")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark"), help="where the runs go")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of each case instead of its own number")
    arguments = parser.parse_args()
    unknown = set(arguments.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown case {', '.join(unknown)}; the cases are {', '.join(CASES)}")
    names = arguments.cases or [name for name in CASES if name not in NEED_GPU]
    folder = arguments.folder / time.strftime("%Y%m%d-%H%M%S")
    with ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {
            name: [
                pool.submit(train_and_measure, CASES[name], seed, folder, arguments.threads)
                for seed in range(arguments.seeds or CASES[name].seeds)
            ]
            for name in names
        }
        passed = [report(name, CASES[name], [job.result() for job in jobs[name]]) for name in names]
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
