"""FlashSAC's network, its gradient written out: batch norms, residual blocks and weights of fixed length.

Batch norm → linear → blocks [linear, batch norm, relu, linear, batch norm, relu, + what came in] → RMS norm, as
published with FlashSAC (Holiday-Robot, 2026). Several networks of the same shape lie side by side. Activations are
feature-major, [copies, features, rows]: no product needs a transposed copy, and the batch norms of all copies are
one call. The tests hold the gradient against autograd.
"""

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

_batch_norm = torch.ops.aten.native_batch_norm
_batch_norm_backward = torch.ops.aten.native_batch_norm_backward


class Normed(NamedTuple):
    """What a batch norm was given, and the statistics it used."""

    inputs: Tensor
    running: tuple[Tensor, Tensor]  # mean and variance
    mean: Tensor  # of the batch
    inverse_std: Tensor


class FlashPass(NamedTuple):
    """A forward pass: what `backward` needs of it."""

    features: Tensor  # [copies, width, asked rows]
    asked: slice  # rows
    norms: list[Normed]
    inputs: list[Tensor]  # of each linear layer; those inside a block after its first are outputs of a relu
    branches: list[Tensor]  # what each block added
    residual: Tensor  # before the RMS norm, of the asked rows
    inverse_rms: Tensor  # [copies, 1, asked rows]
    batch_statistics: bool


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
        self._register_places(widths)
        self.project()

    def _register_places(self, widths: list[int]) -> None:
        """Where in `norms` lies what is projected together: the numbers of one norm of one network."""
        places: list[Tensor] = []
        lengths: list[int] = []
        owner = torch.empty(sum(self._norm_sizes), dtype=torch.int64)
        start = 0
        for width, parts in [*((width, 2) for width in widths), (self.features, 1)]:
            numbers = torch.arange(parts * self.copies * width).view(parts, self.copies, width) + start
            for copy in range(self.copies):
                places.append(numbers[:, copy].flatten())
                owner[places[-1]] = len(lengths)
                lengths.append(width)
            start += numbers.numel()
        # One row each. A row that is shorter than the longest points behind the end, where a zero is put.
        padded = nn.utils.rnn.pad_sequence(places, batch_first=True, padding_value=start)
        self.register_buffer("_places", padded, persistent=False)
        self.register_buffer("_owner", owner, persistent=False)
        self.register_buffer("_squared_lengths", torch.tensor(lengths, dtype=self.norms.dtype), persistent=False)

    # Forward --------------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor, batch_statistics: bool, asked: slice = slice(None)) -> FlashPass:
        """Of [copies, inputs, rows], the features of those asked for. Batch statistics update the running ones."""
        norms: list[Normed] = []
        scales, running = self.split_norms(self.norms), self._running()

        def normed(x: Tensor) -> Tensor:
            i, channels = len(norms), x.reshape(1, -1, x.shape[-1])
            out, *used = _batch_norm(
                channels, scales[2 * i], scales[2 * i + 1], *running[i], batch_statistics, _MOMENTUM, _EPS
            )
            norms.append(Normed(channels, running[i], *used))
            return out.view(x.shape)

        inputs, branches, weights = [normed(x)], [], list(self.weights)
        x = torch.bmm(weights[0], inputs[0])
        for first, second in zip(weights[1::2], weights[2::2], strict=True):
            inside = normed(torch.bmm(first, x)).relu_()
            branch = normed(torch.bmm(second, inside)).relu_()
            inputs += [x, inside]
            branches.append(branch)
            x = x + branch
        x = x[..., asked]
        inverse_rms = x.square().mean(1, keepdim=True).add_(_RMS_EPS).rsqrt_()
        features = (x * inverse_rms).mul_(scales[-1].view(self.copies, -1, 1))
        return FlashPass(features, asked, norms, inputs, branches, x, inverse_rms, batch_statistics)

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

    def _running(self) -> list[tuple[Tensor, Tensor]]:
        """Mean and variance that each batch norm has seen."""
        sizes = self._batch_sizes
        return list(zip(self.means.split(sizes), self.variances.split(sizes), strict=True))

    # Backward -------------------------------------------------------------------------------------
    def backward(self, done: FlashPass, gradient: Tensor, learns: bool = True) -> Tensor:
        """The gradient of the inputs, given that of the features. If it learns, every parameter's is written."""
        back, weights = _Back(self, done), list(self.weights)
        gradient = back.through_rms(gradient)
        for block in range(len(done.branches) - 1, -1, -1):
            first, second = 2 * block + 1, 2 * block + 2
            # Not in place: the skip needs the gradient, too.
            branch = torch.ops.aten.threshold_backward(gradient, done.branches[block], 0.0)
            inside = back.through_norm(second, branch)
            below = torch.bmm(weights[second].transpose(1, 2), inside)
            if learns:
                _write_product(weights[second], inside, done.inputs[second])
            inside = back.through_norm(first, through_activation("relu", below, done.inputs[second]))
            if learns:
                _write_product(weights[first], inside, done.inputs[first])
            gradient = torch.baddbmm(gradient, weights[first].transpose(1, 2), inside)
        if learns:
            _write_product(weights[0], gradient, done.inputs[0])
        gradient = back.through_norm(0, torch.bmm(weights[0].transpose(1, 2), gradient))
        if learns:
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

    def split_norms(self, bank: Tensor) -> tuple[Tensor, ...]:
        """Scale and shift of each batch norm, and last the scale of the RMS norm."""
        return bank.split(self._norm_sizes)


