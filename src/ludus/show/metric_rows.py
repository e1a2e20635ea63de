"""Rows of metrics.jsonl as pages read them: one name for a metric, and what a step means."""

import math

from ludus.show.jsonl import MOST_STEPS

Rows = list[dict[str, float]]

# What return decomposition is told by elsewhere, and our name for the same number (or none: a mere counter).
PUBLIC_NAMES = {
    "R_loss": "train/r_loss",
    "Q_loss": "train/critic_loss",
    "Pi_loss": "train/actor_loss",
    "Epoch": "",
    "Cycle": "",
    "Timesteps": "",
}


def with_one_name(rows: Rows) -> Rows:
    """Losses that have only their public name get ours too."""
    for row in rows:
        row.update(
            {ours: row[name] for name, ours in PUBLIC_NAMES.items() if ours and name in row and ours not in row}
        )
    return rows


def is_reward_only(rows: Rows) -> bool:
    """Whether a reward was learned from recorded data, without anybody acting."""
    names = {name for row in rows for name in row}
    if any(name.startswith(("rollout/", "eval/")) for name in names):
        return False
    return "train/r_loss" in names or any(name.startswith("reward/") for name in names)


def counts_batches(rows: Rows) -> bool:
    """Whether what was learned from lay in files: a step is a batch then."""
    names = {name for row in rows for name in row}
    return any(name.startswith("train/") for name in names) and not any(n.startswith("rollout/") for n in names)


def along_batches(rows: Rows) -> Rows:
    """Rows by how much was trained: their step may be the size of the store, which never changes."""
    if all(abs(row.get("loop/batches", math.nan)) <= MOST_STEPS for row in rows):
        return [row | {"step": row["loop/batches"]} for row in rows]
    if len({row["step"] for row in rows}) > 1 or len(rows) < 2:
        return rows
    return [row | {"step": i} for i, row in enumerate(rows, start=1)]


def last_value(rows: Rows, metric: str) -> float | None:
    return next((row[metric] for row in reversed(rows) if math.isfinite(row.get(metric, math.nan))), None)
