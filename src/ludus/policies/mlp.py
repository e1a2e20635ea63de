"""Fully connected trunks whose gradient is written out.

Small networks are bound by the number of calls, not by arithmetic. Taking the gradient layer by layer
into preallocated buffers makes a third of the calls that a taped backward pass makes; the tests hold it
against autograd.
"""

import itertools
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus.errors import ConfigError
from ludus.policies.config import Activation

# In place, on what a layer has just made: fresh memory for every activation costs as much as computing it.
ACTIVATIONS = {"tanh": torch.tanh_, "relu": torch.relu_, "elu": torch.nn.functional.elu_}

_ALIGNED = 16  # bytes
_WIDE, _MANY_ROWS = 128, 1024  # what is worth a copy
_HALVED = 512  # what is worth two: layers so wide multiply much faster in bfloat16


def laid_out_as(like: Tensor, flat: Tensor) -> Tensor:
    """A view of `flat` with the shape of `like`; filters of images keep their order in memory, which is quick."""
    if like.ndim == 4 and like.is_contiguous(memory_format=torch.channels_last):
        return flat.as_strided(like.shape, like.stride())
    return flat.view_as(like)


class WrittenOut(nn.Module):
    """Parameters whose gradient is written out: nothing may stand between them and their use.

    A weight or spectral norm, or pruning, puts something there. Its part of the gradient would be missing.
    """

    own: ClassVar[tuple[str, ...]] = ("weight", "bias")

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if name not in self.own:
            raise self._refusal(name)
        super().register_parameter(name, param)
        parts = tuple(self._parameters.get(name) for name in self.own)
        # Plain attributes: looking a parameter up in a module costs as much as a small kernel.
        object.__setattr__(self, "_parts", parts)

    def __delattr__(self, name: str) -> None:
        if name in self.own:
            raise self._refusal(name)
        super().__delattr__(name)

    def _refusal(self, name: str) -> ConfigError:
        return ConfigError(
            f"{type(self).__name__} cannot have its {name} parametrised (weight or spectral norm, pruning): its "
            "gradient is written out for plain weights. Use torch.nn.Linear in a network of your own instead."
        )


class Dense(WrittenOut, nn.Linear):
    """A linear layer whose gradient can be written out."""

    def forward(self, x: Tensor) -> Tensor:
        """`x` may be `widened`, and coarser than the weights: so is then the output."""
        weight, bias = self._parts
        if x.dtype != weight.dtype:
            weight, bias = weight.to(x.dtype), bias.to(x.dtype)  # type: ignore[assignment]
        added = x.shape[-1] - self.in_features
        if added and added == _missing(self.in_features, x.dtype):
            return F.linear(x, F.pad(weight, (0, added)), bias)
        return F.linear(x, weight, bias)

    def write_gradient(self, x: Tensor, gradient: Tensor) -> None:
        """Overwrite the parameters' `.grad`, which the optimiser has allocated, from that of the output."""
        weight, bias = self._parts
        if x.shape[1] == self.in_features and x.dtype == weight.dtype:
            torch.mm(gradient.t(), x, out=weight.grad)
        else:
            assert weight.grad is not None
            weight.grad.copy_(torch.mm(gradient.t(), x)[:, : self.in_features])
        torch.sum(gradient, 0, dtype=bias.dtype, out=bias.grad)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        return gradient @ self._parts[0].to(gradient.dtype)

    _parts: tuple[nn.Parameter, nn.Parameter]


def widened(x: Tensor) -> Tensor:
    """On a GPU many wide rows get columns of zeros, until they are as wide as tensor cores read them fast."""
    missing = _missing(x.shape[-1], x.dtype)
    if not x.is_cuda or not missing or x.shape[-1] < _WIDE or len(x) < _MANY_ROWS:
        return x
    return F.pad(x, (0, missing))


