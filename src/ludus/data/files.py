"""Finding and opening HDF5 files, with a sentence for all that can be wrong with them."""

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ludus.errors import DataError, did_you_mean

SUFFIXES = (".hdf5", ".h5")


def h5py_module() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise DataError("Recorded data needs the package h5py: `pip install 'ludus[data]'`.") from error


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts demo_2 before demo_10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def data_files(path: str) -> list[Path]:
    """The files that `path` names: itself, those in a folder, or several with commas between; each once."""
    if not path.strip():
        raise DataError("Say where the recorded data is: --data.path FILE, a folder, or several with commas.")
    names = [path] if Path(path).expanduser().exists() else [part.strip() for part in path.split(",")]
    found = [file for name in names if name for file in _files_of(Path(name).expanduser())]
    return list({file.resolve(): file for file in found}.values())


def _files_of(path: Path) -> list[Path]:
    if not path.exists():
        beside = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"There is no file or folder {path}.{did_you_mean(path.name, beside)}")
    if path.is_file():
        return [path]
    files = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()]
    if not files:
        raise DataError(f"The folder {path} holds no {' or '.join(SUFFIXES)} files, nor do the folders in it.")
    return sorted(files, key=lambda file: natural_key(str(file)))


@contextmanager
def open_file(path: Path) -> Iterator[Any]:
    """An open h5py.File, for reading."""
    h5py = h5py_module()
    try:
        file = h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        raise DataError(f"{path} cannot be opened: {_reason(path, str(error))}") from error
    with file:
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
