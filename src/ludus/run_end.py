"""The end of a training: the best policy measured, the report written, the result told."""

import importlib.util
import shlex
import warnings
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from ludus.algorithms.registry import find_algorithm
from ludus.config import TrainConfig
from ludus.envs import display_of
from ludus.envs.given import about_given
from ludus.envs.showing import make_shown_env, scene_of
from ludus.errors import LudusError, plain_text, tell_exception
from ludus.files import persistently
from ludus.measuring import Measured, final_episodes, measure_run
from ludus.new_runs import command_for
from ludus.run_pages import write_run_report
from ludus.saved_run import run_config
from ludus.show.jsonl import read_metrics
from ludus.show.result_text import result_lines
from ludus.show.results import read_measurements
from ludus.show.text import duration
from ludus.training.checkpoint import checkpoints_in, step_of
from ludus.training.interrupt import Interrupt
from ludus.training.loop import Trainer
from ludus.training.run_facts import labels_in, read_facts
from ludus.training.run_folder import CHECKPOINTS, FINAL, RESULTS, point, pointed_by

_LONGEST_LABELS = 300  # characters of a name, tags and a note


class End(NamedTuple):
    """What the end of a training has brought."""

    measured: Measured | None = None
    stopped: bool = False  # by Ctrl-C, before it was measured


def measure_at_end(trainer: Trainer) -> End:
    """The best policy on new starts, when the training has come to its end. Then the run has a final one, too."""
    folder = trainer.run_dir
    if not trainer.complete:
        return End()
    end = _measured(trainer) if measures_at_end(trainer.stages[-1].config) else End()
    made = checkpoints_in(folder / CHECKPOINTS)
    if not made:
        raise LudusError(f"{folder} was deleted before the training came to its end: nothing of the run is left.")
    if not end.stopped:  # else a resume makes up for it
        trainer.write_end({} if end.measured is None else end.measured.kept.result)
        persistently(lambda: point(folder / FINAL, made[-1]))
    return end


def _measured(trainer: Trainer) -> End:
    config, folder, screen = trainer.stages[-1].config, trainer.run_dir, trainer.console
    lengths = [row["eval/mean_ep_length"] for row in metrics_of(folder) if "eval/mean_ep_length" in row]
    episodes = final_episodes(config, trainer.plan.total_steps, lengths[-1] if lengths else 1.0)
    screen.message("Measuring the best policy …")

    def announce(_: str) -> None:
        screen.message("Leaving the measurement: the run is saved and whole. Press Ctrl-C again to leave at once.")

    with Interrupt(announce) as interrupt:
        try:
            stop = lambda: interrupt.requested  # noqa: E731
            measured = measure_run(folder, episodes, trust=True, by="train", should_stop=stop)
        except Exception as error:  # noqa: BLE001 (whatever breaks an episode, the training has succeeded)
            screen.warning(f"Not measured: {_told(error)}")
            return End()
    return End(measured, stopped=measured is None)


def finish(trainer: Trainer, end: End) -> None:
    folder, screen, measured = trainer.run_dir, trainer.console, end.measured
    labels = [text] if (text := plain_text(str(labels_in(read_facts(folder))), _LONGEST_LABELS)) else []
    if not trainer.complete:
        go_on = f"Go on with: {command_for('resume', folder)}"
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
        result = ["", f"Not measured; that, and the report, follow with: {command_for('resume', folder)}"]
    screen.finish([f"{done} Run folder: {folder}", *labels, *_what_next(trainer, measured), *result])


def _what_next(trainer: Trainer, result: Measured | None) -> list[str]:
    """Commands that make use of the run, ready to be copied."""
    config, folder = trainer.config, trainer.run_dir
    if not find_algorithm(config.algo).acts:
        used = {
            command_for("eval", folder): "how good it is, on the episodes held out",
            f"ludus label FILE --run {shlex.quote(str(folder))}": "a copy of the data with this reward in it",
        }
    else:
        measured, starts = f"{command_for('eval', folder)} --episodes 200", "on new starts"
        if table := display_of(config.env).table:  # then the starts are fixed, and so is their number
            measured, starts = command_for("eval", folder), f"{table.kind} by {table.kind}"
        used = {measured: f"how good it is, {starts}"}
        if result is not None and result.kept.result.get("success_rate", 1.0) < 1.0:
            used[f"{command_for('eval', folder)} --failures"] = "which starts fail"
        if _can_be_watched(config):
            used[command_for("play", folder)] = "watch it in the browser"
    if about_given(config.env):  # which the command would not find
        used = {
            "run.evaluate(episodes=200)": "how good it is, on new starts",
            "run.policy().act(obs)": "what it does",
        }
    used[command_for("report", folder)] = f"all in one page: {folder}/report.html"
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


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, LudusError) else tell_exception(error)


# Whether it has come ------------------------------------------------------------------------------
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
    return bool(made) and has_its_end(folder, run_config(folder), made[-1])


def has_its_end(folder: Path, config: TrainConfig, newest: Path | None) -> bool:
    """Whether a run that is trained has all that its end makes: no kill came after the last checkpoint."""
    reported = (folder / "report.html").exists() or not config.log.report
    steps = None if newest is None else step_of(newest)
    kept = read_measurements(folder / RESULTS)
    measured = any(m.by == "train" and m.trained == steps for m in kept) and _tells_result(metrics_of(folder))
    return reported and (measured or not measures_at_end(config)) and pointed_by(folder / FINAL) == newest


def _tells_result(rows: list[dict[str, float]]) -> bool:
    return bool(rows) and any(name.startswith("final/") for name in rows[-1])


def measures_at_end(config: TrainConfig) -> bool:
    return config.eval.final_episodes > 0 and find_algorithm(config.algo).acts


def metrics_of(folder: Path) -> list[dict[str, float]]:
    metrics = folder / "metrics.jsonl"
    return read_metrics(metrics) if metrics.exists() else []  # a lost one is no reason to lose the run as well