def _missing(size: int, dtype: torch.dtype) -> int:
    """How many numbers more are a multiple of what tensor cores read at once."""
    return -size % (_ALIGNED // dtype.itemsize)


class MLP(nn.Module):
    """Linear layers, each followed by the activation."""

    def __init__(self, size: int, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.inputs = size
        self.widths = hidden
        sizes = [size, *hidden]
        self.layers = nn.ModuleList(Dense(a, b) for a, b in itertools.pairwise(sizes))
        self._layers: list[Dense] = list(self.layers)  # type: ignore[arg-type]
        self._halved = min(hidden, default=0) >= _HALVED
        self.features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.outputs(x)[-1]

    def outputs(self, x: Tensor) -> list[Tensor]:
        """The input and every layer's output: what `backward` needs. All but the last may be bfloat16."""
        if not self._layers:
            return [x]
        dtype = x.dtype
        x = widened(x.bfloat16() if self._halves(x) else x)
        activation, outputs = ACTIVATIONS[self.activation], [x]
        for layer in self._layers:
            x = activation(layer.forward(x))
            outputs.append(x)
        outputs[-1] = x.to(dtype)
        return outputs

    def _halves(self, x: Tensor) -> bool:
        """Whether factors are rounded to bfloat16, as `--precision` asks: where that is faster."""
        large = self._halved and x.is_cuda and len(x) >= _MANY_ROWS
        return large and torch.get_float32_matmul_precision() == "medium"

    def backward(self, outputs: list[Tensor], gradient: Tensor, need_inputs: bool = False) -> Tensor | None:
        """Write the parameters' gradients, given that of the last output; returns the input's if it is needed."""
        for i in range(len(self._layers) - 1, -1, -1):
            gradient = through_activation(self.activation, gradient, outputs[i + 1]).to(outputs[i].dtype)
            self._layers[i].write_gradient(outputs[i], gradient)
            if i or need_inputs:
                gradient = self._layers[i].input_gradient(gradient)
        return gradient.to(outputs[-1].dtype) if need_inputs else None

    def numbers_of_a_step(self) -> tuple[int, int]:
        """How many numbers are held of each step, and how many more while gradients are passed back."""
        added = _missing(self.inputs, torch.float32) if self.inputs >= _WIDE else 0  # to a copy, on a GPU
        copied = self.inputs + added if added else 0
        return self.inputs + copied + sum(self.widths), 2 * max(self.widths, default=0)


def through_activation(activation: Activation, gradient: Tensor, output: Tensor) -> Tensor:
    """The gradient of what was activated, in place: that of the output is needed no longer."""
    backward = torch.ops.aten
    if activation == "tanh":
        return backward.tanh_backward.grad_input(gradient, output, grad_input=gradient)
    if activation == "relu":
        return backward.threshold_backward.grad_input(gradient, output, 0.0, grad_input=gradient)
    assert activation == "elu", f"the gradient of {activation!r} is not known"
    return backward.elu_backward.grad_input(gradient, 1.0, 1.0, 1.0, True, output, grad_input=gradient)


class StackedMLP(nn.Module):
    """Networks of the same shape side by side, each [in → hidden … → 1]: one call a layer for all of them."""

    def __init__(self, count: int, size: int, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.count, self.inputs, self.activation = count, size, activation
        layers = [Stacked(count, a, b) for a, b in itertools.pairwise([size, *hidden, 1])]
        self.layers = nn.ModuleList(layers)
        self._layers = layers

    def outputs(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """([input, every layer's output], values [count, n]) of inputs [n, size]: what `backward` needs."""
        activate = ACTIVATIONS[self.activation]
        x = x.expand(self.count, *x.shape)
        outputs = [x]
        for layer in self._layers[:-1]:
            x = activate(layer.forward(x))
            outputs.append(x)
        return outputs, self._layers[-1].forward(x).squeeze(-1)

    def backward(self, outputs: list[Tensor], gradient: Tensor, trained: int, need_inputs: bool = False) -> Tensor:
        """Write the gradients due to the first `trained` rows, given that of the values [count, n].

        Returns the gradient of the other rows' inputs, [n − trained, size], or if it is needed of all rows'.
        """
        gradient = gradient[..., None]
        for i in range(len(self._layers) - 1, -1, -1):
            if i < len(self._layers) - 1:
                gradient = through_activation(self.activation, gradient, outputs[i + 1])
            self._layers[i].write_gradient(outputs[i][:, :trained], gradient[:, :trained])
            gradient = self._layers[i].input_gradient(gradient if i or need_inputs else gradient[:, trained:])
        return gradient.sum(0)


class Stacked(WrittenOut):
    """`count` linear layers in one."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = inputs**-0.5  # as in torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(count, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._parts
        return torch.baddbmm(bias, x, weight)

    def write_gradient(self, x: Tensor, gradient: Tensor) -> None:
        weight, bias = self._parts
        torch.bmm(x.transpose(1, 2), gradient, out=weight.grad)
        torch.sum(gradient, 1, keepdim=True, out=bias.grad)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        return torch.bmm(gradient, self._parts[0].transpose(1, 2))

    _parts: tuple[nn.Parameter, nn.Parameter]
