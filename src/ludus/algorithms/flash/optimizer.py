"""FlashSAC's optimiser: Adam, after whose steps weights and norms are brought to their length."""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from ludus.algorithms.optimizer import FlatAdam
from ludus.policies.flash_layers import FlashLayers, fused, project_rows

_TOGETHER = 1024  # numbers that a kernel moves together where no length is kept


class ProjectedAdam(FlatAdam):
    """Of `layers`, of `unit` weights, whose rows have length 1, and of other parameters, which are free."""

    def __init__(self, parameters: Iterable[nn.Parameter], layers: FlashLayers, unit: Iterable[Tensor]) -> None:
        self._layers, self._unit = layers, list(unit)
        rows = {id(weight) for weight in [*layers.weights, *self._unit]}
        # Weights first: each then begins at a multiple of 16 bytes, or their products would take twice as long.
        super().__init__(sorted(parameters, key=lambda p: id(p) not in rows), math.inf, eps=1e-8)

    def step_and_project(
        self, rate: Tensor, rate_left: Tensor, target: Tensor | None = None, tau: float = 0.0
    ) -> None:
        """A step, by what is left of the rate; then `target` goes a part `tau` of the way to the new weights."""
        if not self._is_one_kernel:
            self.step(rate * rate_left)
            self._layers.project()
            for weight in self._unit:
                project_rows(weight)
            if target is not None:
                target.lerp_(self.flat, tau)
            return
        from ludus.algorithms.flash import adam_triton

        adam_triton.adam_rows(self._rows, self, rate, rate_left, target, tau)

    @cached_property
    def _is_one_kernel(self) -> bool:
        """Where there are kernels, and no row is too wide for them."""
        if not fused(self.flat):
            return False
        from ludus.algorithms.flash import adam_triton

        return bool(self._rows.widest <= adam_triton.WIDEST_ROW)

    @cached_property
    def _rows(self) -> Any:
        """What is brought to a length together, for the kernel that does all in one."""
        from ludus.algorithms.flash import adam_triton

        rows: list[tuple[int, int, int, float]] = []
        start, unit = 0, {id(weight) for weight in [*self._layers.weights, *self._unit]}
        for p in self.parameters:
            if p is self._layers.norms:
                rows += [
                    (start + a, start + b if b >= 0 else b, n, float(n)) for a, b, n in self._layers.norm_rows()
                ]
            else:
                width = p.shape[-1] if id(p) in unit else min(p.numel(), _TOGETHER)
                length = 1.0 if id(p) in unit else 0.0
                for first in range(0, p.numel(), width):
                    rows.append((start + first, -1, min(width, p.numel() - first), length))
            start += p.numel()
        return adam_triton.ParameterRows(rows, self.flat.device)
