"""Adversarial imitation: the loss against a slow version, the windows it is taken of, and that policies follow."""

import inspect
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import imitation_envs
import ludus
from imitation_envs import SPREAD, WANTED, Drift, make_drift
from ludus.algorithms.imitation.config import AdversaryConfig
from ludus.algorithms.imitation.discriminator import (
    Adversary,
    adversarial_loss,
    adversary_bytes,
    make_discriminator,
    style_reward,
)
from ludus.algorithms.imitation.job import ImitationJob, StyleReward
from ludus.algorithms.imitation.windows import RolloutWindows, WindowReplay
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.algorithms.ppo.job import PPOJob
from ludus.algorithms.registry import make_job
from ludus.envs.check import check_env
from ludus.envs.episodic import EpisodicReward
from ludus.envs.vec import VecEnv
from ludus.envs.wrapper import WrappedEnv
from ludus.errors import ConfigError, EnvError
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.show.console import Console
from ludus.training.checkpoint import checkpoints_in, load_policy, newest_intact
from stopped_runs import StopAfter

Settings = dict[str, Any]
CPU = torch.device("cpu")
SMALL = AdversaryConfig(hidden=(16, 8), batch_size=64, replay=500, learning_rate=1e-3)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# The loss -----------------------------------------------------------------------------------------------
def slow_loss(weights: list[np.ndarray], demo: np.ndarray, policy: np.ndarray, config: AdversaryConfig) -> float:
    """One window after the other, the slope by following the units that are on."""
    *matrices, last, last_bias = weights
    layers = list(zip(matrices[::2], matrices[1::2], strict=True))

    def logit_and_slope(x: np.ndarray) -> tuple[float, float]:
        slope = np.eye(len(x))
        for matrix, bias in layers:
            before = matrix @ x + bias
            x, slope = np.maximum(before, 0.0), (before > 0)[:, None] * (matrix @ slope)
        return float(last[0] @ x + last_bias[0]), float(((last[0] @ slope) ** 2).sum())

    ofs = {side: [logit_and_slope(x) for x in windows] for side, windows in ((1, demo), (-1, policy))}
    loss, penalties = 0.0, {}
    for side, judged in ofs.items():
        for logit, _ in judged:
            wrong = math.log(1 + math.exp(-side * logit)) if config.reward == "log" else (logit - side) ** 2
            loss += 0.5 * wrong / len(judged)
        penalties[side] = sum(slope for _, slope in judged) / len(judged)
    penalty = {"demonstrations": penalties[1], "policy": penalties[-1], "both": sum(penalties.values()) / 2}
    loss += config.gradient_penalty * penalty[config.penalized]
    loss += config.logit_regularizer * (last**2).sum()
    return float(loss + config.weight_decay * sum((m**2).sum() for m in [*matrices[::2], last]))


@pytest.mark.parametrize("reward", ["log", "square"])
@pytest.mark.parametrize("penalized", ["demonstrations", "policy", "both"])
def test_loss_and_gradient_equal_a_slow_version(reward: Any, penalized: Any) -> None:
    config = AdversaryConfig(
        hidden=(7, 5),
        reward=reward,
        penalized=penalized,
        gradient_penalty=0.7,
        logit_regularizer=0.3,
        weight_decay=0.2,
    )
    model = make_discriminator(4, config.hidden, 3).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):  # the head starts too small to matter
            parameter.copy_(0.7 * random(*parameter.shape, seed=number))
    demo, policy = random(9, 4, seed=20).double(), random(6, 4, seed=21).double()
    loss, measures = adversarial_loss(model, demo, policy, config)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    weights = [p.detach().numpy().copy() for p in model.parameters()]

    def slow() -> float:
        return slow_loss(weights, demo.numpy(), policy.numpy(), config)

    assert loss.item() == pytest.approx(slow(), rel=1e-12)
    assert measures[0].item() == loss.item()
    for array, gradient in zip(weights, gradients, strict=True):
        for place in np.ndindex(array.shape):
            kept, step = array[place], 1e-6
            array[place] = kept + step
            above = slow()
            array[place] = kept - step
            below = slow()
            array[place] = kept
            assert float(gradient[place]) == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-7)


