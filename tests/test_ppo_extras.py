"""What PPO can do besides: keep means within bounds, weights near their beginning, and a spread as it is."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.algorithms.ppo.loss import Batch
from ludus.algorithms.ppo.update import PPO
from ludus.errors import ConfigError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.heads import GaussianHead, make_stochastic_head
from ludus.ranges import check_fields
from test_ppo_math import OBS, random_segments, schedule_of

# Two dimensions with bounds of their own, one with none, one with one alone.
SOME_BOUNDS = gym.spaces.Box(
    np.array([-1.0, 2.0, -np.inf, 0.0], np.float32), np.array([1.0, 10.0, np.inf, np.inf], np.float32)
)
ALL_BOUNDS = gym.spaces.Box(-1, 1, (3,), np.float32)
ROWS, HORIZON = 8, 16


def make_policy(space: gym.spaces.Box = ALL_BOUNDS, **settings: Any) -> ActorCritic:
    torch.manual_seed(3)
    policy = ActorCritic(OBS, space, PolicyConfig(**{"hidden": (16, 8), "normalize_obs": False, **settings}))
    torch.nn.init.normal_(policy.head.linear.weight)  # many means beyond the bounds
    return policy


def make_ppo(policy: ActorCritic, **settings: Any) -> PPO:
    defaults = {"horizon": HORIZON, "minibatches": 1, "update_epochs": 1, "max_grad_norm": 1e9}
    return PPO(policy, PPOConfig(**{**defaults, **settings}), schedule_of(ROWS, HORIZON), seed=0)


def gradient_of_one_step(policy: ActorCritic, **settings: Any) -> Tensor:
    """[weights] of a random batch, at the policy's weights."""
    ppo = make_ppo(policy, **settings)
    batch = random_batch(policy)
    with torch.inference_mode():
        ppo.step(batch, measured=False)
    return ppo.optimizer.grad.clone()


def random_batch(policy: ActorCritic, advantage: float = 1.0) -> Batch:
    g, n = torch.Generator().manual_seed(1), ROWS * HORIZON
    x = torch.randn(n, 5, generator=g)
    with torch.no_grad():
        params, value, _ = policy.params_and_value_of(x, policy.start(n))
        action = policy.head.sample(params, torch.randn(params.shape, generator=g))
        log_prob = policy.head.log_prob(params, action)
    numbers = torch.randn(2, n, generator=g)
    returns = value if advantage == 0 else numbers[1]
    return Batch(x, action, log_prob, advantage * numbers[0], returns, value, 1 / n, policy.start(n), None)


# Bounds -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("masked", [False, True])
def test_the_gradient_of_leaving_the_bounds_equals_autograd(masked: bool) -> None:
    head = make_stochastic_head(SOME_BOUNDS, 5, 0.5)
    assert isinstance(head, GaussianHead)
    g = torch.Generator().manual_seed(0)
    means = (2 * torch.randn((64, 4), generator=g)).requires_grad_()
    share: float | Tensor = torch.rand(64, generator=g) * (torch.rand(64, generator=g) < 0.7) if masked else 1 / 64
    excess = (means[:, :2].abs() - 1).relu().square().sum(1)  # of the dimensions with bounds, in their units
    (0.7 * (share * excess).sum()).backward()
    before = means.detach().clone()
    found = head.bound_gradient(means.detach(), share, 0.7)
    torch.testing.assert_close(found, means.grad)
    assert bool((found[:, 2:] == 0).all())
    assert int((found[:, :2] != 0).sum()) > 20
    assert torch.equal(means.detach(), before)  # what acting said is not written to


def test_the_whole_gradient_gains_exactly_that_of_the_bounds() -> None:
    policy, twin = make_policy(SOME_BOUNDS), make_policy(SOME_BOUNDS)
    plain, bound = gradient_of_one_step(policy), gradient_of_one_step(twin, bound_coef=0.3)
    fresh = make_policy(SOME_BOUNDS)
    batch = random_batch(fresh)
    means, _ = fresh.params_of(batch.x, batch.state)
    (0.3 * (means[:, :2].abs() - 1).relu().square().sum(1).mean()).backward()
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in fresh.parameters()]
    expected = torch.cat([part.flatten() for part in parts])
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(bound - plain, expected, rtol=1e-4, atol=1e-6)


