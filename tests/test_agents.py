"""The mathematics of SAC, TD3 and DQN against slow, independent versions on random input."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from ludus.algorithms.replay.agents import DQN, SAC, TD3, Agent, Batch, make_agent
from ludus.algorithms.replay.config import (
    DQNConfig,
    DQNTrainConfig,
    ReplayConfig,
    ReplayTrainConfig,
    SACConfig,
    SACTrainConfig,
    TD3Config,
    TD3TrainConfig,
)
from ludus.errors import ConfigError
from ludus.policies.config import PolicyConfig
from ludus.policies.factory import make_replay_policy
from ludus.policies.replay_heads import (
    LOG_STD_MAX,
    LOG_STD_MIN,
    DeterministicHead,
    GreedyHead,
    SquashedHead,
    make_replay_head,
)

OBS = gym.spaces.Box(-np.inf, np.inf, (5,), np.float32)
BOX = gym.spaces.Box(np.array([-1.0, 0.0, -3.0], np.float32), np.array([1.0, 5.0, -1.0], np.float32))
CHOICES = gym.spaces.Discrete(4, start=2)
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": lambda x: x.clamp(min=0),
    "elu": lambda x: torch.where(x > 0, x, x.exp() - 1),
}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Squashed normals -------------------------------------------------------------------------------------
def squashed(actions: int = 3) -> SquashedHead:
    return SquashedHead(4, gym.spaces.Box(-1, 1, (actions,), np.float32))


def random_params(n: int, actions: int, seed: int) -> tuple[Tensor, Tensor]:
    g = generator(seed)
    params = torch.randn((n, 2 * actions), generator=g, dtype=torch.float64)
    params[::5, actions:] += 4.0  # spreads beyond the limit
    params[1::5, actions:] -= 30.0  # and below it
    return params, torch.randn((n, actions), generator=g, dtype=torch.float64)


def test_squashed_samples_and_log_probabilities_are_those_of_torch_distributions() -> None:
    params, noise = random_params(200, 3, 0)
    mean, log_std = params[:, :3], params[:, 3:].clamp(LOG_STD_MIN, LOG_STD_MAX)
    transform = TanhTransform(cache_size=1)
    action = transform(mean + log_std.exp() * noise)
    expected = TransformedDistribution(Normal(mean, log_std.exp()), [transform]).log_prob(action).sum(1)
    sample = squashed().sample_with_log_prob(params, noise)
    torch.testing.assert_close(sample.log_prob, expected, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(sample.action, action, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squashed().sample(params, noise), action, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squashed().mode(params), mean.tanh())


@pytest.mark.parametrize(("mean", "log_std"), [(0.3, -0.5), (-1.0, 0.5), (2.0, 1.0)])
def test_the_squashed_density_integrates_to_one(mean: float, log_std: float) -> None:
    before = torch.linspace(-14.0, 14.0, 200_001, dtype=torch.float64)[:, None]
    params = torch.tensor([mean, log_std], dtype=torch.float64).expand(len(before), 2)
    sample = squashed(1).sample_with_log_prob(params, (before - mean) / math.exp(log_std))
    area = torch.trapezoid(sample.log_prob.exp(), sample.action[:, 0])
    assert float(area) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("before", [-50.0, -20.0, -9.0, 0.0, 9.0, 20.0, 50.0])
def test_log_probabilities_are_right_where_tanh_has_rounded_to_one(before: float) -> None:
    params = torch.tensor([[before, 0.0]])
    sample = squashed(1).sample_with_log_prob(params, torch.zeros((1, 1)))
    squash = math.log(4.0) - 2 * abs(before) - 2 * math.log1p(math.exp(-2 * abs(before)))
    expected = -0.5 * math.log(2 * math.pi) - squash
    assert float(sample.log_prob) == pytest.approx(expected, rel=1e-6)
    gradient = squashed(1).gradient(sample, torch.ones((1, 1)), torch.tensor(1.0))
    assert bool(torch.isfinite(gradient).all())


def test_the_written_out_gradient_of_a_sample_equals_autograd_also_at_the_limits_of_the_spread() -> None:
    params, noise = random_params(200, 3, 1)
    weight, of_log_prob = torch.randn((200, 3), generator=generator(2)).double(), torch.tensor(0.7).double()
    params.requires_grad_()
    log_std = params[:, 3:].clamp(LOG_STD_MIN, LOG_STD_MAX)
    before = params[:, :3] + log_std.exp() * noise
    squash = 2 * (math.log(2.0) - before - torch.nn.functional.softplus(-2 * before))
    log_prob = (-0.5 * noise**2 - log_std - squash).sum(1)  # and a constant
    loss = (weight * before.tanh()).sum() + of_log_prob * log_prob.sum()
    (expected,) = torch.autograd.grad(loss, params)
    head = squashed()
    sample = head.sample_with_log_prob(params.detach(), noise)
    torch.testing.assert_close(head.gradient(sample, weight, of_log_prob), expected, rtol=1e-9, atol=1e-9)
    clamped = (params[:, 3:] != log_std).detach()
    assert 0 < int(clamped.sum()) < clamped.numel()
    assert bool((expected[:, 3:][clamped] == 0).all())


# Agents -----------------------------------------------------------------------------------------------
def agent_of(
    kind: str,
    hidden: tuple[int, ...] = (16, 12),
    activation: Any = "relu",
    sac: SACConfig | None = None,
    td3: TD3Config | None = None,
    **replay: Any,
) -> Any:
    space = CHOICES if kind == "dqn" else BOX
    policy = make_replay_policy(kind, OBS, space, PolicyConfig(hidden, activation, normalize_obs=False), 1)
    paced = ReplayConfig(**{"learning_rate": 1e-3, **replay})
    configs: dict[str, ReplayTrainConfig] = {
        "sac": SACTrainConfig(replay=paced, sac=sac or SACConfig(alpha=0.3)),
        "td3": TD3TrainConfig(replay=paced, td3=td3 or TD3Config()),
        "dqn": DQNTrainConfig(replay=paced),
    }
    return make_agent(policy, configs[kind], 2)


def batch_for(agent: Agent, n: int = 32, seed: int = 3) -> Batch:
    g, head = generator(seed), agent.policy.head
    return Batch(
        x=torch.randn((2 * n, 5), generator=g),
        action=head.random((n,), g),
        reward=torch.randn(n, generator=g),
        discount=torch.where(torch.rand(n, generator=g) < 0.2, 0.0, 0.9),
        noise=head.noise((2 * n,), g),
    )


def learn(agent: Agent, batch: Batch, update: int = 0) -> Tensor:
    with torch.inference_mode():
        told = agent.learn(batch, update)
    assert told is not None
    return told.clone()


class Net:
    """A network in float64, from the weights of a module as they are now; twins, where it holds those of two."""

    def __init__(self, module: nn.Module, activation: str) -> None:
        self.weights = [p.detach().double().clone().requires_grad_() for p in module.parameters()]
        self.activation = ACTIVATIONS[activation]

    def __call__(self, *parts: Tensor) -> Tensor:
        x, last = torch.cat(parts, 1), len(self.weights) - 2
        for i in range(0, last + 2, 2):
            weight, bias = self.weights[i : i + 2]
            x = x @ (weight.T if weight.ndim == 2 else weight) + bias  # twins: [2, in, out]
            x = self.activation(x) if i < last else x
        return x if weight.ndim == 2 else x[..., 0]  # twins: [2, n]


def double(batch: Batch) -> tuple[Tensor, ...]:
    n = len(batch.reward)
    x, noise = batch.x.double(), batch.noise.double()
    return x[:n], x[n:], batch.action.double(), batch.reward.double(), batch.discount.double(), noise


def flat_gradient(loss: Tensor, net: Net) -> Tensor:
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, net.weights)])


def normal_sample(params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_std = params.chunk(2, 1)
    log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    action = (mean + log_std.exp() * noise).tanh()
    normal = (-0.5 * noise**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(1)
    return action, normal - (1 - action**2).log().sum(1)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=2e-6)


IMITATION = [(0.0, 0.0), (2.5, 0.0), (0.0, 3.0), (0.5, 1.0)]  # bc, advantage


def imitation_weight(advantage: Tensor, strength: float) -> Tensor:
    """[n, 1] of recorded actions, 1 on average."""
    in_spreads = (advantage - advantage.mean()) / advantage.std(correction=0)
    weight = (strength * in_spreads).exp().clamp(max=20).detach()
    return (weight / weight.mean())[:, None]


@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_a_policy_that_only_imitates_does_what_was_recorded(kind: str) -> None:
    """SAC's entropy, which starts with a weight of 1, would hold it at 0."""
    agent = agent_of(kind, sac=SACConfig(alpha=1.0), advantage=1.0)
    for update in range(600):
        batch = batch_for(agent, seed=update)
        learn(agent, batch._replace(action=torch.full_like(batch.action, 0.8)), update)
    with torch.no_grad():
        done = agent.policy.params(batch_for(agent, seed=1_000).x)[:, :3].tanh()
    assert float((done - 0.8).abs().mean()) < 0.1


