"""The code blocks of README and docs, for the tests that run them."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]+) -->\n|^<!-- first: (?P<first>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<code>.*?)^ *```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    page: Path
    line: int
    kind: str  # the language behind the fence
    code: str
    why_not: str  # why it cannot be run; empty where it can
    first: str  # Python that makes what it takes for granted: a recorded file, a run

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*kinds: str) -> list[Block]:
    """All blocks of these languages; of every language where none is named."""
    found = [block for page in PAGES for block in _blocks_of(page)]
    return [block for block in found if not kinds or block.kind in kinds]


def _blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in _BLOCK.finditer(text):
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        line = text.count("\n", 0, match.start("kind")) + 1
        yield Block(page, line, match["kind"], code, match["why"] or "", match["first"] or "")


def commands(block: Block) -> list[list[str]]:
    """The commands of a block of shell, each as its words, without comments."""
    lines = block.code.replace("\\\n", " ").splitlines()
    parsed = [shlex.split(line, comments=True) for line in lines]
    return [words for line in parsed for words in _split_at_and(line) if words]


def _split_at_and(words: list[str]) -> Iterator[list[str]]:
    while "&&" in words:
        place = words.index("&&")
        yield words[:place]
        words = words[place + 1 :]
    yield words
