"""Configurations that are none, or ask for too much."""

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from ..sandbox import Sandbox
from .spoiling import Hostile, read_config, write_config


def _set(name: str, value: Any, sandbox: Sandbox, random: Random) -> None:
    config = read_config(sandbox.run)
    *path, last = name.split(".")
    place = config
    for part in path:
        place = place.setdefault(part, {})
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


HUGE = 10**9
_SETTINGS: list[tuple[str, Any]] = [
    ("env.num_envs", HUGE),
    ("env.num_envs", -1),
    ("env.num_envs", 2**70),
    ("env.workers", 10**6),
    ("env.workers", -5),
    ("torch_threads", HUGE),
    ("torch_threads", -3),
    ("policy.hidden", [HUGE]),
    ("policy.hidden", [8] * 20_000),
    ("policy.hidden", [-8]),
    ("policy.hidden", "8"),
    ("policy.memory_size", HUGE),
    ("ppo.horizon", 10**12),
    ("ppo.segments", HUGE),
    ("groups", HUGE),
    ("groups", 0),
    ("loop.total_steps", 10**30),
    ("loop.epochs", 2**63),
    ("eval.episodes", HUGE),
    ("checkpoint.keep", -1),
    ("checkpoint.keep", ["all"]),
    ("start_from", "/dev/zero"),
    ("stages", 7),
    ("stages", [1]),
    ("stages", [{"until": float("nan"), "set": {"env.fixed": True}}]),
    ("stages", [{"until": 8, "set": {"env": None}}]),
    ("stages", [{"until": 8, "set": {"env.num_envs": HUGE}}]),
    ("stages", [{"until": 8, "set": {"env.kind": "pettingzoo", "env.factory": "subprocess:check_output"}}]),
    ("seed", 2**200),
    ("seed", -1),
    ("ppo.learning_rate", float("nan")),
    ("ppo.learning_rate", float("inf")),
    ("ppo.gamma", float("nan")),
    ("ppo.minibatches", HUGE),
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


def hostile_configurations() -> list[Hostile]:
    found = [Hostile(f"{name} = {str(value)[:40]!r}", partial(_set, name, value)) for name, value in _SETTINGS]
    return found + [Hostile(f"config.yaml: {name}", partial(_config_text, make)) for name, make in _TEXTS.items()]