NETWORKS = [((16, 12), "relu"), ((9,), "tanh"), ((8, 8, 8), "elu"), ((), "relu")]


@pytest.mark.parametrize(("bc", "advantage"), IMITATION)
@pytest.mark.parametrize(("hidden", "activation"), NETWORKS)
def test_the_gradients_of_sac_are_those_of_the_textbook(
    hidden: tuple[int, ...], activation: str, bc: float, advantage: float
) -> None:
    agent: SAC = agent_of("sac", hidden, activation, bc=bc, advantage=advantage)
    for update in range(3):  # so that targets and networks differ
        learn(agent, batch_for(agent, seed=10 + update), update)
    batch = batch_for(agent)
    policy = Net(agent.policy, activation)
    critics, targets = Net(agent.critics, activation), Net(agent.target_critics, activation)
    log_alpha = agent.log_alpha.detach().double().clone().requires_grad_()
    before, after, action, reward, discount, noise = double(batch)
    n, alpha = len(reward), log_alpha.detach().exp()
    with torch.no_grad():
        next_action, next_log_prob = normal_sample(policy(after), noise[n:])
        follows = targets(after, next_action).amin(0) - alpha * next_log_prob
        target = reward + discount * follows
    errors = critics(before, action) - target
    critic_loss = 0.5 * errors[0].square().mean() + 0.5 * errors[1].square().mean()
    params = policy(before)
    chosen, log_prob = normal_sample(params, noise[:n])
    value = torch.minimum(*critics(before, chosen))
    actor = (alpha * log_prob - value).mean()
    if bc or advantage:
        weight = imitation_weight(critics(before, action).amin(0) - value, advantage)
        imitation = (weight * (params[:, :3].tanh() - action).square()).mean()
        # With imitation alone entropy has a say about spreads, not about means.
        _, soft = normal_sample(torch.cat([params[:, :3].detach(), params[:, 3:]], 1), noise[:n])
        trusted = actor * bc / value.detach().abs().mean() if bc else (alpha * soft).mean()
        actor = trusted + imitation
    temperature = -log_alpha * (log_prob.detach().mean() - 3.0)  # −|A| is the wanted entropy
    expected = [flat_gradient(actor, policy), flat_gradient(critic_loss, critics)]
    (of_alpha,) = torch.autograd.grad(temperature, log_alpha)
    measures = learn(agent, batch, 3)
    close(agent.optimizer.grad, torch.cat([*expected, of_alpha.reshape(1)]))
    plain = (alpha * log_prob - value).mean().detach()
    q_loss, entropy = errors.detach().square().mean(), -log_prob.mean().detach()
    close(measures, torch.stack([q_loss, plain, value.mean().detach(), entropy, alpha]))


