"""Settings at the edges: every number has a range, a user's flag wins or is refused, unknown names are errors."""

import dataclasses
import math
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

import ludus
from ludus.algorithms.imitation.config import AdversaryConfig, AMPTrainConfig
from ludus.algorithms.on_policy.config import count_minibatches
from ludus.algorithms.ppo.config import PPOConfig, PPOTrainConfig
from ludus.algorithms.registry import built_in
from ludus.algorithms.replay.config import DQNTrainConfig
from ludus.buffers.schedule import SegmentSchedule
from ludus.cli import main
from ludus.commands.training import read_settings
from ludus.config import TrainConfig, make_plan, to_dict
from ludus.envs.config import ENV_KINDS, ForageConfig
from ludus.errors import ConfigError, LudusError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy, policy_from
from ludus.policies.replay_heads import make_replay_head
from ludus.policies.spaces import space_from
from ludus.policies.vision import make_encoder
from ludus.presets import all_presets, find_preset
from ludus.ranges import Range, check_fields
from ludus.settings import apply_overrides, load_config, names_in, settle

BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


# Ranges ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ppo.gamma": 1.5}, "--ppo.gamma is 1.5; it must be at most 1."),
        ({"ppo.gae_lambda": 2.0}, "--ppo.gae-lambda is 2.0; it must be at most 1."),
        ({"ppo.max_grad_norm": -1.0}, "--ppo.max-grad-norm is -1.0; it must be more than 0."),
        ({"ppo.learning_rate": math.nan}, "--ppo.learning-rate is nan; it must be a finite number."),
        ({"ppo.clip": math.inf}, "--ppo.clip is inf; it must be a finite number."),
        ({"policy.hidden": (8, 0)}, r"--policy.hidden is \(8, 0\); each number must be at least 1."),
        ({"policy.hidden": (1,) * 65}, "--policy.hidden is .* it may have at most 64 numbers."),
        ({"policy.hidden": (10**9,)}, r"each number must be at most 65536."),
        ({"torch_threads": 10**6}, "--torch-threads is 1000000; it must be at most 1024."),
        ({"env.num_envs": 10**9}, "--env.num-envs is 1000000000; it must be at most 1048576."),
        ({"seed": 2**63}, "--seed is 9223372036854775808; it must be at most 9223372036854775807."),
        ({"env.max_steps": 0}, "--env.max-steps is 0; it must be at least 1."),
        ({"env.assist": 1.5}, "--env.assist is 1.5; it must be at most 1."),
    ],
)
def test_correctness_05_a_number_out_of_its_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_fields(apply_overrides(PPOTrainConfig(), settings))


def test_correctness_05_a_number_of_thousands_of_digits_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="--seed is a number of thousands of digits; it must be at most"):
        check_fields(apply_overrides(PPOTrainConfig(), {"seed": 1 << 100_000}))


def numeric_fields(kind: type, path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
        if dataclasses.is_dataclass(bare):
            found += numeric_fields(typing.cast(type, bare), f"{path}{name}.")
        elif bare in (int, float) or (typing.get_origin(bare) is tuple and int in typing.get_args(bare)):
            found.append((f"{path}{name}", hint))
    return found


def test_correctness_05_every_number_of_every_configuration_has_a_range_beside_it() -> None:
    kinds = [
        *((a.config, "") for a in built_in().values()),
        *((kind, f"env ({name}).") for name, kind in ENV_KINDS.items()),
    ]
    fields = [field for kind, path in kinds for field in numeric_fields(kind, path)]
    assert len(fields) > 300
    assert [name for name, hint in fields if not any(isinstance(m, Range) for m in typing.get_args(hint))] == []


def test_correctness_05_counts_have_an_end() -> None:
    """A whole number without one could ask for more than any machine has."""
    kinds = [
        *((a.config, "") for a in built_in().values()),
        *((kind, f"env ({name}).") for name, kind in ENV_KINDS.items()),
    ]
    for kind, path in kinds:
        for name, hint in numeric_fields(kind, path):
            bare, *marks = typing.get_args(hint)
            if bare is not float and bare != tuple[float, ...]:
                assert all(mark.most < math.inf for mark in marks if isinstance(mark, Range)), name


def test_correctness_05_every_preset_is_within_the_ranges() -> None:
    for preset in all_presets().values():
        check_fields(preset.config)


def test_correctness_05_environments_are_checked_where_they_are_made() -> None:
    with pytest.raises(ConfigError, match=r"--env.num-envs is -1; it must be at least 1."):
        ludus.make_env("gym:CartPole-v1", num_envs=-1)
    with pytest.raises(ConfigError, match=r"--env.workers is -1; it must be at least 0."):
        ludus.make_env("gym:CartPole-v1", num_envs=1, workers=-1)


# Unknown names --------------------------------------------------------------------------------------
def test_correctness_10_an_unknown_kind_of_head_policy_agent_encoder_or_space_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"No policy learns by 'crossq' from a replay; sac, td3, dqn, flash-sac do."
    ):
        make_replay_head("crossq", BOX, 8)
    with pytest.raises(ConfigError, match="'crossq'"):
        make_replay_policy("crossq", BOX, BOX, PolicyConfig(), 0)
    policy = make_replay_policy("td3", BOX, BOX, PolicyConfig(hidden=(4,)), 0)
    with pytest.raises(ConfigError, match="'a2c'"):
        policy_from(policy.description() | {"kind": "a2c"})
    with pytest.raises(ConfigError, match="'resnet'"):
        make_encoder("resnet", (8, 8, 3), 4, 0)  # type: ignore[arg-type]
    with pytest.raises(LudusError, match="There is no space 'Text'"):
        space_from({"kind": "Text"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory": "grue"}, "--policy.memory is 'grue'; it must be 'none' or 'lstm' or 'gru' or 'mingru'."),
        ({"activation": "gelu"}, "--policy.activation is 'gelu'; it must be 'tanh' or 'relu' or 'elu'."),
        ({"hidden": [10**7]}, "each number must be at most 65536"),
    ],
)
def test_correctness_10_what_a_checkpoint_says_of_its_networks_must_be_known(
    change: dict[str, Any], message: str
) -> None:
    described = ActorCritic(BOX, BOX, PolicyConfig(hidden=(4,))).description()
    with pytest.raises(ConfigError, match=message):
        policy_from(described | {"config": described["config"] | change})


