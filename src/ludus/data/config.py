"""Which recorded episodes are used, and how they are read."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from ludus.errors import listable
from ludus.ranges import Range

AutoYesNo = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class DataConfig:
    """Recorded episodes in HDF5 files: LIBERO, robomimic, Minari or D4RL."""

    path: str = ""
    """An HDF5 file, a folder of them (and of its folders), or several of either with commas between."""
    keys: tuple[str, ...] = ()
    """The observations used; none named: all of them."""
    filter: str = ""
    """Only the episodes that this filter of the file names (robomimic's mask/NAME)."""
    flip: AutoYesNo = "auto"
    """Turn images upside up; auto: for LIBERO's, which are stored as OpenGL draws them."""
    action_shift: AutoYesNo = "auto"
    """obs[t] was seen after actions[t], not before; auto: in LIBERO's files."""
    image_size: Annotated[int, Range(0, 4_096)] = 0
    """Shrink images to this height and width by averaging; 0: as they are."""
    skip_bad: bool = False
    """Leave broken episodes and files out, with a warning, instead of refusing them."""
    held_out: Annotated[float, Range(0, below=1)] = 0.33
    """Share of the episodes that is kept for measuring."""
    reward: str = "rewards"
    """The dataset that holds the reward; learned_rewards is what 'ludus label' writes."""
    normalize_obs: bool = True
    """Standardise what a policy sees by the mean and the spread of all that was recorded."""

    def with_whole_path(self) -> Self:
        """The same, with files that are found again from any folder."""
        given = [Path(part.strip()).expanduser() for part in self.path.split(",") if part.strip()]
        return dataclasses.replace(self, path=",".join(listable(path.resolve()) for path in given))
