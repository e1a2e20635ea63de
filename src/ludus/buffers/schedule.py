"""Which segment of the on-policy buffer (`segments.py`) an update takes, and when it is recorded."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SegmentSchedule:
    """The arithmetic of segments. Times count the steps of a row since the beginning of the run.

    Segment i, in the order of completion, belongs to row i mod rows and is that row's (i div rows)-th. Where the
    rows divide the segments of an update, all begin at time 0; elsewhere segment i at i · horizon div rows.
    """

    rows: int
    segments: int  # of one update
    horizon: int  # steps of a segment

    @property
    def aligned(self) -> bool:
        return self.segments % self.rows == 0

    def start(self, segment: Any) -> Any:
        """When a segment begins, of one number or of a tensor of them. A row uses no step before its first one."""
        if self.aligned:
            return segment // self.rows * self.horizon
        return segment * self.horizon // self.rows

    def end(self, update: int) -> int:
        """The time at which the segments of update 0, 1, … are complete."""
        last: int = self.start((update + 1) * self.segments - 1)
        return last + self.horizon

    def steps(self, update: int) -> int:
        """Steps of every row between the update before and this one."""
        return self.end(update) - (self.end(update - 1) if update else 0)

    def starting_rows(self, time: int) -> slice:
        """Rows that begin a segment at this time."""
        if self.aligned:
            return slice(0, self.rows if time % self.horizon == 0 else 0)
        phase = time % self.horizon
        first, stop = (-(-p * self.rows // self.horizon) for p in (phase, phase + 1))
        return slice(first, stop)

    @property
    def columns(self) -> int:
        """Times that must be kept at once: from the oldest segment not yet used to what follows the newest."""
        between = self.segments - self.rows if self.aligned else self.segments - 1
        return -(-between * self.horizon // self.rows) + self.horizon + 1

    @property
    def starts_per_row(self) -> int:
        """Beginnings of segments that a row must keep at once."""
        return -(-(self.columns - 1) // self.horizon)
