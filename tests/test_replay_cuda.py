"""Learning from a replay on a CUDA GPU: graphs and streams change nothing, and a run moves to the CPU and back."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import ludus
from conftest import Recordings
from ludus.algorithms.flash.agent import make_flash_agent
from ludus.algorithms.replay.agents import make_agent
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.job import make_learner, make_policy
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.lanes import LaneStore
from ludus.envs.vec import derive_seed
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from stopped_runs import StopAfter

pytestmark = pytest.mark.gpu

SMALL: dict[str, Any] = {
    "policy.hidden": [32, 32],
    "reward.hidden": [32, 32],
    "replay.train_batches": 12,
    "replay.batch_size": 16,
    "reward.rrd_batch_size": 16,
    "reward.rrd_sample_size": 4,
}
CASES: dict[str, dict[str, Any]] = {
    "sac": {"reward.method": "none"},
    "td3": {"reward.method": "none", "algo": "td3", "replay.train_target": 2},
    "dqn": {"reward.method": "none", "algo": "dqn", "replay.train_target": 5, "replay.polyak": 0.0},
    "memory": {"reward.method": "none", "policy.memory": "lstm", "policy.memory_size": 16, "replay.segment": 4},
    "flash": {"algo": "flash-sac", "flash.critic_width": 32, "reward.method": "none"},
    "flash-rrd": {"algo": "flash-sac", "flash.critic_width": 32, "reward.method": "rrd"},
    "rrd": {"reward.method": "rrd"},
    "rrd-unbiased": {"reward.method": "rrd-unbiased", "policy.normalize_obs": True},
    "rd": {"reward.method": "rd"},
    "ircr": {"reward.method": "ircr"},
}


def learner_of(case: str, cuda_graphs: bool, device: str) -> ReplayLearner:
    settings = {**SMALL, **CASES[case], "cuda_graphs": cuda_graphs, "device": device}
    config = apply_overrides(find_preset("rrd-mujoco", str(settings.pop("algo", ""))).config, settings)
    assert isinstance(config, ReplayTrainConfig)
    discrete = case == "dqn"
    action_space: Any = gym.spaces.Discrete(3) if discrete else gym.spaces.Box(-1.0, 1.0, (2,))
    policy = make_policy(config, gym.spaces.Box(-np.inf, np.inf, (5,)), action_space, torch.device(device))
    field = (1 if discrete else 2,), torch.float32
    size = policy.state_size
    store = EpisodeStore({"obs": ((5,), torch.float32)}, field, 300, 0, 0, device, state_size=size)
    random = torch.Generator().manual_seed(0)
    for length in (40, 25, 33):
        obs, reward = torch.randn((length + 1, 5), generator=random), torch.randn(length, generator=random)
        action = torch.rand((length, 2), generator=random) * 2 - 1
        if discrete:
            action = torch.randint(3, (length, 1), generator=random).float()
        store.add({"obs": obs}, action, reward, terminated=length == 25)
    make: Any = make_flash_agent if config.algo == "flash-sac" else make_agent
    learner = make_learner(config, make(policy, config, derive_seed(config.seed, 6)), store)
    if learner.reward_learner is not None:
        learner.reward_learner.fit(*store.returns_and_lengths())
    return learner


@pytest.mark.parametrize("case", CASES)
def test_a_graph_trains_as_single_calls_do(case: str, device: str, recordings: Recordings) -> None:
    graphs, eager = (learner_of(case, on, device) for on in (True, False))
    before = [weights.clone() for weights in graphs.weights()]
    for _ in range(3):
        one, other = graphs.update(), eager.update()
        for name, value in other.items():
            assert float(one[name]) == pytest.approx(float(value), rel=1e-3, abs=1e-4), name
    for ours, theirs, old in zip(graphs.weights(), eager.weights(), before, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
        assert float((ours - old).abs().max()) > 1e-4, "nothing was learned"
    assert (recordings.count > 0) == (device == "cuda" and case != "rd")  # whose batches change in size


def test_environments_that_step_beside_the_learner_change_nothing(device: str) -> None:
    """One job has a stream for its environments, the other does all in turn; rows are soon written over."""
    small = {
        "env.num_envs": 6,
        "env.episode_length": 7,
        "replay.steps": 72,
        "replay.capacity": 900,
        "replay.longest": 7,
        "device": device,
    }
    pace = {"replay.warmup": 100, "replay.train_batches": 4, "replay.batch_size": 32, "policy.hidden": [32]}
    config = apply_overrides(find_preset("forage", "dqn").config, small | pace | {"device": device})
    assert isinstance(config, ReplayTrainConfig)
    told = []
    for in_turn in (False, True):
        job = OffPolicyJob(config, torch.device(device))
        assert (job._stream is not None) == (device == "cuda")
        if in_turn and device == "cuda":
            job._stream = torch.cuda.current_stream()
        for number in range(15):
            job.iteration(number, number / 15, lambda steps, batch: None)
        assert isinstance(job.store, LaneStore)
        told.append([*job.weights(), job.store.head, job.store.reward.sum()])
        job.close()
    for ours, theirs in zip(*told, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("method", ["none", "rrd"])
def test_a_run_moves_between_gpu_and_cpu(method: str, device: str, tmp_path: Path) -> None:
    settings = {**SMALL, "reward.method": method, "replay.warmup": 40, "replay.steps": 20, "device": device}
    settings |= {"loop.epochs": 2, "loop.cycles": 2, "loop.iterations": 3, "env.max_steps": 15}
    overrides = {**settings, "log.report": False}
    run = ludus.train(
        "rrd-mujoco:Pendulum-v1", tmp_path / "run", [StopAfter(5)], Console("quiet"), overrides=overrides
    )
    ludus.resume(run, [StopAfter(8)], Console("quiet"), {"device": "cpu"})
    ludus.resume(run, (), Console("quiet"), {"device": device})
    rows = read_metrics(run / "metrics.jsonl")
    assert (run / "final").exists()
    assert all(np.isfinite(row["train/critic_loss"]) for row in rows if "train/critic_loss" in row)
