"""The replay memory of environments on a device: a ring of rows for every lane, written without a host.

A lane is a row of the environments. Its episodes lie in its ring one after another, each as its observations and,
in all but the last of them, the action taken there and the reward it brought. A table says where each episode
lies: a lane has as many slots there as its ring can hold episodes. All of it is worked out on the device, from
flags that the host never sees, so that acting, stepping and appending are one CUDA graph. `EpisodeStore` does the
same where the host knows when episodes end.

Rows are numbered from the beginning of the training: row i of a lane is at place i mod `ring`. One more place
repeats the first, so that the observation after any step is at the place after it.
"""

import math

import torch
from torch import Generator, Tensor

from ludus.buffers.replay import ALL, Field, Fields, Replay, SequenceDraw, TransitionDraw, after_step
from ludus.envs.vec import State, Step
from ludus.errors import CheckpointError, LudusError

_TABLE: Fields = {
    "first": ((), torch.int64),
    "length": ((), torch.int64),
    "episode_return": ((), torch.float32),
    "finished": ((), torch.bool),
    "terminated": ((), torch.bool),
    "success": ((), torch.float32),
}
_FRESH: dict[str, float] = {
    "length": 0,
    "episode_return": 0.0,
    "finished": False,
    "terminated": False,
    "success": math.nan,
}
_LANES: Fields = {
    "head": ((), torch.int64),
    "slot": ((), torch.int64),
    "begun": ((), torch.int64),
    "so_far": ((), torch.float64),
}


