"""Checkpoints on their own: what goes in comes out, damage is seen, a full disk costs nothing that was saved."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ludus.errors import CheckpointError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.saved_run import from_checkpoint
from ludus.training import checkpoint as checkpoints
from ludus.training.checkpoint import (
    checkpoint_path,
    checkpoints_in,
    clear_leftovers,
    join_tree,
    load_policy,
    load_reward,
    load_training,
    mark_best,
    newest_intact,
    problem_of,
    prune,
    save_checkpoint,
    set_aside_newer,
    split_tree,
)

FILES = ["policy.json", "policy.safetensors", "training.json", "training.safetensors"]


def make_policy(seed: int = 0) -> ActorCritic:
    torch.manual_seed(seed)
    box = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return ActorCritic(box, gym.spaces.Box(-1.0, 2.0, (2,), np.float32), PolicyConfig(hidden=(8,)))


def save(folder: Path, step: int) -> Path:
    return save_checkpoint(
        folder, step, {"policy": make_policy(step)}, {"step": torch.tensor(step), "text": f"at {step}"}
    )


def refuse(text: str) -> None:
    raise AssertionError(text)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or (a != a and b != b))


# Trees ----------------------------------------------------------------------------------------------
TENSORS = st.sampled_from(
    [
        torch.tensor(1.5),
        torch.zeros(0, 3),
        torch.arange(6, dtype=torch.float64).view(2, 3).t(),  # not contiguous
        torch.tensor([True, False]),
        torch.tensor([-(2**62), 7]),
        torch.tensor([math.nan, -math.inf, -0.0]),
        torch.arange(5, dtype=torch.uint8),
    ]
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=5) | TENSORS
NAMES = st.text("ab/'_", max_size=3)
TREES = st.recursive(
    LEAVES, lambda node: st.lists(node, max_size=3) | st.dictionaries(NAMES, node, max_size=3), max_leaves=12
)


@settings(max_examples=300, deadline=None)
@given(TREES)
def test_any_tree_of_tensors_and_plain_values_survives_split_json_and_join(tree: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(split_tree({"tree": tree}, tensors)))
    assert same(join_tree(plain, tensors), {"tree": tree})


def test_names_with_slashes_do_not_overwrite_each_other() -> None:
    tree = {"a": {"b": torch.tensor(1)}, "a/b": torch.tensor(2)}
    tensors: dict[str, torch.Tensor] = {}
    assert same(join_tree(split_tree(tree, tensors), tensors), tree)


# A checkpoint ---------------------------------------------------------------------------------------
def test_a_checkpoint_gives_back_policy_and_state_bit_for_bit(tmp_path: Path) -> None:
    policy = make_policy(3)
    assert policy.normalizer is not None
    policy.normalizer.update([torch.randn(50, 3)])
    state = {"rng": torch.Generator().manual_seed(4).get_state(), "list": [1.1, {"x": torch.ones(2).double()}]}
    path = save_checkpoint(tmp_path, 12, {"policy": policy}, state)
    assert path == tmp_path / "step_000000012"
    loaded = load_policy(path)
    assert same(dict(loaded.state_dict()), dict(policy.state_dict()))
    obs = torch.randn(5, 3)
    assert torch.equal(loaded.act(obs), policy.act(obs))
    step, restored = load_training(path)
    assert step == 12
    assert same(restored, state)


def test_parameters_that_share_one_flat_tensor_are_saved_apart(tmp_path: Path) -> None:
    from ludus.algorithms.optimizer import FlatAdam

    policy = make_policy()
    FlatAdam(policy.parameters(), 0.5)
    loaded = load_policy(save_checkpoint(tmp_path, 1, {"policy": policy}, {}))
    assert same(dict(loaded.state_dict()), dict(policy.state_dict()))


def test_the_manifest_names_every_file_with_its_size_and_hash(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    assert sorted(p.name for p in path.iterdir()) == sorted([*FILES, "manifest.json"])
    manifest = json.loads((path / "manifest.json").read_text())
    assert sorted(manifest["files"]) == FILES
    for name, facts in manifest["files"].items():
        assert facts["bytes"] == (path / name).stat().st_size
    assert problem_of(path) is None


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "empty"])
def test_damage_to_any_file_is_seen_and_the_checkpoint_before_is_used(
    tmp_path: Path, name: str, damage: str
) -> None:
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    file = newest / name
    content = bytearray(file.read_bytes())
    # In the manifest, a hash: its other characters are blanks and braces, some of which say nothing.
    at = content.index(b"sha256") + 12 if name == "manifest.json" else len(content) // 2
    content[at] ^= 1
    if damage == "remove":
        file.unlink()
    else:
        damaged: dict[str, bytes] = {"flip": bytes(content), "truncate": bytes(content[:-1]), "empty": b""}
        file.write_bytes(damaged[damage])
    warnings: list[str] = []
    assert newest_intact(tmp_path, warnings.append) == older
    assert len(warnings) == 1
    assert newest.name in warnings[0]
    (older / "policy.safetensors").unlink()
    with pytest.raises(CheckpointError, match="Every checkpoint"):
        newest_intact(tmp_path, warnings.append)


@pytest.mark.parametrize("name", FILES)
def test_only_to_resume_is_more_needed_than_the_models(tmp_path: Path, name: str) -> None:
    """A checkpoint that was copied without what training needs, which may be gigabytes, still acts."""
    older, newest = save(tmp_path, 1), save(tmp_path, 2)
    (newest / name).unlink()
    warnings: list[str] = []
    acts = name.startswith("training")
    assert newest_intact(tmp_path, warnings.append, to_resume=False) == (newest if acts else older)
    assert len(warnings) == (not acts)
    assert newest_intact(tmp_path, warnings.append) == older


def test_no_checkpoint_at_all_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint"):
        newest_intact(tmp_path / "nothing", refuse)


def test_checkpoints_are_ordered_by_their_steps_however_many_digits(tmp_path: Path) -> None:
    for step in (2_000_000_000, 5, 999_999_999):
        save(tmp_path, step)
    (tmp_path / "step_notes").mkdir()
    assert [int(p.name[5:]) for p in checkpoints_in(tmp_path)] == [5, 999_999_999, 2_000_000_000]
    assert newest_intact(tmp_path, refuse).name == "step_2000000000"


def test_a_best_that_a_training_replaces_while_it_is_read_is_read_anew(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    (tmp_path / "config.yaml").touch()
    older, newer = save(folder, 1), save(folder, 2)
    mark_best(older)

    def read(checkpoint: Path) -> Path:
        if checkpoint == older:
            mark_best(newer)
            prune(folder, keep=1)
        load_policy(checkpoint)
        return checkpoint

    assert from_checkpoint(tmp_path, read) == newer
    with pytest.raises(CheckpointError, match="no learned reward"):  # and what is really wrong is told
        from_checkpoint(tmp_path, load_reward)


# Which are kept -------------------------------------------------------------------------------------
def test_prune_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    paths = [save(tmp_path, step) for step in range(1, 7)]
    mark_best(paths[1])
    prune(tmp_path, keep=2)
    assert checkpoints_in(tmp_path) == [paths[1], paths[4], paths[5]]
    assert (tmp_path / "best").resolve() == paths[1]
    mark_best(paths[4])
    prune(tmp_path, keep=1)
    assert checkpoints_in(tmp_path) == paths[4:]


def test_marking_the_best_is_one_rename_that_a_crash_cannot_halve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = save(tmp_path, 1), save(tmp_path, 2)
    mark_best(first)

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(KeyboardInterrupt):
            mark_best(second)
    assert (tmp_path / "best").resolve() == first
    clear_leftovers(tmp_path)
    assert not list(tmp_path.glob(".*"))
    mark_best(second)
    assert (tmp_path / "best").resolve() == second
    assert os.readlink(tmp_path / "best") == second.name  # relative: a run folder can be moved


def test_leftovers_of_a_crash_are_removed_and_checkpoints_are_not(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    half = tmp_path / ".step_000000002.0123456789ab.ludus-tmp"
    half.mkdir()
    (half / "policy.safetensors").write_bytes(b"half")
    clear_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    clear_leftovers(tmp_path / "nothing")


@pytest.mark.parametrize("moment", ["rmtree", "rename"])
def test_a_crash_while_replacing_a_checkpoint_of_the_same_step_loses_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save(tmp_path, 1)

    def half_remove(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            (Path(path) / "manifest.json").unlink()
            raise KeyboardInterrupt

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if moment == "rmtree":
            patch.setattr(checkpoints.shutil, "rmtree", half_remove)
        else:
            patch.setattr(Path, "rename", crash)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 1, {"policy": make_policy()}, {"text": "newer"})
    clear_leftovers(tmp_path)
    assert load_training(newest_intact(tmp_path, refuse)) == (1, {"text": "newer"})
    assert [p.name for p in tmp_path.iterdir()] == ["step_000000001"]


def test_damaged_newer_checkpoints_are_set_aside_and_not_counted_as_the_newest(tmp_path: Path) -> None:
    intact, damaged = save(tmp_path, 1), save(tmp_path, 3)
    (damaged / "manifest.json").unlink()
    set_aside_newer(intact)
    later = save(tmp_path, 2)
    prune(tmp_path, keep=1)
    assert checkpoints_in(tmp_path) == [later]
    assert (tmp_path / "damaged_step_000000003" / "policy.json").exists()


# Where it cannot be written -------------------------------------------------------------------------
FULL_DISK = """
import resource, sys
from pathlib import Path
from test_checkpoint import save, CheckpointError
folder = Path(sys.argv[1])
save(folder, 1)
for limit in (1500, 1000, 200, 0):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save(folder, 2)
    except CheckpointError as error:
        print(error)
