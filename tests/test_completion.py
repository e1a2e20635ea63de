"""Completion of the command in real shells."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ludus.commands.completion import words_for
from warm_python import ludus_command, run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "ludus"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs in the present folder, one with checkpoints."""
    for name in ("a", "b"):
        (tmp_path / "runs" / "kuka" / name / "checkpoints" / "step_000002048").mkdir(parents=True)
        (tmp_path / "runs" / "kuka" / name / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ludus tr", ["train"]),
        ("ludus re", ["resume", "report", "record"]),
        ("ludus train kuka-pick", ["kuka-pick-place", "kuka-pick-place-large"]),
        ("ludus train mett", ["mettagrid:"]),
        ("ludus train gym:CartPole", ["gym:CartPole-v0", "gym:CartPole-v1"]),
        ("ludus train forage --algo s", ["sac"]),
        ("ludus check for", ["forage", "forage-large"]),
        ("ludus eval ", ["runs/kuka/a", "runs/kuka/b"]),
        ("ludus eval runs/", ["runs/kuka/"]),
        ("ludus eval runs/kuka/", ["runs/kuka/a", "runs/kuka/b"]),
        ("ludus eval runs/kuka/a@", [f"runs/kuka/a@{which}" for which in ("best", "final", "newest", "2048")]),
        ("ludus eval runs/kuka/a --ep", ["--episodes"]),
        ("ludus label x.hdf5 --run runs/kuka/", ["runs/kuka/a", "runs/kuka/b"]),
        ("ludus compare runs/kuka/a runs/kuka/", ["runs/kuka/a", "runs/kuka/b"]),
        ("ludus motions im", ["import"]),
        ("ludus motions import --li", ["--licence"]),
        ("ludus completion ", ["bash", "zsh", "fish"]),
        ("ludus nothing --x", []),
        ("ludus eval 'open", []),
    ],
)
def test_words_that_may_come_next(line: str, words: list[str]) -> None:
    assert words_for(line) == words


def test_flags_of_a_preset_are_found_once_and_kept(cache: Path) -> None:
    assert words_for("ludus train gym:CartPole-v1 --policy.mem") == ["--policy.memory", "--policy.memory-size"]
    (kept,) = cache.rglob("*/*")
    kept.write_text("--policy.memory lstm\n")  # as only what is kept would say
    assert words_for("ludus train gym:CartPole-v1 --policy.memory ") == ["lstm"]
    assert words_for("ludus train gym:CartPole-v1 --policy.mem") == ["--policy.memory"]


def test_a_tab_imports_nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("open('imported', 'w')\n")
    monkeypatch.chdir(tmp_path)
    assert "--ppo.gamma" in words_for("ludus train gym:mine:Env-v0 --ppo.ga")
    assert not (tmp_path / "imported").exists()


def test_words_come_without_anything_slow() -> None:
    program = (
        "import sys; from ludus.commands.completion import words_for; words_for('ludus train kuka')\n"
        "print([name for name in ('torch', 'mujoco', 'gymnasium', 'numpy', 'tyro') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def in_shell(shell: str, commands: str, folder: Path) -> list[str]:
    """What a shell prints that finds `ludus` and the script of its completion in the folder."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (folder / "ludus").write_text(f'#!/bin/sh\nexec {sys.executable} -m ludus "$@"\n')
    (folder / "ludus").chmod(0o755)
    (folder / "script").write_text(run(ludus_command("completion", shell)).stdout)
    environment = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    line = [shell, *(["-f"] if shell == "zsh" else []), "-c", commands]
    return subprocess.run(line, capture_output=True, text=True, env=environment, cwd=folder).stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ludus ev", ["eval"]),
        ("ludus train gym:CartPole", ["CartPole-v0", "CartPole-v1"]),  # bash has `gym:` already
        ("ludus eval runs/kuka/a@f", ["final"]),
    ],
)
@pytest.mark.usefixtures("runs")
def test_bash_completes(line: str, words: list[str], tmp_path: Path) -> None:
    asked = f"COMP_LINE='{line}'; COMP_POINT={len(line)}; _ludus; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    assert in_shell("bash", f"source ./script; compopt() {{ :; }}; {asked}", tmp_path) == words


def test_fish_completes(tmp_path: Path) -> None:
    assert in_shell("fish", "source ./script; complete -C 'ludus ev'", tmp_path) == ["eval"]


def test_zsh_can_read_the_script(tmp_path: Path) -> None:
    told = "zsh -n ./script && autoload -Uz compinit && compinit -u -D && source ./script && print $_comps[ludus]"
    assert in_shell("zsh", told, tmp_path) == ["_ludus"]
