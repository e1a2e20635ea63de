"""What the name of a Gymnasium or PettingZoo environment stands for. Nothing is made of it yet."""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from ludus.envs.given import given
from ludus.envs.importing import find_callable, import_module_of, is_given, told_name
from ludus.errors import ConfigError, did_you_mean

_ATARI, _ROBOTICS = "ale_py", "gymnasium_robotics"
# How the ids of Gymnasium-Robotics begin.
_ROBOTS = ("FetchReach", "FetchPush", "FetchSlide", "FetchPickAndPlace", "HandReach", "HandManipulate",
           "AdroitHand", "PointMaze_", "AntMaze_", "FrankaKitchen-")  # fmt: skip
# Module → what must be installed, by the modules that are imported; the extra that installs it.
_PACKAGES = {
    _ATARI: ({_ATARI: "ale-py", "cv2": "opencv-python"}, "atari"),
    _ROBOTICS: ({_ROBOTICS: "gymnasium-robotics"}, "robotics"),
}


class FoundEnv(NamedTuple):
    """What an id stands for."""

    spec: EnvSpec
    make: Callable[..., gym.Env] | None = None  # of one that is not registered


def find_env(env_id: str) -> FoundEnv:
    """The registration of "CartPole-v1" or "my_package:MyEnv-v0", or the class or function "my_module:MyEnv"."""
    module, _, name = env_id.rpartition(":")
    if is_given(env_id):
        return _unregistered(told_name(env_id), given(env_id).make)
    found = import_module_of(module, env_id) if module else None  # which may register it
    if not module and (package := package_of(name)):
        _import_package(package, env_id)
    try:
        return FoundEnv(gym.spec(name))
    except gym.error.Error as error:
        if callable(getattr(found, name, None)):
            return _unregistered(name, find_callable(env_id, "", "Gymnasium environment", ("Env",)))
        if module:
            raise ConfigError(_absent(module, name, vars(found))) from error
        raise ConfigError(
            f"There is no Gymnasium environment {name!r}.{did_you_mean(name, gym.registry)} One of another "
            "package is named with the module that registers it or has its class, as in 'my_package:MyEnv-v0'."
        ) from error


def _absent(module: str, name: str, members: Mapping[str, Any]) -> str:
    """The module has no such environment; those that it has are named."""
    classes = [n for n, value in members.items() if isinstance(value, type) and issubclass(value, gym.Env)]
    own = [n for n in classes if members[n].__module__ == module]
    near = did_you_mean(name, own) or did_you_mean(name, gym.registry)
    has = "" if near or not own else f" It has {', '.join(map(repr, own[:5]))}."
    return f"The module {module!r} neither has nor registers an environment {name!r}.{near}{has}"


def _unregistered(name: str, make: Callable[..., gym.Env]) -> FoundEnv:
    return FoundEnv(EnvSpec(name, entry_point=make), make)


def find_spec(env_id: str) -> EnvSpec:
    """The registration alone."""
    return find_env(env_id).spec


def package_of(env_id: str) -> str:
    """The module that registers the environments of a package whose ids name none; else empty."""
    if env_id.startswith("ALE/"):
        return _ATARI
    known = gym.registry.get(env_id)
    foreign = known is not None and not str(known.entry_point).startswith(_ROBOTICS)
    return _ROBOTICS if env_id.startswith(_ROBOTS) and not foreign else ""


def _import_package(module: str, env_id: str) -> None:
    needed, extra = _PACKAGES[module]
    missing = [package for name, package in needed.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{env_id} needs {' and '.join(missing)}: pip install 'ludus[{extra}]'")
    import_module_of(module, env_id, search_here=False)


def find_factory(env_id: str) -> Callable[..., Any]:
    """The callable of "module:callable", `parallel_env` of "module", or one that makes "namespace/name-v0"."""
    if is_given(env_id):
        return given(env_id).make
    module, _, name = env_id.rpartition(":")
    if "/" not in name:
        own = not env_id.startswith("pettingzoo.")
        return find_callable(env_id, "parallel_env", "PettingZoo environment", ("ParallelEnv", "AECEnv"), own)
    if module:
        import_module_of(module, env_id)  # which registers it
    pettingzoo = import_module_of("pettingzoo", env_id, search_here=False)
    registry = getattr(pettingzoo, "parallel_registry", {})
    if name not in registry:
        near = did_you_mean(name, registry)
        raise ConfigError(f"PettingZoo {pettingzoo.__version__} has no parallel environment {name!r}.{near}")
    return functools.partial(pettingzoo.make, "parallel", name)
