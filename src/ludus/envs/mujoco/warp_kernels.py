"""Compile MuJoCo Warp's kernels side by side.

Warp compiles a kernel where it is first launched, so one after the other: on a new machine a training waited for
minutes, on one core. Here the work is gone through once with nothing launched, which tells what it needs.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import warp as wp

from ludus.ranks import available_cores

_MOST_AT_ONCE = 8  # compilers; each takes up to a gigabyte, and one kernel takes as long as all others


def compile_kernels(work: Callable[[], None], device: Any) -> None:
    """Compile and load what `work` launches on a Warp device. No kernel runs."""
    sizes: dict[Any, dict[int | None, None]] = {}  # of the blocks that a module is launched with, in order

    def note(module: Any, _: Any, block_dim: int | None = None) -> None:
        """In the place of `Module.load`. Where that returns nothing to launch, Warp launches nothing."""
        sizes.setdefault(module, {})[block_dim] = None

    load, wp.Module.load = wp.Module.load, note
    try:
        work()
    finally:
        wp.Module.load = load

    def compile_one(module: Any) -> None:
        for block_dim in sizes[module]:
            module.load(device, block_dim=block_dim)

    with ThreadPoolExecutor(min(available_cores(), _MOST_AT_ONCE)) as compilers:
        list(compilers.map(compile_one, sizes))
