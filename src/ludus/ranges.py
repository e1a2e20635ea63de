"""The range of a setting stands beside its field; `check_fields` holds a whole configuration to them.

    gamma: Annotated[float, Range(0, 1)] = 0.99

Upper bounds are far beyond what anyone trains with. They are there for files of others: a number without an end
would take the machine down before anything could be said about it.
"""

import dataclasses
import functools
import math
import operator
import types
import typing
from collections.abc import Hashable
from decimal import Decimal
from typing import Any

from ludus.errors import ConfigError, plain_text

LARGEST_SEED = 2**63 - 1
MOST_ENVS = 2**20  # also rows, episodes, segments and the transitions of a batch
MOST_STEPS = 10**15  # of a training, and of whatever counts its parts
MOST_THREADS = 1024  # also processes
_UNITS = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9}
WIDEST_LAYER, MOST_LAYERS = 2**16, 64


@dataclasses.dataclass(frozen=True)
class Range:
    """From `least` to `most`, both allowed; more than `above` and less than `below`. Of a list, each number."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    longest: int = 0  # how many numbers a list may have; 0: any

    def problem(self, value: float) -> str:
        """What a number must be and is not; empty if it is."""
        if value != value or value in (math.inf, -math.inf):
            return "a finite number"
        if value < self.least:
            return f"at least {_shown(self.least)}"
        if value <= self.above:
            return f"more than {_shown(self.above)}"
        if value > self.most:
            return f"at most {_shown(self.most)}"
        return f"less than {_shown(self.below)}" if value >= self.below else ""


LAYERS = Range(1, WIDEST_LAYER, longest=MOST_LAYERS)
SHARE = Range(0, 1)


@typing.runtime_checkable
class Checked(typing.Protocol):
    """A section that has more to say about its values than a range of each."""

    def check_values(self, path: str) -> None: ...


def check_fields(config: Any, path: str = "") -> None:
    """One sentence where a field, also of a section, is not of its type, none of its choices or out of range."""
    for name, hint in _hints(type(config)).items():  # type: ignore[arg-type]
        value = getattr(config, name)
        if dataclasses.is_dataclass(value):
            check_fields(value, f"{path}{name}.")
        elif wrong := _problem(value, hint):
            flag = f"{path}{name}".replace("_", "-")
            raise ConfigError(f"--{flag} is {told(value)}; {wrong}.")
    if isinstance(config, Checked):
        config.check_values(path)


@functools.cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)  # of a dataclass


def _problem(value: Any, hint: Any) -> str:
    """What is wrong with a value, as the end of a sentence; empty if nothing is."""
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is typing.Annotated else ()
    kind = typing.get_args(hint)[0] if marks else hint
    if typing.get_origin(kind) in (typing.Union, types.UnionType):  # any of its kinds will do
        wrong = [_problem(value, part) for part in typing.get_args(kind)]
        return "" if "" in wrong else " or ".join([wrong[0], *(w.removeprefix("it must be ") for w in wrong[1:])])
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        return "" if value in list(choices) else f"it must be {' or '.join(map(repr, choices))}"
    if typing.get_origin(kind) is tuple:
        return _problem_of_list(value, typing.get_args(kind)[0], marks)
    if not _is_a(value, kind):
        return f"it must be {_WORDS.get(kind, kind)}"
    wanted = next((found for mark in marks if isinstance(mark, Range) and (found := mark.problem(value))), "")
    return f"it must be {wanted}" if wanted else ""


def _problem_of_list(value: Any, kind: Any, marks: tuple[Any, ...]) -> str:
    if not isinstance(value, tuple) or not all(_is_a(part, kind) for part in value):
        return f"each part of it must be {_WORDS.get(kind, kind)}"
    for mark in marks:
        if isinstance(mark, Range):
            if mark.longest and len(value) > mark.longest:
                return f"it may have at most {mark.longest} numbers"
            if wanted := next((found for part in value if (found := mark.problem(part))), ""):
                return f"each number must be {wanted}"
    return ""


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def _is_a(value: Any, kind: Any) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind) if kind in (bool, str) else True  # others are checked where they are used


def _shown(limit: float) -> str:
    return str(int(limit)) if limit == int(limit) else str(limit)


def told(value: Any) -> str:
    """A value from a file or a flag, in a sentence."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print whole numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= 200 else f"{text[:200]}…"


_MOST_SEEDS = 10_000


def read_seeds(seeds: Any) -> list[int]:
    """5 stands for 0, 1, 2, 3, 4; "0-4" and "3,7,11" for what they say, and so does a list."""
    wrong = ConfigError(f"--seeds is {told(seeds)}; say how many, 5, or which: 0-4, or 3,7,11.")
    try:
        if isinstance(seeds, str):
            ends = [[read_whole(end) for end in part.split("-")] for part in seeds.split(",")]
            if len(ends) == 1 and len(ends[0]) == 1:
                return read_seeds(ends[0][0])
            if any(len(pair) > 2 or not 0 <= pair[-1] - pair[0] <= _MOST_SEEDS for pair in ends):
                raise wrong
            chosen = [seed for pair in ends for seed in range(pair[0], pair[-1] + 1)]
        elif isinstance(seeds, int) and not isinstance(seeds, bool):
            chosen = list(range(min(seeds, _MOST_SEEDS + 1)))
        else:
            chosen = [int(operator.index(seed)) for seed in seeds]
    except (TypeError, ValueError):
        raise wrong from None
    if not chosen or min(chosen) < 0 or max(chosen) > LARGEST_SEED or len(chosen) > _MOST_SEEDS:
        raise wrong
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"--seeds is {told(seeds)}; each seed can be trained once.")
    return chosen


def read_whole(text: str) -> int:
    """100000, 100_000, 1e5, 100k or 0.1M."""
    text = text.strip()
    unit = _UNITS.get(text[-1:], 1)
    try:
        number = Decimal(text if unit == 1 else text[:-1]) * unit
    except ArithmeticError:  # also of an exponent beyond all bounds
        number = Decimal("NaN")
    if not number.is_finite() or abs(number) >= 2**64 or number != int(number):
        raise ValueError(f"{plain_text(text, 40)!r} is not a whole number")
    return int(number)
