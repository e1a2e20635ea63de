"""A run that is interrupted, or whose disk fails for a moment, loses nothing; files of the user's are left alone.

Tests are named after the findings they keep closed.
"""

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import ludus
from ludus import files
from ludus.errors import CheckpointError, ConfigError
from ludus.runs import evaluate_run
from ludus.saved_run import load
from ludus.show.batch_log import BatchLog
from ludus.show.console import Console
from ludus.show.jsonl import JsonlSink, read_metrics
from ludus.training import checkpoint
from ludus.training.checkpoint import best_checkpoint
from ludus.training.loop import MAX_UNSAVED, Trainer
from ludus.training.run_folder import point, pointed_by

ROOT = Path(__file__).parent.parent
SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "env.max_steps": 20,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "ppo.update_epochs": 1,
    "loop.total_steps": 96,
    "eval.every": 32,
    "eval.episodes": 1,
    "log.tensorboard": False,
    "log.report": False,
}


class Screen(Console):
    """Remembers what was said."""

    def __init__(self) -> None:
        super().__init__("quiet")
        self.said: list[str] = []

    def warning(self, text: str) -> None:
        self.said.append(text)

    def finish(self, lines: list[str]) -> None:
        self.said += lines


class At(ludus.Callback):
    """Does something after an iteration."""

    def __init__(self, iteration: int, do: Callable[[], Any]) -> None:
        self.iteration, self.do = iteration, do

    def on_iteration(self, run: Trainer) -> bool | None:
        if run.counters.iteration == self.iteration:
            self.do()
        return None


def train(folder: Path, *callbacks: ludus.Callback, screen: Console | None = None, **settings: Any) -> Path:
    overrides = SMALL | {name.replace("__", "."): value for name, value in settings.items()}
    return ludus.train("gym:CartPole-v1", folder, callbacks, screen or Console("quiet"), overrides=overrides)


def resume(folder: Path, *callbacks: ludus.Callback) -> Path:
    return ludus.resume(folder, callbacks, Console("quiet"))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone."""
    return train(tmp_path_factory.mktemp("alone") / "run")


def rows(run: Path) -> list[dict[str, float]]:
    kept = [
        {k: v for k, v in row.items() if not k.startswith(("time/", "system/"))}
        for row in read_metrics(run / "metrics.jsonl")
    ]
    return json.loads(json.dumps(kept).replace("NaN", "null"))


def assert_same(run: Path, other: Path) -> None:
    """Bit for bit: weights, training state, metrics."""
    for name in ("policy.safetensors", "training.safetensors"):
        ours, theirs = load_file(run / "final" / name), load_file(other / "final" / name)
        assert ours.keys() == theirs.keys()
        assert all(ours[key].equal(theirs[key]) for key in ours)
    assert rows(run) == rows(other)
    assert os.readlink(run / "checkpoints" / "best") == os.readlink(other / "checkpoints" / "best")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(*arguments: str, body: str) -> None:
    """Run Python code in a process of its own, which kills itself."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", body, *arguments], cwd=ROOT / "tests")
    assert done.returncode == -signal.SIGKILL


# 6, 7: before the first checkpoint and after the last ---------------------------------------------
def test_trust_06_a_run_killed_before_its_first_checkpoint_begins_again(alone: Path, tmp_path: Path) -> None:
    body = (
        "import sys; from pathlib import Path; import test_nothing_lost as t\n"
        "t.train(Path(sys.argv[1]), t.At(1, t.kill))"
    )
    killed(str(tmp_path / "run"), body=body)
    assert not list((tmp_path / "run").glob("checkpoints/step_*"))
    with pytest.raises(ConfigError, match="already holds a run"):
        train(tmp_path / "run")
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", alone)


