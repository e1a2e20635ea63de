"""FlashSAC's losses as Triton kernels. Needs a GPU: import it only there.

The formulas are those of `losses.py`, which the tests hold them against.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

from ludus.policies.flash_triton import power_of_two, warps_of

_MOST_BESIDE = 2_048  # pairs of bins that a program holds


# The critics' losses --------------------------------------------------------------------------------
@triton.jit
def _softmax(logits: tensor, inside: tensor) -> tensor:
    z = tl.where(inside, logits, float("-inf"))
    p = tl.exp(z - tl.max(z, 0))
    return p / tl.sum(p, 0)


@triton.jit
def _column(logits: tensor, critic: tensor, bins: tensor, rows: tensor, row: tensor, bin: tensor) -> tensor:
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
    highest: tensor, share: tensor, size: constexpr, few: constexpr,
) -> None:  # fmt: skip
    """A program owns a row. Of each bin of the moved distribution it asks which of the others fall beside it.

    It asks a few at a time: all of them at once would not fit into its registers.
    """
    row, bin = tl.program_id(0), tl.arange(0, size)
    inside = bin < bins
    step = 2.0 * highest / (bins - 1)
    support = bin * step - highest
    first = _softmax(_column(target_logits, 0, bins, rows, row, bin), inside)
    second = _softmax(_column(target_logits, 1, bins, rows, row, bin), inside)
    lower = tl.where(tl.sum(first * support, 0) <= tl.sum(second * support, 0), 0, 1)
    z = tl.where(inside, _column(target_logits, lower, bins, rows, row, bin), float("-inf"))
    most = tl.max(z, 0)
    total = tl.sum(tl.exp(z - most), 0)
    gamma = tl.load(discount + row)
    soft = gamma * tl.exp(tl.load(log_alpha)) * tl.load(next_log_prob + row)
    paid = tl.load(reward + row) * tl.load(reward_factor) - soft
    target = tl.zeros((size,), tl.float32)
    for begin in range(0, size, few):
        other = begin + tl.arange(0, few)
        likely = tl.exp(_column(target_logits, lower, bins, rows, row, other) - most) / total
        likely = tl.where(other < bins, likely, 0.0)
        moved = tl.minimum(tl.maximum(paid + gamma * (other * step - highest), -highest), highest)
        beside = tl.maximum(1.0 - tl.abs(((moved + highest) / step)[:, None] - bin[None, :]), 0.0)
        target += tl.sum(likely[:, None] * beside, 0)
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
    size = power_of_two(bins)
    _distribution_loss[(rows,)](
        target_logits, logits, reward, reward_factor, discount, log_alpha, next_log_prob, gradient, told, bins,
        rows, highest, 0.5 / rows, size=size, few=max(1, _MOST_BESIDE // size), num_warps=warps_of(size),
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
    _way_up[(rows,)](logits, gradient, least, bins, rows, highest, size=power_of_two(bins), num_warps=4)
    return gradient, least


# The policy and the temperature ----------------------------------------------------------------------
@triton.jit
def _tell_policy(
    log_prob: tensor, values: tensor, log_alpha: tensor, of_log_alpha: tensor, told: tensor, rows: tensor,
    target_entropy: tensor, size: constexpr,
) -> None:  # fmt: skip
    row, alpha = tl.arange(0, size), tl.exp(tl.load(log_alpha))
    inside = row < rows
    mean = tl.sum(tl.load(log_prob + row, mask=inside, other=0.0), 0) / rows
    q = tl.sum(tl.load(values + row, mask=inside, other=0.0), 0) / rows
    tl.store(of_log_alpha, -alpha * (mean + target_entropy))
    tl.store(told, alpha * mean - q)
    tl.store(told + 1, q)
    tl.store(told + 2, -mean)


def tell_policy(
    log_prob: Tensor, values: Tensor, log_alpha: Tensor, of_log_alpha: Tensor, target_entropy: float, told: Tensor
) -> None:
    """Writes the gradient of the temperature's loss, and the policy's loss, mean value and entropy."""
    rows = len(values)
    size = power_of_two(rows)
    _tell_policy[(1,)](
        log_prob, values, log_alpha, of_log_alpha, told, rows, target_entropy, size=size, num_warps=warps_of(size)
    )
