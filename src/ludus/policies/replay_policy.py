"""The policy of SAC, TD3 or DQN, and the networks that judge its actions."""

import copy
import itertools

import gymnasium as gym
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace
from ludus.errors import ConfigError
from ludus.policies.mlp import StackedMLP, laid_out_as
from ludus.policies.normalizer import REPLAY_LIMITS
from ludus.policies.policy import Policy, PolicyConfig
from ludus.policies.replay_heads import ReplayHead, make_replay_head
from ludus.policies.taped import ImageEncoder


class ReplayPolicy(Policy):
    """Acts by the head of its algorithm. DQN's is its Q-network itself."""

    head: ReplayHead
    kinds = ("sac", "td3", "dqn")

    def __init__(
        self, kind: str, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig
    ) -> None:
        if config.memory != "none":
            raise ConfigError(
                f"{kind.upper()} learns from single steps: take --policy.memory none, or --algo ppo."
            )
        if config.network:
            raise ConfigError(f"{kind.upper()} learns with its own layers: --policy.network is for --algo ppo.")
        if config.actor_parts or config.critic_parts:
            raise ConfigError(
                f"{kind.upper()} sees all of an observation: --policy.actor-parts is for --algo ppo."
            )
        super().__init__(obs_space, action_space, config, two_encoders=False)
        if kind != "dqn" and self.has_images:
            raise ConfigError(f"{kind.upper()} learns from vectors; from images --algo ppo or dqn can learn.")
        self.kind = kind
        self.normalizer = self._make_normalizer(*REPLAY_LIMITS)
        self.head = make_replay_head(kind, action_space, self.features)

    def outputs(self, x: Tensor) -> tuple[list[Tensor], Tensor]:
        """(the encoder's layer outputs, the head's parameters)."""
        outputs = self.encoder.outputs(x)
        return outputs, self.masked(self.head.linear.forward(outputs[-1]), x)

    def backward(self, outputs: list[Tensor], gradient: Tensor) -> None:
        """Write every parameter's gradient, given that of the head's parameters for the first rows of a pass."""
        self.head.linear.write_gradient(outputs[-1][: len(gradient)], gradient)
        if not isinstance(self.encoder, ImageEncoder):  # which cuts its tape itself
            outputs = [output[: len(gradient)] for output in outputs]
        self.encoder.backward(outputs, self.head.linear.input_gradient(gradient))


class Twin(StackedMLP):
    """Two Q-networks over states beside actions: the lower of two estimates is not fooled as easily as one."""

    def __init__(self, inputs: int, config: PolicyConfig) -> None:
        super().__init__(2, inputs, config.hidden, config.activation)

    def lower(self, x: Tensor) -> Tensor:
        """[n] the lower value."""
        return self.outputs(x)[1].amin(0)


def flat_copies(modules: list[nn.Module], flat: Tensor) -> tuple[Tensor, list[nn.Module]]:
    """Copies of modules whose parameters lie in `flat` one after another, and the flat tensor theirs lie in."""
    copies = copy.deepcopy(modules)
    target = flat.clone()
    edges = [0, *itertools.accumulate(p.numel() for m in copies for p in m.parameters())]
    assert edges[-1] == flat.numel(), "the modules' parameters are not what the flat tensor holds"
    parameters = [p for m in copies for p in m.parameters()]
    for parameter, (start, end) in zip(parameters, itertools.pairwise(edges), strict=True):
        parameter.data = laid_out_as(parameter, target[start:end])
        parameter.grad = None
    return target, copies
