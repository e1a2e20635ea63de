"""What a run takes of the machine's memory, told before it is taken."""

import itertools
import re
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from ludus import ranks
from ludus.errors import ConfigError, TrainingError
from ludus.policies.config import PolicyConfig

_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")


def refuse_large_networks(inputs: int, config: PolicyConfig, networks: int, device: torch.device) -> None:
    """The same before any network is made: `networks` of them, their gradients, moments and targets."""
    memory = 4 * config.memory_size * (config.memory_size + (config.hidden or (inputs,))[-1])
    weights = sum(a * b for a, b in itertools.pairwise((inputs, *config.hidden)))
    weights += 0 if config.memory == "none" else memory
    advice = "Make --policy.hidden or --policy.memory-size smaller."
    refuse_what_cannot_fit(4 * 4 * networks * weights, f"networks of {weights:,} weights", advice, device)


def refuse_what_cannot_fit(needed: int, plan: str, advice: str, device: torch.device) -> None:
    """A sentence before the machine runs out of memory; `plan` says what it is for.

    Every rank that shares it takes as much.
    """
    needed *= ranks.sharers(device.type)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"This run needs {size(needed)} of memory, but {device.type} has {size(free)} free. Its plan: "
            f"{plan}. {advice}"
        )


@contextmanager
def short_of_memory(advice: str) -> Iterator[None]:
    """A sentence in place of the stack trace, where host or GPU run out of memory all the same."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        wanted = re.search(r"(?i)tried to allocate (\d[\d.]* ?[a-z]+)", str(error))
        told = f" ({wanted[1]} more were asked for)" if wanted else ""
        where = "The GPU" if "cuda" in str(error).lower() else "This machine"
        raise TrainingError(f"{where} ran out of memory{told}. {advice}") from error


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    said = str(error).lower()  # other libraries have no class for it
    return isinstance(error, RuntimeError) and any(words in said for words in _OUT_OF_MEMORY)


def size(number: float) -> str:
    """1,234,567 → 1.2 MB."""
    units = ["B", "kB", "MB", "GB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.0f} {units[0]}" if number >= 100 else f"{number:.1f} {units[0]}"
