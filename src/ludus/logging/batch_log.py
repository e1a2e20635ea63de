"""The loss of every single batch: raw float32 numbers, four bytes a batch, beside metrics.jsonl."""

import os
from pathlib import Path

import numpy as np


class BatchLog:
    """Appends to a file that `numpy.fromfile(path, "float32")` reads."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def cut_to(self, batches: int) -> None:
        """Forget what came after so many batches: it will be made again."""
        if self.path.exists() and self.path.stat().st_size > 4 * batches:
            os.truncate(self.path, 4 * batches)

    def append(self, losses: np.ndarray) -> None:
        with self.path.open("ab") as file:
            file.write(losses.astype("<f4").tobytes())
