"""The end of a training: the result on new starts, every evaluated episode on record, and what failed."""

import base64
import html
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import ludus
from humanoid_envs import Still, make, standing_clip, walk_clip
from ludus import cli
from ludus.config import EvalConfig, TrainConfig
from ludus.envs.abilities import describe_starts, names_of_few
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.showing import drawable_env, make_shown_env
from ludus.errors import ConfigError
from ludus.measuring import cast_of, final_episodes, measure_run
from ludus.provenance import command_line, commit_of, differences
from ludus.saved_run import run_config
from ludus.show import episode_log, results, text
from ludus.show.console import Console
from ludus.show.episode_log import EpisodeLog
from ludus.show.jsonl import read_metrics
from ludus.show.playback import Page
from ludus.show.report import write_report
from ludus.show.result_text import failure_lines, failures_of, measured_on, measured_policy, told_start
from ludus.show.results import (
    Measurement,
    episodes_of,
    forget_later,
    headline,
    keep_measurement,
    newest_evaluation,
    read_measurements,
)
from ludus.show.text import best_mark
from ludus.training.evaluator import evaluate
from ludus.training.loop import Trainer
from ludus.viewing import _Live, play_cast
from stopped_runs import StopAfter
from test_hostile_pages import _ODD

KUKA: dict[str, Any] = {
    "env.num_envs": 8,
    "env.max_steps": 20,
    "ppo.minibatches": 2,
    "ppo.update_epochs": 1,
    "loop.total_steps": 512,
    "eval.every": 128,
    "eval.episodes": 4,
    "eval.final_episodes": 6,
    "log.report": False,
    "log.tensorboard": False,
}
CARTPOLE: dict[str, Any] = {
    "env.num_envs": 4,
    "ppo.horizon": 8,
    "ppo.minibatches": 2,
    "loop.total_steps": 256,
    "eval.every": 64,
    "eval.episodes": 3,
    "log.report": False,
    "log.tensorboard": False,
}


@pytest.fixture(scope="module")
def kuka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ludus.train(
        "kuka-pick-place", tmp_path_factory.mktemp("kuka") / "run", console=Console("quiet"), **KUKA
    )


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def run(*arguments: Any) -> str:
        monkeypatch.setattr(sys, "argv", ["ludus", *map(str, arguments)])
        capsys.readouterr()
        cli.main()
        return capsys.readouterr().out

    return run


def cartpole(folder: Path, *callbacks: ludus.Callback, **settings: Any) -> Path:
    every = {**CARTPOLE, **settings}
    return ludus.train("gym:CartPole-v1", folder, callbacks, Console("quiet"), overrides=every)


# The result -----------------------------------------------------------------------------------------
class Stopped(ludus.Callback):
    """Stops the training in its third iteration; the second time it goes on to its end."""

    trainer: Trainer

    def on_iteration(self, run: Trainer) -> bool:
        self.trainer = run
        return run.counters.iteration != 3


@pytest.mark.parametrize("episodes", [2, 0])
def test_a_training_says_where_it_goes_on_and_how_long_it_took_once(tmp_path: Path, episodes: int) -> None:
    stream, stopped = io.StringIO(), Stopped()
    run = cartpole(tmp_path / "run", stopped, **{"eval.final_episodes": episodes})
    screen = Console("plain", stream)
    ludus.resume(run, [stopped], screen, {"log.report": True})
    seconds = stopped.trainer.counters.seconds
    assert read_metrics(run / "metrics.jsonl")[-1]["time/time_elapsed"] == seconds == screen.state.elapsed
    told, page = stream.getvalue(), (run / "report.html").read_text()
    assert told.splitlines()[0] == f"resuming {run} at step 96 of 256"
    assert "continuing" not in told
    assert f"Trained 256 steps, training time {text.duration(seconds)}. Run folder: {run}" in told
    assert f"<b>{text.duration(seconds)}</b><span>training time</span>" in page


