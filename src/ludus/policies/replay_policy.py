"""The policy of SAC, TD3 or DQN, and the networks that judge its actions."""

import copy
import dataclasses
import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from ludus.envs.row_space import parts_of
from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.mlp import MLP, StackedMLP, laid_out_as
from ludus.policies.normalizer import REPLAY_LIMITS
from ludus.policies.policy import MakeNetwork, Policy
from ludus.policies.reader import Prepared
from ludus.policies.recurrent import BurnIn, RecurrentEncoder
from ludus.policies.replay_heads import FLASH, REPLAY_KINDS, ReplayHead, make_replay_head
from ludus.policies.taped import ModuleEncoder, TapedEncoder, make_taped
from ludus.policies.trunk import Trunk, WrittenTrunk

SharedEncoder = TapedEncoder | RecurrentEncoder
FlatParameters = tuple[list[nn.Parameter], Tensor]  # and the flat tensor in which they lie, one after another


class SharedEncoderTrunk(WrittenTrunk):
    """The actor's layers over the encoder that it shares with the critics."""

    def __init__(self, shared: SharedEncoder, layers: MLP) -> None:
        super().__init__(layers, None, None)
        self.shared, self.state_size = shared, shared.state_size

    def act(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
        return super().act(*self.shared.act(x, state))


class ReplayPolicy(Policy):
    """Acts by the head of its algorithm. DQN's is its Q-network itself.

    Where SAC or TD3 sees images, has a memory or a network of the user's, actor and critics share an encoder. It
    learns from the critics' loss alone (as in DrQ, Kostrikov et al. 2020): the actor's would change the features
    under the critics' feet. `outputs` and `backward` then are of its features instead of rows.
    """

    head: ReplayHead
    encoder: MLP | TapedEncoder | RecurrentEncoder  # type: ignore[assignment]
    shared_encoder: SharedEncoder | None

    def __init__(
        self,
        kind: str,
        obs_space: gym.spaces.Box,
        action_space: ActionSpace,
        config: PolicyConfig,
        network: MakeNetwork | None = None,
    ) -> None:
        """`network` is what `config.network` names."""
        if config.memory != "none" and kind == FLASH:
            raise ConfigError("FlashSAC learns from single steps: take --policy.memory none, or --algo sac.")
        if kind == "dqn" and config.critic_parts:
            raise ConfigError("DQN has no critic beside its policy: leave --policy.critic-parts out.")
        if config.memory != "none" and config.critic_parts:
            name = REPLAY_KINDS.get(kind, kind)
            raise ConfigError(
                f"Actor and critics of {name} share their memory, so they see the same: leave "
                "--policy.critic-parts out, or take --algo ppo."
            )
        object.__setattr__(self, "kind", kind)  # before the module is one: it decides about the layers
        super().__init__(obs_space, action_space, config, two_encoders=False, network=network)
        self.normalizer = self._make_normalizer(*REPLAY_LIMITS)
        self.head = make_replay_head(kind, action_space, self.features)

    def _make_trunk(self, two_encoders: bool, network: MakeNetwork | None) -> Trunk:
        config, self.shared_encoder = self.config, self._make_shared_encoder(network)
        if self.shared_encoder is not None:
            self.encoder = layers = MLP(self.shared_encoder.features, config.hidden, config.activation)
            return SharedEncoderTrunk(self.shared_encoder, layers)
        if network is not None:
            self.encoder = self._encoder_of(network)
        else:
            self.encoder = self._with_memory(self._make_encoder(config.actor_parts, config.hidden))
        if isinstance(self.encoder, RecurrentEncoder):
            return self.encoder.trunk
        return WrittenTrunk(self.encoder, None, None)

    def _make_shared_encoder(self, network: MakeNetwork | None) -> SharedEncoder | None:
        if self.kind == "dqn":
            return None
        if network is not None:
            return self._encoder_of(network)
        if self.config.critic_parts:  # of which the actor may not even see some
            return None
        encoder = self._with_memory(self._make_encoder(self.config.actor_parts, ()))
        return None if isinstance(encoder, MLP) else encoder

    def _with_memory(self, encoder: MLP | TapedEncoder) -> MLP | TapedEncoder | RecurrentEncoder:
        memory = self._make_memory(encoder.features)
        return encoder if memory is None else RecurrentEncoder(WrittenTrunk(encoder, None, memory))

    def _encoder_of(self, network: MakeNetwork) -> SharedEncoder:
        taped = make_taped(network, self.obs_space, self.config.network_kwargs)
        if not taped.shared:
            raise ConfigError(
                f"The network {type(taped.module).__name__} gives the actor and the critic features of their own, "
                f"which only PPO uses: for {self.kind.upper()} return one tensor."
            )
        return RecurrentEncoder(taped) if taped.state_size else ModuleEncoder(taped, self.obs_space)

    def make_critic_encoder(self) -> MLP | SharedEncoder:
        """Makes of rows what the critics see: the shared one, or a new one of their own."""
        config = self.config
        return self.shared_encoder or self._make_encoder(config.critic_parts or config.actor_parts, ())

    def make_tutor(self) -> "ReplayPolicy":
        """A new policy for the same actions that sees what the critics see, in rows that this one has prepared."""
        config = dataclasses.replace(self.config, actor_parts=self.config.critic_parts)
        return ReplayPolicy(self.kind, self.obs_space, self.action_space, config)

    def settled(self) -> AbstractContextManager[None]:
        """In here its weights stay as they are: it may work out beforehand what makes acting faster."""
        return nullcontext()

    def learned_parts(self) -> list[str]:
        """Names of the parts of an observation that actor or critics see, and a mask."""
        config, names = self.config, [part.name for part in parts_of(self.obs_space)]
        if config.network or not config.actor_parts:
            return names
        masks = () if self.mask is None else (self.mask.name,)
        return [name for name in names if name in (*config.actor_parts, *config.critic_parts, *masks)]

    def judged_parts(self) -> list[str]:
        """Names of the parts that critics see, without a mask."""
        config, names = self.config, [part.name for part in parts_of(self.obs_space) if part.kind != "mask"]
        seen = () if config.network else config.critic_parts or config.actor_parts
        return [name for name in names if not seen or name in seen]

    def outputs(
        self, x: Tensor, learned: int | None = None, burn_in: BurnIn | None = None
    ) -> tuple[list[Any], Tensor]:
        """(the encoder's layer outputs, the head's parameters); `backward` is for the first `learned` rows."""
        encoder, (seen, mask) = self.encoder, self.apart(x)
        if isinstance(encoder, RecurrentEncoder):
            assert learned is not None
            assert burn_in is not None
            outputs = encoder.outputs(seen, learned, burn_in)
        elif isinstance(encoder, TapedEncoder):
            outputs = encoder.outputs(seen, learned)
        else:
            outputs = encoder.outputs(seen)
        return outputs, self.masked(self.head.linear.forward(outputs[-1]), mask)

    def params_after(self, x: Tensor, learned: int, burn_in: BurnIn | None) -> Tensor:
        """The head's parameters for the rows after the `learned` ones."""
        if not isinstance(self.encoder, RecurrentEncoder):
            return self.params(x[learned:])
        assert burn_in is not None
        seen, mask = self.apart(x)
        features = self.encoder.after(seen, learned, burn_in)
        return self.masked(self.head.linear.forward(features), None if mask is None else mask[learned:])

    def params(self, x: Tensor) -> Tensor:
        """The head's parameters alone, of an encoder without a memory."""
        assert not isinstance(self.encoder, RecurrentEncoder)
        seen, mask = self.apart(x)
        return self.masked(self.head.linear.forward(self.encoder.forward(seen)), mask)

    def backward(self, outputs: list[Any], gradient: Tensor) -> None:
        """Write every parameter's gradient, given that of the head's parameters for the first rows of a pass."""
        self.head.linear.write_gradient(outputs[-1][: len(gradient)], gradient)
        if isinstance(self.encoder, MLP):  # the others keep what `backward` needs of the learned rows alone
            outputs = [output[: len(gradient)] for output in outputs]
        self.encoder.backward(outputs, self.head.linear.input_gradient(gradient))


class Twin(StackedMLP):
    """Two Q-networks over states beside actions: the lower of two estimates is not fooled as easily as one."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__(2, inputs, config.hidden, config.activation)

    def scale_values(self, factor: float) -> None:
        for parameter in self._layers[-1].parameters():
            parameter.mul_(factor)

    def lower(self, x: Tensor) -> Tensor:
        """[n] the lower value."""
        return self.outputs(x)[1].amin(0)


def flat_copies(modules: list[nn.Module], flats: list[FlatParameters]) -> tuple[list[Tensor], list[nn.Module]]:
    """Flat tensors as those given, and copies of the modules whose parameters lie in them."""
    copied: dict[int, Any] = {}
    copies = copy.deepcopy(modules, copied)  # what two modules share, their copies share
    targets = []
    for parameters, flat in flats:
        target, edges = flat.clone(), [0, *itertools.accumulate(p.numel() for p in parameters)]
        assert edges[-1] == flat.numel(), "the modules' parameters are not what the flat tensor holds"
        for parameter, (start, end) in zip(parameters, itertools.pairwise(edges), strict=True):
            twin = copied[id(parameter)]
            twin.data, twin.grad = laid_out_as(parameter, target[start:end]), None
        targets.append(target)
    return targets, copies
