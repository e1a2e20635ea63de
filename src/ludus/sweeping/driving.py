"""A sweep from its folder to its page: the search, the confirmation, what is shown on the way."""

import math
import os
import shlex
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ludus.config import TrainConfig
from ludus.envs import display_of
from ludus.envs.given import about_given
from ludus.errors import ConfigError, LudusError
from ludus.files import is_temporary, temporary_beside
from ludus.new_runs import new_folder, refuse_taken, write_config
from ludus.placing import Here, Placer
from ludus.presets import find_preset
from ludus.provenance import differences, facts_of
from ludus.runs import whole_config
from ludus.saved_run import run_folder, trusted_config
from ludus.seed_processes import Pool, Seed
from ludus.show.pages import write_page
from ludus.show.sweep import SweepNumbers
from ludus.show.sweep_page import sweep_page
from ludus.show.sweep_view import Progress, RunningLine, SweepView, summary_lines
from ludus.show.text import duration, evaluation_line
from ludus.stages import read_stages
from ludus.sweeping.confirming import chosen_trials, confirmation, runs_to_confirm
from ludus.sweeping.numbers import flag_words, importances_of, numbers_of, shown_trial
from ludus.sweeping.plan import (
    BASE,
    PAGE,
    Plan,
    SavedSweep,
    make_sweep,
    read_plan,
    write_plan,
)
from ludus.sweeping.search import Clock, Search, check_config
from ludus.sweeping.suggesting import require_optuna
from ludus.sweeping.trials import Trial
from ludus.training.run_folder import CONFIRMED, TRIALS
from ludus.training.run_lock import run_lock

_PAGE_EVERY_S = 20.0  # the page is written anew while the sweep runs


@dataclass(frozen=True)
class Means:
    """With what a sweep is run, which changes nothing of what comes out."""

    jobs: int = 0  # processes at once; 0: one a core
    hours: float = 0.0  # until the end of the confirmation, about; 0: as long as it takes
    launcher: str = ""  # the first words of the command that starts every process
    trust: bool = False
    quiet: bool = False
    placer: Placer | None = None  # where processes run, in place of this machine

    def check(self) -> None:
        if self.jobs < 0:
            raise ConfigError(f"--jobs is {self.jobs}; it must be at least 1.")
        if not 0 <= self.hours < 100_000:  # NaN, too
            raise ConfigError(f"--hours is {self.hours}; it must be a time.")


@dataclass(frozen=True)
class Outcome:
    folder: Path
    numbers: SweepNumbers
    finished: bool  # the search and the confirmation

    @property
    def exit_code(self) -> int:
        """75 where a resume would go on; 1 where no trial has a score."""
        if not self.finished:
            return os.EX_TEMPFAIL
        return 0 if self.numbers.best else 1


def start_sweep(
    preset: str,
    plan: Plan,
    run_dir: str | Path | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    means: Means = Means(),  # noqa: B008 (it cannot be changed)
    name: str = "",
) -> Outcome:
    """A new sweep; `plan` has all but the facts of this start and the flags."""
    require_optuna()
    means.check()
    base = whole_config(preset, config, overrides)
    for stage in read_stages(base):
        stage.config.check()
    if about_given(base.env):
        raise ConfigError(
            "Every trial is trained in processes of its own, which find an environment by its name. Put the class "
            "or function at the top of a module, and hand that over."
        )
    plan = replace(plan, preset=preset, facts=_facts(preset, base), flags=tuple(_flags(preset, base)))
    with ExitStack() as held:
        folder = Path(run_dir) if run_dir else held.enter_context(new_folder(plan.told, name, "sweep"))
        sweep = make_sweep(folder, plan, base)
        check_config(sweep)
        sweep = replace(sweep, plan=replace(plan, parameters={n: p.text for n, p in sweep.space.items()}))
        _create(sweep)
        return _drive(sweep, means, f"{plan.told}, sweep → {folder}")


def resume_sweep(
    folder: Path, means: Means, trials: int = 0, confirm: int = -1, confirm_seeds: int = 0
) -> Outcome:
    """Go on where a sweep was; perhaps with more trials, or more to be confirmed."""
    require_optuna()
    means.check()
    sweep = open_sweep(folder, means.trust)
    changes: dict[str, int] = {"trials": trials} if trials else {}
    changes |= {"confirm": confirm} if confirm >= 0 else {}
    changes |= {"confirm_seeds": confirm_seeds} if confirm_seeds else {}
    plan = replace(sweep.plan, **changes)  # type: ignore[arg-type]
    plan.check()
    return _drive(replace(sweep, plan=plan), means, f"resuming {folder}, sweep of {plan.told}")


