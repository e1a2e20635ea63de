"""A view of the metrics as TensorBoard event files."""

import math
import time
from pathlib import Path

from ludus.errors import ConfigError


class TensorBoardSink:
    """Writes scalars to `folder`. On resume, TensorBoard forgets `purge_step` and all later steps.

    `axis` names a metric to take for the x axis instead of the step, in rows that have it.
    """

    name = "TensorBoard"
    required = False

    def __init__(self, folder: Path | str, purge_step: int | None = None, axis: str = "") -> None:
        self._axis = axis
        try:  # imported here: it costs a second that a run without TensorBoard need not pay
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "TensorBoard logging is on, but the package is missing: `pip install tensorboard`."
            ) from error
        # Files are read in the order of the seconds in their names: two of the same second might change places.
        while any(Path(folder).glob(f"events.out.tfevents.{int(time.time()):010d}.*")):
            time.sleep(0.05)
        self._writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=10)

    def write(self, step: int, metrics: dict[str, float]) -> None:
        step = int(metrics.get(self._axis, step))
        for name, value in metrics.items():
            if math.isfinite(value):  # TensorBoard draws nothing for NaN, and rescales for infinity
                self._writer.add_scalar(name, float(value), step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
