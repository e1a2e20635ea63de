"""What is searched: `ppo.learning_rate=log(1e-4,1e-2)`, held to the type and range of the setting itself."""

import dataclasses
import functools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ludus.config import TrainConfig
from ludus.errors import ConfigError, did_you_mean, plain_text
from ludus.ranges import check_fields, read_whole
from ludus.setting_names import full_name, has_setting, unknown_setting
from ludus.settings import apply_overrides, refuse_foreign

Kind = Literal["log", "uniform", "choice"]
KINDS: tuple[Kind, ...] = typing.get_args(Kind)
_SHAPE = re.compile(r"\s*([A-Za-z]\w*)\s*\((.*)\)\s*", re.DOTALL)
_EXAMPLE = "ppo.learning_rate=log(1e-4,1e-2), ppo.gamma=uniform(0.95,0.999) or ppo.minibatches=choice(4,8,16)"
_TRUTHS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_SAME_IN_ALL = ("seed", "loop.", "eval.", "log.", "checkpoint.", "algo", "device", "procs", "stages")
_MOST_CHOICES, _MOST_PARAMETERS, _LONGEST = 100, 50, 2_000
_DIGITS = 4  # of a number that is tried: one that a person can copy


@dataclass(frozen=True)
class Parameter:
    """One setting that differs between trials."""

    name: str  # in full
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    whole: bool = False  # whole numbers only
    choices: tuple[Any, ...] = ()

    @property
    def text(self) -> str:
        """As `read_parameter` reads it."""
        if self.kind == "choice":
            return f"choice({','.join(map(value_text, self.choices))})"
        return f"{self.kind}({value_text(self._own(self.low))},{value_text(self._own(self.high))})"

    @property
    def ordered(self) -> bool:
        """Whether its values lie on a line: numbers do, in choices that rise or fall, too."""
        if self.kind != "choice":
            return True
        numbers = [c for c in self.choices if isinstance(c, int | float) and not isinstance(c, bool)]
        return len(numbers) == len(self.choices) and numbers in (sorted(numbers), sorted(numbers, reverse=True))

    def holds(self, value: Any) -> bool:
        if self.kind == "choice":
            return value in self.choices
        return isinstance(value, int | float) and self.low <= value <= self.high

    def place(self, value: Any) -> float:
        """Where a value lies between the ends of the range, 0 to 1, as the search sees it."""
        if self.kind == "choice":
            return self.choices.index(value) / max(1, len(self.choices) - 1)
        low, high, at = (math.log(x) if self.kind == "log" else x for x in (self.low, self.high, value))
        return (at - low) / (high - low)

    def rounded(self, value: float) -> float:
        """With few digits, and inside the range."""
        if self.whole:
            return round(value)
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)

    def _own(self, end: float) -> float:
        return int(end) if self.whole else end


