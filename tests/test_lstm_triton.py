"""The LSTM kernels against a plain loop and autograd in double precision.

On a GPU the real kernels run; elsewhere Triton's interpreter (conftest.py), where Triton is installed.
"""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")
from conftest import ON_GPU
from ludus.policies import lstm_triton as lstm

pytestmark = pytest.mark.gpu

DEVICE = torch.device("cuda" if ON_GPU else "cpu")
TOLERANCE = {"float32": 1e-4, "tf32": 1e-2 if ON_GPU else 1e-4, "bf16": 5e-2}
ODD_SIZES = [(4, 7, 5), (3, 1, 96), (2, 3, 1)]
SIZES = ODD_SIZES + (
    [(9, 37, 64), (1, 16, 64), (5, 1, 128), (64, 256, 128), (64, 256, 256), (16, 230, 512), (3, 5000, 128)]
    if ON_GPU
    else [(5, 37, 64), (1, 16, 64), (2, 19, 128)]
)
every_precision = pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
real_segment_tile = lstm.segment_tile


def lone_program(
    rows: int, hidden: int, precision: lstm.Precision, device: torch.device, inputs: int
) -> lstm.Tile | None:
    """The interpreter runs one program after the other, so there none may wait for its neighbour."""
    return lstm.Tile(rows=16, cols=64, depth=32) if hidden == 64 and precision != "float32" else None


@pytest.fixture(autouse=True)
def _suit_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    if not ON_GPU:
        monkeypatch.setattr(lstm, "segment_tile", lone_program)
        # It cannot multiply bfloat16; half precision takes the same paths.
        monkeypatch.setitem(lstm.DOT_TYPES, "bf16", torch.float16)


class Segment(NamedTuple):
    x_gates: Tensor
    weight: Tensor
    h0: Tensor
    c0: Tensor
    keep: Tensor
    grad_h: Tensor


def random_segment(steps: int, rows: int, hidden: int, seed: int = 0) -> Segment:
    """h0 and c0 are columns of one tensor."""
    g = torch.Generator().manual_seed(seed)
    h0, c0 = torch.randn(rows, 2 * hidden, generator=g).to(DEVICE).split(hidden, dim=1)
    return Segment(
        x_gates=torch.randn(steps, rows, 4 * hidden, generator=g).to(DEVICE),
        weight=(torch.randn(4 * hidden, hidden, generator=g) / hidden**0.5).to(DEVICE),
        h0=h0,
        c0=c0,
        keep=(torch.rand(steps, rows, generator=g) < 0.7).float().to(DEVICE),
        grad_h=torch.randn(steps, rows, hidden, generator=g).to(DEVICE),
    )


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
    assert x_gates.grad is not None
    return torch.stack(gates).detach(), hidden.detach(), torch.stack(cs).detach(), x_gates.grad


def assert_close(actual: Tensor, expected: Tensor, precision: lstm.Precision) -> None:
    assert torch.isfinite(actual).all()
    scale = expected.abs().max().clamp(min=1.0)
    assert ((actual.double() - expected).abs().max() / scale).item() < TOLERANCE[precision]


@pytest.mark.parametrize("size", SIZES, ids=str)
@every_precision
def test_segment_matches_double_precision(precision: lstm.Precision, size: tuple[int, int, int]) -> None:
    s = random_segment(*size)
    gates_true, h_true, c_true, grad_true = reference(s)

    gates, h, c = s.x_gates.clone(), torch.full_like(s.grad_h, torch.nan), torch.full_like(s.grad_h, torch.nan)
    lstm.lstm_forward(gates, s.weight, s.h0, s.c0, s.keep, h, c, precision)
    assert_close(gates, gates_true, precision)
    assert_close(h, h_true, precision)
    assert_close(c, c_true, precision)

    grad_gates = torch.full_like(gates, torch.nan)
    lstm.lstm_backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, precision)
    assert_close(grad_gates, grad_true, precision)


@pytest.mark.parametrize("hidden", [64, 40])
@every_precision
def test_reset_hides_the_past_exactly(precision: lstm.Precision, hidden: int) -> None:
    s = random_segment(4, 16, hidden)
    s.keep[:] = 1.0
    s.keep[2, :8] = 0.0
    outputs = []
    for past in (1.0, -3.0):
        gates, h, c = s.x_gates.clone(), torch.empty_like(s.grad_h), torch.empty_like(s.grad_h)
        gates[:2] *= past
        lstm.lstm_forward(gates, s.weight, s.h0 * past, s.c0 * past, s.keep, h, c, precision)
        outputs.append((h, c, gates))
    for one, other in zip(*outputs, strict=True):
        assert torch.equal(one[2:, :8], other[2:, :8])
        assert not torch.equal(one[2:, 8:], other[2:, 8:])

    _, c, gates = outputs[0]
    s.grad_h[:2] = 0.0
    grad_gates = torch.empty_like(gates)
    lstm.lstm_backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, precision)
    assert not grad_gates[:2, :8].any()
    assert grad_gates[:2, 8:].any()


