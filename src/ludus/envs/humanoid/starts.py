"""Where episodes start: in which clip and at which of its times, more often where the policy fails."""

import math
from typing import Any

import torch
from torch import Tensor

from ludus.envs.humanoid.motions import BIN_SECONDS, MotionLibrary
from ludus.envs.vec import State
from ludus.errors import CheckpointError

_MOST_TOLD = 5  # changed clips that an error names
_BLAME_BEFORE = 0.5  # a fall often begins in the part before the one in which it is noticed


class StartWeights:
    """The probability of each part (of one second) of each clip.

    At first all clips are alike, whatever their length. A loop is followed on and on, another clip to its end:
    once evaluations tell how long, a loop gets the fewer starts, so that it is practised for no longer than clips
    that end are on average.
    Failures, smoothed over evaluations, draw the starts towards themselves, the more the more there are:

        p = (1 − hard) · even + hard · drawn        hard = (1 − floor) · min(1, total / enough)

    `even` is what a part has where nothing fails; `drawn` are the rates of failing in each part, of a loop by what
    its starts are worth, as shares of their sum; and `total` is the sum of the rates: 1 where one clip always
    fails, or eight do in one of eight tries. What is solved gives its share back as `total` falls, and the floor
    keeps every clip's share at least at floor · even: none is forgotten.
    `enough` is 1, or of many clips a share, `spread`: so that a clip which always fails gets no more of the starts
    than 1 / enough.
    """

    def __init__(
        self,
        library: MotionLibrary,
        floor: float,
        smoothing: float,
        spread: float = 0.0,
        longest: float = math.inf,
    ) -> None:
        """`longest`: seconds of a training's episodes, at most."""
        self._longest = longest
        self._floor, self._smoothing, self._enough = floor, smoothing, max(1.0, spread * len(library))
        self._clips = [{"name": c.name, "seconds": round(c.duration, 6), "loop": c.loop} for c in library.clips]
        device = library.device
        durations = library.durations.tolist()
        counts = [max(1, math.ceil(seconds / BIN_SECONDS - 1e-6)) for seconds in durations]
        bins = [(clip, part) for clip, count in enumerate(counts) for part in range(count)]
        self.clip = torch.tensor([clip for clip, _ in bins], device=device)
        self._begin = torch.tensor([part * BIN_SECONDS for _, part in bins], dtype=torch.float64, device=device)
        end = torch.minimum(self._begin + BIN_SECONDS, library.durations[self.clip])
        self._length = end - self._begin
        self._count = torch.tensor(counts, device=device)
        self._first = self._count.cumsum(0) - self._count
        self._durations, self._loops = library.durations, library.loops
        self._worth = torch.ones(len(library), dtype=torch.float64, device=device)  # of each clip, in starts
        self._even = self._evenly()
        self.failures = torch.zeros(len(bins), dtype=torch.float64, device=device)  # smoothed rates
        self.probability = self._even.clone()
        self._upto = self.probability.cumsum(0)

    def draw(self, choice: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """([n] clip, [n] seconds) from two uniform random numbers [n] each."""
        part = torch.searchsorted(self._upto, choice * self._upto[-1]).clamp(max=len(self.clip) - 1)
        return self.clip[part], self._begin[part] + place * self._length[part]

    def part_at(self, clip: Tensor, time: Tensor) -> Tensor:
        """[n] which part of all that is; times after a looping clip's end begin it anew."""
        time = torch.where(self._loops[clip], time.remainder(self._durations[clip]), time)
        part = (time / BIN_SECONDS).long().clamp(min=0)
        return self._first[clip] + torch.minimum(part, self._count[clip] - 1)

    def learn(
        self, clip: Tensor, began: Tensor, ended: Tensor, failed: Tensor, lost: Tensor | None = None
    ) -> None:
        """From an evaluation's episodes: [n] clip, [n] seconds at which it began and ended, [n] bool whether it
        failed, and [n] seconds at which, where that does not end it.
        """
        attempts = torch.zeros(len(self._count), dtype=torch.float64, device=clip.device)
        attempts.index_add_(0, clip, torch.ones_like(ended))
        self._balance(clip, ended - began, attempts)
        blame = failed.double() / attempts[clip]
        part = self.part_at(clip, ended if lost is None else lost)
        rates = torch.zeros_like(self.failures).index_add_(0, part, (1 - _BLAME_BEFORE) * blame)
        rates.index_add_(0, self._part_before(clip, part), _BLAME_BEFORE * blame)
        self.failures.lerp_(rates, self._smoothing)
        self._refresh()

    def _balance(self, clip: Tensor, seconds: Tensor, attempts: Tensor) -> None:
        """What starts of loops are worth beside those of clips that end, by how long they were followed."""
        # A training begins anywhere in a clip: where that ends before the policy fails, the episode does, too.
        loops, durations = self._loops[clip], self._durations[clip]
        # A single step of an evaluation may be longer than the clip.
        longest = torch.where(loops, torch.inf, durations).clamp(max=self._longest)
        seconds = torch.minimum(seconds, longest)
        cut = torch.where(loops, 0.0, seconds.square() / (2 * durations))
        practised = torch.zeros_like(attempts).index_add_(0, clip, seconds - cut) / attempts.clamp(min=1)
        ends = (attempts > 0) & ~self._loops
        loops = (attempts > 0) & self._loops
        if ends.any():
            shares = practised[ends].mean() / practised.clamp(min=1e-9)
            self._worth.copy_(torch.where(loops, shares, 1.0).clamp(max=1.0))
            self._even.copy_(self._evenly())

    def _evenly(self) -> Tensor:
        """[parts] their probabilities where nothing fails."""
        share = self._worth / self._worth.sum()
        return share[self.clip] * self._length / self._durations[self.clip]

    def _part_before(self, clip: Tensor, part: Tensor) -> Tensor:
        within = part - self._first[clip]
        first = torch.where(self._loops[clip], self._count[clip] - 1, 0)
        return self._first[clip] + torch.where(within > 0, within - 1, first)

    def _refresh(self) -> None:
        total = self.failures.sum()
        hard = (1 - self._floor) * (total / self._enough).clamp(max=1.0)
        # In place: a recorded CUDA graph knows the tensors by their address.
        drawn = self.failures * self._worth[self.clip]
        self.probability.copy_((1 - hard) * self._even + hard * drawn / drawn.sum().clamp(min=1e-12))
        self._upto.copy_(self.probability.cumsum(0))

    def shares(self) -> Tensor:
        """[clips] the probability of each clip."""
        return torch.zeros(len(self._count), dtype=torch.float64, device=self.clip.device).index_add_(
            0, self.clip, self.probability
        )

    def state(self) -> State:
        return {"failures": self.failures.clone(), "worth": self._worth.clone(), "clips": self._clips}

    def refuse_other_clips(self, state: State) -> None:
        """The clips are not in a checkpoint; which ones they were is, since the failures are theirs."""
        changes = _changes(state.get("clips", self._clips), self._clips)  # older checkpoints do not say
        if changes:
            told = "; ".join(changes[:_MOST_TOLD]) + "; …" * (len(changes) > _MOST_TOLD)
            raise CheckpointError(
                f"The clips are not those this run began with ({told}): put them back, or begin a new run."
            )

    def load_state(self, state: State) -> None:
        self.refuse_other_clips(state)
        failures = state["failures"]
        worth = state.get("worth", torch.ones_like(self._worth))  # which older checkpoints lack
        shaped = failures.shape == self.failures.shape and worth.shape == self._worth.shape
        if not (shaped and _within(failures, 0, 1) and _within(worth, 0, 1) and worth.all()):
            raise CheckpointError("What it knows of where episodes should start makes no sense: it is damaged.")
        self.failures.copy_(failures)
        self._worth.copy_(worth)
        self._even.copy_(self._evenly())
        self._refresh()


def _within(values: Tensor, least: float, most: float) -> bool:
    """No NaN is."""
    return bool(((values >= least) & (values <= most + 1e-9)).all())


def _changes(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """What is different, in words, clip by clip; empty where nothing is."""
    old, new = ({clip["name"]: clip for clip in clips} for clips in (before, now))
    changes = [f"{name} is gone" for name in old if name not in new]
    changes += [f"{name} is new" for name in new if name not in old]
    for name in (name for name in old if name in new):
        then, here = old[name], new[name]
        if then["seconds"] != here["seconds"]:
            changes.append(f"{name} lasts {here['seconds']:.2f} s, not {then['seconds']:.2f} s as then")
        elif then["loop"] != here["loop"]:
            changes.append(f"{name} {'loops' if here['loop'] else 'does not loop'}, unlike then")
    return changes or ["they come in another order"] * (list(old) != list(new))
