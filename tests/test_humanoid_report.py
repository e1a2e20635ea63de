"""What a person sees of a humanoid's training: evaluations clip by clip, the report, replays with the ghost."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import ludus
from humanoid_body import DT
from ludus.cli import run_verb
from ludus.config import TrainConfig
from ludus.envs import display_of, make_eval_env, make_vec_env
from ludus.envs.abilities import start_words
from ludus.envs.humanoid.catalogue import find_clips, shipped_folder, whole_names
from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.display import CLIPS
from ludus.envs.humanoid.factory import library_of
from ludus.envs.humanoid.other_clips import act_as_trained, make_shown, on_clips
from ludus.envs.humanoid.tracking import ANY_DISTANCE, MEAN_DISTANCE
from ludus.envs.mujoco.simulator import CpuSimulator
from ludus.envs.mujoco.task import SimTask
from ludus.envs.showing import drawable_env
from ludus.errors import CheckpointError, ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_actor_critic
from ludus.run_pages import play_run, write_run_report
from ludus.show import playback as replay
from ludus.show import text
from ludus.show.console import Console
from ludus.show.episode_table import read_table, table_lines, table_section
from ludus.show.report import write_report
from ludus.show.results import episodes_of
from ludus.training.evaluator import evaluate
from ludus.viewing import ANY_FOUR, chosen_pieces, play_failed, record_replays
from test_cli import assert_plays

TRACKING = display_of(HumanoidConfig())
QUICK: dict[str, Any] = {
    "env.clips": "squat,bow",
    "env.num_envs": 8,
    "env.threads": 1,
    "env.eval_starts": 2,
    "env.max_steps": 30,
    "groups": 1,
    "policy.hidden": (8,),
    "ppo.horizon": 4,
    "ppo.minibatches": 1,
    "ppo.update_epochs": 1,
    "loop.total_steps": 64,
    "eval.every": 32,
    "torch_threads": 1,
    "log.report": False,
    "log.tensorboard": False,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("humanoid-mimic") / "run"
    return ludus.train("humanoid-mimic", folder, console=Console("quiet"), overrides=QUICK)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    run_verb(str(arguments[0]), [str(argument) for argument in arguments[1:]])
    return capsys.readouterr().out


# ludus eval -----------------------------------------------------------------------------------------
def test_eval_prints_rows_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(printed(capsys, "eval", run, "--episodes", 1, "--json"))
    assert told["episodes"] == 3  # two starts of a clip that loops, one of the other: --episodes does not count
    assert {row["clip"]: row["episodes"] for row in told["rows"]} == {"squat": 2, "bow": 1}
    assert all({"success_rate", "success_strict", "mpjpe", "mpjpe_succeeded"} <= set(row) for row in told["rows"])
    rates = [row["success_rate"] for row in told["rows"]]
    assert rates == sorted(rates)
    assert told["mpjpe"] == pytest.approx(np.mean([row["mpjpe"] for row in told["rows"]]))


def test_eval_prints_a_table_and_adds_to_the_results_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(run.iterdir())
    which, starts, result, *lines = printed(capsys, "eval", run).splitlines()
    assert which.startswith("Result of the best policy")
    assert re.match(r"on the \d+ fixed starts by which the best was chosen, deterministic", starts)
    assert re.match(r"  success .* · MPJPE \d+ mm · reward ", result)
    assert lines[1].split() == [
        "clip", "episodes", "success", "strict", "completed", "MPJPE", "local", "aligned", "velocity", "accel.",
    ]  # fmt: skip
    assert {lines[3].split()[0], lines[4].split()[0]} == {"squat", "bow"}
    assert "0.5 m" in lines[6]
    assert sorted({*run.iterdir()} - {run / "results.json"}) == sorted({*before} - {run / "results.json"})


def test_eval_on_other_clips(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(printed(capsys, "eval", run, "--json", "--clip", "march,wave"))
    assert {row["clip"] for row in told["rows"]} == {"march", "wave"}
    _, starts, *_ = printed(capsys, "eval", run, "--clip", "wave").splitlines()
    assert re.match(r"on 2 fixed starts, deterministic actions, seed \d+, clip wave", starts)  # which chose none
    with pytest.raises(ConfigError, match=r"no clip 'sqat'.*Did you mean 'squat'"):
        printed(capsys, "eval", run, "--clip", "sqat")
    with pytest.raises(ConfigError, match="follows none"):
        on_clips(HumanoidConfig(goal="speed"), "march")
    with pytest.raises(ConfigError, match="follows none"):
        on_clips(TrainConfig().env, "march")


def test_absolute_actions_mean_the_same_on_other_clips() -> None:
    trained = HumanoidConfig(clips="squat", actions="absolute", threads=1)
    home, away, naive = (make_vec_env(replace(trained, clips=clips), 1) for clips in ("squat", "wave", "wave"))
    act_as_trained(away, trained)  # type: ignore[arg-type]
    for env in (home, away, naive):
        env.reset(0)
        env.begin_step(torch.zeros(env.num_rows, 28))
        env.end_step()
    targets = [env.sim.field("ctrl")[0].clone() for env in (home, away, naive)]  # type: ignore[attr-defined]
    assert torch.equal(targets[0], targets[1])
    assert not torch.equal(targets[0], targets[2])
    for env in (home, away, naive):
        env.close()


def test_clips_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "motions").mkdir()
    (tmp_path / "own").mkdir()
    squat = (shipped_folder() / "squat.npz").read_bytes()
    for file in ("motions/mine.npz", "own/other.npz"):
        (tmp_path / file).write_bytes(squat)
    monkeypatch.chdir(tmp_path)
    names = whole_names("wave, mine, own, nowhere")
    assert names == f"shipped:wave,{tmp_path}/motions/mine.npz,{tmp_path}/own,nowhere"
    monkeypatch.chdir("/")
    assert len(find_clips(names.removesuffix(",nowhere"))) == 3
    assert whole_names("all") == "all"
    assert whole_names(names) == names


def test_links_to_clips_keep_their_names(tmp_path: Path) -> None:
    """As in caches of downloads, where a file's own name is a hash without a suffix."""
    shutil.copy(shipped_folder() / "squat.npz", tmp_path / "0a1b2c")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "mine.npz").symlink_to("../0a1b2c")
    for names in (f"{tmp_path}/links/mine.npz", f"{tmp_path}/links"):
        assert library_of(HumanoidConfig(clips=whole_names(names)), "cpu").names == ["mine"]


