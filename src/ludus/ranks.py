"""Ranks: processes that train one policy together, each on environments of its own.

What they must have in common goes through the functions here: sums of gradients, moments of observations,
decisions. Every rank calls them in the same order; a rank that does not come is an error on the others. Sums are
made in the order of the ranks, so all get the same bits. A process that is alone is rank 0 of 1, and nothing is
called. torch is imported when there are several: settings, which ask how many there are, are read without it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ludus.errors import TrainingError
from ludus.rank_meeting import interface_to, meet, own_seat

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

VARIABLE = "LUDUS_RANK"  # of the environment of a process that is to join: a `Ticket` as JSON
DEADLINE = "LUDUS_RANK_TIMEOUT"  # of the environment: seconds after which a rank that does not answer is lost
_LONGEST_WAIT_S = 1800.0  # for the other ranks, where the environment says nothing
_LINE = 64  # bytes: what ranks write is never in the same line of a cache
_SLOT = 2**20  # bytes that a rank hands over at a time
_SPINS = 40  # looks at the others' counters before the first sleep
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 2e-3
_LOOK_AFTER_S = 0.1  # between looks whether the others are alive


class RankLostError(TrainingError):
    """Another rank has ended, or hangs: this one cannot go on without it."""

    exit_code = 3


class Ticket(NamedTuple):
    """What a process needs to join the others: one of `memory` and `store`.

    Whoever places ranks starts, for each, `ludus resume RUN` with the variables of its ticket.
    """

    rank: int
    size: int
    memory: int = -1  # a file descriptor, of `make_memory`: all ranks have the same parent
    store: str = ""  # where they meet: tcp://HOST:PORT, served by rank 0 there; env://; file:///PATH

    def variables(self) -> dict[str, str]:
        """Of the environment of the process that is to be this rank."""
        return {VARIABLE: json.dumps(self._asdict())}


class Transport(Protocol):
    """How numbers go to and fro between ranks. Tensors are flat."""

    def add_up(self, numbers: Tensor) -> None:
        """In place, the sum over all ranks."""

    def gather(self, numbers: Tensor) -> Tensor:
        """[ranks, n]"""

    def leave(self) -> None:
        """This rank will need the others no more."""


class HostTransport(Transport, Protocol):
    """Of what is on the CPU."""

    def lost(self) -> str:
        """A sentence once another rank is known to have ended before it left; else empty."""


class _Here:
    """Which rank this process is."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    core_sharers = 1
    store: Store | None = None  # where the ranks met; that of rank 0 may serve the others, and goes with it
    transport: HostTransport | None = None
    gpu_transport: Transport | None = None
    exchanges = 0
    gpu_sharers = 1  # ranks on this rank's GPU


# Who is who -------------------------------------------------------------------------------------
def rank() -> int:
    return _Here.rank


def size() -> int:
    return _Here.size


def local_rank() -> int:
    """Which one among the ranks of this machine."""
    return _Here.local_rank


def local_size() -> int:
    """How many ranks this machine has."""
    return _Here.local_size


def core_sharers() -> int:
    """How many ranks have the same cores as this one: some launchers give each rank cores of its own."""
    return _Here.core_sharers


def available_cores() -> int:
    """Cores this process may use, which containers and schedulers limit below the machine's number.

    Ranks that have the same ones share them out among them.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // core_sharers())


def is_alone() -> bool:
    """Whether this process is no rank. One that has joined talks to all ranks, be it itself alone."""
    return _Here.transport is None


def sharers(device: str) -> int:
    """How many ranks take from the memory of this rank's "cpu" or "cuda"."""
    return _Here.gpu_sharers if device == "cuda" else _Here.local_size


def is_first() -> bool:
    """Whether this rank speaks for all: it alone writes files, and to the terminal."""
    return _Here.rank == 0


def own_stream(*path: int) -> tuple[int, ...]:
    """The path, for `derive_seed`, of a random stream that every rank has for itself.

    That of rank 0 is the one of a process that is alone.
    """
    return path if _Here.rank == 0 else (*path, *[0] * (2 - len(path)), _Here.rank)


