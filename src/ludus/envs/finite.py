"""Numbers that an environment must not give."""

import math

import torch
from torch import Tensor

from ludus.errors import EnvError


def refuse_non_finite(given: dict[str, Tensor], rows: int, name: str) -> None:
    """A sentence for the first NaN or infinity in what the environment `name` gave.

    Each tensor has the rows first, or the steps and rows as one dimension.
    """
    for what, values in given.items():
        if not values.dtype.is_floating_point or math.isfinite(float(values.sum())):
            continue  # a sum is finite only where all its terms are, and the quickest to find
        bad = torch.isfinite(values).logical_not().nonzero()
        if len(bad):
            raise EnvError(
                f"{name} gave a {what} that is not a finite number (row {int(bad[0, 0]) % rows}). "
                f"Run 'ludus check {name}' to find out where it comes from."
            )
