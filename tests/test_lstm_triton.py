"""The LSTM kernels against a plain loop and autograd in double precision.

On a GPU the real kernels run; elsewhere Triton's interpreter runs them, where Triton is installed.
"""

import importlib.util
import os
import sys
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs Triton", allow_module_level=True)
if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton is already imported, too late to choose its interpreter", allow_module_level=True)
    os.environ["TRITON_INTERPRET"] = "1"

lstm = pytest.importorskip("ludus.policies.lstm_triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":  # the interpreter cannot multiply bfloat16; half precision takes the same paths
    lstm._DOT_TYPES["bf16"] = torch.float16
TOLERANCE = {"exact": 1e-4, "tf32": 1e-2 if DEVICE == "cuda" else 1e-4, "bf16": 5e-2}
SIZES = (
    [(5, 37, 64), (3, 16, 128)]
    if DEVICE == "cpu"
    else [(9, 37, 64), (64, 256, 128), (64, 256, 256), (16, 230, 512)]
)


class Segment(NamedTuple):
    x_gates: Tensor
    weight: Tensor
    h0: Tensor
    c0: Tensor
    keep: Tensor
    grad_h: Tensor


def random_segment(steps: int, rows: int, hidden: int, seed: int = 0) -> Segment:
    g = torch.Generator().manual_seed(seed)
    segment = Segment(
        x_gates=torch.randn(steps, rows, 4 * hidden, generator=g),
        weight=torch.randn(4 * hidden, hidden, generator=g) / hidden**0.5,
        h0=torch.randn(rows, hidden, generator=g).tanh(),
        c0=torch.randn(rows, hidden, generator=g),
        keep=(torch.rand(steps, rows, generator=g) < 0.7).float(),
        grad_h=torch.randn(steps, rows, hidden, generator=g),
    )
    return Segment(*(x.to(DEVICE) for x in segment))


def reference(s: Segment) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Activated gates, h, c and the gradient of the gates before activation, all in double precision."""
    x_gates, weight, h, c, keep, grad_h = (x.double() for x in s)
    x_gates.requires_grad_()
    gates, hs, cs = [], [], []
    for t in range(len(x_gates)):
        h, c = h * keep[t, :, None], c * keep[t, :, None]
        i, f, o, g = (x_gates[t] + h @ weight.t()).chunk(4, 1)
        i, f, o, g = i.sigmoid(), f.sigmoid(), o.sigmoid(), g.tanh()
        c = f * c + i * g
        h = o * c.tanh()
        gates.append(torch.cat((i, f, o, g), 1))
        hs.append(h)
        cs.append(c)
    hidden = torch.stack(hs)
    hidden.backward(grad_h)
    return torch.stack(gates).detach(), hidden.detach(), torch.stack(cs).detach(), x_gates.grad


def assert_close(actual: Tensor, expected: Tensor, precision: str) -> None:
    assert torch.isfinite(actual).all()
    scale = expected.abs().max().clamp(min=1.0)
    assert ((actual.double() - expected).abs().max() / scale).item() < TOLERANCE[precision]


# The interpreter runs one program after the other, so there a program must not wait for its neighbour.
ALONE = {"tile": lstm.Tile(rows=16, cols=64, depth=32, warps=4, stages=1)} if DEVICE == "cpu" else {}
PERSISTENT = {"persistent": True, **ALONE}
VARIANTS = {
    "steps-tf32": (lstm.lstm_forward, lstm.lstm_backward, {"dtype": "tf32"}, "tf32"),
    "steps-bf16": (lstm.lstm_forward, lstm.lstm_backward, {"dtype": "bf16"}, "bf16"),
    "persistent-tf32": (lstm.lstm_forward, lstm.lstm_backward, {"dtype": "tf32", **PERSISTENT}, "tf32"),
    "persistent-bf16": (lstm.lstm_forward, lstm.lstm_backward, {"dtype": "bf16", **PERSISTENT}, "bf16"),
    "cublas": (lstm.lstm_forward_cublas, lstm.lstm_backward_cublas, {}, "exact"),
}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_segment_matches_double_precision(variant: str, size: tuple[int, int, int]) -> None:
    forward, backward, options, precision = VARIANTS[variant]
    if "tile" in options and size[2] != 64:
        pytest.skip("several programs would wait for each other")
    s = random_segment(*size)
    gates_true, h_true, c_true, grad_true = reference(s)

    gates, h, c = s.x_gates.clone(), torch.full_like(s.grad_h, torch.nan), torch.full_like(s.grad_h, torch.nan)
    forward(gates, s.weight, s.h0, s.c0, s.keep, h, c, **options)
    assert_close(gates, gates_true, precision)
    assert_close(h, h_true, precision)
    assert_close(c, c_true, precision)

    grad_gates = torch.full_like(gates, torch.nan)
    backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, **options)
    assert_close(grad_gates, grad_true, precision)


@pytest.mark.parametrize("variant", VARIANTS)
def test_reset_hides_the_past_exactly(variant: str) -> None:
    forward, backward, options, _ = VARIANTS[variant]
    s = random_segment(4, 16, 64)
    s.keep[:] = 1.0
    s.keep[2, :8] = 0.0
    outputs = []
    for past in (1.0, -3.0):
        gates, h, c = s.x_gates.clone(), torch.empty_like(s.grad_h), torch.empty_like(s.grad_h)
        gates[:2] *= past
        forward(gates, s.weight, s.h0 * past, s.c0 * past, s.keep, h, c, **options)
        outputs.append((h, c, gates))
    for one, other in zip(*outputs, strict=True):
        assert torch.equal(one[2:, :8], other[2:, :8])
        assert not torch.equal(one[2:, 8:], other[2:, 8:])

    _, c, gates = outputs[0]
    s.grad_h[:2] = 0.0
    grad_gates = torch.empty_like(gates)
    backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, **options)
    assert not grad_gates[:2, :8].any()
    assert grad_gates[:2, 8:].any()


@pytest.mark.parametrize("dtype", ["tf32", "bf16"])
@pytest.mark.parametrize("rows", [19, 128])
def test_step_matches_double_precision(rows: int, dtype: str) -> None:
    s = random_segment(1, rows, 64, seed=1)
    s.keep[:] = 1.0
    _, h_true, c_true, _ = reference(s)
    gates, h, c = s.x_gates[0].clone(), torch.empty_like(s.h0), s.c0.clone()
    lstm.lstm_step(gates, s.weight, s.h0, c, h, c, dtype=dtype)
    assert_close(h, h_true[0], dtype)
    assert_close(c, c_true[0], dtype)
    assert torch.equal(gates, s.x_gates[0])


def test_large_tiles_match_small_ones() -> None:
    s = random_segment(2, 70, 64, seed=2)
    _, h_true, _, grad_true = reference(s)
    gates, h, c = s.x_gates.clone(), torch.empty_like(s.grad_h), torch.empty_like(s.grad_h)
    tile = lstm.Tile(rows=64, cols=32, depth=32, warps=4, stages=2)
    lstm.lstm_forward(gates, s.weight, s.h0, s.c0, s.keep, h, c, tile=tile)
    assert_close(h, h_true, "tf32")
    grad_gates = torch.empty_like(gates)
    lstm.lstm_backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, tile=tile)
    assert_close(grad_gates, grad_true, "tf32")


def test_wrong_tensors_are_refused() -> None:
    s = random_segment(2, 16, 64)
    out = torch.empty_like(s.grad_h)
    with pytest.raises(ValueError, match="contiguous"):
        lstm.lstm_forward(s.x_gates, s.weight, s.h0, s.c0, s.keep.t().contiguous().t(), out, out.clone())
    with pytest.raises(ValueError, match="out_h must not be h"):
        lstm.lstm_step(s.x_gates[0], s.weight, s.h0, s.c0, s.h0, s.c0)
    odd = random_segment(1, 16, 40)
    out = torch.empty_like(odd.grad_h)
    with pytest.raises(ValueError, match="multiple of 64"):
        lstm.lstm_forward(odd.x_gates, odd.weight, odd.h0, odd.c0, odd.keep, out, out.clone())


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
@pytest.mark.parametrize("variant", VARIANTS)
def test_segment_can_be_captured(variant: str) -> None:
    forward, backward, options, _ = VARIANTS[variant]
    s = random_segment(8, 64, 128)
    gates, h, c = s.x_gates.clone(), torch.empty_like(s.grad_h), torch.empty_like(s.grad_h)
    grad_gates = torch.empty_like(gates)

    def segment() -> None:
        gates.copy_(s.x_gates)
        forward(gates, s.weight, s.h0, s.c0, s.keep, h, c, **options)
        backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, **options)

    segment()
    eager = (h.clone(), c.clone(), grad_gates.clone())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        segment()
    for x in (h, c, grad_gates):
        x.fill_(torch.nan)
    graph.replay()
    for x, expected in zip((h, c, grad_gates), eager, strict=True):
        assert torch.equal(x, expected)
