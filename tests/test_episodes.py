"""The episode store against slow, plain versions of itself: what it keeps, what it draws, and how often."""

import contextlib
import copy
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.buffers import episodes
from ludus.buffers.episodes import EpisodeStore, store_bytes
from ludus.buffers.replay import Fields, SequenceDraw, TransitionDraw
from ludus.errors import CheckpointError, EnvError, LudusError
from ludus.training.checkpoint import join_tree, split_tree

OBS: Fields = {"obs": ((3,), torch.float32), "camera": ((2, 2, 3), torch.uint8)}
ACTION = ((2,), torch.float32)


@dataclass
class Episode:
    """Numbers that occur nowhere else, so that whatever is drawn tells where it is from."""

    obs: dict[str, torch.Tensor]
    action: torch.Tensor
    reward: torch.Tensor
    hidden: torch.Tensor
    terminated: bool
    success: float | None
    number: int

    @property
    def steps(self) -> int:
        return len(self.reward)


def make_episode(random: np.random.Generator, steps: int, number: int) -> Episode:
    return Episode(
        obs={
            "obs": torch.tensor(
                np.stack([np.full(steps + 1, number), np.arange(steps + 1), random.normal(size=steps + 1)], 1),
                dtype=torch.float32,
            ),
            "camera": torch.tensor(random.integers(0, 256, (steps + 1, 2, 2, 3)), dtype=torch.uint8),
        },
        action=torch.tensor(random.normal(size=(steps, 2)), dtype=torch.float32),
        reward=torch.tensor(random.normal(size=steps), dtype=torch.float32),
        hidden=torch.tensor(random.normal(size=steps), dtype=torch.float32),
        terminated=bool(random.random() < 0.5),
        success=float(random.integers(2)),
        number=number,
    )


def make_store(capacity: int = 64, lanes: int = 2, longest: int = 10, device: str = "cpu") -> EpisodeStore:
    return EpisodeStore(OBS, ACTION, capacity, lanes, longest, device, hidden_reward=True)


def add(store: EpisodeStore, episode: Episode, **more: Any) -> None:
    e = episode
    store.add(e.obs, e.action, e.reward, e.terminated, e.success, e.hidden, **more)


def store_of(lengths: list[int], seed: int = 0, **sizes: Any) -> tuple[EpisodeStore, list[Episode]]:
    store, random = make_store(**sizes), np.random.default_rng(seed)
    episodes = [make_episode(random, steps, number) for number, steps in enumerate(lengths)]
    for episode in episodes:
        add(store, episode)
    return store, episodes


