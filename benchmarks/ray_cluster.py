"""Training on a Ray cluster of two nodes: does it learn, is the loss of a node survived, is anything left?

    python benchmarks/ray_cluster.py [CASE…]

Both nodes are on this machine: they are apart for Ray, and the ranks share memory.
Needs Linux and `pip install 'ludus[ray,sweep]'`.
"""

import argparse
import ctypes
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # of Linux' prctl
_PATIENCE_S = 1800.0
_END_S = 5.0  # in which what a command has started must be gone after it
_CARTPOLE = (
    "gym:CartPole-v1 --total-steps 15k --checkpoint.every 3k --env.workers 0 --eval.every 10k "
    "--eval.final-episodes 20 --log.no-report --log.no-tensorboard"
)
_KUKA = "kuka-pick-place --env.num-envs 128 --total-steps 300k --checkpoint.every 20k --log.no-report"


class Bench:
    """A cluster, a folder for all that is written, and what was found."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.missed = folder, 0
        self._nodes: list[subprocess.Popen[bytes]] = []
        for name in ("tmp", "home", "nodes"):
            (folder / name).mkdir()
        self._environment = {
            **os.environ,
            "HOME": str(folder / "home"),  # where Ray keeps a key
            "TMPDIR": str(folder / "tmp"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def say(self, what: str, found: object, good: bool) -> None:
        self.missed += not good
        print(f"  {'ok' if good else 'MISSED':7}{what}: {found}", flush=True)

    # Processes --------------------------------------------------------------------------------------
    def ludus(self, words: str, *more: object, **variables: str) -> "subprocess.Popen[bytes]":
        return self._start(["ludus", *words.split(), *map(str, more)], self.folder / "log", variables)

    def _start(self, words: list[str], log: Path, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
        with log.open("ab") as printed:
            return subprocess.Popen(
                [sys.executable, "-m", *words],
                env=self._environment | variables,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def told(self) -> str:
        """What all commands have printed."""
        return (self.folder / "log").read_text()

    def processes(self) -> list[psutil.Process]:
        """That are alive, of all that the benchmark has started; orphans come to it, as to their reaper."""
        return _alive(psutil.Process().children(recursive=True))

    def of_ludus(self) -> list[psutil.Process]:
        """Commands, ranks, seeds and trials, the actors that start them, and clusters of their own."""
        of_cluster = {process for node in self._nodes if node.poll() is None for process in _tree(node.pid)}
        return [p for p in self.processes() if p not in of_cluster or _is_ludus(p)]

    # Nodes ------------------------------------------------------------------------------------------
    @contextmanager
    def cluster(self) -> Iterator[None]:
        try:
            with socket.socket() as probe:
                probe.bind(("", 0))
                self.address = f"{_own_ip()}:{probe.getsockname()[1]}"
            self._add_node("--head", f"--port={self.address.partition(':')[2]}", "--include-dashboard=false")
            yield
        finally:
            for process in self.processes():
                with suppress(psutil.Error):
                    process.kill()

    def complete(self) -> None:
        """Two nodes of two CPUs each, also after one was lost."""
        if len(self.raylets()) < 2:
            self._add_node(f"--address={self.address}")

    def _add_node(self, *words: str) -> None:
        log = self.folder / f"node_{len(self._nodes)}.log"
        command = ["ray.scripts.scripts", "start", "--num-cpus=2", "--block", *words]
        self._nodes.append(self._start(command, log, {"RAY_TMPDIR": str(self.folder / "nodes")}))
        _wait(lambda: "Ray runtime started" in log.read_text(), f"a node ({log})")

    def raylets(self) -> list[psutil.Process]:
        return [process for process in self.processes() if process.name() == "raylet"]

    def lose_second_node(self) -> None:
        _lose(max(self.raylets(), key=lambda raylet: raylet.create_time()))

    def lose_node_of_rank(self, rank: int) -> None:
        """The raylet whose child's child is the rank."""
        for raylet in self.raylets():
            for process in raylet.children(recursive=True):
                with suppress(psutil.Error, KeyError):
                    if json.loads(process.environ()["LUDUS_RANK"])["rank"] == rank:
                        return _lose(raylet)
        raise SystemExit(f"Rank {rank} is on no node; {self.folder / 'log'} may say why.")


