"""Networks of a user's: any module by autograd, through the same training as the built-in ones."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from torch import Tensor, nn

import ludus
import warm_python
from ludus.errors import ConfigError, LudusError, TrustError
from ludus.export import export_onnx
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.taped import make_taped
from ludus.runs import evaluate_run
from ludus.show.jsonl import read_metrics
from network_modules import Drops, Flat, Layers, Remembers, Shared, not_a_module
from stopped_runs import StopAfter, assert_same_run
from test_sanity import MEMORY, reached
from test_sanity import train as train_task
from warm_python import ludus_command

OBS, ACTIONS = gym.spaces.Box(-1, 1, (5,)), gym.spaces.Discrete(3)
QUICK: dict[str, Any] = {
    "env": {"num_envs": 4},
    "ppo": {"horizon": 16, "minibatches": 2, "update_epochs": 2},
    "eval": {"episodes": 2, "stochastic": False},
    "log": {"tensorboard": False, "report": False},
}


def made(network: Any, **kwargs: Any) -> ActorCritic:
    torch.manual_seed(0)
    return ActorCritic(OBS, ACTIONS, PolicyConfig(network="given:here", network_kwargs=kwargs), network)


def allocate_gradients(policy: nn.Module) -> None:
    for parameter in policy.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)  # an update overwrites what was there


# Gradients --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("network", [Layers, Shared, Remembers])
def test_gradients_are_autograds_in_float64(network: Any) -> None:
    policy = made(network, width=6).double()
    steps, segments = 5, 3
    x = torch.randn(steps * segments, 5, dtype=torch.float64)
    state = torch.randn(segments, policy.state_size, dtype=torch.float64)
    keep = (torch.rand(steps, segments) > 0.3).double()
    allocate_gradients(policy)
    with torch.inference_mode():
        done = policy.forward_pass(x * 1, state * 1, keep * 1)
        params_gradient, value_gradient = torch.randn_like(done.params), torch.randn_like(done.value)
        policy.backward(done, params_gradient.clone(), value_gradient.clone())
    written = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]

    policy.zero_grad()
    params, value = step_by_step(policy, x, state, keep)
    assert torch.allclose(done.params, params)
    torch.autograd.backward([params, value], [params_gradient.clone(), value_gradient.clone()])
    taped = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in zip(written, taped, strict=True))


def step_by_step(policy: ActorCritic, x: Tensor, state: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The slow version: one row of one step at a time."""
    module = policy.network.module
    if not policy.recurrent:
        features = [module(row[None]) for row in x]
        pairs = [pair if isinstance(pair, tuple) else (pair, pair) for pair in features]
    else:
        pairs, states = [], [row[None] for row in state]
        for t, part in enumerate(x.view(*keep.shape, -1)):
            for row in range(keep.shape[1]):
                seen, states[row] = module(part[row][None], states[row] * keep[t, row])
                pairs.append((seen, seen))
    actor, critic = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return policy.head.linear(actor), policy.value_head(critic).squeeze(-1)


