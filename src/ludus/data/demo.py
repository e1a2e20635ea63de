"""An episode as a file has it: which datasets hold it and how their rows lie to each other; nothing read yet."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ludus.data.guard import check_before_reading, check_dataset
from ludus.data.hdf5 import h5py_module
from ludus.errors import DataError, did_you_mean

# How rows of observations lie to rows of actions: obs[t] follows action[t] (LIBERO), precedes it (robomimic,
# D4RL), or there is one row more, before and after (Minari).
_DEEPEST, _MOST_COLUMNS = 8, 2000  # groups within groups, and what one holds
TRUE_REWARD = "shaped_rewards"  # how far the job had come, where our recorder wrote it
Order = Literal["after", "before", "around"]


def bad(where: str, key: str, what: str, fix: str) -> DataError:
    """`where` names file and episode."""
    return DataError(f"{where}: {key} {what}. {fix}")


@dataclass(frozen=True)
class Column:
    """Rows of one dataset, read when asked."""

    dataset: Any  # h5py.Dataset
    start: int = 0
    stop: int = -1  # -1: to its end

    @property
    def rows(self) -> int:
        return (len(self.dataset) if self.stop < 0 else self.stop) - self.start

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return tuple(self.dataset.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        return self.dataset.dtype

    def read(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Rows `first` to `last` (all by default)."""
        last = self.rows if last is None else last
        first, last = self.start + first, self.start + last
        try:
            check_before_reading(self.dataset, first, last)
            return np.asarray(self.dataset[first:last])
        except (OSError, RuntimeError, ValueError, TypeError, MemoryError) as error:
            name = f"{self.dataset.file.filename}: {self.dataset.name}"
            raise DataError(f"{name} cannot be read: {error}. The file is damaged; copy it again.") from error


@dataclass(frozen=True)
class Demo:
    """One episode of an open file."""

    path: Path
    name: str
    format: str  # "LIBERO", "robomimic", "Minari", "D4RL"
    order: Order
    obs: dict[str, Column]
    action: Column
    reward: Column
    own_reward: Column  # the recorded one, even where another dataset is the reward
    terminated: bool
    flip: bool
    next_obs: dict[str, Column] = field(default_factory=dict)
    true_reward: Column | None = None
    told_success: bool | None = None
    language: str = ""
    num_actions: int = 0  # of a discrete space, where the file says so

    @property
    def where(self) -> str:
        return f"{self.path}: {self.name}"

    @property
    def rows(self) -> int:
        return self.action.rows

    @property
    def steps(self) -> int:
        """Transitions whose both ends are known."""
        complete = self.order == "around" or (self.order == "before" and bool(self.next_obs))
        return self.rows if complete else self.rows - 1

    @property
    def first_row(self) -> int:
        """Of actions and rewards: the step before the first frame has no beginning."""
        return 1 if self.order == "after" else 0


# Finding columns in a file ------------------------------------------------------------------------
def column_of(group: Any, key: str, where: str, fix: str = "") -> Column:
    """The dataset `key` of a group, with a sentence if it is not there or no array."""
    item = item_of(group, key)
    if item is None:
        hint = did_you_mean(key, [name for name in group if name != TRUE_REWARD])
        hint = hint or f" It has {', '.join(sorted(group)) or 'nothing'}."
        raise bad(where, key, f"is missing.{hint}".rstrip(".?"), fix or "Record or convert the episode again.")
    if not isinstance(item, h5py_module().Dataset) or not item.shape:
        raise bad(
            where, key, "is not an array of rows", fix or "Convert it to one dataset with a row for each step."
        )
    check_dataset(item, where)
    return Column(item)


def item_of(group: Any, key: str) -> Any:
    """What lies under `key`; nothing for a link that leads nowhere."""
    try:
        return group.get(key)
    except (KeyError, OSError, RuntimeError):
        return None


def columns_under(group: Any, where: str, prefix: str = "") -> Iterator[tuple[str, Column]]:
    """All datasets of a group and the groups in it, named by their paths."""
    if prefix.count("/") > _DEEPEST:
        raise bad(where, prefix, "is a group within too many others", "Put the observations into one group.")
    if len(group) > _MOST_COLUMNS:
        raise bad(where, prefix or "obs", f"holds {len(group):,} datasets", f"At most {_MOST_COLUMNS:,} are read.")
    for key in group:
        item = item_of(group, key)
        if isinstance(item, h5py_module().Group):
            yield from columns_under(item, where, f"{prefix}{key}/")
        else:
            yield prefix + key, column_of(group, key, where)


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Whatever HDF5 raises on a damaged file becomes a sentence that says where."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(
            f"{where} cannot be read: {error}. The file is damaged or not as its layout says."
        ) from error


def text_of(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
