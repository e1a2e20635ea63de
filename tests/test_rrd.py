"""Return decomposition: the losses against slow versions, the model's gradient, and what it learns."""

import itertools
import json
import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import Recordings
from ludus.algorithms.reward.config import RewardConfig, check_reward_config
from ludus.algorithms.reward.metrics import (
    EpisodeRecord,
    RewardReport,
    auc,
    correlation,
    equal_returns_warning,
    r_squared,
    rank_correlation,
)
from ludus.algorithms.reward.rrd import (
    TERMS,
    RewardLearner,
    ircr_reward,
    make_reward_model,
    return_scale,
    rrd_loss,
)
from ludus.buffers.replay import SequenceDraw
from ludus.errors import ConfigError
from ludus.graphs import Graphed
from ludus.policies.normalizer import REPLAY_LIMITS, ObsNormalizer
from ludus.policies.reward import RewardModel

SMALL = RewardConfig(method="rrd", rrd_batch_size=64, rrd_sample_size=16, hidden=(64, 64), learning_rate=1e-3)
VECTOR = {"obs": ((3,), torch.float32)}
IMAGE = {"camera": ((24, 24, 3), torch.uint8), "arm": ((2,), torch.float32)}


class Steps(NamedTuple):
    obs: dict[str, Tensor]
    action: Tensor
    next_obs: dict[str, Tensor]
    draw: SequenceDraw


def draw_steps(episodes: list[EpisodeRecord], m: int, k: int, g: torch.Generator, whole: bool = False) -> Steps:
    """m sub-sequences of k steps, or whole episodes padded to the longest of them."""
    lengths = torch.tensor([len(e.action) for e in episodes], dtype=torch.float32)
    chosen = torch.multinomial(lengths, m, replacement=True, generator=g).tolist()
    k = int(lengths[chosen].max()) if whole else k
    steps, weights, corrections = [], [], []
    for i in chosen:
        t = int(lengths[i])
        if whole:
            steps.append(torch.arange(k).clamp(max=t - 1))
            weights.append((torch.arange(k) < t) / t)
            corrections.append(0.0)
        else:
            with_replacement = k > t
            draws = torch.randint(t, (k,), generator=g) if with_replacement else torch.randperm(t, generator=g)[:k]
            steps.append(draws)
            weights.append(torch.full((k,), 1 / k))
            corrections.append(1 / k if with_replacement else (1 - k / t) / k)
    index = torch.stack(steps)
    picked = [episodes[i] for i in chosen]
    success = torch.tensor([math.nan if e.success is None else float(e.success) for e in picked])
    returns = torch.tensor([e.episode_return for e in picked])
    draw = SequenceDraw(
        index, torch.stack(weights).float(), torch.tensor(corrections), lengths[chosen], returns, success,
        (index + 1) / lengths[chosen][:, None],
    )  # fmt: skip
    names = picked[0].obs
    now, later = ({n: torch.cat([e.obs[n][s + o] for e, s in zip(picked, steps, strict=True)]) for n in names}
                  for o in (0, 1))  # fmt: skip
    action = torch.cat([e.action[s] for e, s in zip(picked, steps, strict=True)])
    return Steps(now, action, later, draw)


# The loss ---------------------------------------------------------------------------------------
def slow_loss(prediction: Any, lengths: Any, returns: Any, unbiased: bool) -> tuple[float, Any]:
    """The loss and its gradient, step by step; `prediction` lists each sub-sequence's drawn steps."""
    loss, gradients, m = 0.0, [], len(prediction)
    for drawn, length, total in zip(prediction, lengths, returns, strict=True):
        k = len(drawn)
        mean = sum(drawn) / k
        gradient = [2 * (mean - total / length) / k / m for _ in drawn]
        loss += (mean - total / length) ** 2 / m
        if unbiased and k != length:
            factor = (1 - k / length) if k < length else 1.0
            variance = sum((x - mean) ** 2 for x in drawn) / (k - 1)
            loss -= variance * factor / k / m
            gradient = [
                g - 2 * (x - mean) / (k - 1) * factor / k / m for g, x in zip(gradient, drawn, strict=True)
            ]
        gradients.append(gradient)
    return loss, gradients


