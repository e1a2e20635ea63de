"""Generalised advantage estimation (Schulman et al. 2015) with exact episode ends, and V-trace's clips.

    δ_t = ρ_t (r_t + γ V_next − V(s_t)),   A_t = δ_t + γ λ c_t A_{t+1} inside an episode, A_t = δ_t at its end,
    V_next = 0 where the task terminated, V(final observation) where time ran out, V(s_{t+1}) elsewhere.

ρ and c are 1, or the ratio of the present policy's probability of the action to that of the policy which took it,
clipped from above (Espeholt et al. 2018): with λ = 1 this is V-trace, with a policy that has not moved it is GAE.
"""

import torch
from torch import Tensor


def generalized_advantage(
    reward: Tensor,  # [horizon, segments]
    value: Tensor,  # [horizon, segments] V(s_t)
    next_value: Tensor,  # [horizon, segments] V_next as above: the ends are already in it
    done: Tensor,  # [horizon, segments] bool, terminated or truncated
    gamma: float,
    gae_lambda: float,
    ratio: Tensor | None = None,  # [horizon, segments]; None: the policy has not moved
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> Tensor:
    """[horizon, segments] advantages; every step is used, the last one of the horizon too."""
    delta = torch.add(reward, next_value, alpha=gamma).sub_(value)
    carry = (~done).to(delta.dtype).mul_(gamma * gae_lambda)
    if ratio is not None:
        delta *= ratio.clamp(max=rho_clip)
        carry *= ratio.clamp(max=c_clip)
    for t in range(delta.shape[0] - 2, -1, -1):
        delta[t].addcmul_(carry[t], delta[t + 1])
    return delta


def next_values(
    value: Tensor,  # [horizon, segments]
    last_value: Tensor,  # [segments] V of the observation after the horizon
    done: Tensor,  # [horizon, segments] bool
    final_value: Tensor,  # [horizon, segments] V(final observation) of truncated episodes, 0 where terminated
) -> Tensor:
    """[horizon, segments] value of what follows each step."""
    return torch.where(done, final_value, torch.cat([value[1:], last_value[None]]))
