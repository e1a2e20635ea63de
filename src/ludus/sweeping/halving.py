"""Successive halving without waiting (ASHA): of the trials at a rung the best third goes on to the next.

A rung is a number of steps of the whole training. A trial that goes on is resumed exactly, so that the steps below
its rung are trained once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Standing:
    """Where a trial is among the others."""

    number: int
    reached: int  # the highest rung it has come to; −1: none
    target: int  # the rung it trains for, or has come to
    scores: Sequence[float]  # higher is better: one for every rung up to `reached`
    failed: bool = False


def rung_steps(total: int, rungs: int, eta: int) -> list[int]:
    """Where the rungs are: 111, 333, 1,000 of 1,000 steps, each `eta` times the one before."""
    return [max(1, math.ceil(total / eta ** (rungs - 1 - rung))) for rung in range(rungs)]


def next_to_promote(trials: Sequence[Standing], rungs: int, eta: int, closing: bool) -> int | None:
    """The trial to be trained to its next rung; None where all that may go on do so already.

    While other trials come, one may go on that is among the best 1/eta, rounded down, at its rung. `closing`: no
    other will come, nor does one train; then it is rounded up, so that something comes to the end.
    """
    for rung in reversed(range(rungs - 1)):
        there = [t for t in trials if not t.failed and t.reached >= rung]
        share = len(there) / eta
        allowed = math.ceil(share) if closing else math.floor(share)
        best = sorted(there, key=lambda t: (-t.scores[rung], t.number))[:allowed]
        if waiting := [t for t in best if t.reached == t.target == rung]:
            return waiting[0].number
    return None


def ranked(trials: Sequence[Standing]) -> list[Standing]:
    """The best first: those of a higher rung before others, then by their score there."""
    known = [t for t in trials if not t.failed and t.reached >= 0]
    return sorted(known, key=lambda t: (-t.reached, -t.scores[t.reached], t.number))


def expected_steps(count: int, steps: Sequence[int], eta: int) -> int:
    """Of one seed of so many trials, about."""
    below = (0, *steps)
    return sum(math.ceil(count / eta**rung) * (steps[rung] - below[rung]) for rung in range(len(steps)))


def steps_anew(reached: Sequence[int], steps: Sequence[int]) -> int:
    """What the same trials would take if each began again at every rung; `reached` are their highest rungs."""
    return sum(sum(steps[: rung + 1]) for rung in reached)
