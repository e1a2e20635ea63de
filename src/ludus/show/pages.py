"""What all pages share: nothing to fetch, the style, the script of the charts, text that cannot become markup."""

import html
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, plain_text
from ludus.files import write_whole
from ludus.show.playback import NO_NETWORK
from ludus.show.report_style import SCRIPT, STYLE

_WIDE = 9  # characters that fit a tile at their usual size


def page_html(title: str, body: str, axis: str = "step") -> str:
    """A whole page. `axis`: what the readout calls a place on the x axis of its charts."""
    return (
        f'<!doctype html><html lang="en"><head>{NO_NETWORK}<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(title)}</title><style>{STYLE}</style></head>"
        f'<body data-x="{axis}"><main>{body}</main><div id="tip"></div><script>{SCRIPT}</script></body></html>'
    )


def tile(words: str, value: str, main: bool = False, good: bool = True) -> str:
    """A number, large, and what it is. The main one of a page is wide and, unless it is not `good`, green."""
    style = "tile" + " main" * main + " good" * (main and good) + " long" * (len(value) > _WIDE)
    return f'<div class="{style}"><b>{safe(value)}</b><span>{safe(words)}</span></div>'


def safe(value: Any) -> str:
    return html.escape(plain_text(str(value), keep_lines=True), quote=True)


def write_page(path: Path, content: str) -> None:
    """Whole or not at all: a reader never sees half a page."""
    try:
        write_whole(path, content.encode("utf-8", "replace"))
    except OSError as error:
        raise LudusError(f"Cannot write {path}: {error.strerror or error}.") from error
