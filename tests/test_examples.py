"""Scripts of examples/ that show what takes no change in Ludus: they run as they stand."""

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


def load_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_own_eyes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A network of the user's on images and numbers, with masked actions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))  # a run finds its network again by the module's name
    load_example("own_eyes").main(steps=2_048)
    assert "of 100 balls caught" in capsys.readouterr().out


@pytest.mark.parametrize(("steps", "enough"), [(6_000, 60), pytest.param(100_000, 400, marks=pytest.mark.slow)])
def test_own_algorithm(steps: int, enough: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm of the user's, in one file: it learns CartPole, where a random policy gets 22."""
    assert len((EXAMPLES / "own_algorithm.py").read_text().splitlines()) < 150
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    assert importlib.import_module("own_algorithm").main(steps, episodes=20) > enough


def test_own_algorithm_from_the_command_line(tmp_path: Path) -> None:
    """By its module's name, in other processes: it is trained, refused to strangers, resumed and evaluated."""

    def command(*arguments: str, state: str = "state") -> subprocess.CompletedProcess[str]:
        env = os.environ | {"XDG_STATE_HOME": str(tmp_path / state)}
        line = [sys.executable, "-m", "ludus.cli", *arguments]
        return subprocess.run(line, cwd=EXAMPLES, env=env, capture_output=True, text=True, check=False)

    run = str(tmp_path / "run")
    algo = ("--algo", "own_algorithm:A2C_ALGORITHM", "--total-steps", "4096", "--log.no-report")
    trained = command("train", "gym:CartPole-v1", *algo, "--a2c.learning-rate", "1e-3", "--run-dir", run)
    assert trained.returncode == 0, trained.stderr
    refused = command("eval", run, "--episodes", "1", state="another user's")
    assert refused.returncode == 2
    assert "would import the module 'own_algorithm'" in refused.stderr
    assert command("eval", run, "--episodes", "1", "--trust", state="another user's").returncode == 0
    resumed = command("resume", run, "--total-steps", "8192")
    assert resumed.returncode == 0, resumed.stderr
    assert "learning_rate: 0.001" in (tmp_path / "run" / "config.yaml").read_text()
    wrong = command("train", "gym:CartPole-v1", *algo, "--ppo.clip", "0.1")
    assert "--ppo.clip is a setting of amp and ppo: with --algo own_algorithm:A2C_ALGORITHM" in wrong.stderr


def test_own_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A reward term and a termination of the user's, and a randomised half-cheetah."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    load_example("own_reward").main(steps=2_048, episodes=1)
    assert "reward/jerk" in capsys.readouterr().out
