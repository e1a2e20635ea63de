"""SAC, TD3 and DQN: one gradient step on a batch of transitions, its gradient written out.

The gradients of policy and critics are all taken at the same weights and applied together, which lets the two
share their passes: a critic judges the recorded actions and the policy's new ones in one go, and the policy acts
on both observations of a transition in one. The tests hold every gradient against autograd. Of several ranks each
has a batch of its own; a gradient step is one on all of them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus import ranks
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.replay.config import (
    DQNConfig,
    DQNTrainConfig,
    ReplayConfig,
    ReplayTrainConfig,
    SACConfig,
    SACTrainConfig,
    TD3Config,
    TD3TrainConfig,
)
from ludus.algorithms.replay.worth import advantage_weights
from ludus.envs.vec import State
from ludus.policies.heads import Head
from ludus.policies.mlp import MLP
from ludus.policies.recurrent import BurnIn, RecurrentEncoder
from ludus.policies.replay_heads import DeterministicHead, GreedyHead, Squashed, SquashedHead
from ludus.policies.replay_policy import FlatParameters, ReplayPolicy, SharedEncoder, Twin, flat_copies
from ludus.policies.taped import TapedEncoder

_NO_CLIP = float("inf")
_FLATTEST = 0.001  # slope of tanh, as imitation sees it: where an action is 0.9995
CriticEncoder = MLP | SharedEncoder  # an MLP without layers, where critics see numbers as they are


class Batch(NamedTuple):
    """Transitions. The observations before and after them lie in one tensor, before first."""

    x: Tensor  # [2n, size] prepared
    action: Tensor  # [n, actions] in the head's units
    reward: Tensor  # [n]
    discount: Tensor  # [n] of what follows; 0 where the task ended
    noise: Tensor  # [2n, noise of the head]
    await_reward: Callable[[], None] = lambda: None  # before it is read: it may be on its way, on another stream
    burn_in: BurnIn | None = None  # of a policy with a memory, whose transitions are segments, time first


class Agent(ABC):
    """A policy with what it learns with. `learn` runs under inference mode, and on a GPU inside a CUDA graph."""

    measures: tuple[str, ...]  # what `learn` returns, in order

    def __init__(self, policy: ReplayPolicy, config: ReplayConfig) -> None:
        self.policy, self.config = policy, config
        self.rate = torch.full((), config.learning_rate, device=policy.device)

    @abstractmethod
    def learn(self, batch: Batch, update: int, measured: bool = True) -> Tensor | None:
        """Gradient step number `update` (0, 1, …); returns `measures` as one tensor if they are wanted."""

    def kind_of(self, update: int) -> tuple[bool, ...]:
        """What `update` decides about a gradient step: steps alike share a recorded graph."""
        return (self._moves_target(update),)

    def _moves_target(self, update: int) -> bool:
        return (update + 1) % self.config.train_target == 0

    @property
    def policy_learns(self) -> bool:
        """Whether gradient steps change the policy now."""
        return True

    def set_progress(self, fraction: float, acting: Head | None = None) -> None:  # noqa: B027 (most ignore it)
        """Told before each iteration how much of the training is done; `acting`: the head of a copy that acts."""

    @property
    @abstractmethod
    def optimizers(self) -> list[FlatAdam]: ...

    @property
    @abstractmethod
    def targets(self) -> dict[str, Tensor]:
        """Flat weights of the target networks."""

    def followed(self) -> dict[str, Tensor]:
        """What each of `targets` follows."""
        return {}

    def move_targets_there(self) -> None:
        """Make every target what it follows, as at the beginning."""
        for name, weights in self.followed().items():
            self.targets[name].copy_(weights)

    def scale_values(self, factor: float) -> None:  # noqa: B027 (nothing where rewards are scaled as they come)
        """Rewards are to be so many times as large as those that were learned from."""

    @abstractmethod
    def learned(self) -> dict[str, Tensor]:
        """Weights that are not the policy's."""

    def numbers_of_a_row(self) -> int:
        """How many numbers a gradient step holds of each observation: those of the policy and of two critics."""
        held, through = self.policy.encoder.numbers_of_a_step()
        return 3 * (held + through)

    def state(self) -> State:
        return {
            "optimizers": [optimizer.state() for optimizer in self.optimizers],
            "targets": {name: value.clone() for name, value in self.targets.items()},
            "learned": {name: value.detach().clone() for name, value in self.learned().items()},
        }

    def load_state(self, state: State) -> None:
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state(saved)
        with torch.no_grad():
            for name, value in self.targets.items():
                value.copy_(state["targets"][name])
            for name, value in self.learned().items():
                value.copy_(state["learned"][name])

    def _imitation_weights(self, advantage: Tensor) -> Tensor | float:
        """[n, 1] how much each recorded action is imitated."""
        strength = self.config.advantage
        return advantage_weights(strength, advantage)[:, None] if strength > 0 else 1.0

    def _imitating(
        self, sample: Squashed, params: Tensor, way_up: Tensor, q: Tensor, alpha: Tensor, recorded: Tensor,
        advantage: Tensor,
    ) -> Tensor:  # fmt: skip
        """d/d params of the loss of a stochastic policy that imitates recorded actions.

        Without critics, entropy decides how far actions are spread, but not what they are: imitation pulls each
        action so little that entropy would hold all of them in the middle of their range.
        """
        head, weights, n = self.policy.head, self._imitation_weights(advantage), len(q)
        assert isinstance(head, SquashedHead)
        pull = _imitation_gradient(params, recorded) * weights
        if self.config.bc > 0:
            trust = _trust_in_critic(self.config.bc, q)
            gradient = head.gradient(sample, way_up * trust, alpha * trust / n)
            gradient[:, : head.action_size] += pull
            return gradient
        gradient = head.gradient(sample, torch.zeros_like(way_up), alpha / n)
        gradient[:, : head.action_size] = pull
        return gradient

    def _move(self, target: Tensor, source: Tensor) -> None:
        target.lerp_(source, 1.0 - self.config.polyak)


