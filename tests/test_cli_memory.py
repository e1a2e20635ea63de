"""The command `ludus` with a memory, segments, several agents and environments by name."""

import base64
import importlib.util
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import ludus
import test_cli
from ludus.envs import make_vec_env
from ludus.envs.gym.config import PettingZooConfig
from ludus.errors import LudusError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_actor_critic
from ludus.policies.policy import Actor
from ludus.presets import OPEN_KINDS
from ludus.show import playback as replay
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.viewing import record_replays
from stopped_runs import StopAfter
from test_cli import Result, assert_sentence

call = test_cli.call  # the command in this process

QUICK: tuple[Any, ...] = (
    "--ppo.horizon",
    8,
    "--ppo.minibatches",
    4,
    "--ppo.update-epochs",
    1,
    "--torch-threads",
    1,
)
QUICK += ("--policy.hidden", 16, "--policy.memory-size", 8, "--eval.episodes", 8)
QUICK += ("--log.no-report", "--log.no-tensorboard")
SMALL: dict[str, Any] = {
    "env.num_envs": 4,
    "env.episode_length": 12,
    "ppo.segments": 20,
    "ppo.horizon": 8,
    "loop.total_steps": 160 * 6,
    "eval.every": 160 * 3,
    "eval.episodes": 8,
    "policy.hidden": (16,),
    "policy.memory_size": 8,
    "torch_threads": 1,
    "log.report": False,
    "log.tensorboard": False,
}