def test_means_beyond_the_bounds_come_back() -> None:
    def farthest(coef: float) -> float:
        policy = make_policy()
        ppo = make_ppo(policy, bound_coef=coef, learning_rate=1e-2, update_epochs=30)
        ppo.update(random_segments(policy, ROWS, HORIZON, 0), progress=0.0)
        x = torch.randn((500, 5), generator=torch.Generator().manual_seed(2))
        return float((policy.params_of(x, policy.start(500))[0].detach().abs() - 1).relu().mean())

    assert farthest(10.0) < 0.3 * farthest(0.0)


# Near the beginning -----------------------------------------------------------------------------------
@pytest.mark.parametrize("learn_std", [False, True])
def test_the_gradient_of_moving_away_from_the_beginning_equals_autograd(learn_std: bool) -> None:
    """Over several steps: nothing is added twice."""
    near, plain = (make_policy(learn_std=learn_std) for _ in range(2))
    pulled, free = make_ppo(near, l2_init=0.2), make_ppo(plain)
    initial = pulled.optimizer.flat.clone()
    g = torch.Generator().manual_seed(4)
    for _ in range(3):
        moved = initial + 0.1 * torch.randn(len(initial), generator=g)
        with torch.inference_mode():
            for ppo in (pulled, free):
                ppo.optimizer.flat.copy_(moved)
            batch = random_batch(plain)
            for ppo in (pulled, free):
                ppo.step(batch, measured=False)
        weights = moved.clone().requires_grad_()
        (0.2 * (weights - initial).square().sum()).backward()
        torch.testing.assert_close(pulled.optimizer.grad - free.optimizer.grad, weights.grad, rtol=1e-4, atol=1e-5)


def test_without_anything_to_learn_weights_go_back_to_where_they_began() -> None:
    policy = make_policy()
    ppo = make_ppo(policy, l2_init=1.0, value_coef=0.0, learning_rate=1e-3)
    initial = ppo.optimizer.flat.clone()
    with torch.inference_mode():
        ppo.schedule_rates(0.0)
        ppo.optimizer.flat.add_(0.1 * torch.randn(len(initial), generator=torch.Generator().manual_seed(0)))
        before = (ppo.optimizer.flat - initial).abs()
        ppo.step(random_batch(policy, advantage=0.0), measured=False)
        after = (ppo.optimizer.flat - initial).abs()
    far = before > 0.01
    assert bool((after[far] < before[far]).all())
    np.testing.assert_allclose((before - after)[far], 1e-3, rtol=0.02)  # Adam's first step


def test_an_update_with_the_regulariser_stays_nearer() -> None:
    def distance(l2: float) -> float:
        policy = make_policy()
        ppo = make_ppo(policy, l2_init=l2, learning_rate=1e-2, update_epochs=20)
        initial = ppo.optimizer.flat.clone()
        ppo.update(random_segments(policy, ROWS, HORIZON, 0), progress=0.0)
        return float((ppo.optimizer.flat - initial).norm())

    assert distance(0.1) < 0.5 * distance(0.0)


def test_the_state_holds_the_initial_weights_and_goes_on_exactly() -> None:
    settings: dict[str, Any] = {"l2_init": 0.05, "learning_rate": 1e-2, "update_epochs": 3, "minibatches": 4}
    policy = make_policy()
    ppo = make_ppo(policy, **settings)
    initial = ppo.optimizer.flat.clone()
    segments = random_segments(policy, ROWS, HORIZON, 0)
    ppo.update(segments, progress=0.0)
    saved, weights = ppo.state(), {name: value.clone() for name, value in policy.state_dict().items()}
    assert torch.equal(saved["initial"], initial)
    ppo.update(segments, progress=0.1)
    torch.manual_seed(77)
    other = ActorCritic(OBS, ALL_BOUNDS, policy.config)
    resumed = make_ppo(other, **settings)  # whose own beginning is another
    other.load_state_dict(weights)
    resumed.load_state(saved)
    resumed.update(segments, progress=0.1)
    assert torch.equal(resumed.optimizer.flat, ppo.optimizer.flat)
    assert torch.equal(resumed.state()["initial"], initial)
    assert make_ppo(make_policy()).state()["initial"] is None


