"""Networks of a user's, for tests: `--policy.network network_modules:Layers`."""

import torch
from torch import Tensor, nn


class Layers(nn.Module):
    """The built-in's shape: two stacks of two layers with tanh, orthogonal weights, zero biases."""

    def __init__(self, obs_shape: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(obs_shape[0], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            for _ in range(2)
        )
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight, gain=2**0.5)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x), self.critic(x)


class Shared(nn.Module):
    """One lazy layer for actor and critic."""

    def __init__(self, obs_shape: tuple[int, ...], width: int = 32) -> None:
        super().__init__()
        self.layer = nn.LazyLinear(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


class Remembers(nn.Module):
    """A gated recurrent unit of torch's."""

    def __init__(self, obs_shape: tuple[int, ...], width: int = 16) -> None:
        super().__init__()
        self.state_size = width
        self.cell = nn.GRUCell(obs_shape[0], width)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(x, state)
        return state, state


class Drops(Shared):
    def __init__(self, obs_shape: tuple[int, ...]) -> None:
        super().__init__(obs_shape)
        self.drop = nn.Dropout(0.1)


class Flat(nn.Module):
    """Forgets the rows of its batch."""

    def __init__(self, obs_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(obs_shape[0], 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).flatten()


def not_a_module(obs_shape: tuple[int, ...]) -> int:
    return 3
