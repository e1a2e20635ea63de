"""A sweep as it is shown: plain numbers and texts of its trials."""

import shlex
from typing import Any

from ludus.setting_names import flag_of
from ludus.show.sweep import ShownParameter, ShownTrial, SweepNumbers
from ludus.sweeping.halving import steps_anew
from ludus.sweeping.plan import MOST_TRIALS, SavedSweep
from ludus.sweeping.search import Search
from ludus.sweeping.space import Parameter, value_text
from ludus.sweeping.suggesting import importances
from ludus.sweeping.trials import Trial


def numbers_of(sweep: SavedSweep, search: Search) -> SweepNumbers:
    """All but what takes its time: importances and the confirmation."""
    plan, trials, best = sweep.plan, search.trials, search.best
    reached = [trial.reached for trial in trials for _ in trial.runs if trial.reached >= 0]
    used = sum(trial.steps for trial in trials if trial.reached >= 0)
    return SweepNumbers(
        title=plan.told,
        folder=str(sweep.folder),
        metric=search.metric,
        higher_is_better=search.sign > 0,
        parameters=[_shown_parameter(parameter) for parameter in sweep.space.values()],
        trials=[shown_trial(trial, sweep) for trial in trials],
        best=[trial.number for trial in best],
        planned=0 if plan.trials == MOST_TRIALS else plan.trials,
        rung_steps=sweep.steps,
        eta=plan.eta,
        seeds=plan.seeds,
        steps_used=used,
        steps_anew=steps_anew(reached, sweep.steps),
        commands={trial.number: command_for(sweep, trial.values) for trial in best},
        default_command=command_for(sweep, {}),
    )


def importances_of(sweep: SavedSweep, search: Search) -> dict[str, float]:
    return importances(sweep.space, [trial.known(search.sign, sweep.plan.rungs) for trial in search.trials])


def shown_trial(trial: Trial, sweep: SavedSweep) -> ShownTrial:
    values = {name: value_text(value) for name, value in trial.values.items()}
    places = {name: sweep.space[name].place(value) for name, value in trial.values.items()}
    return ShownTrial(trial.number, values, places, trial.scores, trial.steps, trial.failed, trial.is_default)


def _shown_parameter(parameter: Parameter) -> ShownParameter:
    values: list[Any] = [*parameter.choices] or _ticks(parameter)
    return ShownParameter(parameter.name, parameter.text, [(parameter.place(v), value_text(v)) for v in values])


def _ticks(parameter: Parameter) -> list[float]:
    """The ends, and powers of ten between those of a logarithmic range."""
    low, high = parameter.low, parameter.high
    ends = [int(low), int(high)] if parameter.whole else [low, high]
    if parameter.kind != "log":
        return [*ends]
    powers = [10.0**power for power in range(-12, 13) if low * 1.5 < 10.0**power < high / 1.5]
    return [ends[0], *([int(p) for p in powers] if parameter.whole else powers), ends[1]]


def command_for(sweep: SavedSweep, values: dict[str, Any]) -> str:
    """The training of a trial, for a shell."""
    words = ["ludus", "train", sweep.plan.preset]
    searched = {flag_of(name) for name in values}
    taken = True
    for flag in sweep.plan.flags:  # what all trials share, but for what is searched
        if flag.startswith("--"):
            taken = flag not in searched
        words += [flag] * taken
    for name, value in values.items():
        words += flag_words(name, value)
    return shlex.join(words)


def flag_words(name: str, value: Any) -> list[str]:
    """A setting as the command line takes it."""
    if isinstance(value, bool):
        section, dot, last = name.rpartition(".")
        return [flag_of(name if value else f"{section}{dot}no_{last}")]
    return [flag_of(name), *value_text(value).split(" ")]
