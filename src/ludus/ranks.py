"""Ranks: processes that train one policy together, each on environments of its own.

What they must have in common goes through the functions here: sums of gradients, moments of observations,
decisions. Every rank calls them in the same order; a rank that does not come is an error on the others. Sums are
made in the order of the ranks, so all get the same bits. A process that is alone is rank 0 of 1, and nothing is
called. torch is imported when there are several: settings, which ask how many there are, are read without it.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ludus.errors import TrainingError

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "LUDUS_RANK"  # of the environment of a process that is to join: a `Ticket` as JSON
LOST = 3  # exit code of a rank that ends because another is gone
_LONGEST_WAIT_S = 1800.0  # for the other ranks
_LINE = 64  # bytes: what ranks write is never in the same line of a cache
_SLOT = 2**20  # bytes that a rank hands over at a time
_SPINS = 40  # looks at the others' counters before the first sleep
_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 20e-6, 2e-3
_LOOK_AFTER_S = 0.1  # between looks whether the others are alive


class RankLostError(TrainingError):
    """Another rank has ended, or hangs: this one cannot go on without it."""


class Ticket(NamedTuple):
    """What a process needs to join the others: one of `memory` and `store`."""

    rank: int
    size: int
    memory: int = -1  # a file descriptor, of `make_memory`
    store: str = ""  # a file through which ranks find each other to talk over sockets


class Transport(Protocol):
    """How numbers go to and fro between ranks. Tensors are flat and on the CPU."""

    def add_up(self, numbers: Tensor) -> None:
        """In place, the sum over all ranks."""

    def gather(self, numbers: Tensor) -> Tensor:
        """[ranks, n]"""


class _Here:
    """Which rank this process is."""

    rank = 0
    size = 1
    transport: Transport | None = None


# Who is who -------------------------------------------------------------------------------------
def rank() -> int:
    return _Here.rank


def size() -> int:
    return _Here.size


def is_first() -> bool:
    """Whether this rank speaks for all: it alone writes files, and to the terminal."""
    return _Here.rank == 0


def own_stream(*path: int) -> tuple[int, ...]:
    """The path, for `derive_seed`, of a random stream that every rank has for itself.

    That of rank 0 is the one of a process that is alone.
    """
    return path if _Here.rank == 0 else (*path, *[0] * (2 - len(path)), _Here.rank)


def is_called() -> bool:
    """Whether this process was started as one of several ranks."""
    return VARIABLE in os.environ or _Here.size > 1


def join(ticket: Ticket | None = None) -> None:
    """Become the rank that the environment names, and wait for the others; alone, or joined before: nothing."""
    given = os.environ.pop(VARIABLE, "")  # processes that this one starts are no ranks
    if ticket is None and not given:
        return
    ticket = ticket or Ticket(**json.loads(given))
    _Here.transport = SharedMemory(ticket) if ticket.memory >= 0 else Sockets(ticket)
    _Here.rank, _Here.size = ticket.rank, ticket.size
    gather_plain(None)  # all are there


# What ranks do together -------------------------------------------------------------------------
def add_up(numbers: Tensor) -> Tensor:
    """In place, the sum over all ranks."""
    if _Here.transport is not None:
        _Here.transport.add_up(numbers.view(-1))
    return numbers


def gather(numbers: Tensor) -> Tensor:
    """[ranks, *numbers], in the order of the ranks."""
    if _Here.transport is None:
        return numbers[None]
    return _Here.transport.gather(numbers.reshape(-1)).view(_Here.size, *numbers.shape)


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

    def __init__(self, ticket: Ticket) -> None:
        import torch

        self._rank, self._size, self._turn = ticket.rank, ticket.size, 0
        memory, slots_at = mmap.mmap(ticket.memory, _bytes_for(ticket.size)), ticket.size * _LINE
        words = memoryview(memory)[:slots_at].cast("q")
        self._turns, self._processes = words[:: _LINE // 8], words[1 :: _LINE // 8]
        self._slots = torch.frombuffer(memory, dtype=torch.uint8, offset=slots_at).view(2, ticket.size, _SLOT)
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

    def _refuse_lost(self, other: int, waited: float) -> None:
        process = self._processes[other]
        if waited > _LONGEST_WAIT_S:
            raise RankLostError(f"Rank {other} has not answered for {waited:.0f} s.")
        try:
            if process:
                os.kill(process, 0)
        except ProcessLookupError:
            if self._turns[other] < self._turn:  # it may have ended after its last word
                raise RankLostError(f"Rank {other} (process {process}) has ended.") from None


# Over sockets -------------------------------------------------------------------------------------
class Sockets:
    """Gloo's, of torch.distributed."""

    def __init__(self, ticket: Ticket) -> None:
        import torch.distributed as dist

        self._dist, self._size = dist, ticket.size
        store = dist.FileStore(ticket.store, ticket.size)
        limit = timedelta(seconds=_LONGEST_WAIT_S)
        dist.init_process_group("gloo", store=store, rank=ticket.rank, world_size=ticket.size, timeout=limit)

    def add_up(self, numbers: Tensor) -> None:
        try:
            self._dist.all_reduce(numbers)
        except RuntimeError as error:
            raise RankLostError(f"Another rank has ended: {str(error).splitlines()[0]}") from error

    def gather(self, numbers: Tensor) -> Tensor:
        everyones = numbers.new_empty((self._size, len(numbers)))
        try:
            self._dist.all_gather(list(everyones), numbers)
        except RuntimeError as error:
            raise RankLostError(f"Another rank has ended: {str(error).splitlines()[0]}") from error
        return everyones
