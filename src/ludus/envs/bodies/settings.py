"""A body's TOML file: what its MJCF model does not say. It is data: nothing in it runs."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ludus.errors import ConfigError, LudusError, did_you_mean, plain_text
from ludus.files import read_bounded

_MOST_BYTES = 1_000_000
_LONGEST_NAME = 200
_MOST_NAMES = 1_000
INTEGRATORS = ("Euler", "RK4", "implicit", "implicitfast", "discrete")
CONES = ("pyramidal", "elliptic")
JACOBIANS = ("dense", "sparse", "auto")
_SIDED_PARTS = ("hip", "knee", "foot", "shoulder", "elbow", "hand")
HUMAN_PARTS = (
    "pelvis", "chest", "head", *(f"{side}_{part}" for side in ("left", "right") for part in _SIDED_PARTS)
)  # fmt: skip


@dataclass(frozen=True)
class MotorGroup:
    """Motors of joints that are built alike. Patterns: * is any text, ? any sign."""

    joints: tuple[str, ...]
    stiffness: float | None = None  # N m/rad; by default from the armature
    damping: float | None = None  # N m s/rad; likewise
    effort: float | None = None  # N m, the most that the motor pulls
    armature: float | None = None  # kg m²; by default the model's


@dataclass(frozen=True)
class Motors:
    """Motors that pull joints to angles, in place of the model's actuators.

    stiffness = armature · (2π · frequency)², damping = 2 · damping_ratio · armature · 2π · frequency
    """

    groups: tuple[MotorGroup, ...]
    frequency: float = 10.0  # Hz
    damping_ratio: float = 2.0


@dataclass(frozen=True)
class ContactRule:
    """How some geoms touch others; of several rules for a geom the last says."""

    geoms: tuple[str, ...]
    condim: int | None = None
    friction: float | None = None
    priority: int | None = None
    collide: bool | None = None


@dataclass(frozen=True)
class Simulation:
    """Options of the physics; by default the model's."""

    integrator: str | None = None
    iterations: int | None = None
    ls_iterations: int | None = None
    cone: str | None = None
    jacobian: str | None = None  # of the CPU's physics: how fast it is, not what it does


@dataclass(frozen=True)
class BodySettings:
    """What a body's file says."""

    model: str = ""  # the MJCF file, beside this one
    package: str = ""  # where the model lies in an installed Python package instead
    control_rate: float | None = None  # control steps a second; by default about 30
    substeps: int | None = None  # physics steps of one control step; by default the model's time step decides
    key_bodies: tuple[str, ...] = ()  # whose places are followed and measured; by default all
    anchor: str = ""  # the body by which a robot says where it is; by default the root
    feet: tuple[str, ...] = ()
    end_effectors: tuple[str, ...] = ()  # by default the bodies at the ends of the limbs
    action_scale: float | None = None  # rad that an action of 1 adds; by default 0.5
    action_share: float | None = None  # instead: the share of effort / stiffness of each motor
    fallen_height: float | None = (
        None  # m, of the root: lower, it has fallen; by default 0.6 of the default pose's
    )
    default_pose: Mapping[str, float] = field(default_factory=dict)  # joints by pattern; else the model's
    # Parts of a human (HUMAN_PARTS) → the bodies whose origins stand for them; the default pose stands upright,
    # looks along x and has flat feet. Motions of other bodies are brought onto this one by it.
    human: Mapping[str, str] = field(default_factory=dict)
    motors: Motors | None = None
    contacts: tuple[ContactRule, ...] = ()
    exclude: tuple[tuple[str, str], ...] = ()  # pairs of bodies that do not touch each other
    simulation: Simulation = Simulation()


def read_settings(file: Path) -> BodySettings:
    try:
        text = read_bounded(file, _MOST_BYTES).decode("utf-8-sig")
        values = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text, though its name says so.") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits
        raise ConfigError(f"{file} is not TOML: {plain_text(str(error), 300)}") from error
    except ConfigError:
        raise
    except LudusError as error:
        raise ConfigError(str(error)) from error
    return _Reader(file).settings(values)


