"""Keeps what a script measured: `--save MACHINE` writes it into the script's file in results/.

The part of the file that has the same name is written anew, with command, commit, date and machine. All else in
the file stays as it is. `make pages` then writes the page.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_MEASURED = ("src", "benchmarks", ":!benchmarks/results")  # what a commit must hold to name what was measured


def add_option(parser: argparse.ArgumentParser) -> None:
    machines = [*tomllib.loads((RESULTS / "machines.toml").read_text())]
    told = "write the figures into benchmarks/results/, as measured on this machine (see machines.toml there)"
    parser.add_argument("--save", choices=machines, metavar="MACHINE", help=f"{told}: {', '.join(machines)}")


def keep(
    file: str, part: str, machine: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], detail: bool = False
) -> None:
    """Write a table into `results/FILE.toml`, in place of the part of this name or after the last one.

    With `detail` it stays there, and off the page.

    A cell is text, a number, or what `tools/pages/figures.py` makes a figure of: a dict with "seeds".
    """
    path = RESULTS / f"{file}.toml"
    blocks = re.split(r"(?m)^(?=\[\[parts\]\]|\[quotes)", path.read_text())  # a text may begin with a link
    places = [i for i, block in enumerate(blocks) if block.startswith("[[parts]]")]
    same = [i for i in places if tomllib.loads(blocks[i])["parts"][0].get("name") == part]
    new = _block({"name": part} | ({"detail": True} if detail else {}), machine, columns, rows)
    if same:
        blocks[same[0]] = new
    else:
        blocks.insert(places[-1] + 1, new)
    path.write_text("".join(blocks).rstrip() + "\n")
    print(f"Kept in {path}; write the page with: make pages")


def _block(part: dict[str, Any], machine: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    facts = {**part, "command": command(), "recorded": f"{commit()}, {time.strftime('%Y-%m-%d')}"}
    lines = [f"{name} = {_toml(value)}" for name, value in (facts | {"machine": machine}).items()]
    table = "".join(f"  {_toml(row)},\n" for row in rows)
    return "\n".join(["[[parts]]", *lines, f"columns = {_toml(columns)}", f"rows = [\n{table}]", "", ""])


def command() -> str:
    """As it was typed, without the flag that keeps the result."""
    words = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    return re.sub(r" --save[ =]\S+", "", words)


def commit() -> str:
    """The present commit; it says so where the code is not as committed. A test keeps that off the page."""
    short = _git("rev-parse", "--short=7", "HEAD").strip()
    return f"{short} with changes" if _git("status", "--porcelain", "--", *_MEASURED) else short


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {_toml(inner)}' for name, inner in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)
