"""Runs in groups of the same settings; how the groups differ, and what they are called.

A folder that was named is a group, or one for each of the settings in it. Single runs are grouped by their
settings. The seed, and what is logged where, are no part of the settings.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.comparing.reading import SavedRun
from ludus.errors import plain_text
from ludus.show.comparison import told_value

_MOST_SETTINGS, _MOST_NAMED, _LONGEST_NAME = 100, 3, 60


def grouped(found: Sequence[SavedRun]) -> list[list[SavedRun]]:
    """By the folder that was named and the settings; in the order in which they were named."""
    groups: dict[tuple[Path | None, str], list[SavedRun]] = {}
    for run in found:
        groups.setdefault((run.source, run.kind), []).append(run)
    return list(groups.values())


def differing(groups: Sequence[Sequence[SavedRun]]) -> dict[str, list[Any]]:
    """Settings that are not the same in all groups: one value a group, None where it has none."""
    tables = [group[0].settings for group in groups]
    names = dict.fromkeys(name for table in tables for name in table)
    different = [name for name in names if len({repr(table.get(name)) for table in tables}) > 1]
    return {name: [table.get(name) for table in tables] for name in different[:_MOST_SETTINGS]}


def names_of(groups: Sequence[Sequence[SavedRun]], settings: Mapping[str, Sequence[Any]]) -> list[str]:
    """A group's folder, where all of that is in it; else the settings that tell it from the others."""
    sources = [group[0].source for group in groups]
    alone = [source is not None and sources.count(source) == 1 for source in sources]
    folders = _tails([source or group[0].path for source, group in zip(sources, groups, strict=True)])
    told = [folders[i] if alone[i] else _told_settings(settings, i) or folders[i] for i in range(len(groups))]
    shown = [plain_text(name, _LONGEST_NAME) for name in told]
    return [
        name if shown.count(name) == 1 else f"{name} ({shown[: i + 1].count(name)})"
        for i, name in enumerate(shown)
    ]


def _tails(paths: Sequence[Path]) -> list[str]:
    """The ends of paths that tell them apart: a/x and b/x."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-length:]) for part in parts]
        if len(set(tails)) == len(set(parts)):
            break
    return tails


def _told_settings(settings: Mapping[str, Sequence[Any]], group: int) -> str:
    """'learning_rate 0.001, gamma 0.9'."""
    shorts = [name.rpartition(".")[2] for name in settings]
    names = [short if shorts.count(short) == 1 else name for short, name in zip(shorts, settings, strict=True)]
    pairs = [f"{name} {told_value(values[group])}" for name, values in zip(names, settings.values(), strict=True)]
    return ", ".join(pairs[:_MOST_NAMED]) + (" …" if len(pairs) > _MOST_NAMED else "")
