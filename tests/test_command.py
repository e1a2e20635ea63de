"""The command before and after its verbs: what it imports, how it is started, what --quiet and --debug leave."""

import subprocess
import sys
from pathlib import Path

import pytest

import ludus
from ludus import cli
from ludus.algorithms.registry import built_in
from ludus.algorithms.summaries import algorithm_summaries
from ludus.presets import all_presets, preset_summaries
from warm_python import Completed, ludus_command, python_command, run

SLOW = ("torch", "mujoco", "gymnasium", "numpy", "rich")
SMALL = (
    "--env.num-envs",
    "4",
    "--ppo.horizon",
    "8",
    "--total-steps",
    "64",
    "--log.no-report",
    "--eval.max-steps",
    "9",
)
RAISES = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Broken(CartPoleEnv):
    def step(self, action):
        return 1 / 0

gymnasium.register("Broken-v0", entry_point=Broken)
"""


def python(program: str, *arguments: str, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """In a process that has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=cwd)


# How fast it starts -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("line", "slow"),
    [
        ("--help", SLOW),
        ("--version", (*SLOW, "tyro")),
        ("train --help", SLOW[:-1]),
        ("list", SLOW[:-1]),
        ("resume --help", SLOW[:3]),
        ("eval --help", SLOW[:3]),
        ("train kuka-pick-place --help", SLOW[:3]),
        ("train gym:CartPole-v1 --help", SLOW[:2]),
        ("train gym:CartPole-v1 --algo sac --help-all", SLOW[:2]),
        ("train kuka-pick-place --lerning-rate 1", SLOW[:3]),  # a typo is answered as quickly
        ("train kuka-pick-plase", SLOW[:2]),
    ],
)
def test_help_imports_nothing_that_takes_long(line: str, slow: tuple[str, ...]) -> None:
    program = (
        "import atexit, sys; from ludus.cli import main\n"
        f"atexit.register(lambda: print('imported', [name for name in {slow} if name in sys.modules]))\n"
        f"sys.argv = ['ludus', *{line.split()}]; main()"
    )
    done = python(program)
    assert done.stdout.endswith("imported []\n"), done.stdout + done.stderr


def test_torch_is_loaded_after_the_command_has_told_its_threads_how_to_wait() -> None:
    program = "import os, sys, ludus.cli; print('torch' in sys.modules, os.environ['OMP_WAIT_POLICY'])"
    assert python(program).stdout == "False PASSIVE\n"


def test_every_public_name_is_found_when_it_is_used() -> None:
    program = "import ludus; print([getattr(ludus, name) is not None for name in dir(ludus)])"
    assert "False" not in run(python_command(program)).stdout
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = ludus.trian


@pytest.mark.parametrize("order", ["import gymnasium, ludus", "import ludus, gymnasium"])
def test_gymnasium_knows_our_environments_whichever_is_imported_first(order: str) -> None:
    program = f"{order}; print('ludus/CartPoleNoVelocity-v1' in gymnasium.registry)"
    assert python(program).stdout == "True\n"


def test_names_read_off_the_source_are_those_of_the_presets_and_algorithms() -> None:
    assert preset_summaries() == {name: preset.summary for name, preset in all_presets().items()}
    assert algorithm_summaries() == {name: algorithm.summary for name, algorithm in built_in().items()}


def test_every_command_is_found_in_its_family() -> None:
    import importlib

    for name, command in cli.COMMANDS.items():
        assert name in importlib.import_module(f"ludus.commands.{command.family}").VERBS


def test_help_fits_eighty_columns() -> None:
    done = run(ludus_command("--help"))
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_reader_that_leaves_early_is_no_error() -> None:
    line = f"{sys.executable} -m ludus --help | head -n 1 && {sys.executable} -m ludus list | true"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_runs_the_package_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "ludus", "--version"], capture_output=True, text=True)
    assert done.stdout == f"ludus {ludus.__version__}\n"