def _weights(optimizer: FlatAdam, module: nn.Module) -> FlatParameters:
    """A module's parameters, and the part of the optimiser's flat tensor in which they lie."""
    parameters = list(module.parameters())
    first = [id(p) for p in optimizer.parameters].index(id(parameters[0]))
    place = sum(p.numel() for p in optimizer.parameters[:first])
    return parameters, optimizer.flat[place : place + sum(p.numel() for p in parameters)]


def _outputs(encoder: CriticEncoder, batch: Batch, after: bool) -> list[Any]:
    """What `backward` needs, and last the features before the transitions, maybe also those after them."""
    n = len(batch.reward)
    x = batch.x if after else batch.x[:n]
    if isinstance(encoder, RecurrentEncoder):
        assert batch.burn_in is not None
        return encoder.outputs(x, n, batch.burn_in)
    return encoder.outputs(x, n) if after and isinstance(encoder, TapedEncoder) else encoder.outputs(x)


def _features_after(encoder: CriticEncoder, batch: Batch) -> Tensor:
    """Of the observations after the transitions."""
    n = len(batch.reward)
    if isinstance(encoder, RecurrentEncoder):
        assert batch.burn_in is not None
        return encoder.after(batch.x, n, batch.burn_in)
    return encoder.forward(batch.x[n:])


