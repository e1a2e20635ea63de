"""Curves as inline SVG, drawn here so that they show without scripts; a script adds the hover readout."""

import html
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ludus.show import text

_WIDTH, _HEIGHT = 520, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 10, 10, 26
_MAX_POINTS = 300  # more than the pixels can show
_PICTURE, _PICTURE_GAP = 84, 4
_SMOOTH_FROM = 40  # fewer points than this are shown as they are
COLOURS = 8  # that report_style has


@dataclass(frozen=True)
class Series:
    """One curve: steps, values and, where known, the interval around each value."""

    name: str
    steps: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float] = ()
    highs: Sequence[float] = ()
    dots: bool = False  # evaluations: few, each of them worth a mark
    smooth: bool = True
    look: str = ""  # "faint" or "dashed", for curves that only accompany another; "seed": also without a readout
    told: Sequence[float] = ()  # what to say where the values are scaled to fit beside others
    colour: int | None = None  # of the COLOURS; by its place among the curves where None


@dataclass(frozen=True)
class Picture:
    """A small picture below the curves, at its step."""

    step: float
    address: str  # a data: URI
    shape: tuple[int, int]  # height and width in pixels


@dataclass(frozen=True)
class Chart:
    title: str
    series: list[Series]
    show: Callable[[float], str] = text.number
    limits: tuple[float, float] | None = None  # of the y axis; the data's own where None
    alone: bool = False  # its x axis is not that of the other charts, but steps of an episode
    x_name: str = "steps"  # said after the last number of the x axis
    badge: str = ""  # "success" or "failure", in their colours
    headline: str | None = None  # to the right of the title; the newest value where None
    pictures: Sequence[Picture] = ()
    marks: Mapping[float, str] = field(default_factory=dict)  # a word at a step, such as where a stage begins


@dataclass(frozen=True)
class _Scale:
    x0: float
    x1: float
    y0: float
    y1: float

    def x(self, step: float) -> float:
        return _LEFT + (step - self.x0) / (self.x1 - self.x0) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        value = min(max(value, self.y0), self.y1)
        return _HEIGHT - _BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (_HEIGHT - _TOP - _BOTTOM)


def chart_html(chart: Chart) -> str:
    """A <figure> with title, newest value, legend, curves and the numbers for the hover readout."""
    series = [replace(_thinned(s), colour=_colour(s, i)) for i, s in enumerate(chart.series)]
    told = [s for s in series if s.look != "seed"]
    scale = _scale(chart, series)
    newest = chart.show(chart.series[0].values[-1]) if chart.headline is None else chart.headline
    legend = "".join(f'<span class="key s{s.colour}{_look(s)}">{html.escape(s.name)}</span>' for s in told)
    curves = "".join(_curve(s, scale) for s in series)
    marks = "".join(f'<circle class="mark s{s.colour}" r="3.5"/>' for s in told)
    strip, height = _strip(chart.pictures, scale)
    badge = f' <span class="badge {chart.badge}">{chart.badge}</span>' if chart.badge else ""
    return (
        f'<figure class="chart{" " * bool(chart.badge)}{chart.badge}"{" data-alone" * chart.alone}{_unit(chart)}>'
        f"<figcaption><b>{html.escape(chart.title)}{badge}</b>"
        f'<span class="newest">{html.escape(newest)}</span></figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + height}" role="img" aria-label="{html.escape(chart.title)}" '
        f'data-x0="{scale.x0:.10g}" data-x1="{scale.x1:.10g}" data-left="{_LEFT}" data-right="{_WIDTH - _RIGHT}" '
        f'data-ticks="{_HEIGHT - 8}">{_axes(scale, chart.show, chart.x_name)}{strip}'
        f"{_marks(chart.marks, scale)}{curves}"
        f'<line class="cross" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>{marks}</svg>'
        f'<div class="legend">{legend if len(told) > 1 else ""}</div>'
        f"{_readout(chart, told, scale)}</figure>"
    )


