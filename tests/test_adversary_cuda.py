"""Adversarial imitation on a CUDA GPU: recorded as graphs it learns the same, and a run moves to the CPU."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ludus
from conftest import Recordings
from imitation_envs import make_drift
from ludus.algorithms.imitation.config import AdversaryConfig
from ludus.algorithms.imitation.discriminator import Adversary
from ludus.algorithms.imitation.job import ImitationJob
from ludus.algorithms.registry import make_job
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from stopped_runs import StopAfter

pytestmark = pytest.mark.gpu

DRIFT = "vec:imitation_envs:make_drift"
SHORT: dict[str, Any] = {
    "env.num_envs": 16,
    "groups": 2,
    "ppo.horizon": 8,
    "ppo.minibatches": 4,
    "ppo.update_epochs": 2,
    "policy.hidden": [32],
    "adversary.hidden": [32, 16],
    "adversary.batch_size": 64,
    "adversary.replay": 300,
    "loop.total_steps": 10 * 16 * 8,
    "eval.episodes": 4,
    "log.report": False,
    "log.tensorboard": False,
}


def updated(graphs: bool, device: str, penalized: Any = "both") -> tuple[Adversary, dict[str, Tensor]]:
    """After eight updates on the same rollouts."""
    torch.set_float32_matmul_precision("highest")
    config = AdversaryConfig(hidden=(32, 16), batch_size=128, replay=500, learning_rate=1e-3, penalized=penalized)
    there = torch.device(device)
    adversary = Adversary(2, [20, 12], 6, config, 0, there, there, graphs)
    env, random = make_drift(4, device=there), torch.Generator().manual_seed(0)
    metrics: dict[str, Tensor] = {}
    for _ in range(8):
        for _ in range(6):
            for group, rows in enumerate((20, 12)):
                adversary.record(torch.randn((rows, 2), generator=random).to(there), group)
        metrics = adversary.update(env)
    return adversary, metrics


@pytest.mark.parametrize("penalized", ["demonstrations", "policy", "both"])
def test_an_update_as_a_graph_equals_an_eager_one(penalized: str, device: str, recordings: Recordings) -> None:
    (recorded, ours), (eager, theirs) = (updated(graphs, device, penalized) for graphs in (True, False))
    assert recordings.count == (device == "cuda")
    torch.testing.assert_close(recorded.optimizer.flat, eager.optimizer.flat, rtol=0, atol=1e-5)
    assert torch.equal(recorded.replay.state()["windows"], eager.replay.state()["windows"])
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-5)


def test_gpu_and_cpu_take_the_same_gradient_step(device: str) -> None:
    there, _ = updated(True, device)
    here = Adversary(2, [20, 12], 6, there.config, 0, torch.device("cpu"), torch.device("cpu"))
    here.load_state(copy.deepcopy({**there.state(), "generator": here.state()["generator"]}))
    demo, policy = (torch.randn((128, 2), generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    for adversary in (here, there):
        with torch.no_grad():
            adversary.train_on(demo, policy)
    torch.testing.assert_close(here.optimizer.flat, there.optimizer.flat.cpu(), rtol=0, atol=1e-5)
    windows = torch.randn((50, 2), generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(here.reward(windows), there.reward(windows.to(device)).cpu(), rtol=1e-4, atol=1e-5)


def iterate(graphs: bool, device: str) -> tuple[Tensor, Tensor, dict[str, float]]:
    settings = SHORT | {"device": device, "cuda_graphs": graphs}
    job = make_job(apply_overrides(find_preset(DRIFT, "amp").config, settings), torch.device(device))
    assert isinstance(job, ImitationJob)
    for number in range(6):
        metrics = job.iteration(number, number / 6, lambda share, batch: None)
    told = {name: float(value) for name, value in metrics.items()} | job.cycle_metrics()
    return job.learner.optimizer.flat.clone(), job.adversary.optimizer.flat.clone(), told


def test_whole_iterations_as_graphs_equal_eager_ones(device: str, recordings: Recordings) -> None:
    """Rewards, records of windows and means of episodes are part of a recorded step."""
    policy, adversary, ours = iterate(True, device)
    recorded = recordings.count
    assert recorded >= 5 if device == "cuda" else recorded == 0  # to act, gather, estimate, train and tell apart
    policy_2, adversary_2, theirs = iterate(False, device)
    assert recordings.count == recorded
    torch.testing.assert_close(policy, policy_2, rtol=0, atol=1e-4)
    torch.testing.assert_close(adversary, adversary_2, rtol=0, atol=1e-4)
    for name in ("rollout/style_reward", "rollout/task_reward", "adversary/style_reward", "adversary/loss"):
        assert ours[name] == pytest.approx(theirs[name], abs=1e-3)


def test_a_run_goes_on_on_the_cpu_and_environments_there_work_beside_a_gpu(device: str, tmp_path: Path) -> None:
    overrides = SHORT | {"device": device, "env.kwargs": {"device": "cpu"}}  # the adversary is on the GPU
    run = ludus.train(DRIFT, tmp_path / "run", [StopAfter(4)], Console("quiet"), overrides=overrides, algo="amp")
    ludus.resume(run, (), Console("quiet"), {"device": "cpu"})
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "adversary/loss" in row]
    assert [row["time/iterations"] for row in rows] == list(range(1, 11))
    assert all(0.0 < row["adversary/loss"] < 2.0 for row in rows)
