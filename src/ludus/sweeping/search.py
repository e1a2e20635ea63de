"""The search: which trial trains now, and to which rung. One process drives it; a trial's runs are processes."""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ludus.config import TrainConfig
from ludus.errors import ConfigError
from ludus.saved_run import run_folder, trusted_config
from ludus.seed_processes import Pool, Seed
from ludus.sweeping.halving import expected_steps, next_to_promote, ranked
from ludus.sweeping.plan import SavedSweep
from ludus.sweeping.space import values_in
from ludus.sweeping.suggesting import suggest
from ludus.sweeping.trials import Trial, create_trial, look_at, read_trials, usual_metric

_MOST_TRIES = 2  # of a run that was killed by a signal
_FAILED_FIRST = 5  # trials in a row from the first on: then something is wrong with all of them
_CONFIRM_MARGIN = 1.2  # times the time that the confirmation should take is kept free for it


@dataclass
class Clock:
    """When the search must end so that the confirmation can follow; and how fast runs are."""

    until: float = math.inf  # of time.monotonic
    seconds: float = 0.0  # of all processes that have ended
    steps: int = 0  # trained by them

    def count(self, seed: Seed, before: int) -> None:
        self.seconds += seed.seconds
        self.steps += max(0, seed.step - before)

    def seconds_for(self, steps: int) -> float:
        """Of one run, start included; 0 where that is not known yet."""
        return steps * self.seconds / self.steps if self.steps else 0.0


