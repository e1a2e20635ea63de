"""What an environment may do besides the contract, by having the methods. A wrapper need not pass them on."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from ludus.envs.goals import Goals, goal_parts
from ludus.envs.interface import Interface
from ludus.envs.row_space import parts_of
from ludus.envs.vec import State, VecEnv
from ludus.envs.wrapper import WrappedEnv

Values = dict[str, list[float]]  # by name, one for each episode of an evaluation
_FEW_NUMBERS = 8  # of an observation that can be listed in a line


@runtime_checkable
class Adapts(Protocol):
    """A training environment that chooses its starts by how evaluations went."""

    def adapt(self, metrics: Values, labels: Values) -> bool:
        """Told how the episodes of an evaluation went (see `VecEnv.labels`); `success` of cut ones is NaN.

        True: episodes will start elsewhere from now on, and all rows should begin new ones.
        """


@runtime_checkable
class KeepsLessons(Protocol):
    """What `adapt` has taught, for a checkpoint that cannot hold the rest of the state."""

    def lessons(self) -> State: ...

    def load_lessons(self, lessons: State) -> None: ...


@runtime_checkable
class Tabulates(Protocol):
    """An environment whose episodes fall into kinds."""

    def tabulate(self, metrics: Values, labels: Values) -> list[dict[str, Any]]:
        """The lines of a table of an evaluation's episodes."""


@runtime_checkable
class DescribesStarts(Protocol):
    """An environment that can tell in numbers how its episodes began."""

    def describe_starts(self) -> dict[str, Tensor]:
        """[rows] numbers by name; asked where an episode has just begun, other rows are not read."""

    def start_words(self) -> dict[str, list[str]]:
        """What the whole numbers of a name stand for, counted from 0: names of clips; no entry: plain numbers."""


@runtime_checkable
class Describes(Protocol):
    """An environment that knows what its numbers mean."""

    def interface(self) -> Interface: ...


@runtime_checkable
class TellsItsTask(Protocol):
    """An environment that has more to say before a training than its name."""

    def plan_lines(self) -> list[str]:
        """What is to be done."""

    def doubts(self) -> list[str]:
        """What a user should look at first: warnings."""


@runtime_checkable
class HasGoals(Protocol):
    """An environment that can judge a step by another goal than its own; see goals.py for what it observes."""

    def goals(self) -> Goals | None:
        """None: not after all."""


def goals_of(env: VecEnv) -> Goals | None:
    """See `HasGoals`; None where the environment has no goals."""
    able = next((layer for layer in _layers(env) if isinstance(layer, HasGoals)), None)
    return None if able is None or goal_parts(env.obs_space) is None else able.goals()


def interface_of(env: VecEnv) -> Interface:
    """See `Describes`; empty where nothing is known, or where a user's terms cannot be asked before a reset."""
    able = next((layer for layer in _layers(env) if isinstance(layer, Describes)), None)
    try:
        return Interface() if able is None else able.interface()
    except Exception:  # noqa: BLE001 (names are a comfort; what is broken is told at the first reset)
        return Interface()


def plan_lines(env: VecEnv) -> list[str]:
    """See `TellsItsTask`; most have nothing to say."""
    able = next((layer for layer in _layers(env) if isinstance(layer, TellsItsTask)), None)
    return [] if able is None else able.plan_lines()


def doubts(env: VecEnv) -> tuple[str, ...]:
    able = next((layer for layer in _layers(env) if isinstance(layer, TellsItsTask)), None)
    return () if able is None else tuple(able.doubts())


def adapt(env: VecEnv, metrics: Values, labels: Values) -> bool:
    """See `Adapts`; False where the environment does not."""
    able = next((layer for layer in _layers(env) if isinstance(layer, Adapts)), None)
    return able is not None and able.adapt(metrics, labels)


def adapt_every(env: VecEnv) -> int:
    """Steps between evaluations for `adapt` alone; 0, or if `Adapts` does not say: it is told of the run's own."""
    able = next((layer for layer in _layers(env) if isinstance(layer, Adapts)), None)
    return getattr(able, "adapt_every", 0)


def lessons_of(env: VecEnv) -> State:
    """See `KeepsLessons`; empty where there are none."""
    able = next((layer for layer in _layers(env) if isinstance(layer, KeepsLessons)), None)
    return {} if able is None else able.lessons()


def load_lessons(env: VecEnv, lessons: State) -> None:
    """Go on with these."""
    able = next((layer for layer in _layers(env) if isinstance(layer, KeepsLessons)), None)
    if able is not None:
        able.load_lessons(lessons)


def tabulate(env: VecEnv, metrics: Values, labels: Values) -> list[dict[str, Any]]:
    """See `Tabulates`; no lines where there are no kinds."""
    able = next((layer for layer in _layers(env) if isinstance(layer, Tabulates)), None)
    return [] if able is None else able.tabulate(metrics, labels)


def describe_starts(env: VecEnv) -> dict[str, Tensor]:
    """See `DescribesStarts`; empty where the environment cannot."""
    able = next((layer for layer in _layers(env) if isinstance(layer, DescribesStarts)), None)
    return {} if able is None else able.describe_starts()


def names_of_few(env: VecEnv) -> list[str]:
    """Names of the numbers of an observation, where they are so few that the first tells how an episode began."""
    parts, known = parts_of(env.obs_space), interface_of(env)
    if sum(part.size for part in parts) > _FEW_NUMBERS or any(part.kind != "vector" for part in parts):
        return []
    return [name for part in parts for name in known.names_of(part.name, part.size)]


def start_words(env: VecEnv) -> dict[str, list[str]]:
    """See `DescribesStarts`."""
    able = next((layer for layer in _layers(env) if isinstance(layer, DescribesStarts)), None)
    return {} if able is None else able.start_words()


def _layers(env: VecEnv) -> Iterator[VecEnv]:
    """The environment, then the one that it wraps, and so on: the outermost that is able does it."""
    yield env
    while isinstance(env, WrappedEnv):
        env = env.env
        yield env