def _marks(marks: Mapping[float, str], scale: _Scale) -> str:
    return "".join(
        f'<path class="lead" d="M{scale.x(step):.1f},{_TOP}V{_HEIGHT - _BOTTOM}"/>'
        + _tick(scale.x(step) + 4, _TOP + 9, "start", html.escape(words))
        for step, words in marks.items()
        if scale.x0 <= step <= scale.x1
    )


def _unit(chart: Chart) -> str:
    return "" if chart.x_name == "steps" else f' data-x="{html.escape(chart.x_name)}"'


def _colour(series: Series, place: int) -> int:
    return (place if series.colour is None else series.colour) % COLOURS


def _look(series: Series) -> str:
    return f" {series.look}" if series.look else ""


def _strip(pictures: Sequence[Picture], scale: _Scale) -> tuple[str, int]:
    """The pictures in a row below the axis, each joined to its step; and how much height they take."""
    if not pictures:
        return "", 0
    width = min(_PICTURE, (_WIDTH - _LEFT - _RIGHT) / len(pictures) - _PICTURE_GAP)
    tall = max(width * rows / columns for rows, columns in (p.shape for p in pictures))
    parts = []
    for picture, left in zip(pictures, _places([scale.x(p.step) for p in pictures], width), strict=True):
        at, middle = scale.x(picture.step), left + width / 2
        rows, columns = picture.shape
        parts.append(
            f'<path class="lead" d="M{at:.1f},{_TOP}V{_HEIGHT - _BOTTOM}L{middle:.1f},{_HEIGHT}"/>'
            f'<image href="{picture.address}" x="{left:.1f}" y="{_HEIGHT}" width="{width:.1f}" '
            f'height="{width * rows / columns:.1f}"><title>step {picture.step:g}</title></image>'
        )
    return "".join(parts), math.ceil(tall) + 6


def _places(steps: list[float], width: float) -> list[float]:
    """Left edges of the pictures: close to their steps, inside the drawing, side by side."""
    squeeze = (_WIDTH - width / 2 - 1 - _LEFT) / (_WIDTH - _RIGHT - _LEFT)  # the last one's right half needs room
    lefts = [_LEFT + squeeze * (x - _LEFT) - width / 2 for x in steps]
    for i in range(1, len(lefts)):
        lefts[i] = max(lefts[i], lefts[i - 1] + width + 2)
    edge = _WIDTH - width
    for i in reversed(range(len(lefts))):
        lefts[i] = min(lefts[i], edge)
        edge = lefts[i] - width - 2
    return lefts


def _scale(chart: Chart, series: list[Series]) -> _Scale:
    steps = [x for s in series for x in s.steps]
    x0, x1 = min(steps), max(steps)
    x0 = 0.0 if 0 < x0 < 0.1 * x1 else x0  # the first row of a run comes a little after its start
    if chart.limits is not None:
        y0, y1 = chart.limits
    else:
        values = [v for s in series for v in (*s.values, *s.lows, *s.highs) if math.isfinite(v)]
        y0, y1 = min(values), max(values)
    spread = (y1 - y0) or abs(y1) or 1.0
    margin = 0.0 if chart.limits is not None else 0.06 * spread
    return _Scale(x0, x1 if x1 > x0 else x0 + 1, y0 - margin, y1 + margin)


def _axes(scale: _Scale, show: Callable[[float], str], x_name: str) -> str:
    # Of a line that hardly moves two ticks may read the same.
    told = {_short(v, show): v for v in round_ticks(scale.y0, scale.y1, 4)}
    lines = [
        f'<path class="grid" d="M{_LEFT},{scale.y(v):.1f}H{_WIDTH - _RIGHT}"/>'
        + _tick(_LEFT - 6, scale.y(v) + 4, "end", word)
        for word, v in told.items()
    ]
    ticks = [x for x in round_ticks(scale.x0, scale.x1, 5) if x_name != "steps" or x == round(x)]
    words = [*map(_compact, ticks[:-1]), *(f"{_compact(x)} {x_name}" for x in ticks[-1:])]
    steps = [_tick(scale.x(x), _HEIGHT - 8, "middle", word) for x, word in zip(ticks, words, strict=True)]
    if ticks and scale.x(ticks[-1]) > _WIDTH - 50:  # the unit would not fit
        steps[-1] = _tick(_WIDTH, _HEIGHT - 8, "end", words[-1])
    return "".join([*lines, '<g class="xticks">', *steps, "</g>"])


