"""Runs that are stopped, or killed, somewhere: what stops them, and whether they go on bit for bit."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ludus
import warm_python
from ludus.show.console import Console
from ludus.training import checkpoint as checkpoints
from ludus.training.checkpoint import newest_intact
from ludus.training.loop import Trainer
from warm_python import Completed


def resume(folder: Path, *callbacks: ludus.Callback, **options: Any) -> Path:
    return ludus.resume(folder, callbacks, Console("quiet"), **options)


def run(arguments: list[str]) -> Completed:
    result = warm_python.run(arguments)
    assert "Traceback" not in result.stdout + result.stderr
    return result


# Stopping ---------------------------------------------------------------------------------------------
class StopAfter(ludus.Callback):
    """Ends a training after an iteration."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_iteration(self, run: Trainer) -> bool:
        return run.counters.iteration < self.iteration


class StopAfterCycle(ludus.Callback):
    """Ends a training after a cycle, when its numbers are written."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_cycle(self, run: Trainer, metrics: dict[str, float]) -> bool:
        return run.counters.iteration < self.iteration


class SignalAt(ludus.Callback):
    """Sends a signal after an iteration, before its checkpoint and its evaluation."""

    def __init__(self, iteration: int, number: signal.Signals = signal.SIGTERM) -> None:
        self.iteration, self.number = iteration, number

    def on_iteration(self, run: Trainer) -> None:
        if run.counters.iteration == self.iteration:
            os.kill(os.getpid(), self.number)


class SignalAtCycle(ludus.Callback):
    """An interrupt just before the evaluation that ends a cycle's epoch."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_cycle(self, run: Trainer, metrics: dict[str, float]) -> None:
        if run.counters.iteration == self.iteration:
            os.kill(os.getpid(), signal.SIGTERM)


# Comparing --------------------------------------------------------------------------------------------
def is_exact(metric: str) -> bool:
    return not metric.startswith(("time/", "system/", "TimeCost"))


def metric_rows(folder: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if is_exact(name)} for row in rows]


def tensor_bytes(checkpoint: Path) -> dict[str, bytes]:
    files = sorted(checkpoint.glob("*.safetensors"))
    return {f"{f.stem}:{name}": t.numpy().tobytes() for f in files for name, t in load_file(f).items()}


def plain_state(checkpoint: Path) -> dict[str, Any]:
    state = json.loads((checkpoint / "training.json").read_text())
    del state["state"]["counters"]["seconds"]
    return state


def reward_losses(folder: Path) -> bytes:
    """Of every batch that a learned reward learned from."""
    path = folder / "R_loss.f32"
    return path.read_bytes() if path.exists() else b""


def tensorboard_points(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By the step; by the batch where the steps, being those in a replay buffer, stand still."""
    if not (folder / "tb").exists():
        return {}
    by_batch = folder / "tb" / "by_batch"
    accumulator = EventAccumulator(str(by_batch if by_batch.exists() else folder / "tb"), {"scalars": 0})
    accumulator.Reload()
    names = filter(is_exact, accumulator.Tags()["scalars"])
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def assert_same_run(folder: Path, other: Path) -> None:
    one, two = (newest_intact(run / "checkpoints", pytest.fail) for run in (folder, other))
    assert one.name == two.name
    actual, expected = tensor_bytes(one), tensor_bytes(two)
    assert actual.keys() == expected.keys()
    assert [name for name in expected if actual[name] != expected[name]] == []
    assert plain_state(one) == plain_state(two)
    assert metric_rows(folder) == metric_rows(other)
    assert reward_losses(folder) == reward_losses(other)
    best, other_best = ((run / "checkpoints" / "best").resolve() for run in (folder, other))
    assert best.name == other_best.name
    assert tensor_bytes(best) == tensor_bytes(other_best)
    assert (folder / "final").resolve() == one.resolve()
    assert tensorboard_points(folder) == tensorboard_points(other)


# Killing what saves -----------------------------------------------------------------------------------
def fail(text: str) -> None:
    raise AssertionError(text)


def kill_while_saving(
    folder: Path,
    times: int,
    longest: float,
    save_for_ever: Callable[[int, int], None],
    check: Callable[[Path, int, Any], None],
) -> None:
    """In a process of its own: forks one that saves, kills it within `longest` seconds, looks at what is left.

    `save_for_ever` is handed the newest step, to be saved first as after a resume, and a pipe for the steps that
    it has saved; `check` a checkpoint, its step and the training state in it.
    """
    torch.set_num_threads(1)
    step, caught = 0, 0
    for _ in range(times):
        readable, writable = os.pipe()
        child = os.fork()
        if child == 0:
            save_for_ever(step, writable)
        os.close(writable)
        time.sleep(random.uniform(0.0, longest))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        reported = step
        while told := os.read(readable, 4):
            reported = int.from_bytes(told, "little")
        os.close(readable)
        caught += any(folder.glob(".step_*"))
        checkpoints.clear_leftovers(folder)
        assert not list(folder.glob(".step_*"))
        newest = newest_intact(folder, fail)
        step, state = checkpoints.load_training(newest)
        assert newest.name == f"step_{step:09d}"
        assert step >= reported, "a checkpoint reported as saved is gone"
        check(newest, step, state)
    print(f"{times} kills, {caught} in the middle of a save, {step} checkpoints")
    assert caught > 0
