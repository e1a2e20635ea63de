"""Measured figures: from `benchmarks/results/*.toml` to docs/benchmarks.md, and to the sentences that quote them.

A result file names its command and machine; each part of it (a text or a table) the commit that recorded it.
A cell of a table is text, or what was measured: `{ seeds = [99, 100], unit = "%", bar = 97 }`. The mean is worked
out and the bar is judged here, so no page can call a missed bar met.

A page quotes a figure between `<!-- figure: FILE.NAME -->` and `<!-- end -->`; what stands there is written by
`make pages` from the file's `quotes`.
"""

import itertools
import re
import statistics
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
MACHINES = RESULTS / "machines.toml"
ORDER = ("learning", "speed", "against", "kuka_sb3", "randomization", "memory", "recurrent", "humanoid", "returns",
         "replay", "rewards", "pixels", "gpu", "overlap", "masks", "taped", "scaling")  # fmt: skip
USUAL_SEEDS = 3  # more are counted beside a figure
# What stands between may be nothing yet, but never another mark.
QUOTE = re.compile(r"(<!-- figure: (\w+)\.([\w-]+) -->\n)(?:(?!<!-- ).)*?(<!-- end -->)", re.DOTALL)

Result = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What was measured on one or more seeds, and the bar it is held to."""

    seeds: list[float]
    unit: str = ""
    digits: int = 0
    bar: float | None = None
    better: str = "more"
    every: bool = False
    """Whether every seed is held to the bar, and not their mean."""

    @property
    def missed(self) -> bool:
        if self.bar is None:
            return False
        judged = self.seeds if self.every else [self._mean]
        return min(judged) < self.bar if self.better == "more" else max(judged) > self.bar

    @property
    def _mean(self) -> float:
        return round(statistics.fmean(self.seeds), self.digits)

    @property
    def mean(self) -> str:
        return self._text(self._mean)

    @property
    def low(self) -> str:
        """Without its unit: "{low} to {high}" tells it once."""
        return f"{min(self.seeds):,g}".replace("-", "−")

    @property
    def high(self) -> str:
        return self._text(max(self.seeds))

    @property
    def shown(self) -> str:
        """The mean, the lowest and the highest seed; no word of the bar but that it was missed."""
        return self.mean + self._spread + " **MISSED**" * self.missed

    @property
    def _spread(self) -> str:
        if len(self.seeds) == 1:
            return ""
        lowest, *_, highest = (_number(value, self.digits) for value in sorted(self.seeds))
        told = [f"{len(self.seeds)} seeds"] if lowest == highest or len(self.seeds) > USUAL_SEEDS else []
        told += [f"{lowest}…{highest}"] if lowest != highest else []
        return f" ({', '.join(told)})"

    @property
    def bar_text(self) -> str:
        return "" if self.bar is None else f"bar {'≤ ' * (self.better == 'less')}{self._text(self.bar)}"

    def __str__(self) -> str:
        return f"{self.shown}; {self.bar_text}" if self.bar is not None else self.shown

    def _text(self, value: float) -> str:
        return _number(value, self.digits) + (f" {self.unit}" if self.unit else "")


def _number(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    if digits and value == int(value) and abs(value) >= 100:
        text = f"{value:,.0f}"
    return text.replace("-", "−")


def cell(value: Any) -> Measured | str:
    """A cell of a result file."""
    if isinstance(value, dict):
        return Measured(**value)
    return _number(value, 0) if isinstance(value, int) else str(value)


def results() -> dict[str, Result]:
    """All result files, in the order of the page."""
    files = {file.stem: file for file in RESULTS.glob("*.toml") if file != MACHINES}
    names = sorted(files, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {name: tomllib.loads(files[name].read_text()) for name in names}


def page() -> str:
    """docs/benchmarks.md."""
    machines = tomllib.loads(MACHINES.read_text())
    head = [
        "# Benchmarks",
        "<!-- Written by `make pages` from benchmarks/results/: change those files. -->",
        "```bash\n"
        "make bench                       # speed on your machine, beside Stable-Baselines3\n"
        "python benchmarks/learning.py    # do the presets learn?\n"
        "```",
        "Every figure, as it was last measured, under its command, commit, date and machine. "
        "`6,092 (4,990…6,693)` is the mean of three seeds, the lowest and the highest. **MISSED** marks a bar "
        "that was not met. `benchmarks/results/` has single seeds and further trials; "
        "[all scripts](../benchmarks/README.md).",
        "Rates vary by a quarter with the host's load; ratios ran in turns.",
        table(["machine", ""], [[f"`{name}`", what] for name, what in machines.items()]),
    ]
    return "\n\n".join([*head, *(_section(result) for result in results().values())]) + "\n"


def _section(result: Result) -> str:
    told = [part | {"source": _source(part, result)} for part in result["parts"] if not part.get("detail")]
    for part, after in reversed(list(itertools.pairwise(told))):
        if "text" in part and "rows" in after:
            part["source"] = after["source"]  # it leads over to the table
    shown = [f"## {result['title']}", f"`{result['command']}`"]
    above = ""  # the source that was named last
    for part in _joined(told):
        shown += [*([part["source"]] if part["source"] != above else []), _part(part)]
        above = str(part.get("last_source", part["source"]))
    shown[1:3] = [" ".join(shown[1:3])]
    return "\n\n".join(shown)


def _source(part: Result, result: Result) -> str:
    return f"*{part['recorded']}, `{part.get('machine', result['machine'])}`*"


def _joined(parts: list[Result]) -> list[Result]:
    """Tables of the same columns become one, in which a row names the source of those below it."""
    joined: list[Result] = []
    for part in parts:
        if "rows" in part and joined and joined[-1].get("columns") == part["columns"]:
            named = [part["source"], *[""] * (len(part["columns"]) - 1)]
            joined[-1] |= {"rows": [*joined[-1]["rows"], named, *part["rows"]], "last_source": part["source"]}
        else:
            joined.append(part)
    return joined


def _part(part: Result) -> str:
    if "text" in part:
        return str(part["text"]).strip()
    columns = list(zip(*([cell(value) for value in row] for row in part["rows"]), strict=True))
    heads = list(part["columns"])
    for i, column in enumerate(columns):
        bars = {value.bar_text if isinstance(value, Measured) else "" for value in column if value != ""}
        if len(column) > 1 and len(bars) == 1 and bars != {""}:  # the same for all: said once, above them
            heads[i] += f" ({bars.pop()})"
            columns[i] = tuple(value.shown if isinstance(value, Measured) else value for value in column)
    return table(heads, [list(row) for row in zip(*columns, strict=True)])


def table(columns: list[str], rows: list[list[Any]]) -> str:
    """In Markdown."""
    lines = [columns, *([str(value).replace("|", "\\|") for value in row] for row in rows)]
    head, *body = (f"| {' | '.join(line)} |".replace("  ", " ") for line in lines)
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def quoted(text: str, known: dict[str, Result]) -> str:
    """The page with every quoted figure as the result files have it."""
    return QUOTE.sub(lambda match: f"{match[1]}{_quote(known, match[2], match[3])}\n{match[4]}", text)


def _quote(known: dict[str, Result], file: str, name: str) -> str:
    quote = known[file]["quotes"][name]
    if "columns" in quote:
        rows = [[_filled(value, known, file) for value in row] for row in quote["rows"]]
        return table(quote["columns"], rows)
    return _filled(quote["says"], known, file)


def _filled(template: str, known: dict[str, Result], file: str) -> str:
    """`{table/row/column.mean}` becomes the mean of that cell; `{file:table/row/column}` is of another file."""

    def value(match: re.Match[str]) -> str:
        table, row, column = match[1].split("/", 2)
        *other, table = table.split(":")
        parts = known[other[0] if other else file]["parts"]
        part = next(part for part in parts if part.get("name") == table)
        cells = next(cells for cells in part["rows"] if not row or cells[0].strip("`").startswith(row))
        found = cell(cells[part["columns"].index(column)])
        return str(getattr(found, match[2])) if match[2] else str(found)

    return re.sub(r"\{([^{}]+?)(?:\.(mean|low|high))?\}", value, template).strip()


def written() -> dict[Path, str]:
    """Every page that holds figures, as it should be."""
    known = results()
    pages = {PAGE: page()}
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        if file != PAGE and QUOTE.search(text := file.read_text()):
            pages[file] = quoted(text, known)
    return pages
