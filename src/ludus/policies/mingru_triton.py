"""The minGRU's gates and recurrence as Triton kernels. Needs a GPU: import it only there.

Every program owns some of the n · H sequences and walks through time alone. It loads several steps before it
computes them: then the loads wait side by side, not one after the other. Gates are activated where they are read,
in the backward pass once more: reading them again costs less than keeping their activations. The products with the
weight are large: the caller makes them.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

_BLOCK = 128  # sequences a program owns: few, so that there are many programs
_AHEAD = 8  # steps that are loaded at once


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
    steps: tensor, rows: tensor, size: tensor, resets: constexpr, ahead: constexpr, block: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    owned = at < rows * size
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, owned)
    h = tl.load(start + at, mask=owned, other=0.0)
    for first in range(0, steps, ahead):
        loaded = ()
        for k in tl.static_range(ahead):
            step = (first + k) * rows  # rows before this step
            inside = owned & (first + k < steps)
            z, o, g = _load_three(gates + (step + row) * 3 * size + unit, size, inside)
            kept = tl.load(keep + step + row, mask=inside, other=1.0) if resets else 1.0
            loaded += ((z, o, g, kept),)  # type: ignore[assignment]
        for k in tl.static_range(ahead):
            z, o, g, kept = loaded[k]
            z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
            if resets:
                h = h * kept
            h = h + z * (g - h)
            inside = owned & (first + k < steps)
            there = (first + k) * rows * size + at
            tl.store(h_out + there, h, mask=inside)
            tl.store(y_out + there, o * h, mask=inside)


@triton.jit
def _backward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, h_out: tensor, given: tensor,
    grad_gates: tensor, grad_bias: tensor, steps: tensor, rows: tensor, size: tensor,
    ahead: constexpr, block: constexpr,
) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    owned = at < rows * size
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, owned)
    grad_h = tl.zeros((block,), tl.float32)
    sum_z, sum_o, sum_g = grad_h, grad_h, grad_h
    for done in range(0, steps, ahead):
        loaded = ()
        for k in tl.static_range(ahead):
            t = steps - 1 - done - k
            inside = owned & (t >= 0)
            z, o, g = _load_three(gates + (t * rows + row) * 3 * size + unit, size, inside)
            before = tl.load(h_out + (t - 1) * rows * size + at, mask=owned & (t > 0), other=0.0)
            before += tl.load(start + at, mask=owned & (t == 0), other=0.0)
            kept = tl.load(keep + t * rows + row, mask=inside, other=0.0)
            grad_y = tl.load(given + t * rows * size + at, mask=inside, other=0.0)
            loaded += ((z, o, g, before, kept, grad_y),)  # type: ignore[assignment]
        for k in tl.static_range(ahead):
            z, o, g, before, kept, grad_y = loaded[k]
            z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
            before = before * kept
            grad_h += grad_y * o
            grad_z = grad_h * (g - before) * z * (1.0 - z)
            grad_o = grad_y * (before + z * (g - before)) * o * (1.0 - o)
            grad_g = grad_h * z * (1.0 - g * g)
            t = steps - 1 - done - k
            inside = owned & (t >= 0)
            _store_three(grad_gates + (t * rows + row) * 3 * size + unit, size, inside, grad_z, grad_o, grad_g)
            sum_z += tl.where(inside, grad_z, 0.0)
            sum_o += tl.where(inside, grad_o, 0.0)
            sum_g += tl.where(inside, grad_g, 0.0)
            grad_h = grad_h * (1.0 - z) * kept
    _store_three(grad_bias + row * 3 * size + unit, size, owned, sum_z, sum_o, sum_g)


def mingru_forward(gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor | None, h: Tensor, y: Tensor) -> None:
    """h and y [T, n, H] from the gates [T, n, 3 H] before bias and activation; `keep` [T, n], None: no resets."""
    steps, rows, size = h.shape
    grid = (triton.cdiv(rows * size, _BLOCK),)
    resets, ahead = keep is not None, min(_AHEAD, steps)
    given = (gates, bias, start, keep if resets else start, h, y)
    _forward[grid](*given, steps, rows, size, resets, ahead, _BLOCK)


def mingru_backward(
    gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor, h: Tensor, given: Tensor, grad_gates: Tensor
) -> Tensor:
    """The gradient of the gates before their activation, given that of y; returns that of the bias."""
    steps, rows, size = h.shape
    grad_bias = torch.empty_like(gates[0])  # summed over time here, over rows afterwards
    grid, sizes = (triton.cdiv(rows * size, _BLOCK),), (steps, rows, size, min(_AHEAD, steps), _BLOCK)
    _backward[grid](gates, bias, start, keep, h, given, grad_gates, grad_bias, *sizes)
    return grad_bias.sum(0)


def mingru_step(gates: Tensor, bias: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 3 H], [n, H] → y and h [n, H]: one step, for acting."""
    h, y = torch.empty_like(state), torch.empty_like(state)
    mingru_forward(gates, bias, state, None, h[None], y[None])
    return y, h
