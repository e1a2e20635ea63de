"""Proximal policy optimisation (Schulman et al. 2017) on segments.

    ratio_t = π(a_t|s_t) / π_old(a_t|s_t)
    loss = −mean min(ratio · A, clip(ratio, 1 ± ε) · A) + c_v · mean (V − R)² − c_e · mean entropy

The derivative of that loss with respect to the networks' outputs is short, so it is written out
(`_gradient`), and autograd runs through the networks alone. Nothing inside an update waits for a value
from the device: stops and skips are flags that the optimiser reads there.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ludus.algorithms.advantage import generalized_advantage, next_values
from ludus.algorithms.optimizer import FlatAdam
from ludus.buffers.segments import Segments
from ludus.envs.vec import State, derive_seed
from ludus.errors import ConfigError
from ludus.policies.heads import GaussianHead
from ludus.policies.policy import Policy


@dataclass(frozen=True)
class PPOConfig:
    """Proximal policy optimisation."""

    horizon: int = 32
    """Steps of every row in one iteration."""
    minibatches: int = 4
    """Parts an iteration's steps are split into; each is one gradient step."""
    update_epochs: int = 10
    """Passes over an iteration's steps."""
    learning_rate: float = 3e-4
    """Adam's step size at the start."""
    learning_rate_final: float = 0.0
    """Step size at the end, reached linearly; the same as learning_rate keeps it constant."""
    gamma: float = 0.99
    """Discount of the future, per step."""
    gae_lambda: float = 0.95
    """How far advantages look ahead: 0 one step, 1 the whole episode."""
    clip: float = 0.2
    """How far the probability of an action may move in one iteration, as a ratio."""
    value_clip: float = 0.0
    """How far a value may move in one iteration, in units of normalised return; 0 does not limit it."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus at the start."""
    entropy_coef_final: float = 0.0
    """Weight of the entropy bonus at the end of the training (linear)."""
    std_final: float = 0.0
    """Cap on a continuous policy's spread at the end, closing over the last fifth; 0 leaves it free."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    normalize_advantage: bool = True
    """Standardise advantages in each minibatch."""
    normalize_returns: bool = True
    """Divide rewards by the running spread of the discounted return."""
    recompute_advantages: bool = False
    """Estimate advantages anew, with the newest critic, before each pass."""
    target_kl: float = 0.0
    """Wanted divergence of an iteration's policies; 0 ignores it."""
    kl_control: Literal["stop", "adapt"] = "stop"
    """Above 1.5 × target_kl, stop the iteration's updates; or adapt the step size between iterations."""


