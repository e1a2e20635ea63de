"""`--from RUN`: a training that starts with what another has learned."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import ludus
from ludus.algorithms.replay.job import ReplayJob
from ludus.errors import CheckpointError, ConfigError
from ludus.run import Run
from ludus.show.console import Console
from ludus.training.checkpoint import checkpoints_in, load_model_weights, load_training
from ludus.training.loop import Trainer
from stopped_runs import StopAfter
from warm_python import ludus_command, run

QUIET: dict[str, Any] = {
    "log.report": False,
    "log.tensorboard": False,
    "eval.episodes": 2,
    "policy.hidden": (8, 8),
}
ROLLOUTS = {"env.num_envs": 4, "ppo.horizon": 16, "ppo.minibatches": 2, "loop.total_steps": 128, "eval.every": 64}
REPLAY = {
    "env.num_envs": 4, "replay.steps": 16, "replay.train_batches": 4, "replay.warmup": 32, "replay.batch_size": 16,
    "replay.capacity": 4000, "loop.total_steps": 128, "eval.every": 64, "loop.iterations": 1,
}  # fmt: skip
FLASH = REPLAY | {"algo": "flash-sac", "flash.critic_width": 8}
RRD = {"reward.method": "rrd", "reward.rrd_batch_size": 8, "reward.rrd_sample_size": 4, "reward.hidden": (8, 8),
       "reward.normalize_returns": False}  # fmt: skip
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("gym:CartPole-v1", ROLLOUTS),
    "dqn": ("gym:CartPole-v1", REPLAY | {"algo": "dqn"}),
    "sac": ("gym:MountainCarContinuous-v0", REPLAY | {"algo": "sac", "env.max_steps": 30}),
    "td3": ("gym:MountainCarContinuous-v0", REPLAY | {"algo": "td3", "env.max_steps": 30}),
    "flash-sac": ("gym:MountainCarContinuous-v0", FLASH | {"env.max_steps": 30}),
    "rrd": ("gym:MountainCarContinuous-v0", FLASH | {"env.max_steps": 15} | RRD),
    "amp": ("vec:imitation_envs:make_drift", ROLLOUTS | {"algo": "amp"}),
}


def train(name: str, folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    preset, settings = JOBS[name]
    given = {key.replace("__", "."): value for key, value in changes.items()}
    algo = {key: value for key, value in settings.items() if key == "algo"}
    overrides = {key: value for key, value in settings.items() if key != "algo"} | QUIET | given
    return ludus.train(preset, folder, callbacks, Console("quiet"), overrides=overrides, **algo)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One run of each algorithm, trained when it is first wanted."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = train(name, tmp_path_factory.mktemp("source") / name, checkpoint__keep="all")
        return made[name]

    return get


class Start(ludus.Callback):
    """Keeps what a training starts with."""

    weights: dict[str, Tensor]
    targets: list[tuple[Tensor, Tensor]]

    def on_start(self, run: Trainer) -> None:
        self.weights = {name: tensor.clone() for name, tensor in run.policy.state_dict().items()}
        self.beside = {path: tensor.clone() for path, tensor in run.job.learned_beside().values()}
        self.targets = []
        if isinstance(run.job, ReplayJob):
            agent = run.job.learner.agent
            self.targets = [(agent.targets[name].clone(), w.clone()) for name, w in agent.followed().items()]


def newest(folder: Path) -> Path:
    return checkpoints_in(folder / "checkpoints")[-1]


def at(tree: Any, path: str) -> Any:
    for part in path.split("/"):
        tree = tree[part]
    return tree


@pytest.mark.parametrize("name", JOBS)
def test_a_training_starts_with_all_that_the_other_has_learned(name: str, sources: Any, tmp_path: Path) -> None:
    start, source = Start(), sources(name)
    folder = train(name, tmp_path / "run", start, start_from=f"{source}@64")
    checkpoint = source / "checkpoints" / "step_000000064"
    saved = load_model_weights(checkpoint, "policy")
    given = {key: tensor for key, tensor in saved.items() if key not in ("head.epsilon", "head.spread")}
    assert [key for key in given if not torch.equal(start.weights[key], given[key])] == []
    _, state = load_training(checkpoint)
    assert bool(start.beside) == (name != "dqn")  # whose policy is its critic
    assert [path for path in start.beside if not torch.equal(start.beside[path], at(state["job"], path))] == []
    assert all(torch.equal(target, followed) for target, followed in start.targets)
    assert bool(start.targets) == (name not in ("ppo", "amp"))
    assert yaml.safe_load((folder / "config.yaml").read_text())["start_from"] == f"{source}@64"


def test_the_optimiser_and_the_search_for_the_best_begin_anew(sources: Any, tmp_path: Path) -> None:
    folder = train("ppo", tmp_path / "run", start_from=str(sources("ppo")), loop__total_steps=64)
    state = json.loads((newest(folder) / "training.json").read_text())["state"]
    assert state["counters"]["best_step"] == 64
    assert state["counters"]["iteration"] == 1
    _, saved = load_training(newest(folder))
    assert int(saved["job"]["ppo"]["optimizer"]["steps"]) == 2 * 10  # minibatches × passes of one iteration


def test_a_run_goes_on_exactly_when_what_it_started_from_is_gone(sources: Any, tmp_path: Path) -> None:
    source = Path(shutil.copytree(sources("ppo"), tmp_path / "source", symlinks=True))
    straight = train("ppo", tmp_path / "straight", start_from=str(source), loop__total_steps=256)
    stopped = train("ppo", tmp_path / "stopped", StopAfter(2), start_from=str(source), loop__total_steps=256)
    shutil.rmtree(source)
    ludus.resume(stopped, console=Console("quiet"))
    one, two = (load_model_weights(newest(folder), "policy") for folder in (straight, stopped))
    assert [key for key in one if not torch.equal(one[key], two[key])] == []


def test_a_run_without_a_checkpoint_starts_from_it_again(sources: Any, tmp_path: Path) -> None:
    folder = train("ppo", tmp_path / "run", start_from=f"{sources('ppo')}@64")
    expected = load_model_weights(newest(folder), "policy")
    shutil.rmtree(folder / "checkpoints")
    (folder / "final").unlink()
    ludus.resume(folder, console=Console("quiet"))
    again = load_model_weights(newest(folder), "policy")
    assert [key for key in expected if not torch.equal(expected[key], again[key])] == []


def test_what_fits_is_taken_and_what_does_not_is_named(sources: Any, tmp_path: Path) -> None:
    """Acrobot has six numbers to see and three actions, CartPole four and two."""
    flags = "--eval.episodes 1 --env.num-envs 4 --ppo.horizon 16 --ppo.minibatches 2 --total-steps 64"
    start = [
        "--log.no-report",
        "--policy.hidden",
        "8",
        "8",
        "--from",
        f"{sources('ppo')}@final",
        "--run-dir",
        tmp_path / "run",
    ]
    result = run(ludus_command("train", "gym:Acrobot-v1", *flags.split(), *start))
    assert result.returncode == 0, result.stderr
    assert f"starts from {sources('ppo')}@128: 6 tensors taken" in result.stdout
    new = "new: normalizer (4 → 6), encoder.layers.0 (8 × 4 → 8 × 6), value_encoder.layers.0 (8 × 4 → 8 × 6), "
    assert new + "head.linear (2 × 8 → 3 × 8)" in result.stdout


def test_an_actor_of_another_algorithm_brings_its_layers_but_no_critics(sources: Any, tmp_path: Path) -> None:
    start = Start()
    train("sac", tmp_path / "run", start, start_from=f"{sources('td3')}@final")
    saved = load_model_weights(newest(sources("td3")), "policy")
    assert torch.equal(start.weights["encoder.layers.1.weight"], saved["encoder.layers.1.weight"])
    fresh = Start()
    train("sac", tmp_path / "fresh", fresh)
    assert all(torch.equal(start.beside[path], fresh.beside[path]) for path in fresh.beside)


def test_a_path_and_a_run_can_be_started_from(sources: Any, tmp_path: Path) -> None:
    first = train("ppo", tmp_path / "first", start_from=sources("ppo"))
    second = train("ppo", tmp_path / "second", start_from=Run(first))
    assert yaml.safe_load((second / "config.yaml").read_text())["start_from"].startswith(f"{first}@")


def test_another_activation_is_told(sources: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    preset, settings = JOBS["ppo"]
    overrides = settings | QUIET | {"policy.activation": "elu", "start_from": str(sources("ppo"))}
    ludus.train(preset, tmp_path / "run", console=Console("plain"), overrides=overrides)
    assert "the networks differ: policy.activation tanh → elu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere", "--from: There is no run folder nowhere"),
        ("SOURCE@100", r"--from: .*there is no checkpoint at step 100\. It has @64, @128"),
        ("SAC", r"--from .*: no layer of it fits\. new: .*the networks differ: policy.hidden \[8, 8\] → \[4\]"),
    ],
)
def test_a_run_that_cannot_be_started_from_is_refused_before_anything_is_written(
    source: str, message: str, sources: Any, tmp_path: Path
) -> None:
    changes = {}
    if source == "SAC":
        changes = {"policy.hidden": (4,)}
        source = str(sources("sac"))
    source = source.replace("SOURCE", str(sources("ppo")))
    with pytest.raises((CheckpointError, ConfigError), match=message):
        train("ppo", tmp_path / "run", start_from=source, **changes)
    assert not (tmp_path / "run").exists()


def test_nothing_is_imported_that_the_other_run_names(sources: Any, tmp_path: Path) -> None:
    """Its weights are read, and no code: so a stranger's run needs no trust."""
    source = Path(shutil.copytree(sources("ppo"), tmp_path / "source", symlinks=True))
    config = yaml.safe_load((source / "config.yaml").read_text())
    config["policy"]["network"] = "no_such_module:Net"
    config["env"]["id"] = "no_such_module:Env-v0"
    (source / "config.yaml").write_text(yaml.safe_dump(config))
    train("ppo", tmp_path / "run", start_from=str(source))
