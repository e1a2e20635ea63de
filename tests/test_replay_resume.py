"""A run that learns from a replay can be stopped anywhere, also within a cycle, and goes on bit for bit.

`straight` runs are never stopped; the others are, somehow, and are then held against them: weights, replay,
metrics, the loss of every batch.
"""

import functools
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import ludus
from ludus.buffers.episodes import EpisodeStore
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.recording import RecordConfig, record
from ludus.show.console import Console
from ludus.training import checkpoint as checkpoints
from ludus.training.checkpoint import checkpoints_in, newest_intact
from ludus.training.loop import Trainer
from stopped_runs import (
    SignalAt,
    StopAfter,
    assert_same_run,
    kill_while_saving,
    metric_rows,
    resume,
    reward_losses,
    run,
)
from warm_python import Program, python_command
from warm_python import ludus_command as command

Settings = dict[str, Any]


# Jobs -------------------------------------------------------------------------------------------------
ITERATIONS = 4  # a cycle
SMALL: Settings = {
    "policy.hidden": (16, 16),
    "replay.train_batches": 10,
    "loop.epochs": 2,
    "loop.cycles": 3,
    "loop.iterations": ITERATIONS,
    "eval.episodes": 2,
    "eval.stochastic": False,
    "eval.final_episodes": 2,
    "log.report": False,
}
COLLECTS: Settings = {
    "policy.normalize_obs": True,
    "replay.warmup": 100,
    "replay.steps": 40,
    "replay.batch_size": 16,
}
REWARD: Settings = {"reward.hidden": (16, 16), "reward.rrd_batch_size": 16, "reward.rrd_sample_size": 8}
LANES: Settings = {"groups": 2, "env.num_envs": 4, "env.max_steps": 30, "replay.capacity": 700}  # it overflows
# Some iterations begin with an update that leaves the policy alone, and tell of an earlier one.
FLASH: Settings = {"replay.n_step": 3, "replay.train_batches": 5, "replay.average": 20, "flash.critic_width": 16}
JOBS: dict[str, tuple[str, str, Settings]] = {
    "sac": ("gym:Pendulum-v1", "sac", {"env.max_steps": 50}),
    "td3": ("gym:Pendulum-v1", "td3", LANES | {"replay.n_step": 3}),
    "flash": ("gym:Pendulum-v1", "flash-sac", LANES | FLASH),
    "dqn": ("gym:CartPole-v1", "dqn", LANES | {"replay.train_target": 7}),
    "device": (  # work of one device: the replay has a ring for every lane
        "forage",
        "dqn",
        {
            "env.num_envs": 4,
            "env.agents": 2,
            "env.episode_length": 9,
            "replay.longest": 9,
            "replay.capacity": 200,
            "groups": 2,
        },
    ),
    "rrd": ("rrd-mujoco:hopper", "", LANES | {"eval.each_cycle": True}),
    "rrd-td3": ("rrd-mujoco:Pendulum-v1", "td3", LANES | {"reward.method": "rrd-unbiased"}),
    "rrd-flash": ("rrd-mujoco:Pendulum-v1", "flash-sac", LANES | {"flash.critic_width": 16}),
    "ircr": ("rrd-mujoco:Pendulum-v1", "", LANES | {"reward.method": "ircr"}),
    "reward": ("rrd-libero", "", {"data.keys": ("state",)}),
    "offline": (
        "kuka-pick-place",
        "td3",
        {"data.keys": ("state",), "replay.bc": 2.5, "replay.batch_size": 16, "env.max_steps": 20},
    ),
}
RECORDED = ("reward", "offline")


