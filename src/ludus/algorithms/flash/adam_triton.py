"""FlashSAC's optimiser step as Triton kernels. Needs a GPU: import it only there.

Adam, the projection of rows to their length and the target's step are one pass over the parameters. The formulas
are those of `ProjectedAdam`, which the tests hold them against.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from torch import Tensor
from triton.language import constexpr, tensor  # type: ignore[import-not-found,unused-ignore]

from ludus.algorithms.optimizer import FlatAdam
from ludus.policies.flash_triton import power_of_two, warps_of

_BETA_1, _BETA_2 = constexpr(0.9), constexpr(0.999)
_PROJECTION_EPS = constexpr(1e-8)
_JUDGES = 256  # programs that look at the gradient, at most
_SECTION = 1024  # numbers that each of them looks at together
_NARROW = 256  # numbers of a row, which leave room for more programs at a time than wide ones do
WIDEST_ROW = 4_096  # numbers that fit into the registers of a program


class _Rows(NamedTuple):
    """Rows of about the same width; each [rows]."""

    begin: Tensor
    second: Tensor  # where a second piece begins, or −1
    size: Tensor  # numbers of a piece
    squared_length: Tensor  # 0: it is free


class ParameterRows:
    """Rows of a flat tensor of parameters, each perhaps of two pieces, that are kept at a length.

    Also what the kernels leave for each other.
    """

    def __init__(self, rows: list[tuple[int, int, int, float]], device: torch.device) -> None:
        """Of each: where it begins, where its second piece begins or −1, numbers of a piece, its squared length.

        A squared length of 0: it is free.
        """
        self.widest = max(row[2] for row in rows)
        by_width: dict[int, list[tuple[int, int, int, float]]] = {}
        for row in rows:
            by_width.setdefault(_NARROW if row[2] <= _NARROW else power_of_two(self.widest), []).append(row)
        self.by_width: dict[int, _Rows] = {}
        for width, some in by_width.items():
            places = torch.tensor([row[:3] for row in some], dtype=torch.int64, device=device)
            begin, second, size = places.t().contiguous().unbind()
            self.by_width[width] = _Rows(
                begin, second, size, torch.tensor([row[3] for row in some], device=device)
            )
        self.squares = torch.zeros(_JUDGES, device=device)  # of the gradient: what each judge found
        self.hold = torch.zeros((), device=device)  # whether nothing is to move


@triton.jit
def _square(
    gradient: tensor, squares: tensor, count: tensor, judges: constexpr, section: constexpr, sections: tensor
) -> None:
    judge, total = tl.program_id(0), tl.zeros((section,), tl.float32)
    for part in range(sections):
        at = (part * judges + judge) * section + tl.arange(0, section)
        g = tl.load(gradient + at, mask=at < count, other=0.0)
        total += g * g
    tl.store(squares + judge, tl.sum(total, 0))


@triton.jit
def _count_step(squares: tensor, steps: tensor, skipped: tensor, hold: tensor, judges: constexpr) -> None:
    """Where the gradient is not finite nothing is to move: `hold` is set."""
    total = tl.sum(tl.load(squares + tl.arange(0, judges)), 0)
    bad = tl.where(total - total != 0.0, 1.0, 0.0)
    tl.store(steps, tl.load(steps) + 1.0 - bad)
    tl.store(skipped, tl.load(skipped) + bad)
    tl.store(hold, bad)


@triton.jit
def _moved(
    at: tensor, inside: tensor, weights: tensor, gradient: tensor, mean: tensor, square: tensor, rate: tensor,
    fade_1: tensor, fade_2: tensor, eps: tensor, hold: tensor,
) -> tensor:  # fmt: skip
    """The weights after Adam's step, whose moments it writes. Where `hold` is set all stays as it was."""
    w = tl.load(weights + at, mask=inside, other=0.0)
    g = tl.where(hold, 0.0, tl.load(gradient + at, mask=inside, other=0.0))
    m, s = tl.load(mean + at, mask=inside, other=0.0), tl.load(square + at, mask=inside, other=0.0)
    new_m, new_s = m + (g - m) * (1.0 - _BETA_1), s + (g * g - s) * (1.0 - _BETA_2)
    moved = w - rate / fade_1 * new_m / (tl.sqrt(new_s) / tl.sqrt(fade_2) + eps)
    tl.store(mean + at, tl.where(hold, m, new_m), mask=inside)
    tl.store(square + at, tl.where(hold, s, new_s), mask=inside)
    return tl.where(inside, tl.where(hold, w, moved), 0.0)


