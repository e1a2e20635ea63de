"""A long short-term memory (Hochreiter & Schmidhuber 1997) with exact resets and its gradient written out.

    i, f, o = σ(·), g = tanh(·) of  W_x x_t + W_h h' + b        h', c' = h_{t−1}, c_{t−1}; zero where an
    c_t = f c' + i g,   h_t = o tanh(c_t)                       episode ended just before step t

One set of weights serves acting (`step`) and learning (`run` and `backward` over whole segments). All that does
not depend on the step before, the products with W_x and every weight's gradient, is one large product.
"""

import importlib.util
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ludus.policies.mlp import WrittenOut

_aten = torch.ops.aten
_HAS_TRITON = importlib.util.find_spec("triton") is not None


class StepViews(NamedTuple):
    """One step of a pass without kernels: making these views anew would cost as much as a small network."""

    gates: Tensor  # [n, 4 H] i, f, o, g
    squashed: Tensor  # i, f, o
    i: Tensor
    f: Tensor
    o: Tensor
    g: Tensor
    c: Tensor
    tanh_c: Tensor
    h: Tensor
    grad_gates: Tensor  # and its parts
    grad_squashed: Tensor
    grad_i: Tensor
    grad_f: Tensor
    grad_o: Tensor
    grad_g: Tensor


class Space:
    """Room for a pass over n segments of T steps, kept for the next: fresh large tensors would cost too much."""

    def __init__(self, steps: int, n: int, size: int, like: Tensor) -> None:
        plain = not kernels_for(like)
        widths = (4, 4, 1, 1, 1 if plain else 0)
        with torch.inference_mode(False):  # usable in any mode
            self.gates, self.grad_gates, self.h, self.c, self.tanh_c = (
                torch.empty((steps, n, width * size), dtype=like.dtype, device=like.device) for width in widths
            )
        self.steps = [self._views(t, size) for t in range(steps)] if plain else []

    def _views(self, t: int, size: int) -> StepViews:
        gates, grad_gates = self.gates[t], self.grad_gates[t]
        squashed, grad_squashed = gates[:, : 3 * size], grad_gates[:, : 3 * size]
        i, f, o, g = gates.split(size, dim=1)
        grads = grad_gates.split(size, dim=1)
        state = self.c[t], self.tanh_c[t], self.h[t]
        return StepViews(gates, squashed, i, f, o, g, *state, grad_gates, grad_squashed, *grads)


@dataclass
class Run:
    """A pass, with what its gradient needs. The next pass of the same shape overwrites it."""

    x: Tensor  # [T · n, inputs] time first
    h0: Tensor  # [n, H] before the first step
    c0: Tensor  # [n, H]
    keep: Tensor  # [T, n] 0 where the state was reset before the step, else 1
    resets: list[Tensor | None]  # the same for each step, [n, 1]; None where no row was reset
    space: Space

    @property
    def output(self) -> Tensor:
        """[T · n, H]"""
        return self.space.h.flatten(0, 1)

    @property
    def output_before(self) -> Tensor:
        """[T · n, H] what each step was given of the one before it."""
        before = torch.cat([self.h0[None], self.space.h[:-1]])
        return before.mul_(self.keep[..., None]).flatten(0, 1)

    @property
    def last_state(self) -> Tensor:
        """[n, 2 H] after the last step."""
        return torch.cat([self.space.h[-1], self.space.c[-1]], dim=1)

    @property
    def states(self) -> Tensor:
        """[T · n, 2 H] after every step."""
        return torch.cat([self.space.h, self.space.c], dim=2).flatten(0, 1)


