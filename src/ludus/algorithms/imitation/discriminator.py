"""Adversarial imitation: a discriminator learns to tell demonstrated motion from the policy's, and pays the policy
for being taken for the demonstration (AMP, Peng et al. 2021).

    loss = ½ (mean −log D(demo) + mean −log(1 − D(policy))) + c_g · mean ‖∂d/∂x‖²
           + c_l · ‖w_last‖² + c_w · Σ ‖W‖²              D = sigmoid(d), x a standardised window
    reward = style_scale · −log(1 − D(window))

It never asks what a window is. With windows of motion it is AMP; with windows of tracking errors, whose
demonstrations are zeros, it is ADD (Zhang et al. 2025), which wants the gradient penalty on the policy's windows:
of the demonstrations there is but one.

The penalty is a gradient of a gradient, so here autograd does the work. A gradient step reads tensors that stay in
place and waits for nothing: on a GPU it is recorded as a CUDA graph.
"""

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus import ranks
from ludus.algorithms.imitation.config import AdversaryConfig
from ludus.algorithms.imitation.windows import RolloutWindows, WindowReplay
from ludus.algorithms.optimizer import FlatAdam
from ludus.envs.vec import State, VecEnv, derive_seed, restore_generator
from ludus.graphs import Graphed
from ludus.policies.normalizer import ObsNormalizer
from ludus.ranges import check_fields

# Means over the batches of an iteration.
_MEASURES = tuple(
    f"adversary/{name}"
    for name in (
        "loss",
        "accuracy_demo",
        "accuracy_policy",
        "gradient_penalty",
        "logit_demo",
        "logit_policy",
        "style_reward",
    )
)
_CERTAIN = 1e-4  # D counts as at most 1 − this, so that no window is worth infinitely much


class Discriminator(nn.Module):
    """Standardised windows → fully connected layers → one logit, positive for what looks demonstrated."""

    def __init__(self, size: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.normalizer = ObsNormalizer((size,))
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise((size, *hidden)))
        self.head = nn.Linear((size, *hidden)[-1], 1)
        for layer in (*self.layers, self.head):
            assert isinstance(layer, nn.Linear)
            # At first nearly the same for every window: the first policies are paid for nothing in particular.
            nn.init.orthogonal_(layer.weight, gain=0.01 if layer is self.head else 2**0.5)
            nn.init.zeros_(layer.bias)

    def forward(self, windows: Tensor) -> Tensor:
        """[n] logits of [n, size] windows."""
        return self.judge(self.normalizer(windows))

    def judge(self, x: Tensor) -> Tensor:
        """The same of windows that are standardised already."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        logit: Tensor = self.head(x).squeeze(1)
        return logit

    def weights(self) -> list[Tensor]:
        """The matrices, without the biases; the last layer's last."""
        return [layer.weight for layer in (*self.layers, self.head)]


