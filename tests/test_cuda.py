"""On a CUDA GPU: graphs change nothing, CPU and GPU agree, and a run moves from one to the other.

Every test runs on the CPU, too: what it says is trivial there, but it is still what the code can do.
"""

import contextlib
import copy
import io
import math
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import ludus
from conftest import Recordings
from ludus import cli
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.on_policy.config import make_schedule
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments, Track
from ludus.envs import make_vec_env
from ludus.envs.config import ForageConfig
from ludus.envs.forage import Forage
from ludus.envs.vec import State, Step, VecEnv, derive_seed
from ludus.policies.factory import make_actor_critic
from ludus.policies.mlp import MLP
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training.checkpoint import load_policy, load_training, newest_intact, split_tree
from ludus.training.loop import Trainer
from stopped_runs import StopAfter

pytestmark = pytest.mark.gpu

TOLERANCE = 1e-5  # of weights, where the same kernels run in another way
Settings = dict[str, Any]

# 24 rows and 28 segments: rows begin their segments at different times, and rollouts differ in length.
FORAGE: Settings = {
    "env.num_envs": 6,
    "env.episode_length": 20,
    "ppo.segments": 28,
    "ppo.horizon": 8,
    "ppo.minibatches": 4,
    "ppo.update_epochs": 2,
    "policy.hidden": [32],
    "policy.memory_size": 64,
}
GYM: Settings = {
    "env.num_envs": 8,
    "env.max_steps": 25,
    "ppo.horizon": 16,
    "ppo.minibatches": 4,
    "ppo.update_epochs": 2,
    "policy.hidden": [32],
}
PRIORITIES: Settings = {"ppo.prio_alpha": 0.6, "ppo.rho_clip": 1.0}


def settings_of(preset: str, device: str, changes: Settings) -> PPOTrainConfig:
    own = FORAGE if preset == "forage" else GYM
    if "policy.network" in changes:  # which has layers of its own
        own = {name: value for name, value in own.items() if not name.startswith("policy.")}
    config = find_preset(preset).config
    assert isinstance(config, PPOTrainConfig)
    return apply_overrides(config, {"device": device, **own, **changes})


def loops(preset: str, device: str, changes: Settings) -> tuple["Loop", "Loop"]:
    """With graphs and without."""
    graphs, eager = (
        make_loop(settings_of(preset, device, {"cuda_graphs": on, **changes})) for on in (True, False)
    )
    return graphs, eager


