"""What learns from a replay memory asks of it, wherever its episodes lie.

A table has a slot for every episode. Rows of observations, actions and rewards are found by slot and step.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Generator, Tensor

from ludus.envs.vec import State, Step

Field = tuple[tuple[int, ...], torch.dtype]  # of one row
Fields = dict[str, Field]
ALL = slice(None)


class TransitionDraw(NamedTuple):
    """Transitions of several batches, each [batches, n]."""

    row: Tensor  # int64: where observation and action lie
    next_row: Tensor  # int64: where the observation lies from which to bootstrap
    reward: Tensor  # float32: discounted sum of the rewards in between
    discount: Tensor  # float32: of the value there; 0 where the episode terminated
    slot: Tensor  # int64: of the episode, in the table
    t: Tensor  # int64: which of its steps


class SequenceDraw(NamedTuple):
    """Steps of m episodes for each of several batches. The observation after a step is in the row after it."""

    row: Tensor  # [batches, m, k] int64
    weight: Tensor  # [batches, m, k] float32, summing to 1: 1 / k, or for padded whole episodes 1 / T and 0
    correction: Tensor  # [batches, m]: sample variance of the predictions × this = variance of their mean
    length: Tensor  # [batches, m] float32: T
    episode_return: Tensor  # [batches, m] float32
    success: Tensor  # [batches, m] float32; NaN: unknown
    progress: Tensor  # [batches, m, k] float32: (t + 1) / T


class Replay(ABC):
    """Episodes to draw from, finished ones and those that are under way."""

    device: torch.device
    longest: int  # steps of an episode at most
    stacked_frames: int = 1
    obs: dict[str, Tensor]  # by name, each [rows, …]
    action: Tensor  # [rows, …]
    reward: Tensor  # [rows]
    hidden_reward: Tensor | None  # [rows] the true one, to measure by; nothing learns from it
    length: Tensor  # [slots] steps; 0: the slot is free
    episode_return: Tensor  # [slots] of finished episodes
    terminated: Tensor  # [slots] bool: the task ended; else time ran out, or the episode is open
    success: Tensor  # [slots] NaN: unknown

    recorded_by_graphs: ClassVar[bool] = False  # `record` is work on the device alone

    # Counting: may wait for the device -----------------------------------------------------------
    @property
    @abstractmethod
    def steps(self) -> int:
        """Of finished episodes."""

    @property
    @abstractmethod
    def open_steps(self) -> int:
        """Of episodes that are under way."""

    @property
    @abstractmethod
    def total_episodes_added(self) -> int: ...

    @abstractmethod
    def returns_and_lengths(self) -> tuple[Tensor, Tensor]:
        """Of all finished episodes."""

    # Writing -------------------------------------------------------------------------------------
    @abstractmethod
    def begin_all(self, obs: Tensor, lanes: slice = ALL) -> None:
        """First observations of new episodes; episodes that were not finished are forgotten."""

    def written_together(self) -> AbstractContextManager[None]:
        """Steps that are recorded in here may be written only when it is left; nothing is drawn in here."""
        return nullcontext()

    @abstractmethod
    def record(self, action: Tensor, step: Step, hidden_reward: Tensor | None = None, lanes: slice = ALL) -> None:
        """One step of a group of lanes, and what follows where it ended an episode."""

    # Drawing -------------------------------------------------------------------------------------
    @abstractmethod
    def draw_transitions(
        self,
        batches: int,
        n: int,
        generator: Generator,
        n_step: int = 1,
        gamma: float = 0.99,
        open_too: bool = True,
    ) -> TransitionDraw:
        """Uniform over all transitions. Fewer than `n_step` steps are summed where the episode, so far, ends."""

    @abstractmethod
    def draw_best(
        self, batches: int, n: int, generator: Generator, top: int = 10, n_step: int = 1, gamma: float = 0.99
    ) -> TransitionDraw:
        """Uniform over the transitions of the `top` finished episodes of highest return."""

    def draw_later(self, drawn: TransitionDraw, generator: Generator) -> Tensor:
        """A row of each transition's own episode after its action, uniform over all that there are so far."""
        left = self.length[drawn.slot] - drawn.t
        uniform = torch.rand(left.shape, dtype=torch.float64, generator=generator, device=self.device)
        return self.rows(drawn.slot, drawn.t + 1 + (uniform * left).long())

    @abstractmethod
    def draw_sequences(
        self, batches: int, m: int, k: int, generator: Generator, whole: bool = False
    ) -> SequenceDraw:
        """K steps of each of m finished episodes a batch, the episodes in proportion to their length.

        Steps are drawn without replacement, with replacement from an episode of fewer than K. `whole`: every step
        once instead, padded; the padding repeats the first step at weight 0.
        """

    @abstractmethod
    def observations(self, rows: Tensor, starts: Tensor) -> Tensor:
        """[n, *obs] what is stored under "obs" in rows of episodes that start there, stacked where it is."""

    @abstractmethod
    def rows(self, slot: Tensor, t: Tensor) -> Tensor:
        """Where steps of episodes lie."""

    def _transitions(self, slot: Tensor, t: Tensor, n_step: int, gamma: float) -> TransitionDraw:
        row = self.rows(slot, t)
        left = self.length[slot] - t
        steps = left.clamp(max=n_step)
        powers = gamma ** torch.arange(n_step + 1, dtype=torch.float64, device=self.device)
        discount = powers.float()[steps].masked_fill_(self.terminated[slot] & (left == steps), 0.0)
        if n_step == 1:
            reward = self.reward[row]
        else:
            ahead = torch.arange(n_step, device=self.device)
            inside = ahead < steps[..., None]
            rewards = self.reward[self.rows(slot[..., None], t[..., None] + ahead * inside)].double()
            reward = (rewards * inside * powers[:-1]).sum(-1).float()
        return TransitionDraw(row, self.rows(slot, t + steps), reward, discount, slot, t)

    def _all_steps(self, slot: Tensor, longest: int) -> SequenceDraw:
        length = self.length[slot]
        t = torch.arange(longest, device=self.device).expand(*slot.shape, -1)
        inside = t < length[..., None]
        nothing = torch.zeros_like(length, dtype=torch.float32)
        return self._sequences(slot, t * inside, inside / length[..., None], nothing)

    def _some_steps(self, slot: Tensor, t: Tensor) -> SequenceDraw:
        """Of steps [batches, m, k] that were drawn."""
        k, length = t.shape[-1], self.length[slot]
        correction = torch.where(length >= k, 1 - k / length, 1.0) / k
        return self._sequences(slot, t, torch.full(t.shape, 1 / k, device=self.device), correction)

    def _sequences(self, slot: Tensor, t: Tensor, weight: Tensor, correction: Tensor) -> SequenceDraw:
        length = self.length[slot]
        return SequenceDraw(
            row=self.rows(slot[..., None], t),
            weight=weight,
            correction=correction,
            length=length.float(),
            episode_return=self.episode_return[slot],
            success=self.success[slot],
            progress=(t + 1) / length[..., None],
        )

    # A replay is part of a run -------------------------------------------------------------------
    @abstractmethod
    def state(self) -> State:
        """What is in use, in host memory: a device may have no room for a second copy."""

    @abstractmethod
    def load_state(self, state: State, open_too: bool = True) -> bool:
        """Whether it goes into this one. Lanes may differ with `open_too=False`, where episodes begin anew."""


def after_step(step: Step) -> Tensor:
    """What a step led to: where it ended an episode, the last observation of that."""
    return torch.where(step.done.view(-1, *[1] * (step.obs.ndim - 1)), step.final_obs, step.obs)
