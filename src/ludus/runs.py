"""What can be done with a run: train, resume, load, evaluate, report, play. Command line and Python share it."""

import importlib.util
import json
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import gymnasium
import mujoco
import numpy as np
import torch
import yaml

from ludus.config import TrainConfig, apply_overrides, load_config, to_dict
from ludus.envs import HumanoidConfig, make_eval_env, make_vec_env
from ludus.envs.humanoid.catalogue import whole_names
from ludus.envs.humanoid.task import HumanoidTask
from ludus.envs.humanoid.trials import act_as_trained, on_clips
from ludus.envs.vec import VecEnv, derive_seed
from ludus.errors import CheckpointError, ConfigError, LudusError, listable
from ludus.logging.clip_table import read_clip_table
from ludus.logging.console import Console
from ludus.logging.jsonl import JsonlSink, read_metrics, truncate_to
from ludus.logging.reward_page import RewardTrace
from ludus.logging.sinks import MetricSink, Tee
from ludus.policies.policy import Policy
from ludus.presets import find_preset
from ludus.training.callbacks import Callback
from ludus.training.checkpoint import (
    checkpoints_in,
    clear_leftovers,
    load_policy,
    newest_intact,
    problem_of,
    refuse_misfit,
)
from ludus.training.evaluator import Evaluation, evaluate
from ludus.training.loop import Trainer
from ludus.training.run_lock import run_lock

T = TypeVar("T")


# Training ---------------------------------------------------------------------------------------
def train(
    preset: str,
    run_dir: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    config: TrainConfig | None = None,
    overrides: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """Train a preset or `gym:ID` and return the run's folder.

    Settings go by their names in `ludus train PRESET --help`, nested ones as dicts or dotted:
    `ludus.train("kuka-pick-place", seed=1, ppo={"gamma": 0.98}, overrides={"loop.total_steps": 200_000})`.
    `config` replaces the preset's own.
    """
    given = {**settings, **(overrides or {})}
    algo = "" if config else str(given.pop("algo", ""))  # which brings defaults of its own
    config = _with_whole_path(apply_overrides(config or find_preset(preset, algo).config, given))
    if config.log.wandb and importlib.util.find_spec("wandb") is None:  # before anything is written
        raise ConfigError("W&B logging is on, but the package is missing: `pip install 'ludus[wandb]'`.")
    folder = Path(run_dir) if run_dir else Path("runs") / preset.replace(":", "-") / _run_name(config.seed)
    with ExitStack() as held, console or Console() as screen:
        with closing(Trainer(config, folder, screen, _sinks(folder, config, screen), callbacks)) as trainer:
            held.enter_context(run_lock(folder))  # settings that do not work have left nothing behind
            _create_run(folder, preset, config)
            screen.plan(f"{preset} → {folder}", [*trainer.plan.lines(), *trainer.job.lines()])
            trainer.run()
        _finish(trainer)
    return folder


def _with_whole_path(config: TrainConfig) -> TrainConfig:
    """Recorded data and clips of motion are found again from any folder."""
    if isinstance(config.env, HumanoidConfig):
        config = replace(config, env=replace(config.env, clips=whole_names(config.env.clips)))
    given = [Path(part.strip()).expanduser() for part in config.data.path.split(",") if part.strip()]
    data = ",".join(listable(path.resolve()) for path in given)
    return replace(config, data=replace(config.data, path=data))


def resume(
    run: str | Path,
    callbacks: Sequence[Callback] = (),
    console: Console | None = None,
    overrides: dict[str, Any] | None = None,
) -> Path:
    """Go on with a run from its newest intact checkpoint, exactly where it was."""
    folder = run_folder(run)
    with run_lock(folder), console or Console() as screen:
        config = apply_overrides(run_config(folder), overrides or {})
        clear_leftovers(folder / "checkpoints")
        checkpoint = newest_intact(folder / "checkpoints", screen.warning)
        with closing(Trainer(config, folder, screen, _sinks(folder, config, screen), callbacks)) as trainer:
            trainer.restore(checkpoint)
            if trainer.complete:
                raise ConfigError(
                    f"{folder} is already trained to its {trainer.plan.total_steps:,} {trainer.plan.unit}; "
                    f"give it more with 'ludus resume {folder} --total-steps {2 * trainer.plan.total_steps}'."
                )
            metrics = folder / "metrics.jsonl"
            if metrics.exists():  # a lost one is no reason to lose the run as well
                screen.remember(read_metrics(metrics)[: trainer.counters.metric_rows])
            screen.plan(f"resuming {folder} at step {trainer.step:,}", trainer.plan.lines())
            if overrides:
                _write_config(folder, config)
            (folder / "final").unlink(missing_ok=True)  # what it points to is no longer the end
            trainer.run()
        _finish(trainer)
    return folder


def _finish(trainer: Trainer) -> None:
    folder, screen = trainer.run_dir, trainer.console
    if not trainer.complete:
        screen.finish([f"Stopped at step {trainer.step:,} and saved.", f"Go on with: ludus resume {folder}"])
        return
    final = folder / "final"
    final.unlink(missing_ok=True)
    final.symlink_to(checkpoints_in(folder / "checkpoints")[-1].relative_to(folder))
    if trainer.config.log.report:
        screen.message("Writing the report …")
        try:
            write_run_report(folder)
        except Exception as error:  # noqa: BLE001 (whatever breaks a picture, the training has succeeded)
            screen.warning(f"No report: {error}")
    for warning in trainer.job.warnings:
        screen.warning(warning)
    measured = (
        f"ludus eval {folder}                    how good it is, clip by clip"
        if isinstance(trainer.config.env, HumanoidConfig) and trainer.config.env.goal == "track"
        else f"ludus eval {folder} --episodes 200     how good it is, on new starts"
    )
    used = [
        measured,
        f"ludus play {folder}                    watch it in the browser",
    ]
    if trainer.config.algo == "reward":
        used = [
            f"ludus eval {folder}                    how good it is, on the episodes held out",
            f"ludus label FILE --run {folder}        a copy of the data with this reward in it",
        ]
    done = f"Trained {trainer.step:,} {trainer.plan.unit} in {trainer.counters.seconds:.0f} s."
    screen.finish(
        [
            f"{done} Run folder: {folder}",
            *used,
            f"ludus report {folder}                  all in one page: {folder}/report.html",
            *([f"tensorboard --logdir {folder}/tb       all metrics"] if trainer.config.log.tensorboard else []),
        ]
    )


def _create_run(folder: Path, preset: str, config: TrainConfig) -> None:
    facts = {
        "preset": preset,
        "seed": config.seed,
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "versions": _versions(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }
    try:
        if any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "checkpoints")):
            raise ConfigError(
                f"{folder} already holds a run; 'ludus resume {folder}' continues it, or choose another --run-dir."
            )
        _write_config(folder, config)
        (folder / "run.json").write_text(json.dumps(facts, indent=1))
    except OSError as error:
        raise ConfigError(
            f"The run folder {folder} cannot be written: {error.strerror}. Choose another with --run-dir."
        ) from error


