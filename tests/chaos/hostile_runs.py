"""Run folders of a stranger: a real run, spoilt in one way each, and what `ludus` makes of it.

Every command must end within its limits in a correct result or in a sentence; it must execute nothing that the
folder names, write nowhere else, and show no stack trace.
"""

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from .children import Ended, run
from .jobs import arguments_of, on_policy, with_files
from .results import Result, Trial
from .sandbox import Sandbox

Spoil = Callable[[Sandbox, Random], None]
VERBS = ("eval", "report", "resume")
_EXPORTED = (*VERBS, "export")  # which takes 6 s where it succeeds
_WATCH = (*VERBS, "play")
_ACTING = ("eval", "resume")

_SMALL = {"policy.hidden": "8 8", "eval.episodes": 1}
BASES = {
    "cartpole": ("gym:CartPole-v1", on_policy(2, 8, 4, 2, env__max_steps=20) | _SMALL),
    "mujoco": ("gym:InvertedPendulum-v5", on_policy(2, 8, 4, 2, env__max_steps=20) | _SMALL),
    "humanoid": (
        "humanoid-mimic",
        on_policy(2, 8, 2, 1, env__clips="stand.npz", env__max_steps=10, env__threads=1) | _SMALL,
    ),
}


@dataclass(frozen=True)
class Hostile:
    """One way of spoiling a run."""

    name: str
    spoil: Spoil
    verbs: Sequence[str] = VERBS
    refused: Sequence[str] = ()
    """Verbs that must not succeed: their result would be wrong."""
    accepted: Sequence[str] = ()
    """Verbs that must succeed: nothing they read is wrong."""
    base: str = "cartpole"
    more_steps: bool = False
    """Resume with --total-steps, which writes the configuration anew."""
    planted: str = ""
    """Text that must not stand in the report as it is."""


def preparations(wanted: Sequence[tuple[str, int]], shared: Path) -> list[Callable[[], str]]:
    """Train the runs that these trials spoil. Each gives what went wrong."""
    needed = {KINDS[kind][0][number].base for kind, number in wanted if kind in KINDS}
    return [partial(_train_base, name, shared / "bases" / name) for name in sorted(needed)]


def _train_base(name: str, folder: Path) -> str:
    folder.mkdir(parents=True)
    preset, settings = BASES[name]
    ended = run(arguments_of(preset, with_files(settings, folder.parents[1])), folder)
    if ended.code == 0:
        config = read_config(folder / "run")
        config["loop"]["total_steps"] *= 2  # something is left to do
        write_config(folder / "run", config)
        (folder / "run" / "final").unlink()
    return "" if ended.code == 0 else ended.line


def judge(trial: Trial) -> Result:
    """Spoil a fresh copy for every verb, and see."""
    hostile = KINDS[trial.kind][0][trial.number]
    result = Result(trial.kind, trial.number, trial.command, hostile.name, survived=True)
    for verb in hostile.verbs:
        sandbox = Sandbox(trial.folder / verb)
        sandbox.make()
        shutil.copytree(trial.shared / "bases" / hostile.base / "run", sandbox.run, symlinks=True)
        hostile.spoil(sandbox, trial.random)
        ended = sandbox.judge(result, _arguments(verb, hostile))
        if ended.code == 0 and verb in hostile.refused:
            result.problems.append(f"it succeeds, and must not: {ended.line} {ended.output[-200:]!r}")
        if ended.code != 0 and verb in hostile.accepted:
            result.problems.append(f"it is refused, and nothing is wrong: {ended.line}")
        if verb == "report" and hostile.planted:
            _look_for_planted(result, sandbox, hostile, ended)
        _make_readable(trial.folder)
    result.survived = not result.problems
    return result


def _arguments(verb: str, hostile: Hostile) -> list[str]:
    more = {
        "eval": ["--episodes", "2"],
        "resume": ["--total-steps", "96"] if hostile.more_steps else [],
        "export": ["home/policy.onnx"],
        "play": ["--seconds", "0.5", "--port", "18080"],
    }
    return [verb, "run", *more.get(verb, [])]


