"""`ludus video`: a film of a run's policy."""

import contextlib
import itertools
import mmap
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ludus
from ludus import filming
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, LudusError
from ludus.filming import film_run
from ludus.show import video
from ludus.show.console import Console
from ludus.show.results import episodes_of, read_measurements
from ludus.show.video import Clip, Spool, write_video
from test_results import CARTPOLE, KUKA


def frames_of(path: Path) -> list[np.ndarray]:
    """Every picture of a film."""
    from PIL import Image, ImageSequence

    if path.suffix == ".gif":
        return [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(Image.open(path))]
    ffmpeg = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    folder = path.with_suffix(".frames")
    folder.mkdir()
    subprocess.run(
        [ffmpeg, "-v", "error", "-i", path, "-fps_mode", "passthrough", folder / "%04d.png"], check=True
    )
    return [np.asarray(Image.open(picture)) for picture in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def kuka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kuka") / "run"
    return ludus.train("kuka-pick-place", folder, console=Console("quiet"), overrides=KUKA)


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> ludus.Run:
    folder = tmp_path_factory.mktemp("cartpole") / "run"
    return ludus.train("gym:CartPole-v1", folder, console=Console("quiet"), overrides=CARTPOLE)


def test_a_gymnasium_environment_is_filmed_as_a_gif_without_holding_its_pictures(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[weakref.ref[np.ndarray]] = []
    draw = filming.picture_of

    def watched(env: VecEnv, row: int) -> np.ndarray | None:
        picture = draw(env, row)
        assert picture is not None
        drawn.append(weakref.ref(picture))
        assert sum(ref() is not None for ref in drawn) < 5
        return picture

    monkeypatch.setattr(filming, "picture_of", watched)
    lengths = [e.length for e in episodes_of(read_measurements(cartpole / "results.json")[0].episodes, {})]
    frames = frames_of(film_run(cartpole, tmp_path / "film.gif", episodes=1, fps=50))
    assert len(drawn) == lengths[0] + 1  # one to see whether it can be drawn
    assert frames[0].shape == (400, 600, 3)
    assert 0 < len(frames) <= lengths[0] + 30 + 1  # Pillow leaves out pictures that do not differ
    assert any(not np.array_equal(frames[0], frame) for frame in frames[1:])


def test_failures_of_the_kuka_are_filmed_as_an_mp4(kuka: Path, tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    frames = frames_of(film_run(f"{kuka}@final", tmp_path / "film.mp4", 1, failures=True, size="96x64"))
    assert frames[0].shape == (64, 96, 3)
    assert len(frames) == 20 + 12  # every step at 20 Hz, and 0.6 s to look at the end
    assert np.std(frames[0]) > 5
    assert not np.array_equal(frames[0], frames[19])


def _can_be_copied() -> bool:
    try:
        subprocess.run(["true"], preexec_fn=os.setpgrp, check=True)
    except OSError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="what a system lets a process map is Linux'")
def test_a_film_is_written_beside_a_replay_larger_than_the_memory(tmp_path: Path) -> None:
    """The system refuses to copy a process with more mapped than there is memory."""
    pytest.importorskip("imageio_ffmpeg")
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 6 // 10
    replay = [mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for part in replay:
            stack.enter_context(part)
        if _can_be_copied():
            pytest.skip("this system copies a process of any size")
        pictures = [np.full((32, 48, 3), shade, np.uint8) for shade in range(0, 250, 50)]
        write_video(tmp_path / "film.mp4", [Clip(pictures, "")], 10)
    frames = frames_of(tmp_path / "film.mp4")
    assert [round(float(frame.mean()), -1) for frame in frames] == [0, 50, 100, 150, 200] + [200] * 6


def test_what_ffmpeg_says_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    pictures = itertools.repeat(np.zeros((64, 64, 3), np.uint8), 2000)  # more than a pipe holds
    with pytest.raises(LudusError, match=r"Cannot write .*film\.mp4: ffmpeg says: .*No such file"):
        write_video(tmp_path / "missing" / "film.mp4", [Clip(pictures, "")], 10)


def test_what_cannot_be_filmed_is_one_sentence(kuka: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"film\.avi must end in \.mp4 or \.gif"):
        film_run(kuka, tmp_path / "film.avi")
    with pytest.raises(ConfigError, match=r"--size is '640'.*640x480"):
        film_run(kuka, tmp_path / "film.gif", size="640")
    with pytest.raises(ConfigError, match="--episodes is 0"):
        film_run(kuka, tmp_path / "film.gif", episodes=0)
    with pytest.raises(ConfigError, match=r"--fps is 0\.5"):
        film_run(kuka, tmp_path / "film.gif", fps=0.5)
    with pytest.raises(LudusError, match="no episode was drawn"):
        write_video(tmp_path / "film.gif", [], 20)
    assert list(tmp_path.iterdir()) == []


def test_without_ffmpeg_a_sentence_names_the_extra_and_a_gif_is_written(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)  # as if it were not installed
    with pytest.raises(LudusError, match=r"pip install 'ludus\[video\]'.*\.gif"):
        film_run(cartpole, tmp_path / "film.mp4")
    assert not video.has_ffmpeg()
    assert film_run(cartpole, episodes=1) == cartpole / "video.gif"


def test_an_environment_without_pictures_says_what_it_needs(tmp_path: Path) -> None:
    run = ludus.train(
        "vec:test_custom_env:plain", tmp_path / "run", console=Console("quiet"), overrides={**CARTPOLE}
    )
    with pytest.raises(LudusError, match=r"cannot be drawn.*frame\(row\)"):
        film_run(run, tmp_path / "film.gif")


def test_pictures_are_written_as_they_come(tmp_path: Path) -> None:
    alive: list[weakref.ref[np.ndarray]] = []

    def pictures() -> Iterator[np.ndarray]:
        for number in range(30):
            picture = np.full((64, 64, 3), 8 * number, np.uint8)
            alive.append(weakref.ref(picture))
            assert sum(ref() is not None for ref in alive) < 5, "all would take gigabytes"
            yield picture

    write_video(tmp_path / "film.gif", (Clip(pictures(), name) for name in "ab"), 10)
    assert len(alive) == 60
    assert len(frames_of(tmp_path / "film.gif")) == 60


def test_a_spool_gives_its_pictures_back_in_any_order_and_leaves_no_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (side, 2 * side, 3), np.uint8)[:, ::2] for side in (4, 7, 5)]
    with Spool(tmp_path) as spool:
        places = [spool.add(picture) for picture in pictures]
        for i in (2, 0, 1):
            np.testing.assert_array_equal(spool.read(places[i]), pictures[i])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LudusError, match=r"Cannot write into .*missing: No such file"):
        Spool(tmp_path / "missing")


