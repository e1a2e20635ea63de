"""A long short-term memory (Hochreiter & Schmidhuber 1997) with exact resets and its gradient written out.

    i, f, o = σ(·), g = tanh(·) of  W_x x_t + W_h h' + b        h', c' = h_{t−1}, c_{t−1}; zero where an
    c_t = f c' + i g,   h_t = o tanh(c_t)                       episode ended just before step t

One set of weights serves acting (`step`) and learning (`run` and `backward` over whole segments). All that does
not depend on the step before, the products with W_x and every weight's gradient, is one large product.
"""

import importlib.util
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

_aten = torch.ops.aten
_HAS_TRITON = importlib.util.find_spec("triton") is not None


@dataclass
class Run:
    """A pass over n segments of T steps, time first, with what its gradient needs."""

    x: Tensor  # [T · n, inputs]
    gates: Tensor  # [T, n, 4 H] i, f, o, g
    c: Tensor  # [T, n, H]
    tanh_c: Tensor  # [T, n, H]; empty on a GPU
    h: Tensor  # [T, n, H]
    h0: Tensor  # [n, H] before the first step
    c0: Tensor  # [n, H]
    keep: Tensor  # [T, n] 0 where the state was reset before the step, else 1
    resets: list[bool]  # whether any row was, at each step

    @property
    def output(self) -> Tensor:
        """[T · n, H]"""
        return self.h.flatten(0, 1)

    @property
    def last_state(self) -> Tensor:
        """[n, 2 H] after the last step."""
        return torch.cat([self.h[-1], self.c[-1]], dim=1)


