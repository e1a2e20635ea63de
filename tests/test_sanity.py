"""Tasks of seconds that cannot be learned under a typical bug of recurrent, multi-agent or segment PPO.

All go through the whole system: train, save, load, evaluate. Scores are of sampled actions unless said otherwise:
the most likely action of a policy that knows nothing may be right by luck.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ludus
import sanity_envs
from ludus.buffers.segments import SegmentBuffer, Segments
from ludus.envs.check import check_env
from ludus.runs import evaluate_run
from ludus.show.console import Console

PLAIN = {
    "env.num_envs": 64,
    "policy.normalize_obs": False,
    "ppo.horizon": 16,
    "ppo.minibatches": 4,
    "ppo.update_epochs": 4,
    "ppo.learning_rate": 3e-3,
    "ppo.normalize_returns": False,
}
# Only the last action of a recall matters. A short look ahead keeps its luck from being credited to the others.
MEMORY = PLAIN | {
    "policy.memory": "lstm",
    "policy.memory_size": 32,
    "policy.hidden": (),
    "ppo.update_epochs": 2,
    "ppo.gamma": 0.95,
    "ppo.gae_lambda": 0.5,
}
NO_MEMORY = {"policy.memory": "none", "policy.hidden": (32,)}


def train(task: str, folder: Path, steps: int, settings: dict[str, Any], **kwargs: Any) -> Path:
    """`kwargs` go to the task."""
    quiet = {"log.report": False, "log.tensorboard": False, "loop.total_steps": steps, "eval.every": steps}
    quiet |= {"eval.episodes": 4, "eval.stochastic": False, "eval.final_episodes": 0}  # a test measures by itself
    overrides = settings | quiet | {"env.kwargs": kwargs}
    preset = f"vec:sanity_envs:make_{task}"
    return ludus.train(preset, folder / "run", console=Console("quiet"), overrides=overrides)


def score(run: Path, deterministic: bool = False) -> float:
    return float(np.mean(evaluate_run(run, 400, deterministic).returns))


def metrics_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


TASKS: dict[str, dict[str, Any]] = {
    "recall": {"delay": 5},
    "half_absent": {"delay": 7, "late": True},
    "doors": {"first": 0.9},
    "rivals": {},
    "promise": {"delay": 5},
    "wage": {"truncate": True},
    "debut": {},
}


@pytest.mark.parametrize("task", TASKS)
def test_the_tasks_themselves_keep_the_contract_and_continue_exactly_from_a_saved_state(task: str) -> None:
    make = getattr(sanity_envs, f"make_{task}")
    findings = check_env(lambda num_envs: make(num_envs, **TASKS[task]))
    assert [finding for finding in findings if finding.level == "error"] == []
    assert any("state() and load_state() continue exactly" in finding.what for finding in findings)


# Memory ---------------------------------------------------------------------------------------------------
# Gradients do not reach from one segment into another: over several, nothing teaches the memory to hold on. It
# must do so by itself from the start (forget_bias), and need not tell the time (with gamma 1 it does not matter).
LONG = MEMORY | {
    "env.num_envs": 256,
    "policy.memory_size": 128,
    "policy.forget_bias": 4.0,
    "ppo.horizon": 32,
    "ppo.learning_rate": 1e-3,
    "ppo.gamma": 1.0,
    "ppo.gae_lambda": 0.0,
}


def reached(run: Path) -> float:
    """The best mean of four rollouts, some 300 episodes of the long recall. What was learned may be lost again."""
    rewards = [row["rollout/ep_rew_mean"] for row in metrics_of(run) if "rollout/ep_rew_mean" in row]
    return float(np.convolve(rewards, np.full(4, 0.25), "valid").max())


def test_a_memory_recalls_what_was_seen_sixteen_steps_ago_and_without_one_it_is_chance(tmp_path: Path) -> None:
    """Breaks if gradients through time or the memory's input and output are wrong."""
    settings = MEMORY | {"env.num_envs": 128}
    assert score(train("recall", tmp_path / "with", 200_000, settings, delay=16)) >= 0.95
    assert score(train("recall", tmp_path / "without", 50_000, settings | NO_MEMORY, delay=16)) <= 0.6


def test_a_memory_recalls_what_was_seen_three_segments_ago(tmp_path: Path) -> None:
    """Breaks if the state is not carried from segment to segment, in acting, in learning, or alike in both."""
    assert reached(train("recall", tmp_path, 300_000, LONG, delay=100)) >= 0.95


@pytest.mark.slow
def test_the_long_recall_is_chance_without_a_memory(tmp_path: Path) -> None:
    """Breaks if the task gives the symbol away, and with it the meaning of the test above."""
    assert score(train("recall", tmp_path, 50_000, LONG | NO_MEMORY, delay=100)) <= 0.6


@pytest.mark.slow
def test_the_long_recall_notices_a_state_that_is_lost_between_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bug put in, the same training learns nothing."""
    take = SegmentBuffer.take

    def take_without_state(*arguments: Any) -> Segments:
        segments = take(*arguments)
        segments.state.zero_()
        return segments

    monkeypatch.setattr(SegmentBuffer, "take", take_without_state)
    assert reached(train("recall", tmp_path, 300_000, LONG, delay=100)) <= 0.65


def test_a_memory_knows_that_an_episode_has_just_begun(tmp_path: Path) -> None:
    """Breaks if the state is not reset where an episode ends, in acting, in evaluation or inside a segment."""
    run = train("debut", tmp_path, 60_000, MEMORY)
    result = evaluate_run(run, 400, deterministic=False)
    assert sum(result.returns) / sum(result.lengths) >= 0.95  # of steps; without resets 0.5


SEGMENTS = MEMORY | {"env.num_envs": 40, "ppo.segments": 48, "ppo.horizon": 8}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="uneven"),
        pytest.param({"ppo.prio_alpha": 0.6}, id="priorities", marks=pytest.mark.slow),
        pytest.param({"ppo.rho_clip": 1.0, "ppo.c_clip": 1.0}, id="v-trace"),
    ],
)
def test_recall_is_learned_from_segments_that_the_rows_do_not_divide(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Breaks if half-recorded segments are spliced, or take the state of another row or time."""
    assert score(train("recall", tmp_path, 60_000, SEGMENTS | settings, delay=8)) >= 0.95