def _look_for_planted(result: Result, sandbox: Sandbox, hostile: Hostile, ended: Ended) -> None:
    page = sandbox.run / "report.html"
    if page.is_file() and hostile.planted in page.read_text(errors="replace"):
        result.problems.append(f"what was planted stands in the report: {ended.line}")


def _make_readable(folder: Path) -> None:
    """For whoever removes it."""
    for path, _, _ in os.walk(folder):
        os.chmod(path, 0o755)


# Parts of a run ---------------------------------------------------------------------------------------
def read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load((folder / "config.yaml").read_text())
    return config


def write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))


def checkpoint_of(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step_*"))[-1]


def checkpoints_of(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step_*"))


def redo_manifest(checkpoint: Path) -> None:
    """As a stranger would who has changed the files."""
    files = {}
    for file in sorted(checkpoint.iterdir()):
        if file.name != "manifest.json" and file.is_file():
            content = file.read_bytes()
            files[file.name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


# Code -------------------------------------------------------------------------------------------------
def _env(sandbox: Sandbox, env: dict[str, Any]) -> None:
    config = read_config(sandbox.run)
    config["env"] = env
    write_config(sandbox.run, config)


def _payloads(sandbox: Sandbox) -> dict[str, dict[str, Any]]:
    """Callables of modules that every machine has, and what to call them with."""
    script = sandbox.run / "notes.txt"
    script.write_text(sandbox.code)
    (sandbox.run / "notes.py").write_text(sandbox.code + "def parallel_env(**kwargs): ...\n")
    (sandbox.here / "stranger_env.py").write_text(sandbox.code + "def make(**kwargs): ...\nparallel_env = make\n")
    precious, keep = str(sandbox.victim / "precious.txt"), str(sandbox.victim / "keep")
    return {
        "subprocess:check_output": {"args": sandbox.shell, "shell": True},
        "subprocess:run": {"args": sandbox.shell, "shell": True},
        "subprocess:Popen": {"args": sandbox.shell, "shell": True},
        "os:system": {"command": sandbox.shell},
        "os:popen": {"cmd": sandbox.shell},
        "os:remove": {"path": precious},
        "os:mkdir": {"path": str(sandbox.victim / "new")},
        "runpy:run_path": {"path_name": str(script)},
        "builtins:open": {"file": precious, "mode": "w"},
        "io:FileIO": {"file": precious, "mode": "w"},
        "shutil:rmtree": {"path": keep},
        "shutil:copyfile": {"src": str(script), "dst": precious},
        "timeit:timeit": {"stmt": sandbox.code.strip(), "number": 1},
        "cProfile:run": {"statement": sandbox.code.strip()},
        "pdb:run": {"statement": sandbox.code.strip()},
        "importlib:import_module": {"name": "stranger_env"},
        "pathlib:os.system": {"command": sandbox.shell},
        "multiprocessing.util:spawnv_passfds": {
            "path": "/bin/sh",
            "args": ["sh", "-c", sandbox.shell],
            "passfds": [],
        },
        "stranger_env:make": {},
        "stranger_env": {},
        "run.notes": {},
    }


PAYLOADS = (
    "subprocess:check_output",
    "subprocess:run",
    "subprocess:Popen",
    "os:system",
    "os:popen",
    "os:remove",
    "os:mkdir",
    "runpy:run_path",
    "builtins:open",
    "io:FileIO",
    "shutil:rmtree",
    "shutil:copyfile",
    "timeit:timeit",
    "cProfile:run",
    "pdb:run",
    "importlib:import_module",
    "pathlib:os.system",
    "multiprocessing.util:spawnv_passfds",
    "stranger_env:make",
    "stranger_env",
    "run.notes",
)


def _pettingzoo(payload: str, sandbox: Sandbox, random: Random) -> None:
    kwargs = _payloads(sandbox)[payload]
    _env(sandbox, {"kind": "pettingzoo", "id": payload, "num_envs": 2, "kwargs": kwargs})


def _vec(payload: str, sandbox: Sandbox, random: Random) -> None:
    _env(sandbox, {"kind": "vec", "factory": payload, "num_envs": 2, "kwargs": _payloads(sandbox)[payload]})


def _gym(module: str, sandbox: Sandbox, random: Random) -> None:
    """The module registers an environment that looks like the one trained in."""
    lines = ["import gymnasium", "gymnasium.register('X-v0', entry_point="]
    lines[1] += "'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=20)\n"
    package = sandbox.here
    for part in module.split(".")[:-1]:
        package = package / part
        package.mkdir(exist_ok=True)
        (package / "__init__.py").write_text(sandbox.code)
    (package / f"{module.split('.')[-1]}.py").write_text(sandbox.code + "\n".join(lines))
    _env(sandbox, {"kind": "gym", "id": f"{module}:X-v0", "num_envs": 2})


def _in_workers(spoil: Spoil, sandbox: Sandbox, random: Random) -> None:
    spoil(sandbox, random)
    config = read_config(sandbox.run)
    config["env"]["workers"] = 1
    write_config(sandbox.run, config)


def _mettagrid(sandbox: Sandbox, random: Random) -> None:
    _payloads(sandbox)
    _env(sandbox, {"kind": "mettagrid", "mission": "stranger_env:make", "id": "stranger_env:make"})


def _gym_kwargs(sandbox: Sandbox, random: Random) -> None:
    _env(
        sandbox,
        {"kind": "gym", "id": "InvertedPendulum-v5", "kwargs": {"xml_file": str(sandbox.victim / "precious.txt")}},
    )


def _tag(tag: str, sandbox: Sandbox, random: Random) -> None:
    config = read_config(sandbox.run)
    text = yaml.safe_dump({key: value for key, value in config.items() if key != "device"})
    (sandbox.run / "config.yaml").write_text(text + f"device: {tag.format(shell=json.dumps(sandbox.shell))}\n")


_TAGS = (
    "!!python/object/apply:os.system [{shell}]",
    "!!python/object/apply:subprocess.check_output {{kwds: {{args: {shell}, shell: true}}}}",
    "!!python/object/new:subprocess.Popen [[sh, -c, {shell}]]",
    "!!python/name:os.system",
    "!!python/module:stranger_env",
)


def _code() -> list[Hostile]:
    first = ("subprocess:check_output", "stranger_env:make", "runpy:run_path")
    found = [
        Hostile(f"pettingzoo:{p}", partial(_pettingzoo, p), (*_WATCH, "export") if p in first else VERBS, _ACTING)
        for p in PAYLOADS
    ]
    vec = ("subprocess:check_output", "os:system", "runpy:run_path", "shutil:rmtree", "stranger_env:make")
    found += [Hostile(f"vec:{p}", partial(_vec, p), VERBS, _ACTING) for p in vec]
    modules = ("stranger_gym", "stranger.gym", "run.stranger", "antigravity_gym")
    found += [
        Hostile(f"gym:{m}:X-v0", partial(_gym, m), _WATCH if m == modules[0] else VERBS, _ACTING) for m in modules
    ]
    found += [
        Hostile(
            "gym:stranger_gym:X-v0 in a worker",
            partial(_in_workers, partial(_gym, "stranger_gym")),
            VERBS,
            _ACTING,
        )
    ]
    found += [Hostile("mettagrid:stranger_env", _mettagrid, VERBS, _ACTING)]
    found += [Hostile("gym, xml_file elsewhere", _gym_kwargs, VERBS, _ACTING)]
    return found + [Hostile(f"YAML tag {tag.split(' ')[0]}", partial(_tag, tag), VERBS, VERBS) for tag in _TAGS]


# Configurations ---------------------------------------------------------------------------------------
def _set(name: str, value: Any, sandbox: Sandbox, random: Random) -> None:
    config = read_config(sandbox.run)
    *path, last = name.split(".")
    place = config
    for part in path:
        place = place[part]
    place[last] = value
    write_config(sandbox.run, config)


def _config_text(make: Callable[[str, Random], str | bytes], sandbox: Sandbox, random: Random) -> None:
    made = make((sandbox.run / "config.yaml").read_text(), random)
    (sandbox.run / "config.yaml").write_bytes(made.encode() if isinstance(made, str) else made)


def _alias_bomb(text: str, random: Random) -> str:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 10)]
    return text.replace("kwargs: {}", "kwargs: {l0: &l0 [x, x, x, x], " + ", ".join(levels) + "}")


def _alias_bomb_at_top(text: str, random: Random) -> str:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 10)]
    return "\n".join(["l0: &l0 [x, x, x, x]", *levels, text])


