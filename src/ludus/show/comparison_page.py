"""A comparison as one page: figures, every seed's curve, settings that differ, and all runs."""

from collections.abc import Sequence
from typing import Any

from ludus.show import text
from ludus.show.charts import COLOURS, Chart, Series, chart_html
from ludus.show.comparison import Figure, Group, Numbers, Summary, mean_curve, told_value
from ludus.show.comparison_text import told_probability
from ludus.show.pages import page_html, safe, tile

GENERATOR = '<meta name="generator" content="ludus compare">'
_MOST_TILES, _MOST_SETTINGS_GROUPS = 4, 12
_MARGIN = 0.1  # above and below the curves
_UNITS = (
    (2 * 3600.0, 3600.0, "hours"),
    (2 * 60.0, 60.0, "minutes"),
    (0.0, 1.0, "seconds"),
)  # from so many seconds on


def comparison_page(numbers: Numbers) -> str:
    """The page as HTML; it needs nothing beside it."""
    names = [group.name for group in numbers.groups]
    title = " · ".join(names) if len(names) <= _MOST_TILES else f"{len(names)} groups of runs"
    about = f"{_count(len(numbers.runs), 'run')} compared by {numbers.metric}"
    about += "" if numbers.higher_is_better else ", where lower is better"
    body = [
        f"<header><h1>{safe(title)}</h1><p>{safe(about)}</p></header>",
        _tiles(numbers),
        _warnings(numbers),
        _curves(numbers),
        *(figure_html(numbers, figure) for figure in numbers.figures),
        _pairs(numbers),
        _reached(numbers),
        _settings(numbers),
        _runs(numbers),
    ]
    return page_html(f"{title}: comparison", "".join(body)).replace("<title>", f"{GENERATOR}<title>", 1)


def _tiles(numbers: Numbers) -> str:
    """The headline: each group's mean and, of two, which is better."""
    figure = numbers.figures[0]
    if len(numbers.groups) > _MOST_TILES:
        return ""
    tiles = [_mean_tile(numbers, *pair) for pair in zip(numbers.groups, figure.summaries, strict=True)]
    if len(numbers.groups) == 2:
        (first, second), (theirs, ours) = numbers.groups, figure.summaries
        value, interval = _parted(told_probability(ours.better_than(theirs)))
        words = f"probability that a seed of {second.name} is better than one of {first.name}"
        tiles.append(tile(f"{words}{interval}", value))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _mean_tile(numbers: Numbers, group: Group, own: Summary) -> str:
    value, interval = _parted(numbers.show_estimate(own.mean))
    return tile(f"{group.name}: mean {numbers.label} of {_count(own.n, 'seed')}{interval}", value)


def _parted(told: str) -> tuple[str, str]:
    """'96 % (64 – 100)' as '96 %' and ' (95 % interval 64 – 100)'."""
    value, bracket, interval = told.partition(" (")
    return value, f" (95 % interval {interval}" if bracket else ""


def _warnings(numbers: Numbers) -> str:
    if not numbers.warnings:
        return ""
    items = "".join(f"<li>{safe(words)}</li>" for words in numbers.warnings)
    return f'<h2>Beware</h2><div class="card"><ul class="warnings">{items}</ul></div>'


# Tables -------------------------------------------------------------------------------------------
def table_html(head: Sequence[str], rows: Sequence[Sequence[str]], style: str = "tight") -> str:
    """Cells are HTML already."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    table = f'<table class="{style}"><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>'
    return f'<div class="card scroll">{table}</div>'


def _key(place: int, group: Group) -> str:
    """A group's name beside its colour."""
    return f'<span class="key s{place % COLOURS} name{_look(place, " dashed")}">{safe(group.name)}</span>'


def _look(place: int, dashed: str = "dashed") -> str:
    """Where there are more groups than colours."""
    return dashed if place // COLOURS % 2 else ""


def figure_html(numbers: Numbers, figure: Figure) -> str:
    has_iqm = any(own.iqm is not None for own in figure.summaries)
    several = len(numbers.groups) > 1
    head = ["", "n", "mean (95 % interval)", *(["IQM (95 % interval)"] * has_iqm), "worst seed"]
    head += [f"P(better than {safe(numbers.groups[0].name)})"] * several
    rows = []
    for place, (group, own) in enumerate(zip(numbers.groups, figure.summaries, strict=True)):
        row = [_key(place, group), str(own.n), safe(numbers.show_estimate(own.mean))]
        row += [safe(numbers.show_estimate(own.iqm))] * has_iqm
        row.append(safe(_worst(numbers, group, own)))
        row += [safe(told_probability(own.better_than(figure.summaries[0])) if place else "")] * several
        rows.append(row)
    hint = "95 % intervals: Student's t of the mean"
    hint += ", t of the trimmed mean for the IQM (the mean of the middle half)" * has_iqm
    hint += (
        ", Newcombe's of the probability that a seed is better than one of the first group (Mann–Whitney)"
        * several
    )
    head_line = (
        f'<h2>{safe(figure.title)}</h2><p class="hint above">{safe(numbers.label)}, {safe(figure.about)}</p>'
    )
    note = f'<p class="hint">{safe(hint)}.</p>' if figure is numbers.figures[-1] else ""
    return f"{head_line}{table_html(head, rows)}{note}"


