"""Scripts of examples/ that show what takes no change in Ludus: they run as they stand."""

import importlib.util
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


def test_own_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A reward term and a termination of the user's, and a randomised half-cheetah."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    load_example("own_reward").main(steps=2_048)
    assert "reward/jerk" in capsys.readouterr().out