def test_a_comma_in_a_path_is_refused_before_it_separates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a,b").mkdir()
    shutil.copy(shipped_folder() / "squat.npz", tmp_path / "a,b" / "mine.npz")
    monkeypatch.chdir(tmp_path / "a,b")
    with pytest.raises(ConfigError, match=r"a,b/mine\.npz has a comma in it"):
        whole_names("mine.npz")
    assert whole_names("squat") == "shipped:squat"


def test_a_run_whose_clip_is_gone_tells_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"put it back or change env\.clips in the run's config\.yaml.*--clip"):
        find_clips(f"{tmp_path}/gone.npz")


def test_a_policy_trained_on_a_gpu_is_watched_without_one() -> None:
    config = HumanoidConfig(goal="speed", actions="absolute", discriminate="motion", simulator="warp")
    env = drawable_env(config)
    assert isinstance(env, SimTask)
    assert isinstance(env.sim, CpuSimulator)
    env.close()


# The table ------------------------------------------------------------------------------------------
def test_the_rules_in_words_are_those_that_are_measured_by() -> None:
    success, strict, _ = table_lines(CLIPS, rows_of(2))[-3:]
    assert success.endswith(f" {MEAN_DISTANCE:g} m.")
    assert strict.endswith(f" {ANY_DISTANCE:g} m.")


def rows_of(count: int) -> list[dict[str, Any]]:
    return [
        {
            "clip": f"clip <{number}>",
            "episodes": 8,
            "success_rate": number / max(count - 1, 1),
            "success_strict": 0.0,
            "mpjpe": 123.4,
            "mpjpe_local": None,
            "share": 1 / count,
        }
        for number in range(count)
    ]


def test_table_is_aligned_and_says_a_dash_for_what_is_not_known() -> None:
    lines = table_lines(CLIPS, [*rows_of(3), {"clip": "x" * 60, "episodes": 8000, "success_rate": None}])
    table = lines[:6]
    assert len({len(line) for line in table if not line.startswith(" ")}) == 1
    assert table[2].split()[-3:] == ["–", "33.3", "%"]
    assert table[5].startswith("x" * 39 + "…     8,000")
    assert max(map(len, table_lines(CLIPS, rows_of(3)))) <= 80


@pytest.mark.parametrize("count", [1, 300])
def test_report_shows_the_clips(tmp_path: Path, count: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        json.dumps({"step": 100, "eval/success_rate": 0.9, "eval/mean_reward": 1.0, "eval/mpjpe": 48.2}) + "\n"
        + json.dumps({"step": 200, "eval/success_rate": 0.8, "eval/mean_reward": 1.0, "eval/mpjpe": 50.2}) + "\n"
    )  # fmt: skip
    (tmp_path / "evaluation.json").write_text(json.dumps({"step": 200, "rows": rows_of(count)}))
    page = write_report(tmp_path, display=TRACKING).read_text()
    section = page[page.index("<h2>Clips</h2>") :].partition("</table>")[0]
    assert section.count("<tr>") == count + 1
    assert "step 200" in section
    assert "best policy is that of step 100" in section
    assert 'class="meter" style="--p:0.0%' in section
    assert "clip &lt;0&gt;" in section
    assert "MPJPE: mean distance to the reference" in page
    assert "50 mm" in page