@pytest.mark.parametrize("unbiased", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_equal_the_slow_version(seed: int, k: int, unbiased: bool) -> None:
    """Episodes of 5 … 8 steps or more, so that k is less than T, equal to it, or more."""
    if k == 1 and unbiased:
        pytest.skip("one step has no spread")
    rng = np.random.default_rng(seed)
    m = 6
    length = np.array([5, 6, 8, 8, 20, 33])
    prediction, returns = rng.normal(size=(m, k)), rng.normal(size=m) * 10
    correction = np.where(k > length, 1 / k, (1 - k / length) / k)
    loss, gradient = rrd_loss(
        torch.tensor(prediction),
        torch.full((m, k), 1 / k, dtype=torch.float64),
        torch.tensor(returns / length),
        torch.tensor(correction),
        unbiased,
    )
    expected, expected_gradient = slow_loss(prediction, length, returns, unbiased)
    assert float(loss) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("unbiased", [False, True])
def test_whole_episodes_with_padding_are_plain_return_decomposition(unbiased: bool) -> None:
    rng = np.random.default_rng(0)
    lengths, longest = [3, 7, 5], 7
    episodes, returns = [rng.normal(size=t) for t in lengths], rng.normal(size=3)
    prediction, weight = rng.normal(size=(3, longest)), np.zeros((3, longest))
    for i, (t, each) in enumerate(zip(lengths, episodes, strict=True)):
        prediction[i, :t], weight[i, :t] = each, 1 / t
    target, nothing = torch.tensor(returns / lengths), torch.zeros(3, dtype=torch.float64)
    loss, gradient = rrd_loss(torch.tensor(prediction), torch.tensor(weight), target, nothing, unbiased)
    expected, expected_gradient = slow_loss(episodes, lengths, returns, unbiased)
    assert float(loss) == pytest.approx(expected, rel=1e-12)
    for i, t in enumerate(lengths):
        np.testing.assert_allclose(gradient[i, :t], expected_gradient[i], rtol=1e-10)
        assert (gradient[i, t:] == 0).all()


def test_the_unbiased_loss_is_exactly_unbiased() -> None:
    """Over all sub-sequences there are, its mean is the whole episode's loss; the biased one adds Var(mean)."""
    t, k, y = 9, 4, 0.3
    r = torch.randn(t, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full = (r.mean() - y).square()
    subsets = torch.stack([r[list(c)] for c in itertools.combinations(range(t), k)])
    n = len(subsets)
    weight, target = torch.full((n, k), 1 / k, dtype=torch.float64), torch.full((n,), y, dtype=torch.float64)
    correction = torch.full((n,), (1 - k / t) / k, dtype=torch.float64)
    assert torch.allclose(rrd_loss(subsets, weight, target, correction, True)[0], full, rtol=1e-10)
    biased = rrd_loss(subsets, weight, target, correction, False)[0]
    assert torch.allclose(biased, full + r.var() / k * (1 - k / t), rtol=1e-10)
    tuples = torch.stack([r[:3][list(c)] for c in itertools.product(range(3), repeat=k)])  # with replacement
    n, full = len(tuples), (r[:3].mean() - y).square()
    weight, target = torch.full((n, k), 1 / k, dtype=torch.float64), torch.full((n,), y, dtype=torch.float64)
    loss = rrd_loss(tuples, weight, target, torch.full((n,), 1 / k, dtype=torch.float64), True)[0]
    assert torch.allclose(loss, full, rtol=1e-10)


@pytest.mark.parametrize(("t", "k"), [(40, 8), (12, 20)])
def test_the_unbiased_loss_is_unbiased_over_random_draws(t: int, k: int) -> None:
    g = torch.Generator().manual_seed(t)
    r, y, n = torch.randn(t, generator=g, dtype=torch.float64), 0.2, 40_000
    if k <= t:
        drawn = r[torch.rand((n, t), generator=g).topk(k).indices]
    else:
        drawn = r[torch.randint(t, (n, k), generator=g)]
    factor = (1 - k / t) / k if k <= t else 1 / k
    full = float((r.mean() - y).square())

    def distance(factor: float) -> float:
        """Of the mean loss over all draws from the whole episode's, in standard errors."""
        each = (drawn.mean(1) - y).square() - factor * drawn.var(1)
        mean = float(rrd_loss(drawn, torch.full_like(drawn, 1 / k), torch.full((n,), y, dtype=torch.float64),
                              torch.full((n,), factor, dtype=torch.float64), True)[0])  # fmt: skip
        return abs(mean - full) / float(each.std() / math.sqrt(n))

    assert distance(factor) < 4
    assert distance(0.0) > 20  # the biased loss
    if k <= t:
        assert distance(1 / k) > 5  # without the finite-population factor


# The configuration ------------------------------------------------------------------------------
def test_the_configuration_is_checked() -> None:
    check = check_reward_config
    assert check(RewardConfig(), None) == []
    assert check(RewardConfig("rrd"), 1000) == []
    with pytest.raises(ConfigError, match="192 and 256 are"):
        check(RewardConfig("rrd", 250, 64), None)
    with pytest.raises(ConfigError, match="not one sub-sequence"):
        check(RewardConfig("rrd", 32, 64), None)
    with pytest.raises(ConfigError, match="at least 2"):
        check(RewardConfig("rrd-unbiased", 32, 1), None)
    assert check(RewardConfig("rrd", 32, 1), None) == []
    (warning,) = check(RewardConfig("rrd"), 50)
    assert "drawn with replacement" in warning
    assert check(RewardConfig("rd"), 50) == []
    sizes: list[dict[str, Any]] = [{name: 0} for name in ("rrd_batch_size", "rrd_sample_size", "image_features")]
    others: list[dict[str, Any]] = [
        {"augment": -1},
        {"progress": -1.0},
        {"success": math.nan},
        {"learning_rate": 0.0},
        {"hidden": (8, 0)},
    ]
    for bad in (*sizes, *others):
        with pytest.raises(ConfigError, match=next(iter(bad)).replace("_", "-")):
            check(replace(RewardConfig("rrd"), **bad), None)
    with pytest.raises(ConfigError, match="heads of the reward network"):
        check(RewardConfig("ircr", progress=1.0), None)


# The model --------------------------------------------------------------------------------------
def random_episodes(obs: dict[str, Any], action: int | None, count: int, seed: int) -> list[EpisodeRecord]:
    """Noise, of 20 … 29 steps; action None: three choices."""
    g, episodes = torch.Generator().manual_seed(seed), []
    for i in range(count):
        t = 20 + i % 10
        frames = {
            name: torch.randint(0, 256, (t + 1, *shape), generator=g, dtype=torch.uint8)
            if dtype == torch.uint8
            else torch.randn((t + 1, *shape), generator=g)
            for name, (shape, dtype) in obs.items()
        }
        a = torch.randint(3, (t,), generator=g) if action is None else torch.randn((t, action), generator=g)
        episodes.append(EpisodeRecord(frames, a, float(torch.randn((), generator=g)) * t, [1.0, 0.0, None][i % 3]))
    return episodes


def taped_loss(model: RewardModel, config: RewardConfig, steps: Steps) -> Tensor:
    """All losses in plain torch, for autograd."""
    draw, (m, k) = steps.draw, steps.draw.weight.shape
    inputs = model.inputs(model.encode(steps.obs), steps.action, model.encode(steps.next_obs))
    heads = model.head(model.trunk(inputs)).view(m, k, -1)
    r, target = heads[..., 0], (draw.episode_return / draw.length / model.return_scale).float()
    loss = ((r * draw.weight).sum(1) - target).square().mean()
    if config.method == "rrd-unbiased":
        loss = loss - (r.var(1) * draw.correction).mean()
    for i, name in enumerate(model.names[1:], 1):
        labels = draw.progress if name == "progress" else draw.success[:, None].expand(m, k)
        known = draw.success == 1 if name == "progress" else ~draw.success.isnan()
        cross = F.binary_cross_entropy_with_logits(heads[known, :, i], labels[known], reduction="none")
        if known.any():
            loss = loss + getattr(config, name) * (cross * draw.weight[known]).sum(1).mean()
    return loss


@pytest.mark.parametrize("method", ["rrd", "rrd-unbiased", "rd"])
@pytest.mark.parametrize(
    ("obs", "action"), [(VECTOR, 2), (VECTOR, None), (IMAGE, 2), ({"camera": IMAGE["camera"]}, None)]
)
def test_the_gradient_equals_autograd(obs: dict[str, Any], action: int | None, method: Any) -> None:
    config = replace(SMALL, method=method, progress=0.7, success=0.4, augment=0, image_features=10)
    model = make_reward_model(obs, action or 3, action is None, config, seed=1)
    learner = RewardLearner(model, config, seed=2)
    episodes = random_episodes(obs, action, 9, seed=3)
    learner.fit(
        torch.tensor([e.episode_return for e in episodes]), torch.tensor([len(e.action) for e in episodes])
    )
    model.update_normalizer(episodes[0].obs)
    steps = draw_steps(episodes, 6, 12, torch.Generator().manual_seed(4), whole=method == "rd")
    learner.optimizer.grad.fill_(123.0)  # what was there before must not matter
    learner.write_gradient(*steps)
    written = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    loss = taped_loss(model, config, steps)
    taped = torch.autograd.grad(loss, list(model.parameters()))
    for a, b in zip(written, taped, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-6)
    weights = torch.tensor([1.0, config.progress, config.success])
    torch.testing.assert_close((learner.terms * weights).sum(), loss.detach())
    assert len(TERMS) == len(learner.terms)


def test_the_gradient_equals_finite_differences() -> None:
    config = replace(SMALL, method="rrd-unbiased", hidden=(8,), progress=0.5, success=0.5)
    model = make_reward_model(VECTOR, 2, False, config, seed=1)
    learner = RewardLearner(model, config, seed=2)
    steps = draw_steps(random_episodes(VECTOR, 2, 9, 3), 6, 12, torch.Generator().manual_seed(4))
    learner.write_gradient(*steps)
    gradient, flat, weights = learner.optimizer.grad.clone(), learner.optimizer.flat, torch.tensor([1.0, 0.5, 0.5])
    for i in range(0, len(flat), 7):
        sides, old = [], float(flat[i])
        for h in (3e-3, -3e-3):
            flat[i] = old + h
            learner.write_gradient(*steps)
            sides.append(float((learner.terms.double() * weights).sum()))
        flat[i] = old
        assert (sides[0] - sides[1]) / 6e-3 == pytest.approx(float(gradient[i]), abs=2e-3, rel=0.02)


@pytest.mark.parametrize("obs", [VECTOR, IMAGE])
def test_labels_and_learning_in_one_pass(obs: dict[str, Any]) -> None:
    config = replace(SMALL, augment=0)
    model = make_reward_model(obs, 2, False, config, seed=1)
    learner = RewardLearner(model, config, seed=2)
    episodes, g = random_episodes(obs, 2, 9, 3), torch.Generator().manual_seed(4)
    drawn, batch = draw_steps(episodes, 4, 16, g), draw_steps(episodes, 5, 10, g)
    now = {n: torch.cat([drawn.obs[n], batch.obs[n]]) for n in obs}
    later = {n: torch.cat([drawn.next_obs[n], batch.next_obs[n]]) for n in obs}
    labels, loss = learner.joint(now, torch.cat([drawn.action, batch.action]), later, drawn.draw)
    joint, joint_loss = learner.optimizer.grad.clone(), float(loss)
    torch.testing.assert_close(labels, learner.label(*batch[:3]))
    before = learner.optimizer.flat.clone()
    learner.write_gradient(*drawn)
    torch.testing.assert_close(learner.optimizer.grad, joint)
    assert float(learner.terms[0]) == pytest.approx(joint_loss)
    assert torch.equal(before, learner.optimizer.flat)
    learner.step(1e-3)
    assert not torch.equal(before, learner.optimizer.flat)


def test_rows_may_come_in_two_dimensions_and_in_inference_mode() -> None:
    """As drawn, [m, k, ...]; and the tape of a learned encoder is recorded in whatever mode it is called."""
    config = replace(SMALL, augment=0)
    steps = draw_steps(random_episodes(IMAGE, 2, 9, 3), 4, 16, torch.Generator().manual_seed(4))
    flats = []
    for two in (False, True):
        learner = RewardLearner(make_reward_model(IMAGE, 2, False, config, seed=1), config, seed=2)
        with torch.inference_mode(two):
            now, action, later, draw = steps
            if two:
                now, later = ({n: v.view(4, 16, *v.shape[1:]) for n, v in o.items()} for o in (now, later))
                action = action.view(4, 16, -1)
            learner.learn(now, action, later, draw, torch.tensor(1e-3))
        flats.append(learner.optimizer.flat.clone())
    torch.testing.assert_close(flats[0], flats[1])


@pytest.mark.parametrize("encoder", ["conv", "frozen"])
def test_a_model_is_rebuilt_from_its_description(encoder: Any) -> None:
    config = replace(SMALL, encoder=encoder, progress=1.0, success=1.0)
    model = make_reward_model({**IMAGE, "wrist": ((32, 24, 3), "uint8")}, 3, True, config, seed=7)
    episodes = random_episodes({**IMAGE, "wrist": ((32, 24, 3), torch.uint8)}, None, 3, 0)
    learner = RewardLearner(model, config, 0)
    learner.fit(torch.tensor([e.episode_return for e in episodes]), torch.tensor([20, 21, 22]))
    model.update_normalizer(episodes[1].obs)
    again = RewardModel.from_description(json.loads(json.dumps(model.description())))
    again.load_state_dict(model.state_dict())
    steps = draw_steps(episodes, 2, 5, torch.Generator().manual_seed(0))
    a, b = model.predict(*steps[:3]), again.predict(*steps[:3])
    assert torch.equal(a, b)
    assert torch.equal(model.to_units(a), again.to_units(b))
    assert again.names == ["reward", "progress", "success"]
    whole = again.episode_heads(episodes[0].obs, episodes[0].action)
    now, later = ({n: v[s] for n, v in episodes[0].obs.items()} for s in (slice(None, -1), slice(1, None)))
    torch.testing.assert_close(whole, again.heads(now, episodes[0].action, later), rtol=1e-4, atol=1e-5)


def test_cached_features_are_the_frozen_encoders() -> None:
    config = replace(SMALL, encoder="frozen")
    model = make_reward_model(IMAGE, 2, False, config, seed=7)
    steps = draw_steps(random_episodes(IMAGE, 2, 3, 0), 2, 5, torch.Generator().manual_seed(0))
    model.update_normalizer(steps.obs)
    cached, later = model.encode_frames(steps.obs), model.encode_frames(steps.next_obs)
    assert cached["camera"].shape == (10, 64)
    assert torch.equal(model.predict(*steps[:3]), model.predict(cached, steps.action, later))
    learner = RewardLearner(model, config, 0)  # whose gradient is written out, for there is nothing to tape
    learner.learn(cached, steps.action, later, steps.draw, 1e-3)
    assert len(list(model.encoders.parameters())) == 0


def test_the_normaliser_floors_and_clips() -> None:
    x = torch.tensor([[0.0, 5.0, 0.0], [0.002, 5.0, 4.0]])
    normalizer = ObsNormalizer((3,), *REPLAY_LIMITS)
    normalizer.update([x])
    np.testing.assert_allclose(normalizer(x), [[-0.1, 0, -1], [0.1, 0, 1]], atol=1e-5)
    assert normalizer(torch.full((1, 3), 1e6)).max() == 5.0


# Units ------------------------------------------------------------------------------------------
def test_the_scale_is_the_spread_of_the_return_per_step() -> None:
    returns, lengths = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([10, 20, 30])
    each = np.repeat([0.0, 0.05, 0.1], [10, 20, 30])
    scale, mean = return_scale(returns, lengths)
    assert scale == pytest.approx(each.std())
    assert mean == pytest.approx(each.mean())
    assert return_scale(torch.full((4,), 2.0), torch.full((4,), 10))[0] == pytest.approx(0.2)
    assert return_scale(torch.zeros(4), torch.full((4,), 10))[0] == 1.0


def test_the_network_starts_at_the_mean_in_units_of_the_spread() -> None:
    model = make_reward_model(VECTOR, 2, False, SMALL, seed=1)
    returns, lengths = torch.tensor([1.0, 2.0, 6.0]), torch.full((3,), 10.0)
    RewardLearner(model, SMALL, seed=2).fit(returns, lengths)
    assert float(model.to_units(model.head.bias.detach()[0])) == pytest.approx(0.3)
    assert float(model.target(returns, lengths).std(correction=0)) == pytest.approx(1.0, rel=1e-5)


def test_two_returns_that_are_nearly_the_same_are_no_unit() -> None:
    scale, _ = return_scale(torch.tensor([-1200.0, -1201.0]), torch.tensor([200, 200]))
    assert scale == pytest.approx(0.05 * 6.0, rel=1e-2)


def test_a_random_stream_of_another_device_begins_anew() -> None:
    learner = RewardLearner(make_reward_model(VECTOR, 2, False, SMALL, seed=1), SMALL, seed=2)
    learner.load_state({**learner.state(), "generator": torch.zeros(16, dtype=torch.uint8)})


def test_ircr_scales_returns_to_one() -> None:
    returns = torch.tensor([-3.0, 1.0, 5.0])
    np.testing.assert_allclose(ircr_reward(returns, returns.min(), returns.max()), [0, 0.5, 1])
    assert (ircr_reward(torch.ones(3), 1.0, 1.0) == 0).all()
    assert ircr_reward(torch.tensor([-9.0, 99.0]), -3.0, 5.0).tolist() == [
        0,
        1,
    ]  # stored in part, beside whole ones


# Metrics ----------------------------------------------------------------------------------------
def test_the_auc_equals_counting_pairs() -> None:
    rng = np.random.default_rng(0)
    for n in (2, 5, 30, 100):
        scores, success = rng.integers(0, max(2, n // 3), n).astype(float), rng.integers(0, 2, n).astype(float)
        success[:2] = 0, 1
        pairs = [(a > b) + 0.5 * (a == b) for a in scores[success == 1] for b in scores[success == 0]]
        assert auc(scores, success) == pytest.approx(np.mean(pairs))
    assert auc([3, 1, 2], [1, math.nan, 0]) == 1.0
    assert math.isnan(auc([1, 2], [1, 1]))


def test_the_other_metrics() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=50)
    b = a + rng.normal(size=50)
    assert correlation(a, b) == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert rank_correlation(a, np.exp(a)) == pytest.approx(1.0)
    assert math.isnan(correlation(a, np.full(50, 0.1)))
    assert math.isnan(correlation([1.0], [2.0]))
    assert r_squared(a, a) == 1.0
    assert r_squared(np.full(50, a.mean()), a) == pytest.approx(0.0)
    assert math.isnan(r_squared(a, np.ones(50)))


def test_equal_returns_are_called_out() -> None:
    assert equal_returns_warning([0.0, 1.0]) is None
    assert equal_returns_warning([-200.0, -150.0, -180.0]) is None
    for returns in ([1.0] * 20, [0.0, 0.0], [1.0, 1.0000001], []):
        warning = equal_returns_warning(returns)
        assert warning is not None
        assert "--reward.progress" in warning
        assert "ludus record" in warning


# Learning ---------------------------------------------------------------------------------------
def train(
    episodes: list[EpisodeRecord], obs: dict[str, Any], config: RewardConfig, steps: int, seed: int = 0
) -> RewardLearner:
    model = make_reward_model(obs, episodes[0].action.shape[-1], False, config, seed)
    learner, g = RewardLearner(model, config, seed), torch.Generator().manual_seed(seed)
    learner.fit(
        torch.tensor([e.episode_return for e in episodes]), torch.tensor([len(e.action) for e in episodes])
    )
    for e in episodes:
        model.update_normalizer(e.obs)
    for _ in range(steps):
        drawn = draw_steps(episodes, config.sequences, config.rrd_sample_size, g, whole=config.method == "rd")
        learner.learn(*drawn, config.learning_rate)
    return learner


def walks(count: int, seed: int, bonus: float = 0.0) -> list[EpisodeRecord]:
    """A point that wanders: a step is worth a_0 − s_0² / 2 (+ bonus), and only the sum is told."""
    g, episodes = torch.Generator().manual_seed(seed), []
    for i in range(count):
        t = 20 + 7 * (i % 5)
        s = torch.randn((1, 3), generator=g) + 0.2 * torch.randn((t + 1, 3), generator=g).cumsum(0)
        a = torch.randn((1, 2), generator=g) + torch.randn((t, 2), generator=g)
        reward = a[:, 0] - s[:-1, 0].square() / 2 + bonus
        episodes.append(EpisodeRecord({"obs": s}, a, float(reward.sum()), None, reward))
    return episodes


@pytest.mark.parametrize("method", ["rrd", "rrd-unbiased", "rd"])
def test_it_finds_the_reward_of_every_step(method: Any) -> None:
    config = replace(SMALL, method=method)
    learner = train(walks(300, 0), VECTOR, config, 800)
    report = RewardReport(walks(40, 1))(learner.model)
    assert report["correlation"] > 0.9
    assert report["R2"] > 0.8
    assert math.isnan(report["AUC"])


def reaches(count: int, seed: int, outcomes: tuple[float, ...] = (1.0, 0.0)) -> list[EpisodeRecord]:
    """A hand that reaches a goal and is paid 1 at the end, or gets stuck half way and is paid nothing."""
    g, episodes = torch.Generator().manual_seed(seed), []
    for i in range(count):
        success = outcomes[i % len(outcomes)]
        t = int(torch.randint(80, 101, (), generator=g)) if success else 100
        way = torch.linspace(1.0, 0.0 if success else float(0.3 + 0.4 * torch.rand((), generator=g)), t + 1)
        s = torch.stack([way, *(torch.randn((2, t + 1), generator=g))], 1)
        s[:, 0] += 0.05 * torch.randn((t + 1,), generator=g)
        action = torch.randn((t, 2), generator=g)
        episodes.append(EpisodeRecord({"obs": s}, action, success, success, -s[:-1, 0]))
    return episodes


@pytest.mark.parametrize("unit", [1.0, 1e-3])
def test_small_returns_are_learned_if_normalised(unit: float) -> None:
    """Of 0 and 1 over a hundred steps, and a thousand times smaller still: without normalising, Adam's steps are
    as large as what is to be learned."""
    held_out, reports = RewardReport(in_units(reaches(40, 1), unit)), []
    for normalize in (True, False):
        config = replace(SMALL, normalize_returns=normalize, learning_rate=3e-4)
        reports.append(held_out(train(in_units(reaches(100, 0), unit), VECTOR, config, 800).model))
    good, bad = reports
    assert good["AUC"] > 0.99
    assert good["R2"] > 0.8
    assert good["correlation"] > 0.9
    assert bad["correlation"] < good["correlation"]
    if unit < 1:
        assert bad["R2"] < 0
        assert bad["correlation"] < 0.6


def in_units(episodes: list[EpisodeRecord], unit: float) -> list[EpisodeRecord]:
    return [replace(e, episode_return=e.episode_return * unit) for e in episodes]


def test_successes_alone_teach_nothing_and_say_so() -> None:
    successes = reaches(100, 0, outcomes=(1.0,))
    warning = equal_returns_warning([e.episode_return for e in successes])
    assert warning is not None
    assert "failures" in warning
    reports = [RewardReport(reaches(40, 1))(train(successes, VECTOR, SMALL, 500, seed).model) for seed in range(3)]
    assert np.mean([r["AUC"] for r in reports]) < 0.85
    assert np.mean([r["correlation"] for r in reports]) < 0.3
    assert equal_returns_warning([e.episode_return for e in reaches(100, 0)]) is None


def test_the_heads_learn_progress_and_success() -> None:
    config = replace(SMALL, progress=1.0, success=1.0)
    report = RewardReport(reaches(40, 1))(train(reaches(100, 0), VECTOR, config, 800).model)
    assert report["AUC_success"] > 0.99
    assert report["AUC_progress"] > 0.99
    assert report["progress_error"] < 0.1


def dots(count: int, seed: int) -> list[EpisodeRecord]:
    """A white dot on noise, 24 × 24: the further left, the better."""
    g, episodes = torch.Generator().manual_seed(seed), []
    for _ in range(count):
        t = 24
        column = (24 * torch.rand((1,), generator=g) + 1.5 * torch.randn((t + 1,), generator=g).cumsum(0)) % 20
        pictures = torch.randint(0, 90, (t + 1, 24, 24, 3), generator=g, dtype=torch.uint8)
        for i, x in enumerate(column.long().tolist()):
            y = int(torch.randint(0, 20, (), generator=g))
            pictures[i, y : y + 4, x : x + 4] = 255
        reward = 1 - column[:-1] / 10
        arm = torch.randn((t + 1, 2), generator=g)
        action = torch.randn((t, 2), generator=g)
        episodes.append(EpisodeRecord({"camera": pictures, "arm": arm}, action, float(reward.sum()), None, reward))
    return episodes


@pytest.mark.parametrize("encoder", ["conv", "frozen"])
def test_it_learns_from_images(encoder: Any) -> None:
    config = replace(SMALL, encoder=encoder, augment=1)
    report = RewardReport(dots(20, 1))(train(dots(150, 0), IMAGE, config, 300 if encoder == "conv" else 500).model)
    assert report["correlation"] > 0.7


@pytest.mark.parametrize("obs", [VECTOR, IMAGE])
def test_resumed_learning_is_the_same(obs: dict[str, Any]) -> None:
    episodes = random_episodes(obs, 2, 9, 3)
    batches = [draw_steps(episodes, 4, 16, torch.Generator().manual_seed(i)) for i in range(6)]
    learner = train(episodes, obs, SMALL, 2)
    model, state = {k: v.clone() for k, v in learner.model.state_dict().items()}, learner.state()
    resumed = RewardLearner(RewardModel.from_description(learner.model.description()), SMALL, seed=99)
    resumed.model.load_state_dict(model)
    resumed.load_state(state)
    for each in (learner, resumed):
        for batch in batches:
            each.learn(*batch, 1e-3)
    assert torch.equal(learner.optimizer.flat, resumed.optimizer.flat)
    assert torch.equal(learner.terms, resumed.terms)


@pytest.mark.gpu
@pytest.mark.parametrize("obs", [VECTOR, {"camera": ((64,), torch.float32), **VECTOR}])
def test_a_recorded_step_equals_a_called_one(obs: dict[str, Any], device: str, recordings: Recordings) -> None:
    """Label, gradient and step in one CUDA graph, whose inputs stay where they are."""
    config = replace(SMALL, method="rrd-unbiased", progress=1.0, success=1.0)
    episodes, results = random_episodes(obs, 2, 9, 3), []
    now, action, later, draw = draw_steps(episodes, 6, 12, torch.Generator().manual_seed(4))
    now, later = ({n: v.to(device) for n, v in o.items()} for o in (now, later))
    action, draw = action.to(device), SequenceDraw(*(x[:4].to(device) for x in draw))
    for graphs in (False, True):
        learner = RewardLearner(make_reward_model(obs, 2, False, config, 0).to(device), config, 0)
        rate, labels = torch.tensor(1e-3, device=device), torch.zeros(24, device=device)

        def work(learner: RewardLearner = learner, rate: Tensor = rate, labels: Tensor = labels) -> None:
            labels.copy_(learner.joint(now, action, later, draw)[0])
            learner.step(rate)

        step = Graphed(work, torch.device(device), enabled=graphs)
        for _ in range(8):
            step()
        results.append([labels.clone(), learner.optimizer.flat.clone(), learner.terms.clone()])
    assert recordings.count == (device == "cuda")
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)
