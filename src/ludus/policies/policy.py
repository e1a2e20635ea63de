"""The policy: normaliser → trunk → head. It carries all that is needed to act."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from ludus.envs.interface import Interface
from ludus.envs.row_space import (
    MASK,
    ChoiceRow,
    Part,
    RowSpace,
    add_mask,
    numbers_in,
    parts_of,
    raw_actions,
)
from ludus.envs.vec import ActionSpace
from ludus.errors import LudusError
from ludus.policies.config import PolicyConfig
from ludus.policies.conv import MixedNet
from ludus.policies.heads import Head
from ludus.policies.mlp import MLP
from ludus.policies.normalizer import ObsNormalizer
from ludus.policies.reader import Apart, Prepared, Reader
from ludus.policies.spaces import describe_space
from ludus.policies.taped import ImageEncoder, Taped, TapedEncoder, make_taped
from ludus.policies.trunk import MEMORIES, Memory, PartMLP, Trunk, WrittenTrunk
from ludus.ranges import check_fields

MakeNetwork = Callable[..., nn.Module]


class Policy(nn.Module):
    """What acts. Algorithms add to it what they learn with: `ActorCritic` is PPO's.

    Methods that take `x` want prepared observations (`prepare`), the others raw ones. `state` is what the policy
    remembers, [rows, state_size], zero where an episode begins; without a memory it is empty and passed on.
    """

    kind: str  # of the head; in a checkpoint it tells which class to build
    head: Head
    network: Taped
    interface = Interface()  # what its numbers mean; who makes it for an environment says so

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
        self.rows = obs_space if isinstance(obs_space, RowSpace) else None  # where observations have parts
        self.has_images = any(part.kind == "image" for part in parts_of(obs_space))
        self.mask = None if self.rows is None else self.rows.mask
        self.inputs = numbers_in(obs_space)
        self.normalizer = self._make_normalizer()
        masked = 0 if self.mask is None else self.mask.size
        self.widths = (self.inputs, masked)  # of what is seen of a row, and of its mask
        trunk = self._make_trunk(two_encoders, network)
        # A plain attribute: looking a module up in a module costs as much as a small kernel.
        object.__setattr__(self, "trunk", trunk)
        self.features, self.state_size = trunk.features, trunk.state_size

    trunk: Trunk

    def _make_normalizer(self, clip: float = 10.0, floor: float = 0.0) -> ObsNormalizer | None:
        """Of vectors and, where no images lie between, of the mask; images are seen as they are."""
        if not self.config.normalize_obs or self.inputs == 0:
            return None
        masked = 0 if self.mask is None or self.has_images else self.mask.size
        return ObsNormalizer((self.inputs + masked,), clip, floor, masked)

    def _make_trunk(self, two_encoders: bool, network: MakeNetwork | None) -> Trunk:
        if network is None:
            return self._make_layers(two_encoders)
        self.network = make_taped(network, self.obs_space, self.config.network_kwargs)
        return self.network

    def _make_layers(self, two_encoders: bool) -> WrittenTrunk:
        """Registered here one by one, which gives their weights the names that they have in checkpoints."""
        config = self.config
        self.encoder: MLP | TapedEncoder = self._make_encoder(config.actor_parts, config.hidden)
        self.memory = self._make_memory(self.encoder.features)
        # Two encoders of images would take twice the time for little.
        two_encoders &= (
            self.memory is None and not config.shared_trunk and not isinstance(self.encoder, ImageEncoder)
        )
        two_encoders |= bool(config.critic_parts)
        parts = config.critic_parts or config.actor_parts
        self.value_encoder = self._make_encoder(parts, config.hidden) if two_encoders else None
        return WrittenTrunk(self.encoder, self.value_encoder, self.memory)

    def _make_memory(self, inputs: int) -> Memory | None:
        config = self.config
        if config.memory == "none":
            return None
        return MEMORIES[config.memory](inputs, config.memory_size, config.forget_bias)

    def _make_encoder(self, parts: tuple[str, ...], hidden: tuple[int, ...]) -> MLP | ImageEncoder:
        """Of parts of an observation; without hidden layers vectors stay as they are."""
        config, reader = self.config, Reader(self.obs_space, parts)
        if reader.image_shapes:
            shapes, numbers = reader.image_shapes, reader.numbers
            layers = (hidden, config.activation)
            return ImageEncoder(reader, MixedNet(shapes, numbers, config.cnn, config.image_features, *layers))
        if self.rows is None:
            return MLP(reader.numbers, hidden, config.activation)
        return PartMLP(reader, hidden, config.activation)

    @property
    def keeps_inputs(self) -> bool:
        """Whether an update standardises all observations once; copies of images would take too much memory."""
        return self.normalizer is not None and not self.has_images

    @property
    def recurrent(self) -> bool:
        """Whether it has a hidden state, and so learns from whole segments."""
        return self.state_size > 0

    @property
    def device(self) -> torch.device:
        return self.head.linear.weight.device

    def seen_parts(self) -> list[Part]:
        """Parts of an observation that an action depends on."""
        names = () if self.config.network else self.config.actor_parts
        return [part for part in parts_of(self.obs_space) if not names or part.name in names or part == self.mask]

    def start(self, rows: int) -> Tensor:
        """The state at the beginning of an episode."""
        return torch.zeros((rows, self.state_size), device=self.device)

    # Acting -------------------------------------------------------------------------------------
    def prepare(self, obs: Tensor) -> Tensor:
        """[n, *obs] → the same rows with their vectors standardised: [n, size] float32, or bytes with images."""
        if self.has_images:
            return self._prepare_bytes(obs)
        flat = obs.reshape(obs.shape[0], -1).float()
        return flat if self.normalizer is None else self.normalizer(flat)

    def _prepare_bytes(self, obs: Tensor) -> Tensor:
        if self.rows is None or self.normalizer is None:
            return obs
        x = obs.clone()
        numbers = self.rows.numbers_of(x)
        numbers.copy_(self.normalizer(numbers))
        return x

    def learn_scales(self, parts: Iterable[Tensor]) -> None:
        """Let the normaliser see rows of observations."""
        if self.normalizer is not None:
            rows = self.rows if self.has_images else None
            self.normalizer.update(obs if rows is None else rows.numbers_of(obs) for obs in parts)

    def params_of(self, x: Prepared | Apart, state: Tensor) -> tuple[Tensor, Tensor]:
        """The head's parameters, and the new state."""
        seen, mask = self.apart(x)
        features, state = self.trunk.act(seen, state)
        return self._params_from(features, mask), state

    def _params_from(self, features: Tensor, mask: Tensor | None) -> Tensor:
        """The head's parameters, so that no action is drawn that `mask` rules out."""
        head = self.head  # once: looking a module up in a module costs as much as a small kernel
        params = head.forward(features)
        return params if mask is None else head.masked(params, mask)

    def apart(self, x: Prepared | Apart) -> tuple[Any, Tensor | None]:
        """What a trunk sees of `x`, and [n, choices] 1 where an action is valid, else 0; None: all are."""
        if self.mask is None:
            return x, None
        if isinstance(x, Apart):
            return x
        if isinstance(x, dict):
            return x, x[MASK]
        if self.has_images:
            assert self.rows is not None
            return x, self.rows.part_of(x, self.mask)
        seen, mask = x.split_with_sizes(self.widths, 1)
        return seen, mask

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """The head's parameters, perhaps changed in place, so that no action is drawn that `mask` rules out."""
        return params if mask is None else self.head.masked(params, mask)

    def act(self, obs: Any, deterministic: bool = True, action_mask: Any = None) -> Any:
        """Actions as the environment takes them, for observations as it gives them: Dict, Tuple, image, number.

        One observation gives one action. A batch, as a vector environment has it, gives a batch; a list of Dicts
        or tuples gives a list. Rows, as tensors, come out as they went in. `action_mask` says which actions are
        valid, where the environment says it elsewhere than in `obs`. A policy with a memory acts through an
        `Actor`, which keeps it from step to step.
        """
        if self.recurrent:
            raise LudusError("This policy has a memory: act with `actor = policy.actor()`, one for each episode.")
        return self.actor(deterministic=deterministic).act(obs, action_mask)

    def actor(self, deterministic: bool = True, generator: torch.Generator | None = None) -> "Actor":
        return Actor(self, deterministic, generator)

    def forward(self, obs: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
        """The deterministic action in the environment's units, and the new state: what an export holds.

        `obs` are rows, or where these have parts the parts by name, each [n, *shape].
        """
        x = self._prepare_parts(obs) if isinstance(obs, dict) else self.prepare(obs)
        params, state = self.params_of(x, state)
        return self.head.to_env(self.head.mode(params)), state

    def _prepare_parts(self, parts: dict[str, Tensor]) -> dict[str, Tensor]:
        assert self.rows is not None
        vectors = [part for part in self.rows.parts if part.kind == "vector" and part.name in parts]
        prepared = dict(parts)
        for part in vectors:
            flat = parts[part.name].flatten(1).float()
            prepared[part.name] = (
                flat if self.normalizer is None else self.normalizer.of_columns(flat, self.rows.columns_of(part))
            )
        return prepared

    # Saving -------------------------------------------------------------------------------------
    def description(self) -> dict[str, Any]:
        """What `policy_from` rebuilds the policy from, as plain JSON."""
        return {
            "kind": self.kind,
            "config": asdict(self.config),
            "obs_space": describe_space(self.obs_space),
            "action_space": describe_space(self.action_space),
            "interface": self.interface.description(),
        }


class Actor:
    """A policy at work in one batch of rows: it keeps what the policy remembers."""

    def __init__(
        self, policy: Policy, deterministic: bool = True, generator: torch.Generator | None = None
    ) -> None:
        self.policy, self.deterministic, self.generator = policy, deterministic, generator
        self.state: Tensor | None = None  # what it remembers, [rows, ...]

    @torch.no_grad()
    def act(self, obs: Any, action_mask: Any = None) -> Any:
        """As `Policy.act`; the policy's memory goes on from the last call."""
        policy = self.policy
        rows, single = self._rows_of(obs, action_mask)
        batch = torch.as_tensor(rows, device=policy.device)
        if self.state is None:
            self.state = policy.start(batch.shape[0])
        params, self.state = policy.params_of(policy.prepare(batch), self.state)
        action = policy.head.to_env(self._choose(params))
        if isinstance(obs, Tensor):
            return (action[0] if single else action).to(obs.device)
        form: Literal["one", "batch", "list"] = "one" if single else "list" if self._is_list(obs) else "batch"
        return raw_actions(policy.action_space, action.cpu().numpy(), form)

    def _rows_of(self, obs: Any, action_mask: Any) -> tuple[Any, bool]:
        """Rows of what an environment observed, and whether it was one. Tensors are rows already."""
        policy, space = self.policy, self.policy.obs_space
        if self._is_list(obs):
            masks = [None] * len(obs) if action_mask is None else action_mask
            rows = [self._rows_of(one, mask)[0] for one, mask in zip(obs, masks, strict=True)]
            return np.concatenate(rows), False
        if isinstance(space, ChoiceRow) and not _is_float(obs):
            return self._packed(lambda: space.pack(obs), space.raw)
        is_row = isinstance(obs, Tensor) or (isinstance(obs, np.ndarray) and obs.dtype != object)
        if policy.rows is None or (is_row and tuple(obs.shape[-1:]) == policy.rows.shape):
            return self._shaped(obs if isinstance(obs, Tensor) else np.asarray(obs))
        if policy.mask is not None and not (isinstance(obs, Mapping) and MASK in obs):
            if action_mask is None:
                raise LudusError("This policy chooses among valid actions: say which, act(obs, action_mask=...).")
            obs = add_mask(obs, action_mask)
        parts, needed = policy.rows, [part.name for part in policy.seen_parts()]
        return self._packed(lambda: parts.pack(obs, needed), parts.raw)

    def _is_list(self, obs: Any) -> bool:
        """Whether these are several observations of several parts, one after the other."""
        several = self.policy.rows is not None and isinstance(obs, list) and len(obs) > 0
        return several and isinstance(obs[0], Mapping | tuple)

    def _packed(self, pack: Callable[[], tuple[np.ndarray, bool]], raw: gym.Space) -> tuple[np.ndarray, bool]:
        try:
            return pack()
        except (KeyError, TypeError, ValueError, IndexError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else error
            raise LudusError(f"The observation does not fit {raw}: {why}") from error

    def _shaped(self, obs: Tensor | np.ndarray) -> tuple[Tensor | np.ndarray, bool]:
        """The same for numbers, whose shape an environment may give another than a row's: a matrix, a scalar."""
        row, given = self.policy.obs_space.shape, tuple(obs.shape)
        if given == row or given[1:] == row:
            return (obs[None], True) if given == row else (obs, False)
        size = math.prod(row)
        if math.prod(given) == size:
            return obs.reshape(1, *row), True
        if math.prod(given[1:]) != size:
            raise LudusError(f"The observation has the shape {given}; the policy sees rows of {row}.")
        return obs.reshape(-1, *row), False

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


def _is_float(obs: Any) -> bool:
    """Whether these are rows already, where an environment observes whole numbers."""
    return obs.is_floating_point() if isinstance(obs, Tensor) else np.asarray(obs).dtype.kind == "f"
