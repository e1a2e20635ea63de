"""Return decomposition: a reward for every step, from one return for every episode.

RRD (Ren et al. 2022) draws K steps of an episode and asks that their mean reward be the episode's return divided
by its length T. The square of that error counts the spread of the drawn mean besides the error of the episode's;
the unbiased form subtracts it. With all T steps it is plain return decomposition (RD). IRCR gives every step of
an episode the episode's return, scaled to 0 … 1, and learns nothing.

The units. A network whose targets are a thousandth learns nothing in useful time, so returns are divided by the
spread of R / T (`return_scale`). Nothing is subtracted from them: a constant on every step would pay for long
episodes or punish them, and so change which policy is best wherever episodes end early. The scale is fitted once,
when training begins, and then stays: an agent's values are in these units, and would be wrong after each change.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ludus import ranks
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.reward.config import RewardConfig
from ludus.envs.vec import State, derive_seed, restore_generator
from ludus.policies.reward import Obs, ObsShapes, RewardModel, RewardModelConfig
from ludus.policies.vision import draw_shifts, shift_images

if TYPE_CHECKING:
    from ludus.buffers.replay import SequenceDraw

_EQUAL = 1e-6  # returns whose spread is a smaller part of their size count as all the same
_LEAST_SPREAD = 0.05  # of the returns' size
TERMS = ("R_loss", "progress_loss", "success_loss")


# Losses, each with its derivative ---------------------------------------------------------------
def rrd_loss(
    prediction: Tensor, weight: Tensor, target: Tensor, correction: Tensor, unbiased: bool
) -> tuple[Tensor, Tensor]:
    """Mean over m of (Σ weight · r̂ − target)², without correction · Var_k r̂ if unbiased; and d/d r̂ [m, k].

    With weights that sum to 1 and `correction` (1 − K/T) / K, or 1 / K with replacement, the subtracted term is
    the variance of the drawn mean, as the drawn steps themselves estimate it.
    """
    m, k = prediction.shape
    error = (prediction * weight).sum(1) - target
    loss = error.square().mean()
    gradient = weight * (error * (2 / m))[:, None]
    if unbiased and k > 1:
        centred = prediction - prediction.mean(1, keepdim=True)
        share = (correction * (1 / (m * (k - 1))))[:, None]
        loss = loss - (centred.square() * share).sum()
        gradient -= centred * share.mul_(2)
    return loss, gradient


def logit_loss(logit: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ weight · cross-entropy of sigmoid(logit) against a target in 0 … 1; and d/d logit. All [m, k]."""
    loss = (F.softplus(logit) - logit * target).mul_(weight).sum()
    return loss, (logit.sigmoid() - target).mul_(weight)


def episode_share(known: Tensor, weight: Tensor) -> Tensor:
    """[m, k] weights of a mean over the steps of the episodes [m] where `known` is true, on all ranks.

    The mean over the ranks of what they come to is that over all of these episodes.
    """
    count = ranks.add_up(known.sum())
    return weight * (known * ranks.size() / count.clamp(min=1))[:, None]


def return_scale(returns: Tensor, lengths: Tensor) -> tuple[float, float]:
    """(spread, mean) of R / T, where an episode counts as often as it has steps, because so often it is drawn.

    A spread that is a small part of their size may be chance: then that part is the scale. If all returns are
    equal their size is; 1 if that is 0 too.
    """
    length = lengths.double()
    each, share = returns.double() / length, length / length.sum()
    mean = float((each * share).sum())
    spread = float(((each - mean).square() * share).sum().sqrt())
    size = float((each.square() * share).sum().sqrt())
    if spread <= _EQUAL * size:
        return size or 1.0, mean
    return max(spread, _LEAST_SPREAD * size), mean


def ircr_reward(episode_return: Tensor, low: Tensor | float, high: Tensor | float) -> Tensor:
    """(R − low) / (high − low), where low and high are the least and greatest return of the stored episodes.

    An episode that is stored in part may lie outside of them.
    """
    span = torch.as_tensor(high - low, device=episode_return.device, dtype=episode_return.dtype)
    share = ((episode_return - low) / span.clamp(min=1e-12)).clamp(0.0, 1.0)
    return torch.where(span > 0, share, torch.zeros_like(episode_return))


