"""What runs there are: `ludus runs` and `ludus.list_runs`.

Of every run only small files are read, and torch is not imported: a thousand runs are listed at once. A folder may
hold strangers' runs, so whatever lies in one, it is listed or told to be damaged.
"""

import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from ludus.errors import MALFORMED, ConfigError, LudusError, did_you_mean, plain_text
from ludus.files import open_regular, parse_json, read_json
from ludus.show.jsonl import MOST_STEPS, read_metrics
from ludus.show.run_state import quality
from ludus.training.run_facts import FACTS, labels_in, read_facts
from ludus.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    EXPERIMENT,
    FINAL,
    LOCK,
    SWEEP,
    TRIALS,
    checkpoint_folders,
    is_sweep,
    pointed_by,
    refuse_strange_files,
)
from ludus.training.run_lock import is_held
from ludus.training.standing import Score, Standing, read_standing, score

State = Literal["running", "finished", "stopped", "failed", "damaged"]
STATES: tuple[State, ...] = get_args(State)
SORTS = ("newest", "best", "final", "steps", "name")
TIME = "%Y-%m-%d %H:%M:%S"  # as run.json writes it
_UNKNOWN_START = datetime(1970, 1, 1)
_SEED_FOLDER = re.compile(r"seed_[0-9]+")
_SPAN = re.compile(r"([0-9.]{1,9}) ?([smhdw])")
_SPANS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DEEPEST, _MOST_FOLDERS = 12, 100_000  # that are searched
_TAIL_BYTES = 100_000  # of metrics.jsonl, with at least one row
_MANIFEST_BYTES = 1_000_000


@dataclass(frozen=True)
class RunSummary:
    """A run at a glance; or an experiment, a folder of runs with different seeds, with the means of these.

    Or a sweep: with all steps that were trained, the best of its trials and the best that was confirmed.
    """

    path: Path
    name: str
    preset: str
    algo: str
    seeds: tuple[int, ...]
    state: State
    problem: str  # why it failed, or what is damaged
    step: int
    planned: int  # 0: not known
    unit: str
    best: Score | None  # the best evaluation while training
    final: Score | None  # the best policy after the training, on new starts
    started: datetime
    tags: tuple[str, ...]
    note: str
    runs: tuple["RunSummary", ...] = ()  # of an experiment or a sweep
    trials: int = 0  # of a sweep

    def as_json(self) -> dict[str, Any]:
        """The same names whatever it is."""
        started, runs = self.started.strftime(TIME), [run.as_json() for run in self.runs]
        return asdict(self) | {"path": str(self.path), "started": started, "runs": runs}


def list_runs(
    folder: str | Path = "runs",
    tag: str | Sequence[str] = (),
    state: str | Sequence[str] = (),
    preset: str = "",
    best_above: float | None = None,
    since: str | datetime | timedelta | None = None,
    sort: str = "newest",
) -> list[RunSummary]:
    """The runs in a folder and its sub-folders, the newest first; an experiment or a sweep as one.

    `tag`: that have all of these. `state`: that are one of these: "running", "finished", "stopped", "failed",
    "damaged". `preset`: whose preset has this in its name. `best_above`: whose best success rate is more, or mean
    reward where there is no success rate. `since`: that began after it, "2026-11-16", or at most so long ago,
    "36h", "7d". `sort`: by "newest", "best", "final", "steps" or "name".
    """
    tags, states = _words(tag), _words(state)
    for word in states:
        _refuse_other(word, STATES, "state")
    _refuse_other(sort, SORTS, "order")
    begun = None if since is None or since == "" else _moment(since)
    runs = [_summary(found) for found in find_runs(Path(folder))]
    kept = [
        run
        for run in runs
        if set(tags) <= set(run.tags)
        and (not states or run.state in states)
        and preset.lower() in run.preset.lower()
        and (best_above is None or (run.best is not None and run.best.value > best_above))
        and (begun is None or run.started >= begun)
    ]
    return sorted(kept, key=_order(sort))