def _write_config(folder: Path, config: TrainConfig) -> None:
    aside = folder / "config.yaml.tmp"
    aside.write_text(yaml.safe_dump(to_dict(config), sort_keys=False))
    aside.rename(folder / "config.yaml")


def _run_name(seed: int) -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{seed}"


def _versions() -> dict[str, str]:
    from ludus import __version__

    packages = {"torch": torch, "mujoco": mujoco, "gymnasium": gymnasium, "numpy": np}
    return {"ludus": __version__} | {name: str(module.__version__) for name, module in packages.items()}


def _sinks(folder: Path, config: TrainConfig, screen: Console) -> Any:
    def make(step: int, rows: int) -> Tee:
        """Sinks that go on after the first `rows` rows, at `step`: later ones will be written again."""
        sinks: list[MetricSink] = [JsonlSink(folder / "metrics.jsonl")]
        truncate_to(folder / "metrics.jsonl", rows)
        if config.log.tensorboard:
            from ludus.logging.tensorboard import TensorBoardSink

            purge = step + 1 if step else None
            if config.algo == "reward":  # the axis is the steps in the store, which do not grow: nothing to purge
                sinks.append(TensorBoardSink(folder / "tb", axis="Timesteps"))
                sinks.append(TensorBoardSink(folder / "tb" / "by_batch", purge_step=purge))
            else:
                sinks.append(TensorBoardSink(folder / "tb", purge_step=purge))
        if config.log.wandb:
            sinks.append(_wandb_sink(folder, config))
        return Tee(sinks, screen.warning)

    return make


def _wandb_sink(folder: Path, config: TrainConfig) -> MetricSink:
    from ludus.logging.wandb import WandbSink

    facts = json.loads((folder / "run.json").read_text())
    sink = WandbSink(config.log.wandb, folder.name, to_dict(config), folder / "wandb", facts.get("wandb_id"))
    (folder / "run.json").write_text(json.dumps(facts | {"wandb_id": sink.run_id}, indent=1))
    return sink


# Reading a run ----------------------------------------------------------------------------------
def run_folder(run: str | Path) -> Path:
    """The path, if there is a run."""
    folder = Path(run)
    if not folder.exists():
        raise CheckpointError(f"There is no run folder {folder}.")
    if not (folder / "config.yaml").exists():
        raise CheckpointError(f"{folder} is not a run of Ludus: it has no config.yaml.")
    return folder


