"""What can be done with a run: train, resume, load, evaluate, report, play. Command line and Python share it."""

import hashlib
import importlib.util
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ludus import ranks
from ludus.algorithms.registry import Algorithm, address_of_algorithm, find_algorithm
from ludus.children import end_with
from ludus.config import TrainConfig, to_dict
from ludus.envs import display_of, make_vec_env
from ludus.envs.given import about_given
from ludus.envs.importing import refuse_while_importing, told_name
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, LudusError
from ludus.files import is_temporary
from ludus.launchers import Launch, find_launch, has_agent
from ludus.measuring import measure_run
from ludus.new_runs import command_for, create_run, new_folder, refuse_taken
from ludus.presets import find_preset
from ludus.provenance import facts_of, resumed
from ludus.run_end import End, finish, has_its_end, is_finished, measure_at_end, metrics_of
from ludus.saved_run import trusted_config
from ludus.settings import apply_overrides, with_procs
from ludus.show.console import Console
from ludus.show.jsonl import JsonlSink, truncate_to
from ludus.show.results import forget_later
from ludus.show.sinks import MetricSink, Tee
from ludus.stages import stages_with_whole_paths
from ludus.training.address import Address, find_checkpoint, read_address
from ludus.training.callbacks import Callback
from ludus.training.checkpoint import checkpoints_in, clear_leftovers, set_aside_newer, step_of
from ludus.training.elastic import again_while_lost
from ludus.training.evaluator import Evaluation
from ludus.training.going_back import aside_runs, set_aside_later
from ludus.training.local_ranks import Place, run_ranks
from ludus.training.loop import Trainer
from ludus.training.run_facts import FACTS, Labels, change_facts, labels_in, read_facts
from ludus.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    FINAL,
    RESULTS,
    STANDING,
)
from ludus.training.run_lock import run_lock
from ludus.training.starting import pinned_address
from ludus.trust import MARK

_TASK = "LUDUS_TASK"  # the variable of the environment that tells a rank what to do with the run it is given


# Training ---------------------------------------------------------------------------------------
def train(
    preset: str,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    stop_at: int = 0,
    labels: Labels = Labels(),  # noqa: B008 (it cannot be changed)
    place: Place | None = None,
) -> Path:
    """Train a preset or `gym:ID` and return the run's folder; `ludus.train` tells what the others are.

    `place`: where the ranks run, in place of this process or this machine.
    """
    config = whole_config(preset, config, overrides)
    told = told_name(preset)
    facts = labels.facts() | facts_of(preset, config)
    launch = find_launch()
    if launch is not None and (launch.ticket.size > 1 or config.procs == 1):  # one task may start ranks of its own
        name = labels.name or f"{launch.job or time.strftime('%Y%m%d-%H%M%S')}-{_digest(config)}-{config.seed}"
        wanted = run_dir or Path("runs") / told.replace(":", "-") / name
        _join(launch, config.procs)
        folder = Path(ranks.told_by_first(str(wanted)))  # clocks differ
        job = f"{launch.job} {_digest(config)}" if launch.job else ""
        return _train_launched(folder, config, facts, job, callbacks, console, stop_at)
    with ExitStack() as held:
        folder = Path(run_dir) if run_dir else held.enter_context(new_folder(told, labels.name, str(config.seed)))
        if config.procs > 1 or place:
            return _train_on_ranks(folder, config, facts, callbacks, console, stop_at, place)
        screen = held.enter_context(console or Console())
        with closing(_trainer(config, folder, facts, screen, callbacks, stop_at)) as trainer:
            started = trainer.begin()
            held.enter_context(run_lock(folder))  # settings that do not work have left nothing behind
            refuse_taken(folder)
            create_run(folder, config, facts)
            screen.plan(f"{told} → {folder}", [*_about(trainer), *started, *about_given(config.env)])
            trainer.run()
            end = measure_at_end(trainer)
        finish(trainer, end)
    return folder


