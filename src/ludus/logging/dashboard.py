"""The terminal view for people: a dashboard that redraws itself four times a second.

Training threads only store numbers; a thread of its own draws, so that the clock runs on during a long
update and a slow terminal never holds training up.
"""

import atexit
import math
import threading
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ludus.logging import text
from ludus.logging.run_state import Evaluation, RunState

_REFRESH_S = 0.25
_MAX_WIDTH = 120  # wider lines are harder to read, not richer
_FULL_HEIGHT = 20  # terminals lower than this get the short form
_LABEL, _DIM, _ACCENT, _GOOD, _BAD = "dim", "dim", "cyan", "green", "bold red"
_TITLE = "not dim bold cyan"  # a title inherits the border's dimness

_PHASES = [("simulate", "█", "cyan"), ("act", "▓", "blue"), ("learn", "▒", "magenta")]
_ROLLOUT = {
    "rollout/success_rate": "success",
    "rollout/ep_rew_mean": "return",
    "rollout/ep_len_mean": "length",
}
_LOSSES = {
    "train/policy_loss": "policy loss",
    "train/value_loss": "value loss",
    "train/entropy": "entropy",
    "train/approx_kl": "approx. KL",
    "train/clip_fraction": "clip fraction",
    "train/explained_variance": "explained var.",
    "train/learning_rate": "learning rate",
    "train/std": "std",
    "train/grad_norm": "gradient norm",
}
_COUNTERS = ("loop/epoch", "loop/cycle", "loop/iteration")
_LOSS_ROWS, _TASK_ROWS = 10, 3


