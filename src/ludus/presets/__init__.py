"""One file a job. A preset is a configuration with a name; `find_preset` also understands `gym:ID`."""

from dataclasses import dataclass

from ludus.config import TrainConfig
from ludus.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Preset:
    """A job that can be trained by name."""

    name: str
    summary: str
    config: TrainConfig


def all_presets() -> dict[str, Preset]:
    from ludus.presets import kuka, locomotion

    return {preset.name: preset for preset in (*kuka.PRESETS, *locomotion.PRESETS)}


def find_preset(name: str) -> Preset:
    """A preset by its name, or one made for `gym:ID`."""
    from ludus.presets import gym

    if name.startswith("gym:"):
        return gym.preset_for(name.removeprefix("gym:"))
    presets = all_presets()
    if name not in presets:
        raise ConfigError(
            f"There is no preset {name!r}.{did_you_mean(name, presets)} 'ludus list' shows them all; "
            "any Gymnasium environment is 'gym:ID', as in gym:CartPole-v1."
        )
    return presets[name]
