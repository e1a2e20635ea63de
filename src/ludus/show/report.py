"""report.html: one page that tells how a training went, with nothing to install and nothing to fetch.

Everything in it comes from the run folder: metrics.jsonl, config.yaml and, where present, run.json.
"""

import html
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ludus.display import Display
from ludus.errors import LudusError, plain_text
from ludus.files import parse_json, read_bounded
from ludus.show import text
from ludus.show.episode_table import table_section
from ludus.show.failures import failures_section
from ludus.show.jsonl import read_metrics
from ludus.show.metric_rows import Rows, along_batches, counts_batches, is_reward_only, last_value, with_one_name
from ludus.show.pages import page_html, safe, tile, write_page
from ludus.show.playback import Page
from ludus.show.report_curves import curves_section
from ludus.show.result_text import measured_on, measured_policy
from ludus.show.results import Measurement, episodes_of, newest_evaluation
from ludus.show.reward_page import RewardTrace, reward_section
from ludus.show.run_state import is_other_task, quality

# Of a page that can be read, whatever a run's files hold.
_MOST_BYTES = 1_000_000  # of run.json and config.yaml
_LABELS = ("name", "tags", "note")  # in run.json
_MOST_COLUMNS, _MOST_FACTS, _LONGEST_FACT, _DEEPEST = 100, 200, 1000, 5


def write_report(
    run_dir: Path | str,
    replays: Sequence[Page] = (),
    measured: Measurement | None = None,
    extra: Mapping[str, Any] | None = None,
    rewards: Sequence[RewardTrace] = (),
    display: Display | None = None,
    policy: str = "",
) -> Path:
    """Write run_dir/report.html, a page that needs nothing beside it; returns its path.

    `replays` are embedded, each at most `playback.MAX_BYTES` large. `measured`: the policy on new starts, the
    headline. `extra` adds lines to the run's facts; `rewards` shows a learned reward along some episodes;
    `display`: what the task has to show besides what every task has. `policy`: which checkpoint is shown, where
    it is not the best; the page is then report@POLICY.html.
    """
    run_dir, display = Path(run_dir), display or Display()
    rows = with_one_name(read_metrics(run_dir / "metrics.jsonl"))
    alone = is_reward_only(rows)
    rows = along_batches(rows) if alone else rows
    suffix = f"@{policy}" if policy else ""
    facts, trouble = _facts(run_dir)
    title = _shown(facts.get("preset")) or run_dir.resolve().parent.name
    body = [
        f"<header><h1>{safe(title)}</h1><p>{safe(_subtitle(run_dir, facts))}</p>{_labels(facts)}</header>",
        _tiles(rows, display, measured),
        _replays(replays, policy),
        _failures(run_dir, measured),
        table_section(display.table, run_dir, _best_step(rows)),
        reward_section(rewards),
        curves_section(rows, display),
        _evaluations(rows, display),
        _configuration(run_dir, facts),
        _run_facts({**facts, **(extra or {})}, trouble),
    ]
    path = run_dir / f"report{suffix}.html"
    unit = "batch" if counts_batches(rows) else "step"
    write_page(path, page_html(f"{title}: training report", "".join(body), unit))
    return path


# Sections -------------------------------------------------------------------------------------------
def _tiles(rows: Rows, display: Display, measured: Measurement | None) -> str:
    if not rows:
        return '<h2>No metrics yet</h2><div class="card note">The run has not finished its first cycle.</div>'
    steps = int(max(row["step"] for row in rows))
    seconds = last_value(rows, "time/time_elapsed")
    speed = steps / seconds if seconds else last_value(rows, "time/fps")
    if is_reward_only(rows):
        tiles = [
            *_reward_tiles(rows),
            tile("batches", f"{steps:,}"),
            tile("training time", text.duration(seconds)),
        ]
        return f'<div class="tiles">{"".join(tiles)}</div>'
    tiles = [_best_tile(rows)] if measured is None else _result_tiles(measured, display)
    for measure in () if measured is not None else display.headline:
        if (value := last_value(rows, f"eval/{measure.metric}")) is not None:
            told = measure.told({measure.metric: value}, "")
            tiles.append(tile(f"{measure.label} in the newest evaluation", told))
    if measured is None:
        newest = next((row for row in reversed(rows) if "eval/success_rate" in row), {})
        tiles += _unseen_tiles(newest)
    unit = "batches" if counts_batches(rows) else "steps"
    tiles.append(tile(unit, f"{steps:,}"))
    tiles.append(tile("training time", text.duration(seconds)))
    tiles.append(tile(f"{unit} per second", text.number(None if speed is None else round(speed))))
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _result_tiles(measured: Measurement, display: Display) -> list[str]:
    """What the policy is worth on starts that nothing was chosen by."""
    result, where = measured.result, f"{measured_policy(measured)} on {measured_on(measured)}"
    told = {f"eval/{name}": value for name, value in result.items()}
    tiles = []
    if "success_rate" in result:
        interval = "".join(text.success_with_interval(told, "eval/").partition("(")[1:])
        tiles.append(_success_tile(f"success {interval}: {where}", result["success_rate"]))
    tiles += _unseen_tiles(told)
    if "mean_reward" in result:
        words = "mean reward, same episodes" if tiles else f"mean reward: {where}"
        tiles.append(tile(words, text.number(result["mean_reward"]), main=not tiles))
    if "mean_ep_length" in result:
        tiles.append(tile("mean episode length (steps)", text.number(round(result["mean_ep_length"], 1))))
    own = [(measure.label, measure.told(told, "eval/")) for measure in display.headline]
    return [*tiles, *(tile(label, value) for label, value in own if value)]


