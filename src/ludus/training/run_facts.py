"""run.json: what was trained, where and why. Its tags and its note the user may change at any time."""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ludus.errors import ConfigError, LudusError, plain_text
from ludus.files import persistently, read_json, write_whole

FACTS = "run.json"
_FACTS_BYTES = 1_000_000
_NAME = re.compile(
    r"[^\W_][^/\\@,\n]{0,99}"
)  # it may become a folder's: RUN@STEP and lists with commas stay readable
_TAG = re.compile(r"[^\s,#-][^\s,]{0,49}")
_MOST_TAGS, _LONGEST_NOTE = 50, 2_000


def read_facts(folder: Path, name: str = FACTS) -> dict[str, Any]:
    """run.json, or an experiment's file; empty where it is lost or damaged: no reason to lose the run as well."""
    try:
        facts = persistently(lambda: read_json(folder / name, _FACTS_BYTES))
    except (OSError, LudusError):
        return {}
    return facts if isinstance(facts, dict) else {}


def change_facts(folder: Path, change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Write what `change` makes of the facts; a training and a user who do so at once lose nothing."""
    with _alone_in(folder):
        text = json.dumps(change(read_facts(folder)), indent=1)
        persistently(lambda: write_whole(folder / FACTS, text))


def put_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write the facts of a training that begins or goes on; the labels that the run has by now stay."""

    def change(now: dict[str, Any]) -> dict[str, Any]:
        if not now:
            return dict(facts)
        others = {name: value for name, value in facts.items() if name not in Labels._fields}
        return {name: now[name] for name in Labels._fields if name in now} | others

    change_facts(folder, change)


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """A lock on the folder itself, which leaves no file; the training's own lock is another."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # of a file system without locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


# Name, tags, note ---------------------------------------------------------------------------------
class Labels(NamedTuple):
    """What a user calls a run, and why there is one."""

    name: str = ""  # empty: that of its folder
    tags: tuple[str, ...] = ()
    note: str = ""

    def facts(self) -> dict[str, Any]:
        """As run.json keeps them; those that are empty are left out."""
        kept = {"name": self.name, "tags": list(self.tags), "note": self.note}
        return {name: value for name, value in kept.items() if value}

    def __str__(self) -> str:
        """'baseline · #wide #slow · why it was trained', of what there is."""
        tags = " ".join(f"#{tag}" for tag in self.tags)
        return " · ".join(part for part in (self.name, tags, " ".join(self.note.split())) if part)


def make_labels(name: str = "", tags: str | Iterable[str] = (), note: str = "") -> Labels:
    """Labels of a user's; tags may be one text with commas. Refused, with the reason, where one cannot be kept."""
    if not isinstance(name, str) or (name and not (_NAME.fullmatch(name) and name.isprintable())):
        raise ConfigError(
            f"The name {name!r} cannot be a run's: it begins with a letter or digit, has at most 100 characters, "
            "and no / \\ @ or comma."
        )
    if not isinstance(note, str) or len(note) > _LONGEST_NOTE:
        raise ConfigError(f"A note is text of at most {_LONGEST_NOTE:,} characters.")
    return Labels(name, _checked_tags(tags), note.strip())


def _checked_tags(tags: str | Iterable[str], known: Container[str] = ()) -> tuple[str, ...]:
    """Without doubles; those that the run has already, `known`, are not judged again."""
    words = tags.split(",") if isinstance(tags, str) else list(tags)
    found = dict.fromkeys(
        word.strip() if isinstance(word, str) and word not in known else word for word in words if word != ""
    )
    for tag in found:
        if tag not in known and not (isinstance(tag, str) and _TAG.fullmatch(tag) and tag.isprintable()):
            raise ConfigError(
                f"{tag!r} cannot be a tag: it has at most 50 characters, no space, no comma, and no # or - at its "
                "beginning."
            )
    if len(found) > _MOST_TAGS:
        raise ConfigError(f"A run has at most {_MOST_TAGS} tags; these are {len(found)}.")
    return tuple(found)


def labels_in(facts: Mapping[str, Any]) -> Labels:
    """Those of a run, which may be a stranger's: as plain text, without what is none."""
    name, tags, note = (facts.get(key) for key in Labels._fields)
    told = (
        [plain_text(tag, 50) for tag in tags[:_MOST_TAGS] if isinstance(tag, str)]
        if isinstance(tags, list)
        else []
    )
    return Labels(
        plain_text(name, 100) if isinstance(name, str) else "",
        tuple(told),
        plain_text(note, _LONGEST_NOTE, keep_lines=True) if isinstance(note, str) else "",
    )


def read_labels(folder: Path) -> Labels:
    """Those of a run; refused where the file that keeps them is damaged."""
    facts = read_facts(folder)
    if not facts and (folder / FACTS).exists():
        raise ConfigError(f"{folder / FACTS} is damaged: it can keep neither tags nor a note.")
    return labels_in(facts)


def relabel(folder: Path, change: Callable[[Labels], Labels]) -> Labels:
    """Give a run other tags or another note, also while it is trained; returns what it has now.

    What is not changed stays as it is written, also where a user could not have given it.
    """
    now = read_labels(folder)

    def changed(facts: dict[str, Any]) -> dict[str, Any]:
        nonlocal now
        before = labels_in(facts)
        _, tags, note = change(before)
        new: dict[str, Any] = {}
        if tags != before.tags:
            new["tags"] = _checked_tags(tags, before.tags)
        if note != before.note:
            new["note"] = make_labels(note=note).note
        now = before._replace(**new)
        others = {name: value for name, value in facts.items() if name not in new}
        return others | {name: value for name, value in now.facts().items() if name in new}

    change_facts(folder, changed)
    return now
