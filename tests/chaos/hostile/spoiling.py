"""A way of spoiling a run, and what all ways need."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import yaml

from ..jobs import on_policy
from ..sandbox import Sandbox

Spoil = Callable[[Sandbox, Random], None]
VERBS = ("eval", "report", "resume")
EXPORTED = (*VERBS, "export")  # which takes 6 s where it succeeds
WATCH = (*VERBS, "play")
ACTING = ("eval", "resume")

_SMALL = {"policy.hidden": "8 8", "eval.episodes": 1}
BASES = {
    "cartpole": ("gym:CartPole-v1", on_policy(2, 8, 4, 2, env__max_steps=20) | _SMALL),
    "mujoco": ("gym:InvertedPendulum-v5", on_policy(2, 8, 4, 2, env__max_steps=20) | _SMALL),
    "humanoid": (
        "humanoid-mimic",
        on_policy(2, 8, 2, 1, env__clips="stand.npz", env__max_steps=10, env__threads=1) | _SMALL,
    ),
}


@dataclass(frozen=True)
class Hostile:
    """One way of spoiling a run."""

    name: str
    spoil: Spoil
    verbs: Sequence[str] = VERBS
    refused: Sequence[str] = ()
    """Verbs that must not succeed: their result would be wrong."""
    accepted: Sequence[str] = ()
    """Verbs that must succeed: nothing they read is wrong."""
    base: str = "cartpole"
    more_steps: bool = False
    """Resume with --total-steps, which writes the configuration anew."""
    planted: str = ""
    """Text that must not stand in the report as it is."""


def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return config


def write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def checkpoint_of(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step_*"))[-1]


def checkpoints_of(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step_*"))


def redo_manifest(checkpoint: Path) -> None:
    """As a stranger would who has changed the files."""
    files = {}
    for file in sorted(checkpoint.iterdir()):
        if file.name != "manifest.json" and file.is_file():
            content = file.read_bytes()
            files[file.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
