"""Who has started this process as one of several ranks: torchrun, srun, or a `Place` of Ludus' own.

What a launcher puts into the environment is read here and nowhere else.
"""

import json
import os
import re
import time
from typing import NamedTuple

import psutil

from ludus.ranks import VARIABLE, Ticket

STOPPED = 75  # exit code of a training that was stopped, and can be resumed: "temporary failure"
_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_AGENT = "TORCHELASTIC_RUN_ID"  # of ranks that torchrun has started
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # that torchrun --standalone makes up
_FIRST_PORT, _PORTS = 20_000, 10_000  # for the store of a Slurm job; MASTER_PORT chooses another


class Launch(NamedTuple):
    """What a launcher says."""

    ticket: Ticket
    job: str = ""  # a name that ranks have in common, and still have when the launcher starts them again


def find_launch() -> Launch | None:
    """None where nobody said that this process is a rank."""
    given = os.environ.get(VARIABLE)
    if given:
        return Launch(Ticket(**json.loads(given)))
    if all(os.environ.get(name) for name in _TORCH):
        ticket = Ticket(_number("RANK"), _number("WORLD_SIZE"), store="env://")
        return Launch(ticket, _torchrun_job() if has_agent() else "")
    if os.environ.get("SLURM_STEP_NUM_TASKS"):  # of srun; a batch script has the other variables, too
        ticket = Ticket(_number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS"), store=_slurm_store())
        return Launch(ticket, f"slurm-{os.environ['SLURM_JOB_ID']}" + _later_step())
    return None


def has_agent() -> bool:
    """Whether torchrun has started this process."""
    return _AGENT in os.environ


def exit_code_when_stopped() -> int:
    """torchrun would start a training again that ends with another code than 0, though it was asked to stop."""
    return 0 if has_agent() else STOPPED


def _number(name: str) -> int:
    return int(os.environ[name])


def _torchrun_job() -> str:
    """--rdzv-id; where it was not given, since when torchrun runs."""
    given = re.sub(r"[^\w.-]", "_", os.environ[_AGENT])
    if given == "none" or _UUID.fullmatch(given):
        given = time.strftime("%Y%m%d-%H%M%S", time.localtime(psutil.Process(os.getppid()).create_time()))
    return f"torchrun-{given}"


def _slurm_store() -> str:
    """On the first node of the step, at a port that other jobs there will hardly have."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ["SLURM_JOB_NODELIST"]
    host = os.environ.get("MASTER_ADDR") or first_node(nodes)
    step = _number("SLURM_STEP_ID") if os.environ.get("SLURM_STEP_ID") else 0
    port = _FIRST_PORT + (_number("SLURM_JOB_ID") * 17 + step) % _PORTS
    return f"tcp://{host}:{os.environ.get('MASTER_PORT') or port}"


def _later_step() -> str:
    """A batch script may call srun several times; it does so in the same order when the job is requeued."""
    step = os.environ.get("SLURM_STEP_ID", "0")
    return "" if step == "0" else f".{step}"


def first_node(nodes: str) -> str:
    """Of a list as Slurm writes it: `gpu[03-08,11],login` → gpu03."""
    matched = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,]*))?", nodes)
    if matched is None:
        return nodes
    return "".join(part or "" for part in matched.groups())
