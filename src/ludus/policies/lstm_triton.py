"""The LSTM's recurrence as Triton kernels. Needs a GPU: import it only there.

The recurrence is a chain of small steps, so its time is that of the slowest path through one step, not of
the arithmetic. `lstm_forward` and `lstm_backward` run one kernel per step, which multiplies by the recurrent
weight and finishes the cell in the same go; the `_cublas` versions leave the product to cuBLAS and fuse the
rest. The input's part of the gates and the weight gradients are large products: the caller makes them.

Gates lie side by side in the 4 * hidden columns: input i, forget f, output o (sigmoid), candidate g (tanh):

    c[t] = f * keep[t] * c[t-1] + i * g        h[t] = o * tanh(c[t])

and h[t-1] is multiplied by keep[t] too, so 0 there starts an episode afresh. All tensors are contiguous,
time first and float32. Nothing waits for the device, so all of it can be captured in a CUDA graph after one
ordinary call, which compiles the kernels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor

DotType = Literal["tf32", "bf16"]
_DOT_TYPES = {"tf32": torch.float32, "bf16": torch.bfloat16}


class Tile(NamedTuple):
    """How a kernel cuts the work: each program owns `rows` x `cols` of the hidden state."""

    rows: int
    cols: int
    depth: int  # of the product, per turn of its loop
    warps: int
    stages: int


# Many rows: small programs, so that several share a processor and one computes while another loads.
_ACTING_TILE = Tile(rows=64, cols=32, depth=32, warps=4, stages=3)


# ---------------------------------------------------------------------------------------------- the cell


@triton.jit
def _tanh(x: tl.tensor) -> tl.tensor:
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _cell(i: tl.tensor, f: tl.tensor, o: tl.tensor, g: tl.tensor, c: tl.tensor) -> tl.tensor:
    """Activated gates, new c and new h from the gates before activation and the kept old c."""
    i, f, o, g = tl.sigmoid(i), tl.sigmoid(f), tl.sigmoid(o), _tanh(g)
    c = f * c + i * g
    return i, f, o, g, c, o * _tanh(c)


@triton.jit
def _cell_gradient(
    i: tl.tensor,
    f: tl.tensor,
    o: tl.tensor,
    g: tl.tensor,
    c: tl.tensor,
    kept_c: tl.tensor,
    grad_h: tl.tensor,
    grad_c: tl.tensor,
) -> tl.tensor:
    """Gradients before activation, and that of the kept old c. `grad_c` comes from the next step only."""
    tanh_c = _tanh(c)
    grad_c += grad_h * o * (1.0 - tanh_c * tanh_c)
    grad_i = grad_c * g * i * (1.0 - i)
    grad_f = grad_c * kept_c * f * (1.0 - f)
    grad_o = grad_h * tanh_c * o * (1.0 - o)
    grad_g = grad_c * i * (1.0 - g * g)
    return grad_i, grad_f, grad_o, grad_g, grad_c * f


@triton.jit
def _load_gates(gates: tl.tensor, at: tl.tensor, hidden: tl.constexpr, inside: tl.tensor) -> tl.tensor:
    i = tl.load(gates + at, mask=inside, other=0.0)
    f = tl.load(gates + at + hidden, mask=inside, other=0.0)
    o = tl.load(gates + at + 2 * hidden, mask=inside, other=0.0)
    g = tl.load(gates + at + 3 * hidden, mask=inside, other=0.0)
    return i, f, o, g


@triton.jit
def _store_gates(
    gates: tl.tensor,
    at: tl.tensor,
    hidden: tl.constexpr,
    inside: tl.tensor,
    i: tl.tensor,
    f: tl.tensor,
    o: tl.tensor,
    g: tl.tensor,
) -> None:
    kind = gates.dtype.element_ty
    tl.store(gates + at, i.to(kind), mask=inside)
    tl.store(gates + at + hidden, f.to(kind), mask=inside)
    tl.store(gates + at + 2 * hidden, o.to(kind), mask=inside)
    tl.store(gates + at + 3 * hidden, g.to(kind), mask=inside)


@triton.jit
def _split_gates(x: tl.tensor, rows: tl.constexpr, cols: tl.constexpr) -> tl.tensor:
    """Four [rows, cols] from [rows, 4 * cols] or [rows, cols, 4], where a unit's gates are side by side."""
    i_and_o, f_and_g = tl.split(tl.reshape(x, (rows, cols, 2, 2)))
    i, o = tl.split(i_and_o)
    f, g = tl.split(f_and_g)
    return i, f, o, g


