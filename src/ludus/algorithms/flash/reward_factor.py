"""The scale of FlashSAC's rewards, from discounted returns of what was paid, or of what was learned."""

import torch
from torch import Tensor

from ludus.algorithms.return_scale import ReturnScale
from ludus.envs.vec import State

_EPS = 1e-8  # of the variance of returns


class RewardFactor:
    """What rewards are multiplied by, so that discounted returns spread by 1 and stay within the critics' bins."""

    def __init__(self, highest: float, device: torch.device) -> None:
        self.device, self._highest_value = device, highest
        self.scale = ReturnScale(device)
        self.largest = torch.zeros((), dtype=torch.float64, device=device)  # of all |returns|

    def add(self, returns: Tensor, present: Tensor | None = None) -> None:
        """Discounted returns, float64; those that are not present are 0."""
        self.scale.update(returns, present)
        torch.maximum(self.largest, returns.abs().amax(), out=self.largest)

    def forget(self, part: float) -> None:
        """This part of what was added so far: rewards that are learned were different then."""
        self.scale.forget(part)
        self.largest.mul_(1.0 - part)

    def value(self) -> Tensor:
        spread = (self.scale.variance() + _EPS).sqrt()
        return torch.maximum(spread, self.largest / self._highest_value).reciprocal()

    def state(self) -> State:
        return {"scale": self.scale.state(), "largest": self.largest.clone()}

    def load_state(self, state: State) -> None:
        self.scale.load_state(state["scale"])
        self.largest.copy_(state["largest"])


def discounted_returns(reward: Tensor, gamma: float) -> Tensor:
    """Of rewards [episodes, steps] up to every step, in float64. Each round doubles how far back they reach."""
    returns, reach = reward.double(), 1
    while reach < reward.shape[1]:
        earlier = gamma**reach * returns[:, :-reach]
        returns = torch.cat([returns[:, :reach], returns[:, reach:] + earlier], 1)
        reach *= 2
    return returns
