"""The one loop: epoch › cycle › iteration › batch.

An iteration is some experience and its batches (gradient steps), made by a `Job`; a cycle ends with a row of
metrics; an epoch ends with an evaluation and a checkpoint. Everything a run is made of is saved, so that a killed
run goes on as if nothing had happened.
"""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ludus import ranks
from ludus.config import TrainConfig
from ludus.envs.vec import State
from ludus.errors import (
    MALFORMED,
    CheckpointError,
    ConfigError,
    LudusError,
    TrainingError,
    UnsavedError,
    plain_text,
)
from ludus.policies.policy import Policy
from ludus.show.console import Console
from ludus.show.machine import Machine
from ludus.show.run_state import quality
from ludus.show.sinks import Tee
from ludus.show.text import duration
from ludus.stages import Stage, read_stages
from ludus.training.callbacks import Callback, Logged, Watcher
from ludus.training.checkpoint import (
    best_checkpoint,
    checkpoint_path,
    checkpoints_in,
    load_model_weights,
    mark_best,
    newest_intact,
    prune,
    save_checkpoint,
    set_aside_newer,
    step_of,
)
from ludus.training.counters import Counters, counters_from
from ludus.training.device import prepare_device
from ludus.training.evaluator import judged_task
from ludus.training.forecast import Stopwatch, device_line, disk_line
from ludus.training.health import FaultWarnings, gradients_well, refuse_different_weights, weights_finite
from ludus.training.interrupt import Interrupt
from ludus.training.job import Job
from ludus.training.progress import Progress
from ludus.training.ram import short_of_memory
from ludus.training.rank_parts import load_own, own_part, save_together, why_anew
from ludus.training.run_folder import BEST, CONFIG
from ludus.training.run_logs import RunLogs
from ludus.training.saving_times import is_due, saving_lines
from ludus.training.staging import (
    Baggage,
    MakeStage,
    free_memory,
    stage_lines,
    task_number,
    try_stages,
    unreached_stages,
)
from ludus.training.standing import Score, Standing, keep_standing, score
from ludus.training.starting import start_from

MAX_UNSAVED = 3  # after so many checkpoints in a row that could not be written the training ends
MAX_ROLLBACKS = 3  # after so many returns to a checkpoint the run is given up


