"""How ranks that were started apart find each other: through a store, a table of texts that all of them reach.

A launcher that starts lost ranks again may keep the store of the attempt before, with what dead processes have
written there. So rank 0 calls all ranks, each answers that call, and nothing else in the store is believed.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import time
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import psutil

if TYPE_CHECKING:
    from torch.distributed import Store

_POLL_S = 0.02
# What tells machines of the same name apart, and containers that do not see each other's processes.
_MARKS = (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid"))


class Seat(NamedTuple):
    """Where a rank runs."""

    machine: str
    cores: list[int]  # that the process may use


def own_seat() -> Seat:
    marks = [
        os.readlink(mark) if mark.is_symlink() else mark.read_text().strip() for mark in _MARKS if mark.exists()
    ]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return Seat(" ".join([platform.node(), *marks]), cores)


def meet(url: str, rank: int, size: int, seat: Seat, longest_s: float) -> tuple[Store, list[Seat]]:
    """A store with nothing but what these ranks write into it, and where each of them runs.

    `url`: tcp://HOST:PORT, served by rank 0; env://, as torch's launchers have it; file:///PATH.
    """
    import torch.distributed as dist

    store = next(iter(dist.rendezvous(url, rank, size, timeout=timedelta(seconds=longest_s))))[0]
    _offer(store, f"hello/{rank}", [uuid.uuid4().hex, *seat])
    until = time.monotonic() + longest_s
    call = _call_all(store, size, until) if rank == 0 else _follow_call(store, rank, until)
    return dist.PrefixStore(call["name"], store), [Seat(*seat) for _, *seat in call["hellos"]]


def interface_to(url: str) -> str:
    """The network interface by which this machine reaches the store; empty where that cannot be told."""
    host = urlsplit(url).hostname or os.environ.get("MASTER_ADDR", "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # which sends nothing
            address = probe.getsockname()[0]
    except OSError:
        return ""
    if address.startswith("127.") and host not in ("localhost", "127.0.0.1"):  # its own name for itself alone
        return ""
    named = (name for name, found in psutil.net_if_addrs().items() if address in [each.address for each in found])
    return next(named, "")


def _call_all(store: Store, size: int, until: float) -> dict[str, Any]:
    """Rank 0: until all have answered the same call, in which each has found itself."""
    call: dict[str, Any] = {}
    while True:
        hellos = [_read(store, f"hello/{rank}") for rank in range(size)]
        if all(hellos) and hellos != call.get("hellos"):
            call = {"name": uuid.uuid4().hex, "hellos": hellos}
            _offer(store, "call", call)
        if call and all(store.check([f"{call['name']}/answer/{rank}"]) for rank in range(1, size)):
            store.set(f"{call['name']}/go", "")
            return call
        missing = [rank for rank in range(size) if not hellos[rank]]
        _wait(until, f"rank {missing[0]}" if missing else "the other ranks")


def _follow_call(store: Store, rank: int, until: float) -> dict[str, Any]:
    """The others: answer every call that holds what this rank has said, until one has been answered by all."""
    own = _read(store, f"hello/{rank}")
    while True:
        call = _read(store, "call")
        if call and len(call["hellos"]) > rank and call["hellos"][rank] == own:
            store.set(f"{call['name']}/answer/{rank}", "")
            if store.check([f"{call['name']}/go"]):
                return call
        _wait(until, "rank 0")


def _offer(store: Store, key: str, value: Any) -> None:
    store.set(key, json.dumps(value))


def _read(store: Store, key: str) -> Any:
    """None where nobody has written it."""
    return json.loads(store.get(key)) if store.check([key]) else None


def _wait(until: float, whom: str) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"{whom} has not come")
    time.sleep(_POLL_S)
