"""Distillation: a student that sees less learns to act as its teacher does, in the states it gets itself into."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import ludus
from ludus.algorithms.distill.config import DistillConfig
from ludus.algorithms.distill.job import load_teacher, make_advice
from ludus.algorithms.distill.update import Distiller
from ludus.algorithms.on_policy.collector import Collector
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.row_space import MASK, RowSpace, choice_slices
from ludus.errors import CheckpointError, ConfigError, TrustError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig
from ludus.runs import evaluate_run
from stopped_runs import StopAfter, assert_same_run
from test_masks import CATCH, catch, random_mask
from test_trust import rewrite

QUIET: dict[str, Any] = {"log": {"report": False, "tensorboard": False}}
TEACHER: dict[str, Any] = {
    "env": {"num_envs": 16, "kwargs": {"see": "state", "size": 5}},
    "ppo": {"horizon": 32, "minibatches": 4, "learning_rate": 3e-3, "entropy_coef": 0.01},
    "loop": {"total_steps": 20_000},
    "eval": {"every": 20_000, "episodes": 50, "stochastic": False},
}
STUDENT: dict[str, Any] = {
    "algo": "distill",
    "env": {"num_envs": 16, "kwargs": {"see": "both", "size": 8}},
    "loop": {"total_steps": 8_000},
    "eval": {"every": 8_000, "episodes": 100, "stochastic": False},
}
SEES_IMAGE = {"policy.actor_parts": ("image",), "policy.hidden": (32,), "policy.image_features": 32}


def train_teacher(folder: Path, steps: int) -> Path:
    env = {"num_envs": 16, "kwargs": {"see": "state", "size": 8}}
    return ludus.train(CATCH, folder, **TEACHER | QUIET | {"env": env, "loop": {"total_steps": steps}})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that knows next to nothing, for what holds of any."""
    return train_teacher(tmp_path_factory.mktemp("teacher") / "run", 1024)


def student_settings(teacher: Path, **more: Any) -> dict[str, Any]:
    distill = {"teacher": str(teacher), "teacher_part": "state", "minibatches": 4, "learning_rate": 3e-3}
    return {**STUDENT, **QUIET, "distill": distill, "overrides": SEES_IMAGE | more}


# What is learned ----------------------------------------------------------------------------------------
def test_a_student_that_sees_images_learns_what_its_teacher_knows_of_the_state(
    tmp_path: Path,
) -> None:
    teacher = train_teacher(tmp_path / "teacher", 60_000)
    run = ludus.train(CATCH, tmp_path / "run", **student_settings(teacher))
    knows = float(np.mean(evaluate_run(teacher, 200, True, trust=True).returns))
    assert knows >= 0.9
    assert float(np.mean(evaluate_run(run, 200, True, trust=True).returns)) >= knows - 0.15


@pytest.mark.parametrize("settings", [{}, {"policy.memory": "lstm", "policy.memory_size": 8}])
def test_a_stopped_distillation_goes_on_exactly(settings: dict[str, Any], teacher: Path, tmp_path: Path) -> None:
    quick = {"loop.total_steps": 16 * 16 * 5, "eval.every": 512, "eval.episodes": 4, "log.tensorboard": True}
    given = student_settings(teacher, **quick, **settings)
    whole = ludus.train(CATCH, tmp_path / "whole", **given)
    cut = ludus.train(CATCH, tmp_path / "cut", callbacks=[StopAfter(3)], **given)
    ludus.resume(cut)
    assert_same_run(cut, whole)


# The mathematics ----------------------------------------------------------------------------------------
def test_a_gradient_step_is_autograds_of_the_mean_log_probability() -> None:
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    torch.manual_seed(0)
    student = ActorCritic(gym.spaces.Box(-1, 1, (3,), np.float32), space, PolicyConfig(hidden=(8,)))

    def advice(obs: torch.Tensor) -> torch.Tensor:
        return obs[:, :2] * 0.5

    schedule = SegmentSchedule(4, 4, 8)
    config = DistillConfig(minibatches=1, update_epochs=1, max_grad_norm=1e9, learning_rate=0.0)
    distiller = Distiller(student, advice, config, schedule, seed=0)
    obs = torch.randn(4 * 8, 3)
    data = distiller._data
    data.track = None
    data.x.copy_(student.prepare(obs))
    data.steps[:, :2] = advice(obs)
    distiller._ids.copy_(torch.arange(32))
    with torch.no_grad():
        distiller._train_on_part()
    written = [parameter.grad.clone() for parameter in student.parameters() if parameter.grad is not None]
    params, _, _ = student.params_and_value_of(student.prepare(obs), student.start(0))
    loss = -student.head.log_prob(params, advice(obs)).mean()
    expected = torch.autograd.grad(loss, list(student.parameters()), allow_unused=True)
    for made, wanted in zip(written, expected, strict=True):
        torch.testing.assert_close(
            made, torch.zeros_like(made) if wanted is None else wanted, rtol=1e-4, atol=1e-6
        )


