"""Starting worker processes: quickly, with one thread each, and without running the user's script again."""

import contextlib
import multiprocessing
import os
import sys
import types
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def process_context(preload: str) -> Any:
    """Processes forked from a clean server that has imported the module `preload`, where there is such a thing."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preload, "ludus.envs.orphans"])
    return context


@contextlib.contextmanager
def start_conditions(recipe: Any) -> Iterator[None]:
    """What a new process should find: one thread for numerical libraries, and no need of the user's script.

    multiprocessing runs the main script again in every process, which scripts without
    `if __name__ == "__main__"` do not survive. Only an environment defined there needs it.
    """
    main, variables = sys.modules["__main__"], dict(os.environ)
    os.environ.update(_ONE_THREAD)
    if b"__main__" not in bytes(reduction.ForkingPickler.dumps(recipe)):
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in _ONE_THREAD:
            os.environ.pop(name) if name not in variables else os.environ.update({name: variables[name]})
