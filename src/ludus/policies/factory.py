"""Policies by the name of their algorithm: new ones, and those a checkpoint describes."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch

from ludus.envs.importing import find_callable
from ludus.envs.vec import ActionSpace, VecEnv
from ludus.errors import ConfigError, TrustError, plain_text
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.policy import MakeNetwork, Policy, PolicyConfig
from ludus.policies.replay_policy import ReplayPolicy
from ludus.policies.spaces import space_from

# Observation space, action space and settings → a policy whose weights are loaded next.
MakePolicy = Callable[[gym.spaces.Box, ActionSpace, PolicyConfig], Policy]


def make_actor_critic(env: VecEnv, config: PolicyConfig, seed: int) -> ActorCritic:
    """A new policy for PPO whose weights `seed` alone determines; the global random stream is left untouched."""
    network = find_network(config.network) if config.network else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(env.obs_space, env.action_space, config, network)


def find_network(name: str) -> MakeNetwork:
    """The class or function that "module:name" names, which the caller may import."""
    return find_callable(name, "", "network", ("Module",))


def make_replay_policy(
    kind: str, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig, seed: int
) -> ReplayPolicy:
    """The same for "sac", "td3" or "dqn"."""
    network = find_network(config.network) if config.network else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ReplayPolicy(kind, obs_space, action_space, config, network)


def name_of_network(network: MakeNetwork | str) -> str:
    """The name by which it is found again."""
    if isinstance(network, str):
        return network
    name = getattr(network, "__qualname__", "")
    if not name.isidentifier():
        raise ConfigError(f"The network {name or network!r} must be a class or function at the top of a module.")
    return f"{network.__module__}:{name}"


def refuse_network(name: str) -> MakeNetwork:
    """For whoever loads a policy without having asked whether the code that it names may be imported."""
    raise TrustError(
        f"This policy would import its network {plain_text(name, 200)!r}. Give it by hand, "
        "ludus.load(RUN, network=MyNet), or trust the run: --trust, in Python trust=True."
    )


def refuse_kind(kind: str) -> MakePolicy:
    """For whoever loads a policy without knowing the algorithms of other packages."""
    raise ConfigError(f"There is no policy of the kind {plain_text(kind, 200)!r}.")


def policy_from(
    description: dict[str, Any],
    find: Callable[[str], MakeNetwork] = refuse_network,
    find_kind: Callable[[str], MakePolicy] = refuse_kind,
) -> Policy:
    """The policy that `Policy.description` described, without its weights.

    `find` gives a network by its name, `find_kind` what makes policies of a kind that is not of Ludus.
    """
    config = dict(description["config"])
    for name in ("hidden", "actor_parts", "critic_parts"):
        if name in config:  # older ones have no parts
            config[name] = tuple(config[name])
    obs_space, action_space = (space_from(description[k]) for k in ("obs_space", "action_space"))
    network = find(str(config["network"])) if config.get("network") else None
    if description["kind"] == ActorCritic.kind:
        return ActorCritic(obs_space, action_space, PolicyConfig(**config), network)
    if description["kind"] in ReplayPolicy.kinds:
        return ReplayPolicy(description["kind"], obs_space, action_space, PolicyConfig(**config), network)
    return find_kind(str(description["kind"]))(obs_space, action_space, PolicyConfig(**config))