def whole_config(preset: str, config: TrainConfig | None, overrides: dict[str, Any] | None) -> TrainConfig:
    """What a training is made of: `config`, or that of the preset, and what is said besides."""
    refuse_while_importing()
    given = dict(overrides or {})
    algo = given.pop("algo", "") if config is None else ""  # which brings defaults of its own
    if isinstance(algo, Algorithm):
        algo = address_of_algorithm(algo)
    elif not isinstance(algo, str):
        raise ConfigError(f"algo is {algo!r}; it must be a name or a ludus.Algorithm.")
    config = apply_overrides(config or find_preset(preset, algo).config, given).with_whole_paths()
    config = stages_with_whole_paths(config).with_pinned_runs(pinned_address)
    if config.log.wandb and importlib.util.find_spec("wandb") is None:  # before anything is written
        raise ConfigError("W&B logging is on, but the package is missing: `pip install 'ludus[wandb]'`.")
    return config


def resume(
    run: str | Path,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    overrides: dict[str, Any] | None = None,
    trust: bool = False,
    stop_at: int = 0,
    place: Place | None = None,
) -> Path:
    """Go on with a run exactly where it was: from its newest intact checkpoint, or from its beginning.

    From an earlier one: `RUN@100000`, `RUN@best`. What came after it is set aside as a run of its own.
    `trust`: import the code that the run names, although it was trained by another user or elsewhere.
    `stop_at`: save and stop at the first iteration that reaches this step; its schedules are not touched.
    `place`: where the ranks run, in place of this process or this machine.
    """
    address = read_address(run)
    folder = address.folder
    launch = find_launch()
    if _TASK in os.environ and launch is not None:
        return _go_on_as_rank(address, launch)
    if launch is not None and launch.ticket.size > 1:
        return _resume_launched(address, launch, callbacks, console, overrides or {}, trust, stop_at)
    with run_lock(folder):
        config = _changed(trusted_config(folder, trust), overrides or {})
        facts = read_facts(folder) or facts_of(folder.resolve().parent.name, config)
        if overrides or checkpoints_in(folder / CHECKPOINTS):
            facts = resumed(facts, config)
        if config.procs > 1 or place:
            task = {"facts": facts, "overrides": overrides or {}, "stop_at": stop_at}
            _start_ranks(address, config, callbacks, console, task, place)
            return folder
        with console or Console() as screen:
            _clear_leftovers(folder)
            _go_on(address, _where_to_go_on(address, screen), config, facts, screen, callbacks, stop_at)
    return folder


def _changed(config: TrainConfig, overrides: dict[str, Any]) -> TrainConfig:
    """The settings of a run that goes on with others. Other processes share its environments out anew."""
    others = {name: value for name, value in overrides.items() if name != "procs"}
    return apply_overrides(with_procs(config, overrides.get("procs", config.procs)), others)


def _go_on(
    address: Address,
    checkpoint: Path | None,
    config: TrainConfig,
    facts: dict[str, Any],
    screen: Console,
    callbacks: Sequence[Callback],
    stop_at: int,
) -> None:
    """Train from a checkpoint, or from the beginning, to the end. Of several ranks the first writes."""
    folder, writes = address.folder, ranks.is_first()
    with closing(_trainer(config, folder, facts, screen, callbacks, stop_at)) as trainer:
        if checkpoint is None:
            trainer.begin()
        else:
            trainer.restore(checkpoint, partial(_set_aside, address, screen))
        if trainer.complete and has_its_end(folder, config, checkpoint):
            raise ConfigError(
                f"{folder} is already trained to its {trainer.step:,} {trainer.plan.unit}; "
                f"give it more with: {command_for('resume', folder)} --total-steps "
                f"{2 * max(trainer.step, trainer.plan.total_steps)}"
            )
        if trainer.stopped_as_asked and not trainer.complete:
            raise ConfigError(
                f"{folder} is at step {trainer.step:,} already. Choose a later --stop-at, or go on to its end "
                f"with: {command_for('resume', folder)}"
            )
        screen.remember([row for row in metrics_of(folder) if row["step"] <= trainer.step])
        if checkpoint is None and (ranks.size() > 1 or not (folder / CONFIG).exists()):
            screen.plan(f"{told_name(str(facts.get('preset', '')))} → {folder}", _about(trainer))
        else:
            screen.plan(f"resuming {folder} at {_place(trainer)}", trainer.lines())
        if writes:
            create_run(folder, config, facts)
            if warning := forget_later(folder / RESULTS, trainer.step):
                screen.warning(warning)
        if not trainer.complete:  # else a kill came between the last checkpoint and the end
            if writes:
                (folder / FINAL).unlink(missing_ok=True)  # what it points to is no longer the end
            trainer.run()
        ranks.leave()
        end = measure_at_end(trainer) if writes else End()
    if writes:
        finish(trainer, end)


