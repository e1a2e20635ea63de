"""Proximal policy optimisation (Schulman et al. 2017) on segments.

    ratio_t = π(a_t|s_t) / π_old(a_t|s_t)
    loss = −mean min(ratio · A, clip(ratio, 1 ± ε) · A) + c_v · mean (V − R)² − c_e · mean entropy

The derivative of that loss with respect to the networks' outputs is short, so it is written out
(`_step`), and the policy takes it from there through its layers. Nothing inside an update waits for a
value from the device: stops and skips are flags that the optimiser reads there.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

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
    """Cap on a continuous policy's spread at the end, closing over the second half; 0 leaves it free."""
    max_grad_norm: float = 0.5
    """Gradients longer than this are shortened to it."""
    normalize_advantage: bool = True
    """Standardise advantages over each iteration's steps."""
    normalize_returns: bool = True
    """Divide rewards by the running spread of the discounted return."""
    recompute_advantages: bool = False
    """Estimate advantages anew, with the newest critic, before each pass."""
    target_kl: float = 0.0
    """Wanted divergence of an iteration's policies; 0 ignores it."""
    kl_control: Literal["stop", "adapt"] = "stop"
    """Above 1.5 × target_kl, stop the iteration's updates; or adapt the step size between iterations."""


class Batch(NamedTuple):
    """A minibatch of steps."""

    x: Tensor  # [n, obs] normalised
    action: Tensor  # [n, action]
    old_log_prob: Tensor  # [n]
    advantage: Tensor  # [n]
    returns: Tensor  # [n] value targets
    old_value: Tensor  # [n]


