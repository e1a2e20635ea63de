"""One file a job. A preset is a configuration with a name; `find_preset` also makes one for `gym:ID` and so on."""

import importlib
from dataclasses import replace

from ludus.algorithms.registry import find_algorithm
from ludus.errors import ConfigError, did_you_mean
from ludus.presets.preset import Preset

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


def all_presets() -> dict[str, Preset]:
    from ludus.presets import forage, humanoid, kuka, locomotion, rrd

    presets = (*kuka.PRESETS, *forage.PRESETS, *humanoid.PRESETS, *rrd.PRESETS, *locomotion.PRESETS)
    return {preset.name: preset for preset in presets}


def find_preset(name: str, algo: str = "") -> Preset:
    """A preset by its name, or one made for `gym:ID` and so on; `algo` takes another algorithm than its own."""
    preset = _find(name)
    if not algo:
        return preset
    algorithm = find_algorithm(algo)
    if algo == preset.config.algo:
        return preset
    # By the name that was given: one of the user's is found again as "module:NAME".
    return replace(preset, config=replace(algorithm.adapt(preset.config), algo=algo))


def _find(name: str) -> Preset:
    prefix, _, rest = name.partition(":")
    if rest and prefix in OPEN_KINDS:
        preset: Preset = importlib.import_module(f"ludus.presets.{OPEN_KINDS[prefix][0]}").preset_for(rest)
        return preset
    presets = all_presets()
    if name not in presets:
        raise ConfigError(
            f"There is no preset {name!r}.{did_you_mean(name, presets)} 'ludus list' shows them all; "
            f"environments of other packages are {', '.join(kind + ':…' for kind in OPEN_KINDS)}."
        )
    return presets[name]
