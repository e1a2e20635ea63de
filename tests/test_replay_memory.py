"""SAC, TD3 and DQN with a memory: segments, stored hidden states and gradients against slow versions; learning."""

from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ludus
import replay_envs
from ludus.algorithms.replay.agents import Agent, Batch, make_agent
from ludus.algorithms.replay.collector import ReplayCollector
from ludus.algorithms.replay.config import DQNTrainConfig, ReplayConfig, SACTrainConfig
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.algorithms.replay.memory import Segments
from ludus.algorithms.reward.config import RewardConfig
from ludus.buffers.episodes import EpisodeStore
from ludus.envs.vec import derive_seed
from ludus.errors import ConfigError
from ludus.export import export_onnx
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.policies.policy import Policy
from ludus.policies.recurrent import BurnIn, RecurrentEncoder
from ludus.runs import evaluate_run
from ludus.show.console import Console
from test_agents import Net, generator, learn, normal_sample
from test_images import BOTH, some_rows
from test_masks import CATCH, assert_resumes_exactly
from test_replay_images import VECTOR, agent_of, in_double  # noqa: F401 (a fixture)

Step = tuple[int, int]  # number of the episode, and of its step


# Segments ---------------------------------------------------------------------------------------------
STATE = 3


def filled(seed: int) -> tuple[EpisodeStore, list[list[Step]]]:
    """Two lanes whose every number tells its episode and step; and the stored episodes as lists, oldest first.

    The hidden state before step t of episode e is (e, t, 0); it is zero at the beginning.
    """
    random = np.random.default_rng(seed)
    store = EpisodeStore({"obs": ((2,), torch.float32)}, ((1,), torch.float32), 40, 2, 9, "cpu", state_size=STATE)
    begun, finished = 2, []
    lanes: list[list[Step]] = [[], []]
    numbers = [0, 1]
    store.begin_all(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    for _ in range(int(random.integers(5, 60))):
        lengths = [len(lane) for lane in lanes]
        state = torch.tensor([[e * (t > 0), t, 0] for e, t in zip(numbers, lengths, strict=True)])
        store.remember(state.float(), slice(0, 2))
        after = torch.tensor([[e, t + 1] for e, t in zip(numbers, lengths, strict=True)]).float()
        store.append(torch.tensor(lengths).float()[:, None], torch.tensor(lengths).float(), {"obs": after})
        for lane, (number, t) in enumerate(zip(numbers, lengths, strict=True)):
            lanes[lane].append((number, t))
            if t == 8 or random.random() < 0.3:
                store.finish(torch.tensor([lane]), torch.tensor([number % 2 == 0]))
                finished.append(lanes[lane])
                lanes[lane], numbers[lane], begun = [], begun, begun + 1
                fresh = torch.tensor([[numbers[0], 0], [numbers[1], 0]]).float()
                store.begin(torch.tensor([lane]), {"obs": fresh})
    return store, [*finished[len(finished) - store.episodes :], *lanes]


@pytest.mark.parametrize("seed", range(3))
def test_segments_are_consecutive_steps_and_every_step_is_drawn_equally_often(seed: int) -> None:
    store, episodes = filled(seed)
    stream = [step for episode in episodes for step in episode]
    ends = {episode[-1]: episode[-1][0] % 2 == 0 for episode in episodes[:-2]}  # and whether the task ended there
    place = {step: i for i, step in enumerate(stream)}
    config = ReplayConfig(batch_size=6, segment=3, burn_in=2, gamma=0.5)
    drawn = Segments(store, config).draw(300, generator(seed))
    obs, counts = store.obs["obs"].long(), Counter[Step]()
    steps = torch.cat([drawn.burn_in.row.view(300, 2, 2), drawn.learned.row.view(300, 3, 2)], 1)
    for batch in range(300):
        for m in range(2):
            segment = [tuple(obs[row].tolist()) for row in steps[batch, :, m]]
            begin = place[segment[0]]
            assert segment == [stream[(begin + i) % len(stream)] for i in range(5)]
            e, t = segment[0]
            assert drawn.first[batch, m] == steps[batch, 0, m]
            assert store.hidden_state is not None
            assert store.hidden_state[drawn.first[batch, m]].tolist() == [e * (t > 0), t, 0]
            assert drawn.keep[batch, :, m].tolist() == [float(t > 0) for _, t in segment]
            for i, (e, t) in enumerate(segment[2:]):
                where = batch, 2 * i + m
                assert obs[drawn.learned.next_row[where]].tolist() == [e, t + 1]
                assert float(store.action[drawn.learned.row[where]]) == float(drawn.learned.reward[where]) == t
                assert float(drawn.learned.discount[where]) == (0.0 if ends.get((e, t)) else 0.5)
            counts.update(segment[2:])
    expected = 1800 / len(stream)
    assert set(counts) == set(stream)
    assert all(abs(count - expected) < 6 * (3 * expected) ** 0.5 for count in counts.values())


def collected(kind: str, memory: Any, at_random: bool = False) -> tuple[Any, EpisodeStore, ReplayCollector]:
    """An agent, its replay of rows that end apart, and who filled it."""
    envs: Any = [replay_envs.make_line(2, 5, kind == "dqn"), replay_envs.make_echo(3, 7, kind == "dqn")]
    settings = PolicyConfig(hidden=(8,), normalize_obs=False, memory=memory, memory_size=6)
    policy = make_replay_policy(kind, envs[0].obs_space, envs[0].action_space, settings, 1)
    config = DQNTrainConfig() if kind == "dqn" else SACTrainConfig()
    action = (policy.head.action_size,), torch.float32
    store = EpisodeStore({"obs": ((2,), torch.float32)}, action, 60, 5, 7, "cpu", state_size=policy.state_size)
    collector = ReplayCollector(envs, policy, store, 0)
    for _ in range(3):
        collector.collect(9, at_random)
    return make_agent(policy, config, 2), store, collector


@pytest.mark.parametrize("at_random", [False, True])
@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru"])
def test_the_stored_hidden_states_are_those_of_a_loop_over_whole_episodes(memory: str, at_random: bool) -> None:
    agent, store, collector = collected("sac", memory, at_random)
    policy, lanes, seen = agent.policy, len(store.length) - 5, 0  # the last slots are of open episodes
    assert store.hidden_state is not None
    for slot in store.length.nonzero()[:, 0].tolist():
        state = policy.start(1)
        for row in range(int(store.start[slot]), int(store.start[slot] + store.length[slot])):
            torch.testing.assert_close(store.hidden_state[row], state[0])
            with torch.no_grad():
                _, state = policy.params_of(policy.prepare(store.obs["obs"][row][None]), state)
            seen += 1
        if slot >= lanes:  # it goes on from there
            group = collector.groups[slot - lanes >= 2]
            torch.testing.assert_close(group.state[slot - lanes - group.lanes.start], state[0])
    assert seen == store.steps + store.open_steps


# Gradients --------------------------------------------------------------------------------------------
class Recalls(nn.Module):
    """A network of the user's with a hidden state that is not its output."""

    state_size = 4

    def __init__(self, obs: Any) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(obs[0], 4), nn.Linear(4, 6)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = self.cell(x, state)
        return self.out(state).tanh(), state


def slow_step(encoder: RecurrentEncoder, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """By the formulas."""
    if hasattr(encoder, "network"):
        return encoder.network.module(x, state)
    memory: Any = encoder.memory
    x, size = encoder.layers(x), memory.size
    if type(memory).__name__ == "MinGRU":
        z, o, g = (x @ memory.weight.t() + memory.bias).split(size, 1)
        h = (1 - z.sigmoid()) * state + z.sigmoid() * g.tanh()
        return o.sigmoid() * h, h
    gates, from_h = x @ memory.weight_x.t() + memory.bias, state[:, :size] @ memory.weight_h.t()
    if type(memory).__name__ == "LSTM":
        i, f, o, g = (gates + from_h).split(size, 1)
        c = f.sigmoid() * state[:, size:] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return h, torch.cat([h, c], 1)
    r, z, _ = (gates + from_h).sigmoid().split(size, 1)
    n = (gates[:, 2 * size :] + r * from_h[:, 2 * size :]).tanh()
    h = (1 - z) * n + z * state
    return h, h


def slow_features(encoder: RecurrentEncoder, batch: Batch) -> tuple[Tensor, Tensor]:
    """Before and after the transitions: segment by segment, step by step, without gradient over the burn-in."""
    assert batch.burn_in is not None
    lead, n, m = batch.burn_in, len(batch.reward), len(batch.burn_in.state)
    before, after = (part.unflatten(0, (-1, m)) for part in (batch.x[:n], batch.x[n:]))
    rows = torch.cat([lead.x.unflatten(0, (-1, m)), before]) if len(lead.x) else before
    burn_in = len(rows) - len(before)
    made: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    for segment in range(m):
        state = lead.state[segment][None]
        for t in range(len(rows)):
            state = state if lead.keep[t, segment] else torch.zeros_like(state)
            feature, state = slow_step(encoder, rows[t, segment][None], state.detach() if t <= burn_in else state)
            if t >= burn_in:
                made[t - burn_in, segment] = (
                    feature,
                    slow_step(encoder, after[t - burn_in, segment][None], state)[0],
                )
    in_order = [made[t, segment] for t in range(len(before)) for segment in range(m)]
    return torch.cat([pair[0] for pair in in_order]), torch.cat([pair[1] for pair in in_order]).detach()


def segments_for(agent: Agent, seed: int, burn_in: int, m: int = 3, steps: int = 4) -> Batch:
    g, policy, n = generator(seed), agent.policy, m * steps
    torch.manual_seed(seed)
    rows = 2 * n + burn_in * m
    x = torch.randn((rows, 5)) if policy.obs_space is VECTOR else some_rows(policy.obs_space, rows)
    keep = (torch.rand((burn_in + steps, m)) > 0.25).to(torch.get_default_dtype())
    noise, reward = policy.head.noise((2 * n,), g).to(keep.dtype), torch.randn(n)
    lead = BurnIn(x[2 * n :], torch.randn((m, policy.state_size)).tanh(), keep)
    action = policy.head.random((n,), g).to(keep.dtype)
    return Batch(x[: 2 * n], action, reward, torch.full((n,), 0.9), noise, burn_in=lead)


def warmed(kind: str, space: Any, settings: dict[str, Any], burn_in: int) -> tuple[Any, Batch]:
    """An agent whose targets are not its networks, and a batch in which episodes end."""
    agent = agent_of(kind, space, settings)
    for update in range(3):
        learn(agent, segments_for(agent, 10 + update, burn_in), update)
    batch = segments_for(agent, 3, burn_in)
    assert batch.burn_in is not None
    assert 0 < float(batch.burn_in.keep.mean()) < 1
    return agent, batch


MEMORIES: list[Any] = [
    (VECTOR, {"memory": "lstm", "memory_size": 6}, 2),
    (VECTOR, {"memory": "gru", "memory_size": 6}, 4),  # as long as the segment
    (VECTOR, {"memory": "mingru", "memory_size": 6}, 0),
    (VECTOR, {"network": "test_replay_memory:Recalls"}, 2),
    (BOTH, {"memory": "gru", "memory_size": 6}, 1),
]


def assert_written(agent: Agent, batch: Batch, parameters: list[nn.Parameter], wanted: tuple[Tensor, ...]) -> None:
    learn(agent, batch, 3)
    for parameter, gradient in zip(parameters, wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-11)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize("kind", ["sac", "td3"])
@pytest.mark.parametrize(("space", "settings", "burn_in"), MEMORIES)
def test_the_gradients_of_actor_critics_and_memory_are_autograds_over_a_loop(
    space: Any, settings: dict[str, Any], burn_in: int, kind: str
) -> None:
    agent, batch = warmed(kind, space, settings, burn_in)
    policy, n = agent.policy, len(batch.reward)
    critics, judges = Net(agent.critics, "tanh"), Net(agent.target_critics, "tanh")
    before, after = slow_features(agent.encoder, batch)
    _, judged = slow_features(agent.target_encoder, batch)

    def params(of: Policy, features: Tensor) -> Tensor:
        """The actor's loss does not reach the memory."""
        return of.head.linear(of.encoder(features.detach()))

    with torch.no_grad():
        if kind == "sac":
            alpha = agent.log_alpha.exp()
            action, log_prob = normal_sample(params(policy, after), batch.noise[n:])
            follows = judges(judged, action).amin(0) - alpha * log_prob
        else:
            smoothing = (0.4 * batch.noise[n:]).clamp(-0.5, 0.5)
            action = (params(agent.target_policy, judged).tanh() + smoothing).clamp(-1, 1)
            follows = judges(judged, action).amin(0)
        goal = batch.reward + batch.discount * follows
    if kind == "sac":
        chosen, log_prob = normal_sample(params(policy, before), batch.noise[:n])
        actor_loss = (alpha * log_prob - critics(before.detach(), chosen).amin(0)).mean()
    else:
        actor_loss = -critics(before.detach(), params(policy, before).tanh()).amin(0).mean()
    critic_loss = 0.5 * (critics(before, batch.action) - goal).square().mean(1).sum()
    memory, layers = list(agent.encoder.parameters()), [*policy.encoder.parameters(), *policy.head.parameters()]
    wanted = torch.autograd.grad(critic_loss, [*memory, *critics.weights])
    wanted += torch.autograd.grad(actor_loss, layers)
    assert_written(agent, batch, [*memory, *agent.critics.parameters(), *layers], wanted)


@pytest.mark.usefixtures("in_double")
@pytest.mark.parametrize(("space", "settings", "burn_in"), MEMORIES)
def test_dqns_gradients_are_autograds_over_a_loop(space: Any, settings: dict[str, Any], burn_in: int) -> None:
    agent, batch = warmed("dqn", space, settings, burn_in)
    before, after = slow_features(agent.policy.encoder, batch)
    _, judged = slow_features(agent.target_policy.encoder, batch)
    best = agent.policy.head.linear(after).argmax(1, keepdim=True)
    goal = batch.reward + batch.discount * agent.target_policy.head.linear(judged).gather(1, best)[:, 0].detach()
    q = agent.policy.head.linear(before).gather(1, batch.action.long())[:, 0]
    parameters = list(agent.policy.parameters())
    assert_written(agent, batch, parameters, torch.autograd.grad(nn.functional.huber_loss(q, goal), parameters))


@pytest.mark.parametrize("kind", ["sac", "dqn"])
def test_a_learner_shows_the_segments_it_drew(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the replay to the agent: what a batch holds is looked up again, row by row."""
    agent, store, _ = collected(kind, "gru")
    config = ReplayConfig(train_batches=3, batch_size=8, segment=4, burn_in=3)
    learner = ReplayLearner(agent, store, config, RewardConfig(), None, 0)
    shown: list[Batch] = []
    monkeypatch.setattr(agent, "learn", lambda batch, update, measured: shown.append(batch))
    learner.update()
    again = Segments(store, config).draw(3, generator(derive_seed(0, 2)))
    assert store.hidden_state is not None
    for i, batch in enumerate(shown):
        lead, obs = batch.burn_in, store.obs["obs"]
        assert lead is not None
        assert torch.equal(batch.x, torch.cat([obs[again.learned.row[i]], obs[again.learned.next_row[i]]]))
        assert torch.equal(batch.action, store.action[again.learned.row[i]])
        assert torch.equal(batch.reward, again.learned.reward[i])
        assert torch.equal(batch.discount, again.learned.discount[i])
        assert torch.equal(lead.x, obs[again.burn_in.row[i]])
        assert torch.equal(lead.state, store.hidden_state[again.first[i]])
        assert torch.equal(lead.keep, again.keep[i])


# Learning, resuming, acting ---------------------------------------------------------------------------
SMALL: dict[str, Any] = {
    "env.num_envs": 8,
    "policy.hidden": (32,),
    "policy.memory": "gru",
    "policy.memory_size": 16,
    "replay.segment": 4,
    "replay.burn_in": 4,
    "replay.batch_size": 64,
    "replay.steps": 64,
    "replay.train_batches": 16,
    "replay.warmup": 256,
    "replay.capacity": 20_000,
    "replay.longest": 20,
    "eval.episodes": 4,
    "eval.stochastic": False,
    "eval.final_episodes": 0,
    "log.report": False,
    "log.tensorboard": False,
}
ECHO: tuple[str, dict[str, Any]] = ("vec:replay_envs:make_echo", {"length": 4})
RECALL: tuple[str, dict[str, Any]] = ("vec:sanity_envs:make_recall", {"delay": 4})
# Steps, step size, what is reached with a memory, and at most without one.
TASKS: dict[str, tuple[tuple[str, dict[str, Any]], int, float, float, float]] = {
    "sac": (ECHO, 1_500, 1e-2, -0.2, -0.4),
    "td3": (ECHO, 1_500, 1e-2, -0.2, -0.4),
    "dqn": (RECALL, 2_500, 3e-3, 0.95, 0.65),
}


def reached(algo: str, folder: Path, settings: dict[str, Any]) -> float:
    (preset, kwargs), steps, rate, *_ = TASKS[algo]
    more = {"loop.total_steps": steps, "eval.every": steps, "replay.learning_rate": rate, "env.kwargs": kwargs}
    run = ludus.train(preset, folder, console=Console("quiet"), algo=algo, overrides=settings | more)
    return float(np.mean(evaluate_run(run, 200, deterministic=True).returns))


@pytest.mark.parametrize("algo", TASKS)
def test_what_was_seen_some_steps_ago_is_remembered(algo: str, tmp_path: Path) -> None:
    assert reached(algo, tmp_path / "run", SMALL) >= TASKS[algo][3]


@pytest.mark.parametrize("algo", TASKS)
def test_without_a_memory_it_is_chance(algo: str, tmp_path: Path) -> None:
    of_memory = ("policy.memory", "policy.memory_size", "replay.segment", "replay.burn_in")
    plain = {name: value for name, value in SMALL.items() if name not in of_memory}
    assert reached(algo, tmp_path / "run", plain) <= TASKS[algo][4]


QUICK = SMALL | {"policy.memory_size": 8, "env.num_envs": 4, "loop.total_steps": 400, "replay.warmup": 100,
                 "eval.every": 200, "replay.steps": 40, "replay.batch_size": 16}  # fmt: skip
OWN = {name: value for name, value in QUICK.items() if name not in ("policy.memory", "policy.memory_size")}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("vec:replay_envs:make_echo", QUICK | {"policy.memory": "lstm", "replay.capacity": 100}),
    "td3": ("gym:Pendulum-v1", OWN | {"policy.network": "test_replay_memory:Recalls", "env.max_steps": 20}),
    "dqn": (CATCH, QUICK | {"env.kwargs": {"see": "image", "masks": "info"}, "policy.image_features": 8}),
}


@pytest.mark.parametrize("algo", RUNS)
def test_a_resumed_run_with_a_memory_is_the_same(algo: str, tmp_path: Path) -> None:
    """Also where groups end apart, with images and masks, and with a network of the user's."""
    preset, settings = RUNS[algo]
    assert_resumes_exactly(tmp_path, preset, algo=algo, overrides=settings | {"groups": 2})


def test_a_trained_memory_acts_and_is_exported(tmp_path: Path) -> None:
    import onnxruntime

    preset, settings = "gym:Pendulum-v1", QUICK | {"env.max_steps": 20}
    run = ludus.train(preset, tmp_path / "run", algo="sac", console=Console("quiet"), overrides=settings)
    actor, env = ludus.load(run).actor(), gym.make("Pendulum-v1")
    assert export_onnx(run, tmp_path / "policy.onnx") < 1e-4
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    obs, _ = env.reset(seed=0)
    state = np.zeros((1, 8), np.float32)
    for _ in range(5):
        action, exported = actor.act(obs), session.run(None, {"obs": obs[None], "state": state})
        np.testing.assert_allclose(action, exported[0][0], rtol=1e-4, atol=1e-5)
        obs, state = env.step(action)[0], exported[1]
    assert np.abs(state).max() > 0


# Refusals ---------------------------------------------------------------------------------------------
GRU = {"policy.memory": "gru"}
REFUSED: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "n-step": ("gym:Pendulum-v1", "sac", GRU | {"replay.n_step": 3}, "take --replay.n-step 1"),
    "rrd": ("gym:Pendulum-v1", "sac", GRU | {"reward.method": "rrd"}, "method rrd: leave one of them out"),
    "her": ("gym:goal_envs:Reach", "sac", GRU, "give --replay.her 0"),
    "data": ("kuka-pick-place", "td3", GRU | {"data": "x.hdf5"}, "Recorded episodes .*have none"),
    "batch": ("gym:Pendulum-v1", "sac", GRU | {"batch_size": 100}, "take --replay.batch-size 96 or 112"),
    "small": ("gym:Pendulum-v1", "sac", GRU | {"batch_size": 8}, "take --replay.batch-size 16, or another"),
    "parts": ("kuka-pixels", "sac", GRU | {"device": "cpu"}, "leave --policy.critic-parts out"),
    "flash": ("gym:Pendulum-v1", "flash-sac", {"replay.burn_in": 4}, "FlashSAC has no memory.*--algo sac"),
    "no memory": ("gym:Pendulum-v1", "sac", {"replay.burn_in": 4}, "add --policy.memory gru, or leave it out"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_memory_does_not_go_with_is_a_sentence_and_leaves_nothing_behind(case: str, tmp_path: Path) -> None:
    preset, algo, settings, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        ludus.train(preset, tmp_path / "run", console=Console("quiet"), algo=algo, overrides=settings)
    assert not (tmp_path / "run").exists()
