"""Data files as a stranger might send them: each wrong in a way of its own, that its name tells."""

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

ROWS = 6
ESCAPES = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"  # clear the screen, set the title, turn the text around
_SECRET = "secret.hdf5"  # the file beside the hostile ones that they lead to


def write_demo(data: h5py.Group, name: str, rng: np.random.Generator, rows: int = ROWS) -> h5py.Group:
    demo = data.create_group(name)
    demo["obs/state"] = rng.normal(size=(rows, 3))
    demo["obs/agentview_rgb"] = rng.integers(0, 255, (rows, 4, 4, 3), dtype=np.uint8)
    demo["actions"] = rng.uniform(-1, 1, (rows, 2))
    demo["rewards"] = rng.normal(size=rows)
    demo["dones"] = np.arange(rows) == rows - 1
    demo.attrs["num_samples"] = rows
    return demo


def good_data_file(path: Path, seed: int = 0, demos: int = 2) -> Path:
    """Nothing is wrong with it."""
    rng = np.random.default_rng(seed)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for k in range(demos):
            write_demo(data, f"demo_{k}", rng)
        data.attrs["problem_info"] = json.dumps({"language_instruction": "lift the cube"})
        data.attrs["num_demos"], data.attrs["total"] = demos, demos * ROWS
        file["mask/train"] = np.array([f"demo_{k}" for k in range(demos)], dtype="S")
    return path


