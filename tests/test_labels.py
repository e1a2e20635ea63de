"""Names, tags and notes of a run, and default names that no two runs have."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ludus
import warm_python
from compared_runs import write_run
from ludus.commands.listing import runs as runs_command
from ludus.commands.training import train as train_command
from ludus.errors import ConfigError
from ludus.show.console import Console
from ludus.show.report import write_report
from ludus.training import run_facts
from ludus.training.loop import Trainer
from ludus.training.run_facts import Labels, make_labels, relabel
from warm_python import Program, ludus_command, python_command

SETTINGS: dict[str, Any] = {
    "env.num_envs": 4,
    "env.max_steps": 20,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "loop.total_steps": 64,
    "eval.episodes": 2,
    "eval.final_episodes": 2,
    "log.report": False,
    "log.tensorboard": False,
}
FLAGS = ["--env.num-envs", 4, "--env.max-steps", 20, "--ppo.horizon", 8, "--ppo.minibatches", 2,
         "--total-steps", 32, "--eval.episodes", 1, "--eval.final-episodes", 0, "--log.no-report",
         "--log.no-tensorboard"]  # fmt: skip


def train(folder: Path | None, *callbacks: ludus.Callback, **options: Any) -> ludus.Run:
    return ludus.train(
        "gym:CartPole-v1",
        folder,
        callbacks,
        Console("quiet"),
        overrides=SETTINGS | {"log.report": False},
        **options,
    )


class Once(ludus.Callback):
    """Does something after the first iteration; what that returns says whether to go on."""

    def __init__(self, do: Callable[[], bool | None]) -> None:
        self.do = do

    def on_iteration(self, run: Trainer) -> bool | None:
        return self.do() if run.counters.iteration == 1 else None


def test_a_name_tags_and_a_note_are_kept_and_told_at_the_end_and_in_the_report(tmp_path: Path) -> None:
    given = ["--name", "wide net", "--tags", "a,b", "--note", "why <it> was trained"]
    told = warm_python.run(ludus_command("train", "gym:CartPole-v1", *given, *FLAGS), cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "\nwide net · #a #b · why <it> was trained\n" in told.stdout
    folder = tmp_path / "runs" / "gym-CartPole-v1" / "wide net"
    facts = json.loads((folder / "run.json").read_text())
    assert (facts["name"], facts["tags"], facts["note"]) == ("wide net", ["a", "b"], "why <it> was trained")
    page = write_report(folder).read_text()
    assert "<p>wide net · #a, #b · why &lt;it&gt; was trained</p>" in page
    again = warm_python.run(ludus_command("train", "gym:CartPole-v1", *given, *FLAGS), cwd=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "already holds a run. Choose another --run-dir or --name" in again.stderr


def test_tags_and_the_note_can_be_changed_from_python_and_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", name="first", tags=["a", "b"], note="why")
    assert (run.tags, run.note, run.path.name) == (("a", "b"), "why", "run")
    run.tags = ["c", "a"]
    run.note = ""
    assert (ludus.Run(run).tags, ludus.Run(run).note) == (("c", "a"), "")

    def told(*words: object) -> str:
        runs_command([str(word) for word in words])
        return capsys.readouterr().out

    assert told("tag", run, "x", "c") == f"{run.path}: #c #a #x\n"
    assert told("tag", run, "a", "x", "--remove") == f"{run.path}: #c\n"
    assert told("note", run, "two\nlines") == f"{run.path}: two lines\n"
    (entry,) = ludus.list_runs(tmp_path)
    assert (entry.name, entry.tags, entry.note) == ("first", ("c",), "two\nlines")
    with pytest.raises(ConfigError, match=f"{tmp_path} is no run."):
        told("tag", tmp_path, "x")


def test_a_folder_of_one_seed_is_labelled_where_it_is_an_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path / "seed_3")
    with pytest.raises(ConfigError, match="is no run"):
        runs_command(["tag", str(tmp_path), "x"])
    (tmp_path / "experiment.json").write_text(json.dumps({"seeds": [3]}))
    runs_command(["tag", str(tmp_path), "x"])
    assert capsys.readouterr().out == f"{folder}: #x\n"


def test_labels_that_no_user_could_give_are_shown_and_stay_until_they_are_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = {"tags": ["two words", " a b "], "note": "n" * 3_000}
    folder = write_run(tmp_path / "run", facts=odd)

    def told(*words: str) -> str:
        runs_command([words[0], str(folder), *words[1:]])
        return capsys.readouterr().out

    def kept() -> tuple[Any, Any]:
        facts = json.loads((folder / "run.json").read_text())
        return facts.get("tags"), facts.get("note")

    with monkeypatch.context() as readonly:  # root may write into any folder
        readonly.setattr(run_facts, "write_whole", lambda *_: pytest.fail("nothing is to be written"))
        assert told("tag") == f"{folder}: #two words # a b \n"
    assert told("tag", "x") == f"{folder}: #two words # a b  #x\n"
    assert kept() == (["two words", " a b ", "x"], odd["note"])
    assert told("tag", "two words", " a b ", "x", "--remove") == f"{folder}: no tags\n"
    assert told("note", "why") == f"{folder}: why\n"
    assert kept() == (None, "why")
    with pytest.raises(ConfigError, match="'new one' cannot be a tag"):
        told("tag", "new one")


def test_what_is_changed_while_the_run_is_trained_stays_also_when_it_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def tag(*tags: str) -> bool:
        relabel(folder, lambda labels: labels._replace(tags=(*labels.tags, *tags)))
        return False  # ends the training

    train(folder, Once(lambda: tag("during")), tags="before")
    ludus.Run(folder).note = "between"
    resumed = ludus.resume(folder, console=Console("quiet"), overrides={"loop.total_steps": 96})
    assert (resumed.tags, resumed.note) == (("before", "during"), "between")
    assert len(json.loads((folder / "run.json").read_text())["resumed"]) == 1


@pytest.mark.parametrize("name", ["a/b", "../up", ".hidden", "-x", "a@best", "a,b", "x" * 101, "a\x1b[2J", "a\nb"])
def test_a_name_that_could_not_be_a_folders_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a run's"):
        make_labels(name)


@pytest.mark.parametrize(
    "tags", [["two words"], ["#a"], "-a", ["x" * 51], ["\x1b[2J"], [3], [str(i) for i in range(51)]]
)
def test_tags_that_are_none_are_refused(tags: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot be a tag|at most 50 tags"):
        make_labels(tags=tags)


def test_the_value_of_a_label_is_not_taken_for_the_preset() -> None:
    with pytest.raises(ConfigError, match="'two words' cannot be a tag"):
        train_command(["--name", "forage", "--note", "kuka-pick-place", "--tags", "two words", "gym:CartPole-v1"])


def test_labels_are_told_in_one_line() -> None:
    assert str(Labels("n", ("a", "b"), "two\nlines")) == "n · #a #b · two lines"
    assert str(Labels()) == ""


def test_trainings_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    program = (
        "import sys, time; strftime = time.strftime\n"
        "time.strftime = lambda form, *t: '20260101-000000' if form == '%Y%m%d-%H%M%S' else strftime(form, *t)\n"
        "from ludus.cli import main; main()"
    )
    command = python_command(program, "train", "gym:CartPole-v1", "--seed", 3, *FLAGS)
    both = [Program(command, cwd=tmp_path, errors_apart=True) for _ in range(2)]
    assert [one.wait() for one in both] == [0, 0], [one.errors() for one in both]
    folders = sorted((tmp_path / "runs" / "gym-CartPole-v1").iterdir())
    assert [folder.name for folder in folders] == ["20260101-000000-3", "20260101-000000-3-2"]
    named = {re.search(r"Run folder: (\S+)", one.output())[1] for one in both}  # type: ignore[index]
    assert named == {str(folder.relative_to(tmp_path)) for folder in folders}
    assert [run.state for run in ludus.list_runs(tmp_path)] == ["finished", "finished"]


def test_a_training_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError):
        train(None, device="abacus")
    assert list(tmp_path.iterdir()) == []
