"""FlashSAC's network, its gradient written out: batch norms, residual blocks and weights of fixed length.

Batch norm → linear → blocks [linear, batch norm, relu, linear, batch norm, relu, + what came in] → RMS norm, as
published with FlashSAC (Holiday-Robot, 2026). Several networks of the same shape lie side by side. Activations are
feature-major, [copies, features, rows]: no product needs a transposed copy, and the batch norms of all copies are
one call. The tests hold the gradient against autograd.
"""

import importlib.util
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus.policies.mlp import through_activation

_MOMENTUM = 0.01  # of the running statistics
_EPS = 1e-5
_RMS_EPS = 1e-6
_PROJECTION_EPS = 1e-8
EXPANSION = 4  # how much wider a block is inside

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_batch_norm = torch.ops.aten.native_batch_norm
_batch_norm_backward = torch.ops.aten.native_batch_norm_backward


class Normed(NamedTuple):
    """What a batch norm was given, and the statistics it used."""

    inputs: Tensor
    running: tuple[Tensor, Tensor]  # mean and variance
    mean: Tensor  # of the batch
    inverse_std: Tensor
    active: Tensor | None  # what a relu after it gave; None: there is none, or it is worked out again


class FlashPass(NamedTuple):
    """A forward pass: what `backward` needs of it."""

    features: Tensor  # [copies, width, asked rows]
    weights: list[Tensor]  # as the products took them
    asked: slice  # rows
    norms: list[Normed]
    inputs: list[Tensor]  # of each linear layer
    residual: Tensor  # before the RMS norm
    inverse_rms: Tensor  # [copies, 1, asked rows]
    batch_statistics: bool


class FoldedLayers:
    """A single network that only acts. For one row it takes a third of the time that `FlashLayers.act` does."""

    def __init__(self, mean: Tensor, layers: list[tuple[Tensor, Tensor]], rms_scale: Tensor) -> None:
        """What is subtracted from the inputs; of each layer what is added, and its weights [inputs, outputs]."""
        self._mean = mean
        self._first, *inside = layers
        self._blocks = list(zip(inside[::2], inside[1::2], strict=True))
        self._rms_scale = rms_scale

    def act(self, x: Tensor) -> Tensor:
        """[rows, inputs] → [rows, width]"""
        bias, weight = self._first
        x = torch.addmm(bias, x - self._mean, weight)
        for (bias, weight), (second_bias, second) in self._blocks:
            inside = torch.addmm(bias, x, weight).relu_()
            x = x + torch.addmm(second_bias, inside, second).relu_()
        return x * (x.square().mean(-1, keepdim=True) + _RMS_EPS).rsqrt() * self._rms_scale


