"""What a person sees of processes that work at once: a dashboard in a terminal, lines elsewhere."""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self, TextIO

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ludus.show.console import can_draw

_MAX_WIDTH = 120


class LiveView:
    """Says what `_log` writes or `_lines` draw. Whatever happens to the terminal, the work goes on."""

    def __init__(self, title: str, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._title, self._quiet = title, quiet
        self._stream = stream if stream is not None else sys.stdout
        self._console = RichConsole(file=self._stream, highlight=False) if can_draw(self._stream) else None
        self._live: Live | None = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _log(self) -> None:
        """Write lines about what has changed."""
        raise NotImplementedError

    def _lines(self, inside: int, most: int) -> Sequence[Text]:
        """What the dashboard shows: at most so many lines below its head, of so many columns."""
        raise NotImplementedError

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def plan(self, lines: Sequence[str]) -> None:
        title = [self._title] if self._console is None else []  # a dashboard has it
        self._write(*title, *(f"  {line}" for line in lines))

    def refresh(self) -> None:
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

    def draw(self) -> Panel:
        assert self._console is not None
        width = min(self._console.width, _MAX_WIDTH)
        lines = self._lines(width - 4, max(1, self._console.height - 6))
        for line in lines:
            line.truncate(width - 4, overflow="ellipsis")
        title = Text(self._title, style="not dim bold cyan")
        title.truncate(width - 6, overflow="ellipsis")
        return Panel(Group(*lines), title=title, title_align="left", border_style="dim", width=width)

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


def bar(share: float, width: int) -> Text:
    done = round(min(1.0, max(0.0, share)) * width)
    return Text.assemble(("━" * done, "cyan"), ("─" * (width - done), "dim"))
