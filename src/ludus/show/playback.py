"""Recorded episodes as one HTML file: in 3-D for MuJoCo scenes, as a moving picture for others.

The file holds all it needs; a policy inside it forbids the browser to ask any network for more.
"""

import base64
import html
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import mujoco
import numpy as np

from ludus.errors import LudusError, plain_text
from ludus.show.mujoco_scene import (
    Frame,
    MujocoScene,
    bounds,
    browser_server,
    framing,
    pose,
    traveller,
)

MAX_FRAMES = 600
MAX_BYTES = 3_000_000
_PAUSE_S = 0.8  # at an episode's end, to see how it came out
_FOLLOW_S = 0.5  # the camera's smoothing

# Everything inline, nothing from outside: the browser itself guarantees that no request leaves the page.
NO_NETWORK = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "script-src 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob: data:; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; connect-src data: blob:; worker-src blob: data:; media-src data:; "
    "frame-src 'self'\">"
)


class Page(NamedTuple):
    """A page of episodes, to be embedded in a report."""

    html: str
    about: str = ""  # a heading: "Failures"
    turns: bool = False  # the view can be turned with the mouse


@dataclass(frozen=True)
class Episode:
    frames: Sequence[Frame]
    caption: str


@dataclass
class Replay:
    """Episodes of one MuJoCo model, recorded every `dt` seconds."""

    model: mujoco.MjModel
    dt: float
    episodes: list[Episode] = field(default_factory=list)
    most_frames: int = MAX_FRAMES  # of all episodes together; of more, only every second or third is kept

    def add_episode(self, frames: Sequence[Frame], caption: str) -> None:
        if not frames:
            raise LudusError("A replay needs at least one frame per episode.")
        self.episodes.append(Episode(list(frames), plain_text(caption)))


def replay_html(replay: Replay, title: str) -> str:
    """A page with the episodes one after the other, to turn with the mouse."""
    if not replay.episodes:
        raise LudusError("The replay is empty: no episode was recorded.")
    frames = sum(len(episode.frames) for episode in replay.episodes)
    stride = math.ceil(frames / replay.most_frames)
    page = _render(replay, title, stride)
    while len(page) > MAX_BYTES and frames / stride > 60:  # a heavy model: fewer frames before a huge file
        stride *= 2
        page = _render(replay, title, stride)
    return page


def _render(replay: Replay, title: str, stride: int) -> str:
    with browser_server() as server:
        scene = MujocoScene(server, replay.model)
        paths = [_camera_path(replay, episode, stride) for episode in replay.episodes]
        low, high = _seen(replay, paths, stride)
        scene.aim(*framing(low, high))
        above = ((low[0] + high[0]) / 2, (low[1] + high[1]) / 2, high[2])
        labels = [
            server.scene.add_label(
                f"/caption/{i}", episode.caption, position=above, visible=i == 0, anchor="bottom-center"
            )
            for i, episode in enumerate(replay.episodes)
        ]
        recorder = server.get_scene_serializer()
        for i, (episode, path) in enumerate(zip(replay.episodes, paths, strict=True)):
            for j, label in enumerate(labels):
                label.visible = i == j
            for frame, camera_xy in zip(episode.frames[::stride], path, strict=True):
                scene.show(frame, camera_xy)
                recorder.insert_sleep(replay.dt * stride)
            recorder.insert_sleep(_PAUSE_S)
        return _dress(recorder.as_html(), title)