def test_trust_06_a_run_killed_after_its_configuration_was_written_goes_on(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(alone / "config.yaml", tmp_path / "run")
    resume(tmp_path / "run")
    assert_same(tmp_path / "run", alone)


def test_trust_06_a_run_killed_before_its_configuration_was_written_is_trained_anew(
    alone: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.lock").write_text("process 12345 on here since 2026-01-01 00:00")
    (tmp_path / "run" / ".config.yaml.0123456789ab.ludus-tmp").write_text("ha")
    train(tmp_path / "run")
    assert_same(tmp_path / "run", alone)


def test_trust_07_a_run_killed_between_its_last_checkpoint_and_its_end_is_finished(
    alone: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(alone, tmp_path / "run", symlinks=True))
    (run / "final").unlink()
    resume(run)
    assert_same(run, alone)
    with pytest.raises(ConfigError, match="already trained"):
        resume(run)


def test_trust_07_a_run_killed_before_its_report_gets_it(tmp_path: Path) -> None:
    run = train(tmp_path / "run", log__report=True)
    (run / "report.html").unlink()
    resume(run)
    assert (run / "report.html").exists()


# 8: the folder goes -----------------------------------------------------------------------------------
def test_trust_08_a_deleted_run_folder_is_written_anew(alone: Path, tmp_path: Path) -> None:
    run, screen = tmp_path / "run", Screen()
    train(run, At(3, lambda: shutil.rmtree(run)), screen=screen)
    assert any("was deleted" in said for said in screen.said)
    assert rows(run)[:-1] == rows(alone)[:-1]  # also those written before it was deleted; but the best may be lost
    assert (run / "config.yaml").read_text() == (alone / "config.yaml").read_text()
    assert json.loads((run / "run.json").read_text())["preset"] == "gym:CartPole-v1"
    assert len(evaluate_run(run, 1, True).returns) == 1


def test_trust_08_losses_that_were_deleted_leave_their_places_empty(tmp_path: Path) -> None:
    import numpy as np

    log = BatchLog(tmp_path / "run" / "R_loss.f32")
    log.append(np.array([1.0, 2.0]), 0)
    shutil.rmtree(log.path.parent)
    log.append(np.array([3.0]), 2)
    found = np.fromfile(log.path, "float32")
    assert np.isnan(found[:2]).all()
    assert found[2] == 3.0


# 9: errors that pass ----------------------------------------------------------------------------------
class Disk:
    """A disk whose next `failures` calls of fsync end with an error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures, self.code, self._fsync = 0, errno.EIO, os.fsync
        monkeypatch.setattr(os, "fsync", self.fsync)
        monkeypatch.setattr(files.time, "sleep", lambda seconds: None)

    def fsync(self, number: int) -> None:
        if self.failures > 0:
            self.failures -= 1
            raise OSError(self.code, os.strerror(self.code))
        self._fsync(number)

    def fail(self, failures: int) -> None:
        self.failures = failures


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("failures", [1, 3])
def test_trust_09_an_error_of_the_disk_that_passes_is_waited_for(
    alone: Path, tmp_path: Path, disk: Disk, code: int, failures: int
) -> None:
    disk.code, screen = code, Screen()
    train(tmp_path / "run", At(2, lambda: disk.fail(failures)), screen=screen)
    assert_same(tmp_path / "run", alone)
    assert not any("could not be written" in said for said in screen.said)


def test_trust_09_training_goes_on_without_a_checkpoint_that_cannot_be_written(
    alone: Path, tmp_path: Path, disk: Disk
) -> None:
    screen = Screen()
    # All attempts of the checkpoint after iteration 2 fail; nothing fails at the next one.
    train(tmp_path / "run", At(2, lambda: disk.fail(1000)), At(3, lambda: disk.fail(0)), screen=screen)
    assert any("The training goes on" in said for said in screen.said)
    assert rows(tmp_path / "run")[:-1] == rows(alone)[:-1]  # the last measures the best, which may be another
    assert load_file(tmp_path / "run/final/policy.safetensors").keys()


def test_trust_09_a_disk_that_never_works_again_ends_the_training_with_a_sentence(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    with pytest.raises(CheckpointError, match="Input/output error"):
        train(tmp_path / "run", At(2, lambda: disk.fail(10**6)), loop__total_steps=32 * (MAX_UNSAVED + 3))


def test_trust_09_a_row_of_metrics_is_kept_until_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    with monkeypatch.context() as broken:
        broken.setattr("ludus.files.write_all", _fail)
        sink.write(1, {"a": 1.0})
        with pytest.raises(CheckpointError):
            sink.flush()
    sink.write(2, {"a": 2.0})
    sink.close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2]


def _fail(*arguments: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


# 10: no links -----------------------------------------------------------------------------------------
def test_trust_10_a_file_system_without_links_keeps_the_best_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*arguments: Any, **named: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "symlink", no_links)  # as a kernel answers on such a file system
    run = train(tmp_path / "run")
    for pointer in (run / "checkpoints" / "best", run / "final"):
        assert pointer.is_file()
    best = best_checkpoint(run / "checkpoints")
    assert best is not None
    assert best.is_dir()
    assert load(run).act(load(run).obs_space.sample()) in (0, 1)
    with pytest.raises(ConfigError, match="already trained"):
        resume(run)
    monkeypatch.undo()
    point(run / "final", best)  # where links work, a link takes the file's place
    assert pointed_by(run / "final") == best
    assert (run / "final").is_symlink()


# 11, 12: the user's own folders -----------------------------------------------------------------------
def test_trust_11_make_demo_removes_nothing_and_takes_no_folder_from_the_environment(tmp_path: Path) -> None:
    asked = subprocess.run(
        ["make", "-n", "demo"],
        cwd=ROOT,
        env={**os.environ, "RUN": str(tmp_path), "MAKEFLAGS": ""},
        capture_output=True,
        text=True,
    )
    if asked.returncode == 127:
        pytest.skip("make is not installed")
    assert "ludus train kuka-pick-place" in asked.stdout
    assert str(tmp_path) not in asked.stdout
    assert "rm " not in asked.stdout


@pytest.mark.parametrize("name", ["final", "run.json", "report.html", "metrics.jsonl", "checkpoints", "tb"])
def test_trust_12_a_folder_with_files_of_the_users_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=f"holds {name}, which a run would overwrite"):
        train(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_trust_12_a_lock_that_is_none_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.lock").write_text("a locomotive")
    with pytest.raises(CheckpointError, match="not a lock"):
        train(tmp_path)
    assert (tmp_path / "train.lock").read_text() == "a locomotive"


# 21: commands to copy ---------------------------------------------------------------------------------
def test_trust_21_printed_commands_are_quoted_for_a_shell(tmp_path: Path) -> None:
    run, screen = tmp_path / "a $(touch pwned) run", Screen()
    train(run, screen=screen, log__tensorboard=True)
    commands = [line for line in screen.said if line.startswith(("ludus ", "tensorboard "))]
    assert [command.split()[:2] for command in commands[:2]] == [["ludus", "eval"], ["ludus", "report"]]
    assert [command.split()[0] for command in commands[2:]] == ["tensorboard"]
    assert [shlex.split(command)[2] for command in commands[:2]] == [str(run)] * 2
    with pytest.raises(ConfigError) as refused:
        resume(run)
    assert shlex.quote(str(run)) in str(refused.value)


def test_trust_09_a_checkpoint_that_cannot_be_read_for_a_moment_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train(tmp_path / "run")
    newest = max(folder.glob("checkpoints/step_*"))
    read, failures = checkpoint.read_json, [1, 1]

    def fail_twice(path: Path, most: int) -> Any:
        if path.parent == newest and failures:
            failures.pop()
            raise OSError(errno.EIO, "Input/output error")
        return read(path, most)

    monkeypatch.setattr(checkpoint, "read_json", fail_twice)
    monkeypatch.setattr(files.time, "sleep", lambda seconds: None)
    assert checkpoint.newest_intact(folder / "checkpoints", pytest.fail) == newest
    failures += [1] * 100
    with pytest.raises(CheckpointError, match="It is left as it is; try again"):
        checkpoint.newest_intact(folder / "checkpoints", pytest.fail)
