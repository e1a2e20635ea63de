"""SAC, TD3 and DQN from images, Dict observations and networks of the user's: gradients, shifts, exact resume."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation
from torch import Tensor, nn

import catch_env
import dot_env
import ludus
from ludus.algorithms.replay.agents import DQN, SAC, TD3, Agent, Batch, make_agent
from ludus.algorithms.replay.collector import ReplayCollector
from ludus.algorithms.replay.config import (
    DQNTrainConfig,
    ReplayConfig,
    ReplayTrainConfig,
    SACConfig,
    SACTrainConfig,
    TD3Config,
    TD3TrainConfig,
)
from ludus.algorithms.replay.job import obs_field
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.algorithms.reward.config import RewardConfig
from ludus.buffers.episodes import EpisodeStore
from ludus.data import DataConfig, read_episodes
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.row_space import RowSpace
from ludus.envs.vec import VecEnv
from ludus.errors import CheckpointError, ConfigError, TrustError
from ludus.export import export_onnx
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy, policy_from
from ludus.policies.replay_policy import ReplayPolicy
from ludus.policies.vision import draw_shifts, shift_observations, usual_shift
from ludus.presets import find_preset
from ludus.rewards import load as load_reward
from test_agents import Net, generator, learn, normal_sample
from test_images import BOTH, IMAGE, some_rows
from test_masks import CATCH, assert_resumes_exactly

DOT = "gym:dot_env:ludus-test/Dot-v0"
VECTOR = spaces.Box(-1.0, 1.0, (5,), np.float32)
ACTIONS = spaces.Box(-1, 1, (3,), np.float32)
PARTS = {"actor_parts": ("image",), "critic_parts": ("state",)}
SEEN = {"actor_parts": ("state",), "critic_parts": ("image", "state")}


class Mine(nn.Module):
    """Features of whatever is observed."""

    def __init__(self, obs: Any, width: int = 6) -> None:
        super().__init__()
        self.see = nn.LazyLinear(width)

    def forward(self, x: Any) -> Tensor:
        parts = x.values() if isinstance(x, dict) else [x]
        return torch.tanh(self.see(torch.cat([part.flatten(1) for part in parts], 1)))


class Pair(Mine):
    def forward(self, x: Any) -> Any:
        return super().forward(x), super().forward(x)


# Gradients ----------------------------------------------------------------------------------------------
@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Everything is made in float64, in which the float32 numbers of a row are read."""
    numbers = RowSpace.numbers_of
    monkeypatch.setattr(RowSpace, "numbers_of", lambda self, rows: numbers(self, rows).double())
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


CASES: list[Any] = [
    (IMAGE, {}),
    (IMAGE, {"hidden": ()}),
    (spaces.Box(0, 255, (4, 36, 40), np.uint8), {"cnn": "residual"}),
    (BOTH, {}),
    (BOTH, {"actor_parts": ("image",)}),
    (BOTH, PARTS),
    (BOTH, SEEN),
    (BOTH, {"network": "test_replay_images:Mine"}),
    (VECTOR, {"network": "test_replay_images:Mine", "network_kwargs": {"width": 7}}),
]


def agent_of(kind: str, space: Any, settings: dict[str, Any]) -> Any:
    small: dict[str, Any] = {"hidden": (8,), "activation": "tanh", "image_features": 16, "normalize_obs": False}
    actions = spaces.Discrete(3) if kind == "dqn" else ACTIONS
    policy = make_replay_policy(kind, space, actions, PolicyConfig(**small | settings), 1)
    paced = ReplayConfig(learning_rate=1e-3, polyak=0.9, train_target=2)
    configs: dict[str, ReplayTrainConfig] = {
        "sac": SACTrainConfig(replay=paced, sac=SACConfig(alpha=0.3)),
        "td3": TD3TrainConfig(replay=paced, td3=TD3Config(target_noise=0.4)),
        "dqn": DQNTrainConfig(replay=paced),
    }
    return make_agent(policy, configs[kind], 2)


