"""Where the w of a table's quaternions stands. Files differ, and few say it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ludus.errors import DataError

ORDERS = ("wxyz", "xyzw")
_UPRIGHT = 0.5  # how far up the root's z axis points at least, of a robot that stands
_SLIDES_MORE = 1.5  # times: then a reading is the worse one
_SAME = 0.02  # rad: readings that differ by less need no choice
_SAY_IT = "ludus motions import … --quaternion wxyz (or xyzw)."


def read_as(quats: np.ndarray, order: str) -> np.ndarray:
    """[frames, 4] w first and of unit length, of quaternions that are in this order."""
    unit = quats / np.linalg.norm(quats, axis=1, keepdims=True)
    return unit if order == "wxyz" else unit[:, [3, 0, 1, 2]]


def w_first(path: Path, quats: np.ndarray, order: str, sliding: Callable[[np.ndarray], float]) -> np.ndarray:
    """[frames, 4] w first. The wrong reading lays the robot down or turns it.

    So where no `order` is given, the right one is told by what it leads to: a robot that stands upright, on feet
    that do not slide. `sliding`: m/s that they do, with quaternions w first.
    """
    readings = {each: read_as(quats, each) for each in ORDERS}
    if order:
        return _not_upside_down(path, order, readings)
    if np.abs((readings["wxyz"] * readings["xyzw"]).sum(1)).min() > np.cos(_SAME / 2):
        return readings["wxyz"]
    upright = {each: float(np.median(_up(reading))) for each, reading in readings.items()}
    standing = [each for each, up in upright.items() if up > _UPRIGHT]
    if len(standing) == 1:
        return readings[standing[0]]
    slides = {each: sliding(readings[each]) for each in standing}
    if len(standing) == 2 and max(slides.values()) > _SLIDES_MORE * min(slides.values()):
        return readings[min(slides, key=lambda each: slides[each])]
    raise DataError(
        f"{path} does not say where the w of its quaternions stands, and neither reading is clearly right. "
        f"Say it: {_SAY_IT}"
    )


def sliding_of(points: np.ndarray, fps: float) -> float:
    """m/s, the median speed over the floor of the lowest of points [frames, points, 3]."""
    lowest = points[:-1, :, 2].argmin(axis=1)
    rows = np.arange(len(lowest))
    step = points[rows + 1, lowest, :2] - points[rows, lowest, :2]
    return float(np.median(np.linalg.norm(step, axis=1)) * fps) + 1e-6


def _not_upside_down(path: Path, order: str, readings: dict[str, np.ndarray]) -> np.ndarray:
    other = readings["xyzw" if order == "wxyz" else "wxyz"]
    if np.median(_up(readings[order])) < -_UPRIGHT < _UPRIGHT < np.median(_up(other)):
        raise DataError(
            f"{path}: read as {order} the robot stands on its head, read the other way on its feet. Say which is "
            f"meant: {_SAY_IT}"
        )
    return readings[order]


def _up(quats: np.ndarray) -> np.ndarray:
    """[frames] how far up the root's z axis points, from −1 to 1."""
    return 1 - 2 * (quats[:, 1] ** 2 + quats[:, 2] ** 2)
