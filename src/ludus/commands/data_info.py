"""What `ludus data info` prints."""

import textwrap
from typing import Any

from ludus.envs.findings import Finding, format_findings
from ludus.errors import plain_text
from ludus.show.text import number

_WIDTH = 100
_LABEL = 14
_MOST_FILES = 8
_MOST_SENTENCES = 5


def info_text(facts: dict[str, Any], findings: list[Finding]) -> str:
    """Readable in 100 columns."""
    lines = [*_files(facts), "", *_episodes(facts), "", *_contents(facts), ""]
    return "\n".join([*lines, *_wrapped(format_findings(findings))])


def _files(facts: dict[str, Any]) -> list[str]:
    files = facts["files"]
    lines = [f"{plain_text(f['path'])}  ({f['format']}, {size_text(f['bytes'])})" for f in files[:_MOST_FILES]]
    if len(files) > _MOST_FILES:
        lines.append(f"and {len(files) - _MOST_FILES} more files")
    return lines


def _episodes(facts: dict[str, Any]) -> list[str]:
    success, returns = facts["success"], facts["return"]
    outcomes = ", ".join(f"{count:,} {name}" for name, count in success.items() if count)
    distinct = returns["distinct"]
    return [
        _line("episodes", f"{facts['episodes']:,} ({outcomes}); {_ends(facts)}"),
        _line("steps", f"{facts['steps']:,}"),
        _line("length", _range(facts["length"])),
        _line("return", f"{_range(returns)}; {distinct:,} distinct value{'s' * (distinct != 1)}"),
        _line("true reward", "there, for measuring only" if facts["true_reward"] else "none"),
    ]


def _ends(facts: dict[str, Any]) -> str:
    ended, episodes = facts["terminated"], facts["episodes"]
    if ended == episodes:
        return "all ended before their time was up"
    return f"{ended:,} ended, {episodes - ended:,} ran out of time" if ended else "all ran out of time"


def _range(values: dict[str, float]) -> str:
    return f"{number(values['min'])} to {number(values['max'])}, median {number(values['median'])}"


def _contents(facts: dict[str, Any]) -> list[str]:
    action = facts["action"]
    what = (
        f"{action['choices']} choices"
        if action["choices"]
        else f"{action['size']} numbers, {number(action['low'])} to {number(action['high'])}"
    )
    lines = ["observations", *_observations(facts["observations"]), _line("action", what)]
    lines.append(_line("cameras", ", ".join(facts["cameras"]) or "none"))
    lines.append(_line("language", _sentences(facts["language"])))
    filters = sorted({name for file in facts["files"] for name in file["filters"]})
    lines.append(_line("filters", ", ".join(filters) or "none"))
    sizes = f"{size_text(facts['disk_bytes'])} on disk, {size_text(facts['memory_bytes'])} in memory"
    return [*lines, _line("size", sizes)]


def _observations(observations: dict[str, Any]) -> list[str]:
    width = max((len(key) for key in observations), default=0)
    return [
        f"  {plain_text(key):{width}}  {' × '.join(map(str, spec['shape'])):>14}  {spec['dtype']}"
        for key, spec in observations.items()
    ]


def _sentences(texts: list[str]) -> str:
    if not texts:
        return "none"
    more = f", and {len(texts) - _MOST_SENTENCES} more" if len(texts) > _MOST_SENTENCES else ""
    return ", ".join(f'"{text}"' for text in texts[:_MOST_SENTENCES]) + more


def _line(label: str, value: str) -> str:
    indent = " " * _LABEL
    return textwrap.fill(
        f"{label:{_LABEL}}{plain_text(value)}", _WIDTH, subsequent_indent=indent, break_long_words=False
    )


def _wrapped(text: str) -> list[str]:
    return [
        textwrap.fill(line, _WIDTH, subsequent_indent=" " * 9, break_long_words=False, break_on_hyphens=False)
        for line in text.splitlines()
    ]


def size_text(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
