"""`ludus runs` and `ludus.list_runs`: what is there, truthfully, whatever lies in the folder."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus.commands.completion import words_for
from ludus.commands.listing import runs as runs_command
from ludus.commands.runs_table import table_lines
from ludus.errors import ConfigError
from ludus.listing import RunSummary, list_runs
from ludus.show.console import Console
from ludus.training import run_lock as lock_module
from ludus.training.loop import Trainer
from ludus.training.run_lock import is_held, run_lock
from ludus.training.standing import Score
from warm_python import Program, python_command

SETTINGS: dict[str, Any] = {
    "env.num_envs": 4,
    "env.max_steps": 20,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "loop.total_steps": 128,
    "eval.every": 64,
    "eval.episodes": 2,
    "eval.final_episodes": 3,
    "log.report": False,
    "log.tensorboard": False,
}


class At(ludus.Callback):
    """Does something after the third iteration; what that returns says whether to go on."""

    def __init__(self, do: Callable[[], bool | None]) -> None:
        self.do = do

    def on_iteration(self, run: Trainer) -> bool | None:
        return self.do() if run.counters.iteration == 3 else None


def train(folder: Path, *callbacks: ludus.Callback, **options: Any) -> ludus.Run:
    return ludus.train("gym:CartPole-v1", folder, callbacks, Console("quiet"), overrides=SETTINGS, **options)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is finished. Tests copy it."""
    return train(tmp_path_factory.mktemp("listing") / "run", seed=5, tags="good", note="the first").path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Callable[..., Path]:
    """Puts a copy of the run at a place below tmp_path, with other facts or another standing."""

    def make(place: str, standing: dict[str, Any] | None = None, **facts: Any) -> Path:
        folder = tmp_path / place
        shutil.copytree(trained, folder, symlinks=True)
        for name, changes in (("run.json", facts), ("standing.json", standing or {})):
            kept = json.loads((folder / name).read_text())
            (folder / name).write_text(json.dumps(kept | changes))
        return folder

    return make


def paths(folder: Path, **filters: Any) -> list[str]:
    return [str(run.path.relative_to(folder)) for run in list_runs(folder, **filters)]


# States -------------------------------------------------------------------------------------------
def test_a_finished_run_tells_what_it_is_and_how_good(trained: Path) -> None:
    (run,) = list_runs(trained)
    assert (run.path, run.name, run.preset, run.algo, run.seeds) == (
        trained,
        "run",
        "gym:CartPole-v1",
        "ppo",
        (5,),
    )
    assert (run.state, run.problem, run.step, run.planned, run.unit) == ("finished", "", 128, 128, "steps")
    assert (run.tags, run.note, run.runs) == (("good",), "the first", ())
    (measured,) = json.loads((trained / "results.json").read_text())
    assert run.final == Score(
        "mean_reward", measured["result"]["mean_reward"], measured["step"], measured["result"]["episodes"]
    )
    rows = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    evaluations = [row for row in rows if "eval/mean_reward" in row]
    both = [(row["eval/mean_reward"] + row["eval_stochastic/mean_reward"]) / 2 for row in evaluations]
    assert run.best == Score("mean_reward", max(both), evaluations[both.index(max(both))]["step"])


