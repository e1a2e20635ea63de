"""The GRU against torch's own cell: single steps, whole segments with resets, the written-out gradient."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ludus
from ludus.export import export_onnx
from ludus.policies.gru import GRU
from stopped_runs import StopAfter, assert_same_run
from test_sanity import MEMORY, reached, train

STEPS, ROWS, INPUTS, SIZE = 7, 5, 3, 4


def made() -> tuple[GRU, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    memory = GRU(INPUTS, SIZE).double()
    x, state = torch.randn(STEPS * ROWS, INPUTS).double(), torch.randn(ROWS, SIZE).double()
    keep = (torch.rand(STEPS, ROWS) > 0.3).double()
    keep[1], keep[2] = 1.0, 0.0  # nobody is reset, and everybody
    return memory, x, state, keep


def by_torch(memory: GRU, x: Tensor, state: Tensor, keep: Tensor) -> Tensor:
    """[T · n, H] outputs of torch's cell with the same weights."""
    zeros = torch.zeros_like(memory.bias)
    outputs = []
    for part, kept in zip(x.view(STEPS, ROWS, INPUTS), keep, strict=True):
        given = state * kept[:, None]
        state = torch.gru_cell(part, given, memory.weight_x, memory.weight_h, memory.bias, zeros)
        outputs.append(state)
    return torch.cat(outputs)


def test_segments_and_steps_equal_torchs_cell() -> None:
    memory, x, state, keep = made()
    expected = by_torch(memory, x, state, keep).detach()
    with torch.inference_mode():
        done = memory.run(x, state, keep)
        torch.testing.assert_close(done.output, expected, rtol=0, atol=1e-14)
        torch.testing.assert_close(done.last_state, expected[-ROWS:], rtol=0, atol=1e-14)
        for t, part in enumerate(x.view(STEPS, ROWS, INPUTS)):
            output, state = memory.step(part, state * keep[t][:, None])
            torch.testing.assert_close(output, expected.view(STEPS, ROWS, SIZE)[t], rtol=0, atol=1e-14)


@pytest.mark.parametrize("need_inputs", [True, False])
def test_the_written_out_gradient_is_autograds(need_inputs: bool) -> None:
    memory, x, state, keep = made()
    gradient = torch.randn(STEPS * ROWS, SIZE).double()
    for parameter in memory.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    with torch.inference_mode():
        inputs_gradient = memory.backward(memory.run(x, state, keep), gradient.clone(), need_inputs)
    written = [parameter.grad.clone() for parameter in memory.parameters() if parameter.grad is not None]
    x.requires_grad_()
    wanted = torch.autograd.grad(by_torch(memory, x, state, keep), [*memory.parameters(), x], gradient)
    for one, other in zip(written, wanted[:-1], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    assert (inputs_gradient is not None) == need_inputs
    if inputs_gradient is not None:
        torch.testing.assert_close(inputs_gradient, wanted[-1], rtol=0, atol=1e-12)


def test_it_recalls_what_was_seen_eight_steps_ago(tmp_path: Path) -> None:
    run = train("recall", tmp_path, 60_000, MEMORY | {"policy.memory": "gru"}, delay=8)
    assert reached(run) > 0.9


def test_a_stopped_run_goes_on_exactly_and_is_exported(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": {"num_envs": 4},
        "policy": {"memory": "gru", "memory_size": 8, "hidden": (8,)},
        "ppo": {"horizon": 16, "minibatches": 2, "update_epochs": 2},
        "loop": {"total_steps": 64 * 5},
        "eval": {"every": 128, "episodes": 2, "stochastic": False},
        "log": {"report": False},
    }
    whole = ludus.train("gym:ludus/CartPoleNoVelocity-v1", tmp_path / "whole", **settings)
    cut = ludus.train("gym:ludus/CartPoleNoVelocity-v1", tmp_path / "cut", callbacks=[StopAfter(3)], **settings)
    ludus.resume(cut)
    assert_same_run(cut, whole)
    assert export_onnx(whole, tmp_path / "policy.onnx") <= 1e-4
