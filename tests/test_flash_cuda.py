"""FlashSAC on a CUDA GPU: the update is the CPU's, recorded or not, and a run moves to the CPU and back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ludus
from conftest import Recordings
from ludus.algorithms.flash.exploration import HeldNoise
from ludus.algorithms.replay.agents import Batch
from ludus.graphs import Graphed
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from stopped_runs import StopAfter
from test_flash import agent_of, batch_of, in_double, learn  # noqa: F401 (a fixture)

pytestmark = pytest.mark.gpu


def moved(batch: Batch, device: str) -> Batch:
    tensors: Any = (part.to(device) for part in batch[:5])
    return Batch(*tensors)


def test_the_update_is_the_cpus_in_float64(in_double: None, device: str) -> None:  # noqa: F811
    here, there = agent_of(), agent_of(device=device)
    for update in range(4):
        batch = batch_of(update, 16)
        one, other = learn(here, batch, update), learn(there, moved(batch, device), update)
        torch.testing.assert_close(other.cpu(), one, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(here.optimizers, there.optimizers, strict=True):
        torch.testing.assert_close(theirs.flat.cpu(), ours.flat, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(there.critics.layers.variances.cpu(), here.critics.layers.variances)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="the CPU has no products of half as wide numbers here")
def test_updates_in_bfloat16_are_near_those_in_float32() -> None:
    agents = [agent_of(device="cuda", width=64, critic_width=64) for _ in range(2)]
    begun = [optimizer.flat.clone() for optimizer in agents[0].optimizers]
    for update in range(20):
        batch = moved(batch_of(update, 128), "cuda")
        told = []
        for agent, precision in zip(agents, ("highest", "medium"), strict=True):
            torch.set_float32_matmul_precision(precision)
            agent.reward_factor.fill_(0.5)
            told.append(learn(agent, batch, update))
        torch.set_float32_matmul_precision("highest")
        torch.testing.assert_close(told[1], told[0], rtol=0.05, atol=0.05)
    exact, half = agents
    for ours, theirs, old in zip(half.optimizers, exact.optimizers, begun, strict=True):
        way = torch.nn.functional.cosine_similarity(ours.flat - old, theirs.flat - old, dim=0)
        assert 0.9 < float(way) < 1.0  # the same way, but other numbers


def test_a_recorded_update_follows_the_rate_and_the_scale_of_rewards(device: str, recordings: Recordings) -> None:
    """A graph that had kept a number of its first call would go on with it: the schedule would stand still."""
    recorded, plain = agent_of(device=device), agent_of(device=device)
    batch = moved(batch_of(0, 16), device)
    work = Graphed(lambda: _learn(recorded, batch), torch.device(device))
    for call in range(6):
        for agent in (recorded, plain):
            agent.set_progress(call / 5)
            agent.reward_factor.fill_(0.1 + call)
        work()
        _learn(plain, batch)
    assert (recordings.count > 0) == (device == "cuda")
    for ours, theirs in zip(recorded.optimizers, plain.optimizers, strict=True):
        torch.testing.assert_close(ours.flat, theirs.flat, rtol=1e-4, atol=1e-5)


def _learn(agent: Any, batch: Batch) -> None:
    with torch.inference_mode():
        agent.learn(batch, 0, measured=False)


def test_held_noise_of_a_checkpoint_goes_on_where_it_is_drawn(device: str) -> None:
    noise, again = (HeldNoise(agent_of(device=device).head, 16, 3) for _ in range(2))
    g = torch.Generator(device).manual_seed(0)
    noise.draw((7, 2), g)
    state = noise.state()
    assert state["left"] > 0  # in the middle of it
    again.load_state(state | {"noise": state["noise"].cpu()})
    h = torch.Generator(device)
    h.set_state(g.get_state())
    assert torch.equal(again.draw((60, 2), h), noise.draw((60, 2), g))


def test_a_run_of_flash_sac_moves_between_gpu_and_cpu(device: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"policy.hidden": (16, 16), "flash.critic_width": 16, "replay.batch_size": 16}
    settings |= {"replay.warmup": 40, "replay.steps": 20, "replay.train_batches": 5, "env.max_steps": 15}
    settings |= {"loop.epochs": 1, "loop.cycles": 2, "loop.iterations": 3, "log.report": False, "device": device}
    run = ludus.train(
        "gym:Pendulum-v1", tmp_path / "run", [StopAfter(3)], Console("quiet"), algo="flash-sac", overrides=settings
    )
    ludus.resume(run, [StopAfter(5)], Console("quiet"), {"device": "cpu"})
    ludus.resume(run, (), Console("quiet"), {"device": device})
    rows = read_metrics(run / "metrics.jsonl")
    assert (run / "final").exists()
    assert all(np.isfinite(row["train/critic_loss"]) for row in rows if "train/critic_loss" in row)
