"""Ranks that learn from replays: together they learn what one process would learn from all their transitions.

The exact test: one process draws batches of transitions and sub-sequences; two ranks draw the same from the same
store, and each takes its half. After 20 updates the weights differ by rounding alone. `LEFT_OUT` leaves out one of
the things that ranks have in common: then they must differ by much more.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.registry import make_job
from ludus.algorithms.replay import agents
from ludus.algorithms.replay.agents import make_agent
from ludus.algorithms.replay.config import ReplayTrainConfig
from ludus.algorithms.replay.job import make_learner, make_policy
from ludus.algorithms.replay.learner import ReplayLearner
from ludus.algorithms.replay.online import OffPolicyJob
from ludus.algorithms.reward import rrd
from ludus.algorithms.reward.job import RewardJob
from ludus.algorithms.reward.rrd import return_scale
from ludus.buffers.episodes import EpisodeStore
from ludus.policies import normalizer
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from rank_processes import on_ranks
from test_data import write_libero
from test_ranks import keep_to_itself

Settings = dict[str, Any]
Change = Callable[[pytest.MonkeyPatch, ReplayLearner], None]
CPU = torch.device("cpu")
UPDATES = 20
SMALL: Settings = {
    "torch_threads": 1,
    "policy.hidden": (16, 16),
    "policy.normalize_obs": True,
    "replay.batch_size": 16,
    "replay.train_batches": 10,
    "replay.train_target": 4,
    "replay.polyak": 0.9,
}
REWARD: Settings = {
    "reward.method": "rrd",
    "reward.hidden": (16,),
    "reward.rrd_batch_size": 16,
    "reward.rrd_sample_size": 4,
    "episodic_reward": True,
}
HEADS: Settings = REWARD | {"reward.progress": 0.5, "reward.success": 0.5}
PENDULUM, CART_POLE = "gym:Pendulum-v1", "gym:CartPole-v1"


def filled_store(seed: int, actions: int, discrete: bool, episodes: int = 8) -> EpisodeStore:
    """Episodes at random, of 5 to 12 steps; of a third it is not known whether they succeeded."""
    g = torch.Generator().manual_seed(seed)
    store = EpisodeStore({"obs": ((3,), torch.float32)}, ((actions,), torch.float32), 200, 0, 0, CPU)
    for i in range(episodes):
        steps = 5 + i % 8
        action = torch.randint(2, (steps, actions), generator=g).float() if discrete else None
        if action is None:
            action = torch.rand((steps, actions), generator=g) * 2 - 1
        obs = torch.randn((steps + 1, 3), generator=g) * 3
        reward = torch.randn(steps, generator=g) + i
        store.add({"obs": obs}, action, reward, terminated=i % 2 == 0, success=(None, 1.0, 0.0)[i % 3])
    return store


def settings_for(algo: str, changes: Settings) -> ReplayTrainConfig:
    config = find_preset(CART_POLE if algo == "dqn" else PENDULUM, algo).config
    offline = "data.path" in changes  # where the data says what is normalised
    small = {name: value for name, value in SMALL.items() if not offline or name != "policy.normalize_obs"}
    config = apply_overrides(config, small | changes)
    assert isinstance(config, ReplayTrainConfig)
    return config


def learn(
    algo: str, changes: Settings, change: Callable[[ReplayLearner], None] = lambda it: None
) -> ReplayLearner:
    """On this rank, with its share of every batch; alone with all of it."""
    config = settings_for(algo, changes)
    space = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gym.spaces.Discrete(2) if algo == "dqn" else gym.spaces.Box(-1, 1, (2,), np.float32)
    policy = make_policy(config, space, action_space, CPU)
    store = filled_store(0, 1 if algo == "dqn" else 2, algo == "dqn")
    learner = make_learner(config, make_agent(policy, config, 6), store)
    if learner.reward_learner is not None:
        learner.reward_learner.fit(*store.returns_and_lengths())
    change(learner)
    for _ in range(UPDATES // learner.train_batches):
        learner.update()
    return learner


def take_shares_of_the_same_batches(patch: pytest.MonkeyPatch) -> None:
    """Every rank draws what a process that is alone draws, and keeps its own part of each batch."""
    patch.setattr(ranks, "own_stream", lambda *path: path)
    draw = ReplayLearner._draw

    def draw_share(self: ReplayLearner) -> dict[str, Tensor]:
        whole, reward = self._batch_size, self.reward
        drawn = draw(self)
        sequences = reward.rrd_batch_size if reward.learned else 0
        shares = {name: value.chunk(ranks.size(), 1)[ranks.rank()] for name, value in drawn.items()}
        parts = drawn["rows"].split([sequences, whole] * 2, 1)  # before, then after
        shares["rows"] = torch.cat([part.chunk(ranks.size(), 1)[ranks.rank()] for part in parts], 1)
        now, later = drawn["noise"].split(whole, 1)
        shares["noise"] = torch.cat([part.chunk(ranks.size(), 1)[ranks.rank()] for part in (now, later)], 1)
        return shares

    batch, learn_scale = ReplayLearner._batch, ReplayLearner._learn_scale

    def with_a_share(work: Callable[..., None]) -> Callable[..., None]:
        def working(self: ReplayLearner, *arguments: Any) -> None:
            whole = self._batch_size
            self._batch_size = whole // ranks.size()
            work(self, *arguments)
            self._batch_size = whole

        return working

    patch.setattr(ReplayLearner, "_draw", draw_share)
    patch.setattr(ReplayLearner, "_batch", with_a_share(batch))
    patch.setattr(ReplayLearner, "_learn_scale", with_a_share(learn_scale))


def everything(learner: ReplayLearner) -> dict[str, Tensor]:
    """All that is learned, and what was measured."""
    reward = learner.reward_learner
    models = {"policy": learner.agent.policy, **({} if reward is None else {"reward": reward.model})}
    values = {f"{name}.{k}": v for name, model in models.items() for k, v in model.state_dict().items()}
    values |= {f"target.{name}": weights for name, weights in learner.agent.targets.items()}
    for i, optimizer in enumerate(learner.optimizers()):
        values |= {
            f"{i}.weights": optimizer.flat,
            f"{i}.mean": optimizer.exp_avg,
            f"{i}.var": optimizer.exp_avg_sq,
        }
    if reward is not None:
        values["reward losses"] = learner.reward_losses
    return {name: value.detach().clone().double() for name, value in values.items()} | {
        "measured": learner._totals.clone().double()
    }


def differences(
    algo: str, changes: Settings, patch: pytest.MonkeyPatch, change: Change = lambda patch, learner: None
) -> dict[str, float]:
    """The largest difference of each thing between one process and two ranks, to whom alone `change` happens."""

    def learned() -> dict[str, Tensor]:
        take_shares_of_the_same_batches(patch)
        return everything(learn(algo, changes, lambda learner: change(patch, learner)))

    of_ranks, alone = on_ranks(2, learned), everything(learn(algo, changes))
    return {name: max(float((own[name] - alone[name]).abs().max()) for own in of_ranks) for name in alone}


JOBS: dict[str, tuple[str, Settings]] = {
    "sac": ("sac", {}),
    "td3": ("td3", {}),
    "dqn": ("dqn", {}),
    "sac and rrd": ("sac", REWARD),
    "dqn and rrd-unbiased": ("dqn", REWARD | {"reward.method": "rrd-unbiased"}),
    "heads of the reward": ("sac", HEADS),
    "imitation": ("td3", {"replay.bc": 2.5, "data.path": "recorded"}),
}


@pytest.mark.parametrize("name", JOBS)
def test_two_ranks_learn_what_one_process_learns_from_all_their_transitions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = differences(*JOBS[name], monkeypatch)
    assert max(found.values()) <= 1e-5, found


def of_optimizer(number: int) -> Change:
    """The gradients of one of the optimisers are left as each rank has them."""

    def leave(patch: pytest.MonkeyPatch, learner: ReplayLearner) -> None:
        patch.setattr(learner.optimizers()[number], "average", lambda beside=None, weight=1.0: beside)

    return leave


def of_module(module: Any) -> Change:
    return lambda patch, learner: keep_to_itself(module)(patch)


LEFT_OUT: dict[str, tuple[str, Change]] = {
    "gradient of sac": ("sac", of_optimizer(0)),
    "gradient of td3's policy": ("td3", of_optimizer(0)),
    "gradient of td3's critics": ("td3", of_optimizer(1)),
    "gradient of dqn": ("dqn", of_optimizer(0)),
    "gradient of the reward": ("sac and rrd", of_optimizer(1)),
    "normalisers": ("sac and rrd", of_module(normalizer)),
    "number of known successes": ("heads of the reward", of_module(rrd)),
    "trust in the critic": ("imitation", of_module(agents)),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_ranks_that_keep_something_to_themselves_learn_otherwise(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, leave_out = LEFT_OUT[what]
    found = differences(*JOBS[name], monkeypatch, leave_out)
    assert max(value for key, value in found.items() if key.endswith(".weights")) > 1e-3


# Whole jobs -------------------------------------------------------------------------------------------
ONLINE: Settings = SMALL | REWARD | {
    "env.num_envs": 2,
    "env.kwargs": {"length": 10},
    "replay.steps": 10,
    "replay.warmup": 0,
    "replay.capacity": 500,
    "loop.total_steps": 1000,
}  # fmt: skip


def make_online(**changes: Any) -> OffPolicyJob:
    settings = ONLINE | {key.replace("__", "."): value for key, value in changes.items()}
    config = apply_overrides(find_preset("vec:replay_envs:make_match", "sac").config, settings)
    job = make_job(config, CPU)
    assert isinstance(job, OffPolicyJob)
    return job


def iterate(job: OffPolicyJob, updates: int) -> OffPolicyJob:
    number = 0
    while job.learner.updates < updates:
        job.iteration(number, 0.0, lambda share, batch: None)
        number += 1
    return job


def test_ranks_have_the_same_bits_after_200_updates_and_transitions_of_their_own() -> None:
    def learned() -> list[Any]:
        job = iterate(make_online(), 200)
        store = job.store
        stored = store.obs["obs"].clone(), store.total_episodes_added, store.steps + store.open_steps
        return [everything(job.learner), job.cycle_metrics(), *stored]

    first, second = on_ranks(2, learned)
    assert all(torch.equal(value, second[0][name]) for name, value in first[0].items())
    assert not torch.equal(first[2], second[2])
    assert first[1]["train/r_loss"] == second[1]["train/r_loss"] > 0
    for place, name in ((3, "Episodes"), (4, "Timesteps")):
        assert first[1][name] == first[place] + second[place]


def test_the_units_of_a_learned_reward_are_those_of_all_ranks_episodes() -> None:
    def fitted() -> list[Any]:
        job = iterate(make_online(), 1)
        assert job.learner.reward_learner is not None
        model = job.learner.reward_learner.model
        return [*job.store.returns_and_lengths(), float(model.return_scale), int(model.return_episodes)]

    found = on_ranks(2, fitted)
    returns, lengths = (torch.cat([part[i] for part in found]) for i in (0, 1))
    for part in found:
        assert part[2:] == [return_scale(returns, lengths)[0], len(returns)]


def test_ranks_begin_to_learn_when_all_have_finished_an_episode() -> None:
    """One has shorter episodes, and many of them, before the other has one."""

    def began() -> list[int]:
        job = make_online(env__kwargs={"length": (5, 40)[ranks.rank()]}, replay__longest=50)
        for number in range(10):
            job.iteration(number, 0.0, lambda share, batch: None)
            if job.learner.updates:
                return [number, job.store.total_episodes_added]
        return []

    first, second = on_ranks(2, began)
    assert first[0] == second[0] > 0
    assert second[1] > 0


def test_a_rank_that_joins_collects_before_it_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With environments on a GPU batches are drawn first, and its store is empty. No GPU is needed to see that."""
    overrides = {"env.num_envs": 2, "replay.capacity": 10_000, "replay.warmup": 100, "replay.steps": 64}
    overrides |= {"replay.train_batches": 2, "replay.batch_size": 8}
    config = apply_overrides(find_preset("forage", "dqn").config, overrides)
    old, new = (make_job(config, torch.device("cpu")) for _ in range(2))
    assert isinstance(old, OffPolicyJob)
    assert isinstance(new, OffPolicyJob)
    for number in range(4):
        old.iteration(number, 0.0, lambda share, batch: None)
    state = old.state(whole=True) | {"store": None, "collector": None}
    state["batches"]["generator"] = None
    new.load_state(state, 4)
    assert new.store.open_steps == 0
    monkeypatch.setattr(new, "_stream", object())
    monkeypatch.setattr(new, "_await_collected", lambda: None)
    monkeypatch.setattr(new, "_collect", new.collector.collect)
    updates = new.learner.updates
    for number in range(4, 6):
        new.iteration(number, 0.0, lambda share, batch: None)
    assert new.learner.updates == updates + 4
    assert new.store.steps + new.store.open_steps > 0