def join(ticket: Ticket | None = None) -> None:
    """Become the rank of the ticket, by default of the environment's, and wait for the others.

    Who has joined before stays what it is.
    """
    given = os.environ.pop(VARIABLE, "")  # processes that this one starts are no ranks
    if not is_alone():
        return
    ticket = ticket or Ticket(**json.loads(given))
    _Here.rank, _Here.size = ticket.rank, ticket.size
    if ticket.memory >= 0:
        _Here.local_rank, _Here.local_size, _Here.core_sharers = ticket.rank, ticket.size, ticket.size
        _Here.transport = SharedMemory(ticket.rank, ticket.size, ticket.memory)
    else:
        _Here.transport = _meet_others(ticket)
    gather_plain(None)  # all are there


def _meet_others(ticket: Ticket) -> HostTransport:
    """Memory between the ranks of a machine, sockets between machines."""
    own = own_seat()
    try:
        store, seats = meet(ticket.store, ticket.rank, ticket.size, own, longest_wait_s())
        here = [rank for rank, seat in enumerate(seats) if seat.machine == own.machine]
        memory = _open_together(store, ticket, here)
        _Here.store = store
    except (RuntimeError, TimeoutError) as error:  # torch's own are RuntimeErrors
        raise RankLostError(f"The ranks have not met at {ticket.store}: {str(error).splitlines()[0]}.") from error
    if interface := interface_to(ticket.store):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # else gloo asks what the machine's name means
    _Here.local_rank, _Here.local_size = here.index(ticket.rank), len(here)
    _Here.core_sharers = sum(seats[rank].cores == own.cores for rank in here)
    if memory < 0:
        return Sockets(store, ticket.rank, ticket.size)
    among = SharedMemory(_Here.local_rank, len(here), memory)
    os.close(memory)
    if len(here) == ticket.size:
        return among
    firsts = [rank for rank in range(ticket.size) if seats[rank].machine not in [s.machine for s in seats[:rank]]]
    between = Sockets(store, firsts.index(ticket.rank), len(firsts)) if ticket.rank in firsts else None
    return Machines(ticket.rank, ticket.size, among, between)


def _open_together(store: Store, ticket: Ticket, here: list[int]) -> int:
    """A file descriptor of memory that the ranks of this machine share; -1 on all where one cannot open it."""
    memory, first = -1, here[0]
    if ticket.rank == first:
        memory = make_memory(len(here)) if has_shared_memory() else -1
        store.set(f"memory/{first}", f"/proc/{os.getpid()}/fd/{memory}")
    else:
        with contextlib.suppress(OSError):
            memory = os.open(store.get(f"memory/{first}").decode(), os.O_RDWR | os.O_CLOEXEC)
    store.set(f"opened/{ticket.rank}", str(memory >= 0))
    if all(store.get(f"opened/{rank}") == b"True" for rank in range(ticket.size)):
        return memory
    if memory >= 0:
        os.close(memory)
    return -1


def longest_wait_s() -> float:
    """Seconds after which a rank that does not answer is lost."""
    return seconds_in(DEADLINE, _LONGEST_WAIT_S)


def seconds_in(variable: str, otherwise: float) -> float:
    """What a variable of the environment says; `otherwise` where it says nothing."""
    try:
        return max(1.0, float(os.environ.get(variable, "") or otherwise))
    except ValueError:
        raise TrainingError(f"{variable} is {os.environ[variable]!r}; it must be a number of seconds.") from None


def talk_on_gpus(transport: Transport, sharers: int) -> None:
    """From now on tensors on a GPU go this way; so many ranks are on this rank's GPU."""
    _Here.gpu_transport, _Here.gpu_sharers = transport, sharers


def talks_on_gpus() -> bool:
    return _Here.gpu_transport is not None


def met_at() -> Store | None:
    """Where ranks that were started apart have met; None for those of one parent, who did not have to."""
    return _Here.store


def exchanges() -> int:
    """How often this rank has heard of the others: it does in every iteration."""
    return _Here.exchanges


def lost() -> str:
    """A sentence once another rank is known to have ended before it left; else empty."""
    return "" if _Here.transport is None else _Here.transport.lost()


