"""The LSTM's recurrence as Triton kernels. Needs a GPU: import it only there.

The recurrence is a chain of small steps, so its time is that of the slowest path through one step, not of
the arithmetic. `lstm_forward` and `lstm_backward` therefore run a whole segment in one kernel where its
programs all fit on the GPU at once. Elsewhere, and for exact float32, cuBLAS multiplies by the recurrent weight
and one kernel a step does the rest. `lstm_step` is one step for acting. The input's part of the gates and the
weight gradients are large products: the caller makes them.

Gates lie side by side in the 4 * hidden columns: input i, forget f, output o (sigmoid), candidate g (tanh):

    c[t] = f * keep[t] * c[t-1] + i * g        h[t] = o * tanh(c[t])

and h[t-1] is multiplied by keep[t] too, so 0 there starts an episode afresh. All tensors are float32, time
first and contiguous, but states [B, H] may be columns of a wider tensor. A step's gates must number fewer than
2**31. Nothing waits for the device, so all of it can be captured in a CUDA graph after one ordinary call, which
compiles the kernels.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

# Of the product with the recurrent weight: "float32" leaves it to torch's own setting, which is exact unless
# changed; the others use the tensor cores where the kernels can, and else that setting too.
Precision = Literal["float32", "tf32", "bf16"]
DOT_TYPES = {"tf32": torch.float32, "bf16": torch.bfloat16}
_AT_ONCE = {"num_warps": 8, "num_stages": 1, "launch_cooperative_grid": True}  # programs wait for each other
_CELL_BLOCK = 512  # units per program of the cell's own kernels


class Tile(NamedTuple):
    """How a kernel cuts the work: each program owns `rows` x `cols` of the hidden state."""

    rows: int
    cols: int
    depth: int  # of the product, per turn of its loop


# ---------------------------------------------------------------------------------------------- the cell


@triton.jit
def _tanh(x: tensor) -> tensor:
    return 2.0 * tl.sigmoid(2.0 * x) - 1.0


@triton.jit
def _cell(i: tensor, f: tensor, o: tensor, g: tensor, c: tensor) -> tensor:
    """Activated gates, new c and new h from the gates before activation and the kept old c."""
    i, f, o, g = tl.sigmoid(i), tl.sigmoid(f), tl.sigmoid(o), _tanh(g)
    c = f * c + i * g
    return i, f, o, g, c, o * _tanh(c)


@triton.jit
def _cell_gradient(
    i: tensor, f: tensor, o: tensor, g: tensor, c: tensor, kept_c: tensor, grad_h: tensor, grad_c: tensor
) -> tensor:
    """Gradients before activation, and that of the kept old c. `grad_c` comes from the next step only."""
    tanh_c = _tanh(c)
    grad_c += grad_h * o * (1.0 - tanh_c * tanh_c)
    grad_i = grad_c * g * i * (1.0 - i)
    grad_f = grad_c * kept_c * f * (1.0 - f)
    grad_o = grad_h * tanh_c * o * (1.0 - o)
    grad_g = grad_c * i * (1.0 - g * g)
    return grad_i, grad_f, grad_o, grad_g, grad_c * f


@triton.jit
def _load_gates(gates: tensor, at: tensor, hidden: constexpr, inside: tensor) -> tensor:
    i = tl.load(gates + at, mask=inside, other=0.0)
    f = tl.load(gates + at + hidden, mask=inside, other=0.0)
    o = tl.load(gates + at + 2 * hidden, mask=inside, other=0.0)
    g = tl.load(gates + at + 3 * hidden, mask=inside, other=0.0)
    return i, f, o, g


@triton.jit
def _store_gates(
    gates: tensor, at: tensor, hidden: constexpr, inside: tensor, i: tensor, f: tensor, o: tensor, g: tensor
) -> None:
    kind = gates.dtype.element_ty
    tl.store(gates + at, i.to(kind), mask=inside)
    tl.store(gates + at + hidden, f.to(kind), mask=inside)
    tl.store(gates + at + 2 * hidden, o.to(kind), mask=inside)
    tl.store(gates + at + 3 * hidden, g.to(kind), mask=inside)


@triton.jit
def _split_gates(x: tensor, rows: constexpr, cols: constexpr) -> tensor:
    """Four [rows, cols] from [rows, 4 * cols] or [rows, cols, 4], where a unit's gates are side by side."""
    i_and_o, f_and_g = tl.split(tl.reshape(x, (rows, cols, 2, 2)))
    i, o = tl.split(i_and_o)
    f, g = tl.split(f_and_g)
    return i, f, o, g


