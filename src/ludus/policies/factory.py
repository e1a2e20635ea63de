"""Policies by the name of their algorithm: new ones, and those a checkpoint describes."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from torch import nn

from ludus.envs.importing import address_of, find_callable
from ludus.envs.interface import interface_from
from ludus.envs.vec import ActionSpace, VecEnv
from ludus.errors import ConfigError, TrustError, plain_text
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.flash_policy import FlashPolicy
from ludus.policies.policy import MakeNetwork, Policy
from ludus.policies.replay_heads import FLASH, REPLAY_KINDS
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


FindNetwork = Callable[[str, dict[str, Any]], MakeNetwork]
"""Gives the network of a checkpoint by its name, to be made with these arguments."""


def find_signed_network(config: PolicyConfig, name: str, kwargs: dict[str, Any]) -> MakeNetwork:
    """The same for a checkpoint, which may name no other network and give it no other arguments than its run."""
    if (config.network, dict(config.network_kwargs)) != (name, kwargs):
        return refuse_network(name, kwargs)
    return find_network(name)


def make_replay_policy(
    kind: str, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig, seed: int
) -> ReplayPolicy:
    """The same for "sac", "td3", "dqn" or "flash-sac"."""
    network = find_network(config.network) if config.network else None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _replay_policy(kind)(kind, obs_space, action_space, config, network)


def _replay_policy(kind: str) -> type[ReplayPolicy]:
    return FlashPolicy if kind == FLASH else ReplayPolicy


def name_of_network(network: MakeNetwork | nn.Module | str) -> str:
    """The name by which it is found again."""
    if isinstance(network, str):
        return network
    if isinstance(network, nn.Module):
        name = type(network).__name__
        raise ConfigError(
            f"The network is a {name} that is already made, and every policy makes its own: give the class, "
            f"network={name}, and its arguments by network_kwargs, or a function that makes it."
        )
    return address_of(network.__module__, getattr(network, "__qualname__", repr(network)), "network")


def refuse_network(name: str, kwargs: dict[str, Any]) -> MakeNetwork:
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
    find: FindNetwork = refuse_network,
    find_kind: Callable[[str], MakePolicy] = refuse_kind,
) -> Policy:
    """The policy that `Policy.description` described, without its weights.

    `find` gives a network by its name, `find_kind` what makes policies of a kind that is not of Ludus.
    """
    policy = _policy_from(description, find, find_kind)
    if "interface" in description:  # older ones have none
        policy.interface = interface_from(description["interface"])
    return policy


def _policy_from(description: dict[str, Any], find: FindNetwork, find_kind: Callable[[str], MakePolicy]) -> Policy:
    config = dict(description["config"])
    for name in ("hidden", "actor_parts", "critic_parts"):
        if name in config:  # older ones have no parts
            config[name] = tuple(config[name])
    obs_space, action_space = (space_from(description[k]) for k in ("obs_space", "action_space"))
    named = str(config.get("network", ""))
    network = find(named, dict(config.get("network_kwargs", {}))) if named else None
    if description["kind"] == ActorCritic.kind:
        return ActorCritic(obs_space, action_space, PolicyConfig(**config), network)
    kind = str(description["kind"])
    if kind in REPLAY_KINDS:
        return _replay_policy(kind)(kind, obs_space, action_space, PolicyConfig(**config), network)
    return find_kind(kind)(obs_space, action_space, PolicyConfig(**config))
