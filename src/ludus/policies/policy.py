"""The policy: normaliser → trunk → head. It carries all that is needed to act."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace
from ludus.errors import LudusError
from ludus.policies.heads import Head
from ludus.policies.mlp import MLP, Activation
from ludus.policies.normalizer import ObsNormalizer
from ludus.policies.taped import Taped, make_taped
from ludus.policies.trunk import MEMORIES, Memory, Trunk, WrittenTrunk
from ludus.ranges import LAYERS, WIDEST_LAYER, Range, check_fields


@dataclass(frozen=True)
class PolicyConfig:
    """The networks."""

    hidden: Annotated[tuple[int, ...], LAYERS] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Non-linearity between layers."""
    memory: Literal["none", "lstm", "mingru"] = "none"
    """What the policy remembers of an episode: nothing, or the state of an LSTM or minGRU after the layers."""
    memory_size: Annotated[int, Range(1, WIDEST_LAYER)] = 128
    """Width of the memory."""
    forget_bias: Annotated[float, Range(-100, 100)] = 1.0
    """How long an untrained memory holds what it saw: with 1 some steps, with 4 about a hundred."""
    shared_trunk: bool = False
    """One encoder for actor and critic instead of one each; always so with a memory."""
    initial_std: Annotated[float, Range(above=0, most=100)] = 1.0
    """Spread of a continuous policy at the start, where 1 is half of the action range."""
    learn_std: bool = True
    """Learn that spread; off, it stays as it is (ppo.std_final may still lower it)."""
    normalize_obs: bool = True
    """Standardise observations by their running mean and variance."""
    network: str = ""
    """A torch.nn.Module of your own in place of the layers and the memory, as "my_module:MyNet" (PPO)."""
    network_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Passed to it after the shape of one observation."""

    def told(self) -> str:
        """64 × 64 × lstm 128, or the name of a network."""
        if self.network:
            return self.network
        memory = [] if self.memory == "none" else [f"{self.memory} {self.memory_size}"]
        return " × ".join([*map(str, self.hidden), *memory])

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names."""
        module = self.network.partition(":")[0]
        return (module,) if module else ()


MakeNetwork = Callable[..., nn.Module]


class Policy(nn.Module):
    """What acts. Algorithms add to it what they learn with: `ActorCritic` is PPO's.

    Methods that take `x` want prepared observations (`prepare`), the others raw ones. `state` is what the policy
    remembers, [rows, state_size], zero where an episode begins; without a memory it is empty and passed on.
    """

    kind: str  # of the head; in a checkpoint it tells which class to build
    head: Head
    network: Taped

    def __init__(
        self,
        obs_space: gym.spaces.Box,
        action_space: ActionSpace,
        config: PolicyConfig,
        two_encoders: bool,
        network: MakeNetwork | None = None,
    ) -> None:
        """`network` is what `config.network` names."""
        super().__init__()
        check_fields(config, "policy.")  # here, because a checkpoint describes its own
        self.obs_space, self.action_space, self.config = obs_space, action_space, config
        self.inputs = int(np.prod(obs_space.shape))
        self.normalizer = ObsNormalizer((self.inputs,)) if config.normalize_obs else None
        if network is None:
            self._written = self._make_layers(two_encoders)
        else:
            self.network = make_taped(network, tuple(obs_space.shape), config.network_kwargs)
        self.features, self.state_size = self.trunk.features, self.trunk.state_size

    def _make_layers(self, two_encoders: bool) -> WrittenTrunk:
        """Registered here one by one, which gives their weights the names that they have in checkpoints."""
        config = self.config
        self.encoder = MLP(self.inputs, config.hidden, config.activation)
        self.memory: Memory | None = None
        if config.memory != "none":
            make = MEMORIES[config.memory]
            self.memory = make(self.encoder.features, config.memory_size, config.forget_bias)
        two_encoders &= self.memory is None and not config.shared_trunk
        self.value_encoder = MLP(self.inputs, config.hidden, config.activation) if two_encoders else None
        return WrittenTrunk(self.encoder, self.value_encoder, self.memory)

    @property
    def trunk(self) -> Trunk:
        trunk: Trunk = self.network if self.config.network else self._written
        return trunk

    @property
    def recurrent(self) -> bool:
        """Whether it has a hidden state, and so learns from whole segments."""
        return self.state_size > 0

    @property
    def device(self) -> torch.device:
        return self.head.linear.weight.device

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
        features, state = self.trunk.act(x, state)
        return self.head(features), state

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        """Actions in the environment's units for one observation or a batch; arrays in, arrays out.

        A policy with a memory acts through an `Actor`, which keeps it from step to step.
        """
        if self.recurrent:
            raise LudusError("This policy has a memory: act with `actor = policy.actor()`, one for each episode.")
        return self.actor(deterministic=deterministic).act(obs)

    def actor(self, deterministic: bool = True, generator: torch.Generator | None = None) -> "Actor":
        return Actor(self, deterministic, generator)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """The deterministic action in the environment's units, and the new state: what an export holds."""
        params, state = self.params_of(self.prepare(obs), state)
        return self.head.to_env(self.head.mode(params)), state

    # Saving -------------------------------------------------------------------------------------
    def description(self) -> dict[str, Any]:
        """What `policy_from` rebuilds the policy from, as plain JSON."""
        return {
            "kind": self.kind,
            "config": asdict(self.config),
            "obs_space": describe_space(self.obs_space),
            "action_space": describe_space(self.action_space),
        }


class Actor:
    """A policy at work in one batch of rows: it keeps what the policy remembers."""

    def __init__(
        self, policy: Policy, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> None:
        self.policy, self.deterministic, self.generator = policy, deterministic, generator
        self.state: Tensor | None = None  # what it remembers, [rows, ...]

    @torch.no_grad()
    def act(self, obs: Any) -> Any:
        """Actions in the environment's units for one observation or a batch; arrays in, arrays out."""
        policy = self.policy
        tensor = torch.as_tensor(obs, device=policy.device)
        single = tensor.ndim == len(policy.obs_space.shape)
        batch = tensor[None] if single else tensor
        if self.state is None:
            self.state = policy.start(batch.shape[0])
        params, self.state = policy.params_of(policy.prepare(batch), self.state)
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
        if ended is None or self.state is None:
            self.state = None
        else:
            self.state[torch.as_tensor(ended, device=self.state.device)] = 0.0


def describe_space(space: gym.Space[Any]) -> dict[str, Any]:
    if isinstance(space, gym.spaces.Box):
        # JSON has no infinity: bounds are written as strings.
        bounds = {k: [str(float(v)) for v in getattr(space, k).ravel()] for k in ("low", "high")}
        return {"kind": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    assert isinstance(space, gym.spaces.MultiDiscrete)
    return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}


def space_from(description: dict[str, Any]) -> Any:
    if description["kind"] == "Box":
        dtype = np.dtype(description["dtype"])
        low, high = (
            np.array([float(v) for v in description[k]]).reshape(description["shape"]).astype(dtype)
            for k in ("low", "high")
        )
        return gym.spaces.Box(low, high, tuple(description["shape"]), dtype.type)
    if description["kind"] == "Discrete":
        return gym.spaces.Discrete(description["n"], start=description["start"])
    if description["kind"] == "MultiDiscrete":
        return gym.spaces.MultiDiscrete(description["nvec"], start=description["start"])
    raise LudusError(f"There is no space {description['kind']!r}; Box, Discrete and MultiDiscrete are known.")
