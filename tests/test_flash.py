"""FlashSAC: the update against a slow version and against a reference, held noise, the scale of rewards."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

import ludus
from ludus.algorithms.flash.agent import FlashSAC, make_flash_agent
from ludus.algorithms.flash.config import FlashConfig, FlashTrainConfig
from ludus.algorithms.flash.exploration import CollectedReturns, HeldNoise
from ludus.algorithms.flash.job import FlashJob
from ludus.algorithms.flash.reward_factor import RewardFactor
from ludus.algorithms.replay.agents import Batch
from ludus.algorithms.replay.config import ReplayConfig, ReplayTrainConfig
from ludus.envs.row_space import RowSpace
from ludus.errors import CheckpointError, ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.policies.flash_policy import FlashPolicy
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.show.jsonl import read_metrics
from ludus.training.loop import Trainer
from slow_flash import SlowFlash, SlowNet
from stopped_runs import StopAfter

REFERENCE = Path(__file__).parents[2] / "shared" / "reference" / "flashsac_update.py"
needs_reference = pytest.mark.skipif(not REFERENCE.is_file(), reason="the reference of FlashSAC is not here")
OBS, ACTIONS = 5, 2


@pytest.fixture
def in_double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def agent_of(
    parts: bool = False, width: int = 16, critic_width: int = 32, device: str = "cpu", **settings: Any
) -> FlashSAC:
    """With `parts`, the actor does not see the last two numbers that the critics see."""
    space: gym.spaces.Box = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    if parts:
        sizes = {"known": 3, "secret": 2}
        space = RowSpace(gym.spaces.Dict({k: gym.spaces.Box(-9, 9, (n,), np.float32) for k, n in sizes.items()}))
    seen: dict[str, Any] = {"actor_parts": ("known",), "critic_parts": ("known", "secret")} if parts else {}
    networks = PolicyConfig(hidden=(width, width), normalize_obs=False, **seen)
    actions = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32)
    policy = make_replay_policy("flash-sac", space, actions, networks, 1).to(device)
    assert isinstance(policy, FlashPolicy)
    replay = {k: settings.pop(k) for k in ("polyak", "train_target", "bc", "advantage") if k in settings}
    flash = FlashConfig(critic_width=critic_width, **settings)
    return make_flash_agent(
        policy, FlashTrainConfig(replay=ReplayConfig(**{"polyak": 0.99, **replay}), flash=flash), 2
    )


def batch_of(seed: int, n: int = 8) -> Batch:
    """As three-step returns give it: ends, and sums that a time limit cut short."""
    g = torch.Generator().manual_seed(seed)
    return Batch(
        x=torch.randn((2 * n, OBS), generator=g) * 3 + 1,
        action=torch.rand((n, ACTIONS), generator=g) * 2 - 1,
        reward=torch.randn(n, generator=g) * 4,
        discount=torch.tensor([0.0, 0.99, 0.99**2, 0.99**3])[torch.randint(4, (n,), generator=g)],
        noise=torch.randn((2 * n, ACTIONS), generator=g),
    )


def learn(agent: FlashSAC, batch: Batch, update: int) -> Tensor:
    with torch.inference_mode():
        told = agent.learn(batch, update)
    assert told is not None
    return told.clone()


def weights_of(layers: Any, weight: Tensor, bias: Tensor, copy: int) -> list[Tensor]:
    """Everything that one network has learned, as a slow one holds it."""
    like = SlowNet(layers, copy, weight, bias)
    return [p.detach() for p in like.parameters()]


def statistics_of(layers: Any, copy: int) -> tuple[list[Tensor], list[Tensor]]:
    widths = [size // layers.copies for size in layers._batch_sizes]
    both = (layers.means.split(layers._batch_sizes), layers.variances.split(layers._batch_sizes))
    means, variances = ([v.view(layers.copies, -1)[copy] for v in values] for values in both)
    assert [len(mean) for mean in means] == widths
    return means, variances


def furthest(agent: FlashSAC, slow: SlowFlash) -> float:
    """The largest difference of anything that an update changes."""
    head = agent.head.linear
    ours: list[Any] = [(agent.layers, head.weight, head.bias, 0, slow.actor, True)]
    for i in range(2):
        for critics, theirs, counted in (
            (agent.critics, slow.critics, True),
            (agent.target_critics, slow.targets, False),
        ):
            ours.append((critics.layers, critics.weight[i], critics.bias[i], i, theirs[i], counted))
    far = [(agent.log_alpha - slow.log_alpha).abs()]
    for layers, weight, bias, copy, net, counted in ours:
        pairs = list(zip(weights_of(layers, weight, bias, copy), net.parameters(), strict=True))
        if counted:  # nobody reads the statistics of the targets
            means, variances = statistics_of(layers, copy)
            pairs += [*zip(means, net.means, strict=True), *zip(variances, net.variances, strict=True)]
        far += [(a - b).abs().max() for a, b in pairs]
    return float(torch.stack([value.detach() for value in far]).max())


# The update -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("parts", "settings"),
    [
        (False, {"bins": 11}),
        (
            True,
            {"bins": 5, "highest_value": 2.0, "policy_delay": 3, "train_target": 2, "polyak": 0.7, "alpha": 0.3},
        ),
        (False, {"bins": 5, "bc": 2.5}),
        (False, {"bins": 5, "bc": 0.5, "advantage": 1.0}),
        (False, {"bins": 5, "advantage": 3.0}),
    ],
)
def test_twelve_updates_are_those_of_the_slow_version_in_float64(
    in_double: None, parts: bool, settings: dict[str, Any]
) -> None:
    agent = agent_of(parts, width=8, critic_width=12, **settings)
    slow = SlowFlash(agent, slice(3) if parts else slice(None))
    moved = 0
    for update in range(12):
        batch, progress, factor = batch_of(update), update / 12, 0.3 + 0.1 * update
        agent.set_progress(progress)
        agent.reward_factor.fill_(factor)
        measures = learn(agent, batch, update)
        expected = slow.update(batch, update, progress, factor)
        for actual, wanted in zip(measures, expected, strict=True):
            moved += wanted is not None
            if wanted is not None:
                assert float(actual) == pytest.approx(float(wanted), abs=1e-9)
        assert furthest(agent, slow) < 1e-9
    assert moved == 12 * 3 + 3 * (4 if parts else 6)


def reference(precision: str) -> ModuleType:
    """The reference, whose float32 may be made another."""
    source, module = REFERENCE.read_text(), ModuleType("flashsac_update")
    if precision == "float64":
        source = source.replace(".float()", ".double()").replace("torch.float32", "torch.float64")
    exec(compile(source, str(REFERENCE), "exec"), module.__dict__)
    return module


def start_as(agent: FlashSAC, theirs: Any) -> None:
    head, critics = agent.head.linear, agent.critics
    for layers, weight, bias, net in (
        (agent.layers, head.weight, head.bias, theirs.actor),
        (critics.layers, critics.weight, critics.bias, theirs.critics),
    ):
        with torch.no_grad():
            for own, its in zip([*layers.weights, weight], net.weights, strict=True):
                own.copy_(its.view_as(own))
            bias.copy_(net.head_bias.view_as(bias))
            layers.norms.copy_(net.bank)
    agent.move_targets_there()


def differences(agent: FlashSAC, theirs: Any) -> Tensor:
    """Of every number that an update changes."""
    head, critics, targets = agent.head.linear, agent.critics, agent.target_critics
    far = [agent.log_alpha - theirs.log_alpha]
    for layers, weight, bias, net in (
        (agent.layers, head.weight, head.bias, theirs.actor),
        (critics.layers, critics.weight, critics.bias, theirs.critics),
        (targets.layers, targets.weight, targets.bias, theirs.targets),
    ):
        pairs = [*zip([*layers.weights, weight, bias], [*net.weights, net.head_bias], strict=True)]
        pairs += [(layers.norms, torch.cat([*_interleaved(net), net.scales[-1]]))]
        if net is not theirs.targets:
            pairs += [(layers.means, torch.cat(net.means)), (layers.variances, torch.cat(net.variances))]
        far += [own - its.view_as(own) for own, its in pairs]
    return torch.cat([value.detach().flatten() for value in far]).abs()


def _interleaved(net: Any) -> Iterator[Tensor]:
    for scale, shift in zip(net.scales, net.shifts, strict=False):
        yield from (scale, shift)


def after_twelve_updates(precision: str, seed: int) -> Tensor:
    """How far the agent is from the reference."""
    agent, n, g = agent_of(), 16, torch.Generator().manual_seed(seed)
    theirs = reference(precision).FlashSAC(OBS, ACTIONS, n, 200, torch.device("cpu"), widths=(16, 32))
    start_as(agent, theirs)
    agent.reward_factor.copy_(theirs.reward_scale)
    for update in range(12):
        batch = batch_of(100 * seed + update, n)
        end = (torch.rand(n, generator=g) < 0.1).to(batch.reward.dtype)
        batch = batch._replace(discount=0.99 * (1 - end))
        rows = torch.cat([batch.x[:n], batch.action, batch.reward[:, None], end[:, None], batch.x[n:]], 1)
        theirs.update(update, rows, batch.noise.view(2, n, ACTIONS).mT)
        told = learn(agent, batch, update)
        assert float(told[0]) == pytest.approx(float(theirs.measured[0]), rel=1e-5)
    return differences(agent, theirs)


@needs_reference
def test_twelve_updates_are_those_of_the_reference_in_float64(in_double: None) -> None:
    assert max(float(after_twelve_updates("float64", seed).max()) for seed in range(3)) < 1e-11


@needs_reference
def test_twelve_updates_are_within_2e_6_of_the_reference_in_float32() -> None:
    """But for some in ten thousand: Adam divides a first gradient that is nearly zero, all rounding, by itself."""
    far = torch.cat([after_twelve_updates("float32", seed) for seed in range(3)])
    assert float((far > 2e-6).float().mean()) < 5e-4
    assert float(far.max()) < 3e-4  # one step


def test_rows_of_weights_keep_length_one_and_norms_the_root_of_their_width() -> None:
    agent = agent_of()
    for update in range(3):
        learn(agent, batch_of(update), update)
    for weight in [
        *agent.layers.weights,
        *agent.critics.layers.weights,
        agent.critics.weight,
        agent.head.linear.weight,
    ]:
        torch.testing.assert_close(weight.norm(dim=-1), torch.ones(weight.shape[:-1]))
    net = SlowNet(agent.critics.layers, 1, agent.critics.weight[1], agent.critics.bias[1])
    for scale, shift in zip(net.scales, net.shifts, strict=True):
        assert (scale.square().sum() + shift.square().sum()).item() == pytest.approx(len(scale))
    assert net.rms.square().sum().item() == pytest.approx(len(net.rms))


def test_the_rates_fall_by_a_cosine_and_the_policys_counts_its_own_steps() -> None:
    agent = agent_of()
    for done, actor, critic in ((0.0, 3e-4, 3e-4), (0.5, 2.78e-4, 2.25e-4), (1.0, 2.25e-4, 1.5e-4)):
        agent.set_progress(done)
        assert float(agent.rate * agent._actor_rate_left) == pytest.approx(actor, rel=1e-3)
        assert float(agent.rate * agent._critic_rate_left) == pytest.approx(critic, rel=1e-3)


def test_the_policy_acts_by_the_statistics_that_learning_gathered() -> None:
    """A row's action does not depend on the rows beside it, and learning moves the statistics."""
    agent, x = agent_of(), batch_of(0).x
    before = agent.policy.act(x)
    torch.testing.assert_close(before[3:4], agent.policy.act(x[3:4]))
    slow = SlowFlash(agent, slice(None))
    with torch.no_grad():
        torch.testing.assert_close(before, slow.actor(x, False)[:, :ACTIONS].tanh(), rtol=1e-4, atol=1e-5)
    learn(agent, batch_of(1), 0)
    assert float(agent.layers.means.abs().max()) > 0


