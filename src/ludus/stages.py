"""Stages: a curriculum of other settings before the run's own.

    stages:
      - until: 150_000                           # steps of the run
        set: {env.fixed: true}
      - until: {success: 0.9, steps: 400_000}    # of an evaluation; or at that step, if it comes first
        set: {env.assist: 1.0}

A stage sets settings of the environment or of the algorithm. After the last stage the run's own settings hold; by
these it is evaluated, played and reported afterwards.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from ludus.config import TrainConfig, to_dict
from ludus.config_files import from_dict
from ludus.envs.config import EnvConfig
from ludus.errors import ConfigError, plain_text

_MOST_STAGES = 100
_FORM = "a stage is {until: 100000, set: {env.fixed: true}}, or until: {success: 0.9}"
_WHOLE_RUN = ("env.num_envs", "env.kind", "env.id", "env.factory")  # what a stage cannot change


@dataclass(frozen=True)
class Stage:
    """Settings that hold for a part of a run. The last stage has the run's own, and no end."""

    config: TrainConfig
    settings: dict[str, Any] = field(default_factory=dict)  # what differs from the run's own
    steps: int = 0  # it ends at this step of the run; 0: not by steps
    success: float = 0.0  # it ends with an evaluation of this success rate; 0: not by success

    @property
    def told(self) -> str:
        """'env.fixed true until 90 % success, at most to step 100,000'."""
        sets = ", ".join(f"{name} {_told(value)}" for name, value in self.settings.items())
        success = f"{100 * self.success:g} % success" if self.success else ""
        steps = f"step {self.steps:,}" if self.steps else ""
        ends = ", at most to ".join(filter(None, (success, steps)))
        return " ".join(filter(None, (sets or "the run's own settings", ends and f"until {ends}")))


def _told(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else plain_text(str(value), 100)


def read_stages(config: TrainConfig) -> list[Stage]:
    """The stages that a configuration lists, and the run's own settings as the last."""
    _refuse_other_than_tables(config)
    stages = [_read(config, number, table) for number, table in enumerate(config.stages, 1)]
    ends = [stage.steps for stage in stages if stage.steps]
    if ends != sorted(set(ends)):
        raise ConfigError(f"The stages end at the steps {', '.join(f'{n:,}' for n in ends)}: give them in order.")
    if ends and not config.loop.epochs and ends[-1] >= config.loop.total_steps:
        raise ConfigError(
            f"The last stage ends at step {ends[-1]:,}, and the training at {config.loop.total_steps:,}: its own "
            "settings would never hold. Give --total-steps more, or end the stage earlier."
        )
    return [*stages, Stage(config)]


def _read(config: TrainConfig, number: int, table: dict[str, Any]) -> Stage:
    name = f"stage {number}"
    if not isinstance(table.get("set"), dict) or not table.keys() <= {"until", "set"}:
        raise ConfigError(f"{name} is {plain_text(repr(table), 200)}; {_FORM}.")
    if "until" not in table:
        raise ConfigError(f"{name} has no end (until): after the last one the run's own settings hold; {_FORM}.")
    steps, success = _read_end(name, table["until"])
    settings = _flat(table["set"])
    shared, sections = ({f.name for f in dataclasses.fields(kind)} for kind in (TrainConfig, config))
    own = sections - shared | {"env"}
    for setting in settings:
        if setting.partition(".")[0] not in own or setting in _WHOLE_RUN:
            raise ConfigError(
                f"{name} sets {plain_text(setting, 100)}, which is for the whole run; a stage sets "
                f"{', '.join(f'{section}.…' for section in sorted(own))}."
            )
    return Stage(_with(config, settings, name), settings, steps, success)


def _with(config: TrainConfig, settings: dict[str, Any], name: str) -> TrainConfig:
    """The configuration with the settings of a stage."""
    nested: dict[str, Any] = {}
    for setting, value in settings.items():
        section, _, rest = setting.partition(".")
        nested.setdefault(section, {})[rest] = value
    try:
        return from_dict(nested, config)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def _read_end(name: str, until: Any) -> tuple[int, float]:
    """(steps, success rate), either 0 where it is no end."""
    table = until if isinstance(until, dict) else {"steps": until}
    steps, success = table.get("steps", 0), table.get("success", 0.0)
    right = table and table.keys() <= {"steps", "success"} and _is_number(steps) and _is_number(success)
    if not right or steps != int(steps) or not 0 <= success <= 1 or steps < 0 or not (steps or success):
        raise ConfigError(f"{name} ends (until) at {plain_text(repr(until), 200)}; {_FORM}.")
    return int(steps), float(success)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 10**15


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted names; of sections, not of tables that are a setting themselves."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and "." not in str(name):
            found |= {f"{name}.{part}": inner for part, inner in value.items()}
        else:
            found[str(name)] = value
    return found


def stages_with_whole_paths(config: TrainConfig) -> TrainConfig:
    """The configuration, with files in its stages that are found again from any folder."""

    def whole(stage: Stage) -> dict[str, Any]:
        env = stage.config.with_whole_paths().env
        of_env = {name: name.removeprefix("env.") for name in stage.settings if name.startswith("env.")}
        return stage.settings | {name: to_dict(getattr(env, own)) for name, own in of_env.items()}

    tables = zip(config.stages, read_stages(config), strict=False)
    return dataclasses.replace(config, stages=tuple(table | {"set": whole(stage)} for table, stage in tables))


def environments_of(config: TrainConfig) -> list[EnvConfig]:
    """Those of the stages, also where the sections of the algorithm are not known."""
    _refuse_other_than_tables(config)
    environments = []
    for number, table in enumerate(config.stages, 1):
        values = table.get("set")
        settings = _flat(values) if isinstance(values, dict) else {}
        of_env = {name: value for name, value in settings.items() if name.startswith("env.")}
        environments.append(_with(config, of_env, f"stage {number}").env)
    return environments


def _refuse_other_than_tables(config: TrainConfig) -> None:
    if len(config.stages) > _MOST_STAGES or not all(isinstance(table, dict) for table in config.stages):
        raise ConfigError(f"--stages lists at most {_MOST_STAGES}; {_FORM}.")