def test_a_training_ends_with_its_result_on_new_starts(call: Callable[..., str], tmp_path: Path) -> None:
    flags = [part for name, value in CARTPOLE.items() if value for part in (f"--{name.replace('_', '-')}", value)]
    out = call("train", "gym:CartPole-v1", "--run-dir", tmp_path / "run", "--log.no-report", *flags)
    (kept,) = read_measurements(tmp_path / "run" / "results.json")
    last = out.splitlines()[-3:]
    assert last[0].startswith(f"Result of the best policy (step {kept.step:,}")
    assert last[1] == f"on {kept.result['episodes']:.0f} new starts, deterministic actions, seed 0:"
    assert f"length {kept.result['mean_ep_length']:.1f} steps" in last[2]
    row = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert row["final/mean_reward"] == kept.result["mean_reward"]
    assert kept.by == "train"
    assert kept.trained == 256
    assert kept.usual


def test_ludus_eval_repeats_the_result_and_keeps_its_own(call: Callable[..., str], kuka: Path) -> None:
    before = read_measurements(kuka / "results.json")
    assert json.loads(call("eval", kuka, "--json"))["mean_reward"] == before[0].result["mean_reward"]
    call("eval", kuka, "--episodes", 3, "--stochastic", "--seed", 9, "--randomization", "off")
    *_, repeated, other = read_measurements(kuka / "results.json")
    assert repeated.episodes == before[0].episodes
    assert (other.by, other.actions, other.seed, other.settings) == (
        "eval",
        "sampled",
        9,
        {"randomization": "off"},
    )
    assert not other.usual
    assert headline([repeated, other], repeated.checkpoint) == repeated


def test_a_seed_below_0_is_one_sentence(call: Callable[..., str], kuka: Path) -> None:
    for verb in ("eval", "video"):
        with pytest.raises(SystemExit):
            call(verb, kuka, "--seed", "-1")
    with pytest.raises(ConfigError, match=r"--seed is -1; it must be at least 0"):
        ludus.Run(kuka).evaluate(1, seed=-1)


def test_neither_training_nor_the_choice_of_the_best_has_seen_the_starts(kuka: Path) -> None:
    (step, chosen), measured = newest_evaluation(kuka / "episodes.jsonl"), read_measurements(kuka / "results.json")
    new = episodes_of(measured[0].episodes, {})
    assert step == 512
    assert (len(chosen), len(new)) == (4, 6)
    assert {e.start["cube_x"] for e in chosen}.isdisjoint(e.start["cube_x"] for e in new)
    assert all(0.44 < float(e.start["cube_x"]) < 0.71 for e in new)


def test_the_measurement_takes_at_most_a_quarter_of_a_short_trainings_steps() -> None:
    config = TrainConfig(eval=EvalConfig(episodes=20, final_episodes=100))
    assert final_episodes(config, 1_000_000, 500.0) == 100
    assert final_episodes(config, 100_000, 500.0) == 50
    assert final_episodes(config, 1_000, 500.0) == 20
    assert final_episodes(TrainConfig(eval=EvalConfig(episodes=20, final_episodes=10)), 1_000, 500.0) == 10


def test_a_training_that_should_not_be_measured_is_not(tmp_path: Path) -> None:
    run = cartpole(tmp_path / "run", **{"eval.final_episodes": 0})
    assert not (run / "results.json").exists()
    assert "final/mean_reward" not in read_metrics(run / "metrics.jsonl")[-1]


class Impatient(gym.Env):
    """Presses Ctrl-C in the first episode after the training."""

    observation_space, action_space = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    trained, pressed = False, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        if Impatient.trained and not Impatient.pressed:
            Impatient.pressed += 1
            os.kill(os.getpid(), signal.SIGINT)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}


class Note(ludus.Callback):
    def on_end(self, run: Trainer) -> None:
        Impatient.trained = True


def test_ctrl_c_while_the_result_is_measured_leaves_a_whole_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gym.register("test-results/Impatient-v0", lambda **_: Impatient(), max_episode_steps=10)
    with Console("plain") as screen:
        settings = {**CARTPOLE, "log.report": True}
        ludus.train("gym:test-results/Impatient-v0", tmp_path / "run", [Note()], screen, overrides=settings)
    assert Impatient.pressed == 1
    out = capsys.readouterr().out
    assert "the run is saved and whole" in out
    assert out.splitlines()[-1].startswith("Not measured; that, and the report, follow with: ludus resume")
    assert not (tmp_path / "run" / "final").exists(), "the command's exit code is 75"
    assert not (tmp_path / "run" / "results.json").exists()
    ludus.resume(tmp_path / "run", console=Console("quiet"))
    (kept,) = read_measurements(tmp_path / "run" / "results.json")
    assert kept.result["mean_ep_length"] == 5
    assert (tmp_path / "run" / "final").exists()
    assert (tmp_path / "run" / "report.html").exists()


