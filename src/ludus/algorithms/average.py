"""A policy whose weights are the mean of those that another one lately had."""

import copy
import math

import torch
from torch import Tensor, nn

from ludus.envs.vec import State
from ludus.policies.policy import Policy

_NEWEST = 1 / 20  # share of a training so far that a mean is of at most: over more it lags behind what is learned


class AveragedPolicy:
    """Follows a policy that learns, as `policy`, which is evaluated and saved in its place.

    A policy may be much worse after one gradient step than after the next; the mean of many is not. What learns
    and explores is still the policy itself.
    """

    def __init__(self, newest: Policy, horizon: int) -> None:
        """A mean over about `horizon` gradient steps: older weights count exponentially less."""
        # What is no weight, or what a schedule may change.
        spreads = [spread for name, spread in newest.head.named_parameters() if name.endswith("log_std")]
        both_have = [newest.normalizer, *newest.head.buffers(), *spreads]
        self.policy = copy.deepcopy(newest, {id(part): part for part in both_have})
        self._horizon, self._made = horizon, 0  # gradient steps that were followed
        self._pairs = list(zip(_own_tensors(self.policy), _own_tensors(newest), strict=True))

    @torch.no_grad()
    def follow(self, made: int) -> None:
        """So many gradient steps were made since the last call.

        At first the mean is of the newest twentieth of all that were followed, in the end of the horizon.
        """
        self._made += made
        share = min(1.0, max(made / (_NEWEST * self._made), 1.0 - math.exp(-made / self._horizon)))
        for mean, newest in self._pairs:
            if mean.is_floating_point():
                mean.lerp_(newest, share)
            else:
                mean.copy_(newest)

    @torch.no_grad()
    def hand_back(self) -> None:
        """The mean was given weights: the policy that learns takes them."""
        for mean, newest in self._pairs:
            newest.copy_(mean)

    def state(self) -> State:
        """What a checkpoint of the mean does not hold: the policy that learns."""
        return {"made": self._made, "newest": [newest.detach().clone() for _, newest in self._pairs]}

    def load_state(self, state: State) -> None:
        self._made = max(0, int(state["made"]))
        _load([newest for _, newest in self._pairs], state)


def load_average(average: AveragedPolicy | None, newest: Policy, saved: State | None) -> None:
    """A run without a mean saved the policy that learns itself; one with a mean both."""
    if average is not None and saved is not None:
        average.load_state(saved)
    elif average is not None:
        average.hand_back()
    elif saved is not None:
        _load(_own_tensors(newest), saved)


@torch.no_grad()
def _load(weights: list[Tensor], state: State) -> None:
    """The policy that learns."""
    for newest, saved in zip(weights, state["newest"], strict=True):
        newest.copy_(saved)


def _own_tensors(policy: Policy) -> list[Tensor]:
    """Weights, and what layers know of their inputs: each once, also where two networks share it."""
    saved = policy.state_dict(keep_vars=True).items()
    own = [t for name, t in saved if isinstance(t, nn.Parameter) or not name.startswith(("normalizer.", "head."))]
    return list({id(tensor): tensor for tensor in own}.values())
