"""The minGRU against slow versions: single steps, whole segments with resets, the written-out gradient."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.policies.mingru import MinGRU
from test_sanity import MEMORY, reached, train

STEPS, ROWS, INPUTS, SIZE = 7, 5, 3, 4


def made(dtype: torch.dtype = torch.float64) -> tuple[MinGRU, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    memory = MinGRU(INPUTS, SIZE).to(dtype)
    x, state = torch.randn(STEPS * ROWS, INPUTS, dtype=dtype), torch.randn(ROWS, SIZE, dtype=dtype)
    keep = (torch.rand(STEPS, ROWS) > 0.3).to(dtype)
    keep[1], keep[2] = 1.0, 0.0  # nobody is reset, and everybody
    return memory, x, state, keep


def in_numpy(memory: MinGRU, x: Tensor, state: Tensor, keep: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Outputs [T, n, H] and the last state, one number at a time."""
    weight, bias = memory.weight.detach().numpy(), memory.bias.detach().numpy()
    seen, kept = x.view(STEPS, ROWS, INPUTS).numpy(), keep.numpy()
    h, out = state.numpy().copy(), np.zeros((STEPS, ROWS, SIZE))
    for t in range(STEPS):
        for row in range(ROWS):
            for k in range(SIZE):
                z = 1 / (1 + np.exp(-(weight[k] @ seen[t, row] + bias[k])))
                o = 1 / (1 + np.exp(-(weight[SIZE + k] @ seen[t, row] + bias[SIZE + k])))
                g = np.tanh(weight[2 * SIZE + k] @ seen[t, row] + bias[2 * SIZE + k])
                h[row, k] = (1 - z) * kept[t, row] * h[row, k] + z * g
                out[t, row, k] = o * h[row, k]
    return out, h


def test_segments_and_steps_equal_the_slow_version() -> None:
    memory, x, state, keep = made()
    expected, last = in_numpy(memory, x, state, keep)
    with torch.inference_mode():
        done = memory.run(x, state, keep)
        assert np.allclose(done.output.view(STEPS, ROWS, SIZE).numpy(), expected, atol=1e-14)
        assert np.allclose(done.last_state.numpy(), last, atol=1e-14)
        for t, part in enumerate(x.view(STEPS, ROWS, INPUTS)):
            output, state = memory.step(part, state * keep[t][:, None])
            assert np.allclose(output.numpy(), expected[t], atol=1e-14)


@pytest.mark.parametrize("need_inputs", [True, False])
def test_the_written_out_gradient_is_autograds(need_inputs: bool) -> None:
    memory, x, state, keep = made()
    gradient = torch.randn(STEPS * ROWS, SIZE, dtype=torch.float64)
    for parameter in memory.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    with torch.inference_mode():
        inputs_gradient = memory.backward(memory.run(x, state, keep), gradient.clone(), need_inputs)
    written = [parameter.grad.clone() for parameter in memory.parameters() if parameter.grad is not None]

    memory.zero_grad()
    x.requires_grad_()
    outputs = []
    for t, part in enumerate(x.view(STEPS, ROWS, INPUTS)):
        output, state = memory.step(part, state * keep[t][:, None])
        outputs.append(output)
    torch.cat(outputs).backward(gradient)
    for one, parameter in zip(written, memory.parameters(), strict=True):
        assert parameter.grad is not None
        assert torch.allclose(one, parameter.grad, atol=1e-12)
    assert (inputs_gradient is not None) == need_inputs
    if inputs_gradient is not None:
        assert x.grad is not None
        assert torch.allclose(inputs_gradient, x.grad, atol=1e-12)


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [1, 2, 64, 100])  # of which a kernel scans 64 at once
def test_every_device_computes_the_same(steps: int, device: str) -> None:
    """On a GPU by kernels, which is held to autograd over single steps in float64."""
    generator = torch.Generator().manual_seed(0)
    memory = MinGRU(6, 20)
    x, gradient = (torch.randn(steps * 33, size, generator=generator) for size in (6, 20))
    state, keep = (
        torch.randn(33, 20, generator=generator),
        (torch.rand(steps, 33, generator=generator) > 0.2).float(),
    )
    there = copy.deepcopy(memory).to(device)
    for parameter in there.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.inference_mode():
        done = there.run(x.to(device), state.to(device), keep.to(device))
        output, last = done.output.clone(), done.last_state
        stepped = there.step(x[:33].to(device), (state * keep[0][:, None]).to(device))[0]
        inputs_gradient = there.backward(done, gradient.to(device, copy=True))
    exact, seen, h = memory.double(), x.double().requires_grad_(), state.double()
    outputs = []
    for t, part in enumerate(seen.view(steps, 33, 6)):
        y, h = exact.step(part, h * keep[t][:, None])
        outputs.append(y)
    torch.cat(outputs).backward(gradient.double())

    def same(found: Tensor | None, expected: Tensor | None) -> bool:
        assert found is not None
        assert expected is not None
        return torch.allclose(found.cpu().double(), expected, atol=1e-4, rtol=1e-4)

    assert same(output, torch.cat(outputs))
    assert same(last, h)
    assert same(stepped, outputs[0])
    assert same(inputs_gradient, seen.grad)
    assert all(same(a.grad, b.grad) for a, b in zip(there.parameters(), exact.parameters(), strict=True))


def test_it_recalls_what_was_seen_eight_steps_ago(tmp_path: Path) -> None:
    run = train("recall", tmp_path, 100_000, MEMORY | {"policy.memory": "mingru"}, delay=8)
    assert reached(run) > 0.9