# --quiet and --debug ----------------------------------------------------------------------------------
def test_a_quiet_training_prints_its_last_line_alone(tmp_path: Path) -> None:
    done = run(ludus_command("train", "gym:CartPole-v1", "--quiet", *SMALL, "--run-dir", "r"), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = done.stdout.splitlines()
    assert line.startswith("reward ")
    assert " · length " in line
    assert (tmp_path / "r" / "config.yaml").exists()


def test_quiet_leaves_errors_and_json_as_they_are() -> None:
    done = run(ludus_command("--quiet", "check", "gym:CartPole-v9"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "no Gymnasium environment 'CartPole-v9'" in done.stderr
    whole = run(ludus_command("motions", "check", "stroll", "--json"))
    assert whole.stdout.count("\n") > 1
    assert run(ludus_command("motions", "check", "stroll", "--json", "--quiet")).stdout == whole.stdout


def broken_env(folder: Path, *flags: str) -> Completed:
    (folder / "my_env.py").write_text(RAISES)
    arguments = ("train", "gym:my_env:Broken-v0", *SMALL, "--run-dir", "r", *flags)
    return run(ludus_command(*arguments), cwd=folder)


PLACE = "ZeroDivisionError: division by zero, at my_env.py, line 7, in step: `return 1 / 0`"


def test_an_exception_of_an_environment_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    done = broken_env(tmp_path)
    assert done.returncode == 2
    assert f"raised in step() of row 0 at step 1: {PLACE}" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_stack_trace_of_a_worker_process_as_well(tmp_path: Path) -> None:
    done = broken_env(tmp_path, "--debug", "--env.workers", "1")
    assert done.returncode == 2
    assert PLACE in done.stderr
    assert "in _answer_requests" in done.stderr  # of the worker
    assert "in run_verb" in done.stderr  # of the trainer


def test_debug_shows_the_stack_trace_as_well(tmp_path: Path) -> None:
    done = broken_env(tmp_path, "--debug")
    assert done.returncode == 2
    assert "in run_verb" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ludus: gym:my_env:Broken-v0 raised in step()")


def test_debug_may_be_asked_for_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_DEBUG", "1")
    done = run(ludus_command("eval", "no-such-run"))
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ludus: ")


def test_a_fault_of_ludus_own_keeps_its_stack_trace() -> None:
    program = (
        "import sys, ludus.run_pages, ludus.cli\n"
        "def broken(run, *more): raise RuntimeError('a bug')\n"
        "broken.__code__ = broken.__code__.replace(co_filename=ludus.run_pages.__file__)\n"
        "ludus.run_pages.write_run_report = broken\n"
        "sys.argv = ['ludus', 'report', 'x']; ludus.cli.main()"
    )
    done = run(python_command(program))
    assert done.returncode == 1
    assert "Traceback" in done.stderr


# Exceptions of the user's code ------------------------------------------------------------------------
NETWORK = """
import torch

class Net(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer, self.calls = torch.nn.Linear(shape[0], 8), 0

    def forward(self, x):
        self.calls += 1
        assert self.calls < 40, "worn out"
        return self.layer(x)
"""
BATCHED = """
from ludus.envs.config import ForageConfig
from ludus.envs.forage import Forage

class Worn(Forage):
    def begin_step(self, action):
        raise LookupError("no berries")

def make(num_envs):
    return Worn(ForageConfig(), num_envs, "cpu", False)
"""
TERM = """
def bonus(task):
    return task.one / [][0]
"""


@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (NETWORK, "gym:CartPole-v1 --policy.network mine:Net",
         "AssertionError: worn out, at mine.py, line 11, in forward"),
        (BATCHED, "vec:mine:make --num-envs 4", "LookupError: no berries, at mine.py, line 7, in begin_step"),
        (TERM, """kuka-pick-place --num-envs 4 --groups 1 --env.rewards {"b":{"function":"mine:bonus"}}""",
         "The term mine:bonus raised IndexError: list index out of range, at mine.py, line 3, in bonus"),
    ],
    ids=["network", "batched environment", "term"],
)  # fmt: skip
def test_an_exception_of_a_users_code_is_told_with_its_line(
    code: str, words: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(code)
    done = run(ludus_command("train", *words.split(), "--total-steps", "4096", "--run-dir", "r"), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("kuka-pick-place", "Did you mean 'ludus train kuka-pick-place'?"),
        ("tran kuka-pick-place", "Did you mean 'train'?"),
        ("train kuka", "Did you mean 'kuka-pick-place' or 'kuka-sb3'"),
        ("train gymnasium:CartPole-v1", "Did you mean 'gym:CartPole-v1'?"),
        ("train gym:CartPole-v1 --device gpu", "--device gpu: take cpu, or cuda for an NVIDIA GPU"),
    ],
)
def test_a_typo_is_answered_with_what_is_meant(line: str, told: str) -> None:
    done = run(ludus_command(*line.split()))
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