def batch_for(agent: Agent, seed: int, n: int = 6) -> Batch:
    g, head = generator(seed), agent.policy.head
    torch.manual_seed(seed)
    space = agent.policy.obs_space
    rows = torch.randn((2 * n, 5)) if space is VECTOR else some_rows(space, 2 * n)
    noise, reward = head.noise((2 * n,), g).to(torch.get_default_dtype()), torch.randn(n)
    return Batch(rows, head.random((n,), g).to(noise.dtype), reward, torch.full((n,), 0.9), noise)


def warmed(kind: str, space: Any, settings: dict[str, Any]) -> tuple[Any, Batch]:
    """An agent whose targets are not its networks, and a batch."""
    agent = agent_of(kind, space, settings)
    for update in range(3):
        learn(agent, batch_for(agent, 10 + update), update)
    return agent, batch_for(agent, 3)


class Slow:
    """Encoder, actor and critics by autograd, without any of what the agents do to save time."""

    def __init__(self, policy: ReplayPolicy, encoder: nn.Module, critics: nn.Module) -> None:
        self.policy, self.encoder, self.critics = policy, encoder, Net(critics, "tanh")

    def params(self, rows: Tensor) -> Tensor:
        if self.policy.shared_encoder is None:
            return self.policy.head.linear(self.policy.encoder(rows))
        features = self.encoder(rows).detach()  # the actor's loss does not reach the encoder
        return self.policy.head.linear(self.policy.encoder(features))

    def values(self, rows: Tensor, action: Tensor) -> Tensor:
        return self.critics(self.encoder(rows), action)


def assert_written(agent: Any, batch: Batch, now: Slow, actor_loss: Tensor, critic_loss: Tensor) -> None:
    """The gradients of the agent's next step are those of these losses."""
    encoder = list(now.encoder.parameters())
    layers = [*agent.policy.encoder.parameters(), *agent.policy.head.parameters()]
    wanted = torch.autograd.grad(critic_loss, [*encoder, *now.critics.weights])
    wanted += torch.autograd.grad(actor_loss, layers)
    learn(agent, batch, 3)
    for parameter, gradient in zip([*encoder, *agent.critics.parameters(), *layers], wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-11)


