"""Run folders of a stranger: a real run, spoilt in one way each, and what `ludus` makes of it.

Every command must end within its limits in a correct result or in a sentence; it must execute nothing that the
folder names, write nowhere else, and show no stack trace.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from ..children import Ended, run
from ..jobs import arguments_of, with_files
from ..results import Result, Trial
from ..sandbox import Sandbox
from .checkpoints import hostile_checkpoints, hostile_simulations
from .code import hostile_code
from .configurations import hostile_configurations
from .links import hostile_links
from .pages import hostile_pages
from .spoiling import BASES, VERBS, Hostile, read_config, write_config

_PAGES = {"report": "run/report.html", "compare": "home/comparison.html"}  # where what was planted could stand


def preparations(wanted: Sequence[tuple[str, int]], shared: Path) -> list[Callable[[], str]]:
    """Train the runs that these trials spoil. Each gives what went wrong."""
    needed = {KINDS[kind][0][number].base for kind, number in wanted if kind in KINDS}
    return [partial(_train_base, name, shared / "bases" / name) for name in sorted(needed)]


def _train_base(name: str, folder: Path) -> str:
    folder.mkdir(parents=True)
    preset, settings = BASES[name]
    ended = run(arguments_of(preset, with_files(settings, folder.parents[1])), folder)
    if ended.code == 0:
        config = read_config(folder / "run")
        config["loop"]["total_steps"] *= 2  # something is left to do
        write_config(folder / "run", config)
        (folder / "run" / "final").unlink()
    return "" if ended.code == 0 else ended.line


def judge(trial: Trial) -> Result:
    """Spoil a fresh copy for every verb, and see."""
    hostile = KINDS[trial.kind][0][trial.number]
    result = Result(trial.kind, trial.number, trial.command, hostile.name, survived=True)
    for verb in (*hostile.verbs, "runs", "compare"):  # which list and read whatever it is
        sandbox = Sandbox(trial.folder / verb)
        sandbox.make()
        shutil.copytree(trial.shared / "bases" / hostile.base / "run", sandbox.run, symlinks=True)
        hostile.spoil(sandbox, trial.random)
        ended = sandbox.judge(result, _arguments(verb, hostile))
        if ended.code == 0 and verb in hostile.refused:
            result.problems.append(f"it succeeds, and must not: {ended.line} {ended.output[-200:]!r}")
        if ended.code != 0 and verb in hostile.accepted:
            result.problems.append(f"it is refused, and nothing is wrong: {ended.line}")
        if verb in _PAGES and hostile.planted:
            _look_for_planted(result, sandbox.here / _PAGES[verb], hostile, ended)
        _make_readable(trial.folder)
    result.survived = not result.problems
    return result


def _arguments(verb: str, hostile: Hostile) -> list[str]:
    more = {
        "eval": ["--episodes", "2"],
        "resume": ["--total-steps", "96"] if hostile.more_steps else [],
        "export": ["home/policy.onnx"],
        "compare": ["--page", "home/comparison.html"],
        "play": ["--seconds", "0.5", "--port", "18080"],
    }
    return [verb, "run", *more.get(verb, [])]


def _look_for_planted(result: Result, page: Path, hostile: Hostile, ended: Ended) -> None:
    if page.is_file() and hostile.planted in page.read_text(errors="replace"):
        result.problems.append(f"what was planted stands in {page.name}: {ended.line}")


def _make_readable(folder: Path) -> None:
    """For whoever removes it."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o755)


def _nothing(sandbox: Sandbox, random: Random) -> None:
    """Leave it as it is."""


def _unspoilt() -> list[Hostile]:
    """What a friend sends works, without a word of trust: otherwise refusing everything would pass."""
    return [Hostile(f"nothing, {base}", _nothing, VERBS, accepted=VERBS, base=base) for base in BASES]


KINDS: dict[str, tuple[list[Hostile], tuple[int, ...]]] = {
    # (all of them, the numbers of those in the short form)
    "hostile code": (hostile_code(), (3,)),
    "hostile configuration": (hostile_configurations(), (54,)),
    "hostile links": (hostile_links(), (15,)),
    "hostile checkpoint": (hostile_checkpoints(), (0,)),
    "hostile pages": (hostile_pages(), (0,)),
    "hostile simulation": (hostile_simulations(), (0,)),
    "unspoilt run": (_unspoilt(), (0,)),
}
