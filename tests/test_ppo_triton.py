"""The fused loss against the formulas of `PPO.step` in double precision.

On a GPU the real kernel runs; elsewhere Triton's interpreter (conftest.py), where Triton is installed.
"""

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from ludus.policies.heads import CategoricalHead

pytest.importorskip("triton", reason="Triton is not installed")
from conftest import ON_GPU
from ludus.algorithms.ppo import loss_triton as ppo_triton

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
# What the interpreter's numpy says of broken numbers.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:All-NaN slice"),
]
CLIP, VALUE_COEF = 0.2, 0.7
SIZES = [(1, 1), (3, 1), (1, 2), (7, 3), (128, 4), (129, 5), (300, 18), (65, 33), (9, 130), (37, 256)] + (
    [(8192, 4), (32768, 18), (5000, 256), (100_003, 9)] if ON_GPU else []
)


class Inputs(NamedTuple):
    """In the order of `fused_loss`."""

    logits: Tensor
    value: Tensor
    action: Tensor
    old_log_prob: Tensor
    advantage: Tensor
    returns: Tensor
    old_value: Tensor
    share: float | Tensor
    entropy_coef: Tensor | None


class Outputs(NamedTuple):
    grad_logits: Tensor
    grad_value: Tensor
    sums: Tensor


