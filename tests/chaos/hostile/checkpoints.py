"""Checkpoints that lie about what they hold."""

import json
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from ..sandbox import Sandbox
from .configurations import HUGE
from .spoiling import EXPORTED, VERBS, Hostile, checkpoint_of, checkpoints_of, redo_manifest


def _weights(change: Callable[[dict[str, Any], Random], dict[str, Any]], sandbox: Sandbox, random: Random) -> None:
    from safetensors.torch import load_file, save_file

    for checkpoint in checkpoints_of(sandbox.run):
        path = checkpoint / "policy.safetensors"
        save_file(change(load_file(path), random), path)
        redo_manifest(checkpoint)


def _poisoned(value: float) -> Callable[[dict[str, Any], Random], dict[str, Any]]:
    def change(tensors: dict[str, Any], random: Random) -> dict[str, Any]:
        name = random.choice(
            sorted(name for name, tensor in tensors.items() if tensor.is_floating_point() and tensor.numel())
        )
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[0] = value
        return tensors

    return change


def _cast(dtype: str) -> Callable[[dict[str, Any], Random], dict[str, Any]]:
    def change(tensors: dict[str, Any], random: Random) -> dict[str, Any]:
        import torch

        return {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors.items()}

    return change


def _header(change: Callable[[dict[str, Any], Random], Any], sandbox: Sandbox, random: Random) -> None:
    """safetensors: a length, a JSON header and the bytes. Here the header lies."""
    for checkpoint in checkpoints_of(sandbox.run):
        path = checkpoint / "policy.safetensors"
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        made = change(header, random)
        text = made if isinstance(made, bytes) else json.dumps(made).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
        redo_manifest(checkpoint)


def _lying_length(length: int, sandbox: Sandbox, random: Random) -> None:
    for checkpoint in checkpoints_of(sandbox.run):
        path = checkpoint / "policy.safetensors"
        path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])
        redo_manifest(checkpoint)


def _first(header: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(value for name, value in header.items() if name != "__metadata__")
    return found


def _with_first(key: str, value: Any) -> Callable[[dict[str, Any], Random], Any]:
    def change(header: dict[str, Any], random: Random) -> Any:
        _first(header)[key] = value
        return header

    return change


def _json_part(part: str, change: Callable[[Any, Random], Any], sandbox: Sandbox, random: Random) -> None:
    for checkpoint in checkpoints_of(sandbox.run):
        path = checkpoint / f"{part}.json"
        made = change(json.loads(path.read_text()), random)
        path.write_bytes(made if isinstance(made, bytes) else json.dumps(made).encode())
        if part != "manifest":
            redo_manifest(checkpoint)


def _at(path: str, value: Any) -> Callable[[Any, Random], Any]:
    """The tree with a value at this place."""

    def change(tree: Any, random: Random) -> Any:
        *way, last = path.split(".")
        place = tree
        for part in way:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[int(last) if isinstance(place, list) else last] = value
        return tree

    return change


def _with_huge_memory(tree: Any, random: Random) -> Any:
    return {**tree, "config": {**tree["config"], "memory": "lstm", "memory_size": HUGE}}


def _deep(depth: int) -> Callable[[Any, Random], bytes]:
    return lambda tree, random: b'{"files": ' + b"[" * depth + b"]" * depth + b', "state": {}, "step": 1}'


def _manifest_names(name: str, size: int, sandbox: Sandbox, random: Random) -> None:
    wanted = name.format(victim=sandbox.victim)
    for checkpoint in checkpoints_of(sandbox.run):
        manifest = json.loads((checkpoint / "manifest.json").read_text())
        manifest["files"] = {wanted: {"bytes": size, "sha256": "0" * 64}, **manifest["files"]}
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))
        if wanted == "pipe":
            os.mkfifo(checkpoint / "pipe")


def _step_name(name: str, sandbox: Sandbox, random: Random) -> None:
    source = checkpoint_of(sandbox.run)
    shutil.copytree(source, sandbox.run / "checkpoints" / name)


def _counters(name: str, value: Any) -> Hostile:
    spoil = partial(_json_part, "training", _at(f"state.counters.{name}", value))
    return Hostile(f"training.json: {name} = {str(value)[:30]}", spoil)


