"""The policy of SAC, TD3 or DQN, and the networks that judge its actions."""

import copy
import itertools

import gymnasium as gym
import torch
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError
from ludus.policies.mlp import MLP, Dense
from ludus.policies.policy import Policy, PolicyConfig
from ludus.policies.replay_heads import ReplayHead, make_replay_head


class ReplayPolicy(Policy):
    """Acts by the head of its algorithm. DQN's is its Q-network itself."""

    head: ReplayHead

    def __init__(
        self, kind: str, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig
    ) -> None:
        if config.memory != "none":
            raise ConfigError(
                f"{kind.upper()} learns from single steps: take --policy.memory none, or --algo ppo."
            )
        super().__init__(obs_space, action_space, config)
        self.kind = kind
        self.head = make_replay_head(kind, action_space, self.features)

    def outputs(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(the encoder's layer outputs, the head's parameters)."""
        outputs = self.encoder.outputs(x)
        return outputs, self.head.linear.forward(outputs[-1])

    def backward(self, outputs: list[Tensor], gradient: Tensor) -> None:
        """Write every parameter's gradient, given that of the head's parameters for the first rows of a pass."""
        trained = [output[: len(gradient)] for output in outputs]
        self.head.linear.write_gradient(trained[-1], gradient)
        self.encoder.backward(trained, self.head.linear.input_gradient(gradient))


class QNetwork(nn.Module):
    """What an action is worth in a state."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        self.trunk = MLP(inputs, config.hidden, config.activation)
        self.last = Dense(self.trunk.features, 1)

    def outputs(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(layer outputs, values [n]) of states beside actions."""
        outputs = self.trunk.outputs(x)
        return outputs, self.last.forward(outputs[-1]).squeeze(-1)

    def backward(self, outputs: list[Tensor], gradient: Tensor, trained: int) -> Tensor:
        """Write the gradients due to the first `trained` rows; returns that of the other rows' inputs."""
        gradient = gradient[:, None]
        self.last.write_gradient(outputs[-1][:trained], gradient[:trained])
        inputs = self.trunk.backward(outputs, self.last.input_gradient(gradient), True, trained)
        assert inputs is not None
        return inputs


class Twin(nn.Module):
    """Two Q-networks: the lower of two estimates is not fooled as easily as one."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__()
        self.pair = nn.ModuleList(QNetwork(inputs, config) for _ in range(2))

    @property
    def networks(self) -> tuple[QNetwork, QNetwork]:
        first, second = self.pair
        return first, second  # type: ignore[return-value]

    def lower(self, x: Tensor) -> Tensor:
        """[n] the lower value."""
        first, second = (network.outputs(x)[1] for network in self.networks)
        return torch.minimum(first, second)


def flat_copies(modules: list[nn.Module], flat: Tensor) -> tuple[Tensor, list[nn.Module]]:
    """Copies of modules whose parameters lie in `flat` one after another, and the flat tensor theirs lie in."""
    copies = copy.deepcopy(modules)
    target = flat.clone()
    edges = [0, *itertools.accumulate(p.numel() for m in copies for p in m.parameters())]
    assert edges[-1] == flat.numel(), "the modules' parameters are not what the flat tensor holds"
    parameters = [p for m in copies for p in m.parameters()]
    for parameter, (start, end) in zip(parameters, itertools.pairwise(edges), strict=True):
        parameter.data = target[start:end].view_as(parameter)
        parameter.grad = None
    return target, copies
