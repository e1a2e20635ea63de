"""A minimal gated recurrent unit (minGRU; Feng et al. 2024) with exact resets and its gradient written out.

    z, o = σ(·), g = tanh(·) of  W x_t + b                h' = h_{t−1}; zero where an episode ended before step t
    h_t = (1 − z) h' + z g,   y_t = o h_t

The output gate o is an addition to the paper: without it, linear heads cannot let what is seen decide what
is read from the memory. The gates do not depend on the hidden state. All products are therefore made at once for a
whole segment; what is left from step to step, h_t = decay_t h_{t−1} + drive_t, is one multiplication and addition.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ludus.policies.lstm import has_kernels, kernels_for
from ludus.policies.mlp import WrittenOut

_aten = torch.ops.aten


class Space:
    """Room for a pass over n segments of T steps, kept for the next: fresh large tensors would cost too much."""

    def __init__(self, steps: int, n: int, size: int, like: Tensor) -> None:
        plain = not kernels_for(like)  # which need less: they activate gates where they read them
        with torch.inference_mode(False):  # usable in any mode
            self.gates, self.grad_gates, self.h, self.y, self.decay, self.drive = (
                torch.empty((steps, n, width * size), dtype=like.dtype, device=like.device)
                for width in (3, 3, 1, 1, plain, plain)
            )
        self.z, self.o, self.g = self.gates.split(size, dim=2)
        self.squashed = self.gates[..., : 2 * size]  # z and o
        self.grad_z, self.grad_o, self.grad_g = self.grad_gates.split(size, dim=2)
        self.grad_squashed = self.grad_gates[..., : 2 * size]


@dataclass
class Run:
    """A pass, with what its gradient needs. The next pass of the same shape overwrites it."""

    x: Tensor  # [T · n, inputs] time first
    h0: Tensor  # [n, H] before the first step
    keep: Tensor  # [T, n] 0 where the state was reset before the step, else 1
    space: Space

    @property
    def output(self) -> Tensor:
        """[T · n, H]"""
        return self.space.y.flatten(0, 1)

    @property
    def last_state(self) -> Tensor:
        """[n, H] after the last step."""
        return self.space.h[-1].clone()

    @property
    def states(self) -> Tensor:
        """[T · n, H] after every step."""
        return self.space.h.flatten(0, 1)


class MinGRU(WrittenOut):
    """One layer. A row's state is h [H], zero at the start of an episode."""

    def __init__(self, inputs: int, size: int, forget_bias: float = 1.0) -> None:
        super().__init__()
        self.inputs, self.size, self.state_size = inputs, size, size
        self.weight = nn.Parameter(torch.empty(3 * size, inputs))
        self.bias = nn.Parameter(torch.zeros(3 * size))
        self._spaces: dict[tuple[int, int, torch.dtype, torch.device, bool], Space] = {}
        for gate in self.weight.data.chunk(3):
            nn.init.orthogonal_(gate)
        # Gates begin nearly closed: a state lasts about 1 + e^bias steps untrained.
        with torch.no_grad():
            self.bias[:size] = -forget_bias

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[n, inputs], [n, H] → the output [n, H] and the new state."""
        if kernels_for(x):
            from ludus.policies import mingru_triton

            return mingru_triton.mingru_step(torch.mm(x, self.weight.t()), self.bias, state)
        z, o, g = torch.addmm(self.bias, x, self.weight.t()).split(self.size, dim=1)
        h = torch.lerp(state, g.tanh(), z.sigmoid())
        return o.sigmoid() * h, h

    # Whole segments -----------------------------------------------------------------------------
    def run(self, x: Tensor, state: Tensor, keep: Tensor) -> Run:
        """[T · n, inputs] time first, [n, H] before the first step, [T, n]."""
        space = self._space(keep.shape[0], keep.shape[1], x)
        torch.mm(x, self.weight.t(), out=space.gates.flatten(0, 1))
        if kernels_for(x):
            from ludus.policies import mingru_triton

            mingru_triton.mingru_forward(space.gates, self.bias, state, keep, space.h, space.y)
        else:
            self._scan(space, state, keep)
        return Run(x, state, keep, space)

    def _scan(self, space: Space, state: Tensor, keep: Tensor) -> None:
        space.gates.add_(self.bias)
        space.squashed.sigmoid_()
        space.g.tanh_()
        torch.mul(space.z, space.g, out=space.drive)
        torch.sub(1.0, space.z, out=space.decay).mul_(keep[..., None])
        for decay, drive, h in zip(space.decay, space.drive, space.h, strict=True):
            torch.addcmul(drive, decay, state, out=h)
            state = h
        torch.mul(space.o, space.h, out=space.y)

    def backward(self, done: Run, gradient: Tensor, need_inputs: bool = True) -> Tensor | None:
        """Write the parameters' gradients, given that of `output`; returns the inputs' where needed."""
        space, given = done.space, gradient.view_as(done.space.h)
        if kernels_for(done.x):
            from ludus.policies import mingru_triton

            recurrence = (space.gates, self.bias, done.h0, done.keep, space.h)
            bias_gradient = mingru_triton.mingru_backward(*recurrence, given, space.grad_gates)
        else:
            self._scan_back(done, given)
            bias_gradient = space.grad_gates.sum((0, 1))
        assert self.bias.grad is not None
        self.bias.grad.copy_(bias_gradient)
        flat = space.grad_gates.flatten(0, 1)
        torch.mm(flat.t(), done.x, out=self.weight.grad)
        return flat @ self.weight if need_inputs else None

    def _scan_back(self, done: Run, given: Tensor) -> None:
        """The gradient of the gates before their activation. That of the output is overwritten by all of it."""
        space = done.space
        torch.mul(given, space.h, out=space.grad_o)
        given.mul_(space.o)
        for t in range(len(given) - 2, -1, -1):
            given[t].addcmul_(space.decay[t + 1], given[t + 1])
        before = torch.cat([done.h0[None], space.h[:-1]]).mul_(done.keep[..., None])
        torch.mul(given, torch.sub(space.g, before, out=before), out=space.grad_z)
        torch.mul(given, space.z, out=space.grad_g)
        slope = space.grad_squashed
        _aten.sigmoid_backward.grad_input(slope, space.squashed, grad_input=slope)
        _aten.tanh_backward.grad_input(space.grad_g, space.g, grad_input=space.grad_g)

    def numbers_of_a_step(self) -> tuple[int, int]:
        """(held of each step, passed back at most at a time) in a gradient step."""
        plain = not has_kernels(self.bias.device)
        # Held: gates, their gradients, h and y; without kernels what decays and what drives. Passed back: the
        # gradient of the output; beside it h before each step, then the gradient of the input.
        return (3 + 3 + 2 + 2 * plain) * self.size, self.size + max(plain * self.size, self.inputs)

    def _space(self, steps: int, n: int, x: Tensor) -> Space:
        key = (steps, n, x.dtype, x.device, kernels_for(x))
        if key not in self._spaces:
            self._spaces[key] = Space(steps, n, self.size, x)
        return self._spaces[key]
