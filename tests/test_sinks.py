"""Promises of the metric sinks: metrics.jsonl, TensorBoard, W&B."""

import json
import math
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest

import ludus
import warm_python
from ludus.errors import ConfigError, LudusError
from ludus.show.console import Console
from ludus.show.jsonl import JsonlSink, read_metrics, truncate_to
from ludus.show.sinks import Tee
from ludus.show.tensorboard import TensorBoardSink
from ludus.show.wandb import WandbSink
from terminal_rows import PUBLIC


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


def test_of_very_many_rows_all_evaluations_and_the_last_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long training could neither come to its end nor be resumed."""
    monkeypatch.setattr("ludus.show.jsonl._BYTES_AT_ONCE", 2_000)
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": step} | ({"eval/mean_reward": 1.0} if step % 50 == 0 else {"x": 0.5}) for step in range(503)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    steps = [row["step"] for row in read_metrics(path)]
    assert steps == sorted(steps)
    assert set(range(0, 503, 50)) <= set(steps)
    assert steps[-1] == 502
    assert 40 < len(steps) < 120


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
    assert len(read_metrics(path)) == int(rows) == 25  # of about 40 bytes each, in 1,000


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
    sink = WandbSink("project", "name", {"seed": 7}, tmp_path / "wandb", "abc", ("a", "b"), "why")
    sink.write(5, {"a": 1.0})
    sink.close()
    options = calls[0][1]
    assert isinstance(options, dict)
    assert (options["id"], options["resume"], sink.run_id) == ("abc", "allow", "abc")
    assert (options["tags"], options["notes"]) == (["a", "b"], "why")
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