def test_a_measurement_that_breaks_leaves_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fragile() -> gym.Env:
        if broken:
            raise KeyError("gone")
        return gym.make("CartPole-v1")

    class Break(ludus.Callback):
        def on_end(self, run: Trainer) -> None:
            broken.append(True)

    broken: list[bool] = []
    settings = {**CARTPOLE, "log.report": True}
    run = ludus.train(fragile, tmp_path / "run", [Break()], Console("plain"), overrides=settings)
    assert "Not measured" in capsys.readouterr().out
    assert (run / "report.html").exists()


# Episodes on record ---------------------------------------------------------------------------------
def test_every_evaluation_is_on_record_and_a_resumed_run_writes_the_same(tmp_path: Path) -> None:
    whole, stopped = cartpole(tmp_path / "whole"), cartpole(tmp_path / "stopped", StopAfter(5))
    with (stopped / "episodes.jsonl").open("ab") as file:  # which the resumed run would write again
        file.write(b'{"step":192,"half a li')
    ludus.resume(stopped, console=Console("quiet"))
    lines = (whole / "episodes.jsonl").read_bytes()
    assert (stopped / "episodes.jsonl").read_bytes() == lines
    records = [json.loads(line) for line in lines.splitlines()]
    assert [(r["step"], r["actions"]) for r in records] == [
        (step, actions) for step in (64, 128, 192, 256) for actions in ("deterministic", "sampled")
    ]
    rows = [row for row in read_metrics(whole / "metrics.jsonl") if "eval/mean_reward" in row]
    for row, record in zip(rows, records[::2], strict=True):
        assert np.mean(record["return"]) == pytest.approx(row["eval/mean_reward"], rel=1e-5)
        assert np.mean(record["length"]) == pytest.approx(row["eval/mean_ep_length"])


def test_the_record_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_log, "MOST_BYTES", 100)
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    assert log.append(1, [{"return": [1]}] * 3)
    assert not log.append(2, [{"return": [1.5] * 20}])
    log.cut_to(2)
    assert (tmp_path / "episodes.jsonl").read_text() == '{"step":1,"return":[1]}\n' * 2


def test_evaluations_of_very_many_episodes_are_kept_on_resume(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "episodes.jsonl")
    assert log.append(1, [{"return": [0.123456] * 200_000}, {"return": [1]}])
    written = log.path.read_bytes()
    log.cut_to(2)
    assert log.path.read_bytes() == written


def test_a_humanoids_episodes_are_told_by_clip_and_time() -> None:
    env = make([standing_clip(seconds=0.5), walk_clip()], evaluation=True, eval_starts=2, max_steps=10)
    record = evaluate(Still(), env, 1, 0, True).record()  # type: ignore[arg-type]
    starts = [dict(e.start) for e in episodes_of(record, env.start_words())]
    assert [s["clip"] for s in starts] == [env.library.names[i] for i in (0, 1, 1)]
    assert [float(s["time"]) for s in starts] == pytest.approx([0, 0, 0.6])


