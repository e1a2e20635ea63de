"""A run can be killed at any time and goes on as if nothing had happened.

`straight` runs are never stopped. Every other run here is stopped somehow, resumed, and then held against the
straight one: each tensor, each metric, each point in TensorBoard, bit for bit.
"""

import functools
import io
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import ludus
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.segments import Segments
from ludus.errors import ConfigError, EnvError
from ludus.policies.actor_critic import ActorCritic
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training import checkpoint as checkpoints
from ludus.training import loop
from ludus.training.checkpoint import checkpoints_in, newest_intact, problem_of
from ludus.training.job import OnBatch
from ludus.training.loop import Trainer
from stopped_runs import (
    SignalAtCycle,
    StopAfterCycle,
    assert_same_run,
    kill_while_saving,
    metric_rows,
    resume,
    run,
    tensorboard_points,
)
from warm_python import Program, python_command
from warm_python import ludus_command as command

Settings = dict[str, Any]
EXIT_INTERRUPTED = 75


# With segments that the rows do not divide: some are half recorded when a run is saved.
MEMORY: Settings = {"groups": 2, "torch_threads": 1, "ppo.prio_alpha": 0.6, "ppo.rho_clip": 1.0, "ppo.average": 20}
MEMORY |= {"policy.memory": "lstm", "policy.memory_size": 16}


# Jobs -------------------------------------------------------------------------------------------------
def job(
    preset: str, num_envs: int, horizon: int, iterations: int, epochs: int, segments: int = 0, **env: Any
) -> tuple[str, Settings]:
    total = (segments or num_envs) * horizon * iterations
    settings: Settings = {
        "env.num_envs": num_envs,
        "ppo.horizon": horizon,
        "ppo.minibatches": 4,
        "ppo.update_epochs": 2,
        "loop.total_steps": total,
        "eval.every": total // epochs,
        "eval.episodes": 4,
        "eval.final_episodes": 4,
    }
    if segments:
        settings |= MEMORY | {"ppo.segments": segments}
    return preset, settings | {f"env.{name}": value for name, value in env.items()}


ITERATIONS = 30  # of CartPole, an epoch six of them
JOBS: dict[str, tuple[str, Settings]] = {
    "kuka": job("kuka-pick-place", 8, 32, 12, epochs=6, max_steps=40),  # two groups in flight
    "cartpole": job("gym:CartPole-v1", 8, 32, ITERATIONS, epochs=5, max_steps=60),
    "cartpole-workers": job("gym:CartPole-v1", 8, 32, 36, epochs=6, max_steps=60, workers=2),
    "gym-half-cheetah": job("gym:HalfCheetah-v5", 4, 32, 16, epochs=8, max_steps=50),
    "hopper": job("hopper", 8, 32, 24, epochs=8, max_steps=60),
    "ant": job("ant", 4, 32, 16, epochs=8, max_steps=40),
    "forage": job("forage", 6, 8, 48, epochs=8, segments=28, episode_length=20),  # 24 rows
    "arena": job("pettingzoo:pettingzoo_test_envs:Arena", 4, 8, 48, epochs=8, segments=20),  # 16, some absent
    "line": job("vec:test_custom_env:plain", 10, 8, 120, epochs=8, segments=12),
}


