"""standing.json: where a run is and how good it is, in one small file.

The truth lies in checkpoints, metrics.jsonl and results.json, which are too large to be read for a list of runs.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ludus.errors import LudusError, plain_text
from ludus.files import persistently, read_json, write_whole
from ludus.training.run_folder import STANDING

_MOST_BYTES = 20_000
_LARGEST = 1e100


@dataclass(frozen=True)
class Score:
    """One result, and what was judged."""

    judged: str  # success_rate or mean_reward; of a learned reward alone AUC or fit
    value: float
    step: int  # of the policy
    episodes: int = 0  # 0: not known


@dataclass(frozen=True)
class Standing:
    """Where a run is."""

    algo: str = ""
    step: int = 0
    planned: int = 0  # 0: not known
    unit: str = "steps"
    best: Score | None = None  # the best evaluation while training
    final: Score | None = None  # the best policy after the training, on new starts
    failed: str = ""  # the error that ended the training


def score(values: Mapping[str, float], step: int, episodes: int = 0) -> Score | None:
    """By the first of the values, in their order, that is known."""
    known = [(name, value) for name, value in values.items() if math.isfinite(value)]
    return Score(*known[0], step, episodes) if known else None


def keep_standing(folder: Path, standing: Standing) -> None:
    """A run is no worse for not being listed: what keeps the file from being written stops no training."""
    with contextlib.suppress(OSError):
        persistently(lambda: write_whole(folder / STANDING, json.dumps(asdict(standing), indent=1)))


def read_standing(folder: Path) -> Standing | None:
    """None where the file is missing or damaged."""
    try:
        found = persistently(lambda: read_json(folder / STANDING, _MOST_BYTES))
    except (OSError, LudusError):
        return None
    if not isinstance(found, dict):
        return None
    return Standing(
        _text(found.get("algo"), 100), _count(found.get("step")), _count(found.get("planned")),
        _text(found.get("unit"), 20) or "steps", _score(found.get("best")), _score(found.get("final")),
        _text(found.get("failed"), 500),
    )  # fmt: skip


def _score(found: Any) -> Score | None:
    if not isinstance(found, dict) or not _is_number(found.get("value")):
        return None
    return Score(
        _text(found.get("judged"), 50), found["value"], _count(found.get("step")), _count(found.get("episodes"))
    )


def _text(found: Any, most: int) -> str:
    return plain_text(found, most) if isinstance(found, str) else ""


def _count(found: Any) -> int:
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**63 else 0


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool) and abs(found) <= _LARGEST
