"""The learned reward along recorded episodes, beside what the camera saw: a section of the report."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image

from ludus.errors import LudusError
from ludus.show import text
from ludus.show.charts import Chart, Picture, Series, chart_html

MAX_TRACES = 8
MAX_FRAMES = 8
_FRAME_PIXELS = 128  # on the longer side
_OUTCOMES = {True: "success", False: "failure", None: ""}


@dataclass
class RewardTrace:
    """What a learned reward says of one episode of T steps."""

    title: str  # "demo_12 · success"
    success: bool | None
    predicted: np.ndarray  # [T], the learned reward
    truth: np.ndarray | None = None  # [T], the hidden reward, if known
    progress: np.ndarray | None = None  # [T], of the progress head
    frames: list[np.ndarray] = field(default_factory=list)  # a few H×W×3 uint8 pictures
    frame_steps: list[int] = field(default_factory=list)


def reward_section(traces: Sequence[RewardTrace]) -> str:
    """One chart an episode, as many successes as failures where there are too many; empty without traces."""
    drawable = [trace for trace in traces if np.isfinite(_flat(trace.predicted)).any()]
    if not drawable:
        return ""
    shown = _balanced(drawable)
    # One scale for all: a failure's small rewards must look small beside a success's.
    predicted, truth = _range([t.predicted for t in shown]), _range([t.truth for t in shown])
    charts = "".join(chart_html(_chart(trace, predicted, truth)) for trace in shown)
    hint = "The same scale in all charts"
    if any(trace.truth is not None or trace.progress is not None for trace in shown):
        hint += "; the hidden reward and the progress are stretched to it (point at a curve for its own values)"
    hint += "."
    hint += f" {len(shown)} of {len(traces)} episodes." if len(shown) < len(traces) else ""
    return (
        f'<h2>The learned reward along episodes</h2><div class="charts">{charts}</div><p class="hint">{hint}</p>'
    )


def _balanced(traces: list[RewardTrace]) -> list[RewardTrace]:
    failures = [trace for trace in traces if trace.success is False]
    others = [trace for trace in traces if trace.success is not False]
    spare = MAX_TRACES - min(len(failures), MAX_TRACES // 2)
    others = others[:spare]
    chosen = [*others, *failures[: MAX_TRACES - len(others)]]
    return [trace for trace in traces if any(trace is one for one in chosen)]


def _range(curves: Sequence[np.ndarray | None]) -> tuple[float, float]:
    """The lowest and the highest finite value; (0, 1) where there is none."""
    values = np.concatenate([np.zeros(0), *(_flat(curve) for curve in curves if curve is not None)])
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)


def _flat(curve: np.ndarray) -> np.ndarray:
    return np.asarray(curve, dtype=float).ravel()


def _chart(trace: RewardTrace, limits: tuple[float, float], truth_limits: tuple[float, float]) -> Chart:
    predicted = _flat(trace.predicted)
    series = [_series("learned reward", predicted)]
    if trace.truth is not None:
        truth = _flat(trace.truth)[: len(predicted)]
        series.append(_series("hidden reward", truth, _scaled(truth, truth_limits, limits), "faint"))
    if trace.progress is not None:
        progress = _flat(trace.progress)[: len(predicted)]
        series.append(_series("progress", progress, _scaled(progress, (0.0, 1.0), limits), "dashed"))
    outcome = _OUTCOMES[None if trace.success is None else bool(trace.success)]
    title = trace.title.removesuffix(outcome).rstrip(" ·") if outcome else trace.title
    return Chart(
        title or trace.title,
        [one for one in series if len(one.values)],
        limits=_widened(limits),
        alone=True,
        badge=outcome,
        headline=_headline(predicted, trace.truth),
        pictures=_pictures(trace, len(predicted)),
    )


def _widened(limits: tuple[float, float]) -> tuple[float, float]:
    margin = 0.06 * ((limits[1] - limits[0]) or abs(limits[1]) or 1.0)
    return limits[0] - margin, limits[1] + margin


def _headline(predicted: np.ndarray, truth: np.ndarray | None) -> str:
    words = f"sum {text.number(float(np.nansum(predicted)))}"
    if truth is None or len(_flat(truth)) != len(predicted):
        return words
    both = np.stack([predicted, _flat(truth)])
    both = both[:, np.isfinite(both).all(axis=0)]
    if both.shape[1] > 2 and (both.std(axis=1) > 0).all():
        words = f"correlation {np.corrcoef(both)[0, 1]:.2f} · {words}"
    return words


def _series(name: str, told: np.ndarray, drawn: np.ndarray | None = None, look: str = "") -> Series:
    """Without the steps whose value is not finite."""
    kept = np.flatnonzero(np.isfinite(told))
    values = (told if drawn is None else drawn)[kept].tolist()
    return Series(name, kept.tolist(), values, smooth=False, look=look, told=told[kept].tolist())


def _scaled(values: np.ndarray, own: tuple[float, float], to: tuple[float, float]) -> np.ndarray:
    """Moved and stretched from one range to another; a flat one to the middle."""
    if own[1] <= own[0]:
        return np.full_like(values, sum(to) / 2)
    return to[0] + (to[1] - to[0]) * (values - own[0]) / (own[1] - own[0])


def _pictures(trace: RewardTrace, steps: int) -> list[Picture]:
    if len(trace.frames) != len(trace.frame_steps):
        raise LudusError(
            f"{trace.title}: {len(trace.frames)} frames but {len(trace.frame_steps)} frame steps; every frame "
            "needs its step."
        )
    count = len(trace.frames)
    kept = sorted({round(i) for i in np.linspace(0, count - 1, min(count, MAX_FRAMES))}) if count else []
    found = [_picture(trace.frames[i], min(max(trace.frame_steps[i], 0), steps - 1), trace.title) for i in kept]
    return sorted(found, key=lambda picture: picture.step)


def _picture(frame: np.ndarray, step: int, title: str) -> Picture:
    if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
        raise LudusError(f"{title}: a frame must be H×W×3 uint8, not {frame.shape} {frame.dtype}.")
    image = Image.fromarray(np.ascontiguousarray(frame))
    image.thumbnail((_FRAME_PIXELS, _FRAME_PIXELS))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=82)
    address = "data:image/jpeg;base64," + base64.b64encode(packed.getvalue()).decode()
    return Picture(step, address, (image.height, image.width))