def open_sweep(folder: Path, trust: bool = False) -> SavedSweep:
    """A sweep that is there; the code that it names is imported only as `trust` allows."""
    plan = read_plan(folder)
    return make_sweep(folder, plan, trusted_config(run_folder(folder / BASE), trust))


# The folder ---------------------------------------------------------------------------------------
def _facts(preset: str, base: TrainConfig) -> dict[str, Any]:
    facts = facts_of(preset, base)
    return {name: facts[name] for name in ("started", "command", "commit", "hardware", "versions")}


def _flags(preset: str, base: TrainConfig) -> list[str]:
    """Of `ludus train`, that make the preset what all trials share."""
    changed = differences(preset, base) or {}
    flags = ["--algo", base.algo] if "algo" not in changed and base.algo != find_preset(preset).config.algo else []
    for name, (_, value) in changed.items():
        flags += flag_words(name, value)
    return flags


def _create(sweep: SavedSweep) -> None:
    """The file that describes it and what all trials share, in one step."""
    folder = sweep.folder
    refuse_taken(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds files already. Choose another --run-dir.")
    aside = temporary_beside(folder)
    try:
        for name in (BASE, TRIALS, CONFIRMED):
            (aside / name).mkdir(parents=True)
        write_config(aside / BASE, sweep.base)
        write_plan(aside, sweep.plan)
        aside.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Choose another --run-dir.") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(aside)


def _clear_leftovers(folder: Path) -> None:
    """What a kill left of a trial that was being made."""
    for place in (folder, folder / TRIALS, folder / CONFIRMED):
        for leftover in filter(is_temporary, place.glob(".*")):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


# The drive ----------------------------------------------------------------------------------------
class _Drive:
    """One process that drives a sweep."""

    def __init__(self, sweep: SavedSweep, means: Means, view: SweepView) -> None:
        self.sweep, self.means, self.view = sweep, means, view
        self.began = time.monotonic()
        self.display = display_of(sweep.base.env)
        placer = means.placer or Here(means.launcher)
        self.at_once = means.jobs or placer.most_at_once(sweep.base.procs)
        self.pool = Pool([], self.at_once, sweep.base.device != "cpu", placer, alike=False)
        until = self.began + 3600 * means.hours if means.hours else math.inf
        self.search = Search(sweep, self.pool, self._note, means.trust, Clock(until))
        self._page_at = 0.0
        self._steps_before = 0

    def run(self) -> bool:
        """Whether the search and the confirmation have come to their end."""
        self.search.load()
        self._steps_before = sum(trial.steps for trial in self.search.trials)
        if not self.search.complete:
            self.pool.run(self._tell, self.view.message, self.search.refill)
            if self.search.out_of_time:
                self.view.message(
                    f"The time for the search is over after {duration(time.monotonic() - self.began)}."
                )
        if self.pool.interrupted and not self.search.out_of_time:
            return False
        return self._confirm()

    def _confirm(self) -> bool:
        chosen = chosen_trials(self.sweep, self.search.best)
        if not chosen:
            return True
        seeds = runs_to_confirm(self.sweep, chosen, self.means.trust)
        if all(seed.state == "finished" for seed in seeds):
            return True
        names = ", ".join(str(trial.number) for trial in chosen)
        told = f"Confirming trial{'s' * (len(chosen) > 1)} {names} and the default on fresh seeds"
        self.view.message(f"{told} {', '.join(map(str, self.sweep.plan.fresh_seeds))} …")
        pool = Pool(seeds, self.at_once, self.pool.on_gpu, self.pool.placer, alike=False)
        numbers = self._numbers()
        pool.run(lambda: self._tell_confirmation(pool, numbers), self.view.message)
        for seed in seeds:
            if seed.state == "failed":
                self.view.warning(f"{seed.folder} failed: {seed.why} ({seed.log})")
        return not any(seed.state in ("stopped", "waiting") or seed.killed for seed in seeds)

    # What is shown --------------------------------------------------------------------------------
    def numbers(self) -> SweepNumbers:
        """With all that the page shows."""
        confirmed, shares = confirmation(self.sweep, self.search.metric), importances_of(self.sweep, self.search)
        return replace(self._numbers(), confirmation=confirmed, importances=shares)

    def _numbers(self) -> SweepNumbers:
        return numbers_of(self.sweep, self.search)

    def write_page(self, numbers: SweepNumbers | None = None) -> None:
        self._page_at = time.monotonic()
        try:
            write_page(self.sweep.folder / PAGE, sweep_page(numbers or self.numbers()))
        except LudusError as error:  # a full disk: the search goes on
            self.view.warning(str(error))

    def _note(self, trial: Trial) -> None:
        numbers = self._numbers()
        self.view.note(numbers, shown_trial(trial, self.sweep), self._eta())
        if time.monotonic() - self._page_at > _PAGE_EVERY_S:
            self.write_page()

    def _tell(self) -> None:
        rungs = self.sweep.plan.rungs
        running = [
            RunningLine(
                f"trial {trial.number} seed {seed.number}", f"rung {trial.target + 1} of {rungs}",
                self._share(trial, seed), evaluation_line(seed.evaluation, display=self.display),
            )
            for trial, seeds in self.search.active()
            for seed in seeds
            if seed.state == "training"
        ]  # fmt: skip
        self.view.show(Progress(self._numbers(), running, self._share_of_all(), self._eta()))

    def _share(self, trial: Trial, seed: Seed) -> float:
        return min(1.0, seed.step / self.sweep.steps[trial.target])

    def _done(self) -> int:
        active = {seed.folder: seed.step for _, seeds in self.search.active() for seed in seeds}
        settled = sum(t.steps for t in self.search.trials if not any(run in active for run in t.runs))
        return settled + sum(active.values())

    def _share_of_all(self) -> float:
        if self.means.hours:
            return min(1.0, (time.monotonic() - self.began) / (3600 * self.means.hours))
        return min(1.0, self._done() / max(1, self.search.planned_steps()))

    def _eta(self) -> float | None:
        """By the speed so far; with a limit of time, at most until then."""
        elapsed, done = time.monotonic() - self.began, self._done()
        gained = done - self._steps_before
        left = math.inf
        if gained > 0:
            searching = max(0, self.search.planned_steps() - done) * elapsed / gained
            left = searching + self.search.confirm_seconds()
        left = min(left, max(0.0, self.search.clock.until - time.monotonic()))
        return left if math.isfinite(left) else None

    def _tell_confirmation(self, pool: Pool, numbers: SweepNumbers) -> None:
        running = [
            RunningLine(
                f"{seed.folder.parent.name.replace('_', ' ')} seed {seed.number}", "confirmed", seed.share,
                evaluation_line(seed.evaluation, display=self.display),
            )
            for seed in pool.running
        ]  # fmt: skip
        share = sum(seed.share for seed in pool.seeds) / len(pool.seeds)
        self.view.show(Progress(numbers, running, share, pool.eta, phase="confirmation"))


def _drive(sweep: SavedSweep, means: Means, title: str) -> Outcome:
    with run_lock(sweep.folder), SweepView(title, means.quiet) as view:
        _write_plan(sweep, finished=False)
        _clear_leftovers(sweep.folder)
        drive = _Drive(sweep, means, view)
        view.plan(_plan_lines(sweep, drive.at_once))
        finished = drive.run()
        numbers = drive.numbers()
        drive.write_page(numbers)
        _write_plan(sweep, finished)
        view.finish(_closing_lines(sweep, numbers, finished, time.monotonic() - drive.began))
    return Outcome(sweep.folder, numbers, finished)


def _write_plan(sweep: SavedSweep, finished: bool) -> None:
    """It may have other numbers than before; and a list of runs tells sweeps that have come to their end."""
    write_plan(sweep.folder, replace(sweep.plan, facts=sweep.plan.facts | {"finished": finished}))


def _plan_lines(sweep: SavedSweep, at_once: int) -> Sequence[str]:
    plan = sweep.plan
    rungs = " › ".join(f"{steps:,}" for steps in sweep.steps)
    seeds = f"seed{'s' * (len(plan.seeds) > 1)} {', '.join(map(str, plan.seeds))}"
    return [
        *(f"{name} = {parameter.text}" for name, parameter in sweep.space.items()),
        f"trials of {seeds}, {plan.sampler}; rungs at {rungs} steps, the best 1/{plan.eta} go on",
        f"{at_once} process{'es' * (at_once > 1)} at once; the page: {sweep.folder / PAGE}",
    ]


def _closing_lines(sweep: SavedSweep, numbers: SweepNumbers, finished: bool, seconds: float) -> list[str]:
    lines = [*summary_lines(numbers), ""] if numbers.trials else []
    lines.append(f"It took {duration(seconds)}. The page: {sweep.folder / PAGE}")
    if not finished:
        lines.append(f"Go on with: ludus resume {shlex.quote(str(sweep.folder))}")
    return lines