# Several agents -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_agents_that_want_opposite_things_learn_each_its_own(tmp_path: Path, groups: int) -> None:
    """Breaks if observations, actions or rewards of rows are mixed up, in an environment or between groups."""
    assert score(train("rivals", tmp_path, 40_000, PLAIN | {"groups": groups})) >= 0.95


@pytest.mark.parametrize("late", [False, True], ids=["goes early", "comes late"])
def test_an_agent_that_is_there_half_of_the_time_learns_and_only_its_own_steps_count(
    tmp_path: Path, late: bool
) -> None:
    """Breaks if absent steps are counted, standardise observations, or go on with the episode before."""
    run = train("half_absent", tmp_path, 150_000, MEMORY | {"policy.normalize_obs": True}, delay=7, late=late)
    result = evaluate_run(run, 400, deterministic=False)
    assert np.mean(result.returns) >= 0.95
    assert set(result.lengths) == {4, 8}
    assert np.mean(result.lengths) == 6  # one agent eight steps, the other four
    lengths = [row["rollout/ep_len_mean"] for row in metrics_of(run) if "rollout/ep_len_mean" in row]
    assert np.mean(lengths[len(lengths) // 2 :]) == pytest.approx(6, abs=0.1)
    normalizer = ludus.load(run).normalizer
    assert normalizer is not None
    # Every episode shows one symbol and one "now", in 8 or in 4 steps.
    np.testing.assert_allclose(normalizer.mean.numpy(), [1 / 12, 1 / 12, 1 / 6], atol=0.005)


# Acting and crediting -------------------------------------------------------------------------------------
@pytest.mark.parametrize(("first", "best"), [pytest.param(0.5, 0.5, marks=pytest.mark.slow), (0.9, 0.75)])
def test_a_policy_that_must_mix_learns_the_right_mixture(tmp_path: Path, first: float, best: float) -> None:
    """Breaks if sampling, probabilities or their gradient are off, or if evaluation samples when it should not."""
    settings = PLAIN | {"ppo.gamma": 1.0, "ppo.gae_lambda": 1.0}
    run = train("doors", tmp_path, 80_000, settings, first=first)
    policy = ludus.load(run)
    with torch.no_grad():
        params, _ = policy.params_of(policy.prepare(torch.ones((1, 1))), policy.start(1))
    np.testing.assert_allclose(params.softmax(1)[0].numpy(), [best, 1 - best, 0.0], atol=0.1)
    fewest_steps = first / best + (1 - first) / (1 - best)
    assert score(run) == pytest.approx(-fewest_steps, abs=0.35)
    assert score(run, deterministic=True) < -fewest_steps - 0.7  # one of the doors is never tried


def test_what_an_action_earns_two_segments_later_is_credited_to_it(tmp_path: Path) -> None:
    """Breaks if the value of what follows a segment is not that of the row's next observation."""
    settings = PLAIN | {"ppo.horizon": 8}
    assert score(train("promise", tmp_path, 60_000, settings, delay=20)) >= 0.95


GAMMA = 0.9
VALUES = {
    "ppo.gamma": GAMMA,
    "ppo.gae_lambda": 0.95,
    "ppo.update_epochs": 4,
    "ppo.value_coef": 1.0,
    "ppo.max_grad_norm": 10.0,
}


@pytest.mark.parametrize(
    ("settings", "truncate"),
    [
        pytest.param(PLAIN, True, id="plain"),
        pytest.param(PLAIN, False, id="plain, the task ends", marks=pytest.mark.slow),
        pytest.param(MEMORY | {"ppo.segments": 80}, True, id="memory, uneven", marks=pytest.mark.slow),
        pytest.param(MEMORY | {"ppo.segments": 80}, False, id="memory, uneven, the task ends"),
    ],
)
def test_time_that_runs_out_does_not_end_the_future_and_a_termination_does(
    tmp_path: Path, settings: dict[str, Any], truncate: bool
) -> None:
    """Breaks if an end of one kind is taken for the other, or if the final observation is valued wrongly."""
    run = train("wage", tmp_path, 60_000, settings | VALUES, truncate=truncate)
    left = 5 - torch.arange(5)
    seen = torch.ones(5) if truncate else left / 5
    expected = torch.full((5,), 1 / (1 - GAMMA)) if truncate else (1 - GAMMA**left) / (1 - GAMMA)
    np.testing.assert_allclose(values_along(run, seen), expected.numpy(), atol=0.2)


@torch.no_grad()
def values_along(run: Path, seen: Tensor) -> list[float]:
    """What the policy thinks of each step of an episode."""
    policy: Any = ludus.load(run)
    state, values = policy.start(1), []
    for number in seen:
        _, value, state = policy.params_and_value_of(policy.prepare(number.view(1, 1)), state)
        values.append(float(value))
    return values
