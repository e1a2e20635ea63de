"""What lies in a run folder: its names, the pointers `best` and `final`, and a check that nothing leads out of it.

A run folder may come from a stranger. Ludus writes into it, so a link under one of its names would let the
stranger choose where. Whatever is read or written in a run, `refuse_strange_files` has looked at it before.
"""

import errno
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from ludus.errors import CheckpointError, plain_text
from ludus.files import read_bounded, temporary_beside, write_whole

CONFIG = "config.yaml"
LOCK = "train.lock"
FINAL = "final"
BEST = "best"
CHECKPOINTS = "checkpoints"
SET_ASIDE = "set_aside"
EPISODES = "episodes.jsonl"
RESULTS = "results.json"
STANDING = "standing.json"
EXPERIMENT = "experiment.json"  # in a folder of runs
SWEEP = "sweep.json"  # in the folder of a sweep
TRIALS, CONFIRMED = "trials", "confirm"  # in it: folders of runs
RECORDS = (CONFIG, "run.json", "trust.json", "metrics.jsonl", "evaluation.json", EPISODES, RESULTS, STANDING,
           "R_loss.f32")  # fmt: skip
_FOLDERS = (CHECKPOINTS, SET_ASIDE, "tb", "tb/by_batch", "wandb", "nan_dump")
_FILES = (*RECORDS, "report.html", LOCK)
# Who has a file or folder of such a name did not get it from a lock that a killed training left behind.
_TAKEN = (*(name for name in (*_FOLDERS, *_FILES) if name != LOCK), FINAL)
CHECKPOINT_NAME = re.compile(r"step_[0-9]{1,18}")
_POINTER_BYTES = 200
# What file systems without symbolic links answer.
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


def is_sweep(folder: str | os.PathLike[str]) -> bool:
    """Whether it holds trials, and not a run."""
    return os.path.isfile(os.path.join(folder, SWEEP))


def taken_names(folder: Path) -> list[str]:
    """Names of a run's files and folders that a folder holds already."""
    return [name for name in _TAKEN if os.path.lexists(folder / name)]


def refuse_strange_files(run: Path) -> None:
    """Refuse a run in which something is a link, a device or a pipe where a file or folder of Ludus should be."""
    for name in _FOLDERS:
        _expect(os.path.join(run, name), stat.S_ISDIR)
    for name in _FILES:
        _expect(os.path.join(run, name), stat.S_ISREG)
    for checkpoint in checkpoint_folders(run / CHECKPOINTS):
        _expect(str(checkpoint), stat.S_ISDIR)
        for file in os.listdir(checkpoint):
            _expect(os.path.join(checkpoint, file), stat.S_ISREG)


def checkpoint_folders(checkpoints: Path) -> list[Path]:
    """Everything there with the name of a checkpoint, in the order of their steps."""
    try:
        names = os.listdir(checkpoints)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [name for name in names if CHECKPOINT_NAME.fullmatch(name)]
    return [checkpoints / name for name in sorted(found, key=lambda name: int(name.removeprefix("step_")))]


def _expect(path: str, is_right: Callable[[int], bool]) -> None:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        raise CheckpointError(
            f"{path} is a link. In a run folder nothing may lead elsewhere: put what it points to in its place."
        )
    if not is_right(mode):
        raise CheckpointError(f"{path} is not what Ludus wrote under this name. The run folder cannot be used.")


# Pointers ---------------------------------------------------------------------------------------
def point(pointer: Path, target: Path) -> None:
    """Make `best` or `final` name a checkpoint, in one step that cannot be half done.

    The pointer is a symbolic link, or a file with the name in it where there are no links.
    """
    name = str(target.relative_to(pointer.parent))
    aside = temporary_beside(pointer)
    try:
        aside.symlink_to(name)
        os.replace(aside, pointer)
    except OSError as error:
        aside.unlink(missing_ok=True)
        if error.errno not in _NO_LINKS:
            raise
        write_whole(pointer, name)


def pointed_by(pointer: Path) -> Path | None:
    """The checkpoint that `best` or `final` names, if it is there; refused where it lies elsewhere."""
    try:
        name = os.readlink(pointer) if pointer.is_symlink() else read_bounded(pointer, _POINTER_BYTES).decode()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{pointer} does not name a checkpoint: {error}.") from error
    expected = "" if pointer.name == BEST else f"{CHECKPOINTS}/"
    if not name.startswith(expected) or not CHECKPOINT_NAME.fullmatch(name.removeprefix(expected)):
        raise CheckpointError(f"{pointer} names {plain_text(name, 100)!r}, which is no checkpoint of its run.")
    checkpoint = pointer.parent / name
    return checkpoint if checkpoint.is_dir() and not checkpoint.is_symlink() else None