def generator(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def stored(store: EpisodeStore) -> dict[int, int]:
    """Slot by number of the episode, of all that are in the store."""
    slots = torch.nonzero(store.length).flatten().tolist()
    return {int(store.obs["obs"][store.start[slot], 0]): slot for slot in slots}


def up_to_twelve(random: np.random.Generator) -> int:
    return int(random.integers(1, 13))


class Lanes:
    """Steps episodes through the open lanes, each lane its own, and keeps what was done."""

    def __init__(
        self, store: EpisodeStore, lengths: Callable[[np.random.Generator], int] | int, seed: int = 0
    ) -> None:
        self.store, self.lengths, self.random = store, lengths, np.random.default_rng(seed)
        self.count, self.finished = 0, list[Episode]()
        self.now = [self._new() for _ in range(store.lanes)]
        self.age = [0] * store.lanes
        store.begin(slice(None), self._obs())

    def _new(self) -> Episode:
        self.count += 1
        steps = self.lengths if isinstance(self.lengths, int) else self.lengths(self.random)
        return make_episode(self.random, steps, 1000 + self.count)

    def _obs(self) -> dict[str, torch.Tensor]:
        return {n: torch.stack([e.obs[n][t] for e, t in zip(self.now, self.age, strict=True)]) for n in OBS}

    def _of_steps(self, name: str) -> torch.Tensor:
        return torch.stack([getattr(e, name)[t] for e, t in zip(self.now, self.age, strict=True)])

    def step(self) -> None:
        action, reward, hidden = (self._of_steps(name) for name in ("action", "reward", "hidden"))
        self.age = [age + 1 for age in self.age]
        next_obs = self._obs()
        half = self.store.lanes // 2
        for group in (slice(0, half), slice(half, self.store.lanes)):
            of_group = {name: value[group] for name, value in next_obs.items()}
            self.store.append(action[group], reward[group], of_group, hidden[group], lanes=group)
        done = torch.tensor([e.steps == age for e, age in zip(self.now, self.age, strict=True)])
        if done.any():
            self._finish(done)

    def _finish(self, done: torch.Tensor) -> None:
        lanes = torch.nonzero(done).flatten()
        ended = [self.now[lane] for lane in lanes]
        self.store.finish(
            lanes, torch.tensor([e.terminated for e in ended]), torch.tensor([e.success for e in ended])
        )
        self.finished += ended
        for lane in lanes.tolist():
            self.now[lane], self.age[lane] = self._new(), 0
        self.store.begin(done, self._obs())


# What is kept ------------------------------------------------------------------------------------
def naive_fifo(lengths: list[int], capacity: int) -> list[tuple[int, int]]:
    """(number, first row) of what is left: row by row, a new episode takes the rows of the oldest."""
    kept: deque[tuple[int, int]] = deque()
    owner: list[int | None] = [None] * capacity
    head = 0
    for number, steps in enumerate(lengths):
        rows = list(range(head, min(head + steps + 1, capacity)))
        if len(rows) < steps + 1:  # the rest of the ring stays empty, and the episode begins at row 0
            rows += range(steps + 1)
            head = 0
        for row in rows:
            while owner[row] is not None:
                gone, _ = kept.popleft()
                owner = [None if o == gone else o for o in owner]
        for row in range(head, head + steps + 1):
            owner[row] = number
        kept.append((number, head))
        head += steps + 1
    return list(kept)


@settings(max_examples=200, deadline=None)
@given(st.integers(5, 40).flatmap(lambda c: st.tuples(st.just(c), st.lists(st.integers(1, c - 1), max_size=30))))
def test_first_in_first_out_like_a_naive_deque(case: tuple[int, list[int]]) -> None:
    capacity, lengths = case
    store, episodes = store_of(lengths, capacity=capacity, lanes=0)
    kept = naive_fifo(lengths, capacity)
    slots = stored(store)
    assert [(n, int(store.start[slots[n]])) for n in sorted(slots)] == kept
    assert (store.episodes, store.total_episodes_added) == (len(kept), len(lengths))
    assert store.steps == sum(lengths[n] for n, _ in kept)
    assert store.longest_finished == max((lengths[n] for n, _ in kept), default=0)
    for number, row in kept:
        check_contents(store, episodes[number], slots[number], row)


def check_contents(store: EpisodeStore, episode: Episode, slot: int, row: int) -> None:
    steps = episode.steps
    assert int(store.length[slot]) == steps
    assert store.terminated[slot] == episode.terminated
    assert store.success[slot] == episode.success
    assert store.hidden_reward is not None
    for name in OBS:
        assert torch.equal(store.obs[name][row : row + steps + 1], episode.obs[name])
    for tensor, value in (
        (store.action, episode.action),
        (store.reward, episode.reward),
        (store.hidden_reward, episode.hidden),
    ):
        assert torch.equal(tensor[row : row + steps], value)
    assert float(store.episode_return[slot]) == pytest.approx(float(episode.reward.double().sum()), abs=1e-6)


def test_open_episodes_move_into_the_ring() -> None:
    store = make_store(capacity=50, lanes=4, longest=12)
    lanes = Lanes(store, up_to_twelve)
    for _ in range(60):
        lanes.step()
        slots = stored(store)
        kept = naive_fifo([e.steps for e in lanes.finished], 50)
        assert [(lanes.finished[n].number, row) for n, row in kept] == [
            (lanes.finished[n].number, int(store.start[slots[lanes.finished[n].number]])) for n, _ in kept
        ]
        for n, row in kept:
            check_contents(store, lanes.finished[n], slots[lanes.finished[n].number], row)
        assert store.open_steps == sum(lanes.age) == int(store.length[-4:].sum())
        assert len(slots) == len(kept) + sum(age > 0 for age in lanes.age)
        for lane, (episode, age) in enumerate(zip(lanes.now, lanes.age, strict=True)):
            row = 50 + lane * 13
            assert torch.equal(store.obs["camera"][row : row + age + 1], episode.obs["camera"][: age + 1])
            assert torch.equal(store.action[row : row + age], episode.action[:age])


def test_begin_takes_masks_numbers_and_groups_and_forgets_what_was_not_finished() -> None:
    store = make_store(lanes=4)
    obs = {"obs": torch.arange(12.0).view(4, 3), "camera": torch.zeros(4, 2, 2, 3, dtype=torch.uint8)}
    store.begin(slice(None), {name: value + 1 for name, value in obs.items()})
    store.append(torch.ones(4, 2), torch.ones(4), obs, torch.ones(4))
    store.begin(torch.tensor([False, True, False, True]), obs)
    assert store.length[-4:].tolist() == [1, 0, 1, 0]
    assert store.open_steps == 2
    first_rows = store.obs["obs"][store.start[-4:]]
    assert torch.equal(first_rows[[1, 3]], obs["obs"][[1, 3]])
    assert torch.equal(first_rows[[0, 2]], obs["obs"][[0, 2]] + 1)
    store.begin(torch.tensor([1]), {name: value[2:] for name, value in obs.items()}, group=slice(2, 4))
    store.begin(torch.tensor([True, False]), {name: value[2:] for name, value in obs.items()}, group=slice(2, 4))
    assert store.length[-4:].tolist() == [1, 0, 0, 0]
    assert torch.equal(store.obs["obs"][store.start[-2:]], obs["obs"][2:])


def test_given_return_and_unknown_success() -> None:
    store = make_store()
    episode = make_episode(np.random.default_rng(0), 4, 0)
    episode.success = None
    add(store, episode, episode_return=100.0)
    assert store.episode_return[0] == 100.0
    assert math.isnan(store.success[0])


def test_discrete_actions() -> None:
    store = EpisodeStore({"obs": ((), torch.float32)}, ((), torch.int64), 20, 1, 5, "cpu")
    assert store.hidden_reward is None
    store.begin(slice(None), {"obs": torch.zeros(1)})
    store.append(torch.tensor([3]), torch.ones(1), {"obs": torch.ones(1)})
    store.finish(torch.tensor([0]), torch.tensor([True]))
    assert store.action[0] == 3
    assert math.isnan(store.success[0])


# Transitions -------------------------------------------------------------------------------------
def slow_transition(episode: Episode, age: int, open_: bool, t: int, n_step: int, gamma: float) -> tuple[Any, ...]:
    """(reward, discount, steps) of step t of an episode that has `age` steps so far."""
    reward, steps = 0.0, 0
    while steps < n_step and t + steps < age:
        reward += gamma**steps * float(episode.reward[t + steps])
        steps += 1
    over = not open_ and episode.terminated and t + steps == age
    return reward, 0.0 if over else gamma**steps, steps


def check_transitions(
    store: EpisodeStore, draw: TransitionDraw, ages: dict[int, int], all_: dict[int, Episode], n: int
) -> None:
    """`ages`: steps of the open episodes by number."""
    columns = (field.flatten().tolist() for field in draw)
    for row, next_row, reward, discount, slot, step in zip(*columns, strict=True):
        number, t, _ = store.obs["obs"][row].tolist()
        episode = all_[int(number)]
        age = ages.get(int(number), episode.steps)
        assert t == step < age
        expected = slow_transition(episode, age, int(number) in ages, int(t), n, 0.9)
        assert reward == pytest.approx(expected[0], abs=1e-5)
        assert discount == pytest.approx(expected[1], abs=1e-6)
        assert next_row == row + expected[2]
        assert torch.equal(store.obs["camera"][next_row], episode.obs["camera"][int(t) + expected[2]])
        assert torch.equal(store.action[row], episode.action[int(t)])
        assert int(store.start[slot]) + t == row


@pytest.mark.parametrize("n_step", [1, 2, 3, 20])
def test_transitions_are_right_across_ends_and_in_open_episodes(n_step: int) -> None:
    store = make_store(capacity=60, lanes=4, longest=12)
    lanes = Lanes(store, up_to_twelve, seed=n_step)
    for _ in range(40):
        lanes.step()
    all_ = {e.number: e for e in lanes.finished + lanes.now}
    ages = {e.number: age for e, age in zip(lanes.now, lanes.age, strict=True)}
    draw = store.draw_transitions(3, 400, generator(), n_step, 0.9)
    assert draw.row.shape == (3, 400)
    assert draw.reward.dtype == draw.discount.dtype == torch.float32
    check_transitions(store, draw, ages, all_, n_step)
    assert set(draw.row.flatten().tolist()) == all_rows(store, open_too=True)
    finished = store.draw_transitions(3, 400, generator(), n_step, 0.9, open_too=False)
    check_transitions(store, finished, {}, all_, n_step)
    assert set(finished.row.flatten().tolist()) == all_rows(store, open_too=False)


def all_rows(store: EpisodeStore, open_too: bool) -> set[int]:
    table = list(zip(store.start.tolist(), store.length.tolist(), strict=True))
    table = table if open_too else table[: -store.lanes]
    return {row for start, length in table for row in range(start, start + length)}


def evenly(counts: Counter[Any], expected: dict[Any, float]) -> bool:
    """Chi-square below its mean plus five standard deviations, and nothing that should not occur."""
    assert set(counts) <= set(expected)
    chi = sum((counts[key] - value) ** 2 / value for key, value in expected.items())
    freedom = max(1, len(expected) - 1)
    return chi < freedom + 5 * math.sqrt(2 * freedom)


def test_transitions_are_uniform() -> None:
    store = make_store(capacity=60, lanes=2, longest=12)
    lanes = Lanes(store, up_to_twelve)
    for _ in range(70):
        lanes.step()
    for open_too in (True, False):
        rows = all_rows(store, open_too)
        draw = store.draw_transitions(100, 1000, generator(5), open_too=open_too)
        assert evenly(Counter(draw.row.flatten().tolist()), dict.fromkeys(rows, 100_000 / len(rows)))


def test_best_episodes_only_in_proportion_to_length() -> None:
    store, episodes = store_of([3, 9, 5, 1, 7, 2, 8, 4, 6], capacity=100)
    lanes = Lanes(store, 10)
    lanes.step()
    best = sorted(episodes, key=lambda e: -float(e.reward.sum()))[:4]
    draw = store.draw_best(100, 500, generator(), top=4)
    total = sum(e.steps for e in best)
    expected = {(e.number, t): 50_000 / total for e in best for t in range(e.steps)}
    where = store.obs["obs"][draw.row.flatten(), :2].int().tolist()
    assert evenly(Counter((number, t) for number, t in where), expected)
    check_transitions(
        store, store.draw_best(2, 50, generator(), 4, 3, 0.9), {}, {e.number: e for e in episodes}, 3
    )
    every = store.draw_best(10, 500, generator(), top=100)
    assert set(every.row.flatten().tolist()) == all_rows(store, open_too=False)


# Sequences ---------------------------------------------------------------------------------------
def check_sequences(store: EpisodeStore, draw: SequenceDraw, episodes: list[Episode], k: int) -> None:
    number = store.obs["obs"][draw.row, 0].int()
    t = store.obs["obs"][draw.row, 1].int()
    assert (number == number[..., :1]).all()
    assert torch.allclose(draw.weight.sum(-1), torch.ones(draw.length.shape))
    for index in np.ndindex(*draw.length.shape):
        e = episodes[int(number[index][0])]
        assert draw.length[index] == e.steps
        assert float(draw.episode_return[index]) == pytest.approx(float(e.reward.sum()), abs=1e-5)
        assert draw.success[index] == e.success
        assert (t[index] < e.steps).all()
        assert torch.allclose(draw.progress[index], (t[index] + 1) / e.steps)
        enough = e.steps >= k
        assert float(draw.correction[index]) == pytest.approx((1 - k / e.steps) / k if enough else 1 / k, abs=1e-7)
        if enough:
            assert len(set(draw.row[index].tolist())) == k


@pytest.mark.parametrize("k", [1, 4, 6, 9, 12])
@pytest.mark.parametrize("keys_at_once", [4_000_000, 100])
def test_sequences_are_right(k: int, keys_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.buffers.episodes._KEYS_AT_ONCE", keys_at_once)
    store, episodes = store_of([4, 9, 6, 5, 8])
    Lanes(store, 5).step()  # open episodes are never drawn
    draw = store.draw_sequences(20, 5, k, generator())
    assert draw.row.shape == draw.weight.shape == draw.progress.shape == (20, 5, k)
    assert {field.dtype for field in draw[1:]} == {torch.float32}
    check_sequences(store, draw, episodes, k)


@pytest.mark.parametrize("k", [1, 3, 5, 7])
def test_episodes_by_length_and_steps_uniformly(k: int) -> None:
    lengths = [3, 7, 5, 6]
    store, _ = store_of(lengths)
    draw = store.draw_sequences(1000, 20, k, generator(k))
    number = store.obs["obs"][draw.row, 0].int()
    t = store.obs["obs"][draw.row, 1].int()
    share = {n: 20_000 * steps / sum(lengths) for n, steps in enumerate(lengths)}
    assert evenly(Counter(number[..., 0].flatten().tolist()), share)
    for n, steps in enumerate(lengths):
        mine = t[number[..., 0] == n]
        seen = Counter(mine.flatten().tolist())
        if steps == k:
            assert set(seen.values()) == {len(mine)}  # K = T: every step exactly once
        else:
            assert evenly(seen, dict.fromkeys(range(steps), len(mine) * k / steps))


def test_every_choice_without_replacement_is_equally_likely() -> None:
    store, _ = store_of([5])
    draw = store.draw_sequences(1000, 20, 2, generator())
    pairs = Counter(tuple(sorted(pair)) for pair in draw.row.view(-1, 2).tolist())
    assert evenly(pairs, {(a, b): 2000 for a in range(5) for b in range(a + 1, 5)})


def test_the_correction_makes_the_variance_of_the_mean() -> None:
    """Over all choices, sample variance × correction has the variance of the mean for its mean."""
    for k in (2, 4, 6, 9):  # of 6: fewer, all, more
        store, episodes = store_of([6])
        value = episodes[0].reward.double()
        draw = store.draw_sequences(4000, 20, k, generator(k))
        chosen = value[draw.row]
        told = (chosen.var(-1) * draw.correction).mean()
        true = (chosen.mean(-1) - value.mean()).square().mean()
        assert float(told) == pytest.approx(float(true), rel=0.03, abs=1e-7)


def test_whole_episodes_padded_at_weight_zero() -> None:
    lengths = [4, 9, 6, 1]
    store, episodes = store_of(lengths)
    draw = store.draw_sequences(50, 3, 2, generator(), whole=True)
    assert draw.row.shape == (50, 3, 9)
    assert not draw.correction.any()
    for index in np.ndindex(50, 3):
        steps = int(draw.length[index])
        first = int(draw.row[index][0])
        e = episodes[int(store.obs["obs"][first, 0])]
        assert e.steps == steps
        assert draw.row[index].tolist() == [first + t if t < steps else first for t in range(9)]
        assert torch.allclose(draw.weight[index], (torch.arange(9) < steps) / steps)
        assert torch.allclose(draw.progress[index][:steps], torch.arange(1, steps + 1) / steps)
    assert evenly(
        Counter(store.draw_sequences(100, 100, 2, generator(), whole=True).length.flatten().tolist()),
        {float(steps): 10_000 * steps / sum(lengths) for steps in lengths},
    )


# A part of a run ---------------------------------------------------------------------------------
@pytest.mark.parametrize("steps", [0, 1, 5, 37, 80])
def test_saved_and_resumed_exactly_in_the_middle_of_open_episodes(steps: int) -> None:
    sizes: dict[str, Any] = {"capacity": 60, "lanes": 4, "longest": 12}
    lanes = Lanes(make_store(**sizes), up_to_twelve, seed=steps)
    used = Lanes(make_store(**sizes), up_to_twelve, seed=99)  # what this one holds, it forgets
    run(lanes, steps)
    run(used, 42)
    tensors: dict[str, torch.Tensor] = {}
    saved = join_tree(split_tree(lanes.store.state(), tensors), tensors)
    used.store.load_state(saved)
    twin = copy.deepcopy(lanes)
    twin.store = used.store
    same(lanes.store, twin.store)
    for step in range(40):
        for one in (lanes, twin):
            one.step()
            if step % 7 == 0:
                add(one.store, make_episode(one.random, 5, step))
        same(lanes.store, twin.store)


@pytest.mark.parametrize("most", [1, 200, 2**24])
def test_steps_that_are_written_together_are_those_written_one_after_the_other(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "_WAITING_BYTES", most)
    one_by_one, together = (Lanes(make_store(60, 4, 12), up_to_twelve, seed=3) for _ in range(2))
    for steps in (1, 7, 30):
        run(one_by_one, steps)
        with together.store.written_together():
            run(together, steps)
        same(one_by_one.store, together.store)
        run(one_by_one, 2)
        run(together, 2)  # and alone again
        same(one_by_one.store, together.store)


def test_what_waits_is_written_before_an_error_goes_on() -> None:
    expected, lanes = (Lanes(make_store(60, 4, 12), 12, seed=3) for _ in range(2))
    run(expected, 5)
    with contextlib.suppress(RuntimeError), lanes.store.written_together():
        run(lanes, 5)
        raise RuntimeError("an environment failed")
    same(expected.store, lanes.store)


def test_what_waits_does_not_change_with_what_was_given() -> None:
    store = EpisodeStore({"obs": ((1,), torch.float32)}, ((1,), torch.float32), 10, 1, 5, "cpu")
    given = torch.ones((1, 1))  # an environment may write every step to one place
    with store.written_together():
        store.begin(slice(None), {"obs": given})
        for number in (2.0, 3.0):
            given.fill_(number)
            store.append(given, given[0], {"obs": given})
        given.fill_(9.0)
    assert store.obs["obs"][10:13, 0].tolist() == [1.0, 2.0, 3.0]
    assert store.reward[10:12].tolist() == [2.0, 3.0]


def run(lanes: Lanes, steps: int) -> None:
    for _ in range(steps):
        lanes.step()


def same(one: EpisodeStore, other: EpisodeStore) -> None:
    a, b = one.state(), other.state()
    assert torch.equal(one.length, other.length)
    assert a.keys() == b.keys()
    for name, value in a.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value.nan_to_num(-1), b[name].nan_to_num(-1)), name
        else:
            assert value == b[name], name
    draws: list[Callable[[EpisodeStore], Any]] = []
    if one.steps + one.open_steps:
        draws.append(lambda s: s.draw_transitions(3, 50, generator(), n_step=3))
    if one.steps:
        draws += [
            lambda s: s.draw_best(3, 50, generator()),
            lambda s: s.draw_sequences(3, 4, 6, generator()),
            lambda s: s.draw_sequences(3, 4, 6, generator(), whole=True),
        ]
    for draw in draws:
        for x, y in zip(draw(one), draw(other), strict=True):
            assert torch.equal(x, y)


def test_a_nearly_empty_store_is_small_when_saved_and_another_size_is_refused() -> None:
    store, _ = store_of([5, 3], capacity=100_000)
    tensors = [value for value in store.state().values() if isinstance(value, torch.Tensor)]
    assert sum(t.numel() * t.element_size() for t in tensors) < 2000
    with pytest.raises(CheckpointError, match=r"capacity = 100000, this one 64"):
        make_store().load_state(store.state())


@pytest.mark.parametrize("hidden", [False, True])
def test_memory_is_told_exactly(hidden: bool) -> None:
    sizes = (OBS, ((), torch.int64), 1001, 3, 17)
    store = EpisodeStore(*sizes, "cpu", hidden_reward=hidden)
    tensors = [t for t in store.__dict__.values() if isinstance(t, torch.Tensor)] + list(store.obs.values())
    assert store_bytes(*sizes, hidden) == sum(t.numel() * t.element_size() for t in tensors)


# Refusals ----------------------------------------------------------------------------------------
def test_errors_are_sentences() -> None:
    random = np.random.default_rng(0)
    store = make_store(capacity=12, lanes=1, longest=3)
    with pytest.raises(LudusError, match=r"it holds no step yet"):
        store.draw_transitions(1, 1, generator())
    with pytest.raises(LudusError, match=r"has no episode .* begin"):
        store.append(torch.zeros(1, 2), torch.zeros(1), {}, torch.zeros(1))
    lanes = Lanes(store, 20)
    with pytest.raises(LudusError, match=r"cannot be finished: it has no steps"):
        store.finish(torch.tensor([0]), torch.tensor([True]))
    lanes.step()
    with pytest.raises(LudusError, match=r"it holds no finished episode yet"):
        store.draw_best(1, 1, generator())
    with pytest.raises(LudusError, match=r"it holds no finished episode yet"):
        store.draw_sequences(1, 1, 1, generator())
    with pytest.raises(LudusError, match=r"no finished episode"):
        store.draw_transitions(1, 1, generator(), open_too=False)
    lanes.step()
    lanes.step()
    with pytest.raises(EnvError, match=r"takes more than 3 steps.*--env.max-steps"):
        lanes.step()
    with pytest.raises(ValueError, match=r"12 steps takes 13 rows, but .* capacity of 12"):
        add(store, make_episode(random, 12, 0))
    with pytest.raises(ValueError, match=r"capacity of 12"):
        make_store(capacity=12, lanes=1, longest=12)
    with pytest.raises(ValueError, match=r"0 steps .* at least one step"):
        add(store, make_episode(random, 0, 0))
    short = make_episode(random, 4, 0)
    short.obs["obs"] = short.obs["obs"][:4]
    with pytest.raises(ValueError, match=r"obs.obs of shape \(4, 3\).*\(5, 3\)"):
        add(store, short)
    floats = make_episode(random, 4, 0)
    floats.obs["camera"] = floats.obs["camera"] / 255
    with pytest.raises(ValueError, match=r"obs.camera is stored as uint8, but was given as torch.float32"):
        add(store, floats)
    with pytest.raises(ValueError, match=r"hidden reward"):
        store.add(short.obs, short.action, short.reward, True)
    assert store.episodes == 0  # what is refused leaves nothing behind
    assert store.open_steps == 3


@pytest.mark.gpu
def test_a_gpu_is_never_waited_for(device: str) -> None:
    store = make_store(capacity=60, lanes=4, longest=12, device=device)
    stream = generator(device=device)
    lanes = Lanes(store, up_to_twelve)
    lanes.step()
    if device == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        run(lanes, 30)
        with store.written_together():
            run(lanes, 30)
        draw = store.draw_transitions(3, 50, stream, n_step=3)
        store.draw_best(3, 50, stream)
        store.draw_sequences(3, 4, 6, stream)
        store.draw_sequences(3, 4, 6, stream, whole=True)
    finally:
        if device == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert set(draw.row.flatten().tolist()) <= all_rows(store, open_too=True)