def _words(given: str | Sequence[str]) -> list[str]:
    return [word.strip() for word in given.split(",") if word.strip()] if isinstance(given, str) else list(given)


def _refuse_other(word: str, known: Sequence[str], what: str) -> None:
    if word not in known:
        raise ConfigError(
            f"There is no {what} {word!r}.{did_you_mean(word, known)} There are: {', '.join(known)}."
        )


def _moment(since: str | datetime | timedelta) -> datetime:
    try:
        if isinstance(since, datetime):
            return _local(since)
        if isinstance(since, timedelta):
            return datetime.now() - since
        if span := _SPAN.fullmatch(since):
            return datetime.now() - timedelta(**{_SPANS[span[2]]: float(span[1])})
        return _local(datetime.fromisoformat(since))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{since!r} is no time: say 2026-11-16, '2026-11-16 14:30', 45m, 36h, 7d or 2w."
        ) from None


def _local(moment: datetime) -> datetime:
    """As run.json tells times: those of this machine, without a zone."""
    return moment if moment.tzinfo is None else moment.astimezone().replace(tzinfo=None)


def _order(sort: str) -> Callable[[RunSummary], Any]:
    def by_score(name: str) -> Callable[[RunSummary], Any]:
        def key(run: RunSummary) -> Any:
            found: Score | None = getattr(run, name)
            # Success rates cannot be compared with rewards: the one kind stands before the other.
            return (2, 0.0) if found is None else (found.judged != "success_rate", -found.value)

        return key

    keys: dict[str, Callable[[RunSummary], Any]] = {
        "newest": lambda run: (-(run.started - datetime(1970, 1, 1)).total_seconds(), str(run.path)),
        "best": by_score("best"),
        "final": by_score("final"),
        "steps": lambda run: -run.step,
        "name": lambda run: str(run.path),
    }
    return keys[sort]


# Finding ------------------------------------------------------------------------------------------
class Found(NamedTuple):
    """A run, or the folder of several: an experiment, a sweep."""

    folder: Path
    runs: list[Path]
    is_sweep: bool = False


def find_runs(folder: Path, sweeps: bool = True) -> Iterator[Found]:
    """Every run in a folder, alone; those of an experiment or of a sweep together. Links are not followed.

    Of a folder that is a sweep itself every trial is told. `sweeps`: whether there may be others in it. In a sweep
    there are none, however a stranger has nested them.
    """
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}. 'ludus train' makes runs, in runs/.")
    searched, waiting = 0, [(folder, 0)]
    while waiting:
        place, depth = waiting.pop()
        searched += 1
        if searched > _MOST_FOLDERS:
            warnings.warn(f"{folder} has very many folders: not all were searched.", stacklevel=2)
            return
        if _is_run(place):
            yield Found(place, [place])
            continue
        if depth and sweeps and is_sweep(place):
            yield Found(place, [run for found in find_runs(place, sweeps=False) for run in found.runs], True)
            continue
        inner = _folders_in(place) if depth < _DEEPEST else []
        if seeds := [found for found in inner if _SEED_FOLDER.fullmatch(found.name) and _is_run(found)]:
            yield Found(place, sorted(seeds, key=lambda found: int(found.name.removeprefix("seed_"))))
        waiting += [(found, depth + 1) for found in inner if found not in seeds]


def _is_run(folder: Path) -> bool:
    """Others than Ludus have a config.yaml, too."""
    names = (FACTS, CHECKPOINTS, LOCK)
    return os.path.lexists(folder / CONFIG) and any(os.path.lexists(folder / name) for name in names)


