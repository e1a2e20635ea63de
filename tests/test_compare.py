"""Promises of `ludus compare`: groups of runs held against each other."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import ludus
from compared_runs import STEPS, keep, write_run
from ludus.cli import run_verb
from ludus.errors import CheckpointError, ConfigError
from ludus.show.comparison import Curve, end_of, mean_curve

RATES = {"slow": 1e-4, "fast": 1e-3}


def two_groups(folder: Path, seeds: int = 5) -> list[Path]:
    """Two learning rates; a seed of "fast" is worth 20 more."""
    for name, rate in RATES.items():
        for seed in range(seeds):
            end = 100.0 + 7 * (seed**2 % 5) + 20 * (name == "fast")
            own = folder / name / f"seed_{seed}"
            write_run(own, seed, (10.0, end / 2, end), measured=end - 2, ppo={"learning_rate": rate})
    return [folder / name for name in RATES]


# Numbers --------------------------------------------------------------------------------------------
def test_each_group_has_its_mean_interval_iqm_worst_seed_and_probability(tmp_path: Path) -> None:
    comparison = ludus.compare(two_groups(tmp_path))
    slow, fast = comparison.figures[-1].summaries
    values = [100.0 + 7 * (seed**2 % 5) for seed in range(5)]
    assert slow.values == values
    assert fast.mean == pytest.approx(
        (np.mean(values) + 20, *stats.t.interval(0.95, 4, np.mean(values) + 20, stats.sem(values)))
    )
    assert slow.iqm is not None
    assert slow.iqm.value == pytest.approx(stats.trim_mean(values, 0.25))
    assert slow.worst == 0
    better = fast.better_than(slow)
    assert better is not None
    pairs = stats.mannwhitneyu(fast.known, slow.known).statistic / 25
    assert better.value == pytest.approx(pairs)
    on_new_starts = comparison.figures[0].summaries[0]
    assert on_new_starts.values == [value - 2 for value in values]


def test_the_default_metric_is_the_success_rate_and_else_the_return(tmp_path: Path) -> None:
    with_success = write_run(tmp_path / "a", values=(0.2, 0.9), metric="eval/success_rate")
    assert ludus.compare(with_success).metric == "eval/success_rate"
    without = write_run(tmp_path / "b")
    assert ludus.compare(without).metric == "eval/mean_reward"
    assert ludus.compare(without, "rollout/ep_rew_mean").figures[0].summaries[0].known == [50.0]


def test_steps_to_a_threshold_count_a_seed_that_never_gets_there_as_the_slowest(tmp_path: Path) -> None:
    for seed, values in enumerate([(0.0, 90.0, 100.0), (95.0, 100.0, 100.0), (0.0, 0.0, 1.0)]):
        write_run(tmp_path / f"seed_{seed}", seed, values)
    (reached,) = ludus.compare(tmp_path, threshold=90).reached
    assert (reached.count, reached.median_steps, reached.median_seconds) == (2, 2 * STEPS, 20.0)
    assert ludus.compare(tmp_path, threshold=99.5).reached[0].median_steps == 3 * STEPS
    assert ludus.compare(tmp_path, threshold=101).reached[0].median_steps is None


def test_the_default_threshold_is_nine_tenths_of_the_way_or_of_success(tmp_path: Path) -> None:
    assert ludus.compare(write_run(tmp_path / "a", values=(10.0, 50.0, 110.0))).threshold == 100.0
    success = write_run(tmp_path / "b", values=(0.2, 0.5), metric="eval/success_rate")
    assert ludus.compare(success).threshold == 0.9


def test_of_a_metric_that_falls_the_lower_is_better(tmp_path: Path) -> None:
    high = write_run(tmp_path / "high" / "seed_0", 0, (90.0, 60.0), "eval/mpjpe").parent
    write_run(high / "seed_1", 1, (90.0, 70.0), "eval/mpjpe")
    low = write_run(tmp_path / "low" / "seed_0", 0, (90.0, 20.0), "eval/mpjpe").parent
    write_run(low / "seed_1", 1, (90.0, 30.0), "eval/mpjpe")
    comparison = ludus.compare([high, low], "eval/mpjpe", threshold=65)
    theirs, ours = comparison.figures[0].summaries
    assert ours.better_than(theirs)[0] == 1.0  # type: ignore[index]
    assert theirs.worst == 1
    assert [reached.count for reached in comparison.reached] == [1, 2]
    assert "lower is better" in str(comparison)


def test_the_end_of_a_curve_is_the_mean_of_its_last_tenth_before_the_common_step() -> None:
    curve = Curve(list(range(10, 110, 10)), [], [float(i) for i in range(1, 11)])
    assert end_of(curve, 100) == 10.0
    assert end_of(curve, 55) == 5.0
    assert end_of(Curve([91, 95, 100, 110], [], [1.0, 2.0, 3.0, 99.0]), 100) == 2.0
    assert end_of(curve, 5) is None


def test_a_mean_curve_interpolates_between_the_evaluations_of_each_seed() -> None:
    rng = np.random.default_rng(3)
    curves = [
        (sorted(rng.choice(1000, 12, replace=False).tolist()), rng.normal(size=12).tolist()) for _ in range(4)
    ]
    band = mean_curve(curves)
    assert band.places[0] == max(places[0] for places, _ in curves)
    assert band.places[-1] == min(places[-1] for places, _ in curves)
    for i, place in enumerate(band.places):
        values = [np.interp(place, *curve) for curve in curves]
        low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
        assert (band.means[i], band.lows[i], band.highs[i]) == pytest.approx((np.mean(values), low, high))


# Groups ---------------------------------------------------------------------------------------------
def test_single_runs_are_grouped_by_their_settings_without_the_seed(tmp_path: Path) -> None:
    folders = two_groups(tmp_path, seeds=2)
    comparison = ludus.compare([run for folder in folders for run in sorted(folder.iterdir())])
    assert [(group.name, len(group.runs)) for group in comparison.groups] == [
        ("learning_rate 0.0001", 2),
        ("learning_rate 0.001", 2),
    ]


def test_a_folder_of_several_settings_is_several_groups(tmp_path: Path) -> None:
    two_groups(tmp_path, seeds=2)
    names = [group.name for group in ludus.compare(tmp_path).groups]
    assert sorted(names) == ["learning_rate 0.0001", "learning_rate 0.001"]


def test_folders_of_the_same_settings_stay_apart_and_a_run_beside_them_is_a_group(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "x" / "seed_0")
    write_run(tmp_path / "b" / "x" / "seed_0", values=(1.0, 2.0))
    single = write_run(tmp_path / "c")
    comparison = ludus.compare([tmp_path / "a" / "x", tmp_path / "b" / "x", single])
    assert [group.name for group in comparison.groups] == ["a/x", "b/x", f"{tmp_path.name}/c"]
    assert comparison.settings == {}


def test_only_settings_that_differ_between_groups_are_told(tmp_path: Path) -> None:
    comparison = ludus.compare(two_groups(tmp_path))
    assert comparison.settings == {"ppo.learning_rate": [1e-4, 1e-3]}
    assert "ppo.learning_rate" in comparison.page
    assert "num_envs" not in comparison.page


def test_seeds_come_in_the_order_of_their_numbers_and_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = write_run(tmp_path / "elsewhere")
    for seed in (10, 2, 1):
        write_run(tmp_path / "all" / f"seed_{seed}", seed)
    (tmp_path / "all" / "seed_3").symlink_to(elsewhere)
    assert [run.seed for run in ludus.compare(tmp_path / "all").runs] == ["1", "2", "10"]


# New starts -----------------------------------------------------------------------------------------
def test_results_on_common_starts_are_preferred_to_each_runs_own(tmp_path: Path) -> None:
    folders = two_groups(tmp_path, seeds=2)
    assert "own seed" in ludus.compare(folders).measured_on
    for run in (run for folder in folders for run in folder.iterdir()):
        keep(run, {"mean_reward": 77.0}, seed=0, episodes=50)
    common = ludus.compare(folders)
    assert common.measured_on == "50 new starts, the same for every run (seed 0)"
    assert common.figures[0].summaries[0].known == [77.0, 77.0]


def test_runs_that_were_not_all_measured_are_compared_by_their_curves(tmp_path: Path) -> None:
    write_run(tmp_path / "seed_0", 0, measured=90.0)
    write_run(tmp_path / "seed_1", 1)
    comparison = ludus.compare(tmp_path)
    assert [figure.title for figure in comparison.figures] == ["End of training"]
    assert any("--measure" in warning for warning in comparison.warnings)


def test_measure_plays_trained_policies_on_the_same_new_starts_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (1, 2):
        settings = {"total_steps": 256, "ppo.horizon": 16, "log.report": False, "eval.final_episodes": 0}
        ludus.train("gym:CartPole-v1", tmp_path / f"seed_{seed}", quiet=True, seed=seed, overrides=settings)
    comparison = ludus.compare(tmp_path, measure=3)
    assert comparison.measured_on == "3 new starts, the same for every run (seed 0)"
    starts = [
        json.loads((run.path / "results.json").read_text())[0]["episodes"]["starts"] for run in comparison.runs
    ]
    assert starts[0] == starts[1]
    assert capsys.readouterr().err.count("Measuring") == 2
    ludus.compare(tmp_path, measure=3)
    assert "Measuring" not in capsys.readouterr().err


# Warnings -------------------------------------------------------------------------------------------
def warned(paths: Path | list[Path], words: str) -> bool:
    return any(words in warning for warning in ludus.compare(paths).warnings)


def test_sound_groups_are_not_warned_about(tmp_path: Path) -> None:
    assert ludus.compare(two_groups(tmp_path)).warnings == []


def test_few_seeds_and_repeated_ones_are_warned_about(tmp_path: Path) -> None:
    write_run(tmp_path / "x" / "seed_0", 0)
    write_run(tmp_path / "x" / "again", 0)
    assert warned(tmp_path / "x", "x has 2 seeds: take at least 5")
    assert warned(tmp_path / "x", "several runs of seed 0")


def test_unfinished_runs_and_unequal_budgets_are_warned_about(tmp_path: Path) -> None:
    write_run(tmp_path / "seed_0", 0, (1.0, 2.0, 3.0))
    write_run(tmp_path / "seed_1", 1, (1.0, 4.0), finished=False)
    assert warned(tmp_path, f"{tmp_path / 'seed_1'} (step 2,000)")
    assert warned(tmp_path, "2,000 to 3,000 steps. Their ends are compared at step 2,000.")
    assert ludus.compare(tmp_path).figures[-1].summaries[0].values == [2.0, 4.0]


def test_other_versions_environments_and_machines_are_warned_about(tmp_path: Path) -> None:
    one = write_run(tmp_path / "a")
    for i, (change, words) in enumerate([
        ({"facts": {"commit": "ffffff"}}, "different versions: commit 1a2b3c, commit ffffff"),
        ({"facts": {"hardware": {"CPU": "other"}}}, "different machines"),
        ({"env": {"kind": "gym", "id": "Acrobot-v1"}}, "env.id is CartPole-v1 or Acrobot-v1"),
    ]):  # fmt: skip
        assert warned([one, write_run(tmp_path / f"b{i}", 1, **change)], words)  # type: ignore[arg-type]
    more = write_run(tmp_path / "c", 1, env={"kind": "gym", "id": "CartPole-v1", "num_envs": 16})
    assert not warned([one, more], "Different environments")


def test_a_run_that_cannot_be_compared_is_left_out_with_the_reason(tmp_path: Path) -> None:
    write_run(tmp_path / "seed_0")
    write_run(tmp_path / "seed_1", 1, values=())
    (write_run(tmp_path / "seed_2", 2) / "metrics.jsonl").write_text("rubbish\n{}\n")
    comparison = ludus.compare([tmp_path, tmp_path / "seed_0"])
    assert len(comparison.runs) == 1
    assert [str(tmp_path / name) in "".join(comparison.warnings) for name in ("seed_1", "seed_2")] == [True, True]
    assert any("named twice" in warning for warning in comparison.warnings)


def test_mistakes_are_told_in_a_sentence(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="There is no folder"):
        ludus.compare(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="holds none"):
        ludus.compare(tmp_path / "empty")
    with pytest.raises(ConfigError, match="Did you mean 'eval/mean_reward'"):
        ludus.compare(run, "eval/mean_rewrd")
    with pytest.raises(ConfigError, match="nothing to compare"):
        ludus.compare(write_run(tmp_path / "new", values=()))
    with pytest.raises(CheckpointError, match="at least one"):
        ludus.compare([])


# The command and the page -----------------------------------------------------------------------------
def test_the_command_prints_a_table_of_80_columns_and_writes_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    run_verb("compare", [*map(str, two_groups(tmp_path)), "--page", str(page)])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 80
    assert any(re.match(r"  fast +5 +132\.0 \(", line) for line in lines)
    assert page.read_text().startswith("<!doctype html>")


def test_json_has_the_same_numbers_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_verb("compare", [*map(str, two_groups(tmp_path)), "--json"])
    told = json.loads(capsys.readouterr().out)
    comparison = ludus.compare([tmp_path / name for name in RATES])
    assert told == json.loads(json.dumps(comparison.as_dict()))
    assert told["figures"][0]["groups"][1]["better_than"]["slow"]["value"] == pytest.approx(0.76)
    assert not (tmp_path / "comparison.html").exists()


def test_settings_that_json_does_not_know_are_told_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = ["2026-01-02", ".nan", "-.inf", "!!binary aGk=", "!!set {a}", "[.nan]", "0.5", "[64, x]"]
    runs = [write_run(tmp_path / name) for name in "ab"]
    lines = [f"odd_{i}: {value}\n" for i, value in enumerate(odd)]
    with (runs[0] / "config.yaml").open("a") as file:
        file.writelines(lines)
    run_verb("compare", [*map(str, runs), "--json"])
    told = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert list(told["groups"][0]["settings"].values()) == [
        '"2026-01-02"', "NaN", "-Infinity", "\"b'hi'\"", "\"{'a'}\"", "[NaN]", 0.5, [64, "x"]
    ]  # fmt: skip


def test_a_file_of_the_users_is_not_overwritten_by_a_page(tmp_path: Path) -> None:
    comparison = ludus.compare(write_run(tmp_path / "run"))
    page = comparison.write_page(tmp_path / "page.html")
    assert comparison.write_page(page) == page
    (tmp_path / "mine.html").write_text("<p>mine</p>")
    with pytest.raises(ConfigError, match="no comparison"):
        comparison.write_page(tmp_path / "mine.html")


def test_the_page_draws_every_seed_and_the_mean_with_its_interval_over_steps_and_time(tmp_path: Path) -> None:
    page = ludus.compare(two_groups(tmp_path)).page
    assert page.count('class="line s0 seed"') == page.count('class="line s1 seed"') == 2 * 5
    assert page.count('class="band s0"') == page.count('class="band s1"') == 2
    assert "over training time" in page
    assert "slow, seed 3</title>" in page
    readout = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert [[s["name"] for s in json.loads(told)] for told in readout] == [["slow", "fast"]] * 2


def test_a_wide_interval_does_not_flatten_the_curves(tmp_path: Path) -> None:
    for seed, end in enumerate((50.0, 100.0)):
        write_run(tmp_path / f"seed_{seed}", seed, (0.0, end))
    comparison = ludus.compare(tmp_path)
    estimate = comparison.figures[-1].summaries[0].mean
    assert estimate is not None
    assert estimate.high is not None
    assert estimate.high > 300
    ticks = re.findall(r'text-anchor="end">(-?[\d.]+)</text>', comparison.page)
    assert max(map(float, ticks)) == 100
