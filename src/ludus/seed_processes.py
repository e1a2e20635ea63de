"""Training several runs at once, each in a process of its own: what fits side by side, and how far each one is.

A run is trained by `ludus resume RUN`, whether it has begun or not. What is known about it is read from its files,
so a process says nothing to this one.
"""

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil

from ludus import ranks
from ludus.errors import LudusError, plain_text
from ludus.files import open_regular
from ludus.placing import Here, Placed, Placer
from ludus.run_end import reached_its_end, stopped_as_asked
from ludus.show.jsonl import parse_row
from ludus.show.machine import free_gpu_mb
from ludus.training.elastic import Losses
from ludus.training.interrupt import Interrupt

State = Literal["waiting", "training", "finished", "stopped", "failed"]
_LOOK_S = 0.25
_PATIENCE_S = 10.0  # for a process that was told to leave at once
_ROOM = 1.2  # times what the largest process takes must be free before another one starts
_CUDA_CONTEXT_MB = 600  # which every process on a GPU takes besides
_LONGEST_REASON = 500
_LOG_TAIL = 20_000
_METRICS_TAIL = 8_000_000  # bytes of new rows at most: of more than that, the newest
_REFUSED = 2  # the exit code of a process that has told in a sentence what is wrong


@dataclass
class Seed:
    """A run that is trained beside others."""

    number: int
    folder: Path
    state: State = "waiting"
    options: Sequence[object] = ()  # of `ludus resume`
    stop_at: int = 0  # the step where it stops; 0: at its end
    step: int = 0
    goal: int = 0  # the step at which its training ends; 0: not known yet
    eta: float | None = None  # in seconds
    seconds: float = 0.0  # that its process has run
    evaluation: dict[str, float] = field(default_factory=dict)  # the newest
    reached: bool = False  # its end, or the step where it was to stop
    why: str = ""  # it failed
    killed: bool = False  # by a signal: it can go on
    refused: bool = False  # in a sentence: there is no stack trace to keep
    memory_mb: float = 0.0
    gpu_memory_mb: float = 0.0
    process: Placed | None = None
    tries: int = 0  # to train it
    _read: int = 0  # bytes of its metrics.jsonl
    _started: float = 0.0
    _losses: Losses = field(default_factory=Losses)  # of its node
    began: bool = False  # its present process has written a row

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def share(self) -> float:
        """Of its training that is done."""
        if self.state == "finished":
            return 1.0
        return min(1.0, max(0.0, self.step / self.goal)) if self.goal else 0.0

    def start(self, placer: Placer) -> None:
        self.read_rows()  # of before
        self.state, self._started, self.began = "training", time.monotonic(), False
        self.why, self.killed, self.refused = "", False, False
        self.memory_mb = self.gpu_memory_mb = 0.0  # what its new process takes is not known yet
        self.tries += 1
        stop = ["--stop-at", self.stop_at] if self.stop_at else []
        try:
            self.process = placer.start(["resume", self.folder, *self.options, *stop], self.log)
        except LudusError as error:  # the others go on
            self.state, self.why, self.refused = "failed", str(error), True

    def look(self, interrupted: bool = False) -> None:
        """Read what its training has written since, and notice its end; `interrupted`: it was asked to end."""
        assert self.process is not None
        code = self.process.poll()
        self.seconds = time.monotonic() - self._started
        self.read_rows()
        if code is not None:
            self._end(code, interrupted)

    def _end(self, code: int, interrupted: bool) -> None:
        self.process = None
        # After a failure `final` may be that of a shorter training, which this one was to extend.
        self.reached = code == 0 or stopped_as_asked(self.folder, self.stop_at)
        ended_early = interrupted and code == -signal.SIGTERM  # before it could catch the signal
        if code == 0 and reached_its_end(self.folder):
            self.state = "finished"
        elif self.reached or code == os.EX_TEMPFAIL or ended_early:
            self.state = "stopped"
        elif code == ranks.RankLostError.exit_code and not interrupted and self._losses.add(self.step):
            self.state = "waiting"
        else:
            self.state, self.killed, self.refused = "failed", code < 0, code == _REFUSED
            self.why = f"killed by {signal.Signals(-code).name}" if code < 0 else _last_words(self.log)

    def read_rows(self) -> None:
        """New rows of its metrics.jsonl; all of them again where a resume has cut it."""
        with contextlib.suppress(OSError, LudusError), open_regular(self.folder / "metrics.jsonl") as file:
            size = os.fstat(file.fileno()).st_size
            is_cut = size < self._read
            file.seek(max(0 if is_cut else self._read, size - _METRICS_TAIL))
            *lines, rest = file.read(_METRICS_TAIL).split(b"\n")
            self._read = file.tell() - len(rest)
            for row in filter(None, map(parse_row, lines)):
                known = {name: value for name, value in row.items() if not math.isnan(value)}
                self._note(known, by_this_process=not is_cut)

    def _note(self, row: dict[str, float], by_this_process: bool) -> None:
        self.step = int(row["step"])
        eta, rate = row.get("time/eta_s"), row.get("time/fps")
        if eta is not None and rate is not None:
            self.eta, self.goal = eta, self.step + round(eta * rate)
        if by_this_process:
            self.began = True
            self.memory_mb = max(self.memory_mb, row.get("system/memory_mb", 0.0))
            self.gpu_memory_mb = max(self.gpu_memory_mb, row.get("system/gpu_memory_reserved_mb", 0.0))
        if any(name.startswith(("eval/", "reward/")) for name in row):
            self.evaluation = row


