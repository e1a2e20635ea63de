"""What is learned, and from what: decisions of the algorithms, each held to the reason its page gives."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ludus
from ludus.algorithms.imitation.config import AdversaryConfig
from ludus.algorithms.imitation.discriminator import adversarial_loss, make_discriminator
from ludus.algorithms.on_policy.advantage import generalized_advantage
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.replay.agents import _critic_gradients
from ludus.algorithms.return_scale import ReturnScale
from ludus.envs.episodic import EpisodicReward
from ludus.policies.config import PolicyConfig
from ludus.policies.mlp import MLP
from ludus.policies.replay_policy import Twin
from ludus.training.evaluator import Evaluation, wilson_interval
from ludus.training.loop import Trainer
from test_ppo_extras import HORIZON, ROWS, make_policy, make_ppo
from test_ppo_math import random_segments
from test_segments import Counting


# Divergence -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1e-9, 0.01, 1e9])
def test_correctness_12_after_a_stop_the_metrics_are_of_the_pass_that_stopped_wherever_it_runs(
    limit: float,
) -> None:
    """On a GPU nobody asks whether to stop: the later passes run, learn nothing, and must not be measured."""
    found: list[dict[str, Tensor]] = []
    for asks in (True, False):
        policy = make_policy()
        ppo = make_ppo(policy, minibatches=4, update_epochs=5, learning_rate=3e-2, target_kl=limit)
        ppo._asks = asks
        found.append(ppo.update(random_segments(policy, ROWS, HORIZON, seed=0), 0.0))
    asked, unasked = found
    assert asked.keys() == unasked.keys()
    for name, value in asked.items():
        torch.testing.assert_close(value, unasked[name], msg=name, rtol=0, atol=0)


# The best of a task ---------------------------------------------------------------------------------
KUKA: dict[str, Any] = {
    "env": {"num_envs": 4, "fixed": True, "max_steps": 4},
    "groups": 1,
    "ppo": {"horizon": 4, "minibatches": 1, "update_epochs": 1},
    "policy": {"hidden": (8,)},
    "loop": {"total_steps": 32},
    "eval": {"every": 16, "episodes": 2, "stochastic": False},
    "log": {"tensorboard": False, "report": False},
}


def best_step(run: Path) -> int:
    return int((run / "checkpoints" / "best").resolve().name.rpartition("_")[2])


@pytest.mark.parametrize(("change", "anew"), [({"env.fixed": False}, True), ({"env.assist": 0.1}, False)])
def test_correctness_13_the_best_begins_anew_where_a_resume_changes_the_task(
    change: dict[str, Any], anew: bool, tmp_path: Path
) -> None:
    run = ludus.train("kuka-pick-place", run_dir=tmp_path / "run", **KUKA)

    class Unbeatable(ludus.Callback):
        """As if the best of the old task were far better than any of the new one."""

        def on_start(self, trainer: Trainer) -> None:
            self.forgotten = trainer.counters.best_step == -1

    watch = Unbeatable()
    ludus.resume(run, callbacks=[watch], overrides=change | {"loop.total_steps": 48, "eval.every": 16})
    assert watch.forgotten == anew
    if anew:
        assert best_step(run) == 48


# Decisions ------------------------------------------------------------------------------------------
def test_decided_td3s_policy_goes_up_the_lower_of_its_two_critics() -> None:
    torch.manual_seed(0)
    critics = Twin(3 + 2, PolicyConfig(hidden=(16,)))
    x, recorded, target = torch.randn(64, 3), torch.rand(64, 2), torch.randn(64)
    chosen = torch.rand(64, 2).requires_grad_()
    lower = critics.lower(torch.cat([x, chosen], 1))
    (expected,) = torch.autograd.grad(-lower.mean(), chosen)
    for parameter in critics.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        way_up, q, _ = _critic_gradients(critics, MLP(3, (), "relu"), [x], recorded, chosen.detach(), target)
    torch.testing.assert_close(way_up, expected)
    torch.testing.assert_close(q, lower.detach())
    both = critics.outputs(torch.cat([x, chosen], 1))[1]
    assert 5 < int((both[0] > both[1]).sum()) < 59  # each of the two is the lower one somewhere


def test_decided_v_traces_rho_stands_in_the_advantage_besides_the_surrogates_ratio() -> None:
    reward, value, done = torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1), torch.zeros(2, 1, dtype=torch.bool)
    ratio = torch.tensor([[1.5], [4.0]])
    found = generalized_advantage(reward, value, value, done, 0.9, 1.0, ratio, rho_clip=2.0, c_clip=1.0)
    last = 2.0 * 2.0  # min(ρ, rho_clip) · δ
    assert found.flatten().tolist() == pytest.approx([1.5 * 1.0 + 0.9 * 1.0 * last, last])
    unmoved = generalized_advantage(reward, value, value, done, 0.9, 1.0, torch.ones(2, 1), 2.0, 1.0)
    assert torch.equal(unmoved, generalized_advantage(reward, value, value, done, 0.9, 1.0))


def test_decided_the_scale_of_returns_settles_as_one_over_the_number_of_iterations() -> None:
    scale, generator = ReturnScale(torch.device("cpu")), torch.Generator().manual_seed(0)
    before, drift = 0.0, []
    for _ in range(200):
        scale.update(torch.randn((16, 16), generator=generator), None)
        now = float(scale.scale(torch.ones(1)))
        drift.append(abs(now - before) / now)
        before = now
    assert max(drift[10:]) < 0.02
    assert max(drift[100:]) < 0.002


def test_decided_the_first_iteration_learns_from_what_it_acted_on_raw_observations() -> None:
    policy = make_policy(normalize_obs=True)
    assert policy.normalizer is not None
    segments = random_segments(policy, ROWS, HORIZON, seed=0)
    ppo = make_ppo(policy)
    seen = segments.obs.flatten(0, 1)
    ppo.update(segments, 0.0)
    assert torch.equal(ppo._data.x, seen)  # as they were, not by moments that acting did not know
    assert int(policy.normalizer.count) == len(seen)  # the next iteration acts and learns by these


def test_decided_adapting_multiplies_the_annealed_rate_and_may_outweigh_it() -> None:
    ppo = make_ppo(make_policy(), learning_rate=1e-3, learning_rate_final=1e-4, target_kl=0.02, kl_control="adapt")
    assert ppo.schedule_rates(0.5)[0] == pytest.approx(5.5e-4)
    for _ in range(50):
        ppo.adapt_rate(0.001)
    assert ppo.schedule_rates(1.0)[0] == pytest.approx(10 * 1e-4)  # the factor is at most 10
    for _ in range(50):
        ppo.adapt_rate(1.0)
    assert ppo.schedule_rates(1.0)[0] == pytest.approx(0.01 * 1e-4)


def test_decided_amps_loss_is_half_the_least_squares_and_the_whole_penalty() -> None:
    config = AdversaryConfig(hidden=(8,), reward="square", logit_regularizer=0.0, weight_decay=0.0)
    discriminator = make_discriminator(3, (8,), seed=0)
    demo, policy = torch.randn(32, 3), torch.randn(32, 3)
    loss, _ = adversarial_loss(discriminator, demo, policy, config)
    x = demo.clone().requires_grad_()
    (slope,) = torch.autograd.grad(discriminator.judge(x).sum(), x)
    squares = (discriminator.judge(demo) - 1).square().mean() + (discriminator.judge(policy) + 1).square().mean()
    torch.testing.assert_close(loss, 0.5 * squares + 5.0 * slope.square().sum(1).mean())


def test_decided_adds_demonstration_is_one_point_wherever_the_normaliser_puts_it() -> None:
    discriminator = make_discriminator(3, (8,), seed=0)
    errors = torch.randn(64, 3).abs()  # errors that are never 0 on average
    discriminator.normalizer.update([torch.zeros(64, 3), errors])
    standardised = discriminator.normalizer(torch.zeros(5, 3))
    mean = torch.cat([torch.zeros(64, 3), errors]).mean(0)
    assert (standardised < 0).all()
    assert torch.equal(standardised, standardised[:1].expand(5, 3))
    torch.testing.assert_close(discriminator.normalizer(mean[None].float()), torch.zeros(1, 3), atol=1e-5, rtol=0)


def test_decided_weight_decay_shrinks_every_parameter_of_a_reward_also_biases() -> None:
    weight, bias = torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(3))
    optimizer = FlatAdam([weight, bias], math.inf, weight_decay=5.0)
    optimizer.step(0.01)  # of gradients that are 0
    torch.testing.assert_close(optimizer.flat, torch.full((9,), 1 - 0.01 * 5.0))


def test_decided_the_interval_of_a_rate_counts_every_start_of_a_clip() -> None:
    eight = Evaluation([1.0] * 8, [10] * 8, {"success": [1.0] * 7 + [0.0]}, {"weight": [1 / 8] * 8})
    told = eight.summary()
    assert (told["success_low"], told["success_high"]) == pytest.approx(wilson_interval(7, 8))


def test_decided_paying_once_per_episode_changes_nothing_about_its_end() -> None:
    plain, wrapped = Counting(6), EpisodicReward(Counting(6))
    owed = torch.zeros(6)
    plain.reset(0)
    wrapped.reset(0)
    for _ in range(40):
        expected, found = plain.end_step(), wrapped.step(torch.zeros(6))
        owed += expected.reward
        assert torch.equal(found.terminated, expected.terminated)
        assert torch.equal(found.truncated, expected.truncated)  # whose future still has a value
        assert torch.equal(found.reward, torch.where(expected.done, owed, 0.0))
        owed[expected.done] = 0.0
