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
def _load_three(at: tensor, size: tensor, inside: tensor) -> tensor:
    """Of z, o and g, which lie side by side."""
    z, o = tl.load(at, mask=inside, other=0.0), tl.load(at + size, mask=inside, other=0.0)
    return z, o, tl.load(at + 2 * size, mask=inside, other=0.0)


@triton.jit
def _store_three(at: tensor, size: tensor, inside: tensor, z: tensor, o: tensor, g: tensor) -> None:
    tl.store(at, z, mask=inside)
    tl.store(at + size, o, mask=inside)
    tl.store(at + 2 * size, g, mask=inside)


@triton.jit
def _activated(z: tensor, o: tensor, g: tensor) -> tensor:
    return tl.sigmoid(z), tl.sigmoid(o), 2.0 * tl.sigmoid(2.0 * g) - 1.0


@triton.jit
def _forward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, h_out: tensor, y_out: tensor,
    steps: tensor, rows: tensor, size: tensor, resets: constexpr, block: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < rows * size
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, inside)
    h = tl.load(start + at, mask=inside, other=0.0)
    for t in range(steps):
        step = t * rows  # rows before this step
        z, o, g = _load_three(gates + (step + row) * 3 * size + unit, size, inside)
        z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
        if resets:
            h = h * tl.load(keep + step + row, mask=inside, other=0.0)
        h = h + z * (g - h)
        tl.store(h_out + step * size + at, h, mask=inside)
        tl.store(y_out + step * size + at, o * h, mask=inside)


@triton.jit
def _backward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, h_out: tensor, given: tensor,
    grad_gates: tensor, grad_bias: tensor, steps: tensor, rows: tensor, size: tensor, block: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < rows * size
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, inside)
    grad_h = tl.zeros((block,), tl.float32)
    sum_z, sum_o, sum_g = grad_h, grad_h, grad_h
    h = tl.load(h_out + (steps - 1) * rows * size + at, mask=inside, other=0.0)
    for i in range(steps):
        step = (steps - 1 - i) * rows
        place = (step + row) * 3 * size + unit
        z, o, g = _load_three(gates + place, size, inside)
        z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
        if step == 0:
            before = tl.load(start + at, mask=inside, other=0.0)
        else:
            before = tl.load(h_out + (step - rows) * size + at, mask=inside, other=0.0)
        kept = tl.load(keep + step + row, mask=inside, other=0.0)
        grad_y = tl.load(given + step * size + at, mask=inside, other=0.0)
        grad_h += grad_y * o
        grad_z = grad_h * (g - before * kept) * z * (1.0 - z)
        grad_o = grad_y * h * o * (1.0 - o)
        grad_g = grad_h * z * (1.0 - g * g)
        _store_three(grad_gates + place, size, inside, grad_z, grad_o, grad_g)
        sum_z, sum_o, sum_g = sum_z + grad_z, sum_o + grad_o, sum_g + grad_g
        grad_h = grad_h * (1.0 - z) * kept
        h = before
    _store_three(grad_bias + row * 3 * size + unit, size, inside, sum_z, sum_o, sum_g)


def mingru_forward(gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor | None, h: Tensor, y: Tensor) -> None:
    """h and y [T, n, H] from the gates [T, n, 3 H] before bias and activation; `keep` [T, n], None: no resets."""
    steps, rows, size = h.shape
    grid = (triton.cdiv(rows * size, _BLOCK),)
    resets = keep is not None
    _forward[grid](gates, bias, start, keep if resets else start, h, y, steps, rows, size, resets, _BLOCK)


def mingru_backward(
    gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor, h: Tensor, given: Tensor, grad_gates: Tensor
) -> Tensor:
    """The gradient of the gates before their activation, given that of y; returns that of the bias."""
    steps, rows, size = h.shape
    grad_bias = torch.empty_like(gates[0])  # summed over time here, over rows afterwards
    grid = (triton.cdiv(rows * size, _BLOCK),)
    _backward[grid](gates, bias, start, keep, h, given, grad_gates, grad_bias, steps, rows, size, _BLOCK)
    return grad_bias.sum(0)


def mingru_step(gates: Tensor, bias: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 3 H], [n, H] → y and h [n, H]: one step, for acting."""
    h, y = torch.empty_like(state), torch.empty_like(state)
    mingru_forward(gates, bias, state, None, h[None], y[None])
    return y, h