# Several processes --------------------------------------------------------------------------------
def _train_on_ranks(
    folder: Path,
    config: TrainConfig,
    facts: dict[str, Any],
    callbacks: Sequence[Callback],
    console: Console | None,
    stop_at: int,
    place: Place | None,
) -> Path:
    """A new run: its folder is made here, and the ranks go on with it from its beginning."""
    config.check()
    _refuse_what_stays_here(config, callbacks)
    with _claimed(folder):
        refuse_taken(folder)
        create_run(folder, config, facts)
        try:
            task = {"facts": facts, "overrides": {}, "stop_at": stop_at}
            _start_ranks(Address(folder), config, callbacks, console, task, place)
        except (LudusError, KeyboardInterrupt):  # settings that do not work leave nothing behind
            if not any((folder / name).exists() for name in (CHECKPOINTS, "metrics.jsonl")):
                for name in (CONFIG, FACTS, MARK, STANDING):
                    (folder / name).unlink(missing_ok=True)
            raise
    return folder


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The only one who trains in a folder, which goes again where the training leaves nothing in it."""
    is_new = not folder.exists()
    try:
        with run_lock(folder):
            yield
    finally:
        if is_new:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _refuse_what_stays_here(config: TrainConfig, callbacks: Sequence[Callback]) -> None:
    if callbacks or about_given(config.env):
        what = "callbacks" if callbacks else "environments that are handed over as objects"
        raise ConfigError(f"procs={config.procs}: {what} cannot be taken along to other processes. Train with 1.")


def _start_ranks(
    address: Address,
    config: TrainConfig,
    callbacks: Sequence[Callback],
    console: Console | None,
    task: dict[str, Any],
    place: Place | None,
) -> None:
    """Let so many processes as the run asks for go on with it; `task` is what they cannot read in its folder."""
    _refuse_what_stays_here(config, callbacks)
    folder, quiet = address.folder, console is not None and console.quiet
    told, address_now = json.dumps(task, default=str), _going_back_once(address)
    start = place or run_ranks

    def attempt() -> None:
        start(["resume", str(address_now())], config.procs, quiet, **{_TASK: told})

    try:
        again_while_lost(attempt, folder / CHECKPOINTS, (console or Console("quiet")).warning)
    except LudusError as error:
        if not checkpoints_in(folder / CHECKPOINTS):
            raise
        raise LudusError(f"{error} Go on with: {command_for('resume', folder)}") from error


def _going_back_once(address: Address) -> Callable[[], Address]:
    """What to go on with: the checkpoint that was asked for; once the run has gone back to it, the newest."""
    if not address.which:
        return lambda: address
    step = step_of(find_checkpoint(address, to_resume=True, warn=lambda _: None))
    later = [other for other in checkpoints_in(address.folder / CHECKPOINTS) if step_of(other) > step]
    asides = len(aside_runs(address.folder))
    return lambda: address if later and len(aside_runs(address.folder)) == asides else Address(address.folder)


def _go_on_as_rank(address: Address, launch: Launch) -> Path:
    """In a process that a `Place` has started; its parent holds the lock, and has looked who is trusted."""
    task = json.loads(os.environ.pop(_TASK))
    ranks.join(launch.ticket)
    config = _changed(trusted_config(address.folder, trust=True), task["overrides"])
    _go_on_together(address, config, task["facts"], (), None, task["stop_at"])
    return address.folder


def _go_on_together(
    address: Address,
    config: TrainConfig,
    facts: dict[str, Any],
    callbacks: Sequence[Callback],
    console: Console | None,
    stop_at: int,
) -> None:
    """On every rank: from the checkpoint that rank 0 finds, or from the beginning."""
    with (console or Console()) if ranks.is_first() else Console("quiet", io.StringIO()) as screen:
        checkpoint = None
        if ranks.is_first() and (address.folder / CHECKPOINTS).exists():
            _clear_leftovers(address.folder)
            checkpoint = _where_to_go_on(address, screen)
        found = ranks.told_by_first(checkpoint and str(checkpoint))
        _go_on(address, found and Path(found), config, facts, screen, callbacks, stop_at)


def _join(launch: Launch, procs_given: int) -> None:
    """In a process that torchrun or srun has started."""
    size = launch.ticket.size
    if procs_given not in (1, size):
        raise ConfigError(f"--procs {procs_given}: {size} ranks were started. Leave out --procs.")
    if has_agent():
        end_with(os.getppid())  # torchrun's ranks would train on without it
    if size > 1:
        ranks.join(launch.ticket)


def _train_launched(
    folder: Path,
    config: TrainConfig,
    facts: dict[str, Any],
    job: str,
    callbacks: Sequence[Callback],
    console: Console | None,
    stop_at: int,
) -> Path:
    """On every rank. A launcher that starts its ranks again gives the same command: then the run goes on."""
    config, facts = replace(config, procs=ranks.size()), facts | ({"job": job} if job else {})
    with ExitStack() as held:
        going_on = finished = False
        if ranks.is_first():
            held.enter_context(_claimed(folder))
            going_on = bool(job) and read_facts(folder).get("job") == job
            finished = going_on and is_finished(folder)
            if not going_on:
                refuse_taken(folder)
        going_on, finished = ranks.told_by_first([going_on, finished])
        if finished:
            return folder
        if going_on:
            config = with_procs(trusted_config(folder, trust=False), ranks.size())
            facts = resumed(read_facts(folder), config)
        _go_on_together(Address(folder), config, facts, callbacks, console, stop_at)
    return folder


def _digest(config: TrainConfig) -> str:
    """A short word for the settings: a job may give several commands, and each has a run of its own."""
    return hashlib.sha256(repr(config).encode()).hexdigest()[:6]


def _resume_launched(
    address: Address,
    launch: Launch,
    callbacks: Sequence[Callback],
    console: Console | None,
    overrides: dict[str, Any],
    trust: bool,
    stop_at: int,
) -> Path:
    """On every rank."""
    folder, size = address.folder, launch.ticket.size
    config = _changed(trusted_config(folder, trust), {**overrides, "procs": size})
    facts = resumed(read_facts(folder) or facts_of(folder.resolve().parent.name, config), config)
    _join(launch, overrides.get("procs", size))
    with run_lock(folder) if ranks.is_first() else nullcontext():
        _go_on_together(address, config, facts, callbacks, console, stop_at)
    return folder


def _about(trainer: Trainer) -> list[str]:
    return [*trainer.lines(), *trainer.job.lines(), *trainer.forecast()]


def _place(trainer: Trainer) -> str:
    done, total, unit = f"{trainer.step:,}", f"{trainer.plan.total_steps:,}", trainer.plan.unit
    return f"step {done} of {total}" if unit == "steps" else f"{done} of {total} {unit}"


def _where_to_go_on(address: Address, screen: Console) -> Path | None:
    """The checkpoint; None before the first one was written: the run begins again from its seed."""
    if not address.which and not checkpoints_in(address.folder / CHECKPOINTS):
        screen.message("The run has no checkpoint yet: it begins again from its configuration and its seed.")
        return None
    return find_checkpoint(address, to_resume=True, warn=screen.warning)


def _set_aside(address: Address, screen: Console, checkpoint: Path) -> None:
    """What came after the checkpoint: whole, where the user chose it; else what is newer is damaged."""
    if not address.which:
        set_aside_newer(checkpoint)
    elif aside := set_aside_later(checkpoint):
        screen.message(f"Going back to {checkpoint.name}. What came after it is kept as a run: {aside}")


def _trainer(
    config: TrainConfig,
    folder: Path,
    facts: dict[str, Any],
    screen: Console,
    callbacks: Sequence[Callback],
    stop_at: int,
) -> Trainer:
    def keep_folder() -> bool:
        if (folder / CONFIG).exists():
            return True
        folder.mkdir(parents=True, exist_ok=True)
        create_run(folder, config, facts)
        return False

    if stop_at < 0:
        raise ConfigError(f"--stop-at is {stop_at}; it must be a step of the training.")
    screen.state.display, make_job = display_of(config.env), find_algorithm(config.algo).job_maker()
    screen.state.every_row = config.log.every_row
    sinks = _sinks(folder, config, screen) if ranks.is_first() else lambda step, rows: Tee([])
    return Trainer(config, folder, screen, sinks, make_job, callbacks, keep_folder, stop_at)


def _clear_leftovers(folder: Path) -> None:
    """What a killed training was writing when it was killed."""
    clear_leftovers(folder / CHECKPOINTS)
    for leftover in filter(is_temporary, folder.glob(".*")):
        if leftover.is_file() and not leftover.is_symlink():
            leftover.unlink(missing_ok=True)


def _sinks(folder: Path, config: TrainConfig, screen: Console) -> Any:
    def make(step: int, rows: int) -> Tee:
        """Sinks that go on after the first `rows` rows, at `step`: later ones will be written again."""
        sinks: list[MetricSink] = [JsonlSink(folder / "metrics.jsonl")]
        truncate_to(folder / "metrics.jsonl", rows)
        if config.log.tensorboard:
            from ludus.show.tensorboard import TensorBoardSink

            purge = step + 1 if step else None
            if not find_algorithm(config.algo).acts:  # the axis is the steps in the store, which do not grow
                sinks.append(TensorBoardSink(folder / "tb", axis="Timesteps"))
                sinks.append(TensorBoardSink(folder / "tb" / "by_batch", purge_step=purge))
            else:
                sinks.append(TensorBoardSink(folder / "tb", purge_step=purge))
        if config.log.wandb:
            sinks.append(_wandb_sink(folder, config))
        return Tee(sinks, screen.warning)

    return make


def _wandb_sink(folder: Path, config: TrainConfig) -> MetricSink:
    from ludus.show.wandb import WandbSink

    facts = read_facts(folder)
    name, tags, note = labels_in(facts)
    settings, place, before = to_dict(config), folder / "wandb", facts.get("wandb_id")
    sink = WandbSink(config.log.wandb, name or folder.name, settings, place, before, tags, note)
    change_facts(folder, lambda now: now | {"wandb_id": sink.run_id})
    return sink


# Acting and measuring ----------------------------------------------------------------------------
def make_env(name: str, num_envs: int | None = None, evaluation: bool = False, **settings: Any) -> VecEnv:
    """A batch of environments: `ludus.make_env("kuka-pick-place", num_envs=64)`."""
    config = apply_overrides(find_preset(name).config, {f"env.{key}": value for key, value in settings.items()})
    return make_vec_env(config.env, num_envs or config.env.num_envs, evaluation)


def evaluate_run(
    run: str | Path,
    episodes: int,
    deterministic: bool,
    seed: int | None = None,
    trust: bool = False,
    randomization: str | dict[str, Any] | None = None,
) -> Evaluation:
    """Evaluate a policy of a run, its best or `RUN@100000`, on starts that neither training nor that choice used.

    Where the starts are fixed they are those by which it was chosen. What came out is kept in the run's
    results.json. `trust` as in `resume`, `randomization` as in `measure_run`.
    """
    measured = measure_run(run, episodes, deterministic, seed, trust=trust, randomization=randomization)
    assert measured is not None  # nothing stops it
    return measured.evaluation
