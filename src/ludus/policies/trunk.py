"""The seam between networks and everything else: what turns observations into features.

A policy is normaliser → trunk → heads. Heads, losses and the optimiser know nothing of a trunk but what is said
here. `WrittenTrunk` (layers and a memory with their gradients written out) is the fast one on small networks;
`Taped` (taped.py) makes a trunk of any `torch.nn.Module`.
"""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ludus.policies.lstm import LSTM
from ludus.policies.mingru import MinGRU
from ludus.policies.mlp import MLP

Memory = LSTM | MinGRU
MEMORIES: dict[str, type[Memory]] = {"lstm": LSTM, "mingru": MinGRU}


class TrunkPass(NamedTuple):
    """A forward pass over a minibatch."""

    actor: Tensor  # [n, features]
    critic: Tensor  # [n, value_features]; the same tensor where both see the same features
    last_state: Tensor | None  # [segments, state_size] after the last step, where there is a hidden state
    saved: Any  # what `backward` needs


class Trunk(Protocol):
    """Observations, prepared by the normaliser, → features.

    The hidden state of a recurrent trunk is [rows, state_size], zero where an episode begins. Without one
    (`state_size` 0) it is empty and passed on.
    """

    features: int
    value_features: int
    state_size: int

    def act(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: the actor's features, and the new hidden state."""

    def act_and_judge(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One step: the actor's features, the critic's, and the new hidden state."""

    def judge(self, x: Tensor, state: Tensor) -> Tensor:
        """One step: the critic's features alone."""

    def forward_pass(self, x: Tensor, state: Tensor, keep: Tensor | None) -> TrunkPass:
        """Features of a minibatch, keeping what `backward` needs.

        With a hidden state `x` holds whole segments, time first; `state` is that before the first step, and `keep`
        [horizon, segments] is 0 where it was reset before a step.
        """

    def backward(self, done: TrunkPass, actor_gradient: Tensor, critic_gradient: Tensor) -> None:
        """Write the gradient of every parameter, given those of the features, which may be overwritten."""

    def numbers_of_a_step(self, on_cpu: bool) -> int:
        """How many numbers a gradient step holds of each step of its minibatch: the memory plan asks."""


class WrittenTrunk:
    """Fully connected layers, one stack for both heads or one each, and a memory after a shared one."""

    def __init__(self, encoder: MLP, value_encoder: MLP | None, memory: Memory | None) -> None:
        assert value_encoder is None or memory is None, "actor and critic share a memory"
        self.encoder, self.value_encoder, self.memory = encoder, value_encoder, memory
        self.features = self.value_features = encoder.features if memory is None else memory.size
        self.state_size = 0 if memory is None else memory.state_size

    def act(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(x)
        return (features, state) if self.memory is None else self.memory.step(features, state)

    def act_and_judge(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, state = self.act(x, state)
        return features, features if self.value_encoder is None else self.value_encoder(x), state

    def judge(self, x: Tensor, state: Tensor) -> Tensor:
        features: Tensor = self.act(x, state)[0] if self.value_encoder is None else self.value_encoder(x)
        return features

    def forward_pass(self, x: Tensor, state: Tensor, keep: Tensor | None) -> TrunkPass:
        actor = self.encoder.outputs(x)
        if self.memory is not None:
            assert keep is not None
            run = self.memory.run(actor[-1], state, keep)
            return TrunkPass(run.output, run.output, run.last_state, (actor, run))
        critic = actor if self.value_encoder is None else self.value_encoder.outputs(x)
        return TrunkPass(actor[-1], critic[-1], None, (actor, critic))

    def backward(self, done: TrunkPass, actor_gradient: Tensor, critic_gradient: Tensor) -> None:
        outputs, other = done.saved
        if self.value_encoder is not None:
            self.encoder.backward(outputs, actor_gradient)
            self.value_encoder.backward(other, critic_gradient)
            return
        gradient = actor_gradient.add_(critic_gradient)
        if self.memory is not None:
            has_layers = len(outputs) > 1
            inputs_gradient = self.memory.backward(other, gradient, need_inputs=has_layers)
            if inputs_gradient is None:
                return
            gradient = inputs_gradient
        self.encoder.backward(outputs, gradient)

    def numbers_of_a_step(self, on_cpu: bool) -> int:
        hidden, memory = self.encoder.widths, self.memory
        held = self.encoder.inputs + (1 if self.value_encoder is None else 2) * sum(hidden)
        held += 0 if self.value_encoder is None else self.features  # its gradient waits for the other encoder's
        through_encoder, through_memory = 2 * max(hidden, default=0), 0  # gradients of an output and of its input
        if memory is not None:
            held_by_memory, through_memory = memory.numbers_of_a_step()
            held += held_by_memory
        # One after the other: a CPU uses the same memory again. On a GPU blocks of other sizes are kept besides.
        passed_back = max(through_encoder, through_memory) if on_cpu else 2 * through_encoder + through_memory
        return held + passed_back