# Learning ---------------------------------------------------------------------------------------------
class Begin(ludus.Callback):
    """Every run begins with the weights of the first; both kinds of networks have them in the same order."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def on_start(self, run: Any) -> None:
        self.weights = self.weights or [weights.clone() for weights in run.policy.parameters()]
        for own, given in zip(run.policy.parameters(), self.weights, strict=True):
            own.data.copy_(given)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_module_of_the_built_ins_shape_gives_the_built_ins_curve(seed: int, tmp_path: Path) -> None:
    begin, settings = Begin(), QUICK | {"total_steps": 64 * 8, "seed": seed}
    runs = [
        ludus.train("gym:CartPole-v1", tmp_path / "built-in", [begin], **settings),
        ludus.train("gym:CartPole-v1", tmp_path / "own", [begin], network=Layers, **settings),
    ]
    curves = [
        [row.get("train/policy_gradient_loss") for row in read_metrics(run / "metrics.jsonl")] for run in runs
    ]
    assert len([value for value in curves[0] if value is not None]) == 8
    assert curves[0] == curves[1], "bit by bit: autograd adds the same numbers in the same order"


def test_a_network_with_a_hidden_state_learns_to_recall(tmp_path: Path) -> None:
    network = {"policy.network": "network_modules:Remembers", "policy.network_kwargs": {"width": 32}}
    settings = {name: value for name, value in MEMORY.items() if not name.startswith("policy.")}
    run = train_task("recall", tmp_path / "run", 60_000, settings | network, delay=8)
    assert reached(run) > 0.9


# Runs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("network", [Shared, Remembers])
def test_a_run_is_saved_resumed_exactly_and_evaluated(network: Any, tmp_path: Path) -> None:
    settings = QUICK | {"checkpoint": {"every": 64}, "network": network, "log": {"report": False}}
    whole = ludus.train("gym:CartPole-v1", run_dir=tmp_path / "whole", total_steps=64 * 6, **settings)

    cut = ludus.train(
        "gym:CartPole-v1", run_dir=tmp_path / "cut", total_steps=64 * 6, callbacks=[StopAfter(3)], **settings
    )
    ludus.resume(cut)
    assert_same_run(whole, cut)
    config = yaml.safe_load((whole / "config.yaml").read_text())
    assert config["policy"]["network"] == f"network_modules:{network.__name__}"
    assert len(evaluate_run(whole, 2, True).returns) == 2
    if network is Shared:
        policy = ludus.load(whole, network=network)
        assert np.array_equal(policy.act(np.ones(4, np.float32)), ludus.load(whole).act(np.ones(4, np.float32)))


def test_the_command_line_takes_a_name_and_arguments(tmp_path: Path) -> None:
    network = ["--policy.network", "network_modules:Shared", "--policy.network-kwargs", "width", "8"]
    quick = ["--env.num-envs", "4", "--ppo.horizon", "16", "--total-steps", "64", "--log.no-report"]
    done = warm_python.run(
        ludus_command("train", "gym:CartPole-v1", "--run-dir", tmp_path / "run", *network, *quick)
    )
    assert done.returncode == 0, done.stderr
    assert "networks network_modules:Shared" in done.stdout
    weights = dict(ludus.load(tmp_path / "run").named_parameters())
    assert weights["network.module.layer.weight"].shape == (8, 4)


@pytest.mark.parametrize("network", [Layers, Remembers])
def test_an_exported_network_acts_as_in_torch(network: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    run = ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", total_steps=64, network=network, **QUICK)
    assert export_onnx(run, tmp_path / "policy.onnx") < 1e-4


# What a stranger names ----------------------------------------------------------------------------------
def test_a_strangers_network_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", total_steps=64, network=Shared, **QUICK)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    with pytest.raises(TrustError, match="'network_modules', and it was not trained by you"):
        ludus.load(run)
    with pytest.raises(TrustError):
        ludus.resume(run, overrides={"loop.total_steps": 128})
    assert ludus.load(run, trust=True).act(np.ones(4, np.float32)) in (0, 1)
    assert ludus.load(run, network=Shared).act(np.ones(4, np.float32)) in (0, 1)


def test_a_checkpoint_cannot_name_another_network_than_its_run(tmp_path: Path) -> None:
    run = ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", total_steps=64, **QUICK)
    from chaos.hostile.spoiling import checkpoint_of, redo_manifest

    checkpoint = checkpoint_of(run)
    described = json.loads((checkpoint / "policy.json").read_text())
    described["config"]["network"] = "this:s"
    (checkpoint / "policy.json").write_text(json.dumps(described))
    redo_manifest(checkpoint)
    with pytest.raises(LudusError, match="would import its network 'this:s'"):
        ludus.load(run)


# Mistakes ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("network", "kwargs", "message"),
    [
        (Drops, {}, r"has a Dropout \(drop\).*PPO's ratio"),
        (Flat, {}, r"gives features \(8,\); it must be \[2, features\]"),
        (Shared, {"widht": 3}, r"Shared\(\(5,\), widht=3\) cannot be made: TypeError"),
        (not_a_module, {}, "is a int; it must be a torch.nn.Module"),
        (nn.Identity, {}, "nothing to learn"),
        (lambda shape: nn.Linear(7, 3), {}, r"Linear fails on x of the shape \(2, 5\): RuntimeError"),
    ],
)
def test_a_network_that_cannot_work_is_refused_in_a_sentence(
    network: Any, kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_taped(network, OBS, kwargs)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("network_modules:Layer", r"has no 'Layer'. Did you mean 'Layers'\?"),
        ("network_modules", "Say which network as 'module:callable'"),
        ("no_such_module:Net", "'no_such_module' cannot be found"),
        ("subprocess:Popen", "'subprocess' .* is a part of Python"),
        ("gymnasium:Env", "not derived from Module"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_sentence(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", total_steps=64, network=name, **QUICK)
    assert not (tmp_path / "run").exists()


def test_a_class_within_a_function_cannot_be_found_again(tmp_path: Path) -> None:
    class Local(Shared): ...

    with pytest.raises(ConfigError, match="must stand at the top of a module"):
        ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", network=Local, **QUICK)


def test_a_network_that_is_already_made_is_refused_with_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a Shared that is already made.* give the class, network=Shared"):
        ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", network=Shared((4,)), **QUICK)


# Settings ---------------------------------------------------------------------------------------------
def test_a_setting_of_the_layers_that_a_network_replaces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--policy.memory-size is a setting .* which .*Shared replaces"):
        ludus.train("gym:CartPole-v1", tmp_path / "run", network=Shared, policy={"memory_size": 8}, **QUICK)


def test_settings_given_as_dicts_are_not_changed(tmp_path: Path) -> None:
    ppo = {"minibatches": 2}
    quick = QUICK | {"ppo": ppo, "loop": {"total_steps": 64}}
    ludus.train(
        "gym:CartPole-v1", tmp_path / "run", overrides={"ppo.horizon": 16, "ppo.update_epochs": 1}, **quick
    )
    assert ppo == {"minibatches": 2}
