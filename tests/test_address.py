"""`RUN@100000`: a checkpoint of a run, wherever a run is named."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import ludus
from ludus.errors import CheckpointError, ConfigError
from ludus.run_pages import write_run_report
from ludus.runs import evaluate_run
from ludus.saved_run import run_folder
from ludus.show.console import Console
from ludus.training.address import Address, find_checkpoint, read_address
from ludus.training.checkpoint import checkpoints_in, load_model_weights, load_policy, step_of
from ludus.training.loop import Trainer
from warm_python import ludus_command, run

SETTINGS: dict[str, Any] = {
    "env.num_envs": 4, "env.max_steps": 30, "ppo.horizon": 16, "ppo.minibatches": 2, "ppo.update_epochs": 1,
    "policy.hidden": (8,), "loop.total_steps": 256, "eval.every": 64, "eval.episodes": 2, "log.report": False,
    "log.tensorboard": False, "checkpoint.keep": "all",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with checkpoints at the steps 64, 128, 192 and 256."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return ludus.train("gym:CartPole-v1", folder, console=Console("quiet"), overrides=SETTINGS)


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copied", symlinks=True))


def steps_of(folder: Path) -> list[int]:
    return [step_of(path) for path in checkpoints_in(folder / "checkpoints")]


# Reading ------------------------------------------------------------------------------------------------
def test_all_checkpoints_are_kept_where_that_is_asked_for(trained: Path) -> None:
    assert steps_of(trained) == [64, 128, 192, 256]


@pytest.mark.parametrize(
    ("text", "which"),
    [
        ("", ""), ("@best", "best"), ("@final", "final"), ("@newest", "newest"), ("/final", "final"),
        ("/checkpoints/best", "best"), ("/checkpoints", ""), ("/checkpoints/step_000000128", "128"),
        ("@128", "128"), ("@step_000000128", "128"), ("@0.128k", "128"), ("@1.28e2", "128"), ("@000128/", "128"),
    ],
)  # fmt: skip
def test_an_address_names_a_run_and_a_checkpoint(text: str, which: str, trained: Path) -> None:
    assert read_address(f"{trained}{text}") == Address(trained, which)
    assert run_folder(f"{trained}{text}") == trained


def test_a_checkpoint_is_found_by_its_step_and_by_what_it_is(trained: Path) -> None:
    found = {which: step_of(find_checkpoint(Address(trained, which))) for which in ("128", "final", "newest")}
    assert found == {"128": 128, "final": 256, "newest": 256}
    best = (trained / "checkpoints" / "best").resolve()
    assert find_checkpoint(Address(trained, "best")).resolve() == best
    assert find_checkpoint(Address(trained)).resolve() == best


def test_folders_with_an_at_sign_in_their_names_are_found(trained: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "me@128", symlinks=True))
    assert read_address(folder) == Address(folder)
    assert read_address(f"{folder}@64") == Address(folder, "64")
    with pytest.raises(CheckpointError, match=r"There is no run folder .*nobody@home"):
        read_address(tmp_path / "nobody@home")


@pytest.mark.parametrize(
    ("which", "sentence"),
    [
        ("100", "there is no checkpoint at step 100. It has @64, @128, @192, @256."),
        ("last", "'@last' names no checkpoint. Say @best, @final, @newest, or a step"),
        ("", "'@' names no checkpoint."),
    ],
)
def test_an_unknown_checkpoint_is_answered_with_those_there_are(which: str, sentence: str, trained: Path) -> None:
    result = run(ludus_command("eval", f"{trained}@{which}"))
    assert result.returncode == 2
    assert sentence in result.stderr


def test_of_many_checkpoints_the_nearest_are_named(copied: Path) -> None:
    for step in range(1000, 1010):
        (copied / "checkpoints" / f"step_{step:09d}").mkdir()
    with pytest.raises(CheckpointError, match=r"The nearest of its 14 are @256, @1000, @1001, @1002\."):
        find_checkpoint(Address(copied, "600"))


def test_a_run_that_is_not_at_its_end_has_no_final_policy(copied: Path) -> None:
    (copied / "final").unlink()
    with pytest.raises(CheckpointError, match=r"has not been trained to its end\. It has @64, @128, @192, @256"):
        find_checkpoint(Address(copied, "final"))


def test_a_damaged_checkpoint_that_was_named_is_not_replaced_by_another(copied: Path) -> None:
    (copied / "checkpoints" / "step_000000128" / "policy.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"@128 is damaged: policy\.json has 2 bytes"):
        ludus.load(f"{copied}@128")
    ludus.load(f"{copied}@64")


# Using --------------------------------------------------------------------------------------------------
def test_the_policy_of_every_checkpoint_is_loaded_evaluated_and_reported(copied: Path) -> None:
    for step in (64, 256):
        expected = load_policy(copied / "checkpoints" / f"step_{step:09d}").state_dict()
        loaded = ludus.load(f"{copied}@{step}").state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
    returns = [evaluate_run(f"{copied}@{which}", 3, True).returns for which in ("final", "256")]
    assert returns[0] == returns[1]
    page = write_run_report(f"{copied}@64")
    assert page == copied / "report@64.html"
    assert "Replay of the policy @64" in page.read_text()
    with pytest.raises(CheckpointError, match="no checkpoint at step 63"):
        write_run_report(f"{copied}@63")
    assert not (copied / "report@63.html").exists()


def test_a_policy_of_a_checkpoint_is_exported(trained: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = run(ludus_command("export", trained / "final", tmp_path / "policy.onnx"))
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "policy.onnx").exists()


# Going back ---------------------------------------------------------------------------------------------
def policy_bytes(folder: Path, step: int) -> dict[str, bytes]:
    tensors = load_model_weights(folder / "checkpoints" / f"step_{step:09d}", "policy")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def test_going_back_repeats_the_run_and_keeps_what_came_later_as_a_run(trained: Path, copied: Path) -> None:
    rows = (copied / "metrics.jsonl").read_text()
    result = run(ludus_command("resume", f"{copied}@128"))
    assert result.returncode == 0, result.stderr
    aside = copied / "set_aside" / "1"
    assert f"What came after it is kept as a run: {aside}" in result.stdout
    assert steps_of(copied) == [64, 128, 192, 256]
    assert policy_bytes(copied, 256) == policy_bytes(trained, 256)
    assert steps_of(aside) == [192, 256]
    assert (aside / "metrics.jsonl").read_text() == rows
    assert (aside / "final").resolve() == (aside / "checkpoints" / "step_000000256").resolve()
    assert policy_bytes(aside, 256) == policy_bytes(trained, 256)
    assert len(evaluate_run(f"{aside}@final", 2, True).returns) == 2
    with pytest.raises(ConfigError, match="already trained to its 256 steps"):
        ludus.resume(aside, console=Console("quiet"))


def test_what_was_the_best_after_the_step_gone_back_to_is_the_best_no_more(copied: Path) -> None:
    """It lies with what was set aside; the search begins with what the run had found by then."""
    state = copied / "checkpoints" / "step_000000064" / "training.json"
    best = json.loads(state.read_text())["state"]["counters"]["best_step"]
    assert best == 64
    ludus.resume(f"{copied}@64", console=Console("quiet"), overrides={"loop.total_steps": 128})
    assert steps_of(copied) == [64, 128]
    assert (copied / "checkpoints" / "best").resolve().parent == (copied / "checkpoints").resolve()


def test_going_on_from_the_newest_checkpoint_sets_nothing_aside(copied: Path) -> None:
    ludus.resume(f"{copied}@final", console=Console("quiet"), overrides={"loop.total_steps": 320})
    assert steps_of(copied) == [64, 128, 192, 256, 320]
    assert not (copied / "set_aside").exists()


def test_going_back_to_a_checkpoint_that_is_not_there_changes_nothing(copied: Path) -> None:
    before = sorted(path.relative_to(copied) for path in copied.rglob("*") if path.name != "train.lock")
    with pytest.raises(CheckpointError, match="no checkpoint at step 100"):
        ludus.resume(f"{copied}@100", console=Console("quiet"))
    after = sorted(path.relative_to(copied) for path in copied.rglob("*") if path.name != "train.lock")
    assert after == before


# When checkpoints are made ------------------------------------------------------------------------------
class GettingWorse(ludus.Callback):
    """Every evaluation is worse than the one before: the first is the best, and saved as such."""

    def on_start(self, run: Trainer) -> None:
        evaluate = run.job.evaluate

        def evaluated(interrupted: Any) -> dict[str, float]:
            return evaluate(interrupted) | {"eval/mean_reward": -float(run.step)}

        run.job.evaluate = evaluated  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("checkpoint", "steps", "told"),
    [
        ({"every": 100}, [128, 192, 320, 384], "every 100 steps (at 128, 192, 320 …); all are kept"),
        ({"every": 192}, [128, 192, 384], "every 192 steps; all are kept"),
        ({"every_epochs": 2}, [128, 256, 384], "every 2 epochs; all are kept"),
        ({"every_epochs": 3}, [128, 384], "every 3 epochs; all are kept"),
        ({}, [128, 256, 384], "every epoch; all are kept"),
    ],
)
def test_checkpoints_come_as_near_to_what_was_asked_as_iterations_allow(
    checkpoint: dict[str, Any], steps: list[int], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An iteration has 64 steps, an epoch 128."""
    overrides = SETTINGS | {"loop.total_steps": 384, "eval.every": 128, "eval.stochastic": False}
    overrides |= {f"checkpoint.{name}": value for name, value in checkpoint.items()}
    folder = tmp_path / "run"
    ludus.train("gym:CartPole-v1", folder, [GettingWorse()], Console("plain"), overrides=overrides)
    assert f"checkpoint {told}" in capsys.readouterr().out
    assert steps_of(folder) == steps


def test_saving_by_steps_and_by_epochs_at_once_is_refused(tmp_path: Path) -> None:
    both = SETTINGS | {"checkpoint.every": 100, "checkpoint.every_epochs": 2}
    with pytest.raises(ConfigError, match="both say how often to save"):
        ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=both)


@pytest.mark.parametrize("keep", [0, -1, "most", ["all"]])
def test_a_number_of_checkpoints_that_makes_no_sense_is_refused(keep: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--checkpoint\.keep is .*; it must be .* or 'all'\."):
        ludus.train(
            "gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides={"checkpoint.keep": keep}
        )
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_no_run_is_answered_with_the_newest_run_near_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"no run folder nowhere\. 'ludus train' makes one"):
        read_address("nowhere")
    for age, name in enumerate(("new", "old")):
        file = tmp_path / "runs/gym-CartPole-v1" / name / "config.yaml"
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (1_000 - age, 1_000 - age))
    for wrong in ("nowhere", "runs", "runs/gym-CartPole-v1", "runs/gym-CartPole-v1/nwe@best"):
        with pytest.raises(CheckpointError, match=r"The newest run in runs\S*: runs/gym-CartPole-v1/new$"):
            read_address(wrong)
