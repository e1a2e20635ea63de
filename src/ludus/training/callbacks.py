"""The moments of a run at which a user's own code may act, and what it may log.

class Progress(ludus.Callback):
    def __init__(self):
        self.successes, self.rewards = 0, deque(maxlen=100)

    def on_episode(self, run, episode):
        self.successes += episode.success
        self.rewards.append(episode.reward)
        run.log("custom/success_count", self.successes)
        run.log("custom/avg_reward_100", sum(self.rewards) / len(self.rewards))
        return self.successes < 1_000    # False ends the training

ludus.train("kuka-pick-place", callbacks=[Progress()])
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ludus.envs.vec import EndedEpisode, EpisodeStats, State, Step
from ludus.errors import LudusError

if TYPE_CHECKING:
    from ludus.training.loop import Trainer

_LONGEST_NAME = 200


class Callback:
    """Override what you need. Returning False from a method ends the training after saving.

    `run` is the training: `run.log(name, value)` adds a metric, `run.step` is how many steps are done,
    `run.policy` what is evaluated and saved, `run.config` the settings, `run.run_dir` the folder.
    """

    def on_start(self, run: "Trainer") -> bool | None:
        """Before the first iteration."""

    def on_step(self, run: "Trainer", step: Step) -> bool | None:
        """After each step of a group of environments: what its rows observed, were paid and ended (see `Step`).

        False ends the training after the iteration. Costs nothing where no callback has it.
        """

    def on_episode(self, run: "Trainer", episode: EndedEpisode) -> bool | None:
        """After each episode that ended in training: `episode.reward`, `.length`, `.success`, `.metrics`.

        The metrics go by their names after `rollout/`; a number in the `info` of a Gymnasium environment is
        `episode.metrics["env/NAME"]`, its mean over the episode.
        False ends the training after the iteration. Costs nothing where no callback has it.
        """

    def on_iteration(self, run: "Trainer") -> bool | None:
        """After each rollout and its updates."""

    def on_cycle(self, run: "Trainer", metrics: dict[str, float]) -> bool | None:
        """After each row of metrics."""

    def on_evaluation(self, run: "Trainer", metrics: dict[str, float]) -> bool | None:
        """After each evaluation."""

    def on_end(self, run: "Trainer") -> bool | None:
        """After the last checkpoint, however the training ended."""


class Watcher:
    """Tells callbacks of steps and episodes. False where none of them has asked to know."""

    def __init__(self, run: "Trainer", callbacks: Sequence[Callback]) -> None:
        self._run = run
        self._on_step, self._on_episode = (
            [getattr(c, moment) for c in callbacks if _has_own(c, moment)] for moment in ("on_step", "on_episode")
        )
        self.stopped = False  # one of them has said False

    def __bool__(self) -> bool:
        return bool(self._on_step or self._on_episode)

    def __call__(self, step: Step, stats: EpisodeStats, present: Tensor | None) -> None:
        """A step was made, which `stats` has not counted yet; `present` as there."""
        for told in self._on_step:
            self._note(told(self._run, step))
        if self._on_episode and bool(step.done.any()):
            for episode in stats.ending(step, present):
                for told in self._on_episode:
                    self._note(told(self._run, episode))

    def _note(self, answer: bool | None) -> None:
        self.stopped |= answer is not None and not answer


def _has_own(callback: Any, moment: str) -> bool:
    method = getattr(callback, moment, None)
    return method is not None and getattr(method, "__func__", method) is not getattr(Callback, moment)


class Logged:
    """What callbacks have logged since the last row: the mean of each."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # and how many
        self.names: dict[str, None] = {}  # all that were ever logged, in order

    def add(self, name: str, value: Any) -> None:
        """A number that is not finite is left out."""
        try:
            number = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            raise LudusError(f"run.log({name!r}, …): a {type(value).__name__} is not one number.") from None
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
            raise LudusError(f"run.log({name!r}, …): a name is text, as 'custom/distance'.")
        if math.isfinite(number):
            self.names[name] = None
            entry = self._sums.setdefault(name, [0.0, 0])
            entry[0] += number
            entry[1] += 1

    def take(self) -> dict[str, float]:
        means = {name: total / count for name, (total, count) in self._sums.items()}
        self._sums = {}
        return means

    def state(self) -> State:
        return {name: list(entry) for name, entry in self._sums.items()}

    def load_state(self, state: State) -> None:
        self._sums = {str(name): [float(total), int(count)] for name, (total, count) in state.items() if count > 0}