def _lost(name: str, sandbox: Sandbox, random: Random) -> None:
    for path in checkpoints_of(sandbox.run):
        (path / name).unlink()
    if name != "manifest.json":
        for path in checkpoints_of(sandbox.run):
            redo_manifest(path)


def _model_arrays(field: str, value: int, sandbox: Sandbox, random: Random) -> None:
    """An integer array of a saved MuJoCo model points beyond others."""
    import numpy as np
    import torch
    from safetensors.torch import load_file, save_file

    for checkpoint in checkpoints_of(sandbox.run):
        tree = json.loads((checkpoint / "training.json").read_text())
        tensors = load_file(checkpoint / "training.safetensors")
        for i, env in enumerate(tree["state"]["job"]["collector"]["groups"][0]["env"]["envs"]):
            name = f"/state/job/collector/groups/0/env/envs/{i}/data"
            data = tensors[name].numpy().copy()
            for node in _nodes_named(env["tree"], field):
                kind, at = np.dtype(node["dtype"]), node["at"]
                count = int(np.prod(node["shape"]))
                data[at : at + kind.itemsize * count] = np.full(count, value, kind).view(np.uint8)
            tensors[name] = torch.from_numpy(data)
        save_file(tensors, checkpoint / "training.safetensors")
        redo_manifest(checkpoint)


def _nodes_named(tree: Any, field: str) -> list[dict[str, Any]]:
    """Descriptions of arrays under this name, wherever they are."""
    if isinstance(tree, list):
        return [node for part in tree for node in _nodes_named(part, field)]
    if not isinstance(tree, dict):
        return []
    found = [node for part in tree.values() for node in _nodes_named(part, field)]
    named = tree.get(field)
    if isinstance(named, dict):
        inner = named.get("array", named)
        if isinstance(inner, dict) and "dtype" in inner:
            found.append(inner)
    return found


_FILES_OF = b'{"format": 1, "files": {"policy.json": {"bytes": '


