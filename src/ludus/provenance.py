"""Where a run comes from: the command, the commit, the machine, and the settings that differ from its preset."""

import os
import platform
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
import psutil
import torch

from ludus.config import TrainConfig, flat, to_dict
from ludus.envs.config import name_in
from ludus.errors import LudusError, plain_text
from ludus.presets import find_preset
from ludus.ranks import available_cores
from ludus.version import __version__

_GIT_SECONDS = 5.0
_LONGEST_COMMAND = 2_000
_MOST_RESUMES = 20  # remembered


def facts_of(preset: str, config: TrainConfig) -> dict[str, Any]:
    """run.json of a training that begins now."""
    return {
        "preset": preset,
        "seed": config.seed,
        "started": _now(),
        "command": command_line(),
        "commit": commit_of(Path.cwd()),
        "changed": differences(preset, config),
        "hardware": hardware(),
        "versions": _versions(),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }


def resumed(facts: dict[str, Any], config: TrainConfig) -> dict[str, Any]:
    """The same of a training that goes on now, perhaps with other settings."""
    before = facts.get("resumed")
    resumes = [*(before if isinstance(before, list) else []), f"{_now()}: {command_line()}"][-_MOST_RESUMES:]
    return facts | {"changed": differences(str(facts.get("preset", "")), config), "resumed": resumes}


def command_line() -> str:
    """As a shell takes it: 'ludus train …', or the program that called Ludus."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    ours = program in ("ludus", "__main__.py", "cli.py")
    words = ["ludus" if ours else f"python {shlex.quote(program)}", *map(shlex.quote, sys.argv[1:])]
    return plain_text(" ".join(words), _LONGEST_COMMAND)


def commit_of(folder: Path) -> str | None:
    """Of the user's own repository: '1a2b3c4d5e6f', and whether it was changed since; None where there is none."""

    def git(*words: str) -> str:
        # Nothing that a repository's settings name is run.
        safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
        quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
        done = subprocess.run(
            ["git", *safe, *words], cwd=folder, env=quiet, capture_output=True, text=True, timeout=_GIT_SECONDS
        )
        return done.stdout if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--verify", "HEAD").strip()
        if not commit:
            return None
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):  # no git, or a very large repository
        return None
    return plain_text(commit[:12], 12) + (" and changes that are not committed" if changed else "")


def hardware() -> dict[str, Any]:
    """What it is trained on."""
    gpu = {"GPU": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    memory = f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    return {"CPU": _cpu(), "cores": available_cores(), "memory": memory, **gpu}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return plain_text(named[0], 200) if named else platform.machine()


def differences(preset: str, config: TrainConfig) -> dict[str, list[Any]] | None:
    """Settings that are not the preset's: [the preset's, the run's] by name. None where that cannot be told."""
    if not _imports_nothing_else(preset, config):
        return None
    try:
        base = flat(to_dict(find_preset(preset, config.algo).config.with_whole_paths()))
    except LudusError:  # a run of before, or of another version
        return None
    chosen = flat(to_dict(config))
    names = [name for name in {**base, **chosen} if base.get(name) != chosen.get(name)]
    return {name: [base.get(name), chosen.get(name)] for name in names}


def _imports_nothing_else(preset: str, config: TrainConfig) -> bool:
    """Whether finding a preset imports no more than the configuration, which is trusted.

    The name stands in run.json, which may be a stranger's: "vec:module:callable" would import the module.
    """
    kind, _, named = preset.partition(":")
    own_kind, _, own = name_in(config.env).partition(":")
    if kind == "rrd-mujoco":  # which takes what `gym` does, and tasks of ours
        return ":" not in named or (own_kind, own) == ("gym", named)
    return not named or (kind, named) == (own_kind, own)


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _versions() -> dict[str, str]:
    packages = {"torch": torch, "mujoco": mujoco, "gymnasium": gymnasium, "numpy": np}
    return {"ludus": __version__} | {name: str(module.__version__) for name, module in packages.items()}
