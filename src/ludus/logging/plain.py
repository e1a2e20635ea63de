"""The terminal view for pipes, files and CI: aligned lines, no control codes."""

import time
from collections.abc import Callable
from typing import NamedTuple, TextIO

from ludus.logging import text
from ludus.logging.run_state import RunState

_HEADER_EVERY = 20
_HEARTBEAT_S = 60.0  # a silent log looks like a hung job


class Column(NamedTuple):
    header: str
    width: int
    metric: str
    show: Callable[[float], str]


_COLUMNS = [
    Column("steps/s", 9, "time/fps", lambda v: f"{v:,.0f}" if v >= 10 else f"{v:.1f}"),
    Column("return", 9, "rollout/ep_rew_mean", text.number),
    Column("length", 7, "rollout/ep_len_mean", lambda v: f"{v:.0f}"),
    Column("success", 8, "rollout/success_rate", text.percent),
    Column("eval succ", 9, "eval/success_rate", text.percent),
    Column("eval rew", 9, "eval/mean_reward", text.number),
    Column("kl", 8, "train/approx_kl", text.number),
    Column("clip", 7, "train/clip_fraction", text.number),
    Column("expl.var", 8, "train/explained_variance", text.number),
    Column("entropy", 8, "train/entropy", text.number),
]


class PlainView:
    """Writes a table that grows by one line a row. Columns appear when their metric first does."""

    def __init__(self, stream: TextIO, state: RunState) -> None:
        self._stream = stream
        self._state = state
        self._columns: list[Column] = []
        self._rows_since_header = _HEADER_EVERY
        self._last_output = time.monotonic()

    def plan(self, lines: list[str]) -> None:
        self._write(self._state.title, *(f"  {line}" for line in lines), "")

    def start(self) -> None:
        state = self._state
        if state.start_step:
            self._write(f"continuing at step {state.start_step:,} of {state.total_steps:,}")

    def progress(self) -> None:
        if time.monotonic() - self._last_output > _HEARTBEAT_S:
            state = self._state
            done = f"{100 * state.fraction:.1f} %"
            self._write(f"{state.step:>{self._step_width},} {done:>7}  … {state.note}".rstrip())

    def row(self) -> None:
        state = self._state
        columns = [c for c in _COLUMNS if c.metric in state.metrics]
        if columns != self._columns or self._rows_since_header >= _HEADER_EVERY:
            self._columns, self._rows_since_header = columns, 0
            heads = " ".join(c.header.rjust(c.width) for c in columns)
            self._write(f"{'step':>{self._step_width}} {'done':>7} {'ETA':>9} {heads}".rstrip())
        cells = " ".join(c.show(state.metrics[c.metric]).rjust(c.width) for c in columns)
        done = f"{100 * state.fraction:.1f} %"
        start = f"{state.step:>{self._step_width},} {done:>7} {text.duration(state.eta):>9}"
        self._write(f"{start} {cells}".rstrip())
        self._rows_since_header += 1

    @property
    def _step_width(self) -> int:
        return max(9, len(f"{self._state.total_steps:,}"))

    def evaluation(self, line: str) -> None:
        self._write(line)

    def message(self, line: str) -> None:
        self._write(line)

    def warning(self, line: str) -> None:
        self._write(f"WARNING: {line}")

    def finish(self, lines: list[str]) -> None:
        self._write("", *lines)

    def close(self) -> None:
        self._stream.flush()

    def _write(self, *lines: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        page = "".join(f"{line}\n" for line in lines)
        self._stream.write(page.encode(encoding, "replace").decode(encoding))
        self._stream.flush()
        self._last_output = time.monotonic()
