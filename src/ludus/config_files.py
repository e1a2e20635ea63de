"""Configuration files: plain YAML, read without trusting it and held to the types of the fields."""

import dataclasses
import json
import os
import types
import typing
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ludus.config import C, TrainConfig
from ludus.envs.config import ENV_KINDS
from ludus.errors import ConfigError, did_you_mean, plain_text
from ludus.files import read_bounded
from ludus.ranges import read_whole

_FILE_BYTES = 200_000  # of a configuration file; what a run writes has about 5,000


def load_shared_config(path: Path, base: TrainConfig | None = None) -> TrainConfig:
    """What a file says besides its algorithm's own sections, over `base`. Nothing is imported."""
    known = {f.name for f in dataclasses.fields(TrainConfig)}
    shared = TrainConfig(**{name: getattr(base, name) for name in known}) if base is not None else TrainConfig()
    values = {name: value for name, value in read_values(path).items() if name in known}
    try:
        return from_dict(values, shared)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


class PlainDumper(yaml.SafeDumper):
    """Writes every value where it stands: readers refuse references."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _PlainLoader(yaml.SafeLoader):
    """Refuses references to other values: a few lines of them can stand for more than any memory holds."""

    def construct_yaml_int(self, node: Any) -> int:
        number = int(super().construct_yaml_int(node))
        if abs(number) >= 2**64:
            raise ValueError("a whole number of more than 64 bits")
        return number

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it refers from one value to another (& and *): write the values out")
        return super().compose_node(parent, index)


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _PlainLoader.construct_yaml_int)


def read_values(path: Path) -> dict[str, Any]:
    try:
        values = _PlainLoader(read_bounded(path, _FILE_BYTES).decode()).get_single_data()
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {path}.") from None
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be read.") from None
    except (OSError, ValueError, OverflowError, yaml.YAMLError) as error:
        reason = plain_text(" ".join(str(error).split()), 300)
        raise ConfigError(f"{path} cannot be read as YAML: {reason}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} does not hold a configuration (names and values).")
    return values


def read_table(text: str) -> dict[str, Any]:
    """Names and values, as JSON on the command line."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{plain_text(text, 200)!r} is not JSON: {error}.") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{plain_text(text, 200)!r} must be names and values: '{{\"name\": …}}'.")
    return table


def from_dict(values: dict[str, Any], base: C) -> C:
    """`base` with the given values; unknown names and wrong types are refused."""
    changed: C = _replace(base, values, "")
    return changed


def _replace(base: Any, values: dict[str, Any], path: str) -> Any:
    values = dict(values)
    if path == "" and type(base) is not TrainConfig and values.get("algo", base.algo) != base.algo:
        raise ConfigError(
            f"algo is {values['algo']!r}, but these are settings of {base.algo}: choose one of them."
        )
    kind = values.pop("kind", None)
    if kind is not None and path == "env.":
        if kind not in list(ENV_KINDS):  # a list, because YAML can say anything, also what has no hash
            raise ConfigError(f"unknown environment kind {kind!r}; one of {', '.join(ENV_KINDS)}.")
        if type(base) is not ENV_KINDS[kind]:
            base = ENV_KINDS[kind]()
    hints = typing.get_type_hints(type(base))
    changes = {}
    for name, value in values.items():
        if name not in hints:
            raise ConfigError(f"unknown setting '{path}{name}'.{did_you_mean(str(name), hints)}")
        current = getattr(base, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, dict):
                raise ConfigError(f"{path + name} needs names and values, not {value!r}.")
            changes[name] = _replace(current, value, f"{path}{name}.")
        else:
            changes[name] = _coerce(value, hints[name], path + name)
    return dataclasses.replace(base, **changes)


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """`value` as the field's type, or a clear error."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_coerce(v, arguments[0], name) for v in value)
    if origin is typing.Literal and value in arguments:
        return value
    if origin in (typing.Union, types.UnionType):
        return value
    if hint is float and isinstance(value, int | float | np.number) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):  # YAML reads 1e-3 as text
        try:
            return float(value)
        except ValueError:
            pass
    if origin is dict and isinstance(value, dict):
        return value
    if hint in (int, bool, str) and type(value) is hint:
        return value
    if hint is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    if hint is int and isinstance(value, str | float | np.number):
        try:
            return read_whole(str(value))  # 2e3, numpy's numbers, and YAML's 1e5, which is text
        except ValueError:
            pass
    wanted = " or ".join(map(repr, arguments)) if origin is typing.Literal else getattr(hint, "__name__", hint)
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}.")
