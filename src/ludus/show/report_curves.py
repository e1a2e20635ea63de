"""The curves of a report: of the learning, the task, the optimiser and the machine."""

import itertools
import json
import math
from collections.abc import Mapping
from typing import Any

from ludus.display import Curves, Display
from ludus.show import text
from ludus.show.charts import Chart, Series, chart_html
from ludus.show.metric_rows import PUBLIC_NAMES, Rows, counts_batches, is_reward_only

_MOST_CHARTS, _MOST_MOMENTS = 100, 300  # of a page that can be read, whatever a run's files hold

_SMALL = [  # title, metric, of the optimiser
    ("Policy gradient loss", "train/policy_gradient_loss"),
    ("Value loss", "train/value_loss"),
    ("Loss", "train/loss"),
    ("Critic loss", "train/critic_loss"),
    ("Actor loss", "train/actor_loss"),
    ("Mean Q", "train/q_mean"),
    ("Entropy loss", "train/entropy_loss"),
    ("Entropy", "train/entropy"),
    ("Entropy coefficient", "train/ent_coef"),
    ("Imitation loss", "train/imitation_loss"),
    ("Approximate KL", "train/approx_kl"),
    ("Clip fraction", "train/clip_fraction"),
    ("Explained variance", "train/explained_variance"),
    ("Learning rate", "train/learning_rate"),
    ("Standard deviation of actions", "train/std"),
    ("Gradient norm", "train/grad_norm"),
]
_SHOWN_ELSEWHERE = ("loop/", "time/", "final/", "eval/", "eval_stochastic/", "system/", "reward/")


def curves_section(rows: Rows, display: Display) -> str:
    alone, unit = is_reward_only(rows), "batches" if counts_batches(rows) else "steps"
    learning = [
        _chart("Success rate", rows, _SUCCESS, text.percent, (0.0, 1.0)),
        _chart("Episode return", rows, _RETURN),
        _chart(
            "Episode length (steps)",
            rows,
            {"training": "rollout/ep_len_mean", "evaluation": "eval/mean_ep_length"},
        ),
        *(_reward_charts(rows) if alone else []),
        _chart(f"{unit.capitalize()} per second", rows, {f"{unit}/s": "time/fps"}),
    ]
    shares = {name: f"time/{name}_share" for name in ("simulate", "act", "learn")}
    machine = [
        _chart("Share of time", rows, shares, text.percent, (0.0, 1.0)),
        _chart("Utilisation (%)", rows, {"CPU": "system/cpu_percent", "GPU": "system/gpu_percent"}),
        _chart("Memory (MB)", rows, _MEMORY),
    ]
    known = {metric for _, metric in _SMALL} | {
        "rollout/success_rate",
        "rollout/ep_rew_mean",
        "rollout/ep_len_mean",
        "train/r_loss",
        *PUBLIC_NAMES,
        *_TOLD_RIGHT.values(),
        *(metric for curves in (_STYLE, *display.curves) for metric in curves.series.values()),
    }
    names = dict.fromkeys(name for row in rows for name in row if name != "step")
    others = [n for n in names if n not in known and not n.startswith(_SHOWN_ELSEWHERE)][:_MOST_CHARTS]
    sections = (
        _section("Learning", learning, "charts", _axis_switch(rows))
        + _section(display.section or "Motion", _task_charts(rows, display), "charts")
        + ("" if alone else _section("Learned reward", _reward_charts(rows), "charts"))
        + _section(
            "Optimisation", [_chart(title, rows, {title: metric}) for title, metric in _SMALL], "charts small"
        )
        + _fold("More metrics", [*(_chart(n, rows, {n: n}) for n in others), *machine])
    )
    return sections.replace(" steps</text>", f" {unit}</text>")


_MEMORY = {
    "memory": "system/memory_mb",
    "GPU, allocated": "system/gpu_memory_allocated_mb",
    "GPU, reserved": "system/gpu_memory_reserved_mb",
}
_SUCCESS = {
    "training": "rollout/success_rate",
    "evaluation": "eval/success_rate",
    "evaluation, strict": "eval/success_strict",
    "evaluation, unseen": "eval/test_success_rate",
    "evaluation, stochastic": "eval_stochastic/success_rate",
}
_RETURN = {
    "training": "rollout/ep_rew_mean",
    "evaluation": "eval/mean_reward",
    "evaluation, stochastic": "eval_stochastic/mean_reward",
}


# Of a discriminator that pays for motion.
_STYLE = Curves("Reward of a step", {"style": "rollout/style_reward", "task": "rollout/task_reward"})
_TOLD_RIGHT = {"demonstrated motion": "adversary/accuracy_demo", "the policy's": "adversary/accuracy_policy"}


