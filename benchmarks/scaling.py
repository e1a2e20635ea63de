"""How far does data-parallel training scale? A model of measured pieces (scaling_model.py), beside two ranks.

    python benchmarks/scaling.py --measure [--save MACHINE]   measures the pieces, predicts two ranks, times them
    python benchmarks/scaling.py --predict 8xH200             kept pieces; also 64xH200, 1000cores, 1000cores-by-8

`--measure` takes about ten minutes of two cores. A rank has one core to itself, whether it is alone or not, and
the same rows: two ranks make twice the steps of one process. One process alone, two that know nothing of each
other and two ranks take turns of some iterations, so that all meet the same moods of the machine; whose turn it is
not is stopped. The pieces come from the first two alone. Let the machine do nothing else.
"""

import argparse
import itertools
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import keeping
from ludus import ranks
from ludus.children import start_process
from ludus.new_runs import create_run
from ludus.presets import find_preset
from ludus.provenance import facts_of
from ludus.runs import whole_config
from ludus.saved_run import load
from ludus.show.jsonl import read_metrics
from ludus.training.checkpoint import checkpoints_in, load_training, save_checkpoint
from scaling_model import FLOAT, Cluster, Job, Link, Prediction, advise, predict, slowest

CORES = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
NOWHERE = subprocess.DEVNULL
WORKS = (15, 100)  # products of matrices between two reductions: about 0.2 and 1.5 ms
SIZES = (8, 40_000, 600_000)  # numbers that are added up
REPEATS = 3
LONGEST_S = 600
Reduction = tuple[int, float, float]  # numbers, seconds of the work before it, its own seconds
FILE = "scaling"
JOB = tuple(column.name for column in fields(Job))
CALL_S = 3e-6  # one call of torch: a rank makes one for each rank whose numbers it adds to its own

# Not measured here: what vendors and nccl's issues (#1453) state of NVLink in a box, 400 Gb/s a GPU between boxes,
# and 25 Gb/s Ethernet between machines.
H200S = {
    "8xH200": Cluster("8xH200", 8, Link(30e-6, 200e9, "nccl")),
    "64xH200": Cluster("64xH200", 64, Link(75e-6, 50e9, "nccl")),
}
TCP = Link(50e-6, 3e9, "ring")
CPUS = {"1000cores": 1, "1000cores-by-8": 8}  # cores of a rank, on eight machines
BEYOND = ("", "ms", "efficiency", "limit", "rows", "gradient steps", "eval.every", "then")


@dataclass(frozen=True)
class Case:
    preset: str
    turn: int  # iterations, and those between two evaluations
    practice: int = 0  # steps of a training to begin with: how long an evaluation takes depends on the policy

    @property
    def config(self) -> Any:
        return find_preset(self.preset).config

    @property
    def rows(self) -> int:
        return int(self.config.env.num_envs)

    @property
    def steps(self) -> int:
        """Of one rank in an iteration."""
        return self.rows * int(getattr(self.config.env, "agents", 1)) * int(self.config.ppo.horizon)


CASES = {
    "KUKA": Case("kuka-pick-place", 5),
    "forage": Case("forage", 15),
    "CartPole": Case("gym:CartPole-v1", 40, practice=60_000),
}


# Runs that take turns ---------------------------------------------------------------------------------
@dataclass
class Told:
    """Seconds of iterations, and of evaluations with their checkpoints."""

    rollout: list[float] = field(default_factory=list)
    update: list[float] = field(default_factory=list)
    rest: list[float] = field(default_factory=list)
    pause: list[float] = field(default_factory=list)

    @property
    def iterations(self) -> list[float]:
        return [sum(parts) for parts in zip(self.rollout, self.update, self.rest, strict=True)]

    def add(self, other: "Told") -> None:
        for name, values in vars(other).items():
            getattr(self, name).extend(values)