"""


def test_a_full_disk_is_a_sentence_and_leaves_the_earlier_checkpoint_alone(tmp_path: Path) -> None:
    # Into pipes: the limit holds for files that catch its output, too.
    result = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    sentences = result.stdout.splitlines()
    assert len(sentences) == 4
    for sentence in sentences:
        assert "step 2 could not be written" in sentence
        assert "File too large" in sentence
    assert [p.name for p in tmp_path.iterdir()] == ["step_000000001"]
    assert newest_intact(tmp_path, refuse) == checkpoint_path(tmp_path, 1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    try:
        mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a small disk needs the rights to do so")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_disk_that_fills_up_while_saving_keeps_every_checkpoint_that_fitted(small_disk: Path) -> None:
    saved: list[Path] = []

    def fill() -> None:
        for step in range(1, 20):
            saved.append(save(small_disk, step))  # noqa: PERF401 (those before the failure count)

    with pytest.raises(CheckpointError, match="No space left"):
        fill()
    assert len(saved) == 3
    assert checkpoints_in(small_disk) == saved
    assert all(problem_of(path) is None for path in saved)
    assert not list(small_disk.glob(".*"))


@pytest.mark.parametrize("place", ["/proc/nowhere", "a file"])
def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path, place: str) -> None:
    if place == "a file":
        (tmp_path / "file").write_text("")
        place = str(tmp_path / "file" / "checkpoints")
    with pytest.raises(CheckpointError, match="could not be written"):
        save(Path(place), 1)


def test_a_checkpoint_of_another_kind_of_policy_is_a_sentence(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    description = json.loads((path / "policy.json").read_text())
    description["config"]["hidden"] = [9]
    (path / "policy.json").write_text(json.dumps(description))
    with pytest.raises(CheckpointError, match=r"'encoder.layers.0.weight' of its policy is float32 \[8, 3\]"):
        load_policy(path)


def test_a_checkpoint_for_which_memory_is_short_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was passed over for an older one, and renamed: what it held was lost to the run."""
    for step in (100, 200):
        save(tmp_path, step)
    monkeypatch.setattr(checkpoints.psutil, "virtual_memory", lambda: SimpleNamespace(available=10))
    newest = newest_intact(tmp_path, refuse)
    assert newest.name == "step_000000200"
    with pytest.raises(CheckpointError, match=r"training\.safetensors has .* of memory are free. Free some"):
        load_training(newest)
