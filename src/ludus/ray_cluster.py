"""`--ray`: ranks, seeds and trials on the nodes of a Ray cluster.

Ray says where there is room, and notices that a node is lost. All else is as on one machine: the same command, and
the newest intact checkpoint of the run folder. Ray is imported when it is asked for.
"""

import contextlib
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ludus.children import open_log
from ludus.errors import ConfigError, LudusError, plain_text
from ludus.ranks import RankLostError, Ticket
from ludus.ray_processes import LOOK_THERE, RayProcess, longest_wait_s, make_actor
from ludus.saved_run import run_config, run_folder
from ludus.training.local_ranks import run_started

AUTO = "auto"  # an address: the cluster that runs here, or else one of our own
LOCAL = "local"  # one of our own in any case
_REACH_S = 5.0  # for an answer from an address
_START_S = 120.0  # for a node that has room to start an actor
_AGAIN_S = 1.0  # between looks whether there is room


class RayCluster:
    """A cluster that this process joins, or that is its own and goes with it.

    A `Placer` of whole runs; `run_ranks` is a `Place` of the ranks of one run. A process has a GPU where its run,
    or `device`, which is given in place of the run's own, says so.
    """

    on_this_machine = False

    def __init__(self, address: str = AUTO, device: str = "") -> None:
        self._address, self._device = address, device
        self._started: list[RayProcess] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> "RayCluster":
        with contextlib.ExitStack() as opened:
            _connect(self._address, opened)
            opened.callback(self._end_all)
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _end_all(self) -> None:
        for process in self._started:
            process.kill()

    def start(self, words: Sequence[object], log: Path) -> RayProcess:
        """`ludus words…` as soon as a node has room; what it prints is appended to the log."""
        procs, gpus = self._needs(words)
        self._started[:] = [process for process in self._started if process.is_running]
        with open_log(log) as file:
            out = file.fileno()
            process = RayProcess(make_actor(procs, gpus * procs), words, out, out, beside=self._started)
        self._started.append(process)
        return process

    def most_at_once(self, procs: int) -> int:
        """One CPU a process, as on one machine."""
        return max(1, sum(_fitting(node, procs, 0) for node in _free()))

    def run_ranks(self, arguments: Sequence[str], size: int, quiet: bool = False, **variables: str) -> None:
        """A `Place`: each rank has as many CPUs as all of them can have now."""
        _, gpus = self._needs(arguments)
        with _actors(size, gpus) as seated:
            actors, store = _in_order(seated)
            tickets = [Ticket(rank, size, store=store) for rank in range(size)]
            starters: list[Callable[..., Any]] = [partial(RayProcess, actor) for actor in actors]
            run_started(tickets, starters, arguments, quiet, **variables)

    def _needs(self, words: Sequence[object]) -> tuple[int, int]:
        """Processes of the run that `words` go on with, and GPUs of each."""
        config = run_config(run_folder(str(words[1])))
        return config.procs, int((self._device or config.device) != "cpu")


# Joining ------------------------------------------------------------------------------------------
def _connect(address: str, opened: contextlib.ExitStack) -> None:
    """Join a cluster, or make one. What is to be undone at the end goes to `opened`."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("--ray needs the package Ray: `pip install 'ludus[ray]'`.")
    longest_wait_s()  # refused before anything is started
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or _running_here() or LOCAL
    settings: dict[str, Any] = {"address": address}
    if address == LOCAL:
        folder = opened.enter_context(_own_folder())  # before the import, which reads the environment
        settings |= {"include_dashboard": False, "_temp_dir": folder}
    else:
        _refuse_unreachable(address)
    import ray

    opened.callback(_at_sigterm, signal.getsignal(signal.SIGTERM))
    opened.callback(ray.shutdown)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **settings)
        _silence(ray)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        reason = plain_text(str(error).strip().split("\n")[0], 300).rstrip(".")
        raise ConfigError(f"--ray {address}: the cluster cannot be used: {reason}.") from error
    _at_sigterm(signal.default_int_handler)  # in place of Ray's; as Ctrl-C, so that what was opened is closed


def _at_sigterm(handler: Any) -> None:
    if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
        signal.signal(signal.SIGTERM, handler)


def _silence(ray: Any) -> None:
    """Of a lost node Ray shows the log, dozens of lines; that it is lost is told by whoever goes on without it."""
    if hasattr(ray._private.worker, "print_to_stdstream"):
        ray._private.worker.print_to_stdstream = lambda *lines, **how: None


def _running_here() -> str:
    """The address of the cluster that `ray start` has started on this machine; empty where none answers."""
    noted = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "ray_current_cluster"
    try:
        address = noted.read_text().strip()
        _refuse_unreachable(address)
    except (OSError, ConfigError):
        return ""
    return address


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for minutes, with a warning every few seconds."""
    host, _, port = address.rpartition(":")
    if address.startswith("ray://") or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"--ray {address}: an address is HOST:PORT, as `ray start` shows it, given on a machine of the "
            "cluster. Without one, the cluster that runs here is used."
        )
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except OSError as error:
        raise ConfigError(f"--ray {address}: nothing answers there ({error.strerror or error}).") from error