@dataclass
class Loop:
    """What a trainer does between two rows of metrics, without the files."""

    collector: Collector
    ppo: PPO
    iteration: int = 0

    def run(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """What was recorded, and the metrics of the update."""
        segments = self.collector.collect(self.iteration)
        recorded = {name: getattr(segments, name).clone() for name in ("obs", "action", "reward", "done")}
        metrics = self.ppo.update(segments, self.iteration / 20)
        self.iteration += 1
        return recorded, {name: float(value) for name, value in metrics.items()}

    def weights(self) -> Tensor:
        return self.ppo.optimizer.flat.cpu().clone()

    def save(self) -> State:
        policy = {name: value.clone() for name, value in self.ppo.policy.state_dict().items()}
        return {"policy": policy, "ppo": self.ppo.state(), "collector": self.collector.state()}

    def load(self, state: State, iteration: int) -> None:
        state = copy.deepcopy(state)  # as if it came from a file
        self.ppo.policy.load_state_dict(state["policy"])
        self.ppo.load_state(state["ppo"])
        self.collector.load_state(state["collector"])
        self.iteration = iteration


def make_loop(config: PPOTrainConfig) -> Loop:
    torch.set_float32_matmul_precision("highest")
    device = torch.zeros(1, device=config.device).device
    per_group = config.env.num_envs // config.groups
    groups = [make_vec_env(config.env, per_group, device=device) for _ in range(config.groups)]
    schedule = make_schedule(config, sum(env.num_rows for env in groups))
    policy = make_actor_critic(groups[0], config.policy, derive_seed(config.seed, 4)).to(device)
    ppo = PPO(policy, config.ppo, schedule, config.seed, config.cuda_graphs)
    return Loop(Collector(groups, policy, schedule, config.ppo.gamma, config.seed, config.cuda_graphs), ppo)


def assert_recorded(recordings: Recordings, device: str, acting: int = 1) -> None:
    """Graphs were really used: to act (one, or one a group), to gather, to estimate and to train."""
    assert recordings.count >= acting + 3 if device == "cuda" else recordings.count == 0


def assert_same_training(one: Loop, other: Loop) -> None:
    """Until every graph was long recorded."""
    iterations = 6 if one.ppo.policy.device.type == "cuda" else 2
    before = one.weights()
    for iteration in range(iterations):
        (recorded, metrics), (expected, expected_metrics) = one.run(), other.run()
        for name in expected:
            assert torch.equal(recorded[name], expected[name]), f"{name} of rollout {iteration}"
        far = float((one.weights() - other.weights()).abs().max())
        assert far <= TOLERANCE, f"weights after update {iteration} differ by {far}"
        assert metrics.keys() == expected_metrics.keys()
        for name, value in expected_metrics.items():
            assert math.isclose(metrics[name], value, rel_tol=1e-4, abs_tol=1e-4), (
                f"{name} {metrics[name]} {value}"
            )
    assert one.collector.episode_metrics() == other.collector.episode_metrics()
    assert float((one.weights() - before).abs().max()) > 1e-3, "nothing was learned"


# Graphs -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("memory", ["none", "lstm", "mingru"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_graph_trains_as_single_calls_do(memory: str, groups: int, device: str, recordings: Recordings) -> None:
    changes: Settings = {"policy.memory": memory, "groups": groups, **PRIORITIES}
    assert_same_training(*loops("forage", device, changes))
    assert_recorded(recordings, device)


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_graph_trains_as_single_calls_do_with_plain_segments_in_random_order(
    memory: str, device: str, recordings: Recordings
) -> None:
    """One segment of every row, several passes, advantages estimated anew, a limit on the divergence."""
    plain: Settings = {
        "ppo.segments": 0,
        "ppo.recompute_advantages": True,
        "ppo.target_kl": 0.02,
        "ppo.value_clip": 0.2,
    }
    plain |= {"policy.memory": memory, "policy.normalize_obs": True, "groups": 2}
    assert_same_training(*loops("forage", device, plain))
    assert_recorded(recordings, device)


@pytest.mark.parametrize("network", ["Layers", "Remembers"])
def test_a_graph_trains_a_network_of_the_users_as_single_calls_do(
    network: str, device: str, recordings: Recordings
) -> None:
    """Its backward pass by autograd is recorded, too."""
    named: Settings = {"policy.network": f"network_modules:{network}", **PRIORITIES}
    assert_same_training(*loops("forage", device, named))
    assert_recorded(recordings, device)


def test_rollouts_that_grow_after_a_resume_are_as_without_a_graph(device: str, recordings: Recordings) -> None:
    """The first rollout of a run is its longest, but that of a resumed one is not."""
    lengths = [SegmentSchedule(24, 28, 8).steps(update) for update in range(12)]
    resumed_at = next(u for u in range(2, 12) if lengths[u] < lengths[u + 1])
    changes: Settings = {"policy.memory": "lstm", "groups": 2, **PRIORITIES}
    graphs, eager = loops("forage", device, changes)
    first = make_loop(settings_of("forage", device, {**changes, "cuda_graphs": False}))
    for _ in range(resumed_at):
        first.run()
    state = first.save()
    for loop in (graphs, eager):
        loop.load(state, resumed_at)
    assert_same_training(graphs, eager)
    assert_recorded(recordings, device)
    while first.iteration < eager.iteration:
        first.run()
    assert float((first.weights() - eager.weights()).abs().max()) <= TOLERANCE


def test_a_state_loaded_into_a_running_loop_is_where_its_graphs_look(device: str) -> None:
    """A rollback after diverging loads a checkpoint when the graphs are long recorded."""
    loop = make_loop(settings_of("forage", device, {"policy.memory": "lstm", "groups": 2, **PRIORITIES}))
    for _ in range(3):
        loop.run()
    state = loop.save()
    first = [loop.run() for _ in range(3)]
    weights = loop.weights()
    loop.load(state, 3)
    again = [loop.run() for _ in range(3)]
    for (recorded, _), (expected, _) in zip(again, first, strict=True):
        assert all(torch.equal(recorded[name], expected[name]) for name in expected)
    assert float((loop.weights() - weights).abs().max()) <= TOLERANCE


# CPU and GPU --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "level", [{}, {"swap": True, "map": "rooms", "agents": 3, "episode_length": 11, "cue_length": 5}]
)
def test_the_world_on_the_gpu_is_that_on_the_cpu(level: Settings, device: str) -> None:
    cpu, gpu = (Forage(ForageConfig(**level), 40, where) for where in ("cpu", device))
    assert torch.equal(cpu.reset(5), gpu.reset(5).cpu())
    actions = torch.randint(5, (100, cpu.num_rows), generator=torch.Generator().manual_seed(1))
    for number, action in enumerate(actions):
        one, other = cpu.step(action), gpu.step(action.to(device))
        for name in ("obs", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(one, name), getattr(other, name).cpu()), f"{name} of step {number}"
        for name, values in one.metrics.items():
            assert torch.equal(values.nan_to_num(-1), other.metrics[name].cpu().nan_to_num(-1)), name
    for name, value in cpu.state().items():
        assert torch.equal(torch.as_tensor(value), torch.as_tensor(gpu.state()[name]).cpu()), name


