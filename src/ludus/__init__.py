"""Ludus: one reinforcement-learning training system, from two CPU cores to a GPU.

import ludus
run = ludus.train("kuka-pick-place")
print(run.evaluate(episodes=100))
policy = run.policy("best")
action = policy.act(obs)
"""

import importlib
from typing import TYPE_CHECKING, Any

from ludus.gymnasium_ids import register_with_gymnasium
from ludus.version import __version__

if TYPE_CHECKING:
    from ludus import nn
    from ludus.algorithms.registry import Algorithm, register_algorithm
    from ludus.comparing.face import Comparison, compare
    from ludus.listing import RunSummary, list_runs
    from ludus.run import Experiment, Run, resume, train
    from ludus.runs import make_env
    from ludus.saved_run import load
    from ludus.sweeping.face import Sweep, sweep
    from ludus.training.callbacks import Callback

# Where each name comes from. It is imported when it is first used: torch alone takes seconds, and the command has
# answers that need none of it.
_HOMES = {
    "Algorithm": "ludus.algorithms.registry",
    "Callback": "ludus.training.callbacks",
    "Comparison": "ludus.comparing.face",
    "Experiment": "ludus.run",
    "Run": "ludus.run",
    "Sweep": "ludus.sweeping.face",
    "compare": "ludus.comparing.face",
    "RunSummary": "ludus.listing",
    "list_runs": "ludus.listing",
    "load": "ludus.saved_run",
    "make_env": "ludus.runs",
    "nn": "ludus.nn",
    "register_algorithm": "ludus.algorithms.registry",
    "resume": "ludus.run",
    "sweep": "ludus.sweeping.face",
    "train": "ludus.run",
}

register_with_gymnasium()

__all__ = [
    "Algorithm",
    "Callback",
    "Comparison",
    "Experiment",
    "Run",
    "RunSummary",
    "Sweep",
    "__version__",
    "compare",
    "list_runs",
    "load",
    "make_env",
    "nn",
    "register_algorithm",
    "resume",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ludus' has no attribute {name!r}")
    module = importlib.import_module(_HOMES[name])
    value = module if name == "nn" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