def _folders_in(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            named = [e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
    except OSError as error:
        warnings.warn(f"{place} cannot be read: {error.strerror}.", stacklevel=2)
        return []
    return [place / name for name in named]


# One run ------------------------------------------------------------------------------------------
def _summary(found: Found) -> RunSummary:
    if found.is_sweep:
        return _sweep(found.folder)
    runs = [_run_summary(run) for run in found.runs]
    return runs[0] if found.runs == [found.folder] else _experiment(found.folder, runs)


def _run_summary(folder: Path) -> RunSummary:
    facts, standing, problem = dict[str, Any](), Standing(), ""
    try:
        refuse_strange_files(folder)
        facts = read_facts(folder)
        standing = read_standing(folder) or _standing_of_before(folder)
        state, step = _state(folder, facts, standing)
    except (LudusError, OSError, *MALFORMED) as error:
        state, step = "running" if is_held(folder) else "damaged", standing.step
        problem = _told(error, folder)
    labels, seed = labels_in(facts), facts.get("seed")
    return RunSummary(
        folder,
        labels.name or plain_text(folder.resolve().name, 100),
        plain_text(str(facts.get("preset", "")), 100),
        standing.algo,
        (seed,) if isinstance(seed, int) else (),
        state,
        problem or (standing.failed if state == "failed" else ""),
        step,
        standing.planned,
        standing.unit,
        standing.best,
        standing.final,
        _started(folder, facts),
        labels.tags,
        labels.note,
    )


def _told(error: Exception, folder: Path) -> str:
    """What is wrong, without the path that every line of the list begins with."""
    if isinstance(error, OSError):
        words = f"{error.filename}: {error.strerror}"
    else:
        words = (
            str(error) if isinstance(error, LudusError) else f"It cannot be read: {type(error).__name__}: {error}"
        )
    return plain_text(words.replace(f"{folder}{os.sep}", ""), 500)


def _state(folder: Path, facts: dict[str, Any], standing: Standing) -> tuple[State, int]:
    """The state, and how many steps are done: in a run that is trained more than are saved."""
    if is_held(folder):
        return "running", max(standing.step, _newest_step(folder / "metrics.jsonl"))
    if not facts:
        raise LudusError(f"{FACTS} is missing or damaged.")
    made = checkpoint_folders(folder / CHECKPOINTS)
    step = int(made[-1].name.removeprefix("step_")) if made else 0
    if made:
        _refuse_cut_files(made[-1])
    if pointed_by(folder / FINAL) is not None:
        return "finished", step
    return "failed" if standing.failed else "stopped", step


def _refuse_cut_files(checkpoint: Path) -> None:
    """By their sizes; what else may be wrong with a checkpoint is found when it is used."""
    manifest = read_json(checkpoint / "manifest.json", _MANIFEST_BYTES)
    files = manifest.get("files") if isinstance(manifest, dict) else None
    for name, told in files.items() if isinstance(files, dict) else ():
        size = os.lstat(checkpoint / os.path.basename(name)).st_size
        if not isinstance(told, dict) or size != told.get("bytes"):
            raise LudusError(f"{checkpoint.name}/{name} has not the size that it was written with.")


def _newest_step(metrics: Path) -> int:
    """Of the last row that is whole."""
    try:
        with open_regular(metrics) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            rows = file.read(_TAIL_BYTES).rpartition(b"\n")[0]
        step = parse_json(rows[rows.rfind(b"\n") + 1 :])["step"]
    except (OSError, LudusError, ValueError, TypeError, KeyError):
        return 0
    return step if isinstance(step, int) and 0 <= step < 2**63 else 0


def _started(folder: Path, facts: dict[str, Any]) -> datetime:
    try:
        return datetime.strptime(facts["started"], TIME)
    except (KeyError, TypeError, ValueError):
        pass
    try:
        return datetime.fromtimestamp(os.lstat(folder / CONFIG).st_mtime).replace(microsecond=0)
    except (OSError, ValueError, OverflowError):  # gone by now, or of a year that no calendar has
        return _UNKNOWN_START


def _standing_of_before(folder: Path) -> Standing:
    """Of a run without a standing.json, from its settings and its metrics. That takes longer."""
    from ludus.config_files import read_values

    values = read_values(folder / CONFIG)
    loop = values.get("loop")
    total = loop.get("total_steps") if isinstance(loop, dict) else 0
    rows = read_metrics(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    judged = [row for row in rows if "eval/mean_reward" in row]
    best = max(judged, key=quality, default=None)
    names = ("success_rate", "mean_reward")
    last = {name: rows[-1].get(f"final/{name}", math.nan) for name in names} if rows else {}
    best_step = 0 if best is None else int(best["step"])
    episodes = rows[-1].get("final/episodes", 0) if rows else 0
    return Standing(
        plain_text(str(values.get("algo", "")), 100),
        int(rows[-1]["step"]) if rows else 0,
        total if isinstance(total, int) and 0 <= total <= MOST_STEPS else 0,
        best=None if best is None else score(dict(zip(names, quality(best), strict=True)), best_step),
        final=score(last, best_step, int(episodes) if math.isfinite(episodes) else 0),
    )


# Several seeds ------------------------------------------------------------------------------------
_WORST_FIRST: tuple[State, ...] = ("running", "damaged", "failed", "stopped", "finished")


def _experiment(folder: Path, runs: list[RunSummary]) -> RunSummary:
    """Numbers are means; its state is that of the run that is furthest from finished, or running."""
    first, own_name = runs[0], labels_in(read_facts(folder, EXPERIMENT)).name
    troubles = [f"{run.path.name}: {run.problem}" for run in runs if run.problem]
    return RunSummary(
        folder,
        own_name or plain_text(folder.resolve().name, 100),
        _common([run.preset for run in runs]),
        _common([run.algo for run in runs]),
        tuple(seed for run in runs for seed in run.seeds),
        min((run.state for run in runs), key=_WORST_FIRST.index),
        troubles[0] if troubles else "",
        sum(run.step for run in runs) // len(runs),
        sum(run.planned for run in runs) // len(runs),
        first.unit,
        _mean([run.best for run in runs]),
        _mean([run.final for run in runs]),
        min(run.started for run in runs),
        tuple(dict.fromkeys(tag for run in runs for tag in run.tags)),
        next((run.note for run in runs if run.note), ""),
        tuple(runs),
    )


def _sweep(folder: Path) -> RunSummary:
    plan = read_facts(folder, SWEEP)
    kept = plan.get("facts")
    facts: dict[str, Any] = kept if isinstance(kept, dict) else {}
    parts = [_summary(found) for found in find_runs(folder, sweeps=False)]
    trials = [part for part in parts if part.path.parent.name == TRIALS]
    confirmed = [part for part in parts if part not in trials]
    state: State = "running" if is_held(folder) else "finished" if facts.get("finished") is True else "stopped"
    return RunSummary(
        folder,
        plain_text(folder.resolve().name, 100),
        plain_text(str(plan.get("preset", "")), 100),
        _common([part.algo for part in parts] or [""]),
        (),
        state,
        "",
        sum(run.step for part in parts for run in part.runs),
        0,
        parts[0].unit if parts else "steps",
        _best([trial.best for trial in trials]),
        _best([part.final for part in confirmed]),
        _started(folder, facts),
        (),
        "",
        tuple(parts),
        len(trials),
    )


def _common(words: list[str]) -> str:
    return words[0] if len(set(words)) == 1 else "several"


def _best(scores: Sequence[Score | None]) -> Score | None:
    return max((found for found in scores if found is not None), key=lambda found: found.value, default=None)


def _mean(scores: Sequence[Score | None]) -> Score | None:
    known = [found for found in scores if found is not None]
    alike = [found for found in known if found.judged == known[0].judged]
    if not alike:
        return None
    mean = sum(found.value for found in alike) / len(alike)
    return Score(alike[0].judged, mean, max(f.step for f in alike), sum(f.episodes for f in alike))
