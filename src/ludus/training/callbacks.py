"""The moments of a run at which a user's own code may act.

class StopWhenSolved(Callback):
    def on_evaluation(self, run, metrics):
        return metrics["eval/mean_reward"] < 475    # False ends the training

ludus.train("gym:CartPole-v1", callbacks=[StopWhenSolved()])
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ludus.training.loop import Trainer


class Callback:
    """Override what you need. Returning False from a method ends the training after saving."""

    def on_start(self, run: "Trainer") -> bool | None:
        """Before the first iteration."""

    def on_iteration(self, run: "Trainer") -> bool | None:
        """After each rollout and its updates."""

    def on_cycle(self, run: "Trainer", metrics: dict[str, float]) -> bool | None:
        """After each row of metrics."""

    def on_evaluation(self, run: "Trainer", metrics: dict[str, float]) -> bool | None:
        """After each evaluation."""

    def on_end(self, run: "Trainer") -> bool | None:
        """After the last checkpoint, however the training ended."""
