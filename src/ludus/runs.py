"""What can be done with a run: train, resume, load, evaluate, report, play. Command line and Python share it."""

import hashlib
import importlib.util
import io
import itertools
import json
import os
import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ludus import ranks
from ludus.algorithms.registry import Algorithm, address_of_algorithm, find_algorithm
from ludus.children import end_with
from ludus.config import TrainConfig, to_dict
from ludus.config_files import PlainDumper
from ludus.envs import display_of, make_vec_env
from ludus.envs.given import about_given
from ludus.envs.importing import refuse_while_importing, told_name
from ludus.envs.showing import make_shown_env, scene_of
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, LudusError, plain_text, tell_exception
from ludus.files import is_temporary, persistently, write_whole
from ludus.launchers import Launch, find_launch, has_agent
from ludus.measuring import Measured, cast_of, final_episodes, measure_run
from ludus.policies.fit import refuse_misfit
from ludus.presets import find_preset
from ludus.provenance import facts_of, resumed
from ludus.saved_run import holds_policy, load, load_from, run_config, trusted_config
from ludus.settings import apply_overrides, with_procs
from ludus.show.console import Console
from ludus.show.episode_table import ranked_kinds
from ludus.show.jsonl import JsonlSink, read_metrics, truncate_to
from ludus.show.playback import Page
from ludus.show.result_text import result_lines
from ludus.show.results import forget_later, headline, read_measurements
from ludus.show.reward_page import RewardTrace
from ludus.show.sinks import MetricSink, Tee
from ludus.show.text import duration
from ludus.stages import stages_with_whole_paths
from ludus.training.address import Address, find_checkpoint, read_address, told_checkpoint
from ludus.training.callbacks import Callback
from ludus.training.checkpoint import checkpoints_in, clear_leftovers, set_aside_newer, step_of
from ludus.training.elastic import again_while_lost
from ludus.training.evaluator import Evaluation
from ludus.training.going_back import aside_runs, set_aside_later
from ludus.training.interrupt import Interrupt
from ludus.training.local_ranks import Place, run_ranks
from ludus.training.loop import Trainer
from ludus.training.run_facts import FACTS, Labels, change_facts, labels_in, put_facts, read_facts
from ludus.training.run_folder import (
    CHECKPOINTS,
    CONFIG,
    FINAL,
    RESULTS,
    STANDING,
    is_sweep,
    point,
    pointed_by,
    taken_names,
)
from ludus.training.run_lock import run_lock
from ludus.training.starting import pinned_address
from ludus.trust import MARK, is_mark, mark_as_ours, require_trust

_LONGEST_LABELS = 300  # characters of a name, tags and a note at the end of a training
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
            end = _measure_at_end(trainer)
        _finish(trainer, end)
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
    config = stages_with_whole_paths(config)
    if config.start_from:
        config = replace(config, start_from=pinned_address(config.start_from))
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
        if trainer.complete and _is_finished(folder, config, checkpoint):
            raise ConfigError(
                f"{folder} is already trained to its {trainer.plan.total_steps:,} {trainer.plan.unit}; "
                f"give it more with: {_command('resume', folder)} --total-steps {2 * trainer.plan.total_steps}"
            )
        if trainer.stopped_as_asked and not trainer.complete:
            raise ConfigError(
                f"{folder} is at step {trainer.step:,} already. Choose a later --stop-at, or go on to its end "
                f"with: {_command('resume', folder)}"
            )
        screen.remember(_metrics_of(folder)[: trainer.counters.metric_rows])
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
        end = _measure_at_end(trainer) if writes else _End()
    if writes:
        _finish(trainer, end)


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
        raise LudusError(f"{error} Go on with: {_command('resume', folder)}") from error


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


def reached_its_end(folder: Path, stop_at: int = 0) -> bool:
    """Whether a run is trained, to its end or to the step where it was to stop."""
    return stopped_as_asked(folder, stop_at) or pointed_by(folder / FINAL) is not None