@triton.jit
def _sum_of_gates(x: tl.tensor, rows: tl.constexpr, cols: tl.constexpr) -> tl.tensor:
    """The sum of [4, rows, cols] over its first axis.

    tl.sum would do, but then the compiler moves all that meets the sum into the layout of products, one
    exchange through shared memory each, instead of the sum alone.
    """
    i, f, o, g = _split_gates(tl.permute(x, (1, 2, 0)), rows, cols)
    return i + f + o + g


# ----------------------------------------------------------------------------------- one kernel per step


@triton.jit
def _forward_step(
    gates: tl.tensor,
    weight: tl.tensor,
    h_before: tl.tensor,
    c_before: tl.tensor,
    keep: tl.tensor,
    h_out: tl.tensor,
    c_out: tl.tensor,
    h_short: tl.tensor,
    rows: tl.tensor,
    hidden: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_cols: tl.constexpr,
    depth: tl.constexpr,
    training: tl.constexpr,
    save_short: tl.constexpr,
) -> None:
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    col = tl.program_id(1) * tile_cols + tl.arange(0, tile_cols)
    inside = (row < rows)[:, None]
    state_at = row[:, None] * hidden + col[None, :]
    gates_at = row[:, None] * (4 * hidden) + col[None, :]

    if training:  # few rows: have these on their way while the product runs
        x_i, x_f, x_o, x_g = _load_gates(gates, gates_at, hidden, inside)
        c = tl.load(c_before + state_at, mask=inside, other=0.0)
        kept = tl.load(keep + row, mask=row < rows, other=0.0)[:, None]

    # One product for the four gates of a unit, which lie side by side in its columns.
    side = tl.arange(0, 4 * tile_cols)
    weight_row = (side % 4) * hidden + tl.program_id(1) * tile_cols + side // 4
    product = tl.zeros((tile_rows, 4 * tile_cols), tl.float32)
    for start in range(0, hidden, depth):
        inner = start + tl.arange(0, depth)
        h = tl.load(h_before + row[:, None] * hidden + inner[None, :], mask=inside, other=0.0)
        w = tl.load(weight + weight_row[None, :] * hidden + inner[:, None])
        product = tl.dot(h.to(w.dtype), w, product, input_precision="tf32")

    if not training:  # many rows: spare the registers, so that two programs share a processor
        x_i, x_f, x_o, x_g = _load_gates(gates, gates_at, hidden, inside)
        c = tl.load(c_before + state_at, mask=inside, other=0.0)
    if training:
        # Scaling the product's rows is the same as scaling h, and leaves the product's input untouched.
        product, c = product * kept, c * kept
    dot_i, dot_f, dot_o, dot_g = _split_gates(product, tile_rows, tile_cols)
    i, f, o, g, c, h_new = _cell(x_i + dot_i, x_f + dot_f, x_o + dot_o, x_g + dot_g, c)

    tl.store(h_out + state_at, h_new, mask=inside)
    tl.store(c_out + state_at, c, mask=inside)
    if save_short:
        tl.store(h_short + state_at, h_new.to(h_short.dtype.element_ty), mask=inside)
    if training:
        _store_gates(gates, gates_at, hidden, inside, i, f, o, g)


