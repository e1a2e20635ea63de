"""metrics.jsonl: one JSON object a line, the truth about a run.

Every line is written whole or not at all: a full disk leaves the file as it was, and a half line that
a killed process left is dropped when the file is next opened for writing.
"""

import contextlib
import json
import math
import os
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ludus.errors import CheckpointError, LudusError, UnsavedError, plain_text
from ludus.files import (
    TRANSIENT,
    open_regular,
    open_to_append,
    parse_json,
    persistently,
    write_line,
    write_whole,
)

_LONGEST_ROW = 1_000_000  # bytes
MOST_STEPS = 2**53  # whole numbers up to here are exact as floats
_MOST_ROWS = 50_000_000
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 400_000, 200_000_000
_EVALUATED = b'"eval'  # in rows of evaluations, which are fewer than the others
_LONGEST_NAME = 200  # of a metric
_LARGEST = 1e100


# Names in the rows of older runs, and those of now.
_RENAMED = {
    "train/policy_loss": "train/policy_gradient_loss",
    "train/q_loss": "train/critic_loss",
    "train/pi_loss": "train/actor_loss",
    "train/alpha": "train/ent_coef",
    "train/entropy_coef": "train/ent_coef",
    "eval/mean_length": "eval/mean_ep_length",
    "eval_stochastic/mean_length": "eval_stochastic/mean_ep_length",
    "time/elapsed_s": "time/time_elapsed",
    "loop/iteration": "time/iterations",
    "system/gpu_memory_mb": "system/gpu_memory_reserved_mb",
}