class FlashLayers(nn.Module):
    """`copies` networks up to their heads. Their parameters are to be projected after every optimiser step."""

    means: Tensor
    variances: Tensor
    _places: Tensor
    _owner: Tensor
    _squared_lengths: Tensor

    def __init__(self, copies: int, inputs: int, width: int, blocks: int) -> None:
        super().__init__()
        self.copies, self.inputs, self.features = copies, inputs, width
        sizes = [(width, inputs)] + [(EXPANSION * width, width), (width, EXPANSION * width)] * blocks
        self.weights = nn.ParameterList(orthogonal(copies, outputs, size) for outputs, size in sizes)
        widths = [inputs, *(outputs for outputs, _ in sizes[1:])]  # of the batch norms
        self._batch_sizes = [copies * width for width in widths]
        # Scale and shift of each batch norm, and last the scale of the RMS norm: one tensor, so that projecting
        # all of them takes a few calls.
        self._norm_sizes = [size for size in self._batch_sizes for _ in range(2)] + [copies * width]
        scales = [torch.full((size,), 1.0 - i % 2) for i, size in enumerate(self._norm_sizes)]
        self.norms = nn.Parameter(torch.cat(scales))
        self.register_buffer("means", torch.zeros(sum(self._batch_sizes)))
        self.register_buffer("variances", torch.ones(sum(self._batch_sizes)))
        self._register_places()
        self.project()

    def _register_places(self) -> None:
        rows = self.norm_rows()
        places = [
            torch.cat([torch.arange(width) + piece for piece in pieces if piece >= 0]) for *pieces, width in rows
        ]
        owner = torch.empty_like(self.norms, dtype=torch.int64)
        for number, place in enumerate(places):
            owner[place] = number
        # One row each. A row that is shorter than the longest points behind the end, where a zero is put.
        padded = nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=len(self.norms))
        squared_lengths = torch.tensor([width for *_, width in rows], dtype=self.norms.dtype)
        self.register_buffer("_places", padded, persistent=False)
        self.register_buffer("_owner", owner, persistent=False)
        self.register_buffer("_squared_lengths", squared_lengths, persistent=False)

    # Forward --------------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor, batch_statistics: bool, asked: slice = slice(None)) -> FlashPass:
        """Of [copies, inputs, rows], the features of those asked for. Batch statistics update the running ones.

        Between the first layer and the RMS norm, products and what is kept of them have the run's precision.
        """
        norms: list[Normed] = []
        scales, running = self.split_norms(self.norms), self._running()

        def normed(x: Tensor, relu: bool = True, skip: Tensor | None = None) -> Tensor:
            i = len(norms)
            scale, shift = scales[2 * i : 2 * i + 2]
            out, kept = _normed(x, scale, shift, running[i], batch_statistics, relu, skip)
            norms.append(kept)
            return out

        weights = self._weights_as(product_type(x))
        inputs = [normed(x, relu=False)]
        x = narrow_product(weights[0], inputs[0], weights[1].dtype)
        for first, second in zip(weights[1::2], weights[2::2], strict=True):
            inside = normed(torch.bmm(first, x))
            inputs += [x, inside]
            x = normed(torch.bmm(second, inside), skip=x)
        features, inverse_rms = _rms_normed(x, scales[-1], asked)
        return FlashPass(features, weights, asked, norms, inputs, x, inverse_rms, batch_statistics)

    def _weights_as(self, dtype: torch.dtype) -> list[Tensor]:
        """Those of the blocks as `dtype`. They lie one behind the other, in the flat tensor of an optimiser."""
        first, *blocks = self.weights
        if first.dtype == dtype:
            return list(self.weights)
        sizes = [weight.numel() for weight in blocks]
        behind = blocks[-1].storage_offset() + sizes[-1]
        assert behind - blocks[0].storage_offset() == sum(sizes), "the weights lie apart"
        halves = blocks[0].as_strided((sum(sizes),), (1,)).to(dtype).split(sizes)
        return [first, *(half.view(weight.shape) for half, weight in zip(halves, blocks, strict=True))]

    def act(self, x: Tensor) -> Tensor:
        """[rows, inputs] → [rows, width] of a single network, by the running statistics."""
        scales, running = self.split_norms(self.norms), self._running()

        def normed(i: int, x: Tensor) -> Tensor:
            return F.batch_norm(x, *running[i], scales[2 * i], scales[2 * i + 1], False, _MOMENTUM, _EPS)

        weights = [weight[0] for weight in self.weights]
        x = F.linear(normed(0, x), weights[0])
        for i in range(1, len(weights), 2):
            inside = normed(i, F.linear(x, weights[i])).relu()
            x = x + normed(i + 1, F.linear(inside, weights[i + 1])).relu()
        return x * (x.square().mean(-1, keepdim=True) + _RMS_EPS).rsqrt() * scales[-1]

    def folded(self) -> "FoldedLayers":
        """The same as `act`, for as long as nothing is learned: every batch norm is part of a linear layer."""
        scales, running = self.split_norms(self.norms.detach()), self._running()
        weights = [weight.detach()[0] for weight in self.weights]
        factors = [scales[2 * i] * (variance + _EPS).rsqrt() for i, (_, variance) in enumerate(running)]
        # Inputs may be large beside their spread: their mean is taken off before anything is multiplied.
        biases = [weights[0] @ scales[1]]
        biases += [scales[2 * i + 1] - running[i][0] * factors[i] for i in range(1, len(weights))]
        folded = [
            weights[0] * factors[0],
            *(w * f[:, None] for w, f in zip(weights[1:], factors[1:], strict=True)),
        ]
        layers = zip(biases, (weight.t().contiguous() for weight in folded), strict=True)
        return FoldedLayers(running[0][0], list(layers), scales[-1])

    def _running(self) -> list[tuple[Tensor, Tensor]]:
        """Mean and variance that each batch norm has seen."""
        sizes = self._batch_sizes
        return list(zip(self.means.split(sizes), self.variances.split(sizes), strict=True))

    # Backward -------------------------------------------------------------------------------------
    def backward(self, done: FlashPass, gradient: Tensor, learns: bool = True) -> Tensor:
        """The gradient of the inputs, given that of the features. If it learns, every parameter's is written."""
        back, weights = _Back(self, done, learns), done.weights
        gradient = back.through_rms(gradient)
        for first in range(len(weights) - 2, 0, -2):
            second = first + 1
            inside = back.through_norm(second, gradient, spare=True)  # the skip needs the gradient, too
            below = torch.bmm(weights[second].transpose(1, 2), inside)
            if learns:
                _write_product(self.weights[second], inside, done.inputs[second])
            inside = back.through_norm(first, below)
            if learns:
                _write_product(self.weights[first], inside, done.inputs[first])
            gradient = gradient.baddbmm_(weights[first].transpose(1, 2), inside)
        if learns:
            _write_narrow_product(self.weights[0], gradient, done.inputs[0])
        below = narrow_product(weights[0].transpose(1, 2), gradient, weights[0].dtype)
        gradient = back.through_norm(0, below)
        back.write()
        return gradient

    def numbers_of_a_row(self) -> int:
        """How many numbers a gradient step holds of each row: norms and linear layers keep their inputs."""
        held = 2 * sum(self._batch_sizes) + self.copies * len(self.weights) * self.features
        return held + 2 * self.copies * EXPANSION * self.features

    # Projection -----------------------------------------------------------------------------------
    @torch.no_grad()
    def project(self) -> None:
        """Rows of weights to length 1; scale and shift of a norm, together, to the root of its width."""
        for weight in self.weights:
            project_rows(weight)
        squares = F.pad(self.norms.square(), (0, 1))[self._places].sum(1)
        factors = (self._squared_lengths / squares.add_(_PROJECTION_EPS)).sqrt_()
        self.norms.mul_(factors[self._owner])

    def norm_rows(self) -> list[tuple[int, int, int]]:
        """Where in `norms` lies what is projected together, the numbers of one norm of one network.

        The places of its scale, of its shift or −1, and how many numbers each has.
        """
        rows, start = [], 0
        for i, size in enumerate(self._norm_sizes):
            width, is_last = size // self.copies, i == len(self._norm_sizes) - 1
            if i % 2 == 0:
                firsts = range(start, start + size, width)
                rows += [(first, -1 if is_last else first + size, width) for first in firsts]
            start += size
        return rows

    def split_norms(self, bank: Tensor) -> tuple[Tensor, ...]:
        """Scale and shift of each batch norm, and last the scale of the RMS norm."""
        return bank.split(self._norm_sizes)