class Trainer:
    """Holds a run together: its job, its files, its screen.

    Where there are several ranks each has a trainer, and all go through the same loop: rank 0 alone writes files,
    and what a rank cannot know of the others (an interrupt, what lies on the disk) they agree on.
    """

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        console: Console,
        make_sinks: Callable[[int, int], Tee],
        make_job: Callable[[TrainConfig, torch.device], Job],
        callbacks: Sequence[Callback] = (),
        keep_folder: Callable[[], bool] = lambda: True,
        stop_at: int = 0,
    ) -> None:
        """`keep_folder` puts back what the run folder lacks, before a checkpoint; False if it had to.

        `stop_at`: save and stop at the first iteration that reaches this step; 0: at the end of the plan. The
        plan, and with it every schedule, stays that of the whole training.
        """
        self.stages = read_stages(config)
        self.config, self.run_dir, self.console = self.stages[0].config, run_dir, console
        self.callbacks = list(callbacks)
        self._watcher, self._logged = Watcher(self, self.callbacks), Logged()
        for stage in self.stages:
            stage.config.check()
        self.counters, self.stop_at = Counters(), stop_at
        self._precision_outside = torch.get_float32_matmul_precision()  # of the program that trains
        device = prepare_device(config)
        self._make_job: MakeStage = lambda stage: make_job(stage.config, device)
        self._make_sinks, self._keep_folder = make_sinks, keep_folder
        with short_of_memory(config.memory_advice):
            if len(self.stages) > 1:
                try_stages(self.stages, self._make_job)
            self.job = self._make_job(self.stages[0])
        self._watched = self._watch()
        self.plan = self.job.plan
        self._progress = Progress(console, self.plan, len(self.stages))
        self._unsaved = 0  # checkpoints in a row that could not be written
        self._logs = RunLogs(run_dir, self.job.batch_loss, console, config.log.every_row)
        self._row_at = (time.perf_counter(), 0)  # when and at which step the last row was written
        self._faults = FaultWarnings(console.warning)
        self._machine, self._stopwatch = Machine(), Stopwatch()

    @property
    def policy(self) -> Policy:
        """What is evaluated and saved, for callbacks; a run that learns a reward alone has none."""
        policy = self.job.models["policy"]
        assert isinstance(policy, Policy)
        return policy

    @property
    def step(self) -> int:
        """Environment steps trained on, or batches where no environment is stepped."""
        return self.counters.iteration * self.plan.steps_per_iteration

    def log(self, name: str, value: Any) -> None:
        """For callbacks: a metric of the next row, "custom/distance": the mean of all values since the last."""
        self._logged.add(name, value)

    def _watch(self) -> bool:
        """Let callbacks see steps and episodes; False where they would, but none are made."""
        return self.job.watch(self._watcher) if self._watcher else True

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    def begin(self) -> list[str]:
        """Before the first iteration: take what another run has learned, if asked to; returns lines about it."""
        return start_from(self.job, self.config.start_from) if self.config.start_from else []

    def forecast(self) -> list[str]:
        """What the run will take, as far as that is known before it starts."""
        disk = disk_line(self.job, self.config.checkpoint, self.run_dir)
        return ["; ".join(filter(None, (device_line(self.job.device), disk)))]

    def lines(self) -> list[str]:
        """How long the run takes, when it is saved, and its stages."""
        saving = saving_lines(self.config.checkpoint, self.plan)
        return [*self.plan.lines(), *saving, *stage_lines(self.stages, self.counters.stage)]

    def unreached_stages(self) -> list[str]:
        """What to say when the training has ended before its last stage."""
        return unreached_stages(self.stages, self.counters.stage)

    # The loop -----------------------------------------------------------------------------------
    def run(self) -> bool:
        """Train to the end of the plan. True when it came to its end, False when it was stopped before."""
        with short_of_memory(self.config.memory_advice):
            return self._run()

    def _run(self) -> bool:
        plan = self.plan
        self.sinks = self._make_sinks(self.step, self.counters.metric_rows)
        self._logs.cut_to(self.counters)
        self.console.start(plan.total_steps, self.step, plan.unit)
        self._row_at = (time.perf_counter(), self.step)
        self._since = time.perf_counter() - self.counters.seconds
        self._keep_standing()
        with Interrupt(self.console.message) as interrupt:
            self._interrupted = lambda: interrupt.requested
            try:
                for warning in (*self.job.cautions, *self.job.warnings):
                    self.console.warning(warning)
                if not self._watched:
                    self.console.warning("No environment is stepped: on_step and on_episode are never called.")
                going = ranks.everyone(self._notify("on_start"))
                if going and self.counters.evaluation_owed:
                    going = self._end_epoch(save=True)
                going &= not self.stopped_as_asked
                while (going := self._agree_to(going)) and self.counters.iteration < plan.total_iterations:
                    while self._stage_is_over():
                        self._enter_next_stage()
                    going = self._iteration() and not self.stopped_as_asked
                if not going:
                    self._save_if_new()
                if self.complete:
                    self._progress.complete(self.counters.stage)
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                self._save_emergency(error)
                if isinstance(error, Exception):  # and not a second Ctrl-C
                    self._keep_standing(failed=plain_text(f"{type(error).__name__}: {error}", 400))
                raise
            finally:
                self._notify("on_end")
        self._keep_standing()
        if self.complete and (left := self._logged.take()):  # after the last row
            self._write(left)
        if self.complete:
            self.sinks.keep_models(self._model_files())
            self.console.trained(self.counters.seconds)
        return self.complete

    def _agree_to(self, going: bool) -> bool:
        """Whether all ranks want to go on, and none was interrupted."""
        return ranks.everyone(going and not self._interrupted())

    def _model_files(self) -> dict[str, list[Path]]:
        """What is needed to use the final and the best models."""
        chosen = {"final": checkpoint_path(self.checkpoints, self.step), "best": best_checkpoint(self.checkpoints)}
        return {
            name: [
                self.run_dir / CONFIG,
                *sorted(f for model in self.job.models for f in folder.glob(f"{model}.*")),
            ]
            for name, folder in chosen.items()
            if folder is not None and folder.exists()
        }

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self.counters.iteration >= self.plan.total_iterations and not self.counters.evaluation_owed

    @property
    def stopped_as_asked(self) -> bool:
        """Whether the training has come to the step where it was to stop."""
        return 0 < self.stop_at <= self.step and not self.counters.evaluation_owed

    @property
    def _goal(self) -> int:
        """The step at which this training ends."""
        return min(self.stop_at or self.plan.total_steps, self.plan.total_steps)

    def _iteration(self) -> bool:
        """One iteration of the job, and whatever ends with it. False ends the training."""
        plan, done = self.plan, self.counters.iteration
        self._progress.begin(done, self.counters.stage)
        metrics = self.job.iteration(done, done / plan.total_iterations, self._progress)
        last = done + 1 == plan.total_iterations
        ends_cycle = (done + 1) % plan.iterations_per_cycle == 0 or last
        if (self.job.waits or ends_cycle) and not self._well(metrics):
            self._roll_back()
            return True
        self.counters.iteration += 1
        if metrics:
            self._tell_time()
        self._show_losses()
        going = self._notify("on_iteration") and not self._watcher.stopped
        ends_epoch = self.counters.iteration % plan.iterations_per_epoch == 0 or last
        if ends_epoch:
            self._log_batches()
            self._logs.end_epoch(self.counters, self.plan)  # before anything is saved
        if ends_cycle:
            going &= self._end_cycle(metrics)
        save = last or is_due(self.config.checkpoint, plan, self.counters.iteration)
        if ends_epoch:
            going &= self._end_epoch(save)
        elif save:
            self._save_if_new()  # a cycle's evaluation may have been the best
        return going

    def _tell_time(self) -> None:
        """Once, as soon as a few iterations have shown how long one takes."""
        plan, seconds = self.plan, self._stopwatch.lap(self.job.device)
        left = self._goal - self.step
        if seconds is not None and left > 0:
            rate = plan.steps_per_iteration / max(seconds, 1e-9)
            self.console.message(f"expected time: {duration(left / rate)} at {rate:,.0f} {plan.unit}/s")

    def _end_cycle(self, train: dict[str, Tensor]) -> bool:
        self._log_batches()
        row = self._row(train)
        self._write(row)
        self._faults.look(self.job, row)
        tested = self._test() if self.config.eval.each_cycle else {}
        shown = row | tested
        self.console.state.logged = tuple(self._logged.names)
        self.console.row(self.step, shown)
        going = self._notify("on_cycle", shown)
        return self._conclude(tested, always_save=False) and going

    def _end_epoch(self, save: bool) -> bool:
        if self.config.eval.each_cycle and not self.counters.evaluation_owed:
            if save:
                self._save_if_new()
            return True
        return self._conclude(self._test(), always_save=save)

    def _test(self) -> dict[str, float]:
        """Evaluate, and write that in a row of its own; empty when interrupted, and then owed."""
        self.console.progress(self.step, "evaluating")
        started = time.perf_counter()
        metrics = self.job.evaluate(self._interrupted)
        seconds = time.perf_counter() - started
        row_at, row_step = self._row_at
        self._row_at = row_at + seconds, row_step  # speed is that of training alone
        self.counters.evaluation_owed = not metrics
        if metrics:
            self._judge_stage(metrics)
            self.console.evaluation(self.step, metrics)
            metrics |= self.job.other_names(metrics, seconds)
            self._write(metrics)
            self._logs.write_table(self.job.table(), self.step)
            self._logs.add_episodes(
                self.job.evaluated_episodes(), self.job.start_words(), self.step, self.counters
            )
        return metrics

    def _conclude(self, metrics: dict[str, float], always_save: bool) -> bool:
        """After an evaluation: keep what is the best so far."""
        before = self.counters.best
        better = self._is_better(metrics)
        if better or always_save:
            checkpoint = self._save()
            if better and checkpoint is not None:
                self._mark_best(checkpoint)
            elif better:  # not kept, so a later policy need not be better than this one
                self.counters.best = before
        if not metrics:
            return True
        self._keep_standing()
        return self._notify("on_evaluation", metrics)

    def _mark_best(self, checkpoint: Path) -> None:
        if ranks.is_first():
            mark_best(checkpoint)
            prune(self.checkpoints, self.config.checkpoint.keep)

    # Stages -------------------------------------------------------------------------------------
    @property
    def stage(self) -> Stage:
        """The present one."""
        return self.stages[self.counters.stage]

    def _judge_stage(self, metrics: dict[str, float]) -> None:
        """Whether an evaluation ends the stage; and the number of its task, where there are several."""
        wanted = self.stage.success
        self.counters.stage_passed = wanted > 0 and metrics.get("eval/success_rate", 0.0) >= wanted
        if len(self.stages) > 1:
            metrics["eval/task"] = task_number(self.stages, self.counters.stage)

    def _stage_is_over(self) -> bool:
        steps, last = self.stage.steps, self.counters.stage == len(self.stages) - 1
        return not last and (self.counters.stage_passed or 0 < steps <= self.step)

    def _enter_next_stage(self) -> None:
        """The environments begin anew; all that was learned goes on. So does the best, if the task is the same."""
        baggage, counters = Baggage(self.job), self.counters
        counters.stage, counters.stage_passed = counters.stage + 1, False
        self._make_stage()
        baggage.give(self.job, counters.iteration)
        if counters.best_task not in ("", judged_task(self.config.env)):
            self._forget_best()
        number = f"Stage {counters.stage + 1} of {len(self.stages)}"
        self.console.message(f"{number} from step {self.step:,}: {self.stage.told}.")

    def _make_stage(self) -> None:
        """The job of the present stage in place of another."""
        self.job.close()
        del self.job  # before another takes as much memory
        free_memory()
        self.config, self.job = self.stage.config, self._make_job(self.stage)
        self._watch()

    def _notify(self, moment: str, *arguments: dict[str, float]) -> bool:
        answers = [getattr(callback, moment)(self, *arguments) for callback in self.callbacks]
        return all(answer is None or bool(answer) for answer in answers)

    # Measuring ----------------------------------------------------------------------------------
    def _row(self, train: dict[str, Tensor]) -> dict[str, float]:
        """One row: episodes, losses, speed and where the loop is."""
        now = time.perf_counter()
        then, step_then = self._row_at
        seconds, self._row_at = max(now - then, 1e-9), (now, self.step)
        rate = (self.step - step_then) / seconds
        self.counters.seconds = now - self._since
        plan, i = self.plan, self.counters.iteration
        place = {
            "epoch": (i - 1) // plan.iterations_per_epoch + 1,
            "cycle": ((i - 1) % plan.iterations_per_epoch) // plan.iterations_per_cycle + 1,
        }
        if len(self.stages) > 1:
            place["stage"] = self.counters.stage + 1
        row = {
            **{name: float(value) for name, value in train.items()},
            **self.job.cycle_metrics(),
            **{f"loop/{name}": value for name, value in place.items()},
            "time/iterations": i,
            "time/fps": rate,
            "time/time_elapsed": self.counters.seconds,
            "time/eta_s": max(0, self._goal - self.step) / max(rate, 1e-9),
            **self.job.timing.shares(seconds),
            **self._machine.metrics(),
        }
        return row | self.job.other_names(row, seconds) | self._logged.take()

    def _log_batches(self) -> None:
        losses = self.job.take_batch_losses()
        if losses is not None:
            self._logs.add_losses(losses, self.counters, self.plan)

    def _is_better(self, metrics: dict[str, float]) -> bool:
        if not metrics:
            return False
        better = quality(metrics) > self.counters.best[:2]
        if better:
            self.counters.best = *quality(metrics), self.step, judged_task(self.config.env)
        return better

    def _forget_best(self) -> None:
        """What was the best of another task says nothing about this one; its checkpoint stays while it is new."""
        self.counters.best = Counters().best
        if ranks.is_first():
            (self.checkpoints / BEST).unlink(missing_ok=True)

    def _write(self, metrics: dict[str, float]) -> None:
        self.sinks.write(self.step, metrics)
        self.counters.metric_rows += 1

    def write_end(self, result: dict[str, float]) -> None:
        """The last row: the training time, and what was measured afterwards. A resume that goes on cuts it off."""
        if not hasattr(self, "sinks"):
            self.sinks = self._make_sinks(self.step, self.counters.metric_rows)
        final = {f"final/{name}": value for name, value in result.items()}
        self.sinks.write(self.step, {"time/time_elapsed": self.counters.seconds, **final})
        self.sinks.flush()
        judged = {name: result.get(name, math.nan) for name in ("success_rate", "mean_reward")}
        self._keep_standing(score(judged, self.counters.best_step, int(result.get("episodes", 0))))

    def _keep_standing(self, final: Score | None = None, failed: str = "") -> None:
        """For lists of runs."""
        if not ranks.is_first():
            return
        counters, plan, names = self.counters, self.plan, ("success_rate", "mean_reward")
        if hasattr(self, "job") and "policy" not in self.job.models:  # a learned reward, on held-out episodes
            names = ("AUC", "fit")
        best = score(dict(zip(names, counters.best[:2], strict=True)), counters.best_step)
        where = (self.config.algo, self.step, plan.total_steps, plan.unit)
        keep_standing(self.run_dir, Standing(*where, best, final, failed))

    def _show_losses(self) -> None:
        losses = self.job.newest_losses() if self.job.waits else None  # else it would wait for a GPU at work
        if losses is not None:
            self._logs.show_losses(losses, self.counters.iteration)

    # Saving -------------------------------------------------------------------------------------
    def _save(self, whole: bool = True) -> Path | None:
        """The new checkpoint. None if an error that may pass kept it from being written: the training goes on."""
        try:
            checkpoint = self._save_at_once() if whole else self._save_files(whole)
        except UnsavedError as error:
            self._unsaved += 1
            last = self.counters.iteration >= self.plan.total_iterations
            if self._unsaved > MAX_UNSAVED or last or not whole or ranks.anyone(self._interrupted()):
                raise
            self.console.warning(f"{error} The training goes on, and is saved at the next opportunity.")
            return None
        self._unsaved = 0
        return checkpoint

    def _save_at_once(self) -> Path:
        refuse_different_weights(self.job, self.step)

        def own() -> State:
            return own_part(self.job.state(whole=True), self.job.own_paths())

        return save_together(self.checkpoints, self.step, own, lambda parts: self._save_files(True, parts))

    def _save_files(self, whole: bool, parts: Sequence[Path] = ()) -> Path:
        self.counters.seconds = time.perf_counter() - self._since
        self._log_batches()
        if not self._keep_folder():
            self.console.warning(f"The run folder {self.run_dir} was deleted; what it must hold is written anew.")
        self.sinks.flush()
        checkpoint = save_checkpoint(self.checkpoints, self.step, self.job.models, self._state(whole), parts)
        prune(self.checkpoints, self.config.checkpoint.keep)
        return checkpoint

    def _save_if_new(self) -> None:
        if ranks.told_by_first(not checkpoint_path(self.checkpoints, self.step).exists()):
            self._save()

    def _save_emergency(self, error: BaseException) -> None:
        """Something broke: keep what was learned. The environments are in an unknown state and start anew.

        Rank 0 does it alone: nothing is known of the others. Where another rank was lost nothing is kept: from the
        last whole checkpoint all go on bit for bit.
        """
        if not ranks.is_first() or isinstance(error, ranks.RankLostError):
            return
        if isinstance(error, CheckpointError) or self.step == 0 or not hasattr(self, "job"):  # of the next stage
            return
        if checkpoint_path(self.checkpoints, self.step).exists() or not weights_finite(self.job):
            return
        try:
            self.console.message(f"Saved an emergency checkpoint: {self._save(whole=False)}")
        except (LudusError, MemoryError, RuntimeError) as second:  # where memory was short, it may be so again
            self.console.warning(str(second))

    def _state(self, whole: bool) -> State:
        return {
            "job": self.job.state(whole),
            "counters": self.counters.saved(),
            "logged": self._logged.state(),
            "ranks": ranks.size(),
        }

    def restore(self, checkpoint: Path, set_aside: Callable[[Path], Any] = set_aside_newer) -> None:
        """Continue exactly from a checkpoint. `set_aside` moves newer ones away: by default they are damaged."""
        try:
            state = load_own(checkpoint, self.job.own_paths())
            before, self.counters = self.counters.stage, counters_from(state["counters"])
            if self.counters.stage != before:
                self._make_stage()
            self._refuse_other_iterations(checkpoint)
            for name, model in self.job.models.items():
                model.load_state_dict(load_model_weights(checkpoint, name))
            self._logged.load_state(state.get("logged", {}))  # older checkpoints have none
            if self.counters.logged_batches > self.counters.iteration * self.plan.batches_per_iteration:
                raise ConfigError(
                    "This run has made more batches than it would have with as few in an iteration: that cannot "
                    "change on resume. Start another training with --from."
                )
            if not self.job.load_state(state["job"], self.counters.iteration):
                self.console.warning(why_anew(state))
        except MALFORMED as error:
            reason = plain_text(f"{type(error).__name__}: {error}", 300)
            raise CheckpointError(f"{checkpoint} does not fit its run's configuration: {reason}") from error
        if ranks.is_first():
            set_aside(checkpoint)
        if self.counters.best_task not in ("", judged_task(self.config.env)):
            self._forget_best()
        best = checkpoint_path(self.checkpoints, self.counters.best_step)
        if not ranks.told_by_first(best.exists()):  # not kept, so a later policy need not be better than this one
            self._forget_best()
        elif ranks.is_first() and best != best_checkpoint(self.checkpoints):
            mark_best(best)  # a kill came between the checkpoint and its mark

    def _refuse_other_iterations(self, checkpoint: Path) -> None:
        """Steps are counted in iterations, so these stay as long as they were."""
        if (step := step_of(checkpoint)) != self.step:
            raise ConfigError(
                f"Iterations of this run have {step // self.counters.iteration:,} steps; with the changed "
                f"settings they would have {self.plan.steps_per_iteration:,}. That cannot change on resume: start "
                "another training with --from."
            )

    # Trouble ------------------------------------------------------------------------------------
    def _well(self, metrics: dict[str, Tensor]) -> bool:
        return gradients_well(self.job, metrics, self.step, self.run_dir, self.console.warning)

    def _roll_back(self) -> None:
        """Return to the newest checkpoint, or to the beginning, with half the learning rate."""
        rollbacks, factor = self.counters.rollbacks + 1, self.job.rate_factor / 2
        if rollbacks > MAX_ROLLBACKS:
            raise TrainingError(
                "Training diverged: losses are not finite numbers any more, and going back to a checkpoint did "
                f"not help. Try a smaller --{self.job.rate_name}; what was trained on last is in the run's "
                "nan_dump folder."
            )
        if newest := ranks.told_by_first(self._newest_intact()):
            checkpoint = Path(newest)
            self.console.warning(f"Going back to {checkpoint.name} with half the learning rate.")
            self.restore(checkpoint)
        else:
            self.console.warning("Beginning again with half the learning rate: there is no checkpoint yet.")
            self._begin_again()
        self.sinks.close()
        self.sinks = self._make_sinks(self.step, self.counters.metric_rows)
        self._logs.cut_to(self.counters)
        self.counters.rollbacks = rollbacks
        self._row_at = (time.perf_counter(), self.step)
        self.job.set_rate_factor(factor)

    def _newest_intact(self) -> str:
        """Empty before there is a checkpoint. Rank 0 looks for all."""
        if not ranks.is_first() or not checkpoints_in(self.checkpoints):
            return ""
        return str(newest_intact(self.checkpoints, self.console.warning))

    def _begin_again(self) -> None:
        self.counters, self._logged = Counters(), Logged()
        self._make_stage()
        self.begin()

    def close(self) -> None:
        """Give back processes, threads and files."""
        if hasattr(self, "job"):
            self.job.close()
        if hasattr(self, "sinks"):
            self.sinks.close()
        torch.set_float32_matmul_precision(self._precision_outside)