def _task_charts(rows: Rows, display: Display) -> list[str]:
    return [
        *(_chart(curves.title, rows, curves.series) for curves in display.curves),
        _chart("What the discriminator tells right", rows, _TOLD_RIGHT, text.percent, (0.0, 1.0)),
        _chart(_STYLE.title, rows, _STYLE.series),
    ]


def _reward_charts(rows: Rows) -> list[str]:
    names = text.reward_names(rows)
    others = [
        n for n in names if n not in {*_CORRELATION.values(), *_AUC.values(), "reward/R2", "reward/episodes"}
    ][:_MOST_CHARTS]
    return [
        _chart("Reward loss", rows, {"reward loss": "train/r_loss"}),
        _chart("AUC, successes against failures", rows, _AUC, _reward_show("reward/AUC"), (0.0, 1.0)),
        _chart("R² of the return", rows, {"R²": "reward/R2"}, _reward_show("reward/R2")),
        _chart("Correlation with the hidden reward", rows, _CORRELATION, _reward_show("reward/correlation")),
        *(_chart(text.reward_label(n).capitalize(), rows, {text.reward_label(n): n}) for n in others),
    ]


def _reward_show(metric: str) -> Any:
    return lambda value: text.reward_value(metric, value)


_AUC = {
    "learned reward": "reward/AUC",
    "success head": "reward/AUC_success",
    "progress head": "reward/AUC_progress",
}
_CORRELATION = {
    "in successes": "reward/correlation",
    "mean of episodes": "reward/correlation_within",
    "overall": "reward/correlation_all",
    "of ranks": "reward/rank_correlation",
}


def _chart(
    title: str,
    rows: Rows,
    metrics: Mapping[str, str],
    show: Any = text.number,
    limits: tuple[float, float] | None = None,
) -> str:
    series = [s for name, metric in metrics.items() if (s := _series(name, metric, rows)) is not None]
    return chart_html(Chart(title, series, show, limits, marks=_stage_starts(rows))) if series else ""


def _stage_starts(rows: Rows) -> dict[float, str]:
    """Where a curriculum went on to its next stage."""
    staged = [row for row in rows if "loop/stage" in row]
    changes = (
        (one, other) for one, other in itertools.pairwise(staged) if one["loop/stage"] != other["loop/stage"]
    )
    return {one["step"]: f"stage {other['loop/stage']:g}" for one, other in changes}


def _series(name: str, metric: str, rows: Rows) -> Series | None:
    found = [row for row in rows if math.isfinite(row.get(metric, math.nan))]
    if not found:
        return None
    steps, values = [row["step"] for row in found], [row[metric] for row in found]
    lows: list[float] = []
    highs: list[float] = []
    prefix = metric.rpartition("/")[0] + "/"
    edges = (prefix + "success_low", prefix + "success_high")
    if metric.endswith("/success_rate") and all(math.isfinite(r.get(e, math.nan)) for r in found for e in edges):
        lows, highs = ([row[edge] for row in found] for edge in edges)
    return Series(name, steps, values, lows, highs, dots=metric.startswith("eval"))


def _section(title: str, charts: list[str], style: str, beside: str = "") -> str:
    charts = [chart for chart in charts if chart]
    return f'<h2>{title}{beside}</h2><div class="{style}">{"".join(charts)}</div>' if charts else ""


def _axis_switch(rows: Rows) -> str:
    """Buttons that lay the curves over steps or over time, and when which step was made, for the script."""
    told = [(row["step"], row.get("time/time_elapsed", math.nan)) for row in rows]
    clock, known = [[0.0, 0.0]], (pair for pair in told if all(map(math.isfinite, pair)))
    for step, seconds in known:
        if step > clock[-1][0] and seconds > clock[-1][1]:
            clock.append([step, round(seconds, 1)])
    if len(clock) < 3:
        return ""
    thinned = [*clock[:: 1 + len(clock) // _MOST_MOMENTS], clock[-1]]
    return (
        '<span class="switch"><button type="button" class="on" data-axis="steps">steps</button>'
        '<button type="button" data-axis="time">training time</button></span>'
        f'<script type="application/json" id="clock">{json.dumps(thinned)}</script>'
    )


def _fold(title: str, charts: list[str]) -> str:
    charts = [chart for chart in charts if chart]
    if not charts:
        return ""
    grid = f'<div class="charts small">{"".join(charts)}</div>'
    return f'<details class="card"><summary>{title}</summary>{grid}</details>'
