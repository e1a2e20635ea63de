"""A `ludus` command as a process forked from one that has imported everything: it starts in 0.1 s instead of 4.

It is a process like any other: signals, limits and exit codes are the system's. Whoever forks must not have
started threads; that is why every thread pool is told to be one thread before torch is imported, in `preload`.
"""

import atexit
import contextlib
import ctypes
import importlib
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 1 << 30
TESTS = Path(__file__).resolve().parents[1]
_ROOM = 6 * GIB  # of addresses, beyond the parent's: what wants more than this would take the machine down
_NO_MEMORY = (
    "MemoryError",
    "allocate memory",
    "bad_alloc",
    "Unable to allocate",
)  # more than the room was asked for
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.002
_LOOK_S = 0.25  # between looks at the whole tree of processes, which cost more

# What trainings import, and what other verbs do besides, when they are first used.
_TRAINING = (
    "ludus.cli", "ludus.commands.training", "ludus.runs", "ludus.algorithms.imitation.job",
    "ludus.algorithms.replay.online", "ludus.algorithms.replay.offline", "ludus.algorithms.reward.job",
    "ludus.envs.gym.workers", "h5py", "pettingzoo",
)  # fmt: skip
_LOOKING = (
    "ludus.viewing", "ludus.rewards", "ludus.export", "ludus.show.report", "ludus.commands.data",
    "ludus.commands.motions", "pygame", "PIL.Image",
)  # fmt: skip
_EXPORTING = ("torch.onnx", "onnx", "onnxscript", "onnxruntime", "viser", "mjviser")


def preload(looking: bool = True, exporting: bool = True) -> None:
    """Import what trainings need, and what other verbs do, here and once, without starting a thread."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ |= {"NO_COLOR": "1", "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    if str(TESTS) not in sys.path:
        sys.path.append(str(TESTS))  # test environments, and this package as `chaos`
    for name in _TRAINING + _LOOKING * looking + _EXPORTING * exporting:
        with contextlib.suppress(ImportError):  # some are of extras
            importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


@dataclass(frozen=True)
class Limits:
    """What a command may take."""

    cpu_s: float = 10.0
    """Of the process and those it started; waiting for nothing for so long is a hang as well."""
    memory: int = GIB
    """Bytes beyond what the parent had."""


@dataclass(frozen=True)
class Ended:
    """What became of a command."""

    arguments: tuple[str, ...]
    code: int
    """Its exit code; negative: killed by this signal."""
    output: str
    errors: str
    cpu_s: float
    hung: str
    """How it hung, or nothing."""
    over_memory: bool

    @property
    def traced(self) -> bool:
        return "Traceback (most recent call last)" in self.errors + self.output

    @property
    def told(self) -> str:
        """The last line said to the user."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    @property
    def line(self) -> str:
        """For a report of what went wrong."""
        ended = f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit {self.code}"
        return f"ludus {' '.join(self.arguments)[:60]} → {self.hung or ended}: {self.told[:300]}"