@pytest.mark.parametrize("space", [gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([3, 2])])
def test_advice_that_is_not_valid_teaches_nothing(space: gym.spaces.Discrete | gym.spaces.MultiDiscrete) -> None:
    """Row by row, over the valid choices alone; a row whose advice is ruled out counts as one without a loss."""
    choices = choice_slices(space)
    seen = {"state": gym.spaces.Box(-1, 1, (3,), np.float32), MASK: gym.spaces.MultiBinary(choices[-1].stop)}
    rows = RowSpace(gym.spaces.Dict(seen))
    torch.manual_seed(0)
    student = ActorCritic(rows, space, PolicyConfig(hidden=(8,)))
    with torch.no_grad():
        student.head.linear.weight.mul_(100.0)  # so that choices differ
    n, generator = 32, torch.Generator().manual_seed(1)
    mask = random_mask(space, n, generator)
    obs = torch.cat([torch.randn(n, 3, generator=generator), mask.float()], 1)
    sizes = torch.tensor([choice.stop - choice.start for choice in choices])
    advice = (torch.rand(n, len(choices), generator=generator) * sizes).long()
    config = DistillConfig(minibatches=1, update_epochs=1, max_grad_norm=1e9, learning_rate=0.0)
    distiller = Distiller(student, lambda seen: advice.float(), config, SegmentSchedule(4, 4, 8), seed=0)
    distiller._data.x.copy_(student.prepare(obs)[:, :3])
    distiller._data.mask.copy_(mask)
    distiller._data.steps[:, : len(choices)] = advice.float()
    distiller._ids.copy_(torch.arange(n))
    with torch.no_grad():
        distiller._train_on_part()
    written = [parameter.grad.clone() for parameter in student.parameters() if parameter.grad is not None]
    logits = student.head.linear(student.trunk.act(student.prepare(obs), student.start(0))[0])
    loss, taught = torch.zeros(()), 0
    for row, valid, told in zip(logits, mask, advice, strict=True):
        of_choices = list(zip(choices, told.tolist(), strict=True))
        if all(valid[choice][index] for choice, index in of_choices):
            taught += 1
            for choice, index in of_choices:
                loss = loss - (row[choice][index] - row[choice][valid[choice]].logsumexp(0)) / n
    assert 5 < taught < n - 5
    expected = torch.autograd.grad(loss, list(student.parameters()), allow_unused=True)
    torch.testing.assert_close(distiller._totals[0], loss.detach(), rtol=1e-5, atol=1e-6)
    for made, wanted in zip(written, expected, strict=True):
        torch.testing.assert_close(
            made, torch.zeros_like(made) if wanted is None else wanted, rtol=1e-4, atol=1e-6
        )


def test_the_advice_is_what_the_teacher_does_with_its_part_of_what_the_student_saw(teacher: Path) -> None:
    env = catch(4, see="both", size=8)
    assert isinstance(env.obs_space, RowSpace)
    student = ActorCritic(env.obs_space, env.action_space, PolicyConfig(hidden=(8,), image_features=8))
    master = load_teacher(f"{teacher}@final")
    advice = make_advice(master, student, env, DistillConfig(teacher=str(teacher), teacher_part="state"))
    collector = Collector([env], student, SegmentSchedule(4, 4, 8), 0.99, 0)
    rows = collector.collect(0).track.obs
    told = student.head.to_env(advice(rows))
    assert told.tolist() == master.act(env.obs_space.split(rows)["state"]).tolist()


# Mistakes -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("distill", "message"),
    [
        ({}, "Say who teaches: --distill.teacher RUN"),
        ({"teacher": "nowhere"}, "--distill.teacher: There is no run folder .*nowhere"),
        ({"teacher": "TEACHER"}, r"The teacher sees \(3,\), and what is observed is \(\d+,\). Name the part"),
        ({"teacher": "TEACHER", "teacher_part": "stat"}, "the parts of an observation are state, image"),
    ],
)
def test_a_teacher_that_cannot_teach_is_refused_in_a_sentence(
    distill: dict[str, Any], message: str, teacher: Path, tmp_path: Path
) -> None:
    given = {key: str(teacher) if value == "TEACHER" else value for key, value in distill.items()}
    with pytest.raises((ConfigError, CheckpointError), match=message):
        ludus.train(CATCH, tmp_path / "run", **{**STUDENT, **QUIET, "distill": given, "overrides": SEES_IMAGE})
    assert not (tmp_path / "run").exists()


def test_settings_of_ppo_are_refused(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--ppo.clip is a setting of amp and ppo: with --algo distill"):
        ludus.train(CATCH, tmp_path / "run", **student_settings(teacher, **{"ppo.clip": 0.1}))


def name_a_network(described: dict[str, Any]) -> dict[str, Any]:
    return described | {"config": described["config"] | {"network": "network_modules:Remembers"}}


def test_a_teacher_whose_checkpoint_names_another_network_imports_nothing(tmp_path: Path) -> None:
    """What its configuration names, and only that, is signed by the mark of one's own runs."""
    small = {"loop.total_steps": 512, "env.num_envs": 4, "ppo.horizon": 16, "ppo.minibatches": 2, **QUIET}
    run = ludus.train("gym:CartPole-v1", tmp_path / "teacher", overrides=small)
    for checkpoint in (run / "checkpoints").glob("step_*"):
        rewrite(checkpoint, "policy.json", name_a_network)
    with pytest.raises(TrustError, match="would import its network 'network_modules:Remembers'"):
        load_teacher(str(run))


def test_the_loss_of_imitation_is_logged(teacher: Path, tmp_path: Path) -> None:
    run = ludus.train(CATCH, tmp_path / "run", **student_settings(teacher, **{"loop.total_steps": 1024}))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/imitation_loss"] for row in rows if "train/imitation_loss" in row]
    assert losses[-1] < losses[0]