@pytest.mark.parametrize(("bc", "advantage"), IMITATION)
@pytest.mark.parametrize(("hidden", "activation"), NETWORKS)
def test_the_gradients_of_td3_are_those_of_the_textbook(
    hidden: tuple[int, ...], activation: str, bc: float, advantage: float
) -> None:
    imitation: dict[str, Any] = {"bc": bc, "advantage": advantage}
    td3 = TD3Config(target_noise=0.4)
    agent: TD3 = agent_of("td3", hidden, activation, td3=td3, train_target=2, **imitation)
    for update in range(4):
        learn(agent, batch_for(agent, seed=10 + update), update)
    batch = batch_for(agent)
    policy, target_policy = Net(agent.policy, activation), Net(agent.target_policy, activation)
    critics, targets = Net(agent.critics, activation), Net(agent.target_critics, activation)
    before, after, action, reward, discount, noise = double(batch)
    n = len(reward)
    with torch.no_grad():
        smoothing = (0.4 * noise[n:]).clamp(-0.5, 0.5)
        assert bool((smoothing.abs() == 0.5).any())
        next_action = (target_policy(after).tanh() + smoothing).clamp(-1, 1)
        target = reward + discount * targets(after, next_action).amin(0)
    errors = critics(before, action) - target
    critic_loss = 0.5 * errors[0].square().mean() + 0.5 * errors[1].square().mean()
    chosen = policy(before).tanh()
    value = torch.minimum(*critics(before, chosen))
    actor = -value.mean()
    if bc or advantage:
        weight = imitation_weight(critics(before, action).amin(0) - value, advantage)
        actor = actor * bc / value.detach().abs().mean() + (weight * (chosen - action).square()).mean()
    learn(agent, batch, 5)  # an update that moves the policy
    close(agent.critic_optimizer.grad, flat_gradient(critic_loss, critics))
    close(agent.actor_optimizer.grad, flat_gradient(actor, policy))


