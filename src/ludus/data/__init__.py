"""Recorded episodes: reading them, looking at them, writing them. Needs h5py (`pip install 'ludus[data]'`)."""

from ludus.data.config import DataConfig
from ludus.data.episode import Episode, as_file_rows
from ludus.data.reading import DataSummary, EpisodeInfo, ObsSpec, read_episodes, scan

__all__ = [
    "DataConfig",
    "DataSummary",
    "Episode",
    "EpisodeInfo",
    "ObsSpec",
    "as_file_rows",
    "read_episodes",
    "scan",
]
