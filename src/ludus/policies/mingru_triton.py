"""The minGRU's gates and recurrence as Triton kernels. Needs a GPU: import it only there.

h_t = decay_t h_{t−1} + drive_t is an associative scan. A program owns some of the n · H sequences and reads a
chunk of their steps at once, so that no load waits for another; chunks follow each other. Gates are activated
where they are read, in the backward pass once more: reading them again costs less than keeping their activations.
The products with the weight are large: the caller makes them.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

_BLOCK = 128  # sequences a program owns in a single step
_SCANNED = 32  # sequences a program owns in a scan: few, so that there are many programs
_CHUNK = 64  # steps that are scanned at once, at most


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
def _after(decay: tensor, drive: tensor, next_decay: tensor, next_drive: tensor) -> tensor:
    """Two steps of h → decay h + drive as one."""
    return decay * next_decay, next_decay * drive + next_drive


@triton.jit
def _step(gates: tensor, bias: tensor, state: tensor, h_out: tensor, y_out: tensor,
          numbers: tensor, size: tensor, block: constexpr) -> None:  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < numbers
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, inside)
    z, o, g = _load_three(gates + row * 3 * size + unit, size, inside)
    z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
    h = tl.load(state + at, mask=inside, other=0.0)
    h = h + z * (g - h)
    tl.store(h_out + at, h, mask=inside)
    tl.store(y_out + at, o * h, mask=inside)


@triton.jit
def _forward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, h_out: tensor, y_out: tensor,
    steps: tensor, rows: tensor, size: tensor, chunk: constexpr, block: constexpr,
) -> None:  # fmt: skip
    at = (tl.program_id(0).to(tl.int64) * block + tl.arange(0, block))[None, :]
    owned = at < rows * size
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, owned)
    before = tl.load(start + at, mask=owned, other=0.0)  # [1, block]
    in_chunk = tl.arange(0, chunk)[:, None]
    for first in range(0, steps, chunk):
        step = first + in_chunk
        inside = owned & (step < steps)
        z, o, g = _load_three(gates + (step * rows + row) * 3 * size + unit, size, inside)
        z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
        kept = tl.load(keep + step * rows + row, mask=inside, other=1.0)
        # Steps past the end keep the state.
        decay = tl.where(inside, (1.0 - z) * kept, 1.0)
        drive = tl.where(inside, z * g, 0.0)
        decay, drive = tl.associative_scan((decay, drive), 0, _after)
        h = decay * before + drive
        tl.store(h_out + step * rows * size + at, h, mask=inside)
        tl.store(y_out + step * rows * size + at, o * h, mask=inside)
        before = tl.sum(tl.where(in_chunk == chunk - 1, h, 0.0), 0)[None, :]


@triton.jit
def _backward(
    gates: tensor, bias: tensor, start: tensor, keep: tensor, h_out: tensor, given: tensor,
    grad_gates: tensor, grad_bias: tensor, steps: tensor, rows: tensor, size: tensor,
    chunk: constexpr, block: constexpr,
) -> None:  # fmt: skip
    at = (tl.program_id(0).to(tl.int64) * block + tl.arange(0, block))[None, :]
    owned = at < rows * size
    row, unit = at // size, at % size
    bias_z, bias_o, bias_g = _load_three(bias + unit, size, owned)
    in_chunk = tl.arange(0, chunk)[:, None]
    later = tl.zeros((1, block), tl.float32)  # the gradient of h after the chunk
    sum_z, sum_o, sum_g = later, later, later
    chunks = (steps + chunk - 1) // chunk
    for i in range(chunks):
        step = (chunks - 1 - i) * chunk + in_chunk
        inside = owned & (step < steps)
        place = (step * rows + row) * 3 * size + unit
        z, o, g = _load_three(gates + place, size, inside)
        z, o, g = _activated(z + bias_z, o + bias_o, g + bias_g)
        kept = tl.load(keep + step * rows + row, mask=inside, other=0.0)
        # How much of h reaches the next step. Nothing follows the last one.
        followed = owned & (step + 1 < steps)
        next_z = tl.load(gates + place + rows * 3 * size, mask=followed, other=0.0)
        next_kept = tl.load(keep + (step + 1) * rows + row, mask=followed, other=0.0)
        decay = (1.0 - tl.sigmoid(next_z + bias_z)) * next_kept
        earlier = tl.load(h_out + (step - 1) * rows * size + at, mask=inside & (step > 0), other=0.0)
        earlier += tl.load(start + at + step * 0, mask=inside & (step == 0), other=0.0)
        earlier *= kept
        grad_y = tl.load(given + step * rows * size + at, mask=inside, other=0.0)
        decay, grad_h = tl.associative_scan((decay, grad_y * o), 0, _after, reverse=True)
        grad_h += decay * later
        grad_z = tl.where(inside, grad_h * (g - earlier) * z * (1.0 - z), 0.0)
        grad_o = tl.where(inside, grad_y * (earlier + z * (g - earlier)) * o * (1.0 - o), 0.0)
        grad_g = tl.where(inside, grad_h * z * (1.0 - g * g), 0.0)
        _store_three(grad_gates + place, size, inside, grad_z, grad_o, grad_g)
        sum_z += tl.sum(grad_z, 0)[None, :]
        sum_o += tl.sum(grad_o, 0)[None, :]
        sum_g += tl.sum(grad_g, 0)[None, :]
        later = tl.sum(tl.where(in_chunk == 0, grad_h, 0.0), 0)[None, :]
    _store_three(grad_bias + row * 3 * size + unit, size, owned, sum_z, sum_o, sum_g)


def mingru_forward(gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor, h: Tensor, y: Tensor) -> None:
    """h and y [T, n, H] from the gates [T, n, 3 H] before bias and activation; `keep` [T, n]."""
    steps, rows, size = h.shape
    grid, chunk = (triton.cdiv(rows * size, _SCANNED),), _chunk_of(steps)
    _forward[grid](gates, bias, start, keep, h, y, steps, rows, size, chunk, _SCANNED)


def mingru_backward(
    gates: Tensor, bias: Tensor, start: Tensor, keep: Tensor, h: Tensor, given: Tensor, grad_gates: Tensor
) -> Tensor:
    """The gradient of the gates before their activation, given that of y; returns that of the bias."""
    steps, rows, size = h.shape
    grad_bias = torch.empty_like(gates[0])  # summed over time here, over rows afterwards
    grid, chunk = (triton.cdiv(rows * size, _SCANNED),), _chunk_of(steps)
    sizes = (steps, rows, size, chunk, _SCANNED)
    _backward[grid](gates, bias, start, keep, h, given, grad_gates, grad_bias, *sizes)
    return grad_bias.sum(0)


def _chunk_of(steps: int) -> int:
    """A power of two, as a scan needs it."""
    return min(max(triton.next_power_of_2(steps), 2), _CHUNK)


def mingru_step(gates: Tensor, bias: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """[n, 3 H], [n, H] → y and h [n, H]: one step, for acting."""
    h, y = torch.empty_like(state), torch.empty_like(state)
    grid = (triton.cdiv(state.numel(), _BLOCK),)
    _step[grid](gates, bias, state, h, y, state.numel(), state.shape[1], _BLOCK)
    return y, h
