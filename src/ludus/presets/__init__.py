"""One file a job. A preset is a configuration with a name; `find_preset` also makes one for `gym:ID` and so on."""

import importlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.declared import declared
from ludus.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from ludus.presets.preset import Preset

_FILES = ("kuka", "forage", "humanoid", "rrd", "locomotion")  # with presets of a name
# Environments by any name: the prefix, the file here that makes a preset, an example and what it is.
OPEN_KINDS = {
    "gym": ("gym", "gym:CartPole-v1", "any Gymnasium environment; gym:my_package:MyEnv-v0 for your own"),
    "pettingzoo": (
        "pettingzoo",
        "pettingzoo:pettingzoo.butterfly.knights_archers_zombies_v11",
        "any PettingZoo parallel environment, by module or registered name",
    ),
    "mettagrid": ("mettagrid", "mettagrid:navigation", "MettaGrid's worlds (needs the extra ludus[mettagrid])"),
    "rrd-mujoco": ("rrd", "rrd-mujoco:hopper", "rrd-mujoco on another task, or on any Gymnasium environment"),
    "vec": ("custom", "vec:my_module:make_env", "your own batched environment, on CPU or GPU"),
}


def all_presets() -> "dict[str, Preset]":
    modules = [importlib.import_module(f"ludus.presets.{file}") for file in _FILES]
    return {preset.name: preset for module in modules for preset in module.PRESETS}


def preset_summaries() -> dict[str, str]:
    """A line about each, for help and completion. Nothing slow is imported."""
    return declared([Path(__file__).with_name(f"{file}.py") for file in _FILES], "Preset")


def find_preset(name: str, algo: str = "") -> "Preset":
    """A preset by its name, or one made for `gym:ID` and so on; `algo` takes another algorithm than its own."""
    preset = _find(name)
    if not algo:
        return preset
    from ludus.algorithms.registry import find_algorithm

    algorithm = find_algorithm(algo)
    if algo == preset.config.algo:
        return preset
    # By the name that was given: one of the user's is found again as "module:NAME".
    return replace(preset, config=replace(algorithm.adapt(preset.config), algo=algo))


def _find(name: str) -> "Preset":
    prefix, _, rest = name.partition(":")
    if rest and prefix in OPEN_KINDS:
        preset: Preset = importlib.import_module(f"ludus.presets.{OPEN_KINDS[prefix][0]}").preset_for(rest)
        return preset
    presets = all_presets()
    if name not in presets:
        raise ConfigError(f"There is no preset {name!r}.{_instead_of(name)}")
    return presets[name]


def _instead_of(name: str) -> str:
    """What may be meant by a name that no preset has."""
    import gymnasium

    prefix, _, rest = name.partition(":")
    if prefix == "gymnasium":
        return f" Did you mean 'gym:{rest}'?"
    if rest and (near := did_you_mean(name, (f"{kind}:{rest}" for kind in OPEN_KINDS if _alike(kind, prefix)))):
        return near
    if name in gymnasium.registry or rest:  # the latter names a module and what is in it
        return f" Did you mean 'gym:{name}'?"
    kinds = ", ".join(f"{kind}:…" for kind in OPEN_KINDS)
    presets = preset_summaries()
    begun = _listed([preset for preset in presets if preset.startswith(f"{name}-")])  # 'kuka' of kuka-pick-place
    found = begun or did_you_mean(name, presets) or _meant_in_gymnasium(name, gymnasium.registry)
    return f"{found} 'ludus list' shows them all; environments of other packages are {kinds}."


def _listed(presets: list[str]) -> str:
    return f" Did you mean {' or '.join(map(repr, presets))}?" if presets else ""


def _alike(kind: str, prefix: str) -> bool:
    return bool(did_you_mean(prefix, [kind]))


def _meant_in_gymnasium(name: str, known: Iterable[str]) -> str:
    return did_you_mean(f"gym:{name}", (f"gym:{env_id}" for env_id in known))
