"""LIBERO's and robomimic's layout: data/demo_k/{obs/…, actions, rewards, dones}, attributes, mask/NAME."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ludus.data.config import DataConfig
from ludus.data.demo import TRUE_REWARD, Column, Demo, bad, column_of, columns_under, item_of, text_of
from ludus.data.files import natural_key
from ludus.data.guard import MOST_EPISODES, attribute
from ludus.data.hdf5 import h5py_module
from ludus.envs.findings import Finding
from ludus.errors import DataError, did_you_mean, plain_text
from ludus.files import parse_json

MOST_LANGUAGE = 2000  # characters


def recognises(file: Any) -> bool:
    return isinstance(item_of(file, "data"), h5py_module().Group)


def format_name(file: Any) -> str:
    return "LIBERO" if _is_libero(file["data"]) else "robomimic"


def _is_libero(data: Any) -> bool:
    """LIBERO names its task; robomimic's own images are called …_image and stand upright."""
    if "problem_info" in data.attrs or "bddl_file_name" in data.attrs:
        return True
    first = next(_group_names(data), None)
    obs = item_of(data[first], "obs") if first is not None else None
    return obs is not None and any(key.endswith("_rgb") for key in obs)


def filters(file: Any) -> list[str]:
    mask = item_of(file, "mask")
    return sorted(mask) if mask is not None else []


def episodes(file: Any, path: Path, config: DataConfig) -> list[tuple[str, Callable[[], Demo]]]:
    """Names in natural order, each with what opens it."""
    data = file["data"]
    if len(data) > MOST_EPISODES:
        raise DataError(f"{path} holds {len(data):,} episodes; split it into files of {MOST_EPISODES:,} at most.")
    names = sorted(_group_names(data), key=natural_key)
    if config.filter:
        names = _filtered(file, path, names, config.filter)
    libero, language = _is_libero(data), language_of(data)
    return [(name, partial(_open, path, data, name, config, libero, language)) for name in names]


def _group_names(data: Any) -> Iterator[str]:
    """Those of groups, told apart without opening them: there may be tens of thousands."""
    h5o = h5py_module().h5o

    def is_group(name: str) -> bool:
        try:
            return bool(h5o.get_info(data.id, name.encode()).type == h5o.TYPE_GROUP)
        except (KeyError, OSError, RuntimeError, UnicodeError):  # a link that leads nowhere
            return False

    return (name for name in data if is_group(name))


def _filtered(file: Any, path: Path, names: list[str], wanted: str) -> list[str]:
    known = filters(file)
    if wanted not in known:
        has = f"It has {', '.join(known)}." if known else "It has none."
        raise DataError(f"{path} has no filter mask/{wanted}.{did_you_mean(wanted, known)} {has}")
    chosen = _chosen(column_of(file["mask"], wanted, str(path)), len(names))
    missing = sorted(chosen - set(names), key=natural_key)
    if missing:
        raise bad(str(path), f"mask/{wanted}", f"names {missing[0]}, which is not there", "Write the filter anew.")
    return [name for name in names if name in chosen]


def _chosen(mask: Column, most: int) -> set[str]:
    """The names in a filter. One by one: many may be one long text of the file, and fill memory together."""
    if mask.rows > most or mask.shape not in ((), (1,)) or mask.dtype.kind not in "SUO":
        raise DataError(f"{mask.dataset.file.filename}: {mask.dataset.name} is no list of at most {most} names.")
    return {text_of(name) for row in range(mask.rows) for name in mask.read(row, row + 1).ravel()}


def language_of(data: Any) -> str:
    """The instruction in LIBERO's problem_info; nothing where there is none."""
    try:
        info = parse_json(text_of(attribute(data, "problem_info") or "{}"))
        found = info.get("language_instruction", "") if isinstance(info, dict) else ""
    except ValueError:
        return ""
    told = " ".join(map(str, found)) if isinstance(found, list) else str(found)
    return plain_text(told, MOST_LANGUAGE).strip().strip('"')


def _open(path: Path, data: Any, name: str, config: DataConfig, libero: bool, language: str) -> Demo:
    where, group = f"{path}: {name}", data[name]
    obs = item_of(group, "obs")
    if obs is None:
        fix = "robomimic's dataset_states_to_obs.py adds them to a file that has states only."
        raise bad(where, "obs", "is missing", fix)
    shifted = libero if config.action_shift == "auto" else config.action_shift == "yes"
    action, later = column_of(group, "actions", where), item_of(group, "next_obs")
    _check_num_samples(group, action.rows, where)
    label_fix = "" if config.reward == "rewards" else "'ludus label DATA --run RUN' writes learned_rewards."
    return Demo(
        path=path,
        name=name,
        format="LIBERO" if libero else "robomimic",
        order="after" if shifted else "before",
        obs=dict(columns_under(obs, where, "")),
        next_obs={} if later is None or shifted else dict(columns_under(later, where)),
        action=action,
        reward=column_of(group, config.reward, where, label_fix),
        own_reward=column_of(group, "rewards" if "rewards" in group else config.reward, where),
        true_reward=column_of(group, TRUE_REWARD, where) if TRUE_REWARD in group else None,
        terminated=_terminated(group, where),
        told_success=_flag(group, "success", where),
        flip=libero if config.flip == "auto" else config.flip == "yes",
        language=language,
    )


def _check_num_samples(group: Any, rows: int, where: str) -> None:
    told = attribute(group, "num_samples")
    if told is not None and int(told) != rows:
        fix = "The episode was cut or the file put together wrongly; take it from its source again."
        raise bad(where, "num_samples", f"says {int(told)} steps, but there are {rows} actions", fix)


def _flag(group: Any, key: str, where: str) -> bool | None:
    fix = "Write it as True or False."
    try:
        value = attribute(group, key)
    except DataError as error:
        raise bad(where, f"attribute {key}", "is not one yes or no", fix) from error
    if value is None:
        return None
    if isinstance(value, str | bytes) or value not in (0, 1):  # any text would be true, and NaN, too
        raise bad(where, f"attribute {key}", f"is {plain_text(str(value), 30)!r}, neither yes nor no", fix)
    return bool(value)


def _terminated(group: Any, where: str) -> bool:
    told = _flag(group, "terminated", where)
    if told is not None:
        return told
    if "dones" not in group:
        return True  # a demonstration ends when its job is done
    dones: Column = column_of(group, "dones", where)
    return dones.rows > 0 and bool(dones.read(dones.rows - 1).any())


def findings(file: Any, path: Path) -> Iterator[Finding]:
    """What the attributes of the whole file get wrong."""
    data = file["data"]
    groups = [data[name] for name in _group_names(data)]
    steps = sum(len(group["actions"]) for group in groups if "actions" in group)
    for key, found, what in (("num_demos", len(groups), "episodes"), ("total", steps, "steps")):
        told = attribute(data, key)
        if told is not None and int(told) != found:
            fix = "Part of the file may be missing: compare it with its source."
            yield Finding("warning", f"{path.name}: attribute {key} says {int(told)} {what}, it has {found}.", fix)
    if _is_libero(data) and not language_of(data):
        yield Finding("warning", f"{path.name}: no language instruction.", "It belongs into data's problem_info.")
