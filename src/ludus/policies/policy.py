"""The policy: normaliser → encoder → (memory) → heads. It carries all that is needed to act."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace, VecEnv
from ludus.errors import LudusError
from ludus.policies.heads import Head, make_head
from ludus.policies.lstm import LSTM, Run
from ludus.policies.mlp import MLP, Activation, Dense
from ludus.policies.normalizer import ObsNormalizer


@dataclass(frozen=True)
class PolicyConfig:
    """The networks."""

    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Non-linearity between layers."""
    memory: Literal["none", "lstm"] = "none"
    """What the policy remembers of an episode: nothing, or an LSTM's state between the layers and the heads."""
    memory_size: int = 128
    """Width of the memory."""
    forget_bias: float = 1.0
    """How long an untrained memory holds what it saw: with 1 some steps, with 4 about a hundred."""
    shared_trunk: bool = False
    """One encoder for actor and critic instead of one each; always so with a memory."""
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
    memory: Run | None


class Policy(nn.Module):
    """Actor and critic.

    Methods that take `x` want prepared observations (`prepare`), the others raw ones. `state` is what the policy
    remembers, [rows, state_size], zero where an episode begins; without a memory it is empty and passed on.
    """

    def __init__(self, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig) -> None:
        super().__init__()
        self.obs_space, self.action_space, self.config = obs_space, action_space, config
        size = int(np.prod(obs_space.shape))
        self.normalizer = ObsNormalizer((size,)) if config.normalize_obs else None
        self.encoder = MLP(size, config.hidden, config.activation)
        self.memory = self._make_memory()
        shared = config.shared_trunk or self.memory is not None
        self.value_encoder = None if shared else MLP(size, config.hidden, config.activation)
        self.features = self.encoder.features if self.memory is None else self.memory.size
        self.head: Head = make_head(action_space, self.features, config.initial_std)
        self.value_head = Dense(self.features, 1)
        self.state_size = 0 if self.memory is None else self.memory.state_size
        self._initialise()

    def _initialise(self) -> None:
        """Orthogonal weights; a nearly uniform first policy (gain 0.01) and an unbiased critic (gain 1)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
                nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.head.linear.weight, gain=0.01)
        nn.init.orthogonal_(self.value_head.weight, gain=1.0)

    def _make_memory(self) -> LSTM | None:
        config = self.config
        if config.memory == "none":
            return None
        return LSTM(self.encoder.features, config.memory_size, config.forget_bias)

    @property
    def device(self) -> torch.device:
        return self.value_head.weight.device

    def start(self, rows: int) -> Tensor:
        """The state at the beginning of an episode."""
        return torch.zeros((rows, self.state_size), device=self.device)

    # Acting -------------------------------------------------------------------------------------
    def prepare(self, obs: Tensor) -> Tensor:
        """[n, *obs] → [n, size] float32, standardised."""
        flat = obs.reshape(obs.shape[0], -1).float()
        return flat if self.normalizer is None else self.normalizer(flat)

    def params_of(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The head's parameters, and the new state."""
        features, state = self._remember(self.encoder(x), state)
        return self.head(features), state

    def params_and_value_of(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The head's parameters, the values [n], and the new state."""
        features, state = self._remember(self.encoder(x), state)
        value_features = features if self.value_encoder is None else self.value_encoder(x)
        return self.head(features), self.value_head(value_features).squeeze(-1), state

    def value_of(self, x: Tensor, state: Tensor) -> Tensor:
        """[n] values alone."""
        if self.value_encoder is not None:
            return self.value_head(self.value_encoder(x)).squeeze(-1)
        return self.value_head(self._remember(self.encoder(x), state)[0]).squeeze(-1)

    def _remember(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return (features, state) if self.memory is None else self.memory.step(features, state)

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        """Actions in the environment's units for one observation or a batch; arrays in, arrays out.

        A policy with a memory acts through an `Actor`, which keeps it from step to step.
        """
        if self.memory is not None:
            raise LudusError("This policy has a memory: act with `actor = policy.actor()`, one for each episode.")
        return self.actor(deterministic=deterministic).act(obs)

    def actor(self, deterministic: bool = True, generator: torch.Generator | None = None) -> "Actor":
        return Actor(self, deterministic, generator)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The deterministic action in the environment's units, and the new state: what an export holds."""
        params, state = self.params_of(self.prepare(obs), state)
        return self.head.to_env(self.head.mode(params)), state

    # Learning -----------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor, state: Tensor, keep: Tensor | None) -> Pass:
        """Parameters and values of a minibatch, keeping what `backward` needs. Call under no_grad.

        With a memory, `x` holds whole segments, time first; `state` is that before the first step, and `keep`
        [horizon, segments] is 0 where it was reset before a step.
        """
        actor, run = self.encoder.outputs(x), None
        critic = actor if self.value_encoder is None else self.value_encoder.outputs(x)
        features, value_features = actor[-1], critic[-1]
        if self.memory is not None:
            assert keep is not None
            run = self.memory.run(features, state, keep)
            features = value_features = run.output
        params = self.head.linear.forward(features)
        return Pass(params, self.value_head.forward(value_features).squeeze(-1), actor, critic, run)

    def backward(self, done: Pass, params_gradient: Tensor, value_gradient: Tensor) -> None:
        """Write every network parameter's gradient, given those of the outputs."""
        value_gradient = value_gradient[:, None]
        features = done.actor[-1] if done.memory is None else done.memory.output
        self.head.linear.write_gradient(features, params_gradient)
        self.value_head.write_gradient(features if done.critic is done.actor else done.critic[-1], value_gradient)
        gradient = self.head.linear.input_gradient(params_gradient)
        value_features_gradient = self.value_head.input_gradient(value_gradient)
        if self.value_encoder is not None:
            self.encoder.backward(done.actor, gradient)
            self.value_encoder.backward(done.critic, value_features_gradient)
            return
        gradient += value_features_gradient
        if self.memory is not None:
            assert done.memory is not None
            inputs_gradient = self.memory.backward(done.memory, gradient, need_inputs=bool(self.config.hidden))
            if inputs_gradient is None:
                return
            gradient = inputs_gradient
        self.encoder.backward(done.actor, gradient)

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


class Actor:
    """A policy at work in one batch of rows: it keeps what the policy remembers."""

    def __init__(
        self, policy: Policy, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> None:
        self.policy, self.deterministic, self.generator = policy, deterministic, generator
        self._state: Tensor | None = None

    @torch.no_grad()
    def act(self, obs: Any) -> Any:
        """Actions in the environment's units for one observation or a batch; arrays in, arrays out."""
        policy = self.policy
        tensor = torch.as_tensor(obs, device=policy.device)
        single = tensor.ndim == len(policy.obs_space.shape)
        batch = tensor[None] if single else tensor
        if self._state is None:
            self._state = policy.start(batch.shape[0])
        params, self._state = policy.params_of(policy.prepare(batch), self._state)
        action = policy.head.to_env(self._choose(params))
        action = action[0] if single else action
        return action.to(obs.device) if isinstance(obs, Tensor) else action.cpu().numpy()

    def _choose(self, params: Tensor) -> Tensor:
        head = self.policy.head
        if self.deterministic:
            return head.mode(params)
        noise = head.noise(params.shape[:-1], self.generator or torch.default_generator)
        return head.sample(params, noise.to(params.device))

    def forget(self, ended: Any = None) -> None:
        """An episode ended in the rows where `ended` is true, or in all."""
        if ended is None or self._state is None:
            self._state = None
        else:
            self._state[torch.as_tensor(ended, device=self._state.device)] = 0.0


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