@triton.jit
def _settle(
    at: tensor, inside: tensor, moved: tensor, factor: tensor, weights: tensor, target: tensor, tau: tensor
) -> None:
    w = moved * factor
    tl.store(weights + at, w, mask=inside)
    if target is not None:
        old = tl.load(target + at, mask=inside, other=0.0)
        tl.store(target + at, old + tau * (w - old), mask=inside)


@triton.jit
def _adam_rows(
    begin: tensor, second: tensor, size: tensor, squared_length: tensor, weights: tensor, gradient: tensor,
    mean: tensor, square: tensor, steps: tensor, rate: tensor, rate_left: tensor, held: tensor, target: tensor,
    tau: tensor, eps: tensor, width: constexpr,
) -> None:  # fmt: skip
    """A program owns a row of parameters: it moves it, brings it to its length, and lets the target follow."""
    row, hold, offset = tl.program_id(0), tl.load(held) > 0, tl.arange(0, width)
    done = tl.maximum(tl.load(steps), 1.0)  # 0 only where nothing moves
    fade_1, fade_2 = 1.0 - tl.exp(done * tl.log(0.9)), 1.0 - tl.exp(done * tl.log(0.999))
    pace, wanted = tl.load(rate) * tl.load(rate_left), tl.load(squared_length + row)
    one_at, second_at = tl.load(begin + row) + offset, tl.load(second + row)
    inside, two_at = offset < tl.load(size + row), second_at + offset
    one = _moved(one_at, inside, weights, gradient, mean, square, pace, fade_1, fade_2, eps, hold)
    two = tl.zeros((width,), tl.float32)
    if second_at >= 0:
        two = _moved(two_at, inside, weights, gradient, mean, square, pace, fade_1, fade_2, eps, hold)
    factor = tl.sqrt(wanted / (tl.sum(one * one + two * two, 0) + _PROJECTION_EPS))
    factor = tl.where((wanted > 0) & ~hold, factor, 1.0)
    _settle(one_at, inside, one, factor, weights, target, tau)
    if second_at >= 0:
        _settle(two_at, inside, two, factor, weights, target, tau)


def adam_rows(
    rows: ParameterRows,
    adam: FlatAdam,
    rate: Tensor,
    rate_left: Tensor,
    target: Tensor | None = None,
    tau: float = 0.0,
) -> None:
    """Adam's step of all parameters, then their projection, then perhaps the target's step towards them.

    Where the gradient is not finite nothing moves but the target, and the step is counted as skipped.
    """
    numbers = adam.grad.numel()
    judges = min(_JUDGES, power_of_two(triton.cdiv(numbers, _SECTION)))
    sections = triton.cdiv(numbers, judges * _SECTION)
    _square[(judges,)](adam.grad, rows.squares, numbers, judges=judges, section=_SECTION, sections=sections)
    _count_step[(1,)](rows.squares, adam.steps, adam.skipped, rows.hold, judges=judges)
    for width, some in rows.by_width.items():
        _adam_rows[(len(some.begin),)](
            *some, adam.flat, adam.grad, adam.exp_avg, adam.exp_avg_sq, adam.steps, rate, rate_left, rows.hold,
            target, tau, adam.eps, width=width, num_warps=max(2, warps_of(width)),
        )  # fmt: skip
