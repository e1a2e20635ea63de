"""The on-policy buffer: trajectories of all rows side by side, cut into segments of equal length.

Every segment is one contiguous piece of one row's trajectory; episodes may end inside it. An update takes a fixed
number of segments, which need not be a multiple of the rows: rows then begin their segments at different times,
spread evenly, and what is half recorded when an update is due is finished in the next rollout. Which segment is
taken when follows from two numbers alone (`SegmentSchedule`), so nothing is ever spliced, lost or taken twice.
"""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.vec import State


@dataclass
class Track:
    """What is recorded of every step, [columns, rows, ...], time first, so that a step is written in one piece."""

    obs: Tensor
    action: Tensor
    log_prob: Tensor  # of the action, when it was taken; see `Segments.judged`
    value: Tensor  # V of the observation, when it was seen; likewise
    reward: Tensor
    done: Tensor  # bool
    final_value: Tensor  # V of a truncated episode's final observation; 0 where an episode terminated
    discounted: Tensor  # the discounted return of the episode so far, for the scale of rewards
    present: Tensor  # bool: the row had an agent


@dataclass
class Segments:
    """The segments of one update, as places in the flat record of all steps."""

    track: Track  # flat: [columns · rows, ...]
    places: Tensor  # [horizon, segments] of the steps
    following: Tensor  # [segments] of what came after
    state: Tensor  # [segments, state] of the memory before the first step
    all_present: bool
    judged: bool  # log_prob and value were recorded; else the policy that acted is the present one, and can tell

    def __getattr__(self, name: str) -> Tensor:
        """`segments.reward` is [horizon, segments], and so on."""
        if name not in _TRACK_NAMES:
            raise AttributeError(name)
        values: Tensor = getattr(self.track, name)
        return values.index_select(0, self.places.flatten()).view(*self.places.shape, *values.shape[1:])


_TRACK_NAMES = tuple(field.name for field in fields(Track))


class SegmentBuffer:
    """Filled step by step, a group of rows at a time."""

    def __init__(
        self,
        schedule: SegmentSchedule,
        obs_shape: tuple[int, ...],
        obs_dtype: torch.dtype,
        action_size: int,
        state_size: int,
        device: torch.device,
    ) -> None:
        self.schedule, self.device = schedule, device
        self.time = 0  # steps of every row so far
        self.all_present = True  # no row is ever without an agent
        self.columns = schedule.columns
        shapes = buffer_shapes(schedule, obs_shape, obs_dtype, action_size, state_size)
        tensors = {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}
        self.starts = tensors.pop("starts")
        self.track = Track(**tensors)
        self._views: dict[tuple[int, int], Track] = {}
        self._flat = Track(**{name: tensor.flatten(0, 1) for name, tensor in tensors.items()})

    def keep_state(self, rows: slice, state: Tensor) -> None:
        """Keep the memory's states of those rows that begin a segment now."""
        starting = self.schedule.starting_rows(self.time)
        first, stop = max(starting.start, rows.start), min(starting.stop, rows.stop)
        if first < stop and self.starts.shape[-1]:
            number = (self.time - self.schedule.start(first)) // self.schedule.horizon
            self.starts[number % len(self.starts), first:stop] = state[first - rows.start : stop - rows.start]

    def write(self, rows: slice, column: int | Tensor, **values: Tensor) -> None:
        """One step of some rows, by the names of `Track`."""
        track = self._of_rows(rows)
        for name, value in values.items():
            target: Tensor = getattr(track, name)
            if isinstance(column, int):
                target[column] = value
            else:
                target.index_copy_(0, column, value[None])

    def _of_rows(self, rows: slice) -> Track:
        """The record of one group, whose views are made once."""
        key = (rows.start, rows.stop)
        if key not in self._views:
            self._views[key] = Track(*(getattr(self.track, name)[:, rows] for name in _TRACK_NAMES))
        return self._views[key]

    def take(self, update: int, judged: bool = True) -> Segments:
        """The segments of an update, in order. What the tensors hold is overwritten by the next rollout."""
        schedule, columns = self.schedule, self.columns
        first = update * schedule.segments
        number = torch.arange(first, first + schedule.segments, device=self.device)
        row, nth = number % schedule.rows, number // schedule.rows
        time = schedule.start(number) + torch.arange(schedule.horizon + 1, device=self.device)[:, None]
        places = time % columns * schedule.rows + row
        state = self.starts[nth % len(self.starts), row]
        return Segments(self._flat, places[:-1], places[-1], state, self.all_present, judged)

    # Half-recorded segments are part of a run ----------------------------------------------------
    def state(self) -> State:
        state: State = {"time": self.time}
        if not self.schedule.aligned:  # aligned, there is nothing half recorded between two updates
            state |= {name: getattr(self.track, name).clone() for name in _TRACK_NAMES}
            state["starts"] = self.starts.clone()
        return state

    def load_state(self, state: State) -> None:
        self.time = state["time"]
        if not self.schedule.aligned:
            for name in _TRACK_NAMES:
                getattr(self.track, name).copy_(state[name])
            self.starts.copy_(state["starts"])


def buffer_shapes(
    schedule: SegmentSchedule,
    obs_shape: tuple[int, ...],
    obs_dtype: torch.dtype,
    action_size: int,
    state_size: int,
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Shape and type of every tensor of a buffer: what it allocates, and what a plan counts."""
    step = (schedule.columns, schedule.rows)
    number = (step, torch.float32)
    flag = (step, torch.bool)
    return {
        "obs": ((*step, *obs_shape), obs_dtype),
        "action": ((*step, action_size), torch.float32),
        "log_prob": number,
        "value": number,
        "reward": number,
        "done": flag,
        "final_value": number,
        "discounted": number,
        "present": flag,
        "starts": ((schedule.starts_per_row, schedule.rows, state_size), torch.float32),
    }
