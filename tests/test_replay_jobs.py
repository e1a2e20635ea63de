"""Whole runs of what learns from a replay: that it learns, what it writes, and what it refuses."""

import functools
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

import ludus
import replay_envs
from ludus.algorithms.flash.job import ScaledJob
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.data import DataConfig, read_episodes
from ludus.envs.check import check_env
from ludus.envs.episodic import EpisodicReward
from ludus.envs.vec import VecEnv
from ludus.errors import CheckpointError, ConfigError, DataError, EnvError, TrainingError
from ludus.export import export_onnx
from ludus.presets import find_preset
from ludus.recording import RecordConfig, record
from ludus.runs import evaluate_run
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.training.checkpoint import load_reward, newest_intact
from ludus.training.loop import Trainer
from test_data import write_libero

Settings = dict[str, Any]


class Keep(ludus.Callback):
    """What a checkpoint does not give: the job itself."""

    job: Any

    def on_start(self, run: Trainer) -> None:
        self.job = run.job


QUIET: Settings = {"log.report": False, "log.tensorboard": False}
QUIET |= {"eval.episodes": 2, "eval.stochastic": False, "eval.final_episodes": 0}  # a test measures by itself
SMALL: Settings = QUIET | {
    "policy.hidden": (32, 32),
    "replay.batch_size": 64,
    "replay.learning_rate": 2e-3,
    "replay.warmup": 400,
    "replay.capacity": 20_000,
    "replay.gamma": 0.9,
    "replay.train_batches": 50,
}
CHOOSE: Settings = {
    "replay.steps": 50,
    "replay.train_batches": 25,
    "replay.train_target": 50,
    "dqn.epsilon_until": 0.5,
}


def train(
    task: str, folder: Path, algo: str, steps: int, settings: Settings, keep: Keep | None = None, **kwargs: Any
) -> Path:
    """`kwargs` go to the task."""
    if algo == "flash-sac":
        settings = {"flash.critic_width": 32} | settings
    if algo == "dqn":
        settings, kwargs = CHOOSE | settings, {"discrete": True, **kwargs}
    overrides = SMALL | settings | {"loop.total_steps": steps, "eval.every": steps, "env.kwargs": kwargs}
    callbacks = [] if keep is None else [keep]
    preset = f"vec:replay_envs:make_{task}"
    return ludus.train(preset, folder, callbacks, Console("quiet"), algo=algo, overrides=overrides)


def score(run: Path, deterministic: bool = True) -> float:
    return float(np.mean(evaluate_run(run, 200, deterministic).returns))


