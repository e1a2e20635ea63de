"""Runs of several ranks: saved, stopped, lost and resumed as one, by the trainer and by the command."""

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest

import ludus
from ludus import new_runs, ranks, runs
from ludus.algorithms.on_policy.config import adapted
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.ppo.job import PPOJob
from ludus.config import to_dict
from ludus.errors import ConfigError, EnvError, LudusError
from ludus.files import TRANSIENT
from ludus.launchers import STOPPED
from ludus.presets import find_preset
from ludus.provenance import facts_of
from ludus.saved_run import trusted_config
from ludus.settings import apply_overrides, with_procs
from ludus.training import checkpoint, rank_parts
from ludus.training.address import Address
from ludus.training.checkpoint import checkpoints_in, load_training, newest_intact
from ludus.training.elastic import MOST_LOSSES, again_while_lost
from ludus.training.loop import Trainer
from rank_processes import on_ranks
from stopped_runs import assert_same_run, metric_rows, run
from warm_python import Program
from warm_python import ludus_command as command

Settings = dict[str, Any]
ITERATIONS = 12
STEPS = 2 * 2 * 16  # of an iteration: two ranks, two environments, a horizon of 16
SETTINGS: Settings = {
    "procs": 2,
    "env.num_envs": 2,
    "env.max_steps": 40,
    "env.workers": 0,
    "ppo.horizon": 16,
    "ppo.minibatches": 2,
    "ppo.update_epochs": 2,
    "loop.total_steps": ITERATIONS * STEPS,
    "eval.every": 3 * STEPS,
    "eval.episodes": 5,
    "eval.final_episodes": 0,
    "log.report": False,
    "log.tensorboard": False,
}
PRESET = "gym:CartPole-v1"


@dataclass(frozen=True)
class AloneConfig(PPOTrainConfig):
    """Of an algorithm that knows nothing of ranks."""

    algo: str = "alone"
    has_ranks: ClassVar[bool] = False


ALONE = ludus.Algorithm("alone", "PPO.", AloneConfig, PPOJob, partial(adapted, kind=AloneConfig))


def make_run(folder: Path, **changes: Any) -> Path:
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    return create_run(folder, PRESET, "ppo", settings)


def create_run(folder: Path, preset: str, algo: str, settings: Settings) -> Path:
    config = apply_overrides(find_preset(preset, algo).config, settings)
    folder.mkdir()
    new_runs.create_run(folder, config, facts_of(preset, config))
    return folder


