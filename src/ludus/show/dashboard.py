"""The terminal view for people: a dashboard that redraws itself four times a second.

Training threads only store numbers; a thread of its own draws, so that the clock runs on during a long
update and a slow terminal never holds training up.
"""

import atexit
import math
import threading
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ludus.display import Measure
from ludus.show import text
from ludus.show.run_state import Evaluation, Level, RunState

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
    "train/policy_gradient_loss": "policy gradient",
    "train/value_loss": "value loss",
    "train/imitation_loss": "imitation loss",
    "train/critic_loss": "critic loss",
    "train/actor_loss": "actor loss",
    "train/r_loss": "reward loss",
    "train/q_mean": "mean Q",
    "train/entropy_loss": "entropy loss",
    "train/entropy": "entropy",
    "train/ent_coef": "entropy coef.",
    "train/approx_kl": "approx. KL",
    "train/clip_fraction": "clip fraction",
    "train/explained_variance": "explained var.",
    "train/learning_rate": "learning rate",
    "train/std": "std",
    "train/grad_norm": "gradient norm",
}
_COUNTERS = ("loop/epoch", "loop/cycle", "time/iterations")
_LOSS_ROWS, _TASK_ROWS, _REWARD_ROWS, _LOGGED_ROWS = 10, 3, 8, 4
_LEVEL_GAP, _LEVEL_BAR = 3, 7  # columns between two levels, and the shortest bar worth drawing


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
        self._live = Live(get_renderable=self.draw, console=self._console, auto_refresh=False)
        self._live.start(refresh=True)
        atexit.register(self.close)  # the cursor comes back even if nobody calls close
        self._ticker = threading.Thread(target=self._tick, name="ludus-dashboard", daemon=True)
        self._ticker.start()

    def progress(self) -> None:
        """Nothing: the next tick shows it."""

    def iteration(self, line: str) -> None:
        """Nothing: the next tick shows it."""

    def losses(self, lines: list[str]) -> None:
        """Nothing: they are points of a curve."""

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
        self._state.note = self._state.iteration = ""
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
    def draw(self) -> Panel:
        width = min(self._console.width, _MAX_WIDTH)
        inside = width - 4
        lines = self._head(inside)
        if self._console.height >= _FULL_HEIGHT:
            lines += [Text(), *self._body(inside)]
            lines = lines[: self._console.height - 3]  # the border and the line below it
        else:
            lines += self._results(inside)[:2]
        for line in lines:
            line.truncate(inside, overflow="ellipsis")
        return Panel(
            Group(*lines),
            title=Text(self._state.title or "training", style=_TITLE),
            title_align="left",
            subtitle=self._machine(),
            subtitle_align="right",
            border_style=_DIM,
            width=width,
        )

    def _head(self, width: int) -> list[Text]:
        state = self._state
        total = f" / {state.total_steps:,}" if state.total_steps else ""
        steps = Text.assemble((f"{state.step:,}", "bold"), (f"{total} {state.unit}", _LABEL))
        times = Text.assemble(
            ("elapsed ", _LABEL), text.duration(state.elapsed), ("   ETA ", _LABEL), text.duration(state.eta)
        )
        if not state.levels:
            steps_line = _spread(steps, times, width)
            return [_bar(state.fraction, width), steps_line, self._counters(width), self._speed(width)]
        note = Text(f" · {state.note}" if state.note else "", style=_LABEL)
        note.truncate(max(0, width - steps.cell_len - times.cell_len - 2), overflow="ellipsis")
        lines = [_bar(state.fraction, width), _spread(steps.append_text(note), times, width)]
        lines += [*_levels(state.levels, width), self._speed(width)]
        return lines + ([Text(state.iteration, style=_LABEL)] if state.iteration else [])

    def _counters(self, width: int) -> Text:
        state = self._state
        counters = " · ".join(
            f"{text.label(name)} {state.metrics[name]:,.0f}" for name in _COUNTERS if name in state.metrics
        )
        return _spread(Text(counters), Text(state.note or state.iteration, style=_LABEL), width)

    def _speed(self, width: int) -> Text:
        speed, metrics = self._state.speed, self._state.metrics
        line = Text.assemble(
            (text.number(None if speed is None else round(speed)), "bold"),
            (f" {self._state.unit}/s  ", _LABEL),
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
            return self._results(width) + self._evaluation()
        right = max(24, min(32, width * 3 // 10))
        left = width - right - 3
        return _beside(self._results(left) + self._evaluation(), _pairs(losses, right), left, right)

    def _results(self, width: int) -> list[Text]:
        if self._state.reward_only:
            return self._reward(width) or [Text("no loss has been measured yet", style=_LABEL)]
        return self._rollout(width) + self._reward(width)[:_TASK_ROWS]

    def _reward(self, width: int) -> list[Text]:
        """How well the learned reward does: its loss where nothing else is learned, and on held-out episodes."""
        metrics, lines = self._state.metrics, []
        if self._state.reward_only and "train/r_loss" in metrics:
            value = metrics["train/r_loss"]
            lines.append(self._with_history("train/r_loss", "reward loss", text.number(value), width))
        for name in text.reward_names([metrics])[:_REWARD_ROWS]:
            shown = text.reward_value(name, metrics[name])
            lines.append(self._with_history(name, text.reward_label(name), shown, width))
        return lines

    def _with_history(self, name: str, words: str, shown: str, width: int) -> Text:
        line = Text.assemble((f"{words:<14.14} ", _LABEL), _value(f"{shown:>9}", self._state.metrics[name]))
        return line.append("  " + text.sparkline(self._state.past(name), min(width - 26, 60)), _ACCENT)

    def _rollout(self, width: int) -> list[Text]:
        state, lines = self._state, []
        words = _ROLLOUT | {
            f"rollout/{m.metric}": f"{m.label}, {m.unit}" if m.unit else m.label for m in state.display.headline
        }
        others = [
            n
            for n in state.metrics
            if n.startswith(("rollout/", "env/")) and n not in words and n != "rollout/episodes"
        ]
        for name in [*words, *others[:_TASK_ROWS], *state.logged[:_LOGGED_ROWS]]:
            if name not in state.metrics:
                continue
            value = state.metrics[name]
            shown = text.percent(value) if name == "rollout/success_rate" else text.number(value)
            lines.append(self._with_history(name, words.get(name, text.label(name)), shown, width))
        return lines or [Text("no episode has ended yet", style=_LABEL)]

    def _evaluation(self) -> list[Text]:
        last, best = self._state.last_evaluation, self._state.best_evaluation
        if last is None or best is None:
            return []
        if self._state.reward_only:
            head = Text(f"best on held-out episodes, at {best.step:,} {self._state.unit}", style="bold")
            return [Text(), head, Text(text.reward_line(best.metrics), style=_GOOD)]
        episodes = last.metrics.get("eval/episodes")
        count = f", {episodes:,.0f} episodes" if episodes else ""
        lines = [Text(), Text.assemble((f"evaluation at {last.step:,}{count}", "bold"))]
        headline = self._state.display.headline
        lines.append(_evaluation_row("deterministic", last, "eval/", headline))
        if any(name.startswith("eval_stochastic/") for name in last.metrics):
            lines.append(_evaluation_row("stochastic", last, "eval_stochastic/", headline))
        lines.append(_evaluation_row("best so far", best, "eval/", suffix=f"  at {best.step:,}"))
        return lines

    def _losses(self) -> list[tuple[str, float]]:
        metrics = self._state.metrics
        elsewhere = {"train/skipped_updates"} | ({"train/r_loss"} if self._state.reward_only else set())
        others = [n for n in metrics if n.startswith("train/") and n not in _LOSSES and n not in elsewhere]
        known = [
            (words, metrics[name]) for name, words in _LOSSES.items() if name in metrics and name not in elsewhere
        ]
        found = [*known, *((text.label(n), metrics[n]) for n in others)][:_LOSS_ROWS]
        skipped = metrics.get("train/skipped_updates", 0)
        return [("skipped updates", skipped), *found[: _LOSS_ROWS - 1]] if skipped else found

    def _machine(self) -> Text | None:
        told = {
            "system/cpu_percent": lambda value: f"CPU {value:.0f} %",
            "system/memory_mb": lambda value: f"memory {text.megabytes(value)}",
            "system/gpu_percent": lambda value: f"GPU {value:.0f} %",
            "system/gpu_memory_allocated_mb": lambda value: f"{text.megabytes(value)} allocated",
            "system/gpu_memory_reserved_mb": lambda value: f"{text.megabytes(value)} reserved",
        }
        metrics = self._state.metrics
        parts = [tell(metrics[name]) for name, tell in told.items() if name in metrics]
        return Text(" · ".join(parts), style=_LABEL) if parts else None


def _bar(fraction: float, width: int) -> Text:
    percent = f" {100 * fraction:5.1f} %"
    room = width - len(percent)
    done = round(fraction * room)
    # Two shapes, so that the bar reads without colour too.
    return Text.assemble(("━" * done, _ACCENT), ("─" * (room - done), _DIM), (percent, "bold"))


def _levels(levels: Sequence[Level], width: int) -> list[Text]:
    """A short bar for each level: all on one line where there is room, else two on a line."""
    columns = len(levels)
    if columns > 2 and _level_room(levels, columns, width) < columns * _LEVEL_BAR:
        columns = 2
    room = max(0, _level_room(levels, columns, width))
    lines = []
    for start in range(0, len(levels), columns):
        line = Text()
        for column, level in enumerate(levels[start : start + columns]):
            last = column == columns - 1
            bar = room // columns + (column < room % columns)
            line.append_text(_level(level, *_level_widths(levels[column::columns]), bar))
            line.append("" if last else " " * _LEVEL_GAP)
        lines.append(line)
    return lines


def _level_room(levels: Sequence[Level], columns: int, width: int) -> int:
    """How many characters are left for the bars of one line."""
    words = sum(sum(_level_widths(levels[column::columns])) + 2 for column in range(columns))
    return width - words - _LEVEL_GAP * (columns - 1)


def _level_widths(levels: Sequence[Level]) -> tuple[int, int]:
    """Characters of the name and of the count of levels below each other, the count as wide as it can become."""
    names = max(len(name) for name, _, _ in levels)
    return names, max(2 * len(f"{max(done, total):,}") + 1 for _, done, total in levels)


def _level(level: Level, name_width: int, count_width: int, bar: int) -> Text:
    name, done, total = level
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    count = f"{done:,}/{total:,}" if total > 0 else f"{done:,}"
    full = round(share * bar)
    line = Text.assemble((name.ljust(name_width), _LABEL), f" {count:>{count_width}} ")
    return line.append("━" * full, _ACCENT).append("─" * (bar - full), _DIM)


def _value(shown: str, value: float) -> tuple[str, str]:
    return (shown, "bold" if math.isfinite(value) else _BAD)


def _evaluation_row(
    name: str, evaluation: Evaluation, prefix: str, headline: Sequence[Measure] = (), suffix: str = ""
) -> Text:
    metrics = evaluation.metrics
    line = Text.assemble((f"{name:<14} ", _LABEL))
    if prefix + "success_rate" in metrics:
        line.append(f"{text.success_with_interval(metrics, prefix):<16}", _GOOD)
    told = next(((m.label, value) for m in headline if (value := m.told(metrics, prefix))), None)
    if told is not None:  # instead of the reward: there is no room for both
        line.append(f" {told[0]} ", _LABEL)
        line.append(told[1])
    elif prefix + "mean_reward" in metrics and not (suffix and prefix + "success_rate" in metrics):
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
