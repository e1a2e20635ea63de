"""What FlashSAC keeps while it collects: noise that is held for some steps, and the returns of open episodes."""

import torch
from torch import Tensor

from ludus.algorithms.flash.reward_factor import RewardFactor
from ludus.envs.vec import State, restore_generator
from ludus.policies.heads import Head


class HeldNoise:
    """Every environment's noise stays for n steps, with n as likely as n⁻²: exploring goes somewhere.

    One count of steps holds for all environments, whenever their episodes end.
    """

    def __init__(self, head: Head, longest: int, seed: int) -> None:
        self._head = head
        self._chances = torch.arange(1, longest + 1).double().pow(-2)
        # On the CPU: how long noise is held decides about shapes, and a GPU would be waited for.
        self._lengths = torch.Generator().manual_seed(seed)
        self._left = 0  # steps for which the present noise stays
        self._noise: Tensor | None = None  # [rows, noise of the head]

    def draw(self, shape: tuple[int, int], generator: torch.Generator) -> Tensor:
        """[steps, rows, noise of the head]"""
        steps, rows = shape
        drawn: list[Tensor] = []
        while steps > 0:
            if self._left == 0 or self._noise is None:
                self._left = int(torch.multinomial(self._chances, 1, generator=self._lengths)) + 1
                self._noise = self._head.noise((rows,), generator)
            held = min(self._left, steps)
            noise = self._noise.to(generator.device)  # a checkpoint's lies on the CPU
            drawn.append(noise.expand(held, *noise.shape))
            self._left -= held
            steps -= held
        return torch.cat(drawn)

    def state(self) -> State:
        noise = None if self._noise is None else self._noise.clone()
        return {"left": self._left, "noise": noise, "lengths": self._lengths.get_state()}

    def load_state(self, state: State) -> None:
        self._left, self._noise = state["left"], state["noise"]
        restore_generator(self._lengths, state["lengths"])


class CollectedReturns:
    """Tells a factor of the discounted return of every environment, in the order of collecting.

    A return ends with its episode; in the published code the last reward counts alone, and leaks into the next
    episode.
    """

    def __init__(self, rows: int, gamma: float, factor: RewardFactor) -> None:
        self._gamma, self._factor = gamma, factor
        self._returns = torch.zeros(rows, dtype=torch.float64, device=factor.device)  # of the episodes so far

    def add(self, reward: Tensor, done: Tensor, lanes: slice) -> None:
        """Steps [steps, rows] of the environments of these lanes."""
        returns, passed = self._returns[lanes], []
        for paid, ended in zip(reward, done, strict=True):
            passed.append(returns.mul_(self._gamma).add_(paid).clone())
            returns.masked_fill_(ended, 0.0)
        self._factor.add(torch.stack(passed))

    def begin_anew(self) -> None:
        self._returns.zero_()

    def state(self) -> State:
        return {"returns": self._returns.clone()}

    def load_state(self, state: State) -> None:
        self._returns.copy_(state["returns"])