# Means over the last pass of an iteration.
_MEASURES = (
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
    "train/approx_kl",
    "train/clip_fraction",
    "train/grad_norm",
)


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
        self.stopped = torch.zeros((), device=device)  # 1 once the divergence limit was passed

    # One update ---------------------------------------------------------------------------------
    @torch.inference_mode()  # no bookkeeping for a tape that is never used: each call is a little cheaper
    def update(self, segments: Segments, progress: float) -> dict[str, Tensor]:
        """Improve the policy on one rollout; `progress` (0 to 1) is how much of the training is done."""
        config, policy = self.config, self.policy
        rate, entropy_coef = self._scheduled(progress)
        reward = self.returns.scale(segments) if config.normalize_returns else segments.reward
        x, action = policy.normalize(segments.obs.flatten(0, 1)), segments.action.flatten(0, 1)
        old_params, old_value = policy.params_and_value_of(x)
        old_log_prob = policy.head.log_prob(old_params, action)
        advantage, returns = self._advantages(segments, reward, old_value)
        summary = self._summary(old_value, returns, rate, entropy_coef)
        self.stopped.zero_()
        self.optimizer.skipped.zero_()
        for epoch in range(config.update_epochs):
            if epoch and config.recompute_advantages:
                advantage, returns = self._advantages(segments, reward, policy.value_of(x))
            totals = torch.zeros(len(_MEASURES), device=x.device)
            last = epoch == config.update_epochs - 1
            data = self._shuffle(x, action, old_log_prob, self._normalized(advantage), returns, old_value)
            for batch in zip(*(d.chunk(config.minibatches) for d in data), strict=True):
                self._step(Batch(*batch), rate, entropy_coef, totals if last or config.target_kl else None)
            if self.stopped.device.type == "cpu" and bool(self.stopped):
                break  # free to ask on the CPU; elsewhere the optimiser skips what is left
        self._after(segments, progress)
        means = (totals / config.minibatches).unbind()
        return dict(zip(_MEASURES, means, strict=True)) | summary | self._after_summary()

    def _shuffle(self, *tensors: Tensor) -> list[Tensor]:
        """The same random order for all: minibatches are then contiguous pieces."""
        order = torch.randperm(tensors[0].shape[0], generator=self.generator, device=tensors[0].device)
        return [t[order] for t in tensors]

    def _normalized(self, advantage: Tensor) -> Tensor:
        """Standardised over the whole iteration: steadier than over each minibatch, and done once."""
        if not self.config.normalize_advantage:
            return advantage
        return (advantage - advantage.mean()) / (advantage.std() + 1e-8)

    def _step(self, batch: "Batch", rate: float, entropy_coef: float, totals: Tensor | None) -> None:
        """One gradient step. `totals`, where given, collects what the user wants to see of it."""
        config, head = self.config, self.policy.head
        done = self.policy.forward_pass(batch.x)
        log_prob, saved = head.score(done.params, batch.action)
        log_ratio = log_prob - batch.old_log_prob
        ratio = log_ratio.exp()
        surrogate = ratio * batch.advantage
        clipped = ratio.clamp(1 - config.clip, 1 + config.clip) * batch.advantage
        # d/d log π of −mean min(surrogate, clipped): −surrogate where it is the smaller, nothing elsewhere.
        weight = (surrogate <= clipped).mul(surrogate).mul_(-1.0 / ratio.shape[0])
        params_gradient = head.seed_gradient(saved, weight, entropy_coef)
        self.policy.backward(done, params_gradient, self._value_gradient(done.value, batch))
        if totals is not None:
            kl = (ratio - 1 - log_ratio).mean()
            if config.target_kl > 0 and config.kl_control == "stop":
                torch.maximum(self.stopped, (kl > 1.5 * config.target_kl).float(), out=self.stopped)
        norm = self.optimizer.step(rate, self.stopped if config.target_kl > 0 else None)
        if totals is not None:
            value_loss = (done.value - batch.returns).square().mean()
            clip_fraction = ((ratio - 1).abs() > config.clip).float().mean()
            entropy = head.entropy(done.params).mean()
            policy_loss = -torch.minimum(surrogate, clipped).mean()
            totals += torch.stack([policy_loss, value_loss, entropy, kl, clip_fraction, norm])

    def _value_gradient(self, value: Tensor, batch: "Batch") -> Tensor:
        """d/d V of c_v · mean (V − R)², or of the larger of that and the clipped error."""
        config = self.config
        gradient = (value - batch.returns).mul_(2 * config.value_coef / value.shape[0])
        if config.value_clip > 0:
            moved = value - batch.old_value
            clipped = batch.old_value + moved.clamp(-config.value_clip, config.value_clip)
            further = (clipped - batch.returns).abs() > (value - batch.returns).abs()
            gradient.masked_fill_((moved.abs() > config.value_clip) & further, 0.0)
        return gradient

    # Around the update --------------------------------------------------------------------------
    def _advantages(self, segments: Segments, reward: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Flat ([steps] advantages, [steps] value targets) under the present critic."""
        policy, config = self.policy, self.config
        ends = torch.cat([segments.last_obs, segments.truncated_obs])
        last_value, truncated_value = policy.value_of(policy.normalize(ends)).split(
            [segments.last_obs.shape[0], segments.truncated_obs.shape[0]]
        )
        value = value.view_as(reward)
        following = next_values(value, last_value, segments.terminated, segments.truncated_at, truncated_value)
        advantage = generalized_advantage(reward, value, following, segments.done, config.gamma, config.gae_lambda)
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
            if self.config.std_final > 0 and progress > 0.5:
                start = self.policy.config.initial_std
                highest = start * (self.config.std_final / start) ** (2 * progress - 1)
            head.limit_std(highest)
        # After the update, so that acting and learning saw the same standardisation.
        if self.policy.normalizer is not None:
            self.policy.normalizer.update(segments.obs.flatten(2))

    def _summary(self, value: Tensor, returns: Tensor, rate: float, entropy_coef: float) -> dict[str, Tensor]:
        return {
            "train/explained_variance": 1 - (returns - value).var() / (returns.var() + 1e-12),
            "train/learning_rate": torch.tensor(rate, dtype=torch.float64),
            "train/entropy_coef": torch.tensor(entropy_coef, dtype=torch.float64),
        }

    def _after_summary(self) -> dict[str, Tensor]:
        summary = {"train/skipped_updates": self.optimizer.skipped.clone()}
        if isinstance(self.policy.head, GaussianHead):
            summary["train/std"] = self.policy.head.log_std.exp().mean()
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
