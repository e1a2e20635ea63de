"""Convolutional networks for images, by autograd. `ludus.nn` offers them to networks of the user's."""

import itertools
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus.errors import ConfigError
from ludus.policies.config import Activation

CNN = Literal["nature", "residual"]
_SMALL = 36  # pixels; the strides of the Nature network leave nothing of a smaller image


class NatureCNN(nn.Module):
    """Three strided convolutions and a dense layer (Mnih et al. 2015); two plain ones where an image is small.

    `shape` is (channels, height, width), and what `forward` takes is [n, *shape] in 0 … 1.
    """

    def __init__(self, shape: tuple[int, ...], features: int = 256) -> None:
        super().__init__()
        self.features = features
        sizes = [(32, 8, 4), (64, 4, 2), (64, 3, 1)] if min(shape[1:]) >= _SMALL else [(32, 3, 1), (32, 3, 1)]
        channels = [shape[0], *(width for width, _, _ in sizes)]
        layers = [
            nn.Conv2d(a, b, kernel, stride)
            for (a, b), (_, kernel, stride) in zip(itertools.pairwise(channels), sizes, strict=True)
        ]
        self.convolutions = nn.ModuleList(layers)
        self.linear = nn.Linear(_flat_size(self._maps, shape), features)
        _prepare(self)

    def _maps(self, image: Tensor) -> Tensor:
        for layer in self.convolutions:
            image = F.relu(layer(image))
        return image

    def forward(self, image: Tensor) -> Tensor:
        return F.relu(self.linear(self._maps(image).flatten(1)))


class ResidualCNN(nn.Module):
    """Three blocks of a convolution, a halving and two residual units (Espeholt et al. 2018, IMPALA)."""

    def __init__(
        self, shape: tuple[int, ...], features: int = 256, widths: tuple[int, ...] = (16, 32, 32)
    ) -> None:
        super().__init__()
        self.features = features
        self.blocks = nn.Sequential(*(_Block(a, b) for a, b in itertools.pairwise([shape[0], *widths])))
        self.linear = nn.Linear(_flat_size(self.blocks, shape), features)
        _prepare(self)

    def forward(self, image: Tensor) -> Tensor:
        return F.relu(self.linear(F.relu(self.blocks(image)).flatten(1)))


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.units = nn.ModuleList(_Unit(outputs) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x), 3, 2, padding=1)
        for unit in self.units:
            x = unit(x)
        return x


class _Unit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(F.relu(y))
        return x + y


CNNS: dict[str, type[NatureCNN] | type[ResidualCNN]] = {"nature": NatureCNN, "residual": ResidualCNN}


class MixedNet(nn.Module):
    """Images through a convolutional network each, beside vectors, then fully connected layers."""

    def __init__(
        self,
        image_shapes: dict[str, tuple[int, int, int]],
        numbers: int,
        cnn: CNN,
        image_features: int,
        hidden: tuple[int, ...],
        activation: Activation,
    ) -> None:
        super().__init__()
        for name, shape in image_shapes.items():
            if min(shape[1:]) < 7:
                raise ConfigError(f"The image {name!r} is {shape[1]} × {shape[2]} pixels; at least 7 are needed.")
        eyes = [CNNS[cnn](shape, image_features) for shape in image_shapes.values()]
        self.eyes = nn.ModuleList(eyes)
        sizes = [image_features * len(eyes) + numbers, *hidden]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        for layer in self.layers:
            nn.init.orthogonal_(layer.weight, gain=2**0.5)  # type: ignore[arg-type]
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        self.activation = {"tanh": nn.Tanh(), "relu": nn.ReLU(), "elu": nn.ELU()}[activation]
        self.features = sizes[-1]

    def forward(self, images: dict[str, Tensor], numbers: Tensor | None) -> Tensor:
        seen = [eye(image) for eye, image in zip(self.eyes, images.values(), strict=True)]
        x = torch.cat(seen if numbers is None else [*seen, numbers], 1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


def _flat_size(maps: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> int:
    with torch.no_grad():
        return maps(torch.zeros((1, *shape))).numel()


def _prepare(module: nn.Module) -> None:
    """Orthogonal weights, in the order in memory that images have: on a CPU that is ten times as fast."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, gain=2**0.5)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
