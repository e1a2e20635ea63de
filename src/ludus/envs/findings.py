"""What was found wrong with something of a user's, each with what to do about it."""

from dataclasses import dataclass
from typing import Literal

from ludus.errors import plain_text

Level = Literal["error", "warning", "ok"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    fix: str = ""


def format_findings(findings: list[Finding]) -> str:
    """One line a finding, its remedy below it, and a count at the end."""
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {plain_text(finding.what)}")
        if finding.fix:
            lines.append(f"{'':8} → {plain_text(finding.fix)}")
    errors, warnings, fine = (sum(f.level == level for f in findings) for level in ("error", "warning", "ok"))
    plural = ("" if errors == 1 else "s", "" if warnings == 1 else "s")
    return "\n".join([*lines, f"{errors} error{plural[0]}, {warnings} warning{plural[1]}, {fine} fine"])
