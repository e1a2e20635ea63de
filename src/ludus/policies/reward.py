"""The reward model r̂(s, a, s − s'): what one step is worth, learned from what whole episodes were worth."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ludus.policies.mlp import MLP, Dense
from ludus.policies.normalizer import REPLAY_LIMITS, ObsNormalizer
from ludus.policies.vision import EncoderKind, is_image, make_encoder
from ludus.ranges import LARGEST_SEED, LAYERS, WIDEST_LAYER, Range, check_fields

Obs = Mapping[str, Tensor]
ObsShapes = Mapping[str, tuple[tuple[int, ...], Any]]
_FRAME_FLOOR = 1e-3  # frozen features differ little where most of a picture stands still
_CHUNK = 256  # frames encoded at once where a whole episode is read


@dataclass(frozen=True)
class RewardModelConfig:
    """The reward network."""

    hidden: Annotated[tuple[int, ...], LAYERS] = (256, 256)
    encoder: EncoderKind = "conv"
    image_features: Annotated[int, Range(1, WIDEST_LAYER)] = 64
    progress: bool = False
    success: bool = False
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0


class RewardPass(NamedTuple):
    """A forward pass, with what its gradient needs."""

    heads: Tensor  # [n, heads]
    outputs: list[Tensor]  # of the trunk's layers
    encoded: Tensor | None  # [2n, cameras × features] of learned encoders, s then s', with their tape


class RewardModel(nn.Module):
    """Normalised vectors and one encoder's features per camera → trunk → heads.

    Observations are named tensors [n, ...]: float vectors, or uint8 images; where the encoder is frozen an image
    may also be given as its features, float [n, image_features], computed once by `encode_frames`. Rewards are
    in training units, R / T / return_scale, which `to_units` turns into real ones.
    """

    return_scale: Tensor
    return_episodes: Tensor

    def __init__(self, obs: ObsShapes, action_size: int, discrete: bool, config: RewardModelConfig) -> None:
        super().__init__()
        check_fields(config, "reward.")  # here, because a checkpoint describes its own
        self.obs = {name: (tuple(shape), _dtype_name(dtype)) for name, (shape, dtype) in obs.items()}
        self.action_size, self.discrete, self.config = action_size, discrete, config
        self.cameras = [name for name, spec in self.obs.items() if is_image(*spec)]
        self.vectors = [name for name in self.obs if name not in self.cameras]
        self.learned = bool(self.cameras) and config.encoder == "conv"
        self.encoders = nn.ModuleList(self._make_encoder(i, name) for i, name in enumerate(self.cameras))
        vector, frames = sum(map(self._size, self.vectors)), config.image_features * len(self.cameras)
        self.normalizer = ObsNormalizer((vector,), *REPLAY_LIMITS) if vector else None
        frozen = bool(frames) and not self.learned
        self.frame_normalizer = ObsNormalizer((frames,), REPLAY_LIMITS[0], _FRAME_FLOOR) if frozen else None
        self.features, self._frames = vector + frames, frames
        self.trunk = MLP(2 * self.features + action_size, config.hidden, "relu")
        self.names = ["reward"] + ["progress"] * config.progress + ["success"] * config.success
        self.head = Dense(self.trunk.features, len(self.names))
        self._initialise()
        self.register_buffer("return_scale", torch.ones((), dtype=torch.float64))
        self.register_buffer("return_episodes", torch.zeros((), dtype=torch.int64))

    def _size(self, name: str) -> int:
        return int(torch.Size(self.obs[name][0]).numel())

    def _make_encoder(self, index: int, name: str) -> nn.Module:
        config = self.config
        return make_encoder(config.encoder, self.obs[name][0], config.image_features, config.seed + index)

    def _initialise(self) -> None:
        """Orthogonal weights, and heads that at first say nearly the same of every step.

        Only means over an episode are taught: what the network says of single steps at the start, it goes on
        saying for long.
        """
        for module in (*self.trunk.layers, self.head):
            assert isinstance(module, Dense)
            nn.init.orthogonal_(module.weight, gain=0.01 if module is self.head else 2**0.5)
            nn.init.zeros_(module.bias)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    # Features -----------------------------------------------------------------------------------
    def _rows(self, name: str, value: Tensor) -> Tensor:
        """[..., *shape] → [n, *shape]; an image may already be features."""
        if name in self.cameras:
            shape = self.obs[name][0] if value.dtype == torch.uint8 else (self.config.image_features,)
            return value.reshape(-1, *shape)
        return value.reshape(-1, self._size(name)).float()

    def _vector(self, obs: Obs) -> list[Tensor]:
        if not self.vectors:
            return []
        parts = [self._rows(name, obs[name]) for name in self.vectors]
        x = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return [x if self.normalizer is None else self.normalizer(x)]

    def encode_frames(self, obs: Obs) -> dict[str, Tensor]:
        """The observation with its images as features of the frozen encoder: keep these instead of the pixels."""
        encoded = {name: self._rows(name, obs[name]) for name in self.vectors}
        for name, encoder in zip(self.cameras, self.encoders, strict=True):
            rows = self._rows(name, obs[name])
            encoded[name] = encoder(rows) if rows.dtype == torch.uint8 else rows
        return encoded

    def encode(self, obs: Obs) -> Tensor:
        """[n, features] that the trunk reads."""
        parts = self._vector(obs)
        if self.cameras:
            encoded = self.encode_frames(obs)
            frames = torch.cat([encoded[name] for name in self.cameras], 1)
            parts.append(frames if self.frame_normalizer is None else self.frame_normalizer(frames))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _action(self, action: Tensor) -> Tensor:
        if not self.discrete:
            return action.reshape(-1, self.action_size).float()
        choice = action.reshape(-1, 1).long()
        return torch.zeros((len(choice), self.action_size), device=choice.device).scatter_(1, choice, 1.0)

    def inputs(self, features: Tensor, action: Tensor, next_features: Tensor) -> Tensor:
        return torch.cat([features, self._action(action), features - next_features], 1)

    def update_normalizer(self, obs: Obs) -> None:
        """Merge the moments of a batch of observations; those of pixels with a learned encoder are not needed."""
        if self.normalizer is not None:
            self.normalizer.update([torch.cat([self._rows(name, obs[name]) for name in self.vectors], 1)])
        if self.frame_normalizer is not None:
            encoded = self.encode_frames(obs)
            self.frame_normalizer.update([torch.cat([encoded[name] for name in self.cameras], 1)])

    # Using --------------------------------------------------------------------------------------
    @torch.no_grad()
    def heads(self, obs: Obs, action: Tensor, next_obs: Obs) -> Tensor:
        """[n, heads]: the reward in training units, then the logits of `names`."""
        return self.head.forward(self.trunk(self.inputs(self.encode(obs), action, self.encode(next_obs))))

    def predict(self, obs: Obs, action: Tensor, next_obs: Obs) -> Tensor:
        """[n] rewards in training units: what an agent is given."""
        return self.heads(obs, action, next_obs)[:, 0]

    @torch.no_grad()
    def episode_heads(self, obs: Obs, action: Tensor) -> Tensor:
        """[T, heads] along one episode of T + 1 observations; every frame is encoded once, some at a time."""
        length = len(next(iter(obs.values())))
        chunks = (slice(i, i + _CHUNK) for i in range(0, length, _CHUNK))
        x = torch.cat([self.encode({k: v[s].to(self.device) for k, v in obs.items()}) for s in chunks])
        return self.head.forward(self.trunk(self.inputs(x[:-1], action.to(self.device), x[1:])))

    def to_units(self, reward: Tensor) -> Tensor:
        """Training units → the units of the returns it was trained on."""
        return reward * self.return_scale

    def target(self, episode_return: Tensor, length: Tensor) -> Tensor:
        """[m] what the mean of r̂ over each episode should be, in training units."""
        return (episode_return.double() / length / self.return_scale).float()

    @torch.no_grad()
    def start_units(self, scale: float, mean: float, episodes: int) -> None:
        """Training units for a network that has learned nothing, which then starts at `mean` (in real units).

        Its weights stay: the size of its outputs belongs to training units, whatever the real ones are.
        """
        self.return_scale.fill_(scale)
        self.return_episodes.fill_(episodes)
        self.head.bias[0] = mean / scale

    # Learning -----------------------------------------------------------------------------------
    def forward_pass(self, obs: Obs, action: Tensor, next_obs: Obs) -> RewardPass:
        """All heads of a batch, keeping what `backward` needs. Call under no_grad."""
        if not self.learned:
            return self._pass(self.encode(obs), action, self.encode(next_obs), None)
        with _taped():
            encoded = self._encode_pair(obs, next_obs)
        frames = encoded.detach()
        n = len(frames) // 2
        features = torch.cat([*self._vector(obs), frames[:n]], 1)
        next_features = torch.cat([*self._vector(next_obs), frames[n:]], 1)
        return self._pass(features, action, next_features, encoded)

    def _pass(self, features: Tensor, action: Tensor, next_features: Tensor, encoded: Tensor | None) -> RewardPass:
        outputs = self.trunk.outputs(self.inputs(features, action, next_features))
        return RewardPass(self.head.forward(outputs[-1]), outputs, encoded)

    def _encode_pair(self, obs: Obs, next_obs: Obs) -> Tensor:
        """[2n, frames] of s and of s', in one call per camera."""
        return torch.cat(
            [
                encoder(torch.cat([self._rows(name, obs[name]), self._rows(name, next_obs[name])]))
                for name, encoder in zip(self.cameras, self.encoders, strict=True)
            ],
            1,
        )

    def backward(self, done: RewardPass, gradient: Tensor) -> None:
        """Write every parameter's gradient, given that of the heads of the pass's first rows."""
        n = len(gradient)
        outputs = [x[:n] for x in done.outputs]
        self.head.write_gradient(outputs[-1], gradient)
        gradient = self.head.input_gradient(gradient)
        inputs = self.trunk.backward(outputs, gradient, need_inputs=done.encoded is not None)
        if done.encoded is None:
            return
        assert inputs is not None
        f, pixels = self.features, self._frames
        difference = inputs[:, -pixels:]  # the input ends with s − s', whose end are the frames
        seeds = torch.cat([inputs[:, f - pixels : f] + difference, -difference])
        for p in self.encoders.parameters():
            assert p.grad is not None  # allocated by the optimiser; the tape adds to it
            p.grad.zero_()
        with _taped():
            torch.autograd.backward(done.encoded, seeds)

    # Saving -------------------------------------------------------------------------------------
    def description(self) -> dict[str, Any]:
        """What `from_description` rebuilds the model from, as plain JSON."""
        return {
            "obs": {name: [list(shape), dtype] for name, (shape, dtype) in self.obs.items()},
            "action_size": self.action_size,
            "discrete": self.discrete,
            "config": {**asdict(self.config), "hidden": list(self.config.hidden)},
        }

    @staticmethod
    def from_description(description: dict[str, Any]) -> "RewardModel":
        config = {**description["config"], "hidden": tuple(description["config"]["hidden"])}
        obs = {name: (tuple(shape), dtype) for name, (shape, dtype) in description["obs"].items()}
        return RewardModel(obs, description["action_size"], description["discrete"], RewardModelConfig(**config))


def _dtype_name(dtype: Any) -> str:
    """Of a torch or numpy type or its name."""
    return str(dtype).removeprefix("torch.") if isinstance(dtype, torch.dtype) else np.dtype(dtype).name


@contextlib.contextmanager
def _taped() -> Iterator[None]:
    """Record for autograd, whatever mode the caller is in."""
    with torch.inference_mode(False), torch.enable_grad():
        yield