@pytest.fixture(scope="session")
def forage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forage") / "run"
    return ludus.train("forage", folder, console=Console("quiet"), overrides=SMALL)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that is not at its end."""
    return ludus.train("forage", tmp_path / "run", [StopAfter(2)], Console("quiet"), overrides=SMALL)


# Before a training ------------------------------------------------------------------------------------
def test_list_shows_how_to_name_environments_of_every_kind(call: Callable[..., Result]) -> None:
    result = call("list")
    assert result.code == 0
    assert "forage" in result.out
    for kind, (_, example, what) in OPEN_KINDS.items():
        assert example.startswith(f"{kind}:")
        assert f"ludus train {example}\n" in result.out
        assert what in result.out


def test_help_tells_of_memory_segments_and_devices(call: Callable[..., Result]) -> None:
    result = call("train", "forage", "--help-all")
    assert result.code == 0
    for flag in ("--policy.memory", "--ppo.segments", "--ppo.prio-alpha", "--ppo.rho-clip", "--precision"):
        assert flag in result.out
    assert "--device" in call("resume", "--help").out


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (
            ("--ppo.segments", 20, "--groups", 2),
            (
                "4 environments × 4 agents in 2 groups; networks 16 × lstm 8; seed 0",
                "20 segments × 8 = 160 steps → 4 minibatches × 5 segments, 1 pass",
                "1 iteration of 160 steps › 4 batches",
            ),
        ),
        (
            ("--policy.memory", "none", "--ppo.update-epochs", 3, "--env.agents", 1),
            (
                "4 environments in 1 group; networks 16;",
                "4 segments × 8 = 32 steps → 4 minibatches × 8 steps, 3 passes",
            ),
        ),
    ],
)  # fmt: skip
def test_the_plan_says_how_steps_become_minibatches(
    call: Callable[..., Result], tmp_path: Path, flags: tuple[Any, ...], lines: tuple[str, ...]
) -> None:
    start = ("train", "forage", "--run-dir", tmp_path / "run", "--env.num-envs", 4, "--total-steps", 160)
    result = call(*start, *QUICK, *flags)
    assert result.code == 0, result.err
    plan = result.out.split("\n\n")[0]
    for line in lines:
        assert line in plan


# Bad input --------------------------------------------------------------------------------------------
BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "minibatches of segments": (
        ("train", "forage", "--ppo.minibatches", "7"),
        ("512 segments × horizon 16 = 8192 steps", "7 minibatches of whole segments", "--ppo.minibatches 4 or 8,"),
    ),
    "more minibatches than segments": (
        ("train", "forage", "--ppo.segments", "3"), ("3 segments", "4 minibatches", "--ppo.minibatches 3,"),
    ),
    "priorities of segments": (
        ("train", "gym:CartPole-v1", "--ppo.prio-alpha", "0.5", "--ppo.minibatches", "3"),
        ("8 segments × horizon 32", "3 minibatches of whole segments", "--ppo.minibatches 2 or 4,"),
    ),
    "minibatches of steps": (
        ("train", "forage", "--policy.memory", "none", "--ppo.minibatches", "7"),
        ("8192 steps do not divide into 7 minibatches. Try --ppo.minibatches 4 or 8,",),
    ),
    "negative segments": (("train", "forage", "--ppo.segments", "-1"), ("--ppo.segments is -1", "at least 0")),
    "no horizon": (("train", "forage", "--ppo.horizon", "0"), ("--ppo.horizon is 0", "at least 1")),
    "no memory size": (("train", "forage", "--policy.memory-size", "0"), ("--policy.memory-size is 0",)),
    "negative priority": (("train", "forage", "--ppo.prio-alpha", "-1"), ("--ppo.prio-alpha is -1.0",)),
    "no limit": (("train", "forage", "--ppo.rho-clip", "nan"), ("--ppo.rho-clip is nan",)),
    "even window": (("train", "forage", "--env.window", "4"), ("--env.window is 4", "odd")),
    "many berries": (("train", "forage", "--env.berries", "90"), ("--env.berries is 90", "49 free cells")),
    "almost a preset": (("train", "forrage"), ("Did you mean 'forage'", "pettingzoo:…")),
    "no device": (("train", "forage", "--device", "meta"), ("--device meta", "take cpu, or cuda", "ludus doctor")),
    "pettingzoo module": (("train", "pettingzoo:nowhere:env"), ("'nowhere'", "'nowhere:env'", "installed")),
    "pettingzoo callable": (
        ("train", "pettingzoo:pettingzoo_test_envs:Aren"), ("no 'Aren'", "Did you mean 'Arena'"),
    ),
    "pettingzoo registry": (("train", "pettingzoo:butterfly/nowhere-v0"), ("'butterfly/nowhere-v0'",)),
    "vec module": (("train", "vec:nowhere:make"), ("'nowhere'", "'nowhere:make'", "installed")),
    "vec callable": (("train", "vec:test_custom_env:plane"), ("no 'plane'", "Did you mean 'plain'")),
    "vec without callable": (("train", "vec:test_custom_env"), ("'module:callable'",)),
    "vec of another kind": (("train", "vec:test_custom_env:no_vec_env"), ("must be a ludus.envs.vec.VecEnv",)),
    "mettagrid task": (("train", "mettagrid:nowhere"), ("'nowhere'", "navigation, assembly, arena")),
    "kind without a name": (("train", "vec:"), ("no preset 'vec:'", "vec:…")),
    "check": (("check", "pettingzoo:nowhere:env"), ("'nowhere'", "installed")),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(
    call: Callable[..., Result], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, parts = BAD[case]
    assert_sentence(call(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flag", "value", "choices"),
    [
        ("--policy.memory", "grue", "('none', 'lstm', 'gru', 'mingru')"),
        ("--precision", "half", "('float32', 'tf32', 'bfloat16')"),
        ("--env.map", "maze", "('open', 'pillars', 'rooms')"),
    ],
)
def test_a_value_that_is_no_choice_is_answered_with_the_choices(
    call: Callable[..., Result], flag: str, value: str, choices: str
) -> None:
    result = call("train", "forage", flag, value)
    assert result.code == 2
    text = " ".join(result.err.replace("│", " ").split())
    assert f"invalid choice '{value}' for argument '{flag}'" in text
    assert choices in text


@pytest.mark.parametrize(
    ("text", "choices"),
    [("policy: {memory: grue}", "'none' or 'lstm'"), ("precision: half", "'float32' or 'tf32' or 'bfloat16'")],
)
def test_a_configuration_file_is_answered_the_same(
    call: Callable[..., Result], tmp_path: Path, text: str, choices: str
) -> None:
    (tmp_path / "my.yaml").write_text(text)
    assert_sentence(call("train", "forage", "--config", tmp_path / "my.yaml"), f"it must be {choices}")


# Environments by name ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "agents"), [("pettingzoo:pettingzoo_test_envs:Arena", 4), ("vec:test_custom_env:plain", 1)]
)
def test_an_environment_by_name_is_trained_and_evaluated(
    call: Callable[..., Result], tmp_path: Path, name: str, agents: int
) -> None:
    folder = tmp_path / "run"
    start = ("train", name, "--run-dir", folder, "--env.num-envs", 4, "--policy.memory", "lstm")
    result = call(*start, *QUICK, "--total-steps", 8 * 4 * agents * 4)
    assert result.code == 0, result.err
    assert f"{4 * agents} segments × 8 = {32 * agents} steps → 4 minibatches × {agents} segments" in result.out
    assert json.loads(call("eval", folder, "--episodes", 9, "--json").out)["episodes"] == -(-9 // agents) * agents
    report = call("report", folder)
    assert (report.code, report.err) == (0, "")
    page = (folder / "report.html").read_text()
    assert ("data:image/webp" in page) == (agents > 1)  # a line cannot be drawn, and that is no harm


def test_a_replay_of_several_agents_goes_on_until_the_last_is_gone_and_forgets_who_was_absent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Spy(Actor):
        def forget(self, ended: Any = None) -> None:
            super().forget(ended)
            forgotten.append(ended.tolist())
            assert self.state is not None
            assert self.state[ended].count_nonzero() == 0

    config = PettingZooConfig("pettingzoo_test_envs:Arena")
    env = make_vec_env(config, 1)
    policy = make_actor_critic(env, PolicyConfig(memory="lstm", memory_size=8), 0)
    shown: list[Any] = []
    forgotten: list[list[bool]] = []

    def show(frames: Any, *_: Any) -> str:
        shown.extend(frames)
        return "page"

    monkeypatch.setattr(replay, "frames_html", show)
    monkeypatch.setattr(policy, "actor", lambda: Spy(policy))
    assert [page.html for page in record_replays(config, policy, "arena")] == ["page"]
    assert [int(frame[0, 0, 0]) for frame in shown] == list(range(len(shown)))  # Arena paints its step
    assert len(shown) == 10
    assert len(forgotten) == len(shown) - 1
    assert forgotten[0][3]  # dan comes later


def test_mettagrid_without_its_package_says_how_to_install_it(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("mettagrid.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mettagrid", None)
    result = call("train", "mettagrid:navigation", "--run-dir", tmp_path / "run")
    assert_sentence(result, "need the package mettagrid", "pip install 'ludus[mettagrid]'")
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(importlib.util.find_spec("mettagrid") is None, reason="needs the package mettagrid")
def test_mettagrid_with_its_package_trains(call: Callable[..., Result], tmp_path: Path) -> None:
    start = ("train", "mettagrid:navigation", "--run-dir", tmp_path / "run", "--env.num-envs", 2)
    result = call(*start, "--env.max-steps", 16, "--policy.memory", "lstm", *QUICK, "--total-steps", 128)
    assert result.code == 0, result.err
    assert "2 environments × 4 agents" in result.out
    assert "8 segments × 8 = 64 steps → 4 minibatches × 2 segments" in result.out
    assert json.loads(call("eval", tmp_path / "run", "--episodes", 4, "--json").out)["mean_ep_length"] == 16
    assert call("report", tmp_path / "run").code == 0


# Looking at a run -------------------------------------------------------------------------------------
def pictures(page: Path) -> list[Any]:
    """The frames of a replay that is a moving picture."""
    from PIL import Image, ImageSequence

    found = re.search(r"data:image/webp;base64,([\w+/=]+)", page.read_text())
    assert found is not None
    picture = Image.open(io.BytesIO(base64.b64decode(found[1])))
    return [frame.convert("RGB") for frame in ImageSequence.Iterator(picture)]


def test_eval_measures_whole_episodes_of_every_agent(call: Callable[..., Result], forage: Path) -> None:
    first = call("eval", forage, "--episodes", 10, "--json")  # rounded up to whole maps
    assert first.code == 0, first.err
    summary = json.loads(first.out)
    assert (summary["episodes"], summary["mean_ep_length"], summary["success_rate"]) == (12, 12.0, None)
    assert "berries" in summary
    assert call("eval", forage, "--episodes", 10, "--json").out == first.out
    sampled = json.loads(call("eval", forage, "--episodes", 10, "--json", "--stochastic").out)
    assert sampled["berries"] != summary["berries"]
    assert "\n  reward " in call("eval", forage, "--episodes", 3).out


def test_the_report_holds_pictures_of_an_episode(call: Callable[..., Result], forage: Path) -> None:
    result = call("report", forage)
    assert (result.code, result.out.strip(), result.err) == (0, str(forage / "report.html"), "")
    page = (forage / "report.html").read_text()
    assert "<svg" in page
    assert "srcdoc=" in page
    assert "data:image/webp;base64," in page
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["']https?:""", page)
    assert "Drag to turn" not in page  # a picture cannot be turned
    frames = pictures(forage / "report.html")
    assert len(frames) == 12  # one whole episode
    assert frames[0].size == (9 * 28, 10 * 28)
    assert any(not np.array_equal(frames[0], frame) for frame in frames[1:])


