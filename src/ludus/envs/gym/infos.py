"""Numbers that an environment tells in its infos, averaged over the steps of an episode."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ludus.envs.row_space import MASK
from ludus.envs.vec import State

MOST_NAMES = 32  # numbers told beyond these are not kept
SUCCESS_KEYS = ("is_success", "success")
# Types of numbers and flags that need no second look.
NUMBERS = frozenset({float, int, bool, np.bool_, *(np.dtype(c).type for c in "efdbhilqBHILQ")})
_LONGEST_NAME = 60
_MOST_KEYS = 1_000  # that are remembered
_LARGEST = 1e30  # beyond, a number is a fault or a sentinel, and float32 soon has no room for it
_NOT_KEPT = -1
_ELSEWHERE = frozenset({*SUCCESS_KEYS, MASK, "TimeLimit.truncated"})


class InfoMeans:
    """Sums of what the infos of each row have told in its present episode."""

    def __init__(self, num_rows: int) -> None:
        self.names: list[str] = []  # in the order in which they were first told
        self._columns: dict[Any, int] = {}  # of the keys that were seen, also of those that are not kept
        self._sums = [[0.0] * MOST_NAMES for _ in range(num_rows)]
        self._counts = [[0] * MOST_NAMES for _ in range(num_rows)]

    def add(self, row: int, info: dict[Any, Any]) -> None:
        """What one step told; only finite numbers count."""
        columns, sums, counts = self._columns, self._sums[row], self._counts[row]
        for key, value in info.items():
            if type(value) in NUMBERS:
                column = columns.get(key)
                if column is None:
                    column = self._column_of(key)
                if column >= 0 and -_LARGEST < value < _LARGEST:
                    sums[column] += value
                    counts[column] += 1

    def _column_of(self, key: Any) -> int:
        """Of a key that is seen for the first time."""
        kept = isinstance(key, str) and key.isprintable() and 0 < len(key) <= _LONGEST_NAME
        kept = kept and key not in _ELSEWHERE and not key.startswith("_") and len(self.names) < MOST_NAMES
        column = len(self.names) if kept else _NOT_KEPT
        if kept:
            self.names.append(key)
        if kept or len(self._columns) < _MOST_KEYS:  # an environment may make up new ones for ever
            self._columns[key] = column
        return column

    def take(self, row: int) -> list[float]:
        """The mean of every name over the row's episode, which has ended; NaN where it was not told."""
        sums, counts, number = self._sums[row], self._counts[row], len(self.names)
        means = [sums[i] / counts[i] if counts[i] else math.nan for i in range(number)]
        sums[:number], counts[:number] = [0.0] * number, [0] * number
        return means

    def running(self) -> list[dict[str, list[float]]]:
        """Sum and number of every name, row by row: what a checkpoint holds."""
        columns = dict(enumerate(self.names))
        return [
            {name: [float(sums[i]), counts[i]] for i, name in columns.items() if counts[i]}
            for sums, counts in zip(self._sums, self._counts, strict=True)
        ]

    def load(self, names: Sequence[Any], running: Sequence[State]) -> None:
        """Go on from what `running` gave, and from nothing in other rows; `names` are known from now on."""
        for row in range(len(self._sums)):
            self.take(row)
        self.names, self._columns = [], {}
        for name in dict.fromkeys(names):
            self._column_of(name)
        for row, told in enumerate(running[: len(self._sums)]):
            for name, (total, count) in told.items():
                column = self._columns.get(name, _NOT_KEPT)
                if column >= 0 and count > 0 and math.isfinite(total):
                    self._sums[row][column], self._counts[row][column] = float(total), int(count)