def _lose(raylet: psutil.Process) -> None:
    """With all of Ray's own on that node; what the actors there have started must end by itself."""
    for process in [raylet, *raylet.children()]:
        with suppress(psutil.Error):
            process.kill()


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _is_ludus(process: psutil.Process) -> bool:
    try:
        return "ludus" in process.cmdline() or "_Starter" in process.name()
    except psutil.Error:  # it has ended since
        return False


def _own_ip() -> str:
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def _wait(until: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + _PATIENCE_S
    while not until():
        if time.monotonic() > end:
            raise SystemExit(f"Waited in vain for {what}.")
        time.sleep(0.1)


# Cases --------------------------------------------------------------------------------------------
def cartpole(bench: Bench) -> None:
    """The node of rank 1 goes in the middle of a training; then the same is trained here, without Ray."""
    _lose_node_of_rank_1(bench, _CARTPOLE, "mean_reward", 475)


def kuka(bench: Bench) -> None:
    """The same of the KUKA."""
    _lose_node_of_rank_1(bench, _KUKA, "success_rate", 0.9)


def _lose_node_of_rank_1(bench: Bench, words: str, figure: str, bar: float) -> None:
    lossy, calm = _new(bench, "lossy"), _new(bench, "calm")
    training = bench.ludus(f"train {words} --procs 2 --run-dir", lossy, "--ray", bench.address)
    _wait(lambda: _checkpoints(lossy) > 1 or training.poll() is not None, "checkpoints")
    bench.lose_node_of_rank(1)
    newest = f"{_step(lossy):,}"
    bench.say("exit code after the loss of a node", training.wait(_PATIENCE_S), training.returncode == 0)
    told = re.findall(r"All ranks go on from step ([\d,]*\d)", bench.told())
    bench.say(f"gone on from step (the newest checkpoint was of {newest})", told[-1:], told[-1:] == [newest])
    bench.ludus(f"train {words} --procs 2 --run-dir", calm).wait(_PATIENCE_S)
    found = [_result(run)[figure] for run in (lossy, calm)]
    bench.say(f"{figure} on new starts (bar {bar:g}), and without Ray", found, found[0] == found[1] >= bar)
    same = len({(run / "final" / "policy.safetensors").read_bytes() for run in (lossy, calm)}) == 1
    bench.say("the same weights, bit by bit, without Ray", same, same)


def seeds(bench: Bench) -> None:
    """Three seeds; a node goes while they train."""
    folder = _new(bench, "seeds")
    training = bench.ludus(f"train {_CARTPOLE} --seeds 3 --run-dir", folder, "--ray", bench.address)
    _wait(lambda: bool(_begun(folder)) or training.poll() is not None, "checkpoints")
    bench.lose_second_node()
    bench.say("exit code after the loss of a node", training.wait(_PATIENCE_S), training.returncode == 0)
    _say_where(bench, "seeds", [folder / f"seed_{seed}" for seed in range(3)])


def sweep(bench: Bench) -> None:
    """Three trials; a node goes while they train."""
    folder = _new(bench, "sweep")
    words = f"sweep {_CARTPOLE} --param ppo.learning_rate=log(1e-4,1e-2) --trials 3 --rungs 1 --confirm 0"
    searching = bench.ludus(f"{words} --run-dir", folder, "--ray", bench.address)
    _wait(lambda: bool(_begun(folder)) or searching.poll() is not None, "checkpoints")
    bench.lose_second_node()
    bench.say("exit code after the loss of a node", searching.wait(_PATIENCE_S), searching.returncode == 0)
    _say_where(bench, "trials", _begun(folder))


def _begun(folder: Path) -> list[Path]:
    """Runs that have a checkpoint."""
    return sorted({path.parent.parent for path in folder.rglob("checkpoints/step_*")})


def _say_where(bench: Bench, what: str, runs: list[Path]) -> None:
    lost = sum("node of the Ray cluster is lost" in run.with_suffix(".log").read_text() for run in runs)
    bench.say(f"{what} whose node was lost", lost, 0 < lost < 3)
    ends = [_step(run) for run in runs]
    bench.say(f"{what} are at step", ends, len(ends) == 3 and min(ends) >= 15_000)


def stop(bench: Bench) -> None:
    """SIGTERM: the ranks save and end. Gone on with and killed: the ranks end, too."""
    run = _new(bench, "stop")
    training = bench.ludus(f"train {_CARTPOLE} --procs 2 --run-dir", run, "--ray", bench.address)
    _wait(lambda: _checkpoints(run) > 0 or training.poll() is not None, "a checkpoint")
    training.send_signal(signal.SIGTERM)
    bench.say("exit code after SIGTERM", training.wait(_PATIENCE_S), training.returncode == 75)
    last, saved = _last_row(run), _step(run)
    bench.say("last row, and checkpoint, of step", f"{last:,}, {saved:,}", last == saved)
    training = bench.ludus("resume", run, "--ray", bench.address)
    _wait(lambda: _last_row(run) > saved or training.poll() is not None, "a new row")
    training.kill()
    bench.say("gone on with --ray, and killed, at step", f"{_last_row(run):,}", training.wait() == -signal.SIGKILL)


def full(bench: Bench) -> None:
    """Four CPUs for eight ranks: they wait, for so long as they may, and leave nothing."""
    run = _new(bench, "full")
    words = f"train {_CARTPOLE} --procs 8 --run-dir"
    training = bench.ludus(words, run, "--ray", bench.address, LUDUS_RAY_WAIT="5")
    bench.say("exit code without room", training.wait(_PATIENCE_S), training.returncode == 2)
    told = bench.told()
    bench.say("it said that it waits", "Waiting: 8 × 1 CPU" in told, "Waiting: 8 × 1 CPU" in told)
    gave_up = "8 × 1 CPU have not become free on the Ray cluster in 5 s." in told
    bench.say("it said why it gave up", gave_up, gave_up)
    bench.say("run folder left", run.exists(), not run.exists())


def own(bench: Bench) -> None:
    """A cluster for one training of one process alone."""
    words = f"train {_CARTPOLE} --stop-at 3k --run-dir"
    training = bench.ludus(words, _new(bench, "own"), "--ray", "local")
    bench.say("exit code", training.wait(_PATIENCE_S), training.returncode == 0)


CASES = {case.__name__: case for case in (cartpole, kuka, seeds, sweep, stop, full, own)}


def _new(bench: Bench, name: str) -> Path:
    """A folder for a run."""
    shutil.rmtree(bench.folder / name, ignore_errors=True)
    return bench.folder / name


def _checkpoints(run: Path) -> int:
    return len(list((run / "checkpoints").glob("step_*")))


def _step(run: Path) -> int:
    """Of the newest checkpoint."""
    return max((int(path.name.removeprefix("step_")) for path in (run / "checkpoints").glob("step_*")), default=0)


def _last_row(run: Path) -> int:
    """The step of the last row of its metrics."""
    return int(json.loads((run / "metrics.jsonl").read_text().rpartition("\n")[0].splitlines()[-1])["step"])


def _result(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "results.json").read_text())[-1]["result"])


