"""An iteration of learning from a store: all its batches are drawn at once, then trained on one by one.

The store does not change in between, so drawing costs next to nothing; and with every place known beforehand a
gradient step is gathering and arithmetic alone, which a GPU replays as one CUDA graph.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ludus import ranks
from ludus.buffers.replay import Replay
from ludus.envs.vec import State, derive_seed, restore_generator
from ludus.graphs import Graphed, graph_pool

Drawn = TypeVar("Drawn", bound=tuple)


def nothing() -> None:
    """There is nothing to do, or to wait for."""


class Batches(ABC):
    """Draws and trains `train_batches` batches an iteration."""

    def __init__(self, store: Replay, train_batches: int, seed: int, cuda_graphs: bool) -> None:
        self.store, self.train_batches, self.updates = store, train_batches, 0  # gradient steps made
        device = store.device
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, *ranks.own_stream(2)))
        self.reward_losses = torch.zeros(train_batches, device=device)  # of each batch of the last iteration
        self._drawn: dict[str, Tensor] = {}  # each [batches, ...]
        # The same, side by side: one gather a type fetches all that a batch needs. At addresses a graph knows.
        self._packed: dict[torch.dtype, Tensor] = {}
        self._now: dict[torch.dtype, Tensor] = {}  # the present batch of it
        self._places: dict[str, tuple[torch.dtype, slice, torch.Size]] = {}
        self._tick = torch.zeros(1, dtype=torch.int64, device=device)  # which batch it is
        self._cuda_graphs, self._pool = cuda_graphs, graph_pool(device)
        self.on_drawn: Callable[[], None] = nothing  # called when all is drawn: the store may be added to then
        self._steps: dict[tuple[bool, ...], Graphed] = {}

    @abstractmethod
    def update(self, on_batch: Callable[[int], None] = lambda i: None) -> dict[str, Tensor]:
        """All batches of an iteration; returns the means of what was measured."""

    @abstractmethod
    def weights(self) -> list[Tensor]:
        """All that is learned, flat."""

    @abstractmethod
    def set_rate_factor(self, factor: float) -> None:
        """All step sizes become this part of what was set."""

    @abstractmethod
    def _draw(self) -> dict[str, Tensor]:
        """All that the iteration's batches need to know, each [batches, ...]: where they lie, noise …"""

    @abstractmethod
    def _batch(self, update: int) -> None:
        """One gradient step, on what `_at_tick` gives."""

    def _kind_of(self, update: int) -> tuple[bool, ...]:
        """Gradient steps of one kind share a recorded graph."""
        return ()

    def _run(self, on_batch: Callable[[int], None]) -> None:
        """One iteration."""
        self._drawn = self._draw()
        self._pack()
        self._tick.zero_()
        self.on_drawn()
        for i in range(self.train_batches):
            self._step_like(self.updates)()
            self.updates += 1
            on_batch(i + 1)

    def _step_like(self, update: int) -> Graphed:
        kind = self._kind_of(update)
        if kind not in self._steps:
            work = partial(self._batch_and_tick, update)
            self._steps[kind] = Graphed(work, self.store.device, self._cuda_graphs, self._pool)
        return self._steps[kind]

    def _batch_and_tick(self, update: int) -> None:
        self._now = {dtype: packed.index_select(0, self._tick)[0] for dtype, packed in self._packed.items()}
        self._batch(update)
        self._tick.add_(1)

    def _pack(self) -> None:
        parts: dict[torch.dtype, list[Tensor]] = {}
        for name, value in self._drawn.items():
            flat = value.reshape(len(value), -1)
            before = sum(part.shape[1] for part in parts.setdefault(value.dtype, []))
            parts[value.dtype].append(flat)
            self._places[name] = value.dtype, slice(before, before + flat.shape[1]), value.shape[1:]
        for dtype, flats in parts.items():
            packed, kept = torch.cat(flats, 1), self._packed.get(dtype)
            if kept is None or kept.shape != packed.shape:
                self._packed[dtype] = packed
            else:
                kept.copy_(packed)

    def _at_tick(self, name: str) -> Tensor:
        """What was drawn for the present batch."""
        dtype, place, shape = self._places[name]
        return self._now[dtype][place].view(shape)

    def _tuple_at_tick(self, kind: type[Drawn]) -> Drawn:
        """The same for a named tuple, whose fields were drawn under their names."""
        return kind(*(self._at_tick(name) for name in kind._fields))  # type: ignore[attr-defined]

    def drawn(self) -> dict[str, Tensor]:
        """Where the batches of the newest iteration lay."""
        return self._drawn

    def state(self) -> State:
        return {"generator": self.generator.get_state(), "updates": self.updates}

    def load_state(self, state: State) -> None:
        restore_generator(self.generator, state["generator"])
        self.updates = state["updates"]