@pytest.mark.parametrize("content", [None, "", "[]", '{"step": 1}', '{"step": 1, "rows": [3]}'])
def test_broken_table_is_left_out(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "evaluation.json").write_text(content)
    assert read_table(CLIPS, tmp_path) == (0, [])
    assert table_section(CLIPS, tmp_path, None) == ""


def test_evaluation_line_fits_beside_its_step_and_is_the_same_for_other_tasks() -> None:
    known = {"eval/success_rate": 1.0, "eval/success_low": 0.8, "eval/success_high": 1.0}
    known |= {"eval/mean_reward": 286.34, "eval/std_reward": 12.0}
    assert text.evaluation_line(known) == "success 100.0 % (80–100) · reward 286.3 ± 12"
    style = display_of(HumanoidConfig(goal="speed"))
    styled = text.evaluation_line(known | {"eval/pose_error": 9.2, "eval/speed_error": 0.081}, display=style)
    assert styled == "success 100.0 % (80–100) · pose 9 mm · reward 286.3"
    line = text.evaluation_line(known | {"eval/mpjpe": 148.4}, display=TRACKING)
    assert line == "success 100.0 % (80–100) · MPJPE 148 mm · reward 286.3"
    assert len(f"eval at 500,000,000: {line} ★") <= 80


# The ghost ------------------------------------------------------------------------------------------
def catch_replays(monkeypatch: pytest.MonkeyPatch) -> list[replay.Replay]:
    """Replays as they were recorded, before they become a page."""
    recorded: list[replay.Replay] = []

    def page(made: replay.Replay, title: str) -> str:
        recorded.append(made)
        return "page"

    monkeypatch.setattr(replay, "replay_html", page)
    return recorded