def value_text(value: Any) -> str:
    """As a flag and a choice take it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple | list):
        return " ".join(map(value_text, value))
    return f"{value:.10g}" if isinstance(value, float) else str(value)


# Reading ------------------------------------------------------------------------------------------
def read_space(given: Mapping[str, Any] | Iterable[str], config: TrainConfig) -> dict[str, Parameter]:
    """The parameters by their full names: of `name=log(…)`, or {name: "log(…)"}; a list stands for choices."""
    pairs = list(given.items()) if isinstance(given, Mapping) else [_split(text) for text in given]
    if not pairs:
        raise ConfigError(f"Say what to search: --param {_EXAMPLE}.")
    if len(pairs) > _MOST_PARAMETERS:
        raise ConfigError(f"A sweep can search {_MOST_PARAMETERS} settings; these are {len(pairs)}.")
    space: dict[str, Parameter] = {}
    for name, text in pairs:
        parameter = read_parameter(name, text, config)
        if parameter.name in space:
            raise ConfigError(f"--param {parameter.name} is given twice.")
        space[parameter.name] = parameter
    return space


def _split(text: str) -> tuple[str, str]:
    name, equals, shape = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"--param {plain_text(text, 100)!r} is not understood. Write {_EXAMPLE}.")
    return name.strip(), shape


def read_parameter(name: str, given: Any, config: TrainConfig) -> Parameter:
    full = _full_name(name.removeprefix("--").replace("-", "_"), config)
    if not isinstance(given, str):
        given = f"choice({','.join(map(value_text, given))})" if isinstance(given, list | tuple) else str(given)
    if len(given) > _LONGEST or not (shape := _SHAPE.fullmatch(given)):
        raise ConfigError(f"--param {full}: {plain_text(given, 100)!r} is no range. Write {_EXAMPLE}.")
    kind, words = shape[1], [word.strip() for word in shape[2].split(",")]
    if kind not in KINDS:
        raise ConfigError(
            f"--param {full}: there is no {kind}(…).{did_you_mean(kind, KINDS)} There are log(low,high), "
            "uniform(low,high) and choice(a,b,…)."
        )
    hint = _hint(config, full)
    made = _choice(full, words, hint) if kind == "choice" else _range(full, kind, words, hint)
    for value in made.choices or (made.low, made.high):
        _refuse_bad(made, value, config)
    return made


def _full_name(name: str, config: TrainConfig) -> str:
    full = full_name(name, config)
    refuse_foreign(config, [name])
    if not has_setting(config, full):
        raise unknown_setting(name, config, str)
    if full != name and full.rpartition(".")[2] != name:  # another library's word, perhaps in other numbers
        raise ConfigError(f"--param {name}: call it by the name that Ludus has for it, {full}.")
    if full.startswith(_SAME_IN_ALL):
        why = "--seeds says which" if full == "seed" else "else their scores could not be compared"
        raise ConfigError(f"--param {full}: it must be the same in all trials; {why}.")
    return full


def _hint(config: TrainConfig, full: str) -> Any:
    """The type of a setting."""
    section, _, last = full.rpartition(".")
    part = functools.reduce(getattr, section.split(".") if section else [], config)
    return typing.get_type_hints(type(part))[last]


def _range(name: str, kind: Kind, words: Sequence[str], hint: Any) -> Parameter:
    if hint not in (int, float):
        raise ConfigError(f"--param {name}: it is no number, so it has no range. Write {name}=choice(a,b,…).")
    if len(words) != 2:
        raise ConfigError(f"--param {name}: {kind}(low,high) has two ends; here are {len(words)} values.")
    low, high = (_number(name, word, hint) for word in words)
    if low >= high:
        raise ConfigError(
            f"--param {name}: the range from {value_text(low)} to {value_text(high)} is empty: the first end must "
            "be less than the second."
        )
    if kind == "log" and low <= 0:
        raise ConfigError(
            f"--param {name}: log needs numbers above 0, and {value_text(low)} is not. Take uniform, or another "
            "end."
        )
    return Parameter(name, kind, low, high, hint is int)


def _number(name: str, word: str, hint: Any) -> float:
    try:
        number = read_whole(word) if hint is int else float(word)
    except ValueError:
        wanted = "a whole number" if hint is int else "a number"
        raise ConfigError(f"--param {name}: {plain_text(word, 40)!r} is not {wanted}.") from None
    if not math.isfinite(number):
        raise ConfigError(f"--param {name}: {word!r} is no end of a range: it must be finite.")
    return number


def _choice(name: str, words: Sequence[str], hint: Any) -> Parameter:
    if len(words) < 2:
        raise ConfigError(f"--param {name}: choice(a,b,…) needs at least two values to choose from.")
    if len(words) > _MOST_CHOICES:
        raise ConfigError(f"--param {name}: these are {len(words)} choices; {_MOST_CHOICES} are the most.")
    choices = tuple(_value(name, word, hint) for word in words)
    if len({repr(choice) for choice in choices}) < len(choices):
        raise ConfigError(f"--param {name}: a choice is given twice in choice({','.join(words)}).")
    return Parameter(name, "choice", choices=choices)


def _value(name: str, word: str, hint: Any) -> Any:
    """A word as a value of the setting's type."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is bool:
        if word.lower() not in _TRUTHS:
            raise ConfigError(f"--param {name}: {plain_text(word, 40)!r} is neither true nor false.")
        return _TRUTHS[word.lower()]
    if hint in (int, float):
        return _number(name, word, hint)
    if origin is tuple:  # 64 64
        return tuple(_value(name, part, inner[0]) for part in word.split())
    if origin is dict or dataclasses.is_dataclass(hint):
        raise ConfigError(f"--param {name}: a table of values cannot be searched; search settings with one value.")
    if origin in (typing.Union, types.UnionType):
        for kind in inner:
            try:
                return _value(name, word, kind)
            except ConfigError:
                continue
    if origin is typing.Literal:
        return next((choice for choice in inner if str(choice) == word), word)
    return word


def _refuse_bad(parameter: Parameter, value: Any, config: TrainConfig) -> None:
    """What the setting itself refuses: another type, a number out of its range, none of its choices."""
    try:
        check_fields(apply_overrides(config, {parameter.name: value}))
    except ConfigError as error:
        raise ConfigError(f"--param {parameter.name}={parameter.text}: {error}") from None


# Values -------------------------------------------------------------------------------------------
def values_in(config: TrainConfig, space: Mapping[str, Parameter]) -> dict[str, Any]:
    """What a configuration has for the parameters."""
    return {name: functools.reduce(getattr, name.split("."), config) for name in space}


def read_values(given: Any, space: Mapping[str, Parameter]) -> dict[str, Any]:
    """The values of a trial, as JSON has them; refused where they are none of the space."""
    if not isinstance(given, dict) or given.keys() != space.keys():
        raise ConfigError("its parameters are not those of the sweep")
    values = {}
    for name, parameter in space.items():
        value = tuple(given[name]) if isinstance(given[name], list) else given[name]
        if not parameter.holds(value):
            raise ConfigError(f"{name} is outside {parameter.text}")
        values[name] = value
    return values
