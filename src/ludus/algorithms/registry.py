"""Algorithms by name: those of Ludus, those of installed packages, and those that a program registers.

A folder beside this file with a `registration.py` is found by itself. Another package says in its pyproject.toml
which algorithms it brings, and nothing of it is imported before one is asked for:

    [project.entry-points."ludus.algorithms"]
    crossq = "my_package.crossq:CROSSQ"

`module:NAME` names one that is neither installed nor registered; importing it is decided in `ludus.trust`.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ludus.algorithms.summaries import installed
from ludus.config import TrainConfig
from ludus.envs.importing import address_of, import_module_of
from ludus.errors import ConfigError, did_you_mean, tell_exception

if TYPE_CHECKING:  # the settings of an algorithm are found without torch
    import torch

    from ludus.policies.factory import MakePolicy
    from ludus.training.job import Job


@dataclass(frozen=True)
class Algorithm:
    """One way to learn."""

    name: str
    """What --algo takes."""
    summary: str
    """A line for 'ludus list'."""
    config: type[TrainConfig]
    """Its settings: a subclass with a section of its own. The default of `algo` there is `name`."""
    job: "Callable[[Any, torch.device], Job] | str"
    """Makes what a training does, of such a configuration; or "module:NAME", which is imported when it trains."""
    adapt: Callable[[TrainConfig], TrainConfig]
    """A preset of any algorithm, as this one would train it: `ludus train PRESET --algo NAME`."""
    policy: "MakePolicy | None" = None
    """Makes the policy of a checkpoint whose kind is `name`; None: the algorithm uses a policy of Ludus."""
    acts: bool = True
    """Whether it learns a policy, which can be evaluated, watched and exported."""

    def job_maker(self) -> "Callable[[Any, torch.device], Job]":
        """`job`, imported where it is a name."""
        if not isinstance(self.job, str):
            return self.job
        module, _, name = self.job.partition(":")
        return cast("Callable[[Any, torch.device], Job]", getattr(importlib.import_module(module), name))


_REGISTERED: dict[str, Algorithm] = {}


def register_algorithm(algorithm: Algorithm) -> Algorithm:
    """Make an algorithm known by its name to this program."""
    known = _REGISTERED.get(algorithm.name, built_in().get(algorithm.name))
    if known is not None and known != algorithm:
        raise ConfigError(f"There is an algorithm {algorithm.name!r} already: {known.summary} Take another name.")
    _REGISTERED[algorithm.name] = algorithm
    return algorithm


def address_of_algorithm(algorithm: Algorithm) -> str:
    """The name under which a run remembers it: that of its module, where others can import it; else its own."""
    if algorithm in built_in().values():
        return algorithm.name
    module = algorithm.config.__module__
    found = [name for name, value in vars(sys.modules.get(module)).items() if value is algorithm]
    if not found:
        return register_algorithm(algorithm).name
    return address_of(module, found[0], "algorithm")


def find_algorithm(name: str) -> Algorithm:
    """An algorithm by its name, or the one that "module:NAME" names, which the caller may import."""
    if name in _REGISTERED or name in built_in():
        return _REGISTERED.get(name) or built_in()[name]
    if ":" in name:
        return _in_module(*name.split(":", 1))
    if point := installed().get(name):
        return _expect_algorithm(_load(point), point.value)
    known = algorithm_names()
    raise ConfigError(
        f"There is no algorithm {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}; "
        "one of your own is 'module:NAME'."
    )


def _in_module(module: str, name: str) -> Algorithm:
    if not module or not name:
        raise ConfigError(f"--algo {module}:{name}: say it as module:NAME.")
    imported = import_module_of(module, f"{module}:{name}")
    known = [key for key, value in vars(imported).items() if isinstance(value, Algorithm)]
    if not hasattr(imported, name):
        there = f" It has {', '.join(known)}." if known else ""
        raise ConfigError(f"The module {module!r} has no algorithm {name!r}.{did_you_mean(name, known)}{there}")
    return _expect_algorithm(getattr(imported, name), f"{module}:{name}")


def make_job(config: TrainConfig, device: "torch.device") -> "Job":
    """What a training by `config.algo` does."""
    return find_algorithm(config.algo).job_maker()(config, device)


def algorithm_names() -> list[str]:
    """All that --algo takes by name; nothing of other packages is imported for it."""
    return list(dict.fromkeys((*built_in(), *_REGISTERED, *installed())))


def algorithms_with(section: str) -> str:
    """Which of Ludus' algorithms have this section of settings: "sac, td3 and dqn"."""
    return _listed([name for name, algorithm in built_in().items() if hasattr(algorithm.config(), section)])


@functools.cache
def built_in() -> dict[str, Algorithm]:
    """Those of the folders beside this file."""
    folders = [file.parent.name for file in Path(__file__).parent.glob("*/registration.py")]
    modules = [importlib.import_module(f"ludus.algorithms.{folder}.registration") for folder in folders]
    found: list[Algorithm] = [algorithm for module in modules for algorithm in module.ALGORITHMS]
    return {algorithm.name: algorithm for algorithm in sorted(found, key=lambda algorithm: algorithm.name)}


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever a package of others does when it is imported
        package = point.dist.name if point.dist is not None else point.value
        problem = tell_exception(error)
        raise ConfigError(f"The algorithm {point.name!r} of {package} cannot be imported: {problem}") from error


def _expect_algorithm(found: Any, name: str) -> Algorithm:
    if not isinstance(found, Algorithm):
        raise ConfigError(f"{name!r} is no ludus.Algorithm, but {type(found).__name__}.")
    return found


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
