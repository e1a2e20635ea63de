"""A tutor learns with critics that see more than the policy does; the policy imitates what they value."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import ludus
from ludus.algorithms.replay.agents import TD3, Batch, make_agent
from ludus.algorithms.replay.config import ReplayConfig, TD3Config, TD3TrainConfig
from ludus.algorithms.replay.worth import worth_of_steps
from ludus.buffers.episodes import EpisodeStore
from ludus.envs.row_space import RowSpace
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.runs import evaluate_run
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


def test_the_policys_gradient_is_that_of_its_distance_to_recorded_actions() -> None:
    agent = agent_of(True, "known")
    agent.set_progress(0.5)
    for update in range(4):
        learn(agent, batch_of(10 + update), update)
    batch = batch_of(0)
    pupil = Net(agent.policy, "tanh")
    before = batch.x[: len(batch.reward)].double()
    loss = (pupil(before[:, :3]).tanh() - batch.action).square().mean()
    learn(agent, batch, 5)
    assert agent.pupil_optimizer is not None
    close(agent.pupil_optimizer.grad, flat_gradient(loss, pupil))


def test_a_judge_says_what_the_targets_value_recorded_actions_and_the_tutors_own() -> None:
    agent, batch = agent_of(True, "known"), batch_of(0)
    for update in range(4):
        learn(agent, batch_of(10 + update), update)
    x = batch.x[: len(batch.reward)]
    recorded, own = agent.judge(x, batch.action)
    actor, critics = Net(agent.target_policy, "tanh"), agent.target_critics
    for told, action in ((recorded, batch.action), (own, actor(x.double()).tanh().float())):
        both = critics.outputs(torch.cat([x, action], 1))[1]
        assert torch.allclose(told, torch.minimum(*both), atol=1e-5)


LENGTHS = (3, 7, 1, 5)


def store_of(lengths: tuple[int, ...]) -> EpisodeStore:
    """Episodes whose observations are the numbers of their rows."""
    store = EpisodeStore({"obs": ((1,), torch.float32)}, ((1,), torch.float32), 64, 1, 8, "cpu")
    row = 0.0
    for length in lengths:
        rows = torch.arange(row, row + length + 1)[:, None]
        store.add({"obs": rows}, torch.zeros((length, 1)), torch.zeros(length), terminated=True)
        row += length + 1
    return store


def test_steps_are_worth_what_a_slow_version_says() -> None:
    g = generator(3)
    store = store_of(LENGTHS)
    recorded, own = torch.randn((2, store.steps + store.episodes), generator=g)
    worth = worth_of_steps(store, lambda obs, _: (recorded[obs[:, 0].long()], own[obs[:, 0].long()]), 0.7)

    first, later, advantage = 0, [], []
    for length in LENGTHS:
        for t in range(first, first + length):
            later.append(max(float(own[i]) for i in range(t + 1, first + length + 1)))
            advantage.append(float(recorded[t] - own[t]))
        first += length + 1
    ordered = sorted(later)
    low, high = (ordered[int(edge * (len(later) - 1))] for edge in (0.05, 0.95))
    z = (np.array(advantage) - np.mean(advantage)) / np.std(advantage)
    weight = np.minimum(np.exp(0.7 * z), 20)
    expected = weight / weight.mean() * (np.array(later) >= low + 0.9 * (high - low))
    np.testing.assert_allclose(worth.numpy(), expected, rtol=1e-5)
    assert 0 < np.count_nonzero(expected) < len(expected)


def test_steps_are_drawn_as_often_as_they_are_worth() -> None:
    store, g = store_of(LENGTHS), generator(0)
    worth = torch.rand(store.steps, generator=g) * (torch.arange(store.steps) % 3 > 0)
    drawn = store.draw_by_worth(40, 500, g, worth)
    starts = np.cumsum([0, *LENGTHS[:-1]])
    number = torch.from_numpy(starts)[drawn.slot] + drawn.t
    often = torch.bincount(number.flatten(), minlength=store.steps) / number.numel()
    assert bool((often[worth == 0] == 0).all())
    assert torch.allclose(often, worth / worth.sum(), atol=0.015)


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


@pytest.mark.slow
def test_a_pupil_that_sees_images_does_as_good_play_and_not_as_bad_play_did(tmp_path: Path) -> None:
    recorded(tmp_path / "data.hdf5", "td3", "critic", {}, good=60, bad=60)
    wide: dict[str, Any] = {"policy__image_features": 64, "policy__hidden": (64,), "replay__batch_size": 64}
    wide |= {"replay__learning_rate": 1e-3, "replay__polyak": 0.9, "eval__every": 400, "loop__total_steps": 400}
    taught = offline(tmp_path / "taught", "td3", **wide, **TAUGHT | {"td3__tutor": 0.5})
    imitating = offline(
        tmp_path / "imitating", "td3", **wide, **PARTS, env__kwargs={"see": "critic"}, replay__bc=0.01
    )
    rewards = [evaluate_run(run, 20, deterministic=True).summary()["mean_reward"] for run in (taught, imitating)]
    assert rewards[0] > 0.85 * rewards[1], rewards  # they are what the way to the target costs


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


def test_a_tutor_that_is_ready_too_late_is_refused(tmp_path: Path) -> None:
    """Of eight iterations the last begins after 7/8 of the training."""
    recorded(tmp_path / "data.hdf5", "td3", "critic", {})
    small: dict[str, Any] = {"loop__total_steps": 32, "eval__every": 16, "replay__train_batches": 4}
    with pytest.raises(ConfigError, match=r"--td3\.tutor 0\.9 leaves the policy no iteration.*there are 8 of 4"):
        offline(tmp_path / "late", "td3", **small, **TAUGHT | {"td3__tutor": 0.9})
    assert (offline(tmp_path / "run", "td3", **small, **TAUGHT | {"td3__tutor": 0.875}) / "final").exists()


def test_a_policy_at_the_wrong_end_of_the_range_finds_back() -> None:
    """Where tanh is flat its true slope is 0: a policy that once came there would stay."""
    agent = agent_of(True, "known")
    agent.set_progress(0.5)
    agent.policy.head.linear.bias.data.fill_(-20.0)
    x, action = batch_of(0).x, torch.full((16, 2), 0.5)
    for update in range(3_000):
        learn(agent, batch_of(0)._replace(action=action), update)
    assert torch.allclose(agent.policy.params(x[:16]).tanh(), action, atol=0.1)
