"""Going back to an earlier checkpoint of a run: what came after it becomes a run of its own, and nothing is lost.

The first time that is RUN/set_aside/1: a run folder whose policies can be used, and that one could go on with.
"""

import shutil
from pathlib import Path

from ludus.files import sync_folder
from ludus.training.checkpoint import best_checkpoint, checkpoints_in, mark_best, step_of
from ludus.training.run_folder import CHECKPOINTS, FINAL, RECORDS, SET_ASIDE, point, pointed_by

_REPORT = "report.html"  # of what was set aside: it is written anew at the end


def set_aside_later(checkpoint: Path) -> Path | None:
    """Move what a run did after a checkpoint into a folder of its own, which is returned; None: there is nothing.

    The newest checkpoint is moved first. So whenever a kill comes, what is left in the run can be gone on with.
    """
    run, step = checkpoint.parent.parent, step_of(checkpoint)
    later = [other for other in checkpoints_in(checkpoint.parent) if step_of(other) > step]
    if not later:
        return None
    best, final = best_checkpoint(checkpoint.parent), pointed_by(run / FINAL)
    aside = _new_folder(run)
    for name in RECORDS:
        if (run / name).exists():
            shutil.copyfile(run / name, aside / name)
    (aside / CHECKPOINTS).mkdir()
    for other in reversed(later):
        moved = other.rename(aside / CHECKPOINTS / other.name)
        if other == best:
            mark_best(moved)
        if other == final:
            point(aside / FINAL, moved)
    if (run / _REPORT).exists():
        (run / _REPORT).rename(aside / _REPORT)
    for folder in (checkpoint.parent, aside / CHECKPOINTS, aside, run):
        sync_folder(folder)
    return aside


def aside_runs(run: Path) -> list[Path]:
    """What was set aside of a run, oldest first."""
    folder = run / SET_ASIDE
    found = [path for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []
    return sorted(found, key=lambda path: int(path.name))


def _new_folder(run: Path) -> Path:
    taken = aside_runs(run)
    folder = run / SET_ASIDE / str(int(taken[-1].name) + 1 if taken else 1)
    folder.mkdir(parents=True)
    return folder
