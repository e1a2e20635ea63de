"""Any `torch.nn.Module` in a policy: its gradient is taken by autograd.

    class MyNet(nn.Module):
        def __init__(self, obs_shape, width=64):      # the shape of one observation; network_kwargs
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(obs_shape[0], width), nn.ReLU())
        def forward(self, x):                         # [n, *obs_shape] → [n, features]
            return self.layers(x)                     # or a pair: features of the actor, of the critic

An image is [n, channels, height, width] in 0 … 1. Where observations have parts (a Dict), `obs_shape` and `x` are
dictionaries by their names.

A module with a hidden state has an attribute `state_size` and takes one step at a time:
`forward(x, state) → features, new state`. Whole segments are stepped through here, with exact resets.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from ludus.envs.row_space import ONLY_PART, RowSpace, is_image
from ludus.errors import ConfigError, tell_exception
from ludus.policies.conv import MixedNet
from ludus.policies.reader import Prepared, Reader
from ludus.policies.trunk import TrunkPass

_NO_STATE = torch.zeros(0)
# Their output is not a function of observation and weights alone: a rollout and its update would disagree.
_UNSTEADY = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


# The tape -----------------------------------------------------------------------------------------
@contextlib.contextmanager
def taping() -> Iterator[None]:
    """Updates run in inference mode, whose tensors cannot be taped: copies made in here can."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def write_gradients(module: nn.Module, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Overwrite the `.grad` of every parameter, given those of what was taped."""
    with taping():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()  # in place: it is a view of the optimiser's
        torch.autograd.backward(list(outputs), [gradient.clone() for gradient in gradients])


class Tape(NamedTuple):
    """Numbers of each row, of four bytes."""

    held: int  # by autograd, after the module was called
    back: int  # more, while gradients are passed back
    untaped: int  # at most, when the module is called without a tape


