"""PPO's loss and its gradient for one categorical choice, as a Triton kernel. Needs a GPU: import it only there.

The loss of a minibatch is some forty operations on a few numbers per step, and on a GPU each costs its launch.
`fused_loss` does all of them in one kernel, where a program owns some rows with all their logits. The formulas
are those of `PPO.step` and `CategoricalHead`. Every program writes its own part of the measures, which one
more kernel adds up, so that a run can be repeated exactly.

Nothing waits for the device, so all of it can be captured in a CUDA graph after one ordinary call, which
compiles the kernel.
"""

from __future__ import annotations

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

MAX_LOGITS = 256
_MEASURES = 5
_TILE = 1024  # logits per program, at most
_TILE_ROWS = 128  # at most, so that few logits still make enough programs


@triton.jit
def _column(first: tensor, row: tensor, stride: tensor, rows: tensor) -> tensor:
    return tl.load(first + row * stride, mask=row < rows, other=0.0)


@triton.jit
def _log_softmax(x: tensor, is_choice: tensor) -> tensor:
    """Columns that are no choice leave as 0, which adds nothing to an entropy."""
    x = tl.where(is_choice, x, float("-inf"))
    x -= tl.max(x, 1)[:, None]
    return tl.where(is_choice, x - tl.log(tl.sum(tl.exp(x), 1))[:, None], 0.0)


@triton.jit
def _value_gradient(
    value: tensor, target: tensor, old_value: tensor, value_clip: tensor, value_coef: tensor
) -> tensor:
    moved = value - old_value
    clipped = old_value + tl.minimum(tl.maximum(moved, -value_clip), value_clip)
    further = tl.abs(clipped - target) > tl.abs(value - target)
    stopped = (value_clip > 0) & (tl.abs(moved) > value_clip) & further
    return tl.where(stopped, 0.0, (value - target) * (2 * value_coef))


@triton.jit
def _store_sums(
    sums: tensor, share: tensor, policy: tensor, value: tensor, entropy: tensor, kl: tensor, clipped: tensor
) -> None:
    """This program's part of each measure; `sums` is [measures, programs]."""
    programs = tl.num_programs(0)
    at = sums + tl.program_id(0)
    tl.store(at, tl.sum(policy * share, 0))
    tl.store(at + programs, tl.sum(value * share, 0))
    tl.store(at + 2 * programs, tl.sum(entropy * share, 0))
    tl.store(at + 3 * programs, tl.sum(kl * share, 0))
    tl.store(at + 4 * programs, tl.sum(clipped * share, 0))


@triton.jit
def _loss(
    logits: tensor, value: tensor, action: tensor, old_log_prob: tensor, advantage: tensor, returns: tensor,
    old_value: tensor, shares: tensor, logits_stride: tensor, value_stride: tensor, action_stride: tensor,
    old_log_prob_stride: tensor, advantage_stride: tensor, returns_stride: tensor, old_value_stride: tensor,
    shares_stride: tensor, one_share: tensor, entropy_coef: tensor, clip: tensor, lowest: tensor, highest: tensor,
    value_clip: tensor, value_coef: tensor, grad_logits: tensor, grad_value: tensor, sums: tensor,
    rows: tensor, choices: constexpr, tile_rows: constexpr, tile_cols: constexpr,
) -> None:  # fmt: skip
    """`shares`, `entropy_coef` and `sums` may be None: `one_share` for all, no bonus, nothing measured."""
    row = tl.program_id(0).to(tl.int64) * tile_rows + tl.arange(0, tile_rows)
    col = tl.arange(0, tile_cols)[None, :]
    inside = (row < rows)[:, None] & (col < choices)
    # Rows beyond the last compute on zeros and have no share.
    share = tl.where(row < rows, one_share, 0.0)
    if shares is not None:
        share = _column(shares, row, shares_stride, rows)
    x = tl.load(logits + row[:, None] * logits_stride + col, mask=inside, other=0.0)
    log_p = _log_softmax(x, col < choices)
    p = tl.exp(log_p)

    chosen = col == _column(action, row, action_stride, rows).to(tl.int32)[:, None]
    log_prob = tl.sum(tl.where(chosen, log_p, 0.0), 1)
    log_ratio = log_prob - _column(old_log_prob, row, old_log_prob_stride, rows)
    ratio = tl.exp(log_ratio)
    gain = _column(advantage, row, advantage_stride, rows)
    surrogate = ratio * gain
    clipped = tl.minimum(tl.maximum(ratio, lowest), highest) * gain
    # Asked this way round a broken number is not clipped: it reaches the gradient and the update is skipped.
    is_clipped = surrogate > clipped
    weight = -tl.where(is_clipped, 0.0, surrogate) * share
    gradient = tl.where(chosen, weight[:, None], 0.0) - weight[:, None] * p
    minus_entropy = tl.sum(p * log_p, 1)
    if entropy_coef is not None:
        bonus = tl.load(entropy_coef) * share
        gradient += p * (log_p - minus_entropy[:, None]) * bonus[:, None]
    tl.store(grad_logits + row[:, None] * choices + col, gradient, mask=inside)

    v, target = _column(value, row, value_stride, rows), _column(returns, row, returns_stride, rows)
    old_v = _column(old_value, row, old_value_stride, rows)
    tl.store(grad_value + row, _value_gradient(v, target, old_v, value_clip, value_coef) * share, mask=row < rows)

    if sums is not None:
        policy_loss = -tl.where(is_clipped, clipped, surrogate)
        value_loss = (v - target) * (v - target)
        moved = (tl.abs(ratio - 1) > clip).to(tl.float32)
        _store_sums(sums, share, policy_loss, value_loss, -minus_entropy, ratio - 1 - log_ratio, moved)