def test_correctness_10_unknown_choices_in_python_are_errors() -> None:
    for config in (
        AMPTrainConfig(adversary=AdversaryConfig(reward="hinge")),  # type: ignore[arg-type]
        PPOTrainConfig(env=ForageConfig(map="maze")),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match="it must be"):
            check_fields(config)


# A user's flag wins, or is refused ------------------------------------------------------------------
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """What `ludus` says as it refuses."""
    monkeypatch.setattr("sys.argv", ["ludus", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--buffer-size", "7"),
            "--buffer-size, here --replay.capacity, is a setting of dqn, flash-sac, reward, sac and td3",
        ),
        (("--train-batches=5",), "PPO takes --ppo.minibatches × --ppo.update-epochs gradient steps an iteration."),
        (("--replay.batch-size", "7"), "PPO has minibatches of --ppo.batch-size steps."),
        (("--sac.alpha", "0.5"), "--sac.alpha is a setting of sac: with --algo ppo it would do nothing."),
        (("--algo", "dqn", "--ppo.horizon", "8"), "--ppo.horizon is a setting of amp and ppo: with --algo dqn"),
        (
            ("--algo", "dqn", "--rrd-batch-size", "8"),
            "--rrd-batch-size: with --reward.method none no reward is learned",
        ),
        (("--total-steps", "100", "--epochs", "2"), "--total-steps and --epochs both say how long to train"),
    ],
)
def test_correctness_09_a_flag_that_would_do_nothing_is_refused(
    flags: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    said = command(capsys, monkeypatch, "train", "gym:CartPole-v1", *flags, "--run-dir", str(tmp_path / "run"))
    assert message in said
    assert not (tmp_path / "run").exists()


def test_correctness_09_the_same_in_python_and_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = find_preset("gym:CartPole-v1").config
    with pytest.raises(ConfigError, match="--train-batches is a setting of dqn, flash-sac, reward, sac and td3"):
        apply_overrides(config, {"train_batches": 7})
    with pytest.raises(
        ConfigError, match=r"--replay\.batch-size is a setting of dqn, flash-sac, reward, sac and td3"
    ):
        apply_overrides(config, {"replay": {"batch_size": 7}})
    file = tmp_path / "mine.yaml"
    file.write_text("replay: {batch_size: 7}\n")
    assert "--replay.batch-size is a setting" in command(
        capsys, monkeypatch, "train", "gym:CartPole-v1", "--config", str(file)
    )
    file.write_text(yaml.safe_dump(to_dict(config)))  # as a run records it: all of every section
    assert settle(load_config(file, config), names_in(file)) == config
    offline = {"data": "x.hdf5", "replay.bc": 2.5}
    for name, algo, given in (("mimic", "", {}), ("humanoid-amp", "", {}), ("gym:Pendulum-v1", "td3", offline)):
        recorded = apply_overrides(find_preset(name, algo).config, given)
        file.write_text(yaml.safe_dump(to_dict(recorded)))
        assert settle(load_config(file, recorded), names_in(file)) == recorded
        older = to_dict(recorded)
        del older["env"]["num_envs"], older["policy"]["hidden"]  # as if they had come later
        file.write_text(yaml.safe_dump(older))
        assert names_in(file) == []
    replayed = apply_overrides(find_preset("gym:CartPole-v1", "dqn").config, {"batch_size": 7})
    assert isinstance(replayed, DQNTrainConfig)
    assert replayed.replay.batch_size == 7


@pytest.mark.parametrize("preset", ["rrd-mujoco:Pendulum-v1", "rrd-mujoco", "rrd-libero"])
def test_correctness_14_total_steps_win_over_a_presets_epochs(preset: str) -> None:
    base = find_preset(preset).config
    assert base.loop.epochs > 1
    config = apply_overrides(base, {"total_steps": 20_000})
    plan = make_plan(config, 100, 100)
    assert plan.total_steps == 20_000
    assert (plan.epochs, plan.cycles_per_epoch, plan.iterations_per_cycle) == (1, 2, 100)
    assert apply_overrides(config, {"epochs": 2, "cycles": 3}).loop.epochs == 2
    assert make_plan(apply_overrides(base, {"epochs": 2, "cycles": 3}), 100, 100).total_iterations == 600


@pytest.mark.parametrize(
    ("preset", "file", "flags", "refused"),
    [
        ("kuka-pick-place --algo td3", "data: {keys: [state]}", "--data demos.hdf5 --replay.bc 2.5", ""),
        ("kuka-pick-place --algo td3", "data: {keys: [state]}", "", "--data.keys: it is about recorded episodes"),
        ("humanoid-mimic", "env: {speed: [1, 2]}", "--env.goal speed --env.actions absolute", ""),
        ("humanoid-mimic", "env: {speed: [1, 2]}", "", "--env.speed: it is of --env.goal speed"),
        ("humanoid-mimic", "env: {resample_floor: 0.5}", "--env.no-resample", "starts stay as they are"),
        ("humanoid-mimic", "env: {resample_floor: 0.5}", "", ""),
        ("gym:Pendulum-v1", "ppo: {std_closing: [0.1, 0.5]}", "", "--ppo.std-closing: the spread .* has no cap"),
        ("gym:Pendulum-v1", "ppo: {std_closing: [0.1, 0.5]}", "--ppo.std-final 0.2", ""),
    ],
)
def test_a_file_is_judged_together_with_the_flags(
    tmp_path: Path, preset: str, file: str, flags: str, refused: str
) -> None:
    (tmp_path / "mine.yaml").write_text(file)
    name, *rest = f"{preset} --config {tmp_path / 'mine.yaml'} {flags}".split()
    if refused:
        with pytest.raises(ConfigError, match=refused):
            read_settings(name, rest, "train")
    else:
        read_settings(name, rest, "train")


def test_correctness_14_the_flag_wins_on_the_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    planned: list[TrainConfig] = []

    def train(name: str, run_dir: str | None, config: TrainConfig, **_: Any) -> Path:
        planned.append(config)
        return tmp_path

    monkeypatch.setattr("ludus.runs.train", train)
    monkeypatch.setattr("ludus.commands.training._exit_if_incomplete", lambda *_: None)
    (tmp_path / "mine.yaml").write_text("loop: {epochs: 5}\n")
    arguments = ["--total-steps", "20000", "--eval.every", "5000", "--config", str(tmp_path / "mine.yaml")]
    monkeypatch.setattr("sys.argv", ["ludus", "train", "rrd-mujoco:Pendulum-v1", *arguments])
    main()
    (config,) = planned
    plan = make_plan(config, 100, 100)
    assert (plan.total_steps, config.loop.epochs, plan.epochs) == (20_000, 0, 2)


# More than the machine has --------------------------------------------------------------------------
def test_a_replay_buffer_is_planned_with_the_copy_that_checkpoints_are_written_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the size of half of what is free; only what will be stored is copied."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2_500_000, total=2**30))
    small = {"replay.capacity": 50_000, "policy.hidden": (8,), "replay.warmup": 100, "total_steps": 50_000}
    with pytest.raises(ConfigError, match="and a copy of it to save"):
        ludus.train("gym:Pendulum-v1", tmp_path / "run", algo="sac", overrides=small)


@pytest.mark.parametrize(
    ("settings", "advice"),
    [
        ({"policy.hidden": (65_536,) * 40}, "Make --policy.hidden or --policy.memory-size smaller."),
        (
            {"ppo.horizon": 65_536, "ppo.segments": 1_048_576},
            "Make --env.num-envs, --ppo.segments or --ppo.horizon",
        ),
        ({"algo": "dqn", "policy.hidden": (65_536,) * 40}, "Make --policy.hidden"),
        ({"algo": "dqn", "replay.capacity": 10**10}, "Make --replay.capacity smaller."),
        (
            {"algo": "dqn", "replay.train_batches": 10**6, "replay.batch_size": 2**20},
            "Make --replay.train-batches or --replay.batch-size smaller.",
        ),
    ],
)
def test_correctness_05_what_the_machine_cannot_hold_is_refused_before_it_is_made(
    settings: dict[str, Any], advice: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"This run needs .* of memory, but cpu has .* free") as refusal:
        ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", overrides=settings)
    assert advice in str(refusal.value)
    assert not (tmp_path / "run").exists()


def test_correctness_05_the_nearest_divisors_of_a_huge_number_are_found_at_once() -> None:
    config = PPOConfig(minibatches=7)
    with pytest.raises(ConfigError, match=r"Try --ppo\.minibatches 4 or 8"):
        count_minibatches(config, SegmentSchedule(2**20, 2**20, 2**16), False)


def test_correctness_05_more_simulations_than_fit_are_refused_before_they_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2_000_000))
    with pytest.raises(ConfigError, match=r"64 simulations need 0\.0 GB .* Make --env\.num-envs smaller\."):
        ludus.make_env("humanoid", num_envs=64)