def test_a_run_that_stopped_and_one_that_failed_are_told_apart_until_they_are_resumed(tmp_path: Path) -> None:
    train(tmp_path / "stopped", At(lambda: False))
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "failed", At(lambda: bool(1 // 0)))
    failed, stopped = list_runs(tmp_path, sort="name")
    assert (stopped.state, stopped.problem, stopped.step, stopped.planned) == ("stopped", "", 96, 128)
    assert (failed.state, failed.step) == ("failed", 96)
    assert failed.problem == "ZeroDivisionError: integer division or modulo by zero"
    ludus.resume(tmp_path / "failed", console=Console("quiet"))
    assert [run.state for run in list_runs(tmp_path / "failed")] == ["finished"]


def wait_in_training(folder: Path) -> None:
    """For a process of its own, which is killed."""

    def wait() -> None:
        print("waiting", flush=True)
        time.sleep(60)

    train(folder, At(wait))


def test_a_run_is_running_while_its_process_lives_and_stopped_when_it_was_killed(tmp_path: Path) -> None:
    program = (
        f"from pathlib import Path; import test_listing as t; t.wait_in_training(Path({str(tmp_path)!r}) / 'r')"
    )
    process = Program(python_command(program), errors_apart=True)
    try:
        while "waiting" not in process.output():
            assert process.poll() is None, process.errors()
            time.sleep(0.01)
        (run,) = list_runs(tmp_path)
        assert (run.state, run.step) == ("running", 64)  # of the newest row of metrics
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "r" / "train.lock").exists()
    assert [run.state for run in list_runs(tmp_path)] == ["stopped"]


def test_whoever_asks_whether_a_run_is_trained_keeps_nobody_from_training_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.lock").touch()
    asking = (tmp_path / "train.lock").open()
    lock_module.fcntl.flock(asking, lock_module.fcntl.LOCK_SH)
    monkeypatch.setattr(lock_module.time, "sleep", lambda _: asking.close())  # a moment later
    with run_lock(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def _linked(run: Path, name: str, target: str = "/etc") -> None:
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)


def _without_standing(run: Path, config: str) -> None:
    (run / "standing.json").unlink()
    (run / "config.yaml").write_text(config)


def _naming(run: Path, name: str) -> None:
    (run / "final" / "manifest.json").write_text(json.dumps({"files": {name: {"bytes": 1}}}))


def _piped(run: Path, name: str) -> None:
    (run / name).unlink()
    os.mkfifo(run / name)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda run: (run / "run.json").write_text("{half"), "run.json is missing or damaged."),
        (lambda run: os.truncate(run / "final" / "policy.safetensors", 9), "policy.safetensors has not the size"),
        (lambda run: (run / "final" / "manifest.json").unlink(), "manifest.json: No such file or directory"),
        (partial(_without_standing, config="["), "config.yaml cannot be read as YAML"),
        (partial(_naming, name="a\0b"), "cannot be read: ValueError: embedded null byte"),
        (partial(_naming, name="\ud800"), "cannot be read: UnicodeEncodeError"),
        (partial(_linked, name="final"), "no checkpoint of its run"),
        (partial(_linked, name="tb"), "tb is a link"),
        (partial(_piped, name="standing.json"), "not what Ludus wrote"),
    ],
)
def test_a_damaged_run_is_listed_with_what_is_wrong(
    copy: Callable[..., Path], tmp_path: Path, damage: Callable[[Path], Any], problem: str
) -> None:
    damage(copy("runs/bad"))
    copy("runs/good")
    bad, good = list_runs(tmp_path / "runs", sort="name")
    assert (bad.state, good.state) == ("damaged", "finished")
    assert problem in bad.problem
    assert str(tmp_path) not in bad.problem


def test_lies_in_a_strangers_files_are_left_out_and_no_escape_code_is_shown(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    evil = "\x1b[2J\x07name"
    odd = {
        "algo": ["x"],
        "step": -5,
        "planned": "many",
        "unit": 3,
        "best": {"value": "NaN"},
        "final": {"value": 1e999},
    }
    copy("runs/odd", odd, preset=evil, seed="x", started=[1], tags=[evil, 3, ["y"]], note=evil, name=evil)
    (tmp_path / "runs" / "loop").symlink_to(tmp_path)
    (tmp_path / "runs" / "mine").mkdir()
    (tmp_path / "runs" / "mine" / "config.yaml").write_text("of another program")
    (run,) = list_runs(tmp_path / "runs")
    assert (run.algo, run.planned, run.unit, run.seeds, run.best, run.final) == ("", 0, "steps", (), None, None)
    assert run.tags == ("�[2J�name",)
    told = "\n".join(table_lines([run], tmp_path, 140, datetime(2026, 1, 1)))
    assert "\x1b" not in told + json.dumps(run.as_json(), ensure_ascii=False)


def test_only_small_files_are_read(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy("runs/a")
    before = list_runs(tmp_path)
    for name in ("metrics.jsonl", "results.json", "episodes.jsonl", "config.yaml"):
        (folder / name).write_text("\x00")
    assert list_runs(tmp_path) == before


def test_a_run_from_before_there_was_a_standing_is_told_by_its_metrics(
    copy: Callable[..., Path], tmp_path: Path
) -> None:
    (now,) = list_runs(copy("a"))
    (tmp_path / "a" / "standing.json").unlink()
    assert list_runs(tmp_path / "a") == [now]


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "null", "1e400"])
def test_odd_numbers_in_a_run_without_a_standing_are_left_out(
    copy: Callable[..., Path], tmp_path: Path, odd: str
) -> None:
    folder = copy("a")
    (folder / "standing.json").unlink()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 128, "final/mean_reward": 3, "final/episodes": {odd}}}\n')
    (run,) = list_runs(tmp_path)
    assert run.final is not None
    assert (run.state, run.final.value, run.final.episodes) == ("finished", 3, 0)


