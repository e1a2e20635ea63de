"""A policy that is the mean of those of many updates: it is evaluated and saved, and changes nothing else."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import ludus
from ludus.algorithms.average import AveragedPolicy
from ludus.errors import ConfigError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.policies.policy import Policy
from ludus.policies.replay_policy import ReplayPolicy
from ludus.show.console import Console
from ludus.training.checkpoint import newest_intact

OBS = gym.spaces.Box(-9, 9, (3,), np.float32)
TASKS = {**dict.fromkeys(("sac", "td3", "flash-sac", "ppo"), "gym:Pendulum-v1"), "dqn": "gym:CartPole-v1"}
QUICK: dict[str, Any] = {
    "policy.hidden": (16, 16),
    "env.max_steps": 20,
    "loop.total_steps": 200,
    "eval.every": 100,
    "eval.episodes": 2,
    "eval.final_episodes": 0,
    "log.report": False,
    "log.tensorboard": False,
}
OF_REPLAYS: dict[str, Any] = {
    "replay.steps": 5,
    "replay.train_batches": 10,
    "replay.warmup": 40,
    "replay.batch_size": 16,
}
OF_PPO: dict[str, Any] = {
    "env.num_envs": 1,
    "groups": 1,
    "ppo.horizon": 5,
    "ppo.minibatches": 1,
    "ppo.update_epochs": 10,
}


def policy_of(algo: str) -> Policy:
    networks = PolicyConfig((8, 8), "tanh", normalize_obs=algo != "flash-sac")
    if algo == "ppo":
        return ActorCritic(OBS, gym.spaces.Box(-1, 1, (2,), np.float32), networks)
    actions = gym.spaces.Discrete(3) if algo == "dqn" else gym.spaces.Box(-1, 1, (2,), np.float32)
    return make_replay_policy(algo, OBS, actions, networks, 1)


def numbers_of(policy: Policy) -> np.ndarray:
    """Of its weights and of what its layers know of their inputs."""
    kept = {k: v for k, v in policy.state_dict().items() if not k.startswith("normalizer.")}
    learned = [v for k, v in kept.items() if k.startswith(("encoder.", "value_")) or "linear" in k]
    return torch.cat([tensor.double().flatten() for tensor in learned]).numpy()


def change(policy: Policy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    known = policy.encoder.buffers() if isinstance(policy, ReplayPolicy) else ()
    with torch.no_grad():
        for tensor in (*policy.parameters(), *known):
            tensor.copy_(0.1 * torch.rand(tensor.shape, generator=generator))


@pytest.mark.parametrize("algo", TASKS)
def test_the_mean_is_of_a_twentieth_at_first_and_then_of_the_horizon(algo: str) -> None:
    newest, horizon = policy_of(algo), 40
    average = AveragedPolicy(newest, horizon)
    mean, made = np.zeros_like(numbers_of(newest)), 0
    for iteration in range(120):
        change(newest, iteration)
        made += 10
        average.follow(10)
        share = min(1.0, max(20 * 10 / made, 1 - math.exp(-10 / horizon)))
        mean = (1 - share) * mean + share * numbers_of(newest)
        if iteration in (10, 50):
            np.testing.assert_allclose(numbers_of(average.policy), mean, rtol=1e-5)
    np.testing.assert_allclose(numbers_of(average.policy), mean, rtol=1e-5)
    loaded = policy_of(algo)
    loaded.load_state_dict(average.policy.state_dict())
    seen = np.ones(3, np.float32)
    acted, expected, other = (policy.act(seen) for policy in (average.policy, loaded, newest))
    np.testing.assert_allclose(acted, expected, rtol=1e-5)
    assert algo == "dqn" or not np.allclose(acted, other)


def test_both_see_by_one_normaliser_and_explore_alike() -> None:
    newest = policy_of("dqn")
    mean = AveragedPolicy(newest, 10).policy
    newest.learn_scales([torch.randn(50, 3) * 7 + 2])
    newest.head.epsilon.fill_(0.25)  # type: ignore[operator]
    for name, tensor in newest.state_dict().items():
        assert torch.equal(mean.state_dict()[name], tensor), name


def test_a_spread_that_a_schedule_closes_is_the_same_in_both() -> None:
    newest = policy_of("ppo")
    mean = AveragedPolicy(newest, 10).policy
    newest.head.limit_std(0.05)  # type: ignore[operator]
    torch.testing.assert_close(mean.head.spread(), torch.full((2,), 0.05))  # type: ignore[operator]


def train(folder: Path, algo: str, average: int, **more: Any) -> Path:
    own = {"ppo.average": average, **OF_PPO} if algo == "ppo" else {"replay.average": average, **OF_REPLAYS}
    settings = QUICK | own | more
    if algo == "flash-sac":
        settings["flash.critic_width"] = 16
    return ludus.train(TASKS[algo], folder, console=Console("quiet"), algo=algo, overrides=settings)


def saved(run: Path, what: str) -> dict[str, bytes]:
    """Tensors of its newest checkpoint."""
    path = newest_intact(run / "checkpoints", pytest.fail) / f"{what}.safetensors"
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(path).items()}


def newest_policy(run: Path) -> Policy:
    return ludus.load(f"{run}@newest")


@pytest.mark.parametrize("algo", TASKS)
def test_what_learns_is_not_changed_by_it_and_what_is_saved_is_the_mean(algo: str, tmp_path: Path) -> None:
    plain, averaged = (train(tmp_path / str(n), algo, n) for n in (0, 50))
    weights, mean = saved(plain, "policy"), saved(averaged, "policy")
    state, other = saved(plain, "training"), saved(averaged, "training")
    learning = [other.pop(name) for name in list(other) if "/average/" in name]
    assert state == other  # critics, replay, generators
    assert learning
    assert set(learning) <= set(weights.values())
    assert any(mean[name] != value for name, value in weights.items())


def at_rate(rate: float, algo: str) -> dict[str, Any]:
    names = ("ppo.learning_rate", "ppo.learning_rate_final") if algo == "ppo" else ("replay.learning_rate",)
    return dict.fromkeys(names, rate)


FAST, STANDING = 1e-2, 1e-12
MEMORY: dict[str, Any] = {"policy.memory": "gru", "policy.memory_size": 8}
SHARED: dict[str, Any] = MEMORY | {
    "replay.segment": 4,
    "replay.burn_in": 4,
}


KINDS = {
    "sac": ("sac", {}),
    "sac, shared encoder": ("sac", SHARED),
    "td3": ("td3", {}),
    "td3, shared encoder": ("td3", SHARED),
    "ppo": ("ppo", {}),
    "ppo, memory": ("ppo", MEMORY),
}


@pytest.mark.parametrize("average", [0, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_starts_from_a_mean_learns_on_with_it(kind: str, average: int, tmp_path: Path) -> None:
    algo, more = KINDS[kind]
    first = train(tmp_path / "first", algo, 50, **more, **at_rate(FAST, algo))
    more = more | at_rate(STANDING, algo) | {"start_from": f"{first}@newest"}
    second = train(tmp_path / "second", algo, average, **more)
    assert_same_weights(newest_policy(second), newest_policy(first))


@pytest.mark.parametrize("kind", ["sac", "sac, shared encoder", "ppo", "ppo, memory"])
def test_a_run_that_goes_on_without_a_mean_goes_on_with_what_learned(kind: str, tmp_path: Path) -> None:
    algo, more = KINDS[kind]
    plain, averaged = (train(tmp_path / str(n), algo, n, **more, **at_rate(FAST, algo)) for n in (0, 50))
    none = f"{'ppo' if algo == 'ppo' else 'replay'}.average"
    changes = {none: 0, "loop.total_steps": 220, **at_rate(STANDING, algo)}
    ludus.resume(averaged, console=Console("quiet"), overrides=changes)
    assert_same_weights(newest_policy(averaged), newest_policy(plain))


def assert_same_weights(one: Policy, other: Policy) -> None:
    weights = dict(other.named_parameters())
    for name, value in one.named_parameters():
        torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-6)


def test_a_mean_of_less_than_an_iteration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--replay\.average 10 is too short for a mean: give more than the 10"):
        train(tmp_path / "run", "sac", 10)
    with pytest.raises(ConfigError, match=r"--ppo\.average 10 is too short for a mean: give more than the 10"):
        train(tmp_path / "run", "ppo", 10)
