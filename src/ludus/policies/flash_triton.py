"""FlashSAC's norms, losses and optimiser step as Triton kernels. Needs a GPU: import it only there.

A gradient step of FlashSAC is some hundreds of small operations, and on a GPU each costs its launch. What stands
between two matrix products is one kernel here. Activations are feature-major, [channels, rows]: a program owns one
channel with all its rows, so a batch norm needs nothing from other programs and a run can be repeated exactly.

Nothing waits for the device, so all of it can be captured in a CUDA graph after one ordinary call, which compiles
the kernels. The formulas are those of `flash_layers.py` and of the agent, which the tests hold them against.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

_TILE = 4096  # numbers that a program of an RMS norm holds, at most
_BETA_1, _BETA_2 = constexpr(0.9), constexpr(0.999)
_PROJECTION_EPS = constexpr(1e-8)
_SECTION = 256  # numbers of a row of parameters that are in a program's registers at a time


def _power_of_two(count: int) -> int:
    return max(16, triton.next_power_of_2(count))


def _warps(numbers: int) -> int:
    return max(1, min(16, numbers // 256))


# Batch norm -----------------------------------------------------------------------------------------
@triton.jit
def _norm(
    x: tensor, scale: tensor, shift: tensor, mean: tensor, variance: tensor, residual: tensor, out: tensor,
    used_mean: tensor, used_inverse: tensor, rows: tensor, momentum: tensor, eps: tensor, batch: constexpr,
    relu: constexpr, size: constexpr,
) -> None:  # fmt: skip
    channel, row = tl.program_id(0), tl.arange(0, size)
    inside, at = row < rows, channel * rows + row
    given = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
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

    Batch statistics move the running ones, `mean` and `variance`.
    """
    rows = x.shape[-1]
    channels = x.numel() // rows
    out = torch.empty_like(x)
    used = torch.empty((2, channels), device=x.device)
    size = _power_of_two(rows)
    _norm[(channels,)](
        x, scale, shift, mean, variance, residual, out, used[0], used[1], rows, momentum, eps,
        batch=batch_statistics, relu=relu, size=size, num_warps=_warps(size),
    )  # fmt: skip
    return out, used[0], used[1]