class Side(gym.Env):
    """Succeeds where the goal is on the right; a user's own environment, which describes no starts."""

    observation_space = spaces.Dict(
        {"speed": spaces.Box(0, 9, (1,), np.float32), "goal": spaces.Box(-1, 1, (2,), np.float32)}
    )
    action_space = spaces.Box(-1, 1, (28,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.goal = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        return {"speed": np.zeros(1, np.float32), "goal": self.goal}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        last = {"speed": np.ones(1, np.float32), "goal": np.zeros(2, np.float32)}
        return last, 0.0, True, False, {"is_success": self.goal[0] > 0}


def test_starts_of_a_users_own_environment_are_told_by_their_first_observation() -> None:
    env = make_gym(GymConfig("test_results:Side"), 2)
    episodes = episodes_of(evaluate(Still(), env, 8, 0, True).record(), {})  # type: ignore[arg-type]
    assert len({e.start["goal[0]"] for e in episodes}) == 8
    assert [e.success for e in episodes] == [float(float(e.start["goal[0]"]) > 0) for e in episodes]
    assert 0 < len(failures_of(episodes)) < 8
    assert re.match(r"goal \(-\S+, \S+\)  speed 0$", told_start(failures_of(episodes)[0]))
    many = make_gym(GymConfig("gym_test_envs:Picture"), 1)
    assert names_of_few(many) == []


# Failures -------------------------------------------------------------------------------------------
def test_failing_starts_are_listed(call: Callable[..., str], kuka: Path) -> None:
    out = call("eval", kuka, "--failures")
    assert "6 of 6 episodes failed:" in out
    first = episodes_of(read_measurements(kuka / "results.json")[0].episodes, {})[0]
    x, y = (float(first.start[f"cube_{axis}"]) for axis in "xy")
    assert f"cube ({x:.3f}, {y:.3f})  pad (" in out
    listed = json.loads(call("eval", kuka, "--failures", "--json"))["failures"]
    assert [failed["number"] for failed in listed] == [0, 1, 2, 3, 4, 5]


def test_where_success_is_not_told_the_lowest_returns_are_listed() -> None:
    record = {"episode": [*range(50)], "return": [float(i) for i in range(50)][::-1], "length": [1] * 50}
    episodes = episodes_of(record, {})
    assert [e.number for e in failures_of(episodes)] == [49, 48, 47, 46, 45]
    assert "does not tell success" in failure_lines(episodes, 3)[0]
    assert failure_lines(episodes, 3)[-1] == "… and 2 more"
    assert failure_lines(episodes_of({**record, "success": [1] * 50}, {}), 3) == ["0 of 50 episodes failed."]


# The file -------------------------------------------------------------------------------------------
def a_measurement(**changes: Any) -> Measurement:
    facts = {"by": "eval", "checkpoint": "step_5", "step": 5, "trained": 9, "best": True, "seed": 0}
    return Measurement(**{**facts, "actions": "deterministic", "result": {"episodes": 3.0}, **changes})


def test_very_many_measurements_are_forgotten_but_not_the_trainings_own(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    keep_measurement(path, a_measurement(by="train"))
    for seed in range(60):
        keep_measurement(path, a_measurement(seed=seed))
    kept = read_measurements(path)
    assert (kept[0].by, kept[-1].seed, len(kept)) == ("train", 59, 52)
    forget_later(path, 8)
    assert read_measurements(path) == []


def test_measurements_of_many_bytes_are_forgotten_before_the_file_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "results.json"
    monkeypatch.setattr(results, "_MOST_BYTES", 5_000)
    keep_measurement(path, a_measurement(by="train"))
    for seed in range(30):
        keep_measurement(path, a_measurement(seed=seed))
    kept = read_measurements(path)
    assert (kept[0].by, [m.seed for m in kept[1:]]) == ("train", [*range(31 - len(kept), 30)])
    assert 5 < len(kept) < 30
    assert path.stat().st_size <= 5_000


def test_deeply_nested_values_in_a_strangers_results_break_nothing(tmp_path: Path) -> None:
    path, nested = tmp_path / "results.json", json.loads("[" * 400 + "]" * 400)
    path.write_text(json.dumps([a_measurement(settings={"clip": nested}).__dict__]))
    keep_measurement(path, a_measurement())
    assert len(read_measurements(path)) == 1


_PARTLY_READABLE = json.dumps([asdict(a_measurement(seed=1)), {"by": "nobody"}])


@pytest.mark.parametrize(("content", "readable"), [("[{", []), ("{}", []), (_PARTLY_READABLE, [1])])
def test_damaged_results_are_kept_aside_with_a_word(tmp_path: Path, content: str, readable: list[int]) -> None:
    path, aside = tmp_path / "results.json", tmp_path / "damaged_results.json"
    path.write_text(content)
    assert f"{path} is damaged. It is kept as {aside}" in keep_measurement(path, a_measurement(seed=2))
    assert aside.read_text() == content
    assert keep_measurement(path, a_measurement(seed=3)) == ""  # it is whole again
    assert [m.seed for m in read_measurements(path)] == [*readable, 2, 3]
    path.write_text(content)
    assert "is damaged" in forget_later(path, 9)
    assert forget_later(path, 9) == ""


def test_a_measurement_says_that_results_were_damaged(
    kuka: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(kuka, tmp_path / "run", symlinks=True))
    (run / "results.json").write_text("[{")
    measure_run(run, 1)
    assert "results.json is damaged. It is kept as" in capsys.readouterr().err
    assert (run / "damaged_results.json").read_text() == "[{"


def test_the_measurement_with_the_most_episodes_is_the_headline() -> None:
    few, many = a_measurement(), a_measurement(result={"episodes": 200.0})
    most = {"episodes": 900.0}
    others = [a_measurement(checkpoint="step_7"), a_measurement(actions="sampled", result=most)]
    assert headline([few, many, *others, few], "step_5") == many
    assert headline([few], "step_6") is None


@pytest.mark.parametrize("number", range(len(_ODD)))
def test_odd_values_in_a_strangers_results_are_left_out(tmp_path: Path, number: int) -> None:
    odd, path = _ODD[number], tmp_path / "file"
    good = json.loads(json.dumps(a_measurement().__dict__))
    for content in (odd, [odd], *([{**good, name: odd}] for name in good)):
        path.write_bytes(json.dumps(content).encode("utf-8", "replace"))
        for measurement in read_measurements(path):
            assert all(abs(v) < 1e101 for v in measurement.result.values())
            failure_lines(episodes_of(measurement.episodes, measurement.words), 5)
    line = {"step": 1, "actions": "deterministic", "episode": [0], "return": [1.0], "length": [2], "success": [0]}
    line |= {"starts": {"cube_x": [1.0]}, "words": {"cube_x": ["a", "b"]}, "cut": []}
    for name in line:
        for value in (odd, [odd], {"cube_x": odd}, {"cube_x": [odd]}):
            path.write_text(json.dumps({**line, name: value}) + "\n")
            failure_lines(newest_evaluation(path)[1], 5)


def test_the_mark_of_the_best_says_by_what_it_was_chosen() -> None:
    assert best_mark({"eval/success_rate": 0.9}) == " ★ best"
    both = {"eval/success_rate": 0.85, "eval_stochastic/success_rate": 0.8}
    assert best_mark(both) == " ★ best (mean with sampled 82.5 %)"
    assert (
        best_mark({"eval/mean_reward": 3.0, "eval_stochastic/mean_reward": 1.0}) == " ★ best (mean with sampled 2)"
    )


# The report -----------------------------------------------------------------------------------------
def test_the_report_is_headed_by_the_result_and_tells_what_failed(call: Callable[..., str], kuka: Path) -> None:
    pytest.importorskip("mjviser")
    call("report", kuka)
    page = (kuka / "report.html").read_text()
    body = page[page.index("<body") :]
    kept = headline(read_measurements(kuka / "results.json"), (kuka / "checkpoints" / "best").resolve().name)
    assert kept is not None
    where = f"{measured_policy(kept)} on {measured_on(kept)}"
    assert body.index(f"<b>{text.percent(kept.result['success_rate'])}</b><span>success (0–") < body.index("<h2>")
    assert where in body[: body.index("<h2>")]
    assert "best success of" not in body
    assert "6 of 6 episodes failed" in body
    assert body.count('<circle class="bad"') == 2 * 6  # cubes and pads
    assert "cube at the start, from above" in body
    assert "episode 0: failure after 20 steps" in html.unescape(replayed(body))
    assert "<td>eval.final_episodes</td><td>200</td><td>6</td>" in body
    for name in ("command", "hardware · CPU", "hardware · cores", "hardware · memory", "versions · ludus"):
        assert f"<dt>{name}</dt>" in body
    assert "replay.html" not in body
    assert not re.search(r"(href|src)=.?(https?:|[a-z]+\.html)", body)


def replayed(body: str) -> str:
    """The captions of a 3-D replay, which lie packed in its page."""
    zstandard = pytest.importorskip("zstandard")
    found = re.search(r"__VISER_EMBED_DATA__=&quot;([\w+/=]+)", body)
    assert found is not None
    data = base64.b64decode(found[1])
    size = int.from_bytes(data[:8], "little")
    unpacked: bytes = zstandard.ZstdDecompressor().decompress(data[8:], max_output_size=size)
    return unpacked.decode("utf-8", "ignore")


def test_the_same_episodes_are_played_again(kuka: Path) -> None:
    measurement = read_measurements(kuka / "results.json")[0]
    cast = cast_of(measurement, most=2)
    assert cast is not None
    assert list(cast.failures) == [0, 1]
    env = drawable_env(run_config(kuka).env, num_envs=cast.rows)
    played = play_cast(
        env, ludus.load(kuka), cast, lambda env, row: float(describe_starts(env)["cube_x"][row]), 1000
    )
    env.close()
    for episode, recorded in zip(episodes_of(measurement.episodes, {}), played, strict=False):
        assert len(recorded.frames) == episode.length
        assert recorded.frames[0] == pytest.approx(float(episode.start["cube_x"]), rel=1e-5)
        assert recorded.failed
        assert recorded.caption == f"episode {episode.number}: failure after {episode.length} steps"


@pytest.mark.parametrize("changes", [{"rows": 10**6}, {"episode": [10**15, 10**16]}, {"length": [10**15, 1]}])
def test_a_strangers_results_do_not_keep_a_report_busy_for_ever(changes: dict[str, Any]) -> None:
    record = {"rows": 1, "episode": [0, 1], "return": [1, 2], "length": [3, 4], "success": [0, 1]}
    assert cast_of(a_measurement(episodes=record)) is not None
    assert cast_of(a_measurement(episodes=record | changes)) is None


def test_a_strangers_results_stay_text(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    record = {"rows": 1, "episode": [0, 1], "return": [1, 2], "length": [3, 4], "success": [0, 1]}
    record |= {"starts": {f"{script}_x": [1, 2], f"{script}_y": [1, 2], "clip": [0, 1]}}
    strange = a_measurement(settings={script: script}, episodes=record, words={"clip": [script, script]})
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "eval/mean_reward": 2.0}\n')
    (tmp_path / "config.yaml").write_text("")
    facts = {"preset": "x", "changed": {script: [script, script]}, "command": script, "resumed": [script]}
    (tmp_path / "run.json").write_text(json.dumps(facts))
    page = write_report(tmp_path, [Page("<p>", script)], strange).read_text()
    assert script not in page
    assert page.count("alert(1)") > 8


def test_the_best_evaluation_says_why_it_is_the_best(tmp_path: Path) -> None:
    rows = [(1, 0.9, 0.5), (2, 0.85, 0.8)]
    lines = [{"step": s, "eval/success_rate": a, "eval_stochastic/success_rate": b} for s, a, b in rows]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = write_report(tmp_path).read_text()
    assert "★ Best: step 2" in page
    assert "the mean of deterministic and sampled actions (82.5 %)" in page
    assert "Others did better with deterministic actions alone." in page
    assert "so it flatters" in page


# Where it comes from --------------------------------------------------------------------------------
def test_the_commit_is_that_of_the_users_repository(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git = ("git", "-c", "user.name=a", "-c", "user.email=b@c")
    (tmp_path / "file").write_text("one")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    clean = commit_of(tmp_path)
    assert clean is not None
    assert re.fullmatch("[0-9a-f]{12}", clean)
    (tmp_path / "file").write_text("two")
    assert commit_of(tmp_path) == f"{clean} and changes that are not committed"


def test_settings_that_differ_from_the_preset_are_told(kuka: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = differences("kuka-pick-place", run_config(kuka))
    assert changed is not None
    assert set(changed) == set(KUKA)
    assert changed["env.num_envs"] == [256, 8]
    assert differences("no-such-preset", run_config(kuka)) is None
    monkeypatch.setattr(sys, "argv", ["/usr/bin/ludus", "train", "my preset"])
    assert command_line() == "ludus train 'my preset'"
    monkeypatch.setattr(sys, "argv", ["/home/me/train.py", "--fast"])
    assert command_line() == "python train.py --fast"


def test_a_live_viewer_counts_successes(kuka: Path) -> None:
    env = make_shown_env(run_config(kuka).env)
    live = _Live(env, ludus.load(kuka))
    told = [live.advance()[3] for _ in range(45)][-1]
    env.close()
    assert told["episode"] == 3
    assert told["succeeded"] == "0 of 2"
    assert str(told["last episode"]).startswith("failure, return ")
