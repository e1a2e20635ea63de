"""Ranks that imitate: discriminator and student learn what one process would teach them from all rows."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from imitation_envs import Drift, make_drift
from ludus import ranks
from ludus.algorithms.distill import job as distillation
from ludus.algorithms.imitation.config import AdversaryConfig
from ludus.algorithms.imitation.discriminator import Adversary
from ludus.algorithms.imitation.job import ImitationJob
from ludus.algorithms.imitation.windows import RolloutWindows
from ludus.algorithms.registry import make_job
from ludus.envs import make_vec_env
from ludus.policies import normalizer
from ludus.policies.factory import make_actor_critic
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.training.evaluator import PolicyEvaluator
from rank_processes import on_ranks
from test_ranks import Settings, keep_to_itself, share_environments_and_noise

CPU = torch.device("cpu")
UPDATES = 20
CONFIG: Settings = {"hidden": (16, 8), "learning_rate": 1e-3, "batches": 4, "replay": 0}
WINDOWS = 64  # of both sides in a batch, over all ranks
Change = Callable[[pytest.MonkeyPatch, Adversary], None]


# The discriminator ------------------------------------------------------------------------------------
def judge(change: Callable[[Adversary], None] = lambda adversary: None) -> dict[str, Tensor]:
    """What a discriminator has learned on this rank from its share of every batch; alone from all of it."""
    config = AdversaryConfig(batch_size=WINDOWS // ranks.size(), **CONFIG)
    env, rows = make_drift(8), 8
    adversary = Adversary(2, [rows], 5, config, seed=3, device=CPU, env_device=CPU)
    change(adversary)
    windows = torch.Generator().manual_seed(1)
    for _ in range(UPDATES // config.batches):
        for _ in range(5):
            adversary.record(torch.randn((rows, 2), generator=windows))
        told = adversary.update(env)
    learned = {name: value.clone() for name, value in adversary.discriminator.state_dict().items()}
    return {**learned, "adam": adversary.optimizer.exp_avg, **told}


def take_shares_of_the_same_windows(patch: pytest.MonkeyPatch) -> None:
    """Every rank draws what a process that is alone draws, and keeps its own part of each batch."""
    patch.setattr(ranks, "own_stream", lambda *path: path)

    def share_of(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def drawn(self: Any, count: int, generator: torch.Generator) -> Tensor:
            return draw(self, ranks.size() * count, generator).chunk(ranks.size())[ranks.rank()]

        return drawn

    patch.setattr(RolloutWindows, "draw", share_of(RolloutWindows.draw))
    patch.setattr(Drift, "demonstrations", share_of(Drift.demonstrations))


def difference(patch: pytest.MonkeyPatch, change: Change = lambda patch, adversary: None) -> float:
    """The largest of anything between one process and two ranks, to whom alone `change` happens."""

    def learned() -> dict[str, Tensor]:
        take_shares_of_the_same_windows(patch)
        return judge(lambda adversary: change(patch, adversary))

    of_ranks, alone = on_ranks(2, learned), judge()
    return max(float((own[name] - alone[name]).abs().max()) for own in of_ranks for name in alone)


def test_two_ranks_judge_as_one_process_does_that_sees_all_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert difference(monkeypatch) <= 1e-6


def own_gradients(patch: pytest.MonkeyPatch, adversary: Adversary) -> None:
    patch.setattr(adversary.optimizer, "average", lambda beside=None, weight=1.0: beside)


LEFT_OUT: dict[str, Change] = {
    "gradient": own_gradients,
    "normaliser": lambda patch, adversary: keep_to_itself(normalizer)(patch),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_ranks_that_keep_something_to_themselves_judge_otherwise(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(monkeypatch, LEFT_OUT[what]) > 1e-3


def test_policy_and_discriminator_have_the_same_bits_on_all_ranks_after_200_updates() -> None:
    settings: Settings = {
        "env.num_envs": 4, "torch_threads": 1, "policy.hidden": (16,), "ppo.horizon": 8, "ppo.minibatches": 4,
        "ppo.update_epochs": 5, "adversary.hidden": (16,), "adversary.batch_size": 16, "adversary.replay": 50,
    }  # fmt: skip

    def learned() -> list[Any]:
        config = apply_overrides(find_preset("vec:imitation_envs:make_drift", "amp").config, settings)
        job = make_job(config, CPU)
        assert isinstance(job, ImitationJob)
        for i in range(10):
            metrics = job.iteration(i, i / 10, lambda share, batch: None)
        adversary, learner = job.adversary, job.learner
        common = [*job.policy.state_dict().values(), *adversary.discriminator.state_dict().values(),
                  learner.returns.moments, *metrics.values()]  # fmt: skip
        for optimizer in (learner.optimizer, adversary.optimizer):
            common += [optimizer.flat, optimizer.exp_avg, optimizer.exp_avg_sq]
        return [common, adversary.replay.state()["windows"], adversary._demo_generator.get_state()]

    (common, *own), (others, *theirs) = on_ranks(2, learned)
    assert all(torch.equal(a, b) for a, b in zip(common, others, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))


# Distillation -----------------------------------------------------------------------------------------
STUDENTS: dict[str, tuple[str, Settings]] = {
    "cartpole": ("gym:CartPole-v1", {"env.num_envs": 4, "env.workers": 0}),
    "some are absent": ("pettingzoo:pettingzoo_test_envs:Arena", {"env.num_envs": 2}),
}


def student(name: str, own_gradients: bool = False) -> Tensor:
    """The weights of a student whose teacher has learned nothing, after 20 updates."""
    preset, settings = STUDENTS[name]
    alone = 2 // ranks.size()
    settings = settings | {
        "torch_threads": 1, "groups": alone, "env.num_envs": alone * settings["env.num_envs"],
        "distill.horizon": 16, "distill.minibatches": 1, "distill.update_epochs": 4, "distill.batch_size": 0,
        "policy.hidden": (16,),
    }  # fmt: skip
    job = make_job(apply_overrides(find_preset(preset, "distill").config, settings), CPU)
    assert isinstance(job, distillation.DistillJob)
    optimizer, normalizer = job.learner.optimizer, job.policy.normalizer
    assert normalizer is not None
    if own_gradients:
        optimizer.average = lambda beside=None, weight=1.0: beside  # type: ignore[method-assign]
    try:
        for i in range(5):
            job.iteration(i, i / 5, lambda share, batch: None)
    finally:
        job.close()
    return torch.cat([optimizer.flat, normalizer.mean])


@pytest.mark.parametrize("name", STUDENTS)
@pytest.mark.parametrize("left_out", [False, True])
def test_two_ranks_teach_what_one_process_teaches_with_all_their_rows(
    name: str, left_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_teacher(run: str) -> Any:
        config = find_preset(STUDENTS[name][0]).config
        env = make_vec_env(config.env, 1)
        try:
            return make_actor_critic(env, config.policy, seed=5).eval()
        finally:
            env.close()

    monkeypatch.setattr(distillation, "load_teacher", load_teacher)

    def weights() -> Tensor:
        share_environments_and_noise(monkeypatch)
        return student(name, left_out)

    of_ranks, alone = on_ranks(2, weights), student(name)
    found = max(float((own - alone).abs().max()) for own in of_ranks)
    assert found > 1e-3 if left_out else found <= 1e-6


# The humanoid's evaluation ----------------------------------------------------------------------------
def test_ranks_share_out_the_fixed_starts_of_an_evaluation_and_all_are_counted() -> None:
    settings: Settings = {"env.num_envs": 2, "env.clips": "stroll,bow", "env.eval_starts": 3, "env.max_steps": 8,
                          "policy.hidden": (8,), "env.threads": 1, "eval.stochastic": False}  # fmt: skip

    def measured() -> list[Any]:
        config = apply_overrides(find_preset("humanoid-mimic").config, settings)
        env = make_vec_env(config.env, 1)
        evaluator = PolicyEvaluator(config, make_actor_critic(env, config.policy, seed=5))
        try:
            metrics = evaluator.evaluate(lambda: False)
        finally:
            evaluator.close()
        assert evaluator.newest is not None
        newest = evaluator.newest
        told = sorted(zip(newest.starts["time"], newest.returns, newest.labels["weight"], strict=True))
        played = [len(record["episode"]) for record in evaluator.records]
        return [metrics, [number for row in told for number in row], played]

    alone, (first, second) = measured(), on_ranks(2, measured)
    assert first == second
    assert first[1] == pytest.approx(alone[1])  # each start once, with the weight it has among all
    assert first[0] == pytest.approx(alone[0])
    assert (alone[2], first[2]) == ([4], [2, 2])
