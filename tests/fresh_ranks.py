"""Ranks in processes that import everything anew: a process that has used a GPU cannot be forked."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ludus import ranks

_WORK = "LUDUS_TEST_WORK"
_LONGEST_S = 300.0


def on_fresh_ranks(size: int, work: Callable[..., Any], **arguments: Any) -> list[Any]:
    """What `work`, a function of a module, returns on every rank; an error if one of them does not end well."""
    with tempfile.TemporaryDirectory() as folder:
        results = [Path(folder) / f"rank_{rank}" for rank in range(size)]
        memory = ranks.make_memory(size)
        processes = [
            _start(ranks.Ticket(rank, size, memory), work, arguments, results[rank]) for rank in range(size)
        ]
        os.close(memory)
        try:
            told = [process.communicate(timeout=_LONGEST_S)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
        codes = [process.returncode for process in processes]
        assert codes == [0] * size, b"\n".join(told).decode()
        return [torch.load(result) for result in results]


def _start(
    ticket: ranks.Ticket, work: Callable[..., Any], arguments: dict[str, Any], result: Path
) -> "subprocess.Popen[bytes]":
    told = {"module": work.__module__, "name": work.__name__, "arguments": arguments, "result": str(result)}
    return subprocess.Popen(
        [sys.executable, "-c", "import fresh_ranks; fresh_ranks.main()"],
        env={**os.environ, **ticket.variables(), _WORK: json.dumps(told), "NCCL_SOCKET_IFNAME": "lo"},
        pass_fds=[ticket.memory],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def main() -> None:
    told = json.loads(os.environ.pop(_WORK))
    work = getattr(importlib.import_module(told["module"]), told["name"])
    torch.set_num_threads(1)
    ranks.join()
    torch.save(work(**told["arguments"]), told["result"])
