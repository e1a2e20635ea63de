"""What a program says and gets: `ludus.train` of any environment, the `Run` it returns, names without sections."""

import copy
import json
import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import TimeLimit

import ludus
from ludus.envs import given
from ludus.envs.check import check_env
from ludus.envs.gym.vector import VectorRows
from ludus.envs.importing import find_callable
from ludus.envs.vec import EpisodeStats, VecEnv
from ludus.errors import CheckpointError, ConfigError, LudusError
from ludus.run import Environment
from ludus.saved_run import run_config
from ludus.show.console import Console
from stopped_runs import StopAfter

SMALL: dict[str, Any] = {
    "env.num_envs": 2,
    "ppo.horizon": 16,
    "ppo.minibatches": 2,
    "ppo.update_epochs": 1,
    "loop.total_steps": 96,
    "eval.every": 96,
    "eval.episodes": 2,
    "eval.stochastic": False,
    "eval.max_steps": 50,
    "eval.final_episodes": 0,
    "log.tensorboard": False,
    "log.report": False,
}


class Follow(gym.Env):
    """Move a point on a line to a mark."""

    observation_space = gym.spaces.Box(-4.0, 4.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, pace: float = 0.2) -> None:
        self.pace = pace

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.point, self.mark = self.np_random.uniform(-1.0, 1.0, 2)
        return self._seen(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.point = float(np.clip(self.point + self.pace * action[0], -2.0, 2.0))
        distance = abs(self.point - self.mark)
        return self._seen(), -distance, bool(distance < 0.05), False, {"is_success": bool(distance < 0.05)}

    def _seen(self) -> np.ndarray:
        return np.array([self.point, self.mark], np.float32)


class Locked(Follow):
    """Holds what cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def make_follow() -> gym.Env:
    return TimeLimit(Follow(), 20)


def make_rows(num_envs: int) -> VectorEnv:
    return SyncVectorEnv([make_follow] * num_envs)


class Untouched(VectorWrapper):
    """So that it is no longer known what the environment is made of."""


def train(env: Environment, folder: Path, **more: Any) -> ludus.Run:
    return ludus.train(env, folder, console=Console("quiet"), overrides=SMALL, **more)


OBJECTS: dict[str, Any] = {
    "a class": Follow,
    "a function": make_follow,
    "a lambda": lambda: TimeLimit(Follow(0.3), 20),
    "an instance": TimeLimit(Follow(0.1), 20),
    "one of gym.make": gym.make("MountainCarContinuous-v0", max_episode_steps=20),
    "SyncVectorEnv": SyncVectorEnv([lambda: make_follow()] * 2),
    "another VectorEnv": Untouched(SyncVectorEnv([make_follow] * 2)),
    "a function that makes a VectorEnv": make_rows,
}


@pytest.mark.parametrize("what", OBJECTS)
def test_a_program_trains_in_what_it_has(what: str, tmp_path: Path) -> None:
    run = train(OBJECTS[what], tmp_path / "run")
    assert run.evaluate(episodes=2)["episodes"] == 2
    assert run.policy().act(np.zeros(2, np.float32)).shape == (1,)


def test_a_class_of_a_module_is_found_again_by_its_name(tmp_path: Path) -> None:
    run = train(Follow, tmp_path / "run")
    env = run_config(run).env
    assert getattr(env, "id", "") == "test_python_face:Follow"
    assert getattr(env, "imports", ()) == ("test_python_face",)
    assert (run / "trust.json").exists(), "and only whoever trained it may import it without a word"


def test_settings_of_a_registered_environment_go_with_its_instance(tmp_path: Path) -> None:
    run = ludus.train(gym.make("CartPole-v1"), tmp_path / "run", console=Console("quiet"), total_steps=256)
    tuned = run_config(ludus.train("gym:CartPole-v1", tmp_path / "id", console=Console("quiet"), total_steps=256))
    assert (run_config(run).ppo, run_config(run).env.num_envs) == (tuned.ppo, tuned.env.num_envs)  # type: ignore[attr-defined]


def rewards_of(run: ludus.Run) -> list[float]:
    return [row.get("rollout/ep_rew_mean", 0.0) for row in map(json.loads, (run / "metrics.jsonl").open())]


@pytest.mark.parametrize("what", ["a lambda", "another VectorEnv"])
def test_an_object_without_a_name_is_handed_over_again(what: str, tmp_path: Path) -> None:
    whole = train(OBJECTS[what], tmp_path / "whole")
    cut = train(OBJECTS[what], tmp_path / "cut", callbacks=[StopAfter(1)])
    given._GIVEN.clear()  # as in another program
    with pytest.raises(ConfigError, match=r"ludus\.resume\(RUN, env="):
        ludus.resume(cut, console=Console("quiet"))
    with pytest.raises(ConfigError, match=r"ludus\.Run\(RUN, env="):
        cut.evaluate(episodes=1)
    resumed = ludus.resume(cut, console=Console("quiet"), env=OBJECTS[what])
    assert rewards_of(resumed) == rewards_of(whole)
    assert any(rewards_of(whole))
    told = resumed.evaluate(2)
    given._GIVEN.clear()
    assert ludus.Run(whole, env=OBJECTS[what]).evaluate(2) == told


def test_another_environment_than_that_of_the_run_is_refused(tmp_path: Path) -> None:
    run = train(OBJECTS["a lambda"], tmp_path / "run")
    with pytest.raises(ConfigError, match="was trained in gym:"):
        ludus.Run(run, env=make_rows)
    named = train(Follow, tmp_path / "named")
    ludus.Run(named, env=Follow)
    with pytest.raises(ConfigError, match="leave env out"):
        ludus.Run(named, env=Locked)


def test_what_is_no_environment_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Locked cannot be copied .*ludus\.train\(lambda: Locked"):
        train(Locked(), tmp_path / "run")
    with pytest.raises(ConfigError, match="int is no environment"):
        train(3, tmp_path / "run")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"dict\(\) makes a dict"):
        train(dict, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_strangers_run_gets_nothing_by_an_object_that_nobody_handed_over(tmp_path: Path) -> None:
    run = train(OBJECTS["a lambda"], tmp_path / "run")
    text = (run / "config.yaml").read_text()
    name = str(getattr(run_config(run).env, "id", ""))
    (run / "config.yaml").write_text(text.replace(name, "<os 123456>"))
    with pytest.raises(ConfigError, match="handed over by a program"):
        run.evaluate(episodes=1)


def test_a_function_of_the_script_that_runs_is_found_by_the_scripts_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ModuleType("__main__")
    script.__file__ = str(tmp_path / "my_script.py")
    exec("def make(): return None", vars(script))
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert find_callable("my_script:make", "", "Gymnasium environment", ("Env",)) is script.make


# Vector environments ----------------------------------------------------------------------------
def rows_of(mode: AutoresetMode, number: int = 2) -> VecEnv:
    make = lambda: gym.make("CartPole-v1", max_episode_steps=15)  # noqa: E731
    return VectorRows(SyncVectorEnv([make] * number, autoreset_mode=mode), f"vec:{mode.value}")


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_rows_of_a_vector_environment_keep_the_contract(mode: AutoresetMode) -> None:
    findings = check_env(lambda number: rows_of(mode, number), steps=60)
    assert [finding for finding in findings if finding.level == "error"] == []


def test_filler_rows_of_a_vector_environment_count_for_nothing() -> None:
    told = []
    for mode in AutoresetMode:
        env = rows_of(mode)
        env.reset(0)
        stats = EpisodeStats(2, env.device)
        ended = 0
        while ended < 6:
            present = None if env.present is None else env.present.clone()
            action = np.ones(2, np.int64)
            step = env.step(torch.from_numpy(action))
            stats.update(step, present)
            ended += int(step.done.sum())
        told.append(stats.read())
        env.close()
    assert told[0]["ep_rew_mean"] == told[0]["ep_len_mean"], "CartPole pays 1 a step"
    assert told[0] == told[1] == told[2]


def test_a_vector_environment_keeps_its_number_of_rows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"handed over with 2 environments and cannot be made with 1: leave"):
        train(OBJECTS["another VectorEnv"], tmp_path / "run", groups=2)


# The run ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ludus.Run:
    return train("gym:CartPole-v1", tmp_path_factory.mktemp("face") / "run")


def test_a_run_is_a_path(run: ludus.Run) -> None:
    assert isinstance(run, Path)
    assert Path(run) == run.path == run
    assert not isinstance(run / "config.yaml", ludus.Run)
    assert (run / "config.yaml").read_text() == run.joinpath("config.yaml").read_text()
    assert str(ludus.Run(str(run))) == str(run)
    assert copy.deepcopy(run) == pickle.loads(pickle.dumps(run)) == run


def test_a_run_is_where_another_training_starts(run: ludus.Run, tmp_path: Path) -> None:
    tuned = train("gym:CartPole-v1", tmp_path / "tuned", start_from=run)
    assert run_config(tuned).start_from.startswith(str(run))


def test_a_run_goes_on_meaning_the_checkpoint_that_it_was_opened_with(tmp_path: Path) -> None:
    every = {**SMALL, "eval.every": 32, "checkpoint.keep": "all"}
    whole = ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), overrides=every)
    first = ludus.Run(f"{whole}@32")
    weights = first.policy(32).state_dict()["head.linear.weight"]
    for again in (ludus.load(first), ludus.Run(first).policy(), pickle.loads(pickle.dumps(first)).policy()):
        assert torch.equal(again.state_dict()["head.linear.weight"], weights)
    assert first.report().name == "report@32.html"
    with pytest.raises(CheckpointError, match="no checkpoint at step 0"):
        first.policy(0)
    assert run_config(train("gym:CartPole-v1", tmp_path / "tuned", start_from=first)).start_from.endswith("@32")
    went_on = first.resume(total_steps=64, console=Console("quiet"))
    assert (went_on.which, (first / "set_aside" / "1").is_dir()) == ("", True)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run of Ludus"):
        ludus.Run(tmp_path)


def test_trainings_that_begin_in_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    first, second = (ludus.train(Follow, quiet=True, overrides=SMALL) for _ in range(2))
    assert all(line.startswith("WARNING") for line in capsys.readouterr().out.splitlines())
    assert (first.name, second.name) == ("20260101-120000-0", "20260101-120000-0-2")


def test_metrics_of_a_run_are_curves(run: ludus.Run) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    steps, values = run.metrics["train/value_loss"]
    assert steps.tolist() == [32, 64, 96]
    assert values.tolist() == [row["train/value_loss"] for row in rows if "train/value_loss" in row]
    assert len(run.metrics["eval/mean_reward"].steps) == 1


def test_a_metric_that_is_not_there_is_answered_with_the_nearest_names(run: ludus.Run) -> None:
    with pytest.raises(KeyError, match=r"no metric 'eval/reward'\. Did you mean .*'eval/mean_reward'"):
        run.metrics["eval/reward"]
    with pytest.raises(KeyError, match=r"no metric '\?'\. It has .*eval/mean_reward, .*train/value_loss"):
        run.metrics["?"]
    assert run.metrics.get("eval/reward") is None


def test_policies_of_a_run_go_by_name_and_step(run: ludus.Run) -> None:
    best, final, last = (run.policy(which).state_dict() for which in ("best", "final", 96))
    assert all(torch.equal(final[name], last[name]) for name in final)
    assert best.keys() == final.keys()
    assert ludus.Run(f"{run}@final").evaluate(2) == run.evaluate(2, which="final")
    with pytest.raises(CheckpointError, match="95"):
        run.policy(95)


def test_a_run_evaluates_reports_and_goes_on(run: ludus.Run, tmp_path: Path) -> None:
    told = run.evaluate(episodes=3)
    assert told["episodes"] == 3
    assert told == ludus.Run(run).evaluate(episodes=3), "on the same starts"
    assert told != run.evaluate(episodes=3, seed=5)
    assert run.report() == run / "report.html"
    own = train("gym:CartPole-v1", tmp_path / "run")
    assert own.resume(total_steps=2e2, console=Console("quiet")) is own
    assert own.metrics["train/value_loss"].steps[-1] >= 200


# Names ------------------------------------------------------------------------------------------
def test_a_setting_that_one_section_has_needs_no_section(tmp_path: Path) -> None:
    flat: dict[str, Any] = {
        "learning_rate": 1e-4,
        "total_steps": 2e2,
        "hidden": (8,),
        "num_envs": np.int64(4),
        "horizon": 8,
    }
    config = run_config(
        ludus.train("gym:CartPole-v1", tmp_path / "run", console=Console("quiet"), log=SMALL_LOG, **flat)
    )
    assert (config.loop.total_steps, config.policy.hidden, config.env.num_envs) == (200, (8,), 4)
    assert (config.ppo.learning_rate, config.ppo.horizon) == (1e-4, 8)  # type: ignore[attr-defined]


SMALL_LOG = {"tensorboard": False, "report": False}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"every": 100}, "'every' is a setting of eval and checkpoint"),
        ({"learning_rte": 1e-3}, "Did you mean 'learning_rate'"),
        ({"total_steps": 2.5}, "it must be int"),
        ({"batch_sice": 64}, "unknown setting 'batch_sice'"),
    ],
)
def test_a_name_that_does_not_work_gets_the_right_one(
    given: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(LudusError, match=sentence):
        ludus.train("gym:CartPole-v1", tmp_path / "run", **given)
