"""Clips as a stranger might send them: each wrong in a way of its own, that its name tells."""

import io
import json
import os
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from humanoid_body import BODIES, JOINTS
from ludus.envs.humanoid.clip import FORMAT

from .data_files import ESCAPES, mutated

FRAMES = 5


def good_arrays() -> dict[str, np.ndarray]:
    """Of a clip that stands still."""
    return {
        "format": np.array(FORMAT),
        "fps": np.array(60.0),
        "loop": np.array(False),
        "height_fix": np.array(0.0),
        "source": np.array("nowhere"),
        "licence": np.array("none"),
        "body_names": np.array(BODIES),
        "joint_names": np.array(JOINTS),
        "root_pos": np.tile(np.array([0, 0, 0.9], np.float32), (FRAMES, 1)),
        "root_quat": np.tile(np.array([1, 0, 0, 0], np.float32), (FRAMES, 1)),
        "joint_pos": np.zeros((FRAMES, len(JOINTS)), np.float32),
    }


def good_clip(path: Path) -> Path:
    np.savez_compressed(path, **good_arrays())  # type: ignore[arg-type]
    return path


def good_bvh() -> str:
    return _tree_of(_SKELETON) + _motion_of(3 * len(_SKELETON) + 3)


_SKELETON = {
    "Hips": "", "LeftUpLeg": "Hips", "LeftLeg": "LeftUpLeg", "LeftFoot": "LeftLeg", "LeftToe": "LeftFoot",
    "RightUpLeg": "Hips", "RightLeg": "RightUpLeg", "RightFoot": "RightLeg", "RightToe": "RightFoot",
    "Spine": "Hips", "Head": "Spine", "LeftArm": "Spine", "LeftForeArm": "LeftArm", "LeftHand": "LeftForeArm",
    "RightArm": "Spine", "RightForeArm": "RightArm", "RightHand": "RightForeArm",
}  # fmt: skip


def _tree_of(parents: dict[str, str], above: str = "") -> str:
    """Every joint lies below its parent, and to its own side."""
    text = "" if above else "HIERARCHY\n"
    for name in (name for name, parent in parents.items() if parent == above):
        side = 3 * (name.startswith("Left") - name.startswith("Right"))
        up = 10 if name in ("Spine", "Head") else -10
        channels = "3 Zrotation Yrotation Xrotation"
        if not above:
            channels = "6 Xposition Yposition Zposition " + channels[2:]
        text += f"{'JOINT' if above else 'ROOT'} {name}\n{{\nOFFSET {side} {up} 1\nCHANNELS {channels}\n"
        text += f"{_tree_of(parents, name)}}}\n"
    return text


def _motion_of(width: int, value: str = "0", frames: int = FRAMES) -> str:
    return f"MOTION\nFrames: {frames}\nFrame Time: 0.033\n" + (" ".join([value] * width) + "\n") * frames


def good_deepmimic() -> dict[str, Any]:
    frame = [1 / 30, 0, 0.9, 0, *[1, 0, 0, 0] * 4, 0, *[1, 0, 0, 0] * 2, 0, *[1, 0, 0, 0], 0, *[1, 0, 0, 0] * 2, 0]
    return {"Loop": "none", "Frames": [frame] * FRAMES}


def good_csv() -> str:
    names: list[Any] = ["time", "root_x", "root_y", "root_z", "root_qw", "root_qx", "root_qy", "root_qz", *JOINTS]
    rows = [[i / 30, 0, 0, 0.9, 1, 0, 0, 0, *[0] * len(JOINTS)] for i in range(FRAMES)]
    return "\n".join(",".join(map(str, row)) for row in [names, *rows]) + "\n"


