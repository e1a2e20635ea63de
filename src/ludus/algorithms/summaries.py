"""A line about every algorithm, for help and completion. No algorithm is imported."""

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ludus.declared import declared

ENTRY_POINTS = "ludus.algorithms"


def algorithm_summaries() -> dict[str, str]:
    """Those of Ludus, then those of installed packages."""
    own = declared(Path(__file__).parent.glob("*/registration.py"), "Algorithm")
    others = dict.fromkeys(installed(), "of an installed package")
    return {name: own[name] for name in sorted(own)} | {k: v for k, v in others.items() if k not in own}


def installed() -> dict[str, EntryPoint]:
    """What other packages bring."""
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}