def make_discriminator(size: int, hidden: tuple[int, ...], seed: int) -> Discriminator:
    """Its weights `seed` alone determines; the global random stream is left untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Discriminator(size, hidden)


def style_reward(logit: Tensor, config: AdversaryConfig) -> Tensor:
    """What windows with these logits are worth."""
    if config.reward == "log":  # −log(1 − sigmoid(d)) is softplus(d)
        return config.style_scale * F.softplus(logit).clamp(max=-math.log(_CERTAIN))
    return config.style_scale * (1 - 0.25 * (logit - 1).square()).clamp(min=0)


def adversarial_loss(
    discriminator: Discriminator, demo: Tensor, policy: Tensor, config: AdversaryConfig
) -> tuple[Tensor, Tensor]:
    """(the loss, with its tape; [7] what `_MEASURES` names) of two batches of standardised windows."""
    demo, policy = demo.detach(), policy.detach()
    if config.penalized != "policy":
        demo.requires_grad_()
    if config.penalized != "demonstrations":
        policy.requires_grad_()
    of_demo, of_policy = discriminator.judge(demo), discriminator.judge(policy)
    slopes = [_squared_slope(d, x) for d, x in ((of_demo, demo), (of_policy, policy)) if x.requires_grad]
    penalty = torch.stack(slopes).mean()
    weights = discriminator.weights()
    loss = 0.5 * (_told_apart(of_demo, 1.0, config) + _told_apart(of_policy, -1.0, config))
    loss = loss + config.gradient_penalty * penalty + config.logit_regularizer * weights[-1].square().sum()
    if config.weight_decay:
        loss = loss + config.weight_decay * torch.stack([w.square().sum() for w in weights]).sum()
    return loss, _measures(loss, of_demo, of_policy, penalty, config)


def _told_apart(logit: Tensor, side: float, config: AdversaryConfig) -> Tensor:
    """How far the logits are from where they belong: above 0 on side 1, below on side −1."""
    if config.reward == "log":
        return F.softplus(-side * logit).mean()
    return (logit - side).square().mean()


def _squared_slope(logit: Tensor, x: Tensor) -> Tensor:
    """Mean over windows of ‖∂logit/∂x‖², with a tape of its own."""
    (slope,) = torch.autograd.grad(logit.sum(), x, create_graph=True)
    return slope.square().sum(1).mean()


@torch.no_grad()
def _measures(
    loss: Tensor, of_demo: Tensor, of_policy: Tensor, penalty: Tensor, config: AdversaryConfig
) -> Tensor:
    right = ((of_demo > 0).float().mean(), (of_policy < 0).float().mean())
    paid = style_reward(of_policy, config).mean()
    return torch.stack([loss, *right, penalty, of_demo.mean(), of_policy.mean(), paid])


def adversary_bytes(size: int, rows: int, steps: int, config: AdversaryConfig) -> int:
    """What an adversary holds for windows of `size` numbers, of `steps` steps of so many rows."""
    widths = [size, *config.hidden, 1]
    weights = sum(a * b + b for a, b in itertools.pairwise(widths))
    windows = steps * rows + config.replay + 2 * config.batch_size
    # Of a demonstrated window and one of the policy's: drawn and standardised; the slope, and its gradient;
    # every layer's output and what is passed back through it, once more for the penalty.
    gradient = config.batch_size * (6 * size + 8 * sum(config.hidden))
    networks = 6 * weights  # weights, gradients as taken and as kept, of the penalty, Adam's two moments
    return 4 * (windows * size + gradient + networks)


class Adversary:
    """The discriminator, what it learns from and what it pays. All of it is on `device`.

    Ranks have the discriminator in common. Each gives it windows of its own policy rows, and demonstrations.

    Rewards come from the discriminator as the last update left it, normaliser included: within a rollout all are
    paid by the same measure.
    """

    def __init__(
        self,
        size: int,  # of a window
        groups: Sequence[int],  # rows of each group of environments
        steps: int,  # of the longest rollout
        config: AdversaryConfig,
        seed: int,
        device: torch.device,
        env_device: torch.device,  # where demonstrations are drawn
        cuda_graphs: bool = True,
    ) -> None:
        check_fields(config, "adversary.")
        self.config, self.device = config, device
        self.discriminator = make_discriminator(size, config.hidden, derive_seed(seed, 10, 0)).to(device)
        self._parameters = list(self.discriminator.parameters())
        self.optimizer = FlatAdam(self._parameters, max_grad_norm=math.inf, eps=1e-8)
        self.rollout = RolloutWindows(steps, groups, size, device)
        self.replay = WindowReplay(config.replay, size, device)
        self.rate_factor = 1.0
        self._rate = torch.zeros((), device=device)
        streams = [derive_seed(seed, *ranks.own_stream(10, which)) for which in (1, 2)]
        self._generator = torch.Generator(device=device).manual_seed(streams[0])
        self._demo_generator = torch.Generator(device=env_device).manual_seed(streams[1])
        self._demo, self._policy = (torch.zeros((config.batch_size, size), device=device) for _ in range(2))
        self._totals = torch.zeros(len(_MEASURES), device=device)
        self._train = Graphed(self._train_on_batch, device, cuda_graphs)

    # In a rollout -------------------------------------------------------------------------------
    @torch.no_grad()
    def reward(self, windows: Tensor) -> Tensor:
        """[n] what these windows [n, size] are worth."""
        return style_reward(self.discriminator(windows), self.config)

    def record(self, windows: Tensor, group: int = 0) -> None:
        """Keep the windows of one step of a group's rows until the next update."""
        self.rollout.write(group, windows)

    # An update ----------------------------------------------------------------------------------
    @torch.no_grad()
    def update(self, env: VecEnv) -> dict[str, Tensor]:
        """Learn from the recorded rollout and from demonstrations of `env`; then forget the rollout."""
        config, normalizer = self.config, self.discriminator.normalizer
        self._totals.zero_()
        self.optimizer.skipped.zero_()
        # Before the gradient steps: what they learn holds for the standardisation that will pay.
        normalizer.update([self._demonstrations(env), self._of_rollout(config.batch_size)])
        for _ in range(config.batches):
            self.train_on(normalizer(self._demonstrations(env)), normalizer(self._of_policies()))
        self.replay.add(self._of_rollout(config.batch_size), self._generator)
        self.rollout.clear()
        return dict(zip(_MEASURES, (self._totals / config.batches).unbind(), strict=True))

    def train_on(self, demo: Tensor, policy: Tensor) -> None:
        """One gradient step on standardised windows, [batch_size, size] of each side."""
        self._demo.copy_(demo)
        self._policy.copy_(policy)
        self._rate.fill_(self.config.learning_rate * self.rate_factor)
        self._train()

    def _demonstrations(self, env: VecEnv) -> Tensor:
        return env.demonstrations(self.config.batch_size, self._demo_generator).to(self.device)

    def _of_rollout(self, count: int) -> Tensor:
        return self.rollout.draw(count, self._generator)

    def _of_policies(self) -> Tensor:
        """A batch of the newest policy's windows and of earlier ones'."""
        size = self.config.batch_size
        old = round(size * self.config.replay_share) if self.replay.stored else 0
        new = self._of_rollout(size - old)
        return torch.cat([new, self.replay.draw(old, self._generator)]) if old else new

    def _train_on_batch(self) -> None:
        with torch.enable_grad():
            loss, measures = adversarial_loss(self.discriminator, self._demo, self._policy, self.config)
            # Not backward(): it adds to gradients through nodes that remember the stream they were made on.
            gradients = torch.autograd.grad(loss, self._parameters)
        torch.cat([g.reshape(-1) for g in gradients], out=self.optimizer.grad)
        means = self.optimizer.average(measures)
        self.optimizer.step(self._rate)
        assert means is not None
        self._totals += means

    # State --------------------------------------------------------------------------------------
    def state(self) -> State:
        """Everything; of the rollout nothing is left between iterations."""
        return {
            "discriminator": {name: value.clone() for name, value in self.discriminator.state_dict().items()},
            "optimizer": self.optimizer.state(),
            "replay": self.replay.state(),
            "generator": self._generator.get_state(),
            "demo_generator": self._demo_generator.get_state(),
            "rate_factor": self.rate_factor,
        }

    def load_state(self, state: State) -> None:
        self.discriminator.load_state_dict(state["discriminator"])
        self.optimizer.load_state(state["optimizer"])
        if state["replay"] is not None:  # else of a rank that was not there when this was saved
            self.replay.load_state(state["replay"])
        restore_generator(self._generator, state["generator"])
        restore_generator(self._demo_generator, state["demo_generator"])
        self.rate_factor = state["rate_factor"]
        self.rollout.clear()