def critic_loss_of(values: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (values - target).square().mean(1).sum()


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize(("space", "settings"), CASES)
def test_sacs_gradients_are_autograds_in_float64(space: Any, settings: dict[str, Any]) -> None:
    agent, batch = warmed("sac", space, settings)
    assert isinstance(agent, SAC)
    now = Slow(agent.policy, agent.encoder, agent.critics)
    target = Slow(agent.policy, agent.target_encoder, agent.target_critics)
    n, alpha = len(batch.reward), agent.log_alpha.detach().exp()
    before, after = batch.x[:n], batch.x[n:]
    with torch.no_grad():
        action, log_prob = normal_sample(now.params(after), batch.noise[n:])
        follows = target.values(after, action).amin(0) - alpha * log_prob
        goal = batch.reward + batch.discount * follows
    chosen, log_prob = normal_sample(now.params(before), batch.noise[:n])
    actor_loss = (alpha * log_prob - now.values(before, chosen).amin(0)).mean()
    assert_written(agent, batch, now, actor_loss, critic_loss_of(now.values(before, batch.action), goal))


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize(("space", "settings"), CASES)
def test_td3s_gradients_are_autograds_in_float64(space: Any, settings: dict[str, Any]) -> None:
    agent, batch = warmed("td3", space, settings)
    assert isinstance(agent, TD3)
    now = Slow(agent.policy, agent.encoder, agent.critics)
    target = Slow(agent.target_policy, agent.target_encoder, agent.target_critics)
    n = len(batch.reward)
    before, after = batch.x[:n], batch.x[n:]
    with torch.no_grad():
        smoothing = (0.4 * batch.noise[n:]).clamp(-0.5, 0.5)
        action = (target.params(after).tanh() + smoothing).clamp(-1, 1)
        goal = batch.reward + batch.discount * target.values(after, action).amin(0)
    actor_loss = -now.values(before, now.params(before).tanh()).amin(0).mean()
    assert_written(agent, batch, now, actor_loss, critic_loss_of(now.values(before, batch.action), goal))


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize(("space", "settings"), [case for case in CASES if "critic_parts" not in case[1]])
def test_dqns_gradients_are_autograds_in_float64(space: Any, settings: dict[str, Any]) -> None:
    agent, batch = warmed("dqn", space, settings)
    assert isinstance(agent, DQN)
    n = len(batch.reward)
    before, after = batch.x[:n], batch.x[n:]
    policy, judge = (
        (lambda rows, p=p: p.head.linear(p.encoder(rows))) for p in (agent.policy, agent.target_policy)
    )
    best = policy(after).argmax(1, keepdim=True)
    goal = batch.reward + batch.discount * judge(after).gather(1, best)[:, 0].detach()
    q = policy(before).gather(1, batch.action.long())[:, 0]
    parameters = list(agent.policy.parameters())
    wanted = torch.autograd.grad(nn.functional.huber_loss(q, goal), parameters)
    learn(agent, batch, 3)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_the_target_encoder_follows_as_the_target_critics_do(kind: str) -> None:
    agent = agent_of(kind, BOTH, {})
    for update in range(4):
        old = [p.clone() for p in agent.target_encoder.parameters()]
        learn(agent, batch_for(agent, update), update)
        for was, target, source in zip(
            old, agent.target_encoder.parameters(), agent.encoder.parameters(), strict=True
        ):
            moved = 0.9 * was + 0.1 * source if update % 2 else was
            torch.testing.assert_close(target, moved, rtol=1e-5, atol=1e-7)
    assert agent.encoder is agent.policy.shared_encoder
    if kind == "td3":
        assert agent.target_encoder is agent.target_policy.shared_encoder


def test_a_critic_that_sees_more_leaves_the_actor_what_it_sees() -> None:
    policy = agent_of("sac", BOTH, PARTS).policy
    rows = some_rows(BOTH, 4)
    other = rows.clone()
    BOTH.numbers_of(other).add_(1.0)
    (params, _), (same, _) = (policy.params_of(policy.prepare(r), policy.start(0)) for r in (rows, other))
    assert torch.equal(params, same)
    assert [part.name for part in policy.seen_parts()] == ["image"]


# Shifts -------------------------------------------------------------------------------------------------
SHAPES = [(17, 23, 3), (2, 17, 23), (17, 23, 1), (4, 17, 23, 3), (2, 3, 17, 23)]


def padded_and_cropped(image: np.ndarray, down: int, right: int, pixels: int) -> np.ndarray:
    """[17 × 23] among the sides of an image."""
    row = image.shape.index(17)
    around = [(pixels, pixels) if row <= side <= row + 1 else (0, 0) for side in range(image.ndim)]
    padded = np.pad(image, around, mode="edge")
    cut: list[slice] = [slice(None)] * image.ndim
    cut[row : row + 2] = [slice(pixels - down, pixels - down + 17), slice(pixels - right, pixels - right + 23)]
    return padded[tuple(cut)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("beside", [False, True])
def test_observations_are_padded_and_cropped(shape: tuple[int, ...], beside: bool) -> None:
    image, pixels, n = spaces.Box(0, 255, shape, np.uint8), 4, 20
    second = spaces.Box(0, 255, (17, 23, 3), np.uint8)
    parts = spaces.Dict({"a": image, "b": second, "state": VECTOR})
    space: Any = RowSpace(parts) if beside else image
    rows = some_rows(space, n)
    before, shifts = rows.clone(), draw_shifts(n, pixels, generator(1))
    moved = shift_observations(space, rows, shifts, pixels)
    views = (space.split(rows) if beside else {"a": rows} for rows in (before, moved))
    was, now = views
    assert set(shifts.flatten().tolist()) == set(range(-pixels, pixels + 1))
    for name in was:
        for i, (down, right) in enumerate(shifts.tolist()):
            if name == "state":
                assert torch.equal(now[name][i], was[name][i])
            else:
                crop = padded_and_cropped(was[name][i].numpy(), down, right, pixels)
                np.testing.assert_array_equal(now[name][i].numpy(), crop)


def test_the_usual_shift_is_four_of_84_pixels() -> None:
    sizes = {84: 4, 64: 3, 40: 2, 12: 1, 8: 0}
    for side, pixels in sizes.items():
        assert usual_shift(spaces.Box(0, 255, (side, side + 5, 3), np.uint8)) == pixels
    assert usual_shift(VECTOR) == 0


def test_observations_before_and_after_are_moved_apart_from_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each batch differently: what an agent learns from, caught on its way."""
    learner, seen = small_learner(shift=3), []
    monkeypatch.setattr(learner.agent, "learn", lambda batch, update, measured: seen.append(batch.x.clone()))
    learner.update()
    shifts = learner.drawn()["shifts"]
    assert shifts.shape == (learner.train_batches, 2 * learner.config.batch_size, 2)
    n = learner.config.batch_size
    assert not torch.equal(shifts[:, :n], shifts[:, n:])
    assert not torch.equal(shifts[0], shifts[1])
    rows = learner.drawn()["rows"]
    for i, x in enumerate(seen):
        still = learner.store.obs["obs"].index_select(0, rows[i])
        expected = shift_observations(learner.agent.policy.obs_space, still, shifts[i], 3)
        assert torch.equal(x, expected)


def small_learner(shift: int, space: Any = IMAGE) -> ReplayLearner:
    agent = agent_of("sac", space, {})
    store = EpisodeStore({"obs": obs_field(space)}, ((3,), torch.float32), 100, 0, 0, "cpu")
    torch.manual_seed(0)
    obs = torch.randint(0, 256, (31, *space.shape)).to(store.obs["obs"].dtype)
    store.add({"obs": obs}, torch.rand(30, 3), torch.rand(30), terminated=False)
    config = ReplayConfig(batch_size=8, train_batches=3, shift=shift)
    return ReplayLearner(agent, store, config, RewardConfig(), None, 0)


def test_without_images_nothing_is_shifted() -> None:
    with pytest.raises(ConfigError, match=r"--replay.shift moves images, and none are observed"):
        small_learner(4, VECTOR)
    for learner in (small_learner(-1, VECTOR), small_learner(0), small_learner(-1)):
        learner.update()
        assert ("shifts" in learner.drawn()) == (learner._shift > 0)
    assert learner._shift == 1


# Whole runs ---------------------------------------------------------------------------------------------
QUICK: dict[str, Any] = {
    "policy.hidden": (8,), "policy.image_features": 8, "loop.total_steps": 192, "eval.every": 96,
    "eval.episodes": 2, "replay.warmup": 32, "replay.batch_size": 8, "replay.steps": 16, "replay.train_batches": 8,
    "replay.capacity": 1_100, "env.num_envs": 2, "log.report": False,
}  # fmt: skip
DOT_PARTS = {"policy.actor_parts": ("image", "left"), "policy.critic_parts": ("places", "left")}


@pytest.mark.parametrize(
    ("algo", "see", "settings"),
    [
        ("sac", "image", {}),
        ("sac", "critic", DOT_PARTS),
        ("td3", "both", {"policy.normalize_obs": True}),
        ("td3", "critic", DOT_PARTS | {"policy.critic_parts": ("image", "places")}),
        ("dqn", "image", {"replay.shift": 2}),
    ],
)
def test_a_resumed_run_from_images_is_the_same(
    algo: str, see: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    env = CATCH if algo == "dqn" else DOT
    small = QUICK | {"env.kwargs": {"see": see}} | settings
    assert_resumes_exactly(tmp_path, env, algo=algo, overrides=small)


@pytest.mark.parametrize("algo", ["sac", "td3", "dqn"])
def test_a_network_of_the_users_trains_acts_and_is_exported(algo: str, tmp_path: Path) -> None:
    small = {name: value for name, value in QUICK.items() if algo != "dqn" or name != "policy.hidden"}
    small.pop("policy.image_features")
    kwargs: dict[str, Any] = {"see": "both"} | ({} if algo == "dqn" else {"size": 16})
    made = CATCH if algo == "dqn" else DOT
    run = ludus.train(
        made, tmp_path / "run", algo=algo, network=Mine, network_kwargs={"width": 5},
        overrides=small | {"env.kwargs": kwargs, "loop.total_steps": 96},
    )  # fmt: skip
    policy = ludus.load(run, network=Mine)
    inner = gym.make(made.removeprefix("gym:"), **kwargs)
    obs, _ = inner.reset(seed=0)
    assert inner.action_space.contains(policy.act(obs))
    assert export_onnx(run, tmp_path / "policy.onnx", trust=True) < 1e-4


def test_images_are_stored_once_as_bytes() -> None:
    shape, dtype = obs_field(BOTH)
    assert dtype == torch.uint8
    assert math.prod(shape) < 12 * 13 * 3 + 4 * 4 + 32


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_policy_from_images_acts_on_raw_observations_and_is_exported(algo: str, tmp_path: Path) -> None:
    run = ludus.train(
        DOT, tmp_path / "run", algo=algo, overrides=QUICK | {"env.kwargs": {"see": "critic"}} | DOT_PARTS
    )
    policy, env = ludus.load(run), gym.make(DOT.removeprefix("gym:"), see="critic")
    obs, _ = env.reset(seed=0)
    seen = {name: obs[name] for name in ("image", "left")}
    action = policy.act(seen)
    assert env.action_space.contains(action)
    np.testing.assert_array_equal(action, policy.act(obs))
    assert export_onnx(run, tmp_path / "policy.onnx") < 1e-4


def test_a_network_that_does_not_fit_is_refused_with_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"Pair gives the actor and the critic features of their own"):
        agent_of("sac", VECTOR, {"network": "test_replay_images:Pair"})


def test_a_strangers_network_is_not_imported() -> None:
    policy = agent_of("sac", VECTOR, {"network": "test_replay_images:Mine"}).policy
    with pytest.raises(TrustError, match=r"would import its network 'test_replay_images:Mine'"):
        policy_from(policy.description())
    same = policy_from(policy.description(), lambda name, kwargs: Mine)
    same.load_state_dict(policy.state_dict())
    obs = np.ones((3, 5), np.float32)
    np.testing.assert_array_equal(same.act(obs), policy.act(obs))


def test_a_job_keeps_what_its_actor_may_see_with_another_algorithm() -> None:
    """In the KUKA job from pixels the state is the critic's alone."""
    job = find_preset("kuka-pixels").config.policy
    for algo, critic in (("sac", job.critic_parts), ("td3", job.critic_parts), ("dqn", ())):
        policy = find_preset("kuka-pixels", algo).config.policy
        assert (policy.actor_parts, policy.critic_parts) == (job.actor_parts, critic)
        assert policy.hidden == (256, 256)


def test_dqn_has_no_critic_that_could_see_more() -> None:
    with pytest.raises(ConfigError, match="DQN has no critic beside its policy"):
        agent_of("dqn", BOTH, PARTS)


def test_layers_follow_a_network_of_sac_and_are_replaced_in_dqn(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--policy.hidden is a setting of the built-in layers"):
        ludus.train("gym:CartPole-v1", tmp_path / "run", algo="dqn", network=Mine, policy={"hidden": (8,)})
    with pytest.raises(ConfigError, match=r"--policy.image-features is a setting of the built-in layers"):
        ludus.train(DOT, tmp_path / "run", algo="sac", network=Mine, policy={"image_features": 8})


# Stacks of frames ---------------------------------------------------------------------------------------
def stacked_catch(stack: int = 4, padding: str = "reset") -> gym.Env:
    return FrameStackObservation(catch_env.Catch(), stack, padding_type=padding)


gym.register("ludus-test/StackedCatch-v0", entry_point=stacked_catch, max_episode_steps=20)  # type: ignore[arg-type]
STACKED = "gym:test_replay_images:ludus-test/StackedCatch-v0"


def stacked_env(workers: int = 0, **kwargs: Any) -> VecEnv:
    return make_gym(GymConfig(STACKED.removeprefix("gym:"), 3, workers, kwargs=kwargs), 3)


@pytest.mark.parametrize(("kwargs", "frames"), [({}, 4), ({"stack": 2}, 2), ({"padding": "zero"}, 1)])
def test_stacks_that_repeat_the_first_frame_are_known(kwargs: dict[str, Any], frames: int) -> None:
    for workers in (0, 1):
        env = stacked_env(workers, **kwargs)
        assert env.stacked_frames == frames
        env.close()
    assert make_gym(GymConfig(CATCH.removeprefix("gym:"), 1), 1).stacked_frames == 1


def test_stacks_built_when_drawn_are_those_that_were_observed() -> None:
    """Through ends of episodes, the end of the ring and episodes that are open, beside a store of whole stacks."""
    env = stacked_env()
    field, action = {"obs": obs_field(env.obs_space)}, ((1,), torch.float32)
    stores = [EpisodeStore(field, action, 50, 3, 20, "cpu", stacked_frames=frames) for frames in (1, 4)]
    assert stores[0].obs["obs"].numel() == 4 * stores[1].obs["obs"].numel()
    policy = make_replay_policy(
        "dqn", env.obs_space, env.action_space, PolicyConfig(hidden=(), image_features=8), 0
    )
    collectors = [ReplayCollector([stacked_env()], policy, store, seed=1) for store in stores]
    first = 0
    for steps in (1, 2, 4, 6, 30):
        for collector in collectors:
            collector.collect(steps, at_random=True)
        draws = [store.draw_transitions(1, 200, generator(steps), 2) for store in stores]
        assert all(torch.equal(a, b) for a, b in zip(*draws, strict=True))
        for place in ("row", "next_row"):
            whole, built = (
                store.observations(getattr(draw, place)[0], store.start[draw.slot[0]])
                for store, draw in zip(stores, draws, strict=True)
            )
            assert torch.equal(whole, built)
        first += int((draws[0].row == stores[0].start[draws[0].slot]).sum())
    assert first > 0
    assert stores[0].total_episodes_added > stores[0].episodes, "nothing has left the ring"
    again = EpisodeStore(field, action, 50, 3, 20, "cpu", stacked_frames=4)
    again.load_state(stores[1].state())
    row, slot = draws[0].row[0], draws[0].slot[0]
    assert torch.equal(*(store.observations(row, store.start[slot]) for store in (again, stores[0])))
    with pytest.raises(CheckpointError, match=r"holds obs.obs of the shape \(4, 8, 8, 3\), this one \(8, 8, 3\)"):
        again.load_state(stores[0].state())


def test_what_is_learned_does_not_depend_on_how_stacks_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = QUICK | {"policy.hidden": (), "replay.shift": 1}
    runs = [ludus.train(STACKED, tmp_path / "once", algo="dqn", overrides=small)]
    monkeypatch.setattr("ludus.envs.gym.make._stacked_frames", lambda env: 1)
    runs.append(ludus.train(STACKED, tmp_path / "whole", algo="dqn", overrides=small))
    weights = [ludus.load(run).state_dict() for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


# Learning -----------------------------------------------------------------------------------------------
LEARN: dict[str, Any] = {
    "replay.warmup": 500, "replay.steps": 32, "replay.train_batches": 16, "replay.batch_size": 64,
    "replay.capacity": 10_000, "replay.learning_rate": 1e-3, "replay.gamma": 0.8, "policy.hidden": (64,),
    "policy.image_features": 64, "env.num_envs": 8, "eval.episodes": 50, "eval.every": 10_000,
    "log.report": False, "log.tensorboard": False,
}  # fmt: skip


@pytest.mark.parametrize("algo", ["sac", "td3"])
def test_a_dot_is_moved_to_its_target_by_pixels_alone(algo: str, tmp_path: Path) -> None:
    """At random the return is -3.3, without moving -3.2; straight to the target it is -0.4."""
    learn = LEARN | {"loop.total_steps": 3_000} | ({"sac.alpha": 0.02} if algo == "sac" else {})
    run = ludus.train(DOT, tmp_path / "run", algo=algo, overrides=learn)
    assert run.metrics["eval/mean_reward"].values[-1] > -2.0


def test_dqn_learns_the_catch_from_pixels(tmp_path: Path) -> None:
    """By chance a fifth of the balls is caught."""
    run = ludus.train(CATCH, tmp_path / "run", algo="dqn", overrides=LEARN | {"loop.total_steps": 8_000})
    assert run.metrics["eval/success_rate"].values[-1] >= 0.8


# Recorded episodes --------------------------------------------------------------------------------------
def recorded(path: Path, algo: str, see: str, names: dict[str, str], good: int = 12, bad: int = 0) -> list[Any]:
    """Good play in Minari's layout; `names` says what parts are called in the file. Returns all observations.

    After `good` episodes `bad` ones do the opposite.
    """
    env = gym.make((CATCH if algo == "dqn" else DOT).removeprefix("gym:"), see=see)
    everything: list[Any] = []
    with h5py.File(path, "w") as file:
        for number in range(good + bad):
            seen, actions, rewards, over = [env.reset(seed=number)[0]], [], [], False
            while not over:
                actions.append(good_action(env.unwrapped, algo) * (1 if number < good else -1))
                obs, reward, terminated, truncated, _ = env.step(actions[-1])
                seen.append(obs)
                rewards.append(float(reward))
                over = terminated or truncated
            group = file.create_group(f"episode_{number}")
            group["actions"], group["rewards"] = np.array(actions), np.array(rewards)
            ends = np.arange(len(rewards)) == len(rewards) - 1
            group["terminations"], group["truncations"] = ends & terminated, ends & truncated
            if see == "image":
                group["observations"] = np.stack(seen)
            else:
                for part in obs:
                    group[f"observations/{names.get(part, part)}"] = np.stack([o[part] for o in seen])
            everything += seen
    return everything


def good_action(env: Any, algo: str) -> Any:
    if algo == "dqn":
        return 6 + int(np.sign(env.ball - env.paddle))
    return np.clip((env.target - env.dot) / dot_env.STRIDE, -1, 1).astype(np.float32)


class Stored(ludus.Callback):
    """Looks into a replay that was filled from files."""

    def on_start(self, run: Any) -> None:
        store, self.policy = run.job.store, run.job.policy
        self.rows = store.obs["obs"][: store.steps + store.episodes].clone()


def offline(folder: Path, algo: str, watch: ludus.Callback | None = None, **settings: Any) -> Path:
    collecting = ("env.num_envs", "replay.steps", "replay.warmup", "replay.capacity")
    small = {name: value for name, value in QUICK.items() if name not in collecting}
    small |= {
        "data": str(folder.parent / "data.hdf5"),
        "loop.total_steps": 16,
        "eval.every": 16,
        "replay.batch_size": 16,
    }
    small |= {name.replace("__", "."): value for name, value in settings.items()}
    watching = [] if watch is None else [watch]
    return ludus.train(CATCH if algo == "dqn" else DOT, folder, callbacks=watching, algo=algo, overrides=small)


@pytest.mark.parametrize(
    ("algo", "see", "names", "settings"),
    [
        ("sac", "image", {}, {}),
        ("dqn", "both", {}, {}),
        ("td3", "both", {"image": "camera_rgb", "left": "clock"}, {}),
        ("td3", "critic", {}, {"policy__actor_parts": ("image",), "policy__critic_parts": ("places",)}),
    ],
)
def test_recorded_images_become_the_rows_that_the_environment_gives(
    algo: str, see: str, names: dict[str, str], settings: dict[str, Any], tmp_path: Path
) -> None:
    seen = recorded(tmp_path / "data.hdf5", algo, see, names)
    stored = Stored()
    offline(tmp_path / "run", algo, stored, env__kwargs={"see": see}, **settings)
    space = stored.policy.obs_space
    if not isinstance(space, RowSpace):
        assert torch.equal(stored.rows, torch.from_numpy(np.stack(seen)))
        return
    expected = torch.from_numpy(np.stack([space.to_row(obs) for obs in seen]))
    for part in space.parts:
        wanted = space.part_of(expected, part) * (part.name in stored.policy.learned_parts())
        torch.testing.assert_close(space.part_of(stored.rows, part), wanted, rtol=0, atol=0)
    assert stored.policy.learned_parts() == [p.name for p in space.parts if not settings or p.name != "left"]


@pytest.mark.parametrize(
    ("see", "settings", "judged"),
    [
        ("critic", {"policy__actor_parts": ("image",), "policy__critic_parts": ("places",)}, {"places"}),
        ("both", {}, {"clock", "camera_rgb"}),
    ],
)
def test_a_reward_learned_along_sees_what_the_critics_see_by_the_names_of_the_file(
    see: str, settings: dict[str, Any], judged: set[str], tmp_path: Path
) -> None:
    names = {} if see == "critic" else {"image": "camera_rgb", "left": "clock"}
    recorded(tmp_path / "data.hdf5", "td3", see, names)
    small: dict[str, Any] = {"loop__total_steps": 4, "reward__method": "rrd"}
    small |= {"rrd_batch_size": 8, "rrd_sample_size": 2}
    run = offline(tmp_path / "run", "td3", env__kwargs={"see": see}, replay__advantage=1.0, **small, **settings)
    assert set(load_reward(run).obs) == judged


def test_recorded_images_that_do_not_fit_are_told(tmp_path: Path) -> None:
    recorded(tmp_path / "data.hdf5", "sac", "image", {})
    with pytest.raises(ConfigError, match=r"images are obs \(16, 16, 3\), the recorded ones .* \(40, 40, 3\)"):
        offline(tmp_path / "run", "sac", env__kwargs={"size": 16})
    offline(tmp_path / "run", "sac", env__kwargs={"size": 20}, data__image_size=20)


def test_recorded_pixels_are_imitated(tmp_path: Path) -> None:
    """By the encoder that actor and critics share."""
    recorded(tmp_path / "data.hdf5", "td3", "image", {})
    wide: dict[str, Any] = {"policy__image_features": 64, "policy__hidden": (64,), "replay__batch_size": 64}
    wide |= {"replay__bc": 0.1, "replay__learning_rate": 1e-3, "eval__every": 600}
    runs = [offline(tmp_path / f"{n}", "td3", loop__total_steps=n, **wide) for n in (8, 600)]
    episodes = [(*e.obs.values(), e.action) for e in read_episodes(DataConfig(str(tmp_path / "data.hdf5")))]
    before, after = (
        np.mean([np.mean((policy.act(obs[:-1]) - action) ** 2) for obs, action in episodes])
        for policy in map(ludus.load, runs)
    )
    assert after < 0.5 * before, (after, before)
