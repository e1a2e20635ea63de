"""Ranks on this machine: started, watched and ended by a process that trains nothing itself.

Signals go to that process, which passes them on. Ranks end with it, however it ends. What they open is seen by
this machine alone: memory that has no name, or sockets of the loopback interface.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any, Protocol

from ludus import ranks
from ludus.children import start_process
from ludus.errors import LudusError
from ludus.launchers import STOPPED

_GRACE_S = 60.0  # in which ranks end by themselves when another has failed: rank 0 may save what was learned
_GRACE_AFTER_LOSS_S = 5.0  # and when another was lost: they have nothing to save
_POLL_S = 0.05
_READ_S = 2.0  # in which the last of what an ended rank wrote is read
_MOST_LINES = 500  # that are kept of it
_SENTENCE = "ludus: "  # how the command begins what went wrong
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Exit codes after a signal that came before a rank could save, or a second one.
_LEFT_AT_ONCE = (130, -signal.SIGINT, -signal.SIGTERM, ranks.RankLostError.exit_code)


class Place(Protocol):
    """Lets `ludus arguments…` run as so many ranks, here or on other machines, to its end.

    Each rank is a process (`children.start_process`) that has, in its environment, `variables` and those of its
    `ranks.Ticket`. Rank 0 has the terminal, if not `quiet`. The ranks go on from the newest intact checkpoint of
    the run, or from its beginning where there is none. Raises a `RankLostError` where a rank was lost through no
    fault of its own, and another LudusError where one fails.
    """

    def __call__(self, arguments: Sequence[str], size: int, quiet: bool = False, **variables: str) -> None: ...


def run_ranks(arguments: Sequence[str], size: int, quiet: bool = False, **variables: str) -> None:
    """A `Place`: on this machine."""
    with _tickets(size) as tickets:
        loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        run_started(tickets, [start_process] * size, arguments, quiet, **variables | loopback)


def run_started(
    tickets: Sequence[ranks.Ticket],
    starters: Sequence[Callable[..., Any]],
    arguments: Sequence[str],
    quiet: bool,
    **variables: str,
) -> None:
    """Start a rank for every ticket, and pass signals on to all until they have ended.

    A starter does what `start_process` does, here or elsewhere.
    """
    with contextlib.ExitStack() as started:
        processes = [
            started.enter_context(_Rank(ticket, start, arguments, quiet, variables))
            for ticket, start in zip(tickets, starters, strict=True)
        ]
        with _passing_on_signals(processes) as passed:
            _wait_for(processes)
    _refuse_failed(processes, interrupted=bool(passed))


@contextlib.contextmanager
def _tickets(size: int) -> Iterator[list[ranks.Ticket]]:
    if ranks.has_shared_memory():
        memory = ranks.make_memory(size)
        try:
            yield [ranks.Ticket(rank, size, memory=memory) for rank in range(size)]
        finally:
            os.close(memory)
        return
    with tempfile.TemporaryDirectory(prefix="ludus-ranks-") as folder:
        yield [ranks.Ticket(rank, size, store=(Path(folder) / "store").as_uri()) for rank in range(size)]


class _Rank:
    """A process. What it writes to stderr is shown, of rank 0 alone, and the end of it kept."""

    def __init__(
        self,
        ticket: ranks.Ticket,
        start: Callable[..., Any],
        arguments: Sequence[str],
        quiet: bool,
        variables: dict[str, str],
    ) -> None:
        self.rank = ticket.rank
        self.given_up = False  # it did not end by itself
        self.errors: deque[str] = deque(maxlen=_MOST_LINES)
        self._relays = _is_replaced(sys.stdout)
        shown = ticket.rank == 0 and not quiet
        self._process = start(
            arguments,
            stdout=(subprocess.PIPE if self._relays else None) if shown else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            keep=[ticket.memory] if ticket.memory >= 0 else [],
            **variables,
            **ticket.variables(),
        )
        self._readers = [threading.Thread(target=self._read_errors, daemon=True)]
        if self._process.stdout is not None:
            self._readers.append(threading.Thread(target=_relay, args=(self._process.stdout,), daemon=True))
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> "_Rank":
        return self

    def __exit__(self, *_: object) -> None:
        """However this process goes on, none is left behind."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join(_READ_S)  # a process that the rank has started may hold the other end

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    @property
    def failed(self) -> bool:
        return self.code not in (None, 0, STOPPED)

    @property
    def lost_another(self) -> bool:
        """Whether it failed because of another rank."""
        return self.given_up or self.code == ranks.RankLostError.exit_code

    def told(self) -> str:
        """In its own words what went wrong; empty where it has said nothing."""
        at = next((i for i, line in enumerate(self.errors) if line.startswith(_SENTENCE)), len(self.errors))
        return "".join(list(self.errors)[at:]).removeprefix(_SENTENCE).strip()

    def give_up(self) -> None:
        self.given_up = self.given_up or self.code is None
        self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        shown = self.rank == 0
        for line in _lines(self._process.stderr):
            self.errors.append(line)
            shown &= not line.startswith(_SENTENCE)  # which is told at the end
            if shown:
                sys.stderr.write(line)


