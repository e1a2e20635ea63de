"""A process on a node of a Ray cluster, started by an actor that has its CPUs and GPUs.

`RayProcess` is used as `subprocess.Popen` is. Nothing is kept in Ray: a process reads and writes its run folder,
which all nodes must see. Ray is imported when it is asked for.
"""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from ludus.errors import DEBUG, LudusError, plain_text
from ludus.ranks import DEADLINE, RankLostError, seconds_in
from ludus.training.address import read_address

WAIT = "LUDUS_RAY_WAIT"  # of the environment: seconds to wait for room
LOOK_THERE = f"`ray status` shows what it has; {WAIT} says how many seconds to wait."
_LONGEST_WAIT_S = 1800.0  # where the environment says nothing
_LOOK_S = 0.2  # that an actor waits for the end of its process before it tells how it is

_News = tuple[int | None, bytes, bytes]  # an exit code, None while it runs; what was printed to stdout and stderr


def longest_wait_s() -> float:
    """Seconds that a process waits for room."""
    return seconds_in(WAIT, _LONGEST_WAIT_S)


def make_actor(cpus: int, gpus: int, **options: Any) -> Any:
    """Of a `RayProcess`: it comes to a node as soon as one has room."""
    import ray

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes may find another Ludus by themselves
    return ray.remote(_Starter).options(num_cpus=cpus, num_gpus=gpus, max_restarts=0, **options).remote()


class _Starter:
    """An actor: starts one process on its node, and tells what it prints and how it ends."""

    def seat(self) -> tuple[str, str]:
        """Its node, and an address there that nobody uses."""
        import ray

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return ray.get_runtime_context().get_node_id(), f"{host}:{probe.getsockname()[1]}"

    def start(self, words: Sequence[str], folder: str, path: Sequence[str], variables: dict[str, str]) -> _News:
        """`ludus words…`, which finds modules along `path`, with a run in `folder`."""
        if not Path(folder).is_dir():
            host = socket.gethostname()
            raise FileNotFoundError(f"{host} has no {folder}. Give a --run-dir that all nodes of the cluster see.")
        sys.path[:0] = [place for place in path if place not in sys.path]
        from ludus.children import start_process

        self._process = start_process(words, subprocess.PIPE, subprocess.PIPE, (), **variables)
        return None, b"", b""

    def look(self) -> _News:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LOOK_S)
        code = self._process.poll()  # before its pipes are read: then they hold all that it has printed
        return code, self._read(self._process.stdout), self._read(self._process.stderr)

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def _read(self, pipe: IO[bytes] | None) -> bytes:
        """What a pipe holds now."""
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        return pipe.read() or b""


class RayProcess:
    """A process on a node, as `subprocess.Popen` is one here. What it prints comes along with each look at it."""

    def __init__(
        self,
        actor: Any,
        words: Sequence[object],
        stdout: int | None,
        stderr: int,
        keep: Sequence[int] = (),  # no file is open there
        beside: Sequence["RayProcess"] = (),
        **variables: str,
    ) -> None:
        """`beside`: other processes of the same command, which will make room for this one."""
        verb, run, *options = map(str, words)
        folder = os.path.abspath(read_address(run).folder)
        path = [os.path.abspath(place) for place in sys.path]
        told = {name: os.environ[name] for name in (DEBUG, DEADLINE) if os.environ.get(name)}
        self.stdout, self._out = _sink(stdout)
        self.stderr, self._err = _sink(stderr)
        self._actor, self._beside = actor, beside
        self._code: int | None = None
        self._signals: list[int] = []
        self._since, self._has_room = time.monotonic(), False
        self._news = actor.start.remote([verb, os.path.abspath(run), *options], folder, path, told | variables)

    @property
    def is_running(self) -> bool:
        """As far as was known at the last look."""
        return self._code is None

    def poll(self) -> int | None:
        """Its exit code; None while it runs or waits for room; where its node is lost, that of RankLostError."""
        import ray

        if self.is_running and ray.wait([self._news], timeout=0)[0]:
            try:
                self._note(*ray.get(self._news))
            except ray.exceptions.RayActorError as error:
                if error.actor_init_failed:
                    self._refuse(f"A node cannot start it: {error}")
                else:
                    self._end(RankLostError.exit_code, "A node of the Ray cluster is lost.")
            except ray.exceptions.RayTaskError as error:
                self._refuse(f"A node cannot start it: {error.cause}")
        elif self.is_running and self._waits_in_vain():
            self._refuse(f"The Ray cluster has had no room for it in {longest_wait_s():.0f} s. {LOOK_THERE}")
        return self._code

    def _waits_in_vain(self) -> bool:
        """For room that others have. What runs beside it is waited for."""
        if self._has_room or any(process._has_room and process.is_running for process in self._beside):
            self._since = time.monotonic()
        return time.monotonic() > self._since + longest_wait_s()

    def _note(self, code: int | None, out: bytes, err: bytes) -> None:
        """What its actor has told."""
        self._has_room = True
        for sink, text in ((self._out, out), (self._err, err)):
            sink.write(text)
            sink.flush()
        if code is not None:
            self._end(code)
            return
        while self._signals:
            self._actor.send.remote(self._signals.pop(0))
        self._news = self._actor.look.remote()

    def send_signal(self, sig: int, /) -> None:
        """At the next look: a handler of signals calls this, perhaps in the midst of a call of Ray's.

        Ray's processes, and those that they start, do not hear SIGINT.
        """
        if sig == signal.SIGKILL or not self._has_room:
            self._end(-sig)
        self._signals.append(signal.SIGTERM if sig == signal.SIGINT else sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        until = time.monotonic() + (math.inf if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("ludus", timeout or 0.0)
            time.sleep(_LOOK_S / 4)
        return code

    def _refuse(self, sentence: str) -> None:
        self._end(LudusError.exit_code, sentence)

    def _end(self, code: int, sentence: str = "") -> None:
        """Its actor goes, and what it had of the node is free; the process ends with it, if it has not ended."""
        import ray

        if not self.is_running:
            return
        self._code = code
        ray.kill(self._actor)
        with contextlib.suppress(OSError):
            self._err.write(f"ludus: {plain_text(sentence)}\n".encode() if sentence else b"")
        for sink in (self._out, self._err):
            with contextlib.suppress(OSError):
                sink.close()


def _sink(wanted: int | None) -> tuple[IO[bytes] | None, IO[bytes]]:
    """Where what a process prints is read, and written: a pipe, a file, the terminal; as of `subprocess.Popen`."""
    if wanted == subprocess.PIPE:
        reading, writing = os.pipe()
        return open(reading, "rb"), open(writing, "wb")
    if wanted == subprocess.DEVNULL:
        return None, open(os.devnull, "wb")
    return None, open(os.dup(1 if wanted is None else wanted), "wb")
