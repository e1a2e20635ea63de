"""Optuna's part: which values to try next, and which settings matter.

A study is made in memory of what the folders of the trials tell, for one question, and thrown away. So nothing
but the folders has to survive, and the same folders give the same answer.
"""

import contextlib
import importlib.util
import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Any, Literal

from ludus.envs.vec import derive_seed
from ludus.errors import ConfigError
from ludus.sweeping.space import Parameter

if TYPE_CHECKING:
    import optuna

Sampler = Literal["tpe", "random"]
SAMPLERS: tuple[Sampler, ...] = ("tpe", "random")
_ATTEMPTS = 10  # to find values that were not tried
_MOST_LISTED = 100_000  # choices of values that are looked through for one
_BEST = 0.25  # share of the trials that count as the best
_MOST_GOOD = 25  # of them, as TPE has it
_FEWEST_FOR_IMPORTANCE = 8  # of fewer trials nothing can be told


@dataclass(frozen=True)
class Known:
    """What is known of a trial; without scores it runs, or has failed."""

    values: Mapping[str, Any]
    scores: Sequence[float]  # one a rung; higher is better
    complete: bool = False  # trained to the last rung
    failed: bool = False


def require_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError("A sweep needs Optuna, which is missing: `pip install 'ludus[sweep]'`.")


def suggest(
    space: Mapping[str, Parameter], known: Sequence[Known], sampler: Sampler, seed: int
) -> dict[str, Any] | None:
    """Values for the next trial, which is the one after those that are known; None where all were tried.

    With the same seeds the same values would give the same result, so none are tried twice.
    """
    tried = [dict(trial.values) for trial in known]
    for attempt in range(_ATTEMPTS):
        values = _ask(space, known, sampler, derive_seed(seed, len(known), attempt) % 2**32)
        if values not in tried:
            return values
    left = [values for values in islice(_all_values(space), _MOST_LISTED) if values not in tried]
    return random.Random(derive_seed(seed, len(known))).choice(left) if left else None


def _all_values(space: Mapping[str, Parameter]) -> Iterator[dict[str, Any]]:
    """Every choice of values, of a space without ranges of real numbers."""
    sides = [
        p.choices if p.kind == "choice" else range(int(p.low), int(p.high) + 1) if p.whole else ()
        for p in space.values()
    ]
    return (dict(zip(space, values, strict=True)) for values in product(*sides))


def _ask(
    space: Mapping[str, Parameter], known: Sequence[Known], sampler: Sampler, own_seed: int
) -> dict[str, Any]:
    with _quiet_optuna() as optuna:
        asked = (
            optuna.samplers.TPESampler(seed=own_seed, gamma=_count_best, multivariate=True, constant_liar=True)
            if sampler == "tpe"
            else optuna.samplers.RandomSampler(seed=own_seed)
        )
        study = optuna.create_study(direction="maximize", sampler=asked)
        distributions = {name: _distribution(parameter) for name, parameter in space.items()}
        study.add_trials([_frozen(space, distributions, trial) for trial in known])
        found = study.ask(distributions).params
    return {name: _value(parameter, found[name]) for name, parameter in space.items()}


def importances(space: Mapping[str, Parameter], known: Sequence[Known]) -> dict[str, float]:
    """The share of each setting in what makes the best trials differ from the others (PED-ANOVA).

    By the scores at the first rung, the one that all trials have come to. Empty where trials are too few.
    """
    told = [trial for trial in known if trial.scores]
    if len(told) < _FEWEST_FOR_IMPORTANCE or len(space) < 2 or len({trial.scores[0] for trial in told}) < 2:
        return {}
    with _quiet_optuna() as optuna:
        study = optuna.create_study(direction="minimize")  # which this evaluator assumes
        distributions = {name: _distribution(parameter) for name, parameter in space.items()}
        for trial in told:
            places = {name: _index(parameter, trial.values[name]) for name, parameter in space.items()}
            study.add_trial(
                optuna.trial.create_trial(params=places, distributions=distributions, value=-trial.scores[0])
            )
        try:
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=_BEST)
        except TypeError:  # of Optuna 4
            evaluator = optuna.importance.PedAnovaImportanceEvaluator(baseline_quantile=_BEST)
        try:
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (ValueError, RuntimeError):  # all of them have the same values
            return {}
    return {name: float(share) for name, share in found.items()}


@contextlib.contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """The module; what it says of trials and of experimental parts is nothing to a user."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def _count_best(trials: int) -> int:
    """How many trials TPE learns from as good ones.

    Its own tenth is two or three of 24, from which it learns little: where a third of a range is good, it tried 6
    of the last 12 trials there, with a quarter 10, by luck 4 (mean of 16 simulated searches).
    """
    return max(1, min(math.ceil(_BEST * trials), _MOST_GOOD))


def _distribution(parameter: Parameter) -> "optuna.distributions.BaseDistribution":
    """Choices are places in their list: a value may be of a kind that Optuna does not know."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.kind == "choice":
        count = len(parameter.choices)
        return IntDistribution(0, count - 1) if parameter.ordered else CategoricalDistribution([*range(count)])
    if parameter.whole:
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.kind == "log")
    return FloatDistribution(parameter.low, parameter.high, log=parameter.kind == "log")


def _index(parameter: Parameter, value: Any) -> Any:
    return parameter.choices.index(value) if parameter.kind == "choice" else value


def _value(parameter: Parameter, found: Any) -> Any:
    return parameter.choices[found] if parameter.kind == "choice" else parameter.rounded(found)


def _frozen(space: Mapping[str, Parameter], distributions: Mapping[str, Any], trial: Known) -> Any:
    """As Optuna keeps it. A trial that was not trained to the end is pruned, which TPE ranks below the others;
    one that failed is pruned before its first score: below all."""
    from optuna.trial import TrialState, create_trial

    places = {name: _index(parameter, trial.values[name]) for name, parameter in space.items()}
    told = {rung: float(score) for rung, score in enumerate(trial.scores)}
    if trial.complete:
        state, value = TrialState.COMPLETE, told[len(told) - 1]
    else:
        state, value = TrialState.PRUNED if trial.failed or told else TrialState.RUNNING, None
    return create_trial(
        state=state, value=value, params=places, distributions=dict(distributions),
        intermediate_values={} if trial.failed else told,
    )  # fmt: skip
