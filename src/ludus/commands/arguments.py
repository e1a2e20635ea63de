"""What the verbs share: flags, options taken before the rest is read, families with verbs of their own."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import tyro

from ludus.errors import ConfigError, did_you_mean
from ludus.ranges import read_whole

T = TypeVar("T")

Verb = Callable[[list[str]], None]
Flag = tyro.conf.FlagCreatePairsOff  # --json, and no --no-json


def run_verb_of(family: str, verbs: Mapping[str, Verb], usage: str, known: str, arguments: list[str]) -> None:
    """The verb that the first argument names; `usage` and `known` tell whoever did not name one."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        sys.exit(0 if arguments else 2)
    verb, rest = arguments[0], arguments[1:]
    if verb not in verbs:
        raise ConfigError(f"There is no command '{family} {verb}'.{did_you_mean(verb, verbs)} {known}")
    verbs[verb](rest)


def call(command: Callable[..., T], arguments: list[str], prog: str) -> T:
    """A function with its arguments from the command line."""
    return tyro.cli(command, args=arguments, prog=prog, registry=number_registry())


def number_registry() -> Any:
    """Whole numbers may be 1e5 and 100k."""
    registry = tyro.constructors.ConstructorRegistry()

    @registry.primitive_rule
    def whole_rule(info: tyro.constructors.PrimitiveTypeInfo) -> Any:
        if info.type is not int:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs=1,
            metavar="INT",
            instance_from_str=lambda words: read_whole(words[0]),
            is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    return registry


def take_option(arguments: list[str], option: str) -> tuple[list[str], str | None]:
    """Remove `option VALUE` or `option=VALUE` from the arguments."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{option}="):
            return arguments[:i] + arguments[i + 1 :], argument.split("=", 1)[1]
        if argument == option:
            if i + 1 == len(arguments):
                raise ConfigError(f"{option} needs a value.")
            return arguments[:i] + arguments[i + 2 :], arguments[i + 1]
    return arguments, None


def take_optional(
    arguments: list[str], option: str, unsaid: str, is_value: Callable[[str], bool]
) -> tuple[list[str], str | None]:
    """The same of an option whose value may be left out: then it is `unsaid`."""
    if option in arguments:
        after = arguments.index(option) + 1
        if after == len(arguments) or not is_value(arguments[after]):
            return arguments[: after - 1] + arguments[after:], unsaid
    return take_option(arguments, option)


def take_number(arguments: list[str], option: str) -> tuple[list[str], int]:
    """The same of a whole number of at least 1; 0 where it is not given."""
    rest, text = take_option(arguments, option)
    if text is None:
        return rest, 0
    try:
        number = read_whole(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}.") from None
    if number < 1:
        raise ConfigError(f"{option} is {number}; it must be at least 1.")
    return rest, number


def take_flag(arguments: list[str], flag: str) -> tuple[list[str], bool]:
    return [argument for argument in arguments if argument != flag], flag in arguments
