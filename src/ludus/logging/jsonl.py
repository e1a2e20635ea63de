"""metrics.jsonl: one JSON object a line, the truth about a run.

Every line is written whole or not at all: a full disk leaves the file as it was, and a half line that
a killed process left is dropped when the file is next opened for writing.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from ludus.errors import CheckpointError, LudusError, plain_text
from ludus.files import parse_json, read_bounded

MOST_STEPS = 2**53  # whole numbers up to here are exact as floats
_MOST_BYTES = 200_000_000  # of all rows together
_LONGEST_NAME = 200  # of a metric
_LARGEST = 1e100


class JsonlSink:
    """Appends `{"step": …, **metrics}` lines; NaN and infinities are written as null."""

    name = "metrics.jsonl"
    required = True

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            self.rows_written = truncate_to(self.path, None)  # rows of before a resume count
            # Unbuffered: a row is in the file when `write` returns, whatever happens to this process.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 (held open for the whole run)
        except OSError as error:
            raise self._failure(error) from error

    def write(self, step: int, metrics: dict[str, float]) -> None:
        row = {"step": int(step)} | {name: _plain(value) for name, value in metrics.items() if name != "step"}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        whole = os.fstat(self._file.fileno()).st_size
        try:
            while line:  # a nearly full disk takes a part and says so only at the next write
                line = line[self._file.write(line) :]
        except OSError as error:
            os.ftruncate(self._file.fileno(), whole)
            raise self._failure(error) from error
        self.rows_written += 1

    def flush(self) -> None:
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        self._file.close()

    def _failure(self, error: OSError) -> LudusError:
        return CheckpointError(
            f"Cannot write {self.path}: {error.strerror or error}. Make the folder writable or free some "
            f"disk space, then continue with `ludus resume {self.path.parent}`."
        )


def truncate_to(path: Path | str, n_rows: int | None) -> int:
    """Keep the first `n_rows` rows (all if None) byte for byte; drop the rest and any half-written line.

    Returns how many rows are left, fewer than asked where the file never had them.
    """
    kept_rows, kept_bytes = 0, 0
    with open(path, "rb+") as file:
        for line in file:
            if not line.endswith(b"\n") or (n_rows is not None and kept_rows >= n_rows):
                break
            kept_rows += 1
            kept_bytes += len(line)
        file.truncate(kept_bytes)
        os.fsync(file.fileno())
    return kept_rows


def read_metrics(path: Path | str) -> list[dict[str, float]]:
    """All rows, null as NaN. A broken last line (a process killed while writing) is left out."""
    path = Path(path)
    try:
        lines = read_bounded(path, _MOST_BYTES).splitlines()
    except OSError as error:
        raise LudusError(f"Cannot read the metrics {path}: {error.strerror or error}.") from error
    rows: list[dict[str, float]] = []
    for number, line in enumerate(lines, start=1):
        row = _parse(line)
        if row is not None:
            rows.append(row)
        elif line.strip() and number < len(lines):
            raise LudusError(f"{path}, line {number}, is not a metrics row: {line[:60]!r}. Delete that line.")
    return rows


def _parse(line: bytes) -> dict[str, float] | None:
    try:
        row: Any = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int) or abs(row["step"]) > MOST_STEPS:
        return None
    return {plain_text(name, _LONGEST_NAME): _number(value) for name, value in row.items()}


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
