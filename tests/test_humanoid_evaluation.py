"""Evaluations of a humanoid that follows clips: which starts, which measures, and what is learned from them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("scipy", reason="SciPy is not installed")
from scipy.spatial.transform import Rotation

from humanoid_body import BODIES, DT
from humanoid_envs import (
    Still,
    arrays,
    flight_clip,
    make,
    random_actions,
    reference_in,
    standing_clip,
    walk_clip,
)
from ludus.envs.humanoid.evaluation_starts import evaluation_plan, fewest_rows, shared_out
from ludus.envs.humanoid.mimic import MimicTask
from ludus.envs.humanoid.tracking import TrackingMeasures, procrustes_distance
from ludus.envs.vec import Step
from ludus.training.evaluator import Evaluation, evaluate


def slow_procrustes(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    """[bodies] distances after the best similarity transform, whose rotation is scipy's."""
    p, t = points - points.mean(0), target - target.mean(0)
    turned = Rotation.align_vectors(t, p)[0].apply(p)
    scale = (t * turned).sum() / (p * p).sum()
    return np.linalg.norm(scale * turned - t, axis=1)


def test_an_evaluation_tries_every_clip_from_starts_spread_over_its_loop() -> None:
    clips = [standing_clip(seconds=1.5), walk_clip(), walk_clip("once", loop=False)]
    env = make(clips, evaluation=True, eval_starts=4, max_steps=50)
    clip, start, steps = evaluation_plan(env.config, env.library)
    assert clip.tolist() == [0, 1, 1, 1, 1, 2]
    assert start.tolist() == pytest.approx([0, 0, 0.3, 0.6, 0.9, 0])
    assert steps.tolist() == [45, 50, 50, 50, 50, 36]
    assert env.fixed_starts is not None
    assert env.fixed_starts.tolist() == [1] * 6
    assert env.max_steps == 50
    for seed in (0, 7):
        env.reset(seed)
        assert env.memory["clip"].tolist() == clip.tolist()
        assert env.memory["time"].tolist() == pytest.approx(start.tolist())
        qpos, qvel, _ = arrays(env)
        np.testing.assert_allclose(qpos, env.library.at(clip, start).qpos, atol=1e-6)
        np.testing.assert_allclose(qvel, env.library.at(clip, start).qvel, atol=1e-6)
    step = env.step(torch.zeros(6, 28))
    assert set(env.labels) == {"weight", "clip", "began", "ended"}
    assert step.metrics["clip"].tolist() == clip.tolist()
    assert step.metrics["weight"].tolist() == pytest.approx([1, 0.25, 0.25, 0.25, 0.25, 1])
    np.testing.assert_allclose(step.metrics["ended"], start + DT, atol=1e-6)


def test_an_evaluation_follows_a_long_loop_for_a_whole_cycle() -> None:
    env = make([walk_clip(seconds=3.0)], evaluation=True, eval_starts=4, max_steps=30, future=(1, 40))
    clip, start, steps = evaluation_plan(env.config, env.library)
    assert steps.tolist() == [90] * 4
    end = start + DT * (steps + 40)  # as far as the last observation looks
    stride = env.library.at(clip, start + 3.0).qpos[:, 0] - env.library.at(clip, start).qpos[:, 0]
    last, before = (env.library.at(clip, time).qpos[:, 0] for time in (end, end - 3.0))
    assert (stride > 0.5).all()
    np.testing.assert_allclose(last - before, stride, atol=1e-4)