def random_inputs(
    n: int, choices: int, shift: float = 0.3, some_absent: bool = False, bonus: bool = True, seed: int = 0
) -> Inputs:
    """As `PPO` passes them: columns of one [n, 6] tensor. `shift` is the spread of the log-ratios."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, choices, generator=g)
    action = torch.randint(choices, (n, 1), generator=g)
    log_prob = logits.log_softmax(-1).gather(1, action)
    # In steps of 0.05, so that none is so near the clip that rounding decides.
    log_ratio = (20 * shift * torch.randn(n, 1, generator=g)).round() / 20
    returns, old_value, value = torch.randn(3, n, 1, generator=g)
    present = (torch.rand(n, 1, generator=g) < 0.7).float()
    advantage = torch.randn(n, 1, generator=g)
    steps = torch.cat([action, log_prob - log_ratio, advantage, returns, old_value, present], 1).to(DEVICE)
    share = steps[:, 5] / steps[:, 5].sum().clamp(min=1.0) if some_absent else 1.0 / n
    entropy_coef = torch.tensor(0.05, device=DEVICE) if bonus else None
    old = (steps[:, 1], steps[:, 2], steps[:, 3], steps[:, 4])
    return Inputs(logits.to(DEVICE), value[:, 0].to(DEVICE), steps[:, :1], *old, share, entropy_coef)


def double(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) else x


def reference(inputs: Inputs, value_clip: float) -> Outputs:
    logits, value, action, old_log_prob, advantage, returns, old_value, share, entropy_coef = map(double, inputs)
    head = CategoricalHead([logits.shape[1]], [0], squeeze=True).to(DEVICE)
    log_prob, saved = head.score(logits, action)
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    surrogate = ratio * advantage
    clipped = ratio.clamp(1 - CLIP, 1 + CLIP) * advantage
    weight = (surrogate <= clipped) * -surrogate * share
    grad_logits = head.seed_gradient(saved, weight, share, entropy_coef)

    grad_value = (value - returns) * 2 * VALUE_COEF * share
    if value_clip > 0:
        moved = value - old_value
        clipped_value = old_value + moved.clamp(-value_clip, value_clip)
        further = (clipped_value - returns).abs() > (value - returns).abs()
        grad_value[(moved.abs() > value_clip) & further] = 0.0

    measures = torch.stack([
        -torch.minimum(surrogate, clipped),
        (value - returns).square(),
        head.entropy(logits),
        ratio - 1 - log_ratio,
        ((ratio - 1).abs() > CLIP).double(),
    ])  # fmt: skip
    return Outputs(grad_logits, grad_value, (measures * share).sum(1))


def fused(inputs: Inputs, value_clip: float = 0.0) -> Outputs:
    grad_logits, grad_value, sums = ppo_triton.fused_loss(*inputs, CLIP, value_clip, VALUE_COEF)
    assert sums is not None
    return Outputs(grad_logits, grad_value, sums)


def assert_matches(inputs: Inputs, value_clip: float) -> None:
    actual, expected = fused(inputs, value_clip), reference(inputs, value_clip)
    scales = (
        expected.grad_logits.abs().amax(1, keepdim=True) + 1 / len(inputs.logits),  # each row by its own
        torch.tensor(1 / len(inputs.logits), device=DEVICE),
        expected.sums.abs() + 1.0,
    )
    for a, e, scale in zip(actual, expected, scales, strict=True):
        assert a.dtype == torch.float32
        assert a.shape == e.shape
        assert torch.isfinite(a).all()
        assert ((a.double() - e).abs() / scale).max().item() < 1e-4


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("some_absent", [False, True])
def test_matches_double_precision(size: tuple[int, int], some_absent: bool) -> None:
    assert_matches(random_inputs(*size, some_absent=some_absent), value_clip=0.4)


@pytest.mark.parametrize("value_clip", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("shift", [0.0, 0.3, 20.0])
def test_every_setting_matches(value_clip: float, bonus: bool, shift: float) -> None:
    for seed in range(3):
        assert_matches(random_inputs(200, 6, shift, some_absent=seed == 2, bonus=bonus, seed=seed), value_clip)


def test_absent_steps_have_no_gradient() -> None:
    inputs = random_inputs(50, 4, some_absent=True)
    out = fused(inputs, 0.4)
    assert isinstance(inputs.share, Tensor)
    absent = inputs.share == 0
    assert absent.any()
    assert not out.grad_logits[absent].any()
    assert not out.grad_value[absent].any()


def test_nobody_present() -> None:
    inputs = random_inputs(5, 4)._replace(share=torch.zeros(5, device=DEVICE))
    assert not any(x.any() for x in fused(inputs))


def assert_same(inputs: Inputs, others: Inputs) -> None:
    """But for rounding: other strides are another compiled kernel, which may add in another order."""
    for a, b in zip(fused(inputs), fused(others), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_logits_may_be_columns_of_a_wider_tensor() -> None:
    inputs = random_inputs(37, 5)
    wider = torch.full((37, 9), torch.nan, device=DEVICE)
    wider[:, 2:7], wider[:, 8] = inputs.logits, inputs.value
    assert_same(inputs, inputs._replace(logits=wider[:, 2:7], value=wider[:, 8]))


def test_columns_may_be_contiguous() -> None:
    inputs = random_inputs(37, 5, some_absent=True)
    columns: Any = (x.contiguous() if isinstance(x, Tensor) else x for x in inputs)
    assert_same(inputs, Inputs(*columns))


def test_unmeasured_gradients_are_the_same() -> None:
    inputs = random_inputs(37, 5)
    grad_logits, grad_value, sums = ppo_triton.fused_loss(*inputs, CLIP, 0.0, VALUE_COEF, measured=False)
    expected = fused(inputs)
    assert sums is None
    torch.testing.assert_close(grad_logits, expected.grad_logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad_value, expected.grad_value, rtol=1e-5, atol=1e-6)


def test_repeats_exactly() -> None:
    inputs = random_inputs(5000 if ON_GPU else 300, 18)
    first = fused(inputs)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(fused(inputs), first, strict=True))


def test_overflowing_ratio_of_a_good_action_is_clipped() -> None:
    inputs = random_inputs(8, 4, bonus=False)
    inputs.advantage.abs_()
    inputs.old_log_prob.fill_(-200.0)
    out = fused(inputs)
    assert not out.grad_logits.any()
    assert out.sums[0].isfinite()
    assert out.sums[3].isinf()


def test_broken_numbers_reach_the_gradient() -> None:
    """Where the optimiser sees them and skips the update."""
    for name, place in (("logits", 0), ("advantage", 0), ("old_log_prob", 0), ("returns", 1), ("value", 1)):
        inputs = random_inputs(8, 4, bonus=False)
        getattr(inputs, name)[3] = torch.nan
        gradient = fused(inputs, 0.4)[place]
        assert gradient[3].isnan().all(), name
        assert gradient[:3].isfinite().all(), name


def test_wrong_tensors_are_refused() -> None:
    inputs = random_inputs(8, 4)
    with pytest.raises(ValueError, match="contiguous rows"):
        fused(inputs._replace(logits=inputs.logits.t().contiguous().t()))
    with pytest.raises(ValueError, match="float32"):
        fused(inputs._replace(action=inputs.action.long()))
    with pytest.raises(ValueError, match="one number a row"):
        fused(inputs._replace(action=inputs.action.expand(-1, 2)))
    with pytest.raises(ValueError, match="256 logits"):
        fused(random_inputs(2, 257))


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("some_absent", [False, True])
def test_can_be_captured(some_absent: bool) -> None:
    inputs, other = (random_inputs(4096, 6, some_absent=some_absent, seed=seed) for seed in (0, 1))
    expected = fused(other, 0.4)
    fused(inputs, 0.4)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = fused(inputs, 0.4)
    # A replay reads what lies there now, the entropy's weight among it.
    for place, new in zip(inputs, other, strict=True):
        if isinstance(place, Tensor) and isinstance(new, Tensor):
            place.copy_(new)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
    assert inputs.entropy_coef is not None
    inputs.entropy_coef.fill_(1.0)
    graph.replay()
    assert not torch.equal(out.grad_logits, expected.grad_logits)
