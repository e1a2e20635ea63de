"""Promises of the metric sinks and of the terminal."""

import fcntl
import io
import itertools
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

import ludus
import warm_python
from ludus.config import Plan
from ludus.errors import ConfigError, LudusError
from ludus.show import text
from ludus.show.console import Console
from ludus.show.dashboard import Dashboard
from ludus.show.jsonl import JsonlSink, read_metrics, truncate_to
from ludus.show.run_state import Course, Level, RunState, quality
from ludus.show.sinks import Tee
from ludus.show.tensorboard import TensorBoardSink
from ludus.show.wandb import WandbSink
from ludus.training.progress import Progress

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[[0-9;]*[34]\dm")


def row(step: int = 0) -> dict[str, float]:
    return {
        "rollout/ep_rew_mean": 12.5 + step / 1000,
        "rollout/ep_len_mean": 99.0,
        "rollout/success_rate": 0.25,
        "time/fps": 1234.0,
        "time/simulate_share": 0.6,
        "time/act_share": 0.1,
        "time/learn_share": 0.3,
        "train/approx_kl": 0.0123,
        "train/value_loss": 0.5,
        "train/explained_variance": 0.9,
        "loop/epoch": 1.0,
        "loop/cycle": 2.0,
        "system/memory_mb": 512.0,
    }


EVALUATION = {
    "eval/success_rate": 0.93,
    "eval/success_low": 0.88,
    "eval/success_high": 0.96,
    "eval/mean_reward": 221.0,
    "eval/std_reward": 12.0,
    "eval/episodes": 100.0,
    "eval_stochastic/success_rate": 0.9,
    "eval_stochastic/mean_reward": 200.0,
}


# metrics.jsonl --------------------------------------------------------------------------------------
def test_rows_are_read_back_as_written_and_nan_is_null_in_the_file(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(10, {"a": 1.5, "n": 3, "bad": math.nan, "big": math.inf})
    sink.write(20, {"a": 2.5})
    sink.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"step": 10, "a": 1.5, "n": 3, "bad": None, "big": None}
    first, second = read_metrics(tmp_path / "metrics.jsonl")
    assert second == {"step": 20, "a": 2.5}
    assert math.isnan(first["bad"])
    assert sink.rows_written == 2


def test_a_row_is_in_the_file_as_soon_as_write_returns(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(1, {"a": 1.0})
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 1
    sink.close()


def test_truncation_keeps_the_first_rows_byte_for_byte_and_drops_a_half_written_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    for step in range(5):
        sink.write(step, {"a": step / 3})
    sink.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 5, "a": 0.1')
    assert len(read_metrics(path)) == 5
    assert truncate_to(path, 3) == 3
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:3])
    assert truncate_to(path, 100) == 3


