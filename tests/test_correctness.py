"""What was wrong at the edges, one test a finding: it fails where the finding comes back."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.utils import prune

import ludus
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.update import PPO
from ludus.algorithms.replay import collector as replay_collector
from ludus.algorithms.replay.job import ReplayJob
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments
from ludus.envs.vec import Step, VecEnv
from ludus.errors import ConfigError, TrainingError
from ludus.policies import lstm
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.lstm import LSTM
from ludus.policies.mlp import Dense
from ludus.policies.replay_heads import GreedyHead
from ludus.policies.replay_policy import ReplayPolicy
from ludus.show.jsonl import read_metrics
from ludus.training.job import OnBatch
from ludus.training.loop import MAX_ROLLBACKS, Trainer
from test_segments import Counting


# Actions keep the numbers of their space ------------------------------------------------------------
@pytest.mark.parametrize(("kind", "lowest", "highest"), [("offset", 5, 7), ("multi", [1, 2], [3, 5])])
def test_correctness_02_act_keeps_the_start_of_a_discrete_space(
    kind: str, lowest: int | list[int], highest: int | list[int], tmp_path: Path
) -> None:
    run = ludus.train(
        "gym:gym_test_envs:ludus-test/Echo-v0",
        run_dir=tmp_path / "run",
        env={"kwargs": {"kind": kind}, "max_steps": 4, "num_envs": 2},
        ppo={"horizon": 4, "minibatches": 1, "update_epochs": 1},
        total_steps=8,
        eval={"episodes": 1},
        log={"tensorboard": False, "report": False},
    )
    policy = ludus.load(run)
    env = gym.make("gym_test_envs:ludus-test/Echo-v0", kind=kind)
    obs: Any = spaces.flatten(env.observation_space, env.reset(seed=0)[0])
    actor = policy.actor(deterministic=False, generator=torch.Generator().manual_seed(0))
    seen = np.stack([actor.act(obs.astype(np.float32)) for _ in range(60)])
    assert seen.min(0).tolist() == lowest
    assert seen.max(0).tolist() == highest
    assert env.action_space.contains(policy.act(obs.astype(np.float32)))


def record(path: Path, actions: list[int]) -> Path:
    """Two episodes in D4RL's layout."""
    steps = len(actions)
    last = np.arange(steps) % (steps // 2) == steps // 2 - 1
    with h5py.File(path, "w") as file:
        file["observations"] = np.eye(8, dtype=np.float32)[np.arange(steps) % 8]
        file["actions"] = np.array(actions)
        file["rewards"] = np.arange(steps, dtype=np.float32)
        file["terminals"], file["timeouts"] = last, np.zeros(steps, bool)
    return path


def train_offline(data: Path, run: Path) -> Path:
    return ludus.train(
        "gym:gym_test_envs:ludus-test/Echo-v0",
        run_dir=run,
        algo="dqn",
        env={"kwargs": {"kind": "offset"}, "max_steps": 4},
        data=str(data),
        replay={"train_batches": 4, "batch_size": 8},
        loop={"total_steps": 8, "iterations": 1},
        eval={"episodes": 1, "every": 8},
        policy={"hidden": (8,)},
        log={"tensorboard": False, "report": False},
    )


def test_correctness_02_offline_dqn_reads_recorded_actions_by_the_numbers_of_the_space(tmp_path: Path) -> None:
    train_offline(record(tmp_path / "good.hdf5", [5, 6, 7, 5, 6, 7, 6, 6]), tmp_path / "run")
    with pytest.raises(ConfigError, match=r"A recorded action is 0, which is none of Discrete\(3, start=5\)\."):
        train_offline(record(tmp_path / "bad.hdf5", [0, 1, 2, 0, 1, 2, 1, 7]), tmp_path / "other")


# A GPU that nobody waits for ------------------------------------------------------------------------
CYCLE = 4  # iterations
REPLAY: dict[str, Any] = {
    "policy": {"hidden": (16, 16)},
    "replay": {"batch_size": 16, "warmup": 100, "steps": 40, "train_batches": 10},
    "loop": {"epochs": 2, "cycles": 3, "iterations": CYCLE},
    "env": {"num_envs": 4},
    "eval": {"episodes": 2, "stochastic": False},
    "log": {"tensorboard": False, "report": False},
}


class Unawaited(ludus.Callback):
    """Lets the loop ask for the health of whole cycles, as where a GPU is at work, and spoils some updates."""

    def __init__(self, spoil_targets_at: int = -1, skipped_an_iteration: int = 0) -> None:
        self.spoil_targets_at, self.skipped_an_iteration = spoil_targets_at, skipped_an_iteration
        self.factor, self.rollbacks = 0.0, 0

    def on_start(self, run: Trainer) -> None:
        run.job.waits = False

    def on_iteration(self, run: Trainer) -> None:
        assert isinstance(run.job, ReplayJob)
        agent = run.job.learner.agent
        for optimizer in agent.optimizers:  # as if so many gradients of each had not been finite
            optimizer.skipped += self.skipped_an_iteration
        if run.counters.iteration == self.spoil_targets_at and run.counters.rollbacks == 0:
            for weights in agent.targets.values():
                weights.fill_(float("nan"))

    def on_end(self, run: Trainer) -> None:
        self.factor, self.rollbacks = run.job.rate_factor, run.counters.rollbacks


@pytest.mark.parametrize(("name", "algo"), [("gym:Pendulum-v1", "sac"), ("gym:CartPole-v1", "dqn")])
def test_correctness_01_a_rollback_where_nobody_waits_for_the_gpu_succeeds(
    name: str, algo: str, tmp_path: Path
) -> None:
    watch = Unawaited(spoil_targets_at=3 * CYCLE + 1)
    folder = ludus.train(name, run_dir=tmp_path / "run", callbacks=[watch], algo=algo, **REPLAY)
    assert (folder / "final").exists()
    assert (watch.rollbacks, watch.factor) == (1, 0.5)


@pytest.mark.parametrize(("name", "algo"), [("gym:CartPole-v1", "dqn"), ("gym:Pendulum-v1", "td3")])
def test_correctness_01_a_cycles_skipped_updates_are_held_against_a_cycles_batches(
    name: str, algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many optimisers an algorithm has."""
    watch = Unawaited(skipped_an_iteration=3)  # less than half of all: more of a cycle than half of an iteration
    ludus.train(name, run_dir=tmp_path / "run", callbacks=[watch], algo=algo, **REPLAY)
    assert watch.rollbacks == 0
    assert "12 gradients were not finite and were skipped" in capsys.readouterr().out


def diverge(monkeypatch: pytest.MonkeyPatch, times: int) -> Callable[[], int]:
    """PPO's third update learns from rewards that are not numbers, so many times; counts them."""
    update, spoiled = PPO.update, list[float]()

    def spoil(self: PPO, segments: Segments, progress: float, on_batch: OnBatch) -> dict[str, Tensor]:
        if progress == 2 / 6 and len(spoiled) < times:
            spoiled.append(progress)
            segments.track.reward.fill_(torch.nan)
        return update(self, segments, progress, on_batch)

    monkeypatch.setattr(PPO, "update", spoil)
    return lambda: len(spoiled)


def train_ppo(folder: Path, *callbacks: ludus.Callback) -> Path:
    """Six iterations, and a checkpoint after the last."""
    return ludus.train(
        "gym:CartPole-v1",
        run_dir=folder,
        callbacks=callbacks,
        env={"num_envs": 4},
        policy={"hidden": (16, 16)},
        ppo={"horizon": 8, "minibatches": 2, "update_epochs": 1},
        total_steps=8 * 4 * 6,
        eval={"episodes": 2},
        log={"tensorboard": False, "report": False},
    )


class Rates(ludus.Callback):
    def __init__(self) -> None:
        self.factors: list[float] = []

    def on_iteration(self, run: Trainer) -> None:
        self.factors.append(run.job.rate_factor)


def test_correctness_05_what_diverges_before_the_first_checkpoint_begins_again_with_half_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverge(monkeypatch, times=1)
    rates = Rates()
    folder = train_ppo(tmp_path / "run", rates)
    assert rates.factors == [1.0] * 2 + [0.5] * 6
    steps = [row["step"] for row in read_metrics(folder / "metrics.jsonl") if "train/policy_gradient_loss" in row]
    assert steps == [32 * i for i in range(1, 7)]


def test_correctness_05_what_always_diverges_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled = diverge(monkeypatch, times=100)
    with pytest.raises(TrainingError, match=r"Training diverged.*Try a smaller --ppo.learning-rate"):
        train_ppo(tmp_path / "run")
    assert spoiled() == MAX_ROLLBACKS + 1


@pytest.mark.parametrize("lags", [True, False])
def test_correctness_03_a_copy_explores_by_its_schedule_before_anything_is_learned(
    lags: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def actor(policy: ReplayPolicy, env: VecEnv, beside: bool) -> object:
        """As where the policy is on a GPU, and the environments are not, or are too."""
        return replay_collector._LaggingCopy(policy, env.device) if lags else replay_collector._Copy(policy)

    monkeypatch.setattr(replay_collector, "_actor", actor)
    shares: list[tuple[float, float]] = []

    class Watch(ludus.Callback):
        def on_iteration(self, run: Trainer) -> None:
            job = run.job
            assert isinstance(job, OffPolicyJob)
            assert job.collector.actor.policy is not job.policy
            job.collector.actor.newest()
            heads = (job.collector.actor.policy.head, job.policy.head)
            assert all(isinstance(head, GreedyHead) for head in heads)
            acting, learning = (float(head.epsilon) for head in heads if isinstance(head, GreedyHead))
            shares.append((acting, learning))

    settings = REPLAY | {"dqn": {"epsilon": 0.9, "epsilon_final": 0.1, "epsilon_until": 0.5}}
    ludus.train("gym:CartPole-v1", run_dir=tmp_path / "run", callbacks=[Watch()], algo="dqn", **settings)
    total = 2 * 3 * CYCLE
    expected = [0.9 + (0.1 - 0.9) * min(1.0, i / total / 0.5) for i in range(total)]
    assert [acting for acting, _ in shares] == pytest.approx(expected)
    assert [learning for _, learning in shares] == pytest.approx(expected)


# Bootstrap values -----------------------------------------------------------------------------------
class Terminating(Counting):
    """Episodes only ever terminate; an evaluation makes all begin anew. Observes its row and all steps so far."""

    truncates = False

    def __init__(self, rows: int) -> None:
        super().__init__(rows)
        self.ended: list[Tensor] = []  # of each step, [rows] bool

    def reset(self, seed: int) -> Tensor:
        self.total, self.age = np.full(self.num_rows, float(len(self.ended))), np.zeros(self.num_rows)
        return self._obs()

    def end_step(self) -> Step:
        step = super().end_step()
        self.ended.append(step.done)
        return step._replace(terminated=step.done, truncated=torch.zeros_like(step.done))

    def adapt(self, metrics: dict[str, list[float]], labels: dict[str, list[float]]) -> bool:
        return True


def test_correctness_04_an_episode_that_terminates_has_no_bootstrap_value_left_of_one_cut_short() -> None:
    rows, env = 5, Terminating(5)
    torch.manual_seed(0)
    policy = ActorCritic(env.obs_space, env.action_space, PolicyConfig(hidden=(8,), normalize_obs=False))
    collector = Collector([env], policy, SegmentSchedule(rows, 8, 4), gamma=0.9, seed=0)
    cut, seen = set(), 0
    for update in range(20):
        segments = collector.collect(update)
        row, time = segments.obs[..., 0].long(), segments.obs[..., 1].long()
        for r, t, done, final in zip(
            *(x.flatten().tolist() for x in (row, time, segments.done, segments.final_value)), strict=True
        ):
            terminated = bool(env.ended[t][r])
            assert done == (terminated or t in cut)
            assert final == 0.0 if terminated else not done or final != 0.0
            seen += terminated
        cut.add(len(env.ended) - 1)
        collector.adapt({}, {})
    assert seen > 50


# A memory without Triton ----------------------------------------------------------------------------
@torch.no_grad()
def test_correctness_08_a_device_without_kernels_runs_every_step_of_a_memory() -> None:
    """On the meta device, which is neither a CPU nor has kernels: what a GPU without Triton would go through."""
    with torch.device("meta"):
        memory = LSTM(3, 4)
        x, state, keep = torch.zeros(5 * 2, 3), torch.zeros(2, 8), torch.ones(5, 2)
    done = memory.run(x, state, keep)
    assert len(done.space.steps) == len(done.resets) == 5
    for parameter in memory.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gradient = memory.backward(done, torch.zeros_like(done.output))
    assert gradient is not None
    assert gradient.shape == x.shape


@torch.no_grad()
def test_correctness_08_multiplying_at_every_step_gives_what_asking_for_resets_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    memory = LSTM(3, 4).double()
    x, state = torch.randn(6 * 5, 3).double(), torch.randn(5, 8).double()
    keep = (torch.rand(6, 5) > 0.1).double()
    gradient = torch.randn(6 * 5, 4).double()
    for parameter in memory.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def passes() -> list[Tensor]:
        done = memory.run(x, state, keep)
        through = memory.backward(done, gradient.clone())
        assert through is not None
        return [done.output.clone(), through, *(p.grad.clone() for p in memory.parameters() if p.grad is not None)]

    asked = passes()
    monkeypatch.setattr(lstm, "_resets", lambda keep: list(keep[..., None].unbind()))
    for a, b in zip(asked, passes(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


# Parametrised weights -------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "parametrise",
    [
        torch.nn.utils.parametrizations.weight_norm,
        torch.nn.utils.parametrizations.spectral_norm,
        torch.nn.utils.weight_norm,
        torch.nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_correctness_11_a_parametrised_weight_is_refused(parametrise: Callable[[torch.nn.Module], Any]) -> None:
    with pytest.raises(ConfigError, match=r"Dense cannot have its weight.* parametrised"):
        parametrise(Dense(3, 4))


def test_correctness_11_a_weight_that_is_replaced_is_the_one_used() -> None:
    layer, x = Dense(3, 4), torch.randn(5, 3)
    layer.weight = torch.nn.Parameter(torch.ones(4, 3))
    layer.bias = torch.nn.Parameter(torch.zeros(4))
    torch.testing.assert_close(layer(x), x.sum(1, keepdim=True).expand(5, 4))
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.weight.zero_()
    assert not twin(x).any()
    assert layer(x).any()
