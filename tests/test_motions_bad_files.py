"""Files of motion that are broken or hostile: a sentence that names the fault, and nothing is ever run."""

import io
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from humanoid_body import BODIES, JOINTS, body_model
from ludus.envs.humanoid.importing import import_motion
from ludus.envs.humanoid.importing.table import ROOT
from ludus.errors import ConfigError, DataError
from motion_files import CMU_SKELETON, write_bvh

STILL = [1.0, 0, 0, 0]
POSE = [*STILL, *STILL, *STILL, *STILL, -0.4, *STILL, *STILL, 1.5, *STILL, 0.0, *STILL, *STILL, 0.0]
FRAME = [0.1, 0.0, 0.9, 0.0, *POSE]


def refusal(path: Path, **arguments: Any) -> str:
    with pytest.raises(DataError) as error:
        import_motion(path, **arguments)
    assert "\n" not in str(error.value)
    assert path.name in str(error.value)
    return str(error.value)


# Any kind -------------------------------------------------------------------------------------------
def test_unknown_kinds_are_told_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "motion.fbx"
    path.write_bytes(b"x")
    assert "BVH" in refusal(path)
    assert "Did you mean 'motion.fbx'?" in refusal(tmp_path / "motion.fb")
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00\x80")
    assert "not text" in refusal(tmp_path / "a.txt")


# DeepMimic ------------------------------------------------------------------------------------------
def deepmimic(tmp_path: Path, content: Any) -> Path:
    path = tmp_path / "clip.txt"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "not JSON"),
        ("hello", "not JSON"),
        (json.dumps({"Frames": [FRAME] * 3})[:300], "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "no 'Frames'"),
        ({"Loop": "wrap"}, "no 'Frames'"),
        ({"Frames": []}, "no 'Frames'"),
        ({"Frames": [FRAME]}, "at least 2"),
        ({"Frames": [FRAME, FRAME[:-1]]}, "frame 1 has 43 numbers"),
        ({"Frames": [FRAME, 3]}, "frame 1 has no numbers"),
        ({"Frames": [FRAME, [*FRAME[:-1], "x"]]}, "frame 1 holds something that is not a number"),
        ({"Frames": [FRAME, [*FRAME[:-1], float("nan")]]}, "frame 1 holds something that is not a finite number"),
        ({"Frames": [FRAME, [*FRAME[:-1], 10**400]]}, "too large"),
        ({"Frames": [[-1.0, *FRAME[1:]], FRAME]}, "negative duration"),
        ({"Frames": [[0.0, *FRAME[1:]], FRAME]}, "lasts 0 s"),
        ({"Frames": [[1e6, *FRAME[1:]], FRAME]}, "lasts over"),
        ({"Frames": [FRAME, [*FRAME[:4], 0, 0, 0, 0, *FRAME[8:]]]}, "no unit quaternion"),
        ({"Loop": "perhaps", "Frames": [FRAME] * 3}, "'wrap' or 'none'"),
    ],
)
def test_a_broken_deepmimic_file(tmp_path: Path, content: Any, told: str) -> None:
    assert told in refusal(deepmimic(tmp_path, content))


@pytest.mark.parametrize("fps", [0.0, -1.0, 1e6])
def test_a_senseless_rate(tmp_path: Path, fps: float) -> None:
    with pytest.raises(ConfigError, match="from 1 to 1000"):
        import_motion(deepmimic(tmp_path, {"Frames": [FRAME] * 3}), fps=fps)


# Poselib --------------------------------------------------------------------------------------------
def write_object(path: Path, content: Any) -> Path:
    """As numpy.save does: a header, then a pickle of an array that holds the object."""
    array = np.empty((), dtype=object)
    array[()] = content
    np.save(path, array, allow_pickle=True)
    return path


def arms_down() -> np.ndarray:
    """[15, 3] offsets of a skeleton like ours whose arms hang."""
    offsets = np.array([body_model().body(body).pos for body in BODIES])
    for body in ("lower_arm", "hand"):
        for side in ("right", "left"):
            i = BODIES.index(f"{side}_{body}")
            offsets[i] = [0, 0, -np.linalg.norm(offsets[i])]
    return offsets.astype(np.float32)


def skeleton_motion(**changes: Any) -> OrderedDict[str, Any]:
    parents = [int(body_model().body(body).parentid[0]) - 1 for body in BODIES]
    rotation = np.zeros((30, 15, 4), np.float32)
    rotation[..., 3] = 1
    tree = OrderedDict(
        node_names=list(BODIES),
        parent_indices={"arr": np.array(parents), "context": {"dtype": "int64"}},
        local_translation={"arr": arms_down(), "context": {"dtype": "float32"}},
    )
    content = OrderedDict(
        rotation={"arr": rotation, "context": {"dtype": "float32"}},
        root_translation={
            "arr": np.tile(np.array([0, 0, 0.9], np.float32), (30, 1)),
            "context": {"dtype": "float32"},
        },
        skeleton_tree=tree,
        is_local=True,
        fps=np.int32(30),
        __name__="SkeletonMotion",
    )
    for key, value in changes.items():
        if key in tree:
            tree[key] = value
        else:
            content[key] = value
    return content


