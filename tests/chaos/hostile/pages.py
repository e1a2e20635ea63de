"""Metrics, evaluations and facts that end up in a report."""

import json
import shutil
from functools import partial
from random import Random

from ..sandbox import Sandbox
from .spoiling import Hostile


def _metrics(text: bytes, sandbox: Sandbox, random: Random) -> None:
    path = sandbox.run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + text + b"\n" + path.read_bytes())


def _plant(name: str, text: str | bytes, sandbox: Sandbox, random: Random) -> None:
    (sandbox.run / name).write_bytes(text.encode() if isinstance(text, str) else text)


def _plant_replay(sandbox: Sandbox, random: Random) -> None:
    """In a run without a checkpoint, whose report records no replay of its own."""
    shutil.rmtree(sandbox.run / "checkpoints")
    (sandbox.run / "replay.html").write_text("<script>/* planted by a stranger */</script>")


_SCRIPT = "<script>planted()</script>"
_ESCAPES = "\x1b]0;owned\x07\x1b[31m"
_METRICS = {
    "a deep line": b'{"step": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge numbers": b'{"step": 1, "train/loss": 1e400, "time/fps": -1e308}',
    "5,000 digits": b'{"step": ' + b"9" * 5_000 + b"}",
    "noise": bytes(range(256)) * 10,
    "a step of true": b'{"step": true, "eval/reward_mean": NaN}',
    "odd values": b'{"step": 8, "train/loss": [1], "eval/reward_mean": {"a": 1}, "x": null, "": 3}',
    "markup": json.dumps({"step": 40, _SCRIPT: 1.0, f"train/{_SCRIPT}": 2.0, "eval/reward_mean": 1.0}).encode(),
    "a negative step": b'{"step": -5, "time/fps": 1.0, "eval/reward_mean": 3.0, "train/loss": 2.0}',
}
_EVALUATIONS = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "a list": "[1, 2]",
    "odd rows": json.dumps({"step": "x", "rows": [1, None, {"clip": {"a": 1}, "success": "yes"}]}),
    "no numbers": json.dumps({"step": 1, "rows": [{"clip": "a", "success": None, "mpjpe": "NaN"}]}),
    "markup": json.dumps({"step": 1, "rows": [{"clip": _SCRIPT + _ESCAPES, "success_rate": 1.0, "mpjpe": 0.1}]}),
    "5,000 digits": '{"step": '
    + "9" * 5_000
    + ', "rows": [{"clip": "squat", "success_rate": '
    + "9" * 5_000
    + "}]}",
    "huge numbers": '{"step": 1e400, "rows": [{"clip": "squat", "success_rate": 1e400}]}',
}
_FACTS: dict[str, str | bytes] = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "a list": "[]",
    "odd values": json.dumps({"preset": {"a": [1]}, "seed": None, "versions": [1], "machine": 7}),
    "markup": json.dumps({"preset": _SCRIPT, "machine": _SCRIPT + _ESCAPES}),
    "noise": bytes(range(256)),
}


def hostile_pages() -> list[Hostile]:
    shown = ("report", "resume")
    found = [
        Hostile("replay.html planted", _plant_replay, ("report",), planted='srcdoc="&lt;script&gt;/* planted'),
    ]
    found += [
        Hostile(f"metrics.jsonl: {name}", partial(_metrics, text), shown, planted=_SCRIPT)
        for name, text in _METRICS.items()
    ]
    found += [
        Hostile(
            f"evaluation.json: {name}",
            partial(_plant, "evaluation.json", text),
            ("report",),
            base="humanoid",
            planted=_SCRIPT,
        )
        for name, text in _EVALUATIONS.items()
    ]
    return found + [
        Hostile(f"run.json: {name}", partial(_plant, "run.json", text), shown, planted=_SCRIPT)
        for name, text in _FACTS.items()
    ]
