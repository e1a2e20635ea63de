"""The README's Python: it is extracted and run, and it is as short as it says."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ludus import cli

README = (Path(__file__).parents[1] / "README.md").read_text()
QUICK = {"total_steps=2e4": "total_steps=512", "episodes=100": "episodes=2", '"max_steps": 200': '"max_steps": 20'}


def python_block() -> str:
    (block,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return str(block)


def quick_block() -> str:
    block = python_block()
    for long, short in QUICK.items():
        assert block.count(long) == 1
        block = block.replace(long, short)
    return block


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The README's lines as a script, in the folder in which one stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "first", raising=False)
    (tmp_path / "first.py").write_text(quick_block())
    return tmp_path / "first.py"


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= 1_200


def check_said(said: str, folder: Path) -> Path:
    """What the lines print last: a result, and where the report is. Returns the run's folder."""
    result, report = said.splitlines()[-2:]
    assert "'mean_reward'" in result
    assert (folder / report).read_text().count("<svg") > 3, "curves"
    return Path(report).parent


def test_ten_lines_lead_from_an_own_environment_and_network_to_a_report(
    first: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len([line for line in python_block().splitlines() if line.strip()]) == 10
    importlib.import_module("first")
    run = check_said(capsys.readouterr().out, first.parent)
    # From elsewhere a script that has no guard would train again whenever its run is looked at.
    monkeypatch.setattr(sys, "argv", ["ludus", "eval", str(run), "--episodes", "1"])
    monkeypatch.delitem(sys.modules, "first")
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("ludus: first.py trains while it is imported.")
    guarded = quick_block().replace("run = ", 'if __name__ == "__main__":\n    run = ')
    first.write_text(re.sub(r"^print", "    print", guarded, flags=re.MULTILINE))
    importlib.invalidate_caches()
    cli.main()
    assert "on 1 new start" in capsys.readouterr().out


def test_the_ten_lines_as_they_stand(tmp_path: Path) -> None:
    (tmp_path / "first.py").write_text(python_block())
    line = [sys.executable, "first.py"]
    said = subprocess.run(line, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=True).stdout
    check_said(said, tmp_path)
    reward = re.search(r"'mean_reward': (-?[0-9.]+)", said)
    assert reward is not None
    assert float(reward[1]) > -150, "it has learned: an untrained policy gets -200"