def hostile_checkpoints() -> list[Hostile]:
    weights = {
        "NaN": _poisoned(float("nan")),
        "infinity": _poisoned(float("inf")),
        "int64": _cast("int64"),
        "float16": _cast("float16"),
        "complex": _cast("complex64"),
        "bool": _cast("bool"),
    }
    acting = ("eval", "export")
    found = [
        Hostile(f"weights: {name}", partial(_weights, change), VERBS if name == "NaN" else EXPORTED, acting)
        for name, change in weights.items()
    ]
    headers = {
        "a huge shape": _with_first("shape", [10**12, 10**6]),
        "offsets beyond the end": _with_first("data_offsets", [0, 10**15]),
        "negative offsets": _with_first("data_offsets", [-8, 8]),
        "an unknown dtype": _with_first("dtype", "F128"),
        "no JSON": lambda header, random: random.randbytes(200),
        "deep": lambda header, random: b'{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        "a list": lambda header, random: [header],
    }
    found += [Hostile(f"safetensors: {n}", partial(_header, c), EXPORTED, acting) for n, c in headers.items()]
    lengths = (2**60, 2**64 - 1, 0)
    found += [
        Hostile(f"safetensors: a header of {n} bytes", partial(_lying_length, n), EXPORTED, acting)
        for n in lengths
    ]
    descriptions: dict[str, Callable[[Any, Random], Any]] = {
        "hidden 10⁹": _at("config.hidden", [HUGE]),
        "hidden 10⁵ × 10⁵": _at("config.hidden", [10**5, 10**5]),
        "an LSTM of 10⁹": _with_huge_memory,
        "20,000 layers": _at("config.hidden", [1] * 20_000),
        "observations of 10⁹": _at("obs_space.shape", [HUGE]),
        "observations of −1": _at("obs_space.shape", [-1]),
        "10¹² actions": _at("action_space.n", 10**12),
        "−1 actions": _at("action_space.n", -1),
        "no space": _at("obs_space", None),
        "an odd kind": _at("kind", ["ppo"]),
        "a kind by name": _at("kind", "subprocess:check_output"),
        "an odd activation": _at("activation", {"a": 1}),
        "an activation by name": _at("config.activation", "os.system"),
        "hidden as text": _at("config.hidden", "88"),
        "NaN": _at("config.initial_std", float("nan")),
        "5,000 digits": lambda tree, random: b'{"format": ' + b"9" * 5_000 + b"}",
        "deep": _deep(100_000),
        "a list": lambda tree, random: [1],
        "noise": lambda tree, random: random.randbytes(300),
        "a format of tomorrow": _at("format", 99),
        "odd bounds": _at("obs_space.low", ["x", None, "1e999", "nan"]),
    }
    found += [
        Hostile(f"policy.json: {name}", partial(_json_part, "policy", change), EXPORTED)
        for name, change in descriptions.items()
    ]
    found += [
        _counters("iteration", -5),
        _counters("iteration", 10**30),
        _counters("iteration", "many"),
        _counters("metric_rows", -1),
        _counters("metric_rows", 10**12),
        _counters("seconds", "1e999"),
        _counters("best_step", 10**30),
        _counters("best_success", "x" * 10**6),
        _counters("logged_batches", 10**15),
        _counters("rollbacks", [1]),
        _counters("stranger", 1),
        _counters("evaluation_owed", "yes"),
    ]
    training: dict[str, Callable[[Any, Random], Any]] = {
        "deep": _deep(100_000),
        "a list": lambda tree, random: [1],
        "no state": _at("state", None),
        "no job": _at("state.job", {}),
        "an odd job": _at("state.job", [1, 2]),
        "a tensor that is missing": _at("state.job.ppo.generator", {"__tensor__": "nowhere"}),
        "a tensor by a list": _at("state.job.ppo.generator", {"__tensor__": [1]}),
        "odd environments": _at("state.job.collector.groups.0.env.envs", [1, 2]),
        "no groups": _at("state.job.collector.groups", []),
        "odd elapsed": _at("state.job.collector.groups.0.env.elapsed", ["x", -1]),
        "a huge tick": _at("state.job.collector.groups.0.env.tick", 10**30),
        "a huge array": _at("state.job.collector.groups.0.env.envs.0.tree.object.state.array.shape", [10**12]),
        "an array of objects": _at("state.job.collector.groups.0.env.envs.0.tree.object.state.array.dtype", "O"),
        "an array elsewhere": _at("state.job.collector.groups.0.env.envs.0.tree.object.state.array.at", -(10**6)),
        "5,000 digits": _at("state.job.collector.groups.0.env.envs.0.tree.object.gravity", {"int": "9" * 5_000}),
    }
    found += [
        Hostile(f"training.json: {name}", partial(_json_part, "training", change))
        for name, change in training.items()
    ]
    manifests: dict[str, Callable[[Any, Random], Any]] = {
        "deep": _deep(100_000),
        "a list": lambda tree, random: [1],
        "files as a list": _at("files", [1]),
        "no files": _at("files", {}),
        "odd entries": _at("files", {"policy.json": 3}),
        "5,000 digits": lambda tree, random: _FILES_OF + b"9" * 5_000 + b"}}}",
        "noise": lambda tree, random: random.randbytes(300),
    }
    found += [
        Hostile(f"manifest.json: {name}", partial(_json_part, "manifest", change))
        for name, change in manifests.items()
    ]
    names = (
        ("/dev/zero", 0),
        ("/dev/stdin", 0),
        ("{victim}/precious.txt", 280),
        ("../../../../victim/precious.txt", 280),
        ("pipe", 0),
        ("/proc/self/mem", 0),
        ("\x1b[2J", 0),
        ("a\0b", 0),
        ("x" * 5_000, 0),
    )
    found += [
        Hostile(f"manifest.json names {name[:30]!r}", partial(_manifest_names, name, size)) for name, size in names
    ]
    steps = ("step_" + "9" * 240, "step_٣٣٣", "step_000000000", "step_-5", "step_1e9")
    found += [Hostile(f"checkpoints/{name[:30]}", partial(_step_name, name)) for name in steps]
    lost = ("policy.json", "policy.safetensors", "training.json", "training.safetensors", "manifest.json")
    return found + [Hostile(f"no {name}", partial(_lost, name)) for name in lost]


def hostile_simulations() -> list[Hostile]:
    fields = (
        ("jnt_qposadr", 10**6),
        ("dof_bodyid", 10**6),
        ("jnt_qposadr", -(10**6)),
        ("body_parentid", 10**6),
        ("geom_bodyid", 10**6),
        ("actuator_trnid", 10**6),
    )
    return [
        Hostile(
            f"{field} of a saved model is {value}",
            partial(_model_arrays, field, value),
            ("resume",),
            base="mujoco",
        )
        for field, value in fields
    ]
