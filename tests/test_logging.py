"""Promises of the metric sinks and of the terminal."""

import fcntl
import io
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
import time
import types
from pathlib import Path

import pytest

from ludus.errors import ConfigError, LudusError
from ludus.logging import text
from ludus.logging.console import Console
from ludus.logging.dashboard import Dashboard
from ludus.logging.jsonl import JsonlSink, read_metrics, truncate_to
from ludus.logging.run_state import RunState
from ludus.logging.sinks import Tee
from ludus.logging.tensorboard import TensorBoardSink
from ludus.logging.wandb import WandbSink

SOURCE = Path(__file__).parents[1] / "src"
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
        from ludus.logging.jsonl import JsonlSink
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
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


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
    module = types.SimpleNamespace(init=lambda **options: calls.append(("init", options)) or run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    sink = WandbSink("project", "name", {"seed": 7}, tmp_path / "wandb", resume_id="abc")
    sink.write(5, {"a": 1.0})
    sink.close()
    options = calls[0][1]
    assert isinstance(options, dict)
    assert (options["id"], options["resume"], sink.run_id) == ("abc", "allow", "abc")
    assert calls[1:] == [("log", (5, {"a": 1.0})), ("finish", None)]


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
    monkeypatch.setattr("ludus.logging.plain._HEARTBEAT_S", -1.0)
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
        from ludus.logging.console import Console
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
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
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


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 24), (80, 12), (300, 50)])
def test_the_dashboard_fits_its_terminal(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    dashboard = Dashboard(io.StringIO(), _state())
    with dashboard._console.capture() as capture:
        dashboard._console.print(dashboard._draw())
    lines = capture.get().splitlines()
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
        with dashboard._console.capture() as capture:
            dashboard._console.print(dashboard._draw())
        return capture.get()

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
            import time
            from ludus.logging.console import Console
            with Console() as console:
                console.plan("kuka-pick-place", ["PPO"])
                console.start(1000)
                console.progress(100, "collecting")
                console.row(200, {row()!r})
                time.sleep(0.6)
                print("a stray print")
                console.evaluation(200, {EVALUATION!r})
                console.finish(["the end"])
            """
        )
    )
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    variables = os.environ | {"PYTHONPATH": str(SOURCE), "TERM": "xterm-256color"} | environment
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
    assert child.wait(timeout=30) == 0, received.decode()
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

    monkeypatch.setattr(Dashboard, "_draw", broken)
    _train(console, rows=3)
    assert "report: report.html" in stream.getvalue()
    assert stream.getvalue().count(" 1,234 ") == 3


@pytest.mark.parametrize("mode", ["plain", "dashboard"])
def test_progress_costs_microseconds(mode: str) -> None:
    console = Console(mode, io.StringIO())  # type: ignore[arg-type]
    console.start(10**9)
    started = time.perf_counter()
    for step in range(50_000):
        console.progress(step, "collecting")
    microseconds = (time.perf_counter() - started) / 50_000 * 1e6
    console.close()
    assert microseconds < 20


def test_remaining_time_comes_from_the_speed_where_nobody_tells_it() -> None:
    state = RunState()
    state.start(10_000, 0)
    assert state.eta is None
    state.add_row(5000, {"time/fps": 100.0, "system/memory_mb": 1.0})
    assert state.eta == 50.0
    state.add_row(6000, {"time/eta_s": 7.0, "system/memory_mb": 1.0})
    assert state.eta == pytest.approx(7.0, abs=0.5)


def test_the_best_evaluation_is_by_success_then_reward() -> None:
    state = RunState()
    for step, (success, reward) in enumerate([(0.5, 10.0), (0.9, 5.0), (0.9, 6.0), (math.nan, 99.0)]):
        state.add_evaluation(step, {"eval/success_rate": success, "eval/mean_reward": reward})
    assert state.best_evaluation is not None
    assert state.best_evaluation.step == 2
    assert state.last_evaluation is not None
    assert state.last_evaluation.step == 3