class PPO:
    """Updates a policy from rollouts."""

    def __init__(self, policy: Policy, config: PPOConfig, rows: int, seed: int) -> None:
        steps = rows * config.horizon
        if steps % config.minibatches:
            raise ConfigError(
                f"{rows} rows × horizon {config.horizon} = {steps} steps do not divide into "
                f"{config.minibatches} minibatches; change --ppo.minibatches, --ppo.horizon or --env.num-envs."
            )
        self.policy, self.config = policy, config
        device = policy.value_head.weight.device
        self.optimizer = FlatAdam(policy.parameters(), config.max_grad_norm)
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, 2))
        self.returns = ReturnScale(rows, config.gamma, device)
        self.rate_factor = 1.0  # moved by kl_control "adapt"
        self.stopped = torch.zeros((), dtype=torch.bool, device=device)

    # One update ---------------------------------------------------------------------------------
    def update(self, segments: Segments, progress: float) -> dict[str, Tensor]:
        """Improve the policy on one rollout; `progress` (0 to 1) is how much of the training is done."""
        config, policy = self.config, self.policy
        rate, entropy_coef = self._scheduled(progress)
        reward = self.returns.scale(segments) if config.normalize_returns else segments.reward
        x = policy.normalize(segments.obs.flatten(0, 1))
        with torch.no_grad():
            old_params, old_value = policy.params_and_value_of(x)
            action = segments.action.flatten(0, 1)
            old_log_prob = policy.head.log_prob(old_params, action)
            advantage, returns = self._advantages(segments, reward, old_value)
        first_value, first_returns = old_value, returns
        self.stopped.zero_()
        self.optimizer.skipped.zero_()
        totals: dict[str, Tensor] = {}
        for epoch in range(config.update_epochs):
            if epoch and config.recompute_advantages:
                with torch.no_grad():
                    advantage, returns = self._advantages(segments, reward, policy.value_of(x))
            totals = {}
            data = self._shuffle(x, action, old_log_prob, advantage, returns, old_value)
            for batch in zip(*(d.chunk(config.minibatches) for d in data), strict=True):
                self._step(batch, rate, entropy_coef, totals)
            if self.stopped.device.type == "cpu" and bool(self.stopped):
                break  # free to ask on the CPU; elsewhere the optimiser skips what is left
        self._after(segments, progress)
        metrics = {name: value / config.minibatches for name, value in totals.items()}
        return metrics | self._summary(first_value, first_returns, rate, entropy_coef)

    def _shuffle(self, *tensors: Tensor) -> list[Tensor]:
        """The same random order for all: minibatches are then contiguous pieces."""
        order = torch.randperm(tensors[0].shape[0], generator=self.generator, device=tensors[0].device)
        return [t[order] for t in tensors]

    def _step(self, batch: tuple[Tensor, ...], rate: float, entropy_coef: float, totals: dict[str, Tensor]) -> None:
        x, action, old_log_prob, advantage, returns, old_value = batch
        params, value = self.policy.params_and_value_of(x)
        self.optimizer.zero_grad()
        with torch.no_grad():
            if self.config.normalize_advantage:
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            log_ratio = self.policy.head.log_prob(params, action) - old_log_prob
            ratio = log_ratio.exp()
            seeds = self._gradient(params, value, action, ratio, advantage, returns, old_value, entropy_coef)
            self._measure(totals, params, value, ratio, log_ratio, advantage, returns)
        torch.autograd.backward([params, value], seeds)
        norm = self.optimizer.step(rate, self.stopped if self.config.target_kl > 0 else None)
        totals["train/grad_norm"] = totals.get("train/grad_norm", 0.0) + norm

    def _gradient(
        self, params: Tensor, value: Tensor, action: Tensor, ratio: Tensor, advantage: Tensor,
        returns: Tensor, old_value: Tensor, entropy_coef: float,
    ) -> list[Tensor]:  # fmt: skip
        """Derivatives of the loss with respect to the head's parameters and the values."""
        config, n = self.config, ratio.shape[0]
        # d/d log π of −min(ratio · A, clipped ratio · A): −ratio · A, or 0 where the clip is the smaller.
        beyond = torch.where(advantage > 0, ratio > 1 + config.clip, ratio < 1 - config.clip)
        weight = (ratio * advantage).masked_fill_(beyond, 0.0).mul_(-1.0 / n)
        value_gradient = (value - returns).mul_(2 * config.value_coef / n)
        if config.value_clip > 0:
            moved = value - old_value
            clipped = old_value + moved.clamp(-config.value_clip, config.value_clip)
            held = (moved.abs() > config.value_clip) & ((clipped - returns).abs() > (value - returns).abs())
            value_gradient.masked_fill_(held, 0.0)
        return [self.policy.head.seed_gradient(params, action, weight, entropy_coef), value_gradient]

    @torch.no_grad()
    def _measure(
        self, totals: dict[str, Tensor], params: Tensor, value: Tensor, ratio: Tensor, log_ratio: Tensor,
        advantage: Tensor, returns: Tensor,
    ) -> None:  # fmt: skip
        """Add this minibatch to the sums; they end up describing the last pass."""
        config = self.config
        kl = (ratio - 1 - log_ratio).mean()
        if config.target_kl > 0 and config.kl_control == "stop":
            self.stopped |= kl > 1.5 * config.target_kl
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
        parts = {
            "train/policy_loss": -surrogate.mean(),
            "train/value_loss": (value - returns).square().mean(),
            "train/entropy": self.policy.head.entropy(params).mean(),
            "train/approx_kl": kl,
            "train/clip_fraction": ((ratio - 1).abs() > config.clip).float().mean(),
        }
        for name, part in parts.items():
            totals[name] = totals[name] + part if name in totals else part

    # Around the update --------------------------------------------------------------------------
    def _advantages(self, segments: Segments, reward: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Flat ([steps] advantages, [steps] value targets) under the present critic."""
        policy, config = self.policy, self.config
        ends = torch.cat([segments.last_obs, segments.truncated_obs])
        last_value, truncated_value = policy.value_of(policy.normalize(ends)).split(
            [segments.last_obs.shape[0], segments.truncated_obs.shape[0]]
        )
        value = value.view_as(reward)
        following = next_values(
            value, last_value, segments.terminated, segments.truncated_at, truncated_value
        )
        advantage = generalized_advantage(
            reward, value, following, segments.done, config.gamma, config.gae_lambda
        )
        return advantage.flatten(), (advantage + value).flatten()

    def _scheduled(self, progress: float) -> tuple[float, float]:
        config = self.config
        rate = config.learning_rate + (config.learning_rate_final - config.learning_rate) * progress
        entropy = config.entropy_coef + (config.entropy_coef_final - config.entropy_coef) * progress
        return rate * self.rate_factor, entropy

    def _after(self, segments: Segments, progress: float) -> None:
        head = self.policy.head
        if isinstance(head, GaussianHead):
            highest = math.e
            if self.config.std_final > 0 and progress > 0.8:
                start = self.policy.config.initial_std
                highest = start * (self.config.std_final / start) ** ((progress - 0.8) / 0.2)
            head.limit_std(highest)
        # After the update, so that acting and learning saw the same standardisation.
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(segments.obs.flatten(2))

    def _summary(self, value: Tensor, returns: Tensor, rate: float, entropy_coef: float) -> dict[str, Tensor]:
        summary = {
            "train/explained_variance": 1 - (returns - value).var() / (returns.var() + 1e-12),
            "train/learning_rate": torch.tensor(rate),
            "train/entropy_coef": torch.tensor(entropy_coef),
            "train/skipped_updates": self.optimizer.skipped.clone(),
        }
        if isinstance(self.policy.head, GaussianHead):
            summary["train/std"] = self.policy.head.log_std.detach().exp().mean()
        return summary

    def adapt_rate(self, kl: float) -> None:
        """Between iterations: slow down when the policy moved too far, speed up when it hardly moved."""
        if self.config.target_kl > 0 and self.config.kl_control == "adapt" and math.isfinite(kl):
            if kl > 2 * self.config.target_kl:
                self.rate_factor = max(self.rate_factor / 1.5, 0.01)
            elif kl < 0.5 * self.config.target_kl:
                self.rate_factor = min(self.rate_factor * 1.5, 10.0)

    def state(self) -> State:
        return {
            "optimizer": self.optimizer.state(),
            "returns": self.returns.state(),
            "generator": self.generator.get_state(),
            "rate_factor": self.rate_factor,
        }

    def load_state(self, state: State) -> None:
        self.optimizer.load_state(state["optimizer"])
        self.returns.load_state(state["returns"])
        self.generator.set_state(state["generator"])
        self.rate_factor = state["rate_factor"]


class ReturnScale:
    """Divides rewards by the running standard deviation of the discounted return, in float64."""

    def __init__(self, rows: int, gamma: float, device: torch.device, clip: float = 10.0) -> None:
        self.gamma, self.clip = gamma, clip
        self.running = torch.zeros(rows, dtype=torch.float64, device=device)  # discounted return so far
        self.moments = torch.zeros(3, dtype=torch.float64, device=device)  # count, mean, Σ (x − mean)²

    @torch.no_grad()
    def scale(self, segments: Segments) -> Tensor:
        """[segments, horizon] scaled rewards; the moments include this rollout's."""
        reward = segments.reward.double().t().contiguous()
        keep = (~segments.done).double().t().contiguous()
        history = torch.empty_like(reward)
        for t in range(reward.shape[0]):
            torch.add(reward[t], self.running, alpha=self.gamma, out=history[t])
            torch.mul(history[t], keep[t], out=self.running)
        self._merge(history)
        deviation = (self.moments[2] / self.moments[0]).sqrt()
        return (segments.reward / (deviation + 1e-8).float()).clamp(-self.clip, self.clip)

    def _merge(self, x: Tensor) -> None:
        count, mean, m2 = self.moments.clone()
        n = x.numel()
        delta = x.mean() - mean
        total = count + n
        self.moments[0] = total
        self.moments[1] = mean + delta * n / total
        self.moments[2] = m2 + (x - x.mean()).square().sum() + delta.square() * count * n / total

    def state(self) -> State:
        return {"running": self.running.clone(), "moments": self.moments.clone()}

    def load_state(self, state: State) -> None:
        self.running.copy_(state["running"])
        self.moments.copy_(state["moments"])
