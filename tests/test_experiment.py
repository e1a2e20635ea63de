"""Several seeds as one experiment: real processes, really killed, held against each seed trained alone."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest

import ludus
from ludus import placing
from ludus.errors import ConfigError
from ludus.experiment import Outcome, resume_seeds, seeds_of, train_seeds
from ludus.new_runs import create_run
from ludus.placing import Here
from ludus.presets import find_preset
from ludus.ranges import read_seeds
from ludus.ranks import available_cores
from ludus.seed_processes import Pool, Seed
from ludus.show.console import Console
from ludus.show.results import Measurement
from ludus.show.seeds import SeedLine, SeedsView, summary_lines
from ludus.show.text import evaluation_line
from ludus.training.checkpoint import checkpoints_in
from stopped_runs import assert_same_run
from warm_python import Completed, Program, run
from warm_python import ludus_command as command

EXIT_INTERRUPTED = 75
SETTINGS: dict[str, Any] = {
    "env.num_envs": 8,
    "env.max_steps": 60,
    "ppo.horizon": 32,
    "ppo.minibatches": 4,
    "ppo.update_epochs": 2,
    "loop.total_steps": 30 * 256,
    "eval.every": 6 * 256,
    "eval.episodes": 4,
    "eval.final_episodes": 4,
    "log.report": False,
}
FLAGS = [
    word
    for name, value in SETTINGS.items()
    for word in ([f"--{name.replace('_', '-')}", value] if value is not False else ["--log.no-report"])
]


class OneSeedFails(gym.Wrapper[Any, Any, Any, Any]):
    """CartPole that raises in the process of one seed."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps > 20 and any(word.endswith("seed_1") for word in sys.argv):
            raise ZeroDivisionError("this seed has no luck")
        return super().step(action)


class NeverMade(gym.Env[Any, Any]):
    """Raises in every process that trains."""

    observation_space = action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        if "resume" in sys.argv:
            raise ZeroDivisionError("it cannot be made")


def alone(seed: int, folder: Path) -> Path:
    return ludus.train("gym:CartPole-v1", folder, (), Console("quiet"), overrides={**SETTINGS, "seed": seed})


def train_command(folder: Path, seeds: str, *flags: object, preset: str = "gym:CartPole-v1") -> list[str]:
    return command("train", preset, "--run-dir", folder, "--seeds", seeds, *FLAGS, *flags)


def wait_for(happened: Callable[[], bool], program: Program) -> None:
    while not happened():
        assert program.poll() is None, program.output()
        time.sleep(0.01)


