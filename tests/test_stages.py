"""A curriculum: other settings before the run's own, and a run that goes on exactly across the change."""

import functools
import gc
import json
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import ludus
import warm_python
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.config_files import from_dict
from ludus.errors import ConfigError, EnvError, TrustError
from ludus.presets import find_preset
from ludus.saved_run import trusted_config
from ludus.show.console import Console
from ludus.show.report import write_report
from ludus.stages import read_stages, stages_with_whole_paths
from ludus.training.checkpoint import checkpoints_in
from ludus.training.job import Job
from ludus.training.loop import Trainer
from stopped_runs import StopAfter, assert_same_run, metric_rows
from warm_python import ludus_command, python_command

QUIET: dict[str, Any] = {
    "log.report": False, "log.tensorboard": False, "eval.episodes": 2, "eval.final_episodes": 2,
    "policy.hidden": (8,),
}  # fmt: skip
FIXED = {"until": 192, "set": {"env.fixed": True, "env.assist": 1.0}}
KUKA: dict[str, Any] = QUIET | {
    "env.num_envs": 4, "env.max_steps": 12, "ppo.horizon": 16, "ppo.minibatches": 2, "ppo.update_epochs": 1,
    "loop.total_steps": 384, "eval.every": 128, "stages": [FIXED],
}  # fmt: skip
SHORT_EPISODES = {"until": 96, "set": {"env.max_steps": 20}}
SAC: dict[str, Any] = QUIET | {
    "env.num_envs": 2, "env.max_steps": 30, "replay.steps": 16, "replay.train_batches": 2, "replay.warmup": 32,
    "replay.batch_size": 8, "replay.capacity": 2000, "replay.longest": 30, "loop.total_steps": 192,
    "loop.iterations": 1, "eval.every": 64, "stages": [SHORT_EPISODES],
}  # fmt: skip
ROOM = True  # False: there is no memory for more environments
JOBS = {"kuka": ("kuka-pick-place", "", KUKA), "sac": ("gym:Pendulum-v1", "sac", SAC)}


