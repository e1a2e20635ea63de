"""episodes.jsonl: every episode of every evaluation, a line for each evaluation and way of acting.

A line holds the step and columns (Evaluation.record): numbers, returns, lengths, successes and starts of episodes.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.files import open_to_append, persistently, write_line
from ludus.show.jsonl import truncate_to

MOST_BYTES = 50_000_000  # later evaluations are not recorded


class EpisodeLog:
    """Appends whole lines; those that a resumed training makes again are cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut_to(self, lines: int) -> None:
        """Forget what came after so many lines."""
        if self.path.exists():
            truncate_to(self.path, lines, MOST_BYTES)

    def append(self, step: int, records: Sequence[dict[str, Any]]) -> bool:
        """Add a line for each record; False if the file would become too large, and nothing was added."""
        lines = [
            json.dumps({"step": step, **record}, separators=(",", ":")).encode() + b"\n" for record in records
        ]
        content = b"".join(lines)
        if len(content) + (self.path.stat().st_size if self.path.exists() else 0) > MOST_BYTES:
            return False
        persistently(lambda: self._append(content))
        return True

    def _append(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)  # the whole folder may have been deleted
        with open_to_append(self.path) as file:
            write_line(file, content)
