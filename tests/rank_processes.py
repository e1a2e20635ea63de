"""Ranks in processes of their own, forked from the test: no import is made again."""

import os
import socket
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from ludus import ranks
from ludus.rank_meeting import Seat

# Memory that a parent made, or that ranks find through a store; sockets; two machines: ranks 0 and 2, and rank 1.
Link = Literal["memory", "found memory", "sockets", "machines"]


def on_ranks(
    size: int,
    work: Callable[[], Any],
    transport: Link = "memory",
    codes: Sequence[int] = (),
) -> list[Any]:
    """What `work` returns on every rank, tensors and plain values; `codes` are those that ranks exit with."""
    with tempfile.TemporaryDirectory() as folder:
        memory = ranks.make_memory(size) if transport == "memory" else -1
        store = (Path(folder) / "store").as_uri() if transport == "sockets" else f"tcp://127.0.0.1:{_free_port()}"
        results = [Path(folder) / f"rank_{rank}" for rank in range(size)]
        tickets = [ranks.Ticket(rank, size, memory, store) for rank in range(size)]
        children = [_fork(ticket, work, results[ticket.rank], transport) for ticket in tickets]
        ended = dict(os.wait() for _ in children)  # as they end: one that nobody waits for counts as alive
        found = [os.waitstatus_to_exitcode(ended[child]) for child in children]
        if memory >= 0:
            os.close(memory)
        assert found == list(codes or [0] * size)
        return [torch.load(result) for result in results if result.exists()]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _fork(ticket: ranks.Ticket, work: Callable[[], Any], result: Path, transport: Link) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        torch.set_num_threads(1)
        if transport == "sockets":
            ranks.has_shared_memory = lambda: False
        elif transport == "machines":
            ranks.own_seat = lambda: Seat("ab"[ticket.rank % 2], [ticket.rank])
        ranks.join(ticket)
        torch.save(work(), result)
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 (nothing of a forked test may go on)
        traceback.print_exc()
    finally:
        os._exit(code)
