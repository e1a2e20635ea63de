"""A checkpoint of several ranks: each writes what it has for itself, and rank 0 puts all of it together."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ludus import errors, ranks
from ludus.envs.vec import State
from ludus.errors import LudusError
from ludus.training.checkpoint import load_part, load_training, write_part

_ENVIRONMENTS = "collector"  # where in a job's state lies what depends on how many environments a rank has


def save_together(
    folder: Path, step: int, own: Callable[[], State], save: Callable[[Sequence[Path]], Path]
) -> Path:
    """What `save` does on rank 0 with the parts of the others, their `own`. An error of one is an error of all."""
    if ranks.size() == 1:
        return save(())
    part = {"done": ""} if ranks.is_first() else _tried(lambda: write_part(folder, step, ranks.rank(), own()))
    parts = ranks.gather_plain(part)
    saved = next((part for part in parts if "error" in part), None)
    if saved is None and ranks.is_first():
        saved = _tried(lambda: save([Path(part["done"]) for part in parts[1:]]))
    saved = ranks.told_by_first(saved)
    if part.get("done"):
        shutil.rmtree(part["done"], ignore_errors=True)
    if "error" in saved:
        kind: type[LudusError] = getattr(errors, saved["kind"], LudusError)
        raise kind(saved["error"])
    return Path(saved["done"])


def _tried(write: Callable[[], Path]) -> dict[str, Any]:
    """What came of it, as a rank tells the others."""
    try:
        return {"done": str(write())}
    except LudusError as error:
        return {"error": str(error), "kind": type(error).__name__}


def own_part(state: State, paths: Sequence[str]) -> State:
    """What lies at these paths of a job's state."""
    return {path: _parent(state, path)[path.rpartition("/")[2]] for path in paths}


def load_own(checkpoint: Path, paths: Sequence[str]) -> State:
    """What `load_training` loads, with the job's state as this rank had it.

    A rank that has no part in the checkpoint has nothing at these paths: what it had for itself begins anew. Where
    another number of ranks has saved, environments are shared out otherwise: they begin anew on all.
    """
    state = load_training(checkpoint)[1]
    if not ranks.is_first():
        part = load_part(checkpoint, ranks.rank())
        for path in paths:
            _parent(state["job"], path)[path.rpartition("/")[2]] = part.get(path)
    if _ENVIRONMENTS in paths and _ranks_of(state) != ranks.size():
        state["job"][_ENVIRONMENTS] = None
    return state


def why_anew(state: State) -> str:
    """Why a training goes on from this state, but not bit for bit."""
    before, now = _ranks_of(state), ranks.size()
    if before == now:
        return "This is an emergency checkpoint: what the environments were doing is not in it."
    return (
        f"{before} rank{'s' * (before > 1)} saved this, and {now} go{'es' * (now == 1)} on with it: what was "
        "learned is kept, episodes begin anew. From here on the run is not repeated bit for bit."
    )


def _ranks_of(state: State) -> int:
    return int(state.get("ranks", 1))  # older checkpoints are of one process


def _parent(state: State, path: str) -> Any:
    for name in path.split("/")[:-1]:
        state = state[name]
    return state