def test_a_written_skeleton_motion_is_read(tmp_path: Path) -> None:
    (clip,) = import_motion(write_object(tmp_path / "still.npy", skeleton_motion()))
    angle = dict(zip(JOINTS, clip.joint_pos[0], strict=True))
    assert clip.duration == pytest.approx(29 / 30, abs=0.01)
    assert angle["right_shoulder_x"] == pytest.approx(np.pi / 2)  # hanging
    assert angle["left_shoulder_x"] == pytest.approx(-np.pi / 2)
    assert (
        np.abs(np.delete(clip.joint_pos[0], [JOINTS.index(f"{s}_shoulder_x") for s in ("right", "left")])).max()
        < 1e-6
    )


ran: list[str] = []


def run(what: str) -> str:
    ran.append(what)
    return what


class Hostile:
    """Runs something when it is unpickled, as anything in a pickle may."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("function", [os.system, eval, exec, run, os.mkdir, np.load, getattr, pickle.loads])
def test_nothing_in_a_pickle_is_run(tmp_path: Path, function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran.clear()
    hostile = Hostile(function, "evil")
    for i, content in enumerate((hostile, {"rotation": hostile}, skeleton_motion(fps=hostile))):
        message = refusal(write_object(tmp_path / f"evil{i}.npy", content))
        assert "nothing was run" in message
        assert function.__name__ in message
    assert not ran
    assert not (tmp_path / "evil").exists()


def test_a_shell_command_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = write_object(tmp_path / "evil.npy", Hostile(os.system, f"touch {mark}"))
    assert "system" in refusal(path)
    assert not mark.exists()


def raw_npy(path: Path, body: bytes) -> Path:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "|O", "fortran_order": False, "shape": ()})
    path.write_bytes(stream.getvalue() + body)
    return path


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n(S'touch mark'\ntR.",  # the oldest protocol
        b"(S'touch mark'\nios\nsystem\n.",  # its other way to call
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch mark\x85R.",  # a name built on the stack
        b"\x80\x02\x82\x01.",  # a registered extension
        b"P1\n.",  # an object kept elsewhere
        b"cnumpy\ndtype\n(S'f4'\ntR(dS'kind'\nS'O'\nsb.",  # another state than a dtype's
        b"cnumpy\ndtype\n(dS'read'\nS'x'\nsb.",  # state for the builder itself
        b"c_codecs\nencode\n(dS'__defaults__'\nS'x'\nsb.",
        b"c_codecs\nencode\n(S'x'\nS'rot13'\ntR.",
        b"",
        b".",
        b"garbage",
    ],
)
def test_crooked_pickles_are_refused(tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refusal(raw_npy(tmp_path / "evil.npy", body))
    assert not (tmp_path / "mark").exists()
    import_motion(write_object(tmp_path / "good.npy", skeleton_motion()))  # the reader itself is unharmed


def test_arrays_of_objects_are_no_numbers(tmp_path: Path) -> None:
    objects = np.array([["a", None]] * 2, dtype=object)
    assert "skeleton_tree" in refusal(write_object(tmp_path / "a.npy", objects))
    assert "wrong or missing" in refusal(
        write_object(tmp_path / "b.npy", skeleton_motion(rotation={"arr": objects}))
    )


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"node_names": [*BODIES[:-1], "tail"]}, "lacks left_foot"),
        ({"fps": 0}, "--fps"),
        ({"fps": "fast"}, "wrong or missing"),
        ({"root_translation": {"arr": np.zeros((3, 3))}}, "do not fit"),
        ({"rotation": {"arr": np.zeros((0, 15, 4))}, "root_translation": {"arr": np.zeros((0, 3))}}, "no frames"),
        ({"rotation": {"arr": np.zeros((30, 15, 4))}}, "not a finite number"),
        ({"rotation": {"arr": np.full((30, 15, 4), np.nan)}}, "not a finite number"),
        ({"parent_indices": {"arr": np.arange(15)}}, "before its parent"),
        ({"skeleton_tree": 3}, "wrong or missing"),
    ],
)
def test_a_broken_skeleton_motion(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    assert told in refusal(write_object(tmp_path / "a.npy", skeleton_motion(**changes)))


def test_other_npy_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    assert "array of float64" in refusal(tmp_path / "a.npy")
    (tmp_path / "b.npy").write_bytes(b"hello")
    assert "not a .npy file" in refusal(tmp_path / "b.npy")
    whole = write_object(tmp_path / "c.npy", skeleton_motion()).read_bytes()
    for size in (5, 60, 200, len(whole) // 2, len(whole) - 1):
        (tmp_path / "c.npy").write_bytes(whole[:size])
        refusal(tmp_path / "c.npy")


# BVH ------------------------------------------------------------------------------------------------
@pytest.fixture
def bvh(tmp_path: Path) -> Path:
    frames = [{"root": (0, 15, 0), "LeftLeg": (0, 0, a)} for a in np.linspace(0, 60, 31)]
    return write_bvh(tmp_path / "clip.bvh", CMU_SKELETON, frames, 30)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("HIERARCHY", "", "HIERARCHY"),
        ("MOTION", "", "MOTION"),
        ("Frames: 31", "Frames: 40", "says 40 frames, but has 31"),
        ("Frames: 31", "Frames: many", "'Frames: N'"),
        ("Frame Time: 0.0333333", "Frame Time: 0", "frame time of 0"),
        ("Frame Time: 0.0333333", "Frame Time: nan", "frame time of nan"),
        ("JOINT LeftForeArm", "JOINT LeftElbow", "lacks the joints LeftForeArm"),
        ("JOINT Head", "JOINT Hed", "Did you mean 'Hed'"),
        ("JOINT LeftUpLeg", "JOINT LeftThigh", "LeftUpLeg. Did you mean 'LeftThigh'?"),
        ("OFFSET 5 0 0", "OFFSET 5 0", "line"),
        ("OFFSET 5 0 0", "OFFSET 5 0 x", "not a number"),
        ("CHANNELS 3 Zrotation", "CHANNELS 3 Wrotation", "is not BVH"),
        ("OFFSET 5 0 0", "WHAT", "is not BVH"),
        ("15.000000", "nan", "not a finite number"),
        ("15.000000", "15.0 3.0", "numbers; it must have"),
    ],
)
def test_a_broken_bvh_file(bvh: Path, old: str, new: str, told: str) -> None:
    text = bvh.read_text()
    assert old in text
    bvh.write_text(text.replace(old, new))
    assert told in refusal(bvh)


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.9])
def test_a_cut_off_bvh_file(bvh: Path, share: float) -> None:
    text = bvh.read_text()
    bvh.write_text(text[: int(len(text) * share)])
    refusal(bvh)


def test_a_bvh_of_more_lines_than_any_motion_is_refused_before_they_are_listed(bvh: Path) -> None:
    bvh.write_text(bvh.read_text() + "\r" * 700_000)
    assert "more than 600,000 lines" in refusal(bvh)


def test_empty_bvh_files(bvh: Path) -> None:
    head = bvh.read_text().split("MOTION")[0]
    for frames in ("", "MOTION\nFrames: 0\nFrame Time: 0.03\n", "MOTION\n"):
        bvh.write_text(head + frames)
        refusal(bvh)
    bvh.write_text("")
    refusal(bvh)


# CSV ------------------------------------------------------------------------------------------------
NAMES = [*ROOT, *JOINTS]
ROW = ["0", "0", "0.9", "1", "0", "0", "0", *["0.1"] * 28]


def table(tmp_path: Path, names: list[str] | None, rows: list[list[str]]) -> Path:
    path = tmp_path / "clip.csv"
    path.write_text("\n".join(",".join(row) for row in ([names] if names else []) + rows))
    return path


@pytest.mark.parametrize(
    ("names", "rows", "told"),
    [
        (NAMES, [ROW] * 5, "--fps"),
        (NAMES, [], "no frames"),
        (None, [], "is empty"),
        (None, [["1"] * 12] * 5, "has 12 columns without names"),
        (None, [ROW[:7] + ["0"] * 29] * 1, "at least 2"),
        (None, [["0"] * 36] * 5, "no unit quaternion"),
        (None, [ROW[:7] + ["0"] * 29, ["0"] * 30], "row 2 has 30 columns"),
        ([*NAMES[:-1], "left_ankl_z"], [ROW] * 5, "Did you mean 'left_ankle_z'?"),
        (NAMES[:-1], [ROW[:-1]] * 5, "lacks left_ankle_z"),
        ([*NAMES, NAMES[0]], [[*ROW, "0"]] * 5, "twice"),
        (["time", *NAMES], [["0", *ROW], ["0.1", *ROW[:-1], "nan"]], "row 3 holds something that is not a finite"),
        (["time", *NAMES], [["0", *ROW], ["0.1", *ROW[:-1], "x"]], "row 3 holds something that is not a number"),
        (["time", *NAMES], [["0.1", *ROW], ["0", *ROW]], "times must rise"),
        (["time", *NAMES], [["0", *ROW]], "at least 2"),
    ],
)
def test_a_broken_table(tmp_path: Path, names: list[str] | None, rows: list[list[str]], told: str) -> None:
    assert told in refusal(table(tmp_path, names, rows))