@triton.jit
def _backward_step(
    grad_h: tl.tensor,
    gates: tl.tensor,
    c: tl.tensor,
    c_before: tl.tensor,
    keep: tl.tensor,
    keep_after: tl.tensor,
    grad_gates_after: tl.tensor,
    weight_t: tl.tensor,
    grad_c: tl.tensor,
    grad_gates: tl.tensor,
    grad_short: tl.tensor,
    rows: tl.tensor,
    hidden: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_cols: tl.constexpr,
    depth: tl.constexpr,
    last: tl.constexpr,
    save_short: tl.constexpr,
) -> None:
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    col = tl.program_id(1) * tile_cols + tl.arange(0, tile_cols)
    inside = (row < rows)[:, None]
    state_at = row[:, None] * hidden + col[None, :]
    gates_at = row[:, None] * (4 * hidden) + col[None, :]

    # These are on their way while the product runs.
    i, f, o, g = _load_gates(gates, gates_at, hidden, inside)
    c_now = tl.load(c + state_at, mask=inside, other=0.0)
    c_old = tl.load(c_before + state_at, mask=inside, other=0.0)
    kept = tl.load(keep + row, mask=row < rows, other=0.0)[:, None]
    to_h = tl.load(grad_h + state_at, mask=inside, other=0.0)
    to_c = tl.zeros((tile_rows, tile_cols), tl.float32)

    if not last:
        to_c = tl.load(grad_c + state_at, mask=inside, other=0.0)
        kept_after = tl.load(keep_after + row, mask=row < rows, other=0.0)[:, None]
        # A product per gate, which run side by side, instead of one with four times the depth.
        gate = tl.arange(0, 4)[:, None, None] * hidden
        products = tl.zeros((4, tile_rows, tile_cols), tl.float32)
        for start in range(0, hidden, depth):
            inner = start + tl.arange(0, depth)
            after_at = gate + row[None, :, None] * (4 * hidden) + inner[None, None, :]
            after = tl.load(grad_gates_after + after_at, mask=inside[None, :, :], other=0.0)
            w = tl.load(weight_t + gate + col[None, None, :] * (4 * hidden) + inner[None, :, None])
            products = tl.dot(after, w, products, input_precision="tf32")
        to_h += _sum_of_gates(products, tile_rows, tile_cols) * kept_after

    to_i, to_f, to_o, to_g, to_c = _cell_gradient(i, f, o, g, c_now, c_old * kept, to_h, to_c)
    _store_gates(grad_gates, gates_at, hidden, inside, to_i, to_f, to_o, to_g)
    if save_short:
        _store_gates(grad_short, gates_at, hidden, inside, to_i, to_f, to_o, to_g)
    tl.store(grad_c + state_at, to_c * kept, mask=inside)


# --------------------------------------------------------------------------- one kernel for all the steps
#
# Each program keeps its columns of the weight for the whole segment. Rows do not depend on each other, so
# only the programs of one block of rows meet after a step, at a counter in global memory. That needs all of
# them to run at once, which a cooperative launch guarantees (or refuses).


@triton.jit
def _arrive(counter: tl.tensor) -> None:
    tl.debug_barrier()  # every thread of the program has stored its part
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def _wait(counter: tl.tensor, arrivals: tl.tensor) -> None:
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
        pass


