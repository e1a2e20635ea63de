"""Promises of the terminal: words, plain lines, the dashboard."""

import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import textwrap
from pathlib import Path

import pytest

from ludus.show import text
from ludus.show.console import Console
from ludus.show.dashboard import Dashboard
from ludus.show.run_state import RunState
from terminal_rows import ANSI, EVALUATION, calls_of, drawn, row, state_after

COLOUR = re.compile(r"\x1b\[[0-9;]*[34]\dm")


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


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (60, 24), (80, 12), (300, 50)])
def test_the_dashboard_fits_its_terminal(monkeypatch: pytest.MonkeyPatch, width: int, height: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    dashboard = Dashboard(io.StringIO(), state_after())
    lines = drawn(dashboard).splitlines()
    assert {len(line) for line in lines} == {min(width, 120)}
    assert len(lines) < height
    assert "75.0 %" in lines[1]
    assert "1,234 steps/s" in lines[4]


def test_the_dashboard_shows_what_there_is_and_survives_what_there_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    state = state_after()
    dashboard = Dashboard(io.StringIO(), state)

    page = drawn(dashboard)
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
    page = drawn(dashboard)
    assert "nan" in page
    assert "odd loss" in page
    assert "skipped updates" in page
    state.metrics, state.last_evaluation, state.total_steps = {}, None, 0
    assert "no episode has ended yet" in drawn(dashboard)


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


@pytest.mark.parametrize("mode", ["plain", "dashboard"])
def test_progress_costs_a_few_calls(mode: str) -> None:
    console = Console(mode, io.StringIO())  # type: ignore[arg-type]
    console.start(10**9)

    def tell() -> None:
        for step in range(1_000):
            console.progress(step, "collecting")

    assert calls_of(tell) / 1_000 < 5
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