def hostile_data_files(folder: Path, seed: int) -> list[Path]:
    """At least thirty files, all different, and what some of them lead to."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / _SECRET, "w") as file:
        file["state"] = np.arange(ROWS * 3.0).reshape(ROWS, 3)
        write_demo(file.create_group("data"), "demo_0", np.random.default_rng(seed))
    paths = []
    for number, (name, spoil) in enumerate(_DATA.items()):
        path = good_data_file(folder / f"{name}.hdf5", seed + number)
        with h5py.File(path, "r+") as file:
            spoil(file)
        paths.append(path)
    for number, (name, make) in enumerate(_DATA_BYTES.items()):
        good = good_data_file(folder / f"{name}.hdf5", seed + number).read_bytes()
        path = folder / f"{name}.hdf5"
        path.write_bytes(make(good, np.random.default_rng(seed + number)))
        paths.append(path)
    pipe = folder / "named_pipe.hdf5"
    os.mkfifo(pipe)
    device = folder / "link_to_a_device.hdf5"
    device.symlink_to("/dev/zero")
    return [*paths, pipe, device]


_DATA: dict[str, Callable[[h5py.File], object]] = {}
_DATA_BYTES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {}


def _data(spoil: Callable[[h5py.File], object]) -> Callable[[h5py.File], object]:
    _DATA[spoil.__name__.strip("_")] = spoil
    return spoil


def _data_bytes(make: Callable[[bytes, np.random.Generator], bytes]) -> Callable[..., bytes]:
    _DATA_BYTES[make.__name__.strip("_")] = make
    return make


def _replace(file: h5py.File, key: str, **settings: Any) -> h5py.Dataset:
    del file[key]
    return file.create_dataset(key, **settings)


@_data
def _external_storage(file: h5py.File) -> None:
    secret = Path(file.filename).with_name(_SECRET)
    external = [(os.fsencode(secret), 0, ROWS * 3 * 8)]
    _replace(file, "data/demo_0/obs/state", shape=(ROWS, 3), dtype="f8", external=external)


@_data
def _external_link(file: h5py.File) -> None:
    del file["data/demo_0/obs/state"]
    file["data/demo_0/obs/state"] = h5py.ExternalLink(_SECRET, "/state")


@_data
def _external_link_of_the_whole_group(file: h5py.File) -> None:
    del file["data"]
    file["data"] = h5py.ExternalLink(_SECRET, "/data")


@_data
def _external_link_to_itself(file: h5py.File) -> None:
    file["data/demo_0/obs/me"] = h5py.ExternalLink(file.filename, "/data/demo_0/obs")


@_data
def _external_link_in_a_corner(file: h5py.File) -> None:
    file["data/demo_1/obs/deep/er/state"] = h5py.ExternalLink(_SECRET, "/state")


@_data
def _virtual_dataset(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(ROWS, 3), dtype="f8")
    layout[:] = h5py.VirtualSource(_SECRET, "state", shape=(ROWS, 3))
    del file["data/demo_0/obs/state"]
    file.create_virtual_dataset("data/demo_0/obs/state", layout)


@_data
def _virtual_actions(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(ROWS, 3), dtype="f8")
    layout[:] = h5py.VirtualSource(_SECRET, "state", shape=(ROWS, 3))
    del file["data/demo_0/actions"]
    file.create_virtual_dataset("data/demo_0/actions", layout)


@_data
def _soft_link_to_the_group_around_it(file: h5py.File) -> None:
    file["data/demo_0/obs/again"] = h5py.SoftLink("/data/demo_0/obs")


@_data
def _soft_link_to_nowhere(file: h5py.File) -> None:
    del file["data/demo_0/obs/state"]
    file["data/demo_0/obs/state"] = h5py.SoftLink("/nowhere")


@_data
def _soft_links_in_a_circle(file: h5py.File) -> None:
    file["data/demo_0/obs/a"] = h5py.SoftLink("/data/demo_0/obs/b")
    file["data/demo_0/obs/b"] = h5py.SoftLink("/data/demo_0/obs/a")


@_data
def _hard_link_to_the_group_around_it(file: h5py.File) -> None:
    file["data/demo_0/obs/again"] = file["data/demo_0/obs"]


@_data
def _hard_link_to_the_root(file: h5py.File) -> None:
    file["data/demo_0/obs/root"] = file["/"]


@_data
def _a_thousand_names_of_one_episode(file: h5py.File) -> None:
    for k in range(2, 1000):
        file[f"data/demo_{k}"] = file["data/demo_0"]


@_data
def _groups_nested_deeply(file: h5py.File) -> None:
    group = file["data/demo_0/obs"]
    for _ in range(300):
        group = group.create_group("g")
    group["state"] = np.zeros((ROWS, 1))


@_data
def _compressed_terabyte(file: h5py.File) -> None:
    settings = {"shape": (10**8, 1000), "chunks": (1000, 1000), "dtype": "f8", "compression": "gzip"}
    _replace(file, "data/demo_0/obs/state", **settings)


@_data
def _compressed_terabyte_of_actions(file: h5py.File) -> None:
    file["data/demo_0"].attrs["num_samples"] = 10**8
    _replace(file, "data/demo_0/actions", shape=(10**8, 1000), chunks=(10, 1000), dtype="f4", compression="lzf")


@_data
def _compressed_image_bomb(file: h5py.File) -> None:
    shape = (ROWS, 40_000, 40_000, 3)
    _replace(
        file, "data/demo_0/obs/agentview_rgb", shape=shape, chunks=(1, 100, 100, 3), dtype="u1", compression=9
    )


@_data
def _rows_without_end(file: h5py.File) -> None:
    _replace(file, "data/demo_0/obs/state", shape=(2**62, 1), chunks=(1000, 1), dtype="u1")


@_data
def _chunk_of_gigabytes(file: h5py.File) -> None:
    settings = {"shape": (ROWS, 3), "maxshape": (None, None), "chunks": (500_000, 1000), "dtype": "f8"}
    _replace(file, "data/demo_0/obs/state", compression="gzip", **settings)


@_data
def _chunk_that_unpacks_to_too_much(file: h5py.File) -> None:
    chunk = {"shape": (ROWS, 3), "chunks": (ROWS, 3), "dtype": "f8", "compression": "gzip"}
    dataset = _replace(file, "data/demo_0/obs/state", **chunk)
    dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(50_000_000), 1))


@_data
def _chunk_that_unpacks_to_too_little(file: h5py.File) -> None:
    chunk = {"shape": (ROWS, 3), "chunks": (ROWS, 3), "dtype": "f8", "compression": "gzip"}
    dataset = _replace(file, "data/demo_0/obs/state", **chunk)
    dataset.id.write_direct_chunk((0, 0), zlib.compress(bytes(8)))


@_data
def _chunk_that_is_too_short(file: h5py.File) -> None:
    dataset = _replace(file, "data/demo_0/obs/state", shape=(ROWS, 3), chunks=(ROWS, 3), dtype="f8", shuffle=True)
    dataset.id.write_direct_chunk((0, 0), bytes(8))


@_data
def _chunk_that_is_not_gzip(file: h5py.File) -> None:
    chunk = {"shape": (ROWS, 3), "chunks": (ROWS, 3), "dtype": "f8", "compression": "gzip"}
    dataset = _replace(file, "data/demo_0/obs/state", **chunk)
    dataset.id.write_direct_chunk((0, 0), b"nonsense" * 9)


@_data
def _filter_of_a_plugin(file: h5py.File) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_chunk((ROWS, 3))
    layout.set_filter(32_015, h5py.h5z.FLAG_OPTIONAL, (3,))  # Zstandard, of a library that is loaded to read it
    del file["data/demo_0/obs/state"]
    space = h5py.h5s.create_simple((ROWS, 3))
    h5py.h5d.create(file["data/demo_0/obs"].id, b"state", h5py.h5t.IEEE_F64LE, space, layout)


@_data
def _scale_offset_filter(file: h5py.File) -> None:
    settings = {"shape": (ROWS, 3), "chunks": (ROWS, 3), "dtype": "i8", "scaleoffset": 3}
    _replace(file, "data/demo_0/obs/state", **settings)[:] = 1


@_data
def _rows_of_different_lengths(file: h5py.File) -> None:
    dataset = _replace(file, "data/demo_0/obs/state", shape=(ROWS,), dtype=h5py.vlen_dtype(np.float64))
    for row in range(ROWS):
        dataset[row] = np.arange(row + 1.0)


@_data
def _references_for_observations(file: h5py.File) -> None:
    dataset = _replace(file, "data/demo_0/obs/state", shape=(ROWS,), dtype=h5py.ref_dtype)
    dataset[:] = [file["data"].ref] * ROWS


@_data
def _texts_for_observations(file: h5py.File) -> None:
    _replace(file, "data/demo_0/obs/state", data=["text"] * ROWS, dtype=h5py.string_dtype())


@_data
def _texts_for_actions(file: h5py.File) -> None:
    _replace(file, "data/demo_0/actions", data=["text"] * ROWS, dtype=h5py.string_dtype())


@_data
def _records_for_observations(file: h5py.File) -> None:
    _replace(file, "data/demo_0/obs/state", data=np.zeros(ROWS, [("a", "f8"), ("b", "O")][:1]))


@_data
def _complex_rewards(file: h5py.File) -> None:
    _replace(file, "data/demo_0/rewards", data=np.ones(ROWS, complex))


@_data
def _not_a_number_in_the_actions(file: h5py.File) -> None:
    file["data/demo_0/actions"][2] = np.nan


@_data
def _infinite_rewards(file: h5py.File) -> None:
    file["data/demo_0/rewards"][:] = 1e300


@_data
def _negative_choices(file: h5py.File) -> None:
    _replace(file, "data/demo_0/actions", data=np.full(ROWS, -(2**62)))


@_data
def _choices_without_end(file: h5py.File) -> None:
    _replace(file, "data/demo_0/actions", data=np.full(ROWS, 2**62))


@_data
def _an_action_that_is_no_array(file: h5py.File) -> None:
    _replace(file, "data/demo_0/actions", data=1.0)


@_data
def _a_group_for_actions(file: h5py.File) -> None:
    del file["data/demo_0/actions"]
    file.create_group("data/demo_0/actions")


@_data
def _a_dataset_for_the_observations(file: h5py.File) -> None:
    _replace(file, "data/demo_0/obs", data=np.zeros(ROWS))


@_data
def _an_empty_dataset(file: h5py.File) -> None:
    del file["data/demo_0/rewards"]
    file["data/demo_0/rewards"] = h5py.Empty("f8")


@_data
def _infinitely_many_samples(file: h5py.File) -> None:
    file["data/demo_0"].attrs["num_samples"] = np.inf
    file["data"].attrs["total"] = np.nan


@_data
def _texts_for_counts(file: h5py.File) -> None:
    file["data"].attrs["num_demos"] = "9" * 5000
    file["data/demo_0"].attrs["success"] = "maybe"


@_data
def _lists_for_counts(file: h5py.File) -> None:
    file["data"].attrs["num_demos"] = np.arange(1000)
    file["data/demo_0"].attrs["success"] = np.arange(3)


@_data
def _language_with_escape_codes(file: h5py.File) -> None:
    file["data"].attrs["problem_info"] = json.dumps({"language_instruction": f"lift {ESCAPES} it"})


@_data
def _language_nested_deeply(file: h5py.File) -> None:
    file["data"].attrs["problem_info"] = "[" * 20_000


@_data
def _language_of_megabytes(file: h5py.File) -> None:
    text = json.dumps({"language_instruction": "very " * 400_000})
    file["data"].attrs.create("problem_info", text, dtype=h5py.string_dtype())


@_data
def _language_of_odd_things(file: h5py.File) -> None:
    file["data"].attrs["problem_info"] = json.dumps({"language_instruction": [1, None, {"a": []}]})


@_data
def _names_with_escape_codes(file: h5py.File) -> None:
    file[f"data/demo_0/obs/{ESCAPES}"] = np.full((ROWS, 2), np.nan)
    file[f"mask/{ESCAPES}"] = np.array([], dtype="S1")


@_data
def _names_that_are_not_utf8(file: h5py.File) -> None:
    group = h5py.Group(h5py.h5g.create(file["data"].id, b"demo_\xff\xfe"))
    group["actions"] = np.zeros((ROWS, 2))


@_data
def _name_of_thousands_of_digits(file: h5py.File) -> None:
    file.move("data/demo_1", "data/demo_" + "9" * 6000)


@_data
def _a_filter_that_names_nobody(file: h5py.File) -> None:
    file["mask/odd"] = np.arange(5)


@_data_bytes
def _nothing(good: bytes, rng: np.random.Generator) -> bytes:
    return b""


@_data_bytes
def _cut_in_the_middle(good: bytes, rng: np.random.Generator) -> bytes:
    return good[: len(good) // 2]


@_data_bytes
def _a_web_page(good: bytes, rng: np.random.Generator) -> bytes:
    return b"<!doctype html><h1>404</h1>" * 100


@_data_bytes
def _signature_and_noise(good: bytes, rng: np.random.Generator) -> bytes:
    return good[:8] + rng.bytes(len(good) - 8)


@_data_bytes
def _some_bytes_changed(good: bytes, rng: np.random.Generator) -> bytes:
    return mutated(good, rng)


def mutated(good: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes changed, left out or put in."""
    content = bytearray(good)
    for _ in range(int(rng.integers(1, 12))):
        at = int(rng.integers(0, max(1, len(content))))
        kind = rng.integers(0, 4)
        if kind == 0:
            content[at : at + 1] = rng.bytes(1)
        elif kind == 1:
            content[at : at + 8] = [b"\xff" * 8, b"\x00" * 8, rng.bytes(8)][int(rng.integers(0, 3))]
        elif kind == 2:
            del content[at : at + int(rng.integers(1, 50))]
        else:
            content[at:at] = rng.bytes(int(rng.integers(1, 50)))
    return bytes(content)