def trainings_in(folder: Path) -> list[psutil.Process]:
    """Processes that train a seed of the experiment."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "resume" in words and any(word.startswith(f"{folder}{os.sep}seed_") for word in words):
            found.append(process)
    return found


def assert_no_traceback(result: Completed) -> Completed:
    assert "Traceback" not in result.stdout + result.stderr
    return result


# Which seeds --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "seeds"),
    [
        (3, [0, 1, 2]),
        ("3", [0, 1, 2]),
        ("2-4", [2, 3, 4]),
        ("3,7,11", [3, 7, 11]),
        ("0-1,9", [0, 1, 9]),
        ([5], [5]),
    ],
)
def test_seeds_are_a_number_a_range_or_a_list(given: Any, seeds: list[int]) -> None:
    assert read_seeds(given) == seeds


@pytest.mark.parametrize(
    "given",
    [
        *("", "0", "-1", "4-2", "4-0,1", "1-2-3", "1,,2", "many", "1.5", "0-99999999"),
        *([-1], [1.7, 2.2], [float("inf")], True, 1.5),
    ],
)
def test_what_names_no_seeds_is_answered_with_what_would(given: Any) -> None:
    with pytest.raises(ConfigError, match="say how many, 5, or which: 0-4, or 3,7,11"):
        read_seeds(given)


def test_a_seed_named_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="once"):
        read_seeds("1-3,2")


def test_seed_and_seeds_together_are_refused(tmp_path: Path) -> None:
    result = assert_no_traceback(run(train_command(tmp_path / "all", "2", "--seed", "1")))
    assert result.returncode == 2
    assert "--seed and --seeds" in result.stderr
    with pytest.raises(ConfigError, match="a process of its own"):
        ludus.train("gym:CartPole-v1", seeds=2, seed=1)


def test_an_environment_without_a_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at the top of a module"):
        ludus.train(lambda: gym.make("CartPole-v1"), seeds=2, run_dir=tmp_path / "all")
    assert not (tmp_path / "all").exists()


# Trained to the end -------------------------------------------------------------------------------------
def test_a_seed_of_an_experiment_equals_the_same_seed_alone(tmp_path: Path) -> None:
    experiment = ludus.train(
        "gym:CartPole-v1", seeds=[7], run_dir=tmp_path / "all", overrides=SETTINGS, quiet=True
    )
    assert_same_run(tmp_path / "all" / "seed_7", alone(7, tmp_path / "alone"))
    assert [run.name for run in experiment] == ["seed_7"]
    assert (experiment.seeds, len(experiment), os.fspath(experiment)) == ([7], 1, str(tmp_path / "all"))
    assert experiment.results[7]["episodes"] == 4
    described = json.loads((experiment / "experiment.json").read_text())
    assert (described["preset"], described["seeds"]) == ("gym:CartPole-v1", [7])
    assert "Traceback" not in (experiment / "seed_7.log").read_text()
    with pytest.raises(ConfigError, match="already holds an experiment"):
        ludus.train("gym:CartPole-v1", seeds=[7], run_dir=tmp_path / "all")
    with pytest.raises(ConfigError, match="are trained"):
        ludus.Experiment(tmp_path / "all").resume()
    with pytest.raises(ConfigError, match=r"ludus.Experiment\(.*\).resume\(\)"):
        ludus.resume(tmp_path / "all")


def test_all_seeds_are_trained_and_their_mean_and_the_worst_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    result = assert_no_traceback(run(train_command(folder, "3,5,11")))
    assert result.returncode == 0, result.stderr
    for seed in (3, 5, 11):
        assert_same_run(folder / f"seed_{seed}", alone(seed, tmp_path / f"alone_{seed}"))
    assert "3 seeds: 3 finished." in result.stdout
    assert "Mean over 3 seeds: reward" in result.stdout
    rewards = {seed: r["mean_reward"] for seed, r in ludus.Experiment(folder).results.items()}
    worst = min(rewards, key=lambda seed: rewards[seed])
    assert f"worst: seed {worst}," in result.stdout
    told = assert_no_traceback(run(command("eval", folder, "--episodes", "4", "--json")))
    assert [json.loads(line)["seed"] for line in told.stdout.splitlines()] == [3, 5, 11]
    measured = assert_no_traceback(run(command("eval", folder, "--episodes", "4")))
    assert "Mean over 3 seeds: reward" in measured.stdout
    assert [line for line in measured.stdout.splitlines() if line.startswith("seed ")] == [
        "seed 3",
        "seed 5",
        "seed 11",
    ]


def test_seeds_stop_at_a_step_and_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    result = assert_no_traceback(run(train_command(folder, "2", "--stop-at", "2k")))
    assert result.returncode == 0, result.stderr
    assert "2 seeds: 2 stopped and saved." in result.stdout
    assert f"ludus resume {folder}" in result.stdout
    assert run(command("resume", folder)).returncode == 0
    assert_same_run(folder / "seed_1", alone(1, tmp_path / "alone"))


# Trouble ------------------------------------------------------------------------------------------------
def test_a_seed_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    flags = ("--env.num-envs", "4", "--at-once", "2")
    result = run(train_command(folder, "3", *flags, preset="gym:test_experiment:OneSeedFails"))
    assert result.returncode == 1
    assert "3 seeds: 2 finished, 1 failed." in result.stdout
    assert "Seed 1 failed:" in result.stdout
    assert "this seed has no luck" in result.stdout
    assert [(folder / f"seed_{seed}" / "final").exists() for seed in range(3)] == [True, False, True]


def test_settings_that_do_not_work_are_told_once_and_leave_nothing_behind(tmp_path: Path) -> None:
    result = run(train_command(tmp_path / "all", "9", preset="gym:test_experiment:NeverMade"))
    assert result.returncode == 2
    assert result.stderr.startswith("ludus: gym:test_experiment:NeverMade could not be made"), result.stderr
    assert "warning" not in result.stdout
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_experiment_is_saved_and_goes_on_exactly(how: signal.Signals, tmp_path: Path) -> None:
    folder = tmp_path / "all"
    program = Program(train_command(folder, "3", "--at-once", "2"), session=True)
    wait_for(lambda: all(checkpoints_in(folder / f"seed_{seed}" / "checkpoints") for seed in (0, 1)), program)
    os.killpg(program.pid, how)  # as a terminal or a scheduler sends it
    assert program.wait() == EXIT_INTERRUPTED, program.output()
    assert f"Go on with: ludus resume {folder}" in program.output()
    assert trainings_in(folder) == []
    assert not (folder / "seed_2" / "checkpoints").exists()
    result = assert_no_traceback(run(command("resume", folder)))
    assert result.returncode == 0, result.stderr
    for seed in range(3):
        assert_same_run(folder / f"seed_{seed}", alone(seed, tmp_path / f"alone_{seed}"))


def test_no_process_outlives_a_killed_parent_and_a_resume_repeats_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    program = Program(train_command(folder, "3", "--at-once", "1"))
    wait_for(lambda: bool(checkpoints_in(folder / "seed_1" / "checkpoints")), program)
    assert len(trainings_in(folder)) == 1
    program.kill()
    assert program.wait() == -signal.SIGKILL
    psutil.wait_procs(trainings_in(folder), timeout=5)
    assert trainings_in(folder) == []
    first = (folder / "seed_0" / "metrics.jsonl").stat().st_mtime_ns
    result = assert_no_traceback(run(command("resume", folder)))
    assert result.returncode == 0, result.stderr
    assert (folder / "seed_0" / "metrics.jsonl").stat().st_mtime_ns == first
    for seed in range(3):
        assert_same_run(folder / f"seed_{seed}", alone(seed, tmp_path / f"alone_{seed}"))


def test_a_killed_seed_is_told_and_goes_on_exactly(tmp_path: Path) -> None:
    folder = tmp_path / "all"
    program = Program(train_command(folder, "2"))
    wait_for(lambda: bool(checkpoints_in(folder / "seed_0" / "checkpoints")), program)
    next(p for p in trainings_in(folder) if str(folder / "seed_0") in p.cmdline()).kill()
    assert program.wait() == EXIT_INTERRUPTED, program.output()
    assert "Seed 0 failed: killed by SIGKILL" in program.output()
    assert "2 seeds: 1 finished, 1 failed." in program.output()
    assert run(command("resume", folder)).returncode == 0
    assert_same_run(folder / "seed_0", alone(0, tmp_path / "alone"))


# What fits, and how long it takes -----------------------------------------------------------------------
def pool_of(*seeds: tuple[str, float, float | None], at_once: int = 2) -> Pool:
    """Of seeds in these states, after so many seconds, and with so many left."""
    made = []
    for number, (state, seconds, eta) in enumerate(seeds):
        made.append(Seed(number, Path(f"seed_{number}"), state, seconds=seconds, eta=eta))  # type: ignore[arg-type]
    return Pool(made, at_once)


def test_the_time_left_counts_those_that_wait() -> None:
    running = (("training", 10.0, 10.0), ("training", 5.0, 15.0))
    assert pool_of(*running).eta == 15.0
    assert pool_of(*running, ("waiting", 0.0, None)).eta == 30.0  # after the first, at 10, another 20
    assert pool_of(*running, ("waiting", 0.0, None), ("waiting", 0.0, None)).eta == 35.0
    assert pool_of(("training", 10.0, None), ("waiting", 0.0, None)).eta is None


def test_a_seed_waits_for_memory_that_it_would_not_find() -> None:
    available = psutil.virtual_memory().available / 2**20
    pool = pool_of(("training", 1.0, None), ("waiting", 0.0, None))
    pool.seeds[0].memory_mb = available / 4
    assert pool._has_room()
    pool.seeds[0].memory_mb = 2 * available
    assert not pool._has_room()


def test_at_once_are_at_most_as_many_as_there_are_cores(tmp_path: Path) -> None:
    assert Here().most_at_once(1) == available_cores()
    assert Here().most_at_once(10_000) == 1


# What is shown ------------------------------------------------------------------------------------------
def measurement(reward: float, success: float | None = None) -> Measurement:
    told = {"mean_reward": reward, "episodes": 100.0} | ({} if success is None else {"success_rate": success})
    return Measurement("train", "step_1", 1, 1, True, "deterministic", 0, told)


def test_the_closing_lines_give_the_mean_its_t_interval_and_the_worst_seed() -> None:
    lines = summary_lines({0: measurement(10.0), 4: measurement(14.0), 9: measurement(6.0)}, ludus_display())
    assert lines[0] == "The best policy of each seed on 100 new starts, deterministic actions:"
    # scipy.stats.t.ppf(0.975, 2) * 4 / sqrt(3) = 9.937
    assert lines[-1] == "Mean over 3 seeds: reward 10 ± 9.937 (95 % t interval); worst: seed 9, 6"
    told = summary_lines({0: measurement(1.0, 0.9), 1: measurement(5.0, 0.8)}, ludus_display())[-1]
    assert told == "Mean over 2 seeds: success 85.0 % ± 63.5 % (95 % t interval); worst: seed 1, 80.0 %"
    assert "interval" not in summary_lines({0: measurement(1.0)}, ludus_display())[-1]


def ludus_display() -> Any:
    from ludus.display import Display

    return Display()


def test_a_log_has_a_line_for_every_change_and_ten_on_the_way() -> None:
    stream = io.StringIO()
    with SeedsView("three seeds", stream=stream) as view:
        for done in range(101):
            running = SeedLine(1, "training", done / 100, 5.0, "reward 3")
            view.show(
                [SeedLine(0, "finished", 1.0, None, ""), running, SeedLine(2, "waiting", 0.0, None, "")], 60.0
            )
        view.show([SeedLine(1, "failed", 1.0, None, "", "no luck")], None)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 12  # at 0, 10, … 100 %, and the failure
    assert lines[5] == "seed 1       50 %  ETA 0:05  reward 3  (all: ETA 1:00)"
    assert lines[-1] == "seed 1     failed  no luck"


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [80, 140])
def test_the_dashboard_has_a_line_for_every_seed(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", "24")
    monkeypatch.setenv("TERM", "xterm")
    view = SeedsView("many seeds", stream=Terminal())
    states = ("finished", "failed", "training", "waiting")
    view.show(
        [SeedLine(n, s, 0.5, 9.0, "reward 1", "no luck" * (s == "failed")) for n, s in enumerate(states)], 99.0
    )
    drawn = list(view._console.render_lines(view.draw()))  # type: ignore[union-attr]
    rows = ["".join(part.text for part in row) for row in drawn]
    assert max(len(row.rstrip()) for row in rows) == min(columns, 120)
    for number, told in enumerate(("finished", "failed", "50 %", "waiting")):
        assert any(f"seed {number} " in row and told in row for row in rows), rows
    assert any("ETA 1:39" in row for row in rows)
    view.show([SeedLine(n, "waiting" if n else "training", 0.5, 9.0, "") for n in range(100)], None)
    rows = ["".join(part.text for part in row) for row in view._console.render_lines(view.draw())]  # type: ignore[union-attr]
    assert len(rows) < 24
    assert any("seed 0 " in row for row in rows)
    assert any("more" in row for row in rows)
    view.finish([])


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Iterator[None]:
    """No training outlives its test."""
    yield
    left = trainings_in(tmp_path / "all")
    for process in left:
        process.kill()
    assert left == []


def test_the_exit_code_says_whether_a_resume_would_go_on(tmp_path: Path) -> None:
    def code(*seeds: Seed) -> int:
        return Outcome(tmp_path, [*seeds]).exit_code

    finished, waiting = Seed(0, tmp_path, "finished"), Seed(1, tmp_path)
    early, as_asked = Seed(2, tmp_path, "stopped"), Seed(3, tmp_path, "stopped", reached=True)
    killed, failed = Seed(4, tmp_path, "failed", killed=True), Seed(5, tmp_path, "failed")
    assert code(finished, as_asked) == 0
    for incomplete in (early, killed, waiting):
        assert code(finished, incomplete) == EXIT_INTERRUPTED
    assert code(failed, killed, early) == 1


def ended(folder: Path, command: str, stop_at: int = 0, interrupted: bool = False) -> Seed:
    """A seed whose process was this command of the shell."""
    seed = Seed(0, folder, "training", stop_at=stop_at, process=subprocess.Popen(["sh", "-c", command]))
    assert seed.process is not None
    seed.process.wait()
    seed.look(interrupted)
    return seed


def trained(folder: Path, steps: int) -> Path:
    checkpoint = folder / "checkpoints" / f"step_{steps:012}"
    checkpoint.mkdir(parents=True)
    (folder / "final").symlink_to(f"checkpoints/{checkpoint.name}")
    return folder


def test_a_seed_that_cannot_be_extended_has_failed_though_it_was_finished_before(tmp_path: Path) -> None:
    run = trained(tmp_path / "seed_0", 1000)
    (tmp_path / "seed_0.log").write_text("ludus: There is no GPU.\n")
    seed = ended(run, "exit 2")
    assert (seed.state, seed.why, Outcome(tmp_path, [seed]).exit_code) == ("failed", "There is no GPU.", 1)
    assert ended(run, "kill -9 $$").killed
    assert ended(run, "exit 0").state == "finished"
    at_its_step = ended(run, "kill -9 $$", stop_at=1000)
    assert (at_its_step.state, at_its_step.reached) == ("stopped", True)
    assert ended(run, "kill -9 $$", stop_at=1001).state == "failed"


def test_a_seed_that_is_terminated_before_it_can_save_has_failed_only_if_nobody_asked(tmp_path: Path) -> None:
    assert ended(tmp_path, "kill -TERM $$").why == "killed by SIGTERM"
    seed = ended(tmp_path, "kill -TERM $$", interrupted=True)
    assert (seed.state, Outcome(tmp_path, [seed]).exit_code) == ("stopped", EXIT_INTERRUPTED)


def test_only_sentences_are_reason_enough_to_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "seed_0.log").write_text("ludus: No.\n")
    told, broken = (ended(tmp_path / "seed_0", f"exit {code}") for code in (2, 1))
    assert Outcome(tmp_path, [told, told]).refused == "No."
    assert Outcome(tmp_path, [told, broken]).refused == ""
    told.step = 1
    assert Outcome(tmp_path, [told]).refused == ""


def test_fewer_than_one_at_once_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--at-once is -1; it must be at least 1"):
        train_seeds("gym:CartPole-v1", [0], tmp_path / "all", at_once=-1)
    assert not (tmp_path / "all").exists()
    with pytest.raises(ConfigError, match="--at-once is -1"):
        resume_seeds(tmp_path, at_once=-1)


def test_the_present_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in (Path(), tmp_path):
        with pytest.raises(ConfigError, match="is the present folder"):
            train_seeds("gym:CartPole-v1", [0], folder)
    assert [*tmp_path.iterdir()] == []


def test_a_seed_already_at_its_step_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = find_preset("gym:CartPole-v1").config
    for seed in (0, 1):
        (tmp_path / "all" / f"seed_{seed}").mkdir(parents=True)
        create_run(tmp_path / "all" / f"seed_{seed}", config, {})
    (tmp_path / "all" / "experiment.json").write_text('{"seeds": [0, 1]}')
    (tmp_path / "all" / "seed_0" / "checkpoints" / "step_000000002000").mkdir(parents=True)
    monkeypatch.setattr(Seed, "start", lambda seed, options: setattr(seed, "state", "finished"))
    outcome = resume_seeds(tmp_path / "all", stop_at=2000)
    assert [seed.state for seed in outcome.seeds] == ["stopped", "finished"]
    assert outcome.exit_code == 0
    assert "2 seeds: 1 finished, 1 stopped and saved." in capsys.readouterr().out


# Folders of strangers -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "line",
    [
        *("[1]", "3", "{", '{"step": Infinity}', '{"step": NaN}', '{"eval/cut_episodes": 1}', "[" * 10_000),
        '{"step": 1, "eval/cut_episodes": 1}',
        '{"step": 1, "eval/x\\u001b[2J": 1}',
        '{"step": -9000, "time/eta_s": 1e300, "time/fps": 1e300}',
        '{"step": 9000, "time/eta_s": -1, "time/fps": 9001}',
    ],
)
def test_no_row_of_a_seed_breaks_the_others(line: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"step": 7, "eval/mean_reward": null}}\n')
    seed = Seed(0, tmp_path)
    seed.read_rows()
    assert seed.step == 7
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    seed = Seed(0, tmp_path)
    seed.read_rows()
    assert 0 <= seed.share <= 1
    assert evaluation_line(seed.evaluation).isprintable()


def test_of_an_endless_file_of_rows_the_newest_are_read(tmp_path: Path) -> None:
    with (tmp_path / "metrics.jsonl").open("wb") as file:
        file.truncate(20 * 2**30)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"step": 7}\n')
    seed = Seed(0, tmp_path)
    seed.read_rows()
    assert seed.step == 7
    (tmp_path / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "metrics.jsonl")
    seed.read_rows()


def test_a_seed_or_its_description_that_lies_elsewhere_is_refused(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "all", tmp_path / "own"
    folder.mkdir()
    elsewhere.mkdir()
    described = folder / "experiment.json"
    described.write_text('{"seeds": [0]}')
    assert seeds_of(folder) == {0: folder / "seed_0"}
    (folder / "seed_0").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="seed_0 is a link"):
        seeds_of(folder)
    (folder / "seed_0").unlink()
    described.rename(elsewhere / "experiment.json")
    described.symlink_to(elsewhere / "experiment.json")
    with pytest.raises(ConfigError, match=r"experiment\.json is a link"):
        seeds_of(folder)
    described.unlink()
    described.write_text('{"seeds": [true]}')
    with pytest.raises(ConfigError, match="does not say which seeds"):
        seeds_of(folder)


def test_a_seed_whose_log_is_no_file_fails_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "seed_0.log")
    (tmp_path / "seed_1.log").symlink_to(tmp_path / "own")
    for number, reason in enumerate(("is a named pipe, not a file", "cannot be written: it is a link")):
        seed = Seed(number, tmp_path / f"seed_{number}")
        seed.start(Here())
        assert (seed.state, seed.process) == ("failed", None)
        assert reason in seed.why
    assert not (tmp_path / "own").exists()


def test_what_a_process_of_before_took_says_nothing_about_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "metrics.jsonl"
    row = '{{"step": {}, "system/memory_mb": 9, "system/gpu_memory_reserved_mb": 8}}\n'
    rows.write_text(row.format(1) + row.format(2))
    monkeypatch.setattr(placing, "start_command", lambda words, log, launcher: None)
    seed = Seed(0, tmp_path)
    seed.start(Here())
    assert (seed.step, seed.memory_mb, seed.gpu_memory_mb) == (2, 0, 0)
    rows.write_text(row.format(1))  # a resume goes back to its checkpoint
    seed.read_rows()
    assert (seed.step, seed.memory_mb, seed.began) == (1, 0, False)
    rows.write_text(row.format(1) + row.format(3))
    seed.read_rows()
    assert (seed.step, seed.memory_mb, seed.gpu_memory_mb, seed.began) == (3, 9, 8, True)


def test_more_than_one_parent_is_refused(tmp_path: Path) -> None:
    from ludus.training.run_lock import run_lock

    train = lambda: train_seeds("gym:CartPole-v1", [0], tmp_path / "all", overrides=SETTINGS)  # noqa: E731
    (tmp_path / "all").mkdir()
    with run_lock(tmp_path / "all"), pytest.raises(ConfigError, match="holds files already"):
        train()
