"""Files in LIBERO's layout: whole or not there at all. Also copies of such files with a learned reward in them."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from ludus.data import libero
from ludus.data.files import open_file
from ludus.data.hdf5 import h5py_module
from ludus.errors import DataError

LEARNED_REWARD = "learned_rewards"
_FRAMES_PER_CHUNK = 8  # of images: what a reader has to unpack to see one


@dataclass
class DemoRows:
    """One episode, row by row as LIBERO has it: observations follow the action of their row, states precede it."""

    obs: dict[str, np.ndarray]  # each [T, ...]; images uint8 and upside down, as OpenGL draws them
    actions: np.ndarray  # [T, A]
    rewards: np.ndarray  # [T]
    shaped_rewards: np.ndarray  # [T] how far the job has come, for measuring only
    states: np.ndarray  # [T, n] of the simulation; the first is where a replay begins
    success: bool
    terminated: bool
    model_file: str = ""  # the scene, as XML


class LiberoWriter:
    """`with LiberoWriter(path, env_args, language) as writer: writer.add(rows)`.

    The file gets its name only when all is written; if anything is raised inside, there is no file.
    """

    def __init__(self, path: Path, env_args: dict[str, Any], language: str) -> None:
        self.path, self.env_args, self.language = path, env_args, language
        self.total = 0
        self._outcomes: list[bool] = []
        self._context = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._file = self._context.enter_context(_new_file(self.path))
        self._data = self._file.create_group("data")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._describe()
        self._context.__exit__(kind, error, trace)

    def add(self, rows: DemoRows) -> str:
        """Writes the next demo; its name."""
        count = len(rows.actions)
        name = f"demo_{len(self._outcomes)}"
        group = self._data.create_group(name)
        for key, values in rows.obs.items():
            assert len(values) == count, f"{key} needs {count} rows"
            _write_obs(group, f"obs/{key}", values)
        dones = np.zeros(count, np.uint8)
        dones[-1] = rows.terminated
        group["actions"], group["rewards"], group["dones"] = rows.actions, rows.rewards, dones
        group[libero.TRUE_REWARD], group["states"] = rows.shaped_rewards, rows.states
        group.attrs.update(num_samples=count, success=rows.success, terminated=rows.terminated)
        group.attrs.update(init_state=rows.states[0], model_file=rows.model_file)
        self._outcomes.append(rows.success)
        self.total += count
        return name

    def _describe(self) -> None:
        problem = {"problem_name": self.env_args.get("env_name", ""), "language_instruction": self.language}
        self._data.attrs.update(
            env_args=json.dumps(self.env_args),
            problem_info=json.dumps(problem),
            num_demos=len(self._outcomes),
            total=self.total,
        )
        for name, wanted in (("success", True), ("failure", False)):  # robomimic's filters
            chosen = [f"demo_{i}" for i, outcome in enumerate(self._outcomes) if outcome is wanted]
            self._file[f"mask/{name}"] = np.array(chosen, dtype="S")


def _write_obs(group: Any, key: str, values: np.ndarray) -> None:
    if values.dtype != np.uint8:
        group[key] = values
        return
    chunks = (min(_FRAMES_PER_CHUNK, len(values)), *values.shape[1:])
    group.create_dataset(key, data=values, chunks=chunks, compression="lzf")


def check_target(path: Path) -> None:
    """Before a long work: can the file be written?"""
    if path.exists():
        raise DataError(f"{path} is already there; name another file, or delete it.")
    if not path.parent.is_dir():
        raise DataError(f"There is no folder {path.parent} to write {path.name} into.")
    if not os.access(path.parent, os.W_OK):
        raise DataError(f"The folder {path.parent} cannot be written to.")


@contextlib.contextmanager
def _new_file(path: Path, start_from: Path | None = None) -> Iterator[Any]:
    """An open file that gets its name when the block ends well."""
    check_target(path)
    h5py = h5py_module()
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # a name where nobody has laid a link
    try:
        if start_from is not None:
            shutil.copyfile(start_from, aside)
        with h5py.File(aside, "x" if start_from is None else "r+") as file:
            yield file
        with aside.open("rb") as written:
            os.fsync(written.fileno())
        aside.rename(path)
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path} could not be written: {error}. Nothing was left behind.") from error
    finally:
        aside.unlink(missing_ok=True)


def copy_with_reward(
    source: Path, target: Path, rewards: Mapping[str, np.ndarray], run: str = "", key: str = LEARNED_REWARD
) -> None:
    """A copy of a LIBERO or robomimic file with a reward for each row of the named demos; all else as it was.

    `as_file_rows` makes such rows of an episode's steps. Demos that are not named get none.
    """
    if not key.startswith("learned"):
        raise DataError(f"A learned reward cannot be called {key!r}: its name must begin with 'learned'.")
    with open_file(source) as file:
        if not libero.recognises(file):
            raise DataError(f"{source} is not in LIBERO's or robomimic's layout; only such files can be labelled.")
        _check_rows(source, file["data"], rewards)
    with _new_file(target, start_from=source) as file:
        data = file["data"]
        for name, values in rewards.items():
            if key in data[name]:
                del data[name][key]  # the label of an earlier run
            data[name][key] = np.asarray(values, np.float32)
            data[name][key].attrs["run"] = run
        data.attrs[f"{key}_run"] = run


def _check_rows(source: Path, data: Any, rewards: Mapping[str, np.ndarray]) -> None:
    for name, values in rewards.items():
        if name not in data:
            raise DataError(f"{source} has no episode {name}.")
        rows = len(data[name]["actions"])
        if np.shape(values) != (rows,):
            raise DataError(f"{source}: {name} has {rows} rows, but the reward has the shape {np.shape(values)}.")
        if not np.isfinite(values).all():
            raise DataError(f"{source}: {name}: the reward to be written is not finite.")
