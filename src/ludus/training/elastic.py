"""A lost rank costs the work since the last checkpoint, not the run: all ranks are started again from there."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ludus.errors import LudusError
from ludus.ranks import RankLostError
from ludus.training.checkpoint import checkpoints_in, step_of

MOST_LOSSES = 5  # without a step further in between: what happens again and again will not pass by itself


@dataclass
class Losses:
    """Of a rank or of a node, since a run was last further than ever."""

    reached: int = -1  # step
    count: int = 0

    def add(self, step: int) -> bool:
        """One more, now at `step`. Whether the run may go on."""
        self.count = 1 if step > self.reached else self.count + 1
        self.reached = max(step, self.reached)
        return self.count < MOST_LOSSES


def again_while_lost(attempt: Callable[[], None], checkpoints: Path, tell: Callable[[str], None]) -> None:
    """`attempt` until no rank is lost in it, or no attempt gets any further. Other errors are raised at once."""
    losses = Losses(_newest_step(checkpoints))
    while True:
        try:
            return attempt()
        except RankLostError as lost:
            step = _newest_step(checkpoints)
            if not losses.add(step):
                raise LudusError(f"{lost} Given up after {losses.count} losses since {_told(step)}.") from lost
            tell(f"{lost} All ranks go on from {_told(step)}.")


def _newest_step(checkpoints: Path) -> int:
    """-1 before there is one."""
    return max(map(step_of, checkpoints_in(checkpoints)), default=-1)


def _told(step: int) -> str:
    return f"step {step:,}" if step >= 0 else "the beginning: there is no checkpoint yet"
