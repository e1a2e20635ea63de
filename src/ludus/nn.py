"""Networks to build networks of one's own from: `ludus.nn.NatureCNN((channels, height, width))`."""

from ludus.policies.conv import NatureCNN, ResidualCNN

__all__ = ["NatureCNN", "ResidualCNN"]
