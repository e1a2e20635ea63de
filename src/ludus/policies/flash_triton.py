"""FlashSAC's norms, narrow products and the policy's head as Triton kernels. Needs a GPU: import it only there.

A gradient step of FlashSAC is some hundreds of small operations, and on a GPU each costs its launch. What stands
between two matrix products is one kernel here. Activations are feature-major, [channels, rows]: a program owns one
channel with all its rows, so a batch norm needs nothing from other programs and a run can be repeated exactly.

Nothing waits for the device, so all of it can be captured in a CUDA graph after one ordinary call, which compiles
the kernels. The formulas are those of `flash_layers.py` and `replay_heads.py`, which the tests hold them against.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

_TILE = 4096  # numbers that a program of an RMS norm holds, at most


def power_of_two(count: int) -> int:
    return max(16, triton.next_power_of_2(count))


def warps_of(numbers: int) -> int:
    return max(1, min(16, numbers // 256))


# Batch norm -----------------------------------------------------------------------------------------
@triton.jit
def _norm(
    x: tensor, scale: tensor, shift: tensor, mean: tensor, variance: tensor, residual: tensor, out: tensor,
    used_mean: tensor, used_inverse: tensor, given_channels: tensor, rows: tensor, momentum: tensor, eps: tensor,
    batch: constexpr, relu: constexpr, size: constexpr,
) -> None:  # fmt: skip
    channel, row = tl.program_id(0).to(tl.int64), tl.arange(0, size)
    inside, at = row < rows, channel * rows + row
    given = tl.load(x + (channel % given_channels) * rows + row, mask=inside, other=0.0).to(tl.float32)
    old_mean, old_variance = tl.load(mean + channel), tl.load(variance + channel)
    if batch:
        center = tl.sum(given, 0) / rows
        away = tl.where(inside, given - center, 0.0)
        spread = tl.sum(away * away, 0) / rows
        tl.store(mean + channel, old_mean + momentum * (center - old_mean))
        tl.store(variance + channel, old_variance + momentum * (spread * (rows / (rows - 1)) - old_variance))
    else:
        center, spread = old_mean, old_variance
    inverse = 1.0 / tl.sqrt(spread + eps)
    y = (given - center) * inverse * tl.load(scale + channel) + tl.load(shift + channel)
    if relu:
        y = tl.maximum(y, 0.0)
    if residual is not None:
        y += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, y, mask=inside)
    tl.store(used_mean + channel, center)
    tl.store(used_inverse + channel, inverse)


def norm(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    mean: Tensor,
    variance: Tensor,
    batch_statistics: bool,
    momentum: float,
    eps: float,
    relu: bool = False,
    residual: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm of [..., rows], then perhaps a relu, then plus `residual`: also the mean and 1 / std it used.

    Batch statistics move the running ones, `mean` and `variance`. Of fewer channels than there are scales, several
    networks see the same: what comes out is [channels, rows] then.
    """
    rows, channels = x.shape[-1], len(scale)
    given = x.numel() // rows
    out = torch.empty(x.shape if given == channels else (channels, rows), dtype=x.dtype, device=x.device)
    used = torch.empty((2, channels), device=x.device)
    size = power_of_two(rows)
    _norm[(channels,)](
        x, scale, shift, mean, variance, residual, out, used[0], used[1], given, rows, momentum, eps,
        batch=batch_statistics, relu=relu, size=size, num_warps=warps_of(size),
    )  # fmt: skip
    return out, used[0], used[1]


@triton.jit
def _norm_back(
    gradient: tensor, x: tensor, scale: tensor, shift: tensor, used_mean: tensor, used_inverse: tensor,
    of_input: tensor, of_scale: tensor, of_shift: tensor, given_channels: tensor, rows: tensor, batch: constexpr,
    relu: constexpr, size: constexpr,
) -> None:  # fmt: skip
    channel, row = tl.program_id(0).to(tl.int64), tl.arange(0, size)
    inside, at = row < rows, channel * rows + row
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(x + (channel % given_channels) * rows + row, mask=inside, other=0.0).to(tl.float32)
    factor, inverse = tl.load(scale + channel), tl.load(used_inverse + channel)
    unit = (given - tl.load(used_mean + channel)) * inverse
    if relu:
        g = tl.where(unit * factor + tl.load(shift + channel) > 0.0, g, 0.0)
    along, total = tl.sum(g * unit, 0), tl.sum(g, 0)
    if batch:
        g -= (total + unit * along) / rows
    tl.store(of_input + at, g * (factor * inverse), mask=inside)
    if of_scale is not None:
        tl.store(of_scale + channel, along)
        tl.store(of_shift + channel, total)


