"""PPO's policy: an actor with a critic, and the gradient of both heads written out."""

from typing import NamedTuple

import gymnasium as gym
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace
from ludus.policies.config import PolicyConfig
from ludus.policies.heads import StochasticHead, make_stochastic_head
from ludus.policies.mlp import Dense
from ludus.policies.policy import MakeNetwork, Policy
from ludus.policies.reader import Apart
from ludus.policies.trunk import TrunkPass


class Pass(NamedTuple):
    """A forward pass over a minibatch, with what its gradient needs."""

    params: Tensor  # [n, parameters of the head]
    value: Tensor  # [n]
    trunk: TrunkPass


class ActorCritic(Policy):
    """A policy that also knows what its observations are worth."""

    kind = "ppo"
    head: StochasticHead

    def __init__(
        self,
        obs_space: gym.spaces.Box,
        action_space: ActionSpace,
        config: PolicyConfig,
        network: MakeNetwork | None = None,
    ) -> None:
        super().__init__(obs_space, action_space, config, two_encoders=True, network=network)
        self.head = make_stochastic_head(action_space, self.features, config.initial_std, config.learn_std)
        if self.mask is not None:
            self.head.expect_masks()
        self.value_head = Dense(self.trunk.value_features, 1)
        self._initialise()

    def _initialise(self) -> None:
        """Orthogonal weights; a nearly uniform first policy (gain 0.01) and an unbiased critic (gain 1).

        A network of the user's keeps its own.
        """
        for module in self.modules():
            if isinstance(module, Dense):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
                nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.head.linear.weight, gain=0.01)
        nn.init.orthogonal_(self.value_head.weight, gain=1.0)

    def params_and_value_of(self, x: Tensor | Apart, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The head's parameters, the values [n], and the new state."""
        seen, mask = self.apart(x)
        features, value_features, state = self.trunk.act_and_judge(seen, state)
        return self._params_from(features, mask), self.value_head(value_features).squeeze(-1), state

    def value_of(self, x: Tensor, state: Tensor) -> Tensor:
        """[n] values alone."""
        return self.value_head(self.trunk.judge(x, state)).squeeze(-1)

    # Learning -----------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor | Apart, state: Tensor, keep: Tensor | None) -> Pass:
        """Parameters and values of a minibatch, keeping what `backward` needs. Call under no_grad.

        The arguments are those of `Trunk.forward_pass`.
        """
        seen, mask = self.apart(x)
        done = self.trunk.forward_pass(seen, state, keep)
        params = self._params_from(done.actor, mask)
        return Pass(params, self.value_head.forward(done.critic).squeeze(-1), done)

    def backward(self, done: Pass, params_gradient: Tensor, value_gradient: Tensor) -> None:
        """Write every network parameter's gradient, given those of the outputs."""
        value_gradient = value_gradient[:, None]
        self.head.linear.write_gradient(done.trunk.actor, params_gradient)
        self.value_head.write_gradient(done.trunk.critic, value_gradient)
        self.trunk.backward(
            done.trunk,
            self.head.linear.input_gradient(params_gradient),
            self.value_head.input_gradient(value_gradient),
        )
