"""Starting a training with what another has learned: `--from RUN`, `--from RUN@100000`.

Weights are taken by name, where shape and type are the same; what does not fit begins anew and is named. Only
tensors and plain JSON are read, so nothing is imported that the other run names.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ludus.errors import CheckpointError, ConfigError, plain_text
from ludus.training.address import find_checkpoint, read_address
from ludus.training.checkpoint import (
    load_description,
    load_model_weights,
    load_training_tensors,
    problem_of,
    step_of,
)
from ludus.training.job import REWARD_SCALE, Job

# Settings of a policy that change what its weights mean.
_MEANING = ("hidden", "activation", "memory", "memory_size", "shared_trunk", "normalize_obs", "cnn",
            "image_features", "actor_parts", "critic_parts", "network")  # fmt: skip
_MOST_NAMED = 6


class _Taken(NamedTuple):
    """What became of a model, layer by layer."""

    tensors: int = 0  # that were taken
    weights: int = 0  # of these, what a gradient changes
    new: tuple[str, ...] = ()  # "head.linear (4 × 128 → 6 × 128)"
    unused: tuple[str, ...] = ()  # layers that the other policy has, and this one has not


def pinned_address(flag: str, run: str) -> str:
    """An address that goes on naming the same checkpoint when its run is trained further, from any folder."""
    try:
        address = read_address(Path(run).expanduser())
        return f"{address.folder.resolve()}@{step_of(find_checkpoint(address))}"
    except CheckpointError as error:
        raise CheckpointError(f"{flag}: {error}") from error


def start_from(job: Job, run: str) -> list[str]:
    """Give a job what the checkpoint of another run has learned; returns lines that tell what was taken.

    What learns beside a policy, as critics do, comes along where all of the policy fits.
    """
    address = read_address(run)
    checkpoint = find_checkpoint(address)
    parts = [_take(checkpoint, name, model) for name, model in job.models.items()]
    taken, new = sum(part.tensors for part in parts), [name for part in parts for name in part.new]
    unused = [name for part in parts for name in part.unused]
    told = _told_differences(checkpoint, job, new, unused)
    if not any(part.weights for part in parts):
        raise ConfigError(f"--from {address}: no layer of it fits. {'; '.join(told)}.")
    beside = _take_beside(job, checkpoint) if not new and _same_kind(checkpoint, job) else []
    if beside:  # which may share layers with a policy whose saved ones are a mean: those count
        for name, model in job.models.items():
            _take(checkpoint, name, model)
    if not new and _same_kind(checkpoint, job) and len(beside) == len(job.learned_beside()):
        scale = _reward_scale(checkpoint)
        if scale is not None:
            job.take_reward_scale(scale)
    job.begin_with_new_weights()
    along = f", with {' and '.join(beside)}" if beside else ""
    return [f"starts from {address}: {taken} tensors taken{along}", *(f"  {line}" for line in told)]


def _take(checkpoint: Path, name: str, model: Any) -> _Taken:
    """Copy the layers of a model that fit. Limits of actions, and what a schedule says, stay as they are."""
    if not (checkpoint / f"{name}.json").exists():
        return _Taken(new=(f"all of the {name}",))
    assert isinstance(model, nn.Module)
    saved, own = load_model_weights(checkpoint, name), model.state_dict()
    learned = {key for key, _ in model.named_parameters()}
    layers: dict[str, list[str]] = {}
    for key in own:
        if key in learned or not key.startswith("head."):
            layers.setdefault(_layer_of(key), []).append(key)
    fits = {layer: all(_fits(saved.get(key), own[key]) for key in keys) for layer, keys in layers.items()}
    if name != "policy" and not all(fits.values()):  # a reward has units, which are those of its whole network
        fits = dict.fromkeys(fits, False)
    taken = [key for layer, keys in layers.items() if fits[layer] for key in keys]
    model.load_state_dict({key: saved[key] for key in taken}, strict=False)
    new = tuple(f"{layer} ({_change(keys, saved, own)})" for layer, keys in layers.items() if not fits[layer])
    others = dict.fromkeys(_layer_of(key) for key in saved if key not in own)
    unused = tuple(layer for layer in others if layer not in layers and layer != "head")
    return _Taken(len(taken), len(learned.intersection(taken)), new, unused)


def _layer_of(key: str) -> str:
    """What is taken as a whole: a bias is nothing without its weights, a mean without its count."""
    return key.rpartition(".")[0] or key


def _fits(saved: Tensor | None, own: Tensor) -> bool:
    return saved is not None and (saved.shape, saved.dtype) == (own.shape, own.dtype)


def _change(keys: list[str], saved: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    """What keeps a layer from being taken."""
    key = next((key for key in keys if not _fits(saved.get(key), own[key])), keys[0])
    return f"{_shape(saved[key])} → {_shape(own[key])}" if key in saved else _shape(own[key])


def _shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "1"


def _same_kind(checkpoint: Path, job: Job) -> bool:
    """Whether both policies act and learn in the same way."""
    return load_description(checkpoint, "policy").get("kind") == _described(job).get("kind")


def _take_beside(job: Job, checkpoint: Path) -> list[str]:
    """What learns beside the models; returns what it is called. A checkpoint may have been copied without it."""
    wanted = job.learned_beside()
    if not wanted or problem_of(checkpoint) is not None:
        return []
    saved = load_training_tensors(checkpoint, [path for path, _ in wanted.values()])
    taken = []
    for name, (path, own) in wanted.items():
        if _fits(saved.get(path), own):
            with torch.no_grad():
                own.copy_(saved[path])
            taken.append(name)
    return taken


def _reward_scale(checkpoint: Path) -> float | None:
    """What the other run divided its rewards by; None: it does not say, as older ones."""
    if problem_of(checkpoint) is not None:
        return None
    saved = load_training_tensors(checkpoint, [REWARD_SCALE]).get(REWARD_SCALE)
    if saved is None:
        return None
    if saved.numel() != 1 or not 0 < float(saved) < math.inf:
        raise CheckpointError(
            f"--from: {checkpoint} has divided rewards by what is no number above 0: it is damaged."
        )
    return float(saved)


def _told_differences(checkpoint: Path, job: Job, new: list[str], unused: list[str]) -> list[str]:
    """What begins anew, what finds no place, and the settings of the networks that differ."""
    lines = [f"{words}: {_some(names)}" for words, names in (("new", new), ("not used", unused)) if names]
    theirs, ours = _meaning(load_description(checkpoint, "policy")), _meaning(_described(job))
    other = [name for name in ours if theirs.get(name, ours[name]) != ours[name]]
    changes = [f"policy.{name} {plain_text(str(theirs[name]), 60)} → {ours[name]}" for name in other]
    return lines + ([f"the networks differ: {', '.join(changes)}"] if changes else [])


def _described(job: Job) -> dict[str, Any]:
    return job.models["policy"].description() if "policy" in job.models else {}


def _meaning(description: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a policy that say what its weights mean, as JSON has them."""
    config = description.get("config")
    found = config if isinstance(config, dict) else {}
    return {name: _as_json(found[name]) for name in _MEANING if name in found}


def _as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _some(names: list[str]) -> str:
    shown = [plain_text(name, 100) for name in names[:_MOST_NAMED]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
