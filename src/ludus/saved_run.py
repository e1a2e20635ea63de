"""A run as it lies on the disk: its folder, its configuration, its best policy."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from ludus.algorithms.registry import find_algorithm
from ludus.config import TrainConfig
from ludus.config_files import load_shared_config
from ludus.errors import CheckpointError
from ludus.policies.factory import MakePolicy, find_signed_network, refuse_kind
from ludus.policies.policy import MakeNetwork, Policy
from ludus.ranges import check_fields
from ludus.settings import load_run_config
from ludus.training.checkpoint import best_checkpoint, checkpoints_in, load_policy, newest_intact, problem_of
from ludus.training.run_folder import CHECKPOINTS, CONFIG, refuse_strange_files
from ludus.trust import require_trust

T = TypeVar("T")


def run_folder(run: str | Path) -> Path:
    """The path, if there is a run in which nothing leads elsewhere."""
    folder = Path(run)
    try:
        if not folder.exists():
            raise CheckpointError(f"There is no run folder {folder}.")
        if not os.path.lexists(folder / CONFIG):
            raise CheckpointError(f"{folder} is not a run of Ludus: it has no {CONFIG}.")
        refuse_strange_files(folder)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be read: {error.strerror}.") from error
    return folder


def run_config(folder: Path) -> TrainConfig:
    """The configuration of a run, for reading. Nothing that it names may be imported: see `trusted_config`.

    Of an algorithm that it names as "module:NAME" the sections are therefore left out.
    """
    shared = load_shared_config(folder / CONFIG)
    config = shared if ":" in shared.algo else load_run_config(folder / CONFIG)
    check_fields(config)
    return config


def trusted_config(folder: Path, trust: bool) -> TrainConfig:
    """The same, with whose environments one may go on: what they import is this user's own, or trusted."""
    require_trust(run_config(folder), folder, trust)
    config = load_run_config(folder / CONFIG)
    check_fields(config)
    return config


def _best_checkpoint(folder: Path) -> Path:
    """The best checkpoint of a run if its models are intact, else the newest of which they are."""
    best = best_checkpoint(folder / CHECKPOINTS)
    if best is not None and problem_of(best, to_resume=False) is None:
        return best
    return newest_intact(folder / CHECKPOINTS, lambda text: print(text, file=sys.stderr), to_resume=False)


def holds_policy(folder: Path) -> bool:
    """Whether a run learns a policy; one that learns a reward alone has none in its checkpoints."""
    made = checkpoints_in(folder / CHECKPOINTS)
    return not made or (made[-1] / "policy.json").exists() or not (made[-1] / "reward.json").exists()


def from_best(run: str | Path, read: Callable[[Path], T]) -> T:
    """What `read` finds in the best checkpoint of a run, which a training may replace by a better one."""
    folder = run_folder(run)
    checkpoint = _best_checkpoint(folder)
    while True:
        try:
            return read(checkpoint)
        except CheckpointError:
            tried, checkpoint = checkpoint, _best_checkpoint(folder)
            if checkpoint == tried:
                raise


def load(run: str | Path, trust: bool = False, network: MakeNetwork | None = None) -> Policy:
    """The best policy of a run: `ludus.load(RUN).act(obs)`, with a memory `.actor()` and its `act`.

    A network of the user's is imported by its name as `trust` allows (see `resume`), or given as `network`.
    """

    def find(name: str, kwargs: dict[str, Any]) -> MakeNetwork:
        if network is not None:
            return network
        return find_signed_network(trusted_config(run_folder(run), trust).policy, name, kwargs)

    def find_kind(kind: str) -> MakePolicy:
        algorithm = find_algorithm(trusted_config(run_folder(run), trust).algo)
        return algorithm.policy or refuse_kind(kind)

    return from_best(run, partial(load_policy, find_network=find, find_kind=find_kind))
