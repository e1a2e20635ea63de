"""Processes on a Ray cluster: what can be known without one, and a cluster of two nodes where Ray is installed."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ludus import ranks
from ludus.commands.placing import joined, take_ray
from ludus.commands.sweep import sweep
from ludus.errors import ConfigError, TrainingError
from ludus.ray_cluster import RayCluster, _refuse_unreachable, most_cpus
from ludus.ray_processes import WAIT, _Starter, longest_wait_s
from ludus.seed_processes import Seed
from ludus.training.local_ranks import run_started

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "ray_cluster.py"


@pytest.mark.parametrize(
    ("free", "ranks", "gpus", "cpus"),
    [
        ([{"CPU": 16.0}, {"CPU": 16.0}], 2, 0, 16),
        ([{"CPU": 16.0}, {"CPU": 16.0}], 4, 0, 8),
        ([{"CPU": 16.0}, {"CPU": 7.0}], 3, 0, 7),
        ([{"CPU": 2.0}], 2, 0, 1),
        ([{"CPU": 1.0}], 2, 0, 0),
        ([{"memory": 1e9}], 1, 0, 0),
        ([], 1, 0, 0),
        ([{"CPU": 16.0, "GPU": 2.0}, {"CPU": 64.0}], 2, 1, 8),
        ([{"CPU": 64.0}], 1, 1, 0),
    ],
)
def test_ranks_have_as_many_cpus_as_all_can_have(
    free: list[dict[str, float]], ranks: int, gpus: int, cpus: int
) -> None:
    assert most_cpus(free, ranks, gpus) == cpus


def test_an_address_may_be_left_out(tmp_path: Path) -> None:
    assert take_ray(["--procs", "2"]) == (["--procs", "2"], None)
    assert take_ray(["--ray", "--procs", "2"]) == (["--procs", "2"], "auto")
    assert take_ray(["--procs", "2", "--ray"]) == (["--procs", "2"], "auto")
    assert take_ray(["--ray", "node1:6379", "--procs", "2"]) == (["--procs", "2"], "node1:6379")
    assert take_ray(["--ray=node1:6379"]) == ([], "node1:6379")
    assert take_ray(["--ray", str(tmp_path)]) == ([str(tmp_path)], "auto")  # the run to go on with


@pytest.mark.parametrize("address", ["node1", "ray://node1:10001", "node1:port", "node1:123456", ":6379"])
def test_what_is_no_address_is_told_in_a_sentence(address: str) -> None:
    with pytest.raises(ConfigError, match=f"--ray {address}: an address is HOST:PORT"):
        _refuse_unreachable(address)


def test_where_nothing_answers_is_told_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"--ray {address}: nothing answers there"):
        _refuse_unreachable(address)


def test_the_extra_is_named_where_ray_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[ray\]'"):
        RayCluster().__enter__()
    assert signal.getsignal(signal.SIGTERM) is before


def test_ranks_that_a_launcher_has_started_are_not_placed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="--ray: torchrun or srun has started the ranks already"):
        joined("auto")


def test_a_sweep_has_one_place() -> None:
    words = ["gym:CartPole-v1", "--param", "ppo.learning_rate=log(1e-4,1e-2)"]
    with pytest.raises(ConfigError, match="--launcher and --ray both say where processes run"):
        sweep([*words, "--launcher", "srun -n1", "--ray"])


def test_a_wait_that_is_no_number_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT, "soon")
    with pytest.raises(TrainingError, match="LUDUS_RAY_WAIT is 'soon'; it must be a number of seconds"):
        longest_wait_s()


def test_a_node_that_does_not_see_the_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"run\. Give a --run-dir that all nodes of the cluster see"):
        _Starter().start(["resume"], str(tmp_path / "run"), [], {})


def test_a_seed_whose_node_is_lost_waits_for_another_unless_it_gets_no_further(tmp_path: Path) -> None:
    lost, seed, states = ranks.RankLostError.exit_code, Seed(0, tmp_path), []
    for step in (100, 100, 200, 200, 200, 200, 200):
        seed.process = subprocess.Popen([sys.executable, "-c", f"raise SystemExit({lost})"])
        seed.process.wait()
        seed.step = step
        seed.look()
        states.append(seed.state)
    assert states == ["waiting"] * 6 + ["failed"]


def test_a_signal_that_finds_a_rank_past_its_end_changes_nothing() -> None:
    saves = "import signal,sys; signal.signal(15, lambda *_: sys.exit(75)); print(flush=True); signal.pause()"
    is_past = "import signal; print(flush=True); signal.pause()"
    processes: list[subprocess.Popen[bytes]] = []

    def starter(program: str) -> Any:
        def start(*_: object, **__: object) -> "subprocess.Popen[bytes]":
            command = [sys.executable, "-c", program]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
            processes.append(process)
            if len(processes) == 2:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
            return process

        return start

    tickets = [ranks.Ticket(rank, 2) for rank in range(2)]
    run_started(tickets, [starter(saves), starter(is_past)], [], quiet=True)
    assert [process.returncode for process in processes] == [75, -signal.SIGTERM]


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'ludus[ray]'")
def test_two_nodes_train_survive_the_loss_of_one_and_leave_nothing() -> None:
    pytest.importorskip("optuna", reason="needs Optuna: pip install 'ludus[sweep]'")
    cases = ["cartpole", "sweep", "stop"]  # the others of the benchmark are as long
    shown = subprocess.run([sys.executable, BENCHMARK, *cases], capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "MISSED" not in shown.stdout
    assert shown.stdout.count("  ok ") >= 3 * len(cases)
