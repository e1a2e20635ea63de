"""Pictures as a few numbers: encoders that learn along, or fixed ones computed once per frame.

Images are uint8 [n, height, width, 3], as they are stored. Read as channels × height × width that is the
channels-last layout, so that the step to float is the only copy before the first convolution.
"""

from typing import Literal

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus.envs.row_space import RowSpace, parts_of
from ludus.errors import ConfigError
from ludus.policies.reader import channels_are_first, channels_first_shape

EncoderKind = Literal["conv", "frozen"]
_SMALL = 64  # pixels; a larger picture is first shrunk by four, a smaller by two


class ConvEncoder(nn.Module):
    """Three strided convolutions, then where each channel responds (spatial softmax) and how strongly.

    Where something is in the picture is what robot tasks ask for. Places take a few per cent of the parameters
    of a dense layer over all positions, whatever the size of the picture, and move smoothly with what is seen,
    so that the difference between two frames means something. From a hundred returns such a layer learned the
    returns by heart, and places the reward.
    """

    _WIDTHS = (32, 32, 64)

    def __init__(self, shape: tuple[int, ...], features: int) -> None:
        super().__init__()
        self.shape, self.features = _check_shape(shape), features
        first, (a, b, c) = _first_stride(shape), self._WIDTHS
        layers = [
            nn.Conv2d(3, a, _kernel(first), first, padding=1),
            nn.Conv2d(a, b, 3, 2, padding=1),
            nn.Conv2d(b, c, 3, 1, padding=1),
        ]
        self.convolutions = nn.ModuleList(layers)
        self.linear = nn.Linear(3 * c, features)
        self.norm = nn.LayerNorm(features)
        for layer in layers:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)

    def maps(self, images: Tensor) -> Tensor:
        """[n, channels, h, w] responses of the last convolution."""
        x = to_float(images)
        for layer in self.convolutions:
            x = F.relu(layer(x))
        return x

    def forward(self, images: Tensor) -> Tensor:
        """[n, height, width, 3] uint8 → [n, features] of about unit size."""
        return self.norm(self.linear(where_and_how_much(self.maps(images))))