# The spread -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("extras", [{}, {"l2_init": 0.1, "bound_coef": 1.0}, {"entropy_coef": 0.1}], ids=str)
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_spread_that_is_not_learned_stays_exactly(extras: dict[str, float], memory: str) -> None:
    def spread_after(learn_std: bool) -> tuple[Tensor, Tensor]:
        policy = make_policy(initial_std=0.24, learn_std=learn_std, memory=memory, memory_size=8)
        assert isinstance(policy.head, GaussianHead)
        before = policy.head.log_std.detach().clone()
        ppo = make_ppo(policy, learning_rate=1e-2, update_epochs=5, minibatches=4, **extras)
        for seed in range(3):
            ppo.update(random_segments(policy, ROWS, HORIZON, seed), progress=0.2)
        return before, policy.head.log_std.detach()

    before, after = spread_after(learn_std=False)
    assert torch.equal(before, after)
    assert not torch.equal(*spread_after(learn_std=True))


@pytest.mark.parametrize("initial_std", [0.001, 4.0])
def test_a_spread_that_is_not_learned_stays_wherever_it_was_set(initial_std: float) -> None:
    policy = make_policy(initial_std=initial_std, learn_std=False)
    assert isinstance(policy.head, GaussianHead)
    before = policy.head.log_std.detach().clone()
    make_ppo(policy).update(random_segments(policy, ROWS, HORIZON, 0), progress=0.0)
    assert torch.equal(before, policy.head.log_std.detach())


def test_a_final_spread_lowers_one_that_is_not_learned() -> None:
    policy = make_policy(initial_std=4.0, learn_std=False)
    assert isinstance(policy.head, GaussianHead)
    ppo, segments = make_ppo(policy, std_final=1.0), random_segments(policy, ROWS, HORIZON, 0)
    for progress, expected in ((0.4, 4.0), (0.75, 2.0), (1.0, 1.0)):
        ppo.update(segments, progress)
        np.testing.assert_allclose(policy.head.log_std.detach().exp(), expected, rtol=1e-5)


def test_a_final_spread_closes_over_the_part_of_the_training_that_is_asked_for() -> None:
    policy = make_policy(initial_std=4.0, learn_std=False)
    assert isinstance(policy.head, GaussianHead)
    ppo = make_ppo(policy, std_final=1.0, std_closing=(0.25, 0.75))
    segments = random_segments(policy, ROWS, HORIZON, 0)
    for progress, expected in ((0.25, 4.0), (0.5, 2.0), (0.75, 1.0), (1.0, 1.0)):
        ppo.update(segments, progress)
        np.testing.assert_allclose(policy.head.log_std.detach().exp(), expected, rtol=1e-5)


def test_a_final_spread_above_the_first_does_not_lower_one_that_has_grown_to_less() -> None:
    policy = make_policy(initial_std=0.5)
    assert isinstance(policy.head, GaussianHead)
    policy.head.log_std.data.fill_(math.log(0.8))
    ppo = make_ppo(policy, std_final=1.0, learning_rate=0.0)
    segments = random_segments(policy, ROWS, HORIZON, 0)
    for progress in (0.5, 0.6, 1.0):
        ppo.update(segments, progress)
        np.testing.assert_allclose(policy.head.log_std.detach().exp(), 0.8, rtol=1e-5)


@pytest.mark.parametrize("closing", [(0.5,), (0.8, 0.3), (0.5, 0.5)])
def test_a_closing_that_is_none_is_refused_with_a_sentence(closing: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"--ppo\.std-closing is .*: 0\.5 1\."):
        check_fields(PPOTrainConfig(ppo=PPOConfig(std_closing=closing)))


def test_the_optimiser_takes_parameters_that_are_pieces_of_others() -> None:
    from ludus.algorithms.optimizer import FlatAdam

    whole = torch.arange(40.0).view(4, 10)
    piece, other = torch.nn.Parameter(whole[:, :5]), torch.nn.Parameter(torch.full((30,), 7.0))
    wanted = piece.detach().clone()
    FlatAdam([piece, other], 1.0)
    assert torch.equal(piece, wanted)
    assert torch.equal(other, torch.full((30,), 7.0))
