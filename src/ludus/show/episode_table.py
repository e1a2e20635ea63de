"""An evaluation kind by kind of episode: as text for the terminal and as a section of the report."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.display import Column, Table
from ludus.errors import LudusError, plain_text
from ludus.files import parse_json, read_bounded
from ludus.show import text
from ludus.show.jsonl import MOST_STEPS

Rows = Sequence[Mapping[str, Any]]

_MOST_BYTES = 20_000_000  # of evaluation.json: a hundred thousand kinds
_LONGEST_KIND = 200  # characters of a kind's name
_LARGEST = 1e100
_LONGEST_NAME = 40  # of a kind, in the terminal


def table_lines(table: Table, rows: Rows) -> list[str]:
    """The table in about 80 columns, its heads over it and what they mean below."""
    columns, kind = _told(table, rows), table.kind
    name_width = min(_LONGEST_NAME, max(len(kind), *(len(str(row[kind])) for row in rows)))
    cells = [[_cell(column, row) for column in columns] for row in rows]
    heads = [[column.head for column in columns], [column.unit for column in columns]]
    widths = [max(len(line[i]) for line in [*heads, *cells]) for i in range(len(columns))]
    names = [kind, "", *(plain_text(str(row[kind])) for row in rows)]
    lines = []
    for name, line in zip(names, [*heads, *cells], strict=True):
        short = name if len(name) <= name_width else name[: name_width - 1] + "…"
        lines.append(f"{short:<{name_width}}  " + "  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)))
    return [*(line.rstrip() for line in lines), "", *table.rules]


def table_section(table: Table | None, run_dir: Path, best_step: int | None) -> str:
    """The report's table of the newest evaluation; empty where a run has none."""
    step, rows = read_table(table, run_dir)
    if table is None or not rows:
        return ""
    columns = _told(table, rows)
    head = "".join(f"<th>{word}</th>" for word in (_safe(table.kind), *map(_head, columns)))
    body = "".join(
        f"<tr><td>{_safe(row[table.kind])}</td>{''.join(_html_cell(column, row) for column in columns)}</tr>"
        for row in rows
    )
    drawn = f'<table class="tight"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    hints = [column.hint for column in columns if column.hint]
    meaning = _safe(" ".join([*table.rules, table.meaning, *hints]))
    return (
        f'<h2>{_safe(table.title)}</h2><p class="hint above">{_headline(table, step, rows, best_step)}</p>'
        f'<div class="card scroll">{drawn}</div><p class="hint">{meaning}</p>'
    )


def read_table(table: Table | None, run_dir: Path) -> tuple[int, Rows]:
    """Step and rows of evaluation.json, of the newest evaluation; no rows where there is none to be read."""
    if table is None:
        return 0, []
    try:
        found = parse_json(read_bounded(run_dir / "evaluation.json", _MOST_BYTES))
        rows = [_known(table, row) for row in found["rows"] if isinstance(row.get(table.kind), str)]
        return (int(found["step"]), rows) if abs(found["step"]) <= MOST_STEPS else (0, [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LudusError):
        return 0, []  # of another version, half a file, or a stranger's: no reason to fail


def ranked_kinds(table: Table | None, run_dir: Path) -> list[str]:
    """The kinds of the newest evaluation, the worst first."""
    return [] if table is None else [str(row[table.kind]) for row in read_table(table, run_dir)[1]]


def _known(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """The kind's name and the numbers that the table shows, where they are such."""
    told = {column.key: row.get(column.key) for column in table.columns}
    numbers = {key: v for key, v in told.items() if isinstance(v, int | float) and abs(v) <= _LARGEST}
    return {table.kind: plain_text(row[table.kind], _LONGEST_KIND), **numbers}


def _headline(table: Table, step: int, rows: Rows, best_step: int | None) -> str:
    whole = sum(row.get("success_rate") == 1 for row in rows)
    words = f"The newest evaluation, at step {step:,}: {whole} of {len(rows)} {table.solved}."
    if best_step is not None and best_step != step:
        words += f" The best policy is that of step {best_step:,}: 'ludus eval' prints this table of it."
    return _safe(words)


def _told(table: Table, rows: Rows) -> list[Column]:
    return [column for column in table.columns if any(column.key in row for row in rows)]


def _cell(column: Column, row: Mapping[str, Any]) -> str:
    value = row.get(column.key)
    return text.MISSING if value is None else column.show(value)


def _html_cell(column: Column, row: Mapping[str, Any]) -> str:
    shown, value = _safe(_cell(column, row)), row.get(column.key)
    if not column.bar or value is None:
        return f"<td>{shown}</td>"
    hue = 20 + 130 * value  # from orange to green
    return f'<td class="meter" style="--p:{100 * value:.1f}%;--h:{hue:.0f}">{shown}</td>'


def _head(column: Column) -> str:
    return _safe(column.head) + (f" <small>{_safe(column.unit)}</small>" if column.unit else "")


def _safe(value: Any) -> str:
    return html.escape(str(value), quote=True)