class Run:
    """A training in processes of its own, one on each core that it is given."""

    def __init__(
        self, folder: Path, start: Callable[[], "list[subprocess.Popen[bytes]]"], cores: list[int]
    ) -> None:
        self._metrics = folder / "metrics.jsonl"
        self._processes = start()
        for process, core in zip(self._processes, cores, strict=True):
            os.sched_setaffinity(process.pid, {core})
        self._from = 0  # the first row of the present turn
        self._wait(lambda: len(self._rows()) > 1)
        self.hold()

    def _wait(self, until: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LONGEST_S
        while not until():
            if any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline:
                raise SystemExit(f"The training of {self._metrics.parent} has ended, or hangs.")
            time.sleep(0.05)

    def _rows(self) -> list[dict[str, float]]:
        return read_metrics(self._metrics) if self._metrics.exists() else []

    def hold(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._from = len(self._rows())
        for process in self._processes:
            process.send_signal(signal.SIGCONT)

    def wait_for(self, iterations: int) -> None:
        """Until so many iterations, and an evaluation, lie within this turn as a whole."""
        self._wait(lambda: len(self.told().rollout) >= iterations and bool(self.told().pause))

    def told(self) -> Told:
        """Of this turn: what began after its first row."""
        told, before, evaluated = Told(), None, False
        for row in self._rows()[self._from :]:
            if "time/fps" not in row:
                evaluated = True
                continue
            if before is not None:
                _add_row(told, before, row, evaluated)
            before, evaluated = row, False
        return told

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _add_row(told: Told, before: dict[str, float], row: dict[str, float], evaluated: bool) -> None:
    seconds = (row["step"] - before["step"]) / row["time/fps"]
    if evaluated:  # the row's own seconds have the checkpoint in them
        usual = statistics.median(told.iterations) if told.iterations else seconds
        told.pause.append(row["time/time_elapsed"] - before["time/time_elapsed"] - usual)
        return
    rollout = (row["time/simulate_share"] + row["time/act_share"]) * seconds
    update = row["time/learn_share"] * seconds
    told.rollout.append(rollout)
    told.update.append(update)
    told.rest.append(max(0.0, seconds - rollout - update))


def settings_of(case: Case, procs: int, part: int, start_from: str) -> dict[str, Any]:
    """`part`: divides rows and episodes."""
    steps = case.steps // part * procs
    return {
        "env.num_envs": case.rows // part,
        "eval.episodes": case.config.eval.episodes // part,
        "eval.every": case.turn * steps,
        "loop.total_steps": 10_000 * steps,
        "torch_threads": 1,
        **({"start_from": start_from, "ppo.learning_rate": 1e-6} if start_from else {}),
        **({"procs": procs} if procs > 1 else {}),
    }


def one_process(case: Case, folder: Path, core: int, start_from: str, part: int = 1) -> Run:
    flags = [
        f"--{name.replace('_', '-')}={value}" for name, value in settings_of(case, 1, part, start_from).items()
    ]
    flags = [flag.replace("--start-from=", "--from=") for flag in flags]
    words = ["train", case.preset, "--run-dir", folder, *flags]
    return Run(folder, lambda: [start_process(words, NOWHERE, NOWHERE)], [core])


def two_ranks(case: Case, folder: Path, start_from: str) -> Run:
    config = whole_config(case.preset, None, settings_of(case, 2, 1, start_from))
    facts = facts_of(case.preset, config)
    folder.mkdir()
    create_run(folder, config, facts)
    task = json.dumps({"facts": facts, "overrides": {}, "stop_at": 0}, default=str)

    def start() -> "list[subprocess.Popen[bytes]]":
        memory = ranks.make_memory(2)
        tickets = [ranks.Ticket(rank, 2, memory=memory) for rank in range(2)]
        words = ["resume", str(folder)]
        try:
            return [
                start_process(words, NOWHERE, NOWHERE, [memory], LUDUS_TASK=task, **ticket.variables())
                for ticket in tickets
            ]
        finally:
            os.close(memory)

    return Run(folder, start, CORES)


@contextmanager
def all_runs(case: Case, folder: Path) -> Iterator[dict[str, Run]]:
    start_from = practised(case, folder) if case.practice else ""
    made: dict[str, Run] = {}
    try:
        made["alone"] = one_process(case, folder / "alone", CORES[0], start_from)
        made["beside"] = one_process(case, folder / "beside", CORES[1], start_from)
        for i, core in enumerate(CORES):
            made[f"half {i}"] = one_process(case, folder / f"half_{i}", core, start_from, part=2)
        made["ranks"] = two_ranks(case, folder / "ranks", start_from)
        yield made
    finally:
        for run in made.values():
            run.end()


def practised(case: Case, folder: Path) -> str:
    words = [
        "train",
        case.preset,
        "--run-dir",
        folder / "practice",
        "--total-steps",
        case.practice,
        "--log.no-report",
    ]
    if code := start_process(words, NOWHERE, NOWHERE).wait():
        raise SystemExit(f"{case.preset} could not be trained: exit code {code}.")
    return str(folder / "practice")


@dataclass
class Readings:
    alone: Told = field(default_factory=Told)
    beside: Told = field(default_factory=Told)  # two processes at the same time
    half: Told = field(default_factory=Told)  # the same, with half the rows and episodes
    ranks: Told = field(default_factory=Told)
    apart: list[float] = field(default_factory=list)  # what one of two waits for the other / what it works
    reductions: dict[str, list[Reduction]] = field(default_factory=lambda: {"memory": [], "ring": []})


def take_turns(made: dict[str, Run], case: Case, rounds: int) -> Readings:
    readings = Readings()
    for _ in range(rounds):
        readings.alone.add(_turn([made["alone"]], case)[0])
        both = _turn([made["alone"], made["beside"]], case)
        readings.apart += apart(*both)
        for told in both:
            readings.beside.add(told)
        for told in _turn([made["half 0"], made["half 1"]], case):
            readings.half.add(told)
        readings.ranks.add(_turn([made["ranks"]], case)[0])
        for kind in readings.reductions:
            readings.reductions[kind] += measure_reductions(kind)
    return readings


def _turn(taking: Sequence[Run], case: Case) -> list[Told]:
    for run in taking:
        run.go_on()
    for run in taking:
        run.wait_for(case.turn)
    for run in taking:
        run.hold()
    return [run.told() for run in taking]


def apart(left: Told, right: Told) -> list[float]:
    """Of every rollout and update that both made at the same time, what the faster would wait / what both work."""
    pairs = [*zip(left.rollout, right.rollout, strict=False), *zip(left.update, right.update, strict=False)]
    return [abs(a - b) / (a + b) for a, b in pairs]


# Reductions -------------------------------------------------------------------------------------------
def measure_reductions(kind: str) -> list[Reduction]:
    """Between two processes, one on each core."""
    memory = ranks.make_memory(2)
    with tempfile.TemporaryDirectory() as there:
        words = [sys.executable, __file__, "--exchange", kind, str(Path(there) / "store")]
        processes = [_partner(words, ranks.Ticket(rank, 2, memory=memory)) for rank in (0, 1)]
        told, _ = processes[0].communicate()
        processes[1].wait()
    os.close(memory)
    return [(size, work, seconds) for size, work, seconds in json.loads(told)]


def _partner(words: list[str], ticket: ranks.Ticket) -> "subprocess.Popen[bytes]":
    path = os.pathsep.join(place for place in sys.path if place)
    environment = {**os.environ, **ticket.variables(), "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    shown = subprocess.PIPE if ticket.rank == 0 else NOWHERE
    process = subprocess.Popen(words, env=environment, stdout=shown, pass_fds=[ticket.memory])
    os.sched_setaffinity(process.pid, {CORES[ticket.rank]})
    return process


def exchange(kind: str, store: str) -> None:
    """In each of both processes: seconds of some work, and what adding up after it takes more."""
    torch.set_num_threads(1)
    ranks.join()
    add_up: Callable[[torch.Tensor], Any] = ranks.add_up
    if kind == "ring":
        add_up = ranks.Sockets(torch.distributed.FileStore(store, 2), ranks.rank(), 2).add_up
    matrix, told = torch.randn(64, 64), []
    for size, products in itertools.product(SIZES, WORKS):
        numbers = torch.ones(size)

        def work(products: int = products) -> None:
            for _ in range(products):  # small calls, as in a gradient step
                torch.mm(matrix, matrix).tanh_()

        def work_together(work: Callable[[], None] = work, numbers: torch.Tensor = numbers) -> None:
            work()
            add_up(numbers)
            numbers.div_(2.0)

        pairs = []
        for _ in range(REPEATS):
            ranks.gather_plain(None)
            pairs.append((_each(work), _each(work_together)))
        alone, together = (statistics.median(times) for times in zip(*pairs, strict=True))
        told.append((size, alone, together - alone))
    if ranks.is_first():
        print(json.dumps(told))


def _each(do: Callable[[], None], seconds: float = 0.15) -> float:
    do()
    began, times = time.perf_counter(), 0
    while times < 20:
        do()
        times += 1
    turns = max(20, round(20 * seconds / (time.perf_counter() - began)))
    turns = int(ranks.gather(torch.tensor([turns])).min())  # the same on both
    began = time.perf_counter()
    for _ in range(turns):
        do()
    return (time.perf_counter() - began) / turns


def fit(kind: str, told: list[Reduction]) -> tuple[Link, float]:
    """seconds = latency + bytes / rate + jitter × √work; every relative error counts the same."""
    size, work, seconds = (np.array(column, dtype=float) for column in zip(*told, strict=True))
    call = CALL_S if kind == "memory" else 0.0
    once, a_byte = Link(1.0, math.inf, kind).seconds(2, 1), Link(0.0, 1.0, kind).seconds(2, 1)
    known = np.stack([np.full_like(size, once), a_byte * FLOAT * size, np.sqrt(work)])
    seconds = np.maximum(seconds - 2 * call, 1e-6)
    (latency, slowness, jitter), *_ = np.linalg.lstsq((known / seconds).T, np.ones_like(seconds), rcond=None)
    link = Link(float(max(latency, 1e-7)), float(1 / max(slowness, 1e-13)), kind, call)
    return link, float(max(0.0, jitter) / slowest(2))


# What was measured ------------------------------------------------------------------------------------
def job_from(case: Case, readings: Readings, folder: Path) -> tuple[Job, float]:
    """The job, and the contention. Pieces are those of two processes side by side, by the contention."""
    alone, both, half = readings.alone, readings.beside, readings.half
    contention = median(both.iterations) / median(alone.iterations)
    checkpoint = checkpoint_seconds(folder)
    pieces = {name: median(getattr(both, name)) / contention for name in ("rollout", "update", "rest")}
    evaluation = median(both.pause) / contention - checkpoint
    ppo = case.config.ppo
    job = Job(
        name=case.preset,
        rows=case.rows,
        steps=case.steps,
        **pieces,
        half=median(half.iterations) / contention,
        reductions=ppo.minibatches * ppo.update_epochs,
        numbers=sum(p.numel() for p in load(folder).parameters()),
        evaluation=evaluation,
        evaluation_half=median(half.pause) / contention - checkpoint,
        evaluation_every=case.config.eval.every,
        checkpoint=checkpoint,
    )
    return job, contention


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def checkpoint_seconds(folder: Path) -> float:
    newest = checkpoints_in(folder / "checkpoints")[-1]
    state, policy, times = load_training(newest)[1], load(folder), []
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory(dir=folder) as there:
            began = time.perf_counter()
            save_checkpoint(Path(there), 1, {"policy": policy}, state)
            times.append(time.perf_counter() - began)
    return median(times)


def compare(told: Prediction, measured: Told) -> list[Any]:
    """A row of the table: seconds of an iteration, with its share of evaluations and checkpoints."""
    job, cluster = told.job, told.cluster
    every = job.evaluation_every / (job.steps * cluster.ranks)
    found = median(measured.iterations) + median(measured.pause) / every
    alone = predict(job, replace(cluster, ranks=1, contention=1.0)).total
    error = told.total / found - 1
    parts = ", ".join(f"{name} {1e3 * seconds:.1f}" for name, seconds in told.parts.items())
    print(f"  ms an iteration: predicted {parts}")
    print(
        f"  measured: training {1e3 * median(measured.iterations):.1f} (predicted {1e3 * told.training:.1f}), "
        f"an evaluation {1e3 * median(measured.pause):.0f} (predicted "
        f"{1e3 * every * (told.parts['evaluation'] + told.parts['checkpoint']):.0f})"
    )
    print(f"  in all: one rank {1e3 * alone:.1f}, two predicted {1e3 * told.total:.1f}, ", end="")
    print(f"measured {1e3 * found:.1f}: {100 * error:+.1f} %", flush=True)
    pause = every * (told.parts["evaluation"] + told.parts["checkpoint"])
    pairs = ((told.training, median(measured.iterations)), (pause, median(measured.pause)))
    return [
        f"`{job.name}`",
        *(f"{1e3 * seconds:,.0f}" for seconds in (alone, told.total, found)),
        *(f"{100 * (wanted / real - 1):+.0f} %".replace("-", "−") for wanted, real in pairs),
        {"seeds": [round(100 * abs(error), 1)], "unit": "%", "digits": 1, "bar": 10, "better": "less"},
    ]


def measure(names: Sequence[str], rounds: int, machine: str | None) -> None:
    compared, jobs = [], []
    reductions: dict[str, list[Reduction]] = {}
    for name in names:
        case = CASES[name]
        with tempfile.TemporaryDirectory(prefix="ludus-scaling-") as there:
            with all_runs(case, Path(there)) as made:
                readings = take_turns(made, case, rounds)
            tell(readings)
            job, contention = job_from(case, readings, Path(there) / "alone")
        for kind, told in readings.reductions.items():
            reductions.setdefault(kind, []).extend(told)
        link, jitter = fit("memory", readings.reductions["memory"])
        unrest = median(readings.apart) / slowest(2)
        rate = link.rate / 1e9
        print(f"  shared memory: {1e6 * link.latency:.0f} µs, {rate:.1f} GB/s, jitter {1e3 * jitter:.2f} ms / √s")
        print(f"{case.preset}: contention {contention:.2f}, unrest {100 * unrest:.1f} %", flush=True)
        here = Cluster("two ranks", 2, link, contention=contention, unrest=unrest, jitter=jitter)
        compared.append(compare(predict(job, here), readings.ranks))
        jobs.append([*map(rounded, asdict(job).values()), rounded(contention), rounded(unrest)])
    links = {kind: fit(kind, told) for kind, told in reductions.items()}
    if machine:
        columns = (
            "",
            "one rank",
            "two ranks, predicted",
            "two ranks, measured",
            "training",
            "evaluation",
            "error",
        )
        keeping.keep(FILE, "two ranks", machine, columns, compared)
        keeping.keep(FILE, "pieces", machine, (*JOB, "contention", "unrest"), jobs, detail=True)
        rows = [
            [kind, *map(rounded, (link.latency, link.rate, link.call, jitter))]
            for kind, (link, jitter) in links.items()
        ]
        keeping.keep(FILE, "links", machine, ("kind", "latency", "rate", "call", "jitter"), rows, detail=True)


def tell(readings: Readings) -> None:
    for kind in ("alone", "beside", "half", "ranks"):
        told = getattr(readings, kind)
        pauses = ", ".join(f"{1e3 * seconds:.0f}" for seconds in told.pause)
        print(f"  {kind:6} {1e3 * median(told.iterations):.1f} ms; evaluations {pauses} ms", flush=True)


def rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


# What was kept ----------------------------------------------------------------------------------------
def part(name: str) -> list[dict[str, Any]]:
    """Rows of a table of the result file."""
    parts = tomllib.loads((keeping.RESULTS / f"{FILE}.toml").read_text())["parts"]
    table = next(part for part in parts if part.get("name") == name)
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def jobs_kept(name: str) -> list[Job]:
    return [Job(**{column: row[column] for column in JOB}) for row in part(name)]


def cluster_kept(name: str) -> tuple[Cluster, list[Job]]:
    """A cluster that can be named, with the jobs that were measured on machines of its kind."""
    if name in H200S:
        return H200S[name], jobs_kept("h200 pieces")
    link = next(row for row in part("links") if row["kind"] == "memory")
    among = Link(link["latency"], link["rate"], "memory", link["call"])
    contention, unrest = (median([row[key] for row in part("pieces")]) for key in ("contention", "unrest"))
    jobs = [*jobs_kept("pieces"), *jobs_kept("stated pieces")]
    cores = CPUS[name]
    cluster = Cluster(name, 1000 // cores, among, 8, TCP, contention, unrest, link["jitter"])
    return cluster, jobs if cores == 1 else [job.with_cores(cores) for job in jobs if "kuka" in job.name]


def table(name: str) -> list[list[str]]:
    """What the model tells of a cluster: the preset's rows on every rank, then the sizes that it advises."""
    cluster, jobs = cluster_kept(name)
    rows = []
    for job in jobs:
        weak, advised = predict(job, cluster), advise(job, cluster)
        then = predict(advised, cluster)
        rows.append(
            [
                f"{job.name} on {name}",
                f"{1e3 * weak.total:,.0f}",
                f"{100 * weak.efficiency:.0f} %",
                weak.limit,
                f"{advised.rows:,}",
                f"{advised.reductions:,}",
                f"{advised.evaluation_every / 1e6:,.1f} M",
                f"{100 * then.efficiency:.0f} %",
            ]
        )
    return rows


def show(name: str) -> None:
    rows = [list(BEYOND), *table(name)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(f"{word:{width}}" for word, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--measure", nargs="*", choices=list(CASES), metavar="CASE", help=f"all of {', '.join(CASES)}, or some"
    )
    parser.add_argument("--predict", choices=[*H200S, *CPUS])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--exchange", nargs=2, help=argparse.SUPPRESS)  # what the script starts itself with
    keeping.add_option(parser)
    arguments = parser.parse_args()
    if arguments.exchange:
        exchange(*arguments.exchange)
    elif arguments.predict:
        show(arguments.predict)
    elif arguments.measure is None:
        parser.error("say --measure or --predict")
    elif len(CORES) < 2:
        parser.error("--measure needs two cores, and a system that tells which (Linux)")
    else:
        measure(arguments.measure or list(CASES), arguments.rounds, arguments.save)


if __name__ == "__main__":
    main()
