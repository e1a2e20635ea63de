"""Checkpoints: a folder written aside, synced, checked and renamed, so that a crash leaves the old or the new.

    checkpoints/step_000200000/
        policy.json   policy.safetensors      all that is needed to act
        reward.json   reward.safetensors      a learned reward, where there is one
        training.json training.safetensors    all that is needed besides to go on exactly
        rank_1.json   rank_1.safetensors      what another rank needs besides, where there are several
        manifest.json                         sizes and SHA-256 of the files above

Tensors are safetensors, everything else is JSON: nothing in a checkpoint can run code. A checkpoint may come from
a stranger all the same, so names, sizes, shapes and types are checked before anything is allocated for them.
"""

import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import psutil
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ludus.envs.vec import State
from ludus.errors import MALFORMED, CheckpointError, ConfigError, LudusError, UnsavedError, plain_text
from ludus.files import (
    TRANSIENT,
    is_temporary,
    open_regular,
    persistently,
    read_json,
    sync_folder,
    temporary_beside,
)
from ludus.policies.factory import FindNetwork, MakePolicy, policy_from, refuse_kind, refuse_network
from ludus.policies.policy import Policy
from ludus.policies.reward import RewardModel
from ludus.training.ram import size as told_size
from ludus.training.run_folder import BEST, CHECKPOINT_NAME, checkpoint_folders, point, pointed_by