class _Back:
    """The way back through the norms, whose gradients are gathered last to first."""

    def __init__(self, layers: FlashLayers, done: FlashPass) -> None:
        self._layers, self._done = layers, done
        self._scales = layers.split_norms(layers.norms)
        self._gathered: list[Tensor] = []

    def through_rms(self, gradient: Tensor) -> Tensor:
        """Of the asked rows; others have none before a batch norm mixes them."""
        done = self._done
        unit = done.residual * done.inverse_rms
        self._gathered.append((gradient * unit).sum(-1).flatten())
        gradient = gradient * self._scales[-1].view(gradient.shape[0], -1, 1)
        along = (gradient * unit).mean(1, keepdim=True)
        gradient = torch.addcmul(gradient, unit, along, value=-1.0).mul_(done.inverse_rms)
        rows = done.inputs[0].shape[-1]
        if gradient.shape[-1] == rows:
            return gradient
        whole = gradient.new_zeros((*gradient.shape[:-1], rows))
        whole[..., done.asked] = gradient
        return whole

    def through_norm(self, i: int, gradient: Tensor) -> Tensor:
        inputs, running, mean, inverse_std = self._done.norms[i]
        of_input, of_scale, of_shift = _batch_norm_backward(
            gradient.reshape(inputs.shape), inputs, self._scales[2 * i], *running, mean, inverse_std,
            self._done.batch_statistics, _EPS, [True, True, True],
        )  # fmt: skip
        self._gathered += [of_shift, of_scale]
        return of_input.view(gradient.shape)

    def write(self) -> None:
        assert self._layers.norms.grad is not None
        torch.cat(self._gathered[::-1], out=self._layers.norms.grad)


def _write_product(weight: Tensor, gradient: Tensor, inputs: Tensor) -> None:
    torch.bmm(gradient, inputs.transpose(1, 2), out=weight.grad)


def orthogonal(copies: int, outputs: int, inputs: int) -> nn.Parameter:
    weight = torch.empty(copies, outputs, inputs)
    for part in weight:
        nn.init.orthogonal_(part)
    return nn.Parameter(weight)


def project_rows(weight: Tensor) -> None:
    weight.div_(torch.linalg.vector_norm(weight, dim=-1, keepdim=True))
