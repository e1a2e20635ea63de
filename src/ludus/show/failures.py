"""A section of the report: which starts failed, drawn over where the episodes began, and listed."""

import html
import math
from collections.abc import Sequence
from typing import Any

from ludus.errors import plain_text
from ludus.show import text
from ludus.show.charts import round_ticks
from ludus.show.result_text import failures_of, failures_title, told_start
from ludus.show.results import Episode

_MOST_DRAWN, _MOST_LISTED, _MOST_KINDS = 2_000, 50, 40
_LONG_SIDE, _MARGIN, _LEFT = 300, 34, 44  # pixels
_KIND_WIDTH, _KIND_LEFT, _KIND_HEIGHT = 640, 170, 18


def failures_section(episodes: Sequence[Episode], told: str) -> str:
    """Empty where nothing is known of single episodes. `told`: which these are."""
    episodes = episodes[:_MOST_DRAWN]
    if not episodes:
        return ""
    failed = failures_of(episodes)
    if not failed and episodes[0].success is None:  # all are alike
        return ""
    maps = _maps(episodes, {e.number for e in failed}) if failed else ""
    knows = any(episode.success is not None for episode in episodes)
    return (
        f"<h2>{'Failures' if knows else 'Lowest returns'}</h2>"
        f'<p class="hint above">{_safe(failures_title(episodes, failed))}: {_safe(told)}.</p>'
        f'<div class="failures">{maps}{_list(failed)}</div>'
    )


def _list(failed: Sequence[Episode]) -> str:
    if not failed:
        return ""
    starts = any(episode.start for episode in failed)
    heads = ["episode", "return", "length (steps)", *(["start"] if starts else [])]
    rows = "".join(
        f"<tr><td>{e.number}</td><td>{_safe(text.number(e.total))}</td><td>{e.length:,}{' cut' * e.cut}</td>"
        + (f'<td class="words">{_safe(told_start(e))}</td></tr>' if starts else "</tr>")
        for e in failed[:_MOST_LISTED]
    )
    head = "".join(f"<th{' class=words' * (word == 'start')}>{word}</th>" for word in heads)
    more = f'<p class="note">{len(failed) - _MOST_LISTED:,} more are in results.json.</p>'
    table = f'<table class="tight"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="card scroll low">{table}{more if len(failed) > _MOST_LISTED else ""}</div>'


# Maps -----------------------------------------------------------------------------------------------
def _maps(episodes: Sequence[Episode], failed: set[int]) -> str:
    """Of every thing that has a place (cube_x, cube_y) one seen from above; of kinds (clip) one over time."""
    names = list(dict.fromkeys(name for episode in episodes for name in episode.start))
    things = [n.removesuffix("_x") for n in names if n.endswith("_x") and f"{n.removesuffix('_x')}_y" in names]
    drawn = [_place_map(thing, episodes, failed) for thing in things[:4]]
    kinds = [n for n in names if any(isinstance(e.start.get(n), str) for e in episodes)]
    numbers = [n for n in names if n not in kinds]
    if not things and kinds and numbers:
        drawn.append(_kind_map(kinds[0], numbers[0], episodes, failed))
    drawn = [figure for figure in drawn if figure]
    legend = (
        '<div class="legend"><span class="spot good">success</span><span class="spot bad">failure</span></div>'
    )
    return f'<div class="card maps">{"".join(drawn)}{legend}</div>' if drawn else ""