class Child:
    """A running command."""

    def __init__(
        self,
        arguments: Sequence[object],
        folder: Path,
        inside: Callable[[], Callable[[], None] | None] = lambda: None,
        limits: Limits | None = None,
    ) -> None:
        """Run `ludus` with these arguments in `folder`; `inside` prepares the new process, its result ends it."""
        self.arguments = tuple(map(str, arguments))
        self._limits = limits or Limits(cpu_s=120.0, memory=8 * GIB)
        self._logs = (folder.with_name(f"{folder.name}.stdout"), folder.with_name(f"{folder.name}.stderr"))
        self._rss = psutil.Process().memory_info().rss
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_ludus(self.arguments, folder, self._logs, inside, self._limits)

    def cpu_s(self) -> float:
        """Processor time of the process itself so far, whatever else the machine does."""
        try:
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return float("inf")  # it has ended

    def signal_at(self, cpu_s: float, number: signal.Signals, whole_group: bool = False) -> bool:
        """Send a signal as soon as it has used so much processor time. False: it had ended before."""
        until = time.monotonic() + 300
        while self.cpu_s() < cpu_s:
            if self._has_ended() or time.monotonic() > until:
                return False
            time.sleep(_POLL_S / 2)
        if self._has_ended():
            return False
        os.killpg(self.pid, number) if whole_group else os.kill(self.pid, number)
        return True

    def _has_ended(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def descendants(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def wait(self) -> Ended:
        """Wait for its end, or make it end where it goes beyond its limits."""
        hung, over_memory = "", False
        started = looked = moved = time.monotonic()
        used = 0.0
        while not (found := os.wait4(self.pid, os.WNOHANG))[0]:
            now = time.monotonic()
            if now - looked > _LOOK_S:
                looked = now
                cpu, memory = _tree_of(self.pid)
                if cpu > used + 0.005:
                    used, moved = cpu, now
                over_memory = memory > self._limits.memory
                hung = self._hangs(cpu, now - moved, now - started)
                if hung or over_memory:
                    os.kill(self.pid, signal.SIGKILL)
            time.sleep(_POLL_S)
        _, status, usage = found
        code = os.waitstatus_to_exitcode(status)
        cpu = usage.ru_utime + usage.ru_stime
        if code == -signal.SIGXCPU:
            hung = hung or f"busy for {cpu:.0f} s"
        kill_descendants()
        output, errors = (log.read_text(errors="replace") for log in self._logs)
        over_memory |= usage.ru_maxrss * 1024 - self._rss > self._limits.memory
        over_memory |= any(words in output + errors for words in _NO_MEMORY)
        return Ended(self.arguments, code, output, errors, cpu, hung, over_memory)

    def _hangs(self, cpu_s: float, still_s: float, wall_s: float) -> str:
        """On a busy machine a process may take long; but it does something, and its processor time tells."""
        patience = max(10.0, self._limits.cpu_s)
        if cpu_s > self._limits.cpu_s:
            return f"busy for {cpu_s:.0f} s"
        if still_s > patience:
            return f"did nothing for {still_s:.0f} s"
        return f"still there after {wall_s:.0f} s" if wall_s > 20 * patience else ""


def run(
    arguments: Sequence[object],
    folder: Path,
    inside: Callable[[], Callable[[], None] | None] = lambda: None,
    limits: Limits | None = None,
) -> Ended:
    """Run a command to its end."""
    return Child(arguments, folder, inside, limits).wait()


def adopt_orphans() -> None:
    """Make this process the parent of whatever its children leave behind, so that it can be ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> None:
    """End what a killed command has left: worker processes and their server."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, 0)[0]:
            pass


# In the child -----------------------------------------------------------------------------------------
def _be_ludus(
    arguments: Sequence[str],
    folder: Path,
    logs: tuple[Path, Path],
    inside: Callable[[], Callable[[], None] | None],
    limits: Limits,
) -> None:
    """Never returns: ends as `ludus` would."""
    code = 1
    try:
        os.setsid()
        for descriptor, path in ((0, Path(os.devnull)), (1, logs[0]), (2, logs[1])):
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            opened = os.open(path, flags, 0o644)
            os.dup2(opened, descriptor)
            os.close(opened)
        os.chdir(folder)
        _live_in(folder / "home")
        _limit(limits)
        sys.argv = ["ludus", *arguments]
        finish = inside()
        code = _main()
        for late in (signal.SIGINT, signal.SIGTERM):
            signal.signal(late, signal.SIG_IGN)
        if finish:
            finish()
        getattr(threading, "_shutdown", lambda: None)()  # what Python does at its end
        getattr(atexit, "_run_exitfuncs", lambda: None)()
    except BaseException:  # noqa: BLE001 (nothing may get into the code of the parent)
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _main() -> int:
    from ludus.cli import main

    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:  # noqa: BLE001 (as the interpreter would)
        traceback.print_exc()
        return 1
    return 0


def _live_in(home: Path) -> None:
    """What a user has at home, kept apart: a stranger here, wherever else the user has trained."""
    home.mkdir(exist_ok=True)
    os.environ["HOME"] = str(home)
    for kind in ("CONFIG", "STATE", "DATA", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = str(home / kind.lower())


def _limit(limits: Limits) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    seconds = round(limits.cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 2))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _tree_of(pid: int) -> tuple[float, int]:
    """(processor seconds, bytes of memory) of a process and all below it; shared memory is shared out."""
    cpu, memory = 0.0, 0
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with contextlib.suppress(psutil.Error, OSError, ValueError):
                times = process.cpu_times()
                cpu += times.user + times.system
                for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        memory += int(line.split()[1]) * 1024
    return cpu, memory