_HUGE = 10**9
_SETTINGS: list[tuple[str, Any]] = [
    ("env.num_envs", _HUGE),
    ("env.num_envs", -1),
    ("env.num_envs", 2**70),
    ("env.workers", 10**6),
    ("env.workers", -5),
    ("torch_threads", _HUGE),
    ("torch_threads", -3),
    ("policy.hidden", [_HUGE]),
    ("policy.hidden", [8] * 20_000),
    ("policy.hidden", [-8]),
    ("policy.hidden", "8"),
    ("policy.memory_size", _HUGE),
    ("ppo.horizon", 10**12),
    ("ppo.segments", _HUGE),
    ("groups", _HUGE),
    ("groups", 0),
    ("loop.total_steps", 10**30),
    ("loop.epochs", 2**63),
    ("eval.episodes", _HUGE),
    ("checkpoint.keep", -1),
    ("seed", 2**200),
    ("seed", -1),
    ("ppo.learning_rate", float("nan")),
    ("ppo.learning_rate", float("inf")),
    ("ppo.gamma", float("nan")),
    ("ppo.minibatches", _HUGE),
    ("ppo.update_epochs", 10**15),
    ("replay.capacity", 10**15),
    ("env.max_steps", 2**70),
    ("device", "cuda:99999999999999999999"),
    ("device", "meta"),
    ("device", "\x1b]0;owned\x07\x1b[31mcpu"),
    ("env.id", "\x1b[2JCartPole-v1"),
    ("env.id", "../../etc/passwd"),
    ("env.id", ["CartPole-v1"]),
    ("env.id", "x" * 10**6),
    ("env", None),
    ("env", {"kind": ["gym"]}),
    ("policy", 3),
    ("ppo", []),
    ("algo", {"a": 1}),
    ("seed", True),
    ("loop", {"total_steps": {"a": 1}}),
    ("stranger", {"a": 1}),
    ("data.path", "/dev/zero"),
    ("log.wandb", "../../x"),
    ("env.kwargs", {"render_mode": "human"}),
    ("env.kwargs", {"sutton_barto_reward": [[[1]]]}),
]
_NESTED = "kwargs: {a: " + "[" * 5_000 + "]" * 5_000 + "}"
_INDENTED = "stranger:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 1_500))
_TEXTS: dict[str, Callable[[str, Random], str | bytes]] = {
    "an alias bomb in kwargs": _alias_bomb,
    "an alias bomb": _alias_bomb_at_top,
    "an alias of itself": lambda text, random: text.replace("kwargs: {}", "kwargs: &a {b: *a}"),
    "nested lists": lambda text, random: text.replace("kwargs: {}", _NESTED),
    "nested mappings": lambda text, random: text + "stranger: " + "{a: " * 5_000 + "1" + "}" * 5_000 + "\n",
    "indented for ever": lambda text, random: (
        text + "stranger:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 1_500))
    ),
    "a seed of 5,000 digits": lambda text, random: _with_seed(text, str(random.randint(1, 9)) * 5_000),
    "a hexadecimal seed": lambda text, random: _with_seed(text, "0x" + "f" * 100_000),
    "a sexagesimal seed": lambda text, random: _with_seed(text, ":".join(["59"] * 5_000)),
    "a date for a seed": lambda text, random: _with_seed(text, "2026-99-99"),
    "nothing": lambda text, random: "",
    "null": lambda text, random: "null\n",
    "a list": lambda text, random: "- a\n- b\n",
    "noise": lambda text, random: random.randbytes(3_000),
    "no UTF-8": lambda text, random: text.encode() + b"stranger: \xff\xfe\xfa\n",
    "UTF-16": lambda text, random: text.encode("utf-16"),
    "NUL bytes": lambda text, random: text.replace("seed", "se\0ed"),
    "keys that are lists": lambda text, random: text + "? [a, b]\n: 1\n",
    "keys that are numbers": lambda text, random: text + "1: 2\nnull: 3\n",
    "an unknown tag": lambda text, random: text + "stranger: !stranger {a: 1}\n",
    "a file of 20 MB": lambda text, random: text + "stranger: " + "x" * 20_000_000 + "\n",
    "merged into itself": lambda text, random: text + "stranger: &s\n  <<: *s\n  a: 1\n",
}