def taped_numbers(module: nn.Module, inputs: Callable[[int], tuple[Any, ...]]) -> Tape:
    """What a call of the module with `inputs(rows)` takes."""
    small, large = (_saved_numbers(module, inputs(rows)) for rows in (8, 16))
    return Tape(*((a - b) // 8 for a, b in zip(large, small, strict=True)))


def _saved_numbers(module: nn.Module, inputs: tuple[Any, ...]) -> Tape:
    """Of a minibatch, weights left out.

    The way back frees what it has used: beside a layer's output and all that came before it are the gradients of
    what the layer gave and of what it took. Without a tape there are what a layer took and, twice, what it gives.
    """
    # Stand-ins: a tape that outlives this call would bind the weights themselves to the GPU's default stream, and
    # no update could be recorded as a graph.
    weights = {name: weight.detach().requires_grad_() for name, weight in module.named_parameters()}
    places = {weight.data_ptr() for weight in weights.values()}
    saved: dict[int, int] = {}
    alive = []  # so that no two have the same place; a tape that held what a hook returns would never be freed

    def count(tensor: Tensor) -> None:
        alive.append(tensor.detach())
        if tensor.data_ptr() not in places:
            size = tensor.nbytes // 4  # the places that a pooling layer keeps are longer than numbers
            saved[tensor.data_ptr()] = max(saved.get(tensor.data_ptr(), 0), size)

    with taping(), torch.autograd.graph.saved_tensors_hooks(count, lambda nothing: nothing):
        made = torch.func.functional_call(module, weights, inputs)
    features = made[:2] if isinstance(made, tuple) else (made,)  # of actor and critic
    sizes = list(saved.values())
    held = sum(sizes) + sum(part.numel() for part in features)
    layers = list(zip(itertools.accumulate(sizes), sizes, strict=True))[1:]  # the first is what was seen
    most = max([held, *(before + 2 * size for before, size in layers)])
    untaped = max([0, *(took + 2 * gave for took, gave in itertools.pairwise(sizes))])
    return Tape(held, most - held, untaped)


def empty_rows(space: gym.spaces.Box, rows: int, device: torch.device | None = None) -> Tensor:
    """Prepared rows of zeros."""
    if isinstance(space, RowSpace) or is_image(space):
        dtype = torch.uint8 if space.dtype == "uint8" else torch.float32
        return torch.zeros((rows, *space.shape), dtype=dtype, device=device)
    return torch.zeros((rows, math.prod(space.shape)), device=device)


# In the place of an MLP -----------------------------------------------------------------------------
class TapedEncoder(nn.Module):
    """Prepared rows → features, without a hidden state."""

    features: int
    state_size = 0
    _space: gym.spaces.Box

    def act(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
        """Features and the hidden state, which is empty."""
        return self(x), state

    def outputs(self, x: Tensor, learned: int | None = None) -> list[Tensor]:
        """What `backward` needs, and last the features. Only the first `learned` rows, or all, are passed back."""
        with taping():
            taped = self(x[:learned].clone())
        if learned is None:
            return [taped, taped.detach()]
        with torch.no_grad():
            return [taped, torch.cat([taped.detach(), self(x[learned:])])]

    def backward(self, outputs: list[Tensor], gradient: Tensor) -> None:
        """Write the gradient of every parameter, given that of the learned rows' features."""
        write_gradients(self, [outputs[0]], [gradient])

    def numbers_of_a_step(self) -> tuple[int, int]:
        """How many numbers are held of each step, and how many more while gradients are passed back."""
        held, back, _ = self._tape()
        return held, back

    def numbers_of_a_transition(self) -> int:
        """The same of two observations, the second of which is looked at while the first is taped."""
        held, back, untaped = self._tape()
        return held + max(back, untaped)

    def _tape(self) -> Tape:
        device = next(self.parameters()).device
        return taped_numbers(self, lambda rows: (empty_rows(self._space, rows, device),))


class ImageEncoder(TapedEncoder):
    """A network of Ludus' own for images and vectors."""

    def __init__(self, reader: Reader, net: MixedNet) -> None:
        super().__init__()
        self.net, self._reader, self._space = net, reader, reader.space
        self.features = net.features

    def forward(self, x: Prepared) -> Tensor:
        reader = self._reader
        features: Tensor = self.net(reader.images_of(x), reader.numbers_of(x) if reader.numbers else None)
        return features


# A network of the user's ----------------------------------------------------------------------------
class Taped(nn.Module):
    """A trunk made of a module of the user's."""

    def __init__(self, module: nn.Module, space: gym.spaces.Box) -> None:
        super().__init__()
        self.module, self._reader = module.eval(), Reader(space)
        self.state_size = int(getattr(module, "state_size", 0))
        _refuse_unsteady(module)
        with torch.no_grad():  # a first call also gives lazy layers their shapes
            state = torch.zeros((2, self.state_size))
            actor, critic, _ = self._checked_step(empty_rows(space, 2), state)
        if self._reader.image_shapes:
            _lay_out_filters(self.module)
        self.features, self.value_features = actor.shape[1], critic.shape[1]
        self.shared = actor is critic  # actor and critic see the same features

    # One step -----------------------------------------------------------------------------------
    def forward(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of the actor and the critic, and the new hidden state."""
        seen = self._reader.for_module(x)
        made, state = self.module(seen, state) if self.state_size else (self.module(seen), state)
        return (*made, state) if isinstance(made, tuple) else (made, made, state)

    def _checked_step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        name = type(self.module).__name__
        try:
            actor, critic, new = self.forward(x, state)
        except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            takes = "x and a hidden state" if self.state_size else "x"
            shapes = {name: (len(x), *shape) for name, shape in self._reader.shapes.items()}
            told = shapes[ONLY_PART] if self._reader.has_one_part else shapes
            why = tell_exception(error)
            raise ConfigError(f"The network {name} fails on {takes} of the shape {told}: {why}") from error
        for what, tensor in (("features", actor), ("the critic's features", critic)):
            if not isinstance(tensor, Tensor) or tensor.ndim != 2 or len(tensor) != len(x):
                shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
                raise ConfigError(f"The network {name} gives {what} {shape}; it must be [{len(x)}, features].")
        if tuple(new.shape) != tuple(state.shape):
            changed = f"{tuple(new.shape)}; its state_size says {tuple(state.shape)}"
            raise ConfigError(f"The network {name} gives a hidden state {changed}.")
        return actor, critic, new

    def act(self, x: Prepared, state: Tensor) -> tuple[Tensor, Tensor]:
        actor, _, state = self.forward(x, state)
        return actor, state

    def act_and_judge(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.forward(x, state)

    def judge(self, x: Tensor, state: Tensor) -> Tensor:
        return self.forward(x, state)[1]

    # Learning -----------------------------------------------------------------------------------
    def forward_pass(self, x: Tensor, state: Tensor, keep: Tensor | None) -> TrunkPass:
        with taping():
            actor, critic, states = self._run(x.clone(), state.clone(), None if keep is None else keep.clone())
        return TrunkPass(actor.detach(), critic.detach(), states[-1].detach(), (actor, critic, states))

    def _run(self, x: Tensor, state: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Features, and the hidden state after each step of the segments."""
        if not self.state_size:
            actor, critic, state = self.forward(x, state)
            return actor, critic, [state]
        assert keep is not None
        actors, critics, states = [], [], []
        for part, kept in zip(x.unflatten(0, keep.shape), keep[..., None], strict=True):
            actor, critic, state = self.forward(part, state * kept)
            actors.append(actor)
            critics.append(critic)
            states.append(state)
        joined = torch.cat(actors)
        return joined, joined if actors[0] is critics[0] else torch.cat(critics), states

    def states(self, done: TrunkPass) -> Tensor:
        return torch.cat([state.detach() for state in done.saved[2]])

    def backward(self, done: TrunkPass, actor_gradient: Tensor, critic_gradient: Tensor) -> None:
        actor, critic, _ = done.saved
        if actor is critic:
            write_gradients(self.module, [actor], [actor_gradient + critic_gradient])
        else:
            write_gradients(self.module, [actor, critic], [actor_gradient, critic_gradient])

    def numbers_of_a_step(self, on_cpu: bool) -> int:
        held, back, _ = taped_numbers(self, self._empty_inputs)
        # The steps of a segment are held together, and so are the gradients that go back through all of them.
        return 2 * held if self.state_size else held + back

    def _empty_inputs(self, rows: int) -> tuple[Tensor, Tensor]:
        like = next(self.module.parameters())
        return empty_rows(self._reader.space, rows, like.device), like.new_zeros((rows, self.state_size))


class ModuleEncoder(TapedEncoder):
    """A module of the user's that makes one kind of features and has no hidden state."""

    def __init__(self, taped: Taped, space: gym.spaces.Box) -> None:
        super().__init__()
        self.taped, self._space = taped, space
        self.features = taped.features

    def forward(self, x: Prepared) -> Tensor:
        return self.taped.act(x, _NO_STATE)[0]


def _lay_out_filters(module: nn.Module) -> None:
    """In the order in memory that images have, in which convolutions are quick."""
    for parameter in module.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _refuse_unsteady(module: nn.Module) -> None:
    for name, part in module.named_modules():
        if isinstance(part, _UNSTEADY):
            raise ConfigError(
                f"The network {type(module).__name__} has a {type(part).__name__} ({name}). What it makes of an "
                "observation changes between acting and learning, which neither PPO's ratio nor a target network "
                "survives: leave it out, or use LayerNorm."
            )


def make_taped(make: Any, space: gym.spaces.Box, kwargs: dict[str, Any]) -> Taped:
    """A trunk of `make(obs_shape, **kwargs)`."""
    reader = Reader(space)
    shape = reader.shapes[ONLY_PART] if reader.has_one_part else reader.shapes
    try:
        module = make(shape, **kwargs)
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        given = ", ".join([str(shape), *(f"{name}={value!r}" for name, value in kwargs.items())])
        name = getattr(make, "__name__", str(make))
        raise ConfigError(f"The network {name}({given}) cannot be made: {tell_exception(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"The network is a {type(module).__name__}; it must be a torch.nn.Module.")
    if not any(parameter.requires_grad for parameter in module.parameters()):
        name = type(module).__name__
        raise ConfigError(f"The network {name} has nothing to learn: no parameter requires a gradient.")
    return Taped(module, space)
