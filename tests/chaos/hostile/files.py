"""Clips and recorded data of a stranger: looked at, imported and trained on."""

import json
import os
from pathlib import Path

from ..jobs import EVERY_JOB, REPLAY, REWARD, arguments_of
from ..results import Result, Trial
from ..sandbox import Sandbox

# (trials of the long form, numbers of the short form).
KINDS = {"hostile data": (57, (42,)), "hostile clips": (97, (20,))}

_ELSEWHERE = (
    "external_storage",
    "external_link",
    "external_link_of_the_whole_group",
    "virtual_dataset",
    "virtual_actions",
)
_TRAIN_DATA = arguments_of(
    "rrd-libero", REPLAY | REWARD | {"epochs": 1, "cycles": 1, "data": "home/FILE", "data.keys": "state"}
)
_TRAIN_CLIP = arguments_of(
    "humanoid-mimic",
    EVERY_JOB | {"env.num-envs": 2, "ppo.horizon": 4, "ppo.minibatches": 1, "total-steps": 8, "eval.every": 8,
            "env.max-steps": 5, "env.threads": 1, "env.clips": "home/FILE"},
)  # fmt: skip


def judge(trial: Trial) -> Result:
    """Every command that reads such a file, in a sandbox of its own."""
    names = json.loads((trial.shared / f"{trial.kind}.json").read_text())
    path = trial.shared / trial.kind / names[trial.number % len(names)]
    result = Result(trial.kind, trial.number, trial.command, path.name, survived=True)
    for i, arguments in enumerate(_commands(trial.kind, path)):
        sandbox = Sandbox(trial.folder / f"{i}")
        sandbox.make()
        for file in (path, path.with_name("secret.hdf5")):  # which some of them lead to
            if file.is_symlink() or file.exists():
                os.link(file, sandbox.here / "home" / file.name, follow_symlinks=False)
        ended = sandbox.judge(result, [part.replace("FILE", path.name) for part in arguments], codes=(0, 1, 2))
        if ended.code == 0 and path.stem in _ELSEWHERE:
            result.problems.append(f"another file is read: {ended.line}")
    result.survived = not result.problems
    return result


def make_files(kind: str, seed: int, shared: Path) -> str:
    """All files of a kind, for its trials to take one each."""
    from .clips import hostile_clips
    from .data_files import hostile_data_files

    make = hostile_data_files if kind == "hostile data" else hostile_clips
    names = [path.name for path in make(shared / kind, seed)]
    (shared / f"{kind}.json").write_text(json.dumps(names))
    return ""


def _commands(kind: str, path: Path) -> list[list[str]]:
    if kind == "hostile data":
        return [["data", "info", "home/FILE"], _TRAIN_DATA]
    found = [["motions", "check", "home/FILE"], ["motions", "import", "home/FILE", "--out", "home/clips"]]
    return [*found, _TRAIN_CLIP] if path.suffix == ".npz" else found
