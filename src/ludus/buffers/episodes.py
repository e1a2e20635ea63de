"""The replay memory: whole episodes in contiguous rows, first in, first out.

An episode of T steps takes T + 1 rows: its observations, each stored once, and in the first T the action taken
there and the reward it brought. Rows [0, capacity) are a ring of finished episodes; behind them every lane (a row
of the environments) has room for the one episode it is in. A table says where each episode lies.

Where an observation is a stack of the newest frames, only its newest is stored, and stacks are built when they are
read: at the beginning of an episode they repeat its first frame.

All tensors are allocated once and stay where they are. Where things go is worked out on the host, from lengths it
knows anyway, so neither writing nor drawing ever waits for the device. Steps that a collector makes are gathered
and written together.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ludus.buffers.replay import ALL, Field, Fields, Replay, SequenceDraw, TransitionDraw, after_step
from ludus.envs.vec import State, Step
from ludus.errors import CheckpointError, EnvError, LudusError

_WAITING_BYTES = 2**24  # at most about so much waits to be written together: images are large
_KEYS_AT_ONCE = 4_000_000  # random keys, of which the choice without replacement needs one for every step
_SIZES = ("capacity", "lanes", "longest")
_COUNTS = ("steps", "episodes", "total_episodes_added", "_first", "_head")
_TABLE: Fields = {
    "start": ((), torch.int64),
    "length": ((), torch.int64),
    "episode_return": ((), torch.float32),
    "terminated": ((), torch.bool),
    "success": ((), torch.float32),
}


class EpisodeStore(Replay):
    """`obs` says what one observation is, by name; `longest` is the most steps an open episode may take."""

    start: Tensor  # [slots] the first row
    episodes = steps = total_episodes_added = 0  # finished ones: the host counts

    def __init__(
        self,
        obs: Fields,
        action: Field,
        capacity: int,
        lanes: int,
        longest: int,
        device: torch.device | str,
        hidden_reward: bool = False,
        stacked_frames: int = 1,
        state_size: int = 0,
    ) -> None:
        """Of observations that are stacks of frames `obs` says what a stack is.

        `state_size` is that of the hidden state which a policy with a memory has before each step.
        """
        if lanes and longest >= capacity:
            raise ValueError(_too_long(longest, capacity))
        self.capacity, self.lanes, self.longest, self.device = capacity, lanes, longest, torch.device(device)
        self.stacked_frames = stacked_frames
        shapes = store_shapes(obs, action, capacity, lanes, longest, hidden_reward, stacked_frames, state_size)
        tensors = {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}
        self.obs = {name: tensors[f"obs.{name}"] for name in obs}
        self.action, self.reward = tensors["action"], tensors["reward"]
        self.hidden_reward = tensors.get("hidden_reward")
        self.hidden_state = tensors.get("hidden_state")  # [rows, state_size] before the observation was seen
        self._table = {name: tensors[name] for name in _TABLE}
        for name, column in self._table.items():
            setattr(self, name, column)
        self._rows = {name: tensor for name, tensor in tensors.items() if name not in _TABLE}
        self._of_steps = {name: tensor for name, tensor in self._rows.items() if not name.startswith("obs.")}

        # The host's own copy of the table, in which the last `lanes` slots are the open episodes.
        self._slots = capacity // 2 + 1  # of finished ones: the shortest episode takes two rows
        self._start = np.zeros(self._slots + lanes, np.int64)
        self._start[self._slots :] = capacity + np.arange(lanes) * (longest + 1)
        self._length = np.zeros(self._slots + lanes, np.int64)
        self._begun = np.zeros(lanes, bool)
        # Rows and values that wait to be written, by name; None: all is written at once.
        self._waiting: dict[str, list[tuple[Tensor, Tensor]]] | None = None
        self._waiting_bytes = 0
        self._first, self._head = 0, 0  # slot of the oldest finished episode; the row after the newest
        self.start.copy_(torch.from_numpy(self._start))
        self.success.fill_(math.nan)

    @property
    def open_steps(self) -> int:
        return int(self._length[self._slots :].sum())

    @property
    def longest_finished(self) -> int:
        """Steps of the longest finished episode in the store."""
        return max((int(self._length[piece].max()) for piece in self._pieces(self.episodes)), default=0)

    def returns_and_lengths(self) -> tuple[Tensor, Tensor]:
        """Of all finished episodes."""
        finished = self._drawn_slots(open_too=False)
        return self.episode_return[finished], self.length[finished]

    # Reading -------------------------------------------------------------------------------------
    def observations(self, rows: Tensor, starts: Tensor) -> Tensor:
        obs = self.obs["obs"]
        if self.stacked_frames == 1:
            return obs.index_select(0, rows)
        steps_ago = torch.arange(self.stacked_frames - 1, -1, -1, device=self.device)
        places = torch.maximum(rows[:, None] - steps_ago, starts[:, None])
        return obs.index_select(0, places.flatten()).unflatten(0, places.shape)

    # Writing -------------------------------------------------------------------------------------
    def begin_all(self, obs: Tensor, lanes: slice = ALL) -> None:
        self.begin(ALL, {"obs": obs}, lanes)

    @contextmanager
    def written_together(self) -> Iterator[None]:
        self._waiting = {}
        try:
            yield
        finally:
            try:
                self._write_waiting()
            finally:
                self._waiting = None

    def record(self, action: Tensor, step: Step, hidden_reward: Tensor | None = None, lanes: slice = ALL) -> None:
        """Waits for the device, to know which episodes ended."""
        ended = step.done.nonzero().squeeze(1).cpu()
        after = after_step(step) if len(ended) else step.obs
        self.append(action, step.reward, {"obs": after}, hidden_reward, lanes)
        if len(ended):
            success = step.metrics.get("success")
            told = None if success is None else success[ended]
            self.finish(ended + lanes.indices(self.lanes)[0], step.terminated[ended], told)
            self.begin(ended, {"obs": step.obs}, lanes)

    def begin(self, where: slice | Tensor, obs: dict[str, Tensor], group: slice = ALL) -> None:
        """First observations of new episodes; an episode there that was not finished is forgotten.

        `where` and `obs` count within the group: `where` is a slice, a mask or numbers of its lanes (on the CPU,
        or the device is waited for), and only those rows of `obs` are read.
        """
        first, stop, _ = group.indices(self.lanes)
        chosen = _chosen(where, stop - first)
        self._write_waiting()
        for lane in chosen + first:
            self._clear(lane)
        rows = torch.from_numpy(self._start[self._slots + first + chosen])
        for name in self.obs:
            given = obs[name]
            source = torch.from_numpy(chosen).to(given.device, non_blocking=given.is_cuda)
            self._write(f"obs.{name}", rows, self._newest(given.index_select(0, source)))
        self._begun[first + chosen] = True

    def remember(self, state: Tensor, lanes: slice) -> None:
        """The policy's hidden state before it sees the newest observation of a group of lanes."""
        first, stop, _ = lanes.indices(self.lanes)
        self._write("hidden_state", self._newest_rows(slice(self._slots + first, self._slots + stop)), state)

    def append(
        self,
        action: Tensor,
        reward: Tensor,
        next_obs: dict[str, Tensor],
        hidden_reward: Tensor | None = None,
        lanes: slice = ALL,
    ) -> None:
        """One step of a group of lanes. Where an episode ended, `next_obs` is its last observation."""
        first, stop, _ = lanes.indices(self.lanes)
        slots = slice(self._slots + first, self._slots + stop)
        self._refuse_step(first, stop)
        rows = self._newest_rows(slots)
        for name, value in self._step_values(action, reward, hidden_reward).items():
            self._write(name, rows, value)
        rows = rows + 1
        for name in self.obs:
            self._write(f"obs.{name}", rows, self._newest(next_obs[name]))
        self._length[slots] += 1
        if self._waiting is None:
            self.length[slots] += 1
        elif self._waiting_bytes >= _WAITING_BYTES:
            self._write_waiting()

    def finish(self, lanes: Tensor, terminated: Tensor, success: Tensor | None = None) -> None:
        """Move open episodes into the ring. `lanes`: their numbers (on the CPU, or the device is waited for)."""
        numbers: list[int] = lanes.tolist()
        for lane in numbers:
            if not self._length[self._slots + lane]:
                raise LudusError(f"The episode of lane {lane} cannot be finished: it has no steps.")
        self._write_waiting()
        terminated, success = self._here(terminated), None if success is None else self._here(success)
        for i, lane in enumerate(numbers):
            begin, steps = self._start[self._slots + lane], int(self._length[self._slots + lane])
            slot, row = self._make_room(steps)
            for tensor in self._rows.values():
                tensor[row : row + steps + 1] = tensor[begin : begin + steps + 1]
            self._enter(slot, row, steps, terminated[i], math.nan if success is None else success[i], None)
            self._clear(lane)

    def add(
        self,
        obs: dict[str, Tensor],
        action: Tensor,
        reward: Tensor,
        terminated: bool,
        success: float | None = None,
        hidden_reward: Tensor | None = None,
        episode_return: float | None = None,
    ) -> None:
        """One whole recorded episode: T actions and rewards, T + 1 observations."""
        steps = len(reward)
        values = self._step_values(action, reward, hidden_reward)
        rows = dict.fromkeys(values, steps) | {f"obs.{name}": steps + 1 for name in self.obs}
        values |= {f"obs.{name}": self._newest(obs[name]) for name in self.obs}
        for name, value in values.items():
            wanted = (rows[name], *self._rows[name].shape[1:])
            if steps == 0 or value.shape != wanted:
                raise ValueError(
                    f"An episode of {steps} steps cannot be stored with {name} of shape {tuple(value.shape)}: "
                    f"it must have at least one step, and then the shape {wanted}."
                )
            _check_bytes(name, self._rows[name], value)
        slot, row = self._make_room(steps)
        for name, value in values.items():
            self._rows[name][row : row + rows[name]] = value
        for tensor in self._of_steps.values():
            tensor[row + steps] = 0
        self._enter(slot, row, steps, terminated, math.nan if success is None else success, episode_return)

    def _newest(self, obs: Tensor) -> Tensor:
        """What is stored of observations."""
        return obs if self.stacked_frames == 1 else obs[:, -1]

    def _step_values(self, action: Tensor, reward: Tensor, hidden_reward: Tensor | None) -> dict[str, Tensor]:
        if (hidden_reward is None) != (self.hidden_reward is None):
            raise ValueError(
                "A hidden reward is given with every step of a store that keeps one, and with no other."
            )
        values = {"action": action, "reward": reward}
        return values if hidden_reward is None else values | {"hidden_reward": hidden_reward}

    def _refuse_step(self, first: int, stop: int) -> None:
        if not self._begun[first:stop].all():
            lane = first + int(self._begun[first:stop].argmin())
            raise LudusError(f"Lane {lane} has no episode to which a step could be added: call begin() first.")
        length = self._length[self._slots + first : self._slots + stop]
        if (length >= self.longest).any():
            raise EnvError(
                f"The episode of environment row {first + int(length.argmax())} takes more than {self.longest} "
                "steps, and there is no room for it. Say how long one may be with --replay.longest, or set a time "
                "limit with --env.max-steps."
            )

    def _newest_rows(self, slots: slice) -> Tensor:
        """Of open episodes, where the observations lie that were given last."""
        return torch.from_numpy(self._start[slots] + self._length[slots])

    def _write(self, name: str, rows: Tensor, values: Tensor) -> None:
        """Into rows that the host has named; no two writes that wait go to the same."""
        target = self._rows[name]
        _check_bytes(name, target, values)
        if self._waiting is None:
            target.index_copy_(0, self._here(rows), self._here(values).to(target.dtype))
        else:
            self._waiting.setdefault(name, []).append((rows, values.clone()))
            self._waiting_bytes += values.nbytes

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        for name, writes in self._waiting.items():
            rows, values = (self._pinned(torch.cat(parts)) for parts in zip(*writes, strict=True))
            self._rows[name].index_copy_(0, self._here(rows), self._here(values).to(self._rows[name].dtype))
        lengths = torch.from_numpy(self._length[self._slots :].copy())
        self.length[self._slots :].copy_(self._pinned(lengths), non_blocking=True)
        self._waiting, self._waiting_bytes = {}, 0

    def _pinned(self, values: Tensor) -> Tensor:
        """Ready for a copy to a GPU, which would wait for all work there if a large one came from other memory."""
        return values.pin_memory() if self.device.type == "cuda" and not values.is_cuda else values

    def _here(self, values: Tensor) -> Tensor:
        """On the store's device. Work on a GPU keeps its order, so a copy to it need not be waited for."""
        return values.to(self.device, non_blocking=self.device.type == "cuda")

    def _clear(self, lane: int) -> None:
        """Empty an open episode. Unused rows are zeros, so that equal runs have equal stores, resumed or not."""
        slot = self._slots + lane
        begin, steps = self._start[slot], self._length[slot]
        if steps:
            for tensor in self._of_steps.values():
                tensor[begin : begin + steps].zero_()
            self.length[slot].zero_()
            self._length[slot] = 0
        self._begun[lane] = False

    # The ring ------------------------------------------------------------------------------------
    def _make_room(self, steps: int) -> tuple[int, int]:
        """Slot and first row for a new episode. The oldest ones leave until it fits."""
        need = steps + 1
        if need > self.capacity:
            raise ValueError(_too_long(steps, self.capacity))
        if self._head + need > self.capacity:
            self._evict(self._head, self.capacity)  # older than any at the beginning, so they leave before
            self._head = 0
        self._evict(self._head, self._head + need)
        row, self._head = self._head, self._head + need
        return (self._first + self.episodes) % self._slots, row

    def _evict(self, begin: int, end: int) -> None:
        leaving = 0
        while leaving < self.episodes and begin <= self._start[(self._first + leaving) % self._slots] < end:
            leaving += 1
        for piece in self._pieces(leaving):
            self.steps -= int(self._length[piece].sum())
            self.length[piece].zero_()
            self._length[piece] = 0
        self._first, self.episodes = (self._first + leaving) % self._slots, self.episodes - leaving

    def _enter(self, slot: int, row: int, steps: int, terminated: Any, success: Any, total: Any) -> None:
        self._start[slot], self._length[slot] = row, steps
        if total is None:
            total = self.reward[row : row + steps].sum(dtype=torch.float64)
        values = {"start": row, "length": steps, "episode_return": total}
        for name, value in {**values, "terminated": terminated, "success": success}.items():
            place = self._table[name][slot]
            # Assigning a number to an element would wait for a GPU; filling it does not.
            place.copy_(value) if isinstance(value, Tensor) else place.fill_(value)
        self.steps += steps
        self.episodes += 1
        self.total_episodes_added += 1

    def _pieces(self, count: int) -> list[slice]:
        """Slots of the `count` oldest finished episodes, oldest first; they may go around the end of the table."""
        end = self._first + count
        pieces = [slice(self._first, min(end, self._slots)), slice(0, end - self._slots)]
        return [piece for piece in pieces if piece.stop > piece.start]

    # Drawing -------------------------------------------------------------------------------------
    def draw_transitions(
        self,
        batches: int,
        n: int,
        generator: Generator,
        n_step: int = 1,
        gamma: float = 0.99,
        open_too: bool = True,
    ) -> TransitionDraw:
        total = self.steps + (self.open_steps if open_too else 0)
        self._refuse_empty(total)
        number = torch.randint(total, (batches, n), generator=generator, device=self.device)
        return self._transitions(*self._locate(number, self._drawn_slots(open_too)), n_step, gamma)

    def draw_segments(
        self, batches: int, m: int, steps: int, generator: Generator, gamma: float = 0.99
    ) -> TransitionDraw:
        """[batches, steps, m] consecutive transitions: episode follows episode, the first the last.

        So every transition is drawn equally often, and an episode shorter than a segment takes a part of it.
        """
        total = self.steps + self.open_steps
        self._refuse_empty(total)
        first = torch.randint(total, (batches, 1, m), generator=generator, device=self.device)
        number = (first + torch.arange(steps, device=self.device)[:, None]) % total
        return self._transitions(*self._locate(number, self._drawn_slots(open_too=True)), 1, gamma)

    def draw_best(
        self, batches: int, n: int, generator: Generator, top: int = 10, n_step: int = 1, gamma: float = 0.99
    ) -> TransitionDraw:
        self._refuse_empty(self.episodes)
        slots = self._drawn_slots(open_too=False)
        slots = slots[self.episode_return[slots].topk(min(top, self.episodes)).indices]
        # The host does not know which these are. In float64, a uniform number × total stays below the total.
        uniform = torch.rand((batches, n), dtype=torch.float64, generator=generator, device=self.device)
        number = (uniform * self.length[slots].sum()).long()
        return self._transitions(*self._locate(number, slots), n_step, gamma)

    def draw_by_worth(
        self, batches: int, n: int, generator: Generator, worth: Tensor, n_step: int = 1, gamma: float = 0.99
    ) -> TransitionDraw:
        """In proportion to `worth`, [steps] of the finished episodes one after the other."""
        ends = worth.double().cumsum(0)
        uniform = torch.rand((batches, n), dtype=torch.float64, generator=generator, device=self.device)
        number = torch.searchsorted(ends, uniform * ends[-1], right=True)
        return self._transitions(*self._locate(number, self._drawn_slots(open_too=False)), n_step, gamma)

    def draw_sequences(
        self, batches: int, m: int, k: int, generator: Generator, whole: bool = False
    ) -> SequenceDraw:
        self._refuse_empty(self.steps)
        number = torch.randint(self.steps, (batches, m), generator=generator, device=self.device)
        slot, _ = self._locate(number, self._drawn_slots(open_too=False))
        if whole:
            return self._all_steps(slot, self.longest_finished)
        return self._some_steps(slot, self._choose(self.length[slot].flatten(), k, generator).view(batches, m, k))

    def _refuse_empty(self, steps: int) -> None:
        if not steps:
            what = "finished episode" if self.open_steps else "step"
            raise LudusError(f"Nothing can be drawn from the episode store: it holds no {what} yet.")

    def _drawn_slots(self, open_too: bool) -> Tensor:
        pieces = self._pieces(self.episodes)
        if open_too:
            pieces.append(slice(self._slots, self._slots + self.lanes))
        if not pieces:
            return torch.zeros(0, dtype=torch.int64, device=self.device)
        return torch.cat([torch.arange(piece.start, piece.stop, device=self.device) for piece in pieces])

    def _locate(self, number: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Slot and step of transitions, which are numbered through the episodes in the order of `slots`."""
        length = self.length[slots]
        ends = length.cumsum(0)
        place = torch.searchsorted(ends, number, right=True)
        return slots[place], number - (ends - length)[place]

    def rows(self, slot: Tensor, t: Tensor) -> Tensor:
        return self.start[slot] + t

    def _choose(self, length: Tensor, k: int, generator: Generator) -> Tensor:
        """K steps of episodes of these lengths, [episodes, k]. What need not be drawn is not."""
        longest = self.longest_finished
        shortest = min(self._length[piece].min() for piece in self._pieces(self.episodes))
        if shortest < k:
            uniform = torch.rand((len(length), k), dtype=torch.float64, generator=generator, device=self.device)
            repeated = (uniform * length[:, None]).long()
            if longest < k:
                return repeated
        # The k largest of one random key a step are k different steps, every choice of them equally likely.
        position = torch.arange(longest, device=self.device)
        parts = []
        for part in length.split(max(1, _KEYS_AT_ONCE // longest)):
            keys = torch.rand((len(part), longest), generator=generator, device=self.device)
            keys.masked_fill_(position >= part[:, None], -1.0)
            parts.append(keys.topk(k, sorted=False).indices)
        different = torch.cat(parts)
        return different if shortest >= k else torch.where(length[:, None] >= k, different, repeated)

    # A store is part of a run --------------------------------------------------------------------
    def state(self) -> State:
        state: State = {name: getattr(self, name) for name in (*_SIZES, *_COUNTS)}
        state["begun"] = torch.from_numpy(self._begun.copy())
        state["open_length"] = torch.from_numpy(self._length[self._slots :].copy())
        for tensors, pieces in ((self._table, self._pieces(self.episodes)), (self._rows, self._used())):
            total = sum(piece.stop - piece.start for piece in pieces)
            saved = {name: torch.empty((total, *t.shape[1:]), dtype=t.dtype) for name, t in tensors.items()}
            for here, there in _pairs(tensors, pieces, saved):
                there.copy_(here)
            state |= saved
        return state

    def load_state(self, state: State, open_too: bool = True) -> bool:
        for name in _SIZES if open_too else ("capacity",):
            if state[name] != getattr(self, name):
                raise CheckpointError(
                    f"The saved episode store has {name} = {state[name]}, this one {getattr(self, name)}: it can "
                    "be loaded only into one of the same sizes."
                )
        for name, tensor in self._rows.items():
            if state[name].shape[1:] != tensor.shape[1:]:
                raise CheckpointError(
                    f"The saved episode store holds {name} of the shape {tuple(state[name].shape[1:])}, this one "
                    f"{tuple(tensor.shape[1:])}: begin a new run."
                )
        for name in _COUNTS:
            setattr(self, name, state[name])
        self.length.zero_()
        for here, there in _pairs(self._table, self._pieces(self.episodes), state):
            here.copy_(there)
        self._begun[:] = False
        if open_too:
            self.length[self._slots :] = state["open_length"]
            self._begun[:] = state["begun"].cpu().numpy()
        self._start[:], self._length[:] = self.start.cpu().numpy(), self.length.cpu().numpy()
        for tensor in self._of_steps.values():
            tensor[self.capacity :].zero_()
        for here, there in _pairs(self._rows, self._used(), state):  # open episodes come last
            here.copy_(there)
        return True

    def _used(self) -> list[slice]:
        """Rows in use: runs of finished episodes without a gap, of which there are at most two, then the lanes."""
        slots = np.r_[*self._pieces(self.episodes), self._slots + np.flatnonzero(self._begun)].astype(np.int64)
        starts, ends = self._start[slots], self._start[slots] + self._length[slots] + 1
        gap = starts[1:] != ends[:-1]
        first, last = np.r_[True, gap][: len(slots)], np.r_[gap, True][: len(slots)]
        return [slice(*run) for run in zip(starts[first].tolist(), ends[last].tolist(), strict=True)]


def store_shapes(
    obs: Fields,
    action: Field,
    capacity: int,
    lanes: int,
    longest: int,
    hidden_reward: bool = False,
    stacked_frames: int = 1,
    state_size: int = 0,
) -> Fields:
    """Shape and type of every tensor of a store: what it allocates, and what a plan counts."""
    rows, slots = capacity + lanes * (longest + 1), capacity // 2 + 1 + lanes
    inner = 0 if stacked_frames == 1 else 1
    row: Fields = {f"obs.{name}": (shape[inner:], dtype) for name, (shape, dtype) in obs.items()}
    row |= {"action": action, "reward": ((), torch.float32)}
    if hidden_reward:
        row["hidden_reward"] = ((), torch.float32)
    if state_size:
        row["hidden_state"] = ((state_size,), torch.float32)
    shapes: Fields = {name: ((rows, *shape), dtype) for name, (shape, dtype) in row.items()}
    return shapes | {name: ((slots, *shape), dtype) for name, (shape, dtype) in _TABLE.items()}


def store_bytes(
    obs: Fields,
    action: Field,
    capacity: int,
    lanes: int,
    longest: int,
    hidden_reward: bool = False,
    stacked_frames: int = 1,
    state_size: int = 0,
) -> int:
    """What a store will take, told before it is taken."""
    shapes = store_shapes(obs, action, capacity, lanes, longest, hidden_reward, stacked_frames, state_size)
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def _too_long(steps: int, capacity: int) -> str:
    return (
        f"An episode of {steps} steps takes {steps + 1} rows, but the episode store has a capacity of {capacity} "
        "rows. Make the store larger or the episodes shorter."
    )


def _check_bytes(name: str, target: Tensor, values: Tensor) -> None:
    """Numbers between 0 and 1 would silently become black images."""
    if target.dtype == torch.uint8 and values.dtype != torch.uint8:
        raise ValueError(f"{name} is stored as uint8, but was given as {values.dtype}.")


def _chosen(where: slice | Tensor, count: int) -> np.ndarray:
    if isinstance(where, slice):
        return np.arange(count)[where]
    numbers = where.cpu().numpy()
    return np.flatnonzero(numbers) if where.dtype == torch.bool else numbers


def _pairs(
    tensors: dict[str, Tensor], pieces: list[slice], saved: dict[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Each piece of each tensor, and its place in the saved one, where they lie one after another."""
    done = 0
    for piece in pieces:
        size = piece.stop - piece.start
        for name, tensor in tensors.items():
            yield tensor[piece], saved[name][done : done + size]
        done += size
