"""Several seeds of one training as one experiment: a folder with an ordinary run for each seed.

All run folders are made before anything is trained, and `ludus resume` trains each of them. So the first start,
one after Ctrl-C and one after a power cut are the same, and nothing but the runs themselves says how far they are.
"""

import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ludus.config import TrainConfig
from ludus.envs import display_of
from ludus.envs.given import about_given
from ludus.envs.importing import told_name
from ludus.errors import ConfigError, LudusError
from ludus.files import read_json, temporary_beside, write_whole
from ludus.new_runs import create_run, new_folder, refuse_taken
from ludus.placing import Here, Placer
from ludus.provenance import differences, facts_of
from ludus.ranges import LARGEST_SEED
from ludus.run_end import is_finished, reached_its_end
from ludus.runs import whole_config
from ludus.saved_run import run_folder, trusted_config
from ludus.seed_processes import Pool, Seed
from ludus.show.results import Measurement, read_measurements
from ludus.show.seeds import SeedLine, SeedsView, summary_lines
from ludus.show.text import duration, evaluation_line
from ludus.stages import read_stages
from ludus.training.checkpoint import checkpoints_in, step_of
from ludus.training.run_facts import Labels
from ludus.training.run_folder import CHECKPOINTS, EXPERIMENT, RESULTS
from ludus.training.run_lock import run_lock

_MOST_BYTES = 1_000_000


class Outcome(NamedTuple):
    """How far the seeds of an experiment have come."""

    folder: Path
    seeds: list[Seed]

    @property
    def exit_code(self) -> int:
        """1 where a seed failed; 75 where a resume would go on with one that was stopped early or killed."""
        if any(seed.state == "failed" and not seed.killed for seed in self.seeds):
            return 1
        return 0 if all(seed.state == "finished" or seed.reached for seed in self.seeds) else os.EX_TEMPFAIL

    @property
    def refused(self) -> str:
        """Why no seed could begin, in a sentence; empty where one has, or broke without a sentence."""
        refused = all(seed.state == "failed" and seed.refused and not seed.step for seed in self.seeds)
        return self.seeds[0].why if refused else ""


def is_experiment(folder: str | Path) -> bool:
    return (Path(folder) / EXPERIMENT).is_file()


def seeds_of(folder: Path) -> dict[int, Path]:
    """The run folder of every seed."""
    try:
        seeds = read_json(folder / EXPERIMENT, _MOST_BYTES)["seeds"]
        right = bool(seeds) and all(type(seed) is int and 0 <= seed <= LARGEST_SEED for seed in seeds)
    except (OSError, LudusError, KeyError, TypeError):
        right = False
    if not right:
        raise ConfigError(f"{folder / EXPERIMENT} does not say which seeds the experiment has.")
    found = {seed: folder / f"seed_{seed}" for seed in seeds}
    for path in (folder / EXPERIMENT, *found.values()):
        if path.is_symlink():  # what is written there would land outside the experiment
            raise ConfigError(f"{path} is a link. Put what it points to in its place.")
    return found


# Training ---------------------------------------------------------------------------------------
def train_seeds(
    preset: str,
    seeds: Sequence[int],
    run_dir: str | Path | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    stop_at: int = 0,
    at_once: int = 0,
    quiet: bool = False,
    labels: Labels = Labels(),  # noqa: B008 (it cannot be changed)
    placer: Placer | None = None,
) -> Outcome:
    """Train a preset with every seed, as many `at_once` as cores and memory allow; on this machine by default."""
    _check_at_once(at_once)
    config = whole_config(preset, config, overrides)
    for stage in read_stages(config):
        stage.config.check()
    if about_given(config.env):
        raise ConfigError(
            "Every seed is trained in a process of its own, which finds an environment by its name. Put the class "
            "or function at the top of a module, and hand that over."
        )
    told = told_name(preset)
    with ExitStack() as held:
        new = new_folder(told, labels.name, f"{len(seeds)}-seeds")
        folder = Path(run_dir) if run_dir else held.enter_context(new)
        create_experiment(folder, preset, config, seeds, labels)
        title = f"{told}, {_count(len(seeds))} → {folder}"
        outcome = _run(folder, title, seeds, config, [], stop_at, at_once, quiet, placer)
        if outcome.refused:
            shutil.rmtree(folder)  # settings that do not work leave nothing behind
            raise ConfigError(outcome.refused)
    return outcome


def resume_seeds(
    folder: Path,
    total_steps: int = 0,
    stop_at: int = 0,
    device: str = "",
    trust: bool = False,
    at_once: int = 0,
    quiet: bool = False,
    placer: Placer | None = None,
) -> Outcome:
    """Go on with every seed that is not trained to its end, exactly."""
    _check_at_once(at_once)
    found = seeds_of(folder)
    configs = [trusted_config(run_folder(run), trust) for run in found.values()]
    unfinished = [seed for seed, run in found.items() if not _is_done(run, total_steps, stop_at)]
    if not unfinished:
        raise ConfigError(
            f"All {_count(len(found))} of {folder} are trained. Give them more with: "
            f"ludus resume {shlex.quote(str(folder))} --total-steps STEPS"
        )
    options: list[object] = ["--total-steps", total_steps] if total_steps else []
    options += ["--device", device] if device else []
    config = replace(configs[0], device=device or configs[0].device)
    title = f"resuming {folder}, {len(unfinished)} of {_count(len(found))}"
    outcome = _run(folder, title, unfinished, config, options, stop_at, at_once, quiet, placer)
    if outcome.refused:
        raise ConfigError(outcome.refused)
    return outcome


