"""The derivative of PPO's loss with respect to what the networks give out."""

import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from ludus.policies.heads import CategoricalHead, StochasticHead
from ludus.policies.reader import Apart

_MOST_FUSED = 256  # logits; ppo_triton, which cannot be imported everywhere, refuses more
_HAS_TRITON = importlib.util.find_spec("triton") is not None
KL = 3  # its place in `Seed.means`


class Batch(NamedTuple):
    """A minibatch of steps; with a memory of whole segments, time first."""

    x: Tensor | Apart  # [n, obs] prepared
    action: Tensor  # [n, action]
    old_log_prob: Tensor  # [n]
    advantage: Tensor  # [n]
    returns: Tensor  # [n] value targets
    old_value: Tensor  # [n]
    share: float | Tensor  # of the mean: 1 / n, or [n] with 0 where no agent was present
    state: Tensor  # [segments, state] of the memory before the first step
    keep: Tensor | None  # [horizon, segments] 0 where the memory was reset before a step
    weight: float | Tensor = 1.0  # among the minibatches of all ranks


class Seed(NamedTuple):
    """Where a backward pass begins."""

    params: Tensor  # [n, parameters of the head]
    value: Tensor  # [n]
    means: Tensor | None  # [5] policy loss, value loss, entropy, KL, clip fraction


def loss_gradient(
    head: StochasticHead,
    params: Tensor,
    value: Tensor,
    batch: Batch,
    entropy_coef: Tensor | None,
    clip: float,
    value_clip: float,
    value_coef: float,
    measured: bool,
) -> Seed:
    """d loss / d params and d loss / d value, in one kernel where there is one. The head writes its `.grad`."""
    if _can_fuse(head, params):
        from ludus.algorithms.ppo.loss_triton import fused_loss

        limits = (clip, value_clip, value_coef)
        return Seed(*fused_loss(params, value, *batch[1:7], entropy_coef, *limits, measured))
    log_prob, saved = head.score(params, batch.action)
    log_ratio = log_prob - batch.old_log_prob
    ratio = log_ratio.exp()
    surrogate = ratio * batch.advantage
    clipped = ratio.clamp(1 - clip, 1 + clip) * batch.advantage
    # d/d log π of −mean min(surrogate, clipped): −surrogate where it is the smaller, nothing elsewhere.
    weight = (surrogate <= clipped).mul(surrogate).mul_(batch.share).neg_()
    params_gradient = head.seed_gradient(saved, weight, batch.share, entropy_coef)
    value_gradient = _value_gradient(value, batch, value_clip, value_coef)
    means = None
    if measured:
        losses = -torch.minimum(surrogate, clipped), (value - batch.returns).square(), head.entropy(params)
        moved = ratio - 1 - log_ratio, ((ratio - 1).abs() > clip).to(ratio.dtype)
        means = (torch.stack([*losses, *moved]) * batch.share).sum(1)
    return Seed(params_gradient, value_gradient, means)


def _value_gradient(value: Tensor, batch: Batch, value_clip: float, value_coef: float) -> Tensor:
    """d/d V of c_v · mean (V − R)², or of the larger of that and the clipped error."""
    gradient = (value - batch.returns).mul_(2 * value_coef).mul_(batch.share)
    if value_clip > 0:
        moved = value - batch.old_value
        clipped = batch.old_value + moved.clamp(-value_clip, value_clip)
        further = (clipped - batch.returns).abs() > (value - batch.returns).abs()
        gradient.masked_fill_((moved.abs() > value_clip) & further, 0.0)
    return gradient


def _can_fuse(head: StochasticHead, params: Tensor) -> bool:
    if not (_HAS_TRITON and params.is_cuda and params.dtype == torch.float32):
        return False
    return isinstance(head, CategoricalHead) and len(head.choices) == 1 and head.choices[0] <= _MOST_FUSED
