"""Ranks on GPUs: how the numbers go that are there.

Where every rank has a GPU of its own, NCCL adds them up from GPU to GPU, and a CUDA graph records that like
everything else. NCCL refuses two ranks on one GPU: there the numbers go through the CPU, and graphs are cut in two
where they do.
"""

import atexit
import os
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from ludus import ranks
from ludus.errors import ConfigError
from ludus.graphs import forget_recordings, outside_graphs

_LOOK_S = 1.0  # between looks whether the other ranks are alive
_GRACE_S = 20.0  # in which a rank that does not wait for the GPU ends by itself when another is lost


def join_gpus(device: torch.device) -> None:
    """All ranks together: be ready to add up what is on their GPUs. A process that is no rank does nothing."""
    if device.type != "cuda" or ranks.is_alone() or ranks.talks_on_gpus():
        return
    own = str(torch.cuda.get_device_properties(device).uuid)
    gpus = ranks.gather_plain(own)
    one_each = len(set(gpus)) == len(gpus) and dist.is_nccl_available()
    ranks.talk_on_gpus(Nccl(device) if one_each else Staged(), sharers=gpus.count(own))


class Staged:
    """Over the CPU, as numbers go there."""

    def add_up(self, numbers: Tensor) -> None:
        outside_graphs(lambda: numbers.copy_(ranks.add_up(numbers.to("cpu", copy=True))))

    def gather(self, numbers: Tensor) -> Tensor:
        everyones = numbers.new_empty((ranks.size(), len(numbers)))
        outside_graphs(lambda: everyones.copy_(ranks.gather(numbers.cpu())))
        return everyones

    def leave(self) -> None:
        pass


class Nccl:
    """NCCL's, of torch.distributed.

    torch watches over what it hands to NCCL itself, but not over what a graph replays: a process that waits there
    for a rank that is gone waits for ever. So a thread looks whether the others are alive.
    """

    def __init__(self, device: torch.device) -> None:
        try:
            self._connect(device)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"NCCL cannot connect the GPUs of the ranks: {reason}; with NCCL_DEBUG=WARN it tells more. "
                "--device cuda:0 lets all ranks share one GPU, without NCCL."
            ) from error
        self._left = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        atexit.register(forget_recordings)  # NCCL would wait for graphs that hold it

    def _connect(self, device: torch.device) -> None:
        store = dist.PrefixStore("nccl", ranks.met_at() or dist.FileStore(_nameless_file(), ranks.size()))
        place = {"store": store, "rank": ranks.rank(), "world_size": ranks.size()}
        dist.init_process_group("nccl", timeout=timedelta(seconds=ranks.longest_wait_s()), **place)
        self.add_up(torch.zeros(1, device=device))  # connects them: no graph may record that
        torch.cuda.synchronize(device)

    def add_up(self, numbers: Tensor) -> None:
        dist.all_reduce(numbers)

    def gather(self, numbers: Tensor) -> Tensor:
        everyones = numbers.new_empty((ranks.size(), len(numbers)))
        dist.all_gather_into_tensor(everyones, numbers.contiguous())
        return everyones

    def leave(self) -> None:
        self._left.set()
        forget_recordings()
        torch.cuda.synchronize()
        dist.destroy_process_group()

    def _watch(self) -> None:
        """End this process where it would wait for ever."""
        longest_s = 2 * ranks.longest_wait_s()  # of silence: iterations are shorter
        heard, alive_at, heard_at = -1, time.monotonic(), time.monotonic()
        while not self._left.wait(_LOOK_S):
            now, lost = time.monotonic(), ranks.lost()
            if ranks.exchanges() != heard:
                heard, heard_at = ranks.exchanges(), now
            if not lost:
                alive_at = now
            if now - alive_at > _GRACE_S or now - heard_at > longest_s:
                sys.stderr.write(lost or f"No rank has answered for {now - heard_at:.0f} s.")
                sys.stderr.flush()
                os._exit(ranks.RankLostError.exit_code)


def _nameless_file() -> str:
    """A file of rank 0 that all ranks of a machine can open. Nothing is left of it when that process ends."""
    own = f"/proc/{os.getpid()}/fd/{os.memfd_create('ludus-nccl')}" if ranks.is_first() else ""
    return str(ranks.told_by_first(own))
