"""What recorded data holds and what is suspicious about it (`ludus data info`)."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ludus.data.assembling import Numbers
from ludus.data.config import DataConfig
from ludus.data.demo import Demo
from ludus.data.reading import DataSummary, scan
from ludus.envs.findings import Finding

_PICTURES = 300  # looked at in all
_SIMILAR_LENGTHS = 5.0  # largest or smallest over the median
_SAME = 1e-6  # spread below which a number is constant


@dataclass
class _Spread:
    """Smallest and largest of each number of an observation."""

    low: np.ndarray
    high: np.ndarray

    def add(self, rows: np.ndarray) -> None:
        np.minimum(self.low, rows.min(axis=0), out=self.low)
        np.maximum(self.high, rows.max(axis=0), out=self.high)


@dataclass
class _Look:
    """What is gathered while the episodes pass by."""

    spreads: dict[str, _Spread] = field(default_factory=dict)
    pictures: Counter[str] = field(default_factory=Counter)  # of each camera
    blank: Counter[str] = field(default_factory=Counter)  # of them without any contrast
    black: Counter[str] = field(default_factory=Counter)
    twins: dict[bytes, str] = field(default_factory=dict)
    duplicates: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, demo: Demo, numbers: Numbers) -> None:
        for key, rows in numbers.vectors.items():
            nothing = np.full(rows.shape[1], np.inf, np.float32)
            self.spreads.setdefault(key, _Spread(nothing, -nothing)).add(rows)
        self._look_for_twin(demo, numbers)
        for key, column in demo.obs.items():
            if column.dtype == np.uint8 and len(column.shape) == 3 and self.pictures[key] < _PICTURES:
                for row in sorted({0, column.rows // 2, column.rows - 1}):
                    self._look_at_picture(key, column.read(row, row + 1))

    def _look_for_twin(self, demo: Demo, numbers: Numbers) -> None:
        digest = hashlib.sha256(numbers.action.tobytes() + numbers.reward.tobytes())
        for rows in numbers.vectors.values():
            digest.update(rows[:1].tobytes())
        name = f"{demo.path.name}: {demo.name}"
        first = self.twins.setdefault(digest.digest(), name)
        if first != name:
            self.duplicates.append((first, name))

    def _look_at_picture(self, key: str, picture: np.ndarray) -> None:
        self.pictures[key] += 1
        self.blank[key] += int(picture.max()) - int(picture.min()) < 3
        self.black[key] += int(picture.max()) < 3


def describe(config: DataConfig) -> tuple[DataSummary, dict[str, Any], list[Finding]]:
    """(summary, the same and more as plain values, findings); what is broken is found, not raised."""
    look = _Look()
    summary = scan(replace(config, skip_bad=True), look)
    return summary, _plain(summary), [*summary.findings, *_findings(summary, look)]


def _plain(summary: DataSummary) -> dict[str, Any]:
    """For JSON, and for the text."""
    returns, lengths = _returns(summary), _lengths(summary)
    outcomes = Counter(episode.success for episode in summary.episodes)
    return {
        "files": [
            {"path": str(f.path), "format": f.format, "bytes": f.bytes, "filters": f.filters}
            for f in summary.files
        ],
        "episodes": len(summary.episodes),
        "steps": summary.total_steps,
        "length": _minimum_median_maximum(lengths),
        "return": {**_minimum_median_maximum(returns), "distinct": len(np.unique(returns))},
        "success": {"success": outcomes[True], "failure": outcomes[False], "unknown": outcomes[None]},
        "terminated": sum(episode.terminated for episode in summary.episodes),
        "observations": {
            key: {"shape": list(spec.shape), "dtype": str(spec.dtype), "image": spec.is_image}
            for key, spec in summary.obs.items()
        },
        "cameras": [key for key, spec in summary.obs.items() if spec.is_image],
        "action": {
            "size": summary.action_size,
            "choices": summary.num_actions,
            "low": summary.action_low,
            "high": summary.action_high,
        },
        "true_reward": summary.has_true_reward,
        "language": sorted({episode.language for episode in summary.episodes if episode.language}),
        "disk_bytes": sum(file.bytes for file in summary.files),
        "memory_bytes": summary.memory_bytes,
    }


def _returns(summary: DataSummary) -> np.ndarray:
    return np.array([episode.episode_return for episode in summary.episodes])


def _lengths(summary: DataSummary) -> np.ndarray:
    return np.array([episode.length for episode in summary.episodes])


def _minimum_median_maximum(values: np.ndarray) -> dict[str, float]:
    return {"min": values.min().item(), "median": float(np.median(values)), "max": values.max().item()}


# What is suspicious -------------------------------------------------------------------------------
def _findings(summary: DataSummary, look: _Look) -> Iterator[Finding]:
    yield from _about_conventions(summary)
    yield from _about_outcomes(summary)
    yield from _about_actions(summary)
    yield from _about_vectors(look)
    yield from _about_pictures(look)
    yield from _about_episodes(summary, look)


def _about_conventions(summary: DataSummary) -> Iterator[Finding]:
    formats = {file.format for file in summary.files}
    if "LIBERO" in formats:
        has_images = any(spec.is_image for spec in summary.obs.values())
        images = "images are turned upright; " if has_images else ""
        yield Finding("ok", f"LIBERO's conventions: {images}obs[t] is taken as seen after actions[t].")
    if len(formats) > 1:
        what = f"Files of several layouts: {', '.join(sorted(formats))}."
        yield Finding("warning", what, "Make sure that their observations and actions mean the same.")


def _about_outcomes(summary: DataSummary) -> Iterator[Finding]:
    returns = _returns(summary)
    if len(returns) > 1 and np.ptp(returns) <= 1e-9 * max(1.0, abs(returns[0])):
        what = f"All {len(returns)} returns are equal ({returns[0]:g}): a reward cannot be learned from these."
        yield Finding("warning", what, "Add failures: episodes that were not worth the same.")
    else:
        yield Finding("ok", f"{len(np.unique(returns))} different returns in {len(returns)} episodes.")
    outcomes = Counter(episode.success for episode in summary.episodes)
    if outcomes[None] and outcomes[None] < len(returns):
        what = f"{outcomes[None]} of {len(returns)} episodes do not say whether they succeeded."
        yield Finding("warning", what, "Give their groups the attribute 'success'.")


def _about_actions(summary: DataSummary) -> Iterator[Finding]:
    if summary.num_actions:
        return
    low, high = summary.action_low, summary.action_high
    if low < -1 or high > 1:
        fix = "A policy of Ludus acts within [-1, 1]: scale them, or check their units."
        yield Finding("warning", f"Actions reach from {low:.3g} to {high:.3g}, beyond [-1, 1].", fix)
    elif low == high:
        yield Finding("warning", f"All actions are {low:.3g}.", "Nothing can be learned about what they do.")
    else:
        yield Finding("ok", f"Actions lie within [-1, 1] ({low:.3g} to {high:.3g}).")


def _about_vectors(look: _Look) -> Iterator[Finding]:
    for key, spread in look.spreads.items():
        same = np.flatnonzero(spread.high - spread.low <= _SAME)
        if len(same) == len(spread.low):
            yield Finding("warning", f"{key} never changes.", "Leave it out with --data.keys.")
        elif len(same):
            places = ", ".join(map(str, same[:6])) + (", …" if len(same) > 6 else "")
            what = f"{key}: {len(same)} of {len(spread.low)} numbers never change ({places})."
            yield Finding("warning", what, "No harm, unless they should change.")


def _about_pictures(look: _Look) -> Iterator[Finding]:
    for key, count in look.pictures.items():
        blank, black = look.blank[key], look.black[key]
        if blank:
            what = f"{key}: {blank} of {count} pictures looked at are {'black' if black == blank else 'blank'}."
            yield Finding("warning", what, "Was the renderer running? Look at some.")
        else:
            yield Finding("ok", f"{key}: none of {count} pictures looked at is blank.")


def _about_episodes(summary: DataSummary, look: _Look) -> Iterator[Finding]:
    if look.duplicates:
        first, second = look.duplicates[0]
        what = f"{len(look.duplicates)} episodes are copies of others; the first: {second}, of {first}."
        yield Finding("warning", what, "A copy in the held-out part makes its measures worthless.")
    lengths = _lengths(summary)
    median = float(np.median(lengths))
    if lengths.max() > _SIMILAR_LENGTHS * median or lengths.min() * _SIMILAR_LENGTHS < median:
        what = f"Very different lengths: {lengths.min()} to {lengths.max()} steps, median {median:g}."
        yield Finding("warning", what, "Look at the shortest and the longest: were they cut, or never stopped?")
