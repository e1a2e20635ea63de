"""Settings that MuJoCo tasks share: where they are simulated, and changes to their terms (`terms.py`)."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ludus.envs.importing import address_of
from ludus.errors import ConfigError
from ludus.ranges import told

SimulatorChoice = Literal["auto", "threads", "warp"]
KINDS = ("rewards", "terminations", "observations")
TABLES = (*KINDS, "randomization")  # settings
_KEYS = {"rewards": "function", "terminations": "function", "observations": "function", "randomization": "kind"}
_MOST_TERMS = 100
_MOST_PARAMETERS = 100
_LONGEST_NAME = 100


@dataclass(frozen=True, kw_only=True)
class TermSettings:
    """Changes to the terms of a MuJoCo task. Tables that are empty change nothing."""

    rewards: dict[str, Any] = field(default_factory=dict)
    """JSON: weights of reward terms by name, 0 or null for none; or {"function": "my_module:f", "weight": 1}."""
    terminations: dict[str, Any] = field(default_factory=dict)
    """JSON: termination terms by name, null for none; or {"function": "my_module:f"}."""
    observations: dict[str, Any] = field(default_factory=dict)
    """JSON: factors of observation terms by name, null for none; or {"function": "my_module:f"}."""
    randomization: dict[str, Any] = field(default_factory=dict)
    """JSON: what differs between simulations: {"mass": {"kind": "body_mass", "scale": [0.5, 2]}};
    kinds are body_mass, centre_of_mass, friction, motor_strength, joint_offset, latency, observation_noise
    and push."""
    eval_randomized: bool = True
    """Randomise evaluations as well; off: they measure the plain task, and training alone is randomised."""

    def __post_init__(self) -> None:
        for kind in TABLES:
            table = getattr(self, kind)
            if isinstance(table, dict):
                object.__setattr__(self, kind, {name: _plain(kind, name, value) for name, value in table.items()})

    @property
    def callables(self) -> tuple[str, ...]:
        """Functions and classes of the user's that are named, "module:name" each."""
        tables = {kind: getattr(self, kind) for kind in TABLES}
        named = [
            _callable_of(kind, value)
            for kind, table in tables.items()
            if isinstance(table, dict)
            for value in table.values()
        ]
        return tuple(name for name in named if name)

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names."""
        return tuple(dict.fromkeys(name.partition(":")[0] for name in self.callables))

    def check_values(self, path: str) -> None:
        """A sentence for what is wrong with the tables; names in them are held to the task when that is made."""
        from ludus.envs.mujoco.randomization import check_randomization

        for kind in TABLES:
            table = getattr(self, kind)
            flag = f"--{path}{kind}"
            if not isinstance(table, dict):
                raise ConfigError(f"{flag} must be names and values, not {told(table)}.")
            if len(table) > _MOST_TERMS:
                raise ConfigError(f"{flag} has {len(table)} terms; at most {_MOST_TERMS} are allowed.")
            for name, value in table.items():
                if not isinstance(name, str) or not name.replace("_", "").isalnum() or len(name) > _LONGEST_NAME:
                    raise ConfigError(f"{flag} names a term {told(name)}; a name has letters, digits and _.")
                if kind in KINDS:
                    _check_term(flag, name, value)
                if kind == "terminations" and _weight_of(value) not in (None, 0, 1):
                    raise ConfigError(
                        f"{flag}: the term {name!r} ends an episode or does not: its weight is 1 or 0."
                    )
        check_randomization(self.randomization, path)


def _plain(kind: str, name: Any, value: Any) -> Any:
    """A function given from Python becomes its name: a configuration is data."""
    key = _KEYS[kind]
    if callable(value):
        value = {key: value}
    if isinstance(value, dict):
        return {k: _name_of(name, v) if k == key and callable(v) else _listed(v) for k, v in value.items()}
    return value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _name_of(term: Any, function: Any) -> str:
    name = getattr(function, "__qualname__", "")
    if not name.isidentifier():
        what = "a lambda" if "<lambda>" in name else "defined inside something else"
        raise ConfigError(
            f"The function of the term {term!r} is {what}, and could not be found again by its name: write it as "
            "a function at the top of a module."
        )
    return address_of(function.__module__, name, "function")


def _callable_of(kind: str, value: Any) -> str:
    """The "module:name" that a term's setting names, if any."""
    named = value.get(_KEYS[kind]) if isinstance(value, dict) else value
    return named if isinstance(named, str) and (":" in named or kind in KINDS) else ""


def _check_term(flag: str, name: str, value: Any) -> None:
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float):
        _check_weight(flag, name, value)
    elif isinstance(value, str):
        _check_path(flag, name, value)
    elif isinstance(value, dict):
        if len(value) > _MOST_PARAMETERS or not all(isinstance(key, str) and key.isidentifier() for key in value):
            raise ConfigError(f"{flag} gives the term {name!r} arguments that are not names and values.")
        if "weight" in value:
            _check_weight(flag, name, value["weight"])
        if "function" in value:
            _check_path(flag, name, value["function"])
    else:
        raise ConfigError(
            f"{flag} says {told(value)} of the term {name!r}; it must be a weight, null or names and values."
        )


def _weight_of(value: Any) -> Any:
    return value.get("weight") if isinstance(value, dict) else value if isinstance(value, int | float) else None


def _check_weight(flag: str, name: str, weight: Any) -> None:
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not math.isfinite(weight) or abs(weight) > 1e9:
        raise ConfigError(
            f"{flag} gives the term {name!r} the weight {told(weight)}; it must be a number of at most 1e9."
        )


def _check_path(flag: str, name: str, path: Any) -> None:
    parts = path.split(":") if isinstance(path, str) else []
    if len(parts) != 2 or not parts[1].isidentifier() or not all(p.isidentifier() for p in parts[0].split(".")):
        raise ConfigError(
            f'{flag} gives the term {name!r} the function {told(path)}; say it as "my_module:my_function".'
        )
