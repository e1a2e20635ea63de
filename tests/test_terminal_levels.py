"""The terminal of the four loops, and of jobs that learn a reward."""

import io
import itertools
import math
import re

import pytest

from ludus.config import Plan
from ludus.show import text
from ludus.show.console import Console
from ludus.show.dashboard import Dashboard
from ludus.show.run_state import Course, Level, RunState, quality
from ludus.training.progress import Progress
from terminal_rows import PUBLIC, calls_of, drawn, row, state_after

# The four levels, and the jobs that learn a reward ---------------------------------------------------
LEVELS = [Level("epoch", 3, 10), Level("cycle", 12, 100), Level("iteration", 50, 100), Level("batch", 30, 50)]
HELD_OUT = {
    "reward/R2": 0.93,
    "reward/AUC": 0.998,
    "reward/correlation": 0.84,
    "reward/correlation_within": 0.71,
    "reward/progress_error": 0.0625,
}


def _page(monkeypatch: pytest.MonkeyPatch, state: RunState, width: int = 80, height: int = 24) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    dashboard = Dashboard(io.StringIO(), state)
    lines = drawn(dashboard).splitlines()
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) < height
    return lines


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (80, 12), (100, 30), (120, 40)])
def test_every_level_has_its_bar(monkeypatch: pytest.MonkeyPatch, width: int, height: int, count: int) -> None:
    state = state_after()
    state.levels = tuple(LEVELS[:count])
    lines = _page(monkeypatch, state, width, height)
    shown = [line for line in lines if re.search(r"\d/\d+ [━─]{6,}", line)]
    assert len(shown) == (1 if count == 2 or (width >= 80 and count == 3) or width >= 100 else 2)
    for name, done, total in LEVELS[:count]:
        assert re.search(rf"{name} +{done}/{total} [━─]+", "".join(shown))
    assert all(line.endswith(("━ │", "─ │")) for line in shown[: count // 2])  # to the right edge
    assert "epoch 1 · cycle 2" not in "".join(lines)


def test_bars_below_each_other_begin_at_the_same_place_and_are_full_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = state_after()
    state.levels = (*LEVELS[:3], Level("batch", 50, 50))
    first, second = _page(monkeypatch, state)[3:5]
    assert [m.start() for m in re.finditer(r"[━─]+", first)] == [m.start() for m in re.finditer(r"[━─]+", second)]
    assert "─" not in second.partition("50/50")[2]
    state.levels = (Level("epoch", 1, 0), Level("cycle", 12_345, 1_000_000))  # a total that nobody knows
    line = _page(monkeypatch, state)[3]
    assert "epoch   1 ──" in line
    assert "12,345/1,000,000" in line


def test_the_note_and_the_iteration_have_their_places_beside_the_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console("plain", io.StringIO())
    console.start(40_000)
    console.levels(LEVELS)
    console.iteration("iteration 50: R_loss 0.0123")
    console.progress(10_000, "evaluating")
    page = _page(monkeypatch, console.state)
    assert "10,000 / 40,000 steps · evaluating" in page[2]
    assert "iteration 50: R_loss 0.0123" in page[6]
    console.progress(10_000, "a note that is far too long for the little room that is left here")
    assert "…" in _page(monkeypatch, console.state)[2]
    console.state.levels = ()
    console.progress(10_000, "")
    assert _page(monkeypatch, console.state)[3].endswith("iteration 50: R_loss 0.0123 │")


def test_progress_tells_every_loop_and_costs_a_few_calls() -> None:
    plan = Plan(
        steps_per_iteration=32,
        batches_per_iteration=4,
        iterations_per_cycle=2,
        cycles_per_epoch=3,
        total_iterations=12,
    )
    console = Console("plain", io.StringIO())
    progress = Progress(console, plan, stages=2)
    told: list[tuple[list[int], int]] = []
    for iteration, share, batch in ((9, 0.5, 0), (9, 1.0, 3), (10, 0.25, 3)):
        progress.begin(iteration, stage=1)
        progress(share, batch)
        told.append(([level.done for level in console.state.levels], console.state.step))
    assert told == [([2, 1, 1, 1, 0], 304), ([2, 1, 1, 1, 3], 320), ([2, 1, 2, 0, 3], 328)]
    assert [(name, total) for name, _, total in console.state.levels] == [
        ("stage", 2), ("epoch", 2), ("cycle", 3), ("iteration", 2), ("batch", 4)
    ]  # fmt: skip

    def tell() -> None:
        for _ in range(1_000):
            progress(0.5, 4)

    assert calls_of(tell) / 1_000 < 8
    progress.complete(stage=1)
    assert all(level.done == level.total for level in console.state.levels)


@pytest.mark.parametrize("mode", ["plain", "dashboard", "quiet"])
def test_levels_and_recent_values_cost_a_few_calls(mode: str) -> None:
    console = Console(mode, io.StringIO())  # type: ignore[arg-type]
    console.start(10**9)
    console.row(0, row())

    def tell() -> None:
        for i in range(1_000):
            console.levels((Level("epoch", 3, 10), Level("cycle", 12, 100), Level("batch", i, 20_000)))
            console.recent("train/r_loss", 1.0 / (i + 1))

    assert calls_of(tell) / 1_000 < 25
    console.close()


def test_a_long_course_keeps_its_shape_in_a_few_hundred_means() -> None:
    course = Course([math.nan])
    for i in range(100_000):
        course.add(float(i))
    assert 100 < len(course.means) <= 400
    gaps = {b - a for a, b in itertools.pairwise(course.means)}
    assert len(gaps) == 1  # every mean is over as long a stretch
    assert course.means[0] < 1000
    assert course.means[-1] > 99_000


def _reward_console(mode: str = "plain") -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    console = Console(mode, stream)  # type: ignore[arg-type]
    console.start(5_000_000, 0, unit="batches")
    return console, stream


def test_reward_only_training_shows_its_loss_and_the_held_out_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    console, _ = _reward_console()
    assert "no loss has been measured yet" in "".join(_page(monkeypatch, console.state))
    console.levels(LEVELS)
    for i in range(50):
        console.recent("train/r_loss", 1.0 / (i + 1))
    metrics = {"train/r_loss": 0.5, "time/fps": 1234.0, **HELD_OUT}
    console.row(5000, metrics)
    console.evaluation(5000, HELD_OUT)
    page = _page(monkeypatch, console.state)
    assert "5,000 / 5,000,000 batches" in page[2]
    assert "1,234 batches/s" in page[5]
    joined = "\n".join(page)
    assert re.search(r"reward loss +0\.5000 +█", joined)
    assert re.search(r"AUC +0\.998", joined)
    assert re.search(r"R² +0\.93", joined)
    assert "best on held-out episodes, at 5,000 batches" in joined
    assert "AUC 0.998 · R² 0.93 · correlation 0.84" in joined
    assert "no episode has ended yet" not in joined
    assert joined.count("reward loss") == 1
    assert console.state.past("reward/AUC") == (0.998,)  # told as a row and as an evaluation, kept once


def test_what_a_resume_remembers_begins_the_curve_of_the_loss() -> None:
    console, _ = _reward_console()
    console.remember([{"step": 100 * i, "train/r_loss": 1.0 * i} for i in range(3)])
    console.recent("train/r_loss", 7.0)
    assert console.state.past("train/r_loss") == (0.0, 1.0, 2.0, 7.0)


def test_an_evaluation_of_a_reward_says_auc_r2_and_correlation() -> None:
    assert text.evaluation_line(HELD_OUT) == "AUC 0.998 · R² 0.93 · correlation 0.84"
    assert text.evaluation_line(HELD_OUT | {"reward/AUC": math.nan}).startswith("R² 0.93 · correlation 0.84")
    online = {"eval/mean_reward": 221.0, "eval/std_reward": 12.0, **HELD_OUT}
    assert text.evaluation_line(online) == "reward 221 ± 12 · AUC 0.998 · R² 0.93"
    console, stream = _reward_console()
    console.state.every_row = True
    console.evaluation(1000, HELD_OUT)
    console.evaluation(2000, HELD_OUT | {"reward/AUC": 0.9})
    console.evaluation(3000, {"reward/AUC": math.nan, "reward/R2": math.nan})
    assert stream.getvalue().splitlines() == [
        "eval at 1,000: AUC 0.998 · R² 0.93 · correlation 0.84 ★ best",
        "eval at 2,000: AUC 0.900 · R² 0.93 · correlation 0.84",
        "eval at 3,000: the held-out episodes tell nothing",
    ]


def test_the_best_reward_is_by_auc_then_r2() -> None:
    assert quality(HELD_OUT) == (1.0, 0.93)  # nearly all told apart: the fit decides
    assert quality({"reward/AUC": math.nan, "reward/R2": 0.5}) == (-math.inf, 0.5)
    assert quality({"reward/correlation": 0.5}) == (-math.inf, 0.5)
    assert quality({"eval/mean_reward": 5.0, **HELD_OUT}) == (-math.inf, 5.0)


def test_the_losses_of_sac_have_words_in_a_sensible_order(monkeypatch: pytest.MonkeyPatch) -> None:
    state = RunState()
    state.start(1000, 0)
    names = ("ent_coef", "entropy", "r_loss", "actor_loss", "critic_loss", "q_mean")
    state.add_row(10, {"rollout/ep_rew_mean": 1.0} | {f"train/{name}": 0.5 for name in names})
    page = "\n".join(_page(monkeypatch, state))
    words = ["critic loss", "actor loss", "reward loss", "mean Q", "entropy", "entropy coef."]
    places = [page.index(f"│ {word} ") for word in words]
    assert places == sorted(places)
    assert "no episode" not in page


def test_return_decomposition_prints_the_public_table() -> None:
    stream = io.StringIO()
    console = Console("plain", stream)
    console.start(45_000)
    for i in range(1, 46):
        reward = {"reward/correlation": 0.84} if i > 2 else {}
        console.row(1000 * i, PUBLIC | {"Cycle": i, "time/fps": 5.0, "rollout/ep_rew_mean": -1.0 * i} | reward)
    lines = stream.getvalue().splitlines()
    heads = [line for line in lines if "Epoch" in line]
    assert heads[0].split() == [*PUBLIC, "return", "done", "ETA"]
    assert heads[1].split() == [*PUBLIC, "return", "corr.", "done", "ETA"]
    assert len(heads) == 1 + 3  # at first, when the correlation appears, and every twenty rows
    assert len({len(line) for line in lines[3:]}) == 1
    assert lines[1].split()[:6] == ["3", "1", "340", "120,000", "12.2", "1.5"]


def test_a_table_with_missing_losses_shows_the_others() -> None:
    console, stream = _reward_console()
    console.row(500, {name: PUBLIC[name] for name in ("Epoch", "Cycle", "R_loss")} | HELD_OUT)
    head = stream.getvalue().splitlines()[0]
    assert head.split() == ["Epoch", "Cycle", "R_loss", "AUC", "R²", "corr.", "corr/ep", "done", "ETA"]


def test_a_plain_table_of_reward_only_training_counts_batches() -> None:
    console, stream = _reward_console()
    console.row(500, {"train/r_loss": 0.5, "time/fps": 1234.0} | HELD_OUT)
    head = stream.getvalue().splitlines()[0].split()
    assert head == ["batches", "done", "ETA", "batches/s", "R", "loss", "AUC", "R²", "corr.", "corr/ep"]


def test_a_plain_log_is_bounded_however_long_the_training_is() -> None:
    stream = io.StringIO()
    console = Console("plain", stream)
    console.start(total_steps=1_000_000)
    for step in range(1_000, 1_000_001, 1_000):
        console.iteration(f"iteration {step // 1_000}")
        console.row(step, {"rollout/ep_rew_mean": 1.0, "train/learning_rate": 3e-4})
        console.evaluation(step, {"eval/mean_reward": 1.0})
    lines = stream.getvalue().splitlines()
    rows = [line for line in lines if line.split()[0].replace(",", "").isdigit()]
    assert 45 <= len(rows) <= 55
    assert rows[-1].split()[0] == "1,000,000"
    assert len([line for line in lines if line.startswith("eval at")]) <= 55
    assert len([line for line in lines if line.split()[0] == "iteration"]) == len(rows)
    assert rows[-1].split()[-1] == "0.0003"


def test_a_whole_plain_log_has_every_row_and_every_loss_in_order() -> None:
    stream = io.StringIO()
    console = Console("plain", stream)
    console.state.every_row = True
    console.start(total_steps=1_000)
    losses = [float(i) for i in range(1, 251)]
    for iteration in range(5):  # of 50 batches
        console.iteration("said by the losses")
        some = losses[50 * iteration : 50 * iteration + 50]
        console.losses("R_loss", 50 * iteration, some, iteration + 3, 50)  # after two of random actions
        console.row(200 * iteration, {"Epoch": 1, "Cycle": iteration + 1})
    lines = [line.strip() for line in stream.getvalue().splitlines() if "R_loss" in line]
    assert lines == [
        "iteration 3: R_loss 25.5",
        "batches 1 to 100: R_loss 50.5",
        "iteration 4: R_loss 75.5",
        "iteration 5: R_loss 125.5",
        "batches 101 to 200: R_loss 150.5",
        "iteration 6: R_loss 175.5",
        "iteration 7: R_loss 225.5",
    ]
    assert "said by the losses" not in stream.getvalue()


def test_a_sign_of_life_says_where_the_loops_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.show.plain._HEARTBEAT_S", -1.0)
    console, stream = _reward_console()
    console.levels(LEVELS)
    console.progress(250)
    assert stream.getvalue().endswith("… epoch 3/10 · cycle 12/100 · iteration 50/100 · batch 30/50\n")
