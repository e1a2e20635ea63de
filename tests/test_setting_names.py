"""What settings may be called, on the command line and in Python, and the help that shows them."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from ludus.algorithms.registry import built_in
from ludus.commands.flags import settings_flags
from ludus.commands.train_help import FIRST, MOST_LINES, WIDTH, help_text
from ludus.config import TrainConfig
from ludus.errors import ConfigError
from ludus.presets import all_presets, find_preset
from ludus.ranges import read_whole
from ludus.setting_names import OTHERS, Both, Told, has_setting
from ludus.settings import apply_overrides, load_config
from warm_python import ludus_command, run

CARTPOLE, PENDULUM = "gym:CartPole-v1", "gym:Pendulum-v1"
SMALL = (
    "--eval.episodes",
    "1",
    "--eval.max-steps",
    "9",
    "--log.no-report",
    "--log.no-tensorboard",
    "--run-dir",
    "r",
)


def config(name: str = CARTPOLE, algo: str = "") -> TrainConfig:
    return find_preset(name, algo).config


def value(of: Any, name: str) -> Any:
    for part in name.split("."):
        of = getattr(of, part)
    return of


# Names ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("algo", "given", "meant"),
    [
        ("ppo", {"n_steps": 64}, {"ppo.horizon": 64}),
        ("ppo", {"num_steps": 64, "n_envs": 4}, {"ppo.horizon": 64, "env.num_envs": 4}),
        ("ppo", {"n_epochs": 3, "clip_range": 0.1}, {"ppo.update_epochs": 3, "ppo.clip": 0.1}),
        ("ppo", {"ent_coef": 0.01}, {"ppo.entropy_coef": 0.01, "ppo.entropy_coef_final": 0.01}),
        ("ppo", {"vf_coef": 0.7, "num_minibatches": 8}, {"ppo.value_coef": 0.7, "ppo.minibatches": 8}),
        ("ppo", {"total_timesteps": 2e3, "num_envs": 2}, {"loop.total_steps": 2000, "env.num_envs": 2}),
        ("ppo", {"eval_freq": 500, "n_eval_episodes": 3}, {"eval.every": 500, "eval.episodes": 3}),
        ("ppo", {"save_freq": "1e4", "net_arch": [32]}, {"checkpoint.every": 10_000, "policy.hidden": (32,)}),
        ("ppo", {"learning_rate": 1e-2, "gamma": 0.9}, {"ppo.learning_rate": 1e-2, "ppo.gamma": 0.9}),
        ("ppo", {"batch_size": 64, "norm_adv": False}, {"ppo.batch_size": 64, "ppo.normalize_advantage": False}),
        ("ppo", {"max_grad_norm": 1.0, "hidden": [8]}, {"ppo.max_grad_norm": 1.0, "policy.hidden": (8,)}),
        ("ppo", {"wandb_project_name": "mine"}, {"log.wandb": "mine"}),
        ("sac", {"tau": 0.25, "buffer_size": 1e4}, {"replay.polyak": 0.75, "replay.capacity": 10_000}),
        ("sac", {"learning_starts": 50, "gradient_steps": 2}, {"replay.warmup": 50, "replay.train_batches": 2}),
        ("sac", {"learning_rate": 1e-2, "batch_size": 8}, {"replay.learning_rate": 1e-2, "replay.batch_size": 8}),
        ("td3", {"policy_frequency": 4, "noise_clip": 0.2}, {"td3.policy_delay": 4, "td3.target_noise_clip": 0.2}),
        ("dqn", {"exploration_fraction": 0.5, "end_e": 0.1}, {"dqn.epsilon_until": 0.5, "dqn.epsilon_final": 0.1}),
    ],
)  # fmt: skip
def test_a_name_of_another_library_sets_ours(algo: str, given: dict[str, Any], meant: dict[str, Any]) -> None:
    changed = apply_overrides(config(CARTPOLE if algo in ("ppo", "dqn") else PENDULUM, algo), given)
    assert {name: value(changed, name) for name in meant} == meant


@pytest.mark.parametrize(
    ("algo", "name", "told"),
    [
        ("ppo", "train_batches", "PPO takes --ppo.minibatches × --ppo.update-epochs gradient steps"),
        ("ppo", "tau", "--tau, here --replay.polyak, is a setting of dqn, flash-sac, reward, sac and td3"),
        ("ppo", "train_freq", "--train-freq, here --replay.steps, is a setting of"),
        ("ppo", "steps", "take --total-steps."),
        ("sac", "steps", "--total-steps for how long to train"),
        ("ppo", "anneal_lr", "--ppo.learning-rate-final"),
        ("ppo", "track", "--log.wandb PROJECT"),
        ("ppo", "exp_name", "--run-dir"),
        ("ppo", "policy_kwargs", "--policy.hidden 64 64"),
        ("sac", "ent_coef", "--sac.alpha"),
        ("sac", "clip_range", "a setting of amp and ppo"),
        ("sac", "train_freq", "--replay.steps"),
    ],
)
def test_a_name_without_an_equal_is_answered_with_ours(algo: str, name: str, told: str) -> None:
    base = config(CARTPOLE if algo == "ppo" else PENDULUM, algo)
    with pytest.raises(ConfigError) as python:
        apply_overrides(base, {name: 1})
    with pytest.raises(ConfigError) as command:
        settings_flags([f"--{name.replace('_', '-')}", "1"], base)
    assert told in str(python.value)
    assert str(python.value) == str(command.value)


def test_every_name_of_the_table_leads_to_a_setting_or_a_sentence() -> None:
    configs = [algorithm.config() for algorithm in built_in().values()] + [config()]
    for name, meanings in OTHERS.items():
        assert not any(has_setting(known, name) for known in configs), name
        for meaning in meanings:
            if isinstance(meaning, Told):
                assert meaning.sentence.endswith(".")
                assert not meaning.section or any(hasattr(known, meaning.section) for known in configs)
                continue
            ours = [meaning] if isinstance(meaning, str) else [meaning.name]
            ours += [meaning.final] if isinstance(meaning, Both) else []
            for full in ours:
                assert any(has_setting(known, full) for known in configs), full


def test_flags_are_written_out_with_their_values() -> None:
    words = "--norm-adv False --lr=1e-3 --no-report --net-arch 8 8"
    flags, names = settings_flags(words.split(), config())
    written = "--ppo.no-normalize-advantage --ppo.learning-rate 1e-3 --log.no-report --policy.hidden 8 8"
    assert flags == written.split()
    assert names == ["norm_adv", "lr", "report", "net_arch"]


# Numbers ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "number"), [("1e5", 100_000), ("100_000", 100_000), ("1M", 10**6), ("2.5k", 2500), ("-1", -1)]
)
def test_whole_numbers_may_be_written_as_people_write_them(text: str, number: int) -> None:
    assert read_whole(text) == number
    assert apply_overrides(config(), {"seed": text if number >= 0 else "0"}).seed == max(number, 0)


@pytest.mark.parametrize("text", ["1.5", "", "many", "1e400000000", "inf", "nan", "1e30"])
def test_what_is_no_whole_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a whole number"):
        read_whole(text)
    with pytest.raises(ConfigError, match="it must be int"):
        apply_overrides(config(), {"total_steps": text})


def test_a_file_may_say_1e5(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("loop:\n  total_steps: 1e5\n")
    assert load_config(tmp_path / "c.yaml", config()).loop.total_steps == 100_000


# The command line -------------------------------------------------------------------------------------
def test_a_training_in_the_words_of_another_library(tmp_path: Path) -> None:
    """With flags before the preset, and minibatches by their size."""
    words = (
        "--seed 3 --n-envs 4 gym:CartPole-v1 --n-steps 32 --batch-size 32 --n-epochs 1 --total-timesteps 0.256k"
    )
    done = run(ludus_command("train", *words.split(), *SMALL), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 segments × 32 = 128 steps → 4 minibatches × 32 steps, 1 pass" in done.stdout
    assert "seed 3" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("gym:CartPole-v1 --batch-size 100", "into minibatches of 100 steps. Try --ppo.batch-size 64 or 128"),
        ("gym:CartPole-v1 --batch-size 64 --minibatches 2", "both say how an iteration is split"),
        ("gym:CartPole-v1 --ent-coff 1", "unknown setting --ent-coff. Did you mean '--ent-coef'"),
        ("CartPole-v1", "There is no preset 'CartPole-v1'. Did you mean 'gym:CartPole-v1'?"),
        ("CartPol-v1", "Did you mean 'gym:CartPole-v1'"),
        ("--seed 1 CartPole-v1 --n-steps 3", "Did you mean 'gym:CartPole-v1'?"),
        ("gym:CartPole-v1 --every 5", "is a setting of eval and checkpoint: say which, --eval.every or"),
        ("gym:CartPole-v1 --policy MlpPolicy", "--policy: the network follows the observations"),
        ("gym:CartPole-v1 --seed", "--seed needs a value"),
        ("gym:CartPole-v1 --seed 1 2 3", "Several are an experiment: --seeds 1,2"),
        ("gym:CartPole-v1 --callback a:B", "given in Python: ludus.train(…, callbacks=["),
        ("my_env:Reach", "Did you mean 'gym:my_env:Reach'?"),
        ("gmy:CartPole-v1", "Did you mean 'gym:CartPole-v1'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_answered_in_a_sentence(words: str, told: str, tmp_path: Path) -> None:
    done = run(ludus_command("train", *words.split(), "--total-steps", "64", *SMALL), cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert not (tmp_path / "r").exists()


def test_the_value_of_a_flag_is_not_taken_for_the_preset(tmp_path: Path) -> None:
    words = ("--run-dir", "forage", "--no-log.report", "gym:CartPole-v1", "--total-steps", "1e2")
    done = run(ludus_command("train", *words, *SMALL[:4]), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "forage" / "config.yaml").exists()


# Help -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [*all_presets(), CARTPOLE])
def test_the_help_of_a_preset_fits_a_page(name: str) -> None:
    for algo in ("", *built_in()):
        preset = find_preset(name, algo)
        lines = help_text(preset, preset.config, WIDTH).splitlines()
        assert len(lines) <= MOST_LINES, (name, algo)
        assert max(map(len, lines)) <= WIDTH, (name, algo)


def test_the_help_shows_what_applies_and_nothing_else() -> None:
    ppo = run(ludus_command("train", CARTPOLE, "--help")).stdout
    assert "--total-steps             100_000  Environment steps in all\n" in ppo
    assert "--ppo.learning-rate       0.001    Adam's step size at the start\n" in ppo
    assert re.search(r"--env.kwargs +Its arguments: NAME VALUE …\n", ppo)
    for foreign in ("--replay", "--sac", "--td3", "--dqn", "--data", "--reward", "--adversary", "--env.id"):
        assert foreign not in ppo
    sac = run(ludus_command("train", PENDULUM, "--algo", "sac", "--help")).stdout
    assert "--ppo." not in sac
    assert "--replay.batch-size" in sac
    assert "--reward.rrd-batch-size" not in sac  # no reward is learned


def test_help_all_shows_every_setting_of_the_preset() -> None:
    whole = run(ludus_command("train", CARTPOLE, "--help-all"))
    assert whole.returncode == 0
    for section in ("ppo", "policy", "env", "loop", "eval", "checkpoint", "log"):
        for field in dataclasses.fields(value(config(), section)):
            dashed = field.name.replace("_", "-")
            assert f"--{section}.{dashed}" in whole.stdout or f"--{section}.no-{dashed}" in whole.stdout


def test_what_comes_first_in_the_help_is_a_setting() -> None:
    configs = [algorithm.config() for algorithm in built_in().values()]
    for section, names in FIRST.items():
        for name in names:
            assert any(has_setting(known, f"{section}.{name}") for known in configs), (section, name)
