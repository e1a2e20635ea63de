"""Algorithms by name: those of Ludus, registered ones, and those that an installed package brings."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

import ludus
from ludus.algorithms.imitation.config import AMPTrainConfig
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.registry import algorithm_names, built_in, find_algorithm, register_algorithm
from ludus.algorithms.replay.agents import SAC, Agent
from ludus.algorithms.replay.config import ReplayTrainConfig, SACTrainConfig
from ludus.algorithms.replay.defaults import adapted
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.config import to_dict
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.replay_policy import ReplayPolicy
from ludus.presets import all_presets, find_preset
from ludus.settings import load_run_config
from ludus.show.console import Console

PLUGIN = """
import dataclasses, pathlib
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.registry import Algorithm, find_algorithm
from ludus.config import convert

pathlib.Path(__file__).with_suffix(".imported").touch()

@dataclasses.dataclass(frozen=True)
class MineTrainConfig(PPOTrainConfig):
    algo: str = "mine"

MINE = Algorithm(
    "mine", "Like PPO.", MineTrainConfig, find_algorithm("ppo").job, lambda c: convert(c, MineTrainConfig)
)
NOT_ONE = 7
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with three entry points, of which one works."""
    (tmp_path / "plugged.py").write_text(PLUGIN)
    facts = tmp_path / "plugged-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged\nVersion: 1.0\n")
    points = "[ludus.algorithms]\nmine = plugged:MINE\nbroken = plugged.nowhere:X\nwrong = plugged:NOT_ONE\n"
    (facts / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plugged", raising=False)
    return tmp_path


def test_every_algorithm_of_ludus_is_found_and_is_what_it_says() -> None:
    assert set(built_in()) == {"ppo", "amp", "distill", "sac", "td3", "dqn", "flash-sac", "reward"}
    for name, algorithm in built_in().items():
        assert find_algorithm(name) is algorithm
        assert algorithm.config().algo == name
        for preset in all_presets().values():
            adapted = algorithm.adapt(preset.config)
            assert type(adapted) is algorithm.config
            assert adapted.env.num_envs <= preset.config.env.num_envs


def test_an_installed_package_brings_algorithms_and_is_imported_only_when_asked(package: Path) -> None:
    assert {"mine", "broken", "wrong"} <= set(algorithm_names())
    assert not (package / "plugged.imported").exists()
    small = {"env.num_envs": 2, "ppo.horizon": 8, "ppo.minibatches": 1, "log.report": False}
    run = ludus.train(
        "gym:CartPole-v1", package / "run", console=Console("quiet"), algo="mine", total_steps=64, overrides=small
    )
    assert load_run_config(run / "config.yaml").algo == "mine"
    assert ludus.load(run).act([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    with pytest.raises(ConfigError, match=r"The algorithm 'broken' of plugged cannot be imported: ModuleNotFound"):
        find_algorithm("broken")
    with pytest.raises(ConfigError, match=r"'plugged:NOT_ONE' is no ludus.Algorithm, but int"):
        find_algorithm("wrong")


class Quieter(SAC):
    """SAC that explores less: an agent of one's own."""

    def set_progress(self, fraction: float, acting: Any = None) -> None:
        super().set_progress(fraction / 2, acting)


@dataclasses.dataclass(frozen=True)
class QuieterTrainConfig(SACTrainConfig):
    algo: str = "quieter"
    short_names: ClassVar[Mapping[str, str]] = {"temperature": "sac.alpha"}


class QuieterJob(OffPolicyJob):
    def _make_agent(self, policy: ReplayPolicy, config: ReplayTrainConfig) -> Agent:
        assert isinstance(config, QuieterTrainConfig)
        return Quieter(policy, config.replay, config.sac)


QUIETER = ludus.Algorithm(
    "quieter", "SAC.", QuieterTrainConfig, QuieterJob, lambda config: adapted(config, QuieterTrainConfig)
)


def test_an_algorithm_that_learns_from_a_replay_is_a_job_and_an_agent(tmp_path: Path) -> None:
    """With a short name of its own; the run is found again by the module."""
    small = {"replay.warmup": 50, "replay.steps": 50, "replay.train_batches": 5, "policy.hidden": (8,)}
    quiet = {"log.report": False, "eval.episodes": 1, "loop.total_steps": 200, "temperature": 0.5}
    run = ludus.train(
        "gym:Pendulum-v1", tmp_path / "run", console=Console("quiet"), algo=QUIETER, overrides=small | quiet
    )
    saved = load_run_config(run / "config.yaml")
    assert isinstance(saved, QuieterTrainConfig)
    assert (saved.algo, saved.sac.alpha) == ("test_algorithms:QUIETER", 0.5)
    ludus.resume(run, overrides={"loop.total_steps": 400}, console=Console("quiet"))
    assert abs(float(ludus.load(run).act([1.0, 0.0, 0.0])[0])) <= 2


def test_the_usual_defaults_are_taken_from_rollouts_to_replay_and_back() -> None:
    back = find_preset("rrd-mujoco", "ppo").config
    assert (back.policy, back.loop.epochs) == (PolicyConfig(), 0)
    assert find_preset("humanoid-mimic", "amp").config.policy == find_preset("humanoid-mimic").config.policy


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ConfigError, match="There is an algorithm 'sac' already: Soft actor-critic"):
        register_algorithm(dataclasses.replace(find_algorithm("ppo"), name="sac"))
    assert register_algorithm(find_algorithm("ppo")) is find_algorithm("ppo")  # once more is no harm


@pytest.mark.parametrize("name", ["own_module_nowhere:X", "ludus.errors:ConfigError", "os:path", ":X"])
def test_a_module_that_has_no_algorithm_is_a_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be found|is no ludus\.Algorithm|is a part of Python|say it as"):
        find_preset("gym:CartPole-v1", name)
    with pytest.raises(ConfigError, match=r"has no algorithm 'QUIETR'. Did you mean 'QUIETER'\?"):
        find_algorithm("test_algorithms:QUIETR")


def test_runs_of_before_algorithms_had_their_own_settings_are_read(tmp_path: Path) -> None:
    """They hold the sections of all algorithms, and say ppo where a discriminator learns along."""
    everything: dict[str, object] = {}
    for algorithm in built_in().values():
        everything |= to_dict(algorithm.config())
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(everything | {"algo": "ppo", "seed": 5}))
    assert load_run_config(file) == PPOTrainConfig(seed=5)
    env = to_dict(find_preset("humanoid-amp").config.env)
    file.write_text(yaml.safe_dump(everything | {"algo": "ppo", "env": env}))
    assert isinstance(load_run_config(file), AMPTrainConfig)
