"""The loss of every batch in words: the mean of every 100 batches and of every iteration, all in order."""

from collections.abc import Sequence

_BATCHES = 100


class LossLines:
    """Takes losses as they come; a stretch that is not complete waits for the rest."""

    def __init__(self) -> None:
        self._next = 0  # batches seen
        self._some: list[float] = []  # of the hundred that is not complete
        self._iteration: list[float] = []

    def add(self, name: str, first: int, losses: Sequence[float], iteration: int, size: int) -> list[str]:
        """The lines that the losses after the `first` batches complete. They end with `iteration`, of `size`."""
        if first != self._next:  # a resume, or a return to a checkpoint
            self._next, self._some, self._iteration = first, [], []
        lines, end = [], first + len(losses)
        for loss in losses:
            self._next += 1
            self._some.append(loss)
            self._iteration.append(loss)
            if self._next % _BATCHES == 0:
                start = self._next - len(self._some) + 1
                lines.append(f"batches {start:,} to {self._next:,}: {name} {_mean(self._some):.4g}")
                self._some = []
            if (end - self._next) % size == 0:  # counted from the end: the first iterations may have no batches
                number = iteration - (end - self._next) // size
                lines.append(f"iteration {number:,}: {name} {_mean(self._iteration):.4g}")
                self._iteration = []
        return lines


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
