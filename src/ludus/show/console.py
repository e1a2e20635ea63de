"""What a person sees of a training in the terminal.

`Console` keeps the state and hands it to a view: the live dashboard in a terminal, plain lines elsewhere.
Whatever happens to the terminal (closed pipe, odd encoding, a bug in a view), training goes on.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TextIO

from ludus.show import text
from ludus.show.dashboard import Dashboard
from ludus.show.loss_lines import LossLines
from ludus.show.plain import PlainView
from ludus.show.run_state import Level, RunState

Mode = Literal["auto", "dashboard", "plain", "quiet"]


class View(Protocol):
    """Shows a RunState. Any method may raise: the console then falls back to a simpler view."""

    def plan(self, lines: list[str]) -> None: ...
    def start(self) -> None: ...
    def progress(self) -> None: ...
    def iteration(self, line: str) -> None: ...
    def losses(self, lines: list[str]) -> None: ...
    def row(self) -> None: ...
    def evaluation(self, line: str) -> None: ...
    def message(self, line: str) -> None: ...
    def warning(self, line: str) -> None: ...
    def finish(self, lines: list[str]) -> None: ...
    def close(self) -> None: ...


class Console:
    """Use as a context manager, or call `close`, so that the terminal is left as it was found.

    mode: "auto" chooses; "quiet" shows warnings only (ranks other than the first of a distributed run).
    """

    def __init__(self, mode: Mode = "auto", stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.quiet = mode == "quiet"
        self.state = RunState()
        self._loss_lines = LossLines()
        self._view: View | None
        if mode == "dashboard" or (mode == "auto" and can_draw(self._stream)):
            self._view = Dashboard(self._stream, self.state)
        else:
            self._view = PlainView(self._stream, self.state)

    def plan(self, title: str, lines: list[str]) -> None:
        """What is about to be trained, before it starts."""
        self.state.title = title
        self._show(lambda view: view.plan(lines))

    def start(self, total_steps: int, start_step: int = 0, unit: str = "steps") -> None:
        """unit: what `total_steps` counts, in the plural; "batches" where no environment is stepped."""
        self.state.start(total_steps, start_step, unit)
        self._show(lambda view: view.start())

    def progress(self, step: int, note: str = "") -> None:
        """Where training is now. Cheap enough to call after every environment step."""
        self.state.step = step
        self.state.note = note
        if self._view is not None and not self.quiet:
            try:
                self._view.progress()
            except Exception:  # noqa: BLE001 (see _show)
                self._fall_back()

    def levels(self, levels: Sequence[Level]) -> None:
        """How far each of the nested loops is, outermost first. Cheap enough to call after every batch."""
        self.state.levels = tuple(levels)

    def recent(self, name: str, value: float) -> None:
        """A metric's newest value between two rows, for its curve: the mean loss of every 100 batches."""
        self.state.add_recent(name, value)

    def iteration(self, line: str) -> None:
        """What one iteration came to. Plain logs show the last before each of their rows."""
        self.state.iteration = line
        self._show(lambda view: view.iteration(line))

    def losses(self, name: str, first: int, losses: Sequence[float], iteration: int, size: int) -> None:
        """The loss of every batch after the `first`, to the end of `iteration`. Shown in whole plain logs."""
        if self.state.every_row:
            lines = self._loss_lines.add(name, first, losses, iteration, size)
            self._show(lambda view: view.losses(lines))

    def row(self, step: int, metrics: dict[str, float]) -> None:
        """One row of metrics, at the end of a cycle."""
        self.state.add_row(step, metrics)
        self._show(lambda view: view.row())

    def evaluation(self, step: int, metrics: dict[str, float]) -> None:
        self.state.add_evaluation(step, metrics)
        held_out = any(name.startswith("reward/") for name in metrics)
        nothing = "the held-out episodes tell nothing" if held_out else "no episode ended"
        line = f"eval at {step:,}: {text.evaluation_line(metrics, display=self.state.display) or nothing}"
        best = self.state.best_evaluation
        line += text.best_mark(metrics) if best is not None and best is self.state.last_evaluation else ""
        self._show(lambda view: view.evaluation(line))

    def remember(self, rows: list[dict[str, float]]) -> None:
        """Metrics of before a resume, so that what is best so far is known."""
        for row in rows:
            self.state.add_row(int(row["step"]), row)

    def trained(self, seconds: float) -> None:
        """The training has come to its end, and took so long; measuring and reporting do not count."""
        self.state.training_time = seconds

    def message(self, line: str) -> None:
        self._show(lambda view: view.message(line))

    def warning(self, line: str) -> None:
        self._show(lambda view: view.warning(line), even_if_quiet=True)

    def finish(self, lines: list[str]) -> None:
        """The last words: what came out and where it is."""
        self._show(lambda view: view.finish(lines))
        self.close()

    def close(self) -> None:
        self._show(lambda view: view.close(), even_if_quiet=True)

    def __enter__(self) -> "Console":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self, action: Callable[[View], None], even_if_quiet: bool = False) -> None:
        if self.quiet and not even_if_quiet:
            return
        while self._view is not None:
            try:
                action(self._view)
                return
            except Exception:  # noqa: BLE001 (training must outlive its terminal, whatever breaks there)
                self._fall_back()

    def _fall_back(self) -> None:
        """From the dashboard to plain lines, from plain lines to silence."""
        broken, self._view = self._view, None
        if isinstance(broken, Dashboard):
            with contextlib.suppress(Exception):
                broken.close()
            self._view = PlainView(self._stream, self.state)
        elif self._stream in (sys.stdout, sys.stderr):
            # Python flushes these at exit and would complain about the closed pipe then.
            with contextlib.suppress(Exception):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())


def can_draw(stream: TextIO) -> bool:
    """A terminal that can move its cursor and show block characters."""
    try:
        return (
            stream.isatty()
            and os.environ.get("TERM") not in ("", "dumb", "unknown")  # unset on Windows: fine
            and (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf8sig")
        )
    except (ValueError, AttributeError):  # a closed or make-believe stream
        return False
