"""The scale of rewards: the running spread of the discounted return."""

import torch
from torch import Tensor

from ludus import ranks
from ludus.envs.vec import State


class ReturnScale:
    """Divides rewards by the running standard deviation of the discounted return, in float64."""

    def __init__(self, device: torch.device, clip: float = 10.0) -> None:
        self.clip = clip
        self.moments = torch.zeros(3, dtype=torch.float64, device=device)  # count, mean, Σ (x − mean)²

    def update(self, discounted: Tensor, present: Tensor | None) -> None:
        """Merge the moments of discounted returns, as they were after each step, on all ranks."""
        x = discounted.double()
        weight = torch.ones_like(x) if present is None else present.double()
        n = weight.sum()
        mean = (x * weight).sum() / n.clamp(min=1)
        squares = ((x - mean).square() * weight).sum()
        for moments in ranks.gather(torch.stack([n, mean, squares])):
            self._merge(*moments.unbind())

    def _merge(self, n: Tensor, batch_mean: Tensor, squares: Tensor) -> None:
        count, mean, m2 = self.moments.clone()
        delta, total = batch_mean - mean, count + n
        self.moments[0] = total
        self.moments[1] = mean + delta * n / total.clamp(min=1)
        self.moments[2] = m2 + squares + delta.square() * count * n / total.clamp(min=1)

    def forget(self, part: float) -> None:
        """This part of what was merged so far."""
        self.moments[::2] *= 1.0 - part  # count and Σ (x − mean)²; the mean stays

    def scale(self, reward: Tensor) -> Tensor:
        return (reward / (self.variance().sqrt() + 1e-8).float()).clamp(-self.clip, self.clip)

    def variance(self) -> Tensor:
        return self.moments[2] / self.moments[0].clamp(min=1)

    def state(self) -> State:
        return {"moments": self.moments.clone()}

    def load_state(self, state: State) -> None:
        self.moments.copy_(state["moments"])
