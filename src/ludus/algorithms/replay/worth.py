"""How much recorded actions are imitated, by what critics make of them."""

from collections.abc import Callable

import torch
from torch import Tensor

from ludus import ranks
from ludus.buffers.episodes import EpisodeStore

_MOST_WEIGHT = 20.0
_ENOUGH = 0.9  # of the way from the lowest to the highest value that episodes come to
_EDGES = 0.05, 0.95  # so many of the steps may lie below the lowest, and up to the highest
_ROWS_AT_ONCE, _VALUES_AT_ONCE = 4_096, 1 << 24

Judge = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Observations and actions, as stored → (the values of those actions, of the actor's own), [n] each."""


def advantage_weights(strength: float, advantage: Tensor) -> Tensor:
    """[n] how much each recorded action is imitated, 1 on average: exp(strength × advantage in spreads).

    Weighted by the critics' advantages a policy leaves out what was recorded in vain (AWR, Peng et al. 2019; CRR,
    Wang et al. 2020), and never asks the critics about actions that nobody recorded.
    """
    mean = ranks.add_up(advantage.mean()) / ranks.size()
    centred = advantage - mean
    spread = (ranks.add_up(centred.square().mean()) / ranks.size()).sqrt().clamp(min=1e-6)
    weight = (centred * (strength / spread)).exp().clamp(max=_MOST_WEIGHT)
    return weight / (ranks.add_up(weight.mean()) / ranks.size())


def worth_of_steps(store: EpisodeStore, judge: Judge, strength: float) -> Tensor:
    """[steps] how often each step of the stored episodes is to be imitated, relative to the others.

    Only steps count whose episode later comes to a state of nearly the highest value. So bad ends are left out,
    but not the good beginning of a failure (BAIL, Chen et al. 2020, chooses by returns). Of these steps those of a
    high advantage count more.
    """
    length, start = store.length[: store.episodes], store.start[: store.episodes]
    recorded, own = _values(store, judge, start.repeat_interleave(length + 1))
    is_step = torch.ones_like(own, dtype=torch.bool).index_fill_(0, start + length, False)
    advantage, later = (recorded - own)[is_step], _highest_later(own, start, length)
    low, high = later.sort().values[[int(edge * (len(later) - 1)) for edge in _EDGES]]
    return advantage_weights(strength, advantage) * (later >= low + _ENOUGH * (high - low))


def _highest_later(values: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """[steps] the highest value after each step of the episodes, in theirs."""
    t = torch.arange(int(length.max()) + 1, device=values.device)
    some, found = max(1, _VALUES_AT_ONCE // len(t)), []
    for first, steps in zip(start.split(some), length[:, None].split(some), strict=True):
        known = values[first[:, None] + t.minimum(steps)]  # behind its end an episode's last one again
        found.append(known.flip(1).cummax(1).values.flip(1)[:, 1:][t[:-1] < steps])
    return torch.cat(found)


def _values(store: EpisodeStore, judge: Judge, starts: Tensor) -> tuple[Tensor, Tensor]:
    """The judge's, of all rows; an episode that starts in `starts` has one row more than steps."""
    rows = torch.arange(len(starts), device=store.device)
    told = [
        judge(store.observations(some, its_start), store.action.index_select(0, some))
        for some, its_start in zip(rows.split(_ROWS_AT_ONCE), starts.split(_ROWS_AT_ONCE), strict=True)
    ]
    recorded, own = (torch.cat(values) for values in zip(*told, strict=True))
    return recorded, own
