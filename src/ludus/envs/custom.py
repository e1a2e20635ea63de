"""A user's own batched environment: a callable that makes a `VecEnv` or Gymnasium's `VectorEnv`."""

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from gymnasium.vector import VectorEnv

from ludus.envs.config import VecConfig
from ludus.envs.given import given, takes_number
from ludus.envs.gym.vector import VectorRows
from ludus.envs.importing import find_callable, is_given, told_name
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, EnvError, LudusError, tell_exception

_ATTRIBUTES = ("name", "num_rows", "obs_space", "action_space", "device")
_ACTION_SPACES = (gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete)


def make_custom(config: VecConfig, num_envs: int, device: torch.device | str, evaluation: bool) -> VecEnv:
    """A group of `num_envs` environments. The callable is told `device` and `evaluation` if it names them."""
    factory = find_env_factory(config.factory)
    name = told_name(f"vec:{config.factory}")
    arguments = _arguments(factory, config, name, num_envs, torch.device(device), evaluation)
    try:
        env = factory(**arguments)
    except LudusError:
        raise
    except Exception as error:
        raise EnvError(f"{name} could not be made: {tell_exception(error)}") from error
    if isinstance(env, VectorEnv):
        env = VectorRows(env, name)
    fixed = is_given(config.factory) and not takes_number(factory)
    _check_contract(env, name, None if fixed else num_envs, torch.device(device))
    if fixed and not evaluation and env.num_rows != num_envs * env.agents_per_env:
        raise ConfigError(
            f"{name} was handed over with {env.num_rows // env.agents_per_env} environments and cannot be made "
            f"with {num_envs}: leave num_envs and groups out, or hand over a function of num_envs that makes it."
        )
    return env


def find_env_factory(path: str) -> Callable[..., Any]:
    """The callable of "module:callable", or one that a program handed over."""
    if is_given(path):
        return given(path).make
    return find_callable(path, "", "batched environment", ("VecEnv", "VectorEnv"))


def _arguments(
    factory: Callable[..., Any],
    config: VecConfig,
    name: str,
    num_envs: int,
    device: torch.device,
    evaluation: bool,
) -> dict[str, Any]:
    if is_given(config.factory) and not takes_number(factory):
        return dict(config.kwargs)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # written in C: it cannot be asked what it takes
        return {"num_envs": num_envs, **config.kwargs}
    offered = {"device": device, "evaluation": evaluation}
    named = {name: value for name, value in offered.items() if name in signature.parameters}
    arguments = {"num_envs": num_envs, **named, **config.kwargs}
    try:
        signature.bind(**arguments)  # here, so that a TypeError inside it is not taken for this
    except TypeError as error:
        names = ", ".join(arguments)
        raise ConfigError(f"{name}{signature} cannot be called with {names}: {error}.") from error
    return arguments


def _check_contract(env: Any, name: str, num_envs: int | None, device: torch.device) -> None:
    """`num_envs`: how many it must have; None: any number."""
    what = f"{name} makes"
    if not isinstance(env, VecEnv):
        raise ConfigError(
            f"{what} a {type(env).__name__}; it must be a ludus.envs.vec.VecEnv or a gymnasium.vector.VectorEnv."
        )
    missing = [name for name in _ATTRIBUTES if not hasattr(env, name)]
    if missing:
        raise ConfigError(f"{what} a VecEnv without {' and '.join(missing)}: set them before it is returned.")
    if not isinstance(env.obs_space, gym.spaces.Box):
        raise ConfigError(f"{what} a VecEnv whose obs_space is {env.obs_space}; it must be a Box, of one row.")
    if not isinstance(env.action_space, _ACTION_SPACES):
        raise ConfigError(
            f"{what} a VecEnv whose action_space is {env.action_space}; it must be a Box, Discrete or "
            "MultiDiscrete, of one row."
        )
    if env.device.type not in ("cpu", device.type):
        raise ConfigError(f"{what} a VecEnv on {env.device}; train with --device {env.device.type}.")
    if num_envs is not None and env.num_rows != num_envs * env.agents_per_env:
        raise ConfigError(
            f"{what} a VecEnv of {env.num_rows} rows; {num_envs} environments of {env.agents_per_env} "
            f"agents are {num_envs * env.agents_per_env}."
        )
