"""The minGRU's gates and recurrence as Triton kernels. Needs a GPU: import it only there.

Every program owns some of the n · H sequences and walks through time alone. Gates are activated where they are
read, in the backward pass once more: reading them again costs less than keeping what was made of them. So a pass
reads and writes each tensor once. The products with the weight are large: the caller makes them.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

_BLOCK = 128  # sequences a program owns: few, so that there are many programs


@triton.jit
def _gates_at(
    gates: tensor, place: tensor, bias_z: tensor, bias_g: tensor, size: tensor, inside: tensor
) -> tensor:
    """z and g, activated, of sequences whose z lie at `place`."""
    z = tl.sigmoid(tl.load(gates + place, mask=inside, other=0.0) + bias_z)
    g = 2.0 * tl.sigmoid(2.0 * (tl.load(gates + place + size, mask=inside, other=0.0) + bias_g)) - 1.0
    return z, g


@triton.jit
def _forward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, out: tensor,
    steps: tensor, rows: tensor, size: tensor, resets: constexpr, block: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < rows * size
    row, unit = at // size, at % size
    bias_z = tl.load(bias + unit, mask=inside, other=0.0)
    bias_g = tl.load(bias + size + unit, mask=inside, other=0.0)
    h = tl.load(start + at, mask=inside, other=0.0)
    for t in range(steps):
        step = t * rows  # rows before this step
        z, g = _gates_at(gates, (step + row) * 2 * size + unit, bias_z, bias_g, size, inside)
        if resets:
            h = h * tl.load(keep + step + row, mask=inside, other=0.0)
        h = h + z * (g - h)
        tl.store(out + step * size + at, h, mask=inside)


@triton.jit
def _backward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, out: tensor, given: tensor, grad_gates: tensor,
    steps: tensor, rows: tensor, size: tensor, block: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < rows * size
    row, unit = at // size, at % size
    bias_z = tl.load(bias + unit, mask=inside, other=0.0)
    bias_g = tl.load(bias + size + unit, mask=inside, other=0.0)
    gradient = tl.zeros((block,), tl.float32)
    for i in range(steps):
        step = (steps - 1 - i) * rows
        place = (step + row) * 2 * size + unit
        z, g = _gates_at(gates, place, bias_z, bias_g, size, inside)
        kept = tl.load(keep + step + row, mask=inside, other=0.0)
        if step == 0:
            before = tl.load(start + at, mask=inside, other=0.0) * kept
        else:
            before = tl.load(out + (step - rows) * size + at, mask=inside, other=0.0) * kept
        gradient += tl.load(given + step * size + at, mask=inside, other=0.0)
        tl.store(grad_gates + place, gradient * (g - before) * z * (1.0 - z), mask=inside)
        tl.store(grad_gates + place + size, gradient * z * (1.0 - g * g), mask=inside)
        gradient = gradient * (1.0 - z) * kept


def mingru_forward(gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor | None, out: Tensor) -> None:
    """h [T, n, H] from the gates [T, n, 2 H] before bias and activation; `keep` [T, n], None: nobody is reset."""
    steps, rows, size = out.shape
    grid = (triton.cdiv(rows * size, _BLOCK),)
    resets = keep is not None
    _forward[grid](gates, bias, start, keep if resets else start, out, steps, rows, size, resets, _BLOCK)


def mingru_backward(
    gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor, out: Tensor, given: Tensor, grad_gates: Tensor
) -> None:
    """The gradient of the gates before their activation, given that of `out`."""
    steps, rows, size = out.shape
    grid = (triton.cdiv(rows * size, _BLOCK),)
    _backward[grid](gates, bias, start, keep, out, given, grad_gates, steps, rows, size, _BLOCK)


def mingru_step(gates: Tensor, bias: Tensor, state: Tensor) -> Tensor:
    """[n, 2 H], [n, H] → [n, H]: one step, for acting."""
    out = torch.empty_like(state)
    mingru_forward(gates, bias, state, None, out[None])
    return out
