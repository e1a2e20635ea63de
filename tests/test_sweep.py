"""`ludus sweep`: what is searched, who goes on, and that a kill at any moment loses and repeats nothing."""

import io
import json
import math
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import ludus
from ludus.errors import ConfigError, LudusError
from ludus.new_runs import write_config
from ludus.presets import find_preset
from ludus.seed_processes import Pool
from ludus.show.comparison import ComparedRun, Curve, Group, Numbers
from ludus.show.statistics import difference
from ludus.show.sweep import ShownParameter, ShownTrial, SweepNumbers, verdict_lines
from ludus.show.sweep_page import sweep_page
from ludus.show.sweep_view import Progress, RunningLine, SweepView, summary_lines
from ludus.sweeping.driving import Means, open_sweep, resume_sweep
from ludus.sweeping.halving import Standing, expected_steps, next_to_promote, ranked, rung_steps, steps_anew
from ludus.sweeping.plan import Plan, SavedSweep, make_sweep, plan_of, write_plan
from ludus.sweeping.search import Clock, Search
from ludus.sweeping.space import read_parameter, read_space
from ludus.sweeping.suggesting import Known, importances, suggest
from ludus.sweeping.trials import create_trial, look_at, read_trials, score_of
from warm_python import ludus_command, run

CONFIG = find_preset("gym:CartPole-v1").config
PARAMS = {"ppo.learning_rate": "log(1e-5,1e-1)", "ppo.minibatches": "choice(2,4,8)"}


# What is searched -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "text", "low", "high", "whole"),
    [
        ("ppo.learning_rate", "log(1e-4,1e-2)", 1e-4, 1e-2, False),
        ("learning_rate", "log( 0.0001 , 0.01 )", 1e-4, 1e-2, False),
        ("ppo.horizon", "log(16,1k)", 16, 1000, True),
        ("--ppo.gae-lambda", "uniform(0.9,1)", 0.9, 1.0, False),
    ],
)
def test_a_range_is_read(name: str, text: str, low: float, high: float, whole: bool) -> None:
    parameter = read_parameter(name, text, CONFIG)
    assert (parameter.low, parameter.high, parameter.whole) == (low, high, whole)
    assert read_parameter(parameter.name, parameter.text, CONFIG) == parameter


@pytest.mark.parametrize(
    ("name", "text", "choices"),
    [
        ("ppo.minibatches", "choice(4,8,16)", (4, 8, 16)),
        ("ppo.minibatches", [4, 8], (4, 8)),
        ("policy.hidden", "choice(64 64, 256)", ((64, 64), (256,))),
        ("policy.activation", "choice(tanh,elu)", ("tanh", "elu")),
        ("ppo.normalize_returns", "choice(true,false)", (True, False)),
    ],
)
def test_choices_are_read_as_the_setting_has_them(name: str, text: Any, choices: tuple[Any, ...]) -> None:
    parameter = read_parameter(name, text, CONFIG)
    assert parameter.choices == choices
    assert read_parameter(name, parameter.text, CONFIG) == parameter


@pytest.mark.parametrize(
    ("param", "told"),
    [
        ("ppo.learning_rat=log(1e-4,1e-2)", "Did you mean 'ppo.learning_rate'"),
        ("ppo.learning_rate", "is not understood"),
        ("ppo.learning_rate=1e-3", "is no range"),
        ("ppo.learning_rate=logg(1e-4,1e-2)", "Did you mean 'log'"),
        ("ppo.learning_rate=log(1e-2,1e-4)", "is empty"),
        ("ppo.learning_rate=log(1e-3,1e-3)", "is empty"),
        ("ppo.learning_rate=log(-1,1)", "log needs numbers above 0"),
        ("ppo.learning_rate=log(0,1)", "log needs numbers above 0"),
        ("ppo.learning_rate=log(1e-4)", "two ends"),
        ("ppo.learning_rate=uniform(a,b)", "'a' is not a number"),
        ("ppo.learning_rate=uniform(0,inf)", "must be finite"),
        ("ppo.learning_rate=__import__('os').system('x')", "is no range"),
        ("ppo.learning_rate=choice(__import__('os'),1)", "is not a number"),
        ("ppo.minibatches=uniform(0.5,3)", "'0.5' is not a whole number"),
        ("ppo.minibatches=choice(4,many)", "'many' is not a whole number"),
        ("ppo.minibatches=choice(4)", "at least two"),
        ("ppo.minibatches=choice(4,4)", "given twice"),
        ("ppo.minibatches=choice(0,4)", "it must be at least 1"),
        ("ppo.gamma=uniform(0.9,1.5)", "it must be at most 1"),
        ("policy.activation=uniform(0,1)", "it is no number"),
        ("policy.activation=choice(tanh,tahn)", "'tahn'"),
        ("ppo.normalize_returns=choice(true,maybe)", "neither true nor false"),
        ("sac.alpha=log(1e-3,1)", "--algo ppo"),
        ("tau=uniform(0,1)", "replay"),
        ("n_steps=choice(16,32)", "ppo.horizon"),
        ("seed=choice(1,2)", "--seeds"),
        ("loop.total_steps=choice(1,2)", "the same in all trials"),
        ("eval.episodes=choice(1,2)", "the same in all trials"),
    ],
)
def test_a_parameter_that_cannot_be_searched_is_told_with_the_cure(param: str, told: str) -> None:
    with pytest.raises(LudusError) as error:
        read_space([param], CONFIG)
    assert told in str(error.value)


