"""Work on a GPU recorded once and replayed as a whole: a CUDA graph saves the time between small kernels."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ludus.errors import LudusError

_WARM_UP_CALLS = 2  # libraries set themselves up in their first calls, which a recording must not hold


def graph_pool(device: torch.device) -> Any:
    """A memory pool for several graphs. They must never run at the same time, nor read what another left in it."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


@functools.cache
def _side_stream() -> torch.cuda.Stream:
    """One for all: cuBLAS keeps 32 MB for every stream it has worked on."""
    return torch.cuda.Stream()


class Graphed:
    """Calls `work`. On a GPU the third call records it and every later one replays the recording.

    `work` takes and returns nothing: it reads and writes tensors that stay where they are, and never waits for
    the device. Calls before, at and after the recording do the same. Random numbers that it draws are new in every
    replay, if it draws them from `generators`.
    """

    def __init__(
        self,
        work: Callable[[], None],
        device: torch.device,
        enabled: bool = True,
        pool: Any = None,
        generators: Iterable[torch.Generator] = (),
    ) -> None:
        self._work, self._pool, self._generators = work, pool, tuple(generators)
        self._enabled = enabled and device.type == "cuda"
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        elif not self._enabled:
            self._work()
        elif self._calls < _WARM_UP_CALLS:
            self._calls += 1
            self._warm_up()
        else:
            self._record()
            assert self._graph is not None
            self._graph.replay()

    def _warm_up(self) -> None:
        side = _side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._work()
        torch.cuda.current_stream().wait_stream(side)

    def _record(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self._work()
        except RuntimeError as error:
            raise LudusError(
                "A step cannot be recorded as a CUDA graph, because something in it waits for the GPU. An "
                "environment that does must not say capturable = True; --no-cuda-graphs trains without graphs. "
                f"({error})"
            ) from error
        self._graph = graph