def hostile_clips(folder: Path, seed: int) -> list[Path]:
    """At least thirty files, all different."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    paths = []
    for name, arrays in _spoilt_arrays().items():
        paths.append(folder / f"{name}.npz")
        np.savez_compressed(paths[-1], **arrays)
    for name, content in {**_npz_files(), **_npy_files(), **_text_files()}.items():
        paths.append(folder / name)
        paths[-1].write_bytes(content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content)
    for suffix, good in good_sources().items():
        paths.append(folder / f"some_bytes_changed{suffix}")
        paths[-1].write_bytes(mutated(good, rng))
    for suffix in (".npz", ".bvh", ".npy"):
        paths.append(folder / f"named_pipe{suffix}")
        os.mkfifo(paths[-1])
        paths.append(folder / f"link_to_a_device{suffix}")
        paths[-1].symlink_to("/dev/zero")
    return paths


def good_sources() -> dict[str, bytes]:
    """A good file of each kind, by its suffix."""
    packed = io.BytesIO()
    np.savez_compressed(packed, **good_arrays())  # type: ignore[arg-type]
    return {
        ".npz": packed.getvalue(),
        ".bvh": good_bvh().encode(),
        ".csv": good_csv().encode(),
        ".json": json.dumps(good_deepmimic()).encode(),
        ".npy": _poselib(),
    }


def _spoilt_arrays() -> dict[str, dict[str, Any]]:
    good = good_arrays()

    def with_(**changed: Any) -> dict[str, Any]:
        return {**good, **changed}

    far = good["root_pos"].astype(np.float64) + 1e30
    return {
        "an_unknown_member": with_(unknown=np.zeros(10)),
        "objects_for_positions": with_(root_pos=np.array([[{}, 1, 2]] * FRAMES, dtype=object)),
        "texts_for_positions": with_(root_pos=np.array([["a"] * 3] * FRAMES)),
        "complex_positions": with_(root_pos=good["root_pos"] * 1j),
        "positions_that_are_not_numbers": with_(root_pos=good["root_pos"] * np.nan),
        "positions_far_away": with_(root_pos=far),
        "angles_far_beyond": with_(joint_pos=good["joint_pos"] + 1e20),
        "too_few_joints": with_(joint_pos=good["joint_pos"][:, :5]),
        "no_frames": with_(root_pos=np.zeros((0, 3)), root_quat=np.zeros((0, 4)), joint_pos=np.zeros((0, 28))),
        "one_number_for_positions": with_(root_pos=np.array(1.0)),
        "a_rate_that_is_a_list": with_(fps=np.ones(5)),
        "a_rate_without_end": with_(fps=np.array(np.inf)),
        "a_rate_that_is_text": with_(fps=np.array("fast")),
        "no_rotation": with_(root_quat=good["root_quat"] * 0),
        "height_that_is_not_a_number": with_(height_fix=np.array(np.nan)),
        "source_with_escape_codes": with_(source=np.array(f"from {ESCAPES}"), licence=np.array("a\nb\tc")),
        "source_of_megabytes": with_(source=np.array("x" * 2_000_000)),
        "names_of_another_body": with_(joint_names=np.array([f"{ESCAPES}{i}" for i in range(28)])),
        "names_without_end": with_(body_names=np.array([f"b{i}" for i in range(200_000)])),
        "a_million_frames": with_(
            root_pos=np.zeros((10**6, 3), np.int8),
            root_quat=np.zeros((10**6, 4), np.int8),
            joint_pos=np.zeros((10**6, 28), np.int8),
        ),
    }


def _member(shape: str, dtype: str = "<f8") -> bytes:
    """An array's header that promises a shape, and a little of what it promises."""
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(800)


