"""Windows of motion for a discriminator: those of the newest rollout, and some of the rollouts before."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ludus.envs.vec import State


class RolloutWindows:
    """Every window of the newest rollout, [steps, rows, size]; each group of environments writes its own rows.

    Where a group is, it knows on the device: writing can be part of a recorded CUDA graph. Beyond `steps` the
    oldest are overwritten.
    """

    def __init__(self, steps: int, groups: Sequence[int], size: int, device: torch.device) -> None:
        self.steps, self.rows = steps, sum(groups)
        self._windows = torch.zeros((steps, self.rows, size), device=device)
        self._parts = self._windows.split(list(groups), dim=1)
        self._written = [torch.zeros(1, dtype=torch.int64, device=device) for _ in groups]

    def write(self, group: int, windows: Tensor) -> None:
        """One step of a group's rows."""
        written = self._written[group]
        self._parts[group].index_copy_(0, written.remainder(self.steps), windows[None])
        written.add_(1)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, size] of them, with replacement; there must be some."""
        device = self._windows.device
        # How many there are stays on the device. Float64, because a float32 cannot name every place of many.
        stored = self._written[0].clamp(max=self.steps) * self.rows
        place = torch.rand(count, dtype=torch.float64, generator=generator, device=device).mul_(stored).long()
        return self._windows.flatten(0, 1).index_select(0, place)

    def clear(self) -> None:
        for written in self._written:
            written.zero_()


class WindowReplay:
    """Windows of earlier policies, so that a discriminator does not forget what it has already told apart.

    While there is room all that comes stays; from then on each new window takes a place drawn at random. What was
    there for n windows is still there with probability (1 − 1 / capacity)ⁿ: older policies fade, none drops out.
    """

    def __init__(self, capacity: int, size: int, device: torch.device) -> None:
        self.capacity, self.stored = capacity, 0
        self._windows = torch.zeros((capacity, size), device=device)

    def add(self, windows: Tensor, generator: torch.Generator) -> None:
        """Keep these; of more than fit the first."""
        windows = windows[: self.capacity]
        fresh = min(len(windows), self.capacity - self.stored)
        self._windows[self.stored : self.stored + fresh] = windows[:fresh]
        if fresh < len(windows):  # into places all different, so that none of the new ones is lost at once
            order = torch.randperm(self.stored, generator=generator, device=self._windows.device)
            self._windows[order[: len(windows) - fresh]] = windows[fresh:]
        self.stored += fresh

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """[count, size] of them, with replacement; there must be some."""
        device = self._windows.device
        return self._windows[torch.randint(self.stored, (count,), generator=generator, device=device)]

    def state(self) -> State:
        return {"windows": self._windows[: self.stored].clone()}

    def load_state(self, state: State) -> None:
        self.stored = len(state["windows"])
        self._windows[: self.stored] = state["windows"]