# Exploring --------------------------------------------------------------------------------------------
def held(seed: int = 3, longest: int = 16) -> HeldNoise:
    return HeldNoise(agent_of().head, longest, seed)


def test_a_policy_that_only_acts_folds_its_norms_into_its_layers() -> None:
    policy, g = agent_of().policy, torch.Generator().manual_seed(5)
    layers = policy.encoder.layers
    with torch.no_grad():
        layers.norms.copy_(torch.rand(layers.norms.shape, generator=g) + 0.2)
        layers.means.copy_(torch.randn(layers.means.shape, generator=g))
        layers.variances.copy_(torch.rand(layers.variances.shape, generator=g) + 0.1)
        x = torch.randn((7, layers.inputs), generator=g)
        before = policy.encoder(x)
        with policy.settled():
            torch.testing.assert_close(policy.encoder(x), before, rtol=1e-5, atol=1e-5)
        layers.means.add_(1.0)  # what was learned since then counts
        assert not torch.allclose(policy.encoder(x), before, atol=1e-2)
        with policy.settled():
            torch.testing.assert_close(policy.encoder(x), layers.act(x), rtol=1e-5, atol=1e-5)
        layers.means[: layers.inputs] = 1000.0  # inputs that are large beside their spread
        layers.variances[: layers.inputs] = 1e-4
        x = 1000.0 + 0.01 * x
        expected = deepcopy(layers).double().act(x.double()).float()
        with policy.settled():
            torch.testing.assert_close(policy.encoder(x), expected, rtol=1e-3, atol=1e-3)