def test_a_run_of_a_year_that_no_calendar_has_is_listed(copy: Callable[..., Path], tmp_path: Path) -> None:
    folder = copy("a", started="soon")
    os.utime(folder / "config.yaml", (10**12, 10**12))
    (run,) = list_runs(tmp_path)
    assert run.state == "finished"  # some file systems keep a nearer year


# Finding ------------------------------------------------------------------------------------------
def test_runs_are_filtered_and_sorted(copy: Callable[..., Path], tmp_path: Path) -> None:
    def best(value: float, judged: str = "success_rate") -> dict[str, Any]:
        return {"best": {"judged": judged, "value": value, "step": 1, "episodes": 0}}

    copy("deep/er/a", best(0.5), preset="forage", started="2026-01-01 10:00:00", tags=["x", "y"])
    copy("b", best(0.9), preset="kuka-pick-place", started="2026-01-03 10:00:00", tags=["x"])
    old = copy("c", best(300, "mean_reward"), started="2026-01-02 10:00:00", tags=[])
    (old / "final").unlink()
    assert paths(tmp_path) == ["b", "c", "deep/er/a"]
    assert paths(tmp_path, sort="best") == ["b", "deep/er/a", "c"]
    assert paths(tmp_path, sort="name") == ["b", "c", "deep/er/a"]
    assert paths(tmp_path, tag="x") == ["b", "deep/er/a"]
    assert paths(tmp_path, tag="x,y") == ["deep/er/a"]
    assert paths(tmp_path, state="stopped,failed") == ["c"]
    assert paths(tmp_path, preset="KUKA") == ["b"]
    assert paths(tmp_path, best_above=0.6) == ["b", "c"]
    assert paths(tmp_path, since="2026-01-02 10:00") == ["b", "c"]
    assert paths(tmp_path, since=datetime(2026, 1, 3)) == ["b"]
    assert paths(tmp_path, since=timedelta(days=36_500)) == ["b", "c", "deep/er/a"]
    assert paths(tmp_path, since="1s") == []
    for wrong in ({"sort": "bset"}, {"state": "stoped"}, {"since": "yesterday"}):
        with pytest.raises(ConfigError, match=r"Did you mean|is no time"):
            paths(tmp_path, **wrong)


def test_the_zone_of_a_moment_counts(copy: Callable[..., Path], tmp_path: Path) -> None:
    copy("a", started="2026-01-02 10:00:00")
    begun = datetime(2026, 1, 2, 10).astimezone(timezone(timedelta(hours=5)))
    later = begun + timedelta(seconds=1)
    assert paths(tmp_path, since=begun) == paths(tmp_path, since=begun.isoformat()) == ["a"]
    assert paths(tmp_path, since=later) == paths(tmp_path, since=later.isoformat()) == []
    with pytest.raises(ConfigError, match="is no time"):
        paths(tmp_path, since=timedelta.max)


def test_a_folder_of_seeds_is_one_line_with_the_means(copy: Callable[..., Path], tmp_path: Path) -> None:
    for seed, value in ((0, 10.0), (1, 20.0), (10, 60.0)):
        final = {"judged": "mean_reward", "value": value, "step": 1, "episodes": 3}
        folder = copy(f"exp/seed_{seed}", {"final": final}, seed=seed, tags=["x", f"s{seed}"])
    (folder / "final").unlink()
    (whole,) = list_runs(tmp_path)
    assert (whole.path, whole.name, whole.seeds) == (tmp_path / "exp", "exp", (0, 1, 10))
    assert (whole.state, whole.preset, whole.tags) == ("stopped", "gym:CartPole-v1", ("x", "s0", "s1", "s10"))
    assert whole.final == Score("mean_reward", 30.0, 1, 9)
    assert [run.state for run in whole.runs] == ["finished", "finished", "stopped"]
    assert whole.as_json().keys() == whole.as_json()["runs"][0].keys()
    assert list_runs(tmp_path / "exp") == [whole]
    assert [run.runs for run in list_runs(tmp_path / "exp" / "seed_1")] == [()]
    (tmp_path / "exp" / "experiment.json").write_text(json.dumps({"name": "wide"}))
    assert list_runs(tmp_path)[0].name == "wide"
    runs_command(["tag", str(tmp_path / "exp"), "all"])
    assert all("all" in run.tags for run in list_runs(tmp_path)[0].runs)