# Learning ---------------------------------------------------------------------------------------
def make_reward_model(
    obs: ObsShapes, action_size: int, discrete: bool, config: RewardConfig, seed: int
) -> RewardModel:
    """A new model whose weights `seed` alone determines; the global random stream is left untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        settings = RewardModelConfig(
            hidden=config.hidden,
            encoder=config.encoder,
            image_features=config.image_features,
            progress=config.progress > 0,
            success=config.success > 0,
            seed=seed,
        )
        return RewardModel(obs, action_size, discrete, settings)


class RewardLearner:
    """Gradient steps on a reward model, which must be on its device already.

    Nothing here waits for the device, and without a learned encoder everything stays where it is: a CUDA graph
    can record it. `terms` holds the last losses, named by TERMS.
    """

    def __init__(self, model: RewardModel, config: RewardConfig, seed: int) -> None:
        self.model, self.config = model, config
        self.optimizer = FlatAdam(
            model.parameters(), max_grad_norm=math.inf, eps=1e-8, weight_decay=config.weight_decay
        )
        self.terms = torch.zeros(len(TERMS), device=model.device)
        stream = derive_seed(seed, *ranks.own_stream(8))
        self.generator = torch.Generator(model.device).manual_seed(stream)

    def fit(self, returns: Tensor, lengths: Tensor) -> None:
        """Fit the units to the finished episodes, once, when training begins; the network starts at their mean."""
        if not len(returns):
            raise ValueError("no finished episode to fit the units to")
        scale, mean = return_scale(returns, lengths)
        self.model.start_units(scale if self.config.normalize_returns else 1.0, mean, len(returns))

    @torch.no_grad()
    def learn(
        self, obs: Obs, action: Tensor, next_obs: Obs, draw: "SequenceDraw", learning_rate: float | Tensor
    ) -> Tensor:
        """One gradient step on m × k drawn steps; returns the return's loss."""
        self.write_gradient(obs, action, next_obs, draw)
        self.step(learning_rate)
        return self.terms[0]

    @torch.no_grad()
    def write_gradient(
        self,
        obs: Obs,
        action: Tensor,
        next_obs: Obs,
        draw: "SequenceDraw",
        on_labels: Callable[[], None] = lambda: None,
    ) -> Tensor:
        """Write the gradient of m × k drawn steps without stepping; returns r̂ [n − m·k] of the rows after them.

        `on_labels` is called when these are there, before the gradient is.
        """
        if self.model.learned and self.config.augment:
            obs, next_obs = self._augment(obs, next_obs, draw)
        done = self.model.forward_pass(obs, action, next_obs)
        on_labels()
        n = draw.weight.numel()
        self.model.backward(done, self._losses(done.heads[:n], draw))
        return done.heads[n:, 0]

    @torch.no_grad()
    def joint(
        self,
        obs: Obs,
        action: Tensor,
        next_obs: Obs,
        draw: "SequenceDraw",
        on_labels: Callable[[], None] = lambda: None,
    ) -> tuple[Tensor, Tensor]:
        """Labels and learning in one pass: (r̂ of the transitions, the return's loss). Call `step` after it.

        The first m·k rows are the drawn steps, of which the gradient is written; the others are transitions of
        the agent's batch, labelled by the weights before the step.
        """
        if not self.model.learned:
            return self.write_gradient(obs, action, next_obs, draw, on_labels), self.terms[0]
        # A learned encoder tapes only what has a gradient, and labels see the images as they are.
        n = draw.weight.numel()
        labels = self.label(_part(obs, n, None), action[n:], _part(next_obs, n, None))
        on_labels()
        self.write_gradient(_part(obs, 0, n), action[:n], _part(next_obs, 0, n), draw)
        return labels, self.terms[0]

    def label(self, obs: Obs, action: Tensor, next_obs: Obs) -> Tensor:
        """[n] rewards for an agent, in training units, without a gradient."""
        return self.model.predict(obs, action, next_obs)

    def step(self, learning_rate: float | Tensor) -> Tensor:
        """Apply the gradient, and make `terms` those of all ranks; returns the gradient's norm."""
        terms = self.optimizer.average(self.terms)
        if terms is not None and terms is not self.terms:
            self.terms.copy_(terms)
        return self.optimizer.step(learning_rate)

    def _losses(self, heads: Tensor, draw: "SequenceDraw") -> Tensor:
        """d loss / d heads [m·k, heads]; the losses go to `terms`."""
        m, k = draw.weight.shape
        gradient = torch.empty_like(heads)
        target = self.model.target(draw.episode_return, draw.length)
        unbiased = self.config.method == "rrd-unbiased"
        self.terms[0], gradient[:, 0] = _flat(
            rrd_loss(heads[:, 0].view(m, k), draw.weight, target, draw.correction, unbiased)
        )
        for column, name in enumerate(self.model.names[1:], 1):
            loss, part = _flat(self._head_loss(name, heads[:, column].view(m, k), draw))
            self.terms[TERMS.index(f"{name}_loss")] = loss
            gradient[:, column] = part * getattr(self.config, name)
        return gradient

    @staticmethod
    def _head_loss(name: str, logit: Tensor, draw: "SequenceDraw") -> tuple[Tensor, Tensor]:
        if name == "progress":  # a failed episode has no goal to measure progress by
            return logit_loss(logit, draw.progress, episode_share(draw.success > 0.5, draw.weight))
        target = draw.success.nan_to_num(0.0)[:, None].expand_as(logit)
        return logit_loss(logit, target, episode_share(draw.success == draw.success, draw.weight))

    def _augment(self, obs: Obs, next_obs: Obs, draw: "SequenceDraw") -> tuple[Obs, Obs]:
        """One shift for all steps of a sub-sequence, before and after: s − s' shows what moved, not the shift."""
        m, k = draw.weight.shape
        shifts = draw_shifts(m, self.config.augment, self.generator).repeat_interleave(k, 0)
        first, second = dict(obs), dict(next_obs)
        for name in self.model.cameras:
            shape = self.model.obs[name][0]
            for o in (first, second):
                o[name] = shift_images(o[name].reshape(-1, *shape), shifts, self.config.augment)
        return first, second

    def state(self) -> State:
        """All but the model, whose state_dict is kept beside it."""
        return {"optimizer": self.optimizer.state(), "generator": self.generator.get_state()}

    def load_state(self, state: State) -> None:
        self.optimizer.load_state(state["optimizer"])
        restore_generator(self.generator, state["generator"])


def _flat(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return pair[0], pair[1].reshape(-1)


def _part(obs: Obs, start: int, stop: int | None) -> Obs:
    return {name: value[start:stop] for name, value in obs.items()}
