"""What the numbers of an environment mean, for whoever runs its policy elsewhere: names, units, time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ludus.errors import LudusError, plain_text

_MOST_NAMES = 2**16  # a stranger's file may hold any
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Interface:
    """What is known of it; empty where nothing is."""

    observations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the numbers of each part of an observation; of one that has no parts by "obs"."""
    actions: Sequence[str] = ()
    units: Sequence[str] = ()  # of the actions
    control_dt: float = 0.0  # seconds that an action lasts; 0: not known
    robot: Mapping[str, Any] = field(default_factory=dict)  # what of it a policy relies on, as plain JSON

    def names_of(self, part: str, size: int) -> list[str]:
        """Of the numbers of a part of an observation; counted where nobody named them."""
        known = list(self.observations.get(part, ()))
        return known if len(known) == size else column_names(part, size)

    def description(self) -> dict[str, Any]:
        """Plain JSON, which `interface_from` reads."""
        return {
            "observations": {part: list(names) for part, names in self.observations.items()},
            "actions": list(self.actions),
            "units": list(self.units),
            "control_dt": self.control_dt,
            "robot": dict(self.robot),
        }


def interface_from(description: Mapping[str, Any]) -> Interface:
    """The interface that was described, if a stranger's description is one."""
    parts: Mapping[str, Any] = description["observations"]
    dt = float(description["control_dt"])
    if not math.isfinite(dt) or dt < 0:
        raise LudusError("An action cannot last so long.")
    robot = description.get("robot", {})  # is compared alone; older ones have none
    if not isinstance(robot, Mapping):
        raise LudusError("What is known of a robot must be a table.")
    return Interface(
        {plain_text(str(part), _LONGEST_NAME): _names(names) for part, names in parts.items()},
        _names(description["actions"]),
        _names(description["units"]),
        dt,
        robot,
    )


def changed_facts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What of a robot is not what it was."""
    return [name for name in now if then.get(name) != now[name]]


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or len(given) > _MOST_NAMES:
        raise LudusError("Names must be a list of text.")
    return tuple(plain_text(str(name), _LONGEST_NAME) for name in given)


def column_names(term: str, size: int, known: Sequence[str] = ()) -> list[str]:
    """Of the columns of a piece of an observation: "hand.x", or "hand[0]" where nobody named them."""
    if len(known) == size:
        return [f"{term}.{name}" for name in known]
    return [term] if size == 1 else [f"{term}[{i}]" for i in range(size)]
