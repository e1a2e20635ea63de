"""The on-policy buffer: [segments, horizon, ...], one segment a row of the environment, allocated once."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Segments:
    """One rollout. A segment is a contiguous piece of one row's trajectory; episodes may end inside it."""

    obs: Tensor  # [segments, horizon, *obs]
    action: Tensor  # [segments, horizon, action]
    reward: Tensor  # [segments, horizon]
    terminated: Tensor  # [segments, horizon] bool
    truncated: Tensor  # [segments, horizon] bool
    last_obs: Tensor  # [segments, *obs] what follows the horizon
    truncated_at: Tensor  # [k] positions segment · horizon + t of the truncated steps
    truncated_obs: Tensor  # [k, *obs] the final observations there

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated


class SegmentBuffer:
    """Filled step by step, a group of rows at a time."""

    def __init__(
        self,
        segments: int,
        horizon: int,
        obs_shape: tuple[int, ...],
        obs_dtype: torch.dtype,
        action_size: int,
        device: torch.device,
    ) -> None:
        self.horizon = horizon
        self.device = device
        shape = (segments, horizon)
        self._data = Segments(
            obs=torch.zeros((*shape, *obs_shape), dtype=obs_dtype, device=device),
            action=torch.zeros((*shape, action_size), device=device),
            reward=torch.zeros(shape, device=device),
            terminated=torch.zeros(shape, dtype=torch.bool, device=device),
            truncated=torch.zeros(shape, dtype=torch.bool, device=device),
            last_obs=torch.zeros((segments, *obs_shape), dtype=obs_dtype, device=device),
            truncated_at=torch.zeros(0, dtype=torch.int64, device=device),
            truncated_obs=torch.zeros((0, *obs_shape), dtype=obs_dtype, device=device),
        )
        # Few steps are truncated: their final observations are kept apart, not for every step.
        self._truncations: list[tuple[Tensor, Tensor]] = []

    def write_action(self, rows: slice, t: int, obs: Tensor, action: Tensor) -> None:
        self._data.obs[rows, t] = obs
        self._data.action[rows, t] = action

    def write_outcome(
        self, rows: slice, t: int, reward: Tensor, terminated: Tensor, truncated: Tensor, final_obs: Tensor
    ) -> None:
        self._data.reward[rows, t] = reward
        self._data.terminated[rows, t] = terminated
        self._data.truncated[rows, t] = truncated
        ended = truncated.nonzero().squeeze(1)
        if ended.numel():
            at, last = (rows.start + ended) * self.horizon + t, final_obs[ended]
            self._truncations.append((at.to(self.device), last.to(self.device)))

    def finish(self, last_obs: Tensor) -> Segments:
        """The rollout is complete; the returned tensors are overwritten by the next one."""
        self._data.last_obs.copy_(last_obs)
        at = [positions for positions, _ in self._truncations]
        obs = [final for _, final in self._truncations]
        self._data.truncated_at = torch.cat([self._data.truncated_at[:0], *at])
        self._data.truncated_obs = torch.cat([self._data.truncated_obs[:0], *obs])
        self._truncations.clear()
        return self._data
