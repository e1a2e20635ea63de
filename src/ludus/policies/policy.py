"""The policy: normaliser → encoder → (memory) → heads. It carries all that is needed to act."""

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace, VecEnv
from ludus.policies.heads import Head, make_head
from ludus.policies.mlp import MLP, Activation, Dense
from ludus.policies.normalizer import ObsNormalizer


@dataclass(frozen=True)
class PolicyConfig:
    """The networks."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Non-linearity between layers."""
    shared_trunk: bool = False
    """One encoder for actor and critic instead of one each."""
    initial_std: float = 1.0
    """Spread of a continuous policy at the start, where 1 is half of the action range."""
    normalize_obs: bool = True
    """Standardise observations by their running mean and variance."""


class Pass(NamedTuple):
    """A forward pass over a minibatch, with what its gradient needs."""

    params: Tensor  # [n, parameters of the head]
    value: Tensor  # [n]
    actor: list[Tensor]  # layer outputs of the encoder
    critic: list[Tensor]  # of the value encoder; the same list where the trunk is shared


class Policy(nn.Module):
    """Actor and critic. Methods ending in `_of` take normalised observations, the others raw ones."""

    def __init__(self, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig) -> None:
        super().__init__()
        self.obs_space, self.action_space, self.config = obs_space, action_space, config
        size = int(np.prod(obs_space.shape))
        self.normalizer = ObsNormalizer((size,)) if config.normalize_obs else None
        self.encoder = MLP(size, config.hidden, config.activation)
        self.value_encoder = None if config.shared_trunk else MLP(size, config.hidden, config.activation)
        self.head: Head = make_head(action_space, self.encoder.features, config.initial_std)
        self.value_head = Dense(self.encoder.features, 1)
        self._initialise()

    def _initialise(self) -> None:
        """Orthogonal weights; a nearly uniform first policy (gain 0.01) and an unbiased critic (gain 1)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
                nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.head.linear.weight, gain=0.01)
        nn.init.orthogonal_(self.value_head.weight, gain=1.0)

    # Raw observations ---------------------------------------------------------------------------
    def normalize(self, obs: Tensor) -> Tensor:
        """[n, *obs] → [n, size] float32, standardised."""
        flat = obs.reshape(obs.shape[0], -1).float()
        return flat if self.normalizer is None else self.normalizer(flat)

    @torch.no_grad()
    def act(self, obs: Any, deterministic: bool = True, generator: torch.Generator | None = None) -> Any:
        """Actions in the environment's units for one observation or a batch; arrays in, arrays out."""
        tensor = torch.as_tensor(obs, device=self.value_head.weight.device)
        single = tensor.ndim == len(self.obs_space.shape)
        params = self.params_of(self.normalize(tensor[None] if single else tensor))
        action = self.head.to_env(self.choose(params, deterministic, generator))
        action = action[0] if single else action
        return action if isinstance(obs, Tensor) else action.cpu().numpy()

    def choose(self, params: Tensor, deterministic: bool, generator: torch.Generator | None = None) -> Tensor:
        if deterministic:
            return self.head.mode(params)
        generator = generator or torch.default_generator
        return self.head.sample(params, self.head.noise(params.shape[:-1], generator))

    def forward(self, obs: Tensor) -> Tensor:
        """The deterministic action in the environment's units: what an export holds."""
        return self.head.to_env(self.head.mode(self.params_of(self.normalize(obs))))

    # Normalised observations --------------------------------------------------------------------
    def params_of(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))

    def value_of(self, x: Tensor) -> Tensor:
        encoder = self.encoder if self.value_encoder is None else self.value_encoder
        return self.value_head(encoder(x)).squeeze(-1)

    def params_and_value_of(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.encoder(x)
        value_features = features if self.value_encoder is None else self.value_encoder(x)
        return self.head(features), self.value_head(value_features).squeeze(-1)

    # Learning -----------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor) -> Pass:
        """Parameters and values of a minibatch, keeping what `backward` needs. Call under no_grad."""
        actor = self.encoder.outputs(x)
        critic = actor if self.value_encoder is None else self.value_encoder.outputs(x)
        params = self.head.linear.forward(actor[-1])
        return Pass(params, self.value_head.forward(critic[-1]).squeeze(-1), actor, critic)

    def backward(self, done: Pass, params_gradient: Tensor, value_gradient: Tensor) -> None:
        """Write every network parameter's gradient, given those of the outputs."""
        value_gradient = value_gradient[:, None]
        self.head.linear.write_gradient(done.actor[-1], params_gradient)
        self.value_head.write_gradient(done.critic[-1], value_gradient)
        features_gradient = self.head.linear.input_gradient(params_gradient)
        value_features_gradient = self.value_head.input_gradient(value_gradient)
        if self.value_encoder is None:
            self.encoder.backward(done.actor, features_gradient + value_features_gradient)
        else:
            self.encoder.backward(done.actor, features_gradient)
            self.value_encoder.backward(done.critic, value_features_gradient)

    # Saving -------------------------------------------------------------------------------------
    def description(self) -> dict[str, Any]:
        """What `from_description` rebuilds the policy from, as plain JSON."""
        return {
            "config": asdict(self.config),
            "obs_space": _describe_space(self.obs_space),
            "action_space": _describe_space(self.action_space),
        }

    @staticmethod
    def from_description(description: dict[str, Any]) -> "Policy":
        config = dict(description["config"])
        config["hidden"] = tuple(config["hidden"])
        obs_space, action_space = (_space(description[k]) for k in ("obs_space", "action_space"))
        return Policy(obs_space, action_space, PolicyConfig(**config))


def make_policy(env: VecEnv, config: PolicyConfig, seed: int) -> Policy:
    """A new policy whose weights `seed` alone determines; the global random stream is left untouched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy(env.obs_space, env.action_space, config)


def _describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Box):
        # JSON has no infinity: bounds are written as strings.
        bounds = {k: [str(float(v)) for v in getattr(space, k).ravel()] for k in ("low", "high")}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    assert isinstance(space, gym.spaces.MultiDiscrete)
    return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}


def _space(description: dict[str, Any]) -> Any:
    if description["kind"] == "Box":
        dtype = np.dtype(description["dtype"])
        low, high = (
            np.array([float(v) for v in description[k]]).reshape(description["shape"]).astype(dtype)
            for k in ("low", "high")
        )
        return gym.spaces.Box(low, high, tuple(description["shape"]), dtype.type)
    if description["kind"] == "Discrete":
        return gym.spaces.Discrete(description["n"], start=description["start"])
    return gym.spaces.MultiDiscrete(description["nvec"], start=description["start"])
