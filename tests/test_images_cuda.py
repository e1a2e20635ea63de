"""Images, parts and masks on a GPU: recorded graphs do what plain calls do."""

from typing import Any

import pytest
import torch

from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.segments import SegmentSchedule
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.policy import PolicyConfig
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
