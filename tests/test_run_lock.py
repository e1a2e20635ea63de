"""One training at a time in a run folder: real processes, really killed."""

import errno
import fcntl
import os
import platform
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

import ludus
import warm_python
from ludus.errors import CheckpointError, ConfigError
from ludus.run_pages import write_run_report
from ludus.runs import evaluate_run
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training import run_lock as module
from ludus.training.loop import Trainer
from ludus.training.run_lock import run_lock
from warm_python import Program, python_command
from warm_python import ludus_command as command

ITERATIONS = 8
SETTINGS: dict[str, Any] = {
    "env.num_envs": 4,
    "env.max_steps": 20,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "loop.total_steps": ITERATIONS * 32,
    "eval.every": 2 * 32,
    "eval.episodes": 2,
    "log.report": False,
    "log.tensorboard": False,
}


class At(ludus.Callback):
    """Does something after an iteration; what it returns says whether to go on."""

    def __init__(self, iteration: int, do: Callable[[], bool | None]) -> None:
        self.iteration, self.do = iteration, do

    def on_iteration(self, run: Trainer) -> bool | None:
        return self.do() if run.counters.iteration == self.iteration else None


def train(folder: Path, *callbacks: ludus.Callback, **env: Any) -> Path:
    settings = SETTINGS | {f"env.{name}": value for name, value in env.items()}
    return ludus.train("gym:CartPole-v1", folder, callbacks, Console("quiet"), overrides=settings)


def resume(folder: Path, *callbacks: ludus.Callback, **overrides: Any) -> Path:
    return ludus.resume(folder, callbacks, Console("quiet"), overrides)


def stopped(folder: Path) -> Path:
    return train(folder, At(4, lambda: False))


# In a process of its own ------------------------------------------------------------------------------
def train_and_wait(folder: Path, workers: int = 0) -> None:
    """Waits after the fifth iteration for a file GO beside the folder; with workers forks a child that stays."""

    def wait() -> None:
        child = os.fork() if workers else 0
        if workers and child == 0:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        while not (folder.parent / "GO").exists():
            time.sleep(0.01)

    train(folder, At(5, wait), workers=workers)


def leave_in_a_forked_process(folder: Path) -> None:
    process = os.getpid()
    with run_lock(folder):
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert is_locked(folder)
            assert (folder / "train.lock").exists()
    if os.getpid() != process:
        os._exit(0)  # having left the context, too
    assert not is_locked(folder)


def start(call: str) -> Program:
    program = f"from pathlib import Path; import test_run_lock; test_run_lock.{call}"
    return Program(python_command(program), errors_apart=True)


def start_training(folder: Path, workers: int = 0) -> tuple[Program, int]:
    """One that waits after its fifth iteration, and its forked child."""
    process = start(f"train_and_wait(Path({str(folder)!r}), {workers})")
    while "\n" not in process.output():
        assert process.poll() is None, process.errors()
        time.sleep(0.01)
    return process, int(process.output())


def is_locked(folder: Path) -> bool:
    try:
        with run_lock(folder):
            return False
    except CheckpointError:
        return True


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def trained_steps(folder: Path) -> list[int]:
    rows = read_metrics(folder / "metrics.jsonl")
    return [int(row["step"]) for row in rows if "train/policy_gradient_loss" in row]


WHOLE = [32 * i for i in range(1, ITERATIONS + 1)]