def _with_seed(text: str, seed: str) -> str:
    lines = [f"seed: {seed}" if line.startswith("seed:") else line for line in text.splitlines()]
    return "\n".join(lines) + "\n"


def _configurations() -> list[Hostile]:
    found = [Hostile(f"{name} = {str(value)[:40]!r}", partial(_set, name, value)) for name, value in _SETTINGS]
    return found + [Hostile(f"config.yaml: {name}", partial(_config_text, make)) for name, make in _TEXTS.items()]


# Links, and files that are none -----------------------------------------------------------------------
def _link(name: str, to: str, sandbox: Sandbox, random: Random) -> None:
    """A link in the run to something of the user's; what was there moves there, where that makes a better lie."""
    path, target = sandbox.run / name, sandbox.victim / to
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.copytree(path, target, symlinks=True, dirs_exist_ok=True)
        shutil.rmtree(path)
    elif path.exists():
        if not target.exists():
            shutil.copyfile(path, target)
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _link_step(name: str, sandbox: Sandbox, random: Random) -> None:
    step = checkpoint_of(sandbox.run).name
    _link(f"checkpoints/{name.format(step=step)}", "keep", sandbox, random)


def _link_in_step(name: str, sandbox: Sandbox, random: Random) -> None:
    step = checkpoint_of(sandbox.run)
    _link(f"checkpoints/{step.name}/{name}", f"theirs-{name}", sandbox, random)