@pytest.mark.parametrize(("hidden", "activation"), NETWORKS)
def test_the_gradients_of_dqn_are_those_of_the_textbook(hidden: tuple[int, ...], activation: str) -> None:
    agent: DQN = agent_of("dqn", hidden, activation, train_target=100)
    for update in range(4):
        learn(agent, batch_for(agent, seed=10 + update), update)
    batch = batch_for(agent)._replace(reward=4 * torch.randn(32, generator=generator(5)))
    policy, target_policy = Net(agent.policy, activation), Net(agent.target_policy, activation)
    before, after, action, reward, discount, _ = double(batch)
    with torch.no_grad():
        best = policy(after).argmax(1, keepdim=True)  # chosen by the one that learns, judged by the target
        target = reward + discount * target_policy(after).gather(1, best)[:, 0]
    q = policy(before).gather(1, action.long())[:, 0]
    error = (q - target).abs()
    huber = torch.where(error < 1, 0.5 * error.square(), error - 0.5).mean()
    assert 0 < int((error < 1).sum()) < len(error)
    expected = flat_gradient(huber, policy)
    assert float(expected.norm()) < 10.0  # above, it is clipped
    measures = learn(agent, batch, 4)
    close(agent.optimizer.grad, expected)
    close(measures, torch.stack([huber.detach(), q.detach().mean()]))


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_a_step_of_all_networks_is_one_of_adam_at_the_old_weights(kind: str) -> None:
    agent = agent_of(kind)
    before = [optimizer.flat.clone() for optimizer in agent.optimizers]
    learn(agent, batch_for(agent), 1)
    for optimizer, old in zip(agent.optimizers, before, strict=True):
        copy = nn.Parameter(old.clone())
        copy.grad = optimizer.grad.clone()
        torch.optim.Adam([copy], lr=1e-3, eps=1e-8).step()
        torch.testing.assert_close(optimizer.flat, copy.detach(), rtol=1e-5, atol=1e-7)