def stopped_as_asked(folder: Path, stop_at: int) -> bool:
    """Whether a run has come to the step where it was to stop; never where it was not to."""
    made = checkpoints_in(folder / CHECKPOINTS)
    return stop_at > 0 and bool(made) and step_of(made[-1]) >= stop_at


def is_finished(folder: Path) -> bool:
    """Whether a run is trained to its end, measured and reported."""
    made = checkpoints_in(folder / CHECKPOINTS)
    return bool(made) and _is_finished(folder, run_config(folder), made[-1])


def _is_finished(folder: Path, config: TrainConfig, newest: Path | None) -> bool:
    """Whether a run that is trained has all that its end makes: no kill came after the last checkpoint."""
    reported = (folder / "report.html").exists() or not config.log.report
    steps = None if newest is None else step_of(newest)
    kept = read_measurements(folder / RESULTS)
    measured = any(m.by == "train" and m.trained == steps for m in kept) and _tells_result(_metrics_of(folder))
    return reported and (measured or not _measures_at_end(config)) and pointed_by(folder / FINAL) == newest


def _tells_result(rows: list[dict[str, float]]) -> bool:
    return bool(rows) and any(name.startswith("final/") for name in rows[-1])


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


class _End(NamedTuple):
    """What the end of a training has brought."""

    measured: Measured | None = None
    stopped: bool = False  # by Ctrl-C, before it was measured


def _measure_at_end(trainer: Trainer) -> _End:
    """The best policy on new starts, when the training has come to its end. Then the run has a final one, too."""
    folder = trainer.run_dir
    if not trainer.complete:
        return _End()
    end = _measured(trainer) if _measures_at_end(trainer.stages[-1].config) else _End()
    made = checkpoints_in(folder / CHECKPOINTS)
    if not made:
        raise LudusError(f"{folder} was deleted before the training came to its end: nothing of the run is left.")
    if not end.stopped:  # else a resume makes up for it
        trainer.write_end({} if end.measured is None else end.measured.kept.result)
        persistently(lambda: point(folder / FINAL, made[-1]))
    return end


def _measured(trainer: Trainer) -> _End:
    config, folder, screen = trainer.stages[-1].config, trainer.run_dir, trainer.console
    lengths = [row["eval/mean_ep_length"] for row in _metrics_of(folder) if "eval/mean_ep_length" in row]
    episodes = final_episodes(config, trainer.plan.total_steps, lengths[-1] if lengths else 1.0)
    screen.message("Measuring the best policy on new starts …")

    def announce(_: str) -> None:
        screen.message("Leaving the measurement: the run is saved and whole. Press Ctrl-C again to leave at once.")

    with Interrupt(announce) as interrupt:
        try:
            stop = lambda: interrupt.requested  # noqa: E731
            measured = measure_run(folder, episodes, trust=True, by="train", should_stop=stop)
        except Exception as error:  # noqa: BLE001 (whatever breaks an episode, the training has succeeded)
            screen.warning(f"Not measured: {_told(error)}")
            return _End()
    return _End(measured, stopped=measured is None)


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, LudusError) else tell_exception(error)


def _measures_at_end(config: TrainConfig) -> bool:
    return config.eval.final_episodes > 0 and find_algorithm(config.algo).acts


def _metrics_of(folder: Path) -> list[dict[str, float]]:
    metrics = folder / "metrics.jsonl"
    return read_metrics(metrics) if metrics.exists() else []  # a lost one is no reason to lose the run as well


def _finish(trainer: Trainer, end: _End) -> None:
    folder, screen, measured = trainer.run_dir, trainer.console, end.measured
    labels = [text] if (text := plain_text(str(labels_in(read_facts(folder))), _LONGEST_LABELS)) else []
    if not trainer.complete:
        go_on = f"Go on with: {_command('resume', folder)}"
        asked = ", as asked," if trainer.stopped_as_asked else ""
        screen.finish([f"Stopped at step {trainer.step:,}{asked} and saved.", *labels, go_on])
        return
    if trainer.config.log.report and not end.stopped:
        screen.message("Writing the report …")
        try:
            write_run_report(folder, trust=True)  # what it names is running already
        except Exception as error:  # noqa: BLE001 (whatever breaks a picture, the training has succeeded)
            screen.warning(f"No report: {_told(error)}")
    for warning in (*trainer.job.warnings, *trainer.unreached_stages()):
        screen.warning(warning)
    done = f"Trained {trainer.step:,} {trainer.plan.unit}, training time {duration(trainer.counters.seconds)}."
    result = [] if measured is None else ["", *result_lines(measured.kept, screen.state.display)]
    if end.stopped:
        result = ["", f"Not measured; that, and the report, follow with: {_command('resume', folder)}"]
    screen.finish([f"{done} Run folder: {folder}", *labels, *_what_next(trainer, measured), *result])


