"""What a run will take, told before and just after it starts: the device, room on the disk, time."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from ludus import ranks
from ludus.config import CheckpointConfig, Plan
from ludus.training.job import Job
from ludus.training.ram import size

_TIMED = 2  # iterations by which the rest is judged, after the first, which also prepares


def device_line(device: torch.device) -> str:
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        shared = f", which {ranks.sharers('cuda')} ranks share: their sums go through the CPU"
        name = f"on {torch.cuda.get_device_name(device)}, {size(whole)}"
        return name + shared * (ranks.sharers("cuda") > 1)
    return f"on {psutil.cpu_count() or 1} CPU cores"


def disk_line(job: Job, config: CheckpointConfig, folder: Path) -> str:
    """How large checkpoints become, and all that are kept together; empty where it cannot be known."""
    try:
        one = _tensor_bytes({name: model.state_dict() for name, model in job.models.items()})
        one += _tensor_bytes(job.state(whole=True)) + job.grows_by
    except Exception:  # noqa: BLE001 (whatever breaks a snapshot is told when one is needed)
        return ""
    count = checkpoints_kept(job.plan, config)
    there = next(parent for parent in (folder, *folder.resolve().parents) if parent.exists())
    needed, free = count * one, shutil.disk_usage(there).free
    line = f"{count} checkpoint{'s' * (count > 1)} of {size(one)} on disk: {size(needed)} of {size(free)} free"
    too_much = "; NOT ENOUGH: make --checkpoint.keep smaller, or choose another --run-dir"
    return line + too_much * (needed > free)


def checkpoints_kept(plan: Plan, config: CheckpointConfig) -> int:
    """The most that lie on the disk at once."""
    between = plan.total_steps // config.every if config.every else 0
    made = min(plan.epochs + between, plan.total_iterations)
    return made if config.keep == "all" else min(made, config.keep + 2)  # the best, and one that is being written


def _tensor_bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(_tensor_bytes(value) for value in state.values())
    if isinstance(state, Sequence) and not isinstance(state, str | bytes):
        return sum(_tensor_bytes(value) for value in state)
    return 0


class Stopwatch:
    """Times a few iterations and tells once how long all of them will take."""

    def __init__(self) -> None:
        self._ends: list[float] = []

    def lap(self, device: torch.device) -> float | None:
        """Called after each iteration in which something was learned; seconds of one, when that is known."""
        if len(self._ends) > _TIMED:
            return None
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # else only the asking would be timed
        self._ends.append(time.perf_counter())
        return (self._ends[-1] - self._ends[0]) / _TIMED if len(self._ends) > _TIMED else None