class LSTM(nn.Module):
    """One layer. A row's state is one vector [2 H]: h, then c; zero at the start of an episode."""

    def __init__(self, inputs: int, size: int) -> None:
        super().__init__()
        self.inputs, self.size, self.state_size = inputs, size, 2 * size
        self.weight_x = nn.Parameter(torch.empty(4 * size, inputs))
        self.weight_h = nn.Parameter(torch.empty(4 * size, size))
        self.bias = nn.Parameter(torch.empty(4 * size))
        self._spaces: dict[tuple[int, int, torch.dtype, torch.device], tuple[Tensor, ...]] = {}
        self.initialise()

    def initialise(self) -> None:
        """Orthogonal, gate by gate; the forget gates begin open, so that a state lasts some steps."""
        for weight in (self.weight_x, self.weight_h):
            for gate in weight.data.chunk(4):
                nn.init.orthogonal_(gate)
        nn.init.zeros_(self.bias)
        with torch.no_grad():
            self.bias[self.size : 2 * self.size] = 1.0

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """[n, inputs], [n, 2 H] → the output [n, H] and the new state."""
        h, c = state.split(self.size, dim=1)
        gates = torch.mm(x, self.weight_x.t())
        if _kernels_for(x):
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
        # On a GPU asking would wait for the device; there every step multiplies by `keep`.
        resets = (keep == 0).any(1).tolist() if keep.device.type == "cpu" else [True] * len(keep)
        gates, c, tanh_c, h = self._space(keep.shape[0], keep.shape[1], x)
        done = Run(x, gates, c, tanh_c, h, h0, c0, keep, resets)
        torch.mm(x, self.weight_x.t(), out=done.gates.flatten(0, 1)).add_(self.bias)
        if _kernels_for(x):
            from ludus.policies import lstm_triton

            places = (done.h, done.c)
            lstm_triton.lstm_forward(done.gates, self.weight_h, h0, c0, keep, *places, _precision())
            return done
        h, c, recurrent = h0, c0, self.weight_h.t()
        for t, (gates, h_t, c_t, tanh_c) in enumerate(zip(done.gates, done.h, done.c, done.tanh_c, strict=True)):
            if done.resets[t]:
                h, c = h * keep[t][:, None], c * keep[t][:, None]
            gates.addmm_(h, recurrent)
            _cell(gates, c, h_t, c_t, tanh_c)
            h, c = h_t, c_t
        return done

    def backward(self, done: Run, gradient: Tensor, need_inputs: bool = True) -> Tensor | None:
        """Write the parameters' gradients, given that of `output`; returns the inputs' where needed."""
        steps, n = done.keep.shape
        grad_h = gradient.view(steps, n, self.size)
        if _kernels_for(done.x):
            from ludus.policies import lstm_triton

            grad_gates = torch.empty_like(done.gates)
            recurrence = (done.gates, done.c, done.c0, done.keep, self.weight_h)
            lstm_triton.lstm_backward(grad_h, *recurrence, grad_gates, _precision())
        else:
            grad_gates = self._scan_back(done, grad_h)
        flat = grad_gates.flatten(0, 1)
        before = torch.cat([done.h0[None], done.h[:-1]])
        before.mul_(done.keep[..., None])
        torch.mm(flat.t(), done.x, out=self.weight_x.grad)
        torch.mm(flat.t(), before.flatten(0, 1), out=self.weight_h.grad)
        torch.sum(flat, 0, out=self.bias.grad)
        return flat @ self.weight_x if need_inputs else None

    def _scan_back(self, done: Run, grad_h: Tensor) -> Tensor:
        """[T, n, 4 H] gradient of the gates before their activation, from the last step to the first."""
        size = self.size
        grad_gates = torch.empty_like(done.gates)
        dh, dc = torch.zeros_like(done.h[0]), torch.zeros_like(done.h[0])
        for t in range(grad_h.shape[0] - 1, -1, -1):
            keep = done.keep[t][:, None] if done.resets[t] else None
            gates, out, tanh_c = done.gates[t], grad_gates[t], done.tanh_c[t]
            i, f, o, g = gates.split(size, dim=1)
            out_i, out_f, out_o, out_g = out.split(size, dim=1)
            dh += grad_h[t]
            torch.mul(dh, tanh_c, out=out_o)
            dc += _aten.tanh_backward(dh.mul_(o), tanh_c)
            c_before = done.c[t - 1] if t else done.c0
            torch.mul(dc, g, out=out_i)
            torch.mul(dc, c_before if keep is None else c_before * keep, out=out_f)
            torch.mul(dc, i, out=out_g)
            squashed, slope = gates[:, : 3 * size], out[:, : 3 * size]
            _aten.sigmoid_backward.grad_input(slope, squashed, grad_input=slope)
            _aten.tanh_backward.grad_input(out_g, g, grad_input=out_g)
            dc *= f
            torch.mm(out, self.weight_h, out=dh)
            if keep is not None:
                dc *= keep
                dh *= keep
        return grad_gates

    def _space(self, steps: int, n: int, x: Tensor) -> tuple[Tensor, ...]:
        """Room for gates, c, tanh c and h of a pass, allocated once a shape and used by every pass of it.

        Fresh large tensors would cost as much as the arithmetic.
        """
        key = (steps, n, x.dtype, x.device)
        if key not in self._spaces:
            widths = (4, 1, 0 if _kernels_for(x) else 1, 1)
            with torch.inference_mode(False):  # usable in any mode
                self._spaces[key] = tuple(
                    torch.empty((steps, n, width * self.size), dtype=x.dtype, device=x.device) for width in widths
                )
        return self._spaces[key]


def _cell(gates: Tensor, c: Tensor, new_h: Tensor, new_c: Tensor, tanh_c: Tensor) -> None:
    """Activate `gates` in place; write the new state."""
    size = c.shape[1]
    gates[:, : 3 * size].sigmoid_()
    gates[:, 3 * size :].tanh_()
    i, f, o, g = gates.split(size, dim=1)
    torch.mul(f, c, out=new_c)
    new_c.addcmul_(i, g)
    torch.tanh(new_c, out=tanh_c)
    torch.mul(o, tanh_c, out=new_h)


def _kernels_for(x: Tensor) -> bool:
    """On a GPU the recurrence runs in kernels of its own, which autograd does not see."""
    return _HAS_TRITON and x.is_cuda and x.dtype == torch.float32 and not torch.is_grad_enabled()


def _precision() -> Literal["float32", "tf32", "bf16"]:
    """Of the kernels' products: what torch's own are allowed."""
    allowed = {"highest": "float32", "high": "tf32", "medium": "bf16"}
    return allowed[torch.get_float32_matmul_precision()]  # type: ignore[return-value]
