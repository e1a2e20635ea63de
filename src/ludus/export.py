"""A policy for other programs: ONNX with the normaliser and the action bounds inside."""

import json
import os
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.interface import column_names
from ludus.envs.row_space import ONLY_PART, Part
from ludus.errors import ConfigError, plain_text
from ludus.export_tracker import export_tracker, json_texts, tracker_of
from ludus.onnx_files import Graph, need_onnx, write_checked
from ludus.policies.policy import Policy
from ludus.saved_run import load, run_folder
from ludus.training.run_facts import read_facts
from ludus.version import __version__

METADATA = {
    "ludus_version": "the version of Ludus that wrote the file",
    "run": "the run's folder",
    "preset": "what was trained",
    "observations": "inputs in their order: shape, type, and the names of their numbers",
    "actions": "the numbers of `action` in their order: name, bounds, unit",
    "control_dt": "seconds that an action lasts, where that is known",
    "normalizer": "whether observations are standardised inside",
    "state": "of a policy with a memory: what is fed back",
    "action_mask": "which input says what actions are valid",
    "ludus_tracker": "of a body that follows clips: all that a controller needs, unrounded",
}


def export_onnx(
    run: str | Path, file: str | Path, trust: bool = False, clip: str = "", clip_as_input: bool = False
) -> float:
    """Write the deterministic policy of a run; returns the largest difference to torch on random input.

    The file takes `obs` [batch, *obs] float32, or uint8 of an image, and gives `action` [batch, ...] in the
    environment's units. Where observations have parts it takes those that the actor sees, by their names, each as
    the environment gives it, and an `action_mask`. With a memory it also takes `state` [batch, state] (or
    `hidden_state`, where a part is named so), zeros where an episode begins, and gives `new_state` for the next.
    It is written only after it has been run and compared. What the numbers mean is in its metadata
    (`read_metadata`). `trust` as in `ludus.resume`.

    A body that follows clips has a form of its own (`ludus.export_tracker`), with the body's model beside the
    file: one `clip` inside, or with `clip_as_input` none.
    """
    file = Path(file)
    if file.suffix != ".onnx":
        raise ConfigError(f"The file to export to must end in .onnx, not {file.name!r}.")
    need_onnx()
    policy = load(run, trust)
    tracker = tracker_of(run, policy, trust, clip, clip_as_input)
    if tracker is not None:
        return export_tracker(tracker, metadata_of(policy, run, ["obs", "state"]), file)
    generator = torch.Generator().manual_seed(0)
    inputs = {part.name: _some(part, generator) for part in policy.seen_parts()}
    if policy.state_size:
        name = "hidden_state" if "state" in inputs else "state"
        inputs[name] = torch.randn((16, policy.state_size), generator=generator) * 0.5
    outputs = ["action", "new_state"][: 1 + bool(policy.state_size)]
    metadata = json_texts(metadata_of(policy, run, list(inputs)))
    return write_checked(Graph(_Step(policy), inputs, outputs, metadata), file)


# Metadata ---------------------------------------------------------------------------------------
def read_metadata(file: str | Path) -> dict[str, Any]:
    """What an exported policy says of itself; its texts are JSON, as in onnxruntime's `custom_metadata_map`."""
    import onnx

    model = onnx.load(str(file))
    return {entry.key: json.loads(entry.value) for entry in model.metadata_props if entry.key in METADATA}


def metadata_of(policy: Policy, run: str | os.PathLike[str], inputs: list[str]) -> dict[str, Any]:
    """What another program needs to know; `METADATA` says what each is."""
    folder = run_folder(run)
    found: dict[str, Any] = {
        "ludus_version": __version__,
        "run": folder.resolve().name,
        "preset": plain_text(str(read_facts(folder).get("preset", "")), 200),
        "observations": [_seen(policy, part) for part in policy.seen_parts()],
        "actions": _actions(policy),
        "normalizer": "inside" if policy.normalizer is not None else "none",
    }
    if policy.interface.control_dt:
        found["control_dt"] = policy.interface.control_dt
    if policy.state_size:
        state = {"input": inputs[-1], "output": "new_state", "size": policy.state_size, "begins_with": 0.0}
        found["state"] = state
    if policy.mask is not None:
        found["action_mask"] = {"input": policy.mask.name, "size": policy.mask.size, "valid": 1}
    return found


def _seen(policy: Policy, part: Part) -> dict[str, Any]:
    image = part.kind == "image"
    return {
        "input": part.name,
        "shape": list(_shape(part)),
        "type": "uint8" if image else "float32",
        "names": [] if image else policy.interface.names_of(part.name, part.size),
    }


def _actions(policy: Policy) -> list[dict[str, Any]]:
    """One entry a number of an action, in their order."""
    space = policy.action_space
    if isinstance(space, gym.spaces.Discrete):
        first = int(space.start)
        return [{"name": "action", "choices": int(space.n), "low": first, "high": first + int(space.n) - 1}]
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = space.nvec.reshape(-1).tolist()
        return [{"name": f"action[{i}]", "choices": n, "low": 0, "high": n - 1} for i, n in enumerate(sizes)]
    low, high = _bounds(space.low), _bounds(space.high)
    names, units = list(policy.interface.actions), list(policy.interface.units)
    names = names if len(names) == len(low) else column_names("action", len(low))
    units = units if len(units) == len(low) else [""] * len(low)
    return [
        {"name": name, "unit": unit, "low": least, "high": most}
        for name, unit, least, most in zip(names, units, low, high, strict=True)
    ]


def _bounds(values: np.ndarray) -> list[float | None]:
    """As they are written, 0.1 of a float32; None where there is no bound, which JSON cannot say otherwise."""
    return [float(str(value)) if np.isfinite(value) else None for value in values.reshape(-1)]


# The file ---------------------------------------------------------------------------------------
def _some(part: Part, generator: torch.Generator) -> Tensor:
    """[16, ...] of a part of an observation, at random."""
    if part.kind == "image":
        assert isinstance(part.space, gym.spaces.Box)
        most = int(part.space.high.max())
        return torch.randint(0, most + 1, (16, *part.shape), generator=generator, dtype=torch.uint8)
    if part.kind == "mask":
        mask = torch.rand((16, *part.shape), generator=generator) < 0.5
        mask[:, 0] = True
        return mask.float()
    return torch.randn((16, *_shape(part)), generator=generator) * 3


def _shape(part: Part) -> tuple[int, ...]:
    """Of one observation, as the file takes it."""
    return (part.space.shape or ()) if part.name == ONLY_PART else part.shape


class _Step(torch.nn.Module):
    """What the file holds: a state only where the policy has one."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.names = [part.name for part in policy.seen_parts()]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        policy = self.policy
        parts = dict(zip(self.names, inputs, strict=False))
        state = inputs[-1] if policy.state_size else policy.start(0)
        action, new_state = policy(parts[ONLY_PART] if policy.rows is None else parts, state)
        return (action, new_state) if policy.state_size else (action,)
