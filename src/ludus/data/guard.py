"""What a data file may be made of: everything in itself, and no more than its size lets one expect.

HDF5 can lead to other files, to itself in circles, and unpack a few bytes to terabytes. Declared sizes are looked
at before anything is read, and packed data is unpacked here, within its bounds, before HDF5 does so without any.
"""

import math
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ludus.data.hdf5 import h5py_module
from ludus.errors import DataError

MOST_LINKS = 500_000  # groups and datasets in one file
MOST_ROWS = 50_000_000  # of one dataset
MOST_EPISODES = 200_000  # in one file
MOST_CHOICES = 65_536  # of a discrete action: a policy has an output for each
MOST_TEXT = 100_000  # characters of a description
_MOST_ROW_BYTES = 256_000_000
_MOST_CHUNKS = 200_000
_MOST_CHUNK_BYTES = 256_000_000
_MOST_LZF_BYTES = 10_000_000  # of a chunk, which LZF may unpack to 90 times as much before anybody can look
_SMALL_BYTES = 256_000_000  # whatever unpacks to no more is harmless
_MOST_GROWTH = 100  # times the bytes on disk; real data shrinks to a tenth at best
_COPIES = 3  # of what is read: as the file has it, as float32, and where it is finite
_checked = set[tuple[int, int, int, int]]()  # files found good: each is opened several times
_FROM_SOURCE = "Take the file from a source that you trust, or convert it again."


def check_file(file: Any, path: Path) -> None:
    """Before anything of the file is read: only links within it, no circles, no more than its size can hold."""
    info = os.stat(path)
    identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    if identity in _checked:
        return
    bytes_declared = 0
    for item in _objects(file, path):
        if isinstance(item, h5py_module().h5d.DatasetID):
            bytes_declared += math.prod(item.shape or (0,)) * _bytes_of_a_value(item)
    # Without the holes of a file that is much longer than what was ever written to it.
    on_disk = min(info.st_size, getattr(info, "st_blocks", info.st_size) * 512)
    if bytes_declared > max(_SMALL_BYTES, _MOST_GROWTH * on_disk):
        raise DataError(
            f"{path} has {on_disk:,} bytes and would take {bytes_declared:,} of memory. {_FROM_SOURCE}"
        )
    _checked.add(identity)


def _bytes_of_a_value(dataset: Any) -> int:
    """In memory: numbers become float32, besides other copies; pictures stay as they are."""
    stored = int(dataset.get_type().get_size())
    return stored if len(dataset.shape) > 2 else _COPIES * max(stored, 4)


def _objects(file: Any, path: Path) -> Iterator[Any]:
    """All groups and datasets, opened one after the other."""
    h5py = h5py_module()
    names: list[bytes] = []
    groups = {h5py.h5o.get_info(file.id).addr}
    seen: set[int] = set()
    soft: list[bytes] = []  # followed when it is known that none of them leads out of the file

    def look(name: bytes, link: Any) -> str | None:
        if len(names) >= MOST_LINKS:
            return f"holds more than {MOST_LINKS:,} groups and datasets"
        if link.type == h5py.h5l.TYPE_SOFT:
            soft.append(name)
            return None if len(soft) < MOST_LINKS else f"holds more than {MOST_LINKS:,} links"
        if link.type != h5py.h5l.TYPE_HARD:
            return _named(name, "is a link to another file, which is not followed")
        if link.u in groups or (link.u in seen and _is_group(file, name)):
            return _named(name, "is another name for a group that is there already")
        seen.add(link.u)
        names.append(name)
        return None

    wrong = file.id.links.visit(look, info=True)
    to_groups = (name for name in soft if _leads_to_a_group(file, name))
    wrong = wrong or next((_named(name, "is a link to a group") for name in to_groups), None)
    if wrong:
        raise DataError(f"{path} {wrong}. {_FROM_SOURCE}")
    return (h5py.h5o.open(file.id, name) for name in names)


def _named(name: bytes, what: str) -> str:
    return f"is refused: {name.decode(errors='replace')[:200]} {what}"


def _leads_to_a_group(file: Any, name: bytes) -> bool:
    try:
        return bool(file.get(name, getclass=True) is h5py_module().Group)
    except (KeyError, OSError, RuntimeError):  # it leads nowhere
        return False


def _is_group(file: Any, name: bytes) -> bool:
    h5py = h5py_module()
    return isinstance(h5py.h5o.open(file.id, name), h5py.h5g.GroupID)


# Datasets -----------------------------------------------------------------------------------------
def check_dataset(dataset: Any, where: str) -> None:
    """Before a dataset is read: its numbers are in this file, in a form whose size is known."""
    reason = _refusal(dataset)
    if reason:
        raise DataError(f"{where}: {dataset.name} {reason}. {_FROM_SOURCE}")


def _refusal(dataset: Any) -> str:
    h5py = h5py_module()
    layout = dataset.id.get_create_plist()
    if layout.get_layout() == h5py.h5d.VIRTUAL:
        return "is virtual: its numbers are those of other files, which are not read"
    if layout.get_external_count():
        return "has its numbers in another file, which is not read"
    if dataset.dtype.hasobject and h5py.check_string_dtype(dataset.dtype) is None:
        return "holds rows of different lengths or references, not numbers"
    if dataset.shape[0] > MOST_ROWS:
        return f"has {dataset.shape[0]:,} rows, more than {MOST_ROWS:,}"
    row_bytes = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    if row_bytes > _MOST_ROW_BYTES:
        return f"has rows of {row_bytes:,} bytes"
    return _chunk_refusal(dataset, layout) if dataset.chunks else ""