def _camera_path(replay: Replay, episode: Episode, stride: int) -> Sequence[np.ndarray | None]:
    """The ground points the camera follows; None where the robot stays where it is."""
    data, body = mujoco.MjData(replay.model), traveller(replay.model)
    track = []
    for frame in episode.frames[::stride]:
        pose(replay.model, data, frame)
        track.append(data.xpos[body, :2].copy())
    points = np.stack(track)
    low, high = bounds(replay.model, data)
    _, radius = framing(low.min(axis=0), high.max(axis=0))
    if np.ptp(points, axis=0).max() < 0.5 * radius:
        return [None] * len(points)
    window = max(1, round(_FOLLOW_S / (replay.dt * stride)))
    padded = np.pad(points, ((window // 2, window - 1 - window // 2), (0, 0)), mode="edge")
    kernel = np.full(window, 1 / window)
    return list(np.stack([np.convolve(padded[:, axis], kernel, "valid") for axis in (0, 1)], axis=1))


def _seen(
    replay: Replay, paths: Sequence[Sequence[np.ndarray | None]], stride: int
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and highest corner of what is seen while the camera follows its path."""
    model, data = replay.model, mujoco.MjData(replay.model)
    lows, highs = [], []
    for episode, path in zip(replay.episodes, paths, strict=True):
        for frame, camera_xy in list(zip(episode.frames[::stride], path, strict=True))[::10]:
            pose(model, data, frame)
            low, high = bounds(model, data)
            shift = np.zeros(3) if camera_xy is None else np.append(camera_xy, 0.0)
            lows.append(low - shift)
            highs.append(high - shift)
    # Not the very extremes: one thing thrown far away must not make the rest tiny.
    return np.percentile(np.concatenate(lows), 2, axis=0), np.percentile(np.concatenate(highs), 98, axis=0)


def _dress(page: str, title: str) -> str:
    """Our title, the no-network policy and the reader's choice of light or dark on viser's page."""
    page = page.replace("<title>Viser</title>", f"<title>{html.escape(plain_text(title))}</title>", 1)
    # Viser's notices (software rendering …) would cover a third of the small picture in a report.
    calm = "<style>[class*=Notification]{display:none!important}</style>"
    page = page.replace("<head>", f"<head>{NO_NETWORK}{calm}", 1)
    prefers_dark = "matchMedia('(prefers-color-scheme: dark)').matches"
    return page.replace("{darkMode:false}", f"{{darkMode:{prefers_dark}}}", 1)


def frames_html(frames: Sequence[np.ndarray], fps: float, title: str = "Replay", caption: str = "") -> str:
    """A page with rgb frames [height, width, 3] uint8 as a looping picture, for scenes without a model."""
    return films_html([(frames, caption)], fps, title)


def films_html(films: Sequence[tuple[Sequence[np.ndarray], str]], fps: float, title: str = "Replay") -> str:
    """The same of several episodes, each with its caption."""
    if not films or not all(len(frames) for frames, _ in films):
        raise LudusError("The replay is empty: the environment rendered no frame.")
    title = html.escape(plain_text(title))
    figures = "".join(
        f'<figure><img alt="{title}" src="{_picture(frames, fps, MAX_BYTES // len(films))}">'
        f"<figcaption>{html.escape(plain_text(caption))}</figcaption></figure>"
        for frames, caption in films
    )
    return (
        f'<!doctype html><html lang="en"><head>{NO_NETWORK}<meta charset="utf-8">'
        f"<title>{title}</title><style>"
        ":root{color-scheme:light dark}body{margin:0;height:100vh;display:flex;flex-wrap:wrap;gap:12px;"
        "align-items:center;justify-content:center;font:14px system-ui,sans-serif}"
        "figure{margin:0;text-align:center}"
        "img{max-width:96vw;max-height:88vh;min-width:min(60vw,480px);image-rendering:pixelated;border-radius:6px}"
        f"</style></head><body>{figures}</body></html>"
    )


def _picture(frames: Sequence[np.ndarray], fps: float, most_bytes: int) -> str:
    """A looping picture as an address; of many frames only every second or third."""
    stride = math.ceil(len(frames) / MAX_FRAMES)
    picture = _animation(frames[::stride], 1000 * stride / fps)
    while len(picture) > 0.7 * most_bytes and len(frames) / stride > 30:
        stride *= 2
        picture = _animation(frames[::stride], 1000 * stride / fps)
    return "data:image/webp;base64," + base64.b64encode(picture).decode("ascii")


def _animation(frames: Sequence[np.ndarray], milliseconds: float) -> bytes:
    from PIL import Image

    images: list[Any] = [Image.fromarray(np.asarray(frame, dtype=np.uint8)) for frame in frames]
    buffer = io.BytesIO()
    images[0].save(
        buffer,
        "WEBP",
        save_all=True,
        append_images=images[1:],
        duration=max(10, round(milliseconds)),
        loop=0,
        quality=75,
        method=2,
    )
    return buffer.getvalue()
