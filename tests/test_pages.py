"""README and docs: commands and scripts in them work, figures come from result files, links lead somewhere."""

import functools
import inspect
import os
import re
import subprocess
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tyro
import yaml

import ludus
from ludus import experiment, runs
from ludus.cli import run_verb
from ludus.commands import COMMANDS
from ludus.config_files import load_shared_config
from ludus.presets import find_preset
from ludus.ray_cluster import RayCluster
from ludus.show.console import Console
from ludus.sweeping import driving
from page_blocks import PAGES, ROOT, Block, blocks, commands
from pages import figures

MOST_WORDS = 25_000
KINDS = {"bash", "python", "yaml", "toml", "text", "math"}
USER_MODULES = ROOT / "tests" / "user_modules"  # "my_package" and so on, as the pages name them
SHELL = {"cd", "source", "tensorboard", "pytest", "nvidia-cuda-mps-control"}  # what is not ours to check


def test_the_pages_are_short() -> None:
    """As `wc -w docs/*.md` counts; the reference is written when the site is built."""
    assert sum(len(page.read_text().split()) for page in (ROOT / "docs").glob("*.md")) <= MOST_WORDS


def test_every_page_is_in_the_table_of_contents() -> None:
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert [page.name for page in (ROOT / "docs").glob("*.md") if page.name not in listed] == []


# figures -----------------------------------------------------------------------------------------------
def test_pages_show_the_figures_of_the_result_files() -> None:
    stale = [file.name for file, text in figures.written().items() if file.read_text() != text]
    assert stale == [], "run `make pages`"


def test_a_missed_bar_is_said_to_be_missed() -> None:
    assert str(figures.Measured([99.5, 98.5], "%", 1, 97)) == "99.0 % (98.5…99.5); bar 97.0 %"
    assert str(figures.Measured([99.5, 88.0], "%", 1, 97)) == "93.8 % (88.0…99.5) **MISSED**; bar 97.0 %"
    assert figures.Measured([99.5, 96.0], "%", 1, 97, every=True).missed
    assert figures.Measured([1.07], digits=2, bar=1.05, better="less").missed


def test_a_quote_fills_its_own_place_alone() -> None:
    known: dict[str, Any] = {"a": {"quotes": {"x": {"says": "one"}, "y": {"says": "two"}}}}
    page = "<!-- figure: a.x -->\n<!-- end -->\n\nkept\n\n<!-- figure: a.y -->\nold\n<!-- end -->\n"
    filled = "<!-- figure: a.x -->\none\n<!-- end -->\n\nkept\n\n<!-- figure: a.y -->\ntwo\n<!-- end -->\n"
    assert figures.quoted(page, known) == filled == figures.quoted(filled, known)


def test_a_figure_tells_of_how_many_seeds_it_is() -> None:
    assert figures.Measured([5]).shown == "5"
    assert figures.Measured([5, 5]).shown == "5 (2 seeds)"
    assert figures.Measured([1, 9, 5]).shown == "5 (1…9)"
    assert figures.Measured([1, 9, 5, 5]).shown == "5 (4 seeds, 1…9)"


def test_tables_of_the_same_columns_are_one_that_names_each_source() -> None:
    head = {"title": "Speed", "command": "make bench", "machine": "here"}
    old = {"recorded": "1111111, 2026-01-01", "columns": ["", "rate"], "rows": [["a", {"seeds": [1], "bar": 2}]]}
    new = old | {"recorded": "2222222, 2026-02-02", "rows": [["b", {"seeds": [3], "bar": 2}]]}
    hidden = old | {"detail": True, "columns": ["secret"]}
    said = {"recorded": old["recorded"], "text": "As before."}
    assert figures._section(head | {"parts": [old, hidden, new, said]}).splitlines()[2:] == [
        "`make bench` *1111111, 2026-01-01, `here`*",
        "",
        "| | rate (bar 2) |",
        "|---|---|",
        "| a | 1 **MISSED** |",
        "| *2222222, 2026-02-02, `here`* | |",
        "| b | 3 |",
        "",
        "*1111111, 2026-01-01, `here`*",
        "",
        "As before.",
    ]


def test_every_result_names_its_command_commit_date_and_machine() -> None:
    machines = tomllib.loads(figures.MACHINES.read_text())
    for name, result in figures.results().items():
        assert (ROOT / result["command"].split()[1]).exists() or result["command"].startswith("make "), name
        for part in result["parts"]:
            assert re.fullmatch(r"[0-9a-f]{7}, \d{4}-\d\d-\d\d", part["recorded"]), (name, part["recorded"])
            assert part.get("machine", result["machine"]) in machines, name


RATE = r"\d(?: million| M)? (?:agent-|trained |control |gradient )*(?:steps|updates|images)(?:/s| a second)"
MEASURED = re.compile(rf"{RATE}|\d % of \d+ new starts")


def test_measured_figures_stand_in_result_files_alone() -> None:
    found = []
    for page in PAGES:
        text = figures.QUOTE.sub("", page.read_text())
        if page != figures.PAGE:
            found += [f"{page.name}: {match[0]}" for match in MEASURED.finditer(text)]
    assert found == [], "move it to benchmarks/results/ and quote it"


