"""What a network sees of prepared rows: vectors side by side, images as channels × height × width in 0 … 1."""

from typing import NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.row_space import ONLY_PART, Part, RowSpace, parts_of
from ludus.errors import ConfigError, did_you_mean

# Prepared rows, or (for an export, which cannot look at bytes as numbers) their parts by name.
Prepared = Tensor | dict[str, Tensor]


class Apart(NamedTuple):
    """Prepared rows without images, and their masks in memory of their own: many small steps use them again.

    As columns of the same rows, both would cost each of those steps a split, and its calls more time.
    """

    seen: Tensor  # [n, numbers]
    mask: Tensor  # [n, choices] 1 where an action is valid, else 0

    def chunk(self, parts: int) -> tuple["Apart", ...]:
        return tuple(Apart(*pair) for pair in zip(self.seen.chunk(parts), self.mask.chunk(parts), strict=True))


class Reader:
    """The parts of a row that one network sees; all of them but the mask, if none are named."""

    def __init__(self, space: gym.spaces.Box, names: tuple[str, ...] = ()) -> None:
        self.space = space
        known = {part.name: part for part in parts_of(space) if part.kind != "mask"}
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f" There are: {', '.join(known)}."
                raise ConfigError(f"Observations have no part {name!r}.{hint}")
        seen = [part for name, part in known.items() if not names or name in names]
        self._vectors = [part for part in seen if part.kind == "vector"]
        self._images = [part for part in seen if part.kind == "image"]
        self.numbers = sum(part.size for part in self._vectors)
        self.image_shapes = {part.name: channels_first_shape(part.shape) for part in self._images}
        self._scales = {part.name: 1 / _largest(part) for part in self._images}
        own = [space.columns_of(part) for part in self._vectors] if isinstance(space, RowSpace) else [slice(None)]
        self._columns = _joined(own)
        self._is_packed = isinstance(space, RowSpace) and space.packed

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each part as a network of the user's sees it."""
        return {part.name: _shape_of(part) for part in self._vectors} | self.image_shapes

    @property
    def has_one_part(self) -> bool:
        return not isinstance(self.space, RowSpace)

    def numbers_of(self, x: Prepared) -> Tensor:
        """[n, numbers] the vectors, side by side."""
        if isinstance(x, dict):
            return torch.cat([x[part.name] for part in self._vectors], 1)
        numbers = _numbers(self.space, x) if self._is_packed else x  # other rows begin with their vectors
        if numbers.shape[1] == self.numbers:
            return numbers
        pieces = [numbers[:, columns] for columns in self._columns]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def images_of(self, x: Prepared) -> dict[str, Tensor]:
        """[n, channels, height, width] each."""
        return {
            part.name: to_unit(self._raw_image(x, part), part.shape, self._scales[part.name])
            for part in self._images
        }

    def _raw_image(self, x: Prepared, part: Part) -> Tensor:
        if isinstance(x, dict):
            return x[part.name]
        return self.space.part_of(x, part) if isinstance(self.space, RowSpace) else x

    def parts_of(self, x: Prepared) -> dict[str, Tensor]:
        """Every part by its name, each in its own shape."""
        shapes, parts = self.shapes, self.images_of(x)
        if not self._vectors:
            return parts
        pieces = self.numbers_of(x).split([part.size for part in self._vectors], 1)
        named = zip(self._vectors, pieces, strict=True)
        return {part.name: piece.unflatten(1, shapes[part.name]) for part, piece in named} | parts

    def for_module(self, x: Prepared) -> Tensor | dict[str, Tensor]:
        """What a network of the user's is called with."""
        parts = self.parts_of(x)
        return parts[ONLY_PART] if self.has_one_part else parts


def _numbers(space: gym.spaces.Box, x: Tensor) -> Tensor:
    assert isinstance(space, RowSpace)
    return space.numbers_of(x)


def _shape_of(part: Part) -> tuple[int, ...]:
    """Of a vector: that of its space, where this is not a choice seen as a one in a row of zeros."""
    shape = part.space.shape or ()
    return tuple(shape) if int(np.prod(shape)) == part.size and shape else part.shape


def _joined(slices: list[slice]) -> list[slice]:
    """Neighbours made one."""
    joined: list[slice] = []
    for piece in slices:
        if joined and joined[-1].stop == piece.start:
            joined[-1] = slice(joined[-1].start, piece.stop)
        else:
            joined.append(piece)
    return joined


# Images -------------------------------------------------------------------------------------------
def channels_first_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of an image; frames that are stacked count as channels."""
    *stack, a, b, c = shape
    channels, height, width = (a, b, c) if channels_are_first(shape) else (c, a, b)
    return int(np.prod(stack)) * channels, height, width


def channels_are_first(shape: tuple[int, ...]) -> bool:
    """Of two sides that are equal beside a third, the third; else the channels are fewer than the pixels."""
    first, middle, last = shape[-3:]
    if (first == middle) != (middle == last):
        return middle == last
    return first < last


def _largest(part: Part) -> float:
    assert isinstance(part.space, gym.spaces.Box)
    return float(np.max(part.space.high)) or 1.0


def to_unit(image: Tensor, shape: tuple[int, ...], scale: float) -> Tensor:
    """[n, *shape] bytes → [n, channels, height, width] in 0 … 1."""
    if not channels_are_first(shape):
        image = image.movedim(-1, -3)
    if image.ndim == 5:
        image = image.flatten(1, 2)
    return image.to(torch.get_default_dtype()).mul_(scale)