def test_play_says_where_the_pictures_are(call: Callable[..., Result], forage: Path) -> None:
    assert_sentence(call("play", forage), "forage has no MuJoCo scene", "'ludus report' shows its pictures")


# Acting -----------------------------------------------------------------------------------------------
def test_act_without_a_place_for_the_memory_names_the_fix(forage: Path) -> None:
    policy = ludus.load(forage)
    with pytest.raises(LudusError, match=r"has a memory: act with `actor = policy\.actor\(\)`"):
        policy.act(np.zeros(policy.obs_space.shape, np.uint8))
    actor = policy.actor()
    assert policy.action_space.contains(int(actor.act(np.zeros(policy.obs_space.shape, np.uint8))))


def test_an_actor_remembers_until_it_is_told_to_forget(forage: Path) -> None:
    policy = ludus.load(forage)
    obs = torch.rand((3, *policy.obs_space.shape), generator=torch.Generator().manual_seed(0))
    actor: Any = policy.actor()
    actor.act(obs)
    after_one = actor.state
    assert after_one is not None
    actor.act(obs)
    assert not torch.equal(actor.state, after_one)
    actor.forget(np.array([True, False, True]))
    assert actor.state.count_nonzero(1).gt(0).tolist() == [False, True, False]
    actor.forget()
    actor.act(obs)
    assert torch.equal(actor.state, after_one)


