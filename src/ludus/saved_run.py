"""A run as it lies on the disk: its folder, its configuration, its policies."""

import os
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
from ludus.training.address import find_checkpoint, read_address
from ludus.training.checkpoint import checkpoints_in, load_policy
from ludus.training.run_folder import CHECKPOINTS, CONFIG
from ludus.trust import require_trust

T = TypeVar("T")


def run_folder(run: str | os.PathLike[str]) -> Path:
    """The folder of a run, in which nothing leads elsewhere; `run` may name a checkpoint of it besides."""
    return read_address(run).folder


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


def holds_policy(folder: Path) -> bool:
    """Whether a run learns a policy; one that learns a reward alone has none in its checkpoints."""
    made = checkpoints_in(folder / CHECKPOINTS)
    return not made or (made[-1] / "policy.json").exists() or not (made[-1] / "reward.json").exists()


def from_checkpoint(run: str | os.PathLike[str], read: Callable[[Path], T]) -> T:
    """What `read` finds in the checkpoint that `run` names (training/address.py), by default the best.

    A training may replace that by a better one at any time: then it is looked for again.
    """
    address = read_address(run)
    checkpoint = find_checkpoint(address)
    while True:
        try:
            return read(checkpoint)
        except CheckpointError:
            tried, checkpoint = checkpoint, find_checkpoint(address)
            if checkpoint == tried:
                raise


def load(run: str | os.PathLike[str], trust: bool = False, network: MakeNetwork | None = None) -> Policy:
    """A policy of a run: `ludus.load(RUN).act(obs)`, with a memory `.actor()` and its `act`.

    The best one, or that of another checkpoint: `RUN@final`, `RUN@100000`.
    A network of the user's is imported by its name as `trust` allows (see `resume`), or given as `network`.
    """
    return load_from(run, trust, network)[0]


def load_from(
    run: str | os.PathLike[str], trust: bool = False, network: MakeNetwork | None = None
) -> tuple[Policy, Path]:
    """The same, and the checkpoint that it lies in."""

    def find(name: str, kwargs: dict[str, Any]) -> MakeNetwork:
        if network is not None:
            return network
        return find_signed_network(trusted_config(run_folder(run), trust).policy, name, kwargs)

    def find_kind(kind: str) -> MakePolicy:
        algorithm = find_algorithm(trusted_config(run_folder(run), trust).algo)
        return algorithm.policy or refuse_kind(kind)

    read = partial(load_policy, find_network=find, find_kind=find_kind)
    return from_checkpoint(run, lambda checkpoint: (read(checkpoint), checkpoint))