def norm_back(
    gradient: Tensor,
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    used_mean: Tensor,
    used_inverse: Tensor,
    batch_statistics: bool,
    relu: bool = False,
    of_scale: Tensor | None = None,
    of_shift: Tensor | None = None,
) -> Tensor:
    """The gradient of what `norm` was given, by that of what it gave; writes those of scale and shift."""
    rows = x.shape[-1]
    of_input, size = torch.empty_like(gradient), power_of_two(rows)
    _norm_back[(len(scale),)](
        gradient, x, scale, shift, used_mean, used_inverse, of_input, of_scale, of_shift, x.numel() // rows, rows,
        batch=batch_statistics, relu=relu, size=size, num_warps=warps_of(size),
    )  # fmt: skip
    return of_input


# RMS norm -------------------------------------------------------------------------------------------
@triton.jit
def _rms(
    x: tensor, scale: tensor, out: tensor, inverse_rms: tensor, width: tensor, rows: tensor, first: tensor,
    asked: tensor, eps: tensor, features: constexpr, tile: constexpr,
) -> None:  # fmt: skip
    copy, feature = tl.program_id(0), tl.arange(0, features)[:, None]
    row = tl.program_id(1) * tile + tl.arange(0, tile)
    inside = (feature < width) & (row < asked)[None, :]
    at = (copy * width + feature) * rows + (first + row)[None, :]
    given = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(given * given, 0) / width + eps)
    factor = tl.load(scale + copy * width + feature, mask=feature < width, other=0.0)
    tl.store(out + (copy * width + feature) * asked + row[None, :], given * inverse[None, :] * factor, mask=inside)
    tl.store(inverse_rms + copy * asked + row, inverse, mask=row < asked)


