"""FlashSAC's critics: two networks that tell a distribution of the return over bins."""

import torch
from torch import Tensor, nn

from ludus.policies.flash_layers import FlashLayers, FlashPass, narrow_product, orthogonal, project_rows


class Critics(nn.Module):
    """States beside actions → how likely the return lies in each of `bins` from −`highest` to `highest`."""

    support: Tensor

    def __init__(self, inputs: int, width: int, blocks: int, bins: int, highest: float) -> None:
        super().__init__()
        self.highest = highest
        self.layers = FlashLayers(2, inputs, width, blocks)
        self.weight = orthogonal(2, bins, width)
        self.bias = nn.Parameter(torch.zeros(2, bins, 1))
        self.register_buffer("support", torch.linspace(-highest, highest, bins)[:, None], persistent=False)
        self.project()

    def forward_pass(
        self, x: Tensor, batch_statistics: bool, asked: slice = slice(None)
    ) -> tuple[FlashPass, Tensor]:
        """Of [inputs, rows]; with the logits of the bins, [2, bins, asked rows]."""
        done = self.layers.forward_pass(x.expand(2, *x.shape), batch_statistics, asked)
        return done, narrow_product(self.weight, done.features, self.weight.dtype, self.bias)

    def values(self, probabilities: Tensor) -> Tensor:
        """[2, rows] the expected return."""
        return (probabilities * self.support).sum(1)

    def backward(self, done: FlashPass, gradient: Tensor) -> None:
        """Write every parameter's gradient, given that of the logits of the asked rows."""
        assert self.weight.grad is not None
        assert self.bias.grad is not None
        torch.bmm(gradient, done.features.transpose(1, 2), out=self.weight.grad)
        torch.sum(gradient, 2, keepdim=True, out=self.bias.grad)
        self.layers.backward(done, torch.bmm(self.weight.transpose(1, 2), gradient))

    def input_gradient(self, done: FlashPass, gradient: Tensor) -> Tensor:
        """[inputs, rows], of both critics together."""
        features = torch.bmm(self.weight.transpose(1, 2), gradient)
        return self.layers.backward(done, features, learns=False).sum(0)

    def moved(self, probabilities: Tensor, reward: Tensor, discount: Tensor) -> Tensor:
        """[bins, rows] the distribution of reward + discount · return, split onto the bins beside each value.

        `reward` and `discount` are [rows]. What would lie outside lies in the first or the last bin.
        """
        last = len(self.support) - 1
        values = torch.addcmul(reward, discount, self.support).clamp_(-self.highest, self.highest)
        place = values.add_(self.highest).mul_(last / (2 * self.highest))
        lower = place.floor()
        # A reward that is no number makes the loss none, which is refused later: the bin is any.
        above, lower = place.sub_(lower).mul_(probabilities), lower.nan_to_num_(0.0).long()
        split = torch.zeros_like(probabilities).scatter_add_(0, lower, probabilities - above)
        return split.scatter_add_(0, lower.add_(1).clamp_(max=last), above)

    @torch.no_grad()
    def project(self) -> None:
        """After an optimiser step."""
        self.layers.project()
        project_rows(self.weight)
