"""Gymnasium environments from their registration, without the wrappers that only check or count."""

import contextlib
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium as gym
import mujoco
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import (
    AtariPreprocessing,
    FrameStackObservation,
    OrderEnforcing,
    PassiveEnvChecker,
    TimeLimit,
)

from ludus.envs.given import Several
from ludus.envs.gym.block import NO_LIMIT, EnvRaisedError, GymBlock
from ludus.envs.gym.robotics import mend_robotics
from ludus.envs.gym.spaces import MaskSource, adapt_spaces, mask_in_info, may_be_masked
from ludus.envs.row_space import RowSpace, is_image
from ludus.errors import ConfigError, LudusError, tell_exception

_RAW = ("frameskip", "obs_type")  # who sets one of these wants the emulator as it is


class GymRecipe(NamedTuple):
    """All that a process needs to make the environment."""

    name: str  # for messages: "gym:CartPole-v1"
    module: str  # imported first, if any
    spec: EnvSpec
    max_steps: int  # 0 = the environment's own limit
    kwargs: dict[str, Any]
    masks: bool = True  # heed the masks of valid actions
    make: Callable[..., gym.Env] | None = None  # in place of the registration

    def make_block(self, count: int, first_env: int = 0) -> GymBlock:
        if self.module:
            importlib.import_module(self.module)
        mend_robotics(self.spec.entry_point)
        envs, limit = make_envs(self, count, first_env)
        obs_space, action_space = envs[0].observation_space, envs[0].action_space
        of = adapt_spaces(obs_space, action_space, self.name, self._mask_source(envs[0]), self.masks)
        if not isinstance(of.obs, RowSpace):
            of = of._replace(stacked_frames=_stacked_frames(envs[0]))
        return GymBlock(self.name, envs, limit, of, first_env)

    def _mask_source(self, env: gym.Env) -> MaskSource:
        """Where an environment with choices says which of them are valid, if not in its observations."""
        if not self.masks or not may_be_masked(env.observation_space, env.action_space):
            return ""
        if env.has_wrapper_attr("action_masks"):
            return "method"
        try:
            result = env.reset(seed=0)
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 (the block's own reset says it in a sentence)
            return ""
        return mask_in_info(result)


def make_envs(recipe: GymRecipe, count: int, first: int = 0) -> tuple[list[gym.Env], int]:
    """Environments and their time limit in steps."""
    with _each_mujoco_warning_once(recipe.name):
        made = [_make_env(recipe, first + i) for i in range(count)]
    return [env for env, _ in made], made[0][1]


def _make_env(recipe: GymRecipe, number: int) -> tuple[gym.Env, int]:
    """Without the wrappers that only check or count; the time limit is left to the block."""
    is_atari = recipe.spec.namespace == "ALE" and not any(name in recipe.kwargs for name in _RAW)
    kwargs = recipe.kwargs | ({"frameskip": 1} if is_atari else {})
    try:
        env = _made(recipe, number, kwargs)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        raise ConfigError(f"{recipe.name} needs a package that is not installed: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{recipe.name} cannot be made with kwargs {recipe.kwargs}: {error}") from error
    except (KeyboardInterrupt, LudusError):
        raise
    except BaseException as error:
        raise EnvRaisedError(f"{recipe.name} could not be made: {tell_exception(error)}") from error
    limit = NO_LIMIT
    # Gymnasium's own outermost wrappers only: the block counts steps and calls in the right order itself.
    if type(env) is TimeLimit:
        limit, env = env._max_episode_steps, env.env
    while isinstance(env, gym.Wrapper) and type(env) in (OrderEnforcing, PassiveEnvChecker):
        env = env.env
    if recipe.make is not None:
        limit = recipe.max_steps or limit
    _quicken(env.unwrapped.action_space)
    # Four frames a step, the last four steps in grey at 84 × 84, as Mnih et al. (2015) saw them.
    return (FrameStackObservation(AtariPreprocessing(env), 4) if is_atari else env), limit


def _made(recipe: GymRecipe, number: int, kwargs: dict[str, Any]) -> gym.Env:
    """One environment, as its registration or its maker has it."""
    make, limit = recipe.make, recipe.max_steps or None
    if make is None:
        return gym.make(recipe.spec, max_episode_steps=limit, disable_env_checker=True, **kwargs)
    env = (make.at(number) if isinstance(make, Several) else make)(**kwargs)
    if not isinstance(env, gym.Env):
        raise ConfigError(f"{recipe.name} makes a {type(env).__name__}, which is no Gymnasium environment.")
    return env


def _stacked_frames(env: gym.Env) -> int:
    """How many frames Gymnasium's own outermost wrapper stacks; others may do it otherwise."""
    if type(env) is not FrameStackObservation or not is_image(env.observation_space):
        return 1
    return env.stack_size if env.padding_type == "reset" else 1


@contextlib.contextmanager
def _each_mujoco_warning_once(name: str) -> Iterator[None]:
    """MuJoCo would say the same for every environment, and write it to a file in this folder.

    What is deprecated concerns the author of the model, not its user.
    """
    before, texts = mujoco.get_mju_user_warning(), dict[str, None]()
    mujoco.set_mju_user_warning(lambda text: texts.update({text: None}))
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)
    for text in texts:
        if "deprecated" not in text:
            warnings.warn(f"{name}: MuJoCo says: {text.strip()}", RuntimeWarning, stacklevel=4)


class _QuickDiscrete(spaces.Discrete):
    """Discrete with a `contains` that does not go through numpy: a quarter of CartPole's step."""

    quick_range = range(0)

    def contains(self, x: Any) -> bool:
        return x in self.quick_range if type(x) is int else super().contains(x)


def _quicken(space: gym.Space) -> None:
    if type(space) is spaces.Discrete:
        space.__class__ = _QuickDiscrete
        space.quick_range = range(int(space.start), int(space.start + space.n))  # type: ignore[attr-defined]
