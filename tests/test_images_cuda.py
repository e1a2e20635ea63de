"""Images, parts and masks on a GPU: recorded graphs do what plain calls do."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces

import ludus
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.update import PPO
from ludus.algorithms.replay.agents import make_agent
from ludus.algorithms.replay.config import (
    DQNTrainConfig,
    ReplayConfig,
    ReplayTrainConfig,
    SACTrainConfig,
    TD3TrainConfig,
)
from ludus.algorithms.replay.job import obs_field
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.algorithms.reward.config import RewardConfig
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.schedule import SegmentSchedule
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.show.jsonl import read_metrics
from test_images import BOTH, some_rows
from test_masks import catch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def learned(kwargs: dict[str, Any], settings: dict[str, Any], cuda_graphs: bool) -> torch.Tensor:
    """The weights after four iterations."""
    torch.manual_seed(0)
    env = catch(8, **kwargs)
    policy = ActorCritic(
        env.obs_space, env.action_space, PolicyConfig(hidden=(16,), image_features=16, **settings)
    )
    policy.to("cuda")
    schedule = SegmentSchedule(8, 8, 8)
    config = PPOConfig(horizon=8, minibatches=2, update_epochs=2, learning_rate=1e-3, entropy_coef=0.01)
    ppo = PPO(policy, config, schedule, 0, cuda_graphs)
    collector = Collector([env], policy, schedule, 0.99, 0, cuda_graphs)
    for iteration in range(4):
        ppo.update(collector.collect(iteration), 0.0)
    return ppo.optimizer.flat.clone()


@pytest.mark.parametrize(
    ("kwargs", "settings"),
    [
        ({"see": "image"}, {}),
        ({"see": "image"}, {"cnn": "residual"}),
        ({"see": "both", "masks": "key"}, {}),
        ({"see": "both"}, {"memory": "lstm", "memory_size": 16}),
        ({"see": "both"}, {"actor_parts": ("image",), "critic_parts": ("state",)}),
        ({"see": "state", "masks": "info"}, {}),
        ({"see": "state", "masks": "info", "act": "mixed"}, {}),
    ],
)
def test_recorded_updates_learn_what_plain_ones_learn(kwargs: dict[str, Any], settings: dict[str, Any]) -> None:
    plain, recorded = (learned(kwargs, settings, graphs) for graphs in (False, True))
    # Convolutions add in another order, and Adam makes a step of any gradient: a few weights move apart.
    assert float((recorded - plain).norm() / plain.norm()) < 0.01


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_a_whole_run_learns_from_images(algo: str, tmp_path: Path) -> None:
    """With all that a run does before: a plan of its memory, groups of environments, an evaluation."""
    small: dict[str, Any] = {
        "policy.image_features": 16,
        "eval.episodes": 2,
        "total_steps": 1_024,
        "env.num_envs": 8,
    }
    sizes: dict[str, Any] = {"ppo": {"ppo.horizon": 16, "groups": 2}, "sac": {"replay.warmup": 128}}[algo]
    run = ludus.train(
        "gym:dot_env:ludus-test/Dot-v0", run_dir=tmp_path / "run", algo=algo, device="cuda", **small, **sizes
    )
    assert read_metrics(run / "metrics.jsonl")[-1]


def learned_from_a_replay(kind: str, settings: dict[str, Any], cuda_graphs: bool, device: str) -> torch.Tensor:
    """The policy's weights after three iterations, images shifted."""
    actions: Any = spaces.Discrete(3) if kind == "dqn" else spaces.Box(-1.0, 1.0, (2,))
    networks = PolicyConfig(hidden=(16,), activation="relu", normalize_obs=False, **settings)
    policy = make_replay_policy(kind, BOTH, actions, networks, 0).to(device)
    config = ReplayConfig(batch_size=8, train_batches=12, learning_rate=1e-3, train_target=2, shift=2)
    kinds: dict[str, type[ReplayTrainConfig]] = {
        "sac": SACTrainConfig,
        "td3": TD3TrainConfig,
        "dqn": DQNTrainConfig,
    }
    agent = make_agent(policy, kinds[kind](replay=config), 1)
    size = policy.head.action_size
    store = EpisodeStore({"obs": obs_field(BOTH)}, ((size,), torch.float32), 100, 0, 0, device)
    random = torch.Generator().manual_seed(0)
    obs, reward = some_rows(BOTH, 41).to(device), torch.rand(40, generator=random).to(device)
    action = policy.head.random((40,), torch.Generator(device).manual_seed(0))
    store.add({"obs": obs}, action, reward, terminated=True)
    learner = ReplayLearner(agent, store, config, RewardConfig(), None, 0, cuda_graphs)
    for _ in range(3):
        learner.update()
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
@pytest.mark.parametrize(
    "settings",
    [
        {"image_features": 16},
        {"image_features": 16, "actor_parts": ("image",), "critic_parts": ("state",)},
        {"network": "test_replay_images:Mine"},
    ],
)
def test_recorded_batches_of_a_replay_learn_what_plain_ones_learn(kind: str, settings: dict[str, Any]) -> None:
    if kind == "dqn" and "critic_parts" in settings:
        pytest.skip("DQN has no critic")
    plain, recorded = (learned_from_a_replay(kind, settings, graphs, "cuda") for graphs in (False, True))
    assert float((recorded - plain).norm() / plain.norm()) < 0.01