def test_a_sweep_is_one_line_with_its_best(copy: Callable[..., Path], tmp_path: Path) -> None:
    sweep = tmp_path / "search"
    places = ("trials/trial_0000", "trials/trial_0001", "confirm/default", "confirm/trial_0001")
    for value, place in enumerate(places):
        found = {"judged": "mean_reward", "value": float(value), "step": 1, "episodes": 3}
        for seed in (0, 1):
            copy(f"search/{place}/seed_{seed}", {"best": found, "final": found})
    for finished, state in ((True, "finished"), (False, "stopped"), (3, "stopped")):
        facts = {"started": "2026-01-01 10:00:00", "finished": finished}
        (sweep / "sweep.json").write_text(json.dumps({"preset": "gym:CartPole-v1", "facts": facts}))
        (whole,) = list_runs(tmp_path)
        assert (whole.path, whole.state, whole.trials, whole.step) == (sweep, state, 2, 8 * 128)
    assert whole.best == Score("mean_reward", 1.0, 1, 6)
    assert whole.final == Score("mean_reward", 3.0, 1, 6)
    told = "\n".join(table_lines([whole], tmp_path, 140, datetime(2026, 1, 1, 13)))
    assert "2 trials" in told
    assert "8 runs: 8 finished" in told
    assert paths(sweep, sort="name") == sorted(places)
    (sweep / "sweep.json").write_text('{"facts": [')
    assert [run.trials for run in list_runs(tmp_path)] == [2]
    for place in (*places, "trials"):  # a stranger's: sweeps in sweeps
        (sweep / place / "sweep.json").write_text("{}")
    assert [run.trials for run in list_runs(tmp_path)] == [2]


# The command --------------------------------------------------------------------------------------
def test_a_table_fits_the_terminal_and_loses_no_tag(copy: Callable[..., Path], tmp_path: Path) -> None:
    copy("gym-CartPole-v1/20260101-100000-0", note="a note of many words " * 9, started="2026-01-01 10:00:00")
    copy("a-rather-long-name-of-a-preset-that-somebody-has-chosen/20260101-100000-0", tags=["one", "two"])
    runs = list_runs(tmp_path, sort="name")
    for width in (80, 140):
        lines = table_lines(runs, tmp_path, width, datetime(2026, 1, 1, 13, 5))
        assert max(map(len, lines)) <= width
        for told in ("#one #two", "#good · a note of many words", "finished", " 128 ", " 3h", "20260101-100000-0"):
            assert told in "\n".join(lines), (told, lines)
        assert lines[-1] == "2 runs: 2 finished"
    assert len(table_lines(runs, tmp_path, 1_000, datetime(2026, 1, 1))) == 1 + 2 + 3  # head, runs, last words


def test_the_command_prints_a_table_or_json(
    copy: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy("a", started="2026-01-01 10:00:00")
    runs_command([str(tmp_path)])
    head, row, *_ = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "preset", "algo", "seed", "state", "steps", "best", "final", "age"]
    assert row.split()[:6] == ["a", "gym:CartPole-v1", "ppo", "5", "finished", "128"]
    runs_command([str(tmp_path), "--json", "--best-above", "1%"])
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["path"], entry["started"]) == (str(tmp_path / "a"), "2026-01-01 10:00:00")
    assert entry.keys() == RunSummary.__dataclass_fields__.keys()
    runs_command([str(tmp_path), "--state", "failed"])
    assert capsys.readouterr().out == f"No such run in {tmp_path}.\n"
    with pytest.raises(ConfigError, match="There is no folder"):
        runs_command([str(tmp_path / "none")])


def test_the_list_comes_without_anything_slow(trained: Path) -> None:
    program = (
        f"import sys; from ludus.commands.listing import runs; runs([{str(trained)!r}])\n"
        "print([name for name in ('torch', 'mujoco', 'gymnasium', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_completion_knows_the_verb(
    copy: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy("runs/kuka/a")
    monkeypatch.chdir(tmp_path)
    assert words_for("ludus run") == ["runs"]
    assert words_for("ludus runs ") == ["tag", "note", "runs"]
    assert words_for("ludus runs --st") == ["--state"]
    assert words_for("ludus runs --state st") == ["stopped"]
    assert words_for("ludus runs tag ") == ["runs/kuka/a"]
    assert words_for("ludus runs tag runs/kuka/a --re") == ["--remove"]
