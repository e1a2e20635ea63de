"""Data files that a stranger made: a sentence, at once, and nothing read that is not in the file itself."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from chaos.hostile.data_files import good_data_file, hostile_data_files, mutated
from ludus.commands.data import data as data_command
from ludus.commands.data_info import info_text
from ludus.data import DataConfig, read_episodes, scan
from ludus.data.info import describe
from ludus.data.writing import copy_with_reward
from ludus.errors import DataError, LudusError, did_you_mean, plain_text
from ludus.files import open_regular, read_bounded


# Reading of files -----------------------------------------------------------------------------------
def test_a_named_pipe_a_device_and_a_folder_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "named pipe"), (Path("/dev/zero"), "device"), (tmp_path, "folder")):
        with pytest.raises(LudusError, match=kind):
            open_regular(path)


def test_a_file_is_read_whole_up_to_its_limit_and_refused_beyond(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    assert read_bounded(tmp_path / "file", 5) == b"12345"
    with pytest.raises(LudusError, match="more than 4 bytes"):
        read_bounded(tmp_path / "file", 4)


def test_a_path_with_a_zero_byte_is_an_os_error() -> None:
    with pytest.raises(OSError, match="null"):
        open_regular(Path("a\0b"))


# Text of strangers ----------------------------------------------------------------------------------
def test_trust_22_what_a_terminal_would_obey_is_not_shown() -> None:
    hostile = "red \x1b[31m bell \a title \x1b]0;x\x07 back\u202e\u200b half \udcff"
    assert plain_text(hostile) == "red �[31m bell � title �]0;x� back�� half �"
    assert plain_text("two\nlines\there\x85") == "two lines here "
    assert plain_text("two\nlines", keep_lines=True) == "two\nlines"
    assert plain_text("ä ö 漢字 ✓ 🙂") == "ä ö 漢字 ✓ 🙂"
    assert plain_text("abcdef", most=3) == "abc…"


def test_trust_22_every_error_of_ludus_is_plain_text() -> None:
    assert str(DataError("the key \x1b[2J\x9b is missing\nhere")) == "the key �[2J� is missing\nhere"


def test_a_hint_does_not_compare_texts_without_end() -> None:
    assert did_you_mean("x" * 10**6, ["x" * 10**6]) == ""
    assert did_you_mean("actoins", ["x" * 10**6, "actions"]) == " Did you mean 'actions'?"


# Data -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("hostile")
    return {path.stem: path for path in hostile_data_files(folder, seed=1)}


def test_there_are_many_hostile_files_and_each_is_another(hostile: dict[str, Path]) -> None:
    contents = [path.read_bytes() for path in hostile.values() if path.is_file()]
    assert len({*contents}) == len(contents) == 55


def read_all(path: Path, **settings: Any) -> int:
    """Everything that reads data: the overview, the episodes, and what `ludus data info` prints."""
    config = DataConfig(str(path), **settings)
    _, facts, findings = describe(config)
    info_text(facts, findings)
    return scan(config).total_steps + sum(episode.length for episode in read_episodes(config))


def sentence(path: Path, **settings: Any) -> str:
    """What is said against the file; nothing where it is read. Any other error is a failure."""
    try:
        read_all(path, **settings)
    except DataError as error:
        return str(error)
    return ""


_LEADS_ELSEWHERE = {
    "external_storage": "in another file",
    "external_link": "link to another file",
    "external_link_of_the_whole_group": "link to another file",
    "external_link_to_itself": "link to another file",
    "external_link_in_a_corner": "link to another file",
    "virtual_dataset": "is virtual",
    "virtual_actions": "is virtual",
    "soft_link_to_the_group_around_it": "link to a group",
    "hard_link_to_the_group_around_it": "another name for a group",
    "hard_link_to_the_root": "another name for a group",
    "a_thousand_names_of_one_episode": "another name for a group",
}


@pytest.mark.parametrize("name", _LEADS_ELSEWHERE)
def test_trust_14_a_data_file_that_leads_elsewhere_is_refused(hostile: dict[str, Path], name: str) -> None:
    for read in (scan, lambda config: list(read_episodes(config))):
        with pytest.raises(DataError, match=_LEADS_ELSEWHERE[name]):
            read(DataConfig(str(hostile[name])))


_TOO_MUCH = {
    "compressed_terabyte": "would take 2,400,",
    "compressed_terabyte_of_actions": "would take 1,200,",
    "compressed_image_bomb": "would take 28,",
    "rows_without_end": "would take",
    "chunk_of_gigabytes": "pieces of 4,000,000,000 bytes",
    "chunk_that_unpacks_to_too_much": "another size",
    "chunk_that_unpacks_to_too_little": "another size",
    "chunk_that_is_too_short": "another size",
    "filter_of_a_plugin": "filter 32015",
    "scale_offset_filter": "filter 6",
    "rows_of_different_lengths": "different lengths",
    "references_for_observations": "references",
    "named_pipe": "a named pipe, not a file",
    "link_to_a_device": "a device, not a file",
}


@pytest.mark.parametrize("name", _TOO_MUCH)
def test_trust_16_what_would_fill_memory_is_refused_before_it_is_read(hostile: dict[str, Path], name: str) -> None:
    with pytest.raises(DataError, match=_TOO_MUCH[name]):
        read_all(hostile[name])


@pytest.mark.filterwarnings("ignore:.*left out:RuntimeWarning")
def test_trust_17_every_hostile_data_file_gives_a_sentence_or_is_read(hostile: dict[str, Path]) -> None:
    for name, path in hostile.items():
        for settings in ({}, {"filter": "odd"}, {"skip_bad": True}):
            told = sentence(path, **settings)
            assert told.isprintable(), name
            assert not told or len(told) > 20, name


def test_trust_22_a_language_with_escape_codes_is_told_without_them(
    hostile: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("language_with_escape_codes", "names_with_escape_codes"):
        with pytest.raises(SystemExit):
            data_command(["info", str(hostile[name])])
    printed = capsys.readouterr().out
    assert "lift �[2J�]0;owned��" in printed
    assert plain_text(printed, keep_lines=True) == printed


def test_a_path_that_is_not_utf8_is_read_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/demos_\xff.hdf5"))
    good_data_file(path)
    with pytest.raises(SystemExit) as ended:
        data_command(["info", str(path)])
    assert ended.value.code == 0
    assert "demos_�.hdf5" in capsys.readouterr().out
    path.write_bytes(b"nonsense")
    with pytest.raises(DataError, match=r"demos_�\.hdf5 cannot be opened"):
        scan(DataConfig(str(path)))


def test_a_name_longer_than_names_can_be_gives_a_sentence() -> None:
    with pytest.raises(DataError, match="no file or folder"):
        scan(DataConfig("x" * 5000))


def test_a_label_is_not_written_through_a_link_that_was_laid_before(tmp_path: Path) -> None:
    source = good_data_file(tmp_path / "demos.hdf5")
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".labelled.hdf5.tmp").symlink_to(tmp_path / "mine")
    copy_with_reward(source, tmp_path / "labelled.hdf5", {"demo_0": np.zeros(6)})
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_hostile_file_is_not_labelled(hostile: dict[str, Path], tmp_path: Path) -> None:
    for name in ("external_link", "hard_link_to_the_root"):
        with pytest.raises(DataError):
            copy_with_reward(hostile[name], tmp_path / "labelled.hdf5", {"demo_0": np.zeros(6)})
    assert not list(tmp_path.iterdir())


def test_packed_data_that_is_as_it_should_be_is_read(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(30, 7))
    for number, settings in enumerate(_PACKINGS):
        path = tmp_path / f"{number}.hdf5"
        with h5py.File(path, "w") as file:
            demo = file.create_group("data/demo_0")
            demo.create_dataset("obs/state", data=values, chunks=(8, 3), **settings)
            demo.create_dataset("actions", data=np.zeros((30, 2)), chunks=(7, 2), **settings)
            demo.create_dataset("rewards", data=np.zeros(30), maxshape=(None,), **settings)
        (episode,) = read_episodes(DataConfig(str(path)))
        np.testing.assert_array_equal(episode.obs["state"], values[: len(episode.obs["state"])].astype(np.float32))


_PACKINGS: tuple[dict[str, Any], ...] = (
    {},
    {"compression": "gzip"},
    {"compression": "lzf"},
    {"compression": "gzip", "shuffle": True, "fletcher32": True},
    {"compression": "lzf", "shuffle": True, "fletcher32": True},
    {"fletcher32": True},
)


def test_sixty_mutated_data_files_give_a_sentence_or_are_read(tmp_path: Path) -> None:
    good = good_data_file(tmp_path / "good.hdf5").read_bytes()
    rng = np.random.default_rng(7)
    for number in range(60):
        path = tmp_path / f"{number}.hdf5"
        path.write_bytes(mutated(good, rng))
        assert sentence(path).isprintable()


def test_trust_17_a_file_of_broken_episodes_is_given_up_before_all_are_tried(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "many.hdf5", "w") as file:
        for i in range(1500):
            file.create_group(f"data/demo_{i}")
    with pytest.raises(DataError, match=r"1001 broken episodes or files left out; the first: .*demo_0"):
        scan(DataConfig(str(tmp_path / "many.hdf5"), skip_bad=True))


def test_trust_14_a_link_within_the_file_is_not_followed_out_of_it(tmp_path: Path) -> None:
    """`/a` leads to `/z/x`, and `/z` to another file: a named pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "soft.hdf5", "w") as file:
        file["a"] = h5py.SoftLink("/z/x")
        file["z"] = h5py.ExternalLink("pipe", "/")
    with pytest.raises(DataError, match="is a link to another file"):
        scan(DataConfig(str(tmp_path / "soft.hdf5")))


def test_trust_16_numbers_that_were_never_written_are_counted_as_they_will_be_in_memory(tmp_path: Path) -> None:
    path = good_data_file(tmp_path / "good.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_0/actions"]
        file.create_dataset("data/demo_0/actions", (30_000_000, 2), "i1")
    with pytest.raises(DataError, match=r"would take .* of memory"):
        scan(DataConfig(str(path)))