def _tick(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _curve(series: Series, scale: _Scale) -> str:
    index, points = series.colour, list(zip(series.steps, series.values, strict=True))
    parts = []
    if series.lows:
        edge = [(x, v) for x, v in zip(series.steps, series.highs, strict=True)]
        edge += reversed([(x, v) for x, v in zip(series.steps, series.lows, strict=True)])
        parts.append(f'<path class="band s{index}" d="{_path(edge, scale)}Z"/>')
    if len(points) >= _SMOOTH_FROM and series.smooth and not series.dots:
        parts.append(f'<path class="raw s{index}" d="{_path(points, scale)}"/>')
        points = list(zip(series.steps, _smoothed(series.values), strict=True))
    parts.append(f'<path class="line s{index}{_look(series)}" d="{_path(points, scale)}">{_name(series)}</path>')
    if series.dots or len(points) == 1:
        parts += [
            f'<circle class="dot s{index}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="2.5"/>'
            for x, y in points
        ]
    return "".join(parts)


def _name(series: Series) -> str:
    """What a browser says where the pointer rests on a curve that has no readout."""
    return f"<title>{html.escape(series.name)}</title>" if series.look == "seed" else ""


def _path(points: Sequence[tuple[float, float]], scale: _Scale) -> str:
    return "M" + "L".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)


def _readout(chart: Chart, series: list[Series], scale: _Scale) -> str:
    """What the script needs: pixel positions and the words to show there."""
    data = [
        {
            "name": s.name,
            "colour": s.colour,
            "step": [_told_place(chart, x) for x in s.steps],
            "x": [round(scale.x(x), 1) for x in s.steps],
            "y": [round(scale.y(y), 1) for y in s.values],
            "text": [_with_interval(chart, s, i) for i in range(len(s.values))],
        }
        for s in series
    ]
    # "<" cannot appear as itself: "</script>" inside a name would end the block.
    return f'<script type="application/json">{json.dumps(data).replace("<", chr(92) + "u003c")}</script>'


def _told_place(chart: Chart, x: float) -> float:
    """Steps are counted; time is not."""
    return round(x) if chart.x_name == "steps" else round(x, 2)


def _with_interval(chart: Chart, series: Series, i: int) -> str:
    shown = chart.show((series.told or series.values)[i])
    return f"{shown} ({chart.show(series.lows[i])} – {chart.show(series.highs[i])})" if series.lows else shown


def _thinned(series: Series) -> Series:
    """At most _MAX_POINTS points, each the mean of its neighbourhood."""
    n = len(series.steps)
    if n <= _MAX_POINTS:
        return series
    edges = [n * i // _MAX_POINTS for i in range(_MAX_POINTS + 1)]

    def means(values: Sequence[float]) -> list[float]:
        return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)] if values else []

    return replace(
        series,
        steps=means(series.steps),
        values=means(series.values),
        lows=means(series.lows),
        highs=means(series.highs),
        told=means(series.told),
    )


def _smoothed(values: Sequence[float]) -> list[float]:
    """A centered moving mean over a thirtieth of the curve."""
    half = max(1, len(values) // 60)
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers between low and high, about as many as asked for."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * m for m in (1, 2, 2.5, 5) if power * m >= rough), power * 10)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _compact(step: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(step) >= size:
            return f"{step / size:g}{unit}"
    return f"{step:g}"


def _short(value: float, show: Callable[[float], str]) -> str:
    if show is text.percent:
        return f"{100 * value:.0f} %"
    return f"{value:.0e}" if 0 < abs(value) < 1e-3 else _compact(round(value, 10))
