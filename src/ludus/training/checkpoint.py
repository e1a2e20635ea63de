"""Checkpoints: a folder written aside, synced, checked and renamed, so that a crash leaves the old or the new.

    checkpoints/step_000200000/
        policy.json   policy.safetensors      all that is needed to act
        reward.json   reward.safetensors      a learned reward, where there is one
        training.json training.safetensors    all that is needed besides to go on exactly
        manifest.json                         sizes and SHA-256 of the files above

Tensors are safetensors, everything else is JSON: nothing in a checkpoint can run code.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ludus.envs.vec import State, VecEnv
from ludus.errors import CheckpointError
from ludus.policies.making import policy_from
from ludus.policies.policy import Policy
from ludus.policies.reward import RewardModel

FORMAT = 1
_TENSOR_KEY = "__tensor__"


class Model(Protocol):
    """What a checkpoint keeps in files of its own: it can be rebuilt from its description and its tensors."""

    def description(self) -> dict[str, Any]: ...
    def state_dict(self) -> dict[str, Tensor]: ...
    def load_state_dict(self, tensors: dict[str, Tensor], /) -> Any: ...


# Trees of tensors and plain values ---------------------------------------------------------------
def split_tree(tree: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The tree as plain JSON, its tensors moved to `tensors` under their paths."""
    if isinstance(tree, Tensor):
        while path in tensors:  # {"a": {"b": …}, "a/b": …}
            path += "'"
        tensors[path] = tree.detach().contiguous().cpu()
        return {_TENSOR_KEY: path}
    if isinstance(tree, dict):
        return {key: split_tree(value, tensors, f"{path}/{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [split_tree(value, tensors, f"{path}/{i}") for i, value in enumerate(tree)]
    return tree


def join_tree(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of `split_tree`."""
    if isinstance(plain, dict):
        if _TENSOR_KEY in plain:
            return tensors[plain[_TENSOR_KEY]]
        return {key: join_tree(value, tensors) for key, value in plain.items()}
    return [join_tree(value, tensors) for value in plain] if isinstance(plain, list) else plain


# Writing ----------------------------------------------------------------------------------------
def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:09d}"


def save_checkpoint(folder: Path, step: int, models: Mapping[str, Model], training: State) -> Path:
    """Write `folder`/step_N; it exists whole or not at all. A full disk is a sentence and leaves the old ones."""
    final = checkpoint_path(folder, step)
    temporary = final.with_suffix(".tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name, model in models.items():
            description = {"format": FORMAT, "step": step, **model.description()}
            _write_part(temporary / name, description, dict(model.state_dict()))
        _write_part(temporary / "training", {"format": FORMAT, "step": step, "state": training}, {})
        files = sorted(temporary.iterdir())
        manifest = {f.name: {"bytes": f.stat().st_size, "sha256": _sha256(f)} for f in files}
        _write_text(temporary / "manifest.json", json.dumps({"format": FORMAT, "files": manifest}, indent=1))
        _sync_folder(temporary)
        _put_in_place(temporary)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"The checkpoint at step {step:,} could not be written to {folder}: {error}. "
            "Earlier checkpoints are untouched; make room or permissions there, then 'ludus resume' the run."
        ) from error
    return final


def _put_in_place(temporary: Path) -> None:
    """step_N.tmp, which is whole, becomes step_N. If a crash comes in between, `clear_leftovers` does it."""
    final = temporary.with_suffix("")
    if final.exists():  # the same step again, after a resume
        shutil.rmtree(final)
    temporary.rename(final)
    _sync_folder(temporary.parent)


def _write_part(path: Path, tree: Any, tensors: dict[str, Tensor]) -> None:
    tensors = {name: value.detach().contiguous().cpu() for name, value in tensors.items()}
    plain = split_tree(tree, tensors)
    target = path.with_suffix(".safetensors")
    save_file({name: _alone(value) for name, value in tensors.items()}, target)
    _sync_file(target)
    _write_text(path.with_suffix(".json"), json.dumps(plain, indent=1))


def _alone(value: Tensor) -> Tensor:
    """A copy of what shares memory, as parameters of one flat tensor do: safetensors refuses it."""
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _write_text(path: Path, text: str) -> None:
    path.write_text(text)
    _sync_file(path)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mark_best(checkpoint: Path) -> None:
    """Point `best` at a checkpoint, in one step that cannot be half done."""
    link, aside = checkpoint.parent / "best", checkpoint.parent / "best.tmp"
    aside.unlink(missing_ok=True)
    aside.symlink_to(checkpoint.name)
    aside.rename(link)


def prune(folder: Path, keep: int) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    best = (folder / "best").resolve()
    for old in checkpoints_in(folder)[:-keep]:
        if old.resolve() != best:
            shutil.rmtree(old, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Finish what a crash left whole but not yet in its place; remove what it left half-written."""
    for leftover in folder.glob("*.tmp"):
        if leftover.is_symlink() or not leftover.is_dir():
            leftover.unlink(missing_ok=True)
        elif problem_of(leftover) is None:
            _put_in_place(leftover)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def set_aside_newer(checkpoint: Path) -> None:
    """Rename the checkpoints after this one, which are damaged: they must not count as the newest again."""
    for newer in checkpoints_in(checkpoint.parent):
        if _step_of(newer) > _step_of(checkpoint):
            aside = newer.with_name(f"damaged_{newer.name}")
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)


# Reading ----------------------------------------------------------------------------------------
def checkpoints_in(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    found = (p for p in folder.glob("step_*") if re.fullmatch(r"step_\d+", p.name) and p.is_dir())
    return sorted(found, key=_step_of)


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))


def problem_of(checkpoint: Path, to_resume: bool = True) -> str | None:
    """Why a checkpoint cannot be trusted, or nothing. Only to resume are all its files looked at."""
    try:
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        for name, expected in manifest["files"].items():
            file = checkpoint / name
            if file.stem == "training" and not to_resume:
                continue
            if not file.exists():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"]:
                return f"{name} has {file.stat().st_size:,} bytes instead of {expected['bytes']:,}"
            if _sha256(file) != expected["sha256"]:
                return f"{name} has changed since it was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"manifest.json cannot be read ({error})"
    return None


def newest_intact(folder: Path, warn: Callable[[str], None], to_resume: bool = True) -> Path:
    """The newest checkpoint that passes its check; damaged ones are named and passed over."""
    found = checkpoints_in(folder)
    for checkpoint in reversed(found):
        problem = problem_of(checkpoint, to_resume)
        if problem is None:
            return checkpoint
        warn(f"The checkpoint {checkpoint.name} is damaged ({problem}); trying the one before.")
    if found:
        use = "continued" if to_resume else "used"
        raise CheckpointError(f"Every checkpoint in {folder} is damaged; the run cannot be {use}.")
    raise CheckpointError(f"There is no checkpoint in {folder}.")


def load_policy(checkpoint: Path) -> Policy:
    """The policy alone, ready to act."""
    if not (checkpoint / "policy.json").exists() and (checkpoint / "reward.json").exists():
        raise CheckpointError(
            f"{checkpoint} holds a reward and no policy: 'ludus label' and 'ludus report' use it; nothing acts."
        )
    description, tensors = _read_part(checkpoint / "policy")
    try:
        policy = policy_from(description)
        policy.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint} does not hold a policy of this version of Ludus: {error}") from error
    return policy.eval()


