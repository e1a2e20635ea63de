"""The replay of environments on a device, held against lists that keep everything."""

import copy
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import ludus
from ludus.algorithms.replay.collector import ReplayCollector
from ludus.algorithms.replay.config import ReplayConfig, ReplayTrainConfig
from ludus.algorithms.replay.job import make_policy, obs_field
from ludus.algorithms.replay.learner import refuse_no_whole_episode
from ludus.algorithms.replay.online import _rows_kept_free
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.lanes import LaneStore
from ludus.buffers.replay import Fields
from ludus.envs import make_groups
from ludus.envs.vec import Step
from ludus.errors import CheckpointError, ConfigError, EnvError, TrainingError
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.training.checkpoint import checkpoints_in, load_training

LANES, RING, LONGEST = 3, 12, 9
GAMMA = 0.9


class Episode(NamedTuple):
    """Every observation has a number of its own."""

    lane: int
    first: int  # the row
    obs: list[float]
    rewards: list[float]
    ends: list[str]  # "terminated" or "truncated", once it has ended


class Everything:
    """Steps a store with random episodes, and remembers all of them; if asked, the first lane's never ends."""

    def __init__(self, seed: int = 0, endless: bool = False) -> None:
        self.endless = torch.tensor([endless] + [False] * (LANES - 1))
        self.random = torch.Generator().manual_seed(seed)
        self.store = make_store()
        self.open = [Episode(lane, 0, [self._number()], [], []) for lane in range(LANES)]
        self.episodes = list(self.open)
        self.store.begin_all(torch.tensor([[e.obs[0]] for e in self.open]).double())

    def _number(self) -> float:
        return torch.rand((), generator=self.random).item()

    def step(self) -> None:
        draws = torch.rand((LANES, 2), generator=self.random)
        lasts = torch.tensor([len(e.rewards) + 1 == LONGEST for e in self.open])
        terminated = (draws[:, 0] < 0.15) & ~self.endless
        done = (terminated | (draws[:, 0] > 0.9) | lasts) & ~self.endless
        after, first, reward = ([self._number() for _ in range(LANES)] for _ in range(3))
        action = torch.tensor([[e.obs[-1]] for e in self.open])
        last, begun = (torch.tensor(numbers).double()[:, None] for numbers in (after, first))
        obs = torch.where(done[:, None], begun, last)
        success = {"success": terminated.float()}
        step = Step(obs, torch.tensor(reward), terminated, done & ~terminated, last, success)
        self.store.record(action, step)
        for lane, episode in enumerate(self.open):
            episode.obs.append(after[lane])
            episode.rewards.append(reward[lane])
            if done[lane]:
                episode.ends.append("terminated" if terminated[lane] else "truncated")
                row = episode.first + len(episode.obs)
                self.open[lane] = Episode(lane, row, [first[lane]], [], [])
                self.episodes.append(self.open[lane])

    def lost(self, episode: Episode) -> int:
        """How many of its first rows have been written over."""
        newest = self.open[episode.lane]
        head = newest.first + len(newest.obs) - 1
        return max(0, head - RING + 1 - episode.first)

    def transitions(self, n_step: int, finished: bool = False) -> dict[float, tuple[float, float, float]]:
        """By the observation: that from which to bootstrap, the sum of rewards, the discount."""
        found = {}
        for episode in self.episodes:
            if finished and not episode.ends:
                continue
            for t in range(self.lost(episode), len(episode.rewards)):
                n = min(n_step, len(episode.rewards) - t)
                total = sum(GAMMA**i * episode.rewards[t + i] for i in range(n))
                over = episode.ends == ["terminated"] and t + n == len(episode.rewards)
                found[episode.obs[t]] = (episode.obs[t + n], total, 0.0 if over else GAMMA**n)
        return found

    def whole(self) -> dict[float, Episode]:
        return {e.obs[0]: e for e in self.episodes if e.ends and self.lost(e) == 0}


def make_store() -> LaneStore:
    fields: Fields = {"obs": ((1,), torch.float64)}
    return LaneStore(fields, ((1,), torch.float64), LANES * RING + 2, LANES, LONGEST, "cpu")


