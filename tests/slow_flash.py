"""FlashSAC, slow and obvious: rows × numbers, one network at a time, gradients by autograd, bins one by one.

It starts from the weights of an agent. Nothing else is shared with it.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class SlowNet:
    """Batch norm → linear → blocks → RMS norm → head. A block adds what two linear layers make of its input."""

    def __init__(self, layers: Any, copy: int, weight: Tensor, bias: Tensor) -> None:
        """Of network number `copy` of some that lie side by side."""
        count = layers.copies
        self.weights = [leaf(part[copy]) for part in layers.weights]
        sizes = [part.shape[1] for part in layers.weights]
        widths, at = [layers.inputs, *sizes[1:]], 0
        self.scales, self.shifts, self.means, self.variances = [], [], [], []
        for width in widths:
            self.scales.append(leaf(layers.norms[at : at + count * width].view(count, width)[copy]))
            at += count * width
            self.shifts.append(leaf(layers.norms[at : at + count * width].view(count, width)[copy]))
            at += count * width
        self.rms = leaf(layers.norms[at:].view(count, -1)[copy])
        self.head, self.bias = leaf(weight), leaf(bias.reshape(-1))
        self.means = [torch.zeros(width) for width in widths]
        self.variances = [torch.ones(width) for width in widths]

    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.scales, *self.shifts, self.rms, self.head, self.bias]

    def norm(self, i: int, x: Tensor, batch: bool) -> Tensor:
        mean, variance = self.means[i], self.variances[i]
        if batch:
            mean, variance = x.mean(0), x.var(0, correction=0)
            unbiased = variance.detach() * len(x) / (len(x) - 1)
            self.means[i] = 0.99 * self.means[i] + 0.01 * mean.detach()
            self.variances[i] = 0.99 * self.variances[i] + 0.01 * unbiased
        return (x - mean) / (variance + 1e-5).sqrt() * self.scales[i] + self.shifts[i]

    def __call__(self, x: Tensor, batch: bool) -> Tensor:
        x = self.norm(0, x, batch) @ self.weights[0].T
        for i in range(1, len(self.weights), 2):
            inside = F.relu(self.norm(i, x @ self.weights[i].T, batch))
            x = x + F.relu(self.norm(i + 1, inside @ self.weights[i + 1].T, batch))
        x = x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt() * self.rms
        return x @ self.head.T + self.bias

    @torch.no_grad()
    def project(self) -> None:
        for weight in [*self.weights, self.head]:
            for row in weight:
                row /= row.norm()
        for scale, shift in zip(self.scales, self.shifts, strict=True):
            factor = math.sqrt(len(scale) / (float(scale.square().sum() + shift.square().sum()) + 1e-8))
            scale *= factor
            shift *= factor
        self.rms *= math.sqrt(len(self.rms) / (float(self.rms.square().sum()) + 1e-8))


def leaf(values: Tensor) -> Tensor:
    return values.detach().clone().requires_grad_()


class NeverFlat(torch.autograd.Function):
    """tanh, with a slope of at least 0.001: as imitation sees it."""

    @staticmethod
    def forward(ctx: Any, before: Tensor) -> Tensor:
        action = before.tanh()
        ctx.save_for_backward(action)
        return action

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (action,) = ctx.saved_tensors
        return gradient * (1 - action**2).clamp(min=0.001)


class SlowFlash:
    """What `FlashSAC` computes, with settings of its own."""

    def __init__(self, agent: Any, actor_columns: slice) -> None:
        self.flash, self.config = agent.flash, agent.config
        self.actor_columns = actor_columns
        self.actor = SlowNet(agent.layers, 0, agent.head.linear.weight, agent.head.linear.bias)
        self.critics, self.targets = (
            [SlowNet(c.layers, i, c.weight[i], c.bias[i]) for i in range(2)]
            for c in (agent.critics, agent.target_critics)
        )
        self.log_alpha = leaf(agent.log_alpha)
        self.actor_adam, self.alpha_adam, self.critic_adam = (
            Adam(of)
            for of in (
                self.actor.parameters(),
                [self.log_alpha],
                [p for critic in self.critics for p in critic.parameters()],
            )
        )
        self.bins = torch.linspace(-self.flash.highest_value, self.flash.highest_value, self.flash.bins)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = params.chunk(2, 1)
        std = (-10.0 + 6.0 * (1.0 + raw.tanh())).exp()
        normal = torch.distributions.Normal(mean, std)
        before = mean + std * noise
        slope = before.cosh() ** -2  # d tanh(u)/du
        return before.tanh(), (normal.log_prob(before) - slope.log()).sum(1)

    def value(self, logits: Tensor) -> Tensor:
        return (logits.softmax(1) * self.bins).sum(1)

    def update(self, batch: Any, number: int, progress: float, factor: float) -> list[Tensor]:
        """Returns the losses, as the agent measures them; the policy's are None where it stays."""
        n = len(batch.reward)
        seen = batch.x[:, self.actor_columns]
        told: list[Any] = [None, None, None]
        if number % self.flash.policy_delay == 0:
            told = self.update_policy(batch, seen, n, progress)
        alpha = self.log_alpha.detach().exp()
        with torch.no_grad():
            action, log_prob = self.sample(self.actor(seen[n:], False), batch.noise[n:])
            x = torch.cat([batch.x, torch.cat([batch.action, action])], 1)
            logits = [target(x, True)[n:] for target in self.targets]
            wanted = self.wanted(batch, logits, alpha * log_prob, factor)
        losses = [-(wanted * critic(x, True)[:n].log_softmax(1)).sum(1).mean() for critic in self.critics]
        loss = (losses[0] + losses[1]) / 2
        self.critic_adam.step(loss, self.rate(progress))
        for critic in self.critics:
            critic.project()
        if (number + 1) % self.config.train_target == 0:
            self.follow()
        edges = (wanted[:, 0] + wanted[:, -1]).mean()
        return [loss.detach(), edges, *told, alpha]

    def update_policy(self, batch: Any, seen: Tensor, n: int, progress: float) -> list[Tensor]:
        alpha = self.log_alpha.exp()
        params = self.actor(seen, True)[:n]
        action, log_prob = self.sample(params, batch.noise[:n])
        value = self.least(batch.x[:n], action)
        loss = (alpha.detach() * log_prob - value).mean()
        followed = self.beside_imitation(batch, params, value, loss) if self.config.imitates else loss
        if self.config.imitates and self.config.bc == 0:
            followed = self.imitation_alone(batch, params, value, alpha.detach())
        wanted = 0.5 * action.shape[1] * math.log(2 * math.pi * math.e * self.flash.target_std**2)
        rate = self.rate(progress / self.flash.policy_delay)
        self.actor_adam.step(followed, rate)
        self.alpha_adam.step(alpha * (-log_prob.detach().mean() - wanted), rate)
        self.actor.project()
        return [loss.detach(), value.detach().mean(), -log_prob.detach().mean()]

    def least(self, x: Tensor, action: Tensor) -> Tensor:
        """[n] what the critic that expects less expects."""
        return torch.minimum(*(self.value(critic(torch.cat([x, action], 1), False)) for critic in self.critics))

    def beside_imitation(self, batch: Any, params: Tensor, value: Tensor, loss: Tensor) -> Tensor:
        """TD3+BC's loss, its imitation weighted by advantages."""
        distance = (NeverFlat.apply(params.chunk(2, 1)[0]) - batch.action).square().mean(1)
        trusted = loss * self.config.bc / value.detach().abs().mean()
        return trusted + (self.imitated(batch, value) * distance).mean()

    def imitation_alone(self, batch: Any, params: Tensor, value: Tensor, alpha: Tensor) -> Tensor:
        """Entropy has a say about spreads alone."""
        mean, spread = params.chunk(2, 1)
        distance = (NeverFlat.apply(mean) - batch.action).square().mean(1)
        _, log_prob = self.sample(torch.cat([mean.detach(), spread], 1), batch.noise[: len(value)])
        return (self.imitated(batch, value) * distance + alpha * log_prob).mean()

    def imitated(self, batch: Any, value: Tensor) -> Tensor:
        """[n] how much each recorded action is imitated."""
        advantage = (self.least(batch.x[: len(value)], batch.action) - value).detach()
        in_spreads = (advantage - advantage.mean()) / advantage.std(correction=0)
        weight = (self.config.advantage * in_spreads).exp().clamp(max=20)
        return weight / weight.mean()

    def wanted(self, batch: Any, logits: list[Tensor], soft: Tensor, factor: float) -> Tensor:
        """[n, bins] of the target critic that expects less, moved and split bin by bin."""
        first, second = (self.value(part) for part in logits)
        wanted, width = torch.zeros_like(logits[0]), float(self.bins[1] - self.bins[0])
        for row in range(len(wanted)):
            lower = logits[0][row] if first[row] <= second[row] else logits[1][row]
            for bin_, likely in zip(self.bins, lower.softmax(0), strict=True):
                value = batch.reward[row] * factor + batch.discount[row] * (bin_ - soft[row])
                value = value.clamp(self.bins[0], self.bins[-1])
                wanted[row] += likely * (1 - (value - self.bins).abs() / width).clamp(
                    min=0
                )  # to the two beside it
        return wanted

    def rate(self, progress: float) -> float:
        last = self.flash.final_rate
        return self.config.learning_rate * (last + (1 - last) * (1 + math.cos(math.pi * progress)) / 2)

    @torch.no_grad()
    def follow(self) -> None:
        for target, critic in zip(self.targets, self.critics, strict=True):
            for mine, its in zip(target.parameters(), critic.parameters(), strict=True):
                mine.copy_(self.config.polyak * mine + (1 - self.config.polyak) * its)


class Adam:
    """Kingma & Ba 2015."""

    def __init__(self, parameters: list[Tensor]) -> None:
        self.parameters, self.steps = parameters, 0
        self.means, self.squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))

    def step(self, loss: Tensor, rate: float) -> None:
        self.steps += 1
        gradients = torch.autograd.grad(loss, self.parameters)
        with torch.no_grad():
            for p, g, mean, square in zip(self.parameters, gradients, self.means, self.squares, strict=True):
                mean.copy_(0.9 * mean + 0.1 * g)
                square.copy_(0.999 * square + 0.001 * g**2)
                root = (square / (1 - 0.999**self.steps)).sqrt()
                p -= rate * mean / (1 - 0.9**self.steps) / (root + 1e-8)