FORMAT = 1
_TENSOR_KEY = "__tensor__"
_FILE_NAME = re.compile(r"(policy|reward|training|rank_[1-9][0-9]{0,4})\.(json|safetensors)")
_TO_RESUME = re.compile(r"(training|rank_.*)\..*")  # files that acting does not need
_MANIFEST_BYTES = 1_000_000
_JSON_BYTES = 256_000_000
_DESCRIPTION_BYTES = 5_000_000  # of a policy's or reward's JSON
_MODEL_BYTES = 2**31  # of a policy's or reward's tensors
_HEADER_BYTES = 50_000_000  # of a safetensors file
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_TYPES |= {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
_UNBOUNDED = re.compile(r"head\.(low|high)")  # limits of actions, which may be infinite


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


def save_checkpoint(
    folder: Path, step: int, models: Mapping[str, Model], training: State, parts: Sequence[Path] = ()
) -> Path:
    """Write `folder`/step_N; it exists whole or not at all. A full disk is a sentence and leaves the old ones.

    `parts`: what other ranks have written with `write_part`.
    """
    with _told_in_a_sentence(folder, step):
        return persistently(lambda: _write_checkpoint(folder, step, models, training, parts))


def write_part(folder: Path, step: int, rank: int, state: State) -> Path:
    """What a rank needs besides, in a folder of its own, from where it goes into a checkpoint."""
    aside = temporary_beside(folder / f"rank_{rank}")

    def write() -> Path:
        try:
            aside.mkdir(parents=True)
            _write_part(aside / f"rank_{rank}", {"format": FORMAT, "step": step, "state": state}, {})
        except (OSError, SafetensorError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise _as_os_error(error) if isinstance(error, SafetensorError) else error from error
        return aside

    with _told_in_a_sentence(folder, step):
        return persistently(write)


@contextmanager
def _told_in_a_sentence(folder: Path, step: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        may_pass = error.errno in TRANSIENT
        raise (UnsavedError if may_pass else CheckpointError)(
            f"The checkpoint at step {step:,} could not be written to {folder}: {error}. "
            "Earlier checkpoints are untouched; make room or permissions there, then 'ludus resume' the run."
        ) from error


def _write_checkpoint(
    folder: Path, step: int, models: Mapping[str, Model], training: State, parts: Sequence[Path]
) -> Path:
    final = checkpoint_path(folder, step)
    temporary = temporary_beside(final)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        for name, model in models.items():
            description = {"format": FORMAT, "step": step, **model.description()}
            _write_part(temporary / name, description, dict(model.state_dict()))
        _write_part(temporary / "training", {"format": FORMAT, "step": step, "state": training}, {})
        for file in (file for part in parts for file in part.iterdir()):
            _bring(file, temporary / file.name)
        files = sorted(temporary.iterdir())
        manifest = {f.name: {"bytes": f.stat().st_size, "sha256": _sha256(f)} for f in files}
        _write_text(temporary / "manifest.json", json.dumps({"format": FORMAT, "files": manifest}, indent=1))
        sync_folder(temporary)
        _put_in_place(temporary)
    except SafetensorError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _as_os_error(error) from error
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return final


def _bring(file: Path, place: Path) -> None:
    """By a second name, where the file system has such: the first stays for another attempt."""
    try:
        os.link(file, place)
    except OSError:
        shutil.copyfile(file, place)
        _sync_file(place)


def _as_os_error(error: SafetensorError) -> OSError:
    """safetensors writes by itself, and tells the system's error in words."""
    code = re.search(r"(?:code:|os error) (\d+)", str(error))
    number = int(code[1]) if code else errno.EINVAL
    return OSError(number, os.strerror(number) if code else str(error))


def _put_in_place(temporary: Path) -> None:
    """A checkpoint that is whole takes its place. If a crash comes in between, `clear_leftovers` does it."""
    final = temporary.with_name(_final_name(temporary))
    if final.exists():  # the same step again, after a resume
        shutil.rmtree(final)
    temporary.rename(final)
    sync_folder(temporary.parent)


def _final_name(temporary: Path) -> str:
    return temporary.name.split(".")[1]


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


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def mark_best(checkpoint: Path) -> None:
    """Point `best` at a checkpoint, in one step that cannot be half done."""
    persistently(lambda: point(checkpoint.parent / BEST, checkpoint))


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `best` names, if it is there."""
    return pointed_by(folder / BEST)


def prune(folder: Path, keep: int | Literal["all"]) -> None:
    """Remove all but the newest `keep` checkpoints and the best one."""
    if keep == "all":
        return
    best = best_checkpoint(folder)
    for old in checkpoints_in(folder)[:-keep]:
        if old != best:
            shutil.rmtree(old, ignore_errors=True)


def clear_leftovers(folder: Path) -> None:
    """Finish what a crash left whole but not yet in its place; remove what it left half-written."""
    for leftover in filter(is_temporary, folder.glob(".*")):
        if leftover.is_symlink() or not leftover.is_dir():
            leftover.unlink(missing_ok=True)
        elif CHECKPOINT_NAME.fullmatch(_final_name(leftover)) and problem_of(leftover) is None:
            _put_in_place(leftover)
        else:
            shutil.rmtree(leftover, ignore_errors=True)


def set_aside_newer(checkpoint: Path) -> None:
    """Rename the checkpoints after this one, which are damaged: they must not count as the newest again."""
    for newer in checkpoints_in(checkpoint.parent):
        if step_of(newer) > step_of(checkpoint):
            aside = newer.with_name(f"damaged_{newer.name}")
            if aside.is_symlink() or aside.is_file():
                aside.unlink()
            shutil.rmtree(aside, ignore_errors=True)
            newer.rename(aside)


# Reading ----------------------------------------------------------------------------------------
def checkpoints_in(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return [path for path in checkpoint_folders(folder) if path.is_dir()]


def step_of(checkpoint: Path) -> int:
    """Of a checkpoint, by its name."""
    return int(checkpoint.name.removeprefix("step_"))


def problem_of(checkpoint: Path, to_resume: bool = True) -> str | None:
    """Why a checkpoint cannot be trusted, or nothing. Only to resume are all its files looked at."""
    try:
        return persistently(lambda: _problem_of(checkpoint, to_resume))
    except OSError as error:
        raise CheckpointError(
            f"{checkpoint} cannot be read: {error.strerror}. It is left as it is; try again when the disk works."
        ) from error


def _problem_of(checkpoint: Path, to_resume: bool) -> str | None:
    try:
        manifest = read_json(checkpoint / "manifest.json", _MANIFEST_BYTES)
        for file in checkpoint.iterdir():
            if file.name != "manifest.json" and (file.name not in manifest["files"] or not _is_regular(file)):
                return f"it holds {plain_text(file.name, 60)!r}, which its manifest does not list as a file"
        for name, expected in manifest["files"].items():
            if not _FILE_NAME.fullmatch(name):
                return f"manifest.json names {plain_text(name, 60)!r}, which no checkpoint has"
            problem = _problem_of_file(checkpoint / name, expected["bytes"], expected["sha256"], to_resume)
            if problem is not None:
                return problem
    except OSError as error:
        if error.errno in TRANSIENT:  # which says nothing about the checkpoint
            raise
        return f"it cannot be read ({error})"
    except (LudusError, *MALFORMED) as error:
        return f"manifest.json cannot be read ({error})"
    return None


def _is_regular(file: Path) -> bool:
    return stat.S_ISREG(file.lstat().st_mode)


def _problem_of_file(file: Path, expected_bytes: int, expected_sha256: str, to_resume: bool) -> str | None:
    name = file.name
    resumes = _TO_RESUME.fullmatch(name) is not None
    if resumes and not to_resume:
        return None
    if not file.exists():
        return f"{name} is missing"
    size = file.stat().st_size
    if size != expected_bytes:
        return f"{name} has {size:,} bytes instead of {expected_bytes:,}"
    if resumes:  # its tensors are as large as they are: memory is asked for when they are read
        most = _JSON_BYTES if file.suffix == ".json" else math.inf
    else:
        most = _DESCRIPTION_BYTES if file.suffix == ".json" else _MODEL_BYTES
    if size > most:
        return f"{name} has {size:,} bytes, more than {most:,}"
    if _sha256(file) != expected_sha256:
        return f"{name} has changed since it was written"
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


def load_policy(
    checkpoint: Path,
    find_network: FindNetwork = refuse_network,
    find_kind: Callable[[str], MakePolicy] = refuse_kind,
) -> Policy:
    """The policy alone, ready to act.

    `find_network` gives a network of the user's by its name, `find_kind` what makes policies of another kind than
    those of Ludus.
    """
    if not (checkpoint / "policy.json").exists() and (checkpoint / "reward.json").exists():
        raise CheckpointError(
            f"{checkpoint} holds a reward and no policy: 'ludus label' and 'ludus report' use it; nothing acts."
        )
    return _load_model(checkpoint / "policy", partial(policy_from, find=find_network, find_kind=find_kind))


M = TypeVar("M", Policy, RewardModel)


def _load_model(path: Path, build: Callable[[dict[str, Any]], M]) -> M:
    """A model from its description and its tensors, which must be those that the description asks for."""
    try:
        description = _read_plain(path)
        found = _tensors_in(path.with_suffix(".safetensors"))
        # Whatever sizes the description names, nothing is allocated. A user's network may need real tensors.
        with torch.device("cpu" if _names_network(description) else "meta"):
            wanted = {name: (tuple(t.shape), t.dtype) for name, t in build(description).state_dict().items()}
        _refuse_other_tensors(path, wanted, found)
        model, tensors = build(description), load_model_weights(path.parent, path.name)
        model.load_state_dict(tensors)
    except (ConfigError, *MALFORMED) as error:
        reason = plain_text(f"{type(error).__name__}: {error}", 300)
        raise CheckpointError(
            f"{path.parent} does not hold a {path.name} of this version of Ludus: {reason}"
        ) from error
    return model.eval()


def _names_network(description: dict[str, Any]) -> bool:
    config = description.get("config")
    return isinstance(config, dict) and bool(config.get("network"))


Kind = tuple[tuple[int, ...], torch.dtype | None]  # of a tensor: shape and type


def _refuse_other_tensors(path: Path, wanted: Mapping[str, Kind], found: Mapping[str, Kind]) -> None:
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            what = f"{path.parent}: the tensor {plain_text(name, 60)!r} of its {path.name}"
            told = f"is {_tell(found.get(name))}, and its description asks for {_tell(wanted.get(name))}."
            raise CheckpointError(f"{what} {told}")


def _tell(kind: Kind | None) -> str:
    return "none" if kind is None else f"{str(kind[1]).removeprefix('torch.')} {list(kind[0])}"


def _tensors_in(path: Path) -> dict[str, Kind]:
    """Shapes and types of what a safetensors file holds; nothing but its header is read."""
    try:
        with open_regular(path) as file:
            header = int.from_bytes(file.read(8), "little")
        if header > _HEADER_BYTES:
            raise CheckpointError(f"{path} is damaged: its list of tensors would have {header:,} bytes.")
        with safe_open(path, "pt") as tensors:
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (it is no dict)
            return {name: (tuple(part.get_shape()), _TYPES.get(part.get_dtype())) for name, part in parts.items()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error


def load_reward(checkpoint: Path) -> RewardModel:
    """A learned reward, ready to judge."""
    if not (checkpoint / "reward.json").exists():
        raise CheckpointError(f"{checkpoint} holds no learned reward: its run was not trained with one.")
    return _load_model(checkpoint / "reward", RewardModel.from_description)


def load_description(checkpoint: Path, name: str) -> dict[str, Any]:
    """What a model says of itself; empty where the checkpoint has none of this name."""
    return _read_plain(checkpoint / name) if (checkpoint / f"{name}.json").exists() else {}


def load_training_tensors(checkpoint: Path, paths: Iterable[str]) -> dict[str, Tensor]:
    """Of the job's state what lies at these paths and is finite; the rest, which may be large, is not read."""
    file = checkpoint / "training.safetensors"
    there, places = _tensors_in(file), {path: f"/state/job/{path}" for path in paths}
    with safe_open(file, "pt") as tensors:
        found = {path: tensors.get_tensor(place) for path, place in places.items() if place in there}
    return {path: tensor for path, tensor in found.items() if bool(tensor.isfinite().all())}


def load_training(checkpoint: Path) -> tuple[int, State]:
    """(step, everything that an exact continuation needs besides the models)."""
    plain, tensors = _read_plain(checkpoint / "training"), _read_tensors(checkpoint / "training")
    return plain["step"], join_tree(plain["state"], tensors)


def load_part(checkpoint: Path, rank: int) -> State:
    """What a rank has written with `write_part`; empty where it has not."""
    path = checkpoint / f"rank_{rank}"
    if not path.with_suffix(".json").exists():
        return {}
    state: State = join_tree(_read_plain(path)["state"], _read_tensors(path))
    return state


def load_model_weights(checkpoint: Path, name: str) -> dict[str, Tensor]:
    """The tensors of a model, which must be finite."""
    tensors = _read_tensors(checkpoint / name)
    for key, tensor in tensors.items():
        strange = tensor.isnan() if _UNBOUNDED.search(key) else ~tensor.isfinite()
        if strange.any():
            what = f"{checkpoint}: the tensor {plain_text(key, 60)!r} of its {name}"
            raise CheckpointError(f"{what} holds numbers that are not finite.")
    return tensors


def _read_plain(path: Path) -> dict[str, Any]:
    try:
        plain = read_json(path.with_suffix(".json"), _JSON_BYTES)
    except OSError as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error
    if not isinstance(plain, dict):
        raise CheckpointError(f"{path.with_suffix('.json')} does not hold names and values.")
    return plain


def _read_tensors(path: Path) -> dict[str, Tensor]:
    file = path.with_suffix(".safetensors")
    _tensors_in(file)
    needed, free = file.stat().st_size, psutil.virtual_memory().available
    if needed > free:  # which says nothing against the checkpoint: it is to be tried again, and kept
        raise CheckpointError(
            f"{file} has {told_size(needed)}, and {told_size(free)} of memory are free. Free some, then try again."
        )
    try:
        return load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{path.parent} cannot be read: {error}") from error


def dump_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Keep a suspicious batch for later inspection."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = temporary_beside(path)
    save_file({name: torch.clone(value).contiguous() for name, value in tensors.items()}, aside)
    os.replace(aside, path)