class FrozenEncoder(nn.Module):
    """Two fixed random convolutions, then where and how strongly each channel responds.

    Nothing is learned, so a frame's features never change and whoever stores frames can keep them instead. The
    seed alone determines the weights; they are saved too, so that a checkpoint does not depend on torch's
    random numbers. The places of random filters' responses follow what moves in a picture; averages over a grid,
    projected to as many numbers, kept a third of the correlation with the true reward.
    """

    _WIDTH = 32

    first: Tensor
    second: Tensor

    def __init__(self, shape: tuple[int, ...], features: int, seed: int) -> None:
        super().__init__()
        self.shape, self.features, self.seed = _check_shape(shape), features, seed
        self.stride = _first_stride(shape)
        generator = torch.Generator().manual_seed(seed)
        sizes = {"first": (self._WIDTH, 3, _kernel(self.stride)), "second": (-(-features // 3), self._WIDTH, 3)}
        for name, (outputs, inputs, kernel) in sizes.items():
            weight = torch.randn((outputs, inputs, kernel, kernel), generator=generator)
            # Filters that sum to zero look at edges and colours, not at how bright the whole picture is.
            weight -= weight.mean((1, 2, 3), keepdim=True)
            self.register_buffer(name, weight * (2 / weight[0].numel()) ** 0.5)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """[n, height, width, 3] uint8 → [n, features]."""
        x = F.relu(F.conv2d(to_float(images), self.first, stride=self.stride, padding=1))
        return where_and_how_much(F.conv2d(x, self.second, stride=2, padding=1))[:, : self.features]


def make_encoder(kind: EncoderKind, shape: tuple[int, ...], features: int, seed: int) -> nn.Module:
    if kind == "conv":
        return ConvEncoder(shape, features)
    if kind == "frozen":
        return FrozenEncoder(shape, features, seed)
    raise ConfigError(f"There is no encoder of pictures {kind!r}; conv and frozen are known.")


def to_float(images: Tensor) -> Tensor:
    """[n, h, w, 3] uint8 → [n, 3, h, w] in −1 … 1, channels last."""
    return (images.permute(0, 3, 1, 2) - 127.5).mul_(1 / 127.5)


def where_and_how_much(maps: Tensor) -> Tensor:
    """[n, c, h, w] → [n, 3c]: the mean place of each channel (−1 … 1, by softmax), and its mean."""
    n, c, h, w = maps.shape
    weight = maps.flatten(2).softmax(-1).view(n, c, h, w)
    x = weight.sum(2) @ torch.linspace(-1, 1, w, device=maps.device)
    y = weight.sum(3) @ torch.linspace(-1, 1, h, device=maps.device)
    return torch.cat([x, y, maps.mean((2, 3))], 1)


# Augmentation -----------------------------------------------------------------------------------
def draw_shifts(n: int, pixels: int, generator: torch.Generator) -> Tensor:
    """[n, 2] down and right, each −pixels … pixels."""
    return torch.randint(-pixels, pixels + 1, (n, 2), generator=generator, device=generator.device)


def shift_images(images: Tensor, shifts: Tensor, pixels: int) -> Tensor:
    """Move each image of [n, h, w, channels] by its shift of at most `pixels`; what comes in repeats the border.

    Each row of the result is one run of bytes in the rows widened at both ends, so whole rows are copied.
    """
    n, h, w, c = images.shape
    left, right = (images[:, :, i].unsqueeze(2).expand(-1, -1, pixels, -1) for i in (0, -1))
    wide, width = torch.cat([left, images, right], 2), w + 2 * pixels
    y = (torch.arange(h, device=images.device) - shifts[:, :1]).clamp_(0, h - 1)
    y += torch.arange(0, n * h, h, device=images.device)[:, None]
    runs = wide.as_strided((n * h * width - w + 1, c * w), (c, 1))
    return runs.index_select(0, (y * width + pixels - shifts[:, 1:]).flatten()).view(n, h, w, c)


def shift_observations(space: gym.spaces.Box, rows: Tensor, shifts: Tensor, pixels: int) -> Tensor:
    """Rows whose images are moved, all frames and cameras of a row alike; `rows` may be overwritten."""
    if not isinstance(space, RowSpace):
        return _shift_frames(rows, shifts, pixels)
    for part in space.parts:
        if part.kind == "image":
            image = space.part_of(rows, part)
            image.copy_(_shift_frames(image, shifts, pixels))
    return rows


def _shift_frames(images: Tensor, shifts: Tensor, pixels: int) -> Tensor:
    """The same for [n, *shape] in whatever order channels and stacked frames are."""
    sides = images.shape[-2:] if channels_are_first(images.shape) else images.shape[-3:-1]
    frames = images.reshape(-1, *sides, 1 if channels_are_first(images.shape) else images.shape[-1])
    each = shifts.repeat_interleave(len(frames) // len(images), 0)
    return shift_images(frames, each, pixels).view(images.shape)


def usual_shift(space: gym.spaces.Box) -> int:
    """Pixels: 4 of 84, as in DrQ (Kostrikov et al. 2020, arXiv:2004.13649), and as much of other images."""
    shapes = [channels_first_shape(part.shape) for part in parts_of(space) if part.kind == "image"]
    return round(min((min(shape[1:]) for shape in shapes), default=0) * 4 / 84)


def _first_stride(shape: tuple[int, ...]) -> int:
    return 2 if min(shape[:2]) <= _SMALL else 4


def _kernel(stride: int) -> int:
    """Half a stride of overlap: every pixel is seen, few are seen twice."""
    return 3 * stride // 2


def _check_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 3 or shape[2] != 3 or min(shape[:2]) < 16:
        raise ConfigError(f"an image is height × width × 3, at least 16 pixels each way, not {shape}")
    return shape


def is_image(shape: tuple[int, ...], dtype: str) -> bool:
    return len(shape) == 3 and dtype == "uint8"
