"""The mathematics of PPO against slow, independent versions on random input."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from ludus.algorithms.on_policy.advantage import generalized_advantage, next_values
from ludus.algorithms.on_policy.update_data import prioritized
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.loss import Batch
from ludus.algorithms.ppo.update import PPO
from ludus.algorithms.return_scale import ReturnScale
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import SegmentBuffer, Segments
from ludus.errors import ConfigError
from ludus.policies import mlp
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.lstm import LSTM
from ludus.policies.mlp import MLP
from ludus.policies.normalizer import ObsNormalizer

OBS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
ACTION_SPACES: dict[str, Any] = {
    "gaussian": gym.spaces.Box(-1, 1, (3,), np.float32),
    "categorical": gym.spaces.Discrete(4),
    "multi-discrete": gym.spaces.MultiDiscrete([3, 2, 5]),
}


def schedule_of(rows: int, horizon: int) -> SegmentSchedule:
    return SegmentSchedule(rows, rows, horizon)


def random_segments(policy: ActorCritic, rows: int, horizon: int, seed: int) -> Segments:
    """A rollout as it might have been recorded, with ends of both kinds."""
    g = torch.Generator().manual_seed(seed)
    shape = (horizon + 1, rows)
    buffer = SegmentBuffer(
        schedule_of(rows, horizon),
        (5,),
        torch.float32,
        policy.head.action_size,
        policy.state_size,
        torch.device("cpu"),
    )
    terminated = torch.rand(shape, generator=g) < 0.15
    truncated = (torch.rand(shape, generator=g) < 0.15) & ~terminated
    obs = torch.randn((*shape, 5), generator=g)
    params, _ = policy.params_of(obs.flatten(0, 1), policy.start(obs.shape[0] * rows))
    action = choose(policy, params.detach(), g)
    track = buffer.track
    track.obs.copy_(obs)
    track.action.copy_(action.view(*shape, -1))
    track.log_prob.copy_(policy.head.log_prob(params, action).detach().view(shape))
    for target in (track.value, track.reward, track.discounted):
        target.copy_(torch.randn(shape, generator=g))
    track.done.copy_(terminated | truncated)
    track.final_value.copy_(torch.randn(shape, generator=g) * truncated)
    track.present.fill_(True)
    buffer.time = horizon
    return buffer.take(0)


@torch.no_grad()
def choose(policy: ActorCritic, params: Tensor, generator: torch.Generator) -> Tensor:
    return policy.head.sample(params, policy.head.noise(params.shape[:-1], generator))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("clips", [None, (1.0, 1.0), (1.5, 0.8)])
def test_advantages_equal_a_loop_over_single_episodes(seed: int, clips: tuple[float, float] | None) -> None:
    segments, horizon, gamma, lam = 4, 23, 0.97, 0.9
    rng = np.random.default_rng(seed)
    reward, value, final = rng.normal(size=(3, horizon, segments))
    last, ratio = rng.normal(size=segments), np.exp(rng.normal(size=(horizon, segments)) * 0.5)
    terminated = rng.random((horizon, segments)) < 0.15
    done = terminated | (rng.random((horizon, segments)) < 0.15)
    final[~done | terminated] = 0.0
    rho_clip, c_clip = clips or (1.0, 1.0)
    rho, c = (np.minimum(ratio, rho_clip), np.minimum(ratio, c_clip)) if clips else (ratio**0, ratio**0)
    expected = np.zeros((horizon, segments))
    for s in range(segments):
        for t in range(horizon):  # forward sum of discounted TD errors until the episode or horizon ends
            weight, total = 1.0, 0.0
            for k in range(t, horizon):
                after = final[k, s] if done[k, s] else value[k + 1, s] if k + 1 < horizon else last[s]
                total += weight * rho[k, s] * (reward[k, s] + gamma * after - value[k, s])
                if done[k, s]:
                    break
                weight *= gamma * lam * c[k, s]
            expected[t, s] = total
    reward_, value_, final_, last_, done_, ratio_ = map(
        torch.from_numpy, (reward, value, final, last, done, ratio)
    )
    following = next_values(value_, last_, done_, final_)
    moved = (ratio_, rho_clip, c_clip) if clips else ()
    actual = generalized_advantage(reward_, value_, following, done_, gamma, lam, *moved)
    np.testing.assert_allclose(actual.numpy(), expected, atol=1e-12)


def test_v_trace_is_gae_where_the_policy_has_not_moved() -> None:
    reward, value, following = torch.randn(3, 9, 4).unbind()
    done, ones = torch.rand(9, 4) < 0.2, torch.ones(9, 4)
    plain = generalized_advantage(reward, value, following, done, 0.9, 0.8)
    assert torch.equal(plain, generalized_advantage(reward, value, following, done, 0.9, 0.8, ones, 1.0, 1.0))


def test_truncated_episode_bootstraps_from_final_observation_and_terminated_does_not() -> None:
    value, last = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([9.0])
    done, final = torch.tensor([[True], [True], [False]]), torch.tensor([[0.0], [7.0], [0.0]])
    assert next_values(value, last, done, final).flatten().tolist() == [0.0, 7.0, 9.0]


@pytest.mark.parametrize("kind", ACTION_SPACES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("value_clip", [0.0, 0.1])
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_written_out_gradient_equals_autograd(
    kind: str, shared: bool, activation: str, value_clip: float, memory: bool, masked: bool
) -> None:
    if shared and memory:
        pytest.skip("with a memory the trunk is always shared")
    torch.manual_seed(3)
    config = PolicyConfig(
        hidden=(16, 8), shared_trunk=shared, activation=activation, normalize_obs=False,  # type: ignore[arg-type]
        memory="lstm" if memory else "none", memory_size=8,
    )  # fmt: skip
    policy = ActorCritic(OBS, ACTION_SPACES[kind], config)
    torch.nn.init.normal_(policy.head.linear.weight)  # far from uniform, so that every term matters
    ppo_config = PPOConfig(horizon=8, minibatches=1, entropy_coef=0.03, value_clip=value_clip, max_grad_norm=1e9)
    g = torch.Generator().manual_seed(1)
    horizon, segments = 8, 8
    n = horizon * segments
    x = torch.randn(n, 5, generator=g)
    start = policy.start(segments if memory else n)
    params, _ = policy.params_of(x, policy.start(n))
    numbers = torch.randn(4, n, generator=g, dtype=torch.float64)
    share = torch.rand(n, generator=g, dtype=torch.float64) * (torch.rand(n, generator=g) < 0.8)
    batch = Batch(
        x=x.double(),
        action=choose(policy, params.detach(), g).double(),
        old_log_prob=numbers[0] * 0.3 - 2.0,
        advantage=numbers[1],
        returns=numbers[2],
        old_value=numbers[3] * 0.1,
        share=share / share.sum() if masked else 1.0 / n,
        state=torch.randn(start.shape, generator=g).double(),
        keep=(torch.rand(horizon, segments, generator=g) < 0.7).double() if memory else None,
    )
    ppo = PPO(policy.double(), ppo_config, schedule_of(segments, horizon), seed=0)
    ppo.entropy_coef = torch.tensor(0.03, dtype=torch.float64)
    with torch.no_grad():
        ppo.step(batch, measured=False)
    written = [p.grad.clone() for p in policy.parameters() if p.grad is not None]
    for p in policy.parameters():
        p.grad = None
    _slow_loss(policy, batch, ppo_config).backward()
    for p, gradient in zip(policy.parameters(), written, strict=True):
        torch.testing.assert_close(gradient, p.grad, rtol=1e-9, atol=1e-11)


def _slow_loss(policy: ActorCritic, batch: Batch, config: PPOConfig) -> Tensor:
    params, value = _slow_outputs(policy, batch)
    if isinstance(policy.action_space, gym.spaces.Box):
        dist = torch.distributions.Normal(params, policy.head.log_std.exp())  # type: ignore[operator]
        log_prob, entropy = dist.log_prob(batch.action).sum(-1), dist.entropy().sum(-1)
    else:
        choices = policy.head.choices
        dists = [torch.distributions.Categorical(logits=p) for p in params.split(choices, -1)]
        log_prob = sum(d.log_prob(batch.action[:, i]) for i, d in enumerate(dists))
        entropy = sum(d.entropy() for d in dists)
    ratio = (log_prob - batch.old_log_prob).exp()
    clipped = ratio.clamp(1 - config.clip, 1 + config.clip)
    share = batch.share
    policy_loss = -(torch.min(ratio * batch.advantage, clipped * batch.advantage) * share).sum()
    error = (value - batch.returns) ** 2
    if config.value_clip > 0:
        near = batch.old_value + (value - batch.old_value).clamp(-config.value_clip, config.value_clip)
        error = torch.max(error, (near - batch.returns) ** 2)
    return policy_loss + config.value_coef * (error * share).sum() - config.entropy_coef * (entropy * share).sum()


def _slow_outputs(policy: ActorCritic, batch: Batch) -> tuple[Tensor, Tensor]:
    """Step by step, with torch's own LSTM cell and autograd."""
    memory = policy.memory
    if memory is None or batch.keep is None:
        params, value, _ = policy.params_and_value_of(batch.x, batch.state)
        return params, value
    assert isinstance(memory, LSTM)
    features = policy.encoder(batch.x).view(*batch.keep.shape, -1)
    h, c = batch.state.split(memory.size, 1)
    outputs = []
    for t in range(len(batch.keep)):
        h, c = h * batch.keep[t][:, None], c * batch.keep[t][:, None]
        gates = features[t] @ memory.weight_x.t() + h @ memory.weight_h.t() + memory.bias
        i, f, o, g = gates.split(memory.size, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    remembered = torch.cat(outputs)
    return policy.head(remembered), policy.value_head(remembered).squeeze(-1)


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


def through(layers: MLP, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Every layer's outputs, and what must not depend on how they are held: features and gradients."""
    for parameter in layers.parameters():
        parameter.grad = torch.full_like(parameter, torch.nan)
    with torch.no_grad():
        outputs = layers.outputs(x)
        gradient = torch.randn(outputs[-1].shape, generator=torch.Generator().manual_seed(0)).to(x)
        inputs = layers.backward(outputs, gradient, need_inputs=True)
    gradients = [parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None]
    assert inputs is not None
    return outputs, [outputs[-1], inputs, *gradients]


def test_rows_that_were_widened_give_the_same_features_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, where tensor cores want widths that are multiples of 16 bytes."""

    torch.manual_seed(0)
    layers, x = MLP(5, (6, 3), "elu").double(), torch.randn(7, 5, dtype=torch.float64)
    outputs, plain = through(layers, x)
    monkeypatch.setattr(mlp, "widened", lambda x: torch.nn.functional.pad(x, (0, -x.shape[-1] % 2)))
    wide_outputs, wide = through(layers, x)
    assert (outputs[0].shape[1], wide_outputs[0].shape[1]) == (5, 6)
    torch.testing.assert_close(wide, plain, atol=1e-12, rtol=0)


def test_layers_that_multiply_in_bfloat16_are_near_those_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with `--precision bfloat16`: features, gradients and what is passed on stay float32."""

    torch.manual_seed(0)
    layers, x = MLP(20, (64, 32, 48), "elu"), torch.randn(256, 20)
    outputs, plain = through(layers, x)
    monkeypatch.setattr(MLP, "_halves", lambda self, x: True)
    rounded, near = through(layers, x)
    assert {out.dtype for out in outputs} == {torch.float32}
    assert [out.dtype for out in rounded] == [torch.bfloat16] * 3 + [torch.float32]
    for coarse, fine in zip(near, plain, strict=True):
        assert coarse.dtype == torch.float32
        assert 0 < (coarse - fine).norm() < 0.01 * fine.norm()


@pytest.mark.parametrize("width", [3, 4, 6, 7, 9])
def test_rows_of_another_width_are_refused(width: int) -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        MLP(5, (6,), "elu").outputs(torch.zeros(2, width))


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
        normalizer.update([torch.from_numpy(batch)])
    everything = np.concatenate(seen).astype(np.float64)
    np.testing.assert_allclose(normalizer.mean, everything.mean(0), rtol=1e-10)
    np.testing.assert_allclose(normalizer.m2 / normalizer.count, everything.var(0), rtol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_return_scale_equals_numpy_over_all_returns_seen(masked: bool) -> None:
    scale, rng, seen = ReturnScale(torch.device("cpu")), np.random.default_rng(0), []
    for _ in range(3):
        discounted, reward = rng.normal(2.0, 3.0, (2, 11, 4)).astype(np.float32)
        present = rng.random((11, 4)) < (0.6 if masked else 2.0)
        scale.update(torch.from_numpy(discounted), torch.from_numpy(present) if masked else None)
        seen.append(discounted[present])
        deviation = np.std(np.concatenate(seen).astype(np.float64))
        scaled = scale.scale(torch.from_numpy(reward))
        np.testing.assert_allclose(scaled, np.clip(reward / deviation, -10, 10), rtol=1e-5)


def test_prioritized_choice_has_its_probabilities_and_weights_that_undo_them() -> None:
    priority, alpha, beta = torch.tensor([0.5, 2.0, 0.0, 4.0]), 0.7, 0.4
    p = np.array([0.5, 2.0, 0.0, 4.0]) ** alpha
    p /= p.sum()
    ids, weights = prioritized(priority, 200_000, alpha, beta, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(np.bincount(ids, minlength=4) / 200_000, p, atol=0.005)
    np.testing.assert_allclose(weights[:500], (4 * p[ids[:500]]) ** -beta, rtol=1e-5)
    # Fully corrected, the weighted mean over the choice is the mean over all.
    some = torch.tensor([1.0, 2.0, 3.0, 4.0])
    ids, weights = prioritized(some, 200_000, 1.0, 1.0, torch.Generator().manual_seed(1))
    values = torch.tensor([3.0, -1.0, 5.0, 2.0])
    assert float((values[ids] * weights).mean()) == pytest.approx(float(values.mean()), abs=0.02)


@pytest.mark.parametrize("kind", ACTION_SPACES)
def test_sampled_actions_have_the_probabilities_they_are_said_to_have(kind: str) -> None:
    torch.manual_seed(0)
    policy = ActorCritic(OBS, ACTION_SPACES[kind], PolicyConfig(hidden=(8,), initial_std=0.5))
    torch.nn.init.normal_(policy.head.linear.weight)
    params = policy.params_of(torch.randn(1, 5), policy.start(1))[0].detach().expand(200_000, -1)
    action = choose(policy, params, torch.Generator().manual_seed(1))
    with torch.no_grad():
        entropy = -policy.head.log_prob(params, action).mean()  # E[−log p] is the entropy
        torch.testing.assert_close(entropy, policy.head.entropy(params[:1])[0], rtol=0.02, atol=0.01)


def test_update_keeps_going_to_the_end_without_a_divergence_limit_and_stops_with_one() -> None:
    def gradient_steps(target_kl: float) -> float:
        torch.manual_seed(0)
        policy = ActorCritic(OBS, ACTION_SPACES["gaussian"], PolicyConfig(hidden=(16,)))
        config = PPOConfig(horizon=16, minibatches=4, update_epochs=8, learning_rate=3e-2, target_kl=target_kl)
        ppo = PPO(policy, config, schedule_of(8, 16), seed=0)
        ppo.update(random_segments(policy, 8, 16, 0), progress=0.0)
        return float(ppo.optimizer.steps)

    assert gradient_steps(0.0) == 32
    assert gradient_steps(0.01) < 8


def test_minibatches_that_do_not_divide_the_rollout_are_refused_with_numbers_that_would() -> None:
    policy = ActorCritic(OBS, ACTION_SPACES["gaussian"], PolicyConfig())
    with pytest.raises(ConfigError, match=r"5 segments × horizon 7 = 35 steps do not divide into 4 .* 1 or 5"):
        PPO(policy, PPOConfig(horizon=7, minibatches=4), schedule_of(5, 7), seed=0)
    remembers = ActorCritic(OBS, ACTION_SPACES["gaussian"], PolicyConfig(memory="lstm"))
    with pytest.raises(ConfigError, match="of whole segments"):
        PPO(remembers, PPOConfig(horizon=8, minibatches=4), schedule_of(6, 8), seed=0)
