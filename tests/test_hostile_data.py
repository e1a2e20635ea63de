"""Data files that a stranger made: a sentence, at once, and nothing read that is not in the file itself."""

import os
from pathlib import Path

import pytest

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
