"""Minari's layout: episode_k/{observations T+1, actions, rewards, terminations, truncations, infos}."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ludus.data.config import DataConfig
from ludus.data.demo import Column, Demo, bad, column_of, columns_under, item_of, text_of
from ludus.data.files import natural_key
from ludus.data.guard import MOST_CHOICES, MOST_EPISODES, MOST_TEXT, attribute
from ludus.data.hdf5 import h5py_module
from ludus.envs.findings import Finding
from ludus.errors import DataError, LudusError
from ludus.files import parse_json, read_bounded

OBSERVATIONS = "observations"  # the only key, where an observation is one array


def recognises(file: Any) -> bool:
    return any(name.startswith("episode_") for name in file)


def format_name(file: Any) -> str:
    return "Minari"


def filters(file: Any) -> list[str]:
    return []


def findings(file: Any, path: Path) -> Iterator[Finding]:
    return iter(())


def episodes(file: Any, path: Path, config: DataConfig) -> list[tuple[str, Callable[[], Demo]]]:
    """Names in natural order, each with what opens it."""
    if config.filter:
        raise DataError(f"{path} is in Minari's layout, which has no filters: leave --data.filter out.")
    if len(file) > MOST_EPISODES:
        raise DataError(f"{path} holds {len(file):,} episodes; split it into files of {MOST_EPISODES:,} at most.")
    names = sorted((name for name in file if name.startswith("episode_")), key=natural_key)
    num_actions = _num_actions(file, path)
    return [(name, partial(_open, path, file, name, config, num_actions)) for name in names]


def _open(path: Path, file: Any, name: str, config: DataConfig, num_actions: int) -> Demo:
    where, group = f"{path}: {name}", file[name]
    return Demo(
        path=path,
        name=name,
        format="Minari",
        order="around",
        obs=_observations(group, where),
        action=column_of(group, "actions", where, "Actions must be one array; dicts and tuples are not read."),
        reward=column_of(group, config.reward, where),
        own_reward=column_of(group, "rewards" if "rewards" in group else config.reward, where),
        terminated=_last(column_of(group, "terminations", where)),
        told_success=_told_success(group, where),
        flip=config.flip == "yes",
        num_actions=num_actions,
    )


def _observations(group: Any, where: str) -> dict[str, Column]:
    item = item_of(group, OBSERVATIONS)
    if isinstance(item, h5py_module().Group):
        return dict(columns_under(item, where))
    return {OBSERVATIONS: column_of(group, OBSERVATIONS, where)}


def _last(column: Column) -> bool:
    return column.rows > 0 and bool(column.read(column.rows - 1).any())


def _told_success(group: Any, where: str) -> bool | None:
    infos = item_of(group, "infos")
    if infos is None or "success" not in infos:
        return None
    values = column_of(infos, "success", where)
    if values.dtype.kind not in "bifu":
        raise bad(
            where, "infos/success", f"is {values.dtype}", "It must be yes or no, or a number, for each step."
        )
    return bool(np.nan_to_num(values.read()).any())  # NaN: a step that does not say


def _num_actions(file: Any, path: Path) -> int:
    """Of a discrete action space, which newer files describe in metadata.json beside them."""
    try:
        beside = path.with_name("metadata.json")
        described = parse_json(read_bounded(beside, MOST_TEXT)) if beside.is_file() else {}
        space = parse_json(text_of(attribute(file, "action_space") or described.get("action_space") or "{}"))
        choices = int(space.get("n", 0)) if space.get("type") == "Discrete" else 0
        return choices if 0 <= choices <= MOST_CHOICES else 0
    except (ValueError, AttributeError, TypeError, OSError, OverflowError, LudusError):
        return 0  # a description that cannot be read is no loss: the actions themselves tell