def test_the_temperature_rises_while_the_entropy_is_below_its_target_and_falls_above_it() -> None:
    for wanted, sign in ((20.0, 1), (-20.0, -1)):
        agent: SAC = agent_of("sac", sac=SACConfig(alpha=0.3, target_entropy=wanted), learning_rate=1e-2)
        batch = batch_for(agent)
        alphas = [float(learn(agent, batch, update)[4]) for update in range(20)]
        assert all((b - a) * sign > 0 for a, b in itertools.pairwise(alphas))
    assert agent_of("sac").target_entropy == -3.0
    fixed: SAC = agent_of("sac", sac=SACConfig(alpha=0.3, learn_alpha=False))
    for update in range(3):
        assert float(learn(fixed, batch_for(fixed), update)[4]) == pytest.approx(0.3)


def test_the_temperature_brings_the_entropy_to_its_target() -> None:
    agent: SAC = agent_of("sac", sac=SACConfig(alpha=0.01, target_entropy=-1.0), learning_rate=3e-3)
    batch = batch_for(agent, n=128)
    reward = -(batch.action - 0.3).square().sum(1)
    batch = batch._replace(reward=reward, discount=torch.zeros(128))
    g = generator(7)
    entropies = []
    for update in range(1500):
        noise = agent.policy.head.noise((256,), g)
        entropies.append(float(learn(agent, batch._replace(noise=noise), update)[3]))
    assert np.mean(entropies[-200:]) == pytest.approx(-1.0, abs=0.15)


@pytest.mark.parametrize(
    ("kind", "polyak", "every"), [("sac", 0.9, 1), ("sac", 0.5, 3), ("td3", 0.9, 2), ("dqn", 0.0, 4)]
)
def test_targets_move_every_so_many_updates_by_polyak_and_zero_copies(
    kind: str, polyak: float, every: int
) -> None:
    agent = agent_of(kind, polyak=polyak, train_target=every)

    def sources() -> dict[str, Tensor]:
        if kind == "dqn":
            return {"policy": agent.optimizer.flat}
        if kind == "sac":
            return {"critics": torch.cat([p.reshape(-1) for p in agent.critics.parameters()])}
        return {"actor": agent.actor_optimizer.flat, "critics": agent.critic_optimizer.flat}

    assert agent.targets.keys() == sources().keys()
    for name, target in agent.targets.items():
        assert torch.equal(target, sources()[name])
    for update in range(3 * every):
        before = {name: target.clone() for name, target in agent.targets.items()}
        learn(agent, batch_for(agent, seed=update), update)
        for name, target in agent.targets.items():
            moved = polyak * before[name] + (1 - polyak) * sources()[name]
            expected = moved if (update + 1) % every == 0 else before[name]
            torch.testing.assert_close(target, expected.detach(), rtol=1e-6, atol=1e-7)
            if polyak == 0 and (update + 1) % every == 0:
                assert torch.equal(target, sources()[name])


def test_the_target_networks_are_what_the_flat_targets_hold() -> None:
    agent: TD3 = agent_of("td3")
    x = torch.randn((4, 5))
    with torch.no_grad():
        before = agent.target_policy.outputs(x)[1]
        agent.targets["actor"].zero_()
        assert not torch.equal(before, agent.target_policy.outputs(x)[1])
        assert bool((agent.target_policy.outputs(x)[1] == 0).all())
        assert not bool((agent.policy.outputs(x)[1] == 0).all())


