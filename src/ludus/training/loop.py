"""The one loop: epoch › cycle › iteration › batch.

An iteration is one rollout and its batches (gradient steps); a cycle ends with a row of metrics; an epoch
ends with an evaluation and a checkpoint. Everything a run is made of is saved, so that a killed run goes on
as if nothing had happened.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from ludus.algorithms.ppo import PPO
from ludus.buffers.segments import Segments
from ludus.config import TrainConfig, check_config, make_plan
from ludus.envs import make_eval_env, make_groups
from ludus.envs.vec import State, VecEnv, derive_seed
from ludus.errors import CheckpointError, ConfigError, LudusError, TrainingError
from ludus.logging.console import Console
from ludus.logging.run_state import quality, system_metrics
from ludus.logging.sinks import Tee
from ludus.policies.policy import make_policy
from ludus.training.callbacks import Callback
from ludus.training.checkpoint import (
    checkpoint_path,
    checkpoints_in,
    dump_tensors,
    load_policy_weights,
    load_training,
    mark_best,
    newest_intact,
    prune,
    save_checkpoint,
    set_aside_newer,
)
from ludus.training.collector import Collector
from ludus.training.evaluator import evaluate
from ludus.training.interrupt import Interrupt
from ludus.training.memory import plan_memory, refuse_what_cannot_fit

PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}
MAX_ROLLBACKS = 3  # after so many returns to a checkpoint the run is given up


@dataclass
class Counters:
    """Where a run is. Saved with every checkpoint."""

    iteration: int = 0
    metric_rows: int = 0
    seconds: float = 0.0
    best_success: float = float("-inf")  # of the best evaluation so far; the success rate first, then the return
    best_reward: float = float("-inf")
    best_step: int = -1
    evaluation_owed: bool = False  # an interrupt cut the epoch's evaluation short
    rollbacks: int = 0


class Trainer:
    """Holds a run together: environments, policy, algorithm, files."""

    def __init__(
        self,
        config: TrainConfig,
        run_dir: Path,
        console: Console,
        make_sinks: Callable[[int, int], Tee],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config, self.run_dir, self.console = config, run_dir, console
        self.callbacks = list(callbacks)
        check_config(config)
        self.counters = Counters()
        device = find_device(config.device)
        torch.set_num_threads(config.torch_threads)
        torch.set_float32_matmul_precision(PRECISIONS[config.precision])
        groups = make_groups(config.env, config.groups, device)
        self.plan = make_plan(config, rows=sum(env.num_rows for env in groups))
        self.policy = make_policy(groups[0], config.policy, derive_seed(config.seed, 4)).to(device)
        schedule, graphs = self.plan.schedule, config.cuda_graphs
        self.memory_plan = plan_memory(self.policy, schedule, config.ppo.minibatches, config.groups)
        refuse_what_cannot_fit(self.memory_plan, device)
        self.ppo = PPO(self.policy, config.ppo, schedule, config.seed, graphs)
        self.collector = Collector(groups, self.policy, schedule, config.ppo.gamma, config.seed, graphs)
        self._eval_env: VecEnv | None = None
        self._make_sinks = make_sinks
        self._learn_seconds = 0.0
        self._row_at = (time.perf_counter(), 0)  # when and at which step the last row was written

    @property
    def step(self) -> int:
        """Environment steps trained on."""
        return self.counters.iteration * self.plan.steps_per_iteration

    @property
    def checkpoints(self) -> Path:
        return self.run_dir / "checkpoints"

    # The loop -----------------------------------------------------------------------------------
    def run(self) -> bool:
        """Train to the end of the plan. True when it came to its end, False when it was stopped before."""
        plan = self.plan
        self.sinks = self._make_sinks(self.step, self.counters.metric_rows)
        self.console.start(plan.total_steps, self.step)
        self._row_at = (time.perf_counter(), self.step)
        self._since = time.perf_counter() - self.counters.seconds
        with Interrupt(self.console.message) as interrupt:
            self._interrupted = lambda: interrupt.requested
            try:
                going = self._notify("on_start")
                if going and self.counters.evaluation_owed:
                    going = self._end_epoch()
                while going and self.counters.iteration < plan.total_iterations and not interrupt.requested:
                    going = self._iteration()
                if interrupt.requested or not going:
                    self._save_if_new()
            except (Exception, KeyboardInterrupt) as error:
                self._save_emergency(error)
                raise
            finally:
                self._notify("on_end")
        return self.complete

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self.counters.iteration >= self.plan.total_iterations and not self.counters.evaluation_owed

    def _iteration(self) -> bool:
        """One rollout, its batches, and whatever ends with it. False ends the training."""
        plan, done = self.plan, self.counters.iteration
        progress = done / plan.total_iterations
        self.collector.set_progress(progress)
        segments = self.collector.collect(done, self._show_progress)
        started = time.perf_counter()
        metrics = self.ppo.update(segments, progress)
        healthy = self._healthy(metrics, segments)  # which on a GPU waits for the update
        self._learn_seconds += time.perf_counter() - started
        if not healthy:
            self._roll_back()
            return True
        self.counters.iteration += 1
        if self.config.ppo.kl_control == "adapt":
            self.ppo.adapt_rate(float(metrics["train/approx_kl"]))
        last = self.counters.iteration == plan.total_iterations
        going = self._notify("on_iteration")
        if self.counters.iteration % plan.iterations_per_cycle == 0 or last:
            going &= self._end_cycle(metrics)
        if self.counters.iteration % plan.iterations_per_epoch == 0 or last:
            going &= self._end_epoch()
        elif self._checkpoint_due():
            self._save()
        return going

    def _end_cycle(self, train: dict[str, Tensor]) -> bool:
        metrics = self._row(train)
        self._write(metrics)
        self.console.row(self.step, metrics)
        return self._notify("on_cycle", metrics)

    def _end_epoch(self) -> bool:
        self.console.progress(self.step, "evaluating")
        started = time.perf_counter()
        metrics = self._evaluate()
        row_at, row_step = self._row_at
        self._row_at = row_at + time.perf_counter() - started, row_step  # speed is that of training alone
        self.counters.evaluation_owed = not metrics
        if metrics:
            self._write(metrics)
            self.console.evaluation(self.step, metrics)
        better = self._is_better(metrics)
        checkpoint = self._save()
        if better:
            mark_best(checkpoint)
            prune(self.checkpoints, self.config.checkpoint.keep)
        return self._notify("on_evaluation", metrics) if metrics else True

    def _notify(self, moment: str, *arguments: dict[str, float]) -> bool:
        answers = [getattr(callback, moment)(self, *arguments) for callback in self.callbacks]
        return all(answer is None or bool(answer) for answer in answers)

    # Measuring ----------------------------------------------------------------------------------
    def _row(self, train: dict[str, Tensor]) -> dict[str, float]:
        """One row: episodes, losses, speed and where the loop is."""
        now = time.perf_counter()
        then, step_then = self._row_at
        seconds, self._row_at = max(now - then, 1e-9), (now, self.step)
        timing, learn = self.collector.take_timing(), self._learn_seconds
        self._learn_seconds = 0.0
        fps = (self.step - step_then) / seconds
        self.counters.seconds = now - self._since
        plan, i = self.plan, self.counters.iteration
        return {
            **self.collector.episode_metrics(),
            **{name: float(value) for name, value in train.items()},
            "loop/epoch": (i - 1) // plan.iterations_per_epoch + 1,
            "loop/cycle": ((i - 1) % plan.iterations_per_epoch) // plan.iterations_per_cycle + 1,
            "loop/iteration": i,
            "time/fps": fps,
            "time/elapsed_s": self.counters.seconds,
            "time/eta_s": (plan.total_steps - self.step) / max(fps, 1e-9),
            "time/simulate_share": timing.simulate / seconds,
            "time/act_share": timing.act / seconds,
            "time/learn_share": learn / seconds,
            **system_metrics(),
        }

    def _evaluate(self) -> dict[str, float]:
        """Deterministic and, if wanted, stochastic evaluation; empty when interrupted."""
        config = self.config.eval
        if self._eval_env is None:
            self._eval_env = make_eval_env(self.config.env, config.episodes, self.policy.device)
        metrics: dict[str, float] = {}
        seed = derive_seed(self.config.seed, 3)
        for prefix, deterministic in (("eval", True), ("eval_stochastic", False)):
            if deterministic or config.stochastic:
                result = evaluate(
                    self.policy, self._eval_env, config.episodes, seed, deterministic, self._interrupted
                )
                if self._interrupted():
                    return {}
                metrics |= {f"{prefix}/{name}": value for name, value in result.summary().items()}
        return metrics

    def _is_better(self, metrics: dict[str, float]) -> bool:
        if not metrics:
            return False
        better = quality(metrics) > (self.counters.best_success, self.counters.best_reward)
        if better:
            self.counters.best_success, self.counters.best_reward = quality(metrics)
            self.counters.best_step = self.step
        return better

    def _write(self, metrics: dict[str, float]) -> None:
        self.sinks.write(self.step, metrics)
        self.counters.metric_rows += 1

    def _show_progress(self, t: int) -> None:
        steps = max(1, self.plan.schedule.steps(self.counters.iteration))
        share = min(1.0, (t + 1) / steps)
        self.console.progress(self.step + round(share * self.plan.steps_per_iteration), "")

    # Saving -------------------------------------------------------------------------------------
    def _checkpoint_due(self) -> bool:
        every = self.config.checkpoint.every
        before = self.step - self.plan.steps_per_iteration
        return every > 0 and self.step // every > before // every

    def _save(self, collector: bool = True) -> Path:
        self.counters.seconds = time.perf_counter() - self._since
        self.sinks.flush()
        checkpoint = save_checkpoint(self.checkpoints, self.step, self.policy, self._state(collector))
        prune(self.checkpoints, self.config.checkpoint.keep)
        return checkpoint

    def _save_if_new(self) -> None:
        if not checkpoint_path(self.checkpoints, self.step).exists():
            self._save()

    def _save_emergency(self, error: BaseException) -> None:
        """Something broke: keep what was learned. The environments are in an unknown state and start anew."""
        if isinstance(error, CheckpointError) or self.step == 0:
            return
        if checkpoint_path(self.checkpoints, self.step).exists() or not self._weights_finite():
            return
        try:
            self.console.message(f"Saved an emergency checkpoint: {self._save(collector=False)}")
        except LudusError as second:
            self.console.warning(str(second))

    def _state(self, collector: bool) -> State:
        return {
            "ppo": self.ppo.state(),
            "collector": self.collector.state() if collector else None,
            "counters": asdict(self.counters) | self._best_as_text(),
        }

    def _best_as_text(self) -> dict[str, str]:
        """JSON has no infinity, which is where the search for the best begins."""
        return {name: str(getattr(self.counters, name)) for name in ("best_success", "best_reward")}

    def restore(self, checkpoint: Path) -> None:
        """Continue exactly from a checkpoint, the newest that is intact."""
        _, state = load_training(checkpoint)
        try:
            self.policy.load_state_dict(load_policy_weights(checkpoint))
            self.ppo.load_state(state["ppo"])
            saved = state["counters"]
            self.counters = Counters(**(saved | {name: float(saved[name]) for name in self._best_as_text()}))
            if state["collector"] is not None:
                self.collector.load_state(state["collector"])
            else:
                self.collector.begin_at(self.counters.iteration)
                self.console.warning(
                    "This is an emergency checkpoint: what the environments were doing is not in it."
                )
        except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise CheckpointError(
                f"{checkpoint} does not fit its run's configuration: {type(error).__name__}: {error}"
            ) from error
        set_aside_newer(checkpoint)
        best = checkpoint_path(self.checkpoints, self.counters.best_step)
        if best.exists() and best.resolve() != (self.checkpoints / "best").resolve():
            mark_best(best)  # a kill came between the checkpoint and its mark

    # Trouble ------------------------------------------------------------------------------------
    def _healthy(self, metrics: dict[str, Tensor], segments: Segments) -> bool:
        """False when the updates of this iteration did no good at all; the batch is then kept for inspection."""
        skipped = int(metrics["train/skipped_updates"])
        if skipped == 0:
            return True
        if skipped < self.plan.batches_per_iteration / 2 and self._weights_finite():
            self.console.warning(f"{skipped} gradients were not finite and were skipped (step {self.step:,}).")
            return True
        path = self.run_dir / "nan_dump" / f"step_{self.step:09d}.safetensors"
        dump_tensors(path, {name: getattr(segments, name) for name in ("obs", "action", "reward")})
        self.console.warning(f"{skipped} gradients were not finite; the rollout is kept in {path}.")
        return False

    def _weights_finite(self) -> bool:
        return bool(torch.isfinite(self.ppo.optimizer.flat).all())

    def _roll_back(self) -> None:
        """Return to the newest checkpoint with half the learning rate."""
        rollbacks, factor = self.counters.rollbacks + 1, self.ppo.rate_factor / 2
        if rollbacks > MAX_ROLLBACKS or not checkpoints_in(self.checkpoints):
            raise TrainingError(
                "Training diverged: losses are not finite numbers any more, and going back to a checkpoint did "
                "not help. Try a smaller --ppo.learning-rate; the last rollout is in the run's nan_dump folder."
            )
        checkpoint = newest_intact(self.checkpoints, self.console.warning)
        self.console.warning(f"Going back to {checkpoint.name} with half the learning rate.")
        self.restore(checkpoint)
        self.sinks.close()
        self.sinks = self._make_sinks(self.step, self.counters.metric_rows)
        self.counters.rollbacks, self.ppo.rate_factor = rollbacks, factor

    def close(self) -> None:
        """Give back processes, threads and files."""
        self.collector.close()
        if self._eval_env is not None:
            self._eval_env.close()
        if hasattr(self, "sinks"):
            self.sinks.close()


def find_device(name: str) -> torch.device:
    try:
        device = torch.zeros(1, device=name).device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # streams, graphs and kernels go to the present one
        return device
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--device {name} cannot be used here: {reason}; 'ludus doctor' shows what can."
        ) from error
