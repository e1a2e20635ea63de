"""A callable that is named as "module:callable", with a sentence for all that can be wrong with it.

Whether a name may be imported at all is decided in `ludus.trust`. Here a callable is looked at before it is
called: it must be a class of what is wanted, or a function that belongs to the package that was named.
"""

import functools
import importlib
import inspect
import os
import pkgutil
import re
import sys
import types
from collections.abc import Callable
from typing import Any

from ludus.errors import ConfigError, EnvError, did_you_mean, tell_exception

# Packages whose functions make environments of what another module defines, as pettingzoo's parallel_wrapper_fn.
_WRAPPING_PACKAGES = ("pettingzoo", "supersuit", "gymnasium")
_GIVEN_ADDRESS = re.compile(r"<(\w+) [0-9a-f]{6}>")  # of an object without a name (`given.py`)
_being_imported: list[str] = []  # modules, because a configuration names them


def address_of(module: str, name: str, what: str) -> str:
    """ "module:name", by which a thing at the top of a module is found again.

    A script that is run has the name by which it would be imported: another program finds it from its folder.
    """
    if not name.isidentifier():
        raise ConfigError(f"The {what} {name!r} must stand at the top of a module, to be found again by its name.")
    return f"{main_name() if module == '__main__' else module}:{name}"


def main_name() -> str:
    """The name by which the program that runs would be imported."""
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return str(main.__spec__.name)  # type: ignore[union-attr]
    file = str(getattr(main, "__file__", ""))
    return os.path.basename(file)[:-3] if file.endswith(".py") else "__main__"


def find_callable(
    path: str, default: str, what: str, bases: tuple[str, ...], search_here: bool = True
) -> Callable[..., Any]:
    """The callable of "module:callable", or `default` of "module". Messages say that it makes a `what`.

    A class must be derived from one of the names `bases`. `search_here` as in `import_module_of`.
    """
    module_name, _, name = path.partition(":")
    if not module_name or (not name and not default):
        raise ConfigError(f"Say which {what} as 'module:callable', not {path!r}.")
    module = import_module_of(module_name, path, search_here)
    name = name or default
    found = getattr(module, name, None)
    if found is None:
        known = [known for known, value in vars(module).items() if callable(value) and not known.startswith("_")]
        raise ConfigError(f"The module {module_name!r} has no {name!r}.{did_you_mean(name, known)}")
    if not callable(found):
        raise ConfigError(
            f"{path!r} is a {type(found).__name__}; it must be a function or class that makes a {what}."
        )
    _refuse_other_callables(found, module_name, path, what, bases)
    return found


def _refuse_other_callables(
    found: Callable[..., Any], module: str, path: str, what: str, bases: tuple[str, ...]
) -> None:
    """Before it is called: a name such as "shutil:rmtree" must not do what it says."""
    made_by: Any = inspect.unwrap(found.func if isinstance(found, functools.partial) else found)
    if isinstance(made_by, type):
        if not any(parent.__name__ in bases for parent in made_by.__mro__[1:]):
            wanted = f"it is not derived from {' or '.join(bases)}" if bases else "a function is needed"
            raise ConfigError(f"{path!r} is a class, but none of a {what}: {wanted}.")
        return
    if not isinstance(made_by, types.FunctionType):
        kind = type(made_by).__name__
        raise ConfigError(f"{path!r} is a {kind}; it must be a function or class that makes a {what}.")
    home = main_name() if made_by.__module__ == "__main__" else made_by.__module__
    if home.partition(".")[0] not in (module.partition(".")[0], *_WRAPPING_PACKAGES):
        raise ConfigError(
            f"{path!r} is a function of {made_by.__module__!r}. One that makes a {what} must be defined in the "
            f"package that is named, {module.partition('.')[0]!r}."
        )


def import_module_of(module: str, env_id: str, search_here: bool = True) -> Any:
    """The module of an environment or network; in a worker process, too.

    The present folder is searched (`search_here`) only for what was named and may be imported: a stranger's file
    beside a run must not stand in for a package that Ludus itself needs, or for one that this package needs.
    """
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ConfigError(
            f"{module!r} of {env_id!r} is a part of Python: no environment, network, term or algorithm is there."
        )
    if search_here and "" not in sys.path:
        sys.path.append("")  # the present folder, where a user's own environment may lie
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # its greeting would mix with our output
    if module not in sys.modules and module == main_name():
        return sys.modules["__main__"]  # imported, it would run a second time
    _being_imported.append(module)
    try:
        return importlib.import_module(module)
    except EnvError:
        raise
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None:
            problem = tell_exception(error)
            raise ConfigError(f"The module {module!r} of {env_id!r} fails to import: {problem}") from error
        itself = missing == module
        what = f"The module {module!r}" if itself else f"The package {missing!r} that it needs"
        hint = did_you_mean(module, _siblings(module, search_here)) if itself else ""
        where = ", here or among the installed packages" if itself and search_here else ""
        raise ConfigError(f"{what} cannot be found for {env_id!r}{where}; is it installed?{hint}") from error
    finally:
        _being_imported.pop()


def refuse_while_importing() -> None:
    """A script that trains when it is imported would train again whenever one of its runs is looked at."""
    if _being_imported:
        raise EnvError(
            f"{_being_imported[-1]}.py trains while it is imported. Put what it does below a line "
            'if __name__ == "__main__": and leave what it defines above.'
        )


def _siblings(module: str, search_here: bool) -> list[str]:
    """What else there is in the package, or in the present folder, that was to hold the module."""
    package, dot, _ = module.rpartition(".")
    here = [os.getcwd()] if search_here else None
    path = getattr(sys.modules.get(package), "__path__", None) if package else here
    return [f"{package}{dot}{found.name}" for found in pkgutil.iter_modules(path)] if path else []


def is_given(address: str) -> bool:
    """Whether an address is one of an object that a program handed over: no module is imported for it."""
    return _GIVEN_ADDRESS.fullmatch(address) is not None


def told_name(name: str) -> str:
    """ "gym:MyEnv" for "gym:<MyEnv 3fa21b>"; other names as they are."""
    return _GIVEN_ADDRESS.sub(r"\1", name)