def test_td3_moves_its_policy_only_every_policy_delay_updates() -> None:
    agent: TD3 = agent_of("td3", td3=TD3Config(policy_delay=3))
    moved = []
    for update in range(7):
        policy, critics = agent.actor_optimizer.flat.clone(), agent.critic_optimizer.flat.clone()
        learn(agent, batch_for(agent, seed=update), update)
        moved.append(not torch.equal(policy, agent.actor_optimizer.flat))
        assert not torch.equal(critics, agent.critic_optimizer.flat)
    assert moved == [False, False, True, False, False, True, False]


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_updates_of_one_kind_do_the_same_and_the_state_goes_on_exactly(kind: str) -> None:
    agent, other = (agent_of(kind, train_target=3) for _ in range(2))
    assert len({agent.kind_of(update) for update in range(60)}) == (4 if kind == "td3" else 2)
    for update in range(5):
        learn(agent, batch_for(agent, seed=update), update)
    other.policy.load_state_dict(agent.policy.state_dict())
    other.load_state(agent.state())
    for update in range(5, 12):
        one, two = (learn(a, batch_for(a, seed=update), update) for a in (agent, other))
        assert torch.equal(one, two)
    for optimizer, same in zip(agent.optimizers, other.optimizers, strict=True):
        assert torch.equal(optimizer.flat, same.flat)
    for name, target in agent.targets.items():
        assert torch.equal(target, other.targets[name])


def test_the_seed_alone_determines_the_critics_and_the_two_differ() -> None:
    torch.manual_seed(5)
    one, state = agent_of("sac"), torch.random.get_rng_state()
    two = agent_of("sac")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(one.optimizer.flat, two.optimizer.flat)
    first, second = Net(one.critics, "relu")(torch.ones((1, 8), dtype=torch.float64))
    assert not torch.equal(first, second)


# Heads ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["sac", "td3"])
def test_random_actions_fill_the_bounds_evenly_and_come_back_from_the_environments_units(kind: str) -> None:
    head = make_replay_head(kind, BOX, 4)
    action = head.random((20_000,), generator())
    assert action.shape == (20_000, 3)
    assert float(action.min()) >= -1.0
    assert float(action.max()) < 1.0
    in_env = head.to_env(action)
    low, high = torch.from_numpy(BOX.low), torch.from_numpy(BOX.high)
    assert bool(((in_env >= low) & (in_env <= high)).all())
    share = (in_env - low) / (high - low)
    for column in share.T:  # Kolmogorov–Smirnov against the uniform, far beyond chance at 0.02
        ordered = column.sort().values
        assert float((ordered - torch.linspace(0, 1, len(ordered))).abs().max()) < 0.02
    torch.testing.assert_close(head.from_env(in_env), action, rtol=1e-5, atol=1e-6)
    assert torch.allclose(head.to_env(torch.tensor([[-1.0, 1.0, 0.0]])), torch.tensor([[-1.0, 5.0, -2.0]]))
    assert torch.allclose(head.to_env(torch.full((1, 3), 9.0)), high)


def test_an_action_that_can_have_one_value_alone_is_a_number_for_the_policy() -> None:
    head = make_replay_head(
        "td3", gym.spaces.Box(np.array([-1, 0.5], np.float32), np.array([3, 0.5], np.float32)), 4
    )
    assert head.from_env(torch.tensor([[3.0, 0.5]])).tolist() == [[1.0, 0.0]]


def test_exploring_adds_noise_within_the_bounds() -> None:
    head = DeterministicHead(4, BOX)
    head.spread.fill_(0.5)
    params, noise = torch.zeros((20_000, 3)), head.noise((20_000,), generator())
    action = head.sample(params, noise)
    inside = action.abs() < 1
    assert float(action.std()) == pytest.approx(0.48, abs=0.02)  # a little is cut off
    assert float(inside.float().mean()) == pytest.approx(0.9545, abs=0.01)
    assert torch.equal(head.mode(params), torch.zeros_like(params))


