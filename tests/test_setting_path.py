"""How far a setting travels from the command line: through which files, on the call stack where it is used."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import ludus
from ludus import cli
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.replay.config import ReplayConfig
from ludus.config import EvalConfig
from ludus.envs.kuka.config import KukaConfig
from ludus.policies.config import PolicyConfig

SOURCE = Path(ludus.__file__).parent
MOST_FILES = 8
SMALL: tuple[str, ...] = (
    "--log.no-report",
    "--log.no-tensorboard",
    "--eval.every",
    "100000",
    "--eval.episodes",
    "1",
)
SMALL += ("--eval.final-episodes", "0")  # it reads settings from the run on the disk, as `ludus eval` does
# Preset and flags, the section's class, the field, the file in which it is used.
SETTINGS: dict[str, tuple[tuple[str, ...], type, str, str]] = {
    "ppo.clip": (("gym:CartPole-v1", "--ppo.clip", "0.1"), PPOConfig, "clip", "algorithms/ppo/update.py"),
    "eval.max_steps": (
        ("gym:CartPole-v1", "--eval.max-steps", "9"),
        EvalConfig,
        "max_steps",
        "training/evaluator.py",
    ),
    "policy.hidden": (("gym:CartPole-v1", "--policy.hidden", "8"), PolicyConfig, "hidden", "policies/policy.py"),
    "env.assist": (("kuka-pick-place", "--env.assist", "0.1"), KukaConfig, "assist", "envs/kuka/task.py"),
    "replay.batch_size": (
        ("gym:Pendulum-v1", "--algo", "sac", "--batch-size", "8", "--replay.warmup", "100"),
        ReplayConfig,
        "batch_size",
        "algorithms/replay/learner.py",
    ),
}


def files_below(frame: Any) -> list[str]:
    """Of Ludus, from the innermost to the command."""
    found = []
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(SOURCE):
            found.append(str(path.relative_to(SOURCE)))
        frame = frame.f_back
    return found


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_enters_few_files(setting: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (preset, *flags), section, field, used_in = SETTINGS[setting]
    stacks: list[list[str]] = []

    def watched(self: Any, name: str) -> Any:
        if name == field:
            stacks.append(files_below(sys._getframe(1)))
        return object.__getattribute__(self, name)

    monkeypatch.setattr(section, "__getattribute__", watched, raising=False)
    run = ("--run-dir", str(tmp_path / "run"), "--total-steps", "256")
    monkeypatch.setattr(sys, "argv", ["ludus", "train", preset, *flags, *run, *SMALL])
    monkeypatch.setitem(os.environ, "COLUMNS", "100")
    cli.main()
    used = [stack for stack in stacks if stack and stack[0] == used_in]
    assert used, sorted({stack[0] for stack in stacks if stack})
    paths = [list(dict.fromkeys(reversed(stack))) for stack in used]
    assert all(path[0] == "cli.py" for path in paths)
    longest = max(paths, key=len)
    assert len(longest) <= MOST_FILES, longest