def _success_tile(words: str, success: float) -> str:
    return tile(words, text.percent(success), main=True, good=success >= 0.5)


def _unseen_tiles(told: dict[str, float]) -> list[str]:
    """Success with what was kept out of the training, where something was."""
    if "eval/test_success_rate" not in told:
        return []
    rate, _, interval = text.success_with_interval(told, "eval/test_").partition(" (")
    words = "success with what was kept out of the training"
    return [tile(f"{words} ({interval}" if interval else words, rate)]


def _best_tile(rows: Rows) -> str:
    """The evaluation by which the best policy was chosen, where it was not measured on new starts."""
    warned = "; chosen by it, so it flatters: ludus eval measures on new starts"
    found = [row for row in rows if math.isfinite(row.get("eval/success_rate", math.nan))]
    if found:
        best = _best(found)  # the one whose policy was kept; others may be better with one way of acting alone
        interval = "".join(text.success_with_interval(best, "eval/").partition("(")[1:])
        words = f"best success of {len(found)} evaluations {interval} at step {int(best['step']):,}{warned}"
        return _success_tile(words, best["eval/success_rate"])
    found = [row for row in rows if math.isfinite(row.get("eval/mean_reward", math.nan))]
    if found:
        best = _best(found)
        words = f"best evaluation reward of {len(found)}, at step {int(best['step']):,}{warned}"
        return tile(words, text.number(best["eval/mean_reward"]), main=True)
    for words, metric, show in (
        ("success in training", "rollout/success_rate", text.percent),
        ("return in training", "rollout/ep_rew_mean", text.number),
    ):
        if (value := last_value(rows, metric)) is not None:
            return tile(f"newest {words}; no evaluation yet", show(value), main=True)
    return tile("result", "no evaluation yet")


def _reward_tiles(rows: Rows) -> list[str]:
    tiles: list[str] = []
    for metric, words in _REWARD_HEADLINES:
        value = last_value(rows, metric)
        if value is not None:
            tiles.append(tile(words, text.reward_value(metric, value), main=not tiles))
    loss = last_value(rows, "train/r_loss")
    return [*tiles, tile("final reward loss", text.number(loss))] if loss is not None else tiles


_REWARD_HEADLINES = [
    ("reward/AUC", "AUC, successes against failures (held out)"),
    ("reward/R2", "R² of held-out returns"),
    ("reward/correlation", "correlation with the hidden reward"),
]


def _replays(pages: Sequence[Page], policy: str) -> str:
    if not pages:
        return ""
    shown = f" of the policy @{safe(policy)}" if policy else ""
    hint = "Drag to turn, scroll to zoom, right-drag to move." if pages[0].turns else ""
    frames = "".join(map(_replay, pages))
    return f'<h2>Replay{shown}</h2><div class="replays">{frames}</div><p class="hint">{hint}</p>'


def _replay(page: Page) -> str:
    # Its scripts run, but in an origin of their own: they see nothing of the report or of other files.
    source = html.escape(page.html, quote=True)
    about = safe(page.about or "Episodes")
    style = " success" if page.about == "Successes" else " failure" if page.about == "Failures" else ""
    return (
        f'<div class="card replay"><div class="bar"><b class="about{style}">{about}</b>'
        '<button type="button" class="full">full screen</button></div>'
        f'<iframe title="{about}" loading="lazy" sandbox="allow-scripts" srcdoc="{source}"></iframe></div>'
    )


