"""A trial: an experiment, a run of every seed, with values of its own. All that is known of it lies there."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.errors import CheckpointError, ConfigError, LudusError, plain_text
from ludus.experiment import create_experiment, seeds_of
from ludus.files import read_json, temporary_beside, write_whole
from ludus.run_end import reached_its_end, stopped_as_asked
from ludus.show.comparison import Curve, end_of
from ludus.show.jsonl import read_metrics
from ludus.sweeping.halving import Standing
from ludus.sweeping.plan import TRIAL, SavedSweep
from ludus.sweeping.space import read_values, values_in
from ludus.sweeping.suggesting import Known
from ludus.training.checkpoint import checkpoints_in, step_of
from ludus.training.run_folder import CHECKPOINTS, EXPERIMENT, TRIALS, refuse_strange_files

USUAL_METRICS = ("eval/success_rate", "eval/mean_reward")
_MOST_BYTES = 100_000
_LONGEST_REASON = 500


@dataclass
class Trial:
    """One choice of values."""

    number: int
    folder: Path
    values: dict[str, Any]
    runs: list[Path]
    target: int = 0  # the rung that it trains for, or has come to
    failed: str = ""  # why
    is_default: bool = False  # its values are those of the preset
    scores: list[float] = field(default_factory=list)  # of every rung that it has come to: as measured
    steps: int = 0  # trained so far, by all seeds

    @property
    def reached(self) -> int:
        """The highest rung whose score is known."""
        return len(self.scores) - 1

    @property
    def score(self) -> float | None:
        return self.scores[-1] if self.scores else None

    @property
    def settled(self) -> bool:
        """Whether it has come to its rung, or failed: nothing of it trains."""
        return bool(self.failed) or self.reached == self.target

    def standing(self, sign: int) -> Standing:
        return Standing(self.number, self.reached, self.target, [sign * s for s in self.scores], bool(self.failed))

    def known(self, sign: int, rungs: int) -> Known:
        scores = [sign * s for s in self.scores]
        return Known(self.values, scores, self.reached == rungs - 1, bool(self.failed))

    def save(self) -> None:
        """What its runs do not tell: where it goes, and that it is given up."""
        write_whole(self.folder / TRIAL, _described(self.number, self.values, self.target, self.failed))


def _described(number: int, values: dict[str, Any], target: int = 0, failed: str = "") -> str:
    return json.dumps({"number": number, "parameters": values, "rung": target, "failed": failed}, indent=1)


# Making and reading -------------------------------------------------------------------------------
def create_trial(sweep: SavedSweep, number: int, values: dict[str, Any]) -> Trial:
    """Its folder, whole or not at all; without runs, and failed, where its values make no sense together."""
    folder = sweep.trial_folder(number)
    try:
        config = sweep.trial_config(values)
        config.check()
    except ConfigError as error:
        aside = temporary_beside(folder)
        aside.mkdir(parents=True)
        write_whole(aside / TRIAL, _described(number, values, failed=str(error)))
        aside.rename(folder)
        return _read_trial(sweep, number, folder)
    also = {TRIAL: _described(number, values)}
    create_experiment(folder, sweep.plan.preset, config, sweep.plan.seeds, also=also)
    return _read_trial(sweep, number, folder)


def read_trials(sweep: SavedSweep) -> list[Trial]:
    """All trials that there are, with what they have come to; one that cannot be read has failed."""
    trials: list[Trial] = []
    while (folder := sweep.trial_folder(len(trials))).is_dir():
        if folder.is_symlink():
            raise ConfigError(f"{folder} is a link. Put what it points to in its place.")
        trials.append(_read_trial(sweep, len(trials), folder))
    beyond = [p.name for p in sorted((sweep.folder / TRIALS).glob("trial_*")) if p.name > folder.name]
    if beyond:
        raise ConfigError(
            f"{folder} is missing, but there is {beyond[0]}. Put it back, or move the later ones away."
        )
    return trials


def _read_trial(sweep: SavedSweep, number: int, folder: Path) -> Trial:
    for name in (TRIAL, EXPERIMENT):
        if (folder / name).is_symlink():
            raise ConfigError(f"{folder / name} is a link. Put what it points to in its place.")
    try:
        told = read_json(folder / TRIAL, _MOST_BYTES)
        values, target, failed = read_values(told["parameters"], sweep.space), told["rung"], told["failed"]
        if type(target) is not int or not 0 <= target < sweep.plan.rungs or not isinstance(failed, str):
            raise ConfigError("its rung is none of the sweep's")
        never_began = failed and not (folder / EXPERIMENT).exists()
        found = {} if never_began else seeds_of(folder)
        if told["number"] != number or (found and [*found] != [*sweep.plan.seeds]):
            raise ConfigError("its number or its seeds are not those of the sweep")
    except (OSError, LudusError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{folder / TRIAL} does not describe a trial of this sweep: {plain_text(str(error), 300)}"
        ) from None
    runs = [*found.values()]
    for run in runs:
        refuse_strange_files(run)
    is_default = values == values_in(sweep.base, sweep.space)
    return Trial(number, folder, values, runs, target, plain_text(failed, _LONGEST_REASON), is_default)


# What came out ------------------------------------------------------------------------------------
def look_at(trial: Trial, sweep: SavedSweep, metric: str) -> None:
    """Read from its runs how many steps it has, and the scores of the rungs that all of them have come to."""
    trial.steps = sum(map(trained_steps, trial.runs))
    for rung in range(len(trial.scores), trial.target + 1):
        last = rung == len(sweep.steps) - 1
        stop = sweep.steps[rung]
        if not all(reached_its_end(run) if last else _came_to(run, stop) for run in trial.runs):
            return
        found = [score_of(run, metric, None if last else stop) for run in trial.runs]
        if any(score is None for score in found):
            trial.failed = f"it has no finite {metric} at step {stop:,}"
            return
        trial.scores.append(math.fsum(score for score in found if score is not None) / len(found))


def _came_to(run: Path, stop: int) -> bool:
    return stopped_as_asked(run, stop) or reached_its_end(run)


def trained_steps(run: Path) -> int:
    made = checkpoints_in(run / CHECKPOINTS)
    return step_of(made[-1]) if made else 0


def score_of(run: Path, metric: str, stop: int | None) -> float | None:
    """The mean of the last evaluations up to where a run stops; a later training does not change it."""
    try:
        rows = read_metrics(run / "metrics.jsonl")
    except LudusError:
        return None
    steps = [row["step"] for row in rows]
    end = (
        max(steps, default=0)
        if stop is None
        else min((s for s in steps if s >= stop), default=max(steps, default=0))
    )
    points = [(row["step"], row[metric]) for row in rows if metric in row and row["step"] <= end]
    curve = Curve([step for step, _ in points], [], [value for _, value in points])
    score = end_of(curve, end)
    return score if score is not None and math.isfinite(score) else None


def usual_metric(trials: list[Trial]) -> str:
    """The success rate where an environment tells it, else the return; empty where nothing was evaluated yet."""
    for trial in trials:
        for run in trial.runs:
            try:
                names = {name for row in read_metrics(run / "metrics.jsonl") for name in row}
            except (CheckpointError, LudusError):
                continue
            if found := next((metric for metric in USUAL_METRICS if metric in names), ""):
                return found
    return ""