def _is_replaced(stream: IO[str]) -> bool:
    """Whether what Python prints goes elsewhere than what a process writes: in a notebook, with --quiet."""
    return stream is not sys.__stdout__


def _relay(stream: IO[bytes]) -> None:
    for line in _lines(stream):
        sys.stdout.write(line)


def _lines(stream: IO[bytes]) -> Iterator[str]:
    return (line.decode(errors="replace") for line in stream)


@contextlib.contextmanager
def _passing_on_signals(processes: Sequence[_Rank]) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM go to the ranks, which save and end; yields those that came."""
    passed: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        passed.append(number)
        for process in processes:
            process.send(number)

    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
        before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait_for(processes: Sequence[_Rank]) -> None:
    """Until all have ended; once one has failed, no longer than the grace."""
    deadline = None
    while any(process.code is None for process in processes):
        time.sleep(_POLL_S)
        failed = [process for process in processes if process.failed]
        if deadline is None and failed:
            lost = any((process.code or 0) < 0 or process.lost_another for process in failed)
            deadline = time.monotonic() + (_GRACE_AFTER_LOSS_S if lost else _GRACE_S)
        if deadline is not None and time.monotonic() > deadline:
            for process in processes:
                process.give_up()


def _have_saved(processes: Sequence[_Rank]) -> bool:
    """Rank 0 has; and others were past their end when the signal came."""
    first, *others = (process.code for process in processes)
    return first == STOPPED and all(code in (0, STOPPED, -signal.SIGINT, -signal.SIGTERM) for code in others)


def _refuse_failed(processes: Sequence[_Rank], interrupted: bool) -> None:
    """In the words of the rank that failed first of itself, not because another was lost."""
    failed = [process for process in processes if process.failed]
    if not failed or (interrupted and _have_saved(processes)):
        return
    if interrupted and all(process.code in _LEFT_AT_ONCE for process in failed):
        raise KeyboardInterrupt
    lost = LudusError if interrupted else ranks.RankLostError  # what was to end is not started again
    first = next((process for process in failed if not process.lost_another), None)
    if first is None:  # one hangs
        raise lost(next((told for process in failed if (told := process.told())), "A rank was lost."))
    assert first.code is not None
    if first.code < 0:
        name = signal.Signals(-first.code).name
        why = ", as the system does where memory runs out" if -first.code == signal.SIGKILL else ""
        raise lost(f"Rank {first.rank} was ended by {name}{why}.")
    told = first.told()
    if not told:  # a fault of Ludus' own: its stack trace is what a report of it needs
        if first.rank > 0:
            sys.stderr.write("".join(first.errors))
        raise LudusError(f"Rank {first.rank} failed (exit code {first.code}); what it wrote is above.")
    raise LudusError(told if first.rank == 0 else f"Rank {first.rank}: {told}")
