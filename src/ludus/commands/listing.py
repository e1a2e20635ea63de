"""`ludus runs [FOLDER]`: what runs there are; `ludus runs tag` and `ludus runs note`: what a user says of them."""

import json as json_format
import os
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import tyro

from ludus.commands.arguments import Flag, Verb, call
from ludus.commands.runs_table import table_lines
from ludus.errors import ConfigError, plain_text
from ludus.listing import find_runs, list_runs
from ludus.training.run_facts import Labels, read_labels, relabel
from ludus.training.run_folder import EXPERIMENT, refuse_strange_files

_ANY_WIDTH = 1_000  # of what is no terminal
_Words = tyro.conf.Positional[tuple[str, ...]]


def runs(arguments: list[str]) -> None:
    def command(
        folder: tyro.conf.Positional[Path] = Path("runs"),
        tag: str = "",
        state: str = "",
        preset: str = "",
        best_above: str = "",
        since: str = "",
        sort: str = "newest",
        json: Annotated[bool, Flag] = False,
    ) -> None:
        """What runs there are, in a folder and its sub-folders, the newest first.

        A folder of runs that differ in their seeds is one line, with the means of these.

        'ludus runs tag RUN TAG…' gives a run tags, 'ludus runs note RUN TEXT' a note.

        Args:
            folder: Where to look; ./tag and ./note are folders, tag and note are not.
            tag: Only runs that have this tag; with commas between, all of several.
            state: Only those running, finished, stopped, failed or damaged; with commas between, any of several.
            preset: Only runs whose preset has this in its name.
            best_above: Only runs whose best success (0.9 or 90%) is more, or else their mean reward.
            since: Only runs that began after 2026-11-16 or '2026-11-16 14:30', or less than 45m, 36h, 7d, 2w ago.
            sort: By newest, best, final, steps or name.
            json: Print everything as JSON, a list; an experiment's runs are in its "runs".
        """
        above = _number(best_above) if best_above else None
        found = list_runs(folder, tag, state, preset, above, since, sort)
        filtered = any((tag, state, preset, best_above, since))
        if json:
            print(json_format.dumps([run.as_json() for run in found], indent=1))
        elif found:
            print(*table_lines(found, folder, _width(), datetime.now(), _is_coloured()), sep="\n")
        else:
            print(f"{'No such run' if filtered else 'No run'} in {plain_text(str(folder))}.")

    if arguments and arguments[0] in _VERBS:
        _VERBS[arguments[0]](arguments[1:])
    else:
        call(command, arguments, "ludus runs")


def _number(text: str) -> float:
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ConfigError(f"--best-above takes a number, 0.9, 90% or 250, and not {text!r}.") from None


def _width() -> int:
    return shutil.get_terminal_size((_ANY_WIDTH, 24)).columns if sys.stdout.isatty() else _ANY_WIDTH


def _is_coloured() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


# Tags and notes -----------------------------------------------------------------------------------
def _tag(arguments: list[str]) -> None:
    def command(run: tyro.conf.Positional[Path], tags: _Words = (), remove: Annotated[bool, Flag] = False) -> None:
        """Give a run tags, to find it by: 'ludus runs --tag TAG'. Without any, show those that it has.

        Args:
            run: Folder of the run, or of an experiment: then all its runs.
            tags: Words without spaces; those that it has stay.
            remove: Take these away instead.
        """

        def change(labels: Labels) -> Labels:
            kept = [tag for tag in labels.tags if tag not in tags] if remove else [*labels.tags, *tags]
            return labels._replace(tags=tuple(kept))

        for folder in _runs_at(run):
            labels = relabel(folder, change) if tags else read_labels(folder)
            print(f"{folder}: {' '.join(f'#{tag}' for tag in labels.tags) or 'no tags'}")

    call(command, arguments, "ludus runs tag")


def _note(arguments: list[str]) -> None:
    def command(run: tyro.conf.Positional[Path], text: tyro.conf.Positional[str]) -> None:
        """Write why a run was trained, or what came out, in place of the note that it has.

        Args:
            run: Folder of the run, or of an experiment: then all its runs.
            text: The note; '' takes it away.
        """
        for folder in _runs_at(run):
            labels = relabel(folder, lambda labels: labels._replace(note=text))
            print(f"{folder}: {plain_text(labels.note) or 'no note'}")

    call(command, arguments, "ludus runs note")


def _runs_at(folder: Path) -> list[Path]:
    """The run, or those of an experiment."""
    found = next(find_runs(folder), None) if folder.is_dir() else None
    group = [] if found is None else found.runs
    several = len(group) > 1 or (folder / EXPERIMENT).is_file()  # an experiment may have one seed
    if group != [folder] and not (group and several and group[0].parent == folder):
        raise ConfigError(f"{folder} is no run. 'ludus runs' shows those in runs/, 'ludus runs FOLDER' others.")
    for run in group:
        refuse_strange_files(run)
    return group


_VERBS: dict[str, Verb] = {"tag": _tag, "note": _note}
VERBS: dict[str, Verb] = {"runs": runs}