def moved(segments: Segments, device: str) -> Segments:
    track = Track(**{f.name: getattr(segments.track, f.name).to(device) for f in fields(Track)})
    places, following, state = (t.to(device) for t in (segments.places, segments.following, segments.state))
    return Segments(track, places, following, state, segments.all_present, segments.judged)


@pytest.mark.parametrize("memory", ["none", "lstm"])
@pytest.mark.parametrize("preset", ["forage", "gym:Pendulum-v1"])
@pytest.mark.parametrize("absent", [False, True])
def test_an_update_on_the_gpu_is_that_on_the_cpu(memory: str, preset: str, absent: bool, device: str) -> None:
    # All segments in one minibatch: those of several are drawn by the devices' own random numbers. No graphs: they
    # would not find the next update's copy of what the CPU recorded.
    changes = {"policy.memory": memory, "policy.memory_size": 64, "ppo.minibatches": 1, "ppo.update_epochs": 3}
    changes |= {"ppo.rho_clip": 1.0, "ppo.entropy_coef": 0.01, "ppo.learning_rate": 1e-3, "cuda_graphs": False}
    cpu, gpu = (make_loop(settings_of(preset, where, changes)) for where in ("cpu", device))
    assert torch.equal(cpu.weights(), gpu.weights())
    for iteration in range(2):
        segments = cpu.collector.collect(iteration)
        if absent:
            segments.all_present = False
            generator = torch.Generator().manual_seed(iteration)
            segments.track.present.copy_(torch.rand(segments.track.present.shape, generator=generator) < 0.8)
        there = moved(segments, device)
        expected, metrics = cpu.ppo.update(segments, 0.0), gpu.ppo.update(there, 0.0)
        far = float((cpu.weights() - gpu.weights()).abs().max())
        assert far <= 1e-4, f"weights after update {iteration} differ by {far}"
        for name, value in expected.items():
            close = math.isclose(float(metrics[name]), float(value), rel_tol=1e-3, abs_tol=1e-3)
            assert close, f"{name} {float(metrics[name])} {float(value)}"
        gpu.ppo.policy.load_state_dict(cpu.ppo.policy.state_dict())  # small differences must not add up
        gpu.ppo.load_state(cpu.ppo.state())