def test_measures_say_what_they_are_called() -> None:
    model = make_discriminator(2, (), 0)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0, 0.0]]))
    demo, policy = torch.tensor([[1.0, 5], [2, 5], [-1, 5]]), torch.tensor([[-1.0, 5], [3, 5]])
    config = AdversaryConfig(logit_regularizer=0.0, weight_decay=0.0, gradient_penalty=0.0)
    _, (loss, right_demo, right_policy, penalty, mean_demo, mean_policy, paid) = adversarial_loss(
        model, demo, policy, config
    )
    assert (float(right_demo), float(right_policy)) == (pytest.approx(2 / 3), 0.5)
    assert (float(mean_demo), float(mean_policy), float(penalty)) == (pytest.approx(2 / 3), 1.0, 1.0)
    assert loss.item() == pytest.approx(
        0.5 * (np.log1p(np.exp([-1, -2, 1])).mean() + np.log1p(np.exp([-1, 3])).mean()), rel=1e-6
    )
    assert float(paid) == pytest.approx(2 * np.log1p(np.exp([-1, 3])).mean(), rel=1e-6)


def test_rewards_are_those_of_the_papers() -> None:
    logit = torch.tensor([-50.0, -2.0, 0.0, 1.0, 3.0, 50.0])
    log = style_reward(logit, AdversaryConfig(reward="log", style_scale=3.0))
    wanted = -3.0 * torch.log(torch.clamp(1 - torch.sigmoid(logit.double()), min=1e-4))
    torch.testing.assert_close(log.double(), wanted, rtol=1e-6, atol=1e-6)
    square = style_reward(logit, AdversaryConfig(reward="square", style_scale=2.0))
    torch.testing.assert_close(square, torch.tensor([0.0, 0.0, 1.5, 2.0, 0.0, 0.0]))


# Windows ------------------------------------------------------------------------------------------------
def test_the_rollout_holds_each_window_once_and_draws_them_alike() -> None:
    rollout = RolloutWindows(6, [3, 2], 1, CPU)
    for step in range(4):  # of at most 6
        for group, rows in enumerate(([0, 1, 2], [3, 4])):
            rollout.write(group, torch.tensor([[10.0 * step + row] for row in rows]))
    drawn = rollout.draw(20_000, torch.Generator().manual_seed(0)).flatten()
    values, counts = drawn.unique(return_counts=True)
    assert values.tolist() == [10 * step + row for step in range(4) for row in range(5)]
    assert float((counts - 1000).abs().max()) < 5 * math.sqrt(1000)
    for step in range(4, 8):  # two more than fit
        for group, count in enumerate((3, 2)):
            rollout.write(group, torch.full((count, 1), float(step)))
    assert rollout.draw(1000, torch.Generator()).unique().tolist() == [4, 5, 6, 7, *range(20, 25), *range(30, 35)]
    rollout.clear()
    for group, count in enumerate((3, 2)):
        rollout.write(group, torch.full((count, 1), 99.0))
    assert rollout.draw(100, torch.Generator()).unique().tolist() == [99]


def test_the_replay_keeps_all_while_there_is_room_and_then_forgets_at_the_expected_rate() -> None:
    generator, capacity, part = torch.Generator().manual_seed(1), 1000, 100
    replay = WindowReplay(capacity, 1, CPU)
    for number in range(10):
        replay.add(torch.full((part, 1), float(number)), generator)
        assert replay.stored == part * (number + 1)
    assert replay.state()["windows"].flatten().tolist() == [float(n) for n in range(10) for _ in range(part)]
    for number in range(10, 30):
        replay.add(torch.full((part, 1), float(number)), generator)
    kept = torch.bincount(replay.state()["windows"].flatten().long(), minlength=30)
    assert int(kept.sum()) == capacity
    assert int(kept[29]) == part  # none of the newest is overwritten by another of them
    survival = 0.9 ** (29 - torch.arange(10, 30)).double()
    assert float((kept[10:] - part * survival).abs().max()) < 25  # five standard deviations
    assert float(kept[:10].sum()) == pytest.approx(capacity * 0.9**20, abs=50)
    drawn = replay.draw(50_000, generator).long().flatten()
    torch.testing.assert_close(
        torch.bincount(drawn, minlength=30) / 50_000, kept / capacity, rtol=0, atol=5 * math.sqrt(0.1 / 50_000)
    )
    replay.add(torch.arange(1500.0)[:, None], generator)  # more than fits
    assert sorted(replay.state()["windows"].flatten().tolist()) == list(range(1000))


def test_a_replay_fills_up_and_replaces_within_one_call() -> None:
    replay = WindowReplay(10, 1, CPU)
    replay.add(torch.zeros((8, 1)), torch.Generator())
    replay.add(torch.ones((5, 1)), torch.Generator())
    assert replay.state()["windows"].flatten()[8:].tolist() == [1, 1]
    assert float(replay.state()["windows"].sum()) == 5