def recorded_evaluation(env: MimicTask, actions: Tensor) -> list[tuple[np.ndarray, np.ndarray, Step]]:
    """(bodies, their reference, step) of every step, before any row is restarted."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    score = env.score

    def watched() -> Any:
        seen.append((arrays(env)[2].copy(), reference_in(env, 1).body_pos.numpy()))
        return score()

    env.score = watched  # type: ignore[method-assign]
    env.reset(0)
    steps = [env.step(action) for action in actions]
    return [(*pair, step) for pair, step in zip(seen, steps, strict=True)]


def test_measures_equal_slow_versions_on_a_recorded_rollout() -> None:
    env = make([standing_clip(seconds=1.0), walk_clip()], evaluation=True, eval_starts=6, max_steps=36)
    strength = torch.tensor([0.0, 0.0, 0.2, 0.5, 0.7, 1.0, 1.0])[:, None]  # so that some succeed
    record = recorded_evaluation(env, random_actions(env, 36) * strength)
    strict, failed = [], []
    for row in range(7):
        end = next(t for t, (_, _, step) in enumerate(record) if step.done[row])
        bodies = np.stack([there[row] for there, _, _ in record[: end + 1]])
        aim = np.stack([wanted[row] for _, wanted, _ in record[: end + 1]])
        difference = bodies - aim  # [frames, 15, 3]
        before = np.concatenate([np.zeros((2, 15, 3)), difference])  # starts on the reference
        speed, change = np.diff(before[1:], axis=0) / DT, np.diff(before, 2, axis=0) / DT**2
        distance = np.linalg.norm(difference, axis=2)
        expected = {
            "mpjpe": 1000 * distance.mean(),
            "mpjpe_local": 1000 * np.linalg.norm(difference - difference[:, :1], axis=2).mean(),
            "mpjpe_aligned": 1000 * np.mean([slow_procrustes(b, a) for b, a in zip(bodies, aim, strict=True)]),
            "velocity_error": np.linalg.norm(speed, axis=2).mean(),
            "acceleration_error": np.linalg.norm(change, axis=2).mean(),
        }
        told = {name: float(values[row]) for name, values in record[end][2].metrics.items()}
        lost = bool((distance.mean(1) > 0.5).any())
        for name, value in expected.items():
            assert told[name] == pytest.approx(value, rel=2e-3, abs=1e-3), name
            kept = told[f"{name}_succeeded"]
            assert math.isnan(kept) if lost else kept == told[name]
        assert told["success"] == (not lost)
        assert told["success_strict"] == (not lost and bool(distance.max() <= 0.25))
        assert bool(record[end][2].terminated[row]) == lost
        strict.append(told["success_strict"])
        failed.append(lost)
    assert {True, False} == set(failed) or 0 < sum(strict) < 7


def test_strict_success_needs_every_body_within_a_quarter_of_a_metre_all_the_time() -> None:
    measures = TrackingMeasures(3, 15, DT, torch.device("cpu"))
    bodies = torch.zeros(3, len(BODIES), 3)
    bodies[:, BODIES.index("right_hand"), 1] = torch.tensor([0.249, 0.251, 0.1])
    measures.add(bodies, torch.zeros_like(bodies))
    measures.add(torch.zeros_like(bodies), torch.zeros_like(bodies))  # back again, but it was seen
    told = measures.results(torch.tensor([False, False, True]))
    assert told["success"].tolist() == [1, 1, 0]
    assert told["success_strict"].tolist() == [1, 0, 0]
    measures.begin(torch.tensor([False, True, False]))
    assert measures.results(torch.zeros(3, dtype=torch.bool))["success_strict"].tolist() == [1, 1, 1]


def test_a_restart_of_one_row_keeps_what_the_others_have_measured() -> None:
    """On a GPU all rows are asked how they begin, and the answer counts where an episode ended."""
    env = make([walk_clip()], evaluation=True, eval_starts=3, max_steps=30)
    env.reset(0)
    for action in random_actions(env, 5, 0.3):
        env.step(action)
    assert env._measures is not None
    before = env._measures.results(torch.zeros(3, dtype=torch.bool))
    env._restart_where(torch.tensor([False, True, False]))
    after = env._measures.results(torch.zeros(3, dtype=torch.bool))
    for name in ("mpjpe", "acceleration_error"):
        assert float(after[name][1]) == 0
        assert float(before[name][1]) > 0
        assert torch.equal(after[name][[0, 2]], before[name][[0, 2]])


def test_procrustes_is_the_best_similarity_and_never_a_reflection() -> None:
    rng = np.random.default_rng(0)
    target = rng.normal(size=(30, 15, 3))
    points = rng.normal(size=(30, 15, 3)) * 0.5 + target
    points[10:20] = target[10:20] * [1, 1, -1]  # mirrored: a reflection would fit exactly
    turn = Rotation.random(10, rng).as_matrix()
    points[20:] = 2.5 * np.einsum("nij,nbj->nbi", turn, target[20:]) + 7.0
    found = procrustes_distance(torch.from_numpy(points), torch.from_numpy(target)).numpy()
    expected = np.stack([slow_procrustes(p, t) for p, t in zip(points, target, strict=True)])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found[10:20].mean() > 0.1
    np.testing.assert_allclose(found[20:], 0.0, atol=1e-5)
    points[3] = np.nan  # a simulation that has diverged, which by itself ended all measuring
    again = procrustes_distance(torch.from_numpy(points), torch.from_numpy(target)).numpy()
    assert np.isnan(again[3]).all()
    np.testing.assert_array_equal(np.delete(again, 3, 0), np.delete(found, 3, 0))


def test_a_failing_clip_counts_as_much_as_a_looping_one_with_many_starts() -> None:
    env = make([standing_clip("stand"), walk_clip("loop")], evaluation=True, eval_starts=8)
    _, _, steps = evaluation_plan(env.config, env.library)
    clip = [0.0] + [1.0] * 8
    result = Evaluation(
        returns=[5.0] + [1.0] * 8, lengths=steps.tolist(),
        metrics={"success": [0.0] + [1.0] * 8, "mpjpe": [100.0] + [20.0] * 8, "x": [math.nan] + [4.0] * 8},
        labels={"weight": [1.0] + [1 / 8] * 8, "clip": clip, "ended": [0.0] * 9},
    )  # fmt: skip
    summary = result.summary()
    assert summary["success_rate"] == pytest.approx(0.5)
    assert (summary["mean_reward"], summary["std_reward"]) == pytest.approx((3.0, 2.0))
    assert summary["mean_ep_length"] == pytest.approx((60 + 300) / 2)
    assert summary["mpjpe"] == pytest.approx(60.0)
    assert summary["x"] == 4.0  # told by the loop alone
    assert summary["episodes"] == 9
    assert not {"clip", "weight", "ended"} & summary.keys()
    table = env.tabulate(result.metrics, result.labels)
    assert [line["clip"] for line in table] == ["stand", "loop"]  # the worst first
    assert [(line["episodes"], line["success_rate"]) for line in table] == [(1, 0.0), (8, 1.0)]
    assert table[0]["x"] is None


def test_every_start_of_an_evaluation_is_played_once_whatever_number_is_asked_for() -> None:
    env = make([standing_clip(seconds=0.5), flight_clip()], evaluation=True, eval_starts=5)
    result = evaluate(Still(), env, 100, 0, True)  # type: ignore[arg-type]
    assert sorted(result.labels["clip"]) == [0, 1]
    assert result.summary()["success_rate"] == 0.5
    fell = result.labels["clip"].index(1)
    assert 0.2 < result.labels["ended"][fell] < 0.8
    training = make([standing_clip(seconds=0.5), flight_clip()], resample_floor=0.2)
    assert training.adapt(result.metrics, result.labels)
    # A smoothed rate of 0.5 with a floor of 0.2: 0.4 of the starts go where it fails, the others are even.
    assert training.starts.shares().tolist() == pytest.approx([0.3, 0.7])
    assert {line["clip"]: line["share"] for line in training.tabulate(result.metrics, result.labels)} == {
        "stand": pytest.approx(0.3), "flight": pytest.approx(0.7)
    }  # fmt: skip
    training.reset(0)
    assert not make([standing_clip()], resample=False).adapt(result.metrics, result.labels)


# Ends of other kinds ----------------------------------------------------------------------------------
def test_an_episode_that_is_cut_has_not_succeeded_and_stands_in_the_table() -> None:
    """As --eval.max-steps does it: one clip ends before, the other does not."""
    env = make([standing_clip("long", seconds=3.0), standing_clip("short", seconds=0.5)], evaluation=True)
    result = evaluate(Still(), env, 2, 0, True, max_steps=30)  # type: ignore[arg-type]
    assert result.cut
    assert result.summary()["success_rate"] == 0.5
    lines = env.tabulate(result.metrics, result.labels)
    assert [(line["clip"], line["success_rate"]) for line in lines] == [("long", 0.0), ("short", 1.0)]
    heard = result.undecided()
    assert [math.isnan(value) for value in heard.metrics["success"]] == [place in result.cut for place in range(2)]
    assert env.adapt(heard.metrics, heard.labels)
    assert env.starts.failures.tolist() == [0] * len(env.starts.failures)  # nobody knows of the long one


def test_of_starts_that_were_cut_or_failed_the_latter_alone_are_blamed() -> None:
    env = make([walk_clip("loop"), standing_clip("still")])
    labels = {"clip": [0.0] * 5 + [1.0], "began": [0.0] * 6, "ended": [0.5] + [1.0] * 5}
    env.adapt({"success": [0.0] + [math.nan] * 4 + [1.0]}, labels)
    assert float(env.starts.failures.sum()) == pytest.approx(0.5 * 1 / 5)  # smoothed; one of five


def test_whoever_lost_the_reference_and_found_back_has_not_followed_it() -> None:
    env = make([standing_clip(seconds=1.0)], evaluation=True, terminations={"lost": None})
    env.reset(0)
    away = env.sim.field("qpos")
    place = away[0, 0].clone()
    for number in range(1, 31):
        away[0, 0] = place + (2.0 if 10 < number <= 20 else 0.0)
        step = env.step(torch.zeros(1, 28))
        assert bool(step.metrics["success"][0]) == (number <= 10)
        assert float(step.metrics["completion"][0]) == pytest.approx(min(number, 10) / 30)
    assert step.truncated.all()
    fresh = env.step(torch.zeros(1, 28))
    assert fresh.metrics["success"].all()


@pytest.mark.parametrize("terminations", [{}, {"lost": None}])
def test_starts_move_to_where_the_reference_was_lost_even_where_the_episode_goes_on(
    terminations: dict[str, Any],
) -> None:
    env = make([standing_clip(seconds=4.0)], evaluation=True, terminations=terminations)
    env.reset(0)
    away = env.sim.field("qpos")
    place = away[0, 0].clone()
    for number in range(1, 121):
        away[0, 0] = place + (2.0 if number > 75 else 0.0)
        step = env.step(torch.zeros(1, 28))
        if step.done.any():
            break
    told = {name: values.tolist() for name, values in step.metrics.items()}
    training = make([standing_clip(seconds=4.0)], resample_smoothing=1.0)
    training.adapt({"success": told["success"]}, {name: told[name] for name in env.labels})
    assert training.starts.failures.tolist() == [0, 0.5, 0.5, 0]


def test_starts_are_even_where_a_resumed_run_no_longer_moves_them() -> None:
    clips = [standing_clip("a"), standing_clip("b")]
    moved = make(clips)
    ends = torch.tensor([0.5, 1.0], dtype=torch.float64)
    moved.starts.learn(torch.arange(2), torch.zeros_like(ends), ends, torch.tensor([True, False]))
    even = make(clips, resample=False)
    even.load_lessons(moved.lessons())
    assert even.starts.shares().tolist() == [0.5, 0.5]


def after_three_steps(task: MimicTask) -> Tensor:
    return task.elapsed >= 3


@pytest.mark.parametrize("name", ["early", "lost"])  # in the place of the task's own, too
def test_whoever_is_ended_by_a_term_of_the_users_has_not_followed_to_the_end(name: str) -> None:
    own = {name: {"function": "test_humanoid_evaluation:after_three_steps"}}
    env = make([standing_clip(seconds=1.0)], evaluation=True, terminations=own)
    result = evaluate(Still(), env, 1, 0, True)  # type: ignore[arg-type]
    told = result.summary()
    assert told["success_rate"] == 0
    assert told["success_strict"] == 0
    assert told["completion"] == pytest.approx(0.1)
    assert "mpjpe_succeeded" not in told


# Rows that play several starts ------------------------------------------------------------------------
def test_episodes_are_shared_out_so_that_no_row_is_busy_for_much_longer_than_the_longest() -> None:
    rng = np.random.default_rng(0)
    for steps in (rng.integers(1, 100, 200).tolist(), [50] * 7, [90, 1, 1, 1], [5], [6, 6, 6, 6, 6, 10]):
        rows = fewest_rows(steps)
        own = shared_out(steps, rows)
        assert sorted(i for episodes in own for i in episodes) == list(range(len(steps)))
        assert all(own)
        assert max(sum(steps[i] for i in episodes) for episodes in own) <= 1.1 * max(steps)
        assert rows <= -(-2 * sum(steps) // max(steps))
    assert fewest_rows([90, 1, 1, 1]) == 2
    assert shared_out([1, 7, 3], 3) == [[0], [1], [2]]  # as many rows as episodes: each its own number


def test_an_evaluation_in_few_rows_tells_the_same_of_every_episode() -> None:
    clips = [standing_clip("long", seconds=3.0), flight_clip(), walk_clip("once", loop=False), walk_clip("loop")]
    clips += [standing_clip(f"short{i}", seconds=0.3 + 0.1 * i) for i in range(5)]
    settings: dict[str, Any] = {"eval_starts": 2, "max_steps": 40}

    def told(env: MimicTask) -> list[tuple[float, ...]]:
        result = evaluate(Still(), env, 1, 0, True)  # type: ignore[arg-type]
        names = ["success", "mpjpe", "mpjpe_aligned", "completion"]
        columns = [result.labels[name] for name in ("clip", "began", "weight", "ended")]
        columns += [result.metrics[name] for name in names]
        return sorted(zip(*columns, result.returns, result.lengths, strict=True))

    own_rows = make(clips, evaluation=True, **settings)
    _, _, steps = evaluation_plan(own_rows.config, own_rows.library)
    few = make(clips, fewest_rows(steps.tolist()), evaluation=True, **settings)
    assert few.num_rows < own_rows.num_rows == len(steps)
    for _ in range(2):  # the second begins with the first starts again
        found = told(few)
        assert len(found) == len(steps)
        np.testing.assert_allclose(found, told(own_rows), rtol=1e-5)