class _Back:
    """The way back through the norms, whose gradients are gathered last to first, or written at once."""

    def __init__(self, layers: FlashLayers, done: FlashPass, learns: bool) -> None:
        self._layers, self._done, self._learns = layers, done, learns
        self._scales = layers.split_norms(layers.norms)
        self._gathered: list[Tensor] = []

    def through_rms(self, gradient: Tensor) -> Tensor:
        """Of the asked rows; others have none before a batch norm mixes them."""
        done, scale = self._done, self._scales[-1]
        if fused(gradient):
            from ludus.policies import flash_triton

            first, _, _ = done.asked.indices(done.residual.shape[-1])
            return flash_triton.rms_back(
                gradient.contiguous(), done.residual, scale, done.inverse_rms, first, *self._places(-1, 1)
            )
        unit = done.residual[..., done.asked] * done.inverse_rms
        if self._learns:
            self._gathered.append((gradient * unit).sum(-1).flatten())
        gradient = gradient * scale.view(gradient.shape[0], -1, 1)
        along = (gradient * unit).mean(1, keepdim=True)
        gradient = torch.addcmul(gradient, unit, along, value=-1.0).mul_(done.inverse_rms)
        if gradient.shape == done.residual.shape:
            return gradient
        whole = torch.zeros_like(done.residual)
        whole[..., done.asked] = gradient
        return whole

    def through_norm(self, i: int, gradient: Tensor, spare: bool = False) -> Tensor:
        """And through the relu after it. The gradient is written over, if it is not to be spared."""
        kept, batch = self._done.norms[i], self._done.batch_statistics
        scale, shift = self._scales[2 * i : 2 * i + 2]
        if fused(gradient):
            from ludus.policies import flash_triton

            return flash_triton.norm_back(
                gradient, kept.inputs, scale, shift, kept.mean, kept.inverse_std, batch, i > 0,
                *self._places(2 * i, 2),
            ).view(gradient.shape)  # fmt: skip
        if kept.active is not None:
            if spare:
                gradient = torch.ops.aten.threshold_backward(gradient, kept.active, 0.0)
            else:
                gradient = through_activation("relu", gradient, kept.active)
        of_input, of_scale, of_shift = _batch_norm_backward(
            gradient.reshape(kept.inputs.shape), kept.inputs, scale, *kept.running, kept.mean, kept.inverse_std,
            batch, _EPS, [True, self._learns, self._learns],
        )  # fmt: skip
        if self._learns:
            self._gathered += [of_shift, of_scale]
        return of_input.view(gradient.shape)

    def _places(self, first: int, count: int) -> list[Tensor]:
        """Where the gradients of so many norms' numbers go; empty where nothing learns."""
        bank = self._layers.norms.grad
        if not self._learns or bank is None:
            return []
        return list(self._layers.split_norms(bank)[first:][:count])

    def write(self) -> None:
        bank = self._layers.norms.grad
        if self._learns and self._gathered:
            assert bank is not None
            torch.cat(self._gathered[::-1], out=bank)


