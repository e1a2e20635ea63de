"""What a run tells of itself while it goes: how far it is, how often it evaluates, what an epoch came to."""

import itertools
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ludus
from humanoid_envs import flight_clip, standing_clip
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.cli import run_verb
from ludus.config import EvalConfig, LoopConfig, make_plan
from ludus.envs.humanoid.clip import save_clip
from ludus.presets import all_presets
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.show.run_state import Level
from ludus.training.loop import Trainer
from test_data import write_libero

ROOT = Path(__file__).parents[1]
Settings = dict[str, Any]
QUIET: Settings = {"log.report": False, "log.tensorboard": False, "eval.episodes": 2}


class Watched(Console):
    """Remembers how many batches of an iteration it was shown, and the lines it was told."""

    def __init__(self) -> None:
        super().__init__("quiet")
        self.batches: list[int] = []
        self.lines: list[str] = []

    def levels(self, levels: Any) -> None:
        super().levels(levels)
        self.batches.append({level.name: level for level in map(Level._make, levels)}["batch"].done)

    def message(self, line: str) -> None:
        self.lines.append(line)

    def warning(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(
    "settings",
    [
        {"ppo.update_epochs": 3, "ppo.minibatches": 4},
        {"ppo.update_epochs": 3, "ppo.minibatches": 4, "policy.memory": "gru"},
    ],
    ids=["steps", "segments"],
)
def test_the_batches_of_an_update_are_shown_one_by_one(tmp_path: Path, settings: Settings) -> None:
    screen = Watched()
    short = {"loop.total_steps": 32, "env.num_envs": 4, "ppo.horizon": 8} | settings | QUIET
    ludus.train("gym:CartPole-v1", tmp_path / "run", console=screen, overrides=short)
    assert screen.batches == [*range(13), 12], "the rollout, twelve gradient steps, the end"


ONCE: Settings = {"loop.epochs": 1, "loop.cycles": 1, "loop.iterations": 1, "train_batches": 1}
TRIALS: dict[str, tuple[str, str, Settings]] = {
    "rrd": ("rrd-mujoco:Pendulum-v1", "", {}),
    "rrd, normalised": ("rrd-mujoco:Pendulum-v1", "", {"reward.normalize_returns": True}),
    "sac": ("gym:Pendulum-v1", "sac", {}),
    "dqn": ("gym:CartPole-v1", "dqn", {}),
}


@pytest.mark.parametrize("trial", TRIALS)
def test_once_of_everything_trains_one_batch_whatever_the_warm_up(tmp_path: Path, trial: str) -> None:
    preset, algo, settings = TRIALS[trial]
    screen = Watched()
    named: Settings = {"algo": algo} if algo else {}
    run = ludus.train(preset, tmp_path / "run", console=screen, overrides=ONCE | QUIET | settings, **named)
    row = next(row for row in read_metrics(run / "metrics.jsonl") if "loop/cycle" in row)
    assert np.isfinite(row["train/loss" if algo == "dqn" else "train/critic_loss"])
    if not algo:
        assert len(np.fromfile(run / "R_loss.f32", "<f4")) == 1
        assert row["Timesteps"] >= 200, "until an episode had ended"
    assert any("not shorter than the training" in line for line in screen.lines)


def test_an_epoch_of_a_learned_reward_ends_with_its_mean_loss(tmp_path: Path) -> None:
    screen = Watched()
    loop: Settings = {"loop.epochs": 2, "loop.cycles": 2, "loop.iterations": 3, "train_batches": 4}
    data = {"data": str(write_libero(tmp_path / "demos.hdf5")), "data.keys": ("joint_states",)}
    run = ludus.train("rrd-libero", tmp_path / "run", console=screen, overrides=loop | QUIET | data)
    losses = np.fromfile(run / "R_loss.f32", "<f4").reshape(2, 24)
    told = [line for line in screen.lines if line.startswith("epoch")]
    means = losses.astype(float).mean(1)
    assert told == [
        f"epoch {number} of 2: mean R_loss {mean:.4g} over 24 batches" for number, mean in enumerate(means, 1)
    ]


@pytest.mark.parametrize(
    ("steps", "asked", "every"),
    [(2048, 5_000, 4_096), (2048, 7_000, 6_144), (1000, 5_000, 5_000), (9000, 5_000, 9_000)],
)
def test_evaluations_come_as_near_to_what_was_asked_as_iterations_allow(
    steps: int, asked: int, every: int
) -> None:
    config = PPOTrainConfig(loop=LoopConfig(total_steps=200_000), eval=EvalConfig(every=asked))
    plan = make_plan(config, steps, 1)
    assert plan.iterations_per_epoch * steps == every
    told = [f"evaluation every {every:,} steps ({asked:,} asked)"] if every != asked else []
    assert plan.lines()[1:] == told


def test_presets_keep_epochs_of_equal_length() -> None:
    kuka = all_presets()["kuka-pick-place"].config
    assert make_plan(kuka, 4096, 40).iterations_per_epoch == 13


class Shares(ludus.Callback):
    """Which share of the starts the first clip has, after each iteration."""

    def __init__(self) -> None:
        self.of_first: list[float] = []

    def on_iteration(self, run: Trainer) -> None:
        env: Any = run.job.collector.groups[0].env  # type: ignore[attr-defined]
        self.of_first.append(float(env.starts.shares()[0]))


def test_the_starts_of_clips_move_at_an_interval_of_their_own(tmp_path: Path) -> None:
    (clips := tmp_path / "clips").mkdir()
    save_clip(standing_clip(seconds=0.5), clips / "stand.npz")
    save_clip(flight_clip(), clips / "flight.npz")
    settings: Settings = {
        "env.clips": str(clips), "env.num_envs": 8, "env.threads": 1, "ppo.horizon": 8, "ppo.minibatches": 1,
        "ppo.update_epochs": 1, "policy.hidden": (8,), "loop.total_steps": 64 * 6, "eval.every": 64 * 6,
        "env.resample_every": 64 * 2, "groups": 1,
    }  # fmt: skip
    shares = Shares()
    run = ludus.train("humanoid-mimic", tmp_path / "run", [shares], Console("quiet"), overrides=settings | QUIET)
    changed = [number for number, pair in enumerate(itertools.pairwise(shares.of_first), 2) if pair[0] != pair[1]]
    assert changed == [2, 4, 6]
    assert sum("eval/success_rate" in row for row in read_metrics(run / "metrics.jsonl")) == 1


def test_kuka_sb3_is_the_described_recipe_to_the_letter() -> None:
    config = all_presets()["kuka-sb3"].config
    assert isinstance(config, PPOTrainConfig)
    steps = config.env.num_envs * config.ppo.horizon
    assert (steps, steps // config.ppo.minibatches, config.ppo.update_epochs) == (2_048, 64, 10)
    assert (config.policy.hidden, config.policy.activation) == ((64, 64), "tanh")
    assert config.loop.total_steps == 200_000
    assert (config.eval.every, config.eval.episodes) == (5_000, 10)
    assert (config.checkpoint.every, config.checkpoint.keep) == (10_000, "all")
    env: Any = config.env
    assert (env.fixed, env.assist, env.max_steps) == (True, 0.0, 200)
    plan = make_plan(config, steps, 320)
    assert plan.lines()[1] == "evaluation every 4,096 steps (5,000 asked)"


def test_doctor_knows_every_extra_that_a_user_may_install(capsys: pytest.CaptureFixture[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    with pytest.raises(SystemExit):
        run_verb("doctor", [])
    lines = capsys.readouterr().out.splitlines()
    wanted = extras.keys() - {"all", "bench", "dev", "docs"}
    assert {line.split()[0] for line in lines if line.startswith("  ")} >= wanted
