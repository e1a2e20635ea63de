"""FlashSAC's kernels against torch. Without a GPU they run in Triton's interpreter, where Triton is installed."""

import math
import os
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="Triton is not installed: it comes with torch for GPUs")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are made

from ludus.algorithms.flash import adam_triton, losses, losses_triton, optimizer
from ludus.algorithms.optimizer import FlatAdam
from ludus.policies import flash_layers, replay_heads
from ludus.policies import flash_triton as kernels
from test_flash import agent_of, batch_of, learn

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MOMENTUM, EPS, HIGHEST, BINS = 0.01, 1e-5, 5.0, 21


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted.to(found), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("batch_statistics", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_batch_norm_and_its_gradient(batch_statistics: bool, relu: bool) -> None:
    x, gradient, residual = random(2, 3, 37), random(2, 3, 37, seed=1), random(2, 3, 37, seed=2)
    scale, shift = random(6, seed=3), random(6, seed=4)
    mean, variance = random(6, seed=5), random(6, seed=6).square() + 0.5
    wanted_mean, wanted_variance = mean.clone(), variance.clone()
    leaf, factor, offset = (tensor.clone().requires_grad_() for tensor in (x, scale, shift))
    y = F.batch_norm(
        leaf.reshape(1, 6, 37), wanted_mean, wanted_variance, factor, offset, batch_statistics, MOMENTUM, EPS
    ).view(x.shape)
    y = y.relu() if relu else y
    y.backward(gradient)
    out, used_mean, used_inverse = kernels.norm(
        x, scale, shift, mean, variance, batch_statistics, MOMENTUM, EPS, relu, residual
    )
    close(out, y.detach() + residual)
    close(mean, wanted_mean)
    close(variance, wanted_variance)
    of_scale, of_shift = torch.zeros_like(scale), torch.zeros_like(shift)
    found = kernels.norm_back(
        gradient, x, scale, shift, used_mean, used_inverse, batch_statistics, relu, of_scale, of_shift
    )
    for ours, leaf_of in ((found, leaf), (of_scale, factor), (of_shift, offset)):
        assert leaf_of.grad is not None
        close(ours, leaf_of.grad)


def test_networks_that_see_the_same_need_no_copy_of_it() -> None:
    x, gradient, scale, shift = random(3, 37), random(2, 3, 37, seed=1), random(6, seed=3), random(6, seed=4)
    told = []
    for given in (x, x.repeat(2, 1, 1)):
        running = torch.zeros(6, device=DEVICE), torch.ones(6, device=DEVICE)
        out, mean, inverse = kernels.norm(given, scale, shift, *running, True, MOMENTUM, EPS)
        back = kernels.norm_back(gradient, given, scale, shift, mean, inverse, True)
        told.append([out.view(2, 3, 37), mean, inverse, *running, back])
    for found, wanted in zip(*told, strict=True):
        close(found, wanted)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(("outputs", "inputs", "rows"), [(40, 23, 70), (5, 130, 3), (3, 2, 300), (1, 1, 1)])
def test_products_of_narrow_matrices_and_the_weights_gradient(
    half: bool, outputs: int, inputs: int, rows: int
) -> None:
    weight, x, bias = random(2, outputs, inputs), random(2, inputs, rows, seed=1), random(2, outputs, 1, seed=2)
    gradient = random(2, outputs, rows, seed=3)
    gradient = gradient.bfloat16() if half else gradient
    close(kernels.product(weight, x), weight @ x)
    found = kernels.product(weight, x, gradient.dtype, bias)
    assert found.dtype == gradient.dtype
    least = 1e-2 if half else 2e-5
    torch.testing.assert_close(found.float(), weight @ x + bias, rtol=least, atol=least)
    close(kernels.product(weight.transpose(1, 2), gradient), weight.transpose(1, 2) @ gradient.float())
    of_weight = torch.zeros_like(weight)
    kernels.write_weight_gradient(gradient, x, of_weight)
    close(of_weight, gradient.float() @ x.transpose(1, 2))


@pytest.fixture
def coarse() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("coarse")
def test_coarse_products_are_rounded_not_cut_off() -> None:
    """Of positive numbers: cut off, all sums would be too small, by a thousandth."""
    weight, x = random(1, 64, 64).abs(), random(1, 64, 64, seed=1).abs()
    exact = weight.double() @ x.double()
    found = kernels.product(weight, x)
    of_weight = torch.zeros_like(weight)
    kernels.write_weight_gradient(found, x, of_weight)
    for coarse, fine in ((found, exact), (of_weight, found.double() @ x.double().transpose(1, 2))):
        error = (coarse - fine) / fine
        assert 1e-6 < error.abs().mean() < 3e-4  # coarse they are
        assert error.mean().abs() < 3e-5


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize("bits", [0x7FFFFFFF, -1, 0x7FC00000, 0x7F800001])
def test_coarse_products_show_a_nan(bits: int) -> None:
    """Also one that rounding its bits would carry over into the sign. Cut off, a NaN may become infinite."""
    x = torch.zeros((1, 32, 32), device=DEVICE)
    x.view(torch.int32)[0, 3, 5] = bits
    found = kernels.product(torch.ones((1, 32, 32), device=DEVICE), x)
    assert (~found.isfinite()).nonzero().tolist() == [[0, i, 5] for i in range(32)]


@pytest.mark.parametrize("rows", [1, 37, 512])
def test_what_is_told_of_the_policy(rows: int) -> None:
    log_prob, values, alpha = random(rows), random(rows, seed=1), math.exp(-1.5)
    log_alpha, gradient = torch.tensor(-1.5, device=DEVICE), torch.zeros((), device=DEVICE)
    told = torch.zeros(3, device=DEVICE)
    losses_triton.tell_policy(log_prob, values, log_alpha, gradient, -3.0, told)
    close(gradient, -alpha * (log_prob.mean() - 3.0))
    close(told, torch.stack([(alpha * log_prob - values).mean(), values.mean(), -log_prob.mean()]))


def test_norms_of_half_as_wide_numbers() -> None:
    """They are worked out as those of wide ones; what they give is rounded, but for the features."""
    x, residual, gradient = (random(2, 6, 13, seed=seed).bfloat16() for seed in range(3))
    scale, shift = random(12, seed=3), random(12, seed=4)
    told = []
    for dtype in (torch.bfloat16, torch.float32):
        given, mean, variance = x.to(dtype), torch.zeros(12, device=DEVICE), torch.ones(12, device=DEVICE)
        out, used_mean, inverse = kernels.norm(
            given, scale, shift, mean, variance, True, MOMENTUM, EPS, relu=True, residual=residual.to(dtype)
        )
        back = kernels.norm_back(gradient.to(dtype), given, scale, shift, used_mean, inverse, True, relu=True)
        features, inverse_rms = kernels.rms(given, scale, 3, 7, EPS)
        back_rms = kernels.rms_back(features, given, scale, inverse_rms, 3)
        assert {out.dtype, back.dtype, back_rms.dtype} == {dtype}
        assert features.dtype == torch.float32
        told.append([mean, variance, used_mean, inverse, features, out, back, back_rms])
    for half, whole in zip(*told, strict=True):
        torch.testing.assert_close(half.float(), whole, rtol=1e-2, atol=1e-2)
    for half, whole in zip(told[0][:5], told[1][:5], strict=True):
        close(half, whole)


@pytest.mark.parametrize(("first", "asked"), [(0, 13), (0, 7), (6, 7)])
def test_an_rms_norm_and_its_gradient(first: int, asked: int) -> None:
    x, scale, gradient = random(2, 24, 13), random(48, seed=1), random(2, 24, asked, seed=2)
    leaf, factor = x.clone().requires_grad_(), scale.clone().requires_grad_()
    part = leaf[..., first : first + asked]
    y = part * (part.square().mean(1, keepdim=True) + 1e-6).rsqrt() * factor.view(2, 24, 1)
    y.backward(gradient)
    out, inverse = kernels.rms(x, scale, first, asked, 1e-6)
    close(out, y.detach())
    of_scale = torch.zeros_like(scale)
    assert leaf.grad is not None
    assert factor.grad is not None
    close(kernels.rms_back(gradient, x, scale, inverse, first, of_scale), leaf.grad)
    close(of_scale, factor.grad)


def test_the_critics_loss_moves_the_distribution_of_the_lower_target() -> None:
    rows, support = 9, torch.linspace(-HIGHEST, HIGHEST, BINS, device=DEVICE)
    target_logits, logits = random(2, BINS, rows), random(2, BINS, rows, seed=1).requires_grad_()
    reward, log_prob = 4 * random(rows, seed=2), random(rows, seed=3)
    discount = torch.where(torch.arange(rows, device=DEVICE) % 3 == 0, 0.0, 0.9)
    factor, log_alpha = torch.tensor(0.7, device=DEVICE), torch.tensor(-1.5, device=DEVICE)
    probs = target_logits.softmax(1)
    values = (probs * support[:, None]).sum(1)
    target = torch.zeros(BINS, rows, dtype=torch.float64)
    for row in range(rows):  # slowly
        critic = 0 if values[0, row] <= values[1, row] else 1
        for i in range(BINS):
            paid = float(reward[row] * factor)
            paid += float(discount[row] * (support[i] - log_alpha.exp() * log_prob[row]))
            place = (min(max(paid, -HIGHEST), HIGHEST) + HIGHEST) / (2 * HIGHEST) * (BINS - 1)
            low = min(math.floor(place), BINS - 1)
            target[low, row] += float(probs[critic, i, row]) * (1 - (place - low))
            target[min(low + 1, BINS - 1), row] += float(probs[critic, i, row]) * (place - low)
    each = -(target.to(DEVICE) * logits.log_softmax(1)).sum(1).mean(0)
    each.mean().backward()
    gradient, told = losses_triton.distribution_loss(
        target_logits, logits.detach(), reward, factor, discount, log_alpha, log_prob, HIGHEST
    )
    close(told[0], each.detach())
    close(told[1], target[0] + target[-1])
    assert logits.grad is not None
    close(gradient * rows, logits.grad * rows)


def test_the_way_up_is_that_of_the_lower_critic() -> None:
    rows, support = 9, torch.linspace(-HIGHEST, HIGHEST, BINS, device=DEVICE)
    logits = random(2, BINS, rows).requires_grad_()
    least = (logits.softmax(1) * support[:, None]).sum(1).amin(0)
    (-least.mean()).backward()
    gradient, found = losses_triton.way_up(logits.detach(), HIGHEST)
    close(found, least.detach())
    assert logits.grad is not None
    close(gradient * rows, logits.grad * rows)


def test_a_squashed_sample_and_its_gradient() -> None:
    rows, actions, least, most = 70, 6, -10.0, 2.0
    params, noise = 2 * random(rows, 2 * actions), random(rows, actions, seed=1)
    of_action, log_alpha = random(actions, rows, seed=2) / rows, torch.tensor(-1.5, device=DEVICE)
    leaf = params.double().requires_grad_()
    mean, raw = leaf.chunk(2, -1)
    log_std = least + 0.5 * (most - least) * (raw.tanh() + 1)
    before = mean + noise * log_std.exp()
    normal = torch.distributions.Normal(mean, log_std.exp()).log_prob(before)
    log_prob = (normal - 2 * (math.log(2) - before - F.softplus(-2 * before))).sum(-1)
    action, found = kernels.squash(
        params, noise, least, most, actions * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
    )
    close(action, before.tanh().detach())
    close(found / 10, log_prob.detach() / 10)
    loss = log_alpha.exp() * log_prob.mean() + (before.tanh() * of_action.t()).sum()
    loss.backward()
    assert leaf.grad is not None
    gradient = kernels.squash_back(params, noise, action, of_action, log_alpha.exp() / rows, least, most)
    close(gradient * rows, leaf.grad * rows)


# A matrix of 3 rows, a norm whose scale and shift lie apart, and a free bias.
FEW = [(0, -1, 40, 1.0), (40, -1, 40, 1.0), (80, -1, 40, 1.0), (120, 130, 8, 8.0), (128, -1, 2, 0.0)]
# Wide rows beside a narrow one, more numbers than are looked at together.
MANY = [(0, -1, 700, 1.0), (700, 1400, 300, 300.0), (1000, -1, 400, 0.0), (1700, -1, 262_144, 0.0)]


@pytest.mark.parametrize("bad", [None, math.nan, -math.inf])
@pytest.mark.parametrize("rows", [FEW, MANY])
def test_adam_moves_and_projects_the_rows(rows: list[tuple[int, int, int, float]], bad: float | None) -> None:
    numbers, held = sum(size * (2 if second >= 0 else 1) for _, second, size, _ in rows), bad is not None
    rows = [  # what is free may be moved in pieces
        (begin + first, second, min(1024, size - first), squared)
        for begin, second, size, squared in rows
        for first in range(0, size, 1024 if second < 0 and not squared else size)
    ]
    ours, target = FlatAdam([torch.nn.Parameter(random(numbers))], math.inf, eps=1e-8), random(numbers, seed=9)
    parameter = torch.nn.Parameter(ours.flat.clone())
    adam = torch.optim.Adam([parameter], lr=0.01, eps=1e-8)
    wanted_target = target.clone()
    rate, left = torch.tensor(0.02, device=DEVICE), torch.tensor(0.5, device=DEVICE)
    for step in range(3):
        gradient = random(numbers, seed=step + 1)
        ours.grad.copy_(gradient)
        if bad is not None:
            ours.grad[-1] = bad
        adam_triton.adam_rows(adam_triton.ParameterRows(rows, DEVICE), ours, rate, left, target, 0.1)
        if not held:
            parameter.grad = gradient
            adam.step()
            for begin, second, size, squared in rows:
                if squared:
                    places = [*range(begin, begin + size), *(range(second, second + size) if second >= 0 else ())]
                    part = parameter.data[places]
                    parameter.data[places] = part * (squared / part.square().sum()).sqrt()
        wanted_target.lerp_(parameter.data, 0.1)
        close(ours.flat, parameter.data)
        close(target, wanted_target)
    assert (float(ours.steps), float(ours.skipped)) == ((0.0, 3.0) if held else (3.0, 0.0))


def test_updates_with_kernels_are_those_without(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [agent_of(bins=BINS, device=str(DEVICE)) for _ in range(2)]
    for update in range(4):
        batch = batch_of(update, 16)
        batch = batch._replace(**{name: getattr(batch, name).to(DEVICE) for name in batch._fields[:5]})
        told = []
        for agent, fuses in zip(agents, (False, True), strict=True):
            for module in (flash_layers, losses, optimizer, replay_heads):
                monkeypatch.setattr(module, "fused", lambda x, fuses=fuses: fuses)
            agent.reward_factor.fill_(0.5)
            told.append(learn(agent, batch, update))
        close(told[1], told[0])
    one, other = agents
    close(other.critic_optimizer.flat, one.critic_optimizer.flat)
    close(other.actor_optimizer.flat, one.actor_optimizer.flat)
    close(other.targets["critic_weights"], one.targets["critic_weights"])
    for layers, plain in ((other.layers, one.layers), (other.critics.layers, one.critics.layers)):
        close(layers.means, plain.means)
        close(layers.variances, plain.variances)
