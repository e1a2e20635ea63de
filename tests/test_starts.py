"""Where episodes start: even at first, then where evaluations fail, and nothing is ever forgotten."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from humanoid_envs import standing_clip, walk_clip
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.motions import MotionLibrary
from ludus.envs.humanoid.starts import StartWeights
from ludus.errors import CheckpointError


def start_weights(floor: float = 0.1, smoothing: float = 0.5, longest: float = 10.0) -> StartWeights:
    """Parts: 0–3 of a clip of 3.5 s, 4–6 of a loop of 2.4 s, 7 of a loop of 0.8 s."""
    clips = [
        standing_clip("long", seconds=3.5), walk_clip("loop", seconds=2.4), walk_clip("short", seconds=0.8)
    ]  # fmt: skip
    return StartWeights(MotionLibrary(clips, 5.0), floor, smoothing, longest=longest)


def learn(weights: StartWeights, *episodes: tuple[int, float, bool]) -> None:
    """Each: clip, seconds at which it ended, whether by failing. So short that loops and others are alike."""
    clip, ended, failed = zip(*episodes, strict=True)
    ends = torch.tensor(ended, dtype=torch.float64)
    weights.learn(torch.tensor(clip), ends - 1e-6, ends, torch.tensor(failed))


FINE = ((0, 3.5, False), (1, 10.0, False), (2, 10.0, False))


def draws(weights: StartWeights, n: int = 200_000) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    return weights.draw(*torch.rand((2, n), generator=g, dtype=torch.float64))


def test_at_first_all_clips_are_alike_and_all_their_times() -> None:
    clip, time = draws(start_weights())
    np.testing.assert_allclose(np.bincount(clip) / len(clip), 1 / 3, atol=0.005)
    for number, duration in enumerate((3.5, 2.4, 0.8)):
        share = np.sort(time[clip == number]) / duration
        assert share[-1] < 1
        np.testing.assert_allclose(share, np.linspace(0, 1, len(share)), atol=0.01)  # uniform


def test_frequencies_of_draws_are_the_probabilities() -> None:
    weights = start_weights()
    learn(weights, (0, 1.5, True), (1, 0.3, True), (1, 2.0, False), (2, 10.0, False))
    clip, time = draws(weights)
    assert float(weights.probability.sum()) == pytest.approx(1.0)
    found = np.bincount(weights.part_at(clip, time), minlength=8) / len(clip)
    np.testing.assert_allclose(found, weights.probability, atol=0.005)
    np.testing.assert_allclose(np.bincount(clip) / len(clip), weights.shares(), atol=0.005)


@pytest.mark.parametrize("floor", [0.05, 0.3, 1.0])
def test_no_clip_is_ever_forgotten(floor: float) -> None:
    weights = start_weights(floor)
    for _ in range(50):
        learn(weights, (0, 1.0, True), *FINE[1:])
        assert float(weights.shares().min()) >= floor / 3 - 1e-6
        assert float(weights.shares().sum()) == pytest.approx(1.0)
    assert float(weights.shares()[1]) == pytest.approx(floor / 3)  # the floor is all that those have
    assert float(weights.probability.min()) == pytest.approx(floor / 3 / 7)  # half a second of 3.5


def test_a_hard_clip_is_started_more_often_and_less_so_when_another_becomes_hard() -> None:
    weights = start_weights(floor=0.1, smoothing=0.25)
    learn(weights, (0, 1.5, True), (1, 10.0, False), (2, 10.0, False))
    even, hard = 1 / 3, 0.9 * 0.25  # of which that part is drawn to failures
    assert weights.shares().tolist() == pytest.approx([(1 - hard) * even + hard, *[(1 - hard) * even] * 2])
    left, other = 0.25, 0.0  # smoothed failure rates of both
    for _ in range(6):
        learn(weights, FINE[0], (1, 1.5, True), FINE[2])
        left, other = 0.75 * left, 0.75 * other + 0.25
        hard = 0.9 * (left + other)
        assert float(weights.shares()[0]) == pytest.approx((1 - hard) * even + 0.9 * left)
    assert float(weights.shares()[0]) < 0.3


def test_starts_go_to_failures_wholly_once_they_add_up_to_a_clip_and_hardly_for_a_few() -> None:
    clips = [standing_clip(str(number), seconds=1.0) for number in range(20)]
    weights = StartWeights(MotionLibrary(clips, 1.0), 0.1, 1.0)
    learn(weights, *[(number, 0.5, number < 3) for number in range(20)])
    shares = weights.shares()
    assert shares[:3].tolist() == pytest.approx([0.3 + 0.1 / 20] * 3)
    assert shares[3:].tolist() == pytest.approx([0.1 / 20] * 17)
    learn(weights, *[(0, 0.5, attempt == 0) for attempt in range(8)])  # one of eight tries
    hard = 0.9 / 8
    assert float(weights.shares()[0]) == pytest.approx((1 - hard) / 20 + hard)


def test_a_hard_clips_share_falls_again_when_nothing_fails_any_more() -> None:
    weights = start_weights()
    learn(weights, (0, 1.5, True), *FINE[1:])
    shares = [float(weights.shares()[0])]
    for _ in range(12):
        learn(weights, *FINE)
        shares.append(float(weights.shares()[0]))
    assert shares[1] < shares[0] - 0.01
    assert shares[-1] == pytest.approx(1 / 3, abs=0.05)


def test_half_of_the_blame_is_on_the_part_before() -> None:
    weights = start_weights(smoothing=1.0)
    learn(weights, (0, 2.5, True), *FINE[1:])
    assert weights.failures.tolist() == [0, 0.5, 0.5, 0, 0, 0, 0, 0]
    learn(weights, (0, 0.2, True), *FINE[1:])  # nothing is before the beginning
    assert weights.failures.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    learn(weights, (0, 3.5, True), *FINE[1:])  # its very end belongs to the last part
    assert weights.failures.tolist() == [0, 0, 0.5, 0.5, 0, 0, 0, 0]


def test_the_part_in_which_it_was_lost_is_blamed_where_the_episode_went_on() -> None:
    weights = start_weights(smoothing=1.0)
    zero, ended = torch.zeros(1).double(), torch.tensor([3.5]).double()
    weights.learn(torch.tensor([0]), zero, ended, torch.tensor([True]), torch.tensor([1.2]).double())
    assert weights.failures.tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 0]


def test_parts_of_looping_clips_wrap_around() -> None:
    weights = start_weights(smoothing=1.0)
    learn(weights, FINE[0], (1, 2 * 2.4 + 1.2, True), FINE[2])
    assert weights.failures.tolist() == [0, 0, 0, 0, 0.5, 0.5, 0, 0]
    learn(weights, FINE[0], (1, 2.4 + 0.1, True), FINE[2])  # the part before the first is the last
    assert weights.failures.tolist() == [0, 0, 0, 0, 0.5, 0, 0.5, 0]
    learn(weights, *FINE[:2], (2, 5.0, True))  # a clip of one part
    assert weights.failures.tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_a_clips_failures_count_per_attempt() -> None:
    weights = start_weights(smoothing=1.0)
    attempts = [(1, 1.5, i < 2) for i in range(8)]
    learn(weights, (0, 1.5, True), *attempts, FINE[2])
    one, two = weights.failures[:4].sum(), weights.failures[4:7].sum()
    assert (float(one), float(two)) == pytest.approx((1.0, 0.25))


# Loops beside clips that end ---------------------------------------------------------------------------
def practised(weights: StartWeights, followed: dict[int, float], longest: float) -> Tensor:
    """[clips] seconds of training by many draws, where each clip is lost after so long."""
    clip, time = draws(weights)
    left = torch.where(weights._loops[clip], longest, weights._durations[clip] - time).clamp(max=longest)
    lost = torch.tensor([followed.get(number, math.inf) for number in range(3)], dtype=torch.float64)
    return torch.zeros(3, dtype=torch.float64).index_add_(0, clip, torch.minimum(left, lost[clip]))


@pytest.mark.parametrize("longest", [10.0, 2.0])
@pytest.mark.parametrize("followed", [{}, {0: 1.2}, {1: 2.0}, {0: 0.4, 1: 0.8, 2: 2.5}])
def test_loops_are_practised_for_as_long_as_clips_that_end(followed: dict[int, float], longest: float) -> None:
    weights = start_weights(longest=longest)
    lasted = [followed.get(number, whole) for number, whole in enumerate((3.5, 10.0, 10.0))]
    ended = torch.tensor([lasted[0], lasted[1], lasted[2] + 0.7], dtype=torch.float64)
    began = torch.tensor([0.0, 0.0, 0.7], dtype=torch.float64)
    weights.learn(torch.arange(3), began, ended, torch.zeros(3, dtype=torch.bool))
    times = practised(weights, followed, longest)
    np.testing.assert_allclose(times / times.sum(), 1 / 3, atol=0.01)
    assert float(weights.shares().sum()) == pytest.approx(1.0)


def test_what_starts_are_worth_is_told_by_the_newest_evaluation_alone() -> None:
    weights, other = start_weights(), start_weights()
    learn(weights, *FINE)
    assert weights.shares().tolist() == pytest.approx([1 / 3] * 3, abs=1e-4)
    ended = torch.tensor([3.5, 10.0, 10.0], dtype=torch.float64)
    weights.learn(torch.arange(3), torch.zeros_like(ended), ended, torch.zeros(3, dtype=torch.bool))
    assert weights.shares().tolist() == pytest.approx([1 / 1.35, 0.175 / 1.35, 0.175 / 1.35])
    other.load_state(weights.state())
    assert torch.equal(other.probability, weights.probability)
    weights.learn(torch.tensor([1]), ended[:1], ended[1:2], torch.tensor([False]))  # no clip that ends
    assert torch.equal(other.probability, weights.probability)


def test_failures_of_a_loop_draw_by_what_its_starts_are_worth() -> None:
    """As where both are followed to the end, but not closely."""
    weights = start_weights(floor=0.2)
    ended, lost = (torch.tensor(times, dtype=torch.float64) for times in ((3.5, 10.0, 10.0), (1.5, 2.5, 10.5)))
    weights.learn(torch.arange(3), torch.zeros_like(ended), ended, lost < 10, lost)
    even, drawn = np.array([1, 0.175, 0.175]) / 1.35, np.array([1, 0.175, 0]) / 1.175
    assert weights.shares().tolist() == pytest.approx((0.2 * even + 0.8 * drawn).tolist())


@pytest.mark.parametrize("frames_a_second", [60, 120])
def test_a_clip_shorter_than_a_control_step_leaves_loops_their_starts(frames_a_second: int) -> None:
    clip = replace(standing_clip("short", seconds=2 / frames_a_second, fps=frames_a_second), loop=False)
    weights = StartWeights(MotionLibrary([clip, walk_clip("loop")], 1.0), 0.1, 0.5)
    ended = torch.tensor([1 / 30, 10.0], dtype=torch.float64)
    weights.learn(torch.arange(2), torch.zeros_like(ended), ended, torch.zeros(2, dtype=torch.bool))
    assert float(weights.shares().min()) > 0


def test_loops_alone_are_alike() -> None:
    weights = StartWeights(MotionLibrary([walk_clip("a"), walk_clip("b")], 1.0), 0.1, 0.5)
    weights.learn(torch.arange(2), torch.zeros(2).double(), torch.tensor([10.0, 0.5]).double(), torch.zeros(2) > 0)
    assert weights.shares().tolist() == pytest.approx([0.5, 0.5])


CHANGED_CLIPS: dict[str, tuple[list[Clip], str]] = {
    "other length": ([standing_clip("long", seconds=3.2)], r"\(long lasts 3.20 s, not 3.50 s as then\)"),
    "other name": ([standing_clip("tall", seconds=3.5)], r"\(long is gone; tall is new\)"),
    "now a loop": ([replace(standing_clip("long", seconds=3.5), loop=True)], r"\(long loops, unlike then\)"),
    "another one": ([walk_clip("loop"), standing_clip("long", seconds=3.5)], r"\(loop is new\)"),
    "many": ([walk_clip(f"walk{i}") for i in range(9)], r"\(long is gone; walk0 is new; .*walk3 is new; …\)"),
}


@pytest.mark.parametrize("what", CHANGED_CLIPS)
def test_weights_of_other_clips_are_refused(what: str) -> None:
    clips, message = CHANGED_CLIPS[what]
    saved = StartWeights(MotionLibrary([standing_clip("long", seconds=3.5)], 1.0), 0.1, 0.5).state()
    with pytest.raises(CheckpointError, match=message):
        StartWeights(MotionLibrary(clips, 1.0), 0.1, 0.5).load_state(json.loads(json.dumps(saved, default=str)))


def test_weights_of_clips_in_another_order_are_refused() -> None:
    clips = [standing_clip("a", seconds=1.0), standing_clip("b", seconds=1.0)]
    one, other = (StartWeights(MotionLibrary(c, 1.0), 0.1, 0.5) for c in (clips, clips[::-1]))
    with pytest.raises(CheckpointError, match="another order"):
        other.load_state(one.state())


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.5, 2.0])
@pytest.mark.parametrize("name", ["failures", "worth"])
def test_weights_that_make_no_sense_are_refused(name: str, value: float) -> None:
    weights = start_weights()
    state = weights.state()
    state[name][1] = value
    with pytest.raises(CheckpointError, match="damaged"):
        weights.load_state(state)
    state[name] = state[name][:1]
    with pytest.raises(CheckpointError, match="damaged"):
        weights.load_state(state)


def test_weights_come_back_from_their_state() -> None:
    weights, other = start_weights(), start_weights()
    learn(weights, (0, 1.5, True), (1, 0.3, True), FINE[2])
    saved = weights.state()
    learn(weights, (0, 0.5, True), *FINE[1:])
    other.load_state(saved)
    learn(other, (0, 0.5, True), *FINE[1:])
    for a, b in zip(draws(weights, 1000), draws(other, 1000), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(weights.probability, other.probability)
