"""Images: as bytes from the environment to the network, which learns from them by autograd."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import ludus
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.on_policy.ram import plan_memory
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.row_space import RowSpace
from ludus.errors import ConfigError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.runs import evaluate_run
from test_masks import CATCH, QUICK, assert_resumes_exactly, catch

IMAGE = spaces.Box(0, 255, (12, 13, 3), np.uint8)
STATE = spaces.Box(-1.0, 1.0, (4,), np.float32)
BOTH = RowSpace(spaces.Dict({"image": IMAGE, "state": STATE}))
SMALL: dict[str, Any] = {"hidden": (8,), "image_features": 16}


def made(space: Any = BOTH, **settings: Any) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(space, spaces.Discrete(3), PolicyConfig(**SMALL | settings))


def some_rows(space: Any, rows: int) -> Tensor:
    if isinstance(space, RowSpace):
        space.raw.seed(0)
        return torch.from_numpy(np.stack([space.to_row(space.raw.sample()) for _ in range(rows)]))
    return torch.randint(0, 256, (rows, *space.shape), dtype=torch.uint8)


# Gradients ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("space", "settings"),
    [
        (IMAGE, {}),
        (IMAGE, {"cnn": "residual", "hidden": ()}),
        (spaces.Box(0, 255, (4, 36, 40), np.uint8), {}),
        (BOTH, {}),
        (BOTH, {"memory": "lstm", "memory_size": 8}),
        (BOTH, {"memory": "mingru", "memory_size": 8}),
        (BOTH, {"actor_parts": ("image",), "critic_parts": ("state",)}),
        (BOTH, {"actor_parts": ("image",), "critic_parts": ("state",), "memory": "lstm", "memory_size": 8}),
    ],
)
def test_gradients_are_autograds_in_float64(
    space: Any, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = made(space, normalize_obs=False, **settings).double()
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    steps, segments = 3, 4
    x = some_rows(space, steps * segments)
    if isinstance(space, RowSpace):  # a row holds float32 numbers
        numbers = type(space).numbers_of
        part_of = type(space).part_of
        monkeypatch.setattr(RowSpace, "numbers_of", lambda self, rows: numbers(self, rows).double())
        monkeypatch.setattr(RowSpace, "part_of", lambda self, rows, part: part_of(self, rows, part))
    for parameter in policy.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    state = torch.randn(segments, policy.state_size, dtype=torch.float64)
    keep = (torch.rand(steps, segments) > 0.3).double()
    with torch.inference_mode():
        done = policy.forward_pass(policy.prepare(x * 1), state * 1, keep * 1)
        gradients = torch.randn_like(done.params), torch.randn_like(done.value)
        policy.backward(done, gradients[0].clone(), gradients[1].clone())
    written = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    outputs = []
    for rows, kept in zip(x.unflatten(0, (steps, segments)), keep, strict=True):
        params, value, state = policy.params_and_value_of(policy.prepare(rows), state * kept[:, None])
        outputs.append((params, value))
    params, value = (torch.cat(parts) for parts in zip(*outputs, strict=True))
    loss = (params * gradients[0].clone()).sum() + (value * gradients[1].clone()).sum()
    expected = torch.autograd.grad(loss, list(policy.parameters()))
    for made_here, wanted in zip(written, expected, strict=True):
        torch.testing.assert_close(made_here, wanted, rtol=1e-10, atol=1e-12)


# What is seen -------------------------------------------------------------------------------------------
def test_the_actor_does_not_see_what_is_the_critics_alone() -> None:
    policy = made(actor_parts=("image",), critic_parts=("state",))
    rows = some_rows(BOTH, 6)
    other = rows.clone()
    BOTH.numbers_of(other).add_(1.0)
    empty = policy.start(0)
    (params, value, _), (same, changed, _) = (policy.params_and_value_of(r, empty) for r in (rows, other))
    assert torch.equal(params, same)
    assert not torch.equal(value, changed)
    other = rows.clone()
    BOTH.part_of(other, BOTH.parts[1]).fill_(7)
    params_2, value_2, _ = policy.params_and_value_of(other, empty)
    assert torch.equal(value, value_2)
    assert not torch.equal(params, params_2)


def test_vectors_are_standardised_and_images_are_not() -> None:
    policy = made()
    rows = some_rows(BOTH, 50)
    BOTH.numbers_of(rows).mul_(30.0).add_(5.0)
    policy.learn_scales([rows])
    before = rows.clone()
    prepared = policy.prepare(rows)
    assert torch.equal(rows, before), "the record was changed"
    numbers = BOTH.numbers_of(prepared)
    torch.testing.assert_close(numbers.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(numbers.std(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)
    assert torch.equal(BOTH.part_of(prepared, BOTH.parts[1]), BOTH.part_of(rows, BOTH.parts[1]))


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no part 'stat'.*Did you mean 'state'"):
        made(critic_parts=("stat",))


def test_the_record_and_the_update_hold_bytes() -> None:
    env = catch(4, see="both")
    policy = ActorCritic(env.obs_space, env.action_space, PolicyConfig(**SMALL))
    schedule = SegmentSchedule(4, 4, 8)
    collector = Collector([env], policy, schedule, 0.99, 0)
    ppo = PPO(policy, PPOConfig(horizon=8, minibatches=2, update_epochs=2), schedule, 0)
    segments = collector.collect(0)
    assert segments.track.obs.dtype == torch.uint8
    assert ppo._data.x.numel() == 0, "a copy of the images as floats"
    ppo.update(segments, 0.0)
    assert policy.normalizer is not None
    assert int(policy.normalizer.count) == 32


@pytest.mark.parametrize(
    "settings", [{}, {"cnn": "residual"}, {"actor_parts": ("image",), "critic_parts": ("state",)}]
)
def test_the_memory_plan_knows_images(settings: dict[str, Any]) -> None:
    """What autograd holds of a minibatch, as torch counts it, against the plan."""
    space = RowSpace(spaces.Dict({"image": spaces.Box(0, 255, (64, 64, 3), np.uint8), "state": STATE}))
    policy = made(space, image_features=64, **settings)
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        held[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    rows = 64
    weights = {parameter.data_ptr() for parameter in policy.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy.forward_pass(some_rows(space, rows), policy.start(0), None)
    measured = sum(size for place, size in held.items() if place not in weights)
    plan = plan_memory(policy, SegmentSchedule(rows, rows, 1), minibatches=1)
    assert measured <= plan.gradient <= 3 * measured


# Learning -----------------------------------------------------------------------------------------------
LEARN: dict[str, Any] = {
    "ppo": {"horizon": 16, "minibatches": 4, "update_epochs": 4, "learning_rate": 2e-3, "entropy_coef": 0.01,
            "value_coef": 0.1},
    "loop": {"total_steps": 30_000},
    "eval": {"every": 30_000, "episodes": 100, "stochastic": False},
    "log": {"report": False, "tensorboard": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("see", "policy"),
    [
        ("image", {}),
        ("both", {"actor_parts": ("image",), "critic_parts": ("state",)}),
        ("image", {"memory": "lstm", "memory_size": 32}),
    ],
)
def test_the_catch_is_learned_from_pixels(see: str, policy: dict[str, Any], tmp_path: Path) -> None:
    """By chance a fifth of the balls is caught."""
    env = {"num_envs": 32, "kwargs": {"see": see, "size": 8}}
    policy = {"hidden": (), "image_features": 64, **policy}
    run = ludus.train(CATCH, tmp_path / "run", env=env, policy=policy, **LEARN)
    assert run.metrics["eval/success_rate"].values[-1] >= 0.8
    assert np.mean(evaluate_run(run, 100, True, trust=True).returns) >= 0.7


@pytest.mark.parametrize(
    ("see", "settings"),
    [
        ("image", {}),
        ("both", {"policy.memory": "lstm", "policy.memory_size": 8}),
        ("both", {"policy.actor_parts": ("image",), "policy.critic_parts": ("state",)}),
        ("both", {"ppo.segments": 6, "loop.total_steps": 384}),  # half-recorded segments are part of a checkpoint
    ],
)
def test_a_resumed_run_with_images_is_the_same(see: str, settings: dict[str, Any], tmp_path: Path) -> None:
    env = {"num_envs": 4, "kwargs": {"see": see}}
    small = {"policy.hidden": (8,), "policy.image_features": 8, **settings}
    assert_resumes_exactly(tmp_path, **QUICK | {"env": env, "overrides": small})


def test_dqn_learns_from_images_and_resumes_exactly(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "env": {"num_envs": 8, "kwargs": {"see": "both", "masks": "key"}},
        "log": {"report": False},
    }
    settings |= {"eval": {"every": 4_000, "episodes": 4, "stochastic": False}, "algo": "dqn"}
    small = {"policy.hidden": (32,), "policy.image_features": 32, "loop.total_steps": 512, "eval.every": 256}
    small |= {"replay.warmup": 64, "replay.batch_size": 16}
    assert_resumes_exactly(tmp_path, **settings, overrides=small)


# Networks of the user's ---------------------------------------------------------------------------------
class Eyes(nn.Module):
    def __init__(self, obs: dict[str, tuple[int, ...]], width: int = 16) -> None:
        super().__init__()
        self.see = ludus.nn.NatureCNN(obs["image"], width)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        seen = self.see(obs["image"])
        return seen, torch.cat([seen, obs["state"]], 1)


def test_a_network_of_the_users_sees_images_and_numbers(tmp_path: Path) -> None:
    settings = QUICK | {"env": {"num_envs": 4, "kwargs": {"see": "both"}}}
    run = ludus.train(CATCH, tmp_path / "run", network=Eyes, network_kwargs={"width": 8}, **settings)
    policy = ludus.load(run, network=Eyes)
    inner = gym.make("ludus-test/Catch-v0", see="both")
    assert policy.act(inner.reset(seed=0)[0]) in (5, 6, 7)


def test_dqn_trains_what_sees() -> None:
    from ludus.algorithms.optimizer import FlatAdam
    from ludus.policies.replay_policy import ReplayPolicy

    torch.manual_seed(0)
    policy = ReplayPolicy("dqn", BOTH, spaces.Discrete(3), PolicyConfig(**SMALL))
    FlatAdam(policy.parameters(), 1.0)
    rows = some_rows(BOTH, 8)
    with torch.inference_mode():
        outputs, _ = policy.outputs(policy.prepare(rows), 4)
        gradient = torch.randn(4, 3)
        policy.backward(outputs, gradient.clone())
    written = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    taped = policy.head.linear(policy.encoder(policy.prepare(rows[:4])))
    expected = torch.autograd.grad((taped * gradient.clone()).sum(), list(policy.parameters()))
    for made_here, wanted in zip(written, expected, strict=True):
        torch.testing.assert_close(made_here, wanted, rtol=1e-3, atol=1e-5)
        assert made_here.abs().sum() > 0


def test_a_reward_is_not_learned_from_images(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "algo": "dqn",
        "env": {"num_envs": 2, "kwargs": {"see": "both"}},
        "log": {"report": False},
    }
    with pytest.raises(ConfigError, match=r"a reward is learned from vectors.*--data"):
        ludus.train(CATCH, tmp_path / "run", overrides={"reward.method": "rrd"}, **settings)


class Lazy(nn.Module):
    def __init__(self, obs: tuple[int, ...]) -> None:
        super().__init__()
        self.conv, self.across = nn.LazyConv2d(4, 3), nn.Conv3d(1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.across(self.conv(x)[:, None]).flatten(1)


def test_lazy_and_other_convolutions_of_the_users_work() -> None:
    policy = ActorCritic(IMAGE, spaces.Discrete(3), PolicyConfig(network="given:here"), Lazy)
    assert policy.features == 4 * 10 * 11