def _zip(changed: dict[str, bytes], twice: str = "", packing: int = zipfile.ZIP_DEFLATED, extra: int = 0) -> bytes:
    """A clip in which some members are others."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", packing) as file:
        for name, values in good_arrays().items():
            member = io.BytesIO()
            np.save(member, values)
            for _ in range(1 + (name == twice)):
                file.writestr(f"{name}.npy", changed.get(name, member.getvalue()))
        for number in range(extra):
            file.writestr(f"{number}.npy", b"")
    return packed.getvalue()


def _npz_files() -> dict[str, bytes]:
    bomb = _zip({})
    buffer = io.BytesIO(bomb)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as file, file.open("unknown.npy", "w") as member:
        member.write(_member("(2500000,)")[:128])
        for _ in range(20):
            member.write(bytes(10**6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile warns of what is done on purpose here
        twice = _zip({}, twice="root_pos")
    return {
        "unknown_member_that_unpacks_to_much.npz": buffer.getvalue(),
        "a_member_twice.npz": twice,
        "a_shape_of_terabytes.npz": _zip({"root_pos": _member("(1000000000000, 3)")}),
        "a_negative_shape.npz": _zip({"root_pos": _member("(-5, 3)")}),
        "a_shape_nested_deeply.npz": _zip({"root_pos": _member("(" * 50 + ")" * 50)}),
        "a_type_of_gigabytes.npz": _zip({"fps": _member("()", "|S2000000000")}),
        "a_type_of_objects.npz": _zip({"fps": _member("()", "|O")}),
        "a_member_without_content.npz": _zip({"fps": b""}),
        "members_packed_by_lzma.npz": _zip({}, packing=zipfile.ZIP_LZMA),
        "members_packed_by_bzip2.npz": _zip({}, packing=zipfile.ZIP_BZIP2),
        "ten_thousand_members.npz": _zip({}, extra=10_000),
        "no_zip.npz": b"PK\x03\x04 nonsense",
        "nothing.npz": b"",
        "one_array.npz": _member("(100,)"),
        "cut_in_the_middle.npz": _zip({})[:1000],
    }


class _Runs:
    """Would make a file beside the clip, were it unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch owned",)


def _npy_files() -> dict[str, bytes]:
    def npy(content: bytes) -> bytes:
        return _member("()", "|O")[:128] + content

    doubled: list[Any] = ["x"]
    for _ in range(60):
        doubled = [doubled, doubled]
    return {
        "code_to_run.npy": npy(pickle.dumps(_Runs())),
        "lists_that_double.npy": npy(pickle.dumps({"skeleton_tree": {"node_names": [doubled]}, "fps": doubled})),
        "rates_that_double.npy": _poselib(fps=doubled),
        "arrays_that_double.npy": _poselib(rotation=doubled),
        "a_place_far_out.npy": npy(b"\x80\x02]r\xff\xff\xff\x7f."),
        "bytes_that_are_not_there.npy": npy(b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"abc."),
        "nested_deeply.npy": npy(b"\x80\x02" + b"(" * 200_000 + b"."),
        "steps_without_end.npy": npy(b"\x80\x02" + b"N0" * 300_000 + b"."),
        "one_number.npy": _poselib(rotation=np.array(1.0)),
        "parents_that_are_not_numbers.npy": _poselib(parents=np.full(len(BODIES), np.nan)),
        "legs_without_length.npy": _poselib(offsets=np.zeros((len(BODIES), 3))),
        "rate_that_is_not_a_number.npy": _poselib(fps=np.nan),
        "no_pickle.npy": npy(b"nonsense"),
        "numbers_only.npy": _member("(99,)"),
    }


def _poselib(**changed: Any) -> bytes:
    count = len(BODIES)
    parents = changed.get("parents", np.maximum(np.arange(count) - 1, -1 * (np.arange(count) == 0)))
    content = {
        "skeleton_tree": {
            "node_names": list(BODIES),
            "parent_indices": {"arr": np.asarray(parents), "context": {"dtype": "int64"}},
            "local_translation": {"arr": changed.get("offsets", np.ones((count, 3))), "context": {}},
        },
        "rotation": {"arr": changed.get("rotation", np.tile([0.0, 0, 0, 1], (FRAMES, count, 1))), "context": {}},
        "root_translation": {"arr": np.ones((FRAMES, 3)), "context": {}},
        "fps": changed.get("fps", 30.0),
        "is_local": True,
    }
    packed = io.BytesIO()
    boxed = np.empty((), dtype=object)
    boxed[()] = content
    np.save(packed, boxed, allow_pickle=True)
    return packed.getvalue()