@dataclass
class Search:
    """Trials as they train. `tell` is called when one of them has come to its rung, or failed."""

    sweep: SavedSweep
    pool: Pool
    tell: Callable[[Trial], None]
    trust: bool = False
    clock: Clock = field(default_factory=Clock)
    trials: list[Trial] = field(default_factory=list)
    metric: str = ""
    out_of_time: bool = False
    exhausted: bool = False  # all values that there are were tried
    _seeds: dict[int, list[Seed]] = field(default_factory=dict)  # of the trials that train, by their number
    _before: dict[Path, int] = field(default_factory=dict)  # steps of a run when its process began

    def load(self) -> None:
        """What there is of the sweep. A trial that was on its way when a kill came goes on."""
        self.trials = read_trials(self.sweep)
        self.metric = self.sweep.plan.metric or usual_metric(self.trials)
        for trial in self.trials:
            self._look(trial)

    @property
    def sign(self) -> int:
        return 1 if self.sweep.plan.higher_is_better(self.metric) else -1

    @property
    def best(self) -> list[Trial]:
        return [self.trials[found.number] for found in ranked([t.standing(self.sign) for t in self.trials])]

    @property
    def complete(self) -> bool:
        """Whether every trial has begun and none goes on."""
        return (
            len(self.trials) >= self.sweep.plan.trials
            and all(t.settled for t in self.trials)
            and (
                next_to_promote(self._standings(), self.sweep.plan.rungs, self.sweep.plan.eta, closing=True)
                is None
            )
        )

    def active(self) -> list[tuple[Trial, list[Seed]]]:
        return [(self.trials[number], seeds) for number, seeds in self._seeds.items()]

    # The loop -------------------------------------------------------------------------------------
    def refill(self) -> None:
        """Note what has ended, and hand the pool what is to be trained next, one trial at a time."""
        for trial, seeds in self.active():
            self._settle(trial, seeds)
        self.pool.seeds = [seed for seeds in self._seeds.values() for seed in seeds]
        if self._is_time_up() and not self.pool.interrupted:
            self.out_of_time = True
            self.pool.interrupt()
        while not self.pool.interrupted and not self.pool.waiting and len(self.pool.running) < self.pool.at_once:
            following = self._next()
            if following is None:
                break
            self._train(following)

    def _next(self) -> Trial | None:
        """A trial that a kill has interrupted, one that is promoted, or a new one."""
        if unsettled := [t for t in self.trials if not t.settled and t.number not in self._seeds]:
            return unsettled[0]
        plan = self.sweep.plan
        closing = not self._more_to_begin() and not self._seeds
        number = next_to_promote(self._standings(), plan.rungs, plan.eta, closing)
        if number is not None:
            trial = self.trials[number]
            trial.target += 1
            trial.save()
            return trial
        while self._more_to_begin():
            new = self._new()
            if new is not None and not new.failed:
                return new
        return None

    def _more_to_begin(self) -> bool:
        return len(self.trials) < self.sweep.plan.trials and not self.exhausted

    def _standings(self) -> list[Any]:
        return [trial.standing(self.sign) for trial in self.trials]

    def _new(self) -> Trial | None:
        """The first has the preset's own values, where the ranges hold them. None where all values were tried."""
        sweep, number = self.sweep, len(self.trials)
        own = values_in(sweep.base, sweep.space)
        values: dict[str, Any] | None = own
        if number or not all(parameter.holds(own[name]) for name, parameter in sweep.space.items()):
            known = [trial.known(self.sign, sweep.plan.rungs) for trial in self.trials]
            values = suggest(sweep.space, known, sweep.plan.sampler, sweep.plan.sampler_seed)
        if values is None:
            self.exhausted = True
            return None
        trial = create_trial(sweep, number, values)
        self.trials.append(trial)
        if trial.failed:
            self._tell(trial)
        return trial

    def _train(self, trial: Trial) -> None:
        """Hand its runs to the pool, each to the rung that the trial trains for."""
        steps = self.sweep.steps
        stop_at = 0 if trial.target == len(steps) - 1 else steps[trial.target]
        seeds = []
        for seed_number, run in zip(self.sweep.plan.seeds, trial.runs, strict=True):
            trusted_config(run_folder(run), self.trust)
            seed = Seed(seed_number, run, options=["--trust"], stop_at=stop_at)
            seed.read_rows()
            self._before[run] = seed.step
            seeds.append(seed)
        self._seeds[trial.number] = seeds
        self.pool.seeds += seeds

    def _settle(self, trial: Trial, seeds: list[Seed]) -> None:
        """Once none of its runs trains any more; or one of them has failed, which stops the others."""
        for seed in seeds:
            if seed.state == "failed" and seed.killed and seed.tries < _MOST_TRIES and not self.pool.interrupted:
                seed.state = "waiting"
        broken = next((seed for seed in seeds if seed.state == "failed"), None)
        if broken is not None and not (broken.killed and self.pool.interrupted):
            trial.failed = trial.failed or f"seed {broken.number}: {broken.why}"
            for seed in seeds:
                if seed.state == "training" and seed.process is not None:
                    seed.process.send_signal(signal.SIGTERM)
                elif seed.state == "waiting":
                    seed.state = "stopped"
        if any(seed.state in ("training", "waiting") for seed in seeds) and not (
            self.pool.interrupted and not any(seed.state == "training" for seed in seeds)
        ):
            return
        del self._seeds[trial.number]
        for seed in seeds:
            self.clock.count(seed, self._before.pop(seed.folder))
        self._look(trial)
        if trial.failed:
            trial.save()
        if trial.settled:
            self._tell(trial)

    def _look(self, trial: Trial) -> None:
        if trial.failed and not trial.runs:
            return
        if not self.metric:
            self.metric = usual_metric([trial])
        failed = trial.failed
        look_at(trial, self.sweep, self.metric or "eval/mean_reward")
        trial.failed = failed or trial.failed

    def _tell(self, trial: Trial) -> None:
        self.tell(trial)
        if len(self.trials) >= _FAILED_FIRST and all(trial.failed for trial in self.trials):
            raise ConfigError(
                f"The first {len(self.trials)} trials have all failed; the last: {self.trials[-1].failed}. What "
                f"they printed is in {self.trials[-1].folder}."
            )

    # Time -----------------------------------------------------------------------------------------
    def _is_time_up(self) -> bool:
        return time.monotonic() + _CONFIRM_MARGIN * self.confirm_seconds() >= self.clock.until

    def confirm_seconds(self) -> float:
        """How long the confirmation will take, by the speed of the trials."""
        plan = self.sweep.plan
        runs = (plan.confirm + 1) * plan.confirm_seeds if plan.confirm else 0
        clock = Clock(seconds=self.clock.seconds, steps=self.clock.steps)
        for seeds in self._seeds.values():
            for seed in seeds:
                clock.count(seed, self._before[seed.folder])
        waves = math.ceil(runs / self.pool.at_once)
        return waves * clock.seconds_for(self.sweep.base.loop.total_steps)

    def planned_steps(self) -> int:
        """Of all trials, about."""
        plan = self.sweep.plan
        return len(plan.seeds) * expected_steps(plan.trials, self.sweep.steps, plan.eta)


def check_config(sweep: SavedSweep) -> TrainConfig:
    """What the preset's own values would train, checked before anything is written."""
    config = sweep.trial_config({})
    config.check()
    return config
