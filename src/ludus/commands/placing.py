"""`--ray [HOST:PORT]` of the commands that train: on which cluster their processes run."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from ludus.commands.arguments import take_optional
from ludus.errors import ConfigError
from ludus.launchers import find_launch

if TYPE_CHECKING:
    from ludus.ray_cluster import RayCluster


def take_ray(arguments: list[str]) -> tuple[list[str], str | None]:
    """The address; None where nothing is to run on Ray."""
    return take_optional(arguments, "--ray", "auto", _is_address)


def joined(address: str | None, device: str = "") -> "AbstractContextManager[RayCluster | None]":
    """The cluster, if one is asked for; `device` is given in place of that of the runs."""
    if address is None:
        return nullcontext()
    launch = find_launch()
    if launch is not None and launch.ticket.size > 1:
        raise ConfigError("--ray: torchrun or srun has started the ranks already. Leave one of them out.")
    from ludus.ray_cluster import RayCluster

    return RayCluster(address, device)


def _is_address(word: str) -> bool:
    """And no flag, nor the run to go on with."""
    return not word.startswith("-") and not Path(word.partition("@")[0]).exists()
