"""Settings as a user gives them: files, flags and overrides, held to what the algorithm knows."""

import copy
import dataclasses
import functools
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from ludus.algorithms.registry import algorithms_with, built_in, find_algorithm
from ludus.config import C, LoopConfig, TrainConfig, to_dict
from ludus.envs import ENV_KINDS
from ludus.errors import ConfigError, did_you_mean, plain_text
from ludus.files import read_bounded
from ludus.policies.policy import LAYER_SETTINGS, PolicyConfig

_FILE_BYTES = 200_000  # of a configuration file; what a run writes has about 5,000


# Files and overrides ----------------------------------------------------------------------------
def from_dict(values: dict[str, Any], base: C) -> C:
    """`base` with the given values; unknown names and wrong types are refused."""
    changed: C = _replace(base, values, "")
    return changed


def load_config(path: Path, base: C) -> C:
    """A configuration file over a preset. Sections of other algorithms are left out: `settle` refuses wishes."""
    own = {f.name for f in dataclasses.fields(base)}
    values = {k: v for k, v in _read_values(path).items() if k in own or k not in _sections()}
    if algo_in(path) == base.algo:
        values.pop("algo", None)
    try:
        return from_dict(values, base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def load_run_config(path: Path) -> TrainConfig:
    """The configuration of a run. An algorithm that it names as "module:NAME" must be trusted before."""
    algo = algo_in(path) or "ppo"
    return dataclasses.replace(load_config(path, find_algorithm(algo).config(algo=algo)), algo=algo)


def load_shared_config(path: Path) -> TrainConfig:
    """What a run's configuration says besides its algorithm's own sections; nothing that it names is imported."""
    values, known = _read_values(path), {f.name for f in dataclasses.fields(TrainConfig)}
    try:
        return from_dict({name: value for name, value in values.items() if name in known}, TrainConfig())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def algo_in(path: Path) -> str:
    """The algorithm a configuration file asks for, if any: it brings defaults of its own."""
    values = _read_values(path)
    algo, env = str(values.get("algo", "")), values.get("env")
    shown = env.get("discriminate", "nothing") if isinstance(env, dict) else "nothing"
    return "amp" if algo == "ppo" and shown != "nothing" else algo  # older runs of AMP say ppo


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


def _read_values(path: Path) -> dict[str, Any]:
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


def apply_overrides(config: C, overrides: dict[str, Any]) -> C:
    """`{"seed": 1, "ppo.learning_rate": 1e-3}` or nested dicts over a configuration."""
    refuse_foreign(config, _names(overrides))
    nested: dict[str, Any] = {}
    for name, value in overrides.items():
        *path, last = _full_name(name, value).split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = copy.deepcopy(to_dict(value))  # what is added to it is not the caller's
    return settle(from_dict(nested, config), _names(overrides))


# What a user asked for --------------------------------------------------------------------------
@functools.cache
def short_names() -> dict[str, str]:
    """Settings that may be given without their section: total_steps for loop.total_steps."""
    names = {f.name: f"loop.{f.name}" for f in dataclasses.fields(LoopConfig)} | {"clip": "env.clips"}
    for algorithm in built_in().values():
        names |= algorithm.config.short_names
    return names


@functools.cache
def _sections() -> frozenset[str]:
    """Of the configurations of all algorithms of Ludus, which a run of before wrote into every file."""
    shared = {f.name for f in dataclasses.fields(TrainConfig)}
    fields = {f.name for algorithm in built_in().values() for f in dataclasses.fields(algorithm.config)}
    return frozenset(fields - shared)


def settle(config: C, given: Iterable[str]) -> C:
    """What a user gave, by these names, wins over what a preset says besides; what would do nothing is refused."""
    names = _refuse_useless(config, given)
    loop = config.loop
    if "loop.total_steps" in names and "loop.epochs" not in names:
        loop = dataclasses.replace(loop, epochs=0)
    elif "loop.total_steps" in names and loop.epochs:
        raise ConfigError("--total-steps and --epochs both say how long to train: give one of them.")
    if "eval.every" in names and "loop.cycles" not in names:
        loop = dataclasses.replace(loop, cycles=0)
    return dataclasses.replace(config, loop=loop)


def _refuse_useless(config: TrainConfig, given: Iterable[str]) -> set[str]:
    """The full names of what was given; an error for a setting that would do nothing."""
    names = _full_names(given)
    _refuse_replaced(names, config.policy)
    refuse_foreign(config, names.values())
    for full, name in names.items():
        if why := config.why_useless(full, names):
            raise ConfigError(f"{_flag(name)}: {why}")
    return set(names)


def refuse_foreign(config: TrainConfig, given: Iterable[str]) -> None:
    """An error for a setting of another algorithm."""
    own = {f.name for f in dataclasses.fields(config)}
    for full, name in _full_names(given).items():
        section = full.partition(".")[0]
        if section not in own and section in _sections():
            why = config.why_useless(full, ())
            nothing = f"with --algo {config.algo} it would do nothing. {why}".rstrip()
            raise ConfigError(f"{_flag(name)} is a setting of {algorithms_with(section)}: {nothing}")


def _full_names(given: Iterable[str]) -> dict[str, str]:
    """`loop.total_steps` for `total_steps`, and so on, each with what was given."""
    return {short_names().get(name, name): name for name in given}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse_replaced(names: Iterable[str], policy: PolicyConfig) -> None:
    """A network of the user's stands in the place of the built-in layers: their settings would do nothing."""
    replaced = sorted(f"policy.{name}" for name in LAYER_SETTINGS)
    given = next((name for name in replaced if name in names), None)
    if policy.network and given:
        raise ConfigError(
            f"--{given.replace('_', '-')} is a setting of the built-in layers, which {policy.network} replaces. "
            "Give your network its settings by --policy.network-kwargs."
        )


def names_in(path: Path) -> list[str]:
    """What a configuration file asks for. A section with all its fields is no wish, but the record of a run."""
    values, fields = _read_values(path), _fields_of_sections()
    wishes = {k: v for k, v in values.items() if not (isinstance(v, dict) and fields.get(k, {""}) <= v.keys())}
    return _names(wishes)


def _fields_of_sections() -> dict[str, set[str]]:
    """Of the sections that any algorithm of Ludus has."""
    values = {
        f.name: getattr(a.config(), f.name) for a in built_in().values() for f in dataclasses.fields(a.config)
    }
    return {k: {f.name for f in dataclasses.fields(v)} for k, v in values.items() if dataclasses.is_dataclass(v)}


def _names(values: dict[str, Any]) -> list[str]:
    """Dotted, of values that may be nested."""
    found = []
    for name, value in values.items():
        inner = _names(value) if isinstance(value, dict) else []
        found += [f"{name}.{part}" for part in inner] or [str(name)]
    return found


def _full_name(name: str, value: Any) -> str:
    """`total_steps` → `loop.total_steps`; but `data={...}` is the section."""
    return name if isinstance(value, dict) else short_names().get(name, name)


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
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
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
    wanted = " or ".join(map(repr, arguments)) if origin is typing.Literal else getattr(hint, "__name__", hint)
    raise ConfigError(f"{name} is {value!r}; it must be {wanted}.")
