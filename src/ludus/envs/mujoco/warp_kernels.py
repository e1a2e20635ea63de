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

    def size(kernel: Any, _: Any = None) -> tuple[int, int]:
        """In the place of `wp.get_suggested_block_size`, which asks a kernel that is loaded."""
        kernel.module.load(device)
        return 1, 1

    load, wp.Module.load = wp.Module.load, note
    suggested, wp.get_suggested_block_size = wp.get_suggested_block_size, size
    try:
        work()
    except Exception:  # noqa: BLE001 (a version that asks loaded kernels for more: the rest is compiled at its launch)
        pass
    finally:
        wp.Module.load = load
        wp.get_suggested_block_size = suggested

    def compile_one(module: Any) -> None:
        for block_dim in sizes[module]:
            module.load(device, block_dim=block_dim)

    with ThreadPoolExecutor(min(available_cores(), _MOST_AT_ONCE)) as compilers:
        list(compilers.map(compile_one, sizes))