# links -------------------------------------------------------------------------------------------------
def test_links_lead_somewhere() -> None:
    wrong = []
    for page in (*PAGES, ROOT / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            file, _, anchor = target.partition("#")
            if "://" in target:
                continue
            there = page if not file else (page.parent / file)
            if not there.exists() or (anchor and anchor not in anchors(there)):
                wrong.append(f"{page.name}: {target}")
    assert wrong == []


def anchors(page: Path) -> set[str]:
    """As GitHub and the site make them of headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def test_the_site_is_built_without_a_broken_link(tmp_path: Path) -> None:
    """Strictly: a warning is an error. Nothing on it is loaded from elsewhere."""
    line = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    built = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    assert {"index.html", "kuka.html", "settings.html", "python.html"} <= {page.name for page in pages}
    foreign = r'<(?:script|img|link)[^>]+(?:src|href)="?https?://'
    assert [page.name for page, text in pages.items() if re.search(foreign, text)] == []
    assert "ludus.train" in (tmp_path / "reference" / "python.html").read_text()


# commands ----------------------------------------------------------------------------------------------
@pytest.fixture
def user_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as a user has it: new, and with the modules that the pages name to be found."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(USER_MODULES), str(ROOT / "examples")]
    yield tmp_path
    sys.path[:] = path
    for name in ("my_task", *(name for name in set(sys.modules) - modules if name.startswith("block_"))):
        sys.modules.pop(name, None)


class ReadOnly(Exception):  # noqa: N818 (no error: the arguments were good)
    """All arguments of a command were read, and it would begin now."""


@pytest.fixture
def only_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands read their arguments with the real parser, and stop before they do anything."""
    parse = tyro.cli

    def cli(command: Any, **options: Any) -> Any:
        return parse(_stopping(command) if inspect.isfunction(command) else command, **options)

    monkeypatch.setattr(tyro, "cli", cli)
    monkeypatch.setattr(runs, "train", _stopping(runs.train))
    monkeypatch.setattr(experiment, "train_seeds", _stopping(experiment.train_seeds))
    monkeypatch.setattr(driving, "start_sweep", _stopping(driving.start_sweep))
    monkeypatch.setattr(driving, "resume_sweep", _stopping(driving.resume_sweep))
    monkeypatch.setattr(RayCluster, "__enter__", _stopping(RayCluster.__enter__))


def _stopping(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def stop(*_: Any, **__: Any) -> None:
        raise ReadOnly

    return stop


def test_every_block_says_its_language() -> None:
    assert [str(block) for block in blocks() if block.kind not in KINDS] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_pages_are_understood(
    page: Path, only_read: None, user_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for block in blocks("yaml"):
        if block.page == page and (name := re.match(r"# (\S+\.yaml)", block.code)):
            Path(name[1]).write_text(block.code)
    wrong = []
    for block in blocks("bash"):
        for words in commands(block) if block.page == page else []:
            try:
                understand(words)
            except ReadOnly:
                continue
            except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever is wrong is told of)
                if "pip install 'ludus[" in str(error):  # understood: an extra is absent here, and is named
                    continue
                wrong.append(f"{block}: {' '.join(words)}: {error} {capsys.readouterr().err}")
    assert wrong == []


def understand(words: list[str]) -> None:
    """Raises where a command on a page names what does not exist."""
    program, *rest = words
    if program == "ludus":
        if rest[0] in ("--help", "--version"):
            return
        assert rest[0] in COMMANDS
        if rest[0] == "new":  # what it writes is named in the next lines
            subprocess.run([sys.executable, "-m", "ludus", *rest], check=True, capture_output=True)
        elif not {"--help", "--help-all"} & set(rest):
            run_verb(rest[0], rest[1:])
    elif program in ("torchrun", "srun"):  # which start what follows
        understand(rest[rest.index("ludus") :])
    elif program == "cd" and Path(rest[0]).is_dir():
        os.chdir(rest[0])
    elif program == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert [word for word in rest if "=" not in word and word not in targets] == []
    elif program == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        named = ",".join(re.findall(r"(?:ludus|\.)\[(.*?)\]", " ".join(rest)))
        assert set(named.split(",")) <= {*extras, ""}
    elif program == "python":
        assert (ROOT / rest[0]).exists() or rest[0] == "-m"
    else:
        assert program in SHELL


@pytest.mark.parametrize("block", blocks("yaml", "toml"), ids=str)
def test_settings_on_pages_are_known(block: Block, tmp_path: Path) -> None:
    if block.kind == "toml":
        assert tomllib.loads(block.code)
        return
    (file := tmp_path / "settings.yaml").write_text(block.code)
    assert yaml.safe_load(block.code)
    load_shared_config(file, find_preset("kuka-pick-place").config)


# Python ------------------------------------------------------------------------------------------------
SHORT = {"loop.total_steps": 256, "eval.episodes": 2, "eval.final_episodes": 2,
         "eval.max_steps": 20, "log.report": False}  # fmt: skip


@pytest.mark.parametrize(  # but the README's, which tests/test_readme.py runs
    "page",
    sorted({block.page for block in blocks("python")} - {PAGES[0]}),
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_python_on_pages_runs(page: Path, user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, one after the other, in a new folder. Trainings are as they stand there, but short."""
    monkeypatch.setattr(ludus, "train", _short(ludus.train))
    names: dict[str, Any] = {"ludus": ludus, "gym": gym, "np": np, "torch": torch, "nn": torch.nn}
    for block in blocks("python"):
        if block.page == page and not block.why_not:
            names |= _run(block, names)


def _short(train: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(train)
    def shorter(*given: Any, **settings: Any) -> Any:
        for name in ("total_steps", "loop"):
            settings.pop(name, None)
        return train(*given, **settings | {"console": Console("quiet"), "overrides": SHORT})

    return shorter


def _run(block: Block, names: dict[str, Any]) -> dict[str, Any]:
    """A block goes on where the last one ended. It is a module, so that its classes can be found again."""
    exec(block.first, names)
    module = types.ModuleType(f"block_{block.line}")
    sys.modules[module.__name__] = module
    vars(module).update({name: value for name, value in names.items() if not name.startswith("__")})
    code = block.code.replace('if __name__ == "__main__":', "if True:")
    exec(compile(code, str(block), "exec"), vars(module))
    return vars(module)
