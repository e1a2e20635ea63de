"""Promises of the report, the replays and the live viewer; pages are opened in a real browser."""

import base64
import io
import itertools
import json
import math
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import pytest

from compared_runs import write_run as write_compared_run
from ludus.comparing.face import compare
from ludus.errors import LudusError
from ludus.show import playback as replay_module
from ludus.show.charts import Chart, Series, chart_html, round_ticks
from ludus.show.jsonl import JsonlSink
from ludus.show.playback import Page, Replay, frames_html, replay_html
from ludus.show.report import write_report
from ludus.show.reward_page import MAX_TRACES, RewardTrace, reward_section
from ludus.show.viewer import play

ANT = Path(gymnasium.__file__).parent / "envs/mujoco/assets/ant.xml"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on PATH")


@pytest.fixture(scope="module")
def ant() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(ANT))


def one_episode(model: mujoco.MjModel, frames: list[dict[str, Any]], dt: float, caption: str) -> Replay:
    replay = Replay(model, dt)
    replay.add_episode(frames, caption)
    return replay


def ant_frames(model: mujoco.MjModel, count: int, speed: float = 0.0) -> list[dict[str, Any]]:
    """Legs that swing, and a body that moves along x."""
    frames = []
    for i in range(count):
        qpos = model.qpos0.copy()
        qpos[0] = speed * i
        qpos[7:] = 0.6 * np.sin(i / 4 + np.arange(model.nq - 7))
        frames.append({"qpos": qpos, "mocap_pos": None, "mocap_quat": None})
    return frames


def write_run(folder: Path, rows: int = 60) -> Path:
    sink = JsonlSink(folder / "metrics.jsonl")
    for i in range(1, rows + 1):
        share = i / rows
        sink.write(
            1000 * i, {"rollout/success_rate": share, "rollout/ep_rew_mean": 200 * share, "time/fps": 900.0}
        )
        sink.write(
            1000 * i, {"train/value_loss": math.exp(-share), "time/time_elapsed": 2.0 * i, "mine/other": share}
        )
        if i % 20 == 0:
            sink.write(
                1000 * i,
                {"eval/success_rate": share, "eval/success_low": 0.9 * share, "eval/success_high": 1.0},
            )
    sink.close()
    (folder / "config.yaml").write_text("seed: 7\nname: '<script>window.hacked = 1</script>'\n")
    (folder / "run.json").write_text(
        json.dumps({"preset": "<b>kuka</b>", "seed": 7, "versions": {"torch": "2.13"}})
    )
    return folder


# Charts ---------------------------------------------------------------------------------------------
def test_ticks_are_round_and_inside_the_range() -> None:
    assert round_ticks(0, 1, 4) == [0, 0.25, 0.5, 0.75, 1]
    assert round_ticks(10_000, 2_000_000, 5) == [500_000, 1_000_000, 1_500_000, 2_000_000]
    for low, high in ((-3.7, 12.2), (1e-5, 3e-4), (99.0, 99.1)):
        ticks = round_ticks(low, high, 4)
        assert 2 <= len(ticks) <= 7
        assert all(low - 1e-9 <= t <= high + 1e-9 for t in ticks)


def test_a_chart_draws_a_single_point_a_flat_line_and_a_very_long_run() -> None:
    assert "circle" in chart_html(Chart("one", [Series("a", [5], [1.0])]))
    assert "nan" not in chart_html(Chart("flat", [Series("a", [0, 1], [2.0, 2.0])]))
    long = chart_html(Chart("long", [Series("a", list(range(50_000)), [math.sin(i) for i in range(50_000)])]))
    assert len(long) < 60_000


def test_a_metric_name_cannot_break_out_of_the_page() -> None:
    evil = "</script><script>alert(1)</script>"
    assert "<script>alert" not in chart_html(Chart(evil, [Series(evil, [1, 2], [1.0, 2.0])]))