@triton.jit
def _sum_of_gates(x: tensor, rows: constexpr, cols: constexpr) -> tensor:
    """The sum of [4, rows, cols] over its first axis.

    tl.sum would do, but then the compiler moves all that meets the sum into the layout of products, one
    exchange through shared memory each, instead of the sum alone.
    """
    i, f, o, g = _split_gates(tl.permute(x, (1, 2, 0)), rows, cols)
    return i + f + o + g


# ------------------------------------------------------------------------------------ one step for acting


@triton.jit
def _acting_step(
    gates: tensor, weight: tensor, h_before: tensor, c_before: tensor, h_out: tensor, c_out: tensor,
    h_stride: tensor, c_stride: tensor, h_out_stride: tensor, c_out_stride: tensor, rows: tensor,
    hidden: constexpr, tile_rows: constexpr, tile_cols: constexpr, depth: constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * tile_rows + tl.arange(0, tile_rows)
    col = tl.program_id(1) * tile_cols + tl.arange(0, tile_cols)
    inside = (row < rows)[:, None]

    # One product for the four gates of a unit, which lie side by side in its columns.
    side = tl.arange(0, 4 * tile_cols)
    weight_row = (side % 4) * hidden + tl.program_id(1) * tile_cols + side // 4
    product = tl.zeros((tile_rows, 4 * tile_cols), tl.float32)
    for start in range(0, hidden, depth):
        inner = start + tl.arange(0, depth)
        h = tl.load(h_before + row[:, None] * h_stride + inner[None, :], mask=inside, other=0.0)
        w = tl.load(weight + weight_row[None, :] * hidden + inner[:, None])
        product = tl.dot(h.to(w.dtype), w, product, input_precision="tf32")

    # Loaded only now, to spare registers: more programs then share a processor.
    x_i, x_f, x_o, x_g = _load_gates(gates, row[:, None] * (4 * hidden) + col[None, :], hidden, inside)
    c = tl.load(c_before + row[:, None] * c_stride + col[None, :], mask=inside, other=0.0)
    dot_i, dot_f, dot_o, dot_g = _split_gates(product, tile_rows, tile_cols)
    _, _, _, _, c, h_new = _cell(x_i + dot_i, x_f + dot_f, x_o + dot_o, x_g + dot_g, c)
    tl.store(h_out + row[:, None] * h_out_stride + col[None, :], h_new, mask=inside)
    tl.store(c_out + row[:, None] * c_out_stride + col[None, :], c, mask=inside)


# --------------------------------------------------------------------------- one kernel for all the steps
#
# Each program keeps its columns of the weight for the whole segment. Rows do not depend on each other, so
# only the programs of one block of rows meet after a step, at a counter in global memory. That needs all of
# them to run at once, which a cooperative launch guarantees (or refuses).


@triton.jit
def _arrive(counter: tensor) -> None:
    tl.debug_barrier()  # every thread of the program has stored its part
    tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def _wait(counter: tensor, arrivals: tensor) -> None:
    while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < arrivals:
        pass


@triton.jit
def _forward_segment(
    gates: tensor, weight: tensor, c0: tensor, keep: tensor, h_out: tensor, c_out: tensor,
    exchange: tensor, counters: tensor, rows: tensor, steps: constexpr,
    hidden: constexpr, tile_rows: constexpr, tile_cols: constexpr, depth: constexpr,
) -> None:  # fmt: skip
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
    grad_h: tensor, gates: tensor, c: tensor, c0: tensor, keep: tensor, weight_t: tensor, grad_gates: tensor,
    exchange: tensor, counters: tensor, rows: tensor, steps: constexpr,
    hidden: constexpr, tile_rows: constexpr, tile_cols: constexpr, depth: constexpr,
) -> None:  # fmt: skip
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