def _fifo(name: str, sandbox: Sandbox, random: Random) -> None:
    """Whoever opens it waits for ever."""
    path = _place(sandbox, name)
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def _folder(name: str, sandbox: Sandbox, random: Random) -> None:
    path = _place(sandbox, name)
    if path.is_symlink() or path.is_file():
        path.unlink()
    path.mkdir(exist_ok=True)
    (path / "inside.txt").write_text("a folder in the place of a file")


def _file(name: str, sandbox: Sandbox, random: Random) -> None:
    path = _place(sandbox, name)
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
    path.write_text("a file in the place of a folder")


def _place(sandbox: Sandbox, name: str) -> Path:
    return sandbox.run / name.replace("STEP", f"checkpoints/{checkpoint_of(sandbox.run).name}")


_LINKS = (
    ("config.yaml", "config.yaml"),
    ("config.yaml", "precious.txt"),
    ("config.yaml.tmp", "precious.txt"),
    ("report.html", "precious.txt"),
    ("report.html.tmp", "precious.txt"),
    ("report.html.tmp", "new.html"),
    ("replay.html", "precious.txt"),
    ("replay.html.tmp", "precious.txt"),
    ("train.lock", "precious.txt"),
    ("metrics.jsonl", "metrics.jsonl"),
    ("metrics.jsonl", "precious.txt"),
    ("run.json", "precious.txt"),
    ("evaluation.json", "precious.txt"),
    ("evaluation.json.tmp", "precious.txt"),
    ("R_loss.f32", "precious.txt"),
    ("checkpoints", "keep"),
    ("checkpoints/best", "keep"),
    ("checkpoints/best.tmp", "keep"),
    ("tb", "keep"),
    ("final", "keep"),
    ("nan_dump", "keep"),
    ("checkpoints/step_000000016.tmp", "keep"),
    ("checkpoints/best", "../../.."),
)
_STEP_LINKS = ("{step}", "{step}.tmp", "damaged_{step}", "step_000000096", "step_000000096.tmp")
_IN_STEP = ("policy.safetensors", "policy.json", "training.json", "training.safetensors", "manifest.json")
_FIFOS = (
    "config.yaml",
    "metrics.jsonl",
    "run.json",
    "train.lock",
    "evaluation.json",
    "replay.html",
    "report.html",
    "STEP/manifest.json",
    "STEP/policy.json",
    "STEP/policy.safetensors",
    "STEP/training.json",
    "STEP/training.safetensors",
    "R_loss.f32",
    "config.yaml.tmp",
    "report.html.tmp",
)
_FOLDERS = (
    "config.yaml",
    "metrics.jsonl",
    "train.lock",
    "report.html",
    "run.json",
    "final",
    "checkpoints/best",
    "STEP/manifest.json",
    "STEP/policy.json",
    "config.yaml.tmp",
    "report.html.tmp",
)