class LaneStore(Replay):
    """`longest` is the most steps of an episode from which sequences are drawn."""

    first: Tensor  # [slots] the row of its first observation
    finished: Tensor  # [slots] bool
    head: Tensor  # [lanes] the row of the newest observation
    slot: Tensor  # [lanes] of the open episode
    begun: Tensor  # [lanes] episodes, with the open one
    so_far: Tensor  # [lanes] its return

    recorded_by_graphs = True

    def __init__(
        self,
        obs: Fields,
        action: Field,
        capacity: int,
        lanes: int,
        longest: int,
        device: torch.device | str,
        hidden_reward: bool = False,
    ) -> None:
        self.lanes, self.longest, self.device = lanes, longest, torch.device(device)
        self.capacity, self.ring = capacity, capacity // lanes
        self.kept_free = 0  # rows of every lane, its oldest, that nothing is drawn from: they may be written over
        shapes = lane_store_shapes(obs, action, capacity, lanes, hidden_reward)
        tensors = {name: torch.zeros(shape, dtype=dtype, device=device) for name, (shape, dtype) in shapes.items()}
        self.obs = {name: tensors[f"obs.{name}"] for name in obs}
        self.action, self.reward = tensors["action"], tensors["reward"]
        self.hidden_reward = tensors.get("hidden_reward")
        self._table, self._lanes = ({name: tensors[name] for name in group} for group in (_TABLE, _LANES))
        for name, column in (self._table | self._lanes).items():
            setattr(self, name, column)
        self._rows = {name: tensor for name, tensor in tensors.items() if name not in _TABLE | _LANES}
        self._slots = len(self.length) // lanes  # of each lane
        numbers = torch.arange(lanes, device=device)
        self._base = numbers * (self.ring + 1)  # the first place of every lane
        self._first_slot = numbers * self._slots
        self.slot.copy_(self._first_slot)
        self.begun.fill_(1)
        self.success.fill_(math.nan)

    # Writing -------------------------------------------------------------------------------------
    def begin_all(self, obs: Tensor, lanes: slice = ALL) -> None:
        slot, head = self.slot[lanes], self.head[lanes]
        self.first[slot] = head
        self.length[slot] = 0
        self.episode_return[slot] = 0.0
        self.so_far[lanes] = 0.0
        self._write_observations(obs, self._base[lanes], head)

    def record(self, action: Tensor, step: Step, hidden_reward: Tensor | None = None, lanes: slice = ALL) -> None:
        base, head, slot, so_far = self._base[lanes], self.head[lanes], self.slot[lanes], self.so_far[lanes]
        place, done = base + head % self.ring, step.done
        self.action.index_copy_(0, place, action.to(self.action.dtype))
        self.reward.index_copy_(0, place, step.reward)
        if self.hidden_reward is not None:
            assert hidden_reward is not None
            self.hidden_reward.index_copy_(0, place, hidden_reward)
        head += 1
        self._write_observations(after_step(step), base, head)
        so_far += step.reward
        self.length[slot] += 1
        self.episode_return[slot] = so_far.float()
        self.finished[slot] = done
        self.terminated[slot] = step.terminated
        if "success" in step.metrics:
            self.success[slot] = step.metrics["success"].masked_fill(~done, math.nan)
        self._begin_ended(done, lanes)
        # Lanes whose episodes go on write once more what they have written.
        self._write_observations(step.obs, base, head)

    def _begin_ended(self, done: Tensor, lanes: slice) -> None:
        """A new slot and a new row where an episode ended."""
        head, slot, begun = self.head[lanes], self.slot[lanes], self.begun[lanes]
        head += done
        begun += done
        slot.copy_(self._first_slot[lanes] + (begun - 1) % self._slots)
        self.so_far[lanes].masked_fill_(done, 0.0)
        self.first[slot] = torch.where(done, head, self.first[slot])
        for name, value in _FRESH.items():
            column = self._table[name]
            column[slot] = column[slot].masked_fill(done, value)

    def _write_observations(self, obs: Tensor, base: Tensor, row: Tensor) -> None:
        place, target = row % self.ring, self.obs["obs"]
        target.index_copy_(0, base + place, obs)
        target.index_copy_(0, base + torch.where(place == 0, self.ring, place), obs)

    # Counting: these wait for the device ---------------------------------------------------------
    @property
    def steps(self) -> int:
        """Those that are still there."""
        return int((self._live()[1] * self.finished).sum())

    @property
    def open_steps(self) -> int:
        return int((self._live()[1] * ~self.finished).sum())

    @property
    def total_episodes_added(self) -> int:
        return int(self.begun.sum()) - self.lanes

    def returns_and_lengths(self) -> tuple[Tensor, Tensor]:
        """Of those that are there as a whole."""
        whole = self._whole()
        return self.episode_return[whole], self.length[whole]

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
        lost, live = self._live()
        slot, t = self._locate(live if open_too else live * self.finished, (batches, n), generator)
        return self._transitions(slot, lost[slot] + t, n_step, gamma)

    def draw_best(
        self, batches: int, n: int, generator: Generator, top: int = 10, n_step: int = 1, gamma: float = 0.99
    ) -> TransitionDraw:
        ranked = self.episode_return.masked_fill(~self._whole(), -math.inf)
        best = torch.zeros_like(self.length).index_fill_(0, ranked.topk(min(top, len(ranked))).indices, 1)
        slot, t = self._locate(self.length * best * (ranked > -math.inf), (batches, n), generator)
        return self._transitions(slot, t, n_step, gamma)

    def draw_sequences(
        self, batches: int, m: int, k: int, generator: Generator, whole: bool = False
    ) -> SequenceDraw:
        slot, _ = self._locate(self.length * self._whole(), (batches, m), generator)
        if whole:
            return self._all_steps(slot, self.longest)
        return self._some_steps(slot, self._choose(self.length[slot].flatten(), k, generator).view(batches, m, k))

    def observations(self, rows: Tensor, starts: Tensor) -> Tensor:
        return self.obs["obs"].index_select(0, rows)

    def _live(self) -> tuple[Tensor, Tensor]:
        """Of every episode, how many of its first steps are lost, and how many steps are still there."""
        oldest = self.head - (self.ring - 1 - self.kept_free)
        oldest = oldest[:, None].expand(-1, self._slots).flatten()
        lost = (oldest - self.first).clamp_(min=0)
        return lost, (self.length - lost).clamp_(min=0)

    def _whole(self) -> Tensor:
        """Which episodes are finished and still there from the first step on."""
        return self.finished & (self._live()[0] == 0) & (self.length <= self.longest)

    def _locate(self, steps: Tensor, shape: tuple[int, int], generator: Generator) -> tuple[Tensor, Tensor]:
        """Uniform over so many steps of every episode: its slot, and which of its steps.

        Where there are none at all it gives any: a device cannot refuse, the host does so later.
        """
        ends = steps.cumsum(0)
        # In float64, a uniform number × total stays below the total.
        uniform = torch.rand(shape, dtype=torch.float64, generator=generator, device=self.device)
        number = (uniform * ends[-1]).long()
        slot = torch.searchsorted(ends, number, right=True).clamp_(max=len(ends) - 1)
        return slot, number - (ends - steps)[slot]

    def rows(self, slot: Tensor, t: Tensor) -> Tensor:
        return self._base[slot // self._slots] + (self.first[slot] + t) % self.ring

    def _choose(self, length: Tensor, k: int, generator: Generator) -> Tensor:
        """K steps of episodes of these lengths, [episodes, k]."""
        uniform = torch.rand((len(length), k), dtype=torch.float64, generator=generator, device=self.device)
        repeated = (uniform * length[:, None]).long()
        if self.longest < k:
            return repeated
        # The k largest of one random key a step are k different steps, every choice of them equally likely.
        keys = torch.rand((len(length), self.longest), generator=generator, device=self.device)
        keys.masked_fill_(torch.arange(self.longest, device=self.device) >= length[:, None], -1.0)
        return torch.where(length[:, None] >= k, keys.topk(k, sorted=False).indices, repeated)

    # A store is part of a run --------------------------------------------------------------------
    def state(self) -> State:
        rows, slots = min(int(self.head.max()), self.ring) + 1, min(int(self.begun.max()), self._slots)
        state: State = {"sizes": [self.capacity, self.lanes, self.longest]}
        state |= {name: self._by_lane(tensor)[:, :rows].cpu() for name, tensor in self._rows.items()}
        state |= {name: self._by_lane(tensor)[:, :slots].cpu() for name, tensor in self._table.items()}
        return state | {name: tensor.cpu() for name, tensor in self._lanes.items()}

    def load_state(self, state: State, open_too: bool = True) -> bool:
        if state["sizes"] != [self.capacity, self.lanes, self.longest]:
            if not open_too:
                return False
            raise CheckpointError(
                "The saved replay is of another size (capacity, environments, longest episode: "
                f"{', '.join(map(str, state['sizes']))}): it can be loaded only into one of the same sizes."
            )
        for name, tensor in self._rows.items():
            saved, here = state[name], self._by_lane(tensor)
            if saved.shape[2:] != here.shape[2:]:
                raise CheckpointError(
                    f"The saved replay holds {name} of the shape {tuple(saved.shape[2:])}, this one "
                    f"{tuple(here.shape[2:])}: begin a new run."
                )
            here[:, : saved.shape[1]] = saved.to(self.device)
        for tensor in self.obs.values():
            self._by_lane(tensor)[:, self.ring] = self._by_lane(tensor)[:, 0]
        state = state if "lane" not in state else self._with_slots_of_lanes(state)
        for name, tensor in self._table.items():
            tensor.fill_(_FRESH.get(name, 0))  # what was stored after the saved state is gone
            self._by_lane(tensor)[:, : state[name].shape[1]] = state[name].to(self.device)
        for name, tensor in self._lanes.items():
            tensor.copy_(state[name])
        return True

    def _with_slots_of_lanes(self, state: State) -> State:
        """As older stores saved it, whose lanes had all slots together: every lane's newest episodes."""
        state = self._without_damaged_slots(state)
        lane, newest = state["lane"], self._slots
        order = (lane * (int(state["first"].max()) + 1) + state["first"]).argsort()
        counts = lane.bincount(minlength=self.lanes)
        before = (counts.cumsum(0) - counts)[lane[order]] + (counts - newest).clamp(min=0)[lane[order]]
        number = torch.arange(len(order)) - before  # among those of its lane that are kept
        order, number = order[number >= 0], number[number >= 0]
        table: State = {}
        for name, (shape, dtype) in _TABLE.items():
            table[name] = torch.zeros((self.lanes, newest, *shape), dtype=dtype)
            table[name][lane[order], number] = state[name][order]
        begun = counts.clamp(max=newest)
        return state | table | {"begun": begun, "slot": torch.arange(self.lanes) * newest + begun - 1}

    def _without_damaged_slots(self, state: State) -> State:
        """Lanes wrote into each other's slots where episodes lasted long: their open episodes begin anew."""
        lane, slot = state["lane"], state["slot"]
        if bool(((lane < 0) | (lane >= self.lanes)).any() or ((slot < 0) | (slot >= len(lane))).any()):
            raise CheckpointError(f"The saved replay has episodes of environments beyond its {self.lanes:,}.")
        damaged = torch.zeros(len(lane), dtype=torch.bool)
        damaged[slot[lane[slot] != torch.arange(self.lanes)]] = True
        anew = damaged[slot]
        fresh: State = {name: torch.full((int(anew.sum()),), value) for name, value in _FRESH.items()}
        fresh["first"], fresh["lane"] = state["head"][anew], anew.nonzero().squeeze(1)
        kept = {name: torch.cat([state[name][~damaged], new.to(state[name].dtype)]) for name, new in fresh.items()}
        return state | kept | {"so_far": state["so_far"].masked_fill(anew, 0.0)}

    def _by_lane(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (self.lanes, -1))


def lane_store_bytes(
    obs: Fields, action: Field, capacity: int, lanes: int, longest: int, hidden_reward: bool = False
) -> int:
    """What a store will take, told before it is taken."""
    shapes = lane_store_shapes(obs, action, capacity, lanes, hidden_reward)
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def lane_store_shapes(
    obs: Fields, action: Field, capacity: int, lanes: int, hidden_reward: bool = False
) -> Fields:
    """Shape and type of every tensor of a store: what it allocates, and what a plan counts."""
    ring = capacity // lanes
    if ring < 4:
        raise LudusError(f"A replay of {capacity:,} rows has no room for {lanes:,} environments.")
    row: Fields = {f"obs.{name}": field for name, field in obs.items()}
    row |= {"action": action, "reward": ((), torch.float32)}
    if hidden_reward:
        row["hidden_reward"] = ((), torch.float32)
    shapes: Fields = {name: ((lanes * (ring + 1), *shape), dtype) for name, (shape, dtype) in row.items()}
    slots = lanes * (ring // 2 + 1)  # the shortest episode takes two rows
    shapes |= {name: ((slots, *shape), dtype) for name, (shape, dtype) in _TABLE.items()}
    return shapes | {name: ((lanes, *shape), dtype) for name, (shape, dtype) in _LANES.items()}
