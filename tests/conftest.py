"""What all tests share: an environment of their own, the devices, and the line with which a run of them ends.

Nothing here depends on pytest-xdist: the tests pass in one process and in several.
"""

import atexit
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
MISSING = pytest.StashKey[list[str]]()  # what slow.txt names and is not there

# Before torch is imported, and for every process that a test starts. One thread: the tests share the cores, and
# threads that wait for a busy core make small networks ten times slower.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), str(SOURCE), os.environ.get("PYTHONPATH"))))
# What Ludus keeps of its user lies there; the tests must neither read nor leave anything.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="ludus-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

import torch  # noqa: E402 (after the settings above)

ON_GPU = torch.cuda.is_available()
DEVICES = ["cpu", "cuda"] if ON_GPU else ["cpu"]
if not ON_GPU and importlib.util.find_spec("triton") is not None:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Every device of this machine: what is said of a GPU is held on the CPU, too."""
    return str(request.param)


class Recordings:
    """How many CUDA graphs were recorded."""

    count = 0


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> Recordings:
    """So that a test knows that it compares a graph with single calls, and not a thing with itself."""
    counted, record = Recordings(), torch.cuda.graph

    def counting(*arguments: Any, **named: Any) -> Any:
        counted.count += 1
        return record(*arguments, **named)

    monkeypatch.setattr(torch.cuda, "graph", counting)
    return counted


@pytest.hookimpl(tryfirst=True)  # before pytest leaves out what is slow
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What slow.txt names is slow, single cases of a test included. Tests of ranks come first."""
    lines = (TESTS / "slow.txt").read_text().splitlines()
    slow = {line for line in lines if not line.startswith("#")}
    collected = {item.nodeid.removeprefix("tests/"): item for item in items}
    for name in slow & collected.keys():
        collected[name].add_marker(pytest.mark.slow)
    files = {name.partition("::")[0] for name in collected}
    chosen = any("::" in argument for argument in config.args)  # single tests: others are not missing
    config.stash[MISSING] = [] if chosen else [n for n in slow - collected.keys() if n.partition("::")[0] in files]
    # They fork. A process that ran a thousand tests may be too large for that, or has threads that a fork lacks.
    items.sort(key=lambda item: not item.path.name.startswith(("test_rank", "test_launch")))


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line, for whoever reads no more than that."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or hasattr(config, "workerinput") or config.option.collectonly:
        return
    count = {name: len(reporter.stats.get(name, ())) for name in ("passed", "failed", "error")}
    reporter.write_line(f"{count['passed']} passed, {count['failed'] + count['error']} failed")