def test_a_setting_is_searched_once() -> None:
    with pytest.raises(ConfigError, match="twice"):
        read_space(["ppo.gamma=uniform(0.9,1)", "gamma=uniform(0.8,1)"], CONFIG)


def test_a_typo_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    line = ludus_command("sweep", "gym:CartPole-v1", "--param", "ppo.gama=uniform(0.9,1)", "--run-dir", "all")
    done = run(line, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("ludus: unknown setting ppo.gama. Did you mean")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "plain").mkdir()
    done = run(ludus_command("sweep", "plain"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "ludus: plain is no sweep: it has no sweep.json.\n")


# Who goes on ----------------------------------------------------------------------------------------------
def test_rungs_follow_the_whole_budget() -> None:
    assert rung_steps(1_000_000, 3, 3) == [111_112, 333_334, 1_000_000]
    assert rung_steps(100, 1, 3) == [100]


def halved(count: int, rungs: int = 3, eta: int = 3, at_once: int = 1, seed: int = 0) -> list[Standing]:
    """All trials at the end of a search, whose scores are luck, the better the higher the rung."""
    luck = random.Random(seed)
    trials: list[Standing] = []
    running: list[int] = []
    while True:
        while len(running) < at_once:
            closing = len(trials) == count and not running
            number = next_to_promote(trials, rungs, eta, closing)
            if number is not None:
                trials[number] = replace(trials[number], target=trials[number].target + 1)
            elif len(trials) < count:
                number = len(trials)
                trials.append(Standing(number, -1, 0, []))
            else:
                break
            running.append(number)
        if not running:
            return trials
        done = running.pop(luck.randrange(len(running)))
        trial = trials[done]
        trials[done] = replace(trial, reached=trial.target, scores=[*trial.scores, luck.random() + trial.target])


@pytest.mark.parametrize("at_once", [1, 2, 7])
@pytest.mark.parametrize("count", [1, 2, 6, 24, 27])
def test_every_trial_is_tried_and_about_a_third_of_each_rung_goes_on(count: int, at_once: int) -> None:
    for seed in range(5):
        trials = halved(count, at_once=at_once, seed=seed)
        reached = [sum(t.reached >= rung for t in trials) for rung in range(3)]
        assert reached[0] == count
        assert math.ceil(count / 3) <= reached[1] <= count
        assert 1 <= reached[2] <= reached[1]
        assert all(t.reached == t.target for t in trials)
        best = max((t for t in trials), key=lambda t: t.scores[0])
        assert best.reached >= min(1, count - 1), "the best of the first rung goes on"


def test_halving_by_resume_takes_at_most_four_fifths_of_the_steps_of_beginning_again() -> None:
    steps = rung_steps(900, 3, 3)
    for seed in range(20):
        reached = [t.reached for t in halved(24, at_once=2, seed=seed)]
        used = sum(steps[rung] for rung in reached)
        assert used <= 0.8 * steps_anew(reached, steps)
    assert expected_steps(27, rung_steps(27, 4, 3), 3) == 81  # three full runs; beginning again takes four
    assert steps_anew([0] * 18 + [1] * 6 + [2] * 2 + [3], rung_steps(27, 4, 3)) == 108


def test_a_failed_trial_never_goes_on_and_a_higher_rung_ranks_first() -> None:
    trials = [
        Standing(0, 0, 0, [9.0], failed=True),
        Standing(1, 0, 0, [5.0]),
        Standing(2, 1, 1, [4.0, 1.0]),
        Standing(3, 0, 0, [2.0]),
        Standing(4, -1, 0, []),
    ]
    assert next_to_promote(trials, 3, 3, closing=False) == 1
    assert [t.number for t in ranked(trials)] == [2, 1, 3]


# Optuna ---------------------------------------------------------------------------------------------------
def quality(values: dict[str, Any]) -> float:
    """Best where the learning rate is 1e-3; the number of minibatches matters little."""
    return -abs(math.log10(values["ppo.learning_rate"]) + 3) + 0.01 * values["ppo.minibatches"]


def known(count: int, sampler: Any = "tpe") -> list[Known]:
    space, told = read_space(PARAMS, CONFIG), list[Known]()
    for _ in range(count):
        values = suggest(space, told, sampler, seed=3)
        assert values is not None
        told.append(Known(values, [quality(values)], complete=True))
    return told


def test_suggestions_come_near_the_best_and_depend_on_nothing_but_the_trials() -> None:
    told = known(24)
    late = [abs(math.log10(k.values["ppo.learning_rate"]) + 3) for k in told[12:]]
    early = [abs(math.log10(k.values["ppo.learning_rate"]) + 3) for k in known(12, "random")]
    assert sorted(late)[len(late) // 2] < sorted(early)[len(early) // 2]
    space = read_space(PARAMS, CONFIG)
    assert suggest(space, told, "tpe", 3) == suggest(space, told, "tpe", 3)
    unfinished = [Known(told[0].values, []), Known(told[1].values, [], failed=True), *told[2:]]
    assert (suggest(space, unfinished, "tpe", 3) or {}).keys() == PARAMS.keys()


def test_no_values_are_tried_twice() -> None:
    space = read_space({"ppo.minibatches": "choice(2,4,8)", "ppo.update_epochs": "uniform(1,3)"}, CONFIG)
    told: list[Known] = []
    while (values := suggest(space, told, "tpe", 0)) is not None:
        assert values not in [trial.values for trial in told]
        told.append(Known(values, [1.0], complete=True))
    assert len(told) == 9


def test_the_setting_that_matters_is_the_most_important() -> None:
    shares = importances(read_space(PARAMS, CONFIG), known(24, "random"))
    assert shares["ppo.learning_rate"] > 0.7
    assert sum(shares.values()) == pytest.approx(1)
    assert importances(read_space(PARAMS, CONFIG), known(3)) == {}


# The folder -----------------------------------------------------------------------------------------------
def made(folder: Path, **changes: Any) -> SavedSweep:
    """A sweep of CartPole that has not begun."""
    plan = replace(plan_of(CONFIG, PARAMS, [0, 1], 4), preset="gym:CartPole-v1", **changes)
    for name in ("base", "trials", "confirm"):
        (folder / name).mkdir(parents=True)
    write_config(folder / "base", CONFIG)
    write_plan(folder, plan)
    return open_sweep(folder)


def trained(run_folder: Path, rows: Sequence[tuple[int, float]]) -> None:
    """As a training leaves it, as far as a sweep looks."""
    lines = [json.dumps({"step": step, "eval/mean_reward": reward}) for step, reward in rows]
    (run_folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    checkpoint = run_folder / "checkpoints" / f"step_{rows[-1][0]:09d}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")


def test_a_sweep_is_read_again_as_it_was_written(tmp_path: Path) -> None:
    sweep = made(tmp_path / "all")
    assert {n: p.text for n, p in sweep.space.items()} == {
        "ppo.learning_rate": "log(1e-05,0.1)",
        "ppo.minibatches": "choice(2,4,8)",
    }
    values = {"ppo.learning_rate": 0.003, "ppo.minibatches": 8}
    create_trial(sweep, 0, values)
    (trial,) = read_trials(open_sweep(tmp_path / "all"))
    assert (trial.values, [run.name for run in trial.runs], trial.settled) == (values, ["seed_0", "seed_1"], False)
    with pytest.raises(ConfigError, match="already holds a sweep"):
        ludus.train("gym:CartPole-v1", tmp_path / "all")
    assert sweep.trial_config(values).eval.every <= sweep.steps[0] / 2
    assert sweep.trial_config(values).loop.total_steps == CONFIG.loop.total_steps


def test_the_score_of_a_rung_is_the_mean_of_its_seeds_and_stays_as_it_is(
    tmp_path: Path,
) -> None:
    sweep = made(tmp_path / "all")
    trial = create_trial(sweep, 0, {"ppo.learning_rate": 0.003, "ppo.minibatches": 8})
    stop = sweep.steps[0]
    trained(trial.runs[0], [(stop // 2, 1.0), (stop + 7, 10.0)])
    look_at(trial, sweep, "eval/mean_reward")
    assert trial.scores == []
    trained(trial.runs[1], [(stop // 2, 1.0), (stop + 9, 20.0), (2 * stop, 99.0)])
    look_at(trial, sweep, "eval/mean_reward")
    assert trial.scores == [15.0]
    assert trial.settled
    assert score_of(trial.runs[1], "eval/mean_reward", None) == 99.0


def test_a_trial_whose_values_do_not_fit_together_has_failed_and_the_reason_is_kept(tmp_path: Path) -> None:
    config = replace(CONFIG, groups=2)
    sweep = make_sweep(tmp_path, Plan("gym:CartPole-v1", {"env.num_envs": "choice(7,8)"}, (0,), 4), config)
    assert "does not divide" in create_trial(sweep, 0, {"env.num_envs": 7}).failed
    assert [bool(trial.failed) for trial in read_trials(sweep)] == [True]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parameters": {"ppo.gamma": "__import__('os')"}}, "is no range"),
        ({"trials": 10**9}, "does not describe a sweep"),
        ({"seeds": [True]}, "does not describe a sweep"),
        ({"flags": [1]}, "does not describe a sweep"),
        ({"eta": 1}, "--eta is 1"),
    ],
)
def test_a_strangers_sweep_is_held_to_what_ludus_writes(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    made(tmp_path / "all")
    file = tmp_path / "all" / "sweep.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigError) as error:
        open_sweep(tmp_path / "all")
    assert told in str(error.value)


def test_links_and_huge_files_of_a_stranger_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    sweep = made(folder)
    trial = create_trial(sweep, 0, {"ppo.learning_rate": 0.003, "ppo.minibatches": 8})
    (folder / "trials" / "trial_0001").symlink_to(trial.folder)
    with pytest.raises(ConfigError, match="is a link"):
        read_trials(sweep)
    (folder / "trials" / "trial_0001").unlink()
    (trial.folder / "trial.json").write_text(" " * 200_000)
    with pytest.raises(ConfigError, match="does not describe a trial"):
        read_trials(sweep)
    (folder / "confirm").rmdir()
    (folder / "confirm").symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="is a link"):
        open_sweep(folder)


def test_code_that_a_strangers_sweep_names_is_not_imported(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    made(folder)
    text = (folder / "base" / "config.yaml").read_text()
    (folder / "base" / "config.yaml").write_text(text.replace("id: CartPole-v1", "id: antigravity:Env-v0"))
    with pytest.raises(LudusError, match="would import the module"):
        resume_sweep(folder, Means(quiet=True))


# Time -----------------------------------------------------------------------------------------------------
def searching(sweep: SavedSweep, until: float) -> Search:
    return Search(
        sweep, Pool([], 2, alike=False), lambda trial: None, clock=Clock(until, seconds=50.0, steps=1_000)
    )


def test_the_search_ends_when_only_the_confirmation_has_time_left(tmp_path: Path) -> None:
    sweep = made(tmp_path / "all")
    search = searching(sweep, math.inf)
    full = CONFIG.loop.total_steps * 50 / 1_000
    assert search.confirm_seconds() == 6 * full  # 4 × 3 runs, two at once
    late = searching(sweep, time.monotonic() + 5 * full)
    late.refill()
    assert (late.out_of_time, late.pool.interrupted, late.trials) == (True, True, [])
    early = searching(sweep, time.monotonic() + 100 * full)
    early.refill()
    assert (early.out_of_time, len(early.trials), len(early.pool.waiting)) == (False, 1, 2)
    assert early.trials[0].is_default


# The verdict ----------------------------------------------------------------------------------------------
def group(name: str, *values: float) -> Group:
    curve = Curve([0.0, 100.0], [], [0.0, 0.0])
    curves = [replace(curve, values=[0.0, value]) for value in values]
    return Group(name, [ComparedRun(Path(name), str(i), c, 100, True) for i, c in enumerate(curves)])


def verdict(*others: Group) -> str:
    return " ".join(verdict_lines(Numbers("eval/mean_reward", [group("default", 100, 110, 90), *others])))


def test_the_verdict_says_whether_a_gain_is_more_than_chance() -> None:
    assert "Trial 7 is better than the default: return 200.0 against 100.0, +100.0 %" in verdict(
        group("trial_0007", 200, 190, 210)
    )
    assert "within what chance does with 3 seeds" in verdict(group("trial_0007", 90, 200, 110))
    assert verdict(group("trial_0007", 80, 81, 82), group("trial_0008", 90, 91, 92)).startswith("The default is")


def test_the_interval_of_a_difference_is_welchs() -> None:
    from scipy import stats

    luck = random.Random(1)
    for n, m in ((2, 3), (3, 3), (5, 9)):
        ours, theirs = [luck.gauss(3, 2) for _ in range(n)], [luck.gauss(1, 1) for _ in range(m)]
        expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
        found = difference(ours, theirs)
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


# What is shown --------------------------------------------------------------------------------------------
def numbers(**changes: Any) -> SweepNumbers:
    """Of six trials, one failed in a stranger's words."""
    names = ["ppo.learning_rate", "policy.<b>"]
    trials = [
        ShownTrial(i, {name: str(i) for name in names}, dict.fromkeys(names, i / 6), [float(i)], 100)
        for i in range(5)
    ]
    trials.append(
        ShownTrial(5, dict.fromkeys(names, "5"), dict.fromkeys(names, 1.0), [], failed="<script>x</script>")
    )
    shown = [ShownParameter(name, "log(1,6)", [(0.0, "1"), (1.0, "6")]) for name in names]
    made = SweepNumbers(
        "gym:<i>", "runs/s", "eval/mean_reward", True, shown, trials, [4, 3, 2, 1, 0], 6, [10, 30, 90], 3, [0],
        600, 900, {"ppo.learning_rate": 0.9, "policy.<b>": 0.1}, {4: "ludus train gym:X --lr '</pre>'"},
    )  # fmt: skip
    return replace(made, **changes)


def test_the_page_shows_the_best_command_and_no_text_becomes_markup() -> None:
    page = sweep_page(numbers())
    assert "ludus train gym:X --lr &#x27;&lt;/pre&gt;&#x27;" in page
    assert "<script>x" not in page
    assert "policy.<b>" not in page
    assert "gym:<i>" not in page
    for title in ("Scores", "What matters", "All settings together", "Setting by setting", "Rungs", "All trials"):
        assert f"<h2>{title}</h2>" in page
    assert "not confirmed on fresh seeds yet" in page
    assert "http" not in page.replace("http-equiv", "")
    assert "All trials" in sweep_page(numbers(trials=[], best=[], importances={}, commands={}))


def test_the_page_has_the_confirmation() -> None:
    confirmed = Numbers("eval/mean_reward", [group("default", 1, 2, 3), group("trial_0004", 7, 8, 9)])
    page = sweep_page(numbers(confirmation=confirmed))
    assert "Trial 4 is better than the default" in page
    assert "Student" in page


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 140])
def test_the_dashboard_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = Terminal()
    with SweepView("a sweep", stream=screen) as view:
        running = [RunningLine(f"trial {i} seed 0", "rung 1 of 3", 0.5, "reward 3") for i in range(30)]
        view.show(Progress(numbers(), running, 0.4, 60.0))
        drawn = view.draw()
        lines = Console(width=columns, file=io.StringIO(), force_terminal=False).render_lines(drawn)
    shown = ["".join(segment.text for segment in line).rstrip() for line in lines]
    assert len(shown) <= 24
    assert max(map(len, shown)) == min(columns, 120)
    assert any("6 of 6 trials" in line and "1 failed" in line for line in shown)
    assert any("best" in line and "trial 4" in line for line in shown)
    assert any("more" in line for line in shown)


def test_a_log_has_a_line_for_every_trial_that_comes_to_a_rung() -> None:
    stream, all_of = io.StringIO(), numbers()
    with SweepView("a sweep", stream=stream) as view:
        view.note(all_of, all_of.trials[3], 60.0)
        view.note(all_of, all_of.trials[5], 60.0)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("trial 3    rung 1 of 3  return 3.000  learning_rate 3")
    assert "best so far 4.000, trial 4  (6 of 6 trials, ETA 1:00)" in first
    assert second.startswith("trial 5    failed: ")


def test_the_end_tells_the_verdict_and_the_command() -> None:
    confirmed = Numbers("eval/mean_reward", [group("default", 1, 2, 3), group("trial_0004", 7, 8, 9)])
    lines = summary_lines(numbers(confirmation=confirmed))
    assert any("Promotion by resume saved 33 %" in line for line in lines)
    assert any(line.startswith("Trial 4 is better") for line in lines)
    assert lines[-1] == "ludus train gym:X --lr '</pre>'"
    worse = Numbers("eval/mean_reward", [group("default", 7, 8, 9), group("trial_0004", 1, 2, 3)])
    assert (
        summary_lines(numbers(confirmation=worse, default_command="ludus train gym:X"))[-1] == "ludus train gym:X"
    )