def leave() -> None:
    """At the end of a training: no rank needs another any more, and each may end when it likes."""
    for transport in (_Here.gpu_transport, _Here.transport):
        if transport is not None:
            transport.leave()
    _Here.gpu_transport = None


# What ranks do together -------------------------------------------------------------------------
def add_up(numbers: Tensor) -> Tensor:
    """In place, the sum over all ranks."""
    if _Here.transport is not None:
        _transport_of(numbers).add_up(numbers.view(-1))
    return numbers


def gather(numbers: Tensor) -> Tensor:
    """[ranks, *numbers], in the order of the ranks."""
    if _Here.transport is None:
        return numbers[None]
    _Here.exchanges += 1
    return _transport_of(numbers).gather(numbers.reshape(-1)).view(_Here.size, *numbers.shape)


def _transport_of(numbers: Tensor) -> Transport:
    transport = _Here.gpu_transport if numbers.is_cuda else _Here.transport
    assert transport is not None, "ranks have tensors on GPUs, but no transport for them"
    return transport


def gather_plain(value: Any) -> list[Any]:
    """Plain values of every rank, as JSON has them: no rank runs what another sends."""
    if _Here.transport is None:
        return [value]
    import torch

    text = json.dumps(value).encode()
    lengths = gather(torch.tensor([len(text)])).flatten().tolist()
    padded = torch.zeros(max(lengths), dtype=torch.uint8)
    padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    texts = gather(padded)
    return [json.loads(bytes(row[:length].tolist())) for row, length in zip(texts, lengths, strict=True)]


def told_by_first(value: Any) -> Any:
    """The plain value of rank 0, whatever the others have."""
    return gather_plain(value if is_first() else None)[0]


def anyone(flag: bool) -> bool:
    """Whether it is true on any rank."""
    if _Here.transport is None:
        return flag
    import torch

    return bool(gather(torch.tensor([flag], dtype=torch.uint8)).any())


def everyone(flag: bool) -> bool:
    """Whether it is true on all ranks."""
    return not anyone(not flag)


# Between processes of one machine -------------------------------------------------------------------
def has_shared_memory() -> bool:
    """Whether ranks of this machine can share memory: other processors may show writes in another order."""
    return hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64")


def make_memory(ranks: int) -> int:
    """A file descriptor of memory for so many ranks. It has no name: nothing is left when the last one ends."""
    descriptor = os.memfd_create("ludus-ranks")
    os.ftruncate(descriptor, _bytes_for(ranks))
    return descriptor


def _bytes_for(ranks: int) -> int:
    return ranks * (_LINE + 2 * _SLOT)