def test_a_memory_of_any_size_learns(device: str) -> None:
    """Also one that no tile of a kernel divides."""
    loop = make_loop(settings_of("forage", device, {"policy.memory": "lstm", "policy.memory_size": 24}))
    for _ in range(4):
        _, metrics = loop.run()
    assert all(map(math.isfinite, metrics.values()))


# Environments on the CPU, the policy on the GPU -----------------------------------------------------------
@pytest.mark.parametrize("preset", ["gym:CartPole-v1", "gym:Pendulum-v1"])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_gymnasium_environment_trains_alike_with_and_without_graphs(
    preset: str, memory: str, device: str, recordings: Recordings
) -> None:
    changes = {"policy.memory": memory, "policy.memory_size": 64, "groups": 2, "env.workers": 0}
    assert_same_training(*loops(preset, device, changes))
    assert_recorded(recordings, device, acting=2)


class Line(VecEnv):
    """Points on a line, on the CPU whatever the policy does."""

    name, device = "line", torch.device("cpu")
    obs_space = gym.spaces.Box(-10.0, 10.0, (1,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, num_envs: int) -> None:
        self.num_rows, self.count = num_envs, 0

    def reset(self, seed: int) -> Tensor:
        self.at = torch.rand((self.num_rows, 1), generator=torch.Generator().manual_seed(seed))
        return self.at.clone()

    def begin_step(self, action: Tensor) -> None:
        self.at, self.count = self.at + 0.1 * action, self.count + 1

    def end_step(self) -> Step:
        ends = torch.full((self.num_rows,), self.count % 10 == 0)
        final, reward = self.at.clone(), self.at[:, 0].clone()
        self.at = torch.where(ends[:, None], 0.0, self.at)
        return Step(self.at.clone(), reward, ends & False, ends, final, {})

    def state(self) -> State:
        return {"at": self.at.clone(), "count": self.count}

    def load_state(self, state: State) -> None:
        self.at, self.count = state["at"].clone(), state["count"]


RUNS: dict[str, Settings] = {
    "forage": {**FORAGE, "policy.memory": "lstm", "groups": 2, **PRIORITIES},
    "gym:CartPole-v1": {**GYM, "groups": 2},
    "gym:Pendulum-v1": {**GYM, "groups": 2},
    "vec:test_cuda:Line": {k: v for k, v in GYM.items() if k != "env.max_steps"},
}


def train(
    preset: str, device: str, folder: Path, iterations: int, *callbacks: ludus.Callback, **changes: Any
) -> Path:
    settings = {"device": device, **RUNS[preset], **changes}
    steps = settings.get("ppo.segments", settings["env.num_envs"]) * settings["ppo.horizon"]
    settings |= {"loop.total_steps": steps * iterations, "eval.every": steps * 4, "eval.episodes": 4}
    settings |= {"log.report": False, "log.tensorboard": False}
    return ludus.train(preset, folder, callbacks, Console("quiet"), overrides=settings)


@pytest.mark.parametrize("preset", list(RUNS))
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_a_whole_training_with_its_evaluations(
    preset: str, cuda_graphs: bool, device: str, tmp_path: Path
) -> None:
    folder = train(preset, device, tmp_path / "run", 8, cuda_graphs=cuda_graphs)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["time/iterations"] for row in rows if "time/iterations" in row] == list(range(1, 9))
    assert sum("eval/mean_reward" in row for row in rows) == 2
    assert all(math.isfinite(value) for row in rows for value in row.values())
    policy = ludus.load(folder)  # on the CPU, whatever it was trained on
    obs = np.zeros((3, *policy.obs_space.shape), policy.obs_space.dtype)
    assert len(policy.actor().act(obs)) == 3


# A run moves --------------------------------------------------------------------------------------------
class Look(ludus.Callback):
    """Keeps what a run begins with, and stops it."""

    def on_start(self, run: Trainer) -> bool:
        self.tensors: dict[str, Tensor] = {}
        policy = dict(run.policy.state_dict())
        self.plain = split_tree({"job": run.job.state(whole=True), "policy": policy}, self.tensors)
        self.counters = as_text(asdict(run.counters))
        self.device = run.policy.device.type
        return False


