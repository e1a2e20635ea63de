"""The arrays through which a block of environments takes actions and gives results, allocated once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.envs.gym.infos import MOST_NAMES
from ludus.envs.gym.spaces import Spaces
from ludus.envs.vec import Step


@dataclass
class Rows:
    """What goes in and out of a step, in memory that a worker may share."""

    action: np.ndarray  # [rows, ...]
    obs: np.ndarray  # [rows, ...]
    reward: np.ndarray  # [rows]
    terminated: np.ndarray  # [rows] bool
    truncated: np.ndarray  # [rows] bool
    final_obs: np.ndarray  # [rows, ...]
    success: np.ndarray  # [rows], NaN where an ended episode did not say
    present: np.ndarray  # [rows] bool: there is an agent to act; only where agents come and go
    info: (
        np.ndarray
    )  # [rows, MOST_NAMES] means of numbers in the infos of an ended episode, NaN where it told none

    @staticmethod
    def layout(num_rows: int, of: Spaces) -> list[tuple[tuple[int, ...], np.dtype]]:
        """(shape, dtype) of each array."""
        row: list[tuple[Any, Any]] = [(of.action.shape, of.action.dtype), (of.obs.shape, of.obs.dtype)]
        row += [((), np.float32), ((), bool), ((), bool), row[1], ((), np.float32), ((), bool)]
        row += [((MOST_NAMES,), np.float32)]
        return [((num_rows, *shape), np.dtype(dtype)) for shape, dtype in row]

    @classmethod
    def over(cls, buffer: Any, num_rows: int, of: Spaces) -> "Rows":
        """Arrays one after the other in `buffer`."""
        arrays, at = [], 0
        for shape, dtype in cls.layout(num_rows, of):
            arrays.append(np.ndarray(shape, dtype, buffer, at))
            at += -(-arrays[-1].nbytes // 64) * 64  # each on a cache line of its own
        return cls(*arrays)

    @classmethod
    def alone(cls, num_rows: int, of: Spaces) -> "Rows":
        """Arrays in memory of their own."""
        return cls.over(np.zeros(cls.num_bytes(num_rows, of), np.uint8), num_rows, of)

    @classmethod
    def num_bytes(cls, num_rows: int, of: Spaces) -> int:
        return sum(math.prod(shape) * dtype.itemsize + 64 for shape, dtype in cls.layout(num_rows, of))

    def part(self, rows: slice) -> "Rows":
        return Rows(*(getattr(self, field.name)[rows] for field in fields(self)))


def info_metrics(info: np.ndarray, names: Sequence[str]) -> dict[str, Tensor]:
    """`env/…` of the first columns, one a name."""
    if not names:
        return {}
    columns = torch.from_numpy(info[:, : len(names)].T.copy())
    return dict(zip([f"env/{name}" for name in names], columns.unbind(), strict=True))


def step_of(rows: Rows, success_seen: bool, metrics: dict[str, Tensor]) -> Step:
    """The caller's own copy of what the arrays hold."""
    if success_seen:
        metrics["success"] = torch.from_numpy(rows.success.copy())
    return Step(
        torch.from_numpy(rows.obs.copy()),
        torch.from_numpy(rows.reward.copy()),
        torch.from_numpy(rows.terminated.copy()),
        torch.from_numpy(rows.truncated.copy()),
        torch.from_numpy(rows.final_obs.copy()),
        metrics,
    )