def test_noise_is_held_for_n_steps_as_often_as_one_over_n_squared() -> None:
    noise = held().draw((15_000, 3), torch.Generator().manual_seed(0))
    changed = (noise[1:] != noise[:-1]).any(-1)
    assert torch.equal(changed[:, 0], changed[:, 2])  # one count for all environments
    ends = torch.cat([torch.tensor([-1]), changed[:, 0].nonzero().squeeze(1)])
    lengths = ends.diff()
    assert int(lengths.max()) == 16
    shares = torch.bincount(lengths, minlength=17)[1:] / len(lengths)
    expected = torch.arange(1, 17).float() ** -2
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=0.015)
    assert float(noise.std()) == pytest.approx(1.0, abs=0.03)
    fresh = held(longest=1).draw((50, 1), torch.Generator().manual_seed(0))
    assert bool((fresh[1:] != fresh[:-1]).all())


def test_noise_goes_on_where_it_was_held_also_from_a_saved_state() -> None:
    whole, one, other = held(), held(), held(seed=9)
    g, h = (torch.Generator().manual_seed(0) for _ in range(2))
    expected = whole.draw((60, 2), g)
    first = one.draw((7, 2), h)
    assert one.state()["left"] > 0  # in the middle of it
    other.load_state(one.state())
    rest = [other.draw((n, 2), h) for n in (1, 22, 30)]
    assert torch.equal(torch.cat([first, *rest]), expected)


