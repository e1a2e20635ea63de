"""Pages of a stranger's run: nothing of it is run as a script, and odd files give a page or a sentence."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ludus
from humanoid_body import JOINTS
from ludus.envs import display_of
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.display import CLIPS
from ludus.errors import LudusError
from ludus.motion_viewing import view_clips
from ludus.show.episode_table import read_table, table_lines
from ludus.show.jsonl import read_metrics
from ludus.show.mujoco_scene import browser_server
from ludus.show.playback import Page
from ludus.show.report import write_report
from ludus.show.reward_page import RewardTrace
from ludus.show.same_origin import is_own_page
from ludus.show.viewer import _words

SCRIPT = "<script>alert(1)</script>"
DISPLAY = display_of(HumanoidConfig())  # which shows all that can be shown
ROW = {"step": 1, "rollout/ep_rew_mean": 1.0, "eval/mean_reward": 2.0, "time/time_elapsed": 3.0}


def write_run(folder: Path, rows: list[Any] | None = None, **files: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in (rows or [ROW, {**ROW, "step": 2}])]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    for name, content in files.items():
        path = folder / name.replace("_json", ".json").replace("_yaml", ".yaml")
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return folder


# The report -----------------------------------------------------------------------------------------
def test_trust_15_a_planted_replay_is_not_embedded(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (run / "replay.html").write_text("smuggled in")
    page = write_report(run, display=DISPLAY).read_text()
    assert "smuggled in" not in page
    assert "<iframe" not in page


def test_trust_15_the_recorded_replay_is_sandboxed(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path), replays=[Page('"><b>recorded</b>')]).read_text()
    (frame,) = re.findall("<iframe[^>]*>", page)
    assert 'sandbox="allow-scripts"' in frame
    assert "allow-same-origin" not in page
    assert "&quot;&gt;&lt;b&gt;recorded" in frame


def test_nothing_that_a_run_says_of_itself_becomes_part_of_the_page(tmp_path: Path) -> None:
    clips = {"step": 1, "rows": [{"clip": SCRIPT, "success_rate": 1.0, SCRIPT: 1}]}
    facts = {"preset": SCRIPT, "seed": SCRIPT, "started": [SCRIPT], SCRIPT: {SCRIPT: SCRIPT}}
    rows = [{**ROW, SCRIPT: 1.0, f"reward/{SCRIPT}": 2.0, f"train/{SCRIPT}": 3.0}]
    run = write_run(tmp_path / SCRIPT.replace("/", ""), rows, evaluation_json=clips, run_json=facts)
    (run / "config.yaml").write_text(SCRIPT)
    page = write_report(run, display=DISPLAY, extra={SCRIPT: SCRIPT}).read_text()
    assert "alert(1)" in page
    assert SCRIPT not in page
    assert not re.search(r"<[^>]*(src|href)=.?https?:", page)


_ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, -1e308, 5e-324, 10**400, 2**63, float("nan"), float("inf"), "9" * 5000, "text", "",
    [], [1, [2, [3]]], {}, {"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}, "\ud800", "\x1b[2J", SCRIPT,
)  # fmt: skip


def page_or_sentence(run: Path) -> None:
    """Any other error is a failure."""
    try:
        page = write_report(run, display=DISPLAY).read_bytes()
    except LudusError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        page.decode()


@pytest.mark.parametrize("number", range(len(_ODD)))
def test_trust_17_odd_values_in_a_runs_files_give_a_report_or_a_sentence(tmp_path: Path, number: int) -> None:
    odd = _ODD[number]
    names = (
        "eval/success_rate",
        "eval/success_low",
        "eval/mean_reward",
        "eval/mpjpe",
        "train/r_loss",
        "reward/AUC",
    )
    rows = [{"step": i, **dict.fromkeys(names, odd if i else 0.5), "loop/batches": odd} for i in range(3)]
    table = {"step": odd, "rows": [{"clip": "walk", "success_rate": odd, "mpjpe": odd, "episodes": odd}]}
    clips = {**table, "step": 5}
    named = {"step": 5, "rows": [{"clip": odd, "success_rate": 1.0}]}
    variants: list[dict[str, Any]] = [
        {"rows": rows},
        {"rows": [{**row, "step": odd} for row in rows]},
        {"rows": [odd, *rows]},
        {"rows": [{"step": 1, "train/r_loss": 1.0, "loop/batches": odd}] * 2},
        {"rows": [{**ROW, "time/time_elapsed": odd, "time/fps": odd}]},
        *({"evaluation_json": content} for content in (odd, table, clips, named, {"step": 1, "rows": odd})),
        *({"run_json": content} for content in (odd, {"preset": odd, "seed": odd, "started": odd, "more": odd})),
    ]
    for i, variant in enumerate(variants):
        page_or_sentence(write_run(tmp_path / str(i), **variant))
        _, known = read_table(CLIPS, tmp_path / str(i))
        assert not known or table_lines(CLIPS, known)


def test_trust_17_files_that_are_not_what_they_should_be_give_a_report_or_a_sentence(tmp_path: Path) -> None:
    contents = (b"[" * 200_000, bytes(range(256)), b"", b"{}", b'{"step": 1, "rows": {}}', b"\xff\xfe")
    for number, name in enumerate(("evaluation.json", "run.json", "config.yaml", "metrics.jsonl")):
        for kind, content in enumerate(contents):
            run = write_run(tmp_path / f"{number}_{kind}")
            (run / name).write_bytes(content)
            page_or_sentence(run)
        run = write_run(tmp_path / f"{number}_pipe")
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)
        page_or_sentence(run)
        run = write_run(tmp_path / f"{number}_device")
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to("/dev/zero")
        page_or_sentence(run)
        run = write_run(tmp_path / f"{number}_folder")
        (run / name).unlink(missing_ok=True)
        (run / name).mkdir()
        page_or_sentence(run)


def test_sixty_runs_with_mutated_files_give_a_report_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    good = {
        "metrics.jsonl": ("\n".join(json.dumps({**ROW, "step": i}) for i in range(1, 9)) + "\n").encode(),
        "evaluation.json": json.dumps({"step": 1, "rows": [{"clip": "walk", "mpjpe": 3.0}]}).encode(),
        "run.json": json.dumps({"preset": "ant", "seed": 3, "versions": {"torch": "2"}}).encode(),
    }
    for number in range(60):
        run = write_run(tmp_path / str(number))
        for name, content in good.items():
            changed = bytearray(content)
            for _ in range(int(rng.integers(0, 4))):
                at = int(rng.integers(0, len(changed)))
                changed[at : at + int(rng.integers(0, 5))] = rng.choice(
                    [b"9", b"e9", b"-", b'"', b"{", b"[", b"\xff"]
                )
            (run / name).write_bytes(changed)
        page_or_sentence(run)


def test_names_that_are_not_utf8_are_shown_in_the_report_and_beside_clips(tmp_path: Path) -> None:
    run = write_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/run_\xff")))
    trace = RewardTrace("demo_\udcff", None, np.arange(3.0))
    assert (
        "run_�" in write_report(run, display=DISPLAY, replays=[Page("<p>\udcff</p>")], rewards=[trace]).read_text()
    )
    arrays = {"pos": [[0, 0, 1.0]] * 3, "quat": [[1.0, 0, 0, 0]] * 3}
    clip = Clip("w\udcff<b>", 30, np.array(arrays["pos"]), np.array(arrays["quat"]), np.zeros((3, len(JOINTS))))
    view_clips([clip], 0, None, tmp_path / "clips.html")
    page = (tmp_path / "clips.html").read_text()
    assert "w�&lt;b&gt;" in page
    assert "<b>" not in page.partition("</title>")[0]


def test_numbers_that_cannot_be_drawn_are_read_as_missing(tmp_path: Path) -> None:
    run = write_run(tmp_path, [{"step": 1, "a": 1e300, "b": 10**400, "c": "x", "d": 1e-320, "e": 7}])
    (row,) = read_metrics(run / "metrics.jsonl")
    assert [name for name, value in row.items() if value != value] == ["a", "b", "c"]
    assert (row["d"], row["e"]) == (0, 7)


# A comparison ---------------------------------------------------------------------------------------
def test_nothing_that_compared_runs_say_of_themselves_becomes_part_of_the_page(tmp_path: Path) -> None:
    odd = SCRIPT.replace("/", "")
    for name in (odd, f"other {odd}"):
        facts = {"commit": SCRIPT, "versions": {"ludus": SCRIPT}}
        settings = {SCRIPT: {SCRIPT: f"{name} {SCRIPT}"}, "env": {"kind": SCRIPT, "id": f"{name} {SCRIPT}"}}
        rows = [{"step": i, f"eval/{SCRIPT}": 1.0 * i} for i in (1, 2)]
        write_run(tmp_path / name / odd, rows, run_json=facts, config_yaml={"seed": SCRIPT, **settings})
    comparison = ludus.compare([tmp_path / odd, tmp_path / f"other {odd}"], f"eval/{SCRIPT}")
    assert "alert(1)" in comparison.page
    assert SCRIPT not in comparison.page
    assert odd not in comparison.page
    assert not re.search(r"<[^>]*(src|href)=.?https?:", comparison.page)


def test_escape_codes_of_compared_runs_do_not_reach_the_terminal(tmp_path: Path) -> None:
    settings = {"seed": "\x1b[2J", "ppo": {"\x1b[2J": "\x1b[2J"}}
    write_run(tmp_path / "\x1b[2Ja", run_json={"commit": "\x1b[2J"}, config_yaml=settings)
    write_run(tmp_path / "b", config_yaml={"seed": 1})
    assert "\x1b" not in str(ludus.compare([tmp_path / "\x1b[2Ja", tmp_path / "b"]))


@pytest.mark.parametrize("number", range(len(_ODD)))
def test_odd_values_in_compared_runs_give_a_page_or_a_sentence(tmp_path: Path, number: int) -> None:
    odd = _ODD[number]
    measured = {"by": "train", "checkpoint": odd, "step": odd, "trained": odd, "actions": odd, "seed": odd}
    names = ("eval/success_rate", "eval/mean_reward", "time/time_elapsed")
    variants: list[dict[str, Any]] = [
        {"rows": [{"step": i, **dict.fromkeys(names, odd if i else 0.5)} for i in range(3)]},
        {"rows": [{"step": odd, "eval/mean_reward": 1.0}, ROW, ROW]},
        {"rows": [odd]},
        {"run_json": odd},
        {"run_json": {"seed": odd, "commit": odd, "versions": odd, "hardware": odd}},
        {"config_yaml": odd},
        {"config_yaml": {"seed": odd, "env": odd, "ppo": {"gamma": odd}, "log": odd}},
        {"results_json": odd},
        {"results_json": [{**measured, "result": odd}, odd]},
    ]
    write_run(tmp_path / "good", config_yaml={"seed": 1})
    for i, variant in enumerate(variants):
        run = write_run(tmp_path / str(i), **({"config_yaml": {"seed": 1}} | variant))
        for paths in ([run], [run, tmp_path / "good"]):
            try:
                comparison = ludus.compare(paths)
            except LudusError as error:
                assert str(error).isprintable()  # noqa: PT017
            else:
                comparison.page.encode()
                json.dumps(comparison.as_dict())
                assert "\x1b" not in str(comparison)


def test_files_of_compared_runs_that_lead_elsewhere_or_never_end_are_not_read(tmp_path: Path) -> None:
    secret = write_run(tmp_path / "secret", config_yaml={"seed": 1})
    for name in ("metrics.jsonl", "config.yaml", "run.json", "results.json"):
        for kind in ("link", "pipe"):
            run = write_run(tmp_path / "runs" / f"{kind}_{name}", config_yaml={"seed": 1}, run_json={})
            (run / name).unlink(missing_ok=True)
            os.mkfifo(run / name) if kind == "pipe" else (run / name).symlink_to(secret / "metrics.jsonl")
    good = write_run(tmp_path / "runs" / "good", config_yaml={"seed": 1}, run_json={})
    comparison = ludus.compare(tmp_path / "runs")
    assert [run.path for run in comparison.runs] == [good]
    assert sum("is left out" in warning for warning in comparison.warnings) == 8


# The live viewer ------------------------------------------------------------------------------------
def test_a_clips_name_cannot_be_a_script_of_the_viewers_panel() -> None:
    shown = _words("{alert(1)} <img src=x onerror=alert(1)> [a](javascript:x) `b` | c\nimport x")
    assert not set("{}<>[]`|\n") & set(shown)


@pytest.mark.parametrize(
    ("host", "origin", "own"),
    [
        ("localhost:8080", "http://localhost:8080", True),
        ("127.0.0.1:8080", "http://127.0.0.1:8080", True),
        ("[::1]:8080", "http://[::1]:8080", True),
        ("localhost:9000", "http://localhost:9000", True),  # a port that leads here from another machine
        ("localhost:8080", None, True),  # no web page
        ("localhost:8080", "http://evil.example", False),
        ("localhost:8080", "http://localhost:3000", False),
        ("localhost:8080", "http://127.0.0.1:8080", False),
        ("localhost:8080", "null", False),
        ("evil.example:8080", "http://evil.example:8080", False),  # whose name leads here
        ("localhost.evil.example:8080", "http://localhost.evil.example:8080", False),
        ("", None, False),
        (None, None, False),
        ("localhost:8080", "http://[", False),
    ],
)
def test_only_the_viewers_own_page_is_its_own(host: str | None, origin: str | None, own: bool) -> None:
    assert is_own_page(host, origin) is own


def test_trust_23_a_websocket_from_another_origin_is_refused() -> None:
    pytest.importorskip("mjviser")
    import viser
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect
    from websockets.typing import Origin, Subprotocol

    with browser_server() as server:
        port = server.get_port()
        protocol = [Subprotocol(f"viser-v{viser.__version__}")]

        def first_message(origin: str | None, host: str = "localhost") -> bytes | str:
            own = None if origin is None else Origin(origin)
            with connect(f"ws://{host}:{port}", origin=own, subprotocols=protocol, max_size=None) as socket:
                return socket.recv(timeout=30)

        assert first_message(f"http://localhost:{port}")
        assert first_message(f"http://127.0.0.1:{port}", "127.0.0.1")
        for origin in (
            "http://evil.example",
            "null",
            f"http://localhost:{port + 1}",
            f"https://evil.example:{port}",
        ):
            with pytest.raises(InvalidStatus) as refused:
                first_message(origin)
            assert refused.value.response.status_code == 403


def test_trust_23_the_viewers_page_is_not_given_under_a_strangers_name() -> None:
    pytest.importorskip("mjviser")
    import http.client

    with browser_server() as server:
        for host, status in (("localhost", 200), ("evil.example", 403)):
            connection = http.client.HTTPConnection("127.0.0.1", server.get_port(), timeout=30)
            connection.request("GET", "/", headers={"Host": f"{host}:{server.get_port()}"})
            assert connection.getresponse().status == status
            connection.close()
