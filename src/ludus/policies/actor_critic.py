"""PPO's policy: an actor with a critic, and the gradient of both written out."""

from typing import NamedTuple

import gymnasium as gym
from torch import Tensor, nn

from ludus.envs.vec import ActionSpace
from ludus.policies.heads import StochasticHead, make_stochastic_head
from ludus.policies.lstm import Run
from ludus.policies.mlp import MLP, Dense
from ludus.policies.policy import Policy, PolicyConfig


class Pass(NamedTuple):
    """A forward pass over a minibatch, with what its gradient needs."""

    params: Tensor  # [n, parameters of the head]
    value: Tensor  # [n]
    actor: list[Tensor]  # layer outputs of the encoder
    critic: list[Tensor]  # of the value encoder; the same list where the trunk is shared
    memory: Run | None


class ActorCritic(Policy):
    """A policy that also knows what its observations are worth."""

    kind = "ppo"
    head: StochasticHead

    def __init__(self, obs_space: gym.spaces.Box, action_space: ActionSpace, config: PolicyConfig) -> None:
        super().__init__(obs_space, action_space, config)
        shared = config.shared_trunk or self.memory is not None
        inputs = self.encoder.inputs
        self.value_encoder = None if shared else MLP(inputs, config.hidden, config.activation)
        self.head = make_stochastic_head(action_space, self.features, config.initial_std, config.learn_std)
        self.value_head = Dense(self.features, 1)
        self._initialise()

    def _initialise(self) -> None:
        """Orthogonal weights; a nearly uniform first policy (gain 0.01) and an unbiased critic (gain 1)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
                nn.init.zeros_(module.bias)
        nn.init.orthogonal_(self.head.linear.weight, gain=0.01)
        nn.init.orthogonal_(self.value_head.weight, gain=1.0)

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
        # Never held longer than needed: these are among the largest tensors of a gradient step.
        if self.value_encoder is not None:
            self.encoder.backward(done.actor, self.head.linear.input_gradient(params_gradient))
            self.value_encoder.backward(done.critic, self.value_head.input_gradient(value_gradient))
            return
        gradient = self.head.linear.input_gradient(params_gradient)
        gradient += self.value_head.input_gradient(value_gradient)
        if self.memory is not None:
            assert done.memory is not None
            inputs_gradient = self.memory.backward(done.memory, gradient, need_inputs=bool(self.config.hidden))
            if inputs_gradient is None:
                return
            gradient = inputs_gradient
        self.encoder.backward(done.actor, gradient)