@triton.jit
def _norm_back(
    gradient: tensor, x: tensor, scale: tensor, shift: tensor, used_mean: tensor, used_inverse: tensor,
    of_input: tensor, of_scale: tensor, of_shift: tensor, rows: tensor, batch: constexpr, relu: constexpr,
    size: constexpr,
) -> None:  # fmt: skip
    channel, row = tl.program_id(0), tl.arange(0, size)
    inside, at = row < rows, channel * rows + row
    g = tl.load(gradient + at, mask=inside, other=0.0).to(tl.float32)
    given = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
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
    of_input, size = torch.empty_like(x), _power_of_two(rows)
    _norm_back[(x.numel() // rows,)](
        gradient, x, scale, shift, used_mean, used_inverse, of_input, of_scale, of_shift, rows,
        batch=batch_statistics, relu=relu, size=size, num_warps=_warps(size),
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
    features = _power_of_two(width)
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
    channel, row = tl.program_id(0), tl.arange(0, size)
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
    of_input, features = torch.empty_like(x), _power_of_two(width)
    tile = max(1, _TILE // features)
    _rms_back[(copies, triton.cdiv(rows, tile))](
        gradient, x, scale, inverse_rms, of_input, width, rows, first, asked, features=features, tile=tile,
        num_warps=8,
    )  # fmt: skip
    if of_scale is not None:
        size = _power_of_two(asked)
        _rms_scale_back[(copies * width,)](
            gradient, x, inverse_rms, of_scale, width, rows, first, asked, size=size, num_warps=_warps(size)
        )
    return of_input


# The critics' losses --------------------------------------------------------------------------------
@triton.jit
def _softmax(logits: tensor, inside: tensor) -> tensor:
    z = tl.where(inside, logits, float("-inf"))
    p = tl.exp(z - tl.max(z, 0))
    return p / tl.sum(p, 0)


@triton.jit
def _column(logits: tensor, critic: constexpr, bins: tensor, rows: tensor, row: tensor, bin: tensor) -> tensor:
    at = (critic * bins + bin) * rows + row
    return tl.load(logits + at, mask=bin < bins, other=0.0).to(tl.float32)


@triton.jit
def _cross_entropy(
    logits: tensor, critic: constexpr, bins: tensor, rows: tensor, row: tensor, bin: tensor, target: tensor,
    gradient: tensor, share: tensor,
) -> tensor:  # fmt: skip
    """The loss of one critic in one row; writes its gradient."""
    z = _column(logits, critic, bins, rows, row, bin)
    inside = bin < bins
    z = tl.where(inside, z, float("-inf"))
    z -= tl.max(z, 0)
    log_total = tl.log(tl.sum(tl.exp(z), 0))
    # What the target adds up to is 1 but for rounding.
    of_logits = (tl.exp(z - log_total) * tl.sum(target, 0) - target) * share
    tl.store(gradient + (critic * bins + bin) * rows + row, of_logits, mask=inside)
    return -tl.sum(target * tl.where(inside, z - log_total, 0.0), 0)


@triton.jit
def _distribution_loss(
    target_logits: tensor, logits: tensor, reward: tensor, reward_factor: tensor, discount: tensor,
    log_alpha: tensor, next_log_prob: tensor, gradient: tensor, told: tensor, bins: tensor, rows: tensor,
    highest: tensor, share: tensor, size: constexpr,
) -> None:  # fmt: skip
    """A program owns a row. Of each bin of the moved distribution it asks which of the others fall beside it."""
    row, bin = tl.program_id(0), tl.arange(0, size)
    inside = bin < bins
    step = 2.0 * highest / (bins - 1)
    support = bin * step - highest
    first = _softmax(_column(target_logits, 0, bins, rows, row, bin), inside)
    second = _softmax(_column(target_logits, 1, bins, rows, row, bin), inside)
    takes_first = tl.sum(first * support, 0) <= tl.sum(second * support, 0)
    likely = tl.where(takes_first, first, second)
    gamma = tl.load(discount + row)
    soft = gamma * tl.exp(tl.load(log_alpha)) * tl.load(next_log_prob + row)
    paid = tl.load(reward + row) * tl.load(reward_factor) - soft
    moved = tl.minimum(tl.maximum(paid + gamma * support, -highest), highest)
    place = (moved + highest) / step
    beside = tl.maximum(1.0 - tl.abs(place[:, None] - bin[None, :]), 0.0)
    target = tl.sum(likely[:, None] * beside, 0)
    target = tl.where(inside, target, 0.0)
    total = _cross_entropy(logits, 0, bins, rows, row, bin, target, gradient, share)
    total += _cross_entropy(logits, 1, bins, rows, row, bin, target, gradient, share)
    tl.store(told + row, 0.5 * total)
    tl.store(told + rows + row, tl.sum(tl.where((bin == 0) | (bin == bins - 1), target, 0.0), 0))


def distribution_loss(
    target_logits: Tensor,
    logits: Tensor,
    reward: Tensor,
    reward_factor: Tensor,
    discount: Tensor,
    log_alpha: Tensor,
    next_log_prob: Tensor,
    highest: float,
) -> tuple[Tensor, Tensor]:
    """The gradient of the mean cross-entropy by two critics' logits, [2, bins, rows].

    Also [2, rows]: the loss, and how likely the target lies in the first or the last bin. The target is the
    distribution of the target critic that expects less, moved by the reward.
    """
    _, bins, rows = logits.shape
    gradient, told = torch.empty_like(logits), torch.empty((2, rows), device=logits.device)
    _distribution_loss[(rows,)](
        target_logits, logits, reward, reward_factor, discount, log_alpha, next_log_prob, gradient, told, bins,
        rows, highest, 0.5 / rows, size=_power_of_two(bins), num_warps=4,
    )  # fmt: skip
    return gradient, told


@triton.jit
def _way_up(
    logits: tensor, gradient: tensor, least: tensor, bins: tensor, rows: tensor, highest: tensor, size: constexpr
) -> None:
    row, bin = tl.program_id(0), tl.arange(0, size)
    inside = bin < bins
    support = bin * (2.0 * highest / (bins - 1)) - highest
    first = _softmax(_column(logits, 0, bins, rows, row, bin), inside)
    second = _softmax(_column(logits, 1, bins, rows, row, bin), inside)
    low, other = tl.sum(first * support, 0), tl.sum(second * support, 0)
    of_first = tl.where(low <= other, 1.0 / rows, 0.0)
    at = bin * rows + row
    tl.store(gradient + at, (low - support) * first * of_first, mask=inside)
    tl.store(gradient + bins * rows + at, (other - support) * second * (1.0 / rows - of_first), mask=inside)
    tl.store(least + row, tl.minimum(low, other))


def way_up(logits: Tensor, highest: float) -> tuple[Tensor, Tensor]:
    """Of two critics' logits, [2, bins, rows]: the gradient of −mean min Q, and min Q of each row."""
    _, bins, rows = logits.shape
    gradient, least = torch.empty_like(logits), torch.empty(rows, device=logits.device)
    _way_up[(rows,)](logits, gradient, least, bins, rows, highest, size=_power_of_two(bins), num_warps=4)
    return gradient, least


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
    size = _power_of_two(actions)
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
    gradient, size = torch.empty_like(params), _power_of_two(actions)
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


# The optimiser --------------------------------------------------------------------------------------
class ParameterRows:
    """Rows of a flat tensor of parameters, each perhaps of two pieces, that are kept at a length."""

    def __init__(self, rows: list[tuple[int, int, int, float]], device: torch.device) -> None:
        """Of each: where it begins, where its second piece begins or −1, numbers of a piece, its squared length.

        A squared length of 0: it is free.
        """
        self.count, self.widest = len(rows), max(row[2] for row in rows)
        places = torch.tensor([row[:3] for row in rows], dtype=torch.int64, device=device)
        self.begin, self.second, self.size = places.t().contiguous().unbind()
        self.squared_length = torch.tensor([row[3] for row in rows], device=device)


@triton.jit
def _adam_piece(
    at: tensor, inside: tensor, weights: tensor, gradient: tensor, mean: tensor, square: tensor, rate: tensor,
    fade_1: tensor, fade_2: tensor, eps: tensor, hold: tensor,
) -> tensor:  # fmt: skip
    """Where `hold` is set all stays as it was."""
    w = tl.load(weights + at, mask=inside, other=0.0)
    g = tl.where(hold, 0.0, tl.load(gradient + at, mask=inside, other=0.0))
    m, s = tl.load(mean + at, mask=inside, other=0.0), tl.load(square + at, mask=inside, other=0.0)
    new_m, new_s = m + (1.0 - _BETA_1) * (g - m), _BETA_2 * s + (1.0 - _BETA_2) * g * g
    moved = w - rate / fade_1 * new_m / (tl.sqrt(new_s) / tl.sqrt(fade_2) + eps)
    tl.store(mean + at, tl.where(hold, m, new_m), mask=inside)
    tl.store(square + at, tl.where(hold, s, new_s), mask=inside)
    moved = tl.where(hold, w, moved)
    tl.store(weights + at, moved, mask=inside)
    return tl.where(inside, moved, 0.0)


@triton.jit
def _adam_rows(
    begin: tensor, second: tensor, size: tensor, squared_length: tensor, weights: tensor, gradient: tensor,
    mean: tensor, square: tensor, steps: tensor, rate: tensor, held: tensor, target: tensor, tau: tensor,
    eps: tensor, section: constexpr, sections: constexpr,
) -> None:  # fmt: skip
    """A program owns a row of parameters: it moves it, brings it to its length, and lets the target follow."""
    row = tl.program_id(0)
    first_at, second_at, count = tl.load(begin + row), tl.load(second + row), tl.load(size + row)
    wanted, hold = tl.load(squared_length + row), tl.load(held) > 0
    done = tl.maximum(tl.load(steps), 1.0)  # 0 only where nothing moves
    step_size = tl.load(rate)
    fade_1, fade_2 = 1.0 - tl.exp(done * tl.log(0.9)), 1.0 - tl.exp(done * tl.log(0.999))
    squares = tl.zeros((section,), tl.float32)
    for part in range(sections):
        offset = part * section + tl.arange(0, section)
        inside = offset < count
        moved = _adam_piece(
            first_at + offset, inside, weights, gradient, mean, square, step_size, fade_1, fade_2, eps, hold
        )
        squares += moved * moved
        if second_at >= 0:
            moved = _adam_piece(
                second_at + offset, inside, weights, gradient, mean, square, step_size, fade_1, fade_2, eps, hold
            )
            squares += moved * moved
    factor = tl.sqrt(wanted / (tl.sum(squares, 0) + _PROJECTION_EPS))
    factor = tl.where((wanted > 0) & ~hold, factor, 1.0)
    for part in range(sections):
        offset = part * section + tl.arange(0, section)
        inside = offset < count
        _settle(first_at + offset, inside, weights, target, tau, factor)
        if second_at >= 0:
            _settle(second_at + offset, inside, weights, target, tau, factor)


@triton.jit
def _settle(at: tensor, inside: tensor, weights: tensor, target: tensor, tau: tensor, factor: tensor) -> None:
    w = tl.load(weights + at, mask=inside, other=0.0) * factor
    tl.store(weights + at, w, mask=inside)
    if target is not None:
        old = tl.load(target + at, mask=inside, other=0.0)
        tl.store(target + at, old + tau * (w - old), mask=inside)


def adam_rows(
    rows: ParameterRows,
    weights: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    steps: Tensor,
    rate: Tensor,
    hold: Tensor,
    eps: float,
    target: Tensor | None = None,
    tau: float = 0.0,
) -> None:
    """Adam's step of all parameters, then their projection, then perhaps the target's step towards them.

    `steps` counts this one. Where `hold` is set nothing moves but the target.
    """
    _adam_rows[(rows.count,)](
        rows.begin, rows.second, rows.size, rows.squared_length, weights, gradient, mean, square, steps, rate,
        hold, target, tau, eps, section=_SECTION,
        sections=triton.cdiv(rows.widest, _SECTION), num_warps=2,
    )  # fmt: skip