def rows_of(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def last_cycle(run: Path) -> dict[str, float]:
    return [row for row in rows_of(run) if "loop/cycle" in row][-1]


@pytest.mark.parametrize("task", ["line", "match", "wage"])
@pytest.mark.parametrize("episodic", [False, True])
def test_the_tasks_themselves_keep_the_contract(task: str, episodic: bool) -> None:
    kwargs = {"truncate": True} if task == "wage" else {}

    def make(num_envs: int) -> VecEnv:
        env = getattr(replay_envs, f"make_{task}")(num_envs, **kwargs)
        return EpisodicReward(env) if episodic else env

    findings = check_env(make)
    assert [finding for finding in findings if finding.level == "error"] == []
    assert any("state() and load_state() continue exactly" in finding.what for finding in findings)


# Learning ---------------------------------------------------------------------------------------------
def best_return(discrete: bool) -> float:
    env = replay_envs.make_line(500, discrete=discrete, evaluation=True)
    env.reset(1)
    return sum(float(env.step(env.best_move()).reward.mean()) for _ in range(env.length))


@pytest.fixture(scope="module")
def line_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trains each algorithm where a test asks for it: processes that share the tests do not train all of them."""
    folder = tmp_path_factory.mktemp("line")
    steps = {"sac": 3000, "td3": 3000, "dqn": 6000, "flash-sac": 2500}
    return functools.cache(lambda algo: train("line", folder / algo, algo, steps[algo], {}))


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn", "flash-sac"])
def test_a_point_learns_to_go_to_its_goal(line_run: Callable[[str], Path], algo: str) -> None:
    """At random it is −13; the best is −1, with three choices −2."""
    assert score(line_run(algo)) > best_return(algo == "dqn") - 1.5


def test_exploring_is_worse_than_the_best_action(line_run: Callable[[str], Path]) -> None:
    for algo in ("sac", "dqn"):
        assert score(line_run(algo), deterministic=False) < score(line_run(algo)) - 0.05


@pytest.mark.parametrize("n_step", [1, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("truncate", [True, False], ids=["time runs out", "the task ends"])
@pytest.mark.parametrize("algo", ["sac", "td3", "dqn", "flash-sac"])
def test_time_that_runs_out_does_not_end_the_future_and_a_termination_does(
    tmp_path: Path, algo: str, truncate: bool, n_step: int
) -> None:
    """Breaks if an end of one kind is taken for the other, or the observation after an end is the wrong one."""
    keep = Keep()
    settings: Settings = {
        "replay.n_step": n_step,
        "replay.polyak": 0.9,
        "replay.train_target": 1,
        "replay.learning_rate": 3e-3,
    }
    settings |= {"sac.alpha": 1e-6, "sac.learn_alpha": False} if algo == "sac" else {}
    gamma, steps, near = 0.9, 2500, 0.35
    if algo == "flash-sac":  # whose bins hold the returns of episodes, not all that would follow them
        settings |= {"flash.alpha": 1e-9, "replay.gamma": 0.5}
        gamma, steps, near = 0.5, 1500, 0.2
    train("wage", tmp_path / "run", algo, steps, settings, keep, truncate=truncate)
    left = 5.0 - torch.arange(5)
    seen = torch.ones((5, 1)) if truncate else left[:, None] / 5
    expected = torch.full((5,), 1 / (1 - gamma)) if truncate else (1 - gamma**left) / (1 - gamma)
    np.testing.assert_allclose(values_of(keep.job.learner.agent, seen), expected, atol=near)


@torch.no_grad()
def values_of(agent: Any, seen: Tensor) -> Tensor:
    if agent.policy.kind == "flash-sac":
        action = agent.policy.head.mode(agent.policy.params_of(seen, agent.policy.start(0))[0])
        _, logits = agent.critics.forward_pass(torch.cat([seen, action], 1).t(), batch_statistics=False)
        return agent.critics.values(logits.softmax(1)).amin(0) / agent.reward_factor
    params = agent.policy.outputs(seen)[1]
    if agent.policy.kind == "dqn":
        return params.amax(1)
    return agent.critics.lower(torch.cat([seen, agent.policy.head.mode(params)], 1))


DECOMPOSE: Settings = {
    "episodic_reward": True,
    "reward.rrd_batch_size": 64,
    "reward.rrd_sample_size": 16,
    "reward.hidden": (32, 32),
    "reward.learning_rate": 2e-3,
}


@pytest.fixture(scope="module")
def rrd_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Keep]:
    keep = Keep()
    settings = DECOMPOSE | {"reward.method": "rrd", "log.tensorboard": True}
    return train("match", tmp_path_factory.mktemp("rrd") / "run", "sac", 5000, settings, keep), keep


@pytest.mark.parametrize(
    ("algo", "method"),
    [("sac", "rrd-unbiased"), ("sac", "rd"), ("td3", "rrd"), ("dqn", "rrd"), ("flash-sac", "rrd")],
)
def test_return_decomposition_learns_where_one_payment_an_episode_hides_what_each_step_was_worth(
    tmp_path: Path, algo: str, method: str
) -> None:
    """At random it is −13.3, doing nothing −10; the best is 0, with three choices −5."""
    steps = 2500 if algo == "flash-sac" else 6000
    run = train("match", tmp_path / "run", algo, steps, DECOMPOSE | {"reward.method": method})
    assert score(run) > (-6.0 if algo == "dqn" else -1.5)
    assert last_cycle(run)["reward/correlation"] > 0.9


def test_rrd_learns_where_the_same_agent_on_the_delayed_reward_does_not_and_ircr_a_little(
    tmp_path: Path, rrd_run: tuple[Path, Keep]
) -> None:
    delayed = train("match", tmp_path / "delayed", "sac", 5000, {"episodic_reward": True})
    ircr = train("match", tmp_path / "ircr", "sac", 5000, DECOMPOSE | {"reward.method": "ircr"})
    assert score(rrd_run[0]) > -1.5
    assert score(delayed) < -5.0
    assert -9.0 < score(ircr) < score(rrd_run[0])
    assert "reward/correlation" not in last_cycle(ircr)


def test_the_learned_reward_is_in_the_units_of_the_returns_and_can_be_loaded(rrd_run: tuple[Path, Keep]) -> None:
    run, _ = rrd_run
    model = load_reward(newest_intact(run / "checkpoints", pytest.fail))
    g = torch.Generator().manual_seed(0)
    seen, after = torch.rand((2, 500, 1), generator=g) * 2 - 1
    action = torch.rand((500, 1), generator=g) * 2 - 1
    reward = model.to_units(model.predict({"obs": seen}, action, {"obs": after}))
    truth = -(action - seen).abs()[:, 0]
    assert float(torch.corrcoef(torch.stack([reward.float(), truth]))[0, 1]) > 0.9
    assert float(reward.mean()) == pytest.approx(float(truth.mean()), abs=0.15)


# Paid once an episode ---------------------------------------------------------------------------------
def test_episodic_reward_pays_the_sum_at_the_end_and_goes_on_exactly_from_its_state() -> None:
    env, plain = EpisodicReward(replay_envs.make_line(6)), replay_envs.make_line(6)
    assert torch.equal(env.reset(3), plain.reset(3))
    assert (env.max_steps, env.num_rows, env.action_space) == (20, 6, plain.action_space)
    owed, g = torch.zeros(6), torch.Generator().manual_seed(1)
    actions = torch.rand((70, 6, 1), generator=g) * 2 - 1
    paid = []
    for t, action in enumerate(actions):
        if t == 33:
            saved = env.state()
        step, truth = env.step(action), plain.step(action)
        assert torch.equal(env.hidden_reward, truth.reward)
        assert torch.equal(step.obs, truth.obs)
        assert torch.equal(step.truncated, truth.truncated)
        owed += truth.reward
        torch.testing.assert_close(step.reward, torch.where(truth.done, owed, 0.0), rtol=0, atol=1e-5)
        owed[truth.done] = 0.0
        paid.append(step.reward)
    assert sum(int((reward != 0).sum()) for reward in paid) == 22  # ends: three or four of each row
    other = EpisodicReward(replay_envs.make_line(6))
    other.reset(9)
    other.load_state(saved)
    for action, reward in zip(actions[33:], paid[33:], strict=True):
        assert torch.equal(other.step(action).reward, reward)


def test_ppo_can_be_paid_once_an_episode_too(tmp_path: Path) -> None:
    overrides: Settings = QUIET | {
        "episodic_reward": True,
        "env.num_envs": 32,
        "ppo.horizon": 40,
        "ppo.minibatches": 4,
        "ppo.gamma": 1.0,
        "ppo.gae_lambda": 1.0,
        "ppo.learning_rate": 2e-3,
        "policy.normalize_obs": False,
        "loop.total_steps": 60_000,
        "eval.every": 60_000,
    }
    run = ludus.train("vec:replay_envs:make_line", tmp_path / "run", console=Console("quiet"), overrides=overrides)
    rewards = [row["rollout/ep_rew_mean"] for row in rows_of(run) if "rollout/ep_rew_mean" in row]
    assert rewards[0] < -8
    assert score(run) > -6


# What a run leaves ------------------------------------------------------------------------------------
def tags(run: Path) -> dict[str, list[float]]:
    accumulator = EventAccumulator(str(run / "tb"), size_guidance={"scalars": 0})
    accumulator.Reload()
    names = accumulator.Tags()["scalars"]
    return {name: [event.value for event in accumulator.Scalars(name)] for name in names}


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings: Settings = {"loop.total_steps": 800, "eval.every": 400, "eval.episodes": 3, "log.report": False}
    settings |= {"replay.warmup": 400, "replay.batch_size": 32, "policy.hidden": (16, 16)}
    folder = tmp_path_factory.mktemp("pendulum") / "run"
    return ludus.train("gym:Pendulum-v1", folder, console=Console("quiet"), algo="sac", overrides=settings)


TABLE = {"Epoch", "Cycle", "Episodes", "Timesteps", "TimeCost(sec)/train", "Q_loss", "Pi_loss", "R_loss"}


def test_sac_on_a_gymnasium_environment_writes_rows_and_tensorboard(pendulum: Path) -> None:
    rows = [row for row in rows_of(pendulum) if "loop/cycle" in row]
    points = tags(pendulum)
    for name in ("critic_loss", "actor_loss", "q_mean", "entropy", "ent_coef", "skipped_updates"):
        assert np.isfinite(rows[-1][f"train/{name}"])
        assert len(points[f"train/{name}"]) == len([row for row in rows if f"train/{name}" in row])
    assert rows[-1]["rollout/ep_len_mean"] == 200
    assert [row["step"] for row in rows_of(pendulum) if "eval/mean_reward" in row] == [800]
    assert not TABLE & rows[-1].keys()  # names of return decomposition
    assert not (pendulum / "R_loss.f32").exists()


def test_a_run_with_a_learned_reward_writes_its_table_and_one_loss_a_batch(rrd_run: tuple[Path, Keep]) -> None:
    run, keep = rrd_run
    rows = [row for row in rows_of(run) if "loop/cycle" in row]
    assert rows[-1].keys() >= TABLE
    assert tags(run)["R_loss"] == pytest.approx([row["R_loss"] for row in rows])
    assert rows[-1]["Timesteps"] == 5000
    assert 5000 / 20 - 20 <= rows[-1]["Episodes"] <= 5000 / 20 + 10
    losses = np.fromfile(run / "R_loss.f32", "float32")
    assert len(losses) == keep.job.learner.updates == 50 * (5000 - 300) // 100  # the warm-up's last 100 learn
    assert np.isfinite(losses).all()
    assert losses[-200:].mean() < losses[:200].mean() / 3
    assert rows[-1]["R_loss"] == pytest.approx(float(losses[-500:].mean()), rel=1e-4)  # ten iterations a cycle
    assert rows[-1]["R_loss"] == rows[-1]["train/r_loss"]
    checkpoint = newest_intact(run / "checkpoints", pytest.fail)
    names = {f"{part}.{kind}" for part in ("policy", "reward", "training") for kind in ("json", "safetensors")}
    assert {file.name for file in checkpoint.iterdir()} == names | {"manifest.json"}


def test_few_batches_an_iteration_are_measured_rightly_too(tmp_path: Path) -> None:
    """Losses are measured at some gradient steps only: iterations without one must not count as zeros."""
    settings: Settings = {"sac.alpha": 0.3, "sac.learn_alpha": False, "replay.train_batches": 3}
    run = train("line", tmp_path / "run", "sac", 2000, settings)
    alphas = [row["train/ent_coef"] for row in rows_of(run) if "train/ent_coef" in row]
    assert alphas == pytest.approx([0.3] * 2)


@pytest.mark.parametrize("method", ["none", "rd"])
def test_normalisers_see_every_transition_alike(tmp_path: Path, method: str) -> None:
    """Episodes that are padded to the longest repeat their first observation, which must not count."""
    keep = Keep()
    settings = DECOMPOSE | {"reward.method": method, "policy.normalize_obs": True}
    train("ragged", tmp_path / "run", "sac", 3000, settings, keep)
    learner = keep.job.learner
    normalizers = [learner.agent.policy.normalizer]
    if learner.reward_learner is not None:
        normalizers.append(learner.reward_learner.model.normalizer)
    for normalizer in normalizers:
        assert float(normalizer.count) == 64 * learner.updates / 50  # a batch an iteration
        assert float(normalizer.mean[0]) == pytest.approx(2 / 22, abs=0.03)  # first ones among the steps


def test_a_loaded_policy_acts_and_is_evaluated(pendulum: Path) -> None:
    policy = ludus.load(pendulum)
    action = policy.act(np.zeros(3, np.float32))
    assert action.shape == (1,)
    assert abs(float(action[0])) <= 2
    batch = policy.act(np.zeros((4, 3), np.float32), deterministic=False)
    assert batch.shape == (4, 1)
    assert len(set(batch[:, 0].tolist())) == 4
    assert evaluate_run(pendulum, 2, True).lengths == [200, 200]


def test_a_training_leaves_the_precision_of_the_program_as_it_was(tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()
    assert before != "medium"
    settings = PENDULUM | {"precision": "bfloat16", "env.max_steps": 20}
    ludus.train("gym:Pendulum-v1", tmp_path / "run", [], Console("quiet"), algo="sac", overrides=settings)
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn", "flash-sac"])
def test_a_policy_is_exported(tmp_path: Path, line_run: Callable[[str], Path], algo: str) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    assert export_onnx(line_run(algo), tmp_path / "policy.onnx") <= 1e-4
    session = runtime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    obs = np.random.default_rng(0).uniform(-1, 1, (9, 2)).astype(np.float32)
    (action,) = session.run(None, {"obs": obs})
    np.testing.assert_allclose(action, ludus.load(line_run(algo)).act(obs), atol=1e-4)


def test_the_plan_says_how_much_is_learned_and_what_the_replay_holds(tmp_path: Path) -> None:
    output = io.StringIO()
    settings: Settings = {"loop.total_steps": 1200, "log.report": False, "log.tensorboard": False}
    ludus.train(
        "gym:Pendulum-v1", tmp_path / "run", console=Console("plain", output), algo="td3", overrides=settings
    )
    for part in (
        "TD3, networks 64 × 64",
        "replay of 100,000 rows",
        "1 updates a step after 1,000",
        "batches",
    ):
        assert part in output.getvalue(), part


# Refusals ---------------------------------------------------------------------------------------------
RRD: Settings = {"reward.method": "rrd"}
LATE = {"delay": 5, "late": True}
BAD: dict[str, tuple[str, str, Settings, str]] = {
    "unknown algo": ("gym:CartPole-v1", "sca", {}, r"no algorithm 'sca'.*sac.*Known: amp, distill, dqn"),
    "ppo, reward": ("gym:CartPole-v1", "ppo", RRD, "PPO learns from its own.*sac or td3"),
    "ppo, data": ("gym:CartPole-v1", "ppo", {"data": "x.hdf5"}, "PPO learns from its own.*recorded episodes"),
    "reward, no data": ("rrd-libero", "", {}, "--data FILE; 'ludus record' makes some"),
    "reward, none": ("rrd-libero", "", {"data": "x.hdf5", "reward.method": "none"}, "reward.method none has none"),
    "advantage": ("gym:Pendulum-v1", "td3", {"replay.advantage": 1.0}, "--replay.advantage imitates.*--data"),
    "n-step, rrd": ("gym:Pendulum-v1", "sac", {"replay.n_step": 3} | RRD, "n-step must be 1 with.*rrd"),
    "n-step, ircr": ("gym:Pendulum-v1", "sac", {"replay.n_step": 3, "reward.method": "ircr"}, "n-step must be 1"),
    "bc, no data": ("gym:Pendulum-v1", "sac", {"replay.bc": 2.5}, "--replay.bc imitates.*--data"),
    "bc, dqn": ("gym:CartPole-v1", "dqn", {"replay.bc": 2.5, "data": "x.hdf5"}, "bc is of --algo sac, td3"),
    "polyak": ("gym:Pendulum-v1", "sac", {"replay.polyak": 1.0}, "--replay.polyak is 1.0.*less than 1"),
    "no batches": ("gym:Pendulum-v1", "sac", {"train_batches": 0}, "--replay.train-batches is 0.*at least 1"),
    "memory": ("gym:Pendulum-v1", "sac", {"replay.capacity": 9 * 10**9}, "needs .*GB of memory.*replay.capacity"),
    "capacity": ("gym:Pendulum-v1", "sac", {"replay.capacity": 200}, "cannot hold one episode of 200.*201"),
    "rings": ("forage", "dqn", RRD | {"replay.longest": 32, "replay.capacity": 1_320}, "two episodes of each of"),
    "no data": ("gym:Pendulum-v1", "sac", {"data.keys": ("state",)}, "--data.keys.*give some with --data"),
    **{
        f"offline, {name}": ("gym:Pendulum-v1", "td3", {"data": "x.hdf5", name: given}, message)
        for name, given, message in (
            ("replay.warmup", 500, "--replay.warmup: .*nobody collects more"),
            ("data.held_out", 0.5, "--data.held-out: environments measure"),
            ("episodic_reward", True, "--episodic-reward: .*--reward.method rrd"),
            ("policy.normalize_obs", False, "--policy.normalize-obs: .*--data.normalize-obs"),
        )
    },
    "offline, exploration": (
        "gym:Pendulum-v1", "td3", {"data": "x.hdf5", "td3.exploration": 0.9},
        "--td3.exploration: nobody explores",
    ),
    "sample size": ("gym:Pendulum-v1", "sac", {"rrd_sample_size": 48} | RRD, "not a multiple.*240 and 288 are"),
    "discrete sac": ("gym:CartPole-v1", "sac", {}, "SAC needs continuous actions.*--algo dqn or ppo"),
    "continuous dqn": ("gym:Pendulum-v1", "dqn", {}, "DQN chooses among.*--algo sac, td3, flash-sac or ppo"),
    "absent agents": ("pettingzoo:pettingzoo_test_envs:Arena", "dqn", {"env.num_envs": 2}, "agents come and go"),
    "absent later": ("vec:sanity_envs:make_half_absent", "dqn", {"env.kwargs": LATE}, "agents come and go"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_a_sentence_and_leaves_nothing_behind(tmp_path: Path, case: str) -> None:
    preset, algo, settings, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        ludus.train(preset, tmp_path / "run", console=Console("quiet"), algo=algo, overrides=settings)
    assert not (tmp_path / "run").exists()


def test_episodes_longer_than_the_replay_takes_as_a_whole_end_a_training_that_needs_them(tmp_path: Path) -> None:
    settings = DECOMPOSE | RRD | {"replay.longest": 32, "replay.warmup": 600, "loop.total_steps": 5_000}
    keep = Keep()
    with pytest.raises(TrainingError, match=r"more than 32 steps.*--replay\.longest"):
        train("unlimited", tmp_path / "run", "sac", 5_000, settings | {"eval.max_steps": 60}, keep)
    assert keep.job.store.total_episodes_added * 60 < 5_000  # not only after all of it


def test_exploration_and_environments_of_evaluations_may_be_set_offline() -> None:
    """Sampled evaluations explore, in as many environments."""
    settings: Settings = {"data": "x.hdf5", "env.num_envs": 7}
    settings |= {"td3.exploration": 0.9, "eval.stochastic": True}
    assert apply_overrides(find_preset("gym:Pendulum-v1", "td3").config, settings).env.num_envs == 7


def test_an_algorithm_brings_its_own_defaults() -> None:
    dqn = find_preset("gym:CartPole-v1", "dqn").config
    assert isinstance(dqn, ReplayTrainConfig)
    assert (dqn.algo, dqn.replay.polyak, dqn.env.num_envs) == ("dqn", 0.0, 1)
    td3 = find_preset("half-cheetah", "td3").config
    assert isinstance(td3, ReplayTrainConfig)
    assert (td3.algo, td3.replay.train_target, td3.policy.hidden) == ("td3", 2, (256, 256))
    assert find_preset("half-cheetah", "ppo").config == find_preset("half-cheetah").config


def test_more_steps_to_draw_than_an_episode_has_are_warned_about(tmp_path: Path) -> None:
    output = io.StringIO()
    settings = SMALL | DECOMPOSE | RRD | {"reward.rrd_sample_size": 32, "loop.total_steps": 500}
    ludus.train(
        "vec:replay_envs:make_match", tmp_path, console=Console("plain", output), algo="sac", overrides=settings
    )
    assert "--reward.rrd-sample-size 32 is more than the 20 steps" in output.getvalue()


def test_an_episode_longer_than_was_said_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--replay.longest 10 is less than the 20 steps"):
        train("line", tmp_path / "run", "sac", 2000, {"replay.longest": 10})


@pytest.mark.parametrize(
    ("what", "named"), [("reward", "reward"), ("obs", "observation"), ("final_obs", "last observation")]
)
def test_what_is_not_a_number_never_enters_the_replay(tmp_path: Path, what: str, named: str) -> None:
    with pytest.raises(EnvError, match=rf"gave a {named} that is not a finite number \(row 3\)"):
        train("broken", tmp_path / "run", "sac", 2000, {}, what=what)


# Recorded episodes ------------------------------------------------------------------------------------
EPISODES = 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "kuka.hdf5"
    return record("scripted", path, RecordConfig(episodes=EPISODES, seed=3))


def offline(file: Path, folder: Path, batches: int, **settings: Any) -> Path:
    overrides: Settings = QUIET | {
        "data": str(file),
        "data.keys": ("state",),
        "replay.bc": 0.1,  # so few successes say little: the data itself counts more
        "replay.train_batches": 100,
        "replay.batch_size": 128,
        "policy.hidden": (64, 64),
        "loop.total_steps": batches,
        "eval.every": batches,
        "eval.episodes": 4,
        "env.max_steps": 40,
    }
    overrides |= {name.replace("__", "."): value for name, value in settings.items()}
    algo, callbacks = overrides.pop("algo", "td3"), overrides.pop("callbacks", ())
    return ludus.train("kuka-pick-place", folder, callbacks, Console("quiet"), algo=algo, overrides=overrides)


def distance(policy: Any, file: Path) -> float:
    """Mean squared, of what the policy does from what was recorded."""
    episodes = list(read_episodes(DataConfig(str(file), keys=("state",))))
    errors = [policy.act(episode.obs["state"][:-1]) - episode.action for episode in episodes]
    return float(np.mean(np.concatenate(errors) ** 2))


class Units(ludus.Callback):
    """What a value of 1 is worth in rewards of the environment: so that it can be told at both ends of --from."""

    def on_start(self, run: Trainer) -> None:
        self.first = self.values(run.job)

    def on_end(self, run: Trainer) -> None:
        self.last = self.values(run.job)

    def values(self, job: Any) -> Tensor:
        if isinstance(job, ScaledJob):
            return job._factor.value() / job.reward_scale
        critics = job.learner.agent.critics
        x = torch.linspace(-1, 1, 3 * critics.inputs).view(3, -1)
        with torch.no_grad():
            return critics.outputs(x)[1] * job.reward_scale


@pytest.mark.parametrize("algo", ["td3", "sac", "flash-sac"])
def test_values_learned_from_recorded_episodes_keep_the_units_of_the_environment(
    algo: str, file: Path, tmp_path: Path
) -> None:
    """Offline, rewards are divided by their standard deviation; in environments they are not."""
    more: Settings = {"policy.hidden": (16, 16)} | ({"flash.critic_width": 16} if algo == "flash-sac" else {})
    recorded, online = Units(), Units()
    given = {name.replace(".", "__"): value for name, value in more.items()}
    source = offline(file, tmp_path / "recorded", 100, callbacks=[recorded], algo=algo, **given)
    overrides = (
        QUIET | more | {"loop.total_steps": 200, "eval.every": 200, "replay.warmup": 100, "env.num_envs": 4}
    )
    overrides |= {"policy.normalize_obs": True, "env.max_steps": 40, "replay.train_batches": 2, "replay.steps": 50}
    ludus.train(
        "kuka-pick-place", tmp_path / "run", [online], Console("quiet"), algo=algo, overrides=overrides,
        start_from=f"{source}@newest",
    )  # fmt: skip
    assert float(recorded.last.abs().max()) > 0
    torch.testing.assert_close(online.first, recorded.last, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("algo", ["td3", "sac"])
def test_recorded_actions_are_imitated(tmp_path: Path, file: Path, algo: str) -> None:
    start = offline(file, tmp_path / "start", 100, algo=algo, replay__learning_rate=1e-9)
    run = offline(file, tmp_path / "run", 1500, algo=algo, replay__learning_rate=1e-3)
    before, after = distance(ludus.load(start), file), distance(ludus.load(run), file)
    assert after < 0.6 * before
    last = last_cycle(run)
    assert last["step"] == 1500  # batches
    assert [row["step"] for row in rows_of(run) if "eval/mean_reward" in row] == [1500]
    assert np.isfinite(last["train/critic_loss"])
    assert len(evaluate_run(run, 2, True).returns) == 2


def test_offline_data_that_does_not_fit_names_the_setting(tmp_path: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match=r"34 numbers, the recorded one 7 \(joint_states \(7,\)\).*--data.keys"):
        offline(file, tmp_path / "run", 100, data__keys=("joint_states",))
    images = write_libero(tmp_path / "images.hdf5")
    with pytest.raises(ConfigError, match=r"images are none, the recorded ones agentview_rgb .*--data.keys"):
        offline(images, tmp_path / "run", 100, data__keys=())
    other = write_actions(tmp_path / "other.hdf5", np.zeros((9, 5), np.float32), seen=34)
    with pytest.raises(ConfigError, match=r"The recorded actions \(5 numbers\) are not the environment's"):
        offline(other, tmp_path / "run", 100, data__keys=())


def write_actions(path: Path, actions: np.ndarray, seen: int) -> Path:
    """Minari's layout: one array of observations, and these actions in each of six episodes."""
    g = np.random.default_rng(0)
    with h5py.File(path, "w") as out:
        for k in range(6):
            episode = out.create_group(f"episode_{k}")
            episode["observations"] = g.normal(size=(len(actions) + 1, seen)).astype(np.float32)
            episode["actions"] = actions
            episode["rewards"] = np.ones(len(actions), np.float32)
            episode["terminations"] = np.arange(len(actions)) == len(actions) - 1
            episode["truncations"] = np.zeros(len(actions), bool)
    return path


def test_dqn_learns_from_recorded_choices_and_refuses_those_the_environment_has_not(tmp_path: Path) -> None:
    settings: Settings = QUIET | {"loop.total_steps": 50, "train_batches": 50, "policy.hidden": (8,)}

    def run(name: str, actions: list[int]) -> Path:
        data = write_actions(tmp_path / f"{name}.hdf5", np.array(actions), seen=4)
        more = settings | {"data": str(data)}
        return ludus.train("gym:CartPole-v1", tmp_path / name, (), Console("quiet"), algo="dqn", overrides=more)

    assert rows_of(run("good", [0, 1, 1, 0]))[-1]["step"] == 50  # batches
    with pytest.raises(ConfigError, match=r"The recorded actions \(3 choices\) are not the environment's"):
        run("bad", [0, 1, 2])


def reward_only(file: Path, folder: Path, output: io.StringIO | None = None, **settings: Any) -> Path:
    overrides: Settings = {
        "data": str(file),
        "data.keys": ("state",),
        "reward.hidden": (64, 64),
        "reward.learning_rate": 1e-3,
        "rrd_batch_size": 128,
        "loop.epochs": 2,
        "loop.cycles": 2,
        "loop.iterations": 4,
        "train_batches": 100,
        "log.report": False,
    }
    overrides |= {name.replace("__", "."): value for name, value in settings.items()}
    console = Console("quiet") if output is None else Console("plain", output)
    return ludus.train("rrd-libero", folder, console=console, overrides=overrides)


def test_a_reward_alone_is_learned_from_recorded_episodes(tmp_path: Path, file: Path) -> None:
    run = reward_only(file, tmp_path / "run")
    *every, last = rows_of(run)
    assert last.keys() == {"step", "time/time_elapsed"}
    rows, measures = every[::2], every[1::2]  # one a cycle, and after it one with its measures
    assert len(rows) == len(measures) == 4
    for row in measures:
        assert {"reward/AUC", "reward/R2", "reward/correlation", "TimeCost(sec)/test"} <= row.keys()
        assert row["reward/AUC"] > 0.7  # 0.5 is chance
        assert row["reward/R2"] > 0.1  # 0: no better than the mean return
    losses = np.fromfile(run / "R_loss.f32", "float32")
    assert len(losses) == 1600
    assert losses[-400:].mean() < losses[:100].mean() / 2
    assert rows[-1]["R_loss"] == pytest.approx(float(losses[-400:].mean()), rel=1e-4)
    assert (run / "final").exists()
    with pytest.raises(CheckpointError, match="holds a reward and no policy"):
        ludus.load(run)


def test_successes_alone_are_warned_about_before_and_after(tmp_path: Path, file: Path) -> None:
    output = io.StringIO()
    run = reward_only(file, tmp_path / "run", output, data__filter="success", loop__epochs=1, train_batches=5)
    assert "nearly the same return (1)" in output.getvalue()
    assert "reward/AUC" not in rows_of(run)[-1]


def test_a_run_without_anything_to_measure_by_still_ends(tmp_path: Path, file: Path) -> None:
    run = reward_only(file, tmp_path / "run", data__held_out=0.0, loop__epochs=1, train_batches=5)
    assert (run / "final").exists()


def test_an_unknown_observation_of_the_data_is_named(tmp_path: Path, file: Path) -> None:
    with pytest.raises(DataError, match=r"nothing.*state"):
        reward_only(file, tmp_path / "run", data__keys=("nothing",))


# Settings that lie in tensors, and environments that begin anew ----------------------------------------
PENDULUM: Settings = QUIET | {
    "policy.hidden": (8, 8), "replay.steps": 20, "replay.train_batches": 2, "replay.warmup": 20,
    "replay.batch_size": 16, "loop.total_steps": 80, "eval.every": 40, "eval.episodes": 1,
}  # fmt: skip
PAID_LATE: Settings = {
    "reward.method": "rrd", "reward.rrd_batch_size": 8, "reward.rrd_sample_size": 4, "episodic_reward": True,
    "env.num_envs": 3, "replay.steps": 27,
}  # fmt: skip


@pytest.mark.parametrize(
    ("algo", "setting", "told"),
    [
        ("td3", {"td3.exploration": 0.7}, lambda job: job.policy.head.spread),
        (
            "sac",
            {"sac.alpha": 0.2, "sac.learn_alpha": False},
            lambda job: job.learner.agent.log_alpha.detach().exp(),
        ),
    ],
)
def test_a_setting_that_is_changed_on_resume_holds(
    algo: str, setting: Settings, told: Callable[[Any], Tensor], tmp_path: Path
) -> None:
    keep, folder = Keep(), tmp_path / "run"
    settings = PENDULUM | {"env.max_steps": 20}
    ludus.train("gym:Pendulum-v1", folder, [], Console("quiet"), algo=algo, overrides=settings)
    changes = setting | {"loop.total_steps": 160}
    ludus.resume(folder, [keep], console=Console("quiet"), overrides=changes)
    assert float(told(keep.job)) == pytest.approx(next(iter(setting.values())))


def test_a_temperature_that_was_fixed_may_be_learned_on_resume(tmp_path: Path) -> None:
    keep, folder = Keep(), tmp_path / "run"
    settings = PENDULUM | {"env.max_steps": 20, "sac.alpha": 0.2, "sac.learn_alpha": False}
    ludus.train("gym:Pendulum-v1", folder, [], Console("quiet"), algo="sac", overrides=settings)
    changes = {"sac.learn_alpha": True, "replay.learning_rate": 1e-9, "loop.total_steps": 160}
    ludus.resume(folder, [keep], console=Console("quiet"), overrides=changes)
    assert float(keep.job.learner.agent.log_alpha.detach().exp()) == pytest.approx(0.2)


def test_fewer_batches_in_an_iteration_on_resume_are_refused_in_a_sentence(tmp_path: Path) -> None:
    settings = PENDULUM | PAID_LATE | {"loop.total_steps": 540, "eval.every": 270, "replay.train_batches": 8}
    ludus.train(
        "vec:replay_envs:make_match", tmp_path / "run", [], Console("quiet"), algo="sac", overrides=settings
    )
    changes = {"replay.train_batches": 4, "loop.total_steps": 1080}
    with pytest.raises(ConfigError, match="cannot change on resume"):
        ludus.resume(tmp_path / "run", console=Console("quiet"), overrides=changes)


def test_environments_begin_anew_where_a_checkpoint_has_none(tmp_path: Path) -> None:
    """As after a rollback to a checkpoint that was saved after an error."""

    class GoBack(ludus.Callback):
        returns: list[tuple[float, float]]

        def on_iteration(self, run: Trainer) -> None:
            job: Any = run.job
            if run.counters.iteration == 3:
                job.load_state(job.state(False), 3)
                assert not any(bool(group.env._owed.any()) for group in job.collector.groups)
            elif run.counters.iteration == 8:
                store = job.store
                spans = [(int(store.start[i]), int(store.length[i])) for i in range(store.episodes)]
                truth = [float(store.hidden_reward[first : first + size].sum()) for first, size in spans]
                self.returns = list(zip(store.episode_return[: store.episodes].tolist(), truth, strict=True))

    settings, back = PENDULUM | PAID_LATE | {"loop.total_steps": 300, "eval.every": 300}, GoBack()
    ludus.train(
        "vec:replay_envs:make_match", tmp_path / "run", [back], Console("quiet"), algo="sac", overrides=settings
    )
    assert len(back.returns) > 10
    assert all(paid == pytest.approx(true, rel=1e-4) for paid, true in back.returns)