# ----------------------------------------------------------- the cell alone, where cuBLAS makes the product


@triton.jit
def _cell_forward(
    gates: tensor, c_before: tensor, h_out: tensor, c_out: tensor, keep: tensor, keep_after: tensor,
    kept_h: tensor, c_stride: tensor, h_out_stride: tensor, c_out_stride: tensor,
    size: tensor, hidden: constexpr, block: constexpr,
) -> None:  # fmt: skip
    """Training: activate the gates and write `kept_h`, h * keep_after. Acting: these are None, gates stay."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    row = at // hidden
    gates_at = at + row * (3 * hidden)
    i, f, o, g = _load_gates(gates, gates_at, hidden, inside)
    c = tl.load(c_before + at + row * (c_stride - hidden), mask=inside, other=0.0)
    if keep is not None:
        c *= tl.load(keep + row, mask=inside, other=0.0)
    i, f, o, g, c, h = _cell(i, f, o, g, c)
    tl.store(c_out + at + row * (c_out_stride - hidden), c, mask=inside)
    tl.store(h_out + at + row * (h_out_stride - hidden), h, mask=inside)
    if keep is not None:
        _store_gates(gates, gates_at, hidden, inside, i, f, o, g)
        tl.store(kept_h + at, h * tl.load(keep_after + row, mask=inside, other=0.0), mask=inside)


@triton.jit
def _cell_backward(
    grad_h: tensor, grad_h_after: tensor, gates: tensor, c: tensor, c_before: tensor,
    keep: tensor, keep_after: tensor, grad_c: tensor, grad_gates: tensor,
    size: tensor, hidden: constexpr, block: constexpr,
) -> None:  # fmt: skip
    """`grad_h_after` is the next step's grad_gates @ weight, before its `keep_after`; `grad_c` is replaced."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < size
    row = at // hidden
    gates_at = at + row * (3 * hidden)
    i, f, o, g = _load_gates(gates, gates_at, hidden, inside)
    kept = tl.load(keep + row, mask=inside, other=0.0)
    c_now = tl.load(c + at, mask=inside, other=0.0)
    kept_c = tl.load(c_before + at, mask=inside, other=0.0) * kept
    kept_after = tl.load(keep_after + row, mask=inside, other=0.0)
    to_h = tl.load(grad_h + at, mask=inside, other=0.0)
    to_h += tl.load(grad_h_after + at, mask=inside, other=0.0) * kept_after
    to_c = tl.load(grad_c + at, mask=inside, other=0.0)
    to_i, to_f, to_o, to_g, to_c = _cell_gradient(i, f, o, g, c_now, kept_c, to_h, to_c)
    _store_gates(grad_gates, gates_at, hidden, inside, to_i, to_f, to_o, to_g)
    tl.store(grad_c + at, to_c * kept, mask=inside)


# ------------------------------------------------------------------------------------------ what to call


