"""Train with a network of your own: any torch.nn.Module, here one that normalises its layers.

python examples/own_network.py
"""

import torch
from torch import Tensor, nn

import ludus


class Normed(nn.Module):
    """Made of the shape of one observation; returns features, from which Ludus makes actions and values."""

    def __init__(self, obs_shape: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(obs_shape[0], width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Recurrent(nn.Module):
    """With a hidden state: `state_size` numbers a row, zero where an episode begins; one step a call."""

    def __init__(self, obs_shape: tuple[int, ...], width: int = 32) -> None:
        super().__init__()
        self.state_size = width
        self.cell = nn.GRUCell(obs_shape[0], width)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(x, state)
        return torch.relu(state), state


if __name__ == "__main__":
    run = ludus.train("gym:CartPole-v1", network=Normed, network_kwargs={"width": 128}, total_steps=50_000)
    print(ludus.load(run).act([0.0, 0.0, 0.05, 0.0]))
    ludus.train("gym:ludus/CartPoleNoVelocity-v1", network=Recurrent, total_steps=50_000)
