"""FlashSAC's policy: normed, residual layers that see vectors."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor, nn

from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.flash_layers import FlashLayers, FoldedLayers
from ludus.policies.policy import MakeNetwork
from ludus.policies.reader import Prepared, Reader
from ludus.policies.replay_heads import FlashHead
from ludus.policies.replay_policy import ReplayPolicy
from ludus.policies.trunk import WrittenTrunk


class FlashEncoder(nn.Module):
    """The layers of a policy as it acts: by the statistics that learning has gathered."""

    def __init__(self, reader: Reader, width: int, blocks: int) -> None:
        super().__init__()
        self.reader, self.features = reader, width
        self.layers = FlashLayers(1, reader.numbers, width, blocks)
        self._folded: FoldedLayers | None = None

    @contextmanager
    def folded(self) -> Iterator[None]:
        self._folded = self.layers.folded()
        try:
            yield
        finally:
            self._folded = None

    def forward(self, x: Prepared) -> Tensor:
        layers = self._folded or self.layers
        return layers.act(self.reader.numbers_of(x))


class FlashPolicy(ReplayPolicy):
    """`hidden` of its settings are the widths of its blocks, which are all alike."""

    head: FlashHead
    encoder: FlashEncoder  # type: ignore[assignment]
    shared_encoder = None

    def _make_trunk(self, two_encoders: bool, network: MakeNetwork | None) -> WrittenTrunk:
        readers = Reader(self.obs_space, self.config.actor_parts), self.critic_reader()
        if network is not None or any(reader.image_shapes for reader in readers):
            given = "images" if network is None else "a network of your own"
            raise ConfigError(f"FlashSAC has layers of its own, which see vectors: with {given} take --algo sac.")
        self.encoder = FlashEncoder(readers[0], *block_shape(self.config))
        return WrittenTrunk(self.encoder, None, None)  # type: ignore[arg-type]

    def settled(self) -> AbstractContextManager[None]:
        return self.encoder.folded()

    def critic_reader(self) -> Reader:
        """What the critics see of a row, which may be more."""
        return Reader(self.obs_space, self.config.critic_parts or self.config.actor_parts)


def block_shape(config: PolicyConfig) -> tuple[int, int]:
    """(width, blocks) of a policy's network."""
    if len(set(config.hidden)) != 1:
        told = " ".join(map(str, config.hidden)) or "none"
        raise ConfigError(f"FlashSAC's blocks all have one width: take --policy.hidden 128 128, not {told}.")
    return config.hidden[0], len(config.hidden)
