"""What a policy's last layer means: each head turns features into parameters, and those into actions.

Here are the heads of policy gradients, whose actions have log-probabilities; those of policies that learn from a
replay are in `replay_heads.py`. `seed_gradient` is the derivative of the loss Σ wᵢ log π(aᵢ) − c · mean entropy
with respect to the parameters, in closed form: a policy-gradient update needs nothing else, and writing it out
costs a fraction of what taping those small operations does. The tests hold it against autograd.
"""

import itertools
import math
from abc import abstractmethod
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus.envs.row_space import ActionRow
from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError
from ludus.policies.mlp import Dense

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
LOG_STD_MIN, LOG_STD_MAX = -5.0, 1.0
MASKED_LOGIT = -1e8
# As tensors: torch would make one of a number at every call.
_LOG2_E = {dtype: torch.tensor(math.log2(math.e), dtype=dtype) for dtype in (torch.float32, torch.float64)}
_MANY_CHOICES, _MANY_NUMBERS = 8, 1_024

Saved = tuple[Any, ...]  # what a head keeps of `score` for `seed_gradient`


class Head(nn.Module):
    """The last layer of the actor and what its outputs mean."""

    action_size: int  # numbers stored per action
    noise_size: int  # random numbers a sample takes
    num_params: int  # outputs of `linear`
    linear: Dense  # which the factory adds: a part of a mixed action has none of its own
    masked_params: slice | None = None  # the logits that a mask of valid actions covers; None: all parameters are
    has_mask = False  # observations say which actions are valid

    def forward(self, features: Tensor) -> Tensor:
        return self.linear.forward(features)

    def expect_masks(self) -> None:
        """Observations will say which actions are valid."""
        self.has_mask = True
        self.register_buffer("masked_logit", torch.tensor(MASKED_LOGIT), persistent=False)

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """The parameters, perhaps changed in place, so that no action is drawn whose place in `mask` is 0, not 1.

        Their logits become so low that probabilities are exactly 0, and so are the gradients; −∞ would make NaN
        of both. Where no action is valid, which only a row without an agent may be, all are alike.
        """
        if mask.dtype != params.dtype:
            mask = mask.to(params.dtype)
        lowest = self._buffers["masked_logit"]  # as an attribute it costs as much as the call that takes it
        assert lowest is not None
        if self.masked_params is None:
            return torch.lerp(lowest, params, mask)  # exact at 0 and 1, in a single call
        logits = params[..., self.masked_params]
        logits.copy_(torch.lerp(lowest, logits, mask))
        return params

    @abstractmethod
    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Randomness for `sample`, drawn ahead for whole rollouts."""

    @abstractmethod
    def sample(self, params: Tensor, noise: Tensor) -> Tensor: ...

    @abstractmethod
    def mode(self, params: Tensor) -> Tensor: ...

    @abstractmethod
    def to_env(self, action: Tensor) -> Tensor:
        """A stored action in the units of the environment."""


class StochasticHead(Head):
    """A distribution over actions, for policy gradients."""

    @abstractmethod
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor: ...

    @abstractmethod
    def entropy(self, params: Tensor) -> Tensor: ...

    @abstractmethod
    def score(self, params: Tensor, action: Tensor) -> tuple[Tensor, Saved]:
        """(log_prob, what `seed_gradient` needs)."""

    @abstractmethod
    def seed_gradient(
        self, saved: Saved, weight: Tensor, share: float | Tensor, entropy_coef: Tensor | None
    ) -> Tensor:
        """d/d params of Σ weight · log_prob − entropy_coef · Σ share · entropy; own `.grad`s are written.

        The shares ([n], or one number for all) add up to 1.
        """

    def bound_gradient(self, params: Tensor, share: float | Tensor, coef: float) -> Tensor | None:
        """d/d params of coef · Σ share · Σ (what of a mean lies outside the action bounds)², if there are any."""
        return None

    def limit_std(self, highest: float) -> None:
        """Keep the spread of continuous actions below `highest`."""

    def spread(self) -> Tensor | None:
        """[numbers] the spread of continuous actions; None: there are none."""
        return None


class BoxHead(Head):
    """Continuous actions, stored in units where [-1, 1] spans the action bounds."""

    low: Tensor
    high: Tensor
    center: Tensor
    half_range: Tensor
    bounded: Tensor

    def __init__(self, space: gym.spaces.Box) -> None:
        super().__init__()
        self.action_size = self.noise_size = int(space.shape[0])
        low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
        bounded = torch.isfinite(low) & torch.isfinite(high)
        # Where there are bounds; not part of what is learned.
        self.register_buffer("bounded", bounded.float(), persistent=False)
        self.register_buffer("low", low.float())
        self.register_buffer("high", high.float())
        self.register_buffer("center", torch.where(bounded, (low + high) / 2, 0.0).float())
        self.register_buffer("half_range", torch.where(bounded, (high - low) / 2, 1.0).float())

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn((*shape, self.noise_size), generator=generator, device=generator.device)

    def to_env(self, action: Tensor) -> Tensor:
        return torch.addcmul(self.center, action, self.half_range).clamp(self.low, self.high)

    def from_env(self, action: Tensor) -> Tensor:
        """The inverse of `to_env`, for actions that others have recorded."""
        return (action.float() - self.center) / torch.where(self.half_range > 0, self.half_range, 1.0)


class GaussianHead(BoxHead, StochasticHead):
    """Independent normal per dimension."""

    def __init__(self, space: gym.spaces.Box, initial_std: float, learn_std: bool = True) -> None:
        super().__init__(space)
        self.learn_std, self.initial_std = learn_std, initial_std
        self.num_params = self.action_size
        self.log_std = nn.Parameter(torch.full((self.action_size,), math.log(initial_std)))

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return torch.addcmul(params, noise, self.log_std.exp())

    def mode(self, params: Tensor) -> Tensor:
        return params

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self.score(params, action)[0]

    def score(self, params: Tensor, action: Tensor) -> tuple[Tensor, Saved]:
        inverse_std = torch.exp(-self.log_std)
        z = (action - params) * inverse_std
        squares = z * z
        constant = -self.action_size * _LOG_SQRT_2PI - self.log_std.sum()
        return torch.sub(constant, squares.sum(-1), alpha=0.5), (z, squares, inverse_std)

    def entropy(self, params: Tensor) -> Tensor:
        return (self.log_std + _LOG_SQRT_2PI + 0.5).sum().expand(params.shape[:-1])

    def seed_gradient(
        self, saved: Saved, weight: Tensor, share: float | Tensor, entropy_coef: Tensor | None
    ) -> Tensor:
        z, squares, inverse_std = saved
        assert self.log_std.grad is not None
        # ∂ log p / ∂ mean = z / σ,  ∂ log p / ∂ log σ = z² − 1
        if self.learn_std:
            torch.mv(squares.sub_(1).t(), weight, out=self.log_std.grad)
            if entropy_coef is not None:
                self.log_std.grad -= entropy_coef
        else:  # the loss adds to this gradient: it must begin at zero
            self.log_std.grad.zero_()
        return (z * weight[:, None]).mul_(inverse_std)

    def bound_gradient(self, params: Tensor, share: float | Tensor, coef: float) -> Tensor:
        outside = params - params.clamp(-1.0, 1.0)
        share = share if isinstance(share, float) else share[:, None]
        return outside.mul_(2 * coef * share).mul_(self.bounded)

    @torch.no_grad()
    def limit_std(self, highest: float) -> None:
        """Keep a learned spread below `highest`, and in a range that neither explodes nor dies.

        One that is not learned is the initial one or `highest`, whichever is less: a run that is prolonged
        explores as its schedule says, not as it did at its first end.
        """
        if self.learn_std:
            self.log_std.clamp_(LOG_STD_MIN, min(LOG_STD_MAX, math.log(highest)))
        else:
            self.log_std.fill_(math.log(min(self.initial_std, highest)))

    def spread(self) -> Tensor:
        return self.log_std.exp()


class CategoricalHead(StochasticHead):
    """One or several independent choices; the stored action holds one index a choice."""

    start: Tensor
    offsets: Tensor

    def __init__(self, choices: list[int], start: list[int], squeeze: bool) -> None:
        super().__init__()
        self.choices = choices
        self.action_size, self.noise_size = len(choices), sum(choices)
        self.num_params = sum(choices)
        self.squeeze = squeeze
        self.register_buffer("start", torch.tensor(start))
        # Where each choice begins when all lie side by side; not part of what is learned.
        begins = list(itertools.accumulate(choices[:-1], initial=0))
        self.register_buffer("offsets", torch.tensor(begins), persistent=False)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        uniform = torch.rand((*shape, self.noise_size), generator=generator, device=generator.device)
        # Gumbel: argmax(logits + noise) samples. In place, because a whole rollout's may be large.
        return uniform.clamp_(1e-20, 1 - 1e-7).log_().neg_().log_().neg_()

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return self.mode(params + noise)

    def mode(self, params: Tensor) -> Tensor:
        if len(self.choices) == 1:
            return params.argmax(-1, keepdim=True).float()
        return torch.stack([p.argmax(-1) for p in params.split(self.choices, -1)], -1).float()

    def _log_probs(self, params: Tensor) -> tuple[Tensor, Tensor | None]:
        """([n, Σ choices] log-probabilities of all choices side by side; their probabilities, if known)."""
        if len(self.choices) == 1:
            return self._log_softmax(params)
        return torch.cat([self._log_softmax(p)[0] for p in params.split(self.choices, -1)], -1), None

    def _log_softmax(self, params: Tensor) -> tuple[Tensor, Tensor | None]:
        """Torch's takes rows one by one on a CPU, which is slow where they are many and short, but not tiny."""
        if not params.is_cpu or params.shape[-1] < _MANY_CHOICES or params.numel() < _MANY_NUMBERS:
            return F.log_softmax(params, -1), None
        z = params - params.amax(-1, keepdim=True)
        p = self._exp(z)
        total = p.sum(-1, keepdim=True)
        if not self.has_mask:
            return z.sub_(total.log_()), None
        return z.sub_(total.log()), p.div_(total)  # dividing costs less than what `_exp` does for masks

    def _exp(self, x: Tensor) -> Tensor:
        """On a CPU torch's is ten times slower where it underflows, as for every masked action; 2 ** x is not."""
        if self.has_mask and x.is_cpu:
            return (x * _LOG2_E[x.dtype]).exp2_()
        return x.exp()

    def _chosen(self, action: Tensor) -> Tensor:
        """[n, choices] positions of the chosen entries in the side-by-side layout."""
        if len(self.choices) == 1:
            return action.long()
        return action.long() + self.offsets

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self.score(params, action)[0]

    def entropy(self, params: Tensor) -> Tensor:
        log_p, p = self._log_probs(params)
        return -((self._exp(log_p) if p is None else p) * log_p).sum(-1)

    def score(self, params: Tensor, action: Tensor) -> tuple[Tensor, Saved]:
        (log_p, p), chosen = self._log_probs(params), self._chosen(action)
        return log_p.gather(-1, chosen).sum(-1), (log_p, p, chosen)

    def seed_gradient(
        self, saved: Saved, weight: Tensor, share: float | Tensor, entropy_coef: Tensor | None
    ) -> Tensor:
        log_p, p, chosen = saved
        p = self._exp(log_p) if p is None else p
        gradient = -weight[:, None] * p  # ∂ log p(a) / ∂ logits = onehot(a) − p
        gradient.scatter_add_(1, chosen, weight[:, None].expand(-1, self.action_size))
        if entropy_coef is not None:  # ∂ H / ∂ logits = −p (log p + H), for each choice apart
            parts = [(a * b).sum(-1, keepdim=True).expand_as(a) for a, b in self._split(p, log_p)]
            minus_entropy = torch.cat(parts, -1)
            scale = entropy_coef * share
            gradient.addcmul_(p * (log_p - minus_entropy), scale if scale.ndim == 0 else scale[:, None])
        return gradient

    def _split(self, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
        return list(zip(*(t.split(self.choices, -1) for t in tensors), strict=True))

    def to_env(self, action: Tensor) -> Tensor:
        choice = action.long() + self.start
        return choice.squeeze(-1) if self.squeeze else choice


class MixedHead(StochasticHead):
    """Continuous numbers and choices in one action, independent of each other given the observation.

    Parameters, noise and stored actions lie side by side, in the order of the parts; all choices come last, so
    that a mask covers one piece of the parameters.
    """

    order: Tensor

    def __init__(self, space: ActionRow, initial_std: float, learn_std: bool) -> None:
        super().__init__()
        boxes: list[tuple[range, Any]] = []
        choices: list[tuple[range, Any]] = []
        edges = itertools.accumulate((part.shape[0] for part in space.flat), initial=0)
        for start, part in zip(edges, space.flat, strict=False):
            places = range(start, start + part.shape[0])
            (choices if isinstance(part, gym.spaces.MultiDiscrete) else boxes).append((places, part))
        heads: list[StochasticHead] = []
        if boxes:
            low, high = (np.concatenate([getattr(part, k) for _, part in boxes]) for k in ("low", "high"))
            heads.append(GaussianHead(gym.spaces.Box(low, high, dtype=np.float32), initial_std, learn_std))
        if choices:
            nvec, start_of = ([int(n) for _, part in choices for n in getattr(part, k)] for k in ("nvec", "start"))
            heads.append(CategoricalHead(nvec, start_of, squeeze=False))
        self.parts = nn.ModuleList(heads)
        self._parts = heads
        self.action_size, self.noise_size, self.num_params = (
            sum(getattr(head, name) for head in heads) for name in ("action_size", "noise_size", "num_params")
        )
        if choices:
            self.masked_params = slice(self.num_params - sum(nvec), self.num_params)
        # Where each number of the stored action belongs in the environment's row; not part of what is learned.
        place = torch.tensor([i for places, _ in (*boxes, *choices) for i in places])
        self.register_buffer("order", place.argsort(), persistent=False)

    def expect_masks(self) -> None:
        super().expect_masks()
        for head in self._parts:
            head.expect_masks()

    def _split(self, values: Tensor, size: str) -> tuple[Tensor, ...]:
        return values.split([getattr(head, size) for head in self._parts], -1)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.cat([head.noise(shape, generator) for head in self._parts], -1)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        pieces = zip(self._parts, self._split(params, "num_params"), self._split(noise, "noise_size"), strict=True)
        return torch.cat([head.sample(some, drawn) for head, some, drawn in pieces], -1)

    def mode(self, params: Tensor) -> Tensor:
        pieces = zip(self._parts, self._split(params, "num_params"), strict=True)
        return torch.cat([head.mode(some) for head, some in pieces], -1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self.score(params, action)[0]

    def entropy(self, params: Tensor) -> Tensor:
        pieces = zip(self._parts, self._split(params, "num_params"), strict=True)
        return torch.stack([head.entropy(some) for head, some in pieces]).sum(0)

    def score(self, params: Tensor, action: Tensor) -> tuple[Tensor, Saved]:
        pieces = zip(
            self._parts, self._split(params, "num_params"), self._split(action, "action_size"), strict=True
        )
        scored = [head.score(some, taken) for head, some, taken in pieces]
        return torch.stack([log_prob for log_prob, _ in scored]).sum(0), tuple(saved for _, saved in scored)

    def seed_gradient(
        self, saved: Saved, weight: Tensor, share: float | Tensor, entropy_coef: Tensor | None
    ) -> Tensor:
        pieces = zip(self._parts, saved, strict=True)
        return torch.cat([head.seed_gradient(kept, weight, share, entropy_coef) for head, kept in pieces], -1)

    def bound_gradient(self, params: Tensor, share: float | Tensor, coef: float) -> Tensor | None:
        pieces = zip(self._parts, self._split(params, "num_params"), strict=True)
        made = [(some, head.bound_gradient(some, share, coef)) for head, some in pieces]
        return torch.cat([torch.zeros_like(some) if grad is None else grad for some, grad in made], -1)

    def limit_std(self, highest: float) -> None:
        for head in self._parts:
            head.limit_std(highest)

    def spread(self) -> Tensor | None:
        return next((spread for head in self._parts if (spread := head.spread()) is not None), None)

    def to_env(self, action: Tensor) -> Tensor:
        pieces = zip(self._parts, self._split(action, "action_size"), strict=True)
        return torch.cat([head.to_env(taken).float() for head, taken in pieces], -1)[..., self.order]


def make_stochastic_head(
    space: ActionSpace, features: int, initial_std: float, learn_std: bool = True
) -> StochasticHead:
    head = _distribution(space, initial_std, learn_std)
    head.linear = Dense(features, head.num_params)
    return head


def _distribution(space: ActionSpace, initial_std: float, learn_std: bool) -> StochasticHead:
    if isinstance(space, ActionRow):
        return MixedHead(space, initial_std, learn_std)
    if isinstance(space, gym.spaces.Box):
        return GaussianHead(space, initial_std, learn_std)
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalHead([int(space.n)], [int(space.start)], squeeze=True)
    if isinstance(space, gym.spaces.MultiDiscrete):
        start = [int(s) for s in space.start] if hasattr(space, "start") else [0] * len(space.nvec)
        return CategoricalHead([int(n) for n in space.nvec], start, squeeze=False)
    raise ConfigError(f"No policy head for the action space {space}; use Box, Discrete or MultiDiscrete.")
