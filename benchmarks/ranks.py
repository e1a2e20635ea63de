"""What a second process costs, and whether two learn as one does (`--procs 2`).

    python benchmarks/ranks.py [cost] [curves] [--long]

cost: CPU-seconds of an iteration at the KUKA's sizes: of one process with 128 rows, and of each of two ranks with
128 rows. They run in turns; every turn has its ratio, and the median is told. Two processes that know nothing of
each other run in turn as well: what these cost more is the machine's doing (caches, clocks), not the ranks'.

curves: CartPole with five seeds, one process with 8 environments against two ranks with 4 each: the means of the
last evaluations.
"""

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

import ludus
from ludus import ranks
from ludus.algorithms.registry import make_job
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.show.statistics import difference, mean

MOST = 1.05  # times the CPU-seconds of one process
ROWS = 128
WARM_UP = 2  # iterations
SEEDS = 5
LAST = 3  # evaluations of which a seed's result is the mean


# Cost -------------------------------------------------------------------------------------------------
def cpu_seconds(iterations: int) -> float:
    """Of one iteration of this process, rank or not."""
    torch.set_num_threads(1)
    settings = {"env.num_envs": ROWS, "env.threads": 1, "groups": 1}
    config = apply_overrides(find_preset("kuka-pick-place").config, settings)
    job = make_job(dataclasses.replace(config, torch_threads=1), torch.device("cpu"))
    try:
        for number in range(WARM_UP + iterations):
            if number == WARM_UP:
                began = time.process_time()
            job.iteration(number, 0.0, lambda share, batch: None)
        return (time.process_time() - began) / iterations
    finally:
        job.close()


def side_by_side(tickets: Sequence[ranks.Ticket | None], iterations: int) -> float:
    """The mean over processes, forked from this one; one with a ticket is a rank."""
    pipes = [os.pipe() for _ in tickets]
    for ticket, (_, writable) in zip(tickets, pipes, strict=True):
        if os.fork() == 0:
            code = 1
            try:
                if ticket is not None:
                    ranks.join(ticket)
                os.write(writable, json.dumps(cpu_seconds(iterations)).encode())
                code = 0
            finally:
                os._exit(code)
    for _ in tickets:
        os.wait()
    found = []
    for readable, writable in pipes:
        os.close(writable)
        with os.fdopen(readable) as answer:
            found.append(float(answer.read()))  # nothing to read: the process has said why
    return statistics.fmean(found)


def cost(rounds: int, iterations: int) -> None:
    ratios: dict[str, list[float]] = {"two strangers": [], "two ranks": []}
    print(f"{'':>6}{'one':>12}{'two strangers':>16}{'two ranks':>12}   CPU-s an iteration and process")
    for turn in range(rounds):
        memory = ranks.make_memory(2)
        try:
            one = side_by_side([None], iterations)
            strangers = side_by_side([None, None], iterations)
            both = side_by_side([ranks.Ticket(rank, 2, memory=memory) for rank in range(2)], iterations)
        finally:
            os.close(memory)
        ratios["two strangers"].append(strangers / one)
        ratios["two ranks"].append(both / one)
        print(f"{turn + 1:>6}{one:>12.3f}{strangers:>16.3f}{both:>12.3f}", flush=True)
    for name, values in ratios.items():
        low, high = min(values), max(values)
        print(f"{name}: {statistics.median(values):.3f} × one process ({low:.3f} to {high:.3f})")
    ranks_cost = statistics.median(ratios["two ranks"])
    print(f"{'ok' if ranks_cost <= MOST else 'TOO MUCH'}: at most {MOST} × is wanted of two ranks")


# Curves -----------------------------------------------------------------------------------------------
def final_return(folder: Path, seed: int, procs: int, steps: int) -> float:
    settings = {
        "seed": seed, "procs": procs, "env.num_envs": 8 // procs, "loop.total_steps": steps,
        "eval.every": steps // 10, "eval.stochastic": False, "eval.final_episodes": 0, "log.report": False,
        "log.tensorboard": False,
    }  # fmt: skip
    run = ludus.train("gym:CartPole-v1", folder, console=Console("quiet"), overrides=settings)
    rows = map(json.loads, (Path(run) / "metrics.jsonl").read_text().splitlines())
    evaluated = [row["eval/mean_reward"] for row in rows if "eval/mean_reward" in row]
    return statistics.fmean(evaluated[-LAST:])


def curves(steps: int) -> None:
    found: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory(prefix="ludus-ranks-") as folder:
        for seed in range(SEEDS):
            for procs, returns in found.items():
                returns.append(final_return(Path(folder) / f"{procs}_{seed}", seed, procs, steps))
            print(f"seed {seed}: one process {found[1][-1]:.0f}, two ranks {found[2][-1]:.0f}", flush=True)
    for procs, returns in found.items():
        told = mean(returns)
        print(f"{procs} process{'es' * (procs > 1)}: {told.value:.0f} [{told.low:.0f}, {told.high:.0f}]")
    apart = difference(found[2], found[1])
    assert apart.low is not None
    assert apart.high is not None
    agree = apart.low <= 0 <= apart.high
    print(f"{'agree' if agree else 'DIFFER'}: two − one = {apart.value:.0f} [{apart.low:.0f}, {apart.high:.0f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", choices=["cost", "curves"], help="all by default")
    parser.add_argument("--long", action="store_true", help="for a result to keep")
    arguments = parser.parse_args()
    what = arguments.what or ["cost", "curves"]
    if "cost" in what:
        cost(*((9, 10) if arguments.long else (3, 3)))
    if "curves" in what:
        curves(50_000 if arguments.long else 20_000)


if __name__ == "__main__":
    main()
