"""What a user's callbacks see of a training, what they log, and how they end it."""

import io
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import ludus
from ludus.envs.vec import EndedEpisode, Step
from ludus.errors import LudusError
from ludus.show.console import Console
from ludus.training.loop import Trainer

SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "ppo.horizon": 64,
    "ppo.minibatches": 2,
    "ppo.update_epochs": 1,
    "loop.total_steps": 512,
    "eval.every": 512,
    "eval.episodes": 1,
    "eval.stochastic": False,
    "eval.final_episodes": 0,
    "log.tensorboard": False,
    "log.report": False,
}
REPLAY = {name: value for name, value in SMALL.items() if not name.startswith("ppo.")}
REPLAY |= {"replay.warmup": 64, "replay.steps": 128, "replay.train_batches": 2, "replay.batch_size": 8}


class Progress(ludus.Callback):
    """An SB3 user's first callback, as docs/metrics.md has it."""

    def __init__(self) -> None:
        self.successes, self.rewards = 0, deque[float](maxlen=100)

    def on_episode(self, run: Trainer, episode: EndedEpisode) -> None:
        self.successes += episode.success
        self.rewards.append(episode.reward)
        run.log("custom/success_count", self.successes)
        run.log("custom/avg_reward_100", sum(self.rewards) / len(self.rewards))


def rows_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").open()]


def train(folder: Path, *callbacks: ludus.Callback, algo: str = "ppo", **more: Any) -> ludus.Run:
    small = SMALL if algo == "ppo" else REPLAY
    settings = small | {name.replace("__", "."): value for name, value in more.items()}
    return ludus.train("gym:CartPole-v1", folder, callbacks, Console("quiet"), algo=algo, overrides=settings)


def test_what_is_logged_is_in_every_view(tmp_path: Path) -> None:
    screen = io.StringIO()
    settings = SMALL | {"log.tensorboard": True}
    console = Console("plain", screen)
    run = ludus.train("gym:CartPole-v1", tmp_path / "run", [Progress()], console, overrides=settings)
    steps, rewards = run.metrics["custom/avg_reward_100"]
    assert len(steps) == 4
    assert run.metrics["custom/success_count"].values.tolist() == [0, 0, 0, 0], "CartPole tells of none"
    events = EventAccumulator(str(run / "tb"))
    events.Reload()
    assert [e.value for e in events.Scalars("custom/avg_reward_100")] == pytest.approx(rewards)
    assert "avg reward 100" in screen.getvalue()


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_finished_episodes_are_those_that_the_metrics_count(algo: str, tmp_path: Path) -> None:
    class Watch(ludus.Callback):
        def __init__(self) -> None:
            self.episodes: list[EndedEpisode] = []
            self.steps: list[Step] = []

        def on_episode(self, run: Trainer, episode: EndedEpisode) -> None:
            self.episodes.append(episode)

        def on_step(self, run: Trainer, step: Step) -> None:
            self.steps.append(step)

    watch = Watch()
    run = train(tmp_path / "run", watch, algo=algo)
    rows = [row for row in rows_of(run) if "rollout/episodes" in row]
    assert sum(row["rollout/episodes"] for row in rows) == len(watch.episodes) > 0
    total = sum(row["rollout/episodes"] * row["rollout/ep_rew_mean"] for row in rows if row["rollout/episodes"])
    assert total == pytest.approx(sum(episode.reward for episode in watch.episodes))
    assert all(episode.reward == episode.length for episode in watch.episodes), "CartPole pays 1 a step"
    assert sum(len(step.reward) for step in watch.steps) == run.metrics["time/fps"].steps[-1]


def test_a_value_is_averaged_over_a_cycle_and_none_is_lost(tmp_path: Path) -> None:
    class Log(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            for value in (run.counters.iteration, torch.tensor(3.0), np.float32(2.0), float("nan")):
                run.log("custom/x", value)

        def on_cycle(self, run: Trainer, metrics: dict[str, float]) -> None:
            run.log("custom/late", run.counters.iteration)

    rows = rows_of(train(tmp_path / "run", Log()))
    assert [row["custom/x"] for row in rows if "custom/x" in row] == [(i + 5) / 3 for i in (1, 2, 3, 4)]
    assert [row["custom/late"] for row in rows if "custom/late" in row] == [1, 2, 3, 4], (
        "the last in a row of its own"
    )


def test_what_is_no_number_is_one_sentence(tmp_path: Path) -> None:
    class Wrong(ludus.Callback):
        def on_start(self, run: Trainer) -> None:
            run.log("custom/x", [1, 2])

    with pytest.raises(LudusError, match=r"run\.log\('custom/x', …\): a list is not one number"):
        train(tmp_path / "run", Wrong())


@pytest.mark.parametrize("moment", ["on_step", "on_episode"])
def test_a_callback_ends_the_training(moment: str, tmp_path: Path) -> None:
    class Stop(ludus.Callback):
        pass

    setattr(Stop, moment, lambda self, run, what: run.step < 128)
    run = train(tmp_path / "run", Stop())
    assert [row["step"] for row in rows_of(run)] == [128, 256], "after the iteration in which it was said"
    assert not (run / "final").exists()
    run.resume(console=Console("quiet"))
    assert rows_of(run)[-1]["step"] == 512


def test_what_was_logged_before_a_stop_is_in_the_resumed_row(tmp_path: Path) -> None:
    class Log(ludus.Callback):
        def __init__(self, stop: int) -> None:
            self.stop = stop

        def on_iteration(self, run: Trainer) -> bool:
            run.log("custom/x", run.counters.iteration)
            return run.counters.iteration != self.stop

    whole = train(tmp_path / "whole", Log(-1), loop__iterations=2)
    cut = train(tmp_path / "cut", Log(1), loop__iterations=2)
    cut.resume(callbacks=[Log(-1)], console=Console("quiet"))
    assert cut.metrics["custom/x"].values.tolist() == whole.metrics["custom/x"].values.tolist() == [1.5, 3.5]
