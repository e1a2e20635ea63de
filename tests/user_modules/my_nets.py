"""Networks of the user's, as the pages name them."""

from torch import Tensor, nn


class MyNet(nn.Module):
    """One layer."""

    def __init__(self, obs_shape: tuple[int, ...], width: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs_shape[0], width), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
