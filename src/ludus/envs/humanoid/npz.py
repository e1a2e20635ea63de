"""Arrays out of an npz file that a stranger may have made: those wanted, and only if they are of modest size.

numpy.load would unpack whatever a member declares. Here names, sizes and types are looked at first.
"""

import io
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np

from ludus.errors import DataError, LudusError
from ludus.files import open_regular

_MOST_LISTED_BYTES = 100_000  # of the list of members, at a zip file's end
_END = b"PK\x05\x06"  # what that end begins with
_END_64 = b"PK\x06\x07"  # and what stands before it in files of more than 4 GB or 65,535 members
_LONGEST_END = 22 + 65_535
_MOST_HEADER_BYTES = 10_000  # of an array
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # others may want gigabytes merely to begin
_MOST_TEXT_BYTES = 100_000


def read_npz(path: Path, wanted: Sequence[str], most_values: int) -> dict[str, np.ndarray]:
    """The wanted arrays that are there, each of at most so many numbers, or of a little text."""
    try:
        with open_regular(path) as file:
            _check_list_of_members(path, file)
            with zipfile.ZipFile(file) as members:
                return {name: _read(path, members, name, most_values) for name in _found(path, members, wanted)}
    except FileNotFoundError:
        raise DataError(f"There is no clip {path}.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or 'it is damaged'}.") from error
    except DataError:
        raise
    except LudusError as error:
        raise DataError(str(error)) from error
    except Exception as error:  # numpy and zipfile raise all kinds, and speak of pickles, which are no way out
        raise DataError(f"{path} is not a clip of motion: it is damaged, or no npz file of numbers.") from error


def _check_list_of_members(path: Path, file: BinaryIO) -> None:
    """Before the list is read: millions of members in it would fill memory."""
    length = file.seek(0, 2)
    file.seek(max(0, length - _LONGEST_END))
    tail = file.read()
    # As zipfile finds it: at the very end, or else the last one before a comment.
    plain = tail[-22:].startswith(_END) and tail.endswith(b"\0\0")
    at = len(tail) - 22 if plain else tail.rfind(_END)
    if tail[max(at - 20, 0) :].startswith(_END_64):
        raise DataError(f"{path} is not a clip of motion: it is a zip file of a size that clips have not.")
    if at >= 0 and int.from_bytes(tail[at + 12 : at + 16], "little") > _MOST_LISTED_BYTES:
        raise DataError(f"{path} is not a clip of motion: it lists far more members than a clip has.")
    file.seek(0)


def _found(path: Path, members: zipfile.ZipFile, wanted: Sequence[str]) -> list[str]:
    names = members.namelist()
    for name in wanted:
        if names.count(f"{name}.npy") > 1:
            raise DataError(f"{path} is not a clip of motion: it holds {name} twice.")
    return [name for name in wanted if f"{name}.npy" in names]


def _read(path: Path, members: zipfile.ZipFile, name: str, most_values: int) -> np.ndarray:
    info = members.getinfo(f"{name}.npy")
    if info.compress_type not in _PACKINGS:
        raise DataError(f"{path}: {name} is packed in a way that clips are not.")
    with members.open(info) as member:
        shape, dtype = _header(member)
    values = math.prod(shape)
    if min(shape, default=0) < 0:
        raise DataError(f"{path} is not a clip of motion: {name} has the shape {shape}.")
    if dtype.hasobject or dtype.kind not in "biufSU":
        raise DataError(f"{path} is not a clip of motion: {name} holds objects, not numbers.")
    most_bytes = _MOST_TEXT_BYTES if dtype.kind in "SU" else most_values * 8
    if values > most_values or values * dtype.itemsize > most_bytes:
        raise DataError(f"{path}: {name} has the shape {shape} of {dtype}, which is more than a clip can have.")
    with members.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    version = np.lib.format.read_magic(member)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    length = member.read({(1, 0): 2, (2, 0): 4}[version])
    described = int.from_bytes(length, "little")
    if described > _MOST_HEADER_BYTES:  # numpy would read it all before it looked
        raise ValueError(f"a description of {described:,} bytes")
    shape, _, dtype = readers[version](io.BytesIO(length + member.read(described)))
    return shape, dtype
