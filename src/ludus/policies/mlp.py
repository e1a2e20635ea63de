"""Fully connected trunks whose gradient is written out.

Small networks are bound by the number of calls, not by arithmetic. Taking the gradient layer by layer
into preallocated buffers makes a third of the calls that a taped backward pass makes; the tests hold it
against autograd.
"""

import itertools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Activation = Literal["tanh", "relu", "elu"]
_FORWARD = {"tanh": torch.tanh, "relu": torch.relu, "elu": F.elu}


class MLP(nn.Module):
    """Linear layers, each followed by the activation."""

    def __init__(self, size: int, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        sizes = [size, *hidden]
        self._layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        self.layers = nn.ModuleList(self._layers)
        self.features = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._layers:
            x = _FORWARD[self.activation](layer(x))
        return x

    def outputs(self, x: Tensor) -> list[Tensor]:
        """The input and every layer's output: what `backward` needs."""
        outputs = [x]
        for layer in self._layers:
            outputs.append(_FORWARD[self.activation](F.linear(outputs[-1], layer.weight, layer.bias)))
        return outputs

    def backward(self, outputs: list[Tensor], gradient: Tensor) -> None:
        """Write the parameters' gradients, given that of the last output."""
        for i in range(len(self._layers) - 1, -1, -1):
            gradient = self._through_activation(gradient, outputs[i + 1])
            layer = self._layers[i]
            write_linear_gradient(layer, outputs[i], gradient)
            if i:
                gradient = gradient @ layer.weight

    def _through_activation(self, gradient: Tensor, output: Tensor) -> Tensor:
        if self.activation == "tanh":
            return torch.ops.aten.tanh_backward(gradient, output)
        if self.activation == "relu":
            return torch.ops.aten.threshold_backward(gradient, output, 0.0)
        return torch.ops.aten.elu_backward(gradient, 1.0, 1.0, 1.0, True, output)


def write_linear_gradient(layer: nn.Linear, x: Tensor, gradient: Tensor) -> None:
    """Overwrite the layer's `.grad` tensors; the optimiser has allocated them."""
    assert layer.weight.grad is not None
    torch.mm(gradient.t(), x, out=layer.weight.grad)
    torch.sum(gradient, 0, out=layer.bias.grad)