def _what_next(trainer: Trainer, result: Measured | None) -> list[str]:
    """Commands that make use of the run, ready to be copied."""
    config, folder = trainer.config, trainer.run_dir
    if not find_algorithm(config.algo).acts:
        used = {
            _command("eval", folder): "how good it is, on the episodes held out",
            f"ludus label FILE --run {shlex.quote(str(folder))}": "a copy of the data with this reward in it",
        }
    else:
        measured, starts = f"{_command('eval', folder)} --episodes 200", "on new starts"
        if table := display_of(config.env).table:  # then the starts are fixed, and so is their number
            measured, starts = _command("eval", folder), f"{table.kind} by {table.kind}"
        used = {measured: f"how good it is, {starts}"}
        if result is not None and result.kept.result.get("success_rate", 1.0) < 1.0:
            used[f"{_command('eval', folder)} --failures"] = "which starts fail"
        if _can_be_watched(config):
            used[_command("play", folder)] = "watch it in the browser"
    if about_given(config.env):  # which the command would not find
        used = {
            "run.evaluate(episodes=200)": "how good it is, on new starts",
            "run.policy().act(obs)": "what it does",
        }
    used[_command("report", folder)] = f"all in one page: {folder}/report.html"
    if config.log.tensorboard:
        used[f"tensorboard --logdir {shlex.quote(str(folder / 'tb'))}"] = "all metrics"
    width = max(map(len, used))
    return [f"{command:{width}}    {what}" for command, what in used.items()]


def _can_be_watched(config: TrainConfig) -> bool:
    """Whether `ludus play` would show it: it has a scene, and the viewer is installed."""
    if importlib.util.find_spec("viser") is None:
        return False
    try:
        with warnings.catch_warnings():  # about pictures, which are not asked for
            warnings.simplefilter("ignore")
            with closing(make_shown_env(config.env)) as shown:
                return scene_of(shown) is not None
    except Exception:  # noqa: BLE001 (whatever keeps it from being made again, the training has succeeded)
        return False


def _command(verb: str, folder: Path) -> str:
    """A command about a run, as a shell takes it."""
    return f"ludus {verb} {shlex.quote(str(folder))}"


def refuse_taken(folder: Path) -> None:
    """A folder that holds a run, or files of the user's that one would overwrite, is left alone."""
    if is_sweep(folder):
        raise ConfigError(
            f"{folder} already holds a sweep. Choose another --run-dir, or continue it with: "
            f"{_command('resume', folder)}"
        )
    taken = taken_names(folder)
    if not taken or (taken == [MARK] and is_mark(folder / MARK)):  # a training was killed between the first files
        return
    if CONFIG in taken:
        raise ConfigError(
            f"{folder} already holds a run. Choose another --run-dir or --name, or continue it with: "
            f"{_command('resume', folder)}"
        )
    raise ConfigError(
        f"{folder} holds {', '.join(taken)}, which a run would overwrite. Choose another --run-dir, or move what "
        "is there."
    )


def create_run(folder: Path, config: TrainConfig, facts: dict[str, Any]) -> None:
    """The mark and the configuration first: with these alone, a run that was killed here goes on."""
    try:
        write_config(folder, config)
        put_facts(folder, facts)
    except OSError as error:
        raise ConfigError(
            f"The run folder {folder} cannot be written: {error.strerror}. Choose another with --run-dir."
        ) from error