def _last_words(log: Path) -> str:
    """What a process said last: the sentence of its error."""
    with contextlib.suppress(OSError, LudusError), open_regular(log) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL))
        lines = [
            line.strip() for line in file.read(_LOG_TAIL).decode(errors="replace").splitlines() if line.strip()
        ]
        if lines:
            return plain_text(lines[-1].removeprefix("ludus: "), _LONGEST_REASON)
    return "it said nothing"


@dataclass
class Pool:
    """Trains the seeds, as many at once as there is room for."""

    seeds: list[Seed]
    at_once: int
    on_gpu: bool = False
    placer: Placer = field(default_factory=Here)
    alike: bool = True  # all have the same settings: what one of them refuses, all would
    interrupted: bool = False

    @property
    def running(self) -> list[Seed]:
        return [seed for seed in self.seeds if seed.state == "training"]

    @property
    def waiting(self) -> list[Seed]:
        return [seed for seed in self.seeds if seed.state == "waiting"]

    @property
    def eta(self) -> float | None:
        """Seconds until all are trained, if those that wait take as long as the others."""
        begun = [s for s in self.seeds if s.state in ("training", "finished", "stopped") and s.seconds]
        if not begun or any(seed.eta is None for seed in self.running):
            return None
        ends = sorted(seed.eta or 0.0 for seed in self.running) or [0.0]
        whole = sum(seed.seconds + (seed.eta or 0.0) * (seed in self.running) for seed in begun) / len(begun)
        ends += [0.0] * (min(self.at_once, len(self.seeds)) - len(ends))
        for _ in self.waiting:
            ends = sorted((ends[0] + whole, *ends[1:]))
        return ends[-1]

    def run(
        self,
        tell: Callable[[], None],
        announce: Callable[[str], None],
        refill: Callable[[], None] = lambda: None,
    ) -> None:
        """Until all have ended. `tell` is called after every look at them; `refill` before, and may add more."""
        try:
            with Interrupt(announce) as interrupt:
                refill()
                while self.running or (self.waiting and not self.interrupted):
                    if interrupt.requested and not self.interrupted:
                        self.interrupt()
                    self._start_more()
                    time.sleep(_LOOK_S)
                    for seed in self.running:
                        seed.look(self.interrupted)
                    self._reconsider()
                    tell()
                    refill()
        except KeyboardInterrupt:  # the second: they save what is new and leave at once, too
            self._send(signal.SIGTERM)
            self._wait()
            raise
        finally:
            self._send(signal.SIGKILL)  # only where something broke here

    def interrupt(self) -> None:
        """Let all save and stop; none begins any more."""
        self.interrupted = True
        self._send(signal.SIGTERM)

    def _start_more(self) -> None:
        while not self.interrupted and self.waiting and len(self.running) < self.at_once and self._has_room():
            self.waiting[0].start(self.placer)

    def _has_room(self) -> bool:
        """Whether the memory of host and GPU suffices for one more; the first shows how much that is."""
        if not self.running or not self.placer.on_this_machine:
            return True
        if not all(seed.memory_mb for seed in self.running):
            return not self.on_gpu and psutil.virtual_memory().available > psutil.virtual_memory().total / 2
        if _ROOM * max(seed.memory_mb for seed in self.running) * 2**20 > psutil.virtual_memory().available:
            return False
        free = free_gpu_mb() if self.on_gpu else None
        return free is None or _ROOM * max(s.gpu_memory_mb for s in self.running) + _CUDA_CONTEXT_MB < free

    def _reconsider(self) -> None:
        """What could not begin beside others, for want of memory, is tried again when one of them has ended.

        A mistake in the settings is the same for every seed: those that wait do not repeat it.
        """
        if not self.alike:
            return
        refused = [s for s in self.seeds if s.state == "failed" and not s.began and not s.killed]
        for seed in refused:
            if self.running and seed.tries == 1 and not self.interrupted:
                seed.state, self.at_once = "waiting", len(self.running)
        if refused and not self.running and not any(seed.step for seed in self.seeds):
            for seed in self.waiting:
                seed.state, seed.why, seed.refused = "failed", refused[0].why, refused[0].refused

    def _send(self, number: signal.Signals) -> None:
        for seed in self.running:
            if seed.process is not None and seed.process.poll() is None:
                seed.process.send_signal(number)

    def _wait(self) -> None:
        until = time.monotonic() + _PATIENCE_S
        for seed in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert seed.process is not None
                seed.process.wait(max(0.0, until - time.monotonic()))
