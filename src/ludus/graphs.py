"""Work on a GPU recorded once and replayed as a whole: a CUDA graph saves the time between small kernels."""

import contextlib
import functools
import weakref
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


@functools.cache
def _recording_stream(priority: int) -> torch.cuda.Stream:
    """What is recorded here runs with this priority whenever it is replayed."""
    return torch.cuda.Stream(priority=priority)


class _Recording:
    """A piece of work as a GPU replays it: a graph, or several where something cannot be recorded."""

    under_way: "_Recording | None" = None  # in this process: there is never more than one

    def __init__(self, pool: Any, generators: Iterable[torch.Generator]) -> None:
        # Of one pool: what one graph leaves there is what the next goes on with.
        self._pool, self._generators = pool or torch.cuda.graph_pool_handle(), generators
        self._parts: list[Callable[[], object]] = []
        self._open = contextlib.ExitStack()

    def make(self, work: Callable[[], None]) -> None:
        _Recording.under_way = self
        try:
            with self._open:
                self._begin_graph()
                work()
        finally:
            _Recording.under_way = None

    def cut(self, between: Callable[[], object]) -> None:
        """End the graph here, and begin another; `between` is called whenever the first has been replayed."""
        self._open.close()
        self._parts.append(between)
        self._begin_graph()

    def _begin_graph(self) -> None:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        stream = _recording_stream(torch.cuda.current_stream().priority)
        self._open.enter_context(torch.cuda.graph(graph, pool=self._pool, stream=stream))
        self._parts.append(graph.replay)

    def replay(self) -> None:
        for part in self._parts:
            part()


def outside_graphs(work: Callable[[], object]) -> None:
    """Call `work`, which waits for the GPU. Where a graph is being recorded, it is cut in two around the call.

    So `work`, too, reads and writes tensors that stay where they are.
    """
    if _Recording.under_way is None:
        work()
    else:
        _Recording.under_way.cut(work)


def forget_recordings() -> None:
    """Let every `Graphed` begin anew, as if it had not been called: no graph is left."""
    for graphed in list(_recorded):
        graphed.forget()


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
        self.forget()

    def forget(self) -> None:
        """The recording, if there is one: the next calls are as the first ones."""
        self._calls = 0
        self._recording: _Recording | None = None

    def __call__(self) -> None:
        if self._recording is not None:
            self._recording.replay()
        elif not self._enabled:
            self._work()
        elif self._calls < _WARM_UP_CALLS:
            self._calls += 1
            self._warm_up()
        else:
            self._recording = self._record()
            self._recording.replay()

    def _warm_up(self) -> None:
        side = _side_stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._work()
        torch.cuda.current_stream().wait_stream(side)

    def _record(self) -> _Recording:
        recording = _Recording(self._pool, self._generators)
        try:
            recording.make(self._work)
        except RuntimeError as error:
            raise LudusError(
                "A step cannot be recorded as a CUDA graph, because something in it waits for the GPU. An "
                "environment that does must not say capturable = True; --no-cuda-graphs trains without graphs. "
                f"({error})"
            ) from error
        _recorded.add(self)
        return recording


_recorded: "weakref.WeakSet[Graphed]" = weakref.WeakSet()