def model_file(settings: BodySettings, file: Path) -> Path:
    """Where the model lies that a body's file names."""
    if not settings.package:
        return file.parent / settings.model
    # Of a package without a dot the place is found without running anything of it.
    try:
        found = find_spec(settings.package) if settings.package.isidentifier() else None
    except ValueError:  # of a program that has no place of its own: __main__
        found = None
    places = list(found.submodule_search_locations or ()) if found is not None else []
    if not places:
        raise ConfigError(
            f"The model of {file.stem} comes with the package {settings.package}, which is not installed: "
            f"pip install 'ludus[{file.stem}]', or the files alone: pip install --no-deps {settings.package}."
        )
    return Path(places[0]) / settings.model


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """The names that one of the patterns means, in the order of the names."""
    known = list(patterns)
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in known)]


class _Reader:
    """Values of a TOML file as settings, with a sentence where one is not what it should be."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def settings(self, values: dict[str, Any]) -> BodySettings:
        self._known(values, BodySettings, "")
        if not isinstance(values.get("model"), str) or not values["model"]:
            raise ConfigError(f'{self._file} does not name its model: model = "robot.xml".')
        if "action_scale" in values and "action_share" in values:
            raise ConfigError(f"{self._file} has both action_scale and action_share; take one.")
        numbers: dict[str, tuple[float, float]] = {
            "control_rate": (1, 1000),
            "substeps": (1, 1000),
            "action_scale": (1e-6, 100),
            "action_share": (1e-6, 100),
            "fallen_height": (0, 100),
        }
        found: dict[str, Any] = {
            name: self._number(values, name, *bounds) for name, bounds in numbers.items() if name in values
        }
        if "substeps" in found:
            found["substeps"] = self._whole(values, "substeps")
        for name in ("model", "package", "anchor"):
            if name in values:
                found[name] = self._text(values[name], name)
        for name in ("key_bodies", "feet", "end_effectors"):
            if name in values:
                found[name] = self._texts(values[name], name)
        return BodySettings(
            **found,
            default_pose=self._pose(values.get("default_pose", {})),
            human=self._human(values.get("human", {})),
            motors=self._motors(values["motors"]) if "motors" in values else None,
            contacts=tuple(self._contact(rule) for rule in self._tables(values, "contacts")),
            exclude=tuple(self._pair(pair) for pair in self._list(values.get("exclude", []), "exclude")),
            simulation=self._simulation(values.get("simulation", {})),
        )

    def _pose(self, values: Any) -> dict[str, float]:
        pose = self._table(values, "default_pose")
        return {self._text(name, "default_pose"): self._number(pose, name, -1000, 1000) for name in pose}

    def _human(self, values: Any) -> dict[str, str]:
        table = self._table(values, "human")
        for part in table:
            if part not in HUMAN_PARTS:
                told, hint = plain_text(part, _LONGEST_NAME), did_you_mean(part, HUMAN_PARTS)
                raise ConfigError(
                    f"{self._file}: [human] names {told}, which is no part here.{hint} There are "
                    f"{', '.join(HUMAN_PARTS)}."
                )
        return {part: self._text(name, f"human.{part}") for part, name in table.items()}

    def _motors(self, values: Any) -> Motors:
        table = self._table(values, "motors")
        self._known(table, Motors, "motors.")
        groups = tuple(self._group(group) for group in self._tables(table, "groups", "motors.groups"))
        if not groups:
            raise ConfigError(f"{self._file} has [motors] without a group: add [[motors.groups]] with joints.")
        said = {
            name: self._number(table, name, 1e-3, 1e4, "motors.")
            for name in ("frequency", "damping_ratio")
            if name in table
        }
        return Motors(groups, **said)

    def _group(self, table: dict[str, Any]) -> MotorGroup:
        self._known(table, MotorGroup, "motors.groups.")
        said = {
            name: self._number(table, name, 0, 1e9, "motors.groups.")
            for name in ("stiffness", "damping", "effort", "armature")
            if name in table
        }
        return MotorGroup(self._texts(table.get("joints", []), "motors.groups.joints"), **said)

    def _contact(self, table: dict[str, Any]) -> ContactRule:
        self._known(table, ContactRule, "contacts.")
        said: dict[str, Any] = {}
        if "condim" in table:
            said["condim"] = self._whole(table, "condim", "contacts.")
            if said["condim"] not in (1, 3, 4, 6):
                raise ConfigError(f"{self._file}: contacts.condim is {said['condim']}; it must be 1, 3, 4 or 6.")
        if "friction" in table:
            said["friction"] = self._number(table, "friction", 0, 100, "contacts.")
        if "priority" in table:
            said["priority"] = self._whole(table, "priority", "contacts.")
        if "collide" in table:
            if not isinstance(table["collide"], bool):
                raise ConfigError(f"{self._file}: contacts.collide must be true or false.")
            said["collide"] = table["collide"]
        return ContactRule(self._texts(table.get("geoms", []), "contacts.geoms"), **said)

    def _simulation(self, values: Any) -> Simulation:
        table = self._table(values, "simulation")
        self._known(table, Simulation, "simulation.")
        said: dict[str, Any] = {}
        for name, choices in (("integrator", INTEGRATORS), ("cone", CONES), ("jacobian", JACOBIANS)):
            if name in table:
                said[name] = self._text(table[name], f"simulation.{name}")
                if said[name] not in choices:
                    hint = did_you_mean(said[name], choices)
                    raise ConfigError(
                        f"{self._file}: simulation.{name} is {said[name]!r}.{hint} There are {', '.join(choices)}."
                    )
        for name in ("iterations", "ls_iterations"):
            if name in table:
                said[name] = self._whole(table, name, "simulation.")
        return Simulation(**said)

    # Values ---------------------------------------------------------------------------------------
    def _known(self, table: Mapping[str, Any], kind: type, path: str) -> None:
        names = [part.name for part in fields(kind)]
        for name in table:
            if name not in names:
                hint = did_you_mean(name, names)
                told = plain_text(f"{path}{name}", _LONGEST_NAME)
                raise ConfigError(f"{self._file}: there is no setting {told}.{hint} There are {', '.join(names)}.")

    def _table(self, value: Any, name: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ConfigError(f"{self._file}: {name} must be a table: [{name}].")
        return value

    def _tables(self, values: Mapping[str, Any], name: str, path: str = "") -> list[dict[str, Any]]:
        found = self._list(values.get(name, []), path or name)
        return [self._table(value, path or name) for value in found]

    def _list(self, value: Any, name: str) -> list[Any]:
        if isinstance(value, dict):
            raise ConfigError(f"{self._file}: {name} can be several: write [[{name}]], with two brackets.")
        if isinstance(value, str):
            raise ConfigError(f'{self._file}: {name} must be a list: ["{plain_text(value, 60)}"].')
        if not isinstance(value, list) or len(value) > _MOST_NAMES:
            raise ConfigError(f"{self._file}: {name} must be a list of at most {_MOST_NAMES:,}.")
        return value

    def _text(self, value: Any, name: str) -> str:
        if not isinstance(value, str) or len(value) > _LONGEST_NAME or "\0" in value:
            raise ConfigError(f"{self._file}: {name} must be a text of at most {_LONGEST_NAME} signs.")
        return value

    def _texts(self, value: Any, name: str) -> tuple[str, ...]:
        return tuple(self._text(item, name) for item in self._list(value, name))

    def _pair(self, value: Any) -> tuple[str, str]:
        names = self._texts(value, "exclude")
        if len(names) != 2:
            raise ConfigError(f'{self._file}: exclude must be pairs of bodies: exclude = [["torso", "arm"]].')
        return names[0], names[1]

    def _number(self, values: Mapping[str, Any], name: str, least: float, most: float, path: str = "") -> float:
        value = values[name]
        told = plain_text(f"{path}{name}", _LONGEST_NAME)
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            shown = _shown(value)
            raise ConfigError(f"{self._file}: {told} is {shown}; it must be a number from {least:g} to {most:g}.")
        return float(value)

    def _whole(self, values: Mapping[str, Any], name: str, path: str = "") -> int:
        value = values[name]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1000:
            shown = _shown(value)
            raise ConfigError(f"{self._file}: {path}{name} is {shown}; it must be a whole number up to 1,000.")
        return value


def _shown(value: Any) -> str:
    try:
        return plain_text(repr(value) if isinstance(value, str) else str(value), 60)
    except ValueError:  # Python writes no number of more than some thousand digits
        return "a number without end"
