"""The segment buffer: contiguous pieces of single trajectories, each used once, for any number of rows."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.loss import Batch
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import SegmentBuffer
from ludus.envs.vec import State, Step, VecEnv
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.lstm import LSTM

shapes = st.tuples(st.integers(1, 40), st.integers(1, 50), st.integers(1, 9))


class Counting(VecEnv):
    """Each row observes its own number, how many steps it has made in all, and its step in the episode."""

    name = "counting"
    device = torch.device("cpu")
    obs_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, rows: int, first_row: int = 0, seed: int = 0) -> None:
        self.num_rows, self.first_row = rows, first_row
        self.random = np.random.default_rng(seed)

    def reset(self, seed: int) -> Tensor:
        self.total, self.age = np.zeros(self.num_rows), np.zeros(self.num_rows)
        return self._obs()

    def _obs(self) -> Tensor:
        row = self.first_row + np.arange(self.num_rows)
        return torch.tensor(np.stack([row, self.total, self.age], 1), dtype=torch.float32)

    def begin_step(self, action: Tensor) -> None:
        self.action = action

    def end_step(self) -> Step:
        self.total, self.age = self.total + 1, self.age + 1
        final = self._obs()
        terminated = self.random.random(self.num_rows) < 0.15
        truncated = (self.random.random(self.num_rows) < 0.1) & ~terminated
        self.age[terminated | truncated] = 0
        reward = torch.tensor(self.total, dtype=torch.float32)
        return Step(self._obs(), reward, torch.tensor(terminated), torch.tensor(truncated), final, {})

    def state(self) -> State:
        raise NotImplementedError

    def load_state(self, state: State) -> None:
        raise NotImplementedError


def make_collector(rows: int, segments: int, horizon: int, groups: int = 1, memory: bool = True) -> Collector:
    envs: list[VecEnv] = [Counting(rows // groups, i * (rows // groups), seed=i) for i in range(groups)]
    kind = "lstm" if memory else "none"
    config = PolicyConfig(hidden=(8,), memory=kind, memory_size=4, normalize_obs=False)  # type: ignore[arg-type]
    torch.manual_seed(0)
    policy = ActorCritic(Counting.obs_space, Counting.action_space, config)
    for p in policy.parameters():  # the counters grow; keep the units from saturating
        p.data *= 0.3
    return Collector(envs, policy, SegmentSchedule(rows, segments, horizon), gamma=0.9, seed=0)


@settings(max_examples=25, deadline=None)
@given(shapes, st.integers(1, 2))
def test_every_segment_is_a_contiguous_piece_of_one_row_and_no_step_is_used_twice_or_lost(
    shape: tuple[int, int, int], groups: int
) -> None:
    rows, segments, horizon = shape
    rows *= groups
    collector = make_collector(rows, segments, horizon, groups)
    seen: dict[int, list[int]] = {row: [] for row in range(rows)}
    for update in range(5):
        taken = collector.collect(update)
        obs, following = taken.obs, taken.track.obs.index_select(0, taken.following)
        assert obs.shape[:2] == (horizon, segments)
        for s in range(segments):
            assert len(obs[:, s, 0].unique()) == 1
            assert torch.equal(obs[:, s, 1], obs[0, s, 1] + torch.arange(horizon))
            assert following[s, 0] == obs[0, s, 0]
            assert following[s, 1] == obs[-1, s, 1] + 1
            assert torch.equal(taken.reward[:, s], obs[:, s, 1] + 1)  # what the action at each step brought
            # A new episode begins exactly after an end.
            assert torch.equal(obs[1:, s, 2] == 0, taken.done[:-1, s])
            seen[int(obs[0, s, 0])] += obs[:, s, 1].int().tolist()
    for row, steps in seen.items():  # without a gap, from the row's first segment on
        begin = collector.schedule.start(row)
        assert sorted(steps) == list(range(begin, begin + len(steps)))


@settings(max_examples=200, deadline=None)
@given(shapes)
def test_the_schedule_keeps_enough_and_starts_rows_when_it_says(shape: tuple[int, int, int]) -> None:
    schedule = SegmentSchedule(*shape)
    for time in range(3 * schedule.horizon):
        rows = schedule.starting_rows(time)
        expected = [row for row in range(schedule.rows) if (time - schedule.start(row)) % schedule.horizon == 0]
        assert list(range(rows.start, max(rows.start, rows.stop))) == expected
    for update in range(20):
        assert sum(map(schedule.steps, range(update + 1))) == schedule.end(update)
        assert schedule.end(update) - schedule.start(update * schedule.segments) < schedule.columns


@pytest.mark.parametrize(("rows", "segments"), [(8160, 8192), (8192, 8192), (4096, 8192), (3000, 8192)])
def test_the_shapes_of_a_large_run_are_exact(rows: int, segments: int) -> None:
    schedule = SegmentSchedule(rows, segments, 64)
    total = sum(schedule.steps(update) for update in range(500)) * rows
    trained = 500 * segments * 64
    assert trained <= total <= trained + 2 * rows * 64  # what is under way, and what was before the first segments


def test_values_states_and_probabilities_are_those_of_a_pass_over_the_segment() -> None:
    """What was recorded while acting equals one pass from the stored state, whatever the ends and the shape."""
    for rows, segments, horizon in ((6, 6, 7), (7, 10, 5), (9, 4, 6)):
        collector = make_collector(rows, segments, horizon)
        policy = collector.policy
        for update in range(4):
            taken = collector.collect(update)
            keep = torch.ones(horizon, segments)
            keep[1:] = (~taken.done)[:-1].float()
            with torch.no_grad():
                run = policy.forward_pass(policy.prepare(taken.obs.flatten(0, 1)), taken.state, keep)
                log_prob = policy.head.log_prob(run.params, taken.action.flatten(0, 1))
            torch.testing.assert_close(run.value, taken.value.flatten(), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(log_prob, taken.log_prob.flatten(), rtol=1e-5, atol=1e-6)


def test_a_truncated_episode_keeps_the_value_of_what_it_saw_last_under_the_memory_it_had() -> None:
    collector = make_collector(rows=5, segments=5, horizon=12)
    policy = collector.policy
    taken = collector.collect(0)
    checked = 0
    for s in range(5):
        state = policy.start(1)
        for t in range(12):
            with torch.no_grad():
                _, value, state = policy.params_and_value_of(policy.prepare(taken.obs[t, s][None]), state)
                assert float(value) == pytest.approx(float(taken.value[t, s]), abs=1e-5)
                if taken.done[t, s]:
                    final = taken.obs[t, s].clone()
                    final[1:] += 1
                    expected = float(policy.value_of(policy.prepare(final[None]), state))
                    got = float(taken.final_value[t, s])
                    assert got == pytest.approx(expected, abs=1e-5) or got == 0.0  # truncated, or terminated
                    checked += got != 0.0
                    state = policy.start(1)
    assert checked == 5  # of 17 ends: the others are terminations


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 6), st.integers(0, 2**31 - 1))
def test_a_segment_pass_of_the_lstm_equals_single_steps_for_any_pattern_of_ends(
    horizon: int, n: int, seed: int
) -> None:
    torch.manual_seed(seed)
    memory = LSTM(5, 7).double()
    x, state = torch.randn(horizon * n, 5).double(), torch.randn(n, 14).double()
    keep = (torch.rand(horizon, n) < torch.rand(())).double()
    with torch.no_grad():
        run = memory.run(x, state, keep)
        for t in range(horizon):
            out, state = memory.step(x[t * n : (t + 1) * n], state * keep[t][:, None])
            torch.testing.assert_close(out, run.space.h[t])
        torch.testing.assert_close(state, run.last_state)


@pytest.mark.parametrize("memory", [False, True])
def test_a_pass_uses_every_step_exactly_once(memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    collector = make_collector(rows=6, segments=12, horizon=5, memory=memory)
    config = PPOConfig(horizon=5, segments=12, minibatches=4, update_epochs=3, learning_rate=0.0)
    ppo = PPO(collector.policy, config, collector.schedule, seed=0)
    taken, seen = collector.collect(0), list[Tensor]()
    step = ppo.step

    def looking(batch: Batch, measured: bool) -> None:
        assert isinstance(batch.x, Tensor)
        seen.append(100 * batch.x[:, 0] + batch.x[:, 1])  # row and step tell which one it is
        step(batch, measured)

    monkeypatch.setattr(ppo, "step", looking)
    ppo.update(taken, 0.0)
    everything = (100 * taken.obs[..., 0] + taken.obs[..., 1]).flatten().sort().values
    assert len(everything.unique()) == 60
    for epoch in range(3):
        assert torch.equal(torch.cat(seen[4 * epoch : 4 * epoch + 4]).sort().values, everything)
    assert not torch.equal(seen[0], seen[4])  # another order in each pass


def test_rows_without_an_agent_are_never_trained_on() -> None:
    """Whatever stands in the absent steps, the update is the same."""

    def weights(garbage: float) -> Tensor:
        collector = make_collector(rows=6, segments=6, horizon=8)
        config = PPOConfig(horizon=8, minibatches=2, update_epochs=2, entropy_coef=0.01, recompute_advantages=True)
        ppo = PPO(collector.policy, config, collector.schedule, seed=0)
        taken = collector.collect(0)
        absent = torch.zeros(9, 6, dtype=torch.bool)
        absent[3:6, 1] = absent[0:2, 4] = True
        track = collector.buffer.track
        track.present[absent] = False
        track.done[2, 1] = True  # it left; coming back it begins anew
        for name in ("obs", "value", "log_prob", "reward", "discounted"):
            getattr(track, name)[absent] = garbage
        taken.all_present = False
        ppo.update(taken, 0.0)
        return ppo.optimizer.flat

    assert torch.equal(weights(0.0), weights(3.0))


def test_half_recorded_segments_survive_a_save() -> None:
    buffers = []
    for _ in range(2):
        schedule = SegmentSchedule(5, 7, 4)
        buffers.append(SegmentBuffer(schedule, (3,), torch.float32, 1, 8, torch.device("cpu")))
    first, second = buffers
    for tensor in (*vars(first.track).values(), first.starts):
        tensor.copy_(torch.rand(tensor.shape) > 0.5 if tensor.dtype == torch.bool else torch.rand(tensor.shape))
    first.time = 23
    second.load_state(first.state())
    one, two = first.take(2), second.take(2)
    assert torch.equal(one.obs, two.obs)
    assert torch.equal(one.state, two.state)
    assert second.time == 23
