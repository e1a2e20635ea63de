"""How the metrics of a task are shown. An environment's configuration says it, the pages of show/ draw it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A metric that tells how good a policy is, besides success and reward."""

    metric: str  # as an episode reports it: "mpjpe"
    label: str
    unit: str = ""
    everywhere: bool = True  # False: only in the line of an evaluation

    def told(self, metrics: Mapping[str, float], prefix: str) -> str:
        """'48 mm', of metrics as they are written, 'eval/mpjpe'; empty where it was not measured."""
        value = metrics.get(prefix + self.metric)
        return "" if value is None else f"{value:.0f} {self.unit}".rstrip()


@dataclass(frozen=True)
class Curves:
    """A chart of the report."""

    title: str
    series: Mapping[str, str]  # name → metric as it is written, "eval/mpjpe"


@dataclass(frozen=True)
class Column:
    """Of a table of an evaluation's episodes."""

    head: str
    key: str  # in a line of `VecEnv.tabulate`
    show: Callable[[float], str]
    unit: str = ""
    hint: str = ""  # said below the table, where it has this column
    bar: bool = False  # a share, drawn as a bar in the report


@dataclass(frozen=True)
class Table:
    """An evaluation kind by kind of episode, a line for each."""

    kind: str  # what a line is of, and the key of its name: "clip"
    title: str
    columns: tuple[Column, ...]
    solved: str  # what is counted over it, of lines whose every episode succeeded: "clips followed"
    rules: tuple[str, ...] = ()  # what success means, below it
    meaning: str = ""  # what the columns mean, in the report


@dataclass(frozen=True)
class Display:
    """What a task has to show besides what every task has."""

    measures: tuple[Measure, ...] = ()
    section: str = ""  # of the report, in which the curves are
    curves: tuple[Curves, ...] = ()
    table: Table | None = None

    @property
    def headline(self) -> tuple[Measure, ...]:
        """The measures that are shown everywhere."""
        return tuple(measure for measure in self.measures if measure.everywhere)