def test_an_exported_memory_acts_step_by_step_like_the_actor(
    call: Callable[..., Result], forage: Path, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    result = call("export", forage, tmp_path / "policy.onnx")
    assert result.code == 0, result.err
    policy = ludus.load(forage)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["obs", "state"]
    assert [value.name for value in session.get_outputs()] == ["action", "new_state"]
    env = ludus.make_env("forage", num_envs=5, episode_length=12)  # in training, maps end at different steps
    obs, actor = env.reset(4), policy.actor()
    state = np.zeros((env.num_rows, policy.state_size), np.float32)
    ended, forgetful, actions = 0, 0, []
    for _ in range(20):
        action, state = session.run(None, {"obs": obs.numpy().astype(np.float32), "state": state})
        expected = actor.act(obs)
        np.testing.assert_array_equal(action, expected.numpy())
        forgetful += int((policy.actor().act(obs) != expected).sum())
        step = env.step(expected)
        obs = step.obs
        actor.forget(step.done)
        state[step.done.numpy()] = 0.0
        ended += int(step.done.sum())
        actions.append(action)
    assert ended > env.num_rows  # every row began anew, some twice
    assert len(np.unique(actions)) > 1
    assert forgetful > 0  # the memory decided something


# Another device ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("device", ["nosuch", "meta", "mps"])
def test_a_device_that_does_not_exist_is_one_sentence_and_changes_nothing(
    call: Callable[..., Result], stopped: Path, device: str
) -> None:
    before = {file.name: file.read_bytes() for file in stopped.iterdir() if file.is_file()}
    assert_sentence(call("resume", stopped, "--device", device), f"--device {device}", "ludus doctor")
    assert {file.name: file.read_bytes() for file in stopped.iterdir() if file.is_file()} == before
    assert call("resume", stopped).code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_one_sentence(call: Callable[..., Result], stopped: Path) -> None:
    assert_sentence(call("resume", stopped, "--device", "cuda"), "--device cuda cannot be used here")


def test_a_run_of_another_machine_goes_on_here(call: Callable[..., Result], stopped: Path) -> None:
    config = yaml.safe_load((stopped / "config.yaml").read_text())
    (stopped / "config.yaml").write_text(yaml.safe_dump(config | {"device": "cuda", "cuda_graphs": True}))
    if not torch.cuda.is_available():
        assert_sentence(call("resume", stopped), "--device cuda cannot be used here")
    assert call("resume", stopped, "--device", "cpu").code == 0
    assert yaml.safe_load((stopped / "config.yaml").read_text()) == config
    rows = read_metrics(stopped / "metrics.jsonl")
    assert [row["time/iterations"] for row in rows if "time/iterations" in row] == list(range(1, 7))


def test_another_device_alone_does_not_prolong_a_finished_run(
    call: Callable[..., Result], forage: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(forage, tmp_path / "run", symlinks=True))
    assert_sentence(call("resume", folder, "--device", "cpu"), "already trained", "--total-steps")
