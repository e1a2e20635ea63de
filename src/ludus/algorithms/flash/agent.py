"""FlashSAC: one gradient step, its gradients written out.

Unlike SAC's, the steps of one batch follow each other: that of the policy, of the temperature, and of the critics,
which see the new policy's actions. Rows of observations and actions stand as columns here, [numbers, rows].
"""

import math

import torch
from torch import Tensor, nn

from ludus.algorithms.flash.config import FlashConfig, FlashTrainConfig
from ludus.algorithms.flash.critics import Critics
from ludus.algorithms.flash.losses import Followed, critic_loss, tell_policy, way_up
from ludus.algorithms.flash.optimizer import ProjectedAdam
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.replay.agents import Agent, Batch
from ludus.algorithms.replay.config import ReplayConfig
from ludus.envs.vec import State
from ludus.errors import CheckpointError
from ludus.policies.flash_layers import EXPANSION
from ludus.policies.flash_policy import FlashPolicy, block_shape
from ludus.policies.heads import Head
from ludus.policies.replay_policy import flat_copies


class FlashSAC(Agent):
    """Soft actor-critic with normed networks and critics of distributions (Holiday-Robot 2026)."""

    measures = ("critic_loss", "edge_bins", "actor_loss", "q_mean", "entropy", "ent_coef")
    policy: FlashPolicy

    def __init__(self, policy: FlashPolicy, config: ReplayConfig, flash: FlashConfig) -> None:
        super().__init__(policy, config)
        self.head, self.layers, self.flash = policy.head, policy.encoder.layers, flash
        self._actor_sees, self._critic_sees = policy.encoder.reader, policy.critic_reader()
        actions, device = policy.head.action_size, policy.device
        self.target_entropy = 0.5 * actions * math.log(2 * math.pi * math.e * flash.target_std**2)
        _, blocks = block_shape(policy.config)
        shape = (self._critic_sees.numbers + actions, flash.critic_width, blocks, flash.bins, flash.highest_value)
        self.critics = Critics(*shape).to(device)
        self.log_alpha = nn.Parameter(torch.tensor(flash.alpha, device=device).log())
        acting = [*policy.parameters(), self.log_alpha]
        self.actor_optimizer = ProjectedAdam(acting, self.layers, [policy.head.linear.weight])
        self.critic_optimizer = ProjectedAdam(
            self.critics.parameters(), self.critics.layers, [self.critics.weight]
        )
        flats = [(self.critic_optimizer.parameters, self.critic_optimizer.flat)]
        (self._target_weights,), (targets,) = flat_copies([self.critics], flats)
        assert isinstance(targets, Critics)
        self.target_critics = targets
        # What is left of the step size, by a cosine.
        self._actor_rate_left, self._critic_rate_left = (torch.ones((), device=device) for _ in range(2))
        self.reward_factor = torch.ones((), device=device)  # from the units of rewards to those of the bins
        self._policy_measures = torch.zeros(3, device=device)  # of its newest step
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None

    def kind_of(self, update: int) -> tuple[bool, ...]:
        return *super().kind_of(update), self._moves_policy(update)

    def _moves_policy(self, update: int) -> bool:
        return update % self.flash.policy_delay == 0

    def set_progress(self, fraction: float, acting: Head | None = None) -> None:
        """The policy's rate counts the policy's own steps: with a delay of 2 it ends half-way down the cosine."""
        self._actor_rate_left.fill_(self.rate_left(fraction / self.flash.policy_delay))
        self._critic_rate_left.fill_(self.rate_left(fraction))

    def rate_left(self, done: float) -> float:
        """Part of the step size, after this part of the steps."""
        last = self.flash.final_rate
        return last + (1.0 - last) * 0.5 * (1.0 + math.cos(math.pi * done))

    def learn(self, batch: Batch, update: int, measured: bool = True) -> Tensor | None:
        seen = self._critic_sees.numbers_of(batch.x).t().contiguous()  # by the critics: before, then after
        if self._moves_policy(update):
            self._learn_policy(batch, seen)
        told = self._learn_critics(batch, seen, update, measured)
        return None if told is None else torch.cat([told, self._policy_measures, self.log_alpha.exp().view(1)])

    # The policy and the temperature -------------------------------------------------------------
    def _learn_policy(self, batch: Batch, seen: Tensor) -> None:
        """On the observations before; those after count in the statistics alone."""
        n, alpha = len(batch.reward), self.log_alpha.exp()
        rows = self._actor_sees.numbers_of(batch.x).t().contiguous()
        done = self.layers.forward_pass(rows[None], batch_statistics=True, asked=slice(n))
        features = done.features[0].t()
        params = self.head.linear.forward(features)
        sample = self.head.sample_with_log_prob(params, batch.noise[:n])
        way_up, values = self._way_up(torch.cat([seen[:, :n], sample.action.t()]))
        if self.config.imitates:
            _, recorded = self._way_up(torch.cat([seen[:, :n], batch.action.t()]))
            advantage = recorded - values
            gradient = self._imitating(sample, params, way_up.t(), values, alpha, batch.action, advantage)
        else:
            gradient = self.head.gradient(sample, way_up.t(), alpha / n)
        self.head.linear.write_gradient(features, gradient)
        self.layers.backward(done, self.head.linear.input_gradient(gradient).t()[None])
        tell_policy(sample.log_prob, values, self.log_alpha, self.target_entropy, self._policy_measures)
        self.actor_optimizer.step_and_project(self.rate, self._actor_rate_left)

    def _way_up(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(d −mean min Q / d action [actions, rows], min Q [rows]), by the critics' running statistics."""
        done, logits = self.critics.forward_pass(x, batch_statistics=False)
        gradient, least = way_up(self.critics, logits)
        back = self.critics.input_gradient(done, gradient)
        return back[-self.head.action_size :], least

    # The critics ----------------------------------------------------------------------------------
    def _learn_critics(self, batch: Batch, seen: Tensor, update: int, measured: bool) -> Tensor | None:
        """On what was recorded; what the new policy would do next counts in the statistics, too.

        Returns the loss, and how likely the return lies in the first or the last bin.
        """
        n = len(batch.reward)
        rows = self._actor_sees.numbers_of(batch.x[n:]).t().contiguous()
        known = self.layers.forward_pass(rows[None], batch_statistics=False)
        params = self.head.linear.forward(known.features[0].t())
        follows = self.head.sample_with_log_prob(params, batch.noise[n:])
        x = torch.cat([seen, torch.cat([batch.action, follows.action]).t()])
        target_logits = self._target_logits(x, slice(n, None))
        done, logits = self.critics.forward_pass(x, batch_statistics=True, asked=slice(n))
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        batch.await_reward()
        followed = Followed(batch.reward, self.reward_factor, batch.discount, self.log_alpha, follows.log_prob)
        gradient, told = critic_loss(self.critics, target_logits, logits, followed)
        self.critics.backward(done, gradient)
        follower = self._target_weights if self._moves_target(update) else None
        self.critic_optimizer.step_and_project(
            self.rate, self._critic_rate_left, follower, 1.0 - self.config.polyak
        )
        return told.mean(1) if measured else None

    def _target_logits(self, x: Tensor, asked: slice) -> Tensor:
        """On a GPU worked out beside the critics' own, on a stream of its own, which the caller waits for."""
        if self._side is None:
            return self.target_critics.forward_pass(x, batch_statistics=True, asked=asked)[1]
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            return self.target_critics.forward_pass(x, batch_statistics=True, asked=asked)[1]

    # State ----------------------------------------------------------------------------------------
    @property
    def optimizers(self) -> list[FlatAdam]:
        return [self.actor_optimizer, self.critic_optimizer]

    @property
    def targets(self) -> dict[str, Tensor]:
        return {"critic_weights": self._target_weights}

    def followed(self) -> dict[str, Tensor]:
        return {"critic_weights": self.critic_optimizer.flat}

    def learned(self) -> dict[str, Tensor]:
        layers = self.critics.layers
        statistics = {"critic_means": layers.means, "critic_variances": layers.variances}
        return {"critic_weights": self.critic_optimizer.flat, "log_alpha": self.log_alpha, **statistics}

    def numbers_of_a_row(self) -> int:
        """Of the passes of the policy, the critics and their targets, as if all were held; all see two rows."""
        return self.layers.numbers_of_a_row() + 2 * self.critics.layers.numbers_of_a_row()

    def state(self) -> State:
        return super().state() | {"policy_measures": self._policy_measures.clone()}

    def load_state(self, state: State) -> None:
        if "critic_weights" not in state["learned"]:
            raise CheckpointError(
                "An earlier Ludus saved this FlashSAC, with its critics laid out otherwise. Begin a new run; "
                "--from takes its policy along."
            )
        super().load_state(state)
        self._policy_measures.copy_(state["policy_measures"])


def critic_bytes(policy: FlashPolicy, flash: FlashConfig) -> int:
    """What two critics, their gradients, Adam's moments and their targets take, known before they are made."""
    _, blocks = block_shape(policy.config)
    inputs = policy.critic_reader().numbers + policy.head.action_size
    width, in_a_block = flash.critic_width, 2 * EXPANSION * flash.critic_width
    return 5 * 4 * 2 * width * (inputs + blocks * in_a_block + flash.bins)


def make_flash_agent(policy: FlashPolicy, config: FlashTrainConfig, seed: int) -> FlashSAC:
    """With new critics whose weights `seed` alone determines."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return FlashSAC(policy, config.replay, config.flash)
