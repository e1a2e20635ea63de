"""Masks of valid actions: none is ever taken that is not valid, and the mathematics is that of the valid ones."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

import catch_env
import ludus
from ludus.algorithms.ppo.loss import Batch, loss_gradient
from ludus.envs.check import check_env
from ludus.envs.gym.block import NO_LIMIT, GymBlock
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.gym.spaces import adapt_spaces
from ludus.envs.row_space import MASK, ActionRow, RowSpace, add_mask, choice_slices
from ludus.envs.vec import VecEnv
from ludus.errors import ConfigError, EnvError, LudusError
from ludus.export import export_onnx, read_metadata
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.policies.heads import MixedHead, StochasticHead, make_stochastic_head
from ludus.policies.replay_heads import GreedyHead
from ludus.runs import evaluate_run
from stopped_runs import StopAfter, assert_same_run

CATCH = "gym:catch_env:ludus-test/Catch-v0"
QUICK: dict[str, Any] = {
    "env": {"num_envs": 4},
    "ppo": {"horizon": 16, "minibatches": 2, "update_epochs": 2},
    "loop": {"total_steps": 256},
    "eval": {"every": 128, "episodes": 4},
    "log": {"report": False},
}
MIXED = spaces.Dict({"aim": spaces.Box(-1, 1, (2,)), "go": spaces.Discrete(4), "bits": spaces.MultiBinary(2)})
SPACES: dict[str, Any] = {
    "discrete": spaces.Discrete(5),
    "multi": spaces.MultiDiscrete([3, 2, 4]),
    "mixed": ActionRow(MIXED),
}


def catch(num_envs: int = 3, workers: int = 0, action_masks: bool = True, **kwargs: Any) -> VecEnv:
    name = CATCH.removeprefix("gym:")
    config = GymConfig(name, num_envs, workers, kwargs=kwargs, action_masks=action_masks)
    return make_gym(config, num_envs)


def made_of(env: VecEnv, rows: Tensor) -> Tensor:
    """The masks in rows of observations."""
    assert isinstance(env.obs_space, RowSpace)
    assert env.obs_space.mask is not None
    return env.obs_space.part_of(rows, env.obs_space.mask)


def random_mask(space: Any, rows: int, generator: torch.Generator) -> Tensor:
    """With a valid entry in each choice."""
    choices = choice_slices(space)
    mask = torch.rand((rows, choices[-1].stop), generator=generator) < 0.4
    for choice in choices:
        size = choice.stop - choice.start
        sure = torch.randint(size, (rows, 1), generator=generator) + choice.start
        mask.scatter_(1, sure, True)
    return mask


def chosen(head: StochasticHead, action: Tensor) -> Tensor:
    """[n, choices] of a stored action."""
    return (action[:, 2:] if isinstance(head, MixedHead) else action).long()


# Never an invalid action --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", SPACES)
def test_of_a_million_samples_none_is_invalid(name: str) -> None:
    space, generator = SPACES[name], torch.Generator().manual_seed(0)
    head = make_stochastic_head(space, 3, 1.0)
    head.expect_masks()
    mask = random_mask(space, 1_000_000, generator)
    params = torch.randn((1_000_000, head.num_params), generator=generator) * 20
    masked = head.masked(params, mask)
    seen = []
    for action in (head.sample(masked, head.noise((len(mask),), generator)), head.mode(masked)):
        places = chosen(head, action) + torch.tensor([choice.start for choice in choice_slices(space)])
        assert bool(mask.gather(1, places).all())
        seen.append(places)
    assert (seen[0] != seen[1]).any(), "nothing was sampled"


def test_of_a_million_explored_choices_none_is_invalid() -> None:
    generator = torch.Generator().manual_seed(0)
    head = GreedyHead(3, 5, 0)
    head.epsilon.fill_(0.5)
    mask = random_mask(SPACES["discrete"], 1_000_000, generator)
    values = head.masked(torch.randn((1_000_000, 5), generator=generator), mask)
    action = head.sample(values, head.noise((len(mask),), generator)).long()
    assert bool(mask.gather(1, action).all())
    assert 0.1 < float((action != head.mode(values)).float().mean()) < 0.4


# The mathematics ----------------------------------------------------------------------------------------
def slow(space: Any, params: np.ndarray, mask: np.ndarray, action: np.ndarray) -> tuple[float, float]:
    """Log-probability and entropy of the choices of one row, over the valid entries alone."""
    log_prob = entropy = 0.0
    for choice, taken in zip(choice_slices(space), action, strict=True):
        valid = [i for i in range(choice.start, choice.stop) if mask[i]]
        p = np.exp([params[i] for i in valid])
        p = p / p.sum()
        log_prob += np.log(p[valid.index(choice.start + taken)])
        entropy -= float(np.sum(p * np.log(p)))
    return log_prob, entropy


@pytest.mark.parametrize("name", SPACES)
def test_log_probabilities_entropies_and_gradients_are_those_of_the_valid_actions(name: str) -> None:
    space, generator = SPACES[name], torch.Generator().manual_seed(1)
    head = make_stochastic_head(space, 3, 0.5)
    head.expect_masks()
    head.double()
    for parameter in head.parameters():
        parameter.grad = torch.zeros_like(parameter)
    n = 64
    mask = random_mask(space, n, generator)
    params = torch.randn((n, head.num_params), generator=generator, dtype=torch.float64)
    masked = head.masked(params.clone(), mask)
    action = head.sample(masked, head.noise((n,), generator).double()).detach()
    log_prob, entropy = head.log_prob(masked, action), head.entropy(masked)
    boxes = head.num_params - mask.shape[1]
    gaussian = 0.0
    spread = head.spread()
    if spread is not None:
        normal = torch.distributions.Normal(params[:, :boxes], spread.detach())
        gaussian = normal.log_prob(action[:, :boxes]).sum(1).numpy()
        entropy = entropy - normal.entropy().sum(1)
    wanted = [
        slow(space, row.numpy(), allowed.numpy(), taken.numpy())
        for row, allowed, taken in zip(params[:, boxes:], mask, chosen(head, action), strict=True)
    ]
    np.testing.assert_allclose(log_prob.detach().numpy() - gaussian, [w[0] for w in wanted], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(entropy.detach().numpy(), [w[1] for w in wanted], rtol=1e-9, atol=1e-12)

    weight = torch.randn(n, generator=generator, dtype=torch.float64)
    taped = params.clone().requires_grad_()
    again = head.masked(taped * 1, mask)
    loss = (weight * head.log_prob(again, action)).sum() - 0.3 * head.entropy(again).mean()
    (expected,) = torch.autograd.grad(loss, taped)
    with torch.no_grad():
        _, saved = head.score(masked, action)
        made = head.seed_gradient(saved, weight, 1 / n, torch.tensor(0.3, dtype=torch.float64))
    torch.testing.assert_close(made, expected, rtol=1e-9, atol=1e-12)
    assert (made[:, boxes:][~mask] == 0).all(), "a masked logit learns"


def test_the_gradient_of_a_whole_minibatch_is_autograds_with_masks_and_mixed_actions() -> None:
    raw = spaces.Dict({"x": spaces.Box(-1, 1, (3,)), MASK: spaces.MultiBinary(8)})
    torch.manual_seed(0)
    policy = ActorCritic(RowSpace(raw), SPACES["mixed"], PolicyConfig(hidden=(8,))).double()
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    generator = torch.Generator().manual_seed(0)
    n = 32
    rows = torch.cat([torch.randn(n, 3, generator=generator), random_mask(SPACES["mixed"], n, generator)], 1)
    x = policy.prepare(rows).double()
    done = policy.forward_pass(x, policy.start(0), None)
    action = policy.head.sample(done.params, policy.head.noise((n,), generator).double()).detach()
    log_prob, advantage, returns, value_then = (
        torch.randn(n, generator=generator, dtype=torch.float64) for _ in range(4)
    )
    batch = Batch(x, action, log_prob, advantage, returns, value_then, 1 / n, policy.start(0), None)
    coefficient = torch.tensor(0.1, dtype=torch.float64)
    with torch.no_grad():
        done = policy.forward_pass(x, policy.start(0), None)
        seed = loss_gradient(policy.head, done.params, done.value, batch, coefficient, 0.2, 0.0, 0.5, False)
        policy.backward(done, seed.params, seed.value)
    written = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    params, value, _ = policy.params_and_value_of(x, policy.start(0))
    ratio = (policy.head.log_prob(params, action) - batch.old_log_prob).exp()
    clipped = ratio.clamp(0.8, 1.2)
    policy_loss = -torch.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()
    loss = policy_loss + 0.5 * (value - batch.returns).square().mean() - 0.1 * policy.head.entropy(params).mean()
    for made, expected in zip(written, torch.autograd.grad(loss, list(policy.parameters())), strict=True):
        torch.testing.assert_close(made, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("see", ["state", "both"])
def test_the_head_is_given_the_mask_as_the_environment_gave_it(see: str, normalize: bool) -> None:
    env = catch(4, see=see, masks="key" if see == "both" else "info")
    policy = ActorCritic(env.obs_space, env.action_space, PolicyConfig(hidden=(8,), normalize_obs=normalize))
    obs = env.reset(0)
    policy.learn_scales([obs])
    _, mask = policy.apart(policy.prepare(obs))
    assert mask is not None
    assert torch.equal(mask, made_of(env, obs))
    assert 0 < mask.sum() < mask.numel()


def test_a_policy_saved_when_masks_were_turned_around_acts_as_it_did() -> None:
    env = catch(4, see="state", masks="info")
    policy, again = (ActorCritic(env.obs_space, env.action_space, PolicyConfig(hidden=(8,))) for _ in range(2))
    obs = env.reset(0)
    policy.learn_scales([obs])
    saved = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    saved["normalizer._shift"][-3:], saved["normalizer._scale"][-3:] = 1.0, -1.0
    again.load_state_dict(saved)
    expected, _ = policy.params_of(policy.prepare(obs), policy.start(4))
    actual, _ = again.params_of(again.prepare(obs), again.start(4))
    assert torch.equal(actual, expected)
    assert (actual[made_of(env, obs) == 0] < -1e7).all()


# Where masks come from ----------------------------------------------------------------------------------
def test_masks_from_a_key_an_info_and_a_method_are_the_same() -> None:
    envs = [catch(see="both", masks="key"), catch(see="state", masks="info"), catch(see="state", masks="method")]
    envs.append(catch(see="state", masks="info", workers=2))
    rows = [env.reset(3) for env in envs]
    for _ in range(12):
        masks = [made_of(env, row) for env, row in zip(envs, rows, strict=True)]
        assert all(torch.equal(masks[0].float(), mask.float()) for mask in masks[1:])
        action = masks[0].float().argmax(1) + 5
        rows = [env.step(action).obs for env in envs]
    envs[-1].close()


def test_masks_can_be_left_alone() -> None:
    assert catch(see="state", masks="info", action_masks=False).obs_space.shape == (3,)
    env = catch(see="both", masks="key", action_masks=False)
    assert isinstance(env.obs_space, RowSpace)
    assert env.obs_space.mask is None
    assert [part.name for part in env.obs_space.parts] == ["action_mask", "state", "image"]


def test_a_state_without_a_valid_action_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    env = catch(see="state", masks="info")
    env.reset(0)
    monkeypatch.setattr(catch_env.Catch, "_mask", lambda self: np.array([0, self.height < 3, 0], np.int8))
    stay = torch.full((3,), 6)
    for _ in range(2):
        env.step(stay)
    with pytest.raises(EnvError, match="the mask of row 0 at step 3 leaves no valid action"):
        env.step(stay)


BESIDE: dict[str, Any] = {
    "numbers": spaces.Box(-1, 1, (3,), np.float64),
    "a matrix": spaces.Box(-1, 1, (2, 2)),
    "a choice": spaces.Discrete(4, start=-1),
    "choices": spaces.MultiDiscrete([2, 3]),
    "bytes": spaces.Box(0, 255, (3, 2), np.uint8),
    "an image": spaces.Box(0, 255, (9, 9, 3), np.uint8),
    "parts": spaces.Dict({"image": spaces.Box(0, 255, (8, 8, 3), np.uint8), "x": spaces.Box(-1, 1, (2,))}),
}


class Beside(gym.Env):
    """Shows anything, and beside it a mask."""

    action_space = spaces.Discrete(3)

    def __init__(self, seen: gym.Space, mask: Any) -> None:
        self.observation_space, self.mask, self.shown = seen, mask, seen.sample()

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self.shown, {MASK: self.mask}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.shown, 0.0, False, False, {MASK: self.mask}


def beside(seen: gym.Space, *masks: Any) -> GymBlock:
    spaces_of = adapt_spaces(seen, spaces.Discrete(3), "beside", "info")
    return GymBlock("beside", [Beside(seen, mask) for mask in masks], NO_LIMIT, spaces_of)


@pytest.mark.parametrize("name", BESIDE)
def test_a_mask_beside_an_observation_lies_in_the_row_as_one_inside_it(name: str) -> None:
    masks = [np.array([0, 1, 0], np.int8), [2.5, 0, -1], np.array([False, True, True])]
    block = beside(BESIDE[name], *masks)
    assert isinstance(block.of.obs, RowSpace)
    block.reset(0)
    for _ in range(2):  # the second step knows the type of what it stores
        expected = [block.of.obs.to_row(add_mask(env.shown, env.mask)) for env in block.envs]
        np.testing.assert_array_equal(block.rows.obs, expected)
        for env in block.envs:
            env.shown = env.observation_space.sample()
        block.step([0, 1, 2])


@pytest.mark.parametrize("wrong", [np.ones(4, np.int8), [1, [1], 0], None, "110", np.ones((1, 3))])
def test_what_is_no_mask_is_said(wrong: Any) -> None:
    block = beside(BESIDE["numbers"], np.ones(3), wrong)
    with pytest.raises(EnvError, match=r"action_mask of row 1 at step 0 is .*; it must be 3 numbers"):
        block.reset(0)


def test_a_choice_that_is_not_there_is_said() -> None:
    block = beside(BESIDE["a choice"], np.ones(3))
    block.reset(0)
    block.envs[0].shown = 3
    with pytest.raises(EnvError, match="row 0 at step 1 does not fit its space: ValueError: 3 is not in it"):
        block.step([0])


def test_a_mask_of_continuous_actions_is_refused() -> None:
    obs = spaces.Dict({"x": spaces.Box(-1, 1, (3,)), MASK: spaces.MultiBinary(2)})
    with pytest.raises(ConfigError, match="only choices can be masked"):
        adapt_spaces(obs, spaces.Box(-1, 1, (2,)), "arm")


def test_check_takes_valid_actions_and_says_so() -> None:
    findings = check_env(lambda n: catch(n, see="state", masks="info"))
    assert not [finding for finding in findings if finding.level == "error"], findings
    assert any("Masks rule actions out" in finding.what for finding in findings)


# Through a training ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("masks", "settings"),
    [
        ({"see": "state", "masks": "info"}, {}),
        ({"see": "both", "masks": "key"}, {"policy.memory": "lstm", "policy.memory_size": 8}),
        ({"see": "state", "masks": "method", "act": "mixed"}, {}),
        ({"see": "state", "masks": "info"}, {"algo": "dqn"}),
    ],
)
def test_training_evaluating_acting_and_exporting_take_valid_actions_only(
    masks: dict[str, Any], settings: dict[str, Any], tmp_path: Path
) -> None:
    """The environment raises when it is given another."""
    quick = QUICK | ({"replay": {"warmup": 64, "batch_size": 32}} if "algo" in settings else {})
    quick = {k: v for k, v in quick.items() if k != "ppo" or "algo" not in settings}
    small = {"policy.hidden": (8,), "policy.image_features": 8}
    run = ludus.train(CATCH, tmp_path / "run", env={"num_envs": 4, "kwargs": masks}, overrides=small | settings,
                      **{k: v for k, v in quick.items() if k != "env"})  # fmt: skip
    assert len(evaluate_run(run, 20, deterministic=False, trust=True).returns) == 20
    policy = ludus.load(run, trust=True)
    inner = catch_env.Catch(**masks)
    actor = policy.actor()
    obs, _ = inner.reset(seed=0)
    for _ in range(7):
        mask = None if masks["masks"] == "key" else inner._mask()
        obs, *_ = inner.step(actor.act(obs, mask))
    assert export_onnx(run, tmp_path / "policy.onnx", trust=True) <= 1e-4


def test_a_policy_that_chooses_among_valid_actions_asks_for_the_mask(tmp_path: Path) -> None:
    run = ludus.train(CATCH, tmp_path / "run", **QUICK | {"env": {"kwargs": {"see": "state", "masks": "info"}}})
    policy = ludus.load(run, trust=True)
    with pytest.raises(LudusError, match=r"act\(obs, action_mask=\.\.\.\)"):
        policy.act(np.zeros(3, np.float32))
    assert policy.act(np.zeros(3, np.float32), action_mask=np.array([0, 0, 1])) == 7
    many = policy.act(np.zeros((2, 3), np.float32), action_mask=np.array([[0, 1, 0], [1, 0, 0]]))
    assert many.tolist() == [6, 5]
    with pytest.raises(LudusError, match="does not fit"):
        policy.act({"wrong": 1}, action_mask=np.ones(3))


def test_the_exported_policy_heeds_the_mask(tmp_path: Path) -> None:
    import onnxruntime

    run = ludus.train(CATCH, tmp_path / "run", **QUICK | {"env": {"kwargs": {"see": "state", "masks": "info"}}})
    export_onnx(run, tmp_path / "policy.onnx", trust=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    for only in range(3):
        mask = np.eye(3, dtype=np.float32)[[only]]
        action = session.run(None, {"observation": np.zeros((1, 3), np.float32), MASK: mask})[0]
        assert action.tolist() == [5 + only]
    assert read_metadata(tmp_path / "policy.onnx")["action_mask"] == {"input": MASK, "size": 3, "valid": 1}


def assert_resumes_exactly(folder: Path, preset: str = CATCH, **settings: Any) -> None:
    whole = ludus.train(preset, folder / "whole", **settings)
    cut = ludus.train(preset, folder / "cut", callbacks=[StopAfter(3)], **settings)
    ludus.resume(cut)
    assert_same_run(cut, whole)


@pytest.mark.parametrize("settings", [{}, {"policy.memory": "lstm", "policy.memory_size": 8}])
def test_a_resumed_run_with_masks_and_mixed_actions_is_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    env = {"num_envs": 4, "kwargs": {"see": "state", "masks": "info", "act": "mixed"}}
    assert_resumes_exactly(tmp_path, **QUICK | {"env": env, "overrides": {"policy.hidden": (8,), **settings}})


@pytest.mark.parametrize("act", ["bits", "mixed"])
def test_the_catch_is_learned_with_other_actions(act: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"env": {"num_envs": 16, "kwargs": {"see": "state", "act": act, "size": 5}}}
    settings |= {"ppo": {"horizon": 32, "minibatches": 4, "learning_rate": 3e-3, "entropy_coef": 0.01}}
    settings |= {
        "loop": {"total_steps": 30_000},
        "eval": {"every": 30_000, "episodes": 50},
        "log": {"report": False},
    }
    run = ludus.train(CATCH, tmp_path / "run", **settings)
    reached = run.metrics["eval/success_rate"].values[-1]
    assert reached >= (0.9 if act == "mixed" else 0.4)  # two bits: left or stay, never right


def test_a_module_of_the_users_sees_named_parts_without_the_mask(tmp_path: Path) -> None:
    shapes: list[Any] = []

    class Net(nn.Module):
        def __init__(self, obs: dict[str, tuple[int, ...]]) -> None:
            super().__init__()
            shapes.append(obs)
            self.layer = nn.Linear(3, 4)

        def forward(self, obs: dict[str, Tensor]) -> Tensor:
            return self.layer(obs["state"]) + obs["image"].mean((1, 2, 3))[:, None]

    space = catch(see="both", masks="key").obs_space
    policy = ActorCritic(space, spaces.Discrete(3), PolicyConfig(network="given:here"), Net)
    assert shapes == [{"state": (3,), "image": (3, 8, 8)}]
    assert policy.features == 4


def test_a_mask_may_be_missing_after_the_last_step_but_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    env = catch(2, see="state", masks="info")
    env.reset(0)
    stay = torch.full((2,), 6)
    info = catch_env.Catch._info
    monkeypatch.setattr(catch_env.Catch, "_info", lambda self: {} if self.height == self.size - 1 else info(self))
    done = [bool(env.step(stay).done.any()) for _ in range(20)]
    assert any(done)
    monkeypatch.setattr(catch_env.Catch, "_info", lambda self: {})
    with pytest.raises(EnvError, match="was not given"):
        env.step(stay)


def test_the_policy_of_a_row_with_another_order_is_refused() -> None:
    """Rows of Dicts with a mask had it in another place before masks were heeded."""
    from ludus.errors import CheckpointError
    from ludus.policies.fit import refuse_misfit

    env = catch(2, see="state", masks="info")
    old = ActorCritic(spaces.Box(-1, 1, env.obs_space.shape), env.action_space, PolicyConfig())
    with pytest.raises(CheckpointError, match=r"\(observation, action_mask\).*train it anew"):
        refuse_misfit(old, env)


@pytest.mark.parametrize("kind", ["sac", "td3", "dqn"])
def test_only_ppo_acts_in_several_parts(kind: str) -> None:
    from ludus.policies.replay_policy import ReplayPolicy

    with pytest.raises(ConfigError, match=r"acts in one space.*--algo ppo"):
        ReplayPolicy(kind, spaces.Box(-1, 1, (3,)), SPACES["mixed"], PolicyConfig())


def test_observations_in_a_tuple_are_acted_on() -> None:
    raw = spaces.Tuple((spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (2, 2)), spaces.Discrete(4)))
    policy = ActorCritic(RowSpace(raw), spaces.Discrete(3), PolicyConfig(hidden=(4,)))
    assert policy.act(raw.sample()) in range(3)