def test_epsilon_greedy_takes_the_best_and_now_and_then_any() -> None:
    head = make_replay_head("dqn", CHOICES, 4)
    assert isinstance(head, GreedyHead)
    head.epsilon.fill_(0.4)
    values = torch.tensor([0.0, 3.0, 1.0, 2.0]).expand(40_000, 4)
    action = head.sample(values, head.noise((40_000,), generator()))
    shares = torch.bincount(action[:, 0].long(), minlength=4) / len(action)
    np.testing.assert_allclose(shares, [0.1, 0.7, 0.1, 0.1], atol=0.01)
    assert bool((head.mode(values) == 1).all())
    random = head.random((40_000,), generator())
    np.testing.assert_allclose(torch.bincount(random[:, 0].long(), minlength=4) / len(random), 0.25, atol=0.01)
    in_env = head.to_env(random)
    assert sorted(set(in_env.tolist())) == [2, 3, 4, 5]
    assert torch.equal(head.from_env(in_env), random)


def test_epsilon_falls_over_the_first_part_of_training() -> None:
    agent: DQN = agent_of("dqn")
    agent.dqn = DQNConfig(epsilon=0.8, epsilon_final=0.2, epsilon_until=0.5)
    for done, expected in ((0.0, 0.8), (0.25, 0.5), (0.5, 0.2), (0.9, 0.2)):
        agent.set_progress(done)
        epsilon: Any = agent.policy.head.epsilon
        assert float(epsilon) == pytest.approx(expected)


UNBOUNDED = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
HALF_BOUNDED = gym.spaces.Box(np.array([-1, -np.inf], np.float32), np.array([1, 1], np.float32))
SEVERAL = gym.spaces.MultiDiscrete([3, 2])


@pytest.mark.parametrize(
    ("kind", "space", "advice"),
    [
        ("sac", UNBOUNDED, "SAC needs bounds.*--algo ppo"),
        ("td3", HALF_BOUNDED, "TD3 needs bounds.*--algo ppo"),
        ("sac", CHOICES, "SAC needs continuous actions.*--algo dqn or ppo"),
        ("td3", CHOICES, "TD3 needs continuous actions.*--algo dqn or ppo"),
        ("sac", SEVERAL, "SAC needs continuous actions.*--algo ppo"),
        ("dqn", BOX, "DQN chooses among numbered actions.*--algo sac, td3, flash-sac or ppo"),
        ("dqn", SEVERAL, "DQN chooses among numbered actions.*--algo ppo"),
    ],
)
def test_an_action_space_that_does_not_fit_names_the_algorithms_that_do(
    kind: str, space: Any, advice: str
) -> None:
    with pytest.raises(ConfigError, match=advice):
        make_replay_head(kind, space, 4)


# Units -------------------------------------------------------------------------------------------------
FIXED = SACTrainConfig(sac=SACConfig(learn_alpha=False))


@pytest.mark.parametrize(
    "config", [SACTrainConfig(), FIXED, TD3TrainConfig(), DQNTrainConfig()], ids=["sac", "fixed", "td3", "dqn"]
)
def test_values_are_scaled_exactly(config: ReplayTrainConfig) -> None:
    space = CHOICES if config.algo == "dqn" else BOX
    policy = make_replay_policy(config.head, OBS, space, PolicyConfig(hidden=(8, 8)), 0)
    agent, x = make_agent(policy, config, 1), torch.randn((7, 5), generator=generator())

    def values() -> Tensor:
        if isinstance(agent, DQN):
            return agent.policy.params(x)
        assert isinstance(agent, SAC | TD3)
        return agent.critics.outputs(torch.cat([x, torch.zeros(7, 3)], 1))[1]

    with torch.no_grad():
        before = values().clone()
        agent.scale_values(0.25)
        torch.testing.assert_close(values(), 0.25 * before)
    if isinstance(agent, SAC):
        factor = 1.0 if config is FIXED else 0.25  # a temperature that is not learned is as the setting says
        assert float(agent.log_alpha.detach().exp()) == pytest.approx(factor * config.sac.alpha)  # type: ignore[attr-defined]