def write_config(folder: Path, config: TrainConfig) -> None:
    """A configuration, and the mark that this user trains it here: `trusted_config` reads both."""
    text = yaml.dump(to_dict(config), Dumper=PlainDumper, sort_keys=False)
    persistently(lambda: mark_as_ours(folder, config))
    persistently(lambda: write_whole(folder / CONFIG, text))


def _clear_leftovers(folder: Path) -> None:
    """What a killed training was writing when it was killed."""
    clear_leftovers(folder / CHECKPOINTS)
    for leftover in filter(is_temporary, folder.glob(".*")):
        if leftover.is_file() and not leftover.is_symlink():
            leftover.unlink(missing_ok=True)


@contextmanager
def new_folder(told: str, name: str, ending: str) -> Iterator[Path]:
    """Below runs/: of that name, or by default one that no other training has, however soon it begins.

    It is made at once, so that nobody else takes it, and goes again where the training leaves nothing in it.
    """
    parent = Path("runs") / told.replace(":", "-")
    if name:
        yield parent / name
        return
    folder = _made_folder(parent, f"{time.strftime('%Y%m%d-%H%M%S')}-{ending}")
    try:
        yield folder
    finally:
        with suppress(OSError):  # a run lies there
            for place in (folder, *folder.parents[:-1]):
                place.rmdir()


def _made_folder(parent: Path, name: str) -> Path:
    names = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    with suppress(OSError):  # whoever writes there tells what is wrong
        parent.mkdir(parents=True, exist_ok=True)
    while True:
        folder = parent / next(names)
        with suppress(OSError):
            folder.mkdir()
            return folder
        if not folder.exists():
            return folder


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


# Pictures ---------------------------------------------------------------------------------------
def write_run_report(run: str | Path, trust: bool = False) -> Path:
    """report.html of a run; without a replay where the run names code that is not trusted.

    Of a policy that is named, as in `RUN@100000`, report@100000.html.
    """
    from ludus.show.report import write_report
    from ludus.viewing import ANY_FOUR, record_replays

    address = read_address(run)
    if address.which:
        find_checkpoint(address)  # one that is not there is refused, and no page is written of it
    folder, title = address.folder, _title(address)
    config = run_config(folder)
    display = display_of(config.env)
    pages, traces, measured = list[Page](), list[RewardTrace](), None
    try:
        if not holds_policy(folder):
            from ludus.rewards import reward_traces

            traces = reward_traces(run)
        else:
            require_trust(config, folder, trust)
            policy, checkpoint = load_from(run, trust)
            measured = headline(read_measurements(folder / RESULTS), checkpoint.name)
            cast = None if measured is None else cast_of(measured)
            ranked = ranked_kinds(display.table, folder)
            pages = record_replays(config.env, policy, title, cast or ANY_FOUR, ranked)
    except LudusError as error:  # a run without a checkpoint, or a machine without a viewer, still has curves
        print(f"No replay: {error}", file=sys.stderr)
    return write_report(folder, pages, measured, rewards=traces, display=display, policy=address.which)


def _title(address: Address) -> str:
    """Of a page or viewer that shows a policy: what was trained, which run, and which policy."""
    preset = told_name(str(read_facts(address.folder).get("preset", "")))
    name = address.folder.resolve().name
    parts = [preset, name, told_checkpoint(address) if address.which else ""]
    return plain_text(" · ".join(part for part in parts if part), 200)


def play_run(
    run: str | Path,
    port: int,
    seconds: float | None,
    clips: str = "",
    beside: float = 0.0,
    trust: bool = False,
) -> None:
    """Watch a policy of a run, its best or `RUN@100000`, live in the browser.

    Of a humanoid: following `clips`, by default those it was trained on, its ghost `beside` metres away.
    """
    from ludus.viewing import play_live

    address = read_address(run)
    trained, policy = trusted_config(address.folder, trust).env, load(run, trust)
    env = make_shown_env(trained, clips, beside)
    try:
        refuse_misfit(policy, env)
        play_live(env, policy, _title(address), port, seconds)
    finally:
        env.close()