def _failures(run_dir: Path, measured: Measurement | None) -> str:
    if measured is not None:
        told = f"{measured_policy(measured)} on {measured_on(measured)}"
        return failures_section(episodes_of(measured.episodes, measured.words), told)
    step, episodes = newest_evaluation(run_dir / "episodes.jsonl")
    return failures_section(episodes, f"the newest evaluation, at step {step:,}")


def _evaluations(rows: Rows, display: Display) -> str:
    kind = "reward/" if is_reward_only(rows) else "eval/"
    found = [row for row in rows if any(name.startswith(kind) for name in row)]
    if not found:
        return '<h2>Evaluations</h2><div class="card note">No evaluation yet.</div>'
    told = [*_COLUMNS, *_measure_columns(display), *_LAST_COLUMNS]
    columns = [c for c in told if any(c[1] in row for row in found)] + _reward_columns(found)
    if kind == "reward/":
        columns[0] = ("batches", *columns[0][1:])
    best = _best(found)
    head = "".join(f"<th>{words}</th>" for words, _, _ in columns)
    lines = []
    for row in reversed(found):
        cells = "".join(
            f"<td>{safe(show(row)) if metric in row else text.MISSING}</td>" for _, metric, show in columns
        )
        lines.append(f'<tr class="best">{cells}</tr>' if row is best else f"<tr>{cells}</tr>")
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    chosen = f'<p class="hint">{_why_best(found, best)}</p>'
    return f'<h2>Evaluations</h2><div class="card scroll">{table}</div>{chosen}'


def _why_best(found: Rows, best: dict[str, float]) -> str:
    """By what the best policy was chosen."""
    if not any(name.startswith("eval/") for name in best):
        return "★ The best reward has the highest AUC (to two digits), then the highest R²."
    both = any(name.startswith("eval_stochastic/") for name in best)
    by = "success, then of reward" if "eval/success_rate" in best else "reward"
    ways = "the mean of deterministic and sampled actions" if both else "deterministic actions"
    success, reward = quality(best)
    mean = text.percent(success) if math.isfinite(success) else text.number(reward)
    words = f"★ Best: step {int(best['step']):,}, by the highest value of {by}, of {ways} ({mean})."
    rates = [row.get("eval/success_rate", -math.inf) for row in found]
    if both and max(rates) > best.get("eval/success_rate", math.inf):
        words += " Others did better with deterministic actions alone."
    return safe(words)


def _best(evaluations: Rows) -> dict[str, float]:
    """Of those of the last task, where a curriculum has several."""
    return max((row for row in evaluations if not is_other_task(row, evaluations[-1])), key=quality)


def _best_step(rows: Rows) -> int | None:
    """Of the evaluation whose policy was kept as the best."""
    found = [row for row in rows if any(name.startswith("eval/") for name in row)]
    return int(_best(found)["step"]) if found else None


def _measure_columns(display: Display) -> list[tuple[str, str, Any]]:
    return [(safe(m.label), f"eval/{m.metric}", lambda row, m=m: m.told(row, "eval/")) for m in display.headline]


def _reward_columns(rows: Rows) -> list[tuple[str, str, Any]]:
    names = text.reward_names(rows)[:_MOST_COLUMNS]
    return [(safe(text.reward_label(n)), n, lambda row, n=n: text.reward_value(n, row[n])) for n in names]


_COLUMNS: list[tuple[str, str, Any]] = [
    ("step", "step", lambda r: f"{int(r['step']):,}"),
    ("success (interval)", "eval/success_rate", lambda r: text.success_with_interval(r, "eval/")),
    ("unseen", "eval/test_success_rate", lambda r: text.success_with_interval(r, "eval/test_")),
    ("task", "eval/task", lambda r: text.number(r["eval/task"])),
    ("strict", "eval/success_strict", lambda r: text.percent(r["eval/success_strict"])),
]
_LAST_COLUMNS: list[tuple[str, str, Any]] = [  # after the task's own measures
    ("reward", "eval/mean_reward", lambda r: _plus_minus(r, "eval/")),
    ("length", "eval/mean_ep_length", lambda r: text.number(r["eval/mean_ep_length"])),
    ("episodes", "eval/episodes", lambda r: text.number(r["eval/episodes"])),
    (
        "stochastic success",
        "eval_stochastic/success_rate",
        lambda r: text.success_with_interval(r, "eval_stochastic/"),
    ),
    ("stochastic reward", "eval_stochastic/mean_reward", lambda r: _plus_minus(r, "eval_stochastic/")),
]