class JsonlSink:
    """Appends `{"step": …, **metrics}` lines; NaN and infinities are written as null.

    A row that could not be written because of an error that may pass is kept, and written with the next one.
    """

    name = "metrics.jsonl"
    required = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._unwritten: list[bytes] = []
        try:
            persistently(self._open)
        except OSError as error:
            raise self._failure(error) from error

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Unbuffered: a row is in the file when `write` returns, whatever happens to this process.
        self._file = open_to_append(self.path)
        self.rows_written = truncate_to(self.path, None)  # rows of before a resume count

    def write(self, step: int, metrics: dict[str, float]) -> None:
        row = {"step": int(step)} | {name: _plain(value) for name, value in metrics.items() if name != "step"}
        self._unwritten.append(json.dumps(row, allow_nan=False).encode() + b"\n")
        with contextlib.suppress(UnsavedError):  # it is tried again, at the latest before the next checkpoint
            self._write_rows()

    def _write_rows(self) -> None:
        try:
            while self._unwritten:
                persistently(lambda: write_line(self._file, self._unwritten[0]))
                del self._unwritten[0]
                self.rows_written += 1
        except OSError as error:
            raise self._failure(error) from error

    def flush(self) -> None:
        try:
            self._write_rows()
            if not self._in_place():
                self._write_anew()
            persistently(lambda: os.fsync(self._file.fileno()))
        except OSError as error:
            raise self._failure(error) from error

    def _in_place(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), os.lstat(self.path))
        except FileNotFoundError:
            return False

    def _write_anew(self) -> None:
        """The file was deleted or replaced. What was written is still to be had from the open one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.dup(self._file.fileno()), "rb") as written:
            written.seek(0)
            write_whole(self.path, written.read())
        self._file.close()
        self._file = open_to_append(self.path)

    def close(self) -> None:
        with contextlib.suppress(LudusError):
            self._write_rows()
        self._file.close()

    def _failure(self, error: OSError) -> LudusError:
        return (UnsavedError if error.errno in TRANSIENT else CheckpointError)(
            f"Cannot write {self.path}: {error.strerror or error}. Make the folder writable or free some "
            f"disk space, then continue with `ludus resume {shlex.quote(str(self.path.parent))}`."
        )


def truncate_to(path: Path | str, n_rows: int | None, longest: int = _LONGEST_ROW) -> int:
    """Keep the first `n_rows` rows (all if None) byte for byte; drop the rest and any half-written line.

    A row of more than `longest` bytes is none: it is dropped, and all that follows it. Returns how many rows are
    left, fewer than asked where the file never had them.
    """
    kept_rows, kept_bytes = 0, 0
    with open_regular(Path(path)) as file:
        while (line := file.readline(longest)) and (n_rows is None or kept_rows < n_rows):
            if not line.endswith(b"\n"):
                break
            kept_rows += 1
            kept_bytes += len(line)
            _refuse_endless(path, kept_rows)
    with open_to_append(Path(path)) as file:
        file.truncate(kept_bytes)
        os.fsync(file.fileno())
    return kept_rows


def _refuse_endless(path: Path | str, rows: int) -> None:
    if rows > _MOST_ROWS:
        raise LudusError(f"{path} has more than {_MOST_ROWS:,} lines, which no training writes.")


def read_metrics(path: Path | str) -> list[dict[str, float]]:
    """All rows, null as NaN, by the names of now; of more than should be held at once, some.

    A broken last line, which a process killed while writing leaves, is left out.
    """
    path = Path(path)
    try:
        lines, last = _some_lines(path)
    except OSError as error:
        raise LudusError(f"Cannot read the metrics {path}: {error.strerror or error}.") from error
    rows: list[dict[str, float]] = []
    for number, line in lines:
        row = parse_row(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < last:
            raise LudusError(f"{path}, line {number}, is not a metrics row: {line[:60]!r}. Delete that line.")
    return rows


def _some_lines(path: Path) -> tuple[list[tuple[int, bytes]], int]:
    """Lines with their numbers, and the number of the last one, which is among them.

    Of too many, every so many-th: of evaluations and of the others each, so that no evaluation is lost among them.
    """
    count, size, last = [0, 0], [0, 0], 0
    for last, line in enumerate(_lines(path), start=1):
        _refuse_endless(path, last)
        kind = _EVALUATED in line
        count[kind] += 1
        size[kind] += len(line)
    every = [1 + max(n // _ROWS_AT_ONCE, b // _BYTES_AT_ONCE) for n, b in zip(count, size, strict=True)]
    kept, seen = list[tuple[int, bytes]](), [0, 0]
    for number, line in enumerate(islice(_lines(path), last), start=1):  # it may be written to meanwhile
        kind = _EVALUATED in line
        if seen[kind] % every[kind] == 0 or number == last:
            kept.append((number, line))
        seen[kind] += 1
    return kept, last


def _lines(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while line := file.readline(_LONGEST_ROW):
            yield line
            if len(line) == _LONGEST_ROW:  # what follows is no row either
                return


def parse_row(line: bytes) -> dict[str, float] | None:
    """One row by the names of now, these fit to be shown, null as NaN; nothing where it is none."""
    try:
        row: Any = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int) or abs(row["step"]) > MOST_STEPS:
        return None
    return _renamed({plain_text(name, _LONGEST_NAME): _number(value) for name, value in row.items()})


def _renamed(row: dict[str, float]) -> dict[str, float]:
    """A row by the names of now, whatever version wrote it."""
    old = row.keys() & _RENAMED.keys()
    if not old:
        return row
    if "train/policy_loss" in old and "train/entropy" in row:  # PPO's; SAC still tells its entropy itself
        row["train/entropy_loss"] = -row.pop("train/entropy")
    if "train/q_loss" in old and "train/pi_loss" not in old:
        row["train/loss"] = row.pop("train/q_loss")  # DQN's
    return {_RENAMED.get(name, name): value for name, value in row.items()}


def _number(value: Any) -> float:
    """NaN where it is none, or too large to be drawn; 0 where it is too small."""
    if not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        return math.nan
    return value if abs(value) >= 1 / _LARGEST else 0


def _plain(value: Any) -> float | int | None:
    """A number JSON can hold, from a Python, numpy or torch scalar."""
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