def _worst(numbers: Numbers, group: Group, own: Summary) -> str:
    if own.worst is None:
        return text.MISSING
    seed = group.runs[own.worst].seed
    return numbers.show(own.values[own.worst]) + (f" (seed {seed})" if seed else "")


def _pairs(numbers: Numbers) -> str:
    """Every group against every other, where there are more than two."""
    if len(numbers.groups) < 3:
        return ""
    summaries = numbers.figures[0].summaries
    head = ["", *(f"than {safe(group.name)}" for group in numbers.groups)]
    rows = [
        [_key(i, numbers.groups[i]), *(safe(told_probability(None if i == j else own.better_than(other)))
         for j, other in enumerate(summaries))]
        for i, own in enumerate(summaries)
    ]  # fmt: skip
    return f"<h2>Probability of being better</h2>{table_html(head, rows)}"


def _reached(numbers: Numbers) -> str:
    if numbers.threshold is None:
        return ""
    rows = [
        [_key(place, group), f"{reached.count} of {len(group.runs)}", text.number(reached.median_steps),
         text.duration(reached.median_seconds)]
        for place, (group, reached) in enumerate(zip(numbers.groups, numbers.reached, strict=True))
    ]  # fmt: skip
    title = f"Until {numbers.label} {numbers.show_threshold()} is reached"
    table = table_html(["", "seeds that reach it", f"median {numbers.unit}", "median training time"], rows)
    hint = '<p class="hint">Seeds that never reach it count as the slowest. --threshold sets another.</p>'
    return f"<h2>{safe(title)}</h2>{table}{hint}"


def _settings(numbers: Numbers) -> str:
    if len(numbers.groups) < 2:
        return ""
    if not numbers.settings:
        return '<h2>Settings</h2><div class="card note">The groups have the same settings.</div>'
    shown = list(enumerate(numbers.groups))[:_MOST_SETTINGS_GROUPS]
    head = ["setting", *(_key(place, group) for place, group in shown)]
    rows = [
        [safe(name[:200]), *(safe(told_value(values[place])) for place, _ in shown)]
        for name, values in numbers.settings.items()
    ]
    return f"<h2>Settings that differ</h2>{table_html(head, rows, 'tight wraps')}"


def _runs(numbers: Numbers) -> str:
    figures = numbers.figures
    told = [safe(figure.title) for figure in figures]
    head = ["run", "group", "seed", *told, numbers.unit, "training time", "state", "version"]
    rows = []
    for i, group in enumerate(numbers.groups):
        for j, run in enumerate(group.runs):
            told = [safe(numbers.show(figure.summaries[i].values[j])) for figure in figures]
            state = "finished" if run.finished else "unfinished"
            facts = [f"{run.step:,}", text.duration(run.seconds), state, safe(run.version or text.MISSING)]
            rows.append([safe(run.path), _key(i, group), safe(run.seed), *told, *facts])
    return f'<details class="card"><summary>All runs</summary>{table_html(head, rows)}</details>'


# Curves -------------------------------------------------------------------------------------------
def _curves(numbers: Numbers) -> str:
    charts = [_chart(numbers, f"over {numbers.unit}", numbers.unit, 1.0, lambda curve: curve.steps)]
    if all(run.curve.seconds for run in numbers.runs):
        longest = max(run.curve.seconds[-1] for run in numbers.runs)
        size, unit = next((size, unit) for least, size, unit in _UNITS if longest >= least)
        charts.append(_chart(numbers, "over training time", unit, size, lambda curve: curve.seconds))
    hint = "Thin: every seed. Thick: the mean with its 95 % interval (cut at the edges), as far as all seeds go."
    return f'<h2>Curves</h2><div class="charts">{"".join(charts)}</div><p class="hint">{safe(hint)}</p>'


def _chart(numbers: Numbers, over: str, unit: str, size: float, axis: Any) -> str:
    thin, thick = [], []
    for place, group in enumerate(numbers.groups):
        drawn = [(_rising(axis(run.curve), run.curve.values, size), run) for run in group.runs]
        for (places, values), run in drawn:
            name = f"{group.name}, seed {run.seed}"
            thin.append(Series(name, places, values, smooth=False, look="seed", colour=place))
        band = mean_curve([curve for curve, _ in drawn])
        if band.places:
            thick.append(Series(group.name, *band, smooth=False, look=_look(place), colour=place))
    limits = (0.0, 1.0) if numbers.is_share else _limits(thin)
    title = f"{numbers.label[:1].upper()}{numbers.label[1:]} {over}"
    series = [*thin, *thick]
    return chart_html(Chart(title, series, numbers.show, limits, alone=True, x_name=unit, headline=""))


def _limits(curves: Sequence[Series]) -> tuple[float, float] | None:
    """Those of the seeds: the interval of a few of them may be many times as wide, and is cut."""
    values = [value for curve in curves for value in curve.values]
    low, high = min(values), max(values)
    margin = _MARGIN * (high - low)
    return (low - margin, high + margin) if margin else None


def _rising(places: Sequence[float], values: Sequence[float], size: float) -> tuple[list[float], list[float]]:
    """In units of `size`; a clock that stood still has one value at a time."""
    kept: dict[float, float] = {}
    for place, value in zip(places, values, strict=True):
        if not kept or place / size > next(reversed(kept)):
            kept[place / size] = value
    return list(kept), list(kept.values())


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
