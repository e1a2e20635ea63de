"""Pictures as a film: MP4 by ffmpeg, GIF by Pillow."""

import itertools
import os
import subprocess
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ludus.errors import ConfigError, LudusError, plain_text
from ludus.files import temporary_beside

_PAUSE_S = 0.6  # at an episode's end, to see how it came out
ENDINGS = (".mp4", ".gif")


class Clip(NamedTuple):
    """One episode of a film."""

    pictures: Iterable[np.ndarray]  # each [height, width, 3] uint8
    caption: str


class Spooled(NamedTuple):
    """Where a picture lies in a spool."""

    start: int
    size: int
    shape: tuple[int, ...]


class Spool:
    """Pictures that wait on the disk, in a file without a name, until their episode's caption is known.

    In memory the pictures of a few episodes would take gigabytes.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by whoever leaves the spool)
        except OSError as error:
            raise LudusError(f"Cannot write into {folder}: {error.strerror}.") from error

    def __enter__(self) -> "Spool":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, picture: np.ndarray) -> Spooled:
        content = zlib.compress(picture.astype(np.uint8, copy=False).tobytes(), level=1)
        start = self._file.seek(0, os.SEEK_END)
        self._file.write(content)
        return Spooled(start, len(content), picture.shape)

    def read(self, place: Spooled) -> np.ndarray:
        self._file.seek(place.start)
        return np.frombuffer(zlib.decompress(self._file.read(place.size)), np.uint8).reshape(place.shape)


def has_ffmpeg() -> bool:
    try:
        import imageio_ffmpeg  # noqa: F401
    except ImportError:
        return False
    return True


def refuse_ending(path: Path) -> None:
    """A sentence where a film cannot be written under this name, before it is drawn."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"{path} must end in .mp4 or .gif.")
    if path.suffix.lower() == ".mp4" and not has_ffmpeg():
        raise LudusError(f"{path}: an MP4 needs ffmpeg, `pip install 'ludus[video]'`; a .gif needs nothing more.")


def write_video(path: Path, clips: Iterable[Clip], fps: float) -> None:
    """Write the film whole or not at all. The file's ending says its kind."""
    refuse_ending(path)
    frames = _frames(clips, fps)
    first = next(frames, None)
    if first is None:
        raise LudusError("There is nothing to film: no episode was drawn.")
    temporary = temporary_beside(path)
    try:
        write = _write_mp4 if path.suffix.lower() == ".mp4" else _write_gif
        write(temporary, itertools.chain([first], frames), fps)
        os.replace(temporary, path)
    except OSError as error:
        raise LudusError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        temporary.unlink(missing_ok=True)


def _frames(clips: Iterable[Clip], fps: float) -> Iterator[np.ndarray]:
    """Every picture with its caption, all of the size of the first, the last of an episode for a while."""
    shape: tuple[int, ...] = ()
    for clip in clips:
        title = last = None
        for picture in map(_even, clip.pictures):
            shape = shape or picture.shape
            title = _title(shape, clip.caption) if title is None else title
            last = _fitted(picture, shape).copy()
            last[: len(title)] = np.where(title[..., 3:] > 0, title[..., :3], last[: len(title)])
            yield last
        if last is not None:
            yield from itertools.repeat(last, round(_PAUSE_S * fps))


def _even(picture: np.ndarray) -> np.ndarray:
    """Encoders take sides of even length."""
    height, width = (side - side % 2 for side in picture.shape[:2])
    return np.ascontiguousarray(picture[:height, :width, :3], dtype=np.uint8)


def _fitted(picture: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if picture.shape == shape:
        return picture
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((shape[1], shape[0])))


def _title(shape: tuple[int, ...], caption: str) -> np.ndarray:
    """[rows, width, 4] the caption, to be laid over the top of every picture."""
    from PIL import Image, ImageDraw, ImageFont

    size = max(10, shape[0] // 28)
    image = Image.new("RGBA", (shape[1], min(shape[0], size + 16)))
    font: Any = ImageFont.load_default(size)
    draw = ImageDraw.Draw(image)
    draw.fontmode = "1"  # no soft edges: a pixel is of the caption or not
    draw.text((8, 6), plain_text(caption, 120), font=font, fill="white", stroke_width=2, stroke_fill="black")
    return np.asarray(image)


def _write_mp4(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    """By a process of our own: imageio's copies this one first, which the system refuses beside a large replay."""
    first = next(frames)
    ffmpeg = subprocess.Popen(
        _ffmpeg_command(path, first.shape, fps),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        process_group=0,  # a Ctrl-C in the terminal reaches this process alone
    )
    assert ffmpeg.stdin is not None
    try:
        for frame in itertools.chain([first], frames):
            ffmpeg.stdin.write(frame.data)
    except BrokenPipeError:
        pass  # ffmpeg has ended: it says why
    except BaseException:
        ffmpeg.kill()
        raise
    finally:
        said = ffmpeg.communicate()[1].decode(errors="replace").strip()
    if ffmpeg.returncode:
        raise OSError(f"ffmpeg says: {plain_text(said, 200)}")


def _ffmpeg_command(path: Path, shape: tuple[int, ...], fps: float) -> list[str]:
    import imageio_ffmpeg

    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{shape[1]}x{shape[0]}", "-r", f"{fps:.2f}", "-i", "-"]
    coded = ["-an", "-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", "25", "-f", "mp4"]
    return [imageio_ffmpeg.get_ffmpeg_exe(), "-y", *raw, *coded, "-v", "error", str(path)]


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    from PIL import Image

    images = [Image.fromarray(frame).quantize(128, dither=Image.Dither.NONE) for frame in frames]
    milliseconds = max(20, 10 * round(100 / fps))  # viewers take anything shorter for a tenth of a second
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=milliseconds, loop=0)
