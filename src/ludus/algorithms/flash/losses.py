"""FlashSAC's losses: what the critics should tell of the return, and the way to more of it.

Logits are those of both critics, [2, bins, rows]. On a GPU each function is one kernel.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ludus.algorithms.flash.critics import Critics
from ludus.policies.flash_layers import fused

_log_softmax_backward = torch.ops.aten._log_softmax_backward_data


class Followed(NamedTuple):
    """What came of some transitions, each [rows] or a single number."""

    reward: Tensor
    reward_factor: Tensor  # from the units of rewards to those of the bins
    discount: Tensor
    log_alpha: Tensor
    next_log_prob: Tensor  # of the action that follows


def critic_loss(
    critics: Critics, target_logits: Tensor, logits: Tensor, followed: Followed
) -> tuple[Tensor, Tensor]:
    """(gradient of the logits, [2, rows]: cross-entropy, and how likely the return lies in the first or last bin).

    The target is the distribution of the target critic that expects less of the return, moved by the reward.
    """
    if fused(logits):
        from ludus.algorithms.flash import losses_triton

        return losses_triton.distribution_loss(target_logits, logits, *followed, critics.highest)
    probs = F.log_softmax(target_logits, 1).exp_()
    values = critics.values(probs)
    likely = torch.where(values[0] <= values[1], probs[0], probs[1])
    soft = followed.discount * followed.log_alpha.exp() * followed.next_log_prob
    target = critics.moved(likely, followed.reward * followed.reward_factor - soft, followed.discount)
    log_probs = F.log_softmax(logits, 1)
    of_log_probs = (target / (-2 * logits.shape[-1])).expand_as(log_probs)  # of the mean over both critics
    gradient = _log_softmax_backward(of_log_probs, log_probs, 1, log_probs.dtype)
    return gradient, torch.stack([-(target * log_probs).sum(1).mean(0), target[0] + target[-1]])


def tell_policy(log_prob: Tensor, values: Tensor, log_alpha: Tensor, target_entropy: float, told: Tensor) -> None:
    """Write the gradient of the temperature's loss; and to `told` the policy's loss, mean value and entropy."""
    assert log_alpha.grad is not None
    if fused(values):
        from ludus.algorithms.flash import losses_triton

        losses_triton.tell_policy(log_prob, values, log_alpha, log_alpha.grad, target_entropy, told)
        return
    alpha, mean, q = log_alpha.exp(), log_prob.mean(), values.mean()
    log_alpha.grad.copy_(-alpha * (mean + target_entropy))
    told.copy_(torch.stack([alpha * mean - q, q, -mean]))


def way_up(critics: Critics, logits: Tensor) -> tuple[Tensor, Tensor]:
    """(gradient of −mean min Q by the logits, [rows] min Q)."""
    if fused(logits):
        from ludus.algorithms.flash import losses_triton

        return losses_triton.way_up(logits, critics.highest)
    probs = F.log_softmax(logits, 1).exp_()
    values = critics.values(probs)
    first = values[0] <= values[1]
    weight = torch.stack([first, ~first]).to(logits.dtype).div_(logits.shape[-1])
    gradient = (values[:, None] - critics.support).mul_(probs).mul_(weight[:, None])
    return gradient, values.amin(0)
