"""Puts a clip on the floor: real ones have feet under it by up to 13 cm, or hang above it."""

from dataclasses import replace

import numpy as np

from ludus.envs.humanoid.clip import Clip

_RESTING = 0.15  # m/s: something that stands on the floor neither rises nor falls faster
_LEVEL = 60  # percent
_SEARCH = 0.3  # m above the lowest point of all: the floor is not searched higher
_BLEND_S = 0.08  # a lift begins and ends so long around the frames that need it


def lowest_of_clip(clip: Clip) -> np.ndarray:
    """[frames] height of the body's lowest point over the floor."""
    kinematics = clip.body.kinematics
    return kinematics.lowest_points(*clip.bodies()).amin(dim=-1).numpy()


def put_on_floor(clip: Clip) -> Clip:
    """Shifted to where it stands on the floor, then lifted for a while wherever it is still below.

    `height_fix` tells the largest change, so that a clip that was changed much can be told from a clean one.
    """
    lowest = lowest_of_clip(clip)
    shift = -_floor_level(lowest, clip.fps)
    change = shift + _lift(np.maximum(0, -(lowest + shift)), clip)
    root_pos = clip.root_pos.copy()
    root_pos[:, 2] += change
    most = float(change[np.abs(change).argmax()])
    return replace(clip, root_pos=root_pos, height_fix=clip.height_fix + most)


def _floor_level(lowest: np.ndarray, fps: float) -> float:
    """The height at which the body rests: of the frames whose lowest point hardly rises or falls, a middling one.

    Rather a high one of several: what lies lower is lifted afterwards, but nothing that hangs above is lowered.
    """
    rate = np.abs(np.gradient(lowest)) * fps
    resting = lowest[(rate < _RESTING) & (lowest <= lowest.min() + _SEARCH)]
    return float(np.percentile(resting, _LEVEL)) if len(resting) else float(lowest.min())


def _lift(need: np.ndarray, clip: Clip) -> np.ndarray:
    """[frames] smooth, and nowhere less than `need`: the largest nearby, averaged over no more than nearby."""
    width = max(1, round(_BLEND_S * clip.fps))
    period = need[:-1] if clip.loop else need
    period = np.maximum(period, np.concatenate([need[-1:], period[1:]])) if clip.loop else period
    padded = np.pad(period, 2 * width, mode="wrap") if clip.loop else np.pad(period, 2 * width, mode="edge")
    largest = np.lib.stride_tricks.sliding_window_view(padded, 2 * width + 1).max(axis=1)
    kernel = np.hanning(2 * width + 3)[1:-1]
    smooth = np.convolve(largest, kernel / kernel.sum(), mode="valid")
    return np.append(smooth, smooth[0]) if clip.loop else smooth