# All of them --------------------------------------------------------------------------------------
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; by default all")
    cases = parser.parse_args().cases or list(CASES)
    if unknown := set(cases) - set(CASES):
        parser.error(f"there is no case {', '.join(unknown)}")
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    bench = Bench(Path(tempfile.mkdtemp(prefix="ludus-rc-")))
    with bench.cluster():
        for name in cases:
            print(f"{name}: {CASES[name].__doc__}", flush=True)
            began = time.monotonic()
            bench.complete()
            CASES[name](bench)
            _count_left(bench, bench.of_ludus)
            print(f"  it took {time.monotonic() - began:.0f} s", flush=True)
    print("the cluster:", flush=True)
    _count_left(bench, bench.processes)
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass  # orphans have ended as its children
    if bench.missed:
        print(f"what was printed: {bench.folder / 'log'}", flush=True)
    else:
        shutil.rmtree(bench.folder)
    sys.exit(bench.missed > 0)


def _count_left(bench: Bench, find: Callable[[], list[psutil.Process]]) -> None:
    """Processes, their ports, and temporary files."""
    end = time.monotonic() + _END_S
    while (left := find()) and time.monotonic() < end:
        time.sleep(0.1)
    bench.say("processes left, and with them ports", [process.name() for process in left] or 0, not left)
    files = [path.name for name in ("tmp", "home") for path in (bench.folder / name).iterdir()]
    files = [name for name in files if not name.startswith("torchinductor_")]  # torch's cache, also without Ray
    bench.say("temporary folders and files left", files or 0, not files)


if __name__ == "__main__":
    main()
