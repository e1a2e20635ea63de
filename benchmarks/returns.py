"""Learning with SAC, FlashSAC and from one return per episode, several runs at once.

python benchmarks/returns.py pendulum            on a CPU: minutes a run
python benchmarks/returns.py mujoco --device cuda --parallel 16     on a GPU: hours of one core each otherwise
python benchmarks/returns.py flash --device cuda --parallel 6       five runners of Gymnasium, a million steps
python benchmarks/returns.py flash-rrd --device cuda --parallel 6   from one return per episode, beside dense
python benchmarks/returns.py flash --device cuda --parallel 10 --seeds 1 --stop-at 500k     half of it, one seed
python benchmarks/returns.py many --device cuda --parallel 2     FlashSAC beside PPO over minutes, all on a GPU

Interrupted, the same command goes on where it was. `--table` only reads what there is.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ludus.training.shared_gpu import SHARE

_DELAYED = ["--episodic-reward"]


@dataclass(frozen=True)
class Case:
    """One line of a table: some seeds of one task with one method."""

    task: str
    method: str
    preset: str
    flags: tuple[str, ...]
    seeds: int = 3


def _pendulum(method: str, *flags: str, algo: str = "sac") -> Case:
    return Case("Pendulum-v1", method, "gym:Pendulum-v1", ("--algo", algo, *flags))


def _inverted(method: str, *flags: str) -> Case:
    steps = ("--epochs", "1", "--cycles", "10", "--iterations", "30", "--replay.warmup", "1000")
    flags = (*steps, "--policy.hidden", "64", "64", "--reward.hidden", "64", "64", *flags)
    return Case("InvertedPendulum-v5", method, "rrd-mujoco:InvertedPendulum-v5", flags)


def _runner(task: str, method: str, seeds: int, *flags: str) -> Case:
    steps = (
        "--epochs",
        "10",
        "--cycles",
        "10",
        "--eval.no-each-cycle",
        "--precision",
        "tf32",
        "--env.threads",
        "1",
    )
    return Case(task, method, f"rrd-mujoco:{task}", (*steps, *flags), seeds)


def _published(task: str, method: str, *flags: str) -> Case:
    """As FlashSAC was measured: by 50 deterministic episodes, of which the last evaluation counts."""
    measured = (
        "--total-steps",
        "1M",
        "--eval.every",
        "500k",
        "--eval.episodes",
        "50",
        "--eval.final-episodes",
        "0",
    )
    flags = (*measured, "--checkpoint.every", "500k", *flags)
    return Case(f"{task}-v4", method, f"gym:{task}-v4", flags)


def _published_all(method: str, *flags: str) -> list[Case]:
    return [_published(task, method, *flags) for task in ("HalfCheetah", "Hopper", "Walker2d", "Ant", "Humanoid")]


def _many(task: str, method: str, preset: str, *flags: str) -> Case:
    """On MuJoCo Warp, often evaluated: what counts is when."""
    return Case(task, method, preset, flags, seeds=1)


_SMALL_RRD = ("--reward.no-normalize-returns", "--reward.hidden", "64", "64", "--reward.learning-rate", "1e-3")
_PENDULUM_RRD = (*_DELAYED, "--rrd-sample-size", "32", *_SMALL_RRD, "--reward.method")
_DENSE = ("--no-episodic-reward", "--reward.method", "none")
_LATE = ("--reward.method", "none")
_AVERAGED = ("--algo", "flash-sac", "--replay.average", "1000")
_FLASH_RRD = (*_AVERAGED, *_DELAYED, "--reward.no-normalize-returns")  # as the preset rrd-mujoco
_FLASH = _published_all("FlashSAC", *_AVERAGED)
_RUNNERS = ("--total-steps", "50M", "--eval.every", "2.5M")
_MANY_REPLAY = (  # as presets for a GPU have it by themselves
    *("--algo", "flash-sac", "--env.num-envs", "1024", "--replay.capacity", "10M", "--replay.warmup", "100k"),
    *("--replay.steps", "8192", "--train-batches", "32", "--batch-size", "2048"),
)
SUITES = {
    "pendulum": [
        _pendulum("SAC, dense reward"),
        _pendulum("FlashSAC, dense reward", algo="flash-sac"),
        _pendulum("SAC", *_DELAYED),
        _pendulum("RRD", *_PENDULUM_RRD, "rrd"),
        _pendulum("RRD unbiased", *_PENDULUM_RRD, "rrd-unbiased"),
        _pendulum("FlashSAC RRD", *_PENDULUM_RRD, "rrd", algo="flash-sac"),
        _pendulum("IRCR", *_DELAYED, "--reward.method", "ircr"),
        _inverted("SAC, dense reward", *_DENSE),
        _inverted("SAC", *_LATE),
        _inverted("RRD"),
        _inverted("RRD unbiased", "--reward.method", "rrd-unbiased"),
        _inverted("IRCR", "--reward.method", "ircr"),
    ],
    "mujoco": [
        _runner("half-cheetah", "SAC, dense reward", 3, *_DENSE),
        _runner("half-cheetah", "RRD", 3),
        _runner("hopper", "SAC, dense reward", 3, *_DENSE),
        _runner("walker2d", "SAC, dense reward", 3, *_DENSE),
        _runner("half-cheetah", "RRD unbiased", 3, "--reward.method", "rrd-unbiased"),
        _runner("half-cheetah", "IRCR", 1, "--reward.method", "ircr"),
        _runner("half-cheetah", "SAC", 1, *_LATE),
        _runner("hopper", "RRD", 1),
        _runner("walker2d", "RRD", 1),
    ],
    "flash": [*_FLASH, *_published_all("SAC", "--algo", "sac", "--precision", "tf32")],
    "many": [
        _many("kuka", "PPO", "kuka-pick-place-large"),
        _many("kuka", "FlashSAC", "kuka-pick-place-large", "--algo", "flash-sac", "--eval.every", "50k"),
        _many("half-cheetah", "FlashSAC", "half-cheetah", *_RUNNERS, *_MANY_REPLAY),
        _many("half-cheetah", "PPO", "half-cheetah", *_RUNNERS, "--env.num-envs", "2048", "--precision", "tf32"),
    ],
    "flash-rrd": [
        *_FLASH,
        *_published_all("FlashSAC RRD", *_FLASH_RRD, "--reward.method", "rrd"),
        *_published_all("FlashSAC unbiased RRD", *_FLASH_RRD, "--reward.method", "rrd-unbiased"),
    ],
}


def folder_of(root: Path, case: Case, seed: int) -> Path:
    return root / f"{case.task}-{case.method}-{seed}".replace(" ", "_").replace(",", "")


def command_of(case: Case, seed: int, folder: Path, device: str) -> list[str]:
    program = [sys.executable, "-m", "ludus.cli"]
    if (folder / "checkpoints").exists():
        return [*program, "resume", str(folder)]
    flags = [
        "--seed",
        str(seed),
        "--device",
        device,
        "--run-dir",
        str(folder),
        "--log.no-report",
        "--log.no-tensorboard",
    ]
    return [*program, "train", case.preset, *case.flags, *flags]


def run_all(
    cases: list[Case], root: Path, device: str, parallel: int, seconds: float, more: tuple[str, ...] = ()
) -> None:
    """Start as many as may run at once; at the end of the time they are asked to stop, and save."""
    deadline = time.monotonic() + seconds
    waiting = [(case, seed) for case in cases for seed in range(case.seeds)]
    waiting = [(case, seed) for case, seed in waiting if not (folder_of(root, case, seed) / "final").exists()]
    running: list[subprocess.Popen[bytes]] = []
    # Under NVIDIA's MPS each keeps to a part of the GPU: so they disturb each other less.
    share = {} if SHARE in os.environ or parallel == 1 else {SHARE: "25" if parallel <= 10 else "18"}
    root.mkdir(parents=True, exist_ok=True)
    while (waiting or running) and time.monotonic() < deadline:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < parallel:
            case, seed = waiting.pop(0)
            folder = folder_of(root, case, seed)
            log = (root / f"{folder.name}.log").open("ab")
            environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1", **share}
            running.append(
                subprocess.Popen(
                    [*command_of(case, seed, folder, device), *more], stdout=log, stderr=log, env=environment
                )
            )
        time.sleep(0.5)
    for process in running:
        process.terminate()
    for process in running:
        process.wait()


def evaluations(folder: Path) -> list[tuple[int, float, float]]:
    """Of each the step, the minutes until then, and the return or the success rate, in %."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    told, minutes = [], 0.0
    for row in map(json.loads, path.read_text().splitlines()):
        minutes = row.get("time/time_elapsed", 60 * minutes) / 60
        if "eval/mean_reward" in row:
            success = row.get("eval/success_rate")
            told.append((row["step"], minutes, row["eval/mean_reward"] if success is None else 100 * success))
    return told