def _text_files() -> dict[str, str | bytes]:
    tree, width = _tree_of(_SKELETON), 3 * len(_SKELETON) + 3
    many = "".join(f"JOINT j{i}\n{{\nOFFSET 0 1 0\n}}\n" for i in range(50_000))
    deep = "".join(f"JOINT d{i}\n{{\nOFFSET 0 1 0\n" for i in range(5000))
    two = tree.replace("JOINT RightArm", "}\n}\nROOT A\n{\nOFFSET 0 0 0\nJOINT B\n{\nOFFSET 0 0 0\nJOINT RightArm")
    good = good_deepmimic()
    return {
        "fifty_thousand_joints.bvh": f"HIERARCHY\nROOT Hips\n{{\n{many}}}\n{_motion_of(0)}",
        "joints_nested_deeply.bvh": f"HIERARCHY\nROOT Hips\n{{\n{deep}{'}' * 5001}\n{_motion_of(0)}",
        "ends_within_ends.bvh": "HIERARCHY\nROOT a\n{\n" + "End Site\n{\n" * 900 + "}\n" * 901 + _motion_of(0),
        "frames_without_end.bvh": tree + _motion_of(width).replace("Frames: 5", "Frames: " + "9" * 5000),
        "frames_that_are_not_there.bvh": tree + _motion_of(width).replace("Frames: 5", "Frames: 1000000000"),
        "a_line_of_megabytes.bvh": tree + "MOTION\nFrames: 2\nFrame Time: 0.03\n" + "1 " * 2_000_000,
        "channels_without_end.bvh": tree.replace("CHANNELS 3", "CHANNELS 3" + " Xrotation" * 1000, 1)
        + _motion_of(width),
        "numbers_that_are_none.bvh": tree + _motion_of(width, "nan"),
        "numbers_too_large.bvh": tree + _motion_of(width, "1e39"),
        "numbers_of_another_world.bvh": tree + _motion_of(width, "1e37"),
        "arms_on_two_bodies.bvh": two + _motion_of(width),
        "no_legs.bvh": tree.replace("-10", "0").replace("OFFSET 3", "OFFSET 0") + _motion_of(width),
        "names_with_escape_codes.bvh": tree.replace("LeftUpLeg", ESCAPES) + _motion_of(width),
        "tree_that_is_open.bvh": tree[: len(tree) // 2] + _motion_of(width),
        "brackets_alone.bvh": "HIERARCHY\n" + "}\n" * 10 + _motion_of(0),
        "no_text.bvh": bytes(range(256)) * 10,
        "a_field_of_megabytes.csv": '"' + "x" * 1_000_000 + '"\n1,2\n',
        "a_quote_that_never_ends.csv": 'time,"root\n' + "1,2,3\n" * 50_000,
        "columns_without_end.csv": ",".join(f"c{i}" for i in range(9000)) + "\n",
        "rows_without_end.csv": "1,2,3\n" * 500_000,
        "columns_with_escape_codes.csv": good_csv().replace("root_x", ESCAPES),
        "numbers_that_are_none.csv": good_csv().replace("0.9", "nan"),
        "numbers_too_large.csv": good_csv().replace("0.9", "1e300"),
        "a_zero_byte.csv": good_csv().replace("0.9", "0.\0009"),
        "times_that_fall.csv": good_csv().replace("0.0,0,0,0.9", "9.0,0,0,0.9"),
        "nested_deeply.json": "[" * 500_000,
        "objects_nested_deeply.json": '{"Frames":' * 100_000,
        "a_number_of_thousands_of_digits.json": '{"Loop": "none", "Frames": [[' + "9" * 6000 + "]]}",
        "numbers_too_large.json": json.dumps(good).replace("0.9", "1" + "0" * 400),
        "numbers_that_are_none.json": json.dumps(good).replace("0.9", "NaN"),
        "texts_for_numbers.json": json.dumps(good).replace("0.9", '"0.9"'),
        "loop_of_odd_things.json": json.dumps({**good, "Loop": [ESCAPES] * 1000}),
        "frames_that_are_a_text.json": json.dumps({**good, "Frames": "x" * 1000}),
        "a_list.json": "[1, 2, 3]",
        "durations_without_end.json": json.dumps(good).replace(str(1 / 30), "1e300"),
        "durations_of_days.json": json.dumps(good).replace(str(1 / 30), "100000"),
        "a_mark_and_nothing.txt": b"\xef\xbb\xbf",
    }
