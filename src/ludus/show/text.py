"""Numbers, durations and small pictures as text, the same in the terminal and in the report."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from ludus.display import Display

_BLOCKS = "▁▂▃▄▅▆▇█"
MISSING = "–"


def number(value: float | None) -> str:
    """About four significant digits, in as few characters as that takes."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    size = abs(value)
    if size >= 10_000:
        return f"{value:,.0f}"
    if size >= 1e-3:
        digits = max(0, 3 - math.floor(math.log10(size)))
        return f"{value:,.{min(digits, 4)}f}"
    return f"{value:.2e}"


def percent(share: float | None, digits: int = 1) -> str:
    if share is None or not math.isfinite(share):
        return MISSING if share is None else str(share)
    return f"{100 * share:.{digits}f} %"


def duration(seconds: float | None) -> str:
    """12:05, 1:02:03 or 2d 03:04."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return MISSING
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, day_hours = divmod(hours, 24)
    if days:
        return f"{days}d {day_hours:02}:{minutes:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def megabytes(value: float) -> str:
    return f"{value / 1024:.1f} GB" if value >= 1000 else f"{value:.0f} MB"


def label(metric: str) -> str:
    """A name to read: 'train/explained_variance' → 'explained variance', 'rollout/reward/time' → 'reward/time'."""
    return (metric.partition("/")[2] or metric).replace("_", " ")


_REWARD_WORDS = {  # of a learned reward on held-out episodes, in the order to tell them
    "reward/AUC": "AUC",
    "reward/R2": "R²",
    "reward/correlation": "correlation",
    "reward/correlation_within": "corr./episode",
    "reward/correlation_all": "corr. overall",
    "reward/rank_correlation": "rank corr.",
    "reward/AUC_success": "AUC, success",
    "reward/AUC_progress": "AUC, progress",
}


def reward_names(rows: Iterable[Mapping[str, float]]) -> list[str]:
    """The metrics of a learned reward that are known (not NaN) in some row, the telling ones first."""
    known = (name for row in rows for name in row if name.startswith("reward/") and not math.isnan(row[name]))
    found = list(dict.fromkeys(known))
    return [n for n in _REWARD_WORDS if n in found] + [n for n in found if n not in _REWARD_WORDS]


def reward_label(metric: str) -> str:
    return _REWARD_WORDS.get(metric) or label(metric)


def reward_value(metric: str, value: float | None) -> str:
    """Two digits, three for an AUC (0.99 and 0.999 are worlds apart); others as any number."""
    if value is None or metric not in _REWARD_WORDS or not math.isfinite(value) or abs(value) >= 1000:
        return number(value)
    return f"{value:.3f}" if metric.startswith("reward/AUC") else f"{value:.2f}"


def reward_line(metrics: Mapping[str, float], most: int = 3) -> str:
    """'AUC 0.998 · R² 0.93 · correlation 0.84', of what there is."""
    names = reward_names([metrics])[:most]
    return " · ".join(f"{reward_label(name)} {reward_value(name, metrics[name])}" for name in names)


def sparkline(values: Sequence[float], width: int) -> str:
    """The history as `width` blocks at most, each the mean of its share of the values."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite or width <= 0:
        return ""
    count = min(width, len(finite))
    edges = [len(finite) * i // count for i in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-9):
        return _BLOCKS[0] * count
    return "".join(_BLOCKS[min(7, int(8 * (m - low) / (high - low)))] for m in means)


def evaluation_line(metrics: dict[str, float], prefix: str = "eval/", display: Display | None = None) -> str:
    """'success 93.0 % (88–96) · reward 231.4 ± 12.10', of what there is; short enough for 80 columns.

    With a measure of the task's own: 'success 93.0 % (88–96) · MPJPE 48 mm · reward 231.4'.
    With episodes of what was kept out of the training: 'success 93.0 % (88–96) · unseen 81.0 % · …'.
    Of a run that learns a reward alone: 'AUC 0.998 · R² 0.93 · correlation 0.84'.
    """
    parts = []
    if prefix + "success_rate" in metrics:
        parts.append(f"success {success_with_interval(metrics, prefix)}")
    if prefix + "test_success_rate" in metrics:
        parts.append(f"unseen {percent(metrics[prefix + 'test_success_rate'])}")
    measures = (display or Display()).measures
    told = [f"{measure.label} {value}" for measure in measures if (value := measure.told(metrics, prefix))]
    parts += told
    if prefix + "mean_reward" in metrics:
        spread = None if told else metrics.get(prefix + "std_reward")
        parts.append(
            f"reward {number(metrics[prefix + 'mean_reward'])}" + (f" ± {number(spread)}" if spread else "")
        )
    if cut := metrics.get(prefix + "cut_episodes"):
        parts.append(f"{number(cut)} of {number(metrics.get(prefix + 'episodes'))} cut short")
    known = {"success_rate", "success_low", "success_high", "mean_reward", "std_reward", "mean_ep_length"}
    known |= {"episodes", "cut_episodes", *(measure.metric for measure in measures)}
    own = [name for name in metrics if name.startswith(prefix) and name.removeprefix(prefix) not in known]
    own = [name for name in own if "/" not in name.removeprefix(prefix)]  # without the terms of its reward
    if prefix + "success_rate" not in metrics:  # what the task itself says of how it went
        parts += [f"{label(name)} {number(metrics[name])}" for name in own[:2]]
        parts.append(reward_line(metrics, 2 if parts else 3))
    return " · ".join(part for part in parts if part)


def best_mark(metrics: Mapping[str, float]) -> str:
    """' ★ best', and by what: with sampled actions evaluated too, by the mean of both ways of acting."""
    for name, show in (("success_rate", percent), ("mean_reward", number)):
        both = [metrics.get(f"{prefix}/{name}", math.nan) for prefix in ("eval", "eval_stochastic")]
        if not math.isnan(sum(both)):
            return f" ★ best (mean with sampled {show(sum(both) / 2)})"
    return " ★ best"


def success_with_interval(metrics: dict[str, float], prefix: str) -> str:
    rate = percent(metrics.get(prefix + "success_rate"))
    low, high = metrics.get(prefix + "success_low"), metrics.get(prefix + "success_high")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return rate
    return f"{rate} ({100 * low:.0f}–{100 * high:.0f})"
