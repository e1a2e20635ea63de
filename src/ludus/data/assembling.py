"""From a file's rows to an `Episode`: checks, order of frames and actions, upright and shrunken images."""

from dataclasses import dataclass

import numpy as np

from ludus.data.config import DataConfig
from ludus.data.demo import Column, Demo, bad
from ludus.data.episode import Episode
from ludus.data.guard import MOST_CHOICES
from ludus.data.images import shrink
from ludus.errors import did_you_mean

_NUMBERS = "bifu"  # kinds of numpy types that are numbers
_LEAST_PICTURE = 16  # height and width from which an array of floats is taken for an image


@dataclass(frozen=True)
class ObsSpec:
    """One observation, as an episode holds it."""

    shape: tuple[int, ...]  # of one row
    dtype: np.dtype

    @property
    def is_image(self) -> bool:
        return self.dtype == np.uint8

    @property
    def bytes_per_row(self) -> int:
        return int(np.prod(self.shape)) * self.dtype.itemsize


@dataclass(frozen=True)
class Numbers:
    """All of an episode but its images."""

    action: np.ndarray  # [T, A] float32 or [T] int64
    reward: np.ndarray  # [T]
    vectors: dict[str, np.ndarray]  # each [T+1, n] float32
    true_reward: np.ndarray | None
    file_return: float
    success: bool | None


# Without reading ----------------------------------------------------------------------------------
def obs_spec(demo: Demo, key: str, config: DataConfig) -> ObsSpec:
    """What the observation will be; refuses what cannot be one."""
    column = _obs_column(demo, key)
    kind, shape = column.dtype.kind, column.shape
    leave_out = "Leave it out by naming the others in --data.keys."
    if kind not in _NUMBERS:
        raise bad(demo.where, key, f"holds {_type_name(column.dtype)}, not numbers", leave_out)
    if 0 in shape:
        raise bad(demo.where, key, "holds no numbers", leave_out)
    if column.dtype == np.uint8 and len(shape) >= 2:
        if len(shape) != 3 or shape[2] != 3:
            raise bad(demo.where, key, f"has images of shape {_by(shape)}, not height × width × 3", leave_out)
        return ObsSpec(_shrunken(demo, key, shape, config.image_size), np.dtype(np.uint8))
    if len(shape) >= 2 and min(shape[:2]) >= _LEAST_PICTURE:
        what = f"is {_by(shape)} {column.dtype}, which looks like an image; images must be uint8, 0 to 255"
        raise bad(demo.where, key, what, "Convert it, or leave it out by naming the others in --data.keys.")
    return ObsSpec((int(np.prod(shape)),), np.dtype(np.float32))


def _obs_column(demo: Demo, key: str) -> Column:
    if key not in demo.obs:
        hint = did_you_mean(key, demo.obs) or f" It has {', '.join(demo.obs) or 'none'}."
        fix = "Name observations that all episodes have in --data.keys."
        raise bad(demo.where, f"observation {key}", f"is missing.{hint}".removesuffix("."), fix)
    return demo.obs[key]


def _shrunken(demo: Demo, key: str, shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    if size and min(shape[:2]) < size:
        what = f"has images of {_by(shape[:2])} pixels, which cannot be shrunk to {size}"
        raise bad(demo.where, key, what, "Take a smaller --data.image-size.")
    return (size, size, 3) if size else shape


def _by(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))


def _type_name(dtype: np.dtype) -> str:
    return "text" if dtype.kind in "SUO" else str(dtype)


def is_discrete(column: Column) -> bool:
    return column.dtype.kind in "iub" and column.shape in ((), (1,))


def check_rows(demo: Demo, keys: tuple[str, ...]) -> None:
    """Every array must have a row for each step, there must be a whole step, and actions must be numbers."""
    again = "Record or convert the episode again."
    if demo.rows == 0:
        raise bad(demo.where, "actions", "is empty", again)
    if demo.steps < 1:
        what = f"has {demo.rows} row, which makes no whole step"
        raise bad(demo.where, "actions", what, "An episode needs two observations at least.")
    if demo.action.dtype.kind not in _NUMBERS or len(demo.action.shape) > 1:
        what = f"has rows of {_by(demo.action.shape) or 'one'} {_type_name(demo.action.dtype)}"
        raise bad(demo.where, "actions", what, "An action must be a vector of numbers, or one whole number.")
    if 0 in demo.action.shape:
        raise bad(demo.where, "actions", "holds no numbers", "Leave the episode out.")
    wanted = demo.rows + (demo.order == "around")
    named = {key: _obs_column(demo, key) for key in keys}
    if demo.next_obs:
        named |= {f"next_obs/{key}": _next_column(demo, key) for key in keys}
    for name, column in named.items():
        if column.rows != wanted:
            what = f"has {column.rows} rows, but {demo.rows} actions need {wanted}"
            raise bad(demo.where, name, what, again)
        of = demo.obs[name.removeprefix("next_obs/")]
        if column.shape != of.shape or (column.dtype == np.uint8) != (of.dtype == np.uint8):
            what = f"is {_by(column.shape) or 'one'} {_type_name(column.dtype)} a row, the observation "
            raise bad(demo.where, name, f"{what}{_by(of.shape) or 'one'} {_type_name(of.dtype)}", again)
    for name, scalars in (
        ("rewards", demo.reward),
        ("rewards", demo.own_reward),
        ("true reward", demo.true_reward),
    ):
        if scalars is not None and scalars.rows != demo.rows:
            raise bad(demo.where, name, f"has {scalars.rows} rows for {demo.rows} actions", again)


