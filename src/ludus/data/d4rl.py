"""D4RL's flat layout: all episodes in one array each, with terminals and timeouts where one ends."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ludus.data.config import DataConfig
from ludus.data.demo import Column, Demo, bad, column_of, item_of
from ludus.data.guard import MOST_EPISODES
from ludus.data.minari import OBSERVATIONS
from ludus.envs.findings import Finding
from ludus.errors import DataError


def recognises(file: Any) -> bool:
    return OBSERVATIONS in file and "actions" in file


def format_name(file: Any) -> str:
    return "D4RL"


def filters(file: Any) -> list[str]:
    return []


def findings(file: Any, path: Path) -> Iterator[Finding]:
    return iter(())


def episodes(file: Any, path: Path, config: DataConfig) -> list[tuple[str, Callable[[], Demo]]]:
    """episode_0, episode_1, …, each with what opens it."""
    if config.filter:
        raise DataError(f"{path} is in D4RL's layout, which has no filters: leave --data.filter out.")
    names = (OBSERVATIONS, "actions", "rewards", config.reward, "next_observations")
    columns = {
        name: column_of(file, name, str(path))
        for name in dict.fromkeys(names)
        if name != "next_observations" or item_of(file, name) is not None
    }
    terminal, timeout = _ends(file, path, columns["actions"].rows)
    for name, column in columns.items():
        if column.rows != len(terminal):
            what = f"has {column.rows} rows, but there are {len(terminal)} actions"
            raise bad(str(path), name, what, "All arrays need a row for each step; take the file again.")
    lasts = np.flatnonzero(terminal | timeout)
    if len(lasts) > MOST_EPISODES:
        raise DataError(f"{path} holds {len(lasts):,} episodes; split it into files of {MOST_EPISODES:,} at most.")
    stops = [int(last) + 1 for last in lasts]
    # What follows the last end was cut off; it is worth keeping if it has a step whose outcome is known.
    if len(terminal) - (stops[-1] if stops else 0) >= (1 if "next_observations" in columns else 2):
        stops.append(len(terminal))
    starts = [0, *stops][: len(stops)]
    return [
        (
            f"episode_{i}",
            partial(_open, path, f"episode_{i}", columns, config, start, stop, bool(terminal[stop - 1])),
        )
        for i, (start, stop) in enumerate(zip(starts, stops, strict=True))
    ]


def _ends(file: Any, path: Path, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """([rows] bool the task ended, [rows] bool time ran out)."""
    found = {}
    for name in ("terminals", "timeouts"):
        there = item_of(file, name) is not None
        flags = column_of(file, name, str(path)).read().reshape(-1) if there else np.zeros(rows, bool)
        if flags.dtype.kind not in "bifu" or len(flags) != rows:
            what = f"is {len(flags)} × {flags.dtype}, but there are {rows} actions"
            raise bad(str(path), name, what, "It needs a yes or no for each step.")
        found[name] = flags.astype(bool), there
    if not any(there for _, there in found.values()):
        raise bad(
            str(path), "terminals", "is missing, and so is timeouts", "One of them must say where episodes end."
        )
    return found["terminals"][0], found["timeouts"][0]


def _open(
    path: Path, name: str, columns: dict[str, Column], config: DataConfig, start: int, stop: int, ended: bool
) -> Demo:
    part = {key: Column(column.dataset, start, stop) for key, column in columns.items()}
    later = part.get("next_observations")
    return Demo(
        path=path,
        name=name,
        format="D4RL",
        order="before",
        obs={OBSERVATIONS: part[OBSERVATIONS]},
        next_obs={} if later is None else {OBSERVATIONS: later},
        action=part["actions"],
        reward=part[config.reward],
        own_reward=part["rewards"],
        terminated=ended,
        flip=config.flip == "yes",
    )