# On a GPU, what stands between two products is one kernel -------------------------------------------
def fused(x: Tensor) -> bool:
    """Whether kernels of our own work on it."""
    return _HAS_TRITON and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16)


def product_type(x: Tensor) -> torch.dtype:
    """Of the blocks' products: half as wide where our kernels do the rest and the run's precision allows it."""
    return torch.bfloat16 if fused(x) and torch.get_float32_matmul_precision() == "medium" else x.dtype


def _normed(
    x: Tensor,
    scale: Tensor,
    shift: Tensor,
    running: tuple[Tensor, Tensor],
    batch_statistics: bool,
    relu: bool,
    skip: Tensor | None,
) -> tuple[Tensor, Normed]:
    """Batch norm of [copies, features, rows], then perhaps a relu, then plus `skip`."""
    if fused(x):
        from ludus.policies import flash_triton

        given = (x[0] if x.stride(0) == 0 else x).contiguous()  # networks may all see the same
        out, mean, inverse_std = flash_triton.norm(
            given, scale, shift, *running, batch_statistics, _MOMENTUM, _EPS, relu, skip
        )
        return out.view(x.shape), Normed(given, running, mean, inverse_std, None)
    channels = x.reshape(1, -1, x.shape[-1])
    out, mean, inverse_std = _batch_normed(channels, scale, shift, *running, batch_statistics)
    out = out.view(x.shape)
    kept = Normed(channels, running, mean, inverse_std, out.relu_() if relu else None)
    return (out if skip is None else skip + out), kept


def _batch_normed(
    x: Tensor, scale: Tensor, shift: Tensor, running_mean: Tensor, running_variance: Tensor, batch_statistics: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """A batch norm of [1, channels, rows]: (output, mean, inverse standard deviation)."""
    if x.is_cuda or not batch_statistics:
        done: tuple[Tensor, Tensor, Tensor] = _batch_norm(
            x, scale, shift, running_mean, running_variance, batch_statistics, _MOMENTUM, _EPS
        )
        return done
    # On a CPU torch's own kernel gathers the statistics of this layout number by number, which is slow.
    rows = x.shape[-1]
    mean = x.mean(-1, keepdim=True)
    out = x - mean
    variance = torch.linalg.vector_norm(out, dim=-1, keepdim=True).square_().div_(rows)
    running_mean.lerp_(mean.view(-1), _MOMENTUM)
    running_variance.lerp_(variance.view(-1) * (rows / (rows - 1)), _MOMENTUM)
    inverse_std = variance.add_(_EPS).rsqrt_()
    out.mul_(inverse_std * scale.view(1, -1, 1)).add_(shift.view(1, -1, 1))
    return out, mean.view(-1), inverse_std.view(-1)


def _rms_normed(x: Tensor, scale: Tensor, asked: slice) -> tuple[Tensor, Tensor]:
    """(RMS norm over the features of the asked rows, 1 / RMS)."""
    if fused(x):
        from ludus.policies import flash_triton

        first, end, _ = asked.indices(x.shape[-1])
        return flash_triton.rms(x, scale, first, end - first, _RMS_EPS)
    x = x[..., asked]
    inverse_rms = x.square().mean(1, keepdim=True).add_(_RMS_EPS).rsqrt_()
    return (x * inverse_rms).mul_(scale.view(x.shape[0], -1, 1)), inverse_rms


def narrow_product(weight: Tensor, x: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """[copies, outputs, inputs] · [copies, inputs, rows] + bias as `dtype`, by a matrix that is narrow or low."""
    if fused(x):
        from ludus.policies import flash_triton

        return flash_triton.product(weight, x, dtype, bias)
    return torch.bmm(weight, x) if bias is None else torch.baddbmm(bias, weight, x)


def _write_narrow_product(weight: Tensor, gradient: Tensor, inputs: Tensor) -> None:
    if not fused(gradient):
        _write_product(weight, gradient, inputs)
        return
    from ludus.policies import flash_triton

    assert weight.grad is not None
    flash_triton.write_weight_gradient(gradient, inputs, weight.grad)


def _write_product(weight: Tensor, gradient: Tensor, inputs: Tensor) -> None:
    if gradient.dtype == weight.dtype:
        torch.bmm(gradient, inputs.transpose(1, 2), out=weight.grad)
    else:
        torch.bmm(gradient, inputs.transpose(1, 2), out_dtype=weight.dtype, out=weight.grad)


def orthogonal(copies: int, outputs: int, inputs: int) -> nn.Parameter:
    weight = torch.empty(copies, outputs, inputs)
    for part in weight:
        nn.init.orthogonal_(part)
    return nn.Parameter(weight)


def project_rows(weight: Tensor) -> None:
    weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True))
