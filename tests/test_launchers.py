"""What torchrun and srun say of a rank is understood, and trainings that they start are those of `--procs`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

import ludus
from ludus.errors import ConfigError
from ludus.launchers import STOPPED, exit_code_when_stopped, find_launch, first_node
from ludus.ranks import Ticket
from ludus.show.console import Console
from ludus.training.checkpoint import checkpoints_in
from stopped_runs import assert_same_run
from test_rank_runs import SETTINGS, STEPS, go_on, gone, make_run, train_flags

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
SRUN = {
    "SLURM_JOB_ID": "81",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}


def put(patch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    for name in os.environ:
        if name.startswith(("SLURM_", "TORCHELASTIC_", "MASTER_", "RANK", "WORLD_SIZE")):
            patch.delenv(name)
    for name, value in variables.items():
        patch.setenv(name, value)


@pytest.mark.parametrize(
    ("variables", "ticket", "job", "stopped"),
    [
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "walk/1"}, Ticket(3, 4, store="env://"), "torchrun-walk_1", 0),
        (TORCHRUN, Ticket(3, 4, store="env://"), "", STOPPED),
        (SRUN, Ticket(1, 2, store="tcp://gpu03:21377"), "slurm-81", STOPPED),
        (SRUN | {"SLURM_STEP_ID": "2"}, Ticket(1, 2, store="tcp://gpu03:21379"), "slurm-81.2", STOPPED),
        (SRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "7"}, Ticket(1, 2, store="tcp://a:7"), "slurm-81", STOPPED),
        (SRUN | TORCHRUN, Ticket(3, 4, store="env://"), "", STOPPED),  # torchrun in a step of Slurm
    ],
)
def test_a_rank_is_what_its_launcher_says(
    variables: Mapping[str, str], ticket: Ticket, job: str, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, variables)
    assert find_launch() == (ticket, job)
    assert exit_code_when_stopped() == stopped


def test_torchrun_without_an_id_is_known_by_when_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that ranks that it starts again find their run."""
    put(monkeypatch, TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"})
    first, again = find_launch(), find_launch()
    assert first is not None
    assert first == again
    assert first.job.removeprefix("torchrun-20").replace("-", "").isdigit()


def test_a_batch_script_and_a_process_alone_are_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, {name: value for name, value in SRUN.items() if "STEP" not in name} | {"SLURM_NTASKS": "2"})
    assert find_launch() is None
    put(monkeypatch, {})
    assert find_launch() is None


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("vm", "vm"), ("a,b", "a"), ("gpu[03-08,11],login", "gpu03"), ("r[1-2]-ib", "r1-ib"), ("n[7,9]", "n7")],
)
def test_the_first_node_of_a_list_of_slurm(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


def test_a_job_goes_on_with_a_run_only_by_the_same_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"})

    def train(**settings: object) -> None:
        small = {name: value for name, value in SETTINGS.items() if name != "procs"}
        ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=small | settings)

    train()
    train()  # as Slurm does when it requeues the job; the run is finished
    with pytest.raises(ConfigError, match="already"):
        train(seed=3)


# torchrun -------------------------------------------------------------------------------------------
def torchrun(*words: object) -> "subprocess.Popen[str]":
    """Two ranks by `ludus words…`."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*start, "--max-restarts", "3", "-m", "ludus", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_checkpoint(folder: Path, after: int, agent: "subprocess.Popen[str]") -> int:
    """How many there have been, once there is another."""
    while True:
        newest = max((int(path.name[5:]) for path in checkpoints_in(folder / "checkpoints")), default=0)
        if newest > after:
            return newest
        assert agent.poll() is None, agent.communicate()[0]
        time.sleep(0.02)


def test_torchrun_starts_lost_ranks_again_and_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    length = {"loop__total_steps": 400 * STEPS, "eval__every": 10 * STEPS}
    folder, flags = tmp_path / "run", train_flags(**length)
    agent = torchrun("train", "gym:CartPole-v1", "--run-dir", folder, *flags)
    newest = wait_for_checkpoint(folder, 0, agent)
    psutil.Process(agent.pid).children()[1].kill()
    wait_for_checkpoint(folder, newest, agent)
    processes = psutil.Process(agent.pid).children()
    agent.send_signal(signal.SIGTERM)
    told = agent.communicate()[0]
    assert f"resuming {folder} at step" in told
    assert "Go on with: ludus resume" in told
    assert gone(processes)
    assert not (folder / "final").exists()
    agent = torchrun("resume", folder)
    told = agent.communicate()[0]
    assert agent.returncode == 0, told
    straight = make_run(tmp_path / "straight", **length)
    go_on(straight)
    assert_same_run(folder, straight)


def test_ranks_end_with_a_torchrun_that_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    agent = torchrun("train", "gym:CartPole-v1", "--run-dir", folder, *train_flags(loop__total_steps=10**6))
    wait_for_checkpoint(folder, 0, agent)
    processes = psutil.Process(agent.pid).children()
    agent.kill()
    agent.wait()
    assert gone(processes)
