"""The one decision whether code that a configuration names may be imported.

A configuration can name code: the module of an environment, of a term of its task or of a network. What a user
types on the command line or writes into a program is the user's own word. What a run folder or a configuration
file says may be a stranger's, so its code is imported only if

- this user trained that run on this machine, which a mark in the run proves, or
- the user says so: `--trust`, in Python `trust=True`.

The mark (trust.json) is a keyed signature (HMAC-SHA256) of what the run imports: the modules, the files they were
found in, and the arguments they are given. The key never leaves the user's own state folder, so a run folder
cannot forge its mark. A mark copied from a run of the user's does not serve for a module of that name elsewhere.
"""

import dataclasses
import hashlib
import hmac
import importlib.machinery
import json
import os
import re
import secrets
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ludus.config import TrainConfig, to_dict
from ludus.envs.config import EnvConfig
from ludus.envs.mujoco.settings import TABLES
from ludus.errors import LudusError, TrustError, plain_text
from ludus.files import create, read_bounded, read_json, write_whole
from ludus.stages import environments_of

MARK = "trust.json"
_MARK_BYTES = 10_000
_KEY_BYTES = 32
_NAMED = re.compile(r"[\w.]+:\w+")  # "module:callable"


def _imports(config: TrainConfig) -> tuple[str, ...]:
    """Modules that are imported because a configuration names them, in its stages, too."""
    return tuple(dict.fromkeys(name for part in _parts(config) for name in part.imports))


def _parts(config: TrainConfig) -> list[TrainConfig]:
    """The configuration, and the same with the environment of each of its stages."""
    return [config, *(dataclasses.replace(config, env=env) for env in environments_of(config))]


def require_trust(config: TrainConfig, run: Path, trust: bool) -> None:
    """Refuse to go on with a run that names code, unless this user trained it here or trusts it."""
    modules = _imports(config)
    if modules and not trust and not _has_valid_mark(run, config):
        raise _refusal(modules, str(run), "and it was not trained by you on this machine")


def require_trust_in_file(
    config: TrainConfig, file: Path, typed: TrainConfig, words: Sequence[str], trust: bool
) -> None:
    """Refuse code that a configuration file names, unless the user typed the same or trusts the file.

    `typed` is what the name of the preset stands for, `words` are the flags besides. The same means the same
    callable, too: another function of the user's own module might do harm.
    """
    known, modules = {*_callables(typed), *_NAMED.findall(" ".join(words))}, _imports(config)
    if modules and not trust and not known.issuperset(_callables(config)):
        raise _refusal(modules, str(file), "for something that the command line does not name")


def _refusal(modules: Any, source: str, why: str) -> TrustError:
    named = " and ".join(repr(plain_text(name, 200)) for name in modules)
    return TrustError(
        f"{source} would import the module {named}, {why}. Code from a stranger can do anything that you can. "
        "If you know where it comes from, say so: --trust, in Python trust=True."
    )


# The mark ---------------------------------------------------------------------------------------
def mark_as_ours(run: Path, config: TrainConfig) -> None:
    """Note that this user trains the run here. Where no key can be kept, the run will have to be trusted anew."""
    if not _imports(config):
        (run / MARK).unlink(missing_ok=True)  # of an earlier configuration
        return
    try:
        key = _key(make=True)
    except (OSError, LudusError):
        return
    write_whole(run / MARK, json.dumps({"signature": _signature(key, config)}))


def is_mark(path: Path) -> bool:
    """Whether this is what `mark_as_ours` writes, be it valid or not."""
    try:
        mark = read_json(path, _MARK_BYTES)
    except (OSError, LudusError):
        return False
    return isinstance(mark, dict) and [*mark] == ["signature"]


def _has_valid_mark(run: Path, config: TrainConfig) -> bool:
    try:
        mark = read_json(run / MARK, _MARK_BYTES)
        signature = mark["signature"]
        return hmac.compare_digest(str(signature).encode(), _signature(_key(make=False), config).encode())
    except (OSError, LudusError, KeyError, TypeError):
        return False


def _callables(config: TrainConfig) -> tuple[str, ...]:
    """What is imported and called, in any stage."""
    algorithm = config.algo if ":" in config.algo else ""
    named = dict.fromkeys(name for part in _parts(config) for name in _callables_of(part.env))
    return *named, config.policy.network, algorithm


def _callables_of(env: EnvConfig) -> tuple[str, ...]:
    named = (str(getattr(env, name, "")) for name in ("id", "factory"))
    return type(env).__name__, *named, *getattr(env, "callables", ())


def _signature(key: bytes, config: TrainConfig) -> str:
    signed = _signed(config)
    if config.stages:
        signed["stages"] = [_signed(part) for part in _parts(config)[1:]]
    return hmac.new(key, json.dumps(signed, sort_keys=True, default=repr).encode(), hashlib.sha256).hexdigest()


def _signed(config: TrainConfig) -> dict[str, Any]:
    """What is imported, and the arguments it is given."""
    env = to_dict(config.env)
    signed: dict[str, Any] = {
        "kind": env.get("kind"),
        "names": {name: env[name] for name in ("id", "factory", "kwargs") if name in env},
        "files": {module: _file_of(module) for module in config.imports},
    }
    if getattr(config.env, "callables", ()):  # with the arguments that they are given
        signed["terms"] = {name: env[name] for name in TABLES}
    if config.policy.network:
        signed["network"] = [config.policy.network, config.policy.network_kwargs]
    if ":" in config.algo:
        signed["algorithm"] = config.algo
    return signed


def _file_of(module: str) -> str:
    """Where the module's package would be imported from, found without running any of it."""
    top = module.partition(".")[0]
    if top in sys.modules:
        package = sys.modules[top]
        found = getattr(package, "__file__", None) or next(iter(getattr(package, "__path__", "")), "")
    else:
        spec = importlib.machinery.PathFinder.find_spec(top, [*sys.path, os.getcwd()])
        places = spec.submodule_search_locations if spec is not None else None
        found = (spec.origin if spec is not None else None) or (next(iter(places), "") if places else "")
    return os.path.realpath(found) if found else ""


# The key ----------------------------------------------------------------------------------------
def state_folder() -> Path:
    """Where Ludus keeps what belongs to this user on this machine."""
    base = os.environ.get("XDG_STATE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "ludus"


def _key(make: bool) -> bytes:
    path = state_folder() / "trust.key"
    if make and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside = path.with_name(f"{path.name}.{secrets.token_hex(6)}")
        with create(aside) as file:
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            file.write(secrets.token_bytes(_KEY_BYTES))
        try:
            os.link(aside, path)  # of two trainings that begin at once, one makes the key and both read it
        except FileExistsError:
            pass
        finally:
            aside.unlink()
    _refuse_shared_key(path)
    key = read_bounded(path, _KEY_BYTES)
    if len(key) != _KEY_BYTES:
        raise TrustError(f"{path} is not a key of Ludus: delete it, and runs will have to be trusted anew.")
    return key


def _refuse_shared_key(path: Path) -> None:
    """A key that others can write proves nothing."""
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode) or facts.st_mode & 0o022 or facts.st_uid != os.getuid():
        raise TrustError(f"{path} could have been written by another user: delete it.")
