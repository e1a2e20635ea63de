"""What an installation has: every file under src, and a page for a package index that leads nowhere wrong."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RELATIVE = re.compile(r"\]\((?!https?://|#)[^)]*\)")


def described(url: str) -> str:
    spec = importlib.util.spec_from_file_location("ludus_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.description((ROOT / "README.md").read_text(), url))


def test_a_package_index_is_shown_whole_addresses_or_none() -> None:
    assert RELATIVE.search((ROOT / "README.md").read_text()), "there is something to make whole"
    alone = described("")
    assert not RELATIVE.search(alone)
    assert "![" not in alone
    published = described("https://example.org/ludus/")
    assert not RELATIVE.search(published)
    assert "](https://example.org/ludus/docs/images/kuka.png)" in published
    assert published.count("![") == (ROOT / "README.md").read_text().count("![")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built of a copy: what an earlier build left in the repository must not get into it."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    line = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "-w", str(folder), str(folder)]
    built = subprocess.run(line, env=os.environ | {"LUDUS_URL": ""}, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_the_wheel_has_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    """Models, clips, templates and types, too."""
    listed = subprocess.run(["git", "ls-files", "src"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name.removeprefix("src/") for name in listed.stdout.splitlines()}
    assert {"ludus/py.typed", "ludus/envs/kuka/scene.xml", "ludus/envs/humanoid/clips/bow.npz"} <= wanted
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == wanted


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = wheel.read(name).decode()
    for line in (
        "Name: ludus",
        "License-Expression: MIT",
        "Requires-Python: >=3.11",
        "Classifier: Typing :: Typed",
    ):
        assert line in metadata
    assert "Project-URL" not in metadata, "none was given, and none is invented"
    assert "Description-Content-Type: text/markdown" in metadata
