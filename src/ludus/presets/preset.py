"""What a preset is."""

from dataclasses import dataclass

from ludus.config import TrainConfig


@dataclass(frozen=True)
class Preset:
    """A job that can be trained by name."""

    name: str
    summary: str
    config: TrainConfig
