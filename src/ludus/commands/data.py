"""`ludus data info` and `ludus record`: recorded episodes."""

import json as json_format
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from ludus.commands.arguments import Flag, Verb, call, run_verb_of
from ludus.commands.data_info import info_text
from ludus.data.config import DataConfig
from ludus.data.files import data_files
from ludus.data.info import describe
from ludus.envs.findings import Finding, format_findings
from ludus.errors import ConfigError, DataError

_USAGE = """usage: ludus data info FILE… [--json]

What recorded data holds, and what is suspicious about it."""


def data(arguments: list[str]) -> None:
    run_verb_of("data", {"info": _info}, _USAGE, "Use: ludus data info FILE…", arguments)


def _info(arguments: list[str]) -> None:
    def command(
        files: tyro.conf.Positional[tuple[str, ...]],
        filter: str = "",
        json: Annotated[bool, Flag] = False,
    ) -> None:
        """Say what recorded data holds (LIBERO, robomimic, Minari, D4RL), and what is suspicious about it.

        Args:
            files: HDF5 files, or folders of them.
            filter: Only the episodes that this filter of the file names.
            json: Print it as JSON.
        """
        _print_info(files, filter, json)

    call(command, arguments, "ludus data info")


def _print_info(files: tuple[str, ...], only: str, as_json: bool) -> None:
    if not files:
        raise ConfigError("Say which files: ludus data info FILE…")
    config = DataConfig(path=",".join(files), filter=only)
    data_files(config.path)  # a path that is not there is a mistake, not a finding
    try:
        _, facts, findings = describe(config)
    except DataError as error:
        facts, findings = {}, [Finding("error", str(error))]
    if as_json:
        print(json_format.dumps({**facts, "findings": [vars(finding) for finding in findings]}, indent=1))
    else:
        print(info_text(facts, findings) if facts else format_findings(findings))
    sys.exit(1 if any(finding.level == "error" for finding in findings) else 0)


def record(arguments: list[str]) -> None:
    from ludus.recording import RecordConfig
    from ludus.recording import record as record_episodes

    def command(
        source: tyro.conf.Positional[str],
        out: Path,
        settings: tyro.conf.OmitArgPrefixes[RecordConfig],
        trust: Annotated[bool, Flag] = False,
    ) -> None:
        """Record demonstrations of the KUKA task, successes and failures, in LIBERO's layout.

        Args:
            source: 'scripted', or the folder of a run, whose best policy plays.
            out: The file to write, ending in .hdf5.
            settings: What to record.
            trust: Import the code that the run names, though you did not train it on this machine.
        """
        with _progress_line() as report:
            path = record_episodes(source, out, settings, report, trust)
        print(f"{path}: {settings.episodes} episodes. 'ludus data info {path}' tells more.")

    call(command, arguments, "ludus record")


@contextmanager
def _progress_line() -> Iterator[Callable[[str], None]]:
    """One line that is written over on a terminal; elsewhere a line every ten seconds."""
    terminal = sys.stderr.isatty()
    start, end = ("\r\x1b[K", "") if terminal else ("", "\n")

    def write(text: str) -> None:
        print(start + text, end=end, file=sys.stderr, flush=True)

    try:
        yield _throttled(write, 0.2 if terminal else 10.0)
    finally:
        if terminal:
            print(start, end="", file=sys.stderr, flush=True)


def _throttled(write: Callable[[str], None], seconds: float = 1.0) -> Callable[[str], None]:
    """Passes a message on at most every so many seconds."""
    last = time.monotonic()

    def report(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= seconds:
            last = time.monotonic()
            write(text)

    return report


VERBS: dict[str, Verb] = {"data": data, "record": record}
