"""Any `torch.nn.Module` as a trunk: its gradient is taken by autograd.

    class MyNet(nn.Module):
        def __init__(self, obs_shape, width=64):      # the shape of one observation; network_kwargs
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(obs_shape[0], width), nn.ReLU())
        def forward(self, x):                         # [n, *obs_shape] → [n, features]
            return self.layers(x)                     # or a pair: features of the actor, of the critic

A module with a hidden state has an attribute `state_size` and takes one step at a time:
`forward(x, state) → features, new state`. Whole segments are stepped through here, with exact resets.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ludus.errors import ConfigError
from ludus.policies.trunk import TrunkPass

# Their output is not a function of observation and weights alone: a rollout and its update would disagree.
_UNSTEADY = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


class Taped(nn.Module):
    """A trunk made of a module of the user's."""

    def __init__(self, module: nn.Module, obs_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.module, self.obs_shape = module.eval(), obs_shape
        self.state_size = int(getattr(module, "state_size", 0))
        _refuse_unsteady(module)
        with torch.no_grad():  # a first call also gives lazy layers their shapes
            state = torch.zeros((2, self.state_size))
            actor, critic, _ = self._checked_step(torch.zeros((2, math.prod(obs_shape))), state)
        self.features, self.value_features = actor.shape[1], critic.shape[1]

    # One step -----------------------------------------------------------------------------------
    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = x.unflatten(1, self.obs_shape)
        made, state = self.module(x, state) if self.state_size else (self.module(x), state)
        return (*made, state) if isinstance(made, tuple) else (made, made, state)

    def _checked_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        name = type(self.module).__name__
        try:
            actor, critic, new = self._step(x, state)
        except (RuntimeError, TypeError, ValueError) as error:
            takes = "x and a hidden state" if self.state_size else "x"
            why = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"The network {name} fails on {takes} of the shape {(len(x), *self.obs_shape)}: {why}"
            ) from error
        for what, tensor in (("features", actor), ("the critic's features", critic)):
            if not isinstance(tensor, Tensor) or tensor.ndim != 2 or len(tensor) != len(x):
                shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ConfigError(f"The network {name} gives {what} {shape}; it must be [{len(x)}, features].")
        if tuple(new.shape) != tuple(state.shape):
            shapes = f"{tuple(new.shape)}; its state_size says {tuple(state.shape)}"
            raise ConfigError(f"The network {name} gives a hidden state {shapes}.")
        return actor, critic, new

    def act(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        actor, _, state = self._step(x, state)
        return actor, state

    def act_and_judge(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self._step(x, state)

    def judge(self, x: Tensor, state: Tensor) -> Tensor:
        return self._step(x, state)[1]

    # Learning -----------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor, state: Tensor, keep: Tensor | None) -> TrunkPass:
        # Updates run in inference mode, whose tensors cannot be taped: the copies made here can.
        with torch.inference_mode(False), torch.enable_grad():
            actor, critic, last = self._run(x.clone(), state.clone(), None if keep is None else keep.clone())
        return TrunkPass(actor.detach(), critic.detach(), last.detach(), (actor, critic))

    def _run(self, x: Tensor, state: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        if not self.state_size:
            return self._step(x, state)
        assert keep is not None
        actors, critics = [], []
        for part, kept in zip(x.view(*keep.shape, -1), keep[..., None], strict=True):
            actor, critic, state = self._step(part, state * kept)
            actors.append(actor)
            critics.append(critic)
        joined = torch.cat(actors)
        return joined, joined if actors[0] is critics[0] else torch.cat(critics), state

    def backward(self, done: TrunkPass, actor_gradient: Tensor, critic_gradient: Tensor) -> None:
        actor, critic = done.saved
        with torch.inference_mode(False), torch.enable_grad():
            gradients = [gradient.clone() for gradient in (actor_gradient, critic_gradient)]
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()  # in place: it is a view of the optimiser's
            if actor is critic:
                torch.autograd.backward([actor], [gradients[0].add_(gradients[1])])
            else:
                torch.autograd.backward([actor, critic], gradients)

    def numbers_of_a_step(self, on_cpu: bool) -> int:
        """What autograd saves, measured on two small minibatches; gradients passed back take as much once more."""
        small, large = (self._saved_numbers(rows) for rows in (8, 16))
        return 2 * (large - small) // 8

    def _saved_numbers(self, rows: int) -> int:
        """Numbers that autograd keeps of a minibatch, weights left out."""
        weights = {parameter.data_ptr() for parameter in self.module.parameters()}
        saved: dict[int, int] = {}

        def keep(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in weights:
                saved[tensor.data_ptr()] = max(saved.get(tensor.data_ptr(), 0), tensor.numel())
            return tensor

        like = next(self.module.parameters())
        x, state = (like.new_zeros((rows, size)) for size in (math.prod(self.obs_shape), self.state_size))
        hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.inference_mode(False), torch.enable_grad(), hooks:
            made = self._step(x, state)
        return sum(saved.values()) + sum(part.numel() for part in made[:2])


def _refuse_unsteady(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, _UNSTEADY):
            raise ConfigError(
                f"The network {type(module).__name__} has a {type(part).__name__} ({name}). What it makes of an "
                "observation changes between acting and learning, which PPO's ratio does not survive: leave it "
                "out, or use LayerNorm."
            )


def make_taped(make: Any, obs_shape: tuple[int, ...], kwargs: dict[str, Any]) -> Taped:
    """A trunk of `make(obs_shape, **kwargs)`."""
    try:
        module = make(obs_shape, **kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        given = ", ".join([str(obs_shape), *(f"{name}={value!r}" for name, value in kwargs.items())])
        name = getattr(make, "__name__", str(make))
        raise ConfigError(
            f"The network {name}({given}) cannot be made: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"The network is a {type(module).__name__}; it must be a torch.nn.Module.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        name = type(module).__name__
        raise ConfigError(f"The network {name} has nothing to learn: no parameter requires a gradient.")
    return Taped(module, obs_shape)
