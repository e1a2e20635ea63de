"""What a run takes: told before it starts, measured while it goes, and a sentence where there is not enough."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import ludus
from ludus.config import CheckpointConfig, Plan
from ludus.errors import TrainingError
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show import machine
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.show.machine import Machine
from ludus.training.checkpoint import checkpoints_in
from ludus.training.forecast import Stopwatch, checkpoints_kept, disk_line
from ludus.training.loop import Trainer

Settings = dict[str, Any]
SHORT: Settings = {"env.num_envs": 4, "ppo.horizon": 8, "ppo.minibatches": 1, "loop.total_steps": 160}
QUIET: Settings = {"log.report": False, "log.tensorboard": False, "eval.episodes": 2}


class Told(Console):
    def __init__(self) -> None:
        super().__init__("quiet")
        self.lines: list[str] = []

    def plan(self, title: str, lines: list[str]) -> None:
        self.lines += lines

    def message(self, line: str) -> None:
        self.lines.append(line)


def test_the_plan_names_the_device_and_the_disk_and_the_time_comes_soon(tmp_path: Path) -> None:
    screen = Told()
    ludus.train("gym:CartPole-v1", tmp_path / "run", console=screen, overrides=SHORT | QUIET)
    (device,) = (line for line in screen.lines if line.startswith("on "))
    assert "CPU cores; 1 checkpoint of " in device
    assert " on disk: " in device
    assert sum(line.startswith("expected time: ") for line in screen.lines) == 1


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("kuka-pick-place", {"env.num_envs": 16, "ppo.horizon": 8, "loop.total_steps": 256}),
        ("gym:Pendulum-v1", {"algo": "sac", "loop.total_steps": 1_500, "replay.train_batches": 1}),
    ],
    ids=["ppo", "sac"],
)
def test_the_disk_that_was_told_is_taken(tmp_path: Path, preset: str, settings: Settings) -> None:
    class Asked(ludus.Callback):
        told = 0.0

        def on_start(self, run: Trainer) -> None:
            line = disk_line(run.job, run.config.checkpoint, run.run_dir)
            number, unit = line.split(" of ")[1].split(" on ")[0].split()
            self.told = float(number) * {"kB": 1e3, "MB": 1e6}[unit]

    asked = Asked()
    algo: Settings = {"algo": settings["algo"]} if "algo" in settings else {}
    rest = {name: value for name, value in settings.items() if name != "algo"} | QUIET
    run = ludus.train(preset, tmp_path / "run", [asked], Console("quiet"), overrides=rest, **algo)
    newest = checkpoints_in(run / "checkpoints")[-1]
    assert sum(file.stat().st_size for file in newest.iterdir()) == pytest.approx(asked.told, rel=0.15)


@pytest.mark.parametrize(
    ("every", "keep", "count"), [(0, 3, 5), (10_240, 3, 5), (0, "all", 10), (10_240, "all", 20), (0, 50, 10)]
)
def test_checkpoints_are_counted_as_they_are_kept(every: int, keep: Any, count: int) -> None:
    plan = Plan(1024, 8, 1, 10, 100)
    assert checkpoints_kept(plan, CheckpointConfig(every=every, keep=keep)) == count


def test_a_stopwatch_leaves_the_first_iteration_out() -> None:
    watch = Stopwatch()
    laps = [watch.lap(torch.device("cpu")) for _ in range(5)]
    assert [lap is None for lap in laps] == [True, True, False, True, True]


# While it goes ----------------------------------------------------------------------------------------
def test_rows_tell_how_busy_the_processor_is_and_how_much_memory_is_held(tmp_path: Path) -> None:
    run = ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=SHORT | QUIET)
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "loop/cycle" in row]
    assert all(row["system/cpu_percent"] >= 0 for row in rows)
    assert min(row["system/memory_mb"] for row in rows) > 150  # torch alone takes more
    assert not any(name.startswith("system/gpu") for name in rows[-1]) or torch.cuda.is_initialized()


SECONDS = 10.0  # after which children are looked for again


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_processor_is_measured_since_the_last_time() -> None:
    clock = Clock()
    here, begun = Machine(clock), time.process_time()
    while time.process_time() < begun + 0.2:
        pass
    clock.now = 1.0
    worked, spent = here.metrics()["system/cpu_percent"], time.process_time() - begun
    clock.now = 2.0
    rested = here.metrics()["system/cpu_percent"]
    assert 5 * rested < worked <= 100 * (spent + 0.05)  # of a second, to which the system rounds


def test_a_child_is_found_and_what_it_did_before_does_not_count() -> None:
    clock = Clock()
    here = Machine(clock)
    alone, begun = here.metrics()["system/memory_mb"], time.process_time()
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        clock.now = SECONDS
        told = here.metrics()
        child.communicate(b"\n")
    assert told["system/memory_mb"] > alone + 2
    worked = told["system/cpu_percent"] / 100 * SECONDS * machine._cores()
    assert worked < time.process_time() - begun + 0.25  # by this process; the child had worked for half a second


# Not enough -------------------------------------------------------------------------------------------
class Greedy(ludus.Callback):
    """Memory runs out in the third iteration."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def on_iteration(self, run: Trainer) -> None:
        if run.counters.iteration == 3:
            raise self.error


def out_of(error: BaseException, folder: Path) -> None:
    settings = SHORT | QUIET
    ludus.train("gym:CartPole-v1", folder / "run", [Greedy(error)], Console("quiet"), overrides=settings)


CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.00 GiB"
ERRORS = {
    "cuda": (torch.OutOfMemoryError(CUDA), r"The GPU ran out of memory \(20.00 MiB more were asked for\)"),
    "host": (MemoryError(), "This machine ran out of memory. Make"),
    "warp": (RuntimeError("Failed to allocate on device cuda:0: out of memory"), "The GPU ran out of memory"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_running_out_of_memory_is_a_sentence_and_what_was_learned_is_kept(tmp_path: Path, kind: str) -> None:
    error, told = ERRORS[kind]
    with pytest.raises(TrainingError, match=f"{told}.*--env.num-envs.*--ppo.minibatches") as raised:
        out_of(error, tmp_path)
    assert raised.value.__cause__ is error
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["step_000000096"]


def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="something else"):
        out_of(RuntimeError("something else"), tmp_path)


def test_every_algorithm_says_what_to_reduce() -> None:
    assert "--replay.capacity" in find_preset("gym:CartPole-v1", "dqn").config.memory_advice
    libero = apply_overrides(find_preset("rrd-libero").config, {"data": "x.hdf5"})
    assert "--data.image-size" in libero.memory_advice


LIMITED = """
import resource, sys
from ludus.cli import main
import ludus.runs, psutil
room = psutil.Process().memory_info().vms + 400_000_000
resource.setrlimit(resource.RLIMIT_AS, (room, room))
sys.argv = ["ludus", "train", "gym:CartPole-v1", "--algo", "dqn", "--run-dir", sys.argv[1]]
sys.argv += ["--replay.capacity", "40000000", "--log.no-report"]
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits address space")
def test_a_machine_that_gives_no_memory_is_told_of_without_a_stack_trace(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "ran out of memory" in done.stderr
    assert "--replay.capacity" in done.stderr