def print_table(cases: list[Case], root: Path, over_time: bool) -> None:
    """The last evaluation of every run, the three before it and the best; or all of them over minutes."""
    for case in cases:
        for seed in range(case.seeds):
            curve = evaluations(folder_of(root, case, seed))
            shown = [f"{step / 1000:.0f}k {value:.0f}" for step, _, value in curve[-4:]]
            if over_time:
                shown = [f"{minutes:.1f} min {value:.0f}" for _, minutes, value in curve]
            best = max((value for *_, value in curve), default=float("nan"))
            name = f"{case.task:20} {case.method:18} seed {seed}"
            print(f"{name}: {', '.join(shown) or 'nothing yet'}; best {best:.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--root", type=Path, default=Path("runs/returns"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop, and save, after so long")
    parser.add_argument("--seeds", type=int, default=100, help="of each case at most")
    parser.add_argument("--stop-at", default="", metavar="STEP", help="before the end, where the schedule goes on")
    parser.add_argument("--only", default="", help="part of a task's or a method's name")
    parser.add_argument("--table", action="store_true", help="only print what there is")
    arguments = parser.parse_args()
    cases = [
        dataclasses.replace(case, seeds=min(case.seeds, arguments.seeds))
        for case in SUITES[arguments.suite]
        if arguments.only in f"{case.task} {case.method}"
    ]
    if not arguments.table:
        more = ("--stop-at", arguments.stop_at) if arguments.stop_at else ()
        run_all(cases, arguments.root, arguments.device, arguments.parallel, arguments.seconds, more)
    print_table(cases, arguments.root, over_time=arguments.suite == "many")


if __name__ == "__main__":
    main()