def test_pictures_of_odd_and_different_sizes_become_one_film(tmp_path: Path) -> None:
    small, large = (np.full((side, side + 1, 3), 200, np.uint8) for side in (33, 65))
    write_video(tmp_path / "film.gif", [Clip([large], "first"), Clip([small], "second")], 10)
    frames = frames_of(tmp_path / "film.gif")
    assert {frame.shape for frame in frames} == {(64, 66, 3)}


def test_a_run_is_filmed_from_python_as_by_the_command(cartpole: ludus.Run, tmp_path: Path) -> None:
    told = cartpole.video(str(tmp_path / "film.gif"), "final", episodes=1, fps=5)
    assert told == tmp_path / "film.gif"
    film_run(f"{cartpole}@final", tmp_path / "same.gif", episodes=1, fps=5)
    assert told.read_bytes() == (tmp_path / "same.gif").read_bytes()
    with pytest.raises(ConfigError, match=r"--size is '9'"):
        cartpole.video(size="9")


def test_the_command_prints_where_the_film_is(
    cartpole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ludus import cli

    arguments: tuple[Any, ...] = ("ludus", "video", cartpole, tmp_path / "film.gif", "--episodes", 1, "--failures")
    monkeypatch.setattr(sys, "argv", [*map(str, arguments)])
    run: Callable[[], None] = cli.main
    run()
    assert capsys.readouterr().out.strip() == str(tmp_path / "film.gif")
    assert (tmp_path / "film.gif").stat().st_size > 1000
