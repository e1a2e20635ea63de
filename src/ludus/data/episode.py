"""One recorded episode, in one form whatever file it came from."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass
class Episode:
    """Action `t` was taken on seeing row `t` of the observations and led to row `t + 1`."""

    name: str  # "demo_3"
    file: Path
    obs: dict[str, np.ndarray]  # each [T+1, ...]; images uint8 H×W×3, upright; vectors float32
    action: np.ndarray  # [T, A] float32, or [T] int64 for discrete ones
    reward: np.ndarray  # [T] float32
    terminated: bool  # False: truncated
    success: bool | None  # None: the file does not say
    language: str = ""
    true_reward: np.ndarray | None = None  # [T] hidden from training, only for measuring
    file_return: float | None = None  # sum of all the file's rewards, also of a step the action shift drops
    first_row: int = 0  # row of the file's datasets that holds the first step
    file_rows: int = 0  # rows that the file has of this episode

    @property
    def length(self) -> int:
        return len(self.action)

    @property
    def episode_return(self) -> float:
        """Of the whole episode as it was recorded."""
        return float(self.reward.sum()) if self.file_return is None else self.file_return


def as_file_rows(episode: Episode, values: np.ndarray) -> np.ndarray:
    """[T] numbers, one a step, as [rows of the file]: 0 where the file has a row that is no step of ours."""
    assert len(values) == episode.length, "one value a step"
    rows = np.zeros(max(episode.file_rows, episode.first_row + episode.length), np.float32)
    rows[episode.first_row : episode.first_row + episode.length] = values
    return rows
