"""Sweeps with real trainings: killed and continued, interrupted, with trials that fail."""

import json
import os
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import ludus
from ludus.training.checkpoint import checkpoints_in, newest_intact
from ludus.training.run_lock import is_held
from stopped_runs import metric_rows, tensor_bytes
from warm_python import Program, ludus_command, run

EXIT_INTERRUPTED = 75
SMALL = (
    *("--env.num-envs", "8", "--env.max-steps", "60", "--ppo.horizon", "32", "--total-steps", "4096"),
    *("--eval.episodes", "4", "--eval.final-episodes", "4", "--log.no-tensorboard"),
)
SEARCH = ("--param", "ppo.learning_rate=log(1e-5,1e-1)", "--param", "ppo.update_epochs=choice(1,2)")


def sweep_command(folder: Path, *flags: object, preset: str = "gym:CartPole-v1") -> list[str]:
    return ludus_command("sweep", preset, "--run-dir", folder, *SMALL, *flags)


def trainings_in(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "resume" in words and any(word.startswith(f"{folder}{os.sep}") for word in words):
            found.append(process)
    return found


def told(folder: Path) -> list[dict[str, Any]]:
    """What all trials say of themselves."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("trials/[!.]*/trial.json"))]


def steps_of(folder: Path) -> dict[str, int]:
    """Of every run that has a checkpoint."""
    runs = folder.glob("*/[!.]*/seed_*/checkpoints")  # no folder that is still written: it will be renamed
    return {str(c.parent): int(made[-1].name.removeprefix("step_")) for c in runs if (made := checkpoints_in(c))}


def wait_until(folder: Path, steps: int, program: Program) -> bool:
    """Until all runs together have so many steps; False where the program has ended before."""
    while sum(steps_of(folder).values()) < steps:
        if program.poll() is not None:
            return False
        time.sleep(0.01)
    return True


def assert_same_training(one: Path, other: Path) -> None:
    found, expected = (newest_intact(run / "checkpoints", pytest.fail) for run in (one, other))
    assert found.name == expected.name
    assert tensor_bytes(found) == tensor_bytes(expected)
    assert metric_rows(one) == metric_rows(other)


def test_a_sweep_killed_three_times_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """One process at a time makes a search repeatable, so that it can be held against one without a kill."""
    flags = shlex.split("--trials 3 --rungs 2 --eta 2 --jobs 1 --confirm 1 --confirm-seeds 2")
    flags += SEARCH
    folder, whole = tmp_path / "killed", tmp_path / "whole"
    program = Program(sweep_command(folder, *flags))
    before: dict[str, int] = {}
    for steps in (1_500, 5_000, 13_000):
        assert wait_until(folder, steps, program), program.output()
        program.kill()
        assert program.wait() == -signal.SIGKILL
        psutil.wait_procs(trainings_in(folder), timeout=5)
        assert trainings_in(folder) == []
        now = steps_of(folder)
        assert all(now[run] >= reached for run, reached in before.items())
        before = now
        program = Program(ludus_command("resume", folder, "--at-once", "1"))
    assert program.wait() == 0, program.output()
    assert run(sweep_command(whole, *flags)).returncode == 0
    assert told(folder) == told(whole)
    assert steps_of(folder) == {run.replace(str(whole), str(folder)): n for run, n in steps_of(whole).items()}
    for once in sorted(whole.glob("*/*/seed_*")):
        if once.is_dir():
            assert_same_training(folder / once.relative_to(whole), once)
    one, other = ludus.Sweep(folder), ludus.Sweep(whole)
    assert [trial.scores for trial in one.trials] == [trial.scores for trial in other.trials]
    assert one.verdict == other.verdict != ""
    assert "The best command" in one.page.read_text()


def test_an_interrupted_sweep_is_saved_and_a_trial_that_fails_does_not_end_it(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    refused = run(sweep_command(folder, "--param", "env.kwargs=choice(a,b)"))
    assert refused.returncode == 2
    assert "a table of values cannot be searched" in refused.stderr
    # Seven minibatches do not divide an iteration: those trials fail when they begin.
    flags = ("--param", "ppo.minibatches=choice(4,7)", "--trials", "4", "--rungs", "1", "--confirm", "0")
    program = Program(sweep_command(folder, *flags, "--jobs", "1", "--launcher", "nice -n 1"), session=True)
    assert wait_until(folder, 1, program), program.output()
    os.killpg(program.pid, signal.SIGINT)
    assert program.wait() == EXIT_INTERRUPTED, program.output()
    assert f"Go on with: ludus resume {folder}" in program.output()
    assert trainings_in(folder) == []
    assert not is_held(folder)
    done = run(ludus_command("sweep", folder))
    assert done.returncode == 0, done.stderr
    sweep = ludus.Sweep(folder)
    values = [trial.parameters["ppo.minibatches"] for trial in sweep.trials]
    assert sorted(values) == [4, 7], "there are no others to try"
    for trial in sweep.trials:
        assert ("do not divide into 7 minibatches" in trial.failed) == (trial.parameters["ppo.minibatches"] == 7)
        assert (trial.score is None) == bool(trial.failed)
    assert "failed" in done.stdout
    assert sweep.best.command.endswith("--ppo.minibatches 4")
    assert "Traceback" not in done.stdout + done.stderr