def fused_loss(
    logits: Tensor,  # [n, choices] with contiguous rows; all tensors are float32
    value: Tensor,  # [n]; this and all below may be columns of a wider tensor
    action: Tensor,  # [n, 1]
    old_log_prob: Tensor,  # [n]
    advantage: Tensor,  # [n]
    returns: Tensor,  # [n]
    old_value: Tensor,  # [n]
    share: float | Tensor,  # of the mean: one for all, or [n]
    entropy_coef: Tensor | None,  # [] on the device; None: no bonus
    clip: float,
    value_clip: float,  # 0: no limit
    value_coef: float,
    measured: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of the logits [n, choices] and values [n], and where measured the sums over share · measure.

    The sums [5] are policy loss, value loss, entropy, approximate divergence and clipped fraction.
    """
    rows, choices = logits.shape
    shares = share if isinstance(share, Tensor) else None
    columns = (value, action, old_log_prob, advantage, returns, old_value, shares)
    _check(logits, [x for x in columns if x is not None], entropy_coef)
    tile_cols = triton.next_power_of_2(choices)
    tile_rows = min(_TILE // tile_cols, _TILE_ROWS)
    programs = triton.cdiv(rows, tile_rows)
    grad_logits, grad_value = logits.new_empty((rows, choices)), logits.new_empty(rows)
    sums = logits.new_empty((_MEASURES, programs)) if measured else None
    strides = [0 if x is None else x.stride(0) for x in (logits, *columns)]
    one_share = 0.0 if isinstance(share, Tensor) else float(share)
    limits = (float(clip), 1.0 - clip, 1.0 + clip, float(value_clip), float(value_coef))
    outputs = (grad_logits, grad_value, sums)
    sizes = (rows, choices, tile_rows, tile_cols)
    _loss[(programs,)](logits, *columns, *strides, one_share, entropy_coef, *limits, *outputs, *sizes, num_warps=4)
    return grad_logits, grad_value, None if sums is None else sums.sum(1)


def _check(logits: Tensor, columns: list[Tensor], entropy_coef: Tensor | None) -> None:
    if logits.shape[1] > MAX_LOGITS:
        raise ValueError(f"the fused loss takes {MAX_LOGITS} logits at most, not {logits.shape[1]}")
    if logits.stride(1) != 1 or any(x.numel() != len(logits) for x in columns):
        raise ValueError("the fused loss needs logits with contiguous rows, and one number a row of all else")
    tensors = [logits, *columns, *([] if entropy_coef is None else [entropy_coef])]
    if any(x.dtype != torch.float32 or x.device != logits.device for x in tensors):
        raise ValueError("the fused loss needs float32 tensors on one device")