def lstm_forward(
    gates: Tensor,  # [T, B, 4H] the input's part with the bias; leaves activated
    weight: Tensor,  # [4H, H]
    h0: Tensor,  # [B, H]
    c0: Tensor,
    keep: Tensor,  # [T, B]
    out_h: Tensor,  # [T, B, H]
    out_c: Tensor,
    precision: Precision,
) -> None:
    """Every step of a segment."""
    _check(gates, weight, keep, out_h, out_c)
    steps, rows, hidden = out_h.shape
    c0 = c0.contiguous()
    tile = segment_tile(rows, hidden, precision, gates.device, inputs=1)
    if tile is None:
        _forward_by_cublas(gates, weight, h0, c0, keep, out_h, out_c)
        return
    weight = weight.to(DOT_TYPES[precision])
    exchange = torch.empty((2, rows, hidden), dtype=weight.dtype, device=gates.device)
    exchange[0].copy_(h0)
    counters = _counters(rows, tile, gates.device)
    _forward_segment[_grid(rows, hidden, tile)](
        gates, weight, c0, keep, out_h, out_c, exchange, counters, rows, steps, hidden, *tile, **_AT_ONCE
    )


def lstm_backward(
    grad_h: Tensor,  # [T, B, H] what reaches each h from outside the recurrence
    gates: Tensor,  # these two as `lstm_forward` left them
    c: Tensor,
    c0: Tensor,
    keep: Tensor,
    weight: Tensor,
    grad_gates: Tensor,  # [T, B, 4H]
    precision: Precision,
) -> None:
    """Write the gradient of the gates before activation, for every step of a segment."""
    _check(grad_h, gates, c, keep, weight, grad_gates)
    steps, rows, hidden = grad_h.shape
    c0 = c0.contiguous()
    tile = segment_tile(rows, hidden, precision, gates.device, inputs=4)
    if tile is None:
        _backward_by_cublas(grad_h, gates, c, c0, keep, weight, grad_gates)
        return
    # Both factors of the product then run along contiguous memory.
    weight_t = weight.t().to(DOT_TYPES[precision], memory_format=torch.contiguous_format, copy=True)
    exchange = torch.empty((2, rows, 4 * hidden), dtype=weight_t.dtype, device=gates.device)
    exchange[0].zero_()  # what "comes after" the last step
    counters = _counters(rows, tile, gates.device)
    last_step = (grad_h[-1], gates[-1], c[-1], c0, keep[-1], weight_t, grad_gates[-1])
    _backward_segment[_grid(rows, hidden, tile)](
        *last_step, exchange, counters, rows, steps, hidden, *tile, **_AT_ONCE
    )


