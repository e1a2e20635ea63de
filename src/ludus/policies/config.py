"""Settings of the networks."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from ludus.ranges import LAYERS, WIDEST_LAYER, Range

Activation = Literal["tanh", "relu", "elu"]


@dataclass(frozen=True)
class PolicyConfig:
    """The networks."""

    hidden: Annotated[tuple[int, ...], LAYERS] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Non-linearity between layers."""
    memory: Literal["none", "lstm", "gru", "mingru"] = "none"
    """What the policy remembers of an episode: nothing, or the state of a memory that follows the layers. Of SAC
    and TD3 it is part of the encoder, and the layers follow it."""
    memory_size: Annotated[int, Range(1, WIDEST_LAYER)] = 128
    """Width of the memory."""
    forget_bias: Annotated[float, Range(-100, 100)] = 1.0
    """How long an untrained memory holds what it saw: with 1 some steps, with 4 some fifty."""
    shared_trunk: bool = False
    """One encoder for actor and critic instead of one each; always so with a memory."""
    initial_std: Annotated[float, Range(above=0, most=100)] = 1.0
    """Standard deviation of a continuous policy at the start, where 1 is half of the action range."""
    learn_std: bool = True
    """Learn that standard deviation; off, it stays as it is (ppo.std_final may still lower it)."""
    normalize_obs: bool = True
    """Standardise observations by their running mean and variance."""
    cnn: Literal["nature", "residual"] = "nature"
    """What sees images: three strided convolutions, or three residual blocks (slower, often better)."""
    image_features: Annotated[int, Range(1, WIDEST_LAYER)] = 256
    """Features of each image, before the hidden layers."""
    actor_parts: tuple[str, ...] = ()
    """Parts of a Dict observation that the actor sees; none named: all."""
    critic_parts: tuple[str, ...] = ()
    """Parts that the critic sees, with layers of its own; it may know more. None named: the actor's."""
    network: str = ""
    """A torch.nn.Module of your own in place of the layers and the memory, as "my_module:MyNet"; of SAC and TD3 it
    is the encoder, and the layers follow it."""
    network_kwargs: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Passed to it after the shape of one observation."""

    def told(self, memory_first: bool = False) -> str:
        """64 × 64 × lstm 128, or the name of a network."""
        if self.network:
            return self.network
        layers = [" × ".join(map(str, self.hidden))] if self.hidden else []
        memory = [] if self.memory == "none" else [f"{self.memory} {self.memory_size}"]
        return " × ".join([*memory, *layers] if memory_first else [*layers, *memory])

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that this configuration names."""
        module = self.network.partition(":")[0]
        return (module,) if module else ()


# Of the built-in layers, in whose place a network of the user's stands; SAC and TD3 have some after it.
LAYERS_AFTER = ("hidden", "activation")
LAYER_SETTINGS = (*LAYERS_AFTER, "memory", "memory_size", "forget_bias", "shared_trunk", "cnn",
                  "image_features", "actor_parts", "critic_parts")  # fmt: skip