# Two processes ----------------------------------------------------------------------------------------
def test_a_run_that_is_being_trained_is_refused_to_others_untouched_and_ends_well(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process, _ = start_training(folder)
    try:
        before = contents(folder)
        told = warm_python.run(command("resume", folder))
        assert told.returncode == 2
        who = rf"process {process.pid} on {re.escape(platform.node())} since \d{{4}}-\d\d-\d\d \d\d:\d\d"
        sentence = rf"{re.escape(str(folder))} is being trained by {who}: wait for it, or stop it first\."
        assert re.fullmatch(rf"ludus: {sentence}\n", told.stderr)
        assert told.stdout == ""
        with pytest.raises(CheckpointError, match=sentence):
            train(folder)
        with pytest.raises(CheckpointError, match=sentence):
            resume(folder, **{"loop.total_steps": 64 * ITERATIONS})
        assert contents(folder) == before

        assert evaluate_run(folder, 2, deterministic=True).summary()["episodes"] == 2
        assert write_run_report(folder).exists()
        (tmp_path / "GO").touch()
        assert process.wait() == 0
    finally:
        process.kill()
    assert trained_steps(folder) == WHOLE
    assert (folder / "final").exists()
    assert not (folder / "train.lock").exists()


def test_of_two_that_begin_the_same_folder_at_once_one_trains(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    flags = [
        part
        for name, value in SETTINGS.items()
        if not isinstance(value, bool)
        for part in (f"--{name.replace('_', '-')}", value)
    ]
    arguments = command("train", "gym:CartPole-v1", "--run-dir", folder, "--log.no-report", *flags)
    both = [Program(arguments, errors_apart=True) for _ in range(2)]
    assert sorted(process.wait() for process in both) == [0, 2], [process.errors() for process in both]
    told = [process.errors() for process in both]
    # Its number is not known yet where the lock is met before it was written there.
    assert re.search(r"is being trained by (process \d+|another process)|already holds a run", "".join(told))
    assert trained_steps(folder) == WHOLE


def test_after_sigkill_a_run_can_be_resumed_at_once_though_processes_of_it_linger(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process, child = start_training(folder, workers=2)
    try:
        family = psutil.Process(process.pid).children(recursive=True)
        assert len([one for one in family if one.pid != child]) >= 2  # workers, and what starts them
        assert is_locked(folder)
        lock = str(folder / "train.lock")
        assert lock in [file.path for file in psutil.Process(process.pid).open_files()]
        # A process that is just being started may still hold what its parent had open.
        while [one for one in family if lock in [file.path for file in one.open_files()]]:
            time.sleep(0.05)
        process.kill()
        process.wait()
        assert (folder / "train.lock").exists()  # left behind, and in nobody's way
        resume(folder)
        assert psutil.Process(child).status() != psutil.STATUS_ZOMBIE  # it lives
    finally:
        process.kill()
        psutil.Process(child).kill()
    assert trained_steps(folder) == WHOLE
    assert not (folder / "train.lock").exists()


def test_a_forked_process_that_leaves_takes_no_lock_from_its_parent(tmp_path: Path) -> None:
    assert start(f"leave_in_a_forked_process(Path({str(tmp_path)!r}))").wait() == 0


# One process ------------------------------------------------------------------------------------------
def test_one_process_trains_twice_and_other_folders_in_between(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"

    def train_others() -> None:
        assert is_locked(one)
        stopped(other)
        assert not is_locked(other)
        with pytest.raises(CheckpointError, match=f"being trained by process {os.getpid()} "):
            resume(one)

    stopped(one)
    assert not (one / "train.lock").exists()
    resume(one, At(6, train_others))
    assert trained_steps(one) == WHOLE
    resume(other)
    assert trained_steps(other) == WHOLE
    assert not is_locked(one)


def test_trouble_while_setting_up_lets_the_lock_go(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    before = contents(folder)
    with pytest.raises(ConfigError):
        resume(folder, device="abacus")
    with pytest.raises(ConfigError):
        resume(folder, **{"loop.nonsense": 1})
    with pytest.raises(ConfigError, match="already holds a run"):
        train(folder)
    assert contents(folder) == before
    resume(folder)


def test_a_lock_file_that_was_left_behind_or_copied_is_in_nobodys_way(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run")
    (folder / "train.lock").write_text("process 1 on mars since 1970-01-01 00:00, and more than fits today")
    with run_lock(folder):
        assert (folder / "train.lock").read_text().startswith(f"process {os.getpid()} on {platform.node()} since ")
        assert "mars" not in (folder / "train.lock").read_text()
    assert not (folder / "train.lock").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_trained_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module.fcntl, "flock", refuse)
    with run_lock(tmp_path), run_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_its_holder_removes_while_another_opens_it_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def remove_first(file: Any, how: int) -> None:
        if not removed:
            removed.append(tmp_path / "train.lock")
            removed[0].unlink()
        fcntl_flock(file, how)

    fcntl_flock = fcntl.flock
    monkeypatch.setattr(module.fcntl, "flock", remove_first)
    with run_lock(tmp_path):
        assert removed
        assert is_locked(tmp_path)