def train(name: str, folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    preset, algo, settings = JOBS[name]
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    data = {"data": os.environ["LUDUS_TEST_DATA"]} if name in RECORDED else {}
    decomposed = REWARD if name in ("rrd", "rrd-td3", "rrd-flash", "reward") else {}
    overrides = SMALL | ({} if name in RECORDED else COLLECTS) | decomposed | settings | data | changes
    return ludus.train(preset, folder, callbacks, Console("quiet"), algo=algo, overrides=overrides)


@pytest.fixture(autouse=True, scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("data") / "kuka.hdf5"
    record("scripted", path, RecordConfig(episodes=8, seed=3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LUDUS_TEST_DATA", str(path))  # for processes of their own, too
        yield


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Runs that were never stopped, each trained once."""
    return functools.cache(lambda name: train(name, tmp_path_factory.mktemp("straight") / name))


# Stopped ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", JOBS)
def test_a_run_stopped_in_the_middle_of_cycles_equals_one_that_never_stopped(
    name: str, tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    """Once before anything is learned, once in the second cycle, once in the second epoch."""
    folder = train(name, tmp_path / "run", StopAfter(1))
    resume(folder, StopAfter(ITERATIONS + 2))
    saved = newest_intact(folder / "checkpoints", pytest.fail)
    assert not (folder / "final").exists()
    kept = load_file(saved / "training.safetensors")
    assert ("/state/job/store/reward" in kept) == (name not in RECORDED)  # recorded data are read again
    resume(folder, StopAfter(4 * ITERATIONS + 3))
    resume(folder)
    assert_same_run(folder, straight(name))


def test_the_replay_that_is_saved_holds_open_episodes_and_has_let_old_ones_go(
    straight: Callable[[str], Path],
) -> None:
    """So that the comparisons above compare something."""
    state = json.loads((newest_intact(straight("rrd") / "checkpoints", pytest.fail) / "training.json").read_text())
    store = state["state"]["job"]["store"]
    assert 0 < store["episodes"] < store["total_episodes_added"]
    rows = metric_rows(straight("rrd"))
    assert [row["Timesteps"] for row in rows if "Timesteps" in row] == [
        row["step"] for row in rows if "Timesteps" in row
    ]  # also of what has left
    kept = load_file(newest_intact(straight("rrd") / "checkpoints", pytest.fail) / "training.safetensors")
    assert int(kept["/state/job/store/open_length"].sum()) > 0
    assert len(reward_losses(straight("rrd"))) == 4 * state["state"]["job"]["batches"]["updates"] == 4 * 220


def test_the_seed_decides(tmp_path: Path, straight: Callable[[str], Path]) -> None:
    again, other = train("rrd", tmp_path / "again"), train("rrd", tmp_path / "other", seed=1)
    assert_same_run(again, straight("rrd"))
    assert metric_rows(other) != metric_rows(again)


# Killed -----------------------------------------------------------------------------------------------
def kill_after_checkpoint(name: str, folder: Path, number: int) -> None:
    """Train in a process of its own, with a checkpoint at every second iteration, until a SIGKILL."""
    every = 80 if name not in RECORDED else 20
    call = f"t.train({name!r}, pathlib.Path({str(folder)!r}), checkpoint__every={every})"
    program = f"import pathlib, test_replay_resume as t; {call}"
    process = Program(python_command(program))
    try:
        while not checkpoints_in(folder / "checkpoints")[number - 1 :]:
            assert process.poll() is None, process.output()
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 0.1))
        process.kill()
        assert process.wait() == -signal.SIGKILL
    finally:
        process.kill()


@pytest.mark.parametrize("name", ["sac", "rrd", "reward"])
def test_a_run_killed_by_sigkill_and_resumed_equals_one_that_never_stopped(
    name: str, tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = tmp_path / "run"
    kill_after_checkpoint(name, folder, 3)
    assert not (folder / "final").exists()
    if name == "sac":  # as a user would
        result = run(command("resume", folder))
        assert result.returncode == 0, result.stderr
    else:
        resume(folder)
    assert_same_run(folder, straight(name))


@pytest.mark.parametrize(
    ("name", "iteration"),
    [
        ("sac", 3 * ITERATIONS),
        ("rrd", ITERATIONS),
        pytest.param("rrd", 3 * ITERATIONS, marks=pytest.mark.slow),
        ("rrd", 6 * ITERATIONS),
    ],
)
def test_an_evaluation_cut_short_by_an_interrupt_is_made_up_for(
    name: str, iteration: int, tmp_path: Path, straight: Callable[[str], Path]
) -> None:
    folder = train(name, tmp_path / "run", SignalAt(iteration))
    assert not (folder / "final").exists()
    resume(folder)
    assert_same_run(folder, straight(name))


def test_what_broke_in_the_middle_of_collecting_is_saved_without_the_open_episodes(tmp_path: Path) -> None:
    class Break(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            if run.counters.iteration == 6:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train("rrd", tmp_path / "run", Break())
    saved = newest_intact(tmp_path / "run" / "checkpoints", pytest.fail)
    assert json.loads((saved / "training.json").read_text())["state"]["job"]["collector"] is None
    resume(tmp_path / "run")
    assert (tmp_path / "run" / "final").exists()


class Spoil(ludus.Callback):
    """Makes what is learned from (targets) or, where there is none, what is learned not a number, once."""

    def __init__(self, iteration: int) -> None:
        self.iteration, self.factor = iteration, 0.0

    def on_iteration(self, run: Trainer) -> None:
        if run.counters.iteration == self.iteration and run.counters.rollbacks == 0:
            learner = getattr(run.job, "learner", None)
            for weights in run.job.weights() if learner is None else learner.agent.targets.values():
                weights.fill_(float("nan"))

    def on_end(self, run: Trainer) -> None:
        self.factor = run.job.rate_factor


@pytest.mark.parametrize(
    "name",
    [
        "rrd",
        pytest.param("td3", marks=pytest.mark.slow),
        pytest.param("flash", marks=pytest.mark.slow),
        "dqn",
        "reward",
        pytest.param("offline", marks=pytest.mark.slow),
    ],
)
def test_from_gradients_that_are_not_numbers_a_run_goes_back_with_half_the_rate(name: str, tmp_path: Path) -> None:
    spoil = Spoil(3 * ITERATIONS + 1)
    folder = train(name, tmp_path / "run", spoil)
    assert spoil.factor == 0.5
    assert (folder / "final").exists()
    assert [row["loop/cycle"] for row in metric_rows(folder) if "loop/cycle" in row] == [1, 2, 3, 1, 2, 3]
    (dump,) = (folder / "nan_dump").iterdir()
    assert load_file(dump)
    batches = json.loads((folder / "final" / "training.json").read_text())["state"]["job"]["batches"]["updates"]
    assert len(reward_losses(folder)) == (4 * batches if name in ("rrd", "reward") else 0)
    checkpoint = newest_intact(folder / "checkpoints", pytest.fail)
    learned = [tensor for file in checkpoint.glob("*.safetensors") for tensor in load_file(file).items()]
    bad = [k for k, t in learned if t.is_floating_point() and not bool(torch.isfinite(t).all())]
    assert [name for name in bad if not name.endswith("/success")] == []  # unknown success is NaN


# SIGKILL while a replay is saved ----------------------------------------------------------------------
def make_store(step: int) -> EpisodeStore:
    """Full of a number; episodes enter and leave, so that its shape changes too."""
    store = EpisodeStore({"obs": ((20,), torch.float32)}, ((4,), torch.float32), 6000, 2, 50, "cpu")
    for i in range(100 + step % 60):
        length = 40 + i % 10
        number = torch.full((length + 1, 20), float(step))
        store.add({"obs": number}, number[1:, :4], number[1:, 0], terminated=bool(i % 2))
    store.begin(slice(None), {"obs": torch.full((2, 20), float(step))})
    for _ in range(step % 30):
        number = torch.full((2, 20), float(step))
        store.append(number[:, :4], number[:, 0], {"obs": number})
    return store


def check_store(store: EpisodeStore, step: int) -> None:
    expected = make_store(step).state()
    actual = store.state()
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(actual[name].nan_to_num(-1.0), value.nan_to_num(-1.0)), name
        else:
            assert actual[name] == value, name


def save_for_ever(folder: Path, policy: Any, step: int, report: int) -> None:
    while True:
        state = {"store": make_store(step).state(), "step": step}
        checkpoints.save_checkpoint(folder, step, {"policy": policy}, state)
        checkpoints.prune(folder, keep=2)
        os.write(report, step.to_bytes(4, "little"))
        step += 1


def check_saved(checkpoint: Path, step: int, state: dict[str, Any]) -> None:
    assert state["step"] == step
    store = make_store(7)
    store.load_state(state["store"])
    check_store(store, step)


def kill_savers(folder: Path, times: int) -> None:
    box = ludus.make_env("gym:Pendulum-v1", num_envs=1)
    policy = make_replay_policy("sac", box.obs_space, box.action_space, PolicyConfig(), 0)
    checkpoints.save_checkpoint(folder, 0, {"policy": policy}, {"store": make_store(0).state(), "step": 0})
    kill_while_saving(folder, times, 0.2, functools.partial(save_for_ever, folder, policy), check_saved)


def test_sigkill_at_random_moments_of_saving_a_replay_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    program = f"import test_replay_resume as t, pathlib; t.kill_savers(pathlib.Path({str(tmp_path)!r}), 15)"
    result = run(python_command(program))
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("15 kills")
