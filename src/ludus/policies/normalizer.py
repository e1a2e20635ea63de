"""Running mean and variance of observations, kept inside the policy so that nothing can forget them."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ludus import ranks

_Moments = tuple[int | Tensor, Tensor, Tensor]  # number of observations, mean, Σ (x − mean)²
REPLAY_LIMITS = (5.0, 1e-2)  # clip and floor where learning draws from a replay, as in the original of RRD


class ObsNormalizer(nn.Module):
    """Standardises observations by moments in float64, merged batch by batch (Chan et al. 1979).

    With a `floor`, no standard deviation counts as less. The last `mask` numbers, a mask of valid actions, stay as
    they are.
    """

    count: Tensor
    mean: Tensor
    m2: Tensor
    _shift: Tensor
    _scale: Tensor

    def __init__(self, shape: tuple[int, ...], clip: float = 10.0, floor: float = 0.0, mask: int = 0) -> None:
        super().__init__()
        self.clip, self.floor = clip, floor
        self.mask_start = shape[0] - mask
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("m2", torch.zeros(shape, dtype=torch.float64))  # Σ (x − mean)²
        # float32 copies for the hot path; they change only in `update`.
        self.register_buffer("_shift", torch.zeros(shape))
        self.register_buffer("_scale", torch.ones(shape))

    def _leave_mask(self) -> None:
        self._shift[self.mask_start :] = 0.0
        self._scale[self.mask_start :] = 1.0

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Some older checkpoints hold a shift and a scale that turn the mask around."""
        super()._load_from_state_dict(*args, **kwargs)
        self._leave_mask()

    def forward(self, obs: Tensor) -> Tensor:
        return ((obs - self._shift) * self._scale).clamp(-self.clip, self.clip)

    def of_columns(self, numbers: Tensor, columns: slice) -> Tensor:
        """The same for some of the numbers of each observation."""
        return ((numbers - self._shift[columns]) * self._scale[columns]).clamp(-self.clip, self.clip)

    @torch.no_grad()
    def update(self, parts: Iterable[Tensor]) -> None:
        """Merge the moments of observations, each part [n, ...], that all ranks have seen."""
        own = (self._moments(part) for part in parts if len(part))
        for moments in own if ranks.is_alone() else self._of_all_ranks(own):
            self._merge(*moments)
        variance = self.m2 / self.count.clamp(min=1)
        self._shift.copy_(self.mean)
        if self.floor:
            self._scale.copy_(variance.sqrt().clamp_(min=self.floor).reciprocal_())
        else:
            # An input that never changes carries nothing; dividing by its rounding noise would make it loud.
            self._scale.copy_(torch.where(variance > 1e-10, (variance + 1e-8).rsqrt(), 1.0))
        self._leave_mask()

    def _moments(self, part: Tensor) -> _Moments:
        batch = part.reshape(len(part), *self.mean.shape)[:, : self.mask_start].double()
        mean = batch.mean(dim=0)
        return len(batch), mean, (batch - mean).square().sum(dim=0)

    def _of_all_ranks(self, own: Iterable[_Moments]) -> Iterator[_Moments]:
        """What each rank has seen, in the order of the ranks."""
        flat = self._flat(list(own))
        for count, mean, m2 in (row.split([1, *[(len(flat) - 1) // 2] * 2]) for row in ranks.gather(flat)):
            seen = self.mean[: self.mask_start]
            yield count[0], mean.view_as(seen), m2.view_as(seen)

    def _flat(self, own: list[_Moments]) -> Tensor:
        """Number, mean and squares of all these together, in a row: what a rank tells the others."""
        total = sum(n for n, _, _ in own)
        mean = m2 = torch.zeros_like(self.mean[: self.mask_start])
        for n, part, _ in own:
            mean = mean + part * (n / total)
        for n, part, squares in own:
            m2 = m2 + squares + (part - mean).square() * n
        return torch.cat([mean.new_full((1,), float(total)), mean.flatten(), m2.flatten()])

    def _merge(self, n: int | Tensor, mean: Tensor, squares: Tensor) -> None:
        old_mean, m2 = self.mean[: self.mask_start], self.m2[: self.mask_start]
        total, delta = self.count + n, mean - old_mean
        parts = total.clamp(min=1)  # a rank may have seen nothing
        m2 += squares + delta.square() * (self.count * n / parts)
        old_mean += delta * (n / parts)
        self.count.copy_(total)