def _critic_gradients(
    critics: Twin, encoder: CriticEncoder, seen: list[Any], recorded: Tensor, chosen: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Write the gradients of critics and their encoder towards `target`, and return the policy's way up.

    `seen` are the encoder's outputs, of the n transitions first. Returns (d −min Q / d chosen action [n, actions],
    min Q of the chosen actions, the errors [2, n]).
    """
    n, learns = len(target), not isinstance(encoder, MLP)
    x = seen[-1][:n]
    inputs = torch.cat([torch.cat([x, x]), torch.cat([recorded, chosen])], 1)
    outputs, values = critics.outputs(inputs)  # [2, 2n]
    errors, free = values[:, :n] - target, values[:, n:]
    lower = free.amin(0)
    # Of mean error² / 2 for the recorded actions, and of −mean min Q for the chosen ones.
    gradient = torch.cat([errors, (free > lower).float().sub_(1.0)], 1).div_(n)
    back = critics.backward(outputs, gradient, n, need_inputs=learns)
    if learns:
        encoder.backward(seen, back[:n, : x.shape[1]])
        back = back[n:]
    return back[:, x.shape[1] :], lower, errors


def _trust_in_critic(bc: float, q: Tensor) -> Tensor:
    """TD3+BC (Fujimoto & Gu 2021): the critic's say relative to imitation, whatever the size of its values."""
    if bc == 0:
        return torch.zeros((), device=q.device)
    size = ranks.add_up(q.abs().mean()) / ranks.size()
    return bc / size.clamp(min=1e-6)


class SAC(Agent):
    """Soft actor-critic (Haarnoja et al. 2018) with two critics and an adapted temperature."""

    measures = ("critic_loss", "actor_loss", "q_mean", "entropy", "ent_coef")

    def __init__(self, policy: ReplayPolicy, config: ReplayConfig, sac: SACConfig) -> None:
        super().__init__(policy, config)
        assert isinstance(policy.head, SquashedHead)
        self.head, self.sac = policy.head, sac
        actions = policy.head.action_size
        self.target_entropy = sac.target_entropy or -float(actions)
        self.encoder = policy.make_critic_encoder().to(policy.device)
        self.critics = Twin(self.encoder.features + actions, policy.config).to(policy.device)
        self.log_alpha = nn.Parameter(torch.tensor(sac.alpha, device=policy.device).log())
        own_encoder = [] if policy.shared_encoder is not None else [*self.encoder.parameters()]
        self.optimizer = FlatAdam(
            [*policy.parameters(), *own_encoder, *self.critics.parameters(), self.log_alpha], _NO_CLIP, eps=1e-8
        )
        judging = {"critics": _weights(self.optimizer, self.critics)}
        if not isinstance(self.encoder, MLP):
            judging["encoder"] = _weights(self.optimizer, self.encoder)
        self._judging = {name: flat for name, (_, flat) in judging.items()}
        targets, (critics, encoder) = flat_copies([self.critics, self.encoder], [*judging.values()])
        self._targets = dict(zip(judging, targets, strict=True))
        assert isinstance(critics, Twin)
        assert isinstance(encoder, CriticEncoder)
        self.target_critics, self.target_encoder = critics, encoder

    def learn(self, batch: Batch, update: int, measured: bool = True) -> Tensor | None:
        n, x = len(batch.reward), batch.x
        shared = self.policy.shared_encoder is not None
        seen = _outputs(self.encoder, batch, after=shared)
        outputs, params = self.policy.outputs(seen[-1] if shared else x, n)
        sample = self.head.sample_with_log_prob(params, batch.noise)
        alpha = self.log_alpha.exp()
        after = _features_after(self.target_encoder, batch)
        follows = self.target_critics.lower(torch.cat([after, sample.action[n:]], 1))
        batch.await_reward()
        target = torch.addcmul(batch.reward, batch.discount, follows - alpha * sample.log_prob[n:])
        now = sample.first(n)
        way_up, q, errors = _critic_gradients(self.critics, self.encoder, seen, batch.action, now.action, target)
        if self.config.imitates:
            advantage = errors.amin(0) + target - q
            gradient = self._imitating(now, params[:n], way_up, q, alpha, batch.action, advantage)
        else:
            gradient = self.head.gradient(now, way_up, alpha / n)
        self.policy.backward(outputs, gradient)
        log_prob = now.log_prob.mean()
        if self.sac.learn_alpha:  # more weight while the entropy −log_prob is below its target
            assert self.log_alpha.grad is not None
            self.log_alpha.grad.copy_(-(log_prob + self.target_entropy))
        means = None
        if measured:
            q_mean = q.mean()
            losses = errors.square().mean(), alpha * log_prob - q_mean
            means = torch.stack([*losses, q_mean, -log_prob, alpha])
        means = self.optimizer.average(means)
        self.optimizer.step(self.rate)
        if self._moves_target(update):
            for name, target_weights in self._targets.items():
                self._move(target_weights, self._judging[name])
        return means

    @property
    def optimizers(self) -> list[FlatAdam]:
        return [self.optimizer]

    @property
    def targets(self) -> dict[str, Tensor]:
        return self._targets

    def followed(self) -> dict[str, Tensor]:
        return self._judging

    def state(self) -> State:
        state = super().state()
        state["learned"]["log_alpha"] = self.log_alpha.detach().clone()  # a resume may begin to learn it
        return state

    def load_state(self, state: State) -> None:
        super().load_state(state)
        if not self.sac.learn_alpha:  # it is as the settings say, also where it was learned before
            for moments in (self.optimizer.exp_avg, self.optimizer.exp_avg_sq):
                moments[-1] = 0.0

    def scale_values(self, factor: float) -> None:
        self.critics.scale_values(factor)
        if self.sac.learn_alpha:
            self.log_alpha.add_(math.log(factor))

    def learned(self) -> dict[str, Tensor]:
        temperature = {"log_alpha": self.log_alpha} if self.sac.learn_alpha else {}  # else the setting says it
        return {**self._judging, **temperature}