class LSTM(WrittenOut):
    """One layer. A row's state is one vector [2 H]: h, then c; zero at the start of an episode."""

    own = ("weight_x", "weight_h", "bias")

    def __init__(self, inputs: int, size: int, forget_bias: float = 1.0) -> None:
        super().__init__()
        self.inputs, self.size, self.state_size = inputs, size, 2 * size
        self.weight_x = nn.Parameter(torch.empty(4 * size, inputs))
        self.weight_h = nn.Parameter(torch.empty(4 * size, size))
        self.bias = nn.Parameter(torch.empty(4 * size))
        self._spaces: dict[tuple[int, int, torch.dtype, torch.device, bool], Space] = {}
        self._initialise(forget_bias)

    def _initialise(self, forget_bias: float) -> None:
        """Orthogonal, gate by gate. Forget gates begin open: a state lasts about 1 + e^bias steps untrained."""
        for weight in (self.weight_x, self.weight_h):
            for gate in weight.data.chunk(4):
                nn.init.orthogonal_(gate)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[self.size : 2 * self.size] = forget_bias

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[n, inputs], [n, 2 H] → the output [n, H] and the new state."""
        h, c = state.split(self.size, dim=1)
        gates = torch.mm(x, self.weight_x.t())
        if kernels_for(x):
            from ludus.policies import lstm_triton

            new = torch.empty_like(state)
            new_h, new_c = new.split(self.size, dim=1)
            lstm_triton.lstm_step(gates.add_(self.bias), self.weight_h, h, c, new_h, new_c, _precision())
            return new_h, new
        # In place and the bias last: adding to a product would copy what is added.
        gates.addmm_(h, self.weight_h.t()).add_(self.bias)
        i, f, o = gates[:, : 3 * self.size].sigmoid().split(self.size, dim=1)
        c = torch.addcmul(f * c, i, gates[:, 3 * self.size :].tanh())
        h = o * c.tanh()
        return h, torch.cat([h, c], dim=1)

    # Whole segments -----------------------------------------------------------------------------
    def run(self, x: Tensor, state: Tensor, keep: Tensor) -> Run:
        """[T · n, inputs] time first, [n, 2 H] before the first step, [T, n]."""
        h0, c0 = state.split(self.size, dim=1)
        space = self._space(keep.shape[0], keep.shape[1], x)
        done = Run(x, h0, c0, keep, [] if kernels_for(x) else _resets(keep), space)
        torch.mm(x, self.weight_x.t(), out=space.gates.flatten(0, 1)).add_(self.bias)
        if kernels_for(x):
            from ludus.policies import lstm_triton

            lstm_triton.lstm_forward(space.gates, self.weight_h, h0, c0, keep, space.h, space.c, _precision())
        else:
            self._scan(done)
        return done

    def _scan(self, done: Run) -> None:
        h, c, recurrent = done.h0, done.c0, self.weight_h.t()
        for step, keep in zip(done.space.steps, done.resets, strict=True):
            if keep is not None:
                h, c = h * keep, c * keep
            step.gates.addmm_(h, recurrent)
            step.squashed.sigmoid_()
            step.g.tanh_()
            torch.mul(step.f, c, out=step.c)
            step.c.addcmul_(step.i, step.g)
            torch.tanh(step.c, out=step.tanh_c)
            torch.mul(step.o, step.tanh_c, out=step.h)
            h, c = step.h, step.c

    def backward(self, done: Run, gradient: Tensor, need_inputs: bool = True) -> Tensor | None:
        """Write the parameters' gradients, given that of `output`; returns the inputs' where needed."""
        space = done.space
        grad_h = gradient.view_as(space.h)
        if kernels_for(done.x):
            from ludus.policies import lstm_triton

            recurrence = (space.gates, space.c, done.c0, done.keep, self.weight_h)
            lstm_triton.lstm_backward(grad_h, *recurrence, space.grad_gates, _precision())
        else:
            self._scan_back(done, grad_h)
        flat = space.grad_gates.flatten(0, 1)
        torch.mm(flat.t(), done.x, out=self.weight_x.grad)
        torch.mm(flat.t(), done.output_before, out=self.weight_h.grad)
        torch.sum(flat, 0, out=self.bias.grad)
        return flat @ self.weight_x if need_inputs else None

    def _scan_back(self, done: Run, grad_h: Tensor) -> None:
        """The gradient of the gates before their activation, from the last step to the first."""
        steps, recurrent = done.space.steps, self.weight_h
        before = [done.c0, *(step.c for step in steps[:-1])]
        dh, dc = torch.zeros_like(steps[0].h), torch.zeros_like(steps[0].h)
        for step, c, keep, given in reversed(list(zip(steps, before, done.resets, grad_h.unbind(), strict=True))):
            dh += given
            torch.mul(dh, step.tanh_c, out=step.grad_o)
            dc += _aten.tanh_backward(dh.mul_(step.o), step.tanh_c)
            torch.mul(dc, step.g, out=step.grad_i)
            torch.mul(dc, c if keep is None else c * keep, out=step.grad_f)
            torch.mul(dc, step.i, out=step.grad_g)
            slope = step.grad_squashed
            _aten.sigmoid_backward.grad_input(slope, step.squashed, grad_input=slope)
            _aten.tanh_backward.grad_input(step.grad_g, step.g, grad_input=step.grad_g)
            dc *= step.f
            torch.mm(step.grad_gates, recurrent, out=dh)
            if keep is not None:
                dc *= keep
                dh *= keep

    def numbers_of_a_step(self) -> tuple[int, int]:
        """(held of each step, passed back at most at a time) in a gradient step."""
        plain = not has_kernels(self.bias.device)
        held = (4 + 4 + 2 + plain) * self.size  # gates, their gradients, c and h; without kernels tanh of c
        # The gradient of the output; beside it h before each step, then the gradient of the input.
        return held, self.size + max(self.size, self.inputs)

    def _space(self, steps: int, n: int, x: Tensor) -> Space:
        key = (steps, n, x.dtype, x.device, kernels_for(x))
        if key not in self._spaces:
            self._spaces[key] = Space(steps, n, self.size, x)
        return self._spaces[key]


def _resets(keep: Tensor) -> list[Tensor | None]:
    if keep.device.type != "cpu":
        return list(keep[..., None].unbind())  # asking would wait for the device
    any_reset = (keep == 0).any(1).tolist()
    return [step if reset else None for step, reset in zip(keep[..., None].unbind(), any_reset, strict=True)]


def kernels_for(x: Tensor) -> bool:
    """On a GPU the recurrence runs in kernels of its own, which autograd does not see; else step by step."""
    return has_kernels(x.device) and x.dtype == torch.float32 and not torch.is_grad_enabled()


def has_kernels(device: torch.device) -> bool:
    return _HAS_TRITON and device.type == "cuda"


def _precision() -> Literal["float32", "tf32", "bf16"]:
    """Of the kernels' products: what torch's own are allowed."""
    allowed = {"highest": "float32", "high": "tf32", "medium": "bf16"}
    return allowed[torch.get_float32_matmul_precision()]  # type: ignore[return-value]
