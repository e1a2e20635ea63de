"""Generalised advantage estimation (Schulman et al. 2015) with exact episode ends.

δ_t = r_t + γ V_next − V(s_t),   A_t = δ_t + γ λ A_{t+1} inside an episode, A_t = δ_t at its end,
V_next = 0 where the task terminated, V(final observation) where time ran out, V(s_{t+1}) elsewhere.
"""

import torch
from torch import Tensor


def generalized_advantage(
    reward: Tensor,  # [rows, horizon]
    value: Tensor,  # [rows, horizon] V(s_t)
    next_value: Tensor,  # [rows, horizon] V_next as above: the ends are already in it
    done: Tensor,  # [rows, horizon] bool, terminated or truncated
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """[rows, horizon] advantages; every step is used, the last one of the horizon too."""
    delta = torch.add(reward, next_value, alpha=gamma).sub_(value)
    carry = (~done).float().mul_(gamma * gae_lambda)
    # Time-major inside the scan: each step then reads one contiguous line.
    delta, carry = delta.t().contiguous(), carry.t().contiguous()
    for t in range(delta.shape[0] - 2, -1, -1):
        delta[t].addcmul_(carry[t], delta[t + 1])
    return delta.t().contiguous()


def next_values(
    value: Tensor,  # [rows, horizon]
    last_value: Tensor,  # [rows] V of the observation after the horizon
    terminated: Tensor,  # [rows, horizon] bool
    truncated_at: Tensor,  # [k] positions row · horizon + t of truncated steps
    truncated_value: Tensor,  # [k] V(final observation) there
) -> Tensor:
    """[rows, horizon] value of what follows each step."""
    following = torch.cat([value[:, 1:], last_value[:, None]], dim=1)
    following = following.masked_fill(terminated, 0.0)
    following.view(-1)[truncated_at] = truncated_value
    return following