@contextlib.contextmanager
def _own_folder() -> Iterator[str]:
    """Of a cluster of our own: with a key that nobody else has, no statistics sent to anyone, nothing left."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    before = {name: os.environ.get(name) for name in variables}
    folder = tempfile.mkdtemp(prefix="ludus-ray-")
    os.environ.update(variables)
    try:
        yield folder
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
        shutil.rmtree(folder, ignore_errors=True)


# Room ---------------------------------------------------------------------------------------------
def _free() -> list[Mapping[str, float]]:
    """What every node has free now."""
    from ray._private.state import available_resources_per_node

    return list(available_resources_per_node().values())


def _fitting(free: Mapping[str, float], cpus: int, gpus: int) -> int:
    """How many processes fit on a node."""
    fitting = free.get("CPU", 0) // cpus
    return int(min(fitting, free.get("GPU", 0) // gpus) if gpus else fitting)


def most_cpus(free: Sequence[Mapping[str, float]], ranks: int, gpus: int) -> int:
    """For each of so many ranks, so that all have room; 0: there is none."""
    largest = int(max((node.get("CPU", 0) for node in free), default=0))
    fits = (cpus for cpus in range(largest, 0, -1) if sum(_fitting(node, cpus, gpus) for node in free) >= ranks)
    return next(fits, 0)


@contextlib.contextmanager
def _actors(ranks: int, gpus: int) -> Iterator[list[Any]]:
    """One for every rank: all or none, so that two trainings never wait for each other with half of them."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    with _room(ranks, gpus) as (group, cpus):
        seats = [PlacementGroupSchedulingStrategy(group, rank) for rank in range(ranks)]
        actors = [make_actor(cpus, gpus, scheduling_strategy=seat) for seat in seats]
        try:
            yield actors
        finally:
            for actor in actors:
                ray.kill(actor)


@contextlib.contextmanager
def _room(ranks: int, gpus: int) -> Iterator[tuple[Any, int]]:
    """A placement group and the CPUs of each rank; asked for again when nodes come or go."""
    from ray.util import placement_group, remove_placement_group

    needed = f"{ranks} × 1 CPU" + (f" and {gpus} GPU" if gpus else "")
    until, asked, told = time.monotonic() + longest_wait_s(), 0, False
    with contextlib.ExitStack() as held:
        while True:
            free = most_cpus(_free(), ranks, gpus)
            if not asked or free not in (0, asked):
                held.close()
                asked = free or 1  # what cannot be had yet may let a cluster grow
                group = placement_group([{"CPU": asked, "GPU": gpus} if gpus else {"CPU": asked}] * ranks)
                held.callback(remove_placement_group, group)
            if group.wait(_AGAIN_S):
                yield group, asked
                return
            if time.monotonic() > until:
                waited = f"{longest_wait_s():.0f} s"
                raise LudusError(f"{needed} have not become free on the Ray cluster in {waited}. {LOOK_THERE}")
            if not free and not told:
                print(f"Waiting: {needed} are not free on the Ray cluster.", file=sys.stderr)
                told = True


def _in_order(actors: Sequence[Any]) -> tuple[list[Any], str]:
    """The actors as ranks, the first on the node of this process if it can be; and where they meet."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    try:
        seats: list[tuple[str, str]] = ray.get([actor.seat.remote() for actor in actors], timeout=_START_S)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise RankLostError("A node of the Ray cluster was lost before the ranks could begin.") from error
    order = sorted(range(len(actors)), key=lambda i: (seats[i][0] != own, seats[i][0]))
    return [actors[i] for i in order], f"tcp://{seats[order[0]][1]}"
