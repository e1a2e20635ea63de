"""An evaluation clip by clip, the worst first: as text for the terminal and as a section of the report."""

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ludus.errors import LudusError, plain_text
from ludus.files import parse_json, read_bounded
from ludus.logging import text
from ludus.logging.jsonl import MOST_STEPS

Rows = Sequence[Mapping[str, Any]]

_MOST_BYTES = 20_000_000  # of evaluation.json: a hundred thousand clips
_LONGEST_CLIP = 200  # characters of a clip's name
_LARGEST = 1e100
_LONGEST_NAME = 40  # of a clip, in the terminal
# The limits of envs/humanoid/tracking.py, in words; a test holds them to it.
_RULES = (
    "Success: the bodies' mean distance to the reference never exceeded 0.5 m.",
    "Strict: nor did any body's exceed 0.25 m.",
)
_MEASURES = (
    "MPJPE is the bodies' mean distance in the world; local: with the roots in one place; "
    "aligned: after the best rotation, scale and shift."
)


class Column(NamedTuple):
    head: str
    unit: str
    key: str
    show: Callable[[float], str]


def _millimetres(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


_COLUMNS = [
    Column("episodes", "", "episodes", lambda v: f"{v:,.0f}"),
    Column("success", "", "success_rate", text.percent),
    Column("strict", "", "success_strict", text.percent),
    Column("MPJPE", "mm", "mpjpe", _millimetres),
    Column("local", "mm", "mpjpe_local", _millimetres),
    Column("aligned", "mm", "mpjpe_aligned", _millimetres),
    Column("velocity", "m/s", "velocity_error", lambda v: f"{v:.2f}"),
    Column("accel.", "m/s²", "acceleration_error", lambda v: f"{v:.1f}"),
    Column("starts", "", "share", text.percent),
]
_METERS = ("success_rate", "success_strict")  # drawn as bars in the report


def clip_lines(rows: Rows) -> list[str]:
    """The table in about 80 columns, its heads over it and what they mean below."""
    columns = _told(rows)
    name_width = min(_LONGEST_NAME, max(len("clip"), *(len(str(row["clip"])) for row in rows)))
    cells = [[_cell(column, row) for column in columns] for row in rows]
    heads = [[column.head for column in columns], [column.unit for column in columns]]
    widths = [max(len(line[i]) for line in [*heads, *cells]) for i in range(len(columns))]
    names = ["clip", "", *(plain_text(str(row["clip"])) for row in rows)]
    lines = []
    for name, line in zip(names, [*heads, *cells], strict=True):
        short = name if len(name) <= name_width else name[: name_width - 1] + "…"
        lines.append(f"{short:<{name_width}}  " + "  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)))
    return [*(line.rstrip() for line in lines), "", *_RULES]


def clip_section(run_dir: Path, best_step: int | None) -> str:
    """The report's table of the newest evaluation; empty where a run has none."""
    step, rows = read_clip_table(run_dir)
    if not rows:
        return ""
    columns = _told(rows)
    head = "".join(f"<th>{column.head}{_unit(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><td>{_safe(row['clip'])}</td>{''.join(_html_cell(column, row) for column in columns)}</tr>"
        for row in rows
    )
    table = f'<table class="tight"><thead><tr><th>clip</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    starts = " Starts: how large a part of the training's episodes begins in it." if _tells(rows, "share") else ""
    meaning = _safe(" ".join([*_RULES, _MEASURES]))
    return (
        f'<h2>Clips</h2><p class="hint above">{_headline(step, rows, best_step)}</p>'
        f'<div class="card scroll">{table}</div><p class="hint">{meaning}{starts}</p>'
    )


def read_clip_table(run_dir: Path) -> tuple[int, Rows]:
    """Step and rows of evaluation.json, of the newest evaluation; no rows where there is none to be read."""
    try:
        table = parse_json(read_bounded(run_dir / "evaluation.json", _MOST_BYTES))
        rows = [_known(row) for row in table["rows"] if isinstance(row.get("clip"), str)]
        return (int(table["step"]), rows) if abs(table["step"]) <= MOST_STEPS else (0, [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LudusError):
        return 0, []  # of another version, half a file, or a stranger's: no reason to fail


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """The clip's name and the numbers that the table shows, where they are such."""
    told = {column.key: row.get(column.key) for column in _COLUMNS}
    numbers = {key: v for key, v in told.items() if isinstance(v, int | float) and abs(v) <= _LARGEST}
    return {"clip": plain_text(row["clip"], _LONGEST_CLIP), **numbers}


def _headline(step: int, rows: Rows, best_step: int | None) -> str:
    whole = sum(row.get("success_rate") == 1 for row in rows)
    words = f"The newest evaluation, at step {step:,}: {whole} of {len(rows)} clips followed from every start."
    if best_step is not None and best_step != step:
        words += f" The best policy is that of step {best_step:,}: 'ludus eval' prints this table of it."
    return _safe(words)


def _told(rows: Rows) -> list[Column]:
    return [column for column in _COLUMNS if _tells(rows, column.key)]


def _tells(rows: Rows, key: str) -> bool:
    return any(key in row for row in rows)


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return text.MISSING if value is None else column.show(value)


def _html_cell(column: Column, row: Mapping[str, Any]) -> str:
    shown, value = _safe(_cell(column, row)), row.get(column.key)
    if column.key not in _METERS or value is None:
        return f"<td>{shown}</td>"
    hue = 20 + 130 * value  # from orange to green
    return f'<td class="meter" style="--p:{100 * value:.1f}%;--h:{hue:.0f}">{shown}</td>'


def _unit(column: Column) -> str:
    return f" <small>{column.unit}</small>" if column.unit else ""


def _safe(value: Any) -> str:
    return html.escape(str(value), quote=True)
