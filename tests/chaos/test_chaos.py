"""A sample of every kind of trial. `make chaos` tries them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GROUPS = ("interruptions", "hostile runs", "hostile files")


@pytest.mark.parametrize("group", GROUPS)
def test_a_sample_of_chaos_does_no_harm(group: str) -> None:
    """In a process of its own, which forks the trials: here there may be threads."""
    if group == "hostile files":
        pytest.importorskip("h5py")
        if not Path(__file__).with_name("hostile_files.py").exists():
            pytest.skip("there is no generator of hostile files")
    command = [sys.executable, "-m", "tests.chaos", "--short", "--jobs", "1", "--only", group]
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