def factor_of(rows: int, gamma: float) -> tuple[RewardFactor, CollectedReturns]:
    factor = RewardFactor(5.0, torch.device("cpu"))
    return factor, CollectedReturns(rows, gamma, factor)


def test_the_reward_factor_follows_returns_in_the_order_of_collecting() -> None:
    """Two groups of environments; returns end with their episodes; the largest counts a fifth."""
    g, gamma = torch.Generator().manual_seed(0), 0.9
    (factor, collected), returns = factor_of(3, gamma), [0.0, 0.0, 0.0]
    seen: list[float] = []
    for t in range(200):
        reward, done = torch.randn(3, generator=g) + 1, torch.rand(3, generator=g) < 0.1
        if t == 150:
            reward[1] = 300.0  # from here on the largest decides
        for lanes in (slice(0, 2), slice(2, 3)):
            collected.add(reward[None, lanes], done[None, lanes], lanes)
        for i in range(3):
            returns[i] = gamma * returns[i] + float(reward[i])
            seen.append(returns[i])
            returns[i] = 0.0 if done[i] else returns[i]
        spread, largest = float(np.sqrt(np.var(seen) + 1e-8)), max(map(abs, seen))
        assert float(factor.value()) == pytest.approx(1 / max(spread, largest / 5), rel=1e-6)
        assert (largest / 5 > spread) or t < 150
    same, again = factor_of(3, gamma)
    same.load_state(factor.state())
    again.load_state(collected.state())
    for each in (collected, again):
        each.add(torch.ones((1, 3)), torch.zeros((1, 3), dtype=torch.bool), slice(0, 3))
    assert torch.equal(factor.value(), same.value())