def run_config(folder: Path) -> TrainConfig:
    return load_config(folder / "config.yaml", TrainConfig())


def _best_checkpoint(folder: Path) -> Path:
    """The best checkpoint of a run if its models are intact, else the newest of which they are."""
    best = folder / "checkpoints" / "best"
    if best.exists() and problem_of(best.resolve(), to_resume=False) is None:
        return best.resolve()
    return newest_intact(folder / "checkpoints", lambda text: print(text, file=sys.stderr), to_resume=False)


def from_best(run: str | Path, read: Callable[[Path], T]) -> T:
    """What `read` finds in the best checkpoint of a run, which a training may replace by a better one."""
    folder = run_folder(run)
    checkpoint = _best_checkpoint(folder)
    while True:
        try:
            return read(checkpoint)
        except CheckpointError:
            tried, checkpoint = checkpoint, _best_checkpoint(folder)
            if checkpoint == tried:
                raise


def load(run: str | Path) -> Policy:
    """The best policy of a run: `ludus.load(RUN).act(obs)`, with a memory `.actor()` and its `act`."""
    return from_best(run, load_policy)


def make_env(name: str, num_envs: int | None = None, evaluation: bool = False, **settings: Any) -> VecEnv:
    """A batch of environments: `ludus.make_env("kuka-pick-place", num_envs=64)`."""
    config = apply_overrides(find_preset(name).config, {f"env.{key}": value for key, value in settings.items()})
    return make_vec_env(config.env, num_envs or config.env.num_envs, evaluation)


def evaluate_run(run: str | Path, episodes: int, deterministic: bool, seed: int | None = None) -> Evaluation:
    """Evaluate a run's best policy on starts used neither in training nor in choosing the best.

    Where the starts are fixed they are those by which it was chosen.
    """
    return measure_run(run, episodes, deterministic, seed)[0]


def measure_run(
    run: str | Path, episodes: int, deterministic: bool, seed: int | None = None, clips: str = ""
) -> tuple[Evaluation, list[dict[str, Any]]]:
    """The same, and the lines of a table where the episodes are of several kinds.

    An environment with fixed starts plays each of them once, whatever `episodes` says. `clips`: others for a
    humanoid to follow than those it was trained on.
    """
    folder = run_folder(run)
    config = run_config(folder)
    if episodes < 1:
        raise ConfigError(f"--episodes is {episodes}; it must be at least 1.")
    torch.set_num_threads(config.torch_threads)
    policy = load(folder)
    env = make_eval_env(on_clips(config.env, clips) if clips else config.env, episodes)
    try:
        refuse_misfit(policy, env)
        if isinstance(env, HumanoidTask) and isinstance(config.env, HumanoidConfig):
            act_as_trained(env, config.env)
        stream = derive_seed(config.seed if seed is None else seed, 5)
        result = evaluate(policy, env, episodes, stream, deterministic, max_steps=config.eval.max_steps)
        return result, env.tabulate(result.metrics, result.labels)
    finally:
        env.close()


# Pictures ---------------------------------------------------------------------------------------
def write_run_report(run: str | Path) -> Path:
    """report.html and replay.html of a run."""
    from ludus.logging.report import write_report
    from ludus.viewing import record_replay

    folder = run_folder(run)
    config = run_config(folder)
    replay, traces = None, list[RewardTrace]()
    try:
        if config.algo == "reward":
            from ludus.rewards import reward_traces  # which imports this file

            traces = reward_traces(folder)
        else:
            ranked = [str(row["clip"]) for row in read_clip_table(folder)[1]]
            replay = record_replay(config.env, load(folder), folder.resolve().parent.name, ranked=ranked)
    except LudusError as error:  # a run without a checkpoint, or a machine without a viewer, still has curves
        print(f"No {'rewards' if config.algo == 'reward' else 'replay'}: {error}", file=sys.stderr)
    return write_report(folder, replay, rewards=traces)


def play_run(run: str | Path, port: int, seconds: float | None, clips: str = "", beside: float = 0.0) -> None:
    """Watch a run's best policy live in the browser.

    Of a humanoid: following `clips`, by default those it was trained on, its ghost `beside` metres away.
    """
    from ludus.viewing import drawable_env, play_live

    folder = run_folder(run)
    trained, policy = run_config(folder).env, load(folder)
    env = drawable_env(on_clips(trained, clips) if clips else trained, trained, beside)
    try:
        refuse_misfit(policy, env)
        play_live(env, policy, folder.resolve().parent.name, port, seconds)
    finally:
        env.close()