def as_text(counters: dict[str, Any]) -> dict[str, str]:
    """But for the time. JSON has no infinity: a checkpoint holds some of them as text."""
    return {name: str(value) for name, value in counters.items() if name != "seconds"}


def contents(checkpoint: Path) -> tuple[Any, dict[str, Tensor], dict[str, str]]:
    tensors: dict[str, Tensor] = {}
    policy, state = dict(load_policy(checkpoint).state_dict()), load_training(checkpoint)[1]
    return split_tree({"job": state["job"], "policy": policy}, tensors), tensors, as_text(state["counters"])


def ludus_command(*arguments: Any) -> None:
    """In this process: another one would first have to find the GPU and compile."""
    before, sys.argv = sys.argv, ["ludus", *map(str, arguments)]
    output, code = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        sys.argv = before
    assert not code, output.getvalue()


@pytest.mark.parametrize("to_gpu", [False, True])
def test_a_checkpoint_is_the_same_on_the_other_device(to_gpu: bool, device: str, tmp_path: Path) -> None:
    here, there = ("cpu", device) if to_gpu else (device, "cpu")
    folder = train("forage", here, tmp_path / "run", 8, StopAfter(3))
    plain, tensors, counters = contents(newest_intact(folder / "checkpoints", print))
    look = Look()
    ludus.resume(folder, [look], Console("quiet"), overrides={"device": there})
    assert look.device == there
    assert look.counters == counters
    assert look.plain == plain
    assert look.tensors.keys() == tensors.keys()
    same = [name for name in tensors if not name.endswith("generator")]
    assert [name for name in same if not torch.equal(tensors[name], look.tensors[name])] == []


@pytest.mark.parametrize("preset", list(RUNS))
def test_a_run_goes_on_on_the_cpu_and_comes_back(preset: str, device: str, tmp_path: Path) -> None:
    folder = train(preset, device, tmp_path / "run", 8, StopAfter(3))
    before = read_metrics(folder / "metrics.jsonl")
    ludus_command("resume", folder, "--device", "cpu")
    assert (folder / "final").exists()
    assert "device: cpu" in (folder / "config.yaml").read_text()
    rows = read_metrics(folder / "metrics.jsonl")
    assert rows[: len(before)] == before
    total = int(rows[-1]["step"])
    ludus_command("resume", folder, "--device", device, "--total-steps", 2 * total)
    rows = read_metrics(folder / "metrics.jsonl")
    trained = [row for row in rows if "time/iterations" in row]
    assert [row["time/iterations"] for row in trained] == list(range(1, 17))
    assert [row["step"] for row in trained] == [total // 8 * i for i in range(1, 17)]
    elapsed = [row["time/time_elapsed"] for row in trained]
    assert elapsed == sorted(elapsed)
    assert all(math.isfinite(value) for row in rows for value in row.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="a CPU takes no narrower factors than float32")
def test_wide_layers_that_multiply_in_bfloat16_are_near_those_in_float32() -> None:
    told = []
    for precision in ("highest", "medium"):
        torch.set_float32_matmul_precision(precision)
        torch.manual_seed(0)
        layers, x = MLP(438, (512, 1024), "elu").cuda(), torch.randn(2048, 438, device="cuda")
        for parameter in layers.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)
        with torch.no_grad():
            outputs = layers.outputs(x)
            layers.backward(outputs, torch.randn_like(outputs[-1]))
            few = layers.outputs(x[:1000])[-1]
        told.append([outputs[-1], few, *(parameter.grad for parameter in layers.parameters())])
        assert outputs[1].dtype == (torch.float32 if precision == "highest" else torch.bfloat16)
    torch.set_float32_matmul_precision("highest")
    for number, (fine, coarse) in enumerate(zip(*told, strict=True)):
        assert coarse.dtype == torch.float32
        off = float((coarse - fine).norm() / fine.norm())
        assert off < (0.001 if number == 1 else 0.02)  # few rows are not rounded