# Telling apart ------------------------------------------------------------------------------------------
class Clouds(Drift):
    """Demonstrations around WANTED, in units of `scale`."""

    scale = 1.0

    def demonstrations(self, count: int, generator: torch.Generator) -> Tensor:
        return self.scale * super().demonstrations(count, generator)


def told_apart(config: AdversaryConfig, distance: float, scale: float = 1.0, updates: int = 60) -> Settings:
    """What an adversary says of policy windows that lie `distance` spreads away from the demonstrations."""
    env = Clouds(50, False, 10, CPU)
    env.scale = scale
    adversary = Adversary(2, [50], 10, config, 0, CPU, CPU)
    random_stream = torch.Generator().manual_seed(7)
    metrics: dict[str, Tensor] = {}
    for _ in range(updates):
        for _ in range(10):
            near = torch.tensor(WANTED) + SPREAD * torch.randn((50, 2), generator=random_stream)
            adversary.record(scale * (near + torch.tensor([distance * SPREAD, 0.0])))
        metrics = adversary.update(env)
    return {name.removeprefix("adversary/"): float(value) for name, value in metrics.items()}


@pytest.mark.parametrize("reward", ["log", "square"])
@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_clouds_are_told_apart_whatever_their_units_and_one_cloud_is_not(reward: Any, scale: float) -> None:
    config = replace(SMALL, reward=reward, batch_size=256, gradient_penalty=0.1, learning_rate=3e-3)
    apart = told_apart(config, distance=6.0, scale=scale)
    assert min(apart["accuracy_demo"], apart["accuracy_policy"]) > 0.97
    assert apart["logit_demo"] > 0 > apart["logit_policy"]
    same = told_apart(config, distance=0.0, scale=scale)
    assert (same["accuracy_demo"] + same["accuracy_policy"]) / 2 == pytest.approx(0.5, abs=0.07)
    assert same["style_reward"] > apart["style_reward"]


def test_a_steeper_slope_is_allowed_where_the_penalty_is_small() -> None:
    loose, tight = (told_apart(replace(SMALL, gradient_penalty=c), 3.0) for c in (0.01, 10.0))
    assert loose["gradient_penalty"] > 5 * tight["gradient_penalty"]


def test_within_a_rollout_all_windows_are_judged_by_the_same_measure() -> None:
    env, adversary = make_drift(8), Adversary(2, [8], 5, SMALL, 0, CPU, CPU)
    windows = random(8, 2)
    for _ in range(3):
        paid = adversary.reward(windows)
        for _ in range(5):
            adversary.record(10 * random(8, 2, seed=3))
            assert torch.equal(adversary.reward(windows), paid)
        adversary.update(env)
        assert not torch.equal(adversary.reward(windows), paid)
    normalizer = adversary.discriminator.normalizer
    assert int(normalizer.count) == 3 * 2 * SMALL.batch_size  # demonstrations and the policy's, as many of each


# The wrapper --------------------------------------------------------------------------------------------
def make_style(num_envs: int = 4, **weights: Any) -> StyleReward:
    env = make_drift(num_envs)
    adversary = Adversary(2, [num_envs], 20, replace(SMALL, **weights), 0, CPU, CPU)
    with torch.no_grad():
        adversary.discriminator.head.weight.copy_(random(1, 8))
    return StyleReward(env, adversary)


def test_a_style_reward_keeps_the_contract() -> None:
    findings = check_env(lambda num_envs: make_style(num_envs))
    assert [f for f in findings if f.level != "ok"] == []


def test_both_rewards_are_paid_by_their_weights_and_their_means_are_told() -> None:
    style, plain = make_style(6, task_weight=0.3, style_weight=2.0), make_drift(6)
    adversary = style.adversary
    assert torch.equal(style.reset(1), plain.reset(1))
    sums, lengths = torch.zeros((2, 6)), torch.zeros(6)
    generator, ended = torch.Generator().manual_seed(0), 0
    for _ in range(35):
        action = torch.rand((6, 2), generator=generator) * 2 - 1
        step, truth = style.step(action), plain.step(action)
        judged = adversary.reward(plain.motion)
        torch.testing.assert_close(step.reward, 0.3 * truth.reward + 2.0 * judged)
        assert torch.equal(step.obs, truth.obs)
        sums += torch.stack([judged, truth.reward])
        lengths += 1
        done = truth.done
        ended += int(done.sum())
        for name, total in zip(("style_reward", "task_reward"), sums, strict=True):
            torch.testing.assert_close(step.metrics[name][done], (total / lengths)[done])
        assert torch.equal(step.metrics["error"], truth.metrics["error"])
        sums[:, done], lengths[done] = 0.0, 0
    assert ended > 18