def refuse_misfit(policy: Policy, env: VecEnv) -> None:
    """One sentence, before torch complains of shapes: a policy goes with environments as it was trained in."""
    for what, known, found in (
        ("observations", policy.obs_space, env.obs_space),
        ("actions", policy.action_space, env.action_space),
    ):
        if known.shape != found.shape:
            raise CheckpointError(
                f"The policy does not fit {env.name}: it was trained with {what} of the shape {known.shape}, and "
                f"here they are {found.shape}. The environment or its settings have changed since: train it anew."
            )


def load_reward(checkpoint: Path) -> RewardModel:
    """A learned reward, ready to judge."""
    if not (checkpoint / "reward.json").exists():
        raise CheckpointError(f"{checkpoint} holds no learned reward: its run was not trained with one.")
    description, tensors = _read_part(checkpoint / "reward")
    try:
        model = RewardModel.from_description(description)
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint} does not hold a reward of this version of Ludus: {error}") from error
    return model.eval()


def load_training(checkpoint: Path) -> tuple[int, State]:
    """(step, everything an exact continuation needs besides the policy)."""
    plain, tensors = _read_part(checkpoint / "training")
    return plain["step"], join_tree(plain["state"], tensors)


def load_model_weights(checkpoint: Path, name: str) -> dict[str, Tensor]:
    return _read_part(checkpoint / name)[1]


def _read_part(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        return json.loads(path.with_suffix(".json").read_text()), load_file(path.with_suffix(".safetensors"))
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error


def dump_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Keep a suspicious batch for later inspection."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: torch.clone(value).contiguous() for name, value in tensors.items()}, path)