def train(name: str, folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    preset, settings = JOBS[name]
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return ludus.train(
        preset, folder, callbacks, Console("quiet"), overrides={**settings, "log.report": False, **changes}
    )


def train_command(name: str, folder: Path) -> list[str]:
    preset, settings = JOBS[name]
    flags = [part for key, value in settings.items() for part in (f"--{key.replace('_', '-')}", value)]
    return command("train", preset, "--run-dir", folder, "--log.no-report", *flags)


@pytest.fixture(scope="session")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs that were never stopped, each trained once."""
    return functools.cache(lambda name: train(name, tmp_path_factory.mktemp("straight") / name))


# Killed -----------------------------------------------------------------------------------------------
def stop_after_checkpoint(name: str, folder: Path, number: int, how: signal.Signals) -> tuple[int, str]:
    """Train in a process of its own and send it a signal some time after a checkpoint. (exit code, output)"""
    process = Program(train_command(name, folder), session=True)
    try:
        while not checkpoints_in(folder / "checkpoints")[number - 1 :]:
            assert process.poll() is None, process.output()
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 0.2))
        if how == signal.SIGINT:  # a terminal sends Ctrl-C to the whole group, workers included
            os.killpg(process.pid, how)
        else:
            os.kill(process.pid, how)
        return process.wait(), process.output()
    finally:
        process.kill()


@pytest.mark.parametrize(
    "name",
    ["kuka", "cartpole-workers", "forage", "arena",
     *(pytest.param(name, marks=pytest.mark.slow) for name in ("gym-half-cheetah", "ant", "line", "hopper"))],
)  # fmt: skip
def test_a_run_killed_by_sigkill_and_resumed_equals_one_that_never_stopped(
    name: str, tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = tmp_path / "run"
    code, _ = stop_after_checkpoint(name, folder, 2, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not (folder / "final").exists()
    rows_before = len(metric_rows(folder))
    result = run(command("resume", folder))
    assert result.returncode == 0, result.stderr
    assert "resuming" in result.stdout
    assert rows_before < len(metric_rows(folder))
    assert_same_run(folder, straight(name))


def test_a_run_killed_again_and_again_equals_one_that_never_stopped(
    tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = tmp_path / "run"
    assert stop_after_checkpoint("cartpole", folder, 1, signal.SIGKILL)[0] == -signal.SIGKILL
    for number in (2, 4):
        process = Program(command("resume", folder))
        epoch = JOBS["cartpole"][1]["eval.every"]
        while not (folder / "checkpoints" / f"step_{number * epoch:09d}").exists():
            assert process.poll() is None
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert run(command("resume", folder)).returncode == 0
    assert_same_run(folder, straight("cartpole"))


@pytest.mark.parametrize(
    ("name", "how"),
    [("cartpole", signal.SIGTERM), ("cartpole-workers", signal.SIGINT),
     pytest.param("cartpole", signal.SIGINT, marks=pytest.mark.slow),
     pytest.param("kuka", signal.SIGINT, marks=pytest.mark.slow)],
)  # fmt: skip
def test_sigterm_and_ctrl_c_save_say_how_to_go_on_and_lose_nothing(
    name: str, how: signal.Signals, tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = tmp_path / "run"
    code, output = stop_after_checkpoint(name, folder, 1, how)
    assert code == EXIT_INTERRUPTED, output
    assert "Traceback" not in output
    assert f"ludus resume {folder}" in output
    assert "Stopped at step" in output
    saved = newest_intact(folder / "checkpoints", pytest.fail)
    rows = metric_rows(folder)
    assert rows[-1]["step"] == int(saved.name[5:])  # nothing after the checkpoint is lost
    resume(folder)
    assert metric_rows(folder)[: len(rows)] == rows
    assert_same_run(folder, straight(name))


def test_a_second_ctrl_c_leaves_at_once_and_the_run_can_still_be_resumed(tmp_path: Path) -> None:
    class Impatient(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            if run.counters.iteration == 10:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train("cartpole", tmp_path / "run", Impatient())
    assert newest_intact(tmp_path / "run" / "checkpoints", pytest.fail).name == f"step_{10 * 256:09d}"
    resume(tmp_path / "run", StopAfterCycle(12))
    assert newest_intact(tmp_path / "run" / "checkpoints", pytest.fail).name == f"step_{12 * 256:09d}"


# Stopped in the middle of something -------------------------------------------------------------------
@pytest.mark.parametrize("iteration", [12, ITERATIONS])
def test_an_evaluation_cut_short_by_an_interrupt_is_made_up_for(
    tmp_path: Path, straight: Callable[[str], Path], iteration: int
) -> None:
    folder = train("cartpole", tmp_path / "run", SignalAtCycle(iteration))
    assert not (folder / "final").exists()
    assert not any("eval/mean_reward" in row for row in metric_rows(folder) if row["step"] == iteration * 256)
    resume(folder)
    assert_same_run(folder, straight("cartpole"))


def test_a_callback_that_returns_false_ends_and_saves_and_the_run_can_go_on(
    tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    class Stop(StopAfterCycle):
        ended = False

        def on_end(self, run: Trainer) -> None:
            self.ended = True

    stop = Stop(20)
    folder = train("cartpole", tmp_path / "run", stop)
    assert stop.ended
    assert newest_intact(folder / "checkpoints", pytest.fail).name == f"step_{20 * 256:09d}"
    resume(folder)
    assert_same_run(folder, straight("cartpole"))


def test_a_run_stopped_at_a_step_twice_equals_one_that_never_stopped(
    tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = tmp_path / "run"
    result = run([*train_command("cartpole", folder), "--stop-at", "3k"])
    assert result.returncode == 0, "it has done what was asked: a scheduler must not start it again"
    assert "Stopped at step 3,072, as asked, and saved." in result.stdout
    assert f"ludus resume {folder}" in result.stdout
    assert not (folder / "final").exists()
    with pytest.raises(ConfigError, match="at step 3,072 already"):
        resume(folder, stop_at=3000)
    assert ludus.Run(folder).resume(stop_at=5e3, quiet=True) == folder
    assert newest_intact(folder / "checkpoints", pytest.fail).name == f"step_{20 * 256:09d}"
    resume(folder)
    assert_same_run(folder, straight("cartpole"))


@pytest.mark.parametrize(("given", "told"), [("0", "at least 1"), ("soon", "'soon' is not a whole number")])
def test_a_step_to_stop_at_that_is_none_is_refused(given: str, told: str, tmp_path: Path) -> None:
    result = run([*train_command("cartpole", tmp_path / "run"), "--stop-at", given])
    assert result.returncode == 2
    assert result.stderr.startswith("ludus: --stop-at")
    assert told in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_crash_between_a_checkpoint_and_its_mark_as_the_best_is_repaired(
    tmp_path: Path, straight: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(checkpoint: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop, "mark_best", crash)
        with pytest.raises(KeyboardInterrupt):
            train("cartpole", tmp_path / "run")
    resume(tmp_path / "run", StopAfterCycle(1))  # before any other evaluation
    assert (tmp_path / "run" / "checkpoints" / "best").resolve().name == f"step_{6 * 256:09d}"
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", straight("cartpole"))


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_checkpoint_of_a_policy_with_a_memory_acts_as_the_policy_did(
    tmp_path: Path, deterministic: bool
) -> None:
    class Keep(StopAfterCycle):
        def on_end(self, run: Trainer) -> None:
            self.policy = run.policy

    keep = Keep(5)
    folder = train("forage", tmp_path / "run", keep)
    checkpoint = newest_intact(folder / "checkpoints", pytest.fail)
    assert "/state/job/collector/buffer/starts" in load_file(checkpoint / "training.safetensors")  # half recorded
    env = ludus.make_env("forage", num_envs=8, evaluation=True, episode_length=20)
    policies = keep.policy, checkpoints.load_policy(checkpoint)
    actors = [policy.actor(deterministic, torch.Generator().manual_seed(1)) for policy in policies]
    obs = env.reset(3)
    for _ in range(50):
        action, loaded = (actor.act(obs) for actor in actors)
        assert torch.equal(action, loaded)
        step = env.step(action)
        obs = step.obs
        for actor in actors:
            actor.forget(step.done)


# SIGKILL while saving ---------------------------------------------------------------------------------
def real_sized_state() -> tuple[ActorCritic, dict[str, Any]]:
    """As large as the main job's, to be filled with the number of its step."""
    env = ludus.make_env("kuka-pick-place", num_envs=1)
    policy = ActorCritic(
        env.obs_space, env.action_space, ludus.presets.find_preset("kuka-pick-place").config.policy
    )
    env.close()
    rows = {f"field{i}": torch.zeros((128, 20), dtype=torch.float64) for i in range(20)}
    return policy, {"envs": rows, "moments": [torch.zeros(50_000) for _ in range(2)], "list": []}


def set_step(policy: ActorCritic, state: dict[str, Any], step: int) -> None:
    for tensor in [*policy.parameters(), *state["envs"].values(), *state["moments"]]:
        tensor.data.fill_(step)
    state["list"] = [step] * 200


def save_for_ever(folder: Path, policy: ActorCritic, state: dict[str, Any], step: int, report: int) -> None:
    while True:
        set_step(policy, state, step)
        path = checkpoints.save_checkpoint(folder, step, {"policy": policy}, state)
        if step % 2:
            checkpoints.mark_best(path)
        checkpoints.prune(folder, keep=2)
        os.write(report, step.to_bytes(4, "little"))
        step += 1


def check_saved(checkpoint: Path, step: int, state: dict[str, Any]) -> None:
    assert state["list"] == [step] * 200
    numbers = [*checkpoints.load_policy(checkpoint).parameters(), *state["envs"].values(), *state["moments"]]
    assert all(bool((values == step).all()) for values in numbers), "wrong data"
    best = checkpoint.parent / "best"
    assert not best.is_symlink() or problem_of(best.resolve()) is None, "the best is damaged"


def kill_savers(folder: Path, times: int) -> None:
    policy, state = real_sized_state()
    set_step(policy, state, 0)
    checkpoints.save_checkpoint(folder, 0, {"policy": policy}, state)
    save = functools.partial(save_for_ever, folder, policy, state)
    kill_while_saving(folder, times, 0.15, save, check_saved)


def test_sigkill_at_twenty_random_moments_of_saving_never_leaves_a_run_that_cannot_resume(tmp_path: Path) -> None:
    program = f"import test_resume, pathlib; test_resume.kill_savers(pathlib.Path({str(tmp_path)!r}), 20)"
    result = run(python_command(program))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("20 kills")


# Damaged checkpoints ----------------------------------------------------------------------------------
@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped by a callback after its fourth epoch."""
    return train("cartpole", tmp_path_factory.mktemp("stopped") / "run", StopAfterCycle(24))


def copy_of(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run", symlinks=True))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "file"), [(flip, "policy.safetensors"), (cut, "training.safetensors")], ids=["flipped", "cut"]
)
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, stopped: Path, straight: Callable[[str], Path], damage: Callable[[Path], None], file: str
) -> None:
    folder = copy_of(stopped, tmp_path)
    newest = checkpoints_in(folder / "checkpoints")[-1]
    damage(newest / file)
    output = io.StringIO()
    if damage is flip:
        result = run(command("resume", folder))
        assert result.returncode == 0, result.stderr
        output.write(result.stdout)
    else:
        ludus.resume(folder, console=Console("plain", output))
    (warning,) = [line for line in output.getvalue().splitlines() if line.startswith("WARNING")]
    assert newest.name in warning
    assert file in warning
    before = int(newest.name[5:]) - 6 * 256
    assert f"resuming {folder} at step {before:,}" in output.getvalue()
    assert_same_run(folder, straight("cartpole"))


def test_a_damaged_checkpoint_never_pushes_out_an_intact_one(tmp_path: Path, stopped: Path) -> None:
    folder = copy_of(stopped, tmp_path)
    for checkpoint in checkpoints_in(folder / "checkpoints")[-2:]:
        cut(checkpoint / "policy.safetensors")
    resume(folder, StopAfterCycle(1), overrides={"checkpoint.keep": 1})
    newest = newest_intact(folder / "checkpoints", pytest.fail)
    assert newest.name == f"step_{13 * 256:09d}"
    resume(folder, StopAfterCycle(1))
    assert newest_intact(folder / "checkpoints", pytest.fail).name == f"step_{14 * 256:09d}"


def test_when_every_checkpoint_is_damaged_one_sentence_says_so(tmp_path: Path, stopped: Path) -> None:
    folder = copy_of(stopped, tmp_path)
    for checkpoint in checkpoints_in(folder / "checkpoints"):
        cut(checkpoint / "training.safetensors")
    result = run(command("resume", folder))
    assert result.returncode == 2
    assert result.stderr == (
        f"ludus: Every checkpoint in {folder / 'checkpoints'} is damaged; the run cannot be continued.\n"
    )


def test_settings_that_change_the_length_of_an_iteration_are_refused_and_the_run_stays_as_it_was(
    tmp_path: Path, stopped: Path
) -> None:
    folder = copy_of(stopped, tmp_path)
    before = (folder / "config.yaml").read_text()
    with pytest.raises(ConfigError, match=r"Iterations of this run have 256 steps.* they would have 128"):
        resume(folder, overrides={"ppo.horizon": 16, "ppo.minibatches": 1})
    assert (folder / "config.yaml").read_text() == before


def test_a_lost_metrics_file_does_not_stop_a_resume(tmp_path: Path, stopped: Path) -> None:
    folder = copy_of(stopped, tmp_path)
    (folder / "metrics.jsonl").unlink()
    resume(folder, StopAfterCycle(1))
    assert [row["step"] for row in metric_rows(folder)] == [25 * 256]


# Going further ----------------------------------------------------------------------------------------
def test_a_finished_run_says_so_and_goes_on_with_more_steps(
    tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = copy_of(straight("cartpole"), tmp_path)
    rows, total = metric_rows(folder), ITERATIONS * 256
    result = run(command("resume", folder))
    assert result.returncode == 2
    assert f"already trained to its {total:,} steps" in result.stderr
    assert "--total-steps" in result.stderr
    assert metric_rows(folder) == rows
    result = run(command("resume", folder, "--total-steps", total + 12 * 256))
    assert result.returncode == 0, result.stderr
    after = metric_rows(folder)
    assert "final/mean_reward" in rows[-1]  # which is measured again at the new end
    assert after[: len(rows) - 1] == rows[:-1]
    trained = [row["step"] for row in after if "train/policy_gradient_loss" in row]
    assert trained == [256 * i for i in range(1, ITERATIONS + 13)]
    assert (folder / "final").resolve().name == f"step_{(ITERATIONS + 12) * 256:09d}"
    assert f"total_steps: {total + 12 * 256}" in (folder / "config.yaml").read_text()


def test_a_finished_run_that_is_interrupted_on_its_further_way_is_not_finished(
    tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = copy_of(straight("cartpole"), tmp_path)
    resume(folder, StopAfterCycle(1), overrides={"loop.total_steps": 2 * ITERATIONS * 256})
    assert not (folder / "final").is_symlink()
    assert newest_intact(folder / "checkpoints", pytest.fail).name == f"step_{(ITERATIONS + 1) * 256:09d}"


# Broken environments ----------------------------------------------------------------------------------
def test_an_environment_that_raises_leaves_an_emergency_checkpoint_to_resume_from(tmp_path: Path) -> None:
    folder, settings = (
        tmp_path / "run",
        {
            "env.num_envs": 4,
            "env.max_steps": 90,
            "env.kwargs": {"script": {"70": "raise"}, "once": str(tmp_path / "once")},
            "ppo.horizon": 32,
            "loop.total_steps": 4 * 32 * 8,
            "eval.every": 4 * 32 * 8,
            "eval.episodes": 2,
            "log.report": False,
        },
    )
    name = "gym:gym_test_envs:ludus-test/Scripted-v0"
    output = io.StringIO()
    with pytest.raises(EnvError, match="the gripper fell off"):
        ludus.train(name, folder, console=Console("plain", output), overrides=settings)
    assert "Saved an emergency checkpoint" in output.getvalue()
    assert newest_intact(folder / "checkpoints", pytest.fail).name == f"step_{2 * 4 * 32:09d}"
    ludus.resume(folder, console=Console("plain", output))
    assert "what the environments were doing is not in it" in output.getvalue()
    assert [row["step"] for row in metric_rows(folder) if "train/policy_gradient_loss" in row] == [
        128 * i for i in range(1, 9)
    ]


class Trouble(ludus.Callback):
    def on_iteration(self, run: Trainer) -> None:
        if run.counters.iteration == 4:
            raise ZeroDivisionError


@pytest.mark.parametrize("segments", [0, 12])
def test_after_an_emergency_a_segment_is_still_one_piece_of_one_trajectory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segments: int
) -> None:
    def collect(self: Collector, *arguments: Any) -> Segments:
        taken = whole(self, *arguments)
        one, then, done = taken.obs[:-1, :, 0], taken.obs[1:, :, 0], taken.done[:-1]
        expected = one + 0.1 * taken.action[:-1, :, 0].clamp(-1.0, 1.0)
        torch.testing.assert_close(torch.where(done, then, expected), then)
        return taken

    whole = Collector.collect
    monkeypatch.setattr(Collector, "collect", collect)
    with pytest.raises(ZeroDivisionError):
        train("line", tmp_path / "run", Trouble(), ppo__segments=segments, ppo__minibatches=2)
    resume(tmp_path / "run")


def test_a_run_that_failed_before_its_first_checkpoint_is_not_overwritten_but_begun_again(tmp_path: Path) -> None:
    class EarlyTrouble(ludus.Callback):
        def on_start(self, run: Trainer) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train("cartpole", tmp_path / "run", EarlyTrouble())
    with pytest.raises(ConfigError, match="already holds a run"):
        train("cartpole", tmp_path / "run")
    with pytest.raises(ZeroDivisionError):  # which begins it again
        resume(tmp_path / "run", EarlyTrouble())


# Losses that are not numbers --------------------------------------------------------------------------
def test_after_a_rollback_the_metrics_have_no_row_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rewards of the fifteenth rollout are not numbers: not one gradient of its updates is."""
    spoiled: list[int] = []
    update = PPO.update

    def spoil_once(self: PPO, segments: Segments, progress: float, on_batch: OnBatch) -> dict[str, Tensor]:
        kept = segments.track.reward.clone()
        if round(ITERATIONS * progress) == 14 and not spoiled:
            spoiled.append(14)
            segments.track.reward.fill_(torch.nan)
        metrics = update(self, segments, progress, on_batch)
        segments.track.reward.copy_(kept)
        return metrics

    monkeypatch.setattr(PPO, "update", spoil_once)
    folder = train("cartpole", tmp_path / "run", StopAfterCycle(20))
    assert spoiled == [14]
    assert [row["step"] for row in metric_rows(folder) if "train/policy_gradient_loss" in row] == [
        256 * i for i in range(1, 21)
    ]
    rates = {
        row["step"]: row["train/learning_rate"]
        for row in read_metrics(folder / "metrics.jsonl")
        if "train/learning_rate" in row
    }
    assert rates[13 * 256] < 0.6 * rates[12 * 256]  # half of it since the rollback
    assert all(row["time/fps"] > 0 for row in metric_rows(folder) if "time/fps" in row)
    points = tensorboard_points(folder)
    assert [step for step, _ in points["train/policy_gradient_loss"]] == [256 * i for i in range(1, 21)]
    for name, series in points.items():
        steps = [step for step, _ in series]
        assert steps == sorted(set(steps)), name
