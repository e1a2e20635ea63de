"""Links, pipes and folders where a run has files."""

import os
import shutil
from functools import partial
from pathlib import Path
from random import Random

from ..sandbox import Sandbox
from .spoiling import EXPORTED, VERBS, Hostile, checkpoint_of


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
    ("results.json", "precious.txt"),
    ("results.json.tmp", "precious.txt"),
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
    ("standing.json", "precious.txt"),
)
_STEP_LINKS = ("{step}", "{step}.tmp", "damaged_{step}", "step_000000096", "step_000000096.tmp")
_IN_STEP = ("policy.safetensors", "policy.json", "training.json", "training.safetensors", "manifest.json")
_FIFOS = (
    "config.yaml",
    "metrics.jsonl",
    "run.json",
    "standing.json",
    "train.lock",
    "evaluation.json",
    "results.json",
    "episodes.jsonl",
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


def hostile_links() -> list[Hostile]:
    found = [
        Hostile(f"{name} → {to}", partial(_link, name, to), more_steps=name == "config.yaml.tmp")
        for name, to in _LINKS
    ]
    found += [Hostile(f"checkpoints/{name} → elsewhere", partial(_link_step, name)) for name in _STEP_LINKS]
    found += [
        Hostile(
            f"step_N/{name} → elsewhere", partial(_link_in_step, name), EXPORTED if "policy" in name else VERBS
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
