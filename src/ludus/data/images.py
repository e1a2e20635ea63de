"""Shrinking images by averaging the area that each new pixel covers."""

import numpy as np

_CHUNK = 64  # frames at a time: what is in between is four times as large


def shrink(frames: np.ndarray, size: int) -> np.ndarray:
    """[n, H, W, C] uint8 → [n, size, size, C] uint8; H and W are at least `size`."""
    height, width = frames.shape[1:3]
    if (height, width) == (size, size):
        return frames
    out = np.empty((len(frames), size, size, frames.shape[3]), np.uint8)
    whole = height == width and height % size == 0
    for i in range(0, len(frames), _CHUNK):
        part = frames[i : i + _CHUNK]
        out[i : i + _CHUNK] = _mean_of_blocks(part, height // size) if whole else _weighted_mean(part, size)
    return out


def _mean_of_blocks(frames: np.ndarray, factor: int) -> np.ndarray:
    total = np.zeros((len(frames), *(n // factor for n in frames.shape[1:3]), frames.shape[3]), np.uint32)
    for row in range(factor):
        for column in range(factor):
            total += frames[:, row::factor, column::factor]
    return (total + factor * factor // 2) // (factor * factor)


def _weighted_mean(frames: np.ndarray, size: int) -> np.ndarray:
    rows, columns = (_area_weights(length, size) for length in frames.shape[1:3])
    mean = np.einsum("rh,nhwc->nrwc", rows, frames.astype(np.float32), optimize=True)
    mean = np.einsum("sw,nrwc->nrsc", columns, mean, optimize=True)
    return np.rint(mean).clip(0, 255)


def _area_weights(length: int, size: int) -> np.ndarray:
    """[size, length]: the share of each old pixel in each new one."""
    edges = np.linspace(0.0, length, size + 1)
    old = np.arange(length)
    covered = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
    return (covered.clip(min=0) / (length / size)).astype(np.float32)