def _check_at_once(at_once: int) -> None:
    if at_once < 0:  # 0: as many as fit
        raise ConfigError(f"--at-once is {at_once}; it must be at least 1.")


def _is_done(run: Path, total_steps: int, stop_at: int) -> bool:
    made = checkpoints_in(run / CHECKPOINTS)
    if total_steps and (not made or step_of(made[-1]) < total_steps):
        return False
    return (stop_at > 0 and reached_its_end(run, stop_at)) or is_finished(run)


def _run(
    folder: Path,
    title: str,
    unfinished: Iterable[int],
    config: TrainConfig,
    options: Sequence[object],
    stop_at: int,
    at_once: int,
    quiet: bool,
    placer: Placer | None,
) -> Outcome:
    """Train what is unfinished, show it, and tell at the end what came out."""
    started, display = time.monotonic(), display_of(config.env)
    with run_lock(folder), SeedsView(title, quiet) as view:
        seeds = [Seed(number, run) for number, run in seeds_of(folder).items()]
        for seed in seeds:
            seed.read_rows()
            if seed.number not in unfinished:
                seed.state, seed.reached = "finished" if reached_its_end(seed.folder) else "stopped", True
            seed.options, seed.stop_at = [*options, "--trust"], stop_at  # the caller trusts them
        waiting = sum(seed.state == "waiting" for seed in seeds)
        pool = Pool(seeds, at_once, config.device != "cpu", placer or Here())
        pool.at_once = at_once or min(waiting, pool.placer.most_at_once(config.procs))
        view.plan([f"{min(pool.at_once, waiting)} at once; what each prints: {folder}/seed_N.log"])

        def tell() -> None:
            told = [
                SeedLine(s.number, s.state, s.share, s.eta, evaluation_line(s.evaluation, display=display), s.why)
                for s in pool.seeds
            ]
            view.show(told, pool.eta)

        pool.run(tell, view.message)
        outcome = Outcome(folder, pool.seeds)
        if not outcome.refused:
            for seed in pool.seeds:
                if seed.state == "failed":
                    view.warning(f"Seed {seed.number} failed: {seed.why} ({seed.log})")
            view.finish(_closing_lines(outcome, config, time.monotonic() - started))
    return outcome


# The folder -------------------------------------------------------------------------------------
def create_experiment(
    folder: Path,
    preset: str,
    config: TrainConfig,
    seeds: Sequence[int],
    labels: Labels = Labels(),  # noqa: B008 (it cannot be changed)
    also: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """The runs and the file that describes the experiment, all in one step: a kill leaves all of it or nothing.

    `also`: other files of the folder, by their names.
    """
    _refuse_taken(folder)
    facts, aside = labels._replace(name="").facts() | facts_of(preset, config), temporary_beside(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
        for seed in seeds:
            run, seeded = aside / f"seed_{seed}", replace(config, seed=seed)
            run.mkdir()
            create_run(run, seeded, facts | {"seed": seed, "changed": differences(preset, seeded)})
        described = (
            {"preset": preset, "seeds": list(seeds)}
            | labels.facts()
            | {name: facts[name] for name in ("started", "command", "commit", "changed", "hardware", "versions")}
        )
        for name, text in {**also, EXPERIMENT: json.dumps(described, indent=1)}.items():
            write_whole(aside / name, text)
        aside.rename(folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}. Choose another --run-dir.") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(aside)


def _refuse_taken(folder: Path) -> None:
    if is_experiment(folder):
        raise ConfigError(
            f"{folder} already holds an experiment. Choose another --run-dir, or continue it with: "
            f"ludus resume {shlex.quote(str(folder))}"
        )
    refuse_taken(folder)
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds files already. Choose another --run-dir.")
    if folder.is_dir() and folder.samefile("."):  # which a rename cannot replace
        raise ConfigError(f"{folder} is the present folder. Choose another --run-dir.")


# What came out ----------------------------------------------------------------------------------
def final_measurements(folder: Path) -> dict[int, Measurement]:
    """Of every seed that is trained to its end: its best policy on new starts."""
    found = {}
    for seed, run in seeds_of(folder).items():
        measured = [m for m in read_measurements(run / RESULTS) if m.by == "train"]
        if measured and reached_its_end(run):
            found[seed] = measured[-1]
    return found


def _closing_lines(outcome: Outcome, config: TrainConfig, seconds: float) -> list[str]:
    folder, seeds = outcome.folder, outcome.seeds
    states = [seed.state for seed in seeds]
    told = [f"{states.count(state)} {word}" for state, word in _STATES.items() if state in states]
    lines = [f"{_count(len(seeds))}: {', '.join(told)}. It took {duration(seconds)}. Folder: {folder}"]
    quoted = shlex.quote(str(folder))
    if set(states) != {"finished"}:
        lines.append(f"Go on with: ludus resume {quoted}")
    used = {}
    if measured := final_measurements(folder):
        used[f"ludus eval {quoted} --episodes 200"] = "how good each seed is, on new starts"
        used[f"ludus compare {quoted}"] = "curves of all seeds in one page"
    if config.log.tensorboard:
        used[f"tensorboard --logdir {quoted}"] = "all curves"
    width = max(map(len, used), default=0)
    lines += [f"{command:{width}}    {what}" for command, what in used.items()]
    return [*lines, *(["", *summary_lines(measured, display_of(config.env))] if measured else [])]


_STATES = {"finished": "finished", "stopped": "stopped and saved", "failed": "failed", "waiting": "not begun"}


def _count(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds > 1)}"
