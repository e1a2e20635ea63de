"""A callable that the user names as "module:callable", with a sentence for all that can be wrong with it."""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable
from typing import Any

from ludus.errors import ConfigError, did_you_mean


def find_callable(path: str, default: str, what: str) -> Callable[..., Any]:
    """The callable of "module:callable", or `default` of "module". Messages say that it makes a `what`."""
    module_name, _, name = path.partition(":")
    if not module_name or (not name and not default):
        raise ConfigError(f"Say which {what} as 'module:callable', not {path!r}.")
    module = import_module_of(module_name, path)
    name = name or default
    found = getattr(module, name, None)
    if found is None:
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"The module {module_name!r} has no {name!r}.{did_you_mean(name, known)}")
    if not callable(found):
        raise ConfigError(
            f"{path!r} is a {type(found).__name__}; it must be a function or class that makes a {what}."
        )
    return found


def import_module_of(module: str, env_id: str) -> Any:
    """The module of an environment; in a worker process, too."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would mix with our output
    try:
        return importlib.import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None:
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"The module {module!r} of environment {env_id!r} fails to import: {problem}"
            ) from error
        itself = missing == module
        what = f"The module {module!r}" if itself else f"The package {missing!r} that it needs"
        hint = did_you_mean(module, _siblings(module)) if itself else ""
        raise ConfigError(
            f"{what} cannot be found for the environment {env_id!r}; is it installed?{hint}"
        ) from error


def _siblings(module: str) -> list[str]:
    """What else there is in the package that was to hold the module."""
    package = module.rpartition(".")[0]
    path = getattr(sys.modules.get(package), "__path__", None)
    return [f"{package}.{found.name}" for found in pkgutil.iter_modules(path)] if path else []