def lstm_step(
    gates: Tensor, weight: Tensor, h: Tensor, c: Tensor, out_h: Tensor, out_c: Tensor, precision: Precision
) -> None:
    """One step for acting. `gates` [B, 4H] is the input's part with the bias; it may be overwritten.

    `out_c` may be `c`. `out_h` must not be `h`: every program reads whole rows of h. A weight already in
    bfloat16 saves its conversion at every step.
    """
    _check(gates, weight, states=(h, c, out_h, out_c))
    if out_h.data_ptr() == h.data_ptr():
        raise ValueError("out_h must not be h: other programs still read it")
    rows, hidden = h.shape
    strides = [x.stride(0) for x in (h, c, out_h, out_c)]
    if not _can_multiply(hidden, precision, h.device):
        gates.addmm_(h, weight.t().to(gates.dtype))
        sizes = (*strides[1:], h.numel(), hidden, _CELL_BLOCK)
        _cell_forward[_cell_grid(h)](gates, c, out_h, out_c, None, None, None, *sizes)
        return
    weight = weight.to(DOT_TYPES[precision])
    # Small programs, so that several share a processor and one computes while another loads.
    tile = Tile(rows=64, cols=32, depth=128 // weight.element_size())
    _acting_step[_grid(rows, hidden, tile)](
        gates, weight, h, c, out_h, out_c, *strides, rows, hidden, *tile, num_warps=4, num_stages=3
    )


def fits(rows: int, hidden: int, precision: Precision, device: torch.device) -> bool:
    """Whether segments of so many rows run in one kernel, forward and backward. Backward needs more room."""
    return segment_tile(rows, hidden, precision, device, inputs=4) is not None


def segment_tile(rows: int, hidden: int, precision: Precision, device: torch.device, inputs: int) -> Tile | None:
    """The fewest rows whose programs all fit on the GPU at once, each with its part of the weight.

    A row of the product's input has `inputs` times the hidden size. The compiler keeps one turn's input in
    shared memory beside the weight, and up to 4 KiB more; the driver takes 1 KiB.
    """
    if device.type != "cuda" or not _can_multiply(hidden, precision, device):
        return None
    gpu, size = torch.cuda.get_device_properties(device), DOT_TYPES[precision].itemsize
    for tile_rows, tile_cols in ((16, 16), (16, 32), (32, 16), (32, 32), (64, 16), (64, 32)):
        programs = triton.cdiv(rows, tile_rows) * (hidden // tile_cols)
        held = 4 * tile_cols * hidden * size
        room = min(64 * 1024, gpu.shared_memory_per_multiprocessor - 5 * 1024 - held)
        depths = [d for d in (64, 128, 256) if hidden % d == 0 and inputs * tile_rows * d * size <= room]
        if programs <= gpu.multi_processor_count and held <= 128 * 1024 and depths:
            return Tile(tile_rows, tile_cols, max(depths))
    return None


def _can_multiply(hidden: int, precision: Precision, device: torch.device) -> bool:
    """Whether our kernels can make the product: in whole tiles, on tensor cores that know the precision."""
    if precision == "float32" or hidden % 64:
        return False
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 0)  # CPU: the interpreter


def _grid(rows: int, hidden: int, tile: Tile) -> tuple[int, int]:
    return triton.cdiv(rows, tile.rows), hidden // tile.cols


def _check(*tensors: Tensor, states: tuple[Tensor, ...] = ()) -> None:
    if not all(x.is_contiguous() for x in tensors) or any(x.stride(-1) != 1 for x in states):
        raise ValueError("the LSTM kernels need contiguous tensors, and states with contiguous rows")


def _counters(rows: int, tile: Tile, device: torch.device) -> Tensor:
    return torch.zeros(triton.cdiv(rows, tile.rows) * 32, dtype=torch.int32, device=device)


def _forward_by_cublas(
    gates: Tensor, weight: Tensor, h0: Tensor, c0: Tensor, keep: Tensor, out_h: Tensor, out_c: Tensor
) -> None:
    steps, hidden = len(gates), c0.shape[1]
    sizes = (hidden, hidden, hidden, c0.numel(), hidden, _CELL_BLOCK)
    kept_h = torch.mul(h0, keep[0].unsqueeze(1), out=torch.empty_like(out_h[0]))
    for t in range(steps):
        torch.addmm(gates[t], kept_h, weight.t(), out=gates[t])
        keep_after = keep[min(t + 1, steps - 1)]  # nothing reads `kept_h` after the last step
        state = (out_c[t - 1] if t else c0, out_h[t], out_c[t])
        _cell_forward[_cell_grid(c0)](gates[t], *state, keep[t], keep_after, kept_h, *sizes)


def _backward_by_cublas(
    grad_h: Tensor, gates: Tensor, c: Tensor, c0: Tensor, keep: Tensor, weight: Tensor, grad_gates: Tensor
) -> None:
    sizes = (c0.numel(), c0.shape[1], _CELL_BLOCK)
    grad_c, grad_h_after = torch.zeros_like(c0), torch.zeros_like(c0)  # nothing comes after the last step
    keep_after = keep[-1]
    for t in range(len(grad_h) - 1, -1, -1):
        step = (gates[t], c[t], c[t - 1] if t else c0, keep[t])
        _cell_backward[_cell_grid(c0)](grad_h[t], grad_h_after, *step, keep_after, grad_c, grad_gates[t], *sizes)
        keep_after = keep[t]
        if t:
            torch.mm(grad_gates[t], weight, out=grad_h_after)


def _cell_grid(state: Tensor) -> tuple[int]:
    return (triton.cdiv(state.numel(), _CELL_BLOCK),)