def _imitation_gradient(params: Tensor, recorded: Tensor) -> Tensor:
    """d/d mean of the mean squared distance of tanh(mean) to the recorded actions.

    tanh is never taken to be flat: else a policy that came to an end of the range in error could not find back.
    """
    action = params[:, : recorded.shape[1]].tanh()
    slope = (1.0 - action * action).clamp(min=_FLATTEST)
    return (action - recorded) * slope * (2.0 / recorded.numel())


def _optimizer_of(policy: ReplayPolicy) -> FlatAdam:
    """Of its actor alone: what it shares with critics learns from them."""
    return FlatAdam([*policy.encoder.parameters(), *policy.head.parameters()], _NO_CLIP, eps=1e-8)


class TD3(Agent):
    """Twin delayed DDPG (Fujimoto et al. 2018).

    Critics may see more than the policy does. A tutor, an actor that sees the same as they, can learn with them in
    the policy's place. When it is ready, they rest, and the policy imitates the recorded actions that they value.
    """

    measures = ("critic_loss", "actor_loss", "q_mean")

    def __init__(self, policy: ReplayPolicy, config: ReplayConfig, td3: TD3Config) -> None:
        super().__init__(policy, config)
        assert isinstance(policy.head, DeterministicHead)
        self.head, self.td3 = policy.head, td3
        policy.head.spread.fill_(td3.exploration)
        self.encoder = policy.make_critic_encoder().to(policy.device)
        self.critics = Twin(self.encoder.features + policy.head.action_size, policy.config).to(policy.device)
        self.actor = policy.make_tutor().to(policy.device) if td3.tutor else policy  # whose actions critics judge
        judging = [*self.encoder.parameters(), *self.critics.parameters()]
        self.actor_optimizer = _optimizer_of(self.actor)
        self.critic_optimizer = FlatAdam(judging, _NO_CLIP, eps=1e-8)
        self.pupil_optimizer = _optimizer_of(policy) if td3.tutor else None
        self.tutor_is_ready = False
        flats = [(o.parameters, o.flat) for o in (self.actor_optimizer, self.critic_optimizer)]
        targets, (actor, encoder, critics) = flat_copies([self.actor, self.encoder, self.critics], flats)
        self._target_actor, self._target_weights = targets
        assert isinstance(actor, ReplayPolicy)
        assert isinstance(encoder, CriticEncoder)
        assert isinstance(critics, Twin)
        self.target_policy, self.target_encoder, self.target_critics = actor, encoder, critics

    def kind_of(self, update: int) -> tuple[bool, ...]:
        if self.tutor_is_ready:
            return (True,)
        return False, self._moves_target(update), self._moves_actor(update)

    def _moves_actor(self, update: int) -> bool:
        return (update + 1) % self.td3.policy_delay == 0

    def set_progress(self, fraction: float, acting: Head | None = None) -> None:
        self.tutor_is_ready = 0 < self.td3.tutor <= fraction
        for head in (self.head, acting):
            if isinstance(head, DeterministicHead):
                head.spread.fill_(self.td3.exploration)

    @property
    def policy_learns(self) -> bool:
        return self.td3.tutor == 0 or self.tutor_is_ready

    def learn(self, batch: Batch, update: int, measured: bool = True) -> Tensor | None:
        n, x = len(batch.reward), batch.x
        if self.tutor_is_ready:
            return self._imitate_recorded(x[:n], batch.action, measured)
        limit = self.td3.target_noise_clip
        noise = (batch.noise[n:] * self.td3.target_noise).clamp_(-limit, limit)
        shared, after = self.policy.shared_encoder is not None, _features_after(self.target_encoder, batch)
        next_action = (self.target_policy.params(after if shared else x[n:]).tanh() + noise).clamp_(-1.0, 1.0)
        follows = self.target_critics.lower(torch.cat([after, next_action], 1))
        batch.await_reward()
        target = torch.addcmul(batch.reward, batch.discount, follows)
        seen = _outputs(self.encoder, batch, after=False)
        outputs, params = self.actor.outputs(seen[-1] if shared else x[:n])
        action = params.tanh()
        way_up, q, errors = _critic_gradients(self.critics, self.encoder, seen, batch.action, action, target)
        if self._moves_actor(update):
            gradient = way_up * (1.0 - action * action)
            if self.config.imitates:
                weights = self._imitation_weights(errors.amin(0) + target - q)
                trust = _trust_in_critic(self.config.bc, q)
                gradient = gradient * trust + _imitation_gradient(params, batch.action) * weights
            self.actor.backward(outputs, gradient)
            self.actor_optimizer.average()
            self.actor_optimizer.step(self.rate)
        means = None
        if measured:
            q_mean = q.mean()
            means = torch.stack([errors.square().mean(), -q_mean, q_mean])
        means = self.critic_optimizer.average(means)
        self.critic_optimizer.step(self.rate)
        if self._moves_target(update):
            self._move(self._target_actor, self.actor_optimizer.flat)
            self._move(self._target_weights, self.critic_optimizer.flat)
        return means

    def judge(self, x: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """[n] each: the values of actions, and of the actor's own. The targets say so, which change slowly."""
        seen = self.target_encoder.forward(x)
        own = self.target_policy.params(x).tanh()
        recorded_value, own_value = (self.target_critics.lower(torch.cat([seen, a], 1)) for a in (action, own))
        return recorded_value, own_value

    def _imitate_recorded(self, x: Tensor, recorded: Tensor, measured: bool) -> Tensor | None:
        """The policy imitates steps that were drawn for it (`worth_of_steps`). Critics rest, and have no loss."""
        assert self.pupil_optimizer is not None
        outputs, params = self.policy.outputs(x)
        self.policy.backward(outputs, _imitation_gradient(params, recorded))
        means = None
        if measured:
            action = params.tanh()
            q = self.target_critics.lower(torch.cat([self.target_encoder.forward(x), action], 1)).mean()
            means = torch.stack([torch.zeros_like(q), (action - recorded).square().mean(), q])
        means = self.pupil_optimizer.average(means)
        self.pupil_optimizer.step(self.rate)
        return means

    @property
    def optimizers(self) -> list[FlatAdam]:
        pupil = [] if self.pupil_optimizer is None else [self.pupil_optimizer]
        return [self.actor_optimizer, self.critic_optimizer, *pupil]

    @property
    def targets(self) -> dict[str, Tensor]:
        return {"actor": self._target_actor, "critics": self._target_weights}

    def followed(self) -> dict[str, Tensor]:
        return {"actor": self.actor_optimizer.flat, "critics": self.critic_optimizer.flat}

    def scale_values(self, factor: float) -> None:
        self.critics.scale_values(factor)

    def learned(self) -> dict[str, Tensor]:
        tutor = {"tutor": self.actor_optimizer.flat} if self.td3.tutor else {}
        return {"critics": self.critic_optimizer.flat, **tutor}


class DQN(Agent):
    """Deep Q-learning (Mnih et al. 2015); the next action is chosen by the network that learns (double DQN)."""

    measures = ("loss", "q_mean")

    def __init__(self, policy: ReplayPolicy, config: ReplayConfig, dqn: DQNConfig) -> None:
        super().__init__(policy, config)
        assert isinstance(policy.head, GreedyHead)
        self.head, self.dqn = policy.head, dqn
        self.optimizer = FlatAdam(policy.parameters(), 10.0, eps=1e-8)
        (self._target_weights,), (target,) = flat_copies(
            [policy], [(self.optimizer.parameters, self.optimizer.flat)]
        )
        assert isinstance(target, ReplayPolicy)
        self.target_policy = target

    def set_progress(self, fraction: float, acting: Head | None = None) -> None:
        done = min(1.0, fraction / max(self.dqn.epsilon_until, 1e-9))
        for head in (self.head, acting):
            if isinstance(head, GreedyHead):
                head.epsilon.fill_(self.dqn.epsilon + (self.dqn.epsilon_final - self.dqn.epsilon) * done)

    def learn(self, batch: Batch, update: int, measured: bool = True) -> Tensor | None:
        n, x, burn_in = len(batch.reward), batch.x, batch.burn_in
        outputs, values = self.policy.outputs(x, n, burn_in)
        best = values[n:].argmax(1, keepdim=True)
        follows = self.target_policy.params_after(x, n, burn_in).gather(1, best).squeeze(1)
        batch.await_reward()
        target = torch.addcmul(batch.reward, batch.discount, follows)
        chosen = batch.action.long()
        q = values[:n].gather(1, chosen).squeeze(1)
        error = q - target
        gradient = torch.zeros_like(values[:n])
        gradient.scatter_(1, chosen, (error.clamp(-1.0, 1.0) / n)[:, None])  # of the Huber loss
        self.policy.backward(outputs, gradient)
        means = torch.stack([F.huber_loss(q, target), q.mean()]) if measured else None
        means = self.optimizer.average(means)
        self.optimizer.step(self.rate)
        if self._moves_target(update):
            self._move(self._target_weights, self.optimizer.flat)
        return means

    @property
    def optimizers(self) -> list[FlatAdam]:
        return [self.optimizer]

    @property
    def targets(self) -> dict[str, Tensor]:
        return {"policy": self._target_weights}

    def followed(self) -> dict[str, Tensor]:
        return {"policy": self.optimizer.flat}

    def scale_values(self, factor: float) -> None:
        for parameter in self.head.linear.parameters():
            parameter.mul_(factor)

    def learned(self) -> dict[str, Tensor]:
        return {}


def make_agent(policy: ReplayPolicy, config: ReplayTrainConfig, seed: int) -> Agent:
    """The agent that the configuration is of, with new critics whose weights `seed` alone determines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if isinstance(config, SACTrainConfig):
            return SAC(policy, config.replay, config.sac)
        if isinstance(config, TD3TrainConfig):
            return TD3(policy, config.replay, config.td3)
        assert isinstance(config, DQNTrainConfig)
        return DQN(policy, config.replay, config.dqn)
