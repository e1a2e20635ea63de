"""A sample of every kind of trial. `make chaos` tries them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("group", ["interruptions", "hostile"])
def test_a_sample_of_chaos_does_no_harm(group: str) -> None:
    """In a process of its own, which forks the trials: here there may be threads."""
    command = [sys.executable, "-m", "tests.chaos", "--short", "--jobs", "1", "--only", group]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
