"""One name a thing, and where Stable-Baselines3 logs the same thing, its name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ludus
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.show.meanings import MEANINGS, meaning
from ludus.show.report import write_report

ON_POLICY = {
    "rollout/ep_rew_mean",
    "rollout/ep_len_mean",
    "eval/mean_reward",
    "eval/mean_ep_length",
    "time/fps",
    "time/iterations",
    "time/time_elapsed",
    "train/approx_kl",
    "train/clip_fraction",
    "train/entropy_loss",
    "train/explained_variance",
    "train/learning_rate",
    "train/loss",
    "train/policy_gradient_loss",
    "train/value_loss",
}


def scalars(run: Path) -> dict[str, float]:
    """The newest value of every scalar that TensorBoard shows."""
    events = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0}).Reload()
    return {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}


def test_ppo_logs_under_the_names_of_stable_baselines3(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"loop.total_steps": 512, "env.num_envs": 4, "ppo.horizon": 64, "eval.episodes": 2}
    settings |= {"ppo.entropy_coef": 0.1, "ppo.entropy_coef_final": 0.1, "log.report": False}
    run = ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=settings)
    shown = scalars(run)
    assert shown.keys() >= ON_POLICY
    rows = read_metrics(run / "metrics.jsonl")
    assert {name for row in rows for name in row} - {"step"} == shown.keys(), "the same names in both files"
    assert [name for name in shown if meaning(name) is None] == [], "the reference knows them all"
    assert -math.log(2) <= shown["train/entropy_loss"] < 0, "minus the entropy of two choices"
    parts = shown["train/policy_gradient_loss"], 0.5 * shown["train/value_loss"], 0.1 * shown["train/entropy_loss"]
    assert shown["train/loss"] == pytest.approx(sum(parts), rel=1e-4)


def test_the_nearest_name_tells_what_a_metric_means() -> None:
    assert meaning("eval_stochastic/mean_reward") == meaning("final/mean_reward") == MEANINGS["eval/mean_reward"]
    assert meaning("rollout/reward/time") == MEANINGS["rollout/reward/NAME"]
    assert meaning("nobody/knows") is None


PPO = {"train/policy_loss": -0.1, "train/entropy": 1.5, "train/entropy_coef": 0.01, "time/elapsed_s": 7.0}
SAC = {"train/q_loss": 2.0, "train/pi_loss": 3.0, "train/entropy": -4.0, "train/alpha": 0.5}
DQN = {"train/q_loss": 2.0, "train/q_mean": 3.0}
EVALUATION = {"eval/mean_length": 90.0, "eval_stochastic/mean_length": 80.0, "eval/mean_reward": 1.0}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (PPO, {"policy_gradient_loss": -0.1, "entropy_loss": -1.5, "ent_coef": 0.01}),
        (SAC, {"critic_loss": 2.0, "actor_loss": 3.0, "entropy": -4.0, "ent_coef": 0.5}),
        (DQN, {"loss": 2.0, "q_mean": 3.0}),
    ],
    ids=["ppo", "sac", "dqn"],
)
def test_rows_of_older_runs_are_read_by_the_names_of_now(
    tmp_path: Path, old: dict[str, float], new: dict[str, float]
) -> None:
    file = tmp_path / "metrics.jsonl"
    file.write_text(json.dumps({"step": 8, **old}) + "\n")
    (row,) = read_metrics(file)
    assert {name.removeprefix("train/"): value for name, value in row.items() if name.startswith("train/")} == new


def test_the_report_draws_an_older_run(tmp_path: Path) -> None:
    rows = [{"step": 8, **PPO}, {"step": 8, **EVALUATION}, {"step": 16, **PPO}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = write_report(tmp_path).read_text()
    for title in ("Policy gradient loss", "Entropy loss", "Entropy coefficient", "Episode length (steps)"):
        assert f"<b>{title}</b>" in page
    assert "<td>90</td>" in page, "the length of the evaluation's episodes"
    assert "<b>0:07</b><span>training time</span>" in page
