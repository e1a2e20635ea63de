"""A gated recurrent unit (Cho et al. 2014) whose gradient over whole segments is written out.

    r, z = σ(W x + U h + b);  n = tanh(W x + r · U h + b);  h' = (1 − z) · n + z · h

Half the state of an LSTM and three quarters of its weights. The tests hold the gradient against autograd.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ludus.policies.mlp import WrittenOut

_aten = torch.ops.aten


@dataclass
class GRURun:
    """A pass, with what its gradient needs."""

    x: Tensor  # [T · n, inputs] time first
    keep: Tensor  # [T, n, 1] 0 where the state was reset before the step, else 1
    before: Tensor  # [T, n, H] what each step was given of the one before it
    gates: Tensor  # [T, n, 3 H] r, z and n after their activation
    recalled: Tensor  # [T, n, H] U h of n, before r lets it through
    h: Tensor  # [T, n, H]

    @property
    def output(self) -> Tensor:
        """[T · n, H]"""
        return self.h.flatten(0, 1)

    @property
    def last_state(self) -> Tensor:
        """[n, H] after the last step."""
        return self.h[-1]

    @property
    def states(self) -> Tensor:
        """[T · n, H] after every step."""
        return self.output


class GRU(WrittenOut):
    """One layer. A row's state is its output [H]; zero at the start of an episode."""

    own = ("weight_x", "weight_h", "bias")

    def __init__(self, inputs: int, size: int, forget_bias: float = 1.0) -> None:
        super().__init__()
        self.inputs, self.size, self.state_size = inputs, size, size
        self.weight_x = nn.Parameter(torch.empty(3 * size, inputs))
        self.weight_h = nn.Parameter(torch.empty(3 * size, size))
        self.bias = nn.Parameter(torch.zeros(3 * size))
        for weight in (self.weight_x, self.weight_h):
            for gate in weight.data.chunk(3):
                nn.init.orthogonal_(gate)
        with torch.no_grad():
            self.bias[size : 2 * size] = forget_bias  # z: a state lasts about 1 + e^bias steps untrained

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[n, inputs], [n, H] → the output [n, H] and the new state, which are the same."""
        h = self._advance(torch.mm(x, self.weight_x.t()).add_(self.bias), state)[0]
        return h, h

    def _advance(self, gates: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """The new state, and U h of n; `gates` hold W x + b, and their activations afterwards."""
        size = self.size
        from_h = torch.mm(h, self.weight_h.t())
        squashed, n, recalled = gates[:, : 2 * size], gates[:, 2 * size :], from_h[:, 2 * size :]
        squashed.add_(from_h[:, : 2 * size]).sigmoid_()
        n.addcmul_(squashed[:, :size], recalled).tanh_()
        return torch.lerp(n, h, squashed[:, size:]), recalled

    # Whole segments -----------------------------------------------------------------------------
    def run(self, x: Tensor, state: Tensor, keep: Tensor) -> GRURun:
        """[T · n, inputs] time first, [n, H] before the first step, [T, n]."""
        gates = torch.mm(x, self.weight_x.t()).add_(self.bias).view(*keep.shape, -1)
        before, recalled, h = (gates.new_empty((*keep.shape, self.size)) for _ in range(3))
        keep = keep[..., None]
        for t in range(len(keep)):
            torch.mul(state, keep[t], out=before[t])
            state, recalled[t] = self._advance(gates[t], before[t])
            h[t] = state
        return GRURun(x, keep, before, gates, recalled, h)

    def backward(self, done: GRURun, gradient: Tensor, need_inputs: bool = True) -> Tensor | None:
        """Write the parameters' gradients, given that of `output`; returns the inputs' where needed."""
        size = self.size
        through_x, through_h = torch.empty_like(done.gates), torch.empty_like(done.gates)
        dh = torch.zeros_like(done.h[0])
        for t in range(len(done.h) - 1, -1, -1):
            dh = dh + gradient.view_as(done.h)[t]
            r, z, n = done.gates[t].split(size, dim=1)
            grad_r, grad_z, grad_n = through_x[t].split(size, dim=1)
            _aten.tanh_backward.grad_input(dh * (1 - z), n, grad_input=grad_n)
            torch.mul(dh, done.before[t] - n, out=grad_z)
            torch.mul(grad_n, done.recalled[t], out=grad_r)
            squashed = through_x[t][:, : 2 * size]
            _aten.sigmoid_backward.grad_input(squashed, done.gates[t][:, : 2 * size], grad_input=squashed)
            through_h[t][:, : 2 * size] = squashed
            torch.mul(grad_n, r, out=through_h[t][:, 2 * size :])
            dh = torch.addmm(dh * z, through_h[t], self.weight_h).mul_(done.keep[t])
        flat_x, flat_h = through_x.flatten(0, 1), through_h.flatten(0, 1)
        torch.mm(flat_x.t(), done.x, out=self.weight_x.grad)
        torch.mm(flat_h.t(), done.before.flatten(0, 1), out=self.weight_h.grad)
        torch.sum(flat_x, 0, out=self.bias.grad)
        return flat_x @ self.weight_x if need_inputs else None

    def numbers_of_a_step(self) -> tuple[int, int]:
        """(held of each step, passed back at most at a time) in a gradient step."""
        return (3 + 6 + 3) * self.size, self.size + max(self.size, self.inputs)