@triton.jit
def _forward_segment(
    gates: tl.tensor,
    weight: tl.tensor,
    c0: tl.tensor,
    keep: tl.tensor,
    h_out: tl.tensor,
    c_out: tl.tensor,
    exchange: tl.tensor,
    counters: tl.tensor,
    rows: tl.tensor,
    steps: tl.constexpr,
    hidden: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_cols: tl.constexpr,
    depth: tl.constexpr,
) -> None:
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    col = tl.program_id(1) * tile_cols + tl.arange(0, tile_cols)
    inside = (row < rows)[:, None]
    state_at = row[:, None] * hidden + col[None, :]
    gates_at = row[:, None] * (4 * hidden) + col[None, :]
    counter = counters + tl.program_id(0) * 32  # each counter in a cache line of its own

    side = tl.arange(0, 4 * tile_cols)
    weight_row = (side % 4) * hidden + tl.program_id(1) * tile_cols + side // 4
    inner = tl.arange(0, depth)
    weight_at = weight + weight_row[None, :] * hidden + inner[:, None]
    h_at = exchange + row[:, None] * hidden + inner[None, :]
    parts = ()
    for part in tl.static_range(hidden // depth):
        parts = parts + (tl.load(weight_at + part * depth),)  # type: ignore[assignment]  # noqa: RUF005

    c = tl.load(c0 + state_at, mask=inside, other=0.0)
    # One stage: the compiler must not fetch the next step's h before the programs have met.
    for t in tl.range(0, steps, num_stages=1):
        x_i, x_f, x_o, x_g = _load_gates(gates, gates_at, hidden, inside)
        kept = tl.load(keep + row, mask=row < rows, other=0.0)[:, None]
        _wait(counter, t * (hidden // tile_cols))
        old, new = (t % 2) * rows * hidden, (1 - t % 2) * rows * hidden
        product = tl.zeros((tile_rows, 4 * tile_cols), tl.float32)
        for part in tl.static_range(hidden // depth):
            h = tl.load(h_at + old + part * depth, mask=inside, other=0.0, cache_modifier=".cg")
            product = tl.dot(h, parts[part], product, input_precision="tf32")
        dot_i, dot_f, dot_o, dot_g = _split_gates(product * kept, tile_rows, tile_cols)
        i, f, o, g, c, h_new = _cell(x_i + dot_i, x_f + dot_f, x_o + dot_o, x_g + dot_g, c * kept)
        tl.store(exchange + new + state_at, h_new.to(exchange.dtype.element_ty), mask=inside)
        _arrive(counter)
        # The others do not wait for these.
        tl.store(h_out + state_at, h_new, mask=inside)
        tl.store(c_out + state_at, c, mask=inside)
        _store_gates(gates, gates_at, hidden, inside, i, f, o, g)
        gates += rows * 4 * hidden
        keep += rows
        h_out += rows * hidden
        c_out += rows * hidden


@triton.jit
def _backward_segment(
    grad_h: tl.tensor,
    gates: tl.tensor,
    c: tl.tensor,
    c0: tl.tensor,
    keep: tl.tensor,
    weight_t: tl.tensor,
    grad_gates: tl.tensor,
    exchange: tl.tensor,
    counters: tl.tensor,
    rows: tl.tensor,
    steps: tl.constexpr,
    hidden: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_cols: tl.constexpr,
    depth: tl.constexpr,
) -> None:
    """The pointers `grad_h`, `gates`, `c`, `keep` and `grad_gates` are those of the last step."""
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    col = tl.program_id(1) * tile_cols + tl.arange(0, tile_cols)
    inside = (row < rows)[:, None]
    state_at = row[:, None] * hidden + col[None, :]
    gates_at = row[:, None] * (4 * hidden) + col[None, :]
    counter = counters + tl.program_id(0) * 32  # each counter in a cache line of its own

    inner = tl.arange(0, depth)
    gate = tl.arange(0, 4)[:, None, None] * hidden
    weight_at = weight_t + gate + col[None, None, :] * (4 * hidden) + inner[None, :, None]
    after_at = exchange + gate + row[None, :, None] * (4 * hidden) + inner[None, None, :]
    parts = ()
    for part in tl.static_range(hidden // depth):
        parts = parts + (tl.load(weight_at + part * depth),)  # type: ignore[assignment]  # noqa: RUF005

    to_c = tl.zeros((tile_rows, tile_cols), tl.float32)
    kept_after = tl.zeros((tile_rows, 1), tl.float32)  # nothing comes after the last step
    c_now = tl.load(c + state_at, mask=inside, other=0.0)
    # One stage: the compiler must not fetch the next step's gradient before the programs have met.
    for done in tl.range(0, steps, num_stages=1):
        i, f, o, g = _load_gates(gates, gates_at, hidden, inside)
        kept = tl.load(keep + row, mask=row < rows, other=0.0)[:, None]
        to_h = tl.load(grad_h + state_at, mask=inside, other=0.0)
        c_before = c - rows * hidden
        if done == steps - 1:
            c_before = c0
        c_old = tl.load(c_before + state_at, mask=inside, other=0.0)
        _wait(counter, done * (hidden // tile_cols))
        old, new = (done % 2) * rows * 4 * hidden, (1 - done % 2) * rows * 4 * hidden
        products = tl.zeros((4, tile_rows, tile_cols), tl.float32)
        for part in tl.static_range(hidden // depth):
            at = after_at + old + part * depth
            after = tl.load(at, mask=inside[None, :, :], other=0.0, cache_modifier=".cg")
            products = tl.dot(after, parts[part], products, input_precision="tf32")
        to_h += _sum_of_gates(products, tile_rows, tile_cols) * kept_after
        to_i, to_f, to_o, to_g, to_c = _cell_gradient(i, f, o, g, c_now, c_old * kept, to_h, to_c)
        _store_gates(exchange + new, gates_at, hidden, inside, to_i, to_f, to_o, to_g)
        _arrive(counter)
        # The others do not wait for these.
        _store_gates(grad_gates, gates_at, hidden, inside, to_i, to_f, to_o, to_g)
        to_c *= kept
        c_now, kept_after, c = c_old, kept, c_before
        grad_h -= rows * hidden
        gates -= rows * 4 * hidden
        grad_gates -= rows * 4 * hidden
        keep -= rows


# ------------------------------------------------------------------------------------------ what to call


def lstm_forward(
    gates: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    keep: Tensor,
    out_h: Tensor,
    out_c: Tensor,
    *,
    dtype: DotType = "tf32",
    persistent: bool = False,
    tile: Tile | None = None,
) -> None:
    """Every step of a segment.

    `gates` [T, B, 4H] comes in as the input's part with the bias and leaves activated; `weight` is [4H, H],
    `h0` and `c0` [B, H], `keep` [T, B], `out_h` and `out_c` [T, B, H]. `persistent` runs all the steps in
    one kernel, which needs the whole GPU.
    """
    _check(gates, weight, h0, c0, keep, out_h, out_c)
    weight = weight.to(_DOT_TYPES[dtype])
    if persistent:
        _launch_forward_segment(gates, weight, h0, c0, keep, out_h, out_c, tile)
        return
    short = _short_copies(h0, dtype)
    h, c = h0, c0
    if short is not None:
        h = short[1].copy_(h0)
    for t in range(len(gates)):
        h_short = None if short is None else short[t % 2]
        _launch_forward(gates[t], weight, h, c, keep[t], out_h[t], out_c[t], h_short, tile)
        h, c = out_h[t] if h_short is None else h_short, out_c[t]


def lstm_backward(
    grad_h: Tensor,
    gates: Tensor,
    c: Tensor,
    c0: Tensor,
    keep: Tensor,
    weight: Tensor,
    grad_gates: Tensor,
    *,
    dtype: DotType = "tf32",
    persistent: bool = False,
    tile: Tile | None = None,
) -> None:
    """Write the gradient of the gates before activation, [T, B, 4H].

    `grad_h` [T, B, H] is what reaches each h from outside the recurrence; `gates` and `c` are what
    `lstm_forward` left.
    """
    _check(grad_h, gates, c, c0, keep, weight, grad_gates)
    # Both factors of the product then run along contiguous memory.
    weight_t = weight.t().to(_DOT_TYPES[dtype], memory_format=torch.contiguous_format, copy=True)
    if persistent:
        _launch_backward_segment(grad_h, gates, c, c0, keep, weight_t, grad_gates, tile)
        return
    steps, rows, hidden = grad_h.shape
    tile = tile or _tile(rows, hidden, depth=128 // weight_t.element_size())
    short = _short_copies(gates[0], dtype)
    grad_c = torch.empty_like(c0)
    after = grad_gates[-1]
    for t in range(steps - 1, -1, -1):
        last, grad_short = t == steps - 1, None if short is None else short[t % 2]
        _backward_step[_grid(rows, hidden, tile)](
            grad_h[t],
            gates[t],
            c[t],
            c[t - 1] if t else c0,
            keep[t],
            keep[t if last else t + 1],
            after,
            weight_t,
            grad_c,
            grad_gates[t],
            grad_gates[t] if grad_short is None else grad_short,
            rows,
            hidden,
            tile.rows,
            tile.cols,
            tile.depth,
            last,
            grad_short is not None,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
        after = grad_gates[t] if grad_short is None else grad_short


def lstm_step(
    gates: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    out_h: Tensor,
    out_c: Tensor,
    *,
    dtype: DotType = "tf32",
    tile: Tile | None = None,
) -> None:
    """One step for acting: h and c after `gates` [B, 4H], the input's part with the bias, which is only read.

    `out_c` may be `c`. `out_h` must not be `h`: every program reads whole rows of h. Pass the weight in
    bfloat16 to save its conversion at every step.
    """
    if out_h.data_ptr() == h.data_ptr():
        raise ValueError("out_h must not be h: other programs still read it")
    _check(gates, weight, h, c, out_h, out_c)
    _launch_forward(gates, weight.to(_DOT_TYPES[dtype]), h, c, None, out_h, out_c, None, tile)


def _launch_forward(
    gates: Tensor,
    weight: Tensor,
    h: Tensor,
    c: Tensor,
    keep: Tensor | None,
    out_h: Tensor,
    out_c: Tensor,
    h_short: Tensor | None,
    tile: Tile | None,
) -> None:
    """One step: of training where `keep` is given, else of acting."""
    rows, hidden = h.shape
    tile = tile or (_tile(rows, hidden, depth=64) if keep is not None else _ACTING_TILE)
    _forward_step[_grid(rows, hidden, tile)](
        gates,
        weight,
        h,
        c,
        c if keep is None else keep,
        out_h,
        out_c,
        out_h if h_short is None else h_short,
        rows,
        hidden,
        tile.rows,
        tile.cols,
        tile.depth,
        keep is not None,
        h_short is not None,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _launch_forward_segment(
    gates: Tensor,
    weight: Tensor,
    h0: Tensor,
    c0: Tensor,
    keep: Tensor,
    out_h: Tensor,
    out_c: Tensor,
    tile: Tile | None,
) -> None:
    steps, rows, hidden = out_h.shape
    tile = tile or _segment_tile(rows, weight, gates=1)
    exchange = torch.empty((2, rows, hidden), dtype=weight.dtype, device=h0.device)
    exchange[0].copy_(h0)
    _forward_segment[_grid(rows, hidden, tile)](
        gates,
        weight,
        c0,
        keep,
        out_h,
        out_c,
        exchange,
        _counters(rows, tile, h0.device),
        rows,
        steps,
        hidden,
        tile.rows,
        tile.cols,
        tile.depth,
        num_warps=tile.warps,
        num_stages=1,
        launch_cooperative_grid=True,
    )


def _launch_backward_segment(
    grad_h: Tensor,
    gates: Tensor,
    c: Tensor,
    c0: Tensor,
    keep: Tensor,
    weight_t: Tensor,
    grad_gates: Tensor,
    tile: Tile | None,
) -> None:
    steps, rows, hidden = grad_h.shape
    tile = tile or _segment_tile(rows, weight_t, gates=4)
    exchange = torch.empty((2, rows, 4 * hidden), dtype=weight_t.dtype, device=c0.device)
    exchange[0].zero_()  # what "comes after" the last step
    _backward_segment[_grid(rows, hidden, tile)](
        grad_h[-1],
        gates[-1],
        c[-1],
        c0,
        keep[-1],
        weight_t,
        grad_gates[-1],
        exchange,
        _counters(rows, tile, c0.device),
        rows,
        steps,
        hidden,
        tile.rows,
        tile.cols,
        tile.depth,
        num_warps=tile.warps,
        num_stages=1,
        launch_cooperative_grid=True,
    )


def _counters(rows: int, tile: Tile, device: torch.device) -> Tensor:
    return torch.zeros(triton.cdiv(rows, tile.rows) * 32, dtype=torch.int32, device=device)


def _segment_tile(rows: int, weight: Tensor, gates: int) -> Tile:
    """The fewest rows whose programs all fit on the GPU at once, each with its part of the weight.

    A row of the product's input has `gates` times the hidden size.
    """
    hidden, size = min(weight.shape), weight.element_size()
    processors = torch.cuda.get_device_properties(weight.device).multi_processor_count
    for tile_rows, tile_cols in ((16, 16), (16, 32), (32, 16), (32, 32), (64, 16), (64, 32)):
        programs = triton.cdiv(rows, tile_rows) * (hidden // tile_cols)
        if programs <= processors and 4 * tile_cols * hidden * size <= 128 * 1024:
            fits = [d for d in (64, 128, 256) if hidden % d == 0 and gates * tile_rows * d * size <= 64 * 1024]
            return Tile(tile_rows, tile_cols, max(fits), warps=8, stages=1)
    raise ValueError(f"{rows} rows of {hidden} units do not fit in one persistent kernel on this GPU")


def _tile(rows: int, hidden: int, depth: int) -> Tile:
    """The largest tile that still gives most of a large GPU's processors a program."""
    for tile_rows, tile_cols in ((64, 32), (64, 16), (32, 16)):
        if triton.cdiv(rows, tile_rows) * (hidden // tile_cols) >= 96:
            return Tile(tile_rows, tile_cols, depth, warps=8 if tile_rows == 64 else 4, stages=4)
    return Tile(16, 16, depth, warps=4, stages=4)


def _grid(rows: int, hidden: int, tile: Tile) -> tuple[int, int]:
    return triton.cdiv(rows, tile.rows), hidden // tile.cols


def _short_copies(like: Tensor, dtype: DotType) -> Tensor | None:
    """Room for what one step writes in bfloat16 and the next reads, twice because they overlap."""
    if dtype == "tf32":
        return None
    return torch.empty((2, *like.shape), dtype=_DOT_TYPES[dtype], device=like.device)


def _check(*tensors: Tensor) -> None:
    if not all(x.is_contiguous() for x in tensors):
        raise ValueError("the LSTM kernels need contiguous tensors")
    widest = max(x.shape[-1] for x in tensors)
    if widest % 256:
        raise ValueError(f"the LSTM kernels need a hidden size that is a multiple of 64, not {widest / 4:g}")


# ------------------------------------------------------------------ the product by cuBLAS, the rest fused

_CELL_BLOCK = 512


@triton.jit
def _cell_forward(
    gates: tl.tensor,
    c_before: tl.tensor,
    keep: tl.tensor,
    h_out: tl.tensor,
    c_out: tl.tensor,
    keep_after: tl.tensor,
    kept_h: tl.tensor,
    size: tl.tensor,
    hidden: tl.constexpr,
    save_kept: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    row = at // hidden
    gates_at = at + row * (3 * hidden)
    i, f, o, g = _load_gates(gates, gates_at, hidden, inside)
    c = tl.load(c_before + at, mask=inside, other=0.0) * tl.load(keep + row, mask=inside, other=0.0)
    i, f, o, g, c, h = _cell(i, f, o, g, c)
    _store_gates(gates, gates_at, hidden, inside, i, f, o, g)
    tl.store(c_out + at, c, mask=inside)
    tl.store(h_out + at, h, mask=inside)
    if save_kept:
        tl.store(kept_h + at, h * tl.load(keep_after + row, mask=inside, other=0.0), mask=inside)


@triton.jit
def _cell_backward(
    grad_h: tl.tensor,
    grad_h_after: tl.tensor,
    gates: tl.tensor,
    c: tl.tensor,
    c_before: tl.tensor,
    keep: tl.tensor,
    keep_after: tl.tensor,
    grad_c: tl.tensor,
    grad_gates: tl.tensor,
    size: tl.tensor,
    hidden: tl.constexpr,
    last: tl.constexpr,
    block: tl.constexpr,
) -> None:
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    row = at // hidden
    gates_at = at + row * (3 * hidden)
    i, f, o, g = _load_gates(gates, gates_at, hidden, inside)
    kept = tl.load(keep + row, mask=inside, other=0.0)
    c_now = tl.load(c + at, mask=inside, other=0.0)
    kept_c = tl.load(c_before + at, mask=inside, other=0.0) * kept
    to_h = tl.load(grad_h + at, mask=inside, other=0.0)
    to_c = tl.zeros((block,), tl.float32)
    if not last:
        kept_after = tl.load(keep_after + row, mask=inside, other=0.0)
        to_h += tl.load(grad_h_after + at, mask=inside, other=0.0) * kept_after
        to_c = tl.load(grad_c + at, mask=inside, other=0.0)
    to_i, to_f, to_o, to_g, to_c = _cell_gradient(i, f, o, g, c_now, kept_c, to_h, to_c)
    _store_gates(grad_gates, gates_at, hidden, inside, to_i, to_f, to_o, to_g)
    tl.store(grad_c + at, to_c * kept, mask=inside)


def cell_forward(
    gates: Tensor,
    c_before: Tensor,
    keep: Tensor,
    h_out: Tensor,
    c_out: Tensor,
    keep_after: Tensor | None = None,
    kept_h: Tensor | None = None,
) -> None:
    """Finish a step whose `gates` [B, 4H] hold the recurrent part too; they leave activated.

    `kept_h`, where given, receives h * keep_after: what the next step's product reads.
    """
    save_kept = keep_after is not None and kept_h is not None
    size = c_out.numel()
    _cell_forward[(triton.cdiv(size, _CELL_BLOCK),)](
        gates,
        c_before,
        keep,
        h_out,
        c_out,
        keep_after if save_kept else keep,
        kept_h if save_kept else h_out,
        size,
        c_out.shape[-1],
        save_kept,
        _CELL_BLOCK,
        num_warps=4,
    )


def cell_backward(
    grad_h: Tensor,
    grad_h_after: Tensor | None,
    gates: Tensor,
    c: Tensor,
    c_before: Tensor,
    keep: Tensor,
    keep_after: Tensor | None,
    grad_c: Tensor,
    grad_gates: Tensor,
) -> None:
    """The gradient of one step's gates before activation.

    `grad_h_after` is the next step's grad_gates @ weight, not yet multiplied by its `keep_after`; both are
    None at the last step. `grad_c` [B, H] carries the gradient of c from step to step: it is read, unless
    this is the last step, and then overwritten.
    """
    last = grad_h_after is None or keep_after is None
    size = c.numel()
    _cell_backward[(triton.cdiv(size, _CELL_BLOCK),)](
        grad_h,
        grad_h if last else grad_h_after,
        gates,
        c,
        c_before,
        keep,
        keep if last else keep_after,
        grad_c,
        grad_gates,
        size,
        c.shape[-1],
        last,
        _CELL_BLOCK,
        num_warps=4,
    )


def lstm_forward_cublas(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, keep: Tensor, out_h: Tensor, out_c: Tensor
) -> None:
    """`lstm_forward` with torch's matrix product, in the precision that torch is set to."""
    _check(gates, weight, h0, c0, keep, out_h, out_c)
    kept_h = h0 * keep[0].unsqueeze(1)
    weight_t, c, steps = weight.t(), c0, len(gates)
    for t in range(steps):
        torch.addmm(gates[t], kept_h, weight_t, out=gates[t])
        after = keep[t + 1] if t + 1 < steps else None
        cell_forward(gates[t], c, keep[t], out_h[t], out_c[t], after, kept_h)
        c = out_c[t]


def lstm_backward_cublas(
    grad_h: Tensor, gates: Tensor, c: Tensor, c0: Tensor, keep: Tensor, weight: Tensor, grad_gates: Tensor
) -> None:
    """`lstm_backward` with torch's matrix product, in the precision that torch is set to."""
    _check(grad_h, gates, c, c0, keep, weight, grad_gates)
    grad_c, product = torch.empty_like(c0), torch.empty_like(c0)
    grad_h_after, keep_after = None, None
    for t in range(len(grad_h) - 1, -1, -1):
        c_before = c[t - 1] if t else c0
        cell_backward(
            grad_h[t], grad_h_after, gates[t], c[t], c_before, keep[t], keep_after, grad_c, grad_gates[t]
        )
        grad_h_after, keep_after = product, keep[t]
        if t:
            torch.mm(grad_gates[t], weight, out=product)