def _next_column(demo: Demo, key: str) -> Column:
    if key not in demo.next_obs:
        fix = "Convert the file again with all of them, or without next_obs."
        raise bad(demo.where, f"next_obs/{key}", "is missing", fix)
    return demo.next_obs[key]


# Reading ------------------------------------------------------------------------------------------
def read_numbers(demo: Demo, keys: tuple[str, ...], config: DataConfig) -> Numbers:
    """All but images, checked."""
    check_rows(demo, keys)
    vectors = {key: _vector(demo, key) for key in keys if not obs_spec(demo, key, config).is_image}
    own = _scalars(demo, "rewards", demo.own_reward)
    reward = own if demo.reward == demo.own_reward else _scalars(demo, config.reward, demo.reward)
    true = None if demo.true_reward is None else _scalars(demo, "true reward", demo.true_reward)
    kept = _step_rows(demo)
    paid = reward[kept].copy()
    if kept.stop < demo.rows and demo.terminated:
        # What followed the last action was not recorded: its reward is paid a step early. Where time ran out the
        # state before it is worth what follows, and that reward would count twice.
        paid[-1] += reward[kept.stop :].sum()
    return Numbers(
        action=_actions(demo)[kept],
        reward=paid.astype(np.float32),
        vectors=vectors,
        true_reward=None if true is None else true[kept].astype(np.float32),
        file_return=float(reward.sum()),
        success=_success(demo, own),
    )


def read_episode(demo: Demo, keys: tuple[str, ...], config: DataConfig) -> Episode:
    numbers = read_numbers(demo, keys, config)
    obs = {key: numbers.vectors[key] if key in numbers.vectors else _images(demo, key, config) for key in keys}
    return Episode(
        name=demo.name,
        file=demo.path,
        obs=obs,
        action=numbers.action,
        reward=numbers.reward,
        terminated=demo.terminated,
        success=numbers.success,
        language=demo.language,
        true_reward=numbers.true_reward,
        file_return=numbers.file_return,
        first_row=demo.first_row,
        file_rows=demo.rows,
    )


def _step_rows(demo: Demo) -> slice:
    """Rows of actions and rewards that are whole steps."""
    return slice(demo.first_row, demo.first_row + demo.steps)


def _frames(demo: Demo, key: str) -> np.ndarray:
    """[T+1, ...] of the file."""
    rows = demo.obs[key].read()
    if demo.next_obs:
        last = _next_column(demo, key)
        rows = np.concatenate([rows, last.read(last.rows - 1)])
    return rows


def _vector(demo: Demo, key: str) -> np.ndarray:
    rows = _frames(demo, key)
    return _finite(demo, key, rows.reshape(len(rows), -1))


def _images(demo: Demo, key: str, config: DataConfig) -> np.ndarray:
    frames = _frames(demo, key)
    if demo.flip:
        frames = frames[:, ::-1]
    if config.image_size:
        frames = shrink(frames, config.image_size)
    return np.ascontiguousarray(frames)


def _scalars(demo: Demo, name: str, column: Column) -> np.ndarray:
    if column.dtype.kind not in _NUMBERS or column.shape not in ((), (1,)):
        what = f"has rows of {_by(column.shape) or 'one'} {_type_name(column.dtype)}"
        raise bad(demo.where, name, what, "It must be one number a step.")
    # In float64, so that a return is the exact sum of what the file holds.
    values = column.read().reshape(-1).astype(np.float64)
    _finite(demo, name, values)
    return values


def _actions(demo: Demo) -> np.ndarray:
    rows = demo.action.read()
    if not is_discrete(demo.action):
        return _finite(demo, "actions", rows.reshape(len(rows), -1))
    rows = rows.reshape(-1).astype(np.int64)
    wrong = rows[(rows < 0) | (rows >= MOST_CHOICES)]
    if len(wrong):
        fix = f"Discrete actions count from 0, and there are at most {MOST_CHOICES:,}."
        raise bad(demo.where, "actions", f"has the value {wrong[0]}", fix)
    return rows


def _finite(demo: Demo, key: str, values: np.ndarray) -> np.ndarray:
    """As float32; too large for that counts as infinite."""
    with np.errstate(over="ignore"):
        values = values.astype(np.float32)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        what = f"is not finite in {int(wrong.sum())} places, first in row {row} ({values[wrong][0]})"
        raise bad(demo.where, key, what, "Repair the recording, or leave the episode out.")
    return values


def _success(demo: Demo, rewards: np.ndarray) -> bool | None:
    """As the file says; else where a reward of 1 pays for it and nothing else is paid."""
    if demo.told_success is not None:
        return demo.told_success
    return bool(rewards.any()) if np.isin(rewards, (0.0, 1.0)).all() else None