def go_on(
    folder: Path,
    before: Callable[[], None] = lambda: None,
    codes: Sequence[int] = (),
    size: int = 2,
    stop_at: int = 0,
) -> None:
    """So many ranks train to the end, or until they are stopped; what happens `before` happens on each."""

    def train() -> None:
        before()
        config = with_procs(trusted_config(folder, trust=True), size)
        runs._go_on_together(Address(folder), config, {"preset": PRESET}, (), None, stop_at)

    on_ranks(size, train, codes=codes)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Never stopped."""
    folder = make_run(tmp_path_factory.mktemp("straight") / "run")
    go_on(folder)
    return folder


def at_iteration(number: int, rank: int, act: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    """Do something on one rank, once, before an iteration."""
    iteration, acts = Trainer._iteration, [act]

    def watched(self: Trainer) -> bool:
        if (self.counters.iteration, ranks.rank()) == (number, rank) and acts:
            acts.pop()()
        return iteration(self)

    patch.setattr(Trainer, "_iteration", watched)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("number", [4, 5])  # the iteration after 5 ends an epoch: its evaluation is cut short
def test_a_signal_to_one_rank_stops_all_after_the_same_iteration_and_they_go_on_exactly(
    number: int, tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_run(tmp_path / "run")
    go_on(folder, lambda: at_iteration(number, 1, interrupt, monkeypatch))
    assert not (folder / "final").exists()
    newest = newest_intact(folder / "checkpoints", pytest.fail)
    assert newest.name == f"step_{(number + 1) * STEPS:09d}"
    assert {"rank_1.json", "rank_1.safetensors"} <= {file.name for file in newest.iterdir()}
    assert not list((folder / "checkpoints").glob(".*"))  # what a rank writes aside is gone
    go_on(folder)
    assert_same_run(folder, straight)


COMMON = {name: SETTINGS[name] for name in SETTINGS if name.startswith(("procs", "log", "eval"))}
KINDS: dict[str, tuple[str, Settings]] = {
    "sac": (
        "vec:replay_envs:make_match",
        {"env.kwargs": {"length": 5}, "policy.hidden": (16,), "replay.steps": 20, "replay.train_batches": 4,
         "replay.warmup": 3 * STEPS, "replay.capacity": 100, "episodic_reward": True, "reward.method": "rrd",
         "reward.hidden": (16,), "reward.rrd_batch_size": 16, "reward.rrd_sample_size": 4, "loop.iterations": 3},
    ),
    "amp": (
        "vec:imitation_envs:make_drift",
        {"policy.hidden": (16,), "ppo.horizon": 16, "ppo.minibatches": 2, "adversary.hidden": (16,),
         "adversary.batch_size": 16, "adversary.replay": 40},
    ),
    "distill": ("gym:CartPole-v1", {"env.workers": 0, "policy.hidden": (16,)}),
}  # fmt: skip


@pytest.mark.parametrize("algo", KINDS)
def test_a_run_of_another_algorithm_is_stopped_by_a_signal_and_goes_on_exactly(
    algo: str, tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset, settings = KINDS[algo]
    steps = 2 * 20 if algo == "sac" else STEPS
    settings = COMMON | {"env.num_envs": 2} | settings | {"loop.total_steps": 12 * steps, "eval.every": 6 * steps}
    if algo == "distill":
        settings |= {"distill.teacher": str(straight), "distill.minibatches": 2}
    folders = [create_run(tmp_path / name, preset, algo, settings) for name in ("straight", "stopped")]
    go_on(folders[0])
    go_on(folders[1], lambda: at_iteration(7, 1, interrupt, monkeypatch))
    assert newest_intact(folders[1] / "checkpoints", pytest.fail).name == f"step_{8 * steps:09d}"
    go_on(folders[1])
    assert_same_run(folders[1], folders[0])


def test_the_episodes_of_an_evaluation_are_shared_out_and_all_are_counted(straight: Path) -> None:
    lines = [json.loads(line) for line in (straight / "episodes.jsonl").read_text().splitlines()]
    newest = [line for line in lines if line["step"] == ITERATIONS * STEPS and line["actions"] == "deterministic"]
    assert [(line.get("rank", 0), len(line["return"])) for line in newest] == [(0, 3), (1, 2)]
    evaluated = [row for row in metric_rows(straight) if "eval/episodes" in row]
    assert [row["eval/episodes"] for row in evaluated] == [5] * 4
    returns = [value for line in newest for value in line["return"]]
    assert evaluated[-1]["eval/mean_reward"] == pytest.approx(sum(returns) / 5)


def test_ranks_go_back_together_when_the_gradients_of_one_are_not_finite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    average = FlatAdam.average

    def poison() -> None:
        left = iter([True] * 4)  # the updates of an iteration

        def poisoned(self: FlatAdam, *arguments: Any) -> Any:
            if next(left, False):
                self.grad.fill_(float("nan"))
            return average(self, *arguments)

        monkeypatch.setattr(FlatAdam, "average", poisoned)

    folder = make_run(tmp_path / "run")
    go_on(folder, lambda: at_iteration(7, 1, poison, monkeypatch))
    counters = load_training(newest_intact(folder / "checkpoints", pytest.fail))[1]["counters"]
    assert (counters["rollbacks"], counters["iteration"]) == (1, ITERATIONS)
    assert len(list((folder / "nan_dump").iterdir())) == 2  # what each rank had learned from


def test_ranks_whose_weights_have_come_apart_are_stopped_at_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As by an algorithm of a user's that forgets to average."""
    monkeypatch.setattr(FlatAdam, "average", lambda self, beside=None, weight=1.0: beside)
    go_on(make_run(tmp_path / "run", ppo__target_kl=0), codes=[1, 1])
    assert f"The ranks have come apart: at step {3 * STEPS}" in capfd.readouterr().err
    assert not list((tmp_path / "run" / "checkpoints").glob("*/rank_1.json"))