def test_many_steps_at_once_tell_the_reward_factor_as_much_as_one_after_the_other() -> None:
    g = torch.Generator().manual_seed(1)
    reward, done = torch.randn((50, 3), generator=g) + 1, torch.rand((50, 3), generator=g) < 0.1
    (one_by_one, steps), (together, all_steps) = factor_of(3, 0.9), factor_of(3, 0.9)
    for t in range(50):
        steps.add(reward[t : t + 1], done[t : t + 1], slice(0, 3))
    all_steps.add(reward, done, slice(0, 3))
    assert torch.equal(steps.state()["returns"], all_steps.state()["returns"])
    torch.testing.assert_close(together.value(), one_by_one.value(), rtol=1e-12, atol=0)


# A learned reward -------------------------------------------------------------------------------------
class Warmed(StopAfter):
    """Stops before anything is learned, and keeps the job."""

    job: FlashJob

    def __init__(self) -> None:
        super().__init__(2)

    def on_start(self, run: Trainer) -> None:
        assert isinstance(run.job, FlashJob)
        self.job = run.job


TINY: dict[str, Any] = {
    "policy.hidden": (16, 16),
    "flash.critic_width": 16,
    "reward.hidden": (16, 16),
    "reward.rrd_batch_size": 16,
    "reward.rrd_sample_size": 8,
    "replay.batch_size": 16,
    "replay.gamma": 0.9,
    "replay.warmup": 300,
    "replay.train_batches": 1,
    "loop.total_steps": 500,
    "loop.iterations": 5,
    "eval.every": 500,
    "eval.episodes": 2,
    "log.report": False,
    "log.tensorboard": False,
}


def train_paid_once(folder: Path, *callbacks: ludus.Callback, **settings: Any) -> Path:
    changes = {key.replace("__", "."): value for key, value in settings.items()}
    overrides = {"episodic_reward": True, "reward.method": "rrd", **TINY, **changes}
    preset = "vec:replay_envs:make_match"
    return ludus.train(preset, folder, callbacks, Console("quiet"), algo="flash-sac", overrides=overrides)


def job_before_learning(folder: Path, **settings: Any) -> FlashJob:
    """Its replay holds episodes of 1 to 20 steps."""
    warmed = Warmed()
    train_paid_once(folder, warmed, **settings)
    warmed.job._fit_units()
    assert warmed.job.store.total_episodes_added > 2
    return warmed.job


def drawn_episodes(job: FlashJob, stream: Tensor) -> list[list[int]]:
    """The rows of the steps of every episode that is drawn next."""
    generator = torch.Generator()
    generator.set_state(stream)
    drawn = job.store.draw_sequences(1, 10, 1, generator, whole=True)
    return [rows[: int(length)].tolist() for rows, length in zip(drawn.row[0], drawn.length[0], strict=True)]


@pytest.mark.parametrize("method", ["rrd", "ircr"])
def test_the_scale_of_learned_rewards_is_that_of_finished_episodes_labelled_now(
    tmp_path: Path, method: str
) -> None:
    """Step by step in numpy, every label of the past with what is left of its weight."""
    job = job_before_learning(tmp_path / "run", reward__method=method)
    store, reward, known = job.store, job.learner.reward_learner, job.store.returns_and_lengths()[0]
    seen, weights, largest = np.zeros(0), np.zeros(0), 0.0
    for _ in range(4):
        stream = job.learner.generator.get_state()
        job._scale_learned_rewards()
        new = []
        for rows in drawn_episodes(job, stream):
            discounted = 0.0
            for row in rows:
                if reward is None:
                    total = store.reward[rows].sum()
                    label = (total - known.min()) / (known.max() - known.min())
                else:
                    obs, after = ({"obs": store.obs["obs"][r][None]} for r in (row, row + 1))
                    label = reward.model.predict(obs, store.action[row][None], after)[0]
                discounted = 0.9 * discounted + float(label)
                new.append(discounted)
        seen, weights = np.append(seen, new), np.append(0.99 * weights, np.ones(len(new)))
        largest = max(0.99 * largest, np.abs(new).max())
        variance = np.average((seen - np.average(seen, weights=weights)) ** 2, weights=weights)
        scale = max(np.sqrt(variance + 1e-8), largest / 5)
        assert float(job._factor.value()) == pytest.approx(1 / scale, rel=1e-5)
        if reward is not None:
            reward.model.head.weight.data *= -7.0  # the reward is learned on