# The report -----------------------------------------------------------------------------------------
def test_the_report_holds_tiles_curves_evaluations_configuration_and_facts(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path), extra={"device": "cpu"}).read_text()
    for words in (
        "100.0 %",
        "60,000",
        "2:00",
        "Success rate",
        "Value loss",
        "Evaluations",
        "mine/other",
        "2.13",
    ):
        assert words in page
    assert "(90–100) at step 60,000" in page
    assert page.count("<tr") == 1 + 3
    assert "<dt>device</dt><dd>cpu</dd>" in page


def test_everything_from_the_configuration_is_escaped(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path)).read_text()
    assert "<script>window.hacked" not in page
    assert "&lt;script&gt;window.hacked" in page
    assert "<h1>&lt;b&gt;kuka&lt;/b&gt;</h1>" in page


def test_a_run_that_has_just_begun_says_so(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    page = write_report(tmp_path).read_text()
    assert "No metrics yet" in page
    assert "No evaluation yet" in page
    assert "no config.yaml" in page


def test_garbled_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(LudusError, match=r"metrics\.jsonl"):
        write_report(tmp_path)
    write_run(tmp_path)
    (tmp_path / "run.json").write_text("{half")
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00garbage")
    assert "run.json cannot be read" in write_report(tmp_path).read_text()
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\nrubbish\n{"step": 2}\n')
    with pytest.raises(LudusError, match="line 2"):
        write_report(tmp_path)


def test_nan_and_missing_intervals_do_not_reach_the_drawing(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(1, {"eval/success_rate": 0.5, "eval/success_low": math.nan, "eval/success_high": 0.6})
    sink.write(2, {"eval/success_rate": math.nan, "rollout/ep_rew_mean": math.nan, "train/value_loss": math.nan})
    sink.close()
    page = write_report(tmp_path).read_text()
    assert not re.search(r'd="[^"]*nan', page)
    assert "Value loss" not in page


def test_a_replay_is_embedded(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    page = write_report(run, replays=[Page('<p class="x">moving</p>')]).read_text()
    assert 'srcdoc="&lt;p class=&quot;x&quot;&gt;moving&lt;/p&gt;"' in page


# A learned reward -----------------------------------------------------------------------------------
def write_reward_run(folder: Path, rows: int = 50, step: int = 5000) -> Path:
    sink = JsonlSink(folder / "metrics.jsonl")
    for i in range(1, rows + 1):
        good = 1 - math.exp(-4 * i / rows)
        metrics = {
            "Epoch": 1,
            "Cycle": i,
            "R_loss": 1.1 - good,
            "time/time_elapsed": 2.0 * i,
        }
        held_out = {"AUC": 0.5 + 0.5 * good, "R2": good, "correlation": 0.9 * good, "progress_error": 1 - good}
        sink.write(step * i or 101_469, metrics | {f"reward/{name}": value for name, value in held_out.items()})
    sink.close()
    return folder


def reward_trace(k: int = 0, success: bool | None = True, steps: int = 90, frames: int = 5) -> RewardTrace:
    t = np.linspace(0, 1, steps)
    pictures = [np.full((60, 80, 3), 40 * i % 256, dtype=np.uint8) for i in range(frames)]
    outcome = {True: " · success", False: " · failure", None: ""}[success]
    places = [round(x) for x in np.linspace(0, steps - 1, frames)]
    return RewardTrace(f"demo_{k}{outcome}", success, 3 * t**2 - 1, 100 * t, t, pictures, places)


def test_a_reward_only_run_has_its_own_headlines_curves_and_table(tmp_path: Path) -> None:
    page = write_report(write_reward_run(tmp_path)).read_text()
    tiles = page[page.index('class="tiles"') : page.index("<h2>")]
    for words in ("0.991", "AUC", "R² of held-out returns", "correlation", "reward loss", "250,000", "batches"):
        assert words in tiles
    assert "success</span>" not in tiles
    assert "no evaluation" not in page.lower()
    for title in ("Reward loss", "AUC, successes against failures", "R² of the return", "Progress error"):
        assert f"<b>{title}</b>" in page
    assert page.count("<tr") == 1 + 50
    assert "<th>batches</th><th>AUC</th><th>R²</th><th>correlation</th>" in page
    assert '<body data-x="batch">' in page
    assert "<b>Epoch</b>" not in page
    assert "<b>R_loss</b>" not in page


def test_rows_that_all_stand_at_the_size_of_the_store_are_drawn_one_after_the_other(tmp_path: Path) -> None:
    page = write_report(write_reward_run(tmp_path, rows=5, step=0)).read_text()
    assert '"step": [1, 2, 3, 4, 5]' in page
    sink = JsonlSink(tmp_path / "told" / "metrics.jsonl")
    for i in range(1, 4):
        sink.write(101_469, {"loop/batches": 500 * i, "R_loss": 1.0 / i})
    sink.close()
    page = write_report(tmp_path / "told").read_text()
    assert '"step": [500, 1000, 1500]' in page
    assert "<b>1,500</b><span>batches</span>" in page


def test_an_agent_with_a_learned_reward_has_both_kinds_of_curves(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for i in range(1, 5):
        losses = {
            "R_loss": 1.0,
            "Q_loss": 2.0,
            "Pi_loss": 3.0,
            "train/ent_coef": 0.5,
            "reward/correlation": 0.1 * i,
        }
        sink.write(1000 * i, {"rollout/ep_rew_mean": 1.0 * i, "eval/mean_reward": 2.0 * i, **losses})
    sink.close()
    page = write_report(tmp_path).read_text()
    for title in ("Episode return", "Reward loss", "Critic loss", "Actor loss", "Entropy coefficient"):
        assert f"<b>{title}</b>" in page
    assert "<h2>Learned reward</h2>" in page
    assert "best evaluation reward" in page
    assert "<th>reward</th><th>correlation</th>" in page
    assert '<body data-x="step">' in page


def test_a_policy_that_learned_from_files_counts_batches_and_no_failure_is_green(tmp_path: Path) -> None:
    for success in (0.1, 0.9):
        folder = tmp_path / str(success)
        sink = JsonlSink(folder / "metrics.jsonl")
        for i in range(1, 4):
            sink.write(500 * i, {"train/critic_loss": 1.0, "time/fps": 10.0, "eval/success_rate": success})
        sink.close()
        page = write_report(folder).read_text()
        tiles = page[page.index('class="tiles"') : page.index("<h2>")]
        assert "<b>1,500</b><span>batches</span>" in tiles
        assert "steps per second" not in tiles
        assert "<b>Batches per second</b>" in page
        assert '<body data-x="batch">' in page
        assert ("tile main good" in tiles) == (success > 0.5)


def test_the_reward_along_episodes_has_curves_frames_and_outcomes(tmp_path: Path) -> None:
    from PIL import Image

    traces = [reward_trace(12), reward_trace(13, success=False, frames=0), reward_trace(14, success=None)]
    page = write_report(write_reward_run(tmp_path), rewards=traces).read_text()
    assert "The learned reward along episodes" in page
    assert '<b>demo_12 <span class="badge success">success</span></b>' in page
    assert '<b>demo_13 <span class="badge failure">failure</span></b>' in page
    assert "<b>demo_14</b>" in page
    assert page.count('class="line s1 faint"') == page.count('class="line s2 dashed"') == 3
    assert "correlation 0.97 · sum" in page
    pictures = re.findall(r'<image href="data:image/jpeg;base64,([^"]+)" x="([\d.]+)"', page)
    assert len(pictures) == 10
    assert Image.open(io.BytesIO(base64.b64decode(pictures[0][0]))).size == (80, 60)
    places = [float(x) for _, x in pictures[:5]]
    assert places == sorted(places)
    assert all(b - a > 80 for a, b in itertools.pairwise(places))  # none lies on its neighbour
    # The hidden reward is drawn in the learned one's range, but told as it is.
    assert '"name": "hidden reward"' in page
    assert '"100"]' in page
    assert page.count("The learned reward along episodes") == 1


def test_all_traces_share_one_scale() -> None:
    high, low = reward_trace(1), reward_trace(2, success=False)
    low.predicted, low.truth = 0.01 * low.predicted, None
    page = reward_section([high, low])
    heights = [
        [float(point.split(",")[1]) for point in path.split("L")]
        for path in re.findall(r'<path class="line s0" d="M([^"]+)"', page)
    ]
    assert max(heights[0]) - min(heights[0]) > 20 * (max(heights[1]) - min(heights[1]))


def test_many_traces_are_cut_to_a_balanced_few() -> None:
    page = reward_section([reward_trace(k, success=k >= 4, frames=0) for k in range(40)])
    assert page.count("<figure") == MAX_TRACES
    assert page.count("badge failure") == page.count("badge success") == 4
    assert "8 of 40 episodes" in page
    only = reward_section([reward_trace(k, frames=0) for k in range(40)])
    assert only.count("badge success") == MAX_TRACES
    many = reward_section([reward_trace(frames=100)])
    assert many.count("<image") == 8


def test_odd_traces_are_drawn_or_named() -> None:
    flat = RewardTrace("flat", True, np.zeros(5), np.ones(5), None)
    short = RewardTrace("one step", None, np.array([0.5]), None, np.array([0.1]))
    holes = RewardTrace("<holes>", False, np.array([1.0, math.nan, 3.0]), np.full(3, math.nan))
    empty = RewardTrace("empty", False, np.zeros(0))
    page = reward_section([flat, short, holes, empty])
    assert page.count("<figure") == 3
    assert "&lt;holes&gt;" in page
    assert not re.search(r'(d|cx|cy)="[^"]*nan', page)
    assert reward_section([]) == reward_section([empty]) == ""
    wrong = reward_trace()
    wrong.frame_steps = [3]
    with pytest.raises(LudusError, match=r"demo_0.*5 frames but 1 frame steps"):
        reward_section([wrong])
    with pytest.raises(LudusError, match="must be H×W×3 uint8"):
        reward_section([RewardTrace("grey", True, np.arange(3.0), frames=[np.zeros((4, 4))], frame_steps=[0])])


# Replays --------------------------------------------------------------------------------------------
def embedded_recording(page: str) -> dict[str, Any]:
    msgspec, zstandard = pytest.importorskip("msgspec"), pytest.importorskip("zstandard")
    found = re.search(r'__VISER_EMBED_DATA__="([^"]+)"', page)
    assert found is not None
    data = base64.b64decode(found[1])
    inner = zstandard.ZstdDecompressor().decompress(data[8:], max_output_size=int.from_bytes(data[:8], "little"))
    length = int.from_bytes(inner[:8], "little")
    return dict(msgspec.msgpack.decode(inner[8 : 8 + length]))


def test_a_long_replay_keeps_real_time_and_stays_small(ant: mujoco.MjModel) -> None:
    pytest.importorskip("mjviser")
    replay = Replay(ant, dt=0.05)
    for caption in ("episode 1: success", "episode 2: success"):
        replay.add_episode(ant_frames(ant, 700), caption)
    page = replay_html(replay, "Ant & friends")
    assert len(page) < replay_module.MAX_BYTES
    assert "<title>Ant &amp; friends</title>" in page
    recording = embedded_recording(page)
    assert recording["durationSeconds"] == pytest.approx(1400 * 0.05, abs=2.5)
    assert len({t for t, _ in recording["messages"]}) <= replay_module.MAX_FRAMES + 4


def test_recording_says_nothing_and_leaves_the_model_as_it_was(
    ant: mujoco.MjModel, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mjviser")
    before = ant.vis.scale.framewidth, ant.vis.rgba.inertia.copy()
    replay_html(one_episode(ant, ant_frames(ant, 3), 0.05, "x"), "Ant")
    assert ant.vis.scale.framewidth == before[0]
    assert np.array_equal(ant.vis.rgba.inertia, before[1])
    assert capfd.readouterr() == ("", "")


def test_without_viser_the_sentence_says_what_to_install(
    ant: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "viser", None)
    with pytest.raises(LudusError, match=r"pip install 'ludus\[viz\]'"):
        replay_html(one_episode(ant, ant_frames(ant, 2), 0.05, "x"), "Ant")


def test_an_empty_replay_is_refused(ant: mujoco.MjModel) -> None:
    with pytest.raises(LudusError, match="at least one frame"):
        one_episode(ant, [], 0.05, "x")
    with pytest.raises(LudusError, match="empty"):
        replay_html(Replay(ant, 0.05), "Ant")
    with pytest.raises(LudusError, match="no frame"):
        frames_html([], 30)


def test_rendered_frames_become_one_looping_picture_in_real_time() -> None:
    from PIL import Image

    frames = [np.full((40, 60, 3), i * 20, dtype=np.uint8) for i in range(10)]
    page = frames_html(frames, fps=20, title="Cart <Pole>", caption="episode 1")
    assert "Cart &lt;Pole&gt;" in page
    found = re.search(r"base64,([^\"]+)", page)
    assert found is not None
    picture = Image.open(io.BytesIO(base64.b64decode(found[1])))
    assert getattr(picture, "n_frames", 1) == 10
    picture.seek(1)
    picture.load()
    assert picture.info["duration"] == 50


# The live viewer ------------------------------------------------------------------------------------
class IdleClock:
    """The clock of a machine with nothing else to do: a busy one would fall behind real time."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1e-5  # so long does anything take
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_viewer_steps_in_real_time_on_a_free_port_and_ends(
    ant: mujoco.MjModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mjviser")
    monkeypatch.setattr("ludus.show.viewer.time", IdleClock())
    frames = iter(ant_frames(ant, 1000, speed=0.1))
    said: list[str] = []
    steps = 0

    def step() -> tuple[Any, Any, Any, dict[str, float]]:
        nonlocal steps
        steps += 1
        return next(frames)["qpos"], None, None, {"return": 1.0 * steps}

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        play(ant, step, dt=0.02, port=port, max_seconds=1.0, say=said.append)
    assert 49 <= steps <= 51
    found = re.search(r"http://localhost:(\d+)", said[0])
    assert found is not None
    assert int(found[1]) != port


def test_ctrl_c_ends_the_viewer_cleanly(ant: mujoco.MjModel) -> None:
    pytest.importorskip("mjviser")
    said: list[str] = []

    def step() -> tuple[Any, Any, Any, dict[str, float]]:
        raise KeyboardInterrupt

    play(ant, step, dt=0.02, port=0, say=said.append)
    assert said[-1] == "Viewer closed."


# In a real browser ----------------------------------------------------------------------------------
class Browser:
    """Chromium over its debugging protocol: enough to open a page, point at it and look."""

    def __init__(self, folder: Path) -> None:
        from websockets.sync.client import connect

        assert CHROMIUM is not None
        flags = ["--headless", "--no-sandbox", "--use-gl=angle", "--use-angle=swiftshader", "--no-first-run"]
        flags += [
            "--enable-unsafe-swiftshader",
            "--disable-background-networking",
            "--disable-component-update",
        ]
        flags += ["--disable-sync", "--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen([CHROMIUM, *flags], stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        port = next(m[1] for line in self._process.stderr if (m := re.search(r"127\.0\.0\.1:(\d+)/", line)))
        tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        self._socket = connect(address, max_size=None)
        self._calls = 0
        self._events: list[dict[str, Any]] = []
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=360, height=240, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": params}))
        while True:
            reply = json.loads(self._socket.recv())
            if reply.get("id") == self._calls:
                assert "error" not in reply, reply
                return dict(reply["result"])
            self._events.append(reply)

    def open(self, path: Path) -> None:
        self.call("Page.navigate", url=path.as_uri())
        while self.js("document.readyState") != "complete":
            time.sleep(0.1)

    def js(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def picture(self) -> bytes:
        data = self.call(
            "Page.captureScreenshot",
            format="png",
            clip={"x": 0, "y": 0, "width": 360, "height": 195, "scale": 1},
        )
        return base64.b64decode(data["data"])

    def press_space(self) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, code="Space", key=" ")

    def draw(self, count: int = 10) -> None:
        """Let the page draw itself so often, however long that takes."""
        drawn = "requestAnimationFrame(() => left-- > 0 ? next() : done())"
        promise = f"new Promise(done => {{ let left = {count}; const next = () => {drawn}; next(); }})"
        self.call("Runtime.evaluate", expression=promise, awaitPromise=True)

    def wait_for(self, wanted: Callable[[bytes, bytes], bool], times: int = 1, most: int = 10_000) -> bytes | None:
        """The picture that `wanted(picture, the one before)` accepts, so many times in a row; None: never."""
        last, accepted = self.picture(), 0
        for _ in range(most):
            self.draw()
            picture = self.picture()
            accepted = accepted + 1 if wanted(picture, last) else 0
            if accepted == times:
                return picture
            last = picture
        return None

    def pause(self) -> bytes:
        """The picture at which the replay stands still. A key that came too early is pressed again."""
        for _ in range(100):
            self.press_space()
            still = self.wait_for(lambda picture, last: picture == last, times=5, most=60)
            if still is not None:
                return still
        raise AssertionError("the replay never stood still")

    def requests(self) -> list[str]:
        sent = [e["params"]["request"]["url"] for e in self._events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:", "about:"))]

    def errors(self) -> list[str]:
        thrown = [str(e["params"]) for e in self._events if e["method"] == "Runtime.exceptionThrown"]
        logged = [e["params"]["entry"]["text"] for e in self._events if e["method"] == "Log.entryAdded"]
        return thrown + [line for line in logged if "Refused" in line or "Error" in line]

    def close(self) -> None:
        self._socket.close()
        self._process.terminate()
        self._process.wait()


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    pytest.importorskip("websockets")
    opened = Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@needs_browser
def test_hovering_a_curve_reads_its_values_and_no_request_leaves_the_page(
    browser: Browser, tmp_path: Path
) -> None:
    hostile = "<script>try { parent.replayed = 1 } catch (refused) {}</script>"
    path = write_report(write_run(tmp_path), replays=[Page(hostile)])
    browser.call("Emulation.setDeviceMetricsOverride", width=1100, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(path)
    assert browser.js("window.replayed") is None
    browser.js("document.querySelector('.chart').scrollIntoView({behavior: 'instant'})")
    x, y = browser.js(
        "(() => { const r = document.querySelector('.chart svg').getBoundingClientRect();"
        " return [r.left + r.width * .99, r.top + r.height * .5]; })()"
    )
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    readout = browser.js("document.getElementById('tip').innerText").split()
    assert readout[:2] == ["step", "60,000"]
    assert "100.0" in readout
    assert browser.js("window.hacked") is None
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    assert browser.requests() == [path.as_uri()]
    assert browser.errors() == []


@needs_browser
@pytest.mark.parametrize("width", [1100, 400])
def test_a_trace_tells_true_values_and_leaves_the_curves_of_training_alone(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    path = write_report(write_reward_run(tmp_path), rewards=[reward_trace(1), reward_trace(2, success=False)])
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(path)

    def readout(chart: int) -> list[str]:
        x, y = browser.js(
            f"(() => {{ const svg = document.querySelectorAll('.chart svg')[{chart}];"
            " svg.scrollIntoView({behavior: 'instant'}); const r = svg.getBoundingClientRect();"
            " return [r.left + r.width * .985, r.top + r.height * .3]; })()"
        )
        browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return str(browser.js("document.getElementById('tip').innerText")).split()

    assert " ".join(readout(0)) == "step 89 learned reward 2 hidden reward 100 progress 1"
    crosses = "[...document.querySelectorAll('.cross')].filter(c => c.style.display === 'block').length"
    assert browser.js(crosses) == 1
    assert readout(2)[:2] == ["batch", "250,000"]
    assert browser.js("[...document.images].length + document.querySelectorAll('image').length") == 10
    assert browser.js("document.documentElement.scrollWidth <= innerWidth")
    assert browser.requests() == [path.as_uri()]
    assert browser.errors() == []


@needs_browser
def test_trust_15_the_replay_moves_in_its_sandbox_within_the_report(
    browser: Browser, ant: mujoco.MjModel, tmp_path: Path
) -> None:
    pytest.importorskip("mjviser")
    replay = replay_html(one_episode(ant, ant_frames(ant, 300, 0.02), 0.05, "episode 1"), "Ant")
    path = write_report(write_run(tmp_path), replays=[Page(replay)])
    browser.call("Emulation.setDeviceMetricsOverride", width=1100, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(path)
    corner = "position:fixed;left:0;top:0;width:360px;height:195px;z-index:9"  # where the pictures are taken
    browser.js(f"document.querySelector('iframe').style = '{corner}'")
    first = browser.wait_for(lambda picture, _: len(picture) > 20_000)  # drawn, not blank
    assert browser.wait_for(lambda picture, _: picture != first) != first
    assert browser.js("document.querySelector('iframe').contentDocument") is None
    assert browser.requests() == [path.as_uri()]
    assert browser.errors() == []


@needs_browser
def test_a_comparison_fits_800_pixels_and_tells_its_means(browser: Browser, tmp_path: Path) -> None:
    for rate in (1e-4, 1e-3):
        for seed in range(3):
            values = (10.0, 50.0 + seed, 1e5 * rate + seed)
            write_compared_run(tmp_path / f"{'a long name ' * 4}{rate}" / f"seed_{seed}", seed, values, rate=rate)
    page = compare(sorted(tmp_path.iterdir())).write_page(tmp_path / "page.html")
    browser.call("Emulation.setDeviceMetricsOverride", width=800, height=900, deviceScaleFactor=1, mobile=False)
    browser.open(page)
    widths = browser.js("(d => [d.scrollWidth, d.clientWidth])(document.documentElement)")
    assert widths[0] == widths[1] <= 800
    box = "document.querySelector('.chart svg').getBoundingClientRect()"
    x, y = browser.js(f"[{box}.right - 12, {box}.top + 60]")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    told = browser.js("[...document.querySelectorAll('#tip div')].map(row => row.textContent)")
    assert told[0] == "step3,000"
    assert "0.000111.0 (8.5 – 13.5)" in told[1]
    assert len(told) == 3
    assert browser.requests() == [page.as_uri()]
    assert browser.errors() == []


@needs_browser
def test_curves_are_laid_over_steps_or_over_wall_time(browser: Browser, tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for step, seconds in ((100, 10.0), (200, 20.0), (300, 90.0), (400, 100.0)):
        sink.write(step, {"rollout/ep_rew_mean": 1.0, "time/time_elapsed": seconds})
    sink.close()
    browser.open(write_report(tmp_path))
    shape = "document.querySelector('.line').getAttribute('d')"
    words = "[...document.querySelectorAll('.chart')[0].querySelectorAll('.times text')].map(t => t.textContent)"
    before = browser.js(shape)
    assert browser.js(words) == []
    browser.js("document.querySelector('[data-axis=time]').click()")
    places = [float(point.split(",")[0]) for point in browser.js(shape)[1:].split("L")]
    gaps = [b - a for a, b in itertools.pairwise(places)]
    assert gaps == pytest.approx([gaps[0], 7 * gaps[0], gaps[0]], rel=0.02)
    assert browser.js(words) == ["15 s", "30 s", "45 s", "1 min", "1.25 min", "1.5 min"]
    browser.js("document.querySelector('[data-axis=steps]').click()")
    assert browser.js(shape) == before
    assert browser.errors() == []


@needs_browser
def test_the_replay_moves_and_no_request_leaves_the_page(
    browser: Browser, ant: mujoco.MjModel, tmp_path: Path
) -> None:
    pytest.importorskip("mjviser")
    path = tmp_path / "replay.html"
    path.write_text(replay_html(one_episode(ant, ant_frames(ant, 300, 0.02), 0.05, "episode 1"), "Ant"))
    browser.open(path)
    assert browser.wait_for(lambda picture, _: len(picture) > 8000)  # not blank
    assert browser.wait_for(lambda picture, last: picture != last)
    still = browser.pause()
    assert len(still) > 8000
    browser.press_space()
    assert browser.wait_for(lambda picture, _: picture != still)
    assert browser.requests() == [path.as_uri()]
    assert browser.errors() == []
