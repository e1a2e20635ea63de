"""Any PettingZoo parallel environment behind the `VecEnv` contract: one row for each agent of each environment.

    env = make_pettingzoo(PettingZooConfig("pettingzoo.butterfly.knights_archers_zombies_v11"), num_envs=8)

Rows of one environment lie together, in the order of its `possible_agents`. One policy acts for all of them.
"""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from ludus.envs.gym.block import NO_LIMIT, EnvRaisedError
from ludus.envs.gym.config import PettingZooConfig
from ludus.envs.gym.env import BlockVecEnv
from ludus.envs.gym.finding import find_factory
from ludus.envs.gym.pettingzoo_block import ParallelBlock
from ludus.envs.gym.spaces import MaskSource, adapt_spaces, mask_in_info, may_be_masked
from ludus.envs.gym.workers import GymWorkersVecEnv
from ludus.envs.importing import is_given, told_name
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, tell_exception


def make_pettingzoo(config: PettingZooConfig, num_envs: int) -> VecEnv:
    """A group of `num_envs` environments."""
    recipe = ParallelRecipe(
        told_name(f"pettingzoo:{config.id}"), config.id, config.max_steps, dict(config.kwargs), config.action_masks
    )
    if config.workers == 0:
        return PettingZooVecEnv(recipe, num_envs)
    if is_given(config.id):
        raise ConfigError(f"{recipe.name} was handed over as an object, which no worker has: use workers=0.")
    return GymWorkersVecEnv(recipe, num_envs, min(config.workers, num_envs))


class PettingZooVecEnv(BlockVecEnv):
    """Parallel environments that step one after the other in this process; all rows of one share a `frame`."""


class ParallelRecipe(NamedTuple):
    """All that a process needs to make the environment."""

    name: str  # for messages: "pettingzoo:my_package.my_env:make"
    id: str
    max_steps: int  # 0 = the environment's own limit
    kwargs: dict[str, Any]
    masks: bool = True  # heed the masks of valid actions

    def make_block(self, count: int, first_env: int = 0) -> ParallelBlock:
        factory = find_factory(self.id)
        envs = [_make_env(factory, self) for _ in range(count)]
        obs_space, action_space = _shared_spaces(envs[0], self.name)
        source = self._mask_source(envs[0], obs_space, action_space)
        of = adapt_spaces(obs_space, action_space, self.name, source, self.masks)
        return ParallelBlock(self.name, envs, self.max_steps or NO_LIMIT, of, first_env)

    def _mask_source(self, env: Any, obs_space: Any, action_space: Any) -> MaskSource:
        """As of Gymnasium's environments; the info is that of any agent."""
        if not self.masks or not may_be_masked(obs_space, action_space):
            return ""
        try:
            obs, infos = env.reset(seed=0)
            return mask_in_info((obs, next(iter(infos.values()), {})))
        except KeyboardInterrupt:
            raise
        except BaseException:  # noqa: BLE001 (the block's own reset says it in a sentence)
            return ""


def _make_env(factory: Callable[..., Any], recipe: ParallelRecipe) -> Any:
    try:
        env = factory(**recipe.kwargs)
    except ImportError as error:
        raise ConfigError(f"{recipe.name} needs a package that is not installed: {error}") from error
    except TypeError as error:
        raise ConfigError(f"{recipe.name} cannot be made with kwargs {recipe.kwargs}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error.__cause__, ImportError):  # PettingZoo says what to install
            raise ConfigError(f"{recipe.name}: {error}") from error
        raise EnvRaisedError(f"{recipe.name} could not be made: {tell_exception(error)}") from error
    return _as_parallel(env, recipe.name)


def _as_parallel(env: Any, name: str) -> Any:
    pettingzoo = importlib.import_module("pettingzoo")  # there, because the environment is made of it
    if isinstance(env, pettingzoo.ParallelEnv):
        return env
    if not isinstance(env, pettingzoo.AECEnv):
        raise ConfigError(f"{name} makes a {type(env).__name__}, not a PettingZoo environment.")
    if not env.metadata.get("is_parallelizable", False):
        raise ConfigError(
            f"In {name} agents act one after the other. Ludus needs all to act at once: a ParallelEnv, or an "
            "AECEnv whose metadata say is_parallelizable."
        )
    return importlib.import_module("pettingzoo.utils.conversions").aec_to_parallel(env)


def _shared_spaces(env: Any, name: str) -> tuple[Any, Any]:
    """The observation and the action space, which all agents must have in common: one policy acts for all."""
    agents = getattr(env, "possible_agents", [])
    if not isinstance(agents, list | tuple) or not agents:
        raise ConfigError(f"{name} has no possible_agents: Ludus needs the list of all agents that may appear.")
    shared = []
    for what, remedy in (("observation", "pad_observations_v0"), ("action", "pad_action_space_v0")):
        try:
            space_of = getattr(env, f"{what}_space")
            spaces = {agent: space_of(agent) for agent in agents}
        except (Exception, SystemExit) as error:
            raise EnvRaisedError(f"{name} does not give its {what} spaces: {tell_exception(error)}") from error
        first = agents[0]
        other = next((agent for agent in agents if spaces[agent] != spaces[first]), None)
        if other is not None:
            raise ConfigError(
                f"{name} gives its agents different {what} spaces: {first!r} has {spaces[first]}, {other!r} has "
                f"{spaces[other]}. One policy needs the same for all; supersuit.{remedy} makes them so."
            )
        shared.append(spaces[first])
    return shared[0], shared[1]
