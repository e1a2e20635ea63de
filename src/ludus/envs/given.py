"""Environments that a program hands over as objects: a class, a function that makes one, an instance.

What stands at the top of a module goes by its name, "gym:my_module:MyEnv", and a run finds it again. All else (a
lambda, a class inside a function, an instance) is kept here under a name in angle brackets, "gym:<MyEnv 3fa21b>",
which this program alone understands. Another one hands the environment over again: `ludus.resume(RUN, env=MyEnv)`.
"""

import contextlib
import copy
import inspect
import re
import secrets
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from ludus.envs.importing import address_of, is_given, main_name, told_name
from ludus.errors import ConfigError, EnvError, LudusError, plain_text, tell_exception

_PETTINGZOO = {"ParallelEnv", "AECEnv"}  # by name: the package need not be installed


class Given(NamedTuple):
    """An environment that has no name."""

    make: Callable[..., Any]
    label: str  # to be shown
    like: str = ""  # the registered id of what it makes, whose settings suit it
    num_envs: int = 0  # how many step together; 0: as many as the preset says
    in_processes: bool = False  # they are meant to step in processes of their own
    copied: bool = False  # it is an instance, of which copies are made


_GIVEN: dict[str, Given] = {}


def name_of_env(env: Any) -> str:
    """The name by which it is trained: "gym:my_module:MyEnv", or "gym:<MyEnv 3fa21b>" for one without a name."""
    kind, thing = _look_at(env)
    if isinstance(thing, Given):
        address = f"<{thing.label} {secrets.token_hex(3)}>"
        _GIVEN[address] = thing
        return f"{kind}:{address}"
    return f"{kind}:{thing}"


def give_again(name: str, env: Any) -> None:
    """`env` is what a run knows as `name`: "gym:<MyEnv 3fa21b>"."""
    known_kind, _, address = name.partition(":")
    kind, thing = _look_at(env)
    if not is_given(address):
        if f"{kind}:{thing}" != name:
            raise ConfigError(
                f"The run finds its environment by its name, {plain_text(name, 200)}: leave env out."
            )
        return
    if kind != known_kind:
        raise ConfigError(f"The run was trained in {known_kind}:…, and this is {kind}:{_label(env)}.")
    _GIVEN[address] = thing if isinstance(thing, Given) else Given(env, _label(env))


def given(address: str) -> Given:
    """What was handed over under this address."""
    if address not in _GIVEN:
        name = told_name(address)
        raise ConfigError(
            f"The environment {name} was handed over by a program as an object, and has no name to find it by. "
            f"Hand it over again in Python: ludus.Run(RUN, env=…) to evaluate, ludus.resume(RUN, env=…) to go on."
        )
    return _GIVEN[address]


def about_given(config: Any) -> list[str]:
    """What a user should know before a training in an environment that has no name; `config` is its settings."""
    address = str(getattr(config, "id", getattr(config, "factory", "")))
    if not is_given(address):
        return []
    name, number = told_name(address), config.num_envs
    what = f"{number} copies of the {name}" if given(address).copied and name else name
    return [f"{what} that this program handed over; another program goes on by ludus.resume(RUN, env=…)"]


# What it is -------------------------------------------------------------------------------------
def _look_at(env: Any) -> tuple[str, str | Given]:
    """The kind of an environment, and its address in a module, or how to make one that has none."""
    kind = _kind_of(env)
    if isinstance(env, type) and kind:
        return kind, _address_in_module(env) or Given(env, _label(env))
    if type(env) in (SyncVectorEnv, AsyncVectorEnv):  # Ludus steps what they are made of, without filler rows
        makers = Several(list(env.env_fns))
        label = _label(env.envs[0]) if isinstance(env, SyncVectorEnv) else _label(env)
        return "gym", Given(makers, label, _like(env), len(env.env_fns), isinstance(env, AsyncVectorEnv))
    if kind:
        copies = _Copies(env)
        _close(copies())
        return kind, Given(copies, _label(env), _like(env), _number_of(env), copied=True)
    if not callable(env):
        raise ConfigError(
            f"{type(env).__name__} is no environment. Give a preset's name, 'gym:ID', a class of environments, a "
            "function that makes one, or an instance."
        )
    made = _make_one(env)
    kind = _kind_of(made)
    if not kind or isinstance(made, type):
        raise ConfigError(f"{_label(env)}() makes a {type(made).__name__}, which is no environment.")
    number = 0 if takes_number(env) else _number_of(made)
    made_here = Given(env, _label(made), _like(made), number)
    _close(made)
    return kind, ("" if number else _address_in_module(env)) or made_here


