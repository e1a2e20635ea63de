"""How far the nested loops are: epoch › cycle › iteration › batch, in stages where there are several."""

from ludus.config import Plan
from ludus.show.console import Console
from ludus.show.run_state import Level


class Progress:
    """Cheap enough to be told of every step and every batch: the outer loops stand still within an iteration."""

    def __init__(self, console: Console, plan: Plan, stages: int) -> None:
        self._console, self._plan, self._stages = console, plan, stages
        self._outer: tuple[Level, ...] = ()
        self._step = 0  # at which the iteration began
        self._batch = -1  # which is shown

    def begin(self, iteration: int, stage: int) -> None:
        """So many iterations are done, and another one begins."""
        plan, in_epoch = self._plan, iteration % self._plan.iterations_per_epoch
        self._outer = (
            *self._of_stages(stage),
            Level("epoch", iteration // plan.iterations_per_epoch, plan.epochs),
            Level("cycle", in_epoch // plan.iterations_per_cycle, plan.cycles_per_epoch),
            Level("iteration", in_epoch % plan.iterations_per_cycle, plan.iterations_per_cycle),
        )
        self._step, self._batch = iteration * plan.steps_per_iteration, -1

    def __call__(self, share: float, batch: int) -> None:
        """So much of the iteration's steps and so many of its batches are done."""
        plan = self._plan
        if batch != self._batch:
            self._batch = batch
            self._console.levels((*self._outer, Level("batch", batch, plan.batches_per_iteration)))
        self._console.progress(self._step + round(share * plan.steps_per_iteration))

    def complete(self, stage: int) -> None:
        """All loops are at their ends."""
        plan = self._plan
        totals = {
            "epoch": plan.epochs,
            "cycle": plan.cycles_per_epoch,
            "iteration": plan.iterations_per_cycle,
            "batch": plan.batches_per_iteration,
        }
        self._console.levels([*self._of_stages(stage), *(Level(name, n, n) for name, n in totals.items())])

    def _of_stages(self, stage: int) -> tuple[Level, ...]:
        return (Level("stage", stage + 1, self._stages),) if self._stages > 1 else ()
