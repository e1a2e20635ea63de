"""Adam over one flat tensor: one clip and one fused call, whatever the number of layers."""

from collections.abc import Iterable
from math import inf

import torch
from torch import Tensor, nn

from ludus import ranks
from ludus.envs.vec import State
from ludus.policies.mlp import laid_out_as

_PART = 2**13  # numbers that one block of the fused kernel walks through: one block for all would leave a GPU idle
_BESIDE = 8  # numbers that go between ranks together with the gradient; the last is the rank's weight


class FlatAdam:
    """Adam (Kingma & Ba 2015) with a global gradient-norm clip.

    The parameters and their gradients become views of two flat tensors, so that a step costs a handful of calls
    instead of several per layer. A step whose gradient is not finite is skipped on the device, without asking
    the host: weights and moments stay as they were, and the step is counted in `skipped`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        max_grad_norm: float,
        eps: float = 1e-5,
        weight_decay: float = 0.0,
    ) -> None:
        self.parameters = list(parameters)
        self.max_grad_norm, self.eps = max_grad_norm, eps
        self.weight_decay = weight_decay  # apart from the gradient (Loshchilov & Hutter 2019)
        total = sum(p.numel() for p in self.parameters)
        self.flat = torch.zeros(total, device=self.parameters[0].device, dtype=self.parameters[0].dtype)
        # What goes between ranks at once: the gradient, and a few numbers beside it.
        self._shared = torch.zeros(total + _BESIDE, device=self.flat.device, dtype=self.flat.dtype)
        self.grad, self._beside = self._shared[:total], self._shared[total:]
        offset = 0
        for p in self.parameters:
            part = slice(offset, offset + p.numel())
            weights, gradient = (laid_out_as(p, flat[part]) for flat in (self.flat, self.grad))
            p.data, p.grad = weights.copy_(p.detach()), gradient
            offset += p.numel()
        self.exp_avg, self.exp_avg_sq = torch.zeros_like(self.flat), torch.zeros_like(self.flat)
        self.steps = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        size = _PART if self.flat.is_cuda else total
        tensors = (self.flat, self.grad, self.exp_avg, self.exp_avg_sq)
        self._weights, self._grads, self._means, self._squares = (list(tensor.split(size)) for tensor in tensors)
        self.skipped = torch.zeros((), device=self.flat.device)

    def average(self, beside: Tensor | None = None, weight: float | Tensor = 1.0) -> Tensor | None:
        """Before a step: make the gradient the mean over all ranks, each by its `weight`, and so `beside`.

        A weight that is no tensor is that of every rank. A few numbers beside the gradient cost nothing more than
        the gradient alone.
        """
        if ranks.is_alone():
            return beside
        count = 0 if beside is None else len(beside)
        if beside is not None:
            self._beside[:count] = beside
        if isinstance(weight, Tensor):
            self._beside[-1] = 1.0
            self._shared.mul_(weight)
        ranks.add_up(self._shared)
        if isinstance(weight, Tensor):
            self._shared.div_(self._beside[-1].clamp(min=1.0))
        elif ranks.size() > 1:
            self._shared.div_(ranks.size())
        return None if beside is None else self._beside[:count].clone()

    def step(self, learning_rate: float | Tensor, stop: Tensor | None = None) -> Tensor:
        """Apply the gradients, or nothing where `stop` (0 or 1, on the device) is set; returns their norm."""
        norm = torch.linalg.vector_norm(self.grad)
        bad = (norm - norm).ne_(0)  # 1 where the norm is NaN or infinite, else 0
        self.skipped += bad
        hold = (bad if stop is None else torch.maximum(bad, stop)).float()
        self.steps.add_(1).sub_(hold)
        # The fused call divides the gradient by this.
        shorten = None if self.max_grad_norm == inf else (norm / self.max_grad_norm).clamp_(min=1.0).float()
        if isinstance(learning_rate, Tensor) and self.flat.is_cuda:
            learning_rate = learning_rate.float()  # as the kernel wants it, whatever the weights are
        apply = torch._fused_adamw_ if self.weight_decay else torch._fused_adam_
        apply(
            self._weights, self._grads, self._means, self._squares, [], [self.steps] * len(self._weights),
            lr=learning_rate, beta1=0.9, beta2=0.999, weight_decay=self.weight_decay, eps=self.eps,
            amsgrad=False, maximize=False, grad_scale=shorten, found_inf=hold,
        )  # fmt: skip
        return norm

    def state(self) -> State:
        return {
            "exp_avg": self.exp_avg.clone(),
            "exp_avg_sq": self.exp_avg_sq.clone(),
            "steps": self.steps.clone(),
            "skipped": self.skipped.clone(),
        }

    def load_state(self, state: State) -> None:
        for name in ("exp_avg", "exp_avg_sq", "steps", "skipped"):
            getattr(self, name).copy_(state[name])