def _kind_of(env: Any) -> str:
    """The prefix of its name; empty for what is no environment."""
    cls = env if isinstance(env, type) else type(env)
    if issubclass(cls, gym.Env):
        return "gym"
    from ludus.envs.vec import VecEnv  # with torch, which the name of an environment does not need

    if issubclass(cls, VecEnv | VectorEnv):
        return "vec"
    return "pettingzoo" if _PETTINGZOO & {base.__name__ for base in cls.__mro__} else ""


def _address_in_module(thing: Any) -> str:
    """ "module:name", if that finds it in another program; else empty."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not name.isidentifier() or getattr(sys.modules.get(str(module)), name, None) is not thing:
        return ""
    home = main_name() if module == "__main__" else str(module)
    if home == "__main__" or home.partition(".")[0] in sys.stdlib_module_names:  # a notebook; a script test.py
        return ""
    return address_of(str(module), name, "environment")


def _label(env: Any) -> str:
    """A short name to show."""
    if isinstance(env, gym.Env | VectorEnv):
        env = type(env.unwrapped)
    name = env.__name__ if callable(env) and hasattr(env, "__name__") else type(env).__name__
    return re.sub(r"\W", "", name) or "environment"


def _number_of(env: Any) -> int:
    """Of environments that step together in what cannot be made of another size; 0 for a single one."""
    from ludus.envs.vec import VecEnv

    if isinstance(env, VecEnv):
        return env.num_rows // env.agents_per_env
    return int(env.num_envs) if isinstance(env, VectorEnv) else 0


def _like(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if isinstance(spec, EnvSpec) else ""


def takes_number(make: Callable[..., Any]) -> bool:
    """Whether a callable wants to be told how many environments to make."""
    try:
        return "num_envs" in inspect.signature(make).parameters
    except (TypeError, ValueError):
        return False


def _make_one(make: Callable[..., Any]) -> Any:
    """To see what it makes."""
    try:
        return make(num_envs=1) if takes_number(make) else make()
    except LudusError:
        raise
    except Exception as error:
        raise EnvError(f"{_label(make)}() could not make an environment: {tell_exception(error)}") from error


def _close(env: Any) -> None:
    with contextlib.suppress(Exception):  # it was only looked at
        env.close()


# How several are made ---------------------------------------------------------------------------
class Several:
    """A function for each environment of a group, in turn."""

    def __init__(self, makers: Sequence[Callable[[], Any]]) -> None:
        self._makers = makers

    def at(self, number: int) -> Callable[..., Any]:
        return self._makers[number % len(self._makers)]

    def __call__(self) -> Any:
        return self._makers[0]()


class _Copies:
    """Makes copies of an instance, which itself is never stepped."""

    def __init__(self, env: Any) -> None:
        self._env = env

    def __call__(self) -> Any:
        try:
            return copy.deepcopy(self._env)
        except Exception as error:
            made = self._made_anew()
            if made is not None:
                return made
            name = _label(self._env)
            raise ConfigError(
                f"{name} cannot be copied ({type(error).__name__}: {error}), and a training needs several: one "
                f"more, at least, to evaluate. Hand over what makes it: ludus.train(lambda: {name}(…))."
            ) from error

    def _made_anew(self) -> Any:
        """By Gymnasium, where it knows how the instance was made."""
        spec = getattr(self._env, "spec", None)
        try:
            return gym.make(spec) if isinstance(spec, EnvSpec) and isinstance(self._env, gym.Env) else None
        except Exception:  # noqa: BLE001 (whatever a foreign constructor says: the copy's error is told)
            return None