class Dashboard:
    """Draws a RunState on a terminal; lines printed meanwhile scroll away above it."""

    def __init__(self, stream: TextIO, state: RunState) -> None:
        self._state = state
        self._console = RichConsole(file=stream, highlight=False)
        self._live: Live | None = None
        self._ended = threading.Event()
        self._ticker: threading.Thread | None = None
        self._drawing_error: Exception | None = None

    def plan(self, lines: list[str]) -> None:
        body = Text("\n".join(lines))
        title = Text(self._state.title, style=_TITLE)
        width = min(self._console.width, _MAX_WIDTH)
        self._console.print(Panel(body, title=title, title_align="left", border_style=_DIM, width=width))

    def start(self) -> None:
        self._live = Live(get_renderable=self._draw, console=self._console, auto_refresh=False)
        self._live.start(refresh=True)
        atexit.register(self.close)  # the cursor comes back even if nobody calls close
        self._ticker = threading.Thread(target=self._tick, name="ludus-dashboard", daemon=True)
        self._ticker.start()

    def progress(self) -> None:
        """Nothing: the next tick shows it."""

    def row(self) -> None:
        if self._drawing_error is not None:
            raise self._drawing_error

    def evaluation(self, line: str) -> None:
        self._console.print(Text(line, style=_GOOD))

    def message(self, line: str) -> None:
        self._console.print(Text(line))

    def warning(self, line: str) -> None:
        self._console.print(Text(f"warning: {line}", style="yellow"))

    def finish(self, lines: list[str]) -> None:
        self._state.note = ""
        self.close()
        for line in lines:
            self._console.print(Text(line))

    def close(self) -> None:
        """Draw a last time and give the terminal back. May be called again."""
        atexit.unregister(self.close)
        self._ended.set()
        if self._ticker is not None:
            self._ticker.join(timeout=2.0)
        live, self._live = self._live, None
        if live is not None:
            live.refresh()
            live.stop()

    def _tick(self) -> None:
        live = self._live
        while live is not None and not self._ended.wait(_REFRESH_S):
            try:
                live.refresh()
            except Exception as error:  # noqa: BLE001 (handed to the training thread, which changes the view)
                self._drawing_error = error
                return

    # Drawing ------------------------------------------------------------------------------------
    def _draw(self) -> Panel:
        width = min(self._console.width, _MAX_WIDTH)
        inside = width - 4
        lines = self._head(inside)
        if self._console.height >= _FULL_HEIGHT:
            lines += [Text(), *self._body(inside)]
        else:
            lines += self._rollout(inside)[:2]
        for line in lines:
            line.truncate(inside, overflow="ellipsis")
        return Panel(
            Group(*lines),
            title=Text(self._state.title or "training", style=_TITLE),
            title_align="left",
            subtitle=self._memory(),
            subtitle_align="right",
            border_style=_DIM,
            width=width,
        )

    def _head(self, width: int) -> list[Text]:
        state = self._state
        total = f" / {state.total_steps:,}" if state.total_steps else ""
        steps = Text.assemble((f"{state.step:,}", "bold"), (f"{total} steps", _LABEL))
        times = Text.assemble(
            ("elapsed ", _LABEL), text.duration(state.elapsed), ("   ETA ", _LABEL), text.duration(state.eta)
        )
        counters = " · ".join(
            f"{text.label(name)} {state.metrics[name]:,.0f}" for name in _COUNTERS if name in state.metrics
        )
        note = Text(state.note, style=_LABEL)
        return [
            _bar(state.fraction, width),
            _spread(steps, times, width),
            _spread(Text(counters), note, width),
            self._speed(width),
        ]

    def _speed(self, width: int) -> Text:
        speed, metrics = self._state.speed, self._state.metrics
        line = Text.assemble(
            (text.number(None if speed is None else round(speed)), "bold"), (" steps/s  ", _LABEL)
        )
        shares = [(name, char, style, metrics.get(f"time/{name}_share")) for name, char, style in _PHASES]
        told = [(n, c, s, share) for n, c, s, share in shares if share is not None and math.isfinite(share)]
        words = Text("  ").join(
            Text.assemble((char, style), (f" {name} ", _LABEL), f"{100 * share:.0f} %")
            for name, char, style, share in told
        )
        room = width - line.cell_len - words.cell_len - 2
        for _, char, style, share in told:
            line.append(char * round(share * room), style)
        return _spread(line, words, width)

    def _body(self, width: int) -> list[Text]:
        losses = self._losses()
        if not losses:
            return self._rollout(width) + self._evaluation()
        right = max(24, min(32, width * 3 // 10))
        left = width - right - 3
        return _beside(self._rollout(left) + self._evaluation(), _pairs(losses, right), left, right)

    def _rollout(self, width: int) -> list[Text]:
        state, lines = self._state, []
        others = [
            n for n in state.metrics if n.startswith("rollout/") and n not in _ROLLOUT and n != "rollout/episodes"
        ]
        for name in [*_ROLLOUT, *others[:_TASK_ROWS]]:
            if name not in state.metrics:
                continue
            value = state.metrics[name]
            shown = text.percent(value) if name == "rollout/success_rate" else text.number(value)
            line = Text.assemble(
                (f"{_ROLLOUT.get(name, text.label(name)):<14.14} ", _LABEL), _value(f"{shown:>9}", value)
            )
            history = tuple(state.history.get(name, ()))
            line.append("  " + text.sparkline(history, min(width - 26, 60)), _ACCENT)
            lines.append(line)
        return lines or [Text("no episode has ended yet", style=_LABEL)]

    def _evaluation(self) -> list[Text]:
        last, best = self._state.last_evaluation, self._state.best_evaluation
        if last is None or best is None:
            return []
        episodes = last.metrics.get("eval/episodes")
        count = f", {episodes:,.0f} episodes" if episodes else ""
        lines = [Text(), Text.assemble((f"evaluation at {last.step:,}{count}", "bold"))]
        lines.append(_evaluation_row("deterministic", last, "eval/"))
        if any(name.startswith("eval_stochastic/") for name in last.metrics):
            lines.append(_evaluation_row("stochastic", last, "eval_stochastic/"))
        lines.append(_evaluation_row("best so far", best, "eval/", f"  at {best.step:,}"))
        return lines

    def _losses(self) -> list[tuple[str, float]]:
        metrics = self._state.metrics
        others = [
            n for n in metrics if n.startswith("train/") and n not in _LOSSES and n != "train/skipped_updates"
        ]
        known = [(words, metrics[name]) for name, words in _LOSSES.items() if name in metrics]
        found = [*known, *((text.label(n), metrics[n]) for n in others)][:_LOSS_ROWS]
        skipped = metrics.get("train/skipped_updates", 0)
        return [("skipped updates", skipped), *found[: _LOSS_ROWS - 1]] if skipped else found

    def _memory(self) -> Text | None:
        metrics = self._state.metrics
        parts = [
            f"{words} {text.megabytes(metrics[name])}"
            for name, words in (("system/memory_mb", "memory"), ("system/gpu_memory_mb", "GPU memory"))
            if name in metrics
        ]
        return Text(" · ".join(parts), style=_LABEL) if parts else None


def _bar(fraction: float, width: int) -> Text:
    percent = f" {100 * fraction:5.1f} %"
    room = width - len(percent)
    done = round(fraction * room)
    # Two shapes, so that the bar reads without colour too.
    return Text.assemble(("━" * done, _ACCENT), ("─" * (room - done), _DIM), (percent, "bold"))


def _value(shown: str, value: float) -> tuple[str, str]:
    return (shown, "bold" if math.isfinite(value) else _BAD)


def _evaluation_row(name: str, evaluation: Evaluation, prefix: str, suffix: str = "") -> Text:
    metrics = evaluation.metrics
    line = Text.assemble((f"{name:<14} ", _LABEL))
    if prefix + "success_rate" in metrics:
        line.append(f"{text.success_with_interval(metrics, prefix):<16}", _GOOD)
    if prefix + "mean_reward" in metrics and not (suffix and prefix + "success_rate" in metrics):
        line.append(" reward ", _LABEL)
        line.append(text.number(metrics[prefix + "mean_reward"]))
    return line.append(suffix, _LABEL)


def _pairs(rows: list[tuple[str, float]], width: int) -> list[Text]:
    lines = []
    for name, value in rows:
        shown = text.number(value)
        name = name[: width - len(shown) - 1]
        lines.append(Text.assemble((name.ljust(width - len(shown)), _LABEL), _value(shown, value)))
    return lines


def _spread(left: Text, right: Text, width: int) -> Text:
    """Left and right on one line, as far apart as the width allows."""
    return left.append(" " * max(1, width - left.cell_len - right.cell_len)).append_text(right)


def _beside(lefts: list[Text], rights: list[Text], left_width: int, right_width: int) -> list[Text]:
    lines = []
    for i in range(max(len(lefts), len(rights))):
        left = lefts[i] if i < len(lefts) else Text()
        left.truncate(left_width, overflow="ellipsis", pad=True)
        lines.append(left.append(" │ ", _DIM).append_text(rights[i] if i < len(rights) else Text()))
    return lines
