"""Flags of `ludus train` in the names that tyro knows: those of the settings, written out."""

from collections.abc import Iterator
from typing import Any

from ludus.config import TrainConfig
from ludus.errors import ConfigError
from ludus.setting_names import flag_of, full_name, has_setting, translate, unknown_setting
from ludus.settings import refuse_foreign

_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def settings_flags(arguments: list[str], config: TrainConfig) -> tuple[list[str], list[str]]:
    """The arguments with full names in place of shorter ones and of other libraries'; and the names as given.

    `--n-steps 64` becomes `--ppo.horizon 64`, `--norm-adv False` becomes `--ppo.no-normalize-advantage`.
    """
    words, names = list(arguments), []
    written: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            written.append(word)
            continue
        flag, _, value = word.partition("=")
        given = ([value] if "=" in word else []) + words  # its values, and all that follows them
        name, truth = _setting(flag, config)
        names.append(name)
        written += _written(name, truth, given, config)
        words = given
    return written, names


def _setting(flag: str, config: TrainConfig) -> tuple[str, bool]:
    """The setting that a flag names, and whether it is wanted: `--log.no-report` is `log.report`, and is not."""
    name = flag.removeprefix("--").replace("-", "_")
    section, dot, last = name.rpartition(".")
    off = (f"{section}{dot}{last.removeprefix('no_')}", name.removeprefix("no_"))  # the latter: --no-log.report
    for candidate, truth in ((name, True), *((negated, False) for negated in off)):
        if has_setting(config, full_name(candidate, config)):
            return candidate, truth
    refuse_foreign(config, [name])
    raise unknown_setting(name, config, flag_of)


def _written(name: str, truth: bool, given: list[str], config: TrainConfig) -> Iterator[str]:
    """The flag as tyro takes it; what it uses up of `given` is removed there."""
    full = full_name(name, config)
    if isinstance(_value(config, full), bool):
        if given and given[0].lower() in _TRUTHS:
            truth = _TRUTHS[given.pop(0).lower()] == truth
        section, dot, last = full.rpartition(".")
        return iter([flag_of(full if truth else f"{section}{dot}no-{last}")])
    if not truth:
        raise ConfigError(f"{flag_of(name)} is not switched off by 'no': give it a value.")
    if not given or given[0].startswith("--"):
        raise ConfigError(f"{flag_of(name)} needs a value.")
    value = given.pop(0)
    if full == "seed" and given and given[0].isdigit():
        raise ConfigError(f"--seed takes one number. Several are an experiment: --seeds {value},{given[0]}")
    ours = translate(name, value, config)
    return iter([part for full, value in ours.items() for part in (flag_of(full), str(value))])


def _value(config: TrainConfig, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config