def test_a_part_that_one_rank_cannot_write_is_no_checkpoint_and_all_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part = rank_parts.write_part

    def fail_at_first(folder: Path, step: int, rank: int, state: Any) -> Path:
        if step == 3 * STEPS:
            with checkpoint._told_in_a_sentence(folder, step):
                raise OSError(errno.EIO, "the disk was not ready")
        return write_part(folder, step, rank, state)

    assert errno.EIO in TRANSIENT
    monkeypatch.setattr(rank_parts, "write_part", fail_at_first)
    folder = make_run(tmp_path / "run", checkpoint__keep="all")
    go_on(folder)
    assert [path.name for path in checkpoints_in(folder / "checkpoints")] == [
        f"step_{i * STEPS:09d}" for i in (6, 9, 12)
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_an_environment_that_one_rank_finds_broken_as_it_saves_stops_all(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    state = OnPolicyJob.state

    def broken(self: OnPolicyJob, whole: bool) -> Any:
        if whole and ranks.rank() == rank:
            raise EnvError("Its rewards are no numbers.")
        return state(self, whole)

    monkeypatch.setattr(OnPolicyJob, "state", broken)
    go_on(make_run(tmp_path / "run"), codes=[1, 1])
    assert capfd.readouterr().err.count("EnvError: Its rewards are no numbers.") == 2


def test_a_rank_without_a_part_in_the_checkpoint_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an emergency, when rank 0 saves alone."""

    def break_down() -> None:
        raise ConfigError("broken")

    folder = make_run(tmp_path / "run")
    go_on(folder, lambda: at_iteration(4, 0, break_down, monkeypatch), codes=[1, 1])
    newest = newest_intact(folder / "checkpoints", pytest.fail)
    assert newest.name == f"step_{4 * STEPS:09d}"
    assert not (newest / "rank_1.json").exists()
    go_on(folder)
    assert (folder / "final").resolve().name == f"step_{ITERATIONS * STEPS:09d}"


def test_another_number_of_ranks_goes_on_with_what_was_learned(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", env__num_envs=4, loop__total_steps=16 * STEPS, ppo__segments=4)
    for size, share, steps in ((2, 4, 4), (4, 2, 8), (1, 8, 12)):
        go_on(folder, size=size, stop_at=steps * STEPS)
        newest = newest_intact(folder / "checkpoints", pytest.fail)
        config, state = trusted_config(folder, trust=True), load_training(newest)[1]
        assert newest.name == f"step_{steps * STEPS:09d}"
        assert (config.procs, config.env.num_envs, to_dict(config)["ppo"]["segments"]) == (size, share, share)
        assert (state["ranks"], state["counters"]["iteration"]) == (size, steps // 2)
        assert len(list(newest.glob("rank_*.json"))) == size - 1


def test_another_number_of_ranks_goes_on_with_the_replay_buffer(tmp_path: Path) -> None:
    preset, settings = KINDS["sac"]
    settings = COMMON | settings | {"env.num_envs": 2, "replay.capacity": 10_000, "eval.every": 40}
    folder = create_run(tmp_path / "run", preset, "sac", settings | {"loop.total_steps": 16 * 40})
    kept = 0
    for size, iterations in ((2, 4), (1, 8), (4, 12)):
        go_on(folder, size=size, stop_at=iterations * 40)
        state = load_training(newest_intact(folder / "checkpoints", pytest.fail))[1]
        store = state["job"]["store"]
        assert (state["ranks"], store["lanes"]) == (size, 4 // size)
        assert store["steps"] > kept  # of rank 0
        kept = store["steps"]


def test_what_cannot_be_shared_out_equally_is_told_with_what_can() -> None:
    config = find_preset(PRESET).config
    assert with_procs(config, 2).env.num_envs == config.env.num_envs // 2
    with pytest.raises(ConfigError, match="which 3 cannot share out equally"):
        with_procs(config, 3)


# Lost ranks -------------------------------------------------------------------------------------------
def test_lost_ranks_are_started_again_as_long_as_the_run_gets_on(tmp_path: Path) -> None:
    told: list[str] = []

    def attempt() -> None:
        if len(told) < 8:
            if len(told) % 2:
                (tmp_path / f"step_{len(told):09d}").mkdir()
            raise ranks.RankLostError("Rank 1 was ended by SIGKILL.")

    again_while_lost(attempt, tmp_path, told.append)
    assert told[0] == (
        "Rank 1 was ended by SIGKILL. All ranks go on from the beginning: there is no checkpoint yet."
    )
    assert told[7].endswith("All ranks go on from step 7.")


@pytest.mark.parametrize("error", [ranks.RankLostError("Rank 1 is gone."), ConfigError("no such thing")])
def test_ranks_are_given_up_when_they_get_no_further_and_at_once_for_an_error_of_their_own(
    error: Exception, tmp_path: Path
) -> None:
    told: list[str] = []

    def attempt() -> None:
        raise error

    lost = isinstance(error, ranks.RankLostError)
    with pytest.raises(LudusError, match="Given up after 5 losses since the beginning" if lost else "no such"):
        again_while_lost(attempt, tmp_path, told.append)
    assert len(told) == (MOST_LOSSES - 1 if lost else 0)


@pytest.mark.parametrize(
    ("preset", "settings", "what"),
    [
        (PRESET, {"algo": "test_rank_runs:ALONE"}, "--algo .*ALONE trains in one process"),
    ],
)
def test_what_cannot_be_trained_by_ranks_is_refused_before_anything_is_written(
    preset: str, settings: Settings, what: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=what):
        ludus.train(preset, tmp_path / "run", procs=2, overrides=settings)
    assert not (tmp_path / "run").exists()


def test_callbacks_cannot_be_taken_along(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="callbacks cannot be taken along"):
        ludus.train(PRESET, tmp_path / "run", [ludus.Callback()], procs=2)
    assert not (tmp_path / "run").exists()


# The command ----------------------------------------------------------------------------------------
def train_flags(**changes: Any) -> list[str]:
    settings = SETTINGS | {key.replace("__", "."): value for key, value in changes.items()}
    flags: list[str] = []
    for name, value in settings.items():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag.replace("log.", "log.no-")] if value is False else [flag, str(value)]
    return flags


def train_command(folder: Path, **changes: Any) -> list[str]:
    return command("train", PRESET, "--run-dir", folder, *train_flags(**changes))


def start(folder: Path, **changes: Any) -> tuple[Program, list[psutil.Process]]:
    """A training by the command that has made its first checkpoint, and its ranks."""
    program = Program(train_command(folder, **changes), session=True)
    while not checkpoints_in(folder / "checkpoints"):
        assert program.poll() is None, program.output()
        time.sleep(0.01)
    found = psutil.Process(program.pid).children()
    assert len(found) == 2
    return program, found


def gone(processes: list[psutil.Process], seconds: float = 5.0) -> bool:
    return not psutil.wait_procs(processes, seconds)[1]


def _soon(folder: Path) -> int:
    """A number of steps that is soon reached."""
    return int(newest_intact(folder / "checkpoints", pytest.fail).name.removeprefix("step_")) + 3 * STEPS


LONG = {"loop__total_steps": 100 * ITERATIONS * STEPS}


def test_the_command_trains_on_ranks_and_goes_on_exactly_after_sigterm(tmp_path: Path) -> None:
    length: Settings = {"loop__total_steps": 150 * STEPS, "eval__every": 10 * STEPS}
    folder = tmp_path / "run"
    program, processes = start(folder, **length)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == STOPPED, program.output()
    assert "Go on with: ludus resume" in program.output()
    assert gone(processes)
    resumed = run(command("resume", folder))
    assert resumed.returncode == 0, resumed.stderr
    straight = make_run(tmp_path / "straight", **length)
    go_on(straight)
    assert_same_run(folder, straight)


def test_ranks_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    program, processes = start(folder, **LONG)
    program.kill()
    program.wait()
    assert gone(processes)
    assert run(command("resume", folder, "--total-steps", _soon(folder))).returncode == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_killed_or_hangs_costs_the_work_since_the_last_checkpoint_and_nothing_else(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    length: Settings = {"loop__total_steps": 60 * STEPS, "eval__every": 10 * STEPS}
    monkeypatch.setenv(ranks.DEADLINE, "3")
    folder = tmp_path / "run"
    program, processes = start(folder, **length)
    processes[1].send_signal(number)
    assert program.wait() == 0, program.output()
    hung = "Rank 1" if ranks.has_shared_memory() else "Another rank"  # sockets do not say which
    why = "Rank 1 was ended by SIGKILL" if number == signal.SIGKILL else f"{hung} has not answered for 3 s"
    assert why in program.output()
    assert "All ranks go on from step" in program.output()
    assert gone(processes)
    straight = make_run(tmp_path / "straight", **length)
    go_on(straight)
    assert_same_run(folder, straight)


def test_an_error_of_all_ranks_is_told_once_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = run(train_command(folder, ppo__minibatches=7))
    assert result.returncode == 2
    assert result.stderr.count("do not divide into 7 minibatches") == 1
    assert "Traceback" not in result.stderr
    assert not folder.exists()