@pytest.mark.parametrize(("n_step", "endless"), [(1, False), (3, False), (1, True)])
def test_transitions_are_those_that_are_still_there_each_as_likely(n_step: int, endless: bool) -> None:
    everything = Everything(endless=endless)
    generator = torch.Generator().manual_seed(1)
    for turn in range(200 if endless else 60):  # in which the others end more episodes than there are slots
        everything.step()
        if turn % 12:
            continue
        for finished in (False, True):
            expected = everything.transitions(n_step, finished)
            if not expected:
                continue
            store = everything.store
            drawn = store.draw_transitions(2, 1_000, generator, n_step, GAMMA, open_too=not finished)
            obs, after = (store.obs["obs"][row].flatten().tolist() for row in (drawn.row, drawn.next_row))
            assert torch.equal(store.action[drawn.row], store.obs["obs"][drawn.row])
            told = zip(after, drawn.reward.flatten().tolist(), drawn.discount.flatten().tolist(), strict=True)
            found = torch.tensor(list(told), dtype=torch.float64)
            wanted = torch.tensor([expected[number] for number in obs], dtype=torch.float64)
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
            share = 2_000 / len(expected)
            counts = Counter(obs)
            assert all(abs(counts[number] - share) < 6 * math.sqrt(share) for number in expected)


@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_drawn_outlasts_the_steps_that_rows_are_kept_free_for(steps: int) -> None:
    everything, generator = Everything(5), torch.Generator().manual_seed(1)
    store = everything.store
    lost_without = False
    for kept_free in (2 * steps, 0):
        store.kept_free = kept_free
        for _ in range(40):
            everything.step()
            drawn = store.draw_transitions(1, 500, generator, 2, GAMMA)
            rows = torch.cat([drawn.row, drawn.next_row])
            before = store.obs["obs"][rows]
            for _ in range(steps):
                everything.step()
            same = torch.equal(store.obs["obs"][rows], before)
            assert same or not kept_free
            lost_without |= not same
    assert lost_without


def test_sequences_are_of_whole_episodes_in_proportion_to_their_length() -> None:
    everything, k = Everything(3), 3
    store, generator = everything.store, torch.Generator().manual_seed(1)
    for _ in range(47):
        everything.step()
    whole = everything.whole()
    steps = sum(len(episode.rewards) for episode in whole.values())
    for as_a_whole in (False, True):
        drawn = store.draw_sequences(2, 500, k, generator, as_a_whole)
        counts: Counter[float] = Counter()
        for i in range(2):
            for j in range(500):
                first = store.obs["obs"][drawn.row[i, j]].flatten().tolist()
                after = store.obs["obs"][drawn.row[i, j] + 1].flatten().tolist()
                episode = next(e for e in whole.values() if first[0] in e.obs)
                counts[episode.obs[0]] += 1
                t = [episode.obs.index(number) for number in first]
                assert [episode.obs[step + 1] for step in t] == after
                length = len(episode.rewards)
                assert drawn.length[i, j] == length
                assert float(drawn.episode_return[i, j]) == pytest.approx(sum(episode.rewards), rel=1e-6)
                assert float(drawn.success[i, j]) == (episode.ends == ["terminated"])
                torch.testing.assert_close(drawn.progress[i, j], (torch.tensor(t) + 1) / length)
                assert float(drawn.weight[i, j].sum()) == pytest.approx(1.0)
                if as_a_whole:
                    assert t == [*range(length), *[0] * (LONGEST - length)]
                elif length >= k:
                    assert len(set(t)) == k
        for first_obs, episode in whole.items():
            share = 1_000 * len(episode.rewards) / steps
            assert abs(counts[first_obs] - share) < 6 * math.sqrt(share)


def test_the_best_are_the_finished_episodes_of_highest_return() -> None:
    everything = Everything(4)
    for _ in range(40):
        everything.step()
    drawn = everything.store.draw_best(1, 500, torch.Generator().manual_seed(1), top=2, gamma=GAMMA)
    ranked = sorted(everything.whole().values(), key=lambda episode: -sum(episode.rewards))
    expected = {number for episode in ranked[:2] for number in episode.obs[:-1]}
    assert set(everything.store.obs["obs"][drawn.row].flatten().tolist()) == expected


def test_counts_are_of_what_is_still_there() -> None:
    everything = Everything(5)
    for _ in range(50):
        everything.step()
        finished = everything.transitions(1, finished=True)
        assert everything.store.steps == len(finished)
        assert everything.store.open_steps == len(everything.transitions(1)) - len(finished)
    assert everything.store.total_episodes_added == len(everything.episodes) - LANES
    returns, lengths = everything.store.returns_and_lengths()
    whole = everything.whole().values()
    assert sorted(lengths.tolist()) == sorted(len(episode.rewards) for episode in whole)
    assert sorted(returns.tolist()) == pytest.approx(sorted(sum(episode.rewards) for episode in whole), rel=1e-6)