class SharedMemory:
    """Every rank has two slots, in turns, and a counter of what it has written.

    Whoever has seen all counters reach its own turn reads all slots. A slot is written again two turns later: then
    every rank has written the turn between, and so has read this one.
    """

    def __init__(self, rank: int, size: int, descriptor: int) -> None:
        import torch

        self._rank, self._size, self._turn, self._longest_s = rank, size, 0, longest_wait_s()
        memory, slots_at = mmap.mmap(descriptor, _bytes_for(size)), size * _LINE
        words = memoryview(memory)[:slots_at].cast("q")
        self._turns, self._processes, self._left = (words[i :: _LINE // 8] for i in range(3))
        self._slots = torch.frombuffer(memory, dtype=torch.uint8, offset=slots_at).view(2, size, _SLOT)
        self._processes[self._rank] = os.getpid()

    def add_up(self, numbers: Tensor) -> None:
        for mine, everyones in self._exchange(numbers):
            mine.copy_(everyones[0])
            for other in everyones[1:]:
                mine.add_(other)

    def gather(self, numbers: Tensor) -> Tensor:
        gathered = numbers.new_empty((self._size, len(numbers)))
        at = 0
        for mine, everyones in self._exchange(numbers):
            gathered[:, at : at + len(mine)] = everyones
            at += len(mine)
        return gathered

    def _exchange(self, numbers: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Parts of `numbers`, with what all ranks have there: [ranks, n], to be read before the next part."""
        for mine in numbers.split(_SLOT // numbers.element_size()):
            self._turn += 1
            slots = self._slots[self._turn % 2, :, : mine.nbytes].view(numbers.dtype)
            slots[self._rank].copy_(mine)
            self._turns[self._rank] = self._turn
            for other in range(self._size):
                if self._turns[other] < self._turn:
                    self._wait_for(other)
            yield mine, slots

    def _wait_for(self, other: int) -> None:
        """Looks again and again, at first at once: ranks have the same to do. Sleeps leave the core to others."""
        turns, turn = self._turns, self._turn
        for _ in range(_SPINS):
            os.sched_yield()
            if turns[other] >= turn:
                return
        began = looked = time.monotonic()
        while turns[other] < turn:
            now = time.monotonic()
            time.sleep(min(max((now - began) / 4, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
            if now - looked > _LOOK_AFTER_S:
                looked = now
                self._refuse_lost(other, now - began)

    def lost(self) -> str:
        gone = (other for other in range(self._size) if not self._left[other] and not self._lives(other))
        return next((self._told_end(other) for other in gone), "")

    def leave(self) -> None:
        self._left[self._rank] = 1

    def _refuse_lost(self, other: int, waited: float) -> None:
        if waited > self._longest_s:
            raise RankLostError(f"Rank {other} has not answered for {waited:.0f} s.")
        if not self._lives(other) and self._turns[other] < self._turn:  # it may have ended after its last word
            raise RankLostError(self._told_end(other))

    def _lives(self, other: int) -> bool:
        """As far as is known: before it joins, its process is not."""
        try:
            if process := self._processes[other]:
                os.kill(process, 0)
        except ProcessLookupError:
            return False
        return True

    def _told_end(self, other: int) -> str:
        return f"Rank {other} (process {self._processes[other]}) has ended."


# Over sockets -------------------------------------------------------------------------------------
class Sockets:
    """Gloo's, of torch.distributed."""

    def __init__(self, store: Store, rank: int, size: int) -> None:
        import torch.distributed as dist

        self._size, limit = size, timedelta(seconds=longest_wait_s())
        try:  # torch's default group is left to GPUs: it is one of all ranks
            self._group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, limit)
        except RuntimeError as error:
            raise RankLostError(f"The ranks cannot talk to each other: {str(error).splitlines()[0]}") from error

    def add_up(self, numbers: Tensor) -> None:
        try:
            self._group.allreduce([numbers]).wait()
        except RuntimeError as error:
            raise self._told_end(error) from error

    def gather(self, numbers: Tensor) -> Tensor:
        everyones = numbers.new_empty((self._size, len(numbers)))
        try:
            self._group.allgather([list(everyones)], [numbers]).wait()
        except RuntimeError as error:
            raise self._told_end(error) from error
        return everyones

    def _told_end(self, error: RuntimeError) -> RankLostError:
        """Gloo does not say which rank it was."""
        where_and_what = str(error).splitlines()[0]
        if "timed out" in where_and_what.lower():
            return RankLostError(f"Another rank has not answered for {longest_wait_s():.0f} s.")
        what = where_and_what.rpartition("] ")[2].partition(". ")[0]  # guesses and a joke follow
        return RankLostError(f"Another rank has ended: {what.rstrip('.')}.")

    def lost(self) -> str:
        return ""  # whoever has started the ranks watches them

    def leave(self) -> None:
        pass  # what is open closes with the process


# Between machines ---------------------------------------------------------------------------------
class Machines:
    """Memory among the ranks of a machine; the first of each talks to the others' first over sockets."""

    def __init__(self, rank: int, size: int, among: SharedMemory, between: Sockets | None) -> None:
        self._rank, self._size, self._among, self._between = rank, size, among, between

    def add_up(self, numbers: Tensor) -> None:
        self._among.add_up(numbers)
        if self._between is not None:
            self._between.add_up(numbers)
        numbers.copy_(self._among.gather(numbers)[0])

    def gather(self, numbers: Tensor) -> Tensor:
        everyones = numbers.new_zeros((self._size, len(numbers)))
        everyones[self._rank] = numbers
        self.add_up(everyones.view(-1))
        return everyones

    def lost(self) -> str:
        return self._among.lost()  # those of other machines are watched by whoever has started them

    def leave(self) -> None:
        self._among.leave()
