"""All kinds of trials, several at a time, and the table of what came out."""

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from . import interruptions
from .children import adopt_orphans, kill_descendants, preload
from .hostile import files, runs
from .jobs import make_reference, train_arguments, write_files
from .results import Result, Trial

Task = Callable[[], Any]
_COLUMNS = (
    "tried", "survived", "bit-equal", "apart", "executed", "written outside", "stack traces", "hangs",
    "over memory", "failed",
)  # fmt: skip


# What there is to try ---------------------------------------------------------------------------------
def kinds() -> dict[str, tuple[Callable[[Trial], Result], int, tuple[int, ...]]]:
    """name → (how, trials of the long form, numbers of the short form)."""
    found = {name: (kind.interrupt, kind.trials, kind.sample) for name, kind in interruptions.KINDS.items()}
    found |= {name: (runs.judge, len(ways), sample) for name, (ways, sample) in runs.KINDS.items()}
    return found | _file_kinds()


def _file_kinds() -> dict[str, tuple[Callable[[Trial], Result], int, tuple[int, ...]]]:
    if importlib.util.find_spec("h5py") is None:
        return {}
    return {name: (files.judge, *counts) for name, counts in files.KINDS.items()}


def group_of(kind: str) -> str:
    if kind in interruptions.KINDS:
        return "interruptions"
    return "hostile runs" if kind in runs.KINDS else "hostile files"


def chosen(only: str, trials: int, number: int | None, short: bool) -> list[tuple[str, int]]:
    """(kind, number) of the trials wanted: of kinds or groups whose name begins with `only`."""
    found = []
    for kind, (_, count, sample) in kinds().items():
        if not (kind.startswith(only) or group_of(kind).startswith(only)):
            continue
        numbers: Sequence[int] = sample if short else range(min(count, trials or count))
        found += [(kind, n) for n in ([number] if number is not None else numbers)]
    return found


# Trying -----------------------------------------------------------------------------------------------
def try_all(
    wanted: Sequence[tuple[str, int]], seed: int, jobs: int, keep: bool, tell: Callable[[Result], None]
) -> list[Result]:
    """Every trial in a process of its own, `jobs` at a time."""
    work = Path(tempfile.mkdtemp(prefix="ludus-chaos-"))
    looked_at = [kind for kind, _ in wanted if kind not in interruptions.KINDS]
    preload(looking=bool(looked_at), exporting=len(looked_at) > 30)  # a sample exports next to nothing
    shared = work / "shared"
    shared.mkdir()
    try:
        _prepare(wanted, seed, shared, jobs)
        trials = [Trial(kind, n, seed, work / f"trial-{i}", shared) for i, (kind, n) in enumerate(wanted)]
        results = []
        for i, made in in_processes([partial(_try, trial) for trial in trials], jobs):
            broken = Result(trials[i].kind, trials[i].number, trials[i].command, problems=[f"the suite: {made}"])
            result = Result(**made) if isinstance(made, dict) else broken
            tell(result)
            results.append(result)
            if not keep:
                for path in work.glob(f"trial-{i}*"):
                    if path.name.split(".")[0] == f"trial-{i}":
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
        return results
    finally:
        if keep:
            print(f"All that was tried is in {work}.")
        else:
            shutil.rmtree(work, ignore_errors=True)


def _prepare(wanted: Sequence[tuple[str, int]], seed: int, shared: Path, jobs: int) -> None:
    """What trials share: runs that were left alone, runs that a stranger spoils, files."""
    write_files(shared)
    names = [interruptions.KINDS[kind].job_of(n) for kind, n in wanted if kind in interruptions.KINDS]
    tasks: list[Task] = [partial(_refer, job, shared) for job in dict.fromkeys(names) if job]
    tasks += runs.preparations(wanted, shared)
    of_files = {kind for kind, _ in wanted if kind in files.KINDS}
    tasks += [partial(files.make_files, kind, seed, shared) for kind in sorted(of_files)]
    for _, problem in in_processes(tasks, jobs):
        if problem:
            raise RuntimeError(f"What trials need cannot be made: {problem}")


def _refer(job: str, shared: Path) -> str:
    ended = make_reference(job, shared / "reference" / job, train_arguments(job, shared))
    return "" if ended.code == 0 else ended.line


def _try(trial: Trial) -> dict[str, Any]:
    trial.folder.mkdir()
    return kinds()[trial.kind][0](trial).to_dict()


def in_processes(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[int, Any]]:
    """(which, its plain result, or the stack trace that ended it) of every task as it ends."""
    waiting, running = list(enumerate(tasks)), dict[int, tuple[int, Path]]()
    answers = Path(
        tempfile.mkdtemp(prefix="ludus-chaos-results-")
    )  # no TemporaryDirectory: children would remove it
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                i, task = waiting.pop(0)
                running[_fork(task, answers / str(i))] = i, answers / str(i)
            pid, _ = os.wait()
            if pid in running:
                i, answer = running.pop(pid)
                yield i, json.loads(answer.read_text()) if answer.exists() else "its process was killed"
    finally:
        shutil.rmtree(answers, ignore_errors=True)


def _fork(task: Task, answer: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        adopt_orphans()
        made = task()
    except BaseException:  # noqa: BLE001 (it is the parent that shows it)
        made = traceback.format_exc()
    try:
        kill_descendants()
        answer.write_text(json.dumps(made))
    finally:
        os._exit(0)


# Telling ----------------------------------------------------------------------------------------------
def table(results: Sequence[Result]) -> list[str]:
    """A line for each kind, one for each group, and one for all."""
    lines: list[tuple[str, ...]] = [("kind", *_COLUMNS)]
    for group in ("interruptions", "hostile runs", "hostile files"):
        of_group = [result for result in results if group_of(result.kind) == group]
        kinds_tried = dict.fromkeys(result.kind for result in of_group)
        lines += [_line(f"  {kind}", [r for r in of_group if r.kind == kind], group) for kind in kinds_tried]
        if of_group:
            lines.append(_line(group, of_group, group))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return [" | ".join(_cell(text, i, widths[i]) for i, text in enumerate(line)) for line in lines]


def _cell(text: str, i: int, width: int) -> str:
    return text.ljust(width) if i == 0 else text.rjust(width)


def _line(name: str, results: Sequence[Result], group: str) -> tuple[str, ...]:
    compared = group == "interruptions"
    counts = [
        len(results),
        sum(result.survived for result in results),
        sum(result.equal for result in results) if compared else "–",
        sum(bool(result.apart) and not result.equal for result in results) if compared else "–",
        sum(result.executed for result in results),
        sum(result.written for result in results),
        sum(result.traced for result in results),
        sum(result.hung for result in results),
        sum(result.over_memory for result in results),
        sum(result.failed for result in results),
    ]
    return (name, *map(str, counts))


def failure_lines(result: Result) -> list[str]:
    """What failed, and the command that does it again."""
    problems = result.problems or ["it did not survive"]
    return [
        f"FAILED {result.kind} {result.number}: {result.what}",
        *(f"    {text}" for text in problems),
        f"    {result.command}",
    ]
