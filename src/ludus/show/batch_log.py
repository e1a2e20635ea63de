"""The loss of every single batch: raw float32 numbers, four bytes a batch, beside metrics.jsonl."""

import os
from pathlib import Path

import numpy as np

from ludus.files import open_to_append, persistently, write_all


class BatchLog:
    """Appends to a file that `numpy.fromfile(path, "float32")` reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut_to(self, batches: int) -> None:
        """Forget what came after so many batches: it will be made again."""
        if self.path.exists():
            with open_to_append(self.path) as file:
                file.truncate(min(os.fstat(file.fileno()).st_size, 4 * batches))

    def append(self, losses: np.ndarray, logged: int) -> None:
        """Add losses after those of `logged` batches; where those were lost meanwhile, NaN stands for them."""
        persistently(lambda: self._append(losses.astype("<f4").tobytes(), 4 * logged))

    def _append(self, content: bytes, start: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)  # the whole folder may have been deleted
        with open_to_append(self.path) as file:
            size = os.fstat(file.fileno()).st_size
            file.truncate(min(size, start))  # a failed attempt may have left a part
            missing = np.full(max(start - size, 0) // 4, np.nan, "<f4").tobytes()
            write_all(file, missing + content)