@pytest.mark.parametrize("steps", [3, 50])
def test_a_loaded_store_goes_on_as_the_saved_one(steps: int) -> None:
    everything = Everything(6)
    for _ in range(steps):
        everything.step()
    again = make_store()
    again.load_state(everything.store.state())
    for _ in range(4):
        stores = (everything.store, again)
        draws = [store.draw_transitions(1, 50, torch.Generator().manual_seed(2)) for store in stores]
        for one, other in zip(*draws, strict=True):
            assert torch.equal(one, other)
        given = torch.rand((LANES, 1)).double()
        done = torch.tensor([True, False, False])
        for store in stores:
            store.record(given, Step(given + done[:, None], given[:, 0].float(), done, ~done & False, given, {}))
    torch.testing.assert_close(again.state(), everything.store.state(), rtol=0, atol=0, equal_nan=True)
    other = LaneStore({"obs": ((1,), torch.float64)}, ((1,), torch.float64), 50, LANES, LONGEST, "cpu")
    with pytest.raises(CheckpointError, match="of another size"):
        other.load_state(everything.store.state())


def test_a_store_of_older_checkpoints_whose_lanes_shared_their_slots_is_loaded() -> None:
    everything = Everything(8)
    for _ in range(40):
        everything.step()
    store, state = everything.store, everything.store.state()
    used = (store.begun.clamp(max=store._slots)).tolist()
    places = [(lane, slot) for lane in range(LANES) for slot in range(used[lane])]
    places = [places[i] for i in torch.randperm(len(places), generator=torch.Generator().manual_seed(0))]
    lanes, slots = (torch.tensor(numbers) for numbers in zip(*places, strict=True))
    shared = {name: state[name][lanes, slots] for name in store._table}
    assert len(places) > max(used)
    newest = [places.index((lane, int(store.slot[lane]) - lane * store._slots)) for lane in range(LANES)]
    older = state | shared | {"lane": lanes, "begun": len(places), "slot": torch.tensor(newest)}
    again = make_store()
    with pytest.raises(CheckpointError, match="beyond its 3"):  # nothing is allocated for it
        again.load_state(older | {"lane": lanes + 10**15})
    again.load_state(older)
    for one, other in zip(again.returns_and_lengths(), store.returns_and_lengths(), strict=True):
        assert sorted(one.tolist()) == sorted(other.tolist())
    drawn = again.draw_transitions(1, 3_000, torch.Generator().manual_seed(1), gamma=GAMMA)
    obs, after = (again.obs["obs"][row].flatten().tolist() for row in (drawn.row, drawn.next_row))
    expected = everything.transitions(1)
    assert {number: follows for number, (follows, _, _) in expected.items()} == dict(zip(obs, after, strict=True))
    open_steps = [len(episode.rewards) for episode in everything.open]
    assert again.length[again.slot].tolist() == open_steps

    # As they were where an episode had outlasted all slots: two lanes wrote into one.
    again = make_store()
    again.load_state(older | {"slot": torch.tensor([newest[1], *newest[1:]])})
    assert again.length[again.slot].tolist() == [0, 0, *open_steps[2:]]
    assert torch.equal(again.slot // again._slots, torch.arange(LANES))
    assert torch.equal(again.first[again.slot][:2], state["head"][:2])
    drawn = again.draw_transitions(1, 3_000, torch.Generator().manual_seed(1), gamma=GAMMA, open_too=False)
    obs, after = (again.obs["obs"][row].flatten().tolist() for row in (drawn.row, drawn.next_row))
    whole = everything.transitions(1, finished=True)
    assert {number: follows for number, (follows, _, _) in whole.items()} == dict(zip(obs, after, strict=True))


def test_a_store_without_a_whole_episode_is_a_sentence() -> None:
    everything = Everything()
    store = everything.store
    refuse_no_whole_episode(store)  # none has ended yet
    for _ in range(LONGEST):
        everything.step()
    refuse_no_whole_episode(store)
    everything.endless.fill_(True)
    for _ in range(RING):
        everything.step()
    store.draw_sequences(1, 4, 2, torch.Generator().manual_seed(0))  # a device cannot refuse
    with pytest.raises(TrainingError, match=f"no finished episode.*more than {LONGEST} steps.*--replay.longest"):
        refuse_no_whole_episode(store)


def test_episodes_that_were_broken_off_are_forgotten() -> None:
    everything = Everything(7)
    for _ in range(5):
        everything.step()
    store = everything.store
    finished = set(everything.transitions(1, finished=True))
    store.begin_all(torch.full((LANES, 1), 7.0).double())
    assert store.open_steps == 0
    if finished:
        drawn = store.draw_transitions(1, 200, torch.Generator().manual_seed(1))
        assert set(store.obs["obs"][drawn.row].flatten().tolist()) == finished


def test_a_collector_records_in_lanes_what_it_records_in_episodes() -> None:
    """Of environments that end at different steps; each observation tells its lane and its step."""
    config = apply_overrides(find_preset("forage", "dqn").config, {"env.num_envs": 4, "env.episode_length": 7})
    assert isinstance(config, ReplayTrainConfig)
    told, metrics = [], []
    for kind in (EpisodeStore, LaneStore):
        envs = make_groups(config.env, 2, torch.device("cpu"))
        policy = make_policy(config, envs[0].obs_space, envs[0].action_space, torch.device("cpu"))
        fields = {"obs": obs_field(policy.obs_space)}, ((1,), torch.float32)
        rows = sum(env.num_rows for env in envs)
        store = kind(*fields, 200 * rows, rows, 7, "cpu")
        collector = ReplayCollector(envs, policy, store, 3)
        for at_random in (True, False, False):
            collector.collect(9, at_random)
        metrics.append(collector.episode_metrics())
        drawn = store.draw_transitions(1, 20_000, torch.Generator().manual_seed(1), 2, GAMMA)
        obs = store.obs["obs"].flatten(1).double() @ torch.arange(1.0, 1 + policy.obs_space.shape[0]).double()
        parts = [obs[drawn.row], obs[drawn.next_row], drawn.reward, drawn.discount, store.action[drawn.row, 0]]
        told.append(Counter(zip(*(part.flatten().tolist() for part in parts), strict=True)).keys())
    assert told[0] == told[1]
    assert metrics[0] == metrics[1]


def test_a_ring_too_small_for_what_is_written_while_it_is_learned_from() -> None:
    with pytest.raises(ConfigError, match=r"give more than 16,384, or make --replay\.steps smaller"):
        _rows_kept_free(ReplayConfig(capacity=16_384), rows=1_024, steps=4)
    assert _rows_kept_free(ReplayConfig(capacity=17_408), rows=1_024, steps=4) == 8


def test_a_store_that_goes_back_forgets_what_came_later() -> None:
    """As after a rollback, which loads a checkpoint into the store that went on."""
    everything, fresh = Everything(6), make_store()
    for _ in range(3):
        everything.step()
    saved = {name: copy.deepcopy(value) for name, value in everything.store.state().items()}
    for _ in range(40):
        everything.step()
    everything.store.load_state(saved)
    fresh.load_state(saved)
    assert (everything.store.steps, everything.store.open_steps) == (fresh.steps, fresh.open_steps)
    draws = [
        store.draw_transitions(1, 200, torch.Generator().manual_seed(2)) for store in (everything.store, fresh)
    ]
    assert all(torch.equal(one, other) for one, other in zip(*draws, strict=True))


@pytest.mark.parametrize("algo", ["sac", "flash-sac"])
def test_what_is_no_number_is_never_saved_and_the_environment_is_blamed(algo: str, tmp_path: Path) -> None:
    """No host sees steps in lanes: a cycle tells of a NaN at its end, after checkpoints that are due before."""
    settings: dict[str, Any] = {
        "policy.hidden": (8, 8), "env.num_envs": 4, "replay.steps": 40, "replay.train_batches": 2,
        "replay.warmup": 40, "replay.batch_size": 16, "replay.capacity": 4000, "loop.total_steps": 1600,
        "loop.iterations": 5, "eval.every": 400, "checkpoint.every": 80, "checkpoint.keep": "all",
        "eval.episodes": 1, "eval.final_episodes": 0, "log.report": False, "log.tensorboard": False,
    }  # fmt: skip
    if algo == "flash-sac":
        settings["flash.critic_width"] = 8
    with pytest.raises(EnvError, match=r"gave a reward or observation that is not a finite number \(row"):
        ludus.train(
            "vec:replay_envs:make_flawed", tmp_path / "run", [], Console("quiet"), algo=algo, overrides=settings
        )
    kept = checkpoints_in(tmp_path / "run" / "checkpoints")
    assert kept
    for checkpoint in kept:
        store = load_training(checkpoint)[1]["job"]["store"]
        assert bool(store["reward"].isfinite().all())
