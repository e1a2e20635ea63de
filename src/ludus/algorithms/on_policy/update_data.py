"""What an update works on: the segments of a rollout, gathered once, with advantages and value targets."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.on_policy.advantage import generalized_advantage, next_values
from ludus.algorithms.return_scale import ReturnScale
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments, Track
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.reader import Apart

_PART = 2**16  # steps that are gathered at a time
_LOG_PROB, _ADVANTAGE, _RETURN, _VALUE, _PRESENT = range(5)  # columns of `steps`, after the action's


class UpdateData:
    """Tensors allocated once, which stay in place. Steps are numbered step of the segment · segments + segment."""

    places: Tensor
    following: Tensor
    state: Tensor
    keep: Tensor
    reward: Tensor
    done: Tensor
    final_value: Tensor
    value: Tensor
    log_prob: Tensor
    last_value: Tensor
    priority: Tensor
    steps: Tensor
    x: Tensor
    mask: Tensor

    def __init__(self, policy: ActorCritic, schedule: SegmentSchedule) -> None:
        self.policy = policy
        self.track: Track | None = None
        self.all_present = True
        for name, (shape, dtype) in update_shapes(policy, schedule).items():
            setattr(self, name, torch.zeros(shape, dtype=dtype, device=policy.device))
        self.keep.fill_(1.0)
        self._first_steps = torch.arange(0, len(self.steps), schedule.segments, device=policy.device)[:, None]

    def load(self, segments: Segments) -> None:
        """Where the segments of this update are."""
        self.track, self.all_present = segments.track, segments.all_present
        self.places.copy_(segments.places)
        self.following.copy_(segments.following)
        self.state.copy_(segments.state)

    def gather(self, scale: ReturnScale | None) -> None:
        """Collect what was recorded; `scale`, where given, learns from it and scales the rewards."""
        assert self.track is not None
        recorded = Segments(self.track, self.places, self.following, self.state, self.all_present, judged=True)
        reward, present, done = recorded.reward, recorded.present, recorded.done
        if scale is not None:
            scale.update(recorded.discounted, None if self.all_present else present)
            reward = scale.scale(reward)
        self.reward.copy_(reward)
        self.done.copy_(done)
        self.final_value.copy_(recorded.final_value)
        self.value.copy_(recorded.value)
        self.log_prob.copy_(recorded.log_prob)
        self.last_value.copy_(self.track.value.index_select(0, self.following))
        self.keep[1:] = (present & ~done)[:-1]
        self.steps[:, : self.policy.head.action_size] = recorded.action.flatten(0, 1)
        for column, values in ((_LOG_PROB, self.log_prob), (_VALUE, self.value), (_PRESENT, present)):
            self._number(column).copy_(values)
        if self.policy.keeps_inputs:
            self._prepare()

    def _prepare(self) -> None:
        parts = zip(self.x.split(_PART), self.mask.split(_PART), self.observations(), strict=True)
        for x, mask, obs in parts:
            seen, valid = self.policy.apart(self.policy.prepare(obs))
            x.copy_(seen)
            if valid is not None:
                mask.copy_(valid)

    def record_judgement(self) -> None:
        """The policy that acted is the present one: what it thinks now, it thought then."""
        self._number(_LOG_PROB).copy_(self.log_prob)
        self._number(_VALUE).copy_(self.value)

    def estimate(self, gamma: float, gae_lambda: float, rho_clip: float, c_clip: float, normalize: bool) -> None:
        """Advantages and value targets from the present values, and the priorities that follow."""
        present = self._number(_PRESENT)
        ratio = (self.log_prob - self._number(_LOG_PROB)).exp() if rho_clip > 0 else None
        following = next_values(self.value, self.last_value, self.done, self.final_value)
        advantage = generalized_advantage(
            self.reward, self.value, following, self.done, gamma, gae_lambda, ratio, rho_clip, c_clip
        )
        self._number(_RETURN).copy_(advantage + self.value)
        self.priority.copy_((advantage.abs() * present).sum(0))
        if normalize:  # over the whole iteration: steadier than over each minibatch, and done once
            advantage = _standardized(advantage, None if self.all_present else present)
        self._number(_ADVANTAGE).copy_(advantage)

    def _number(self, column: int) -> Tensor:
        """[horizon, segments] of one of the five numbers."""
        return self.steps[:, self.policy.head.action_size + column].view_as(self.reward)

    def explained_variance(self) -> Tensor:
        returns, value = self._number(_RETURN), self._number(_VALUE)
        present = None if self.all_present else self._number(_PRESENT)
        return 1 - _moments(returns - value, present)[1] / (_moments(returns, present)[1] + 1e-12)

    def observations(self) -> Iterator[Tensor]:
        """[n, *obs] as they were seen, in parts: a copy of all of them would be as large as the record."""
        assert self.track is not None
        for places in self.places.flatten().split(_PART):
            yield self.track.obs.index_select(0, places)

    def observations_of_agents(self) -> Iterator[Tensor]:
        """The same, where an agent was present to see them."""
        present = self._number(_PRESENT).flatten().bool().split(_PART)
        for obs, seen in zip(self.observations(), present, strict=True):
            yield obs if self.all_present else obs[seen]

    # Parts of it ----------------------------------------------------------------------------------
    def steps_of(self, segments: Tensor) -> Tensor:
        """The steps of whole segments, time first."""
        return (self._first_steps + segments).flatten()

    def inputs(self, steps: Tensor) -> Tensor | Apart:
        """[n, obs] prepared observations."""
        if self.policy.keeps_inputs:
            x = self.x.index_select(0, steps)
            return x if self.policy.mask is None else Apart(x, self.mask.index_select(0, steps))
        assert self.track is not None
        places = self.places.view(-1).index_select(0, steps)
        if self.policy.mask is None or self.policy.has_images:
            return self.policy.prepare(self.track.obs.index_select(0, places))
        seen, mask = self.policy.apart(self.track.obs)  # as prepared: what is standardised is kept
        assert mask is not None
        return Apart(seen.index_select(0, places), mask.index_select(0, places))

    def following_inputs(self, segments: Tensor | None = None) -> Tensor:
        """What was seen after the segments, or after all of them."""
        assert self.track is not None
        at = self.following if segments is None else self.following.index_select(0, segments)
        return self.policy.prepare(self.track.obs.index_select(0, at))


def update_shapes(
    policy: ActorCritic, schedule: SegmentSchedule
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of every tensor: what an update allocates, and what a plan counts."""
    shape, segments = (schedule.horizon, schedule.segments), (schedule.segments,)
    steps = schedule.horizon * schedule.segments
    size, masked = policy.widths if policy.keeps_inputs else (0, 0)
    return {
        "places": (shape, torch.int64),
        "following": (segments, torch.int64),
        "state": ((schedule.segments, policy.state_size), torch.float32),
        "keep": (shape, torch.float32),
        "reward": (shape, torch.float32),
        "done": (shape, torch.bool),
        "final_value": (shape, torch.float32),
        # By the newest policy: value and log-probability of each step, and the bootstrap value of the last.
        "value": (shape, torch.float32),
        "log_prob": (shape, torch.float32),
        "last_value": (segments, torch.float32),
        "priority": (segments, torch.float32),  # Σ |advantage|
        # One row a step, so that a minibatch is gathered in one call: the action and five numbers.
        "steps": ((steps, policy.head.action_size + 5), torch.float32),
        "x": ((steps, size), torch.float32),  # observations, standardised once for all passes
        "mask": ((steps, masked), torch.float32),  # that of each
    }


