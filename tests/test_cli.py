"""The command `ludus`: good input does what it says, bad input is one clear sentence and never a stack trace."""

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml

import ludus
from ludus import cli
from ludus.errors import ConfigError
from ludus.presets import all_presets
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training.checkpoint import checkpoints_in, newest_intact
from warm_python import Program, ludus_command

QUICK: tuple[Any, ...] = (
    "--env.num-envs",
    "4",
    "--ppo.horizon",
    "8",
    "--ppo.minibatches",
    "2",
    "--ppo.update-epochs",
    "1",
)
QUICK += ("--total-steps", "64", "--eval.episodes", "2", "--log.no-report", "--log.no-tensorboard")
SCRIPTED = "gym:gym_test_envs:ludus-test/Scripted-v0"


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in this process. Whatever it raises but SystemExit would be a stack trace: the test fails."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)

    def run(*arguments: Any) -> Result:
        monkeypatch.setattr(sys, "argv", ["ludus", *map(str, arguments)])
        capfd.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Result(code, *capfd.readouterr())

    return run


def process(*arguments: Any, limit: int | None = None) -> Result:
    """The command in a process of its own, with files no larger than `limit` bytes."""

    def prepare() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    done = subprocess.run(
        [sys.executable, "-m", "ludus.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        preexec_fn=prepare,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def assert_sentence(result: Result, *parts: str) -> None:
    """Exit code 2 and one line on stderr that holds all `parts`."""
    assert result.code == 2
    assert result.err.startswith("ludus: "), result.err
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.out + result.err
    for part in parts:
        assert part in result.err


@pytest.fixture(scope="session")
def kuka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {
        "env.num_envs": 8,
        "env.max_steps": 30,
        "ppo.minibatches": 2,
        "ppo.update_epochs": 1,
        "loop.total_steps": 512,
        "eval.episodes": 4,
    }
    folder = tmp_path_factory.mktemp("kuka-pick-place") / "run"
    overrides = {**settings, "log.report": False}
    return ludus.train("kuka-pick-place", folder, console=Console("quiet"), overrides=overrides)


@pytest.fixture(scope="session")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cartpole") / "run"
    settings = {"loop.total_steps": 2048, "eval.every": 1024, "log.report": False}
    return ludus.train("gym:CartPole-v1", folder, console=Console("quiet"), overrides=settings)


# Commands ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_names_every_command(call: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    result = call(*arguments)
    assert result.code == 0
    for name in cli.COMMANDS:
        assert f"  {name}" in result.out


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_has_help(call: Callable[..., Result], name: str) -> None:
    result = call(name, "--help")
    assert result.code == 0
    assert f"usage: ludus {name}" in result.out
    assert not result.err


def test_version_is_the_packages(call: Callable[..., Result]) -> None:
    assert call("--version").out == f"ludus {ludus.__version__}\n"


def test_the_installed_script_is_this_command() -> None:
    script = Path(sys.executable).with_name("ludus")
    if not script.exists():
        pytest.skip("Ludus is not installed in this environment")
    done = subprocess.run([script, "--version"], capture_output=True, text=True)
    assert done.stdout == f"ludus {ludus.__version__}\n"


def test_list_shows_every_preset(call: Callable[..., Result]) -> None:
    result = call("list")
    assert result.code == 0
    for name in all_presets():
        assert name in result.out


def test_train_without_a_preset_shows_them_and_fails(call: Callable[..., Result]) -> None:
    result = call("train")
    assert result.code == 2
    assert "kuka-pick-place" in result.out


def test_doctor_says_what_works_and_steps_the_simulator(call: Callable[..., Result]) -> None:
    result = call("doctor")
    assert result.code == 0
    assert re.search(r"KUKA simulation: [\d,]+ steps/s", result.out)
    assert "torch" in result.out


def test_check_passes_a_good_environment_and_fails_a_bad_one(call: Callable[..., Result]) -> None:
    assert call("check", "gym:CartPole-v1", "--steps", 40).code == 0
    bad = call("check", "gym:gym_test_envs:ludus-test/Wild-v0", "--steps", 20)
    assert bad.code == 1
    assert "error" in bad.out.lower()


# Training ---------------------------------------------------------------------------------------------
def test_a_training_ends_with_its_folder_and_the_next_commands(
    call: Callable[..., Result], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    result = call("train", "gym:CartPole-v1", "--run-dir", folder, *QUICK)
    assert result.code == 0, result.err
    assert f"Run folder: {folder}" in result.out
    for command in ("eval", "report"):
        assert f"ludus {command} {folder}" in result.out
    assert f"ludus play {folder}" not in result.out  # which would refuse: a cart has no scene
    assert (folder / "final" / "policy.safetensors").exists()
    assert (folder / "checkpoints" / "best" / "policy.safetensors").exists()
    facts = json.loads((folder / "run.json").read_text())
    assert facts["preset"] == "gym:CartPole-v1"


def test_a_run_that_can_be_watched_says_how(call: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = call("train", "kuka-pick-place", "--run-dir", folder, *QUICK, "--env.max-steps", "5")
    assert f"ludus play {folder}" in result.out
    assert call("play", folder, "--seconds", "0.1").code == 0


def test_without_a_run_dir_the_run_goes_below_runs(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call("train", "gym:CartPole-v1", "--seed", 7, *QUICK).code == 0
    (folder,) = (tmp_path / "runs" / "gym-CartPole-v1").iterdir()
    assert folder.name.endswith("-7")


def test_an_environment_in_the_present_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "my_own.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('Mine-v0', entry_point=CartPoleEnv, max_episode_steps=20)\n"
    )
    script = "from ludus.cli import main; main()"
    arguments = ["train", "gym:my_own:Mine-v0", "--run-dir", "run", *QUICK]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_configuration_file_is_read_first_and_flags_go_over_it(
    call: Callable[..., Result], tmp_path: Path
) -> None:
    file, folder = tmp_path / "my.yaml", tmp_path / "run"
    file.write_text("seed: 5\nppo: {gamma: 0.9, learning_rate: 1e-3}\npolicy:\n  hidden: [16, 8]\n")
    result = call("train", "gym:CartPole-v1", f"--config={file}", "--run-dir", folder, *QUICK, "--seed", 6)
    assert result.code == 0, result.err
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["seed"] == 6
    assert config["ppo"]["gamma"] == 0.9
    assert config["ppo"]["learning_rate"] == 1e-3
    assert config["policy"]["hidden"] == [16, 8]
    # What a run writes can be given to the next one, and means the same.
    again = call("train", "gym:CartPole-v1", "--config", folder / "config.yaml", "--run-dir", tmp_path / "again")
    assert again.code == 0, again.err
    assert yaml.safe_load((tmp_path / "again" / "config.yaml").read_text()) == config


def test_epochs_cycles_and_iterations_count_what_they_say(call: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    loop = ("--epochs", "2", "--cycles=3", "--iterations", "2")
    result = call(
        "train",
        "gym:CartPole-v1",
        "--run-dir",
        folder,
        *(flag for flag in QUICK if flag not in ("--total-steps", "64")),
        *loop,
    )
    assert result.code == 0, result.err
    assert "2 epochs › 3 cycles › 2 iterations" in result.out
    rows = read_metrics(folder / "metrics.jsonl")
    trained = [row for row in rows if "train/policy_gradient_loss" in row]
    assert [row["time/iterations"] for row in trained] == [2, 4, 6, 8, 10, 12]
    assert [(row["loop/epoch"], row["loop/cycle"]) for row in trained] == [
        (epoch, cycle) for epoch in (1, 2) for cycle in (1, 2, 3)
    ]
    assert [row["step"] for row in rows if "eval/mean_reward" in row] == [6 * 32, 12 * 32]
    assert len(checkpoints_in(folder / "checkpoints")) == 2


def test_python_and_command_line_give_the_same_run(call: Callable[..., Result], tmp_path: Path) -> None:
    assert call("train", "gym:CartPole-v1", "--run-dir", tmp_path / "a", *QUICK).code == 0
    settings: dict[str, Any] = {
        "env": {"num_envs": 4},
        "ppo": {"horizon": 8, "minibatches": 2, "update_epochs": 1},
        "loop": {"total_steps": 64},
        "eval.episodes": 2,
        "log": {"report": False, "tensorboard": False},
    }
    ludus.train("gym:CartPole-v1", tmp_path / "b", console=Console("quiet"), **settings)
    first, second = (ludus.load(tmp_path / name).state_dict() for name in "ab")
    assert all(torch.equal(first[name], second[name]) for name in first)


# Looking at a run -------------------------------------------------------------------------------------
def test_eval_json_has_the_promised_keys_and_is_the_same_every_time(
    call: Callable[..., Result], kuka: Path
) -> None:
    first = call("eval", kuka, "--episodes", 6, "--json")
    assert first.code == 0, first.err
    result = json.loads(first.out)
    assert {"success_rate", "mean_reward", "std_reward", "mean_ep_length", "episodes"} <= result.keys()
    assert result["episodes"] == 6
    assert 0 <= result["success_rate"] <= 1
    assert call("eval", kuka, "--episodes", 6, "--json").out == first.out
    other = json.loads(call("eval", kuka, "--episodes", 6, "--json", "--seed", 3).out)
    assert other["mean_reward"] != result["mean_reward"]
    sampled = json.loads(call("eval", kuka, "--episodes", 6, "--json", "--stochastic").out)
    assert sampled["mean_reward"] != result["mean_reward"]


def test_eval_json_of_a_task_without_success_says_null(call: Callable[..., Result], cartpole: Path) -> None:
    result = json.loads(call("eval", cartpole, "--episodes", 5, "--json").out)
    assert result["success_rate"] is None
    assert result["episodes"] == 5
    assert result["mean_reward"] == result["mean_ep_length"] > 9


def test_eval_prints_a_line_for_people(call: Callable[..., Result], kuka: Path) -> None:
    result = call("eval", kuka, "--episodes", 3)
    assert result.code == 0
    assert "on 3 new starts, deterministic actions, seed 0:\n  success " in result.out
    assert "sampled actions" in call("eval", kuka, "--episodes", 3, "--stochastic").out


def test_report_writes_one_page_with_curves_and_a_replay(call: Callable[..., Result], kuka: Path) -> None:
    pytest.importorskip("mjviser")
    result = call("report", kuka)
    assert result.code == 0, result.err
    assert result.out.strip() == str(kuka / "report.html")
    page = (kuka / "report.html").read_text()
    assert "<svg" in page
    assert page.count("<iframe") >= 1
    assert "Drag to turn" in page
    assert not re.search(r"""<(script|link|img)[^>]+(src|href)=["']https?:""", page)


@pytest.mark.parametrize("run", ["kuka", "cartpole"])
def test_an_exported_policy_acts_like_the_one_in_torch(
    call: Callable[..., Result], run: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    folder = request.getfixturevalue(run)
    file = tmp_path / "new" / "policy.onnx"
    result = call("export", folder, file)
    assert result.code == 0, result.err
    assert list(file.parent.iterdir()) == [file]
    policy = ludus.load(folder)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    for batch in (1, 64):
        obs = 5 * np.random.default_rng(batch).normal(size=(batch, *policy.obs_space.shape)).astype(np.float32)
        (action,) = session.run(None, {"obs": obs})
        np.testing.assert_allclose(action, policy.act(obs), atol=1e-5)
        assert all(policy.action_space.contains(a.astype(policy.action_space.dtype)) for a in action)


def test_a_loaded_policy_acts_on_arrays_and_tensors_alone_and_in_batches(kuka: Path) -> None:
    policy = ludus.load(kuka)
    obs = np.random.default_rng(0).normal(size=(5, *policy.obs_space.shape)).astype(np.float32)
    batch = policy.act(obs, deterministic=True)
    assert isinstance(batch, np.ndarray)
    np.testing.assert_allclose(policy.act(obs[2]), batch[2], atol=1e-6)
    np.testing.assert_array_equal(policy.act(torch.from_numpy(obs)).numpy(), batch)


def assert_plays(*arguments: object) -> None:
    """`ludus play` serves its page and ends after the seconds it was given."""
    pytest.importorskip("mjviser")
    player = Program(ludus_command("play", *arguments, "--seconds", 4))
    while not (address := re.search(r"http://localhost:\d+\b", player.output())):
        assert player.poll() is None, player.output()
        time.sleep(0.02)
    with urllib.request.urlopen(address.group()) as page:
        assert "<html" in page.read(2000).decode().lower()
    assert player.wait() == 0, player.output()
    assert "Traceback" not in player.output()


def test_play_serves_a_page_and_ends_by_itself(kuka: Path) -> None:
    assert_plays(kuka, "--port", 18080)


# Bad input --------------------------------------------------------------------------------------------
BAD: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "unknown command": (("trian",), ("'trian'", "Did you mean 'train'?")),
    "unknown preset": (("train", "kuka-pick-plce"), ("Did you mean 'kuka-pick-place'", "ludus list")),
    "unknown environment": (("train", "gym:CartPol-v1"), ("Did you mean 'CartPole-v1'",)),
    "unknown module": (("train", "gym:no_such_module:X-v0"), ("'no_such_module'", "installed")),
    "option without value": (("train", "gym:CartPole-v1", "--run-dir"), ("--run-dir needs a value",)),
    "minibatches": (("train", "gym:CartPole-v1", "--ppo.minibatches", "7"), ("7 minibatches", "256 steps")),
    "groups": (("train", "gym:CartPole-v1", "--groups", "3"), ("--env.num-envs 8", "--groups 3", "9 does")),
    "no environments": (("train", "gym:CartPole-v1", "--env.num-envs", "0"), ("--env.num-envs is 0",)),
    "negative epochs": (("train", "gym:CartPole-v1", "--epochs", "-2"), ("--loop.epochs is -2",)),
    "negative cycles": (("train", "gym:CartPole-v1", "--cycles", "-2"), ("--loop.cycles is -2",)),
    "no steps": (("train", "gym:CartPole-v1", "--total-steps", "0"), ("--total-steps",)),
    "negative seed": (("train", "gym:CartPole-v1", "--seed", "-1"), ("--seed is -1",)),
    "not a number": (("train", "gym:CartPole-v1", "--ppo.learning-rate", "nan"), ("--ppo.learning-rate is nan",)),
    "no threads": (("train", "gym:CartPole-v1", "--torch-threads", "0"), ("--torch-threads is 0",)),
    "no layer": (("train", "gym:CartPole-v1", "--policy.hidden", "0"), ("--policy.hidden",)),
    "no spread": (("train", "gym:Pendulum-v1", "--policy.initial-std", "0"), ("--policy.initial-std is 0.0",)),
    "unknown device": (("train", "gym:CartPole-v1", "--device", "abacus"), ("--device abacus", "ludus doctor")),
    "missing run": (("resume", "no/such/run"), ("no run folder no/such/run",)),
    "missing run to evaluate": (("eval", "no/such/run"), ("no run folder",)),
    "missing run to play": (("play", "no/such/run"), ("no run folder",)),
    "missing run to report": (("report", "no/such/run"), ("no run folder",)),
    "missing run to export": (("export", "no/such/run", "x.onnx"), ("no run folder",)),
    "missing configuration": (("train", "hopper", "--config", "no.yaml"), ("no configuration file no.yaml",)),
    "unknown environment to check": (("check", "gym:Nope-v0"), ("'Nope-v0'",)),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence(
    call: Callable[..., Result], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, parts = BAD[case]
    assert_sentence(call(*arguments), *parts)
    assert list(tmp_path.iterdir()) == []  # settings that do not work leave no half-made run


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("train", "gym:CartPole-v1", "--ppo.learning-rat", "1"), "--ppo.learning-rate"),
        (("train", "gym:CartPole-v1", "--learning-rates", "1"), "--learning-rate"),
        (("train", "gym:CartPole-v1", "--ppo.gamma", "much"), "--ppo.gamma"),
        (("eval", "run", "--episodes", "many"), "--episodes"),
        (("eval",), "Folder of the run"),
        (("list", "--all"), "--all"),
    ],
)
def test_an_unknown_flag_or_a_value_of_the_wrong_kind_is_named(
    call: Callable[..., Result], arguments: tuple[str, ...], part: str
) -> None:
    result = call(*arguments)
    assert result.code == 2
    assert part in result.err
    assert not result.out


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ppo: {gama: 0.9}", ("unknown setting 'ppo.gama'", "Did you mean 'gamma'")),
        ("learning_rate: 1", ("unknown setting 'learning_rate'",)),
        ("on: 3", ("unknown setting 'True'",)),  # YAML's own idea of "on"
        ("ppo: [1, 2", ("cannot be read as YAML",)),
        ("- 1\n- 2", ("does not hold a configuration",)),
        ("", ("does not hold a configuration",)),
        ("ppo: 3", ("ppo needs names and values",)),
        ("ppo: {gamma: high}", ("ppo.gamma is 'high'", "float")),
        ("ppo: {horizon: 2.5}", ("ppo.horizon is 2.5", "int")),
        ("ppo: {kl_control: never}", ("ppo.kl_control", "'stop' or 'adapt'")),
        ("policy: {hidden: 64}", ("policy.hidden is 64",)),
        ("env: {kind: 7}", ("unknown environment kind 7", "kuka")),
        ("env: {kind: [kuka]}", ("unknown environment kind",)),
        ("env: {kind: locomotion, task: hoper}", ("'hoper'", "Did you mean 'hopper'")),
    ],
)
def test_a_wrong_configuration_file_is_one_sentence(
    call: Callable[..., Result], tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(text)
    assert_sentence(call("train", "gym:CartPole-v1", "--config", file, "--run-dir", tmp_path / "run"), *parts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("motions view squat --html .", "Is a directory"),
        ("motions view squat --html my.yaml/page.html", "File exists"),
        ("motions view squat --html my.yaml/pages/page.html", "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_is_one_sentence(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, problem: str
) -> None:
    pytest.importorskip("mjviser")
    (tmp_path / "my.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert_sentence(call(*command.split()), f"cannot be used: {problem}")


def test_python_gets_the_same_sentences() -> None:
    with pytest.raises(ConfigError, match=r"unknown setting 'gama'\. Did you mean 'gamma'"):
        ludus.train("gym:CartPole-v1", gama=0.9)
    with pytest.raises(ConfigError, match=r"unknown setting 'env\.color'"):
        ludus.make_env("kuka-pick-place", color="red")


@pytest.mark.parametrize("command", ["resume", "eval", "play", "report"])
def test_a_folder_that_is_no_run_is_one_sentence(
    call: Callable[..., Result], tmp_path: Path, command: str
) -> None:
    assert_sentence(call(command, tmp_path), "is not a run of Ludus")
    (tmp_path / "config.yaml").write_text("model: resnet\n")
    assert_sentence(call(command, tmp_path), "config.yaml", "unknown setting 'model'")
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe\x00\x01")
    assert_sentence(call(command, tmp_path), "config.yaml")


@pytest.mark.parametrize("command", ["eval", "play", "export"])
def test_a_run_without_checkpoints_is_one_sentence(
    call: Callable[..., Result], cartpole: Path, tmp_path: Path, command: str
) -> None:
    shutil.copy(cartpole / "config.yaml", tmp_path)
    arguments = [tmp_path / "policy.onnx"] if command == "export" else []
    assert_sentence(call(command, tmp_path, *arguments), "no checkpoint")


def test_an_existing_run_is_not_overwritten(call: Callable[..., Result], cartpole: Path) -> None:
    before = (cartpole / "metrics.jsonl").read_bytes()
    result = call("train", "gym:CartPole-v1", "--run-dir", cartpole, *QUICK)
    assert_sentence(result, "already holds a run", f"ludus resume {cartpole}")
    assert (cartpole / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("episodes", [0, -3])
def test_a_number_of_episodes_below_one_is_one_sentence(
    call: Callable[..., Result], cartpole: Path, episodes: int
) -> None:
    assert_sentence(call("eval", cartpole, "--episodes", episodes), f"--episodes is {episodes}")


def test_a_wrong_place_to_export_to_is_one_sentence(
    call: Callable[..., Result], cartpole: Path, tmp_path: Path
) -> None:
    assert_sentence(call("export", cartpole, tmp_path / "policy.txt"), ".onnx", "policy.txt")
    (tmp_path / "file").write_text("")
    assert_sentence(call("export", cartpole, tmp_path / "file" / "policy.onnx"), "cannot be written")
    assert (tmp_path / "file").read_text() == ""


def test_an_environment_that_cannot_be_drawn_live_is_one_sentence(
    call: Callable[..., Result], cartpole: Path
) -> None:
    assert_sentence(call("play", cartpole), "no MuJoCo scene")


# Environments that break the rules ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("script", "parts"),
    [
        ({"5": "raise"}, ("raised in step()", "the gripper fell off")),
        ({"reset": "raise"}, ("raised in reset()", "the gripper fell off")),
        ({"5": "nan"}, ("observation of row 0", "is nan")),
        ({"5": "infinite reward"}, ("reward of row 0", "is inf")),
        ({"5": "shape"}, ("has shape (3,)", "says (2,)")),
    ],
)
def test_an_environment_that_breaks_its_contract_is_one_sentence(
    call: Callable[..., Result], tmp_path: Path, script: dict[str, str], parts: tuple[str, ...]
) -> None:
    file = tmp_path / "env.yaml"
    file.write_text(yaml.safe_dump({"env": {"kwargs": {"script": script}, "max_steps": 50}}))
    result = call("train", SCRIPTED, "--config", file, "--run-dir", tmp_path / "run", *QUICK)
    assert_sentence(result, "gym:gym_test_envs:ludus-test/Scripted-v0", *parts)


def test_an_environment_that_raises_after_a_while_loses_nothing(
    call: Callable[..., Result], tmp_path: Path
) -> None:
    file, folder = tmp_path / "env.yaml", tmp_path / "run"
    file.write_text(yaml.safe_dump({"env": {"kwargs": {"script": {"30": "raise"}}, "max_steps": 50}}))
    flags = [*QUICK, "--total-steps", 4 * 8 * 20, "--eval.every", 4 * 8 * 20]
    result = call("train", SCRIPTED, "--config", file, "--run-dir", folder, *flags)
    assert_sentence(result, "the gripper fell off")
    assert "emergency checkpoint" in result.out
    assert newest_intact(folder / "checkpoints", pytest.fail).name == f"step_{4 * 8 * 3:09d}"


def test_a_module_that_fails_to_import_is_one_sentence(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    assert_sentence(call("train", "gym:broken_module:X-v0"), "'broken_module'", "ZeroDivisionError")


# Disks ------------------------------------------------------------------------------------------------
def test_a_run_folder_that_cannot_be_made_is_one_sentence(call: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place in ("/proc/no/such", tmp_path / "file", tmp_path / "file" / "run"):
        result = call("train", "gym:CartPole-v1", "--run-dir", place, *QUICK)
        assert_sentence(result, str(place), "cannot be written", "--run-dir")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(
    call: Callable[..., Result], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    flags = [*QUICK[:-1], "--policy.hidden", "16", "--total-steps", 32 * 40, "--eval.every", 32 * 10]
    result = process("train", "gym:CartPole-v1", "--run-dir", folder, *flags, limit=24_000)
    assert_sentence(result, "File too large", f"ludus resume {folder}")
    assert "TensorBoard failed" in result.out
    saved = newest_intact(folder / "checkpoints", pytest.fail)
    rows = read_metrics(folder / "metrics.jsonl")
    assert rows[-1]["step"] >= int(saved.name[5:])
    assert call("resume", folder).code == 0
    trained = [
        row["step"] for row in read_metrics(folder / "metrics.jsonl") if "train/policy_gradient_loss" in row
    ]
    assert trained == [32 * i for i in range(1, 41)]


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Callable[[Path], Path]]:
    """Turns a copy of a run into one on a disk that cannot be written."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(*options: str) -> bool:
        command = ["mount", *options, "tmpfs", str(disk)]
        return subprocess.run(command, capture_output=True).returncode == 0

    if os.geteuid() != 0 or shutil.which("mount") is None or not mount("-t", "tmpfs"):
        pytest.skip("mounting a disk needs the rights to do so")

    def freeze(run: Path) -> Path:
        shutil.copytree(run, disk / "run", symlinks=True)
        assert mount("-o", "remount,ro")
        return disk / "run"

    yield freeze
    subprocess.run(["umount", str(disk)], check=True)


def test_a_read_only_disk_is_one_sentence_to_writers_and_no_hindrance_to_readers(
    call: Callable[..., Result], cartpole: Path, read_only: Callable[[Path], Path]
) -> None:
    run = read_only(cartpole)
    assert call("eval", run, "--episodes", 2).code == 0
    new = call("train", "gym:CartPole-v1", "--run-dir", run.parent / "new", *QUICK)
    assert_sentence(new, "Read-only file system", "--run-dir")
    assert_sentence(call("resume", run, "--total-steps", 4096), "Read-only file system")
    assert_sentence(call("report", run), "Read-only file system")
    assert_sentence(call("export", run, run / "policy.onnx"), "Read-only file system")
