"""Charts of a sweep as inline SVG: points, parallel coordinates and bars. They show without scripts."""

import html
import math
from collections.abc import Sequence

from ludus.show import text
from ludus.show.charts import round_ticks
from ludus.show.sweep import ShownParameter, ShownTrial, SweepNumbers
from ludus.show.sweep_view import values_line

_WIDTH, _WIDE, _HEIGHT = 520, 1100, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 16, 14, 30
_MOST_DRAWN = 1_000


def tone(rung: int, rungs: int) -> int:
    """Which of four tones a rung has, counted from 1; the last rung has the last."""
    return 3 if rung >= rungs else min(rung - 1, 2)


class _Scores:
    """The vertical axis: scores of all trials, without what lies far below the rest."""

    def __init__(self, numbers: SweepNumbers, height: float = _HEIGHT) -> None:
        self._numbers, self._height = numbers, height
        scores = sorted(t.scores[-1] for t in scored(numbers))
        if not numbers.higher_is_better:
            scores.reverse()
        low, high = scores[0], scores[-1]
        quarter, half = scores[len(scores) // 4], scores[len(scores) // 2]
        if len(scores) >= 8 and abs(quarter - low) > 4 * abs(high - quarter):  # outliers would press all flat
            low = quarter - 1.5 * (half - quarter or high - quarter)
        low, high = min(low, high), max(low, high)
        margin = 0.06 * (high - low) or abs(high) or 1.0
        self.low, self.high = low - margin, high + margin

    def y(self, score: float) -> float:
        share = (min(max(score, self.low), self.high) - self.low) / (self.high - self.low)
        return self._height - _BOTTOM - share * (self._height - _TOP - _BOTTOM)

    def axis(self, width: float) -> str:
        lines = []
        for value in round_ticks(self.low, self.high, 4):
            lines.append(f'<path class="grid" d="M{_LEFT},{self.y(value):.1f}H{width - _RIGHT}"/>')
            lines.append(_word(_LEFT - 6, self.y(value) + 4, "end", _short(self._numbers, value)))
        return "".join(lines)


def scored(numbers: SweepNumbers) -> list[ShownTrial]:
    """Those that are drawn, the best last, so that they lie on top."""
    place = {number: i for i, number in enumerate(numbers.best)}
    known = [trial for trial in numbers.trials if trial.scores and not trial.failed][-_MOST_DRAWN:]
    return sorted(known, key=lambda trial: -place.get(trial.number, 0))


def trials_chart(numbers: SweepNumbers) -> str:
    """Every trial's score at its highest rung, in the order in which they began."""
    scores, last = _Scores(numbers), max(1, len(numbers.trials) - 1)

    def x(number: float) -> float:
        return _LEFT + 10 + number / last * (_WIDE - _LEFT - _RIGHT - 20)

    places = {t.number: x(t.number) for t in scored(numbers)}
    ticks = [tick for tick in round_ticks(0, last, 8) if tick == int(tick)]
    words = [_word(x(tick), _HEIGHT - 8, "middle", f"{tick:.0f}") for tick in ticks]
    failed = [
        _word(x(t.number), _HEIGHT - _BOTTOM - 2, "middle", f"✕<title>{html.escape(_failure(t))}</title>")
        for t in numbers.failed
    ]
    inner = scores.axis(_WIDE) + "".join(words) + "".join(failed) + _points(numbers, places, scores)
    return _figure(f"{numbers.label} at the highest rung, by trial", inner, _WIDE, _HEIGHT)


def _failure(trial: ShownTrial) -> str:
    return f"{trial.name} failed: {trial.failed}"[:300]


def scatter_chart(numbers: SweepNumbers, parameter: ShownParameter) -> str:
    scores, span = _Scores(numbers), _WIDTH - _LEFT - _RIGHT - 20
    places = {t.number: _LEFT + 10 + t.places[parameter.name] * span for t in scored(numbers)}
    words = _labels(parameter, lambda place: _LEFT + 10 + place * span)
    return _figure(parameter.name, scores.axis(_WIDTH) + words + _points(numbers, places, scores), _WIDTH, _HEIGHT)


def _labels(parameter: ShownParameter, x: object) -> str:
    words, edge = [], -math.inf
    for place, label in parameter.ends:
        at = x(place)  # type: ignore[operator]
        if at - 3.4 * len(label) > edge:
            words.append(_word(at, _HEIGHT - 8, "middle", html.escape(label)))
            edge = at + 3.4 * len(label) + 6
    return "".join(words)


def _points(numbers: SweepNumbers, places: dict[int, float], scores: _Scores) -> str:
    parts, rungs = [], len(numbers.rung_steps)
    for trial in scored(numbers):
        x, y = places[trial.number], scores.y(trial.scores[-1])
        title = f"<title>{html.escape(_told(numbers, trial))}</title>"
        parts.append(
            f'<circle class="spot spot{tone(trial.rung, rungs)}" cx="{x:.1f}" cy="{y:.1f}" r="5">{title}</circle>'
        )
        if trial.is_default:
            parts.append(f'<circle class="default" cx="{x:.1f}" cy="{y:.1f}" r="7.5"/>')
        if numbers.best and trial.number == numbers.best[0]:
            parts.append(f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="9"/>')
    return "".join(parts)


def _told(numbers: SweepNumbers, trial: ShownTrial) -> str:
    score = f"{numbers.label} {numbers.show(trial.scores[-1])}, rung {trial.rung}"
    return f"{trial.name}: {score}; {values_line(trial, numbers)}"


def parallel_chart(numbers: SweepNumbers) -> str:
    """One axis a setting and one for the score; a line is a trial, the best one thick."""
    height, columns = 300, len(numbers.parameters) + 1
    scores = _Scores(numbers, height)
    left, right = 70, 90
    xs = [left + i / (columns - 1) * (_WIDE - left - right) for i in range(columns)]
    bottom, span = height - _BOTTOM, height - _TOP - _BOTTOM

    def y(place: float) -> float:
        return bottom - place * span

    parts = []
    for trial in scored(numbers):
        points = [(x, y(trial.places[p.name])) for x, p in zip(xs, numbers.parameters, strict=False)]
        points.append((xs[-1], scores.y(trial.scores[-1])))
        top = " top" if numbers.best and trial.number == numbers.best[0] else ""
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in points)
        shade = tone(trial.rung, len(numbers.rung_steps))
        title = f"<title>{html.escape(_told(numbers, trial))}</title>"
        parts.append(f'<path class="way way{shade}{top}" d="{path}">{title}</path>')
    for x, parameter in zip(xs, numbers.parameters, strict=False):
        parts.append(f'<path class="axis" d="M{x:.1f},{_TOP}V{bottom}"/>')
        parts += [
            _word(x - 6, y(place) + 4, "end", html.escape(label)) for place, label in _sparse(parameter.ends)
        ]
        parts.append(_word(x, height - 8, "middle", html.escape(parameter.short)))
    parts.append(f'<path class="axis" d="M{xs[-1]:.1f},{_TOP}V{bottom}"/>')
    ticks = round_ticks(scores.low, scores.high, 5)
    parts += [_word(xs[-1] + 6, scores.y(v) + 4, "start", _short(numbers, v)) for v in ticks]
    parts.append(_word(xs[-1], height - 8, "middle", html.escape(numbers.label)))
    return _figure("Each line is a trial; the best is thick", "".join(parts), _WIDE, height)


def _sparse(ends: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Labels that do not lie on each other."""
    kept: list[tuple[float, str]] = []
    for place, label in ends:
        if not kept or abs(place - kept[-1][0]) > 0.05:
            kept.append((place, label))
    return kept


def importance_chart(numbers: SweepNumbers) -> str:
    row, left = 26, 230
    parts = []
    shares = sorted(numbers.importances.items(), key=lambda pair: -pair[1])
    for i, (name, share) in enumerate(shares):
        y = 8 + i * row
        parts.append(_word(left - 10, y + 13, "end", html.escape(name)))
        long = share * (_WIDE - left - 80)
        parts.append(f'<rect class="share" x="{left}" y="{y}" width="{long:.1f}" height="{row - 9}" rx="3"/>')
        parts.append(_word(left + long + 8, y + 13, "start", f"{100 * share:.0f} %"))
    return _figure("", "".join(parts), _WIDE, 12 + row * len(shares))


def _figure(title: str, inner: str, width: int, height: int) -> str:
    caption = f"<figcaption>{html.escape(title)}</figcaption>" if title else ""
    label = html.escape(title or "chart")
    return (
        f'<figure class="card plot">{caption}<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">'
        f"{inner}</svg></figure>"
    )


def _word(x: float, y: float, anchor: str, words: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{words}</text>'


def _short(numbers: SweepNumbers, value: float) -> str:
    return f"{100 * value:.0f} %" if numbers.metric.endswith("success_rate") else text.number(round(value, 10))
