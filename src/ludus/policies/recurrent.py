"""An encoder with a hidden state, for what learns from a replay.

A gradient step takes segments: consecutive steps of stored episodes, in which episodes may begin and end. The
hidden state before a segment is the one that was stored when it was collected, by older weights. Some steps that
are only looked at, the burn-in, bring it up to date (R2D2, Kapturowski et al. 2019).
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ludus.policies.reader import Prepared
from ludus.policies.taped import Taped
from ludus.policies.trunk import TrunkPass, WrittenTrunk


class BurnIn(NamedTuple):
    """What leads to the learned steps of m segments."""

    x: Tensor  # [burn-in · m, size] prepared rows, time first
    state: Tensor  # [m, state_size] the hidden state that was stored before the first of them
    keep: Tensor  # [burn-in + learned, m] 0 where an episode begins, else 1


class RecurrentEncoder(nn.Module):
    """A trunk with a hidden state in the place of an encoder.

    Rows are those before the transitions, time first, then those after them. Each of the latter is one step from
    the hidden state of its own transition, so that it may be the last observation of an episode.
    """

    trunk: WrittenTrunk | Taped

    def __init__(self, trunk: WrittenTrunk | Taped) -> None:
        super().__init__()
        if isinstance(trunk, Taped):
            self.network = trunk
        else:
            self.layers, self.memory = trunk.encoder, trunk.memory
        object.__setattr__(self, "trunk", trunk)  # whose modules these are
        self.features, self.state_size = trunk.features, trunk.state_size

    def act(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: features, and the new hidden state."""
        return self.trunk.act(x, state)

    def outputs(self, x: Tensor, learned: int, burn_in: BurnIn) -> list[Any]:
        """What `backward` needs, and last the features, of which it passes back those of the `learned` rows."""
        done = self._run(x[:learned], burn_in)
        if len(x) == learned:
            return [done, done.actor]
        return [done, torch.cat([done.actor, self._one_step_on(done, x[learned:])])]

    def after(self, x: Tensor, learned: int, burn_in: BurnIn) -> Tensor:
        """Features of the rows after the transitions alone."""
        return self._one_step_on(self._run(x[:learned], burn_in), x[learned:])

    def backward(self, outputs: list[Any], gradient: Tensor) -> None:
        """Write the gradient of every parameter, given that of the learned rows' features."""
        nothing = gradient.new_zeros(()).expand_as(gradient)
        self.trunk.backward(outputs[0], gradient.clone(memory_format=torch.contiguous_format), nothing)

    def _run(self, x: Tensor, burn_in: BurnIn) -> TrunkPass:
        state, keep = burn_in.state, burn_in.keep
        steps = len(burn_in.x) // len(state)
        if steps:
            last = self.trunk.forward_pass(burn_in.x, state, keep[:steps]).last_state
            assert last is not None
            state = last
        return self.trunk.forward_pass(x, state, keep[steps:])

    def _one_step_on(self, done: TrunkPass, x: Tensor) -> Tensor:
        return self.trunk.act(x, self.trunk.states(done))[0]

    def numbers_of_a_step(self) -> tuple[int, int]:
        """How many numbers are held of each step, and how many more while gradients are passed back."""
        on_cpu = next(self.parameters()).device.type == "cpu"
        return self.trunk.numbers_of_a_step(on_cpu), 0
