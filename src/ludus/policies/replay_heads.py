"""Heads of policies that learn from a replay: SAC's squashed normal, TD3's single action, DQN's best choice."""

import math
from typing import NamedTuple

import gymnasium as gym
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ludus.envs.row_space import ActionRow
from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError
from ludus.policies.flash_layers import fused, project_rows
from ludus.policies.heads import MASKED_LOGIT, BoxHead, Head
from ludus.policies.mlp import Dense

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_LOG_2 = math.log(2.0)
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0
_LEAST_LOG_STD = -10.0  # of FlashSAC


class Squashed(NamedTuple):
    """A sample with what its gradient needs."""

    action: Tensor  # [n, actions] in (-1, 1)
    log_prob: Tensor  # [n]
    noise: Tensor
    std: Tensor | None = None
    slope: Tensor | None = None  # [n, actions] d log_std / d what the layer gave for it
    params: Tensor | None = None  # what the layer gave, where all is worked out again

    def first(self, n: int) -> "Squashed":
        return Squashed(*(None if part is None else part[:n] for part in self))  # type: ignore[arg-type]


class BoundedHead(BoxHead):
    """Actions within their bounds, which random ones fill."""

    def random(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        uniform = torch.rand((*shape, self.action_size), generator=generator, device=generator.device)
        return uniform.mul_(2.0).sub_(1.0)


class SquashedHead(BoundedHead):
    """tanh of a normal whose mean and spread both depend on the observation (Haarnoja et al. 2018)."""

    def __init__(self, features: int, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self.linear = Dense(features, 2 * self.action_size)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        mean, raw = params.chunk(2, -1)
        return torch.addcmul(mean, noise, self.log_std(raw).exp()).tanh()

    def mode(self, params: Tensor) -> Tensor:
        return params[..., : self.action_size].tanh()

    def sample_with_log_prob(self, params: Tensor, noise: Tensor) -> Squashed:
        mean, raw = params.chunk(2, -1)
        log_std = self.log_std(raw)
        std = log_std.exp()
        before = torch.addcmul(mean, noise, std)
        # log(1 − tanh²u) = 2 (log 2 − u − softplus(−2u)), exact also where tanh has rounded to 1.
        normal = torch.addcmul(log_std, noise, noise, value=0.5)
        squash = (before + F.softplus(-2.0 * before)).mul_(2.0)
        log_prob = (squash - normal).sum(-1) - self.action_size * (_LOG_SQRT_2PI + 2 * _LOG_2)
        return Squashed(before.tanh(), log_prob, noise, std, self.slope(raw, log_std))

    def log_std(self, raw: Tensor) -> Tensor:
        """Of what the layer gives for it."""
        return raw.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def slope(self, raw: Tensor, log_std: Tensor) -> Tensor:
        """d log_std / d raw: nothing at a limit."""
        return log_std == raw

    def gradient(self, sample: Squashed, action_gradient: Tensor, log_prob_gradient: Tensor) -> Tensor:
        """d/d params of a loss, given those of the sampled actions and, one number for all, of their log_prob."""
        action = sample.action
        assert sample.std is not None
        assert sample.slope is not None
        # u = mean + std · noise;  d tanh(u)/du = 1 − a²;  d log_prob/du = 2a;  d log_prob/d log_std = −1, besides.
        mean = action_gradient * (1.0 - action * action) + (2.0 * log_prob_gradient) * action
        log_std = (mean * sample.std * sample.noise - log_prob_gradient) * sample.slope
        return torch.cat([mean, log_std], -1)


class FlashHead(SquashedHead):
    """The same with a spread that is bounded smoothly, and weights whose rows have length 1 (FlashSAC)."""

    def __init__(self, features: int, space: gym.spaces.Box) -> None:
        super().__init__(features, space)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.project()

    def log_std(self, raw: Tensor) -> Tensor:
        half = 0.5 * (LOG_STD_MAX - _LEAST_LOG_STD)
        return (raw.tanh() + 1.0) * half + _LEAST_LOG_STD

    def slope(self, raw: Tensor, log_std: Tensor) -> Tensor:
        half = 0.5 * (LOG_STD_MAX - _LEAST_LOG_STD)
        return (1.0 - raw.tanh().square()) * half

    def sample_with_log_prob(self, params: Tensor, noise: Tensor) -> Squashed:
        if not fused(params):
            return super().sample_with_log_prob(params, noise)
        from ludus.policies import flash_triton

        constant = self.action_size * (_LOG_SQRT_2PI + 2 * _LOG_2)
        action, log_prob = flash_triton.squash(params, noise, _LEAST_LOG_STD, LOG_STD_MAX, constant)
        return Squashed(action, log_prob, noise, params=params)

    def gradient(self, sample: Squashed, action_gradient: Tensor, log_prob_gradient: Tensor) -> Tensor:
        if sample.params is None:
            return super().gradient(sample, action_gradient, log_prob_gradient)
        from ludus.policies import flash_triton

        return flash_triton.squash_back(
            sample.params, sample.noise, sample.action, action_gradient.t(), log_prob_gradient, _LEAST_LOG_STD,
            LOG_STD_MAX,
        )  # fmt: skip

    @torch.no_grad()
    def project(self) -> None:
        """After an optimiser step."""
        project_rows(self.linear.weight)


class DeterministicHead(BoundedHead):
    """One action for an observation; exploring adds noise to it (Fujimoto et al. 2018)."""

    spread: Tensor

    def __init__(self, features: int, space: gym.spaces.Box) -> None:
        super().__init__(space)
        self.linear = Dense(features, self.action_size)
        self.register_buffer("spread", torch.tensor(0.1))  # of the noise, set by the algorithm

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        return torch.addcmul(params.tanh(), noise, self.spread).clamp(-1.0, 1.0)

    def mode(self, params: Tensor) -> Tensor:
        return params.tanh()


class GreedyHead(Head):
    """What each choice is worth; now and then (`epsilon`) another than the best is tried (Mnih et al. 2015)."""

    epsilon: Tensor

    def __init__(self, features: int, choices: int, start: int) -> None:
        super().__init__()
        self.start = start
        self.action_size, self.noise_size = 1, choices + 1
        self.num_params = choices
        self.linear = Dense(features, choices)
        self.register_buffer("epsilon", torch.tensor(0.05))  # set by the algorithm

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.rand((*shape, self.noise_size), generator=generator, device=generator.device)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        explore = (noise[..., :1] < self.epsilon) & (params != MASKED_LOGIT)
        return self.mode(torch.where(explore, noise[..., 1:], params))

    def random(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        choices = self.linear.out_features
        return torch.randint(choices, (*shape, 1), generator=generator, device=generator.device).float()

    def masked(self, params: Tensor, mask: Tensor) -> Tensor:
        """As of other heads; but where nothing is valid, as after a last step, all values stay."""
        blocked = (mask == 0) & (mask != 0).any(-1, keepdim=True)
        return params.masked_fill_(blocked, MASKED_LOGIT)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1, keepdim=True).float()

    def to_env(self, action: Tensor) -> Tensor:
        return action.squeeze(-1).long() + self.start

    def from_env(self, action: Tensor) -> Tensor:
        return (action.reshape(-1, 1) - self.start).float()


ReplayHead = SquashedHead | DeterministicHead | GreedyHead
FLASH = "flash-sac"
REPLAY_KINDS = {"sac": "SAC", "td3": "TD3", "dqn": "DQN", FLASH: "FlashSAC"}
"""What learns from a replay, and how it is written."""
_OF_BOXES: dict[str, type[SquashedHead] | type[DeterministicHead]] = {
    "sac": SquashedHead,
    "td3": DeterministicHead,
    FLASH: FlashHead,
}


def make_replay_head(kind: str, space: ActionSpace, features: int) -> ReplayHead:
    """The head of one of `REPLAY_KINDS`."""
    if kind not in REPLAY_KINDS:
        raise ConfigError(f"No policy learns by {kind!r} from a replay; {', '.join(REPLAY_KINDS)} do.")
    if isinstance(space, ActionRow):
        raise ConfigError(f"{REPLAY_KINDS[kind]} acts in one space; for the parts of {space.raw} take --algo ppo.")
    if kind == "dqn":
        if not isinstance(space, gym.spaces.Discrete):
            others = "sac, td3, flash-sac or ppo" if isinstance(space, gym.spaces.Box) else "ppo"
            raise ConfigError(f"DQN chooses among numbered actions; for {space} take --algo {others}.")
        return GreedyHead(features, int(space.n), int(space.start))
    name = REPLAY_KINDS[kind]
    if not isinstance(space, gym.spaces.Box):
        others = "dqn or ppo" if isinstance(space, gym.spaces.Discrete) else "ppo"
        raise ConfigError(f"{name} needs continuous actions; for {space} take --algo {others}.")
    if not space.is_bounded():
        raise ConfigError(f"{name} needs bounds on every action, and {space} has none on some; take --algo ppo.")
    return _OF_BOXES[kind](features, space)