def _place_map(thing: str, episodes: Sequence[Episode], failed: set[int]) -> str:
    spots = [(e, _number(e, f"{thing}_x"), _number(e, f"{thing}_y")) for e in episodes]
    known = [(e, x, y) for e, x, y in spots if x is not None and y is not None]
    if not known:
        return ""
    x0, x1 = _range([x for _, x, _ in known])
    y0, y1 = _range([y for _, _, y in known])
    scale = _LONG_SIDE / max(x1 - x0, y1 - y0)
    width, height = scale * (x1 - x0), scale * (y1 - y0)
    parts = [f'<rect class="table" x="{_LEFT}" y="8" width="{width:.1f}" height="{height:.1f}"/>']
    parts += [_word(_LEFT + scale * (v - x0), height + 22, f"{v:g}") for v in round_ticks(x0, x1, 3)]
    parts += [_word(_LEFT - 5, 12 + scale * (y1 - v), f"{v:g}", "end") for v in round_ticks(y0, y1, 4)]
    for episode, x, y in sorted(known, key=lambda spot: spot[0].number in failed):  # failures on top
        parts.append(_spot(_LEFT + scale * (x - x0), 8 + scale * (y1 - y), episode, failed))
    parts += [_word(_LEFT + width / 2, height + 37, "x (m)"), _word(_LEFT - 5, 8 + height, "y (m)", "end")]
    size = f'width="{width + _LEFT + 10:.0f}" height="{height + _MARGIN + 10:.0f}"'
    return _figure(f"{thing} at the start, from above", size, parts)


def _kind_map(kind: str, when: str, episodes: Sequence[Episode], failed: set[int]) -> str:
    """A line for each kind, those with the most failures first; the spots are over the time of the start."""
    spots = [(e, str(e.start.get(kind, "")), _number(e, when)) for e in episodes]
    known = [(e, name, at) for e, name, at in spots if name and at is not None]
    if not known:
        return ""
    count: dict[str, int] = {name: 0 for _, name, _ in known}
    for episode, name, _ in known:
        count[name] += episode.number in failed
    lines = sorted(count, key=lambda name: -count[name])[:_MOST_KINDS]
    low, high = _range([at for _, _, at in known])
    scale = (_KIND_WIDTH - _KIND_LEFT - 20) / (high - low)
    bottom = 8 + _KIND_HEIGHT * len(lines)
    parts = [_word(_KIND_LEFT - 8, 20 + _KIND_HEIGHT * i, name[:24], "end") for i, name in enumerate(lines)]
    parts += [_word(_KIND_LEFT + scale * (v - low), bottom + 16, f"{v:g}") for v in round_ticks(low, high, 6)]
    for episode, name, at in known:
        if name in lines:
            parts.append(
                _spot(_KIND_LEFT + scale * (at - low), 16 + _KIND_HEIGHT * lines.index(name), episode, failed)
            )
    unit = " (s)" if when == "time" else ""
    parts.append(_word(_KIND_LEFT + (_KIND_WIDTH - _KIND_LEFT) / 2, bottom + 32, f"{when} of the start{unit}"))
    caption = f"{kind} and {when} of the start" + (
        f", the {len(lines)} with most failures" * (len(count) > len(lines))
    )
    size = f'width="{_KIND_WIDTH}" height="{bottom + 40}"'
    return _figure(caption, size, parts)


def _figure(caption: str, size: str, parts: Sequence[str]) -> str:
    return f"<figure><figcaption>{_safe(caption)}</figcaption><svg {size}>{''.join(parts)}</svg></figure>"


def _spot(x: float, y: float, episode: Episode, failed: set[int]) -> str:
    bad = episode.number in failed
    went = f"return {text.number(episode.total)}, {episode.length} steps"
    words = f"episode {episode.number}: {went}; {told_start(episode)}"
    return (
        f'<circle class="{"bad" if bad else "good"}" cx="{x:.1f}" cy="{y:.1f}" r="{4.5 if bad else 3}">'
        f"<title>{_safe(words)}</title></circle>"
    )


def _word(x: float, y: float, words: str, anchor: str = "middle") -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{_safe(words)}</text>'


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0
    return low - 0.05 * spread, high + 0.05 * spread


def _number(episode: Episode, name: str) -> float | None:
    value = episode.start.get(name)
    return value if isinstance(value, int | float) and math.isfinite(value) and abs(value) < 1e9 else None


def _safe(value: Any) -> str:
    return html.escape(plain_text(str(value)), quote=True)