def train(name: str, folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    preset, algo, settings = JOBS[name]
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    made = ludus.train(preset, folder, callbacks, Console("quiet"), overrides=settings | changes, algo=algo)
    return Path(made)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs that were never stopped, each trained once."""
    return functools.cache(lambda name: train(name, tmp_path_factory.mktemp("straight") / name))


# The course of a run ----------------------------------------------------------------------------------
def test_a_stage_holds_until_its_step_and_then_the_runs_own_settings(tmp_path: Path) -> None:
    seen: list[tuple[int, bool, float]] = []

    class Watch(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            env: Any = run.config.env
            seen.append((run.counters.stage, env.fixed, env.assist))

    train("kuka", tmp_path / "run", Watch())
    assert seen == [(0, True, 1.0)] * 3 + [(1, False, 0.5)] * 3
    rows = metric_rows(tmp_path / "run")
    assert [row["loop/stage"] for row in rows if "loop/stage" in row] == [1, 1, 1, 2, 2, 2]
    assert [row["eval/task"] for row in rows if "eval/task" in row] == [1, 2, 2]


def test_the_environments_of_the_first_stage_are_those_that_it_sets(tmp_path: Path) -> None:
    """With fixed places every pad stands at the same place, afterwards anywhere."""
    places: list[float] = []

    class Watch(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            env: Any = run.job.collector.groups[0].env  # type: ignore[attr-defined]
            pads = env.sim.field("mocap_pos")
            places.append(float((pads - pads[0]).abs().max()))

    train("kuka", tmp_path / "run", Watch())
    assert max(places[:3]) < 1e-6 < min(places[3:])


@pytest.mark.parametrize(
    ("name", "kind", "part"), [("kuka", OnPolicyJob, "collector"), ("sac", OffPolicyJob, "store")]
)
def test_one_job_is_held_at_a_time(
    name: str, kind: type[Job], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three are made and tried before the training, and the first again; two follow when stages end."""
    made: list[Any] = []  # the part of each that takes the most memory
    held: list[int] = []
    make = kind.__init__

    def making(job: Any, *arguments: Any, **named: Any) -> None:
        held.append(sum(one() is not None for one in made))
        make(job, *arguments, **named)
        made.append(weakref.ref(getattr(job, part)))

    monkeypatch.setattr(kind, "__init__", making)
    settings = JOBS[name][2]
    first = settings["stages"][0]
    second = first | {"until": settings["loop.total_steps"] - 64}
    gc.disable()  # else Python may clear by chance what was not let go
    try:
        train(name, tmp_path / "run", stages=[first, second])
    finally:
        gc.enable()
    assert held == [0] * 6


def test_a_stage_whose_environments_cannot_be_made_ends_the_run_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Trouble(ludus.Callback):
        def on_evaluation(self, run: Trainer, metrics: dict[str, float]) -> None:
            monkeypatch.setattr("test_stages.ROOM", False)

    with pytest.raises(EnvError, match="could not be made: MemoryError"):
        ludus.train(
            "vec:test_stages:Reached", tmp_path / "run", [Trouble()], Console("quiet"), overrides=_vec(KUKA)
        )
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["step_000000128"]


def test_a_stage_ends_when_its_success_is_reached(tmp_path: Path) -> None:
    settings = {**KUKA, "stages": [{"until": {"success": 0.5}, "set": {"env.max_steps": 2}}]}
    folder = ludus.train(
        "vec:test_stages:Reached", tmp_path / "run", console=Console("quiet"), overrides=_vec(settings)
    )
    stages = [row["loop/stage"] for row in metric_rows(Path(folder)) if "loop/stage" in row]
    assert stages == [1, 1, 2, 2, 2, 2]  # the first evaluation comes after two iterations


def _vec(settings: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in settings.items() if not k.startswith("env.") and k != "stages"}
    return kept | {"env.num_envs": 4, "stages": [{"until": {"success": 0.5}, "set": {"ppo.clip": 0.1}}]}


def Reached(num_envs: int) -> Any:  # noqa: N802 (a task by name)
    """Every episode succeeds."""
    if not ROOM:
        raise MemoryError
    from test_custom_env import plain

    env = plain(num_envs)
    end = env.end_step

    def end_step() -> Any:
        step = end()
        return step._replace(metrics={"success": torch.ones(env.num_rows)})

    env.end_step = end_step  # type: ignore[method-assign]
    return env


def test_the_best_begins_anew_with_the_task_and_not_with_other_settings_of_the_algorithm(tmp_path: Path) -> None:
    bests: dict[str, list[int]] = {"task": [], "algorithm": []}

    class Watch(ludus.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def on_iteration(self, run: Trainer) -> None:
            bests[self.name].append(run.counters.best_step)

    train("kuka", tmp_path / "task", Watch("task"))
    train("kuka", tmp_path / "algorithm", Watch("algorithm"), stages=[{"until": 192, "set": {"ppo.clip": 0.1}}])
    assert bests["task"][2:4] == [128, -1]
    assert bests["algorithm"][2:4] == [128, 128]


def test_the_report_marks_the_stages_and_heads_with_the_last_task(straight: Callable[[str], Path]) -> None:
    folder = straight("kuka")
    page = write_report(folder).read_text()
    assert ">stage 2</text>" in page
    assert "<th>task</th>" in page


# Resuming ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("name", "iteration"), [("kuka", 2), ("kuka", 3), ("kuka", 4), ("sac", 5), ("sac", 6)])
def test_a_run_stopped_near_a_change_of_stage_goes_on_exactly(
    name: str, iteration: int, straight: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = train(name, tmp_path / "run", StopAfter(iteration))
    ludus.resume(folder, console=Console("quiet"))
    assert_same_run(folder, straight(name))


@pytest.mark.parametrize("iteration", [3, 4])
def test_a_run_killed_around_a_change_of_stage_goes_on_exactly(
    iteration: int, straight: Callable[[str], Path], tmp_path: Path
) -> None:
    """The change is after iteration 3, and checkpoints come after 2 and 4."""
    folder = tmp_path / "run"
    program = f"""
import pathlib, signal, stopped_runs, test_stages
test_stages.train("kuka", pathlib.Path({str(folder)!r}), stopped_runs.SignalAt({iteration}, signal.SIGKILL))
"""
    killed = warm_python.run(python_command(program))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [path.name for path in checkpoints_in(folder / "checkpoints")] == ["step_000000128"]
    ludus.resume(folder, console=Console("quiet"))
    assert_same_run(folder, straight("kuka"))


def test_going_back_across_a_change_returns_to_the_stage_of_that_time(
    straight: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = train("kuka", tmp_path / "run", checkpoint__keep="all")
    ludus.resume(f"{folder}@128", console=Console("quiet"))
    assert_same_run(folder, straight("kuka"))


# What a stage may say ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([{"set": {"env.fixed": True}}], "stage 1 has no end"),
        ([{"until": "soon", "set": {}}], "stage 1 ends .until. at 'soon'"),
        ([{"until": {"success": 2}, "set": {}}], "stage 1 ends .until. at .'success': 2"),
        ([{"until": 64, "sets": {}}], "stage 1 is .*; a stage is .until: 100000"),
        ([{"until": 64, "set": {"env.fixe": True}}], "stage 1: unknown setting 'env.fixe'. Did you mean 'fixed'"),
        ([{"until": 64, "set": {"seed": 1}}], "stage 1 sets seed, which is for the whole run; a stage sets env"),
        ([{"until": 64, "set": {"env.num_envs": 8}}], "stage 1 sets env.num_envs, which is for the whole run"),
        ([{"until": 128, "set": {}}, {"until": 64, "set": {}}], "end at the steps 128, 64: give them in order"),
        ([{"until": 384, "set": {}}], "The last stage ends at step 384, and the training at 384"),
        ([{"until": 64, "set": {"ppo.horizon": 32}}], "Stage 2 would make 64 steps"),
        ([{"until": 64, "set": {"env.observations": {"last_actions": 1.0}}}], "Stage 2 changes what is observed"),
        ([{"until": 64, "set": {"ppo.gamma": 2.0}}], "--ppo.gamma is 2.0; it must be at most 1"),
    ],
)
def test_a_stage_that_cannot_work_is_refused_before_anything_is_written(
    stages: list[Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        train("kuka", tmp_path / "run", stages=stages)
    assert not (tmp_path / "run").exists()


def test_stages_are_given_on_the_command_line_and_told_in_the_plan(tmp_path: Path) -> None:
    flags = [f"--{key.replace('_', '-')}={value}" for key, value in KUKA.items() if type(value) is int]
    stage = ["--log.no-report", "--policy.hidden", "8", "--stages", json.dumps(FIXED)]
    command = ludus_command("train", "kuka-pick-place", "--run-dir", tmp_path / "run", *flags, *stage)
    told = warm_python.run(command)
    assert told.returncode == 0, told.stderr
    assert "stage 1: env.fixed true, env.assist 1.0 until step 192\n" in told.stdout
    assert "stage 2: the run's own settings\n" in told.stdout
    assert "Stage 2 of 2 from step 192: the run's own settings." in told.stdout


def test_a_stage_tells_what_it_sets_and_how_it_ends() -> None:
    config = from_dict({"stages": [{"until": {"success": 0.9, "steps": 5}, "set": {"env": {"fixed": True}}}]},
                       find_preset("kuka-pick-place").config)  # fmt: skip
    told = [stage.told for stage in read_stages(config)]
    assert told == ["env.fixed true until 90 % success, at most to step 5", "the run's own settings"]


def test_files_that_a_stage_names_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.csv").touch()
    config = from_dict({"stages": [{"until": 5, "set": {"env.clips": "mine.csv"}}]},
                       find_preset("humanoid-mimic").config)  # fmt: skip
    assert stages_with_whole_paths(config).stages[0]["set"]["env.clips"] == str(tmp_path / "mine.csv")


def test_code_that_only_a_stage_names_needs_trust_too(tmp_path: Path) -> None:
    folder = train("kuka", tmp_path / "run", StopAfter(1))
    values = yaml.safe_load((folder / "config.yaml").read_text())
    values["stages"][0]["set"]["env.rewards"] = {"high": "term_modules:high"}
    (folder / "config.yaml").write_text(yaml.safe_dump(values))
    with pytest.raises(TrustError, match="would import the module 'term_modules'"):
        trusted_config(folder, trust=False)
    result = warm_python.run(ludus_command("resume", folder))
    assert result.returncode == 2
    assert "would import the module 'term_modules'" in result.stderr
