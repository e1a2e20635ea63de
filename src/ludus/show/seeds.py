"""What a person sees of several seeds that are trained at once: a line for each, and what came out in the end."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ludus.display import Display
from ludus.show import text
from ludus.show.console import can_draw
from ludus.show.result_text import measured_on, result_line
from ludus.show.results import Measurement
from ludus.show.statistics import mean

_MAX_WIDTH = 120
_BAR = 12
_PARTS = 10  # lines of a plain log for each seed
_MARKS = {"finished": "green", "failed": "bold red", "stopped": "yellow"}
_ORDER = ("training", "failed", "stopped", "waiting", "finished")  # of what is shown where there is room for few


class SeedLine(NamedTuple):
    """How far a seed is."""

    number: int
    state: str  # waiting, training, finished, stopped, failed
    share: float  # of its training that is done
    eta: float | None
    evaluation: str  # the newest, in words
    why: str = ""  # it failed

    @property
    def told(self) -> str:
        if self.state != "training":
            return self.state
        if self.share >= 1.0:
            return "measuring"
        return f"{100 * self.share:.0f} %" if self.share else "starting"


class SeedsView:
    """A dashboard in a terminal, lines elsewhere. Whatever happens to the terminal, the training goes on."""

    def __init__(self, title: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._title, self._quiet = title, quiet
        self._stream = stream if stream is not None else sys.stdout
        self._console = RichConsole(file=self._stream, highlight=False) if can_draw(self._stream) else None
        self._live: Live | None = None
        self._seeds: Sequence[SeedLine] = ()
        self._eta: float | None = None
        self._began = time.monotonic()
        self._shown: dict[int, tuple[str, int]] = {}  # state and part of every seed in the newest line about it

    def __enter__(self) -> "SeedsView":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def plan(self, lines: Sequence[str]) -> None:
        title = [self._title] if self._console is None else []  # a dashboard has it
        self._write(*title, *(f"  {line}" for line in lines))

    def show(self, seeds: Sequence[SeedLine], eta: float | None) -> None:
        """Where all of them are, and how long the whole will take."""
        self._seeds, self._eta = seeds, eta
        if self._quiet:
            return
        if self._console is None:
            self._log()
            return
        with suppress(Exception):  # a terminal that is gone
            if self._live is None:
                self._live = Live(get_renderable=self.draw, console=self._console, auto_refresh=False)
                self._live.start()
            self._live.refresh()

    def message(self, line: str) -> None:
        self._write(line)

    def warning(self, line: str) -> None:
        if self._quiet:
            print(f"warning: {line}", file=sys.stderr)
        self._write(f"warning: {line}", style="yellow")

    def finish(self, lines: Sequence[str]) -> None:
        self._close()
        self._write(*lines)

    def _close(self) -> None:
        live, self._live = self._live, None
        with suppress(Exception):
            if live is not None:
                live.refresh()
                live.stop()

    def _write(self, *lines: str, style: str = "") -> None:
        if self._quiet:
            return
        try:
            if self._console is not None:
                self._console.print(*(Text(line, style=style) for line in lines), sep="\n", soft_wrap=True)
            else:
                print(*lines, sep="\n", file=self._stream, flush=True)
        except (OSError, ValueError):  # a closed pipe: what Python still holds for it goes nowhere
            self._quiet = True
            if self._stream is sys.stdout:
                with suppress(Exception):
                    os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    # Lines --------------------------------------------------------------------------------------
    def _log(self) -> None:
        """About every seed whenever its state changes, and ten times on its way."""
        for seed in self._seeds:
            now = seed.told if seed.state != "training" else "training", int(_PARTS * seed.share)
            if self._shown.get(seed.number) == now or seed.state == "waiting":
                continue
            if seed.number not in self._shown and seed.state == "finished":
                self._shown[seed.number] = now  # before this training
                continue
            self._shown[seed.number] = now
            eta = f"ETA {text.duration(seed.eta)}" if seed.state == "training" and seed.share else ""
            parts = (f"seed {seed.number}", f"{seed.told:>9}", eta, seed.why or seed.evaluation, self._whole())
            self._write("  ".join(part for part in parts if part))

    def _whole(self) -> str:
        return "" if self._eta is None else f"(all: ETA {text.duration(self._eta)})"

    # Dashboard ----------------------------------------------------------------------------------
    def draw(self) -> Panel:
        assert self._console is not None
        width = min(self._console.width, _MAX_WIDTH)
        inside, seeds = width - 4, self._seeds
        share = sum(seed.share for seed in seeds) / max(1, len(seeds))
        elapsed = text.duration(time.monotonic() - self._began)
        times = f"elapsed {elapsed}   ETA {text.duration(self._eta)}"
        room = max(5, inside - len(times) - 10)
        head = Text.assemble(_bar(share, room), (f" {100 * share:5.1f} %", "bold"), f"  {times}")
        most = max(1, self._console.height - 6)
        chosen = sorted(seeds, key=lambda seed: _ORDER.index(seed.state))[:most] if len(seeds) > most else seeds
        digits = max((len(str(seed.number)) for seed in seeds), default=1)
        lines = [head, Text(), *(_line(seed, digits) for seed in sorted(chosen))]
        if left := len(seeds) - len(chosen):
            lines.append(Text(f"… and {left} more", style="dim"))
        for line in lines:
            line.truncate(inside, overflow="ellipsis")
        title = Text(self._title, style="not dim bold cyan")
        title.truncate(inside - 2, overflow="ellipsis")
        return Panel(Group(*lines), title=title, title_align="left", border_style="dim", width=width)


def _line(seed: SeedLine, digits: int) -> Text:
    eta = f"ETA {text.duration(seed.eta)}" if seed.state == "training" and 0 < seed.share < 1 else ""
    return Text.assemble(
        (f"seed {seed.number:<{digits}} ", "bold"),
        _bar(seed.share, _BAR),
        (f" {seed.told:>9} ", _MARKS.get(seed.state, "")),
        (f" {eta:<11} ", "dim"),
        seed.why or seed.evaluation,
    )


def _bar(share: float, width: int) -> Text:
    done = round(share * width)
    return Text.assemble(("━" * done, "cyan"), ("─" * (width - done), "dim"))


# What came out ----------------------------------------------------------------------------------
def summary_lines(measured: Mapping[int, Measurement], display: Display) -> list[str]:
    """Every seed's result on new starts, their mean with its interval, and the worst seed."""
    first = next(iter(measured.values()))
    digits = max(len(str(seed)) for seed in measured)
    starts = measured_on(first).partition(", seed ")[0]
    lines = [f"The best policy of each seed on {starts}:"]
    lines += [f"  seed {seed:<{digits}}  {result_line(m, display)}" for seed, m in measured.items()]
    judged = next(
        (n for n in ("success_rate", "mean_reward") if all(n in m.result for m in measured.values())), ""
    )
    if not judged:
        return lines
    values = {seed: m.result[judged] for seed, m in measured.items()}
    worst = min(values, key=lambda seed: values[seed])
    tell = text.percent if judged == "success_rate" else text.number
    name, estimate = judged.removesuffix("_rate").removeprefix("mean_"), mean([*values.values()])
    told = f"Mean over {len(values)} seed{'s' * (len(values) > 1)}: {name} {tell(estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        half = (estimate.high - estimate.low) / 2
        told += f" ± {tell(half)} (95 % t interval)"
    return [*lines, f"{told}; worst: seed {worst}, {tell(values[worst])}"]
