"""Clips and motions that a stranger made: a sentence at once; nothing is run or unpacked without end."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from chaos.hostile.clips import good_clip, good_sources, hostile_clips
from chaos.hostile.data_files import mutated
from ludus.commands.motions import motions
from ludus.envs.humanoid.catalogue import clip_files, load_any
from ludus.envs.humanoid.checks import check_motion
from ludus.envs.humanoid.clip import load_clip, save_clip
from ludus.envs.humanoid.npz import read_npz
from ludus.errors import DataError, LudusError, plain_text


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return {path.name: path for path in hostile_clips(folder, seed=1)}


def sentence(path: Path) -> str:
    """What is said against the file; nothing where it is a clip that can be checked. Else it is a failure."""
    try:
        for clip in load_any(path):
            check_motion(clip)
    except DataError as error:
        return str(error)
    return ""


def test_there_are_many_hostile_clips_and_each_is_another(hostile: dict[str, Path]) -> None:
    contents = [path.read_bytes() for path in hostile.values() if path.is_file()]
    assert len({*contents}) == len(contents) == 91


def test_trust_17_every_hostile_clip_gives_a_sentence_or_is_read(hostile: dict[str, Path]) -> None:
    for name, path in hostile.items():
        told = sentence(path)
        assert told.isprintable(), name
        assert not told or 20 < len(told) < 1000, name


_REFUSED = {
    "unknown_member_that_unpacks_to_much.npz": "",  # what nobody asked for is not looked at
    "a_member_twice.npz": "holds root_pos twice",
    "a_shape_of_terabytes.npz": "more than a clip can have",
    "a_type_of_gigabytes.npz": "more than a clip can have",
    "a_type_of_objects.npz": "not numbers",
    "members_packed_by_lzma.npz": "packed in a way",
    "ten_thousand_members.npz": "far more members",
    "source_of_megabytes.npz": "more than a clip can have",
    "a_million_frames.npz": "more than a clip can have",
    "named_pipe.npz": "a named pipe, not a file",
    "link_to_a_device.npz": "a device, not a file",
    "named_pipe.bvh": "a named pipe, not a file",
    "link_to_a_device.npy": "a device, not a file",
    "fifty_thousand_joints.bvh": "has 1,001 joints",
    "joints_nested_deeply.bvh": "has 1,001 joints",
    "a_line_of_megabytes.bvh": "has 4,000,000 characters",
    "channels_without_end.bvh": "is not BVH",
    "arms_on_two_bodies.bvh": "no joint in common",
    "rows_without_end.csv": "cut it into shorter motions",
    "columns_without_end.csv": "columns",
    "a_place_far_out.npy": "far more steps",
    "steps_without_end.npy": "far more steps",
    "code_to_run.npy": "Refused, and nothing was run",
}


@pytest.mark.parametrize("name", _REFUSED)
def test_trust_16_what_would_fill_memory_or_time_is_refused_at_once(hostile: dict[str, Path], name: str) -> None:
    told = sentence(hostile[name])
    assert _REFUSED[name] in told
    assert bool(told) == bool(_REFUSED[name])


@pytest.mark.parametrize(
    ("name", "words"), [("a_field_of_megabytes.csv", "line 1 has"), ("a_quote_that_never_ends.csv", "is not CSV")]
)
def test_trust_17_a_field_of_megabytes_in_csv_gives_a_sentence(
    hostile: dict[str, Path], name: str, words: str
) -> None:
    assert words in sentence(hostile[name])


def test_an_unknown_member_of_a_clip_is_never_unpacked(hostile: dict[str, Path]) -> None:
    clip = load_clip(hostile["unknown_member_that_unpacks_to_much.npz"])
    assert clip.frames == 5


def test_trust_22_a_clip_is_listed_without_its_escape_codes(
    hostile: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [path for name, path in hostile.items() if "escape" in name]
    named = good_clip(tmp_path / "a \x1b[2J name.npz")
    unreadable = Path(os.fsdecode(os.fsencode(tmp_path) + b"/not \xff utf8.npz"))
    unreadable.write_bytes(named.read_bytes())
    with pytest.raises(DataError):
        motions(["list", *map(str, [*paths, named, unreadable])])
    with pytest.raises(SystemExit):
        motions(["check", *map(str, [*paths, named, unreadable])])
    shown = capsys.readouterr()
    for printed in (shown.out, shown.err):
        assert plain_text(printed, keep_lines=True) == printed
    assert "from �[2J" in shown.out
    assert "not � utf8" in shown.out


def test_a_source_with_a_strange_name_is_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = Path(os.fsdecode(os.fsencode(tmp_path) + b"/w\xff\x1b[2J.csv"))
    source.write_bytes(good_sources()[".csv"])
    motions(["import", str(source), "--out", str(tmp_path / "clips")])
    printed = capsys.readouterr().out
    assert "w��[2J.npz" in printed
    assert plain_text(printed, keep_lines=True) == printed


def test_a_name_longer_than_names_can_be_gives_a_sentence() -> None:
    with pytest.raises(LudusError, match="There is no clip"):
        clip_files("x" * 5000)


def test_good_files_of_every_kind_are_read(tmp_path: Path) -> None:
    for suffix, content in good_sources().items():
        path = tmp_path / f"good{suffix}"
        path.write_bytes(content)
        assert sentence(path) == "", suffix


def test_sixty_mutated_motions_give_a_sentence_or_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for suffix, content in good_sources().items():
        for number in range(12):
            path = tmp_path / f"{number}{suffix}"
            path.write_bytes(mutated(content, rng))
            assert sentence(path).isprintable()


def npy(version: int, header: bytes, length: int) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + length.to_bytes(2 if version == 1 else 4, "little") + header


_NEGATIVE = b"{'descr': '|i1', 'fortran_order': False, 'shape': (-1, 7, 7905747460118379264)}\n"


@pytest.mark.parametrize(
    "content",
    [
        npy(2, b"{", 2_500_000_000),
        npy(1, _NEGATIVE, len(_NEGATIVE)),
    ],
    ids=["a description of gigabytes", "a negative size"],
)
def test_trust_16_an_array_is_measured_before_numpy_reads_it(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as file:
        file.writestr("format.npy", content + b"\0" * 100)
    with pytest.raises(DataError, match="is not a clip of motion"):
        load_clip(tmp_path / "odd.npz")


def test_trust_16_the_list_of_members_is_found_where_zipfile_finds_it(tmp_path: Path) -> None:
    """The end record's fields themselves hold the mark by which it is looked for."""
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as file:
        for i in range(3000):
            file.writestr(f"member_with_a_long_name_{i}.npy", b"")
    content = bytearray(path.read_bytes())
    content[-18:-14] = b"PK\x05\x06"
    path.write_bytes(content)
    with pytest.raises(DataError, match="lists far more members"):
        read_npz(path, ("format",), 100)


def test_trust_03_an_imported_clip_is_not_written_through_a_link(tmp_path: Path) -> None:
    clip = load_clip(good_clip(tmp_path / "good.npz"))
    (tmp_path / "link.npz").symlink_to(tmp_path / "outside.npz")
    save_clip(clip, tmp_path / "link.npz")
    assert not (tmp_path / "outside.npz").exists()
    assert not (tmp_path / "link.npz").is_symlink()