def _plus_minus(row: dict[str, float], prefix: str) -> str:
    spread = row.get(prefix + "std_reward")
    return text.number(row[prefix + "mean_reward"]) + (f" ± {text.number(spread)}" if spread is not None else "")


def _configuration(run_dir: Path, facts: Mapping[str, Any]) -> str:
    try:
        config = read_bounded(run_dir / "config.yaml", _MOST_BYTES).decode(errors="replace")
    except (OSError, LudusError):
        return '<h2>Configuration</h2><div class="card note">This run folder has no config.yaml.</div>'
    folded = f"<summary>config.yaml</summary><pre>{safe(config)}</pre>"
    return f'<h2>Configuration</h2>{_changed(facts)}<details class="card">{folded}</details>'


def _changed(facts: Mapping[str, Any]) -> str:
    """What is not as the preset has it."""
    changed = facts.get("changed")
    if not isinstance(changed, Mapping):
        return ""
    pairs = [(n, v) for n, v in changed.items() if isinstance(v, list) and len(v) == 2][:_MOST_FACTS]
    if not pairs:
        return '<div class="card note">Every setting is the preset\'s own.</div>'
    rows = "".join(
        f"<tr><td>{safe(plain_text(name, _LONGEST_FACT))}</td><td>{safe(_setting(before))}</td>"
        f"<td>{safe(_setting(now))}</td></tr>"
        for name, (before, now) in pairs
    )
    head = "<th>setting</th><th>preset</th><th>this run</th>"
    table = f'<table class="tight"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="card scroll">{table}</div>'


def _setting(value: Any) -> str:
    try:
        return plain_text(json.dumps(value), 200)
    except (ValueError, RecursionError):
        return "…"


def _run_facts(facts: Mapping[str, Any], trouble: str) -> str:
    note = f'<div class="note">{safe(trouble)}</div>' if trouble else ""
    told = {name: value for name, value in facts.items() if name not in ("changed", *_LABELS)}
    items = "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in _flat(told))
    if not items and not note:
        note = '<div class="note">No run.json: versions and machine are not known.</div>'
    return f'<h2>Run</h2><div class="card">{note}{f"<dl>{items}</dl>" if items else ""}</div>'


# Help -----------------------------------------------------------------------------------------------
def _facts(run_dir: Path) -> tuple[dict[str, Any], str]:
    """run.json, or why it cannot be read."""
    path = run_dir / "run.json"
    if not os.path.lexists(path):
        return {}, ""
    try:
        facts = parse_json(read_bounded(path, _MOST_BYTES))
    except (OSError, ValueError, LudusError) as error:
        return {}, f"run.json cannot be read: {error}."
    return (facts, "") if isinstance(facts, dict) else ({}, "run.json does not hold a JSON object.")


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    items: list[tuple[str, str]] = []
    for name, value in facts.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, Mapping) and prefix.count("·") < _DEEPEST:
            items += _flat(value, f"{label} · ")
        elif value is not None:
            items.append((label, _shown(value)))
        if len(items) >= _MOST_FACTS:
            break
    return items


def _shown(value: Any) -> str:
    """A fact in words; what is nested further than facts are is left out."""
    if isinstance(value, list):
        return ", ".join(_shown(v) for v in value[:_MOST_FACTS] if not isinstance(v, list))
    return "…" if isinstance(value, Mapping) else "" if value is None else plain_text(str(value), _LONGEST_FACT)


def _subtitle(run_dir: Path, facts: Mapping[str, Any]) -> str:
    parts = [str(run_dir)]
    if "seed" in facts:
        parts.append(f"seed {_shown(facts['seed'])}")
    if "started" in facts:
        parts.append(f"started {_shown(facts['started'])}")
    return " · ".join(parts)


def _labels(facts: Mapping[str, Any]) -> str:
    """What the user calls the run, and says of it."""
    name, tags, note = (_shown(facts.get(label)) for label in _LABELS)
    told = " · ".join(
        part for part in (name, ", ".join(f"#{tag}" for tag in tags.split(", ") if tag), note) if part
    )
    return f"<p>{safe(told)}</p>" if told else ""