def test_every_batch_is_paid_what_the_reward_says_of_it_now_divided_by_the_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, told = job_before_learning(tmp_path / "run"), []
    agent, reward = job._agent, job.learner.reward_learner
    assert reward is not None
    reward.model.head.weight.data *= 50.0  # so that it says something of a step
    model, slow, learn_batch = deepcopy(reward.model), SlowFlash(agent, slice(None)), agent.learn

    def noted(batch: Batch, update: int, measured: bool = True) -> Tensor | None:
        told.append((batch, learn_batch(batch, update, True)))
        return told[-1][1]

    monkeypatch.setattr(agent, "learn", noted)
    job._learn(lambda batch: None)
    ((batch, measured),), n = told, len(told[0][0].reward)
    assert not torch.equal(reward.model.head.weight, model.head.weight)  # which has learned on since
    now = model.predict({"obs": batch.x[:n]}, batch.action, {"obs": batch.x[n:]})
    torch.testing.assert_close(batch.reward, now)
    assert float(now.std()) > 0.01
    tensors: Any = (part.clone() for part in batch[:5])  # outside inference mode
    expected = slow.update(Batch(*tensors), 0, 0.0, float(job._factor.value()))
    assert measured is not None
    assert float(measured[0]) == pytest.approx(float(expected[0]), rel=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"reward__method": "rrd-unbiased"},
        {"reward__method": "rd"},
        {"reward__method": "ircr"},
        {"reward__progress": 1.0, "reward__success": 1.0, "reward__normalize_returns": False},
    ],
    ids=["unbiased", "rd", "ircr", "heads"],
)
def test_every_way_of_decomposing_returns_learns_along(tmp_path: Path, settings: dict[str, Any]) -> None:
    rows = read_metrics(train_paid_once(tmp_path / "run", **settings) / "metrics.jsonl")
    told = next(row for row in rows if "train/reward_scale" in row)
    assert told["train/skipped_updates"] == 0
    assert told["train/reward_scale"] > 1e-3