def test_what_is_recorded_is_the_motion_of_the_step_also_where_an_episode_ended() -> None:
    style = make_style(3)
    style.reset(0)
    actions = torch.rand((15, 3, 2)) * 2 - 1
    for action in actions:
        style.step(action)
    drawn = style.adversary.rollout.draw(3000, torch.Generator())
    assert {tuple(w) for w in drawn.tolist()} == {tuple(w) for w in actions.flatten(0, 1).tolist()}


class Told:
    """Answers every question about the contract with its name and what it was told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: (name, *arguments)


def test_a_wrapper_passes_on_the_whole_contract() -> None:
    env: Any = Told()
    wrapper = WrappedEnv(env)
    methods = [n for n, what in vars(VecEnv).items() if inspect.isfunction(what) and not n.startswith("_")]
    own = {"step", "begin_step", "state", "load_state"}  # returns nothing, or is made of others
    for name in {*VecEnv.__annotations__, *methods} - own:
        count = len(inspect.signature(getattr(VecEnv, name)).parameters) - 1 if name in methods else 0
        assert getattr(wrapper, name)(*range(count)) == (name, *range(count))
    wrapper.close = lambda: "its own"  # type: ignore[assignment,method-assign]
    assert wrapper.close() == "its own"  # type: ignore[func-returns-value]
    assert wrapper.state() == {"env": ("state",)}


def test_wrappers_go_around_each_other() -> None:
    episodic = EpisodicReward(make_drift(4))
    style = StyleReward(episodic, Adversary(2, [4], 5, SMALL, 0, CPU, CPU))
    assert style.motion is episodic.env.motion
    assert style.hidden_reward is episodic.hidden_reward
    assert style.demonstrations(3, torch.Generator()).shape == (3, 2)


def test_rows_without_an_agent_are_refused() -> None:
    env = make_drift(2)
    env.present = torch.ones(2, dtype=torch.bool)
    with pytest.raises(EnvError, match="rows without an agent"):
        StyleReward(env, Adversary(2, [2], 5, SMALL, 0, CPU, CPU))


# Training -----------------------------------------------------------------------------------------------
DRIFT = f"vec:{imitation_envs.__name__}:make_drift"
TOY: Settings = {
    "env.num_envs": 64,
    "ppo.horizon": 16,
    "ppo.minibatches": 4,
    "ppo.update_epochs": 4,
    "ppo.gamma": 0.0,
    "ppo.learning_rate": 2e-3,
    "ppo.entropy_coef": 0.02,
    "ppo.entropy_coef_final": 0.02,
    "policy.hidden": [32],
    "adversary.task_weight": 0.0,
    "adversary.style_weight": 1.0,
    "adversary.hidden": [64, 32],
    "adversary.learning_rate": 1e-3,
    "adversary.batches": 8,
    "adversary.batch_size": 256,
    "adversary.replay": 4000,
    "adversary.gradient_penalty": 0.1,
    "loop.total_steps": 120 * 64 * 16,
    "eval.every": 10**9,
    "eval.episodes": 64,
    "eval.stochastic": False,
    "eval.final_episodes": 0,
    "log.report": False,
    "log.tensorboard": False,
}


def train(folder: Path, *callbacks: ludus.Callback, **changes: Any) -> Path:
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return ludus.train(DRIFT, folder, callbacks, Console("quiet"), overrides=TOY | changes, algo="amp")


def last_row(run: Path) -> dict[str, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {name: value for row in rows for name, value in row.items()}


@pytest.mark.parametrize("reward", ["log", "square"])
def test_without_a_task_the_motion_becomes_the_demonstrated_one(tmp_path: Path, reward: str) -> None:
    run = train(tmp_path / "run", adversary__reward=reward)
    policy = load_policy(newest_intact(run / "checkpoints", pytest.fail))
    env, g = make_drift(1000), torch.Generator().manual_seed(0)
    motion = policy.actor(False, g).act(env.reset(5)).clamp(-1, 1)
    torch.testing.assert_close(motion.mean(0), torch.tensor(WANTED), rtol=0, atol=0.1)
    assert 0.07 < float(motion.std(0).min()) <= float(motion.std(0).max()) < 0.3  # demonstrated is 0.15
    row = last_row(run)
    assert row["rollout/style_reward"] > 1.2
    assert {
        "adversary/loss",
        "adversary/accuracy_demo",
        "adversary/gradient_penalty",
        "rollout/task_reward",
    } <= set(row)


@pytest.mark.parametrize("penalized", ["demonstrations", "policy"])
def test_differences_from_what_is_seen_become_none(tmp_path: Path, penalized: str) -> None:
    """ADD: the tracking error is the motion, and zeros are demonstrated."""
    run = train(tmp_path / "run", env__kwargs={"differences": True}, adversary__penalized=penalized)
    assert last_row(run)["eval/error"] < 0.1  # standing still it would be 0.6


SHORT: Settings = {
    "env__num_envs": 10,
    "groups": 2,
    "ppo__segments": 12,  # which the rows do not divide
    "ppo__horizon": 8,
    "adversary__batches": 3,
    "adversary__batch_size": 64,
    "adversary__replay": 300,
    "loop__total_steps": 14 * 12 * 8,
    "eval__episodes": 4,
}


def saved(run: Path) -> dict[str, bytes]:
    checkpoint = checkpoints_in(run / "checkpoints")[-1]
    parts = {part: load_file(checkpoint / f"{part}.safetensors") for part in ("policy", "training")}
    return {f"{part}:{name}": t.numpy().tobytes() for part, found in parts.items() for name, t in found.items()}


@pytest.mark.parametrize("stop", [1, 7])
def test_a_stopped_run_goes_on_exactly_with_its_adversary_and_replay(tmp_path: Path, stop: int) -> None:
    whole = train(tmp_path / "whole", **SHORT)
    part = train(tmp_path / "part", StopAfter(stop), **SHORT)
    ludus.resume(part, (), Console("quiet"))
    ours, theirs = saved(part), saved(whole)
    assert ours == theirs
    names = " ".join(ours)
    assert all(
        f"adversary/{what}" in names
        for what in ("replay/windows", "optimizer/exp_avg", "demo_generator", "discriminator/normalizer.mean")
    )


def job_with(preset: str = DRIFT, **changes: Any) -> OnPolicyJob:
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    config = apply_overrides(find_preset(preset, "amp" if preset == DRIFT else "").config, changes)
    config.check()
    job = make_job(config, CPU)
    assert isinstance(job, OnPolicyJob)
    job.close()
    return job


def test_only_environments_with_motion_get_an_adversary_and_its_memory_is_planned() -> None:
    assert type(job_with("gym:CartPole-v1", env__num_envs=2, ppo__segments=0)) is PPOJob
    job = job_with(env__num_envs=8, adversary__replay=1000)
    assert type(job) is ImitationJob
    assert "adversary 512 × 256 on windows of 2 numbers" in job.lines()[-1]
    assert "adversary" in job.memory_plan.line()
    more = job_with(env__num_envs=8, adversary__replay=3000)
    assert more.memory_plan.total - job.memory_plan.total == 2000 * 2 * 4
    assert adversary_bytes(840, 64, 32, AdversaryConfig()) > 4 * 840 * (64 * 32 + 10_000)


def test_an_adversary_that_is_not_finite_counts_as_skipped() -> None:
    job = job_with(env__num_envs=8, ppo__horizon=8, ppo__minibatches=2, adversary__batch_size=16)
    assert isinstance(job, ImitationJob)
    with torch.no_grad():
        job.adversary.discriminator.head.weight.mul_(1e30)
    metrics = job.iteration(0, 0.0, lambda share, batch: None)
    assert int(metrics["train/skipped_updates"]) == job.plan.batches_per_iteration  # all of them, so to speak
    job.learner.rate_factor = 4.0  # as the divergence wants it
    job.set_rate_factor(2.0)
    assert job.adversary.rate_factor == 0.5
    job.set_rate_factor(3.0)
    assert job.adversary.rate_factor == 0.5


@pytest.mark.parametrize(
    ("name", "value"),
    [("batches", 0), ("replay_share", 1.5), ("hidden", [0]), ("gradient_penalty", -1.0), ("batch_size", 0)],
)
def test_numbers_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    flag = f"--adversary.{name.replace('_', '-')}"
    with pytest.raises(ConfigError, match=flag):
        apply_overrides(find_preset("humanoid-amp").config, {f"adversary.{name}": value}).check()


def test_rollouts_without_a_step_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--ppo\.segments"):
        job_with(env__num_envs=64, ppo__segments=2, ppo__horizon=8, ppo__minibatches=1)