def _links() -> list[Hostile]:
    found = [
        Hostile(f"{name} → {to}", partial(_link, name, to), more_steps=name == "config.yaml.tmp")
        for name, to in _LINKS
    ]
    found += [Hostile(f"checkpoints/{name} → elsewhere", partial(_link_step, name)) for name in _STEP_LINKS]
    found += [
        Hostile(
            f"step_N/{name} → elsewhere", partial(_link_in_step, name), _EXPORTED if "policy" in name else VERBS
        )
        for name in _IN_STEP
    ]
    found += [
        Hostile(f"{name} is a FIFO", partial(_fifo, name), more_steps=name == "config.yaml.tmp") for name in _FIFOS
    ]
    found += [
        Hostile(f"{name} is a folder", partial(_folder, name), more_steps=name == "config.yaml.tmp")
        for name in _FOLDERS
    ]
    return found + [
        Hostile(f"{name} is a file", partial(_file, name)) for name in ("checkpoints", "tb", "STEP", "nan_dump")
    ]


# Checkpoints ------------------------------------------------------------------------------------------
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
    return {**tree, "config": {**tree["config"], "memory": "lstm", "memory_size": _HUGE}}


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


def _metrics(text: bytes, sandbox: Sandbox, random: Random) -> None:
    path = sandbox.run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + text + b"\n" + path.read_bytes())


def _plant(name: str, text: str | bytes, sandbox: Sandbox, random: Random) -> None:
    (sandbox.run / name).write_bytes(text.encode() if isinstance(text, str) else text)


def _plant_replay(sandbox: Sandbox, random: Random) -> None:
    """In a run without a checkpoint, whose report records no replay of its own."""
    shutil.rmtree(sandbox.run / "checkpoints")
    (sandbox.run / "replay.html").write_text("<script>/* planted by a stranger */</script>")


