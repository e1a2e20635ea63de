"""`ludus.sweep`, and what it returns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.comparing.face import Comparison
from ludus.config import TrainConfig
from ludus.errors import ConfigError
from ludus.ranges import read_seeds
from ludus.runs import whole_config
from ludus.seed_processes import Pool
from ludus.show.sweep import verdict_lines
from ludus.sweeping.confirming import confirmation
from ludus.sweeping.driving import Means, open_sweep, resume_sweep, start_sweep
from ludus.sweeping.numbers import command_for, importances_of
from ludus.sweeping.plan import PAGE, plan_of
from ludus.sweeping.search import Search
from ludus.training.run_folder import is_sweep


@dataclass(frozen=True)
class SweepTrial:
    """One choice of values, and what came of it."""

    number: int
    path: Path  # an experiment: a run of every seed
    parameters: Mapping[str, Any]
    scores: Sequence[float]  # at every rung that it came to
    failed: str  # why; empty where it has not
    command: str  # that trains it alone

    @property
    def score(self) -> float | None:
        """At its highest rung."""
        return self.scores[-1] if self.scores else None


class Sweep:
    """A search for better settings: `ludus.sweep` returns one, `ludus.Sweep("runs/search")` opens one.

    It goes wherever a path does. `trust` as in `ludus.resume`.
    """

    def __init__(self, folder: str | Path, trust: bool = False) -> None:
        self.path, self._trust = Path(folder), trust
        if not is_sweep(self.path):
            raise ConfigError(f"{folder} is no sweep.")
        self._load()

    def _load(self) -> None:
        self._sweep = open_sweep(self.path, self._trust)
        self._search = Search(self._sweep, Pool([], 1), lambda trial: None)
        self._search.load()

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Sweep({str(self.path)!r})"

    @property
    def trials(self) -> list[SweepTrial]:
        """In the order in which they began."""
        return [self._trial(number) for number in range(len(self._search.trials))]

    @property
    def ranking(self) -> list[SweepTrial]:
        """The best first: those of a higher rung before others. Failed ones are not in it."""
        return [self._trial(trial.number) for trial in self._search.best]

    @property
    def best(self) -> SweepTrial:
        if not self._search.best:
            raise ConfigError(f"{self.path}: no trial has a score yet.")
        return self.ranking[0]

    @property
    def rung_steps(self) -> list[int]:
        """Where trials stop, or go on if they are good."""
        return self._sweep.steps

    @property
    def importances(self) -> dict[str, float]:
        """The share of every setting in what makes trials good; empty where they are too few."""
        return importances_of(self._sweep, self._search)

    @property
    def confirmation(self) -> Comparison | None:
        """The best trials against the preset's own settings, its first group, on fresh seeds."""
        return confirmation(self._sweep, self._search.metric)

    @property
    def verdict(self) -> str:
        """What the confirmation says; empty where there is none yet."""
        found = self.confirmation
        return "" if found is None else " ".join(verdict_lines(found))

    @property
    def page(self) -> Path:
        return self.path / PAGE

    def resume(
        self, trials: int = 0, hours: float = 0.0, jobs: int = 0, confirm_seeds: int = 0, quiet: bool = False
    ) -> "Sweep":
        """Go on where it was, perhaps with more trials or more seeds for the confirmation."""
        means = Means(jobs, hours, trust=self._trust, quiet=quiet)
        resume_sweep(self.path, means, trials, confirm_seeds=confirm_seeds)
        self._load()
        return self

    def _trial(self, number: int) -> SweepTrial:
        trial = self._search.trials[number]
        command = command_for(self._sweep, trial.values)
        return SweepTrial(number, trial.folder, trial.values, tuple(trial.scores), trial.failed, command)


def sweep(
    environment: str,
    params: Mapping[str, Any],
    trials: int = 0,
    seeds: int | str | Sequence[int] = 1,
    run_dir: str | Path | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    metric: str = "",
    direction: str = "",
    sampler: str = "tpe",
    sampler_seed: int = 0,
    rungs: int = 3,
    eta: int = 3,
    confirm: int = 3,
    confirm_seeds: int = 3,
    hours: float = 0.0,
    jobs: int = 0,
    launcher: str = "",
    quiet: bool = False,
    **settings: Any,
) -> Sweep:
    """Search for better settings: `ludus.sweep("gym:CartPole-v1", {"ppo.learning_rate": "log(1e-4,1e-2)"})`.

    `params`: "log(1e-4,1e-2)", "uniform(0.95,0.999)", "choice(4,8,16)" or a list of choices, by the name of the
    setting. `trials`: 40; with `hours` alone as many as fit. `seeds`: those of every trial. All others as
    `ludus sweep --help` has them. `settings`, `config` and `overrides` as in `ludus.train`.
    """
    base = whole_config(environment, config, settings | (overrides or {}))
    plan = plan_of(
        base, params, read_seeds(seeds), trials, hours=hours, rungs=rungs, eta=eta, metric=metric,
        direction=direction, sampler=sampler, sampler_seed=sampler_seed, confirm=confirm,
        confirm_seeds=confirm_seeds,
    )  # fmt: skip
    means = Means(jobs, hours, launcher, quiet=quiet)
    return Sweep(start_sweep(environment, plan, run_dir, base, means=means).folder)