@pytest.mark.parametrize(("rows", "hidden"), [(19, 64), (130, 128), (1, 64), (33, 40), (3, 1)])
@every_precision
def test_step_matches_double_precision(precision: lstm.Precision, rows: int, hidden: int) -> None:
    """The states are columns of wider tensors, whose other columns stay as they are."""
    s = random_segment(1, rows, hidden, seed=1)
    s.keep[:] = 1.0
    _, h_true, c_true, _ = reference(s)
    new = torch.full((rows, 3 * hidden), torch.nan, device=DEVICE)
    h, untouched, c = new.split(hidden, dim=1)
    lstm.lstm_step(s.x_gates[0].clone(), s.weight, s.h0, s.c0, h, c, precision)
    assert_close(h, h_true[0], precision)
    assert_close(c, c_true[0], precision)
    assert untouched.isnan().all()

    old_c, new_h = s.c0.clone(), torch.full_like(h_true[0], torch.nan, dtype=torch.float32)
    lstm.lstm_step(s.x_gates[0].clone(), s.weight, s.h0, old_c, new_h, old_c, precision)
    assert_close(new_h, h_true[0], precision)
    assert_close(old_c, c_true[0], precision)


@pytest.mark.parametrize("hidden", [64, 40])
def test_step_takes_a_weight_already_short(hidden: int) -> None:
    s = random_segment(1, 16, hidden)
    expected, actual = torch.empty_like(s.grad_h[0]), torch.empty_like(s.grad_h[0])
    short = s.weight.to(lstm.DOT_TYPES["bf16"])
    c = torch.empty_like(actual)
    lstm.lstm_step(s.x_gates[0].clone(), short.float(), s.h0, s.c0, expected, c, "bf16")
    lstm.lstm_step(s.x_gates[0].clone(), short, s.h0, s.c0, actual, c, "bf16")
    assert torch.equal(actual, expected)


def test_wrong_tensors_are_refused() -> None:
    s = random_segment(2, 16, 64)
    out, c = torch.empty_like(s.grad_h), torch.empty_like(s.grad_h)
    with pytest.raises(ValueError, match="contiguous"):
        lstm.lstm_forward(s.x_gates, s.weight, s.h0, s.c0, s.keep.t().contiguous().t(), out, c, "tf32")
    with pytest.raises(ValueError, match="contiguous"):
        lstm.lstm_step(s.x_gates[0], s.weight, s.h0.t().contiguous().t(), s.c0, out[0], c[0], "tf32")
    with pytest.raises(ValueError, match="out_h must not be h"):
        lstm.lstm_step(s.x_gates[0], s.weight, s.h0, s.c0, s.h0, s.c0, "tf32")


class Gpu(NamedTuple):
    capability: tuple[int, int]
    processors: int
    shared_kib: int


H200, CONSUMER, OLD = Gpu((9, 0), 132, 228), Gpu((8, 9), 128, 100), Gpu((7, 5), 40, 64)


@pytest.mark.parametrize(
    ("gpu", "rows", "hidden", "precision", "expected"),
    [
        (H200, 256, 128, "tf32", True),
        (H200, 256, 256, "tf32", True),
        (H200, 256, 512, "tf32", True),
        (H200, 256, 512, "bf16", True),
        (H200, 256, 128, "float32", False),
        (H200, 256, 100, "tf32", False),
        (H200, 5000, 128, "tf32", False),
        (H200, 16, 4096, "bf16", False),
        (CONSUMER, 256, 128, "tf32", True),
        (CONSUMER, 256, 512, "tf32", False),
        (OLD, 16, 64, "tf32", False),
    ],
)
def test_fits(
    monkeypatch: pytest.MonkeyPatch, gpu: Gpu, rows: int, hidden: int, precision: lstm.Precision, expected: bool
) -> None:
    properties = SimpleNamespace(
        multi_processor_count=gpu.processors, shared_memory_per_multiprocessor=gpu.shared_kib * 1024
    )
    monkeypatch.setattr(lstm, "segment_tile", real_segment_tile)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: gpu.capability)
    assert lstm.fits(rows, hidden, precision, torch.device("cuda")) is expected


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize("hidden", [128, 40])
@every_precision
def test_all_can_be_captured(precision: lstm.Precision, hidden: int) -> None:
    s = random_segment(8, 64, hidden)
    gates, h, c = s.x_gates.clone(), torch.empty_like(s.grad_h), torch.empty_like(s.grad_h)
    grad_gates, new_h, new_c = torch.empty_like(gates), torch.empty_like(h[0]), torch.empty_like(c[0])

    def work() -> None:
        gates.copy_(s.x_gates)
        lstm.lstm_step(gates[0].clone(), s.weight, s.h0, s.c0, new_h, new_c, precision)
        lstm.lstm_forward(gates, s.weight, s.h0, s.c0, s.keep, h, c, precision)
        lstm.lstm_backward(s.grad_h, gates, c, s.c0, s.keep, s.weight, grad_gates, precision)

    work()
    outputs = (h, c, grad_gates, new_h, new_c)
    eager = [x.clone() for x in outputs]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for x in outputs:
        x.fill_(torch.nan)
    graph.replay()
    for x, expected in zip(outputs, eager, strict=True):
        assert torch.equal(x, expected)
