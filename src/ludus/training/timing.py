"""Where the time of a cycle went."""

from dataclasses import dataclass


@dataclass
class Timing:
    """Seconds since the last reading."""

    simulate: float = 0.0  # waiting for environments
    act: float = 0.0
    learn: float = 0.0

    def shares(self, seconds: float) -> dict[str, float]:
        """The parts of so many seconds; begins to count anew."""
        shares = {f"time/{name}_share": value / seconds for name, value in vars(self).items()}
        self.simulate = self.act = self.learn = 0.0
        return shares