def rms(x: Tensor, scale: Tensor, first: int, asked: int, eps: float) -> tuple[Tensor, Tensor]:
    """RMS norm over the features of [copies, features, rows], of `asked` rows from the first: and 1 / RMS."""
    copies, width, rows = x.shape
    out = torch.empty((copies, width, asked), device=x.device)
    inverse = torch.empty((copies, asked), device=x.device)
    features = power_of_two(width)
    tile = max(1, _TILE // features)
    _rms[(copies, triton.cdiv(asked, tile))](
        x, scale, out, inverse, width, rows, first, asked, eps, features=features, tile=tile, num_warps=8
    )
    return out, inverse


@triton.jit
def _rms_back(
    gradient: tensor, x: tensor, scale: tensor, inverse_rms: tensor, of_input: tensor, width: tensor, rows: tensor,
    first: tensor, asked: tensor, features: constexpr, tile: constexpr,
) -> None:  # fmt: skip
    """All rows are written: those that were not asked for have no gradient."""
    copy, feature = tl.program_id(0), tl.arange(0, features)[:, None]
    row = tl.program_id(1) * tile + tl.arange(0, tile)
    place = row - first
    has = (place >= 0) & (place < asked)
    known, inside = (feature < width) & has[None, :], (feature < width) & (row < rows)[None, :]
    inverse = tl.load(inverse_rms + copy * asked + place, mask=has, other=0.0)
    at = (copy * width + feature) * rows + row[None, :]
    unit = tl.load(x + at, mask=known, other=0.0).to(tl.float32) * inverse[None, :]
    factor = tl.load(scale + copy * width + feature, mask=feature < width, other=0.0)
    at_asked = (copy * width + feature) * asked + place[None, :]
    g = tl.load(gradient + at_asked, mask=known, other=0.0).to(tl.float32) * factor
    along = tl.sum(g * unit, 0) / width
    tl.store(of_input + at, (g - unit * along[None, :]) * inverse[None, :], mask=inside)


@triton.jit
def _rms_scale_back(
    gradient: tensor, x: tensor, inverse_rms: tensor, of_scale: tensor, width: tensor, rows: tensor, first: tensor,
    asked: tensor, size: constexpr,
) -> None:  # fmt: skip
    channel, row = tl.program_id(0).to(tl.int64), tl.arange(0, size)
    inside = row < asked
    g = tl.load(gradient + channel * asked + row, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(x + channel * rows + first + row, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.load(inverse_rms + (channel // width) * asked + row, mask=inside, other=0.0)
    tl.store(of_scale + channel, tl.sum(g * given * inverse, 0))


def rms_back(
    gradient: Tensor, x: Tensor, scale: Tensor, inverse_rms: Tensor, first: int, of_scale: Tensor | None = None
) -> Tensor:
    """The gradient of all rows that `rms` was given, by that of the asked ones; writes that of the scale."""
    (copies, width, rows), asked = x.shape, gradient.shape[-1]
    of_input, features = torch.empty_like(x), power_of_two(width)
    tile = max(1, _TILE // features)
    _rms_back[(copies, triton.cdiv(rows, tile))](
        gradient, x, scale, inverse_rms, of_input, width, rows, first, asked, features=features, tile=tile,
        num_warps=8,
    )  # fmt: skip
    if of_scale is not None:
        size = power_of_two(asked)
        _rms_scale_back[(copies * width,)](
            gradient, x, inverse_rms, of_scale, width, rows, first, asked, size=size, num_warps=warps_of(size)
        )
    return of_input


# Products of a narrow matrix -------------------------------------------------------------------------
# Of the few numbers that a network sees, and of its bins: cuBLAS reads rows of an odd length one by one.
@triton.jit
def _factor(x: tensor, precision: constexpr) -> tensor:
    """As a product takes it. Tensor cores cut numbers off after 11 bits, and all sums would become a little small.

    So they are rounded before, in their bits. Arithmetic that rounds, x · 8193 − (x · 8193 − x), would not do: the
    compiler fuses it, and it gives x again.
    """
    x = x.to(tl.float32)
    if precision == "tf32":
        bits = (x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
        x = tl.where(x == x, bits.to(tl.float32, bitcast=True), x)  # a NaN stays one
    return x


@triton.jit
def _product(
    weight: tensor, x: tensor, bias: tensor, out: tensor, outputs: tensor, inputs: tensor, rows: tensor,
    over_copy: tensor, over_output: tensor, over_input: tensor, precision: constexpr, tall: constexpr,
    deep: constexpr, wide: constexpr,
) -> None:  # fmt: skip
    copy = tl.program_id(2).to(tl.int64)
    output, row = tl.program_id(0) * tall + tl.arange(0, tall), tl.program_id(1) * wide + tl.arange(0, wide)
    total = tl.zeros((tall, wide), tl.float32)
    for first in range(0, inputs, deep):
        number = first + tl.arange(0, deep)
        at = copy * over_copy + output[:, None] * over_output + number[None, :] * over_input
        inside = (output < outputs)[:, None] & (number < inputs)[None, :]
        factors = tl.load(weight + at, mask=inside, other=0.0)
        inside = (number < inputs)[:, None] & (row < rows)[None, :]
        given = tl.load(x + (copy * inputs + number[:, None]) * rows + row[None, :], mask=inside, other=0.0)
        factors, given = _factor(factors, precision), _factor(given, precision)
        total = tl.dot(factors, given, total, input_precision=precision)
    if bias is not None:
        total += tl.load(bias + copy * outputs + output, mask=output < outputs, other=0.0)[:, None]
    inside = (output < outputs)[:, None] & (row < rows)[None, :]
    tl.store(out + (copy * outputs + output[:, None]) * rows + row[None, :], total, mask=inside)


def product(weight: Tensor, x: Tensor, dtype: torch.dtype = torch.float32, bias: Tensor | None = None) -> Tensor:
    """[copies, outputs, inputs] · [copies, inputs, rows] (+ [copies, outputs, 1]) as `dtype`."""
    (copies, outputs, inputs), rows = weight.shape, x.shape[-1]
    out = torch.empty((copies, outputs, rows), dtype=dtype, device=x.device)
    tall, wide = 32, 64
    _product[(triton.cdiv(outputs, tall), triton.cdiv(rows, wide), copies)](
        weight, x, bias, out, outputs, inputs, rows, *weight.stride(), precision=_precision(), tall=tall,
        deep=min(64, power_of_two(inputs)), wide=wide,
    )  # fmt: skip
    return out


@triton.jit
def _weight_back(
    gradient: tensor, x: tensor, of_weight: tensor, outputs: tensor, inputs: tensor, rows: tensor,
    precision: constexpr, tall: constexpr, deep: constexpr, wide: constexpr,
) -> None:  # fmt: skip
    copy = tl.program_id(2).to(tl.int64)
    output, number = tl.program_id(0) * tall + tl.arange(0, tall), tl.program_id(1) * deep + tl.arange(0, deep)
    total = tl.zeros((tall, deep), tl.float32)
    for first in range(0, rows, wide):
        row = first + tl.arange(0, wide)
        at = (copy * outputs + output[:, None]) * rows + row[None, :]
        g = tl.load(gradient + at, mask=(output < outputs)[:, None] & (row < rows)[None, :], other=0.0)
        at = (copy * inputs + number[None, :]) * rows + row[:, None]
        given = tl.load(x + at, mask=(number < inputs)[None, :] & (row < rows)[:, None], other=0.0)
        total = tl.dot(_factor(g, precision), _factor(given, precision), total, input_precision=precision)
    at = (copy * outputs + output[:, None]) * inputs + number[None, :]
    tl.store(of_weight + at, total, mask=(output < outputs)[:, None] & (number < inputs)[None, :])


def write_weight_gradient(gradient: Tensor, x: Tensor, of_weight: Tensor) -> None:
    """That of the weight of a `product`, by that of what it gave and by what it was given."""
    (copies, outputs, rows), inputs = gradient.shape, x.shape[1]
    tall, deep = 16, min(64, power_of_two(inputs))
    _weight_back[(triton.cdiv(outputs, tall), triton.cdiv(inputs, deep), copies)](
        gradient, x, of_weight, outputs, inputs, rows, precision=_precision(), tall=tall, deep=deep, wide=128
    )


def _precision() -> str:
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"


# The policy's head ----------------------------------------------------------------------------------
@triton.jit
def _tanh(x: tensor) -> tensor:
    down = tl.exp(-2.0 * tl.abs(x))  # never overflows
    size = (1.0 - down) / (1.0 + down)
    return tl.where(x < 0, -size, size)


@triton.jit
def _spread(raw: tensor, least: tensor, most: tensor) -> tuple[tensor, tensor]:
    """log_std, bounded smoothly, and its slope."""
    bent, half = _tanh(raw), 0.5 * (most - least)
    return least + (bent + 1.0) * half, (1.0 - bent * bent) * half


@triton.jit
def _squash(
    outputs: tensor, noise: tensor, action: tensor, log_prob: tensor, actions: tensor, rows: tensor, least: tensor,
    most: tensor, constant: tensor, size: constexpr, tile: constexpr,
) -> None:  # fmt: skip
    row, number = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, size)[None, :]
    inside = (row < rows)[:, None] & (number < actions)
    at, given = row[:, None] * actions + number, row[:, None] * (2 * actions) + number
    mean = tl.load(outputs + given, mask=inside, other=0.0).to(tl.float32)
    log_std, _ = _spread(tl.load(outputs + given + actions, mask=inside, other=0.0).to(tl.float32), least, most)
    drawn = tl.load(noise + at, mask=inside, other=0.0)
    before = mean + drawn * tl.exp(log_std)
    # log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), exact also where tanh has rounded to 1.
    softplus = tl.maximum(-2.0 * before, 0.0) + tl.log(1.0 + tl.exp(-2.0 * tl.abs(before)))
    each = 2.0 * (before + softplus) - (log_std + 0.5 * drawn * drawn)
    tl.store(action + at, _tanh(before), mask=inside)
    tl.store(log_prob + row, tl.sum(tl.where(inside, each, 0.0), 1) - constant, mask=row < rows)


def squash(
    params: Tensor, noise: Tensor, least: float, most: float, log_prob_constant: float
) -> tuple[Tensor, Tensor]:
    """Sampled actions and their log-probabilities, by mean and spread side by side, [rows, 2 · actions]."""
    rows, actions = noise.shape
    action, log_prob = torch.empty((rows, actions), device=params.device), torch.empty(rows, device=params.device)
    size = power_of_two(actions)
    tile = max(1, 1024 // size)
    _squash[(triton.cdiv(rows, tile),)](
        params, noise, action, log_prob, actions, rows, least, most, log_prob_constant, size=size, tile=tile
    )
    return action, log_prob


@triton.jit
def _squash_back(
    outputs: tensor, noise: tensor, action: tensor, of_action: tensor, of_log_prob: tensor, gradient: tensor,
    actions: tensor, rows: tensor, least: tensor, most: tensor, size: constexpr, tile: constexpr,
) -> None:  # fmt: skip
    row, number = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, size)[None, :]
    inside = (row < rows)[:, None] & (number < actions)
    at, given = row[:, None] * actions + number, row[:, None] * (2 * actions) + number
    a = tl.load(action + at, mask=inside, other=0.0)
    each = tl.load(of_log_prob)
    # u = mean + std · noise;  d tanh(u)/du = 1 − a²;  d log_prob/du = 2a;  d log_prob/d log_std = −1, besides.
    mean = tl.load(of_action + number * rows + row[:, None], mask=inside, other=0.0) * (1.0 - a * a)
    mean += 2.0 * each * a
    log_std, slope = _spread(
        tl.load(outputs + given + actions, mask=inside, other=0.0).to(tl.float32), least, most
    )
    drawn = tl.load(noise + at, mask=inside, other=0.0)
    tl.store(gradient + given, mean, mask=inside)
    raw = (mean * tl.exp(log_std) * drawn - each) * slope
    tl.store(gradient + given + actions, raw, mask=inside)


def squash_back(
    params: Tensor,
    noise: Tensor,
    action: Tensor,
    of_action: Tensor,
    of_log_prob: Tensor,
    least: float,
    most: float,
) -> Tensor:
    """The gradient of what `squash` was given, by those of actions, feature-major, and of a log-probability."""
    rows, actions = noise.shape
    gradient, size = torch.empty_like(params), power_of_two(actions)
    tile = max(1, 1024 // size)
    _squash_back[(triton.cdiv(rows, tile),)](
        params,
        noise,
        action,
        of_action.contiguous(),
        of_log_prob,
        gradient,
        actions,
        rows,
        least,
        most,
        size=size,
        tile=tile,
    )
    return gradient
