"""Clips of motion to look at: live in the browser, or as one page that can be kept."""

from pathlib import Path

import numpy as np
import torch

from ludus.envs.bodies.rotations import multiply, rotate
from ludus.envs.humanoid.clip import Clip
from ludus.envs.humanoid.seam import cycle_later
from ludus.errors import LudusError
from ludus.files import write_whole
from ludus.show import playback as replays
from ludus.show import viewer

_FRAME_RATE = 30  # pictures a second are enough for the eye, and keep a page small
_SHOWN_S = 4.0  # a looping clip is shown again until about this long
_LONGEST_S = 20.0  # of one clip on a page: a longer one shows its beginning


def view_clips(clips: list[Clip], port: int, seconds: float | None, html: Path | None) -> None:
    """Show clips in the browser until Ctrl-C or `seconds`; with `html`, write them to that page instead.

    The camera goes along with a body that walks away, in both.
    """
    if not clips:
        raise LudusError("There is no clip to show.")
    if any(clip.body is not clips[0].body for clip in clips):
        raise LudusError("These clips are of several bodies; look at those of one at a time.")
    if html is not None:
        html.parent.mkdir(parents=True, exist_ok=True)
        write_whole(html, clips_html(clips))
        return
    playing = _Playing(clips)
    title = clips[0].name if len(clips) == 1 else f"{len(clips)} clips"
    dt = 1 / _FRAME_RATE
    viewer.play(
        clips[0].body.model, playing.advance, dt, port, seconds, playing.next_clip, title, next_label="Next clip"
    )


def clips_html(clips: list[Clip]) -> str:
    """A page that shows the clips one after the other."""
    replay = replays.Replay(clips[0].body.model, 1 / _FRAME_RATE)
    for clip in clips:
        times = np.arange(0.0, min(_shown_seconds(clip), _LONGEST_S) + 1e-9, 1 / _FRAME_RATE)
        caption = f"{clip.name}: {clip.duration:.1f} s{', loops' if clip.loop else ''}"
        replay.add_episode([{"qpos": qpos_at(clip, time)} for time in times], caption)
    return replays.replay_html(replay, ", ".join(clip.name for clip in clips[:5]) + " …" * (len(clips) > 5))


def qpos_at(clip: Clip, time: float) -> np.ndarray:
    """[7 + joints] the pose nearest to a time; a looping clip goes on from where its last round ended."""
    frame = round(time * clip.fps)
    if not clip.loop:
        return clip.qpos[min(frame, clip.frames - 1)]
    cycles, frame = divmod(frame, clip.frames - 1)
    turn, shift = cycle_later(clip, cycles)
    position, rotation = torch.as_tensor(clip.root_pos[frame]), torch.as_tensor(clip.root_quat[frame])
    root = torch.cat([rotate(turn, position) + shift, multiply(turn, rotation)])
    return np.concatenate([root.numpy(), clip.joint_pos[frame]])


def _shown_seconds(clip: Clip) -> float:
    rounds = max(1, round(_SHOWN_S / clip.duration)) if clip.loop else 1
    return rounds * clip.duration


class _Playing:
    """The clips one after the other, without an end."""

    def __init__(self, clips: list[Clip]) -> None:
        self._clips = clips
        self._at = 0
        self._time = 0.0

    def advance(self) -> viewer.StepResult:
        clip = self._clips[self._at]
        if self._time > _shown_seconds(clip) and (len(self._clips) > 1 or not clip.loop):
            self.next_clip()
            clip = self._clips[self._at]
        pose = qpos_at(clip, self._time)
        self._time += 1 / _FRAME_RATE
        return pose, np.zeros((0, 3)), np.zeros((0, 4)), {f"{clip.name}, second": self._time}

    def next_clip(self) -> None:
        self._at = (self._at + 1) % len(self._clips)
        self._time = 0.0