# Defaults and refusals --------------------------------------------------------------------------------
def test_the_published_settings_are_the_defaults() -> None:
    config = find_preset("half-cheetah", "flash-sac").config
    assert isinstance(config, FlashTrainConfig)
    replay = config.replay
    assert (replay.batch_size, replay.capacity, replay.warmup) == (512, 1_000_000, 10_000)
    assert (replay.steps, replay.train_batches, replay.polyak, replay.gamma) == (100, 100, 0.99, 0.99)
    assert (config.policy.hidden, config.flash.critic_width) == ((128, 128), 256)
    assert not config.policy.normalize_obs
    small = find_preset("gym:Pendulum-v1", "flash-sac").config
    assert isinstance(small, FlashTrainConfig)
    assert (small.flash.critic_width, small.replay.polyak) == (64, 0.99)


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "choices": ("gym:CartPole-v1", {}, "FlashSAC needs continuous actions.*--algo dqn or ppo"),
    "memory": ("gym:Pendulum-v1", {"policy.memory": "lstm"}, "FlashSAC learns from single steps.*--algo sac"),
    "network": ("gym:Pendulum-v1", {"policy.network": "torch.nn:Linear"}, "your own take --algo sac"),
    "widths": ("gym:Pendulum-v1", {"policy.hidden": (64, 32)}, "one width: take --policy.hidden 128 128, not 64"),
    "no blocks": ("gym:Pendulum-v1", {"policy.hidden": ()}, "not none"),
    "activation": ("gym:Pendulum-v1", {"policy.activation": "tanh"}, "activation: FlashSAC has layers of its own"),
    "ranks": ("gym:Pendulum-v1", {"procs": 2}, "--procs 2: --algo flash-sac trains in one process"),
    "noise": ("kuka-pick-place", {"data": "x.hdf5", "flash.longest_noise": 2}, "nobody explores on recorded"),
    "too wide": ("gym:Pendulum-v1", {"flash.critic_width": 60_000}, "needs .*GB of memory.*--flash.critic-width"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_flash_sac_cannot_do_is_a_sentence(tmp_path: Path, case: str) -> None:
    preset, settings, message = BAD[case]
    with pytest.raises(ConfigError, match=message):
        ludus.train(preset, tmp_path / "run", console=Console("quiet"), algo="flash-sac", overrides=settings)
    assert not (tmp_path / "run").exists()


def test_weights_lie_together_and_where_products_are_fast() -> None:
    agent = agent_of()
    for layers in (agent.layers, agent.critics.layers, agent.target_critics.layers):
        for half, weight in zip(layers._weights_as(torch.bfloat16)[1:], layers.weights[1:], strict=True):
            assert half.dtype == torch.bfloat16
            assert torch.equal(half, weight.bfloat16())
        assert all(weight.storage_offset() * weight.element_size() % 16 == 0 for weight in layers.weights)
    assert agent.critics.weight.storage_offset() * 4 % 16 == 0


def test_a_state_of_critics_that_lay_otherwise_is_refused() -> None:
    agent = agent_of()
    state = agent.state()
    state["learned"]["critics"] = state["learned"].pop("critic_weights")
    with pytest.raises(CheckpointError, match="Begin a new run; --from takes its policy along"):
        agent.load_state(state)


def test_images_are_refused_with_the_algorithm_to_take() -> None:
    image, actions = gym.spaces.Box(0, 255, (12, 12, 3), np.uint8), gym.spaces.Box(-1, 1, (2,), np.float32)
    with pytest.raises(ConfigError, match="with images take --algo sac"):
        make_replay_policy("flash-sac", image, actions, PolicyConfig(hidden=(16, 16)), 0)


def test_an_arm_on_a_cpu_has_small_networks_and_the_published_ones_elsewhere() -> None:
    arm = find_preset("kuka-pick-place", "flash-sac").config
    assert isinstance(arm, FlashTrainConfig)
    assert (arm.policy.hidden, arm.flash.critic_width, arm.replay.batch_size) == ((64, 64), 64, 128)
    assert (arm.replay.n_step, arm.replay.gamma, arm.env.num_envs) == (3, 0.97, 32)  # PPO's discount is the task's
    for name, batch_size in (("kuka-pick-place-large", 2_048), ("gym:HalfCheetah-v4", 512)):
        other = find_preset(name, "flash-sac").config
        assert isinstance(other, FlashTrainConfig)
        sizes = other.policy.hidden, other.flash.critic_width, other.replay.batch_size
        assert sizes == ((128, 128), 256, batch_size)


def test_an_arm_takes_a_learned_reward_step_by_step() -> None:
    arm = find_preset("kuka-pick-place", "flash-sac").config
    for given, n_step in (({}, 3), ({"reward.method": "rrd"}, 1), ({"reward.method": "none"}, 3)):
        config = apply_overrides(arm, given)
        assert isinstance(config, FlashTrainConfig)
        assert config.replay.n_step == n_step
        config.check()
    asked = apply_overrides(arm, {"reward.method": "rrd", "replay.n_step": 3})
    with pytest.raises(ConfigError, match=r"--replay\.n-step must be 1"):
        apply_overrides(asked, {}).check()


@pytest.mark.parametrize("algo", ["sac", "td3", "flash-sac"])
def test_a_job_for_a_gpu_keeps_many_environments_and_takes_large_batches(algo: str) -> None:
    config = find_preset("humanoid-mimic-large", algo).config
    assert isinstance(config, ReplayTrainConfig)
    replay = config.replay
    assert (config.env.num_envs, replay.batch_size, replay.capacity) == (1_024, 2_048, 10_000_000)
    assert (replay.steps, replay.train_batches, replay.warmup) == (8_192, 32, 100_000)
    assert config.eval.every == find_preset("humanoid-mimic-large").config.eval.every
