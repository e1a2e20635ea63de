"""Several ranks learn what one process would learn from all their rows.

The exact test: one process with two groups of environments against two ranks with one group each, the same
environments and the same noise, one minibatch. After 80 updates the weights differ by rounding alone. `LEFT_OUT`
leaves out one of the things that ranks have in common: then they must differ by much more.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import psutil
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from ludus import ranks
from ludus.algorithms import return_scale
from ludus.algorithms.on_policy import update_data
from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.ppo.job import PPOJob
from ludus.policies import normalizer
from ludus.presets import find_preset
from ludus.rank_meeting import Seat, meet
from ludus.ranks import available_cores
from ludus.settings import apply_overrides
from ludus.training import evaluator
from rank_processes import Link, on_ranks

Settings = dict[str, Any]
UPDATES = 80
EPOCHS = 5  # updates of an iteration
SMALL: Settings = {"torch_threads": 1, "ppo.minibatches": 1, "ppo.update_epochs": EPOCHS, "ppo.batch_size": 0}
JOBS: dict[str, tuple[str, Settings]] = {  # `env.num_envs` of one rank
    "cartpole": ("gym:CartPole-v1", {"env.num_envs": 4, "env.workers": 0, "ppo.horizon": 16}),
    "forage": (
        "forage",
        {"env.num_envs": 2, "ppo.horizon": 8, "ppo.segments": 8, "policy.memory": "lstm", "policy.memory_size": 8,
         "policy.hidden": [8], "env.episode_length": 20},
    ),
    # Without starts in which the hand holds the cube: fingers that slip on it make much of a rounding.
    "kuka": (
        "kuka-pick-place",
        {"env.num_envs": 4, "env.threads": 1, "ppo.horizon": 8, "env.max_steps": 30, "env.assist": 0.0,
         "env.assist_final": 0.0},
    ),
    "arena": ("pettingzoo:pettingzoo_test_envs:Arena", {"env.num_envs": 2, "ppo.horizon": 16}),  # some are absent
    "own network": (
        "gym:CartPole-v1",
        {"env.num_envs": 4, "env.workers": 0, "ppo.horizon": 16, "policy.network": "network_modules:Layers",
         "policy.network_kwargs": {"width": 16}},
    ),
    "masks": (
        "gym:catch_env:ludus-test/Catch-v0",
        {"env.num_envs": 4, "env.workers": 0, "ppo.horizon": 16, "env.action_masks": True,
         "env.kwargs": {"see": "state", "masks": "info"}, "policy.hidden": [16]},
    ),
}  # fmt: skip


def learn(name: str, updates: int = UPDATES, device: str = "cpu", **changes: Any) -> PPOJob:
    """A job on this rank, after so many updates; alone with the environments of two ranks in two groups."""
    preset, settings = JOBS[name]
    settings = SMALL | settings | {key.replace("__", "."): value for key, value in changes.items()}
    alone = 2 // ranks.size()
    settings |= {"groups": alone, "env.num_envs": alone * settings["env.num_envs"]}
    if settings.get("ppo.segments"):
        settings["ppo.segments"] *= alone
    job = PPOJob(apply_overrides(find_preset(preset).config, settings), torch.device(device))  # type: ignore[arg-type]
    try:
        iterations = updates // job.plan.batches_per_iteration
        for i in range(iterations):
            job.iteration(i, i / iterations, lambda share, batch: None)
    finally:
        job.close()
    return job


def share_environments_and_noise(patch: pytest.MonkeyPatch) -> None:
    """Rank r has the environments of the group r of a process that is alone, and its part of the noise."""
    patch.setattr(ranks, "own_stream", lambda *path: (0, ranks.rank()) if path[0] == 0 else path)

    def draw_noise(self: Collector, steps: int) -> None:
        rows = self.schedule.rows
        noise = self.policy.head.noise((steps, rows * ranks.size()), self.generator)
        self._noise[:steps] = noise[:, rows * ranks.rank() :][:, :rows]

    patch.setattr(Collector, "_draw_noise", draw_noise)


def difference(
    name: str, patch: pytest.MonkeyPatch, change: Callable[[], None] = lambda: None, **changes: Any
) -> float:
    """The largest difference of a weight between one process and two ranks, to whom alone `change` happens."""

    def weights() -> Tensor:
        share_environments_and_noise(patch)
        change()
        return learn(name, **changes).learner.optimizer.flat.clone()

    of_ranks = on_ranks(2, weights)
    alone = learn(name, **changes).learner.optimizer.flat
    return max(float((weights - alone).abs().max()) for weights in of_ranks)


@pytest.mark.parametrize(
    ("name", "most", "changes"),
    [
        ("cartpole", 1e-6, {}),
        ("cartpole", 1e-6, {"ppo__target_kl": 0.002, "ppo__kl_control": "stop"}),
        ("cartpole", 1e-6, {"ppo__target_kl": 0.002, "ppo__kl_control": "adapt", "ppo__l2_init": 1e-3}),
        ("forage", 1e-6, {}),
        ("arena", 1e-6, {}),
        ("own network", 1e-6, {"updates": 40}),
        ("masks", 1e-6, {"updates": 40}),
        ("kuka", 1e-4, {}),
    ],
)
def test_two_ranks_learn_what_one_process_learns_from_all_their_rows(
    name: str, most: float, changes: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert difference(name, monkeypatch, **changes) <= most


ALONE = SimpleNamespace(
    is_alone=lambda: True,
    size=lambda: 1,
    gather=lambda numbers: numbers[None],
    add_up=lambda numbers: numbers,
)
average = FlatAdam.average


def keep_to_itself(module: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """What this module has in common with the other ranks is left out."""
    return lambda patch: patch.setattr(module, "ranks", ALONE)


def average_otherwise(average: Callable[..., Tensor | None]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(FlatAdam, "average", average)


def own_measures(self: FlatAdam, beside: Tensor | None = None, weight: float | Tensor = 1.0) -> Tensor | None:
    average(self, beside, weight)
    return beside


LEFT_OUT: dict[str, tuple[str, Settings, Callable[[pytest.MonkeyPatch], None]]] = {
    "normaliser": ("cartpole", {}, keep_to_itself(normalizer)),
    "scale of returns": ("cartpole", {}, keep_to_itself(return_scale)),
    "advantages": ("cartpole", {}, keep_to_itself(update_data)),
    "gradient": ("cartpole", {}, average_otherwise(lambda self, beside=None, weight=1.0: beside)),
    "measures": (
        "cartpole",
        {"ppo__target_kl": 0.002, "ppo__kl_control": "adapt", "updates": UPDATES},
        average_otherwise(own_measures),
    ),
    "absent agents": (
        "arena",
        {},
        average_otherwise(lambda self, beside=None, weight=1.0: average(self, beside)),
    ),
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_ranks_that_keep_something_to_themselves_learn_otherwise(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, changes, leave_out = LEFT_OUT[what]
    assert difference(name, monkeypatch, lambda: leave_out(monkeypatch), **({"updates": 20} | changes)) > 1e-3


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("cartpole", {"ppo__minibatches": 4, "ppo__target_kl": 0.01, "ppo__kl_control": "stop"}),
        ("forage", {"ppo__minibatches": 4, "ppo__prio_alpha": 0.6, "ppo__rho_clip": 1.0, "ppo__segments": 12}),
    ],
)
def test_ranks_have_the_same_bits_after_200_updates(name: str, changes: Settings) -> None:
    def learned() -> list[Tensor]:
        job = learn(name, 200, **changes)
        learner = job.learner
        return [*job.policy.state_dict().values(), learner.optimizer.exp_avg, learner.returns.moments,
                torch.tensor(job.cycle_metrics()["rollout/ep_rew_mean"])]  # fmt: skip

    first, second = on_ranks(2, learned)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert float(first[-2][1]) != 0.0  # something was seen


def test_ranks_have_environments_noise_and_minibatches_of_their_own() -> None:
    def drawn() -> list[Tensor]:
        job = learn("cartpole", EPOCHS)
        assert job._segments is not None
        seeds = [job.collector.generator.get_state(), job.learner.generator.get_state()]
        return [job._segments.track.obs, *seeds]

    first, second = on_ranks(2, drawn)
    alone = learn("cartpole", EPOCHS, env__num_envs=2)  # as many rows
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert torch.equal(first[2], alone.learner.generator.get_state())  # rank 0 has the streams of a process alone


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all() -> None:
    def step() -> list[Tensor]:
        optimizer = FlatAdam([torch.nn.Parameter(torch.ones(3))], max_grad_norm=1.0)
        optimizer.grad.fill_(float("nan") if ranks.rank() else 1.0)
        optimizer.average()
        optimizer.step(0.1)
        return [optimizer.flat, optimizer.skipped]

    for weights, skipped in on_ranks(2, step):
        assert weights.tolist() == [1.0, 1.0, 1.0]
        assert float(skipped) == 1.0


# What ranks do together -------------------------------------------------------------------------------
TRANSPORTS = get_args(Link)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_numbers_and_plain_values_of_three_ranks(transport: Link) -> None:
    large = 2**19 + 3  # more than a rank hands over at a time

    def exchange() -> list[Any]:
        rank = ranks.rank()
        numbers = torch.arange(large, dtype=torch.float64) * (rank + 1)
        ranks.add_up(numbers)
        assert torch.equal(numbers, torch.arange(large, dtype=torch.float64) * 6)
        told = ranks.gather_plain({"rank": rank, "list": [0.1] * rank})
        agreed = [ranks.anyone(rank == 2), ranks.everyone(rank == 2), ranks.told_by_first(rank + 5)]
        return [ranks.gather(torch.tensor([[rank, 7]])), told, agreed]

    for gathered, told, agreed in on_ranks(3, exchange, transport):
        assert gathered.tolist() == [[[0, 7]], [[1, 7]], [[2, 7]]]
        assert told == [{"rank": rank, "list": [0.1] * rank} for rank in range(3)]
        assert agreed == [True, False, 5]


def test_a_process_alone_is_rank_0_of_1_and_nothing_is_copied() -> None:
    numbers = torch.ones(3)
    assert ranks.add_up(numbers) is numbers
    assert ranks.gather(numbers).data_ptr() == numbers.data_ptr()
    assert ranks.gather_plain({"a": 1}) == [{"a": 1}]
    assert (ranks.rank(), ranks.size(), ranks.is_first(), ranks.own_stream(0, 3)) == (0, 1, True, (0, 3))
    assert ranks.anyone(True)
    assert not ranks.everyone(False)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_rank_that_has_ended_is_an_error_on_the_others(transport: Link) -> None:
    def lose() -> str:
        if ranks.rank() == 1:
            return ""
        try:
            ranks.add_up(torch.zeros(3))
        except ranks.RankLostError as error:
            return str(error)
        return "nobody was missed"

    assert "ended" in on_ranks(2, lose, transport)[0]


@pytest.mark.parametrize("leaves", [True, False])
def test_a_rank_is_lost_that_ends_before_it_has_left(leaves: bool) -> None:
    def end() -> str:
        if ranks.rank() == 1:
            if leaves:
                ranks.leave()
            return ""
        other = ranks._Here.transport._processes[1]  # type: ignore[union-attr]
        while psutil.pid_exists(other):
            time.sleep(0.001)
        return ranks.lost()

    told = on_ranks(2, end)[0]
    assert told == "" if leaves else told.endswith("has ended.")


def test_ranks_share_out_the_cores_and_the_episodes_of_an_evaluation() -> None:
    cores = available_cores()
    shares = on_ranks(2, lambda: [available_cores(), evaluator._share(5)])
    assert shares == [[max(1, cores // 2), 3], [max(1, cores // 2), 2]]


def test_ranks_know_their_machine_and_share_the_cores_that_they_have_in_common() -> None:
    def place() -> list[Any]:
        return [ranks.local_rank(), ranks.local_size(), ranks.core_sharers(), type(ranks._Here.transport).__name__]

    one, several = ("SharedMemory", "Machines") if ranks.has_shared_memory() else ("Sockets", "Sockets")
    assert on_ranks(3, place, "found memory") == [[rank, 3, 3, one] for rank in range(3)]
    assert on_ranks(3, place, "machines") == [[0, 2, 1, several], [0, 1, 1, several], [1, 2, 1, several]]


def test_what_lost_ranks_have_left_in_a_store_is_not_believed(tmp_path: Path) -> None:
    """A launcher may keep the store, and start ranks again."""
    store, url = dist.FileStore(str(tmp_path / "store"), 2), (tmp_path / "store").as_uri()
    seats = [["gone", "elsewhere", []], ["gone too", "elsewhere", []]]
    store.set("call", json.dumps({"name": "old", "hellos": seats}))
    for rank, seat in enumerate(seats):
        store.set(f"hello/{rank}", json.dumps(seat))
        store.set(f"old/answer/{rank}", "")
    store.set("old/go", "")

    def met() -> list[str]:
        return [seat.machine for seat in meet(url, ranks.rank(), 2, Seat(f"m{ranks.rank()}", []), 60.0)[1]]

    assert on_ranks(2, met) == [["m0", "m1"]] * 2