def _chunk_refusal(dataset: Any, layout: Any) -> str:
    h5z = h5py_module().h5z
    size = _chunk_bytes(dataset)
    if size > _MOST_CHUNK_BYTES:
        return f"is kept in pieces of {size:,} bytes"
    count = math.prod(
        math.ceil(length / chunk) for length, chunk in zip(dataset.shape, dataset.chunks, strict=True)
    )
    if count > _MOST_CHUNKS:
        return f"is kept in {count:,} pieces"
    filters = _filters(layout)
    known = (h5z.FILTER_DEFLATE, h5z.FILTER_LZF, h5z.FILTER_SHUFFLE, h5z.FILTER_FLETCHER32)
    strange = [code for code in filters if code not in known]
    if strange:
        return f"is packed by filter {strange[0]}; gzip and LZF are unpacked"
    if len({*filters}) < len(filters) or {h5z.FILTER_DEFLATE, h5z.FILTER_LZF} <= {*filters}:
        return "is packed more than once"
    if h5z.FILTER_LZF in filters:
        values = layout.get_filter(filters.index(h5z.FILTER_LZF))[2]
        if size > _MOST_LZF_BYTES or len(values) < 3 or values[2] != size:
            return f"is packed by LZF in pieces of {size:,} bytes that are not as they are described"
    return ""


def _filters(layout: Any) -> list[int]:
    return [layout.get_filter(i)[0] for i in range(layout.get_nfilters())]


def _chunk_bytes(dataset: Any) -> int:
    return math.prod(dataset.chunks) * int(dataset.dtype.itemsize)


def check_before_reading(dataset: Any, start: int, stop: int) -> None:
    """That rows `start` to `stop` fit into memory, and that what is packed unpacks to what it should."""
    where = f"{dataset.file.filename}: {dataset.name}"
    rows_bytes = (stop - start) * math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    if rows_bytes > _SMALL_BYTES and _COPIES * rows_bytes > psutil.virtual_memory().available:
        raise DataError(f"{where}: one episode has {rows_bytes:,} bytes of it, more than memory has room for.")
    if dataset.chunks and stop > start and dataset.id.get_num_chunks():
        _check_chunks(dataset, start, stop, where)


def _check_chunks(dataset: Any, start: int, stop: int, where: str) -> None:
    h5z = h5py_module().h5z
    filters = _filters(dataset.id.get_create_plist())
    size = _chunk_bytes(dataset)
    checksum = 4 * (h5z.FILTER_FLETCHER32 in filters)
    packing = {filters.index(code): code for code in (h5z.FILTER_DEFLATE, h5z.FILTER_LZF) if code in filters}
    for corner in _corners(dataset, start, stop):
        stored = dataset.id.get_chunk_info_by_coord(corner)
        if stored.byte_offset is None:
            continue  # never written: all zeros
        # Each bit of the mask stands for a filter that was left out, as where packing would have made it longer.
        codes = [code for place, code in packing.items() if not stored.filter_mask >> place & 1]
        if not codes or stored.size > 2 * size + 1000:
            found = stored.size
        elif h5z.FILTER_DEFLATE in codes:
            found = _inflated_bytes(dataset.id.read_direct_chunk(corner)[1], size + checksum)
        else:
            found = size  # HDF5 unpacks LZF into as much room as it needs
        if not size <= found <= size + checksum:
            raise DataError(
                f"{where} is damaged: a piece of {size:,} bytes unpacks to another size. {_FROM_SOURCE}"
            )


def _corners(dataset: Any, start: int, stop: int) -> Iterator[tuple[int, ...]]:
    """Of the chunks that hold rows `start` to `stop`."""
    first, *others = dataset.chunks
    counts = [math.ceil(length / chunk) for length, chunk in zip(dataset.shape[1:], others, strict=True)]
    for row in range(start // first * first, stop, first):
        for place in np.ndindex(*counts):
            yield row, *(int(i) * chunk for i, chunk in zip(place, others, strict=True))


def _inflated_bytes(packed: bytes, most: int) -> int:
    """How many bytes gzip makes of it, counted to one more than `most`."""
    try:
        return len(zlib.decompressobj().decompress(packed, most + 1))
    except zlib.error:
        return 0


# Descriptions -------------------------------------------------------------------------------------
def attribute(item: Any, key: str) -> Any:
    """One value beside a group or dataset; None where it is not there or empty."""
    if key not in item.attrs:
        return None
    described = item.attrs.get_id(key)
    if described.shape is None:
        return None
    # Many texts may be one and the same in the file, and terabytes when they are read.
    if math.prod(described.shape) != 1 or described.get_storage_size() > MOST_TEXT:
        raise DataError(f"{item.file.filename}: the attribute {key} of {item.name} is not one value.")
    value = item.attrs[key]
    value = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
    if isinstance(value, str | bytes) and len(value) > MOST_TEXT:
        raise DataError(f"{item.file.filename}: the attribute {key} of {item.name} is too long a text.")
    return value