def test_opening_after_a_kill_continues_behind_the_last_whole_row(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    sink = JsonlSink(path)
    assert sink.rows_written == 1
    sink.write(2, {"a": 2.0})
    sink.close()
    assert [r["step"] for r in read_metrics(path)] == [1, 2]


def test_a_garbled_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n\x00\xffgarbage\n{"step": 3}\n')
    with pytest.raises(LudusError, match="line 2"):
        read_metrics(path)
    with pytest.raises(LudusError, match="Cannot read"):
        read_metrics(tmp_path / "none.jsonl")


def test_a_full_disk_raises_a_sentence_and_leaves_whole_rows(tmp_path: Path) -> None:
    script = """
        import resource, signal, sys
        from ludus.errors import LudusError
        from ludus.show.jsonl import JsonlSink
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        sink = JsonlSink(sys.argv[1])
        try:
            for step in range(100): sink.write(step, {"value": step / 7})
        except LudusError as error:
            print(sink.rows_written, error)
    """
    path = tmp_path / "metrics.jsonl"
    done = _python(script, str(path))
    rows, _, sentence = done.partition(" ")
    assert sentence.startswith("Cannot write")
    assert "ludus resume" in sentence
    assert path.read_bytes().endswith(b"\n")
    assert len(read_metrics(path)) == int(rows) > 10


def _python(script: str, *arguments: str) -> str:
    done = warm_python.run(warm_python.python_command(textwrap.dedent(script), *arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


# TensorBoard, W&B, tee ------------------------------------------------------------------------------
def _tensorboard_points(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(tag)]


def test_tensorboard_files_hold_every_scalar(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    for step in (10, 20, 30):
        sink.write(step, {"rollout/ep_rew_mean": step / 2, "train/bad": math.nan})
    sink.close()
    assert _tensorboard_points(tmp_path, "rollout/ep_rew_mean") == [(10, 5.0), (20, 10.0), (30, 15.0)]


PUBLIC = {
    "Epoch": 3,
    "Cycle": 12,
    "Episodes": 340,
    "Timesteps": 120_000,
    "TimeCost(sec)/train": 12.25,
    "TimeCost(sec)/test": 1.5,
    "R_loss": 0.0125,
    "Q_loss": 1.25,
    "Pi_loss": -12.5,
}


def test_tensorboard_and_the_jsonl_keep_the_public_names_letter_for_letter(tmp_path: Path) -> None:
    """Parentheses and slashes included: people compare these curves with those of other programs."""
    tee = Tee([TensorBoardSink(tmp_path / "tb"), JsonlSink(tmp_path / "metrics.jsonl")])
    tee.write(101_469, PUBLIC)
    tee.close()
    for name, value in PUBLIC.items():
        assert _tensorboard_points(tmp_path / "tb", name) == [(101_469, pytest.approx(value))]
    assert read_metrics(tmp_path / "metrics.jsonl") == [{"step": 101_469, **PUBLIC}]


def test_tensorboard_forgets_the_rows_that_a_resume_dropped(tmp_path: Path) -> None:
    before = TensorBoardSink(tmp_path)
    for step in (10, 20, 30, 40):
        before.write(step, {"a": 1.0})
    before.close()
    after = TensorBoardSink(tmp_path, purge_step=21)
    after.write(30, {"a": 2.0})
    after.close()
    assert _tensorboard_points(tmp_path, "a") == [(10, 1.0), (20, 1.0), (30, 2.0)]


class _Broken:
    name = "Broken"
    required = False

    def write(self, step: int, metrics: dict[str, float]) -> None:
        raise ConnectionError("no network")

    def flush(self) -> None:
        raise ConnectionError("no network")

    close = flush


def test_a_failing_view_is_reported_once_and_the_others_still_get_every_row(tmp_path: Path) -> None:
    said: list[str] = []
    truth = JsonlSink(tmp_path / "metrics.jsonl")
    tee = Tee([_Broken(), truth], said.append)
    for step in range(5):
        tee.write(step, {"a": 1.0})
    tee.flush()
    tee.close()
    assert len(read_metrics(truth.path)) == 5
    assert len(said) == 1
    assert "Broken failed (ConnectionError: no network)" in said[0]


def test_a_failing_truth_stops_training_with_a_sentence() -> None:
    broken = _Broken()
    broken.required = True
    with pytest.raises(LudusError, match="Broken cannot be written: no network"):
        Tee([broken]).write(1, {})


def test_missing_wandb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"pip install 'ludus\[wandb\]'"):
        WandbSink("project")


def test_wandb_resumes_the_same_run_and_logs_by_step(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, object]] = []
    run = types.SimpleNamespace(
        id="abc",
        log=lambda metrics, step: calls.append(("log", (step, metrics))),
        finish=lambda: calls.append(("finish", None)),
    )

    def init(**options: object) -> types.SimpleNamespace:
        calls.append(("init", options))
        return run

    module = types.SimpleNamespace(init=init)
    monkeypatch.setitem(sys.modules, "wandb", module)
    sink = WandbSink("project", "name", {"seed": 7}, tmp_path / "wandb", resume_id="abc")
    sink.write(5, {"a": 1.0})
    sink.close()
    options = calls[0][1]
    assert isinstance(options, dict)
    assert (options["id"], options["resume"], sink.run_id) == ("abc", "allow", "abc")
    assert calls[1:] == [("log", (5, {"a": 1.0})), ("finish", None)]


def test_wandb_keeps_the_final_and_the_best_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In its offline mode, which writes what it would send."""
    pytest.importorskip("wandb")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    settings: dict[str, Any] = {"loop.total_steps": 64, "env.num_envs": 4, "ppo.horizon": 8, "eval.episodes": 2}
    settings |= {"log.wandb": "test", "log.report": False, "log.tensorboard": False}
    run = ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=settings)
    (written,) = (run.path / "wandb").rglob("run-*.wandb")
    told = written.read_bytes()
    assert all(name in told for name in (b"policy.safetensors", b"policy.json", b"config.yaml", b"final", b"best"))
    (checkpoint,) = (run.path / "checkpoints").glob("step_*")
    model = (checkpoint / "policy.safetensors").read_bytes()
    assert model in {file.read_bytes() for file in (tmp_path / "artifacts").rglob("*") if file.is_file()}


# Words ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (12345678, "12,345,678"),
        (123456.7, "123,457"),
        (231.44, "231.4"),
        (-0.5, "-0.5000"),
        (0.01234, "0.0123"),
        (3e-4, "3.00e-04"),
        (math.nan, "nan"),
        (None, "–"),
    ],
)
def test_numbers_are_short(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


def test_durations_and_sparklines() -> None:
    assert [text.duration(s) for s in (5, 754, 3723, 183840)] == ["0:05", "12:34", "1:02:03", "2d 03:04"]
    assert text.duration(math.inf) == text.duration(None) == "–"
    assert text.sparkline(range(8), 8) == "▁▂▃▄▅▆▇█"
    assert text.sparkline([1.0] * 100 + [math.nan], 10) == "▁" * 10
    assert len(text.sparkline(range(1000), 17)) == 17
    assert text.sparkline([], 10) == ""


# The terminal ---------------------------------------------------------------------------------------
def _train(console: Console, rows: int = 45) -> None:
    console.plan("kuka-pick-place", ["PPO, 45,000 steps"])
    console.start(1000 * rows)
    for i in range(1, rows + 1):
        console.progress(1000 * i - 500, "learning")
        console.row(1000 * i, row(1000 * i))
        if i == 5:
            console.evaluation(1000 * i, EVALUATION)
            console.warning("something odd")
    console.finish(["report: report.html"])


def test_a_pipe_gets_aligned_lines_without_control_codes() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    _train(console)
    page = stream.getvalue()
    assert not ANSI.search(page)
    lines = page.splitlines()
    heads = [line for line in lines if line.lstrip().startswith("step ")]
    assert len(heads) == 3  # at the start, when evaluations appear, and every twenty rows
    data = [line for line in lines if re.match(r" *[\d,]+ +\d+\.\d %", line)]
    assert len(data) == 45
    after_evaluation = [line for line in data if " 93.0 %" in line]
    assert len({len(line) for line in after_evaluation}) == 1
    assert len(heads[-1]) == len(after_evaluation[-1]) <= 120
    assert "eval at 5,000: success 93.0 % (88–96) · reward 221 ± 12 ★ best" in page
    assert "WARNING: something odd" in page
    assert lines[-1] == "report: report.html"


def test_only_columns_whose_metric_exists_are_shown() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console.start(100)
    console.row(50, {"rollout/ep_rew_mean": 1.0})
    head = stream.getvalue().splitlines()[0].split()
    assert head == ["step", "done", "ETA", "return"]


def test_a_long_cycle_shows_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ludus.show.plain._HEARTBEAT_S", -1.0)
    stream = io.StringIO()
    console = Console(stream=stream)
    console.start(1000)
    console.progress(250, "collecting")
    assert stream.getvalue().split() == ["250", "25.0", "%", "…", "collecting"]


def test_quiet_shows_warnings_only() -> None:
    stream = io.StringIO()
    _train(Console("quiet", stream))
    assert stream.getvalue() == "WARNING: something odd\n"


def test_training_outlives_a_closed_pipe() -> None:
    script = """
        import sys
        from ludus.show.console import Console
        console = Console()
        console.start(10)
        for step in range(10):
            console.progress(step, "x")
            console.row(step, {"time/fps": 1.0})
        console.finish(["end"])
        print("trained", file=sys.stderr)
    """
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert done.returncode == 0
    assert done.stderr == "trained\n"


def test_an_old_encoding_does_not_stop_training() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    _train(Console(stream=stream))
    stream.seek(0)
    assert "success 93.0 % (88?96)" in stream.read()


def _state(rows: int = 30) -> RunState:
    state = RunState()
    state.title = "kuka-pick-place"
    state.start(40_000, 0)
    for i in range(1, rows + 1):
        state.add_row(1000 * i, row(1000 * i))
    state.add_evaluation(30_000, EVALUATION)
    return state


def _drawn(dashboard: Dashboard) -> str:
    """On a terminal of the size that the environment tells."""
    stream = io.StringIO()
    RichConsole(file=stream, highlight=False).print(dashboard.draw())
    return stream.getvalue()


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 24), (80, 12), (300, 50)])
def test_the_dashboard_fits_its_terminal(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    dashboard = Dashboard(io.StringIO(), _state())
    lines = _drawn(dashboard).splitlines()
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) < height
    assert "75.0 %" in lines[1]
    assert "1,234 steps/s" in lines[4]


def test_the_dashboard_shows_what_there_is_and_survives_what_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    state = _state()
    dashboard = Dashboard(io.StringIO(), state)

    def drawn() -> str:
        return _drawn(dashboard)

    page = drawn()
    for words in (
        "simulate 60 %",
        "epoch 1",
        "deterministic",
        "93.0 % (88–96)",
        "best so far",
        "memory 512 MB",
    ):
        assert words in page
    state.metrics = {"train/value_loss": math.nan, "train/odd_loss": 1.0, "train/skipped_updates": 2.0}
    page = drawn()
    assert "nan" in page
    assert "odd loss" in page
    assert "skipped updates" in page
    state.metrics, state.last_evaluation, state.total_steps = {}, None, 0
    assert "no episode has ended yet" in drawn()


def _in_a_terminal(tmp_path: Path, **environment: str) -> str:
    """What a real terminal of 80 × 24 receives from a training that prints in between."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import threading
            from ludus.show.console import Console
            from ludus.show.dashboard import Dashboard
            redrawn, draw = threading.Semaphore(0), Dashboard.draw
            Dashboard.draw = lambda self: [draw(self), redrawn.release()][0]
            with Console() as console:
                console.plan("kuka-pick-place", ["PPO"])
                console.start(1000)
                console.progress(100, "collecting")
                console.row(200, {row()!r})
                for _ in range(3 if isinstance(console._view, Dashboard) else 0):
                    redrawn.acquire()
                print("a stray print")
                console.evaluation(200, {EVALUATION!r})
                console.finish(["the end"])
            """
        )
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = os.environ | {"TERM": "xterm-256color"} | environment
    for name in ("COLUMNS", "LINES") + (() if "NO_COLOR" in environment else ("NO_COLOR",)):
        variables.pop(name, None)
    child = subprocess.Popen(
        [sys.executable, str(script)], stdin=slave, stdout=slave, stderr=slave, env=variables, close_fds=True
    )
    os.close(slave)
    received = b""
    while True:
        try:
            received += (chunk := os.read(master, 65536))
        except OSError:  # Linux says so when the other end is closed
            break
        if not chunk:
            break
    os.close(master)
    assert child.wait() == 0, received.decode()
    return received.decode()


def test_a_terminal_gets_a_live_dashboard_and_its_cursor_back(tmp_path: Path) -> None:
    page = _in_a_terminal(tmp_path)
    assert page.count("steps/s") >= 3  # redrawn while it ran
    assert COLOUR.search(page)
    assert "\x1b[?25l" in page
    assert page.rindex("\x1b[?25h") > page.rindex("\x1b[?25l")
    words = ANSI.sub("", page)
    assert "20.0 %" in words
    assert "a stray print" in words
    assert words.rstrip().endswith("the end")


def test_no_color_is_honoured(tmp_path: Path) -> None:
    page = _in_a_terminal(tmp_path, NO_COLOR="1")
    assert not COLOUR.search(page)
    assert "━" in page


def test_a_dumb_terminal_gets_plain_lines(tmp_path: Path) -> None:
    page = _in_a_terminal(tmp_path, TERM="dumb")
    assert not ANSI.search(page)
    assert "steps/s" in page


def test_a_dashboard_that_cannot_draw_becomes_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console("dashboard", stream)

    def broken(_: Dashboard) -> None:
        raise ValueError("no such glyph")

    monkeypatch.setattr(Dashboard, "draw", broken)
    _train(console, rows=3)
    assert "report: report.html" in stream.getvalue()
    assert stream.getvalue().count(" 1,234 ") == 3


def _calls(work: Callable[[], None]) -> int:
    """How many functions are called: a measure of cost that no other load of the machine changes."""
    events: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _argument: events.update([event]))
    try:
        work()
    finally:
        sys.setprofile(None)
    return events["call"] + events["c_call"]


@pytest.mark.parametrize("mode", ["plain", "dashboard"])
def test_progress_costs_a_few_calls(mode: str) -> None:
    console = Console(mode, io.StringIO())  # type: ignore[arg-type]
    console.start(10**9)

    def tell() -> None:
        for step in range(1_000):
            console.progress(step, "collecting")

    assert _calls(tell) / 1_000 < 5
    console.close()


def test_remaining_time_comes_from_the_speed_where_nobody_tells_it() -> None:
    now = 100.0
    state = RunState(clock=lambda: now)
    state.start(10_000, 0)
    assert state.eta is None
    state.add_row(5000, {"time/fps": 100.0, "system/memory_mb": 1.0})
    assert state.eta == 50.0
    state.add_row(6000, {"time/eta_s": 7.0, "system/memory_mb": 1.0})
    assert state.eta == 7.0
    now = 102.0
    assert state.eta == 5.0


def test_the_training_time_stands_still_when_the_training_has_ended() -> None:
    console, now = Console("quiet"), 100.0
    console.state.clock = lambda: now
    console.start(10_000)
    console.row(10_000, {"time/time_elapsed": 30.0})
    now = 102.0
    assert console.state.elapsed == 32.0
    console.trained(33.0)
    now = 110.0
    assert console.state.elapsed == 33.0


def test_the_best_evaluation_is_by_success_then_reward() -> None:
    state = RunState()
    for step, (success, reward) in enumerate([(0.5, 10.0), (0.9, 5.0), (0.9, 6.0), (math.nan, 99.0)]):
        state.add_evaluation(step, {"eval/success_rate": success, "eval/mean_reward": reward})
    assert state.best_evaluation is not None
    assert state.best_evaluation.step == 2
    assert state.last_evaluation is not None
    assert state.last_evaluation.step == 3


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
    lines = _drawn(dashboard).splitlines()
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) < height
    return lines


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (80, 12), (100, 30), (120, 40)])
def test_every_level_has_its_bar(monkeypatch: pytest.MonkeyPatch, width: int, height: int, count: int) -> None:
    state = _state()
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
    state = _state()
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

    assert _calls(tell) / 1_000 < 8
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

    assert _calls(tell) / 1_000 < 25
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
