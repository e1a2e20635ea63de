"""Folders of runs as a training leaves them, written by Ludus' own writers, without the training."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from ludus.config_files import PlainDumper
from ludus.show.jsonl import JsonlSink
from ludus.show.results import Measurement, keep_measurement
from ludus.training.run_folder import CHECKPOINTS, CONFIG, FINAL, RESULTS, point

STEPS = 1_000  # between two evaluations


def write_run(
    folder: Path,
    seed: int = 0,
    values: Sequence[float] = (10.0, 60.0, 100.0),
    metric: str = "eval/mean_reward",
    finished: bool = True,
    measured: float | None = None,
    facts: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A run whose evaluations gave these values; `settings`: ppo={"gamma": 0.9}."""
    sink = JsonlSink(folder / "metrics.jsonl")
    for i, value in enumerate(values, start=1):
        sink.write(STEPS * i, {"rollout/ep_rew_mean": value / 2, "time/time_elapsed": 10.0 * i})
        sink.write(STEPS * i, {metric: value})
    sink.close()
    task = {"kind": "gym", "id": "CartPole-v1", "num_envs": 8}
    told = {"algo": "ppo", "seed": seed, "env": task, "log": {"report": seed > 0}, **settings}
    (folder / CONFIG).write_text(yaml.dump(told, Dumper=PlainDumper))
    (folder / "run.json").write_text(json.dumps({"seed": seed, "commit": "1a2b3c", **(facts or {})}))
    last = folder / CHECKPOINTS / f"step_{STEPS * len(values):09}"
    last.mkdir(parents=True)
    point(folder / CHECKPOINTS / "best", last)
    if finished:
        point(folder / FINAL, last)
    if measured is not None:
        keep(folder, {metric.partition("/")[2]: measured}, seed)
    return folder


def keep(folder: Path, result: dict[str, float], seed: int, episodes: int = 100) -> None:
    """A measurement of the run's best policy on new starts."""
    best = (folder / CHECKPOINTS / "best").readlink().name
    step = int(best.removeprefix("step_"))
    result = result | {"episodes": episodes}
    keep_measurement(folder / RESULTS, Measurement("train", best, step, step, True, "deterministic", seed, result))
