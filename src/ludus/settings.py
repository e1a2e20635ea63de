"""Settings as a user gives them: files, flags and overrides, held to what the algorithm knows."""

import copy
import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ludus.algorithms.registry import algorithms_with, built_in, find_algorithm
from ludus.config import C, TrainConfig, to_dict
from ludus.config_files import from_dict, read_values
from ludus.envs.config import ENV_KINDS
from ludus.errors import ConfigError
from ludus.policies.config import LAYER_SETTINGS, LAYERS_AFTER
from ludus.setting_names import flag_of, names_of, translate, unknown_setting

_MOST_NAMED = 8  # numbers in an error
_RECORDED = {"env", "policy", "loop", "eval", "checkpoint", "log"}  # sections that every run writes down


# Files and overrides ----------------------------------------------------------------------------
def load_config(path: Path, base: C) -> C:
    """A configuration file over a preset. Sections of other algorithms are left out: `accept` refuses wishes."""
    own = {f.name for f in dataclasses.fields(base)}
    values = {k: v for k, v in read_values(path).items() if k in own or k not in _sections()}
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


def algo_in(path: Path) -> str:
    """The algorithm a configuration file asks for, if any: it brings defaults of its own."""
    values = read_values(path)
    algo, env = str(values.get("algo", "")), values.get("env")
    shown = env.get("discriminate", "nothing") if isinstance(env, dict) else "nothing"
    return "amp" if algo == "ppo" and shown != "nothing" else algo  # older runs of AMP say ppo


def apply_overrides(config: C, overrides: dict[str, Any]) -> C:
    """`{"seed": 1, "ppo.learning_rate": 1e-3}` or nested dicts over a configuration."""
    refuse_foreign(config, _names(overrides))
    nested: dict[str, Any] = {}
    ours = [pair for name, value in overrides.items() for pair in _translated(name, value, config).items()]
    for name, value in ours:
        *path, last = name.split(".")
        place = nested
        for part in path:
            place = place.setdefault(part, {})
        place[last] = copy.deepcopy(to_dict(value))  # what is added to it is not the caller's
    return settle(from_dict(nested, config), _names(overrides))


def with_procs(config: C, procs: int) -> C:
    """The same training by another number of processes: together they take as many steps an iteration."""
    if procs == config.procs:
        return config
    changes: dict[str, Any] = {"procs": procs}
    for name in config.per_rank:
        section, _, field = name.partition(".")
        total = getattr(getattr(config, section), field) * config.procs
        if total % procs:
            can = [str(n) for n in range(1, total + 1) if total % n == 0]
            choice = ", ".join(can if len(can) < _MOST_NAMED else [*can[: _MOST_NAMED - 1], "…", can[-1]])
            raise ConfigError(
                f"--procs {procs}: --{name.replace('_', '-')} of all processes of the run together is {total}, "
                f"which {procs} cannot share out equally. Choose one of {choice}."
            )
        changes.setdefault(section, {})[field] = total // procs
    return from_dict(changes, config)


# What a user asked for --------------------------------------------------------------------------
@functools.cache
def _sections() -> frozenset[str]:
    """Of the configurations of all algorithms of Ludus, which a run of before wrote into every file."""
    shared = {f.name for f in dataclasses.fields(TrainConfig)}
    fields = {f.name for algorithm in built_in().values() for f in dataclasses.fields(algorithm.config)}
    return frozenset(fields - shared)


def settle(config: C, given: Iterable[str], in_file: Iterable[str] = ()) -> C:
    """As `accept`; a setting that would do nothing is refused, be it given now or, before that, in a file."""
    given = list(given)
    settled, names = accept(config, given), names_of([*in_file, *given], config)
    for full, name in names.items():
        if why := config.why_useless(full, names):
            raise ConfigError(f"{flag_of(name)}: {why}")
    return settled


def accept(config: C, given: Iterable[str]) -> C:
    """What a user gave, by these names, wins over what a preset says besides. A file's are looked at before the
    flags, which may yet make sense of them.
    """
    names = names_of(given, config)
    _refuse_replaced(names, config)
    refuse_foreign(config, names.values())
    return config.settled(set(names))


def refuse_foreign(config: TrainConfig, given: Iterable[str]) -> None:
    """An error for a setting of another algorithm."""
    own = {f.name for f in dataclasses.fields(config)}
    for full, name in names_of(given, config).items():
        section = full.partition(".")[0]
        if section not in own and section in _sections():
            why = config.why_useless(full, ())
            nothing = f"with --algo {config.algo} it would do nothing. {why}".rstrip()
            ours = "" if full.endswith(name) else f", here {flag_of(full)},"
            raise ConfigError(f"{flag_of(name)}{ours} is a setting of {algorithms_with(section)}: {nothing}")


def _refuse_replaced(names: Iterable[str], config: TrainConfig) -> None:
    """A network of the user's stands in the place of the built-in layers: their settings would do nothing."""
    kept = LAYERS_AFTER if config.layers_after_network else ()
    replaced = sorted(f"policy.{name}" for name in LAYER_SETTINGS if name not in kept)
    given, network = next((name for name in replaced if name in names), None), config.policy.network
    if network and given:
        raise ConfigError(
            f"--{given.replace('_', '-')} is a setting of the built-in layers, which {network} replaces. "
            "Give your network its settings by --policy.network-kwargs."
        )


def names_in(path: Path) -> list[str]:
    """What a configuration file asks for. All sections, or one with all its fields, are the record of a run."""
    values, fields = read_values(path), _fields_of_sections()
    sections = {name: value for name, value in values.items() if isinstance(value, dict)}
    if sections.keys() >= _RECORDED:  # an older one may lack a field or two
        return []
    kind = ENV_KINDS.get(str(sections.get("env", {}).get("kind")))
    if kind is not None:
        fields["env"] = {f.name for f in dataclasses.fields(kind)}
    wishes = {k: v for k, v in values.items() if not (k in sections and fields.get(k, {""}) <= sections[k].keys())}
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


def _translated(name: str, value: Any, config: TrainConfig) -> dict[str, Any]:
    """`total_steps` → `loop.total_steps`; but `data={...}` is the section."""
    if isinstance(value, dict) and hasattr(config, name):
        return {name: value}
    found = translate(name, value, config)
    if "." not in next(iter(found)) and not hasattr(config, name):
        raise unknown_setting(name, config, repr)
    return found
