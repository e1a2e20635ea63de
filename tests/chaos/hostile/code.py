"""Run folders that name code."""

import json
from functools import partial
from random import Random
from typing import Any

import yaml

from ..sandbox import Sandbox
from .spoiling import ACTING, VERBS, WATCH, Hostile, Spoil, read_config, write_config


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
        "ludus.envs.importing:import_module_of": {"module": "stranger_env", "env_id": "x"},
        "ludus.runs:train": {
            "preset": "gym:CartPole-v1",
            "run_dir": str(sandbox.victim / "new"),
            "total_steps": 64,
        },
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
    "ludus.envs.importing:import_module_of",
    "ludus.runs:train",
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


def _own_environment(sandbox: Sandbox, random: Random) -> None:
    """PettingZoo's own, which needs no trust, beside a file with the name of what it imports."""
    (sandbox.here / "multi_agent_ale_py.py").write_text(sandbox.code)
    _env(sandbox, {"kind": "pettingzoo", "id": "pettingzoo.atari.pong_v3", "num_envs": 2})


def _network(sandbox: Sandbox, random: Random) -> None:
    _payloads(sandbox)
    config = read_config(sandbox.run)
    config["policy"]["network"] = "stranger_env:make"
    write_config(sandbox.run, config)


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


def hostile_code() -> list[Hostile]:
    first = ("subprocess:check_output", "stranger_env:make", "runpy:run_path")
    found = [
        Hostile(f"pettingzoo:{p}", partial(_pettingzoo, p), (*WATCH, "export") if p in first else VERBS, ACTING)
        for p in PAYLOADS
    ]
    vec = ("subprocess:check_output", "os:system", "runpy:run_path", "shutil:rmtree", "stranger_env:make")
    found += [Hostile(f"vec:{p}", partial(_vec, p), VERBS, ACTING) for p in vec]
    modules = ("stranger_gym", "stranger.gym", "run.stranger", "antigravity_gym")
    found += [
        Hostile(f"gym:{m}:X-v0", partial(_gym, m), WATCH if m == modules[0] else VERBS, ACTING) for m in modules
    ]
    found += [
        Hostile(
            "gym:stranger_gym:X-v0 in a worker",
            partial(_in_workers, partial(_gym, "stranger_gym")),
            VERBS,
            ACTING,
        )
    ]
    found += [Hostile("mettagrid:stranger_env", _mettagrid, VERBS, ACTING)]
    found += [Hostile("pettingzoo's own, its import beside", _own_environment, VERBS, ACTING)]
    found += [Hostile("a network of the stranger's", _network, VERBS, ("resume",))]
    found += [Hostile("gym, xml_file elsewhere", _gym_kwargs, VERBS, ACTING)]
    return found + [Hostile(f"YAML tag {tag.split(' ')[0]}", partial(_tag, tag), VERBS, VERBS) for tag in _TAGS]
