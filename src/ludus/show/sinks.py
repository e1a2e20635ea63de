"""Where metrics go: the protocol of a sink, and the tee that feeds several at once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, runtime_checkable

from ludus.errors import LudusError


class MetricSink(Protocol):
    """Takes one row of metrics at a time. Steps never go back, except after a resume."""

    name: str  # for messages: "TensorBoard"
    required: bool  # true for the truth: training must not go on without it

    def write(self, step: int, metrics: dict[str, float]) -> None: ...

    def flush(self) -> None:
        """Make what was written survive a crash of this process."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class ModelKeeper(Protocol):
    """A sink that keeps the trained models, too."""

    name: str
    required: bool

    def keep_models(self, models: Mapping[str, Sequence[Path]]) -> None:
        """The files of each: "final", "best"."""
        ...


class Tee:
    """Writes to all sinks. A view that fails is reported once and does not disturb the others."""

    name = "all sinks"
    required = True

    def __init__(self, sinks: Sequence[MetricSink], report: Callable[[str], None] = print) -> None:
        self._sinks = list(sinks)
        self._report = report
        self._reported: set[str] = set()

    def write(self, step: int, metrics: dict[str, float]) -> None:
        for sink in self._sinks:
            self._attempt(sink, lambda sink=sink: sink.write(step, metrics))  # type: ignore[misc]

    def keep_models(self, models: Mapping[str, Sequence[Path]]) -> None:
        """At the end of a training, to the sinks that keep them."""
        for sink in self._sinks:
            if isinstance(sink, ModelKeeper):
                self._attempt(sink, partial(sink.keep_models, models))

    def flush(self) -> None:
        for sink in self._sinks:
            self._attempt(sink, sink.flush)

    def close(self) -> None:
        for sink in self._sinks:
            self._attempt(sink, sink.close)

    def _attempt(self, sink: MetricSink, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # a logger's failure, whatever it is, must not stop training
            if sink.required:
                raise _as_sentence(sink, error) from error
            if sink.name not in self._reported:
                self._reported.add(sink.name)
                self._report(
                    f"{sink.name} failed ({type(error).__name__}: {error}). Training goes on; "
                    "metrics.jsonl has every row. Further failures are not shown."
                )


def _as_sentence(sink: MetricSink, error: Exception) -> LudusError:
    return error if isinstance(error, LudusError) else LudusError(f"{sink.name} cannot be written: {error}.")
