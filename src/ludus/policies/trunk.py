"""The seam between networks and everything else: what turns observations into features.

A policy is normaliser → trunk → heads. Heads, losses and the optimiser know nothing of a trunk but what is said
here. `WrittenTrunk` (layers and a memory with their gradients written out) is the fast one on small networks;
`Taped` (taped.py) makes a trunk of any `torch.nn.Module`.
"""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ludus.policies.config import Activation
from ludus.policies.gru import GRU
from ludus.policies.lstm import LSTM
from ludus.policies.mingru import MinGRU
from ludus.policies.mlp import MLP
from ludus.policies.reader import Prepared, Reader

Memory = LSTM | GRU | MinGRU
MEMORIES: dict[str, type[Memory]] = {"lstm": LSTM, "gru": GRU, "mingru": MinGRU}


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

    def act(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
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

    def states(self, done: TrunkPass) -> Tensor:
        """[n, state_size] the hidden state after every step of a pass of a recurrent trunk."""

    def backward(self, done: TrunkPass, actor_gradient: Tensor, critic_gradient: Tensor) -> None:
        """Write the gradient of every parameter, given those of the features, which may be overwritten."""

    def numbers_of_a_step(self, on_cpu: bool) -> int:
        """How many numbers a gradient step holds of each step of its minibatch: the memory plan asks."""


class Encoder(Protocol):
    """Prepared rows → features, without a hidden state. `MLP` is one, and `ImageEncoder` (taped.py)."""

    features: int

    def __call__(self, x: Any) -> Tensor: ...

    def outputs(self, x: Tensor) -> list[Tensor]:
        """What `backward` needs, and last the features."""

    def backward(self, outputs: list[Tensor], gradient: Tensor) -> Any:
        """Write the gradient of every parameter, given that of the features."""

    def numbers_of_a_step(self) -> tuple[int, int]:
        """How many numbers are held of each step, and how many more while gradients are passed back."""


class PartMLP(MLP):
    """Fully connected layers that see some parts of a row."""

    def __init__(self, reader: Reader, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__(reader.numbers, hidden, activation)
        self._reader = reader

    def outputs(self, x: Any) -> list[Tensor]:
        return super().outputs(self._reader.numbers_of(x))


class WrittenTrunk:
    """Layers and a memory. The critic has the actor's features, or layers of its own and no memory."""

    def __init__(self, encoder: Encoder, value_encoder: Encoder | None, memory: Memory | None) -> None:
        self.encoder, self.value_encoder, self.memory = encoder, value_encoder, memory
        self.features = encoder.features if memory is None else memory.size
        self.value_features = self.features if value_encoder is None else value_encoder.features
        self.state_size = 0 if memory is None else memory.state_size

    def act(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(x)
        return (features, state) if self.memory is None else self.memory.step(features, state)

    def act_and_judge(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features, state = self.act(x, state)
        return features, features if self.value_encoder is None else self.value_encoder(x), state

    def judge(self, x: Tensor, state: Tensor) -> Tensor:
        features: Tensor = self.act(x, state)[0] if self.value_encoder is None else self.value_encoder(x)
        return features

    def forward_pass(self, x: Tensor, state: Tensor, keep: Tensor | None) -> TrunkPass:
        outputs, run = self.encoder.outputs(x), None
        features, last_state = outputs[-1], None
        if self.memory is not None:
            assert keep is not None
            run = self.memory.run(features, state, keep)
            features, last_state = run.output, run.last_state
        if self.value_encoder is None:
            return TrunkPass(features, features, last_state, (outputs, run, None))
        judged = self.value_encoder.outputs(x)
        return TrunkPass(features, judged[-1], last_state, (outputs, run, judged))

    def states(self, done: TrunkPass) -> Tensor:
        states: Tensor = done.saved[1].states
        return states

    def backward(self, done: TrunkPass, actor_gradient: Tensor, critic_gradient: Tensor) -> None:
        outputs, run, judged = done.saved
        gradient = actor_gradient
        if self.value_encoder is None:
            gradient = actor_gradient.add_(critic_gradient)
        if self.memory is not None:
            has_layers = len(outputs) > 1
            inputs_gradient = self.memory.backward(run, gradient, need_inputs=has_layers)
            gradient = actor_gradient if inputs_gradient is None else inputs_gradient
        if self.memory is None or has_layers:
            self.encoder.backward(outputs, gradient)
        if self.value_encoder is not None:
            self.value_encoder.backward(judged, critic_gradient)

    def numbers_of_a_step(self, on_cpu: bool) -> int:
        held, through_encoder = self.encoder.numbers_of_a_step()
        if self.value_encoder is not None:
            held_by_critic, through_critic = self.value_encoder.numbers_of_a_step()
            held += held_by_critic + self.features  # its gradient waits for the other encoder's
            through_encoder = max(through_encoder, through_critic)
        through_memory = 0
        if self.memory is not None:
            held_by_memory, through_memory = self.memory.numbers_of_a_step()
            held += held_by_memory
        # One after the other: a CPU uses the same memory again. On a GPU blocks of other sizes are kept besides.
        passed_back = max(through_encoder, through_memory) if on_cpu else 2 * through_encoder + through_memory
        return held + passed_back