def prioritized(
    priority: Tensor, draws: int, alpha: float, beta: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Segments drawn with probability p ∝ priority^alpha, and their weights (n p)^−beta.

    With beta = 1 the weighted mean over the draws is an unbiased estimate of the mean over all segments.
    """
    # Where all advantages are 0, every segment is equally likely. An advantage that is not finite counts as 0
    # here: the optimiser skips the gradient that it leads to.
    mass = priority.double().nan_to_num(posinf=0.0).pow(alpha) + 1e-12
    p = mass / mass.sum()
    ids = torch.multinomial(p, draws, replacement=True, generator=generator)
    return ids, (p[ids] * len(p)).pow(-beta).to(priority.dtype)


def _standardized(x: Tensor, present: Tensor | None) -> Tensor:
    mean, variance = _moments(x, present)
    return (x - mean) / (variance.sqrt() + 1e-8)


def _moments(x: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and variance over the steps at which an agent was present (None: at all), on all ranks."""
    if not ranks.is_alone():
        return _moments_of_all(x, present)
    if present is None:
        variance, mean = torch.var_mean(x)
        return mean, variance
    n = present.sum().clamp(min=2.0)
    mean = (x * present).sum() / n
    return mean, ((x - mean).square() * present).sum() / (n - 1)


def _moments_of_all(x: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same over several ranks: the moments of each, merged."""
    if present is None:
        mean, variance = _merged_evenly(*torch.var_mean(x, correction=0), x.numel())
    else:
        n = present.sum()
        mean = (x * present).sum() / n.clamp(min=1.0)
        own = [n, mean, ((x - mean).square() * present).sum()]
        counts, means, squares = ranks.gather(torch.stack(own).double()).unbind(1)
        n = counts.sum().clamp(min=2.0)
        mean = (counts * means).sum() / n
        variance = (squares + counts * (means - mean).square()).sum() / (n - 1)
    return mean.to(x.dtype), variance.to(x.dtype)


def _merged_evenly(variance: Tensor, mean: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(mean, variance) over ranks that have as many numbers each. In few calls: every minibatch needs it."""
    everyones = ranks.gather(torch.stack([mean, variance]).double())
    mean, within = everyones.mean(0).unbind()
    total = count * ranks.size()
    return mean, (within + everyones[:, 0].var(correction=0)) * (total / max(total - 1, 1))
