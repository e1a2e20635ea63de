"""A comparison as lines for a terminal of 80 columns."""

from collections.abc import Sequence

from ludus.show import text
from ludus.show.comparison import Figure, Numbers, told_value
from ludus.show.statistics import Estimate

_LONGEST_NAME, _LONGEST_VALUE, _MOST_GROUPS = 28, 24, 4


def comparison_lines(numbers: Numbers) -> list[str]:
    """Figures, steps to the threshold, settings that differ, warnings."""
    lines = [f"Compared by {numbers.metric}{'' if numbers.higher_is_better else ', where lower is better'}."]
    for figure in numbers.figures:
        lines += ["", f"{figure.title}: {figure.about}", *_aligned(_figure_rows(numbers, figure))]
    if numbers.threshold is not None:
        title = f"Until {numbers.label} {numbers.show_threshold()} is reached: the median of the seeds"
        lines += ["", title, *_aligned(_reached_rows(numbers))]
    if numbers.settings and len(numbers.groups) <= _MOST_GROUPS:
        lines += ["", "Settings that differ", *_aligned(_setting_rows(numbers), left=len(numbers.groups) + 1)]
    return [*lines, *([""] if numbers.warnings else []), *(f"WARNING: {words}" for words in numbers.warnings)]


def told_probability(better: Estimate | None) -> str:
    """'96 % (64 – 100)'."""
    if better is None:
        return text.MISSING
    value, low, high = better
    interval = "" if low is None or high is None else f" ({100 * low:.0f} – {100 * high:.0f})"
    return f"{100 * value:.0f} %{interval}"


def _figure_rows(numbers: Numbers, figure: Figure) -> list[list[str]]:
    has_iqm = any(summary.iqm is not None for summary in figure.summaries)
    several = len(numbers.groups) > 1
    head = ["", "n", "mean (95 % interval)", *(["IQM"] * has_iqm), "worst", *(["P(better than 1st)"] * several)]
    rows = [head]
    for group, own in zip(numbers.groups, figure.summaries, strict=True):
        iqm = [numbers.show(own.iqm.value) if own.iqm is not None else text.MISSING] * has_iqm
        worst = numbers.show(None if own.worst is None else own.values[own.worst])
        is_first = own is figure.summaries[0]
        better = ["" if is_first else told_probability(own.better_than(figure.summaries[0]))] * several
        rows.append([_cut(group.name), str(own.n), numbers.show_estimate(own.mean), *iqm, worst, *better])
    return rows


def _reached_rows(numbers: Numbers) -> list[list[str]]:
    rows = [["", "reached by", numbers.unit, "training time"]]
    for group, reached in zip(numbers.groups, numbers.reached, strict=True):
        steps = text.number(reached.median_steps)
        times = text.duration(reached.median_seconds)
        rows.append([_cut(group.name), f"{reached.count} of {len(group.runs)}", steps, times])
    return rows


def _setting_rows(numbers: Numbers) -> list[list[str]]:
    rows = [["", *(_cut(group.name, _LONGEST_VALUE) for group in numbers.groups)]]
    rows += [
        [name, *(_cut(told_value(v), _LONGEST_VALUE) for v in values)] for name, values in numbers.settings.items()
    ]
    return rows


def _cut(words: str, most: int = _LONGEST_NAME) -> str:
    return words if len(words) <= most else f"{words[: most - 1]}…"


def _aligned(rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Columns as wide as they need; the first `left` begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (
        [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    )
    return [f"  {'  '.join(row)}".rstrip() for row in padded]
