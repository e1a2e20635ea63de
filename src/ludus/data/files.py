"""Finding and opening HDF5 files, with a sentence for all that can be wrong with them."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ludus.data.demo import reading
from ludus.data.guard import check_file
from ludus.data.hdf5 import h5py_module
from ludus.errors import DataError, LudusError, did_you_mean
from ludus.files import open_regular

SUFFIXES = (".hdf5", ".h5")


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts demo_2 before demo_10."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    numbers = [part.lstrip("0") if part[0] in "0123456789" else None for part in parts]
    # By their length first: whole numbers of any length, without making them such.
    return [(1, 0, part) if n is None else (0, len(n), n) for part, n in zip(parts, numbers, strict=True)]


def data_files(path: str) -> list[Path]:
    """The files that `path` names: itself, those in a folder, or several with commas between; each once."""
    if not path.strip():
        raise DataError("Say where the recorded data is: --data.path FILE, a folder, or several with commas.")
    # By os.path, which takes a name that no file can have for one that is not there.
    names = [path] if os.path.exists(os.path.expanduser(path)) else [part.strip() for part in path.split(",")]
    found = [file for name in names if name for file in _files_of(Path(os.path.expanduser(name)))]
    return list({file.resolve(): file for file in found}.values())


def _files_of(path: Path) -> list[Path]:
    if not os.path.lexists(path):
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"There is no file or folder {path}.{did_you_mean(path.name, beside)}")
    if not path.is_dir():
        return [path]  # opening it tells what is wrong with it
    files = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise DataError(f"The folder {path} holds no {' or '.join(SUFFIXES)} files, nor do the folders in it.")
    return sorted(files, key=lambda file: natural_key(str(file)))


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """An open h5py.File, for reading; nothing in it leads elsewhere."""
    h5py = h5py_module()
    try:
        open_regular(path).close()
        file = h5py.File(path, "r")
    except LudusError as error:
        raise DataError(str(error)) from error
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{path} cannot be opened: {_reason(path, str(error))}") from error
    with file:
        with reading(str(path)):
            check_file(file, path)
        yield file


def _reason(path: Path, text: str) -> str:
    if "truncated" in text:
        return "the file is cut off. Copy or download it again, and compare its size."
    if path.is_file() and path.stat().st_size == 0:
        return "the file is empty. Copy or download it again."
    if "signature" in text:
        return "it is not an HDF5 file. A download that failed often leaves a web page here."
    if "lock" in text:
        return "another program is writing to it. Wait for it, or set HDF5_USE_FILE_LOCKING=FALSE."
    return f"{text}."
