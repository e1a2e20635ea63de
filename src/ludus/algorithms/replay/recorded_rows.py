"""Recorded observations as rows of an environment's: which recorded one is which part."""

import copy
from collections.abc import Collection

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.algorithms.replay.recorded import vector_of
from ludus.data.episode import Episode
from ludus.data.reading import DataSummary
from ludus.envs.row_space import Part, RowSpace, parts_of
from ludus.errors import ConfigError


class RecordedRows:
    """Makes rows of what was recorded.

    A part is the recorded observation of its name. Where the names are others, images are taken in the order of
    --data.keys, and vectors side by side in that order. Parts that nothing sees are left zero.
    """

    def __init__(
        self, space: gym.spaces.Box, seen: Collection[str], summary: DataSummary, field: torch.dtype
    ) -> None:
        """`seen` names the parts that a policy or its critics see; `field` is the type of a row."""
        self.space, self._field = space, field
        needed = [part for part in parts_of(space) if part.name in seen]
        self._images = self._match_images([part for part in needed if part.kind == "image"], summary)
        self._vectors = [part for part in needed if part.kind != "image"]
        self._vector_keys = self._match_vectors(summary)
        self._shapes = {key: spec.shape for key, spec in summary.obs.items()}

    def _match_images(self, parts: list[Part], summary: DataSummary) -> list[tuple[Part, str]]:
        recorded = {key: spec.shape for key, spec in summary.obs.items() if spec.is_image}
        named = all(part.name in recorded for part in parts)
        keys = [part.name for part in parts] if named and parts else list(recorded)
        if [part.shape for part in parts] != [recorded[key] for key in keys]:
            wanted = _told({part.name: part.shape for part in parts})
            raise ConfigError(
                f"The environment's images are {wanted}, the recorded ones {_told(recorded)}. Say which to use, "
                "in their order, with --data.keys, and how large with --data.image-size."
            )
        return list(zip(parts, keys, strict=True))

    def _match_vectors(self, summary: DataSummary) -> list[str]:
        recorded = {key: spec.shape for key, spec in summary.obs.items() if not spec.is_image}
        named = len(self._vectors) > 0 and all(part.name in recorded for part in self._vectors)
        keys = [part.name for part in self._vectors] if named else list(recorded)
        wanted = sum(part.size for part in self._vectors)
        numbers = sum(int(np.prod(recorded[key])) for key in keys)
        if numbers != wanted:
            raise ConfigError(
                f"The environment's observation has {wanted} numbers, the recorded one {numbers} "
                f"({_told({key: recorded[key] for key in keys})}). Say which to use with --data.keys."
            )
        return keys

    def of(self, episode: Episode) -> Tensor:
        """[T + 1, *row]."""
        space, rows = self.space, len(next(iter(episode.obs.values())))
        if not isinstance(space, RowSpace):
            keys = [key for _, key in self._images]
            only = episode.obs[keys[0]] if keys else vector_of(episode, self._vector_keys)
            return torch.from_numpy(only).reshape(rows, *space.shape).to(self._field)
        made = torch.zeros((rows, *space.shape), dtype=self._field)
        for part, key in self._images:
            space.part_of(made, part).copy_(torch.from_numpy(episode.obs[key]))
        if self._vectors:
            numbers = torch.from_numpy(vector_of(episode, self._vector_keys))
            pieces = numbers.split([part.size for part in self._vectors], 1)
            for part, piece in zip(self._vectors, pieces, strict=True):
                space.part_of(made, part).copy_(piece)
        return made

    # As they were recorded ----------------------------------------------------------------------
    def only(self, names: Collection[str]) -> "RecordedRows":
        """The same of the parts that are named; of vectors that go by other names in the files, all or none."""
        part = copy.copy(self)
        part._images = [(image, key) for image, key in self._images if image.name in names]
        kept = [vector for vector in self._vectors if vector.name in names]
        if [vector.name for vector in self._vectors] == self._vector_keys:
            part._vectors, part._vector_keys = kept, [vector.name for vector in kept]
        elif not kept:
            part._vectors, part._vector_keys = [], []
        return part

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Of every recorded observation that rows hold."""
        images = {key: (self._shapes[key], torch.uint8) for _, key in self._images}
        return {key: (self._shapes[key], torch.float32) for key in self._vector_keys} | images

    def named(self, rows: Tensor) -> dict[str, Tensor]:
        """The recorded observations that rows of the environment hold, by their names in the file."""
        space, named = self.space, dict[str, Tensor]()
        if not isinstance(space, RowSpace):
            keys = [key for _, key in self._images]
            return {keys[0]: rows} if keys else self._apart(rows.flatten(1))
        if self._vectors:
            named = self._apart(torch.cat([space.part_of(rows, part) for part in self._vectors], 1))
        return named | {key: space.part_of(rows, part) for part, key in self._images}

    def _apart(self, numbers: Tensor) -> dict[str, Tensor]:
        sizes = [int(np.prod(self._shapes[key])) for key in self._vector_keys]
        return dict(zip(self._vector_keys, numbers.split(sizes, 1), strict=True))


def _told(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{key} {shape}" for key, shape in shapes.items()) or "none"
