"""Pickles of numbers, read without running anything that they name."""

import codecs
import io
import pickle
import pickletools
import tokenize
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ludus.envs.humanoid.importing.motion import MOST_POSES
from ludus.errors import DataError

_KINDS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
_MOST_STEPS = 100_000  # of a pickle; a motion of 15 bodies takes some 200
_LONGEST_TEXT = 1_000  # of keys and of what arrays hold
BROKEN = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError, MemoryError,
    RecursionError, OverflowError, SyntaxError, tokenize.TokenError,
)  # fmt: skip


def unpickled(path: Path, data: bytes, what: str) -> Any:
    """Dictionaries, lists, texts and numbers of a pickle; arrays are to be asked for by `numbers`."""
    try:
        _check_steps(data)
        return _Reader(io.BytesIO(data), path).load()
    except BROKEN as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be read as {what}: {reason}.") from error


def numbers(value: Any) -> np.ndarray:
    """Of an array or one number, and of nothing that is merely a list of lists."""
    values = value.values if isinstance(value, Array) else value
    if not isinstance(values, np.ndarray | np.generic | int | float):
        raise TypeError("a list where an array")
    array = np.asarray(values)
    if array.size > 4 * MOST_POSES:  # before it becomes eight times as large
        raise ValueError("an array larger than any motion")
    return array


def _check_steps(data: bytes) -> None:
    """Its steps, without taking them: a place far out in the memo alone makes the reader ask for gigabytes."""
    for steps, (step, argument, _) in enumerate(pickletools.genops(data)):
        if steps > _MOST_STEPS or ("PUT" in step.name and int(argument or 0) > _MOST_STEPS):
            raise ValueError("it takes far more steps than a motion needs")


class _Reader(pickle._Unpickler):  # the one in Python, whose steps can be changed
    """Knows arrays of numbers and dictionaries. Whatever else a file names is refused, and never imported.

    Keys are texts: tuples within tuples would be hashed for hours, in which Python cannot be interrupted.
    """

    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    append: Callable[[Any], None]

    def __init__(self, stream: io.BytesIO, path: Path) -> None:
        super().__init__(stream)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        builder = _BUILDERS.get((module.replace("numpy._core", "numpy.core"), name))
        if builder is None:
            raise DataError(
                f"{self._path} wants to run {module}.{name} when it is read. Refused, and nothing was run: a "
                "motion needs numbers alone."
            )
        return builder

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.stack[-1][_text(key)] = value

    def load_setitems(self) -> None:
        self._fill(self.pop_mark(), self.stack[-1])

    def load_dict(self) -> None:
        items, made = self.pop_mark(), dict[str, Any]()
        self._fill(items, made)
        self.append(made)

    def _fill(self, items: list[Any], made: dict[str, Any]) -> None:
        for key, value in zip(items[::2], items[1::2], strict=True):
            made[_text(key)] = value

    def load_no_set(self) -> None:
        raise ValueError("it holds a set")

    dispatch |= {pickle.SETITEM[0]: load_setitem, pickle.SETITEMS[0]: load_setitems, pickle.DICT[0]: load_dict}
    dispatch |= dict.fromkeys((pickle.ADDITEMS[0], pickle.FROZENSET[0]), load_no_set)


def _text(value: Any) -> str:
    """Of anything else not even what it is is told: that could be a text of gigabytes."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise ValueError("something else stands where a short text is expected")
    return value


class _DType:
    """Stands for numpy.dtype."""

    def __init__(self, kind: str, *_: Any) -> None:
        self.kind, self.order = _text(kind).lstrip("<>|="), "<"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = ">" if state[1] == ">" else "<"

    def read(self, raw: bytes) -> np.ndarray:
        if self.kind not in _KINDS:
            raise ValueError(f"an array of {self.kind!r} is not one of numbers")
        if not isinstance(raw, bytes | bytearray):
            raise ValueError("an array without bytes")
        return np.frombuffer(raw, dtype=np.dtype(self.order + self.kind))


class Array:
    """Stands for numpy.ndarray: empty at first, filled by the state that follows in the pickle."""

    def __init__(self, *_: Any) -> None:
        self.values: Any = np.zeros(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if isinstance(raw, list):  # an array of objects: here the dictionary of all
            self.values = raw[0] if len(raw) == 1 else raw
            return
        self.values = dtype.read(raw).reshape(shape, order="F" if fortran else "C")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.values, dtype=dtype)


class _Buffer:
    """Stands for how newer protocols write an array."""

    def __new__(cls, raw: bytes, dtype: _DType, shape: tuple[int, ...], order: str) -> Any:
        array = Array()
        array.values = dtype.read(raw).reshape(shape, order="F" if order == "F" else "C")
        return array

    def __setstate__(self, state: Any) -> None:
        raise ValueError("an array that is whole has no state")


class _Scalar:
    """Stands for a number of numpy. A class, as all builders: a pickle cannot set anything on it."""

    def __new__(cls, dtype: _DType, raw: bytes) -> Any:
        return dtype.read(raw)[0]

    def __setstate__(self, state: Any) -> None:
        raise ValueError("a number has no state")


class _Bytes:
    """Stands for how old protocols write bytes."""

    def __new__(cls, text: str, encoding: str) -> Any:
        if _text(encoding) != "latin1":
            raise ValueError(f"the encoding {encoding!r} is not expected")
        return codecs.encode(text, "latin1")

    def __setstate__(self, state: Any) -> None:
        raise ValueError("bytes have no state")


class _Dict(dict[Any, Any]):
    """Stands for an ordered dictionary; attributes that a pickle gives it are left out."""

    def __init__(self, items: Any = ()) -> None:
        super().__init__((_text(key), value) for key, value in items)

    def __setstate__(self, state: Any) -> None:
        pass


_BUILDERS: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): Array,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy.core.numeric", "_frombuffer"): _Buffer,
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): _DType,
    ("collections", "OrderedDict"): _Dict,
    ("_codecs", "encode"): _Bytes,
}