_SCRIPT = "<script>planted()</script>"
_ESCAPES = "\x1b]0;owned\x07\x1b[31m"
_METRICS = {
    "a deep line": b'{"step": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "huge numbers": b'{"step": 1, "train/loss": 1e400, "time/fps": -1e308}',
    "5,000 digits": b'{"step": ' + b"9" * 5_000 + b"}",
    "noise": bytes(range(256)) * 10,
    "a step of true": b'{"step": true, "eval/reward_mean": NaN}',
    "odd values": b'{"step": 8, "train/loss": [1], "eval/reward_mean": {"a": 1}, "x": null, "": 3}',
    "markup": json.dumps({"step": 40, _SCRIPT: 1.0, f"train/{_SCRIPT}": 2.0, "eval/reward_mean": 1.0}).encode(),
    "a negative step": b'{"step": -5, "time/fps": 1.0, "eval/reward_mean": 3.0, "train/loss": 2.0}',
}
_EVALUATIONS = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "a list": "[1, 2]",
    "odd rows": json.dumps({"step": "x", "rows": [1, None, {"clip": {"a": 1}, "success": "yes"}]}),
    "no numbers": json.dumps({"step": 1, "rows": [{"clip": "a", "success": None, "mpjpe": "NaN"}]}),
    "markup": json.dumps({"step": 1, "rows": [{"clip": _SCRIPT + _ESCAPES, "success_rate": 1.0, "mpjpe": 0.1}]}),
    "5,000 digits": '{"step": '
    + "9" * 5_000
    + ', "rows": [{"clip": "squat", "success_rate": '
    + "9" * 5_000
    + "}]}",
    "huge numbers": '{"step": 1e400, "rows": [{"clip": "squat", "success_rate": 1e400}]}',
}
_FACTS: dict[str, str | bytes] = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "a list": "[]",
    "odd values": json.dumps({"preset": {"a": [1]}, "seed": None, "versions": [1], "machine": 7}),
    "markup": json.dumps({"preset": _SCRIPT, "machine": _SCRIPT + _ESCAPES}),
    "noise": bytes(range(256)),
}


_FILES_OF = b'{"format": 1, "files": {"policy.json": {"bytes": '


def _checkpoints() -> list[Hostile]:
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
        Hostile(f"weights: {name}", partial(_weights, change), VERBS if name == "NaN" else _EXPORTED, acting)
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
    found += [Hostile(f"safetensors: {n}", partial(_header, c), _EXPORTED, acting) for n, c in headers.items()]
    lengths = (2**60, 2**64 - 1, 0)
    found += [
        Hostile(f"safetensors: a header of {n} bytes", partial(_lying_length, n), _EXPORTED, acting)
        for n in lengths
    ]
    descriptions: dict[str, Callable[[Any, Random], Any]] = {
        "hidden 10⁹": _at("config.hidden", [_HUGE]),
        "hidden 10⁵ × 10⁵": _at("config.hidden", [10**5, 10**5]),
        "an LSTM of 10⁹": _with_huge_memory,
        "20,000 layers": _at("config.hidden", [1] * 20_000),
        "observations of 10⁹": _at("obs_space.shape", [_HUGE]),
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
        Hostile(f"policy.json: {name}", partial(_json_part, "policy", change), _EXPORTED)
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


def _pages() -> list[Hostile]:
    shown = ("report", "resume")
    found = [
        Hostile("replay.html planted", _plant_replay, ("report",), planted='srcdoc="&lt;script&gt;/* planted'),
    ]
    found += [
        Hostile(f"metrics.jsonl: {name}", partial(_metrics, text), shown, planted=_SCRIPT)
        for name, text in _METRICS.items()
    ]
    found += [
        Hostile(
            f"evaluation.json: {name}",
            partial(_plant, "evaluation.json", text),
            ("report",),
            base="humanoid",
            planted=_SCRIPT,
        )
        for name, text in _EVALUATIONS.items()
    ]
    return found + [
        Hostile(f"run.json: {name}", partial(_plant, "run.json", text), shown, planted=_SCRIPT)
        for name, text in _FACTS.items()
    ]


def _simulations() -> list[Hostile]:
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


def _nothing(sandbox: Sandbox, random: Random) -> None:
    """Leave it as it is."""


def _unspoilt() -> list[Hostile]:
    """What a friend sends works, without a word of trust: otherwise refusing everything would pass."""
    return [Hostile(f"nothing, {base}", _nothing, VERBS, accepted=VERBS, base=base) for base in BASES]


KINDS: dict[str, tuple[list[Hostile], tuple[int, ...]]] = {
    # (all of them, the numbers of those in the short form)
    "hostile code": (_code(), (3,)),
    "hostile configuration": (_configurations(), (54,)),
    "hostile links": (_links(), (15,)),
    "hostile checkpoint": (_checkpoints(), (0,)),
    "hostile pages": (_pages(), (0,)),
    "hostile simulation": (_simulations(), (0,)),
    "unspoilt run": (_unspoilt(), (0,)),
}