def test_replay_has_an_episode_of_every_clip_with_its_ghost(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = catch_replays(monkeypatch)
    pages = record_replays(HumanoidConfig(clips="squat,bow"), ludus.load(run), "x", ranked=["bow", "gone"])
    assert [page.html for page in pages] == ["page"] * len(recorded)
    episodes = [episode for made in recorded for episode in made.episodes]
    lost = ["lost" in episode.caption for episode in episodes]
    names = [episode.caption.partition(":")[0] for episode in episodes]
    assert lost == sorted(lost, reverse=True)  # failures have a page of their own, the first
    assert names == ["bow", "squat"] or lost == [True, False]  # within a page the worst first
    for episode in episodes:
        assert re.search(r": (lost after \d+\.\d s|tracked \d+\.\d s, \d+ mm)$", episode.caption)
        body, ghost = np.split(np.stack([frame["qpos"] for frame in episode.frames]), 2, axis=1)
        np.testing.assert_allclose(body[0], ghost[0], atol=1e-5)  # it starts on its reference
        assert np.abs(body[-1] - ghost[-1]).max() > 1e-3
        assert len(episode.frames) <= 300


def test_a_failure_is_replayed_from_where_it_began_to_where_it_failed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = HumanoidConfig(clips="squat,bow", eval_starts=4, max_steps=60, threads=1)
    policy = ludus.load(run)
    policy.head.linear.bias.data.fill_(0.4)  # it bends all joints, and falls
    env = make_eval_env(config, 5)
    measured, words = evaluate(policy, env, 5, 0, True), start_words(env)
    env.close()
    failed = [episode for episode in episodes_of(measured.record(), words) if episode.failed]
    later = [episode for episode in failed if episode.start["clip"] == "squat" and episode.start["time"]]
    assert later

    shown = make_shown(config, config)
    for episode, again in zip(failed, play_failed(shown, policy, DT, [e.start for e in failed]), strict=True):
        assert again.failed
        assert again.caption.endswith(f"lost after {episode.length * DT:.1f} s")
    strangers: list[dict[str, float | str]] = [{"clip": "gone", "time": 0.0}, {"clip": "squat"}, {"time": "now"}]
    assert play_failed(shown, policy, DT, strangers) == []
    shown.close()

    recorded = catch_replays(monkeypatch)
    record_replays(config, policy, "x", replace(ANY_FOUR, failed_starts=[later[0].start]))
    squat = next(e for made in recorded for e in made.episodes if e.caption.startswith("squat"))
    began = float(later[0].start["time"])
    assert squat.caption.startswith(f"squat: from {began:.1f} s, lost after ")
    reference = library_of(config, "cpu").at(torch.tensor([0]), torch.tensor([began], dtype=torch.float64))
    np.testing.assert_allclose(squat.frames[0]["qpos"][35:], reference.qpos[0], atol=1e-4)


def test_of_many_clips_a_dozen_is_shown_both_ends_included() -> None:
    names = [f"clip{number}" for number in range(200)]
    ranked = names[::-1]
    chosen = chosen_pieces(names, ranked, 12)
    assert len(set(chosen)) == 12
    assert (chosen[0], chosen[-1]) == (199, 0)
    assert chosen_pieces(names[:3], [], 12) == [0, 1, 2]


def test_a_shown_humanoid_plays_the_clip_that_is_asked_for() -> None:
    config = HumanoidConfig(clips="squat,stroll,bow", max_steps=20)
    env = make_shown(config, config, beside=1.5)
    assert env.num_rows == 1
    env.show(1)
    env.reset(0)
    assert env.told()["clip"] == "stroll"
    body, ghost = np.split(env.drawn()["qpos"], 2)
    np.testing.assert_allclose(ghost - body, [0, 1.5, *[0] * 33], atol=1e-5)
    steps = [env.step(torch.zeros(1, 28)) for _ in range(30)]  # a whole cycle
    assert [bool(step.done[0]) for step in steps] == [False] * 29 + [True]
    assert re.fullmatch(r"tracked 1\.0 s, \d+ mm", env.outcome(steps[-1], 30))
    lost = steps[-1]._replace(metrics=steps[-1].metrics | {"success": torch.zeros(1)})
    assert env.outcome(lost, 15) == "lost after 0.5 s"
    env.close()


def test_speed_has_no_ghost(monkeypatch: pytest.MonkeyPatch) -> None:
    config = HumanoidConfig(
        clips="squat", goal="speed", actions="absolute", discriminate="motion", max_steps=20, threads=1
    )
    env = make_vec_env(config, 1)
    policy = make_actor_critic(env, PolicyConfig(hidden=(8,)), 0)
    env.close()
    recorded = catch_replays(monkeypatch)
    record_replays(config, policy, "x")
    assert recorded[0].model.nq == 35
    assert recorded[0].episodes[0].caption.startswith("episode 0: ")


def test_report_embeds_the_table_and_the_replay(run: Path) -> None:
    pytest.importorskip("mjviser")
    page = write_run_report(run).read_text()
    assert "<h2>Clips</h2>" in page
    assert "<h2>Motion</h2>" in page
    assert "<iframe title=" in page
    assert json.loads((run / "evaluation.json").read_text())["step"] == 64  # of the last policy


def test_play_serves_a_page_and_ends_by_itself(run: Path) -> None:
    assert_plays(run, "--port", 18180, "--clip", "bow,wave", "--beside", 1)


def test_play_goes_through_the_clips_and_round_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []

    def play(model: Any, step: Any, dt: float, *others: Any, **labels: str) -> None:
        skip = others[2]
        assert labels == {"next_label": "Next clip"}
        assert dt == pytest.approx(1 / 30)
        for _ in range(230):  # a cycle of both, and a little of the first again
            qpos, _, _, told = step()
            assert len(qpos) == model.nq == 70
            shown.append(told)
        skip()
        shown.append(step()[3])

    monkeypatch.setattr("ludus.show.viewer.play", play)
    play_run(run, 0, None, clips="squat,wave")
    clips = [told["clip"] for told in shown]
    order = [name for name, before in zip(clips, [None, *clips], strict=False) if name != before]
    assert order[:3] == ["squat", "wave", "squat"]
    assert re.match(r"squat: (tracked|lost)", next(told["before"] for told in shown if "before" in told))
    assert clips[-1] != clips[-2]


# Another environment than it was trained in ---------------------------------------------------------
def test_a_policy_that_does_not_fit_its_environment_is_refused_in_a_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "humanoid-mimic" / "changed"
    shutil.copytree(run, changed, symlinks=True)
    config = changed / "config.yaml"
    settings = yaml.safe_load(config.read_text())
    settings["env"]["future"] = [1, 2]
    config.write_text(yaml.safe_dump(settings))
    for use in (lambda: printed(capsys, "eval", changed), lambda: play_run(changed, 0, 0.1)):
        with pytest.raises(CheckpointError, match="does not fit humanoid-mimic: it was trained with observations"):
            use()
    write_run_report(changed)
    assert "No replay: The policy does not fit" in capsys.readouterr().err
