"""The mathematics of PPO against slow, independent versions on random input."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.algorithms.advantage import generalized_advantage, next_values
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.ppo import PPO, Batch, PPOConfig, ReturnScale
from ludus.buffers.segments import Segments
from ludus.errors import ConfigError
from ludus.policies.normalizer import ObsNormalizer
from ludus.policies.policy import Policy, PolicyConfig

OBS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
ACTION_SPACES = {
    "gaussian": gym.spaces.Box(-1, 1, (3,), np.float32),
    "categorical": gym.spaces.Discrete(4),
    "multi-discrete": gym.spaces.MultiDiscrete([3, 2, 5]),
}


def random_segments(rows: int, horizon: int, seed: int, action_size: int = 3) -> Segments:
    g = torch.Generator().manual_seed(seed)
    terminated = torch.rand(rows, horizon, generator=g) < 0.15
    truncated = (torch.rand(rows, horizon, generator=g) < 0.15) & ~terminated
    at = truncated.flatten().nonzero().squeeze(1)
    return Segments(
        obs=torch.randn(rows, horizon, 5, generator=g),
        action=torch.randn(rows, horizon, action_size, generator=g),
        reward=torch.randn(rows, horizon, generator=g),
        terminated=terminated,
        truncated=truncated,
        last_obs=torch.randn(rows, 5, generator=g),
        truncated_at=at,
        truncated_obs=torch.randn(len(at), 5, generator=g),
    )


def sampled_actions(policy: Policy, n: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(n, 5, generator=generator)
    with torch.no_grad():
        return policy.choose(policy.params_of(x), deterministic=False, generator=generator)


@pytest.mark.parametrize("seed", range(5))
def test_advantages_equal_a_loop_over_single_episodes(seed: int) -> None:
    rows, horizon, gamma, lam = 4, 23, 0.97, 0.9
    s = random_segments(rows, horizon, seed)
    value = torch.randn(rows, horizon, dtype=torch.float64)
    last, final = (
        torch.randn(rows, dtype=torch.float64),
        torch.randn(len(s.truncated_at), dtype=torch.float64),
    )
    expected = np.zeros((rows, horizon))
    final_of = {int(p): float(v) for p, v in zip(s.truncated_at, final, strict=True)}
    for row in range(rows):
        for t in range(horizon):  # forward sum of discounted TD errors until the episode or horizon ends
            weight, total = 1.0, 0.0
            for k in range(t, horizon):
                if s.terminated[row, k]:
                    following = 0.0
                elif s.truncated[row, k]:
                    following = final_of[row * horizon + k]
                else:
                    following = float(value[row, k + 1]) if k + 1 < horizon else float(last[row])
                total += weight * (float(s.reward[row, k]) + gamma * following - float(value[row, k]))
                if s.done[row, k]:
                    break
                weight *= gamma * lam
            expected[row, t] = total
    following = next_values(value, last, s.terminated, s.truncated_at, final)
    actual = generalized_advantage(s.reward.double(), value, following, s.done, gamma, lam)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-6)


def test_truncated_episode_bootstraps_from_final_observation_and_terminated_does_not() -> None:
    value, last = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([9.0])
    terminated = torch.tensor([[True, False, False]])
    following = next_values(value, last, terminated, torch.tensor([1]), torch.tensor([7.0]))
    assert following.tolist() == [[0.0, 7.0, 9.0]]


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("value_clip", [0.0, 0.1])
def test_written_out_gradient_equals_autograd(kind: str, shared: bool, activation: str, value_clip: float) -> None:
    torch.manual_seed(3)
    config = PolicyConfig(hidden=(16, 8), shared_trunk=shared, activation=activation, normalize_obs=False)  # type: ignore[arg-type]
    policy = Policy(OBS, ACTION_SPACES[kind], config).double()
    torch.nn.init.normal_(policy.head.linear.weight)  # far from uniform, so that every term matters
    ppo_config = PPOConfig(horizon=8, minibatches=1, entropy_coef=0.03, value_clip=value_clip, max_grad_norm=1e9)
    ppo = PPO(policy, ppo_config, rows=8, seed=0)
    g = torch.Generator().manual_seed(1)
    n = 64
    batch = Batch(
        x=torch.randn(n, 5, generator=g, dtype=torch.float64),
        action=sampled_actions(policy.float(), n, g).double(),
        old_log_prob=torch.randn(n, generator=g, dtype=torch.float64) * 0.3 - 2.0,
        advantage=torch.randn(n, generator=g, dtype=torch.float64),
        returns=torch.randn(n, generator=g, dtype=torch.float64),
        old_value=torch.randn(n, generator=g, dtype=torch.float64) * 0.1,
    )
    policy.double()
    ppo = PPO(policy, ppo_config, rows=8, seed=0)
    with torch.no_grad():
        ppo._step(batch, rate=0.0, entropy_coef=0.03, totals=None)
    written = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    for p in policy.parameters():
        p.grad = None
    _slow_loss(policy, batch, ppo_config).backward()
    for p, gradient in zip(policy.parameters(), written, strict=True):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-9, atol=1e-11)


def _slow_loss(policy: Policy, batch: Batch, config: PPOConfig) -> Tensor:
    params, value = policy.params_and_value_of(batch.x)
    if isinstance(policy.action_space, gym.spaces.Box):
        dist = torch.distributions.Normal(params, policy.head.log_std.exp())  # type: ignore[operator, union-attr]
        log_prob, entropy = dist.log_prob(batch.action).sum(-1), dist.entropy().sum(-1)
    else:
        choices = policy.head.choices  # type: ignore[union-attr]
        dists = [torch.distributions.Categorical(logits=p) for p in params.split(choices, -1)]  # type: ignore[arg-type]
        log_prob = sum(d.log_prob(batch.action[:, i]) for i, d in enumerate(dists))  # type: ignore[assignment]
        entropy = sum(d.entropy() for d in dists)  # type: ignore[assignment]
    ratio = (log_prob - batch.old_log_prob).exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    policy_loss = -torch.min(ratio * batch.advantage, clipped * batch.advantage).mean()
    error = (value - batch.returns) ** 2
    if config.value_clip > 0:
        near = batch.old_value + (value - batch.old_value).clamp(-config.value_clip, config.value_clip)
        error = torch.max(error, (near - batch.returns) ** 2)
    return policy_loss + config.value_coef * error.mean() - config.entropy_coef * entropy.mean()


def test_flat_adam_equals_torch_adam_with_clipping() -> None:
    def network() -> torch.nn.Module:
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

    ours, theirs = network(), network()
    flat = FlatAdam(ours.parameters(), max_grad_norm=0.1)
    adam = torch.optim.Adam(theirs.parameters(), lr=1e-2, eps=1e-5)
    x = torch.randn(32, 7)
    for _ in range(30):
        flat.grad.zero_()
        ours(x).square().mean().backward()
        flat.step(1e-2)
        adam.zero_grad()
        theirs(x).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.1)
        adam.step()
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_gradient_that_is_not_finite_moves_nothing_and_is_counted() -> None:
    layer = torch.nn.Linear(3, 2)
    optimizer = FlatAdam(layer.parameters(), max_grad_norm=1.0)
    optimizer.grad.fill_(1.0)
    optimizer.step(0.1)
    before = {k: v.clone() for k, v in optimizer.state().items()}
    weights = optimizer.flat.clone()
    optimizer.grad[0] = float("nan")
    optimizer.step(0.1)
    assert torch.equal(weights, optimizer.flat)
    assert torch.equal(before["exp_avg"], optimizer.exp_avg)
    assert optimizer.steps == 1
    assert optimizer.skipped == 1


def test_normalizer_equals_numpy_over_everything_it_saw() -> None:
    normalizer, rng, seen = ObsNormalizer((3,)), np.random.default_rng(0), []
    for n in (1, 17, 400):
        batch = rng.normal([1e4, 0.0, -3.0], [5.0, 1e-3, 2.0], (n, 3)).astype(np.float32)
        seen.append(batch)
        normalizer.update(torch.from_numpy(batch))
    everything = np.concatenate(seen).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, everything.mean(0), rtol=1e-10)
    np.testing.assert_allclose(normalizer.m2 / normalizer.count, everything.var(0), rtol=1e-6)


def test_return_scale_equals_a_loop_over_rows() -> None:
    scale, gamma = ReturnScale(4, 0.9, torch.device("cpu")), 0.9
    running, history = np.zeros(4), []
    for seed in range(3):
        s = random_segments(4, 11, seed)
        scaled = scale.scale(s)
        for t in range(11):
            running = running * gamma + s.reward[:, t].numpy()
            history.append(running.copy())
            running = running * ~s.done[:, t].numpy()
        deviation = np.std(np.stack(history))
        np.testing.assert_allclose(scaled, np.clip(s.reward / deviation, -10, 10), rtol=1e-5)


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_sampled_actions_have_the_probabilities_they_are_said_to_have(kind: str) -> None:
    torch.manual_seed(0)
    policy = Policy(OBS, ACTION_SPACES[kind], PolicyConfig(hidden=(8,), initial_std=0.5))
    torch.nn.init.normal_(policy.head.linear.weight)
    params = policy.params_of(torch.randn(1, 5)).detach().expand(200_000, -1)
    action = policy.choose(params, deterministic=False, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        entropy = -policy.head.log_prob(params, action).mean()  # E[−log p] is the entropy
        torch.testing.assert_close(entropy, policy.head.entropy(params[:1])[0], rtol=0.02, atol=0.01)


def test_update_keeps_going_to_the_end_without_a_divergence_limit_and_stops_with_one() -> None:
    def gradient_steps(target_kl: float) -> float:
        torch.manual_seed(0)
        policy = Policy(OBS, ACTION_SPACES["gaussian"], PolicyConfig(hidden=(16,)))
        config = PPOConfig(horizon=16, minibatches=4, update_epochs=8, learning_rate=3e-2, target_kl=target_kl)
        ppo = PPO(policy, config, rows=8, seed=0)
        ppo.update(random_segments(8, 16, 0), progress=0.0)
        return float(ppo.optimizer.steps)

    assert gradient_steps(0.0) == 32
    assert gradient_steps(0.01) < 8


def test_minibatches_that_do_not_divide_the_rollout_are_refused_with_the_numbers() -> None:
    policy = Policy(OBS, ACTION_SPACES["gaussian"], PolicyConfig())
    with pytest.raises(ConfigError, match="5 rows × horizon 7 = 35 steps do not divide into 4 minibatches"):
        PPO(policy, PPOConfig(horizon=7, minibatches=4), rows=5, seed=0)
