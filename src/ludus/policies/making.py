"""Policies by the name of their algorithm: new ones, and those a checkpoint describes."""

from typing import Any

import gymnasium as gym
import torch

from ludus.envs.vec import ActionSpace, VecEnv
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.policy import Policy, PolicyConfig, space_from
from ludus.policies.replay_policy import ReplayPolicy


def make_actor_critic(env: VecEnv, config: PolicyConfig, seed: int) -> ActorCritic:
    """A new policy for PPO whose weights `seed` alone determines; the global random stream is left untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ActorCritic(env.obs_space, env.action_space, config)


def make_replay_policy(
    kind: str, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig, seed: int
) -> ReplayPolicy:
    """The same for "sac", "td3" or "dqn"."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ReplayPolicy(kind, obs_space, action_space, config)


def policy_from(description: dict[str, Any]) -> Policy:
    """The policy that `Policy.description` described, without its weights."""
    config = dict(description["config"])
    config["hidden"] = tuple(config["hidden"])
    obs_space, action_space = (space_from(description[k]) for k in ("obs_space", "action_space"))
    if description["kind"] == ActorCritic.kind:
        return ActorCritic(obs_space, action_space, PolicyConfig(**config))
    return ReplayPolicy(description["kind"], obs_space, action_space, PolicyConfig(**config))  # refuses others