def test_returns_on_every_step_are_scaled_by_those_of_all_ranks() -> None:
    def scaled() -> list[float]:
        job = iterate(make_online(reward__method="ircr"), 1)
        known = job.store.returns_and_lengths()[0]
        return [float(known.min()), float(known.max()), *map(float, job.learner._range_of_returns())]

    first, second = on_ranks(2, scaled)
    assert first[2:] == second[2:] == [min(first[0], second[0]), max(first[1], second[1])]


# Recorded episodes ------------------------------------------------------------------------------------
def test_ranks_learn_one_reward_from_recorded_episodes_and_measure_it_once(tmp_path: Path) -> None:
    file = write_libero(tmp_path / "task_demo.hdf5", demos=6, failures=3)
    settings = {"data.path": str(file), "data.held_out": 0.25, "reward.hidden": (8,), "replay.train_batches": 5,
                "data.keys": ("joint_states",), "reward.rrd_batch_size": 8,
                "reward.rrd_sample_size": 4}  # fmt: skip
    config = apply_overrides(find_preset("rrd-libero").config, settings)

    def learned() -> list[Any]:
        job = make_job(config, CPU)
        assert isinstance(job, RewardJob)
        for number in range(2):
            job.iteration(number, 0.0, lambda share, batch: None)
        state = [value.clone() for value in job.model.state_dict().values()]
        return [state, job.evaluate(lambda: False), job.batches.drawn()["row"], job.batches.reward_losses]

    first, second = on_ranks(2, learned)
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    assert first[1] == second[1]
    assert not torch.equal(first[2], second[2])  # each draws for itself
    assert torch.equal(first[3], second[3])
