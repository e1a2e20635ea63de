"""A tutor: it learns from critics that see more than the policy does, and the policy learns to do the same."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import ludus
from ludus.algorithms.replay.agents import TD3, Batch, make_agent
from ludus.algorithms.replay.config import ReplayConfig, TD3Config, TD3TrainConfig
from ludus.data.config import DataConfig
from ludus.data.reading import read_episodes
from ludus.envs.row_space import RowSpace
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from stopped_runs import StopAfter, assert_same_run
from test_agents import Net, close, flat_gradient, generator, learn
from test_replay_images import DOT, offline, recorded

SIZES = {"known": 3, "secret": 2}
SPACE = RowSpace(gym.spaces.Dict({k: gym.spaces.Box(-9, 9, (n,), np.float32) for k, n in SIZES.items()}))
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)
PARTS: dict[str, Any] = {"policy__actor_parts": ("image",), "policy__critic_parts": ("places",)}
TAUGHT: dict[str, Any] = {"env__kwargs": {"see": "critic"}, "td3__tutor": 0.25, "replay__advantage": 1.0, **PARTS}


def agent_of(tutor: bool, *seen: str) -> TD3:
    networks = PolicyConfig((8,), "tanh", normalize_obs=False, actor_parts=seen, critic_parts=("known", "secret"))
    policy = make_replay_policy("td3", SPACE, ACTIONS, networks, 1)
    replay = ReplayConfig(learning_rate=1e-3, polyak=0.9, train_target=2, advantage=1.0)
    agent = make_agent(policy, TD3TrainConfig(replay=replay, td3=TD3Config(tutor=0.5 if tutor else 0.0)), 2)
    assert isinstance(agent, TD3)
    return agent


def batch_of(seed: int, n: int = 16) -> Batch:
    g = generator(seed)
    x, action = torch.randn((2 * n, 5), generator=g), torch.rand((n, 2), generator=g) * 2 - 1
    reward, noise = torch.randn(n, generator=g), torch.randn((2 * n, 2), generator=g)
    return Batch(x, action, reward, torch.full((n,), 0.9), noise)


def test_a_tutor_and_its_critics_learn_as_a_policy_that_sees_all_would() -> None:
    taught, all_seeing = agent_of(True, "known"), agent_of(False, "known", "secret")
    for ours, theirs in (
        (taught.actor_optimizer.flat, all_seeing.actor_optimizer.flat),
        (taught.targets["actor"], all_seeing.targets["actor"]),
    ):
        ours.copy_(theirs)
    for update in range(6):
        learn(taught, batch_of(update), update)
        learn(all_seeing, batch_of(update), update)
    assert torch.equal(taught.critic_optimizer.flat, all_seeing.critic_optimizer.flat)
    assert torch.equal(taught.actor_optimizer.flat, all_seeing.actor_optimizer.flat)
    for name, weights in taught.targets.items():
        assert torch.equal(weights, all_seeing.targets[name])


def test_the_policys_gradient_is_that_of_its_distance_to_what_the_tutor_does() -> None:
    agent = agent_of(True, "known")
    agent.set_progress(0.5)
    for update in range(4):
        learn(agent, batch_of(10 + update), update)
    batch = batch_of(0)
    pupil, tutor = Net(agent.policy, "tanh"), Net(agent.target_policy, "tanh")
    before = batch.x[: len(batch.reward)].double()
    loss = (pupil(before[:, :3]).tanh() - tutor(before).tanh().detach()).square().mean()
    learn(agent, batch, 5)  # an update that moves the policy
    assert agent.pupil_optimizer is not None
    close(agent.pupil_optimizer.grad, flat_gradient(loss, pupil))


def test_the_policy_waits_until_its_tutor_is_ready_which_then_rests() -> None:
    agent = agent_of(True, "known")
    assert agent.pupil_optimizer is not None
    tutors = [agent.actor_optimizer.flat, agent.critic_optimizer.flat, *agent.targets.values()]
    begun, known = agent.pupil_optimizer.flat.clone(), [weights.clone() for weights in tutors]
    agent.set_progress(0.49)
    learn(agent, batch_of(0), 1)
    assert torch.equal(agent.pupil_optimizer.flat, begun)
    assert not any(map(torch.equal, tutors, known))
    agent.set_progress(0.5)
    known = [weights.clone() for weights in tutors]
    for update in range(2):  # also where a policy without a tutor would wait for its critics
        before = agent.pupil_optimizer.flat.clone()
        learn(agent, batch_of(0), update)
        assert not torch.equal(agent.pupil_optimizer.flat, before)
    assert all(map(torch.equal, tutors, known))


def test_a_pupil_that_sees_images_comes_to_act_as_good_play_that_was_recorded(tmp_path: Path) -> None:
    recorded(tmp_path / "data.hdf5", "td3", "critic", {})
    wide: dict[str, Any] = {"policy__image_features": 64, "policy__hidden": (64,), "replay__batch_size": 64}
    wide |= {"replay__learning_rate": 1e-3, "replay__polyak": 0.9, "eval__every": 600}
    halves = TAUGHT | {"td3__tutor": 0.5}
    runs = [offline(tmp_path / f"{n}", "td3", loop__total_steps=n, **wide, **halves) for n in (8, 600)]
    episodes = list(read_episodes(DataConfig(str(tmp_path / "data.hdf5"))))
    before, after = (
        np.mean([np.mean((policy.act({"image": e.obs["image"][:-1]}) - e.action) ** 2) for e in episodes])
        for policy in map(ludus.load, runs)
    )
    assert after < 0.7 * before, (after, before)


def test_a_resumed_run_with_a_tutor_is_the_same(tmp_path: Path) -> None:
    recorded(tmp_path / "data.hdf5", "td3", "critic", {})
    small: dict[str, Any] = {"loop__total_steps": 32, "eval__every": 16, "replay__train_batches": 4}
    whole = offline(tmp_path / "whole", "td3", **small, **TAUGHT)
    cut = offline(tmp_path / "cut", "td3", StopAfter(3), **small, **TAUGHT)
    ludus.resume(cut)
    assert_same_run(cut, whole)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, r"--td3\.tutor teaches on recorded episodes: give some with --data"),
        ({"data": "demos.hdf5"}, r"name them with --policy\.critic-parts"),
    ],
)
def test_a_tutor_that_has_nothing_to_teach_is_refused(settings: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=told):
        ludus.train(DOT, tmp_path / "run", algo="td3", overrides={"td3.tutor": 0.5, **settings})
