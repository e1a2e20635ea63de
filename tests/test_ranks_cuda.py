"""Ranks on a GPU learn what one process learns; graphs hold their sums, or are cut where these are made.

One GPU shows NCCL with a single rank, and two ranks that share it, whose sums go through the CPU. Two GPUs show
two ranks by NCCL, too. On a CPU the same code runs without graphs.
"""

import math
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from fresh_ranks import on_fresh_ranks
from ludus import ranks
from ludus.graphs import Graphed, forget_recordings, outside_graphs
from ludus.training.checkpoint import newest_intact
from ludus.training.device import PRECISIONS, find_device
from ludus.training.gpu_ranks import Staged, join_gpus
from ludus.training.local_ranks import STOPPED
from rank_processes import on_ranks
from stopped_runs import run
from test_rank_runs import _soon, gone, start
from test_ranks import learn, share_environments_and_noise
from warm_python import ludus_command as command

pytestmark = pytest.mark.gpu

ON_GPU = torch.cuda.is_available()
ONE = "cuda:0" if ON_GPU else "cpu"  # that two ranks share
SHARED, OWN = pytest.param(ONE, id="shared"), pytest.param("cuda", id="own")
TWO = [SHARED, OWN] if torch.cuda.device_count() > 1 else [SHARED]
UPDATES = 80 if ON_GPU else 10
TOLERANCE = 1e-4  # of weights, after so many updates on a GPU, where kernels add in another order
Settings = dict[str, Any]


class Learned(NamedTuple):
    """By one rank."""

    weights: Tensor
    moments: list[Tensor]  # of the optimiser, the returns and the observations
    transport: str
    recordings: int


def learned(device: str, name: str, updates: int, alike: bool, precision: str, changes: Settings) -> Learned:
    """On a rank, or in a process that is none. `alike`: the environments and the noise of one process."""
    recordings = 0
    record = torch.cuda.graph

    def counting(*arguments: Any, **named: Any) -> Any:
        nonlocal recordings
        recordings += 1
        return record(*arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "graph", counting)
        if alike and not ranks.is_alone():
            share_environments_and_noise(patch)
        torch.set_float32_matmul_precision(PRECISIONS[precision])
        found = find_device(device)
        join_gpus(found)
        job = learn(name, updates, str(found), **changes)
    torch.set_float32_matmul_precision("highest")
    transport = type(ranks._Here.gpu_transport).__name__
    learner = job.learner
    moments = [learner.optimizer.exp_avg, learner.returns.moments, *job.policy.state_dict().values()]
    result = Learned(learner.optimizer.flat.cpu(), [tensor.cpu() for tensor in moments], transport, recordings)
    ranks.leave()
    return result


DEFAULTS: Settings = {"updates": UPDATES, "alike": True, "precision": "float32"}


def by_ranks(size: int, device: str, name: str, **named: Any) -> list[Learned]:
    changes = {key: value for key, value in named.items() if "__" in key}
    given = {key: value for key, value in named.items() if key not in changes}
    arguments: Settings = {"device": device, "name": name, "changes": changes, **DEFAULTS, **given}
    if device == "cpu":
        told = on_ranks(size, lambda: list(learned(**arguments)))
    else:
        told = on_fresh_ranks(size, as_list, **arguments)
    return [Learned(*one) for one in told]


def as_list(**arguments: Any) -> list[Any]:
    return list(learned(**arguments))


def alone(device: str, name: str, **changes: Any) -> Learned:
    return learned(device, name, UPDATES, False, "float32", changes)


def difference(of_ranks: list[Learned], expected: Learned) -> float:
    return max(float((one.weights - expected.weights).abs().max()) for one in of_ranks)


MEMORIES: list[Settings] = [{"policy__memory": memory} for memory in ("lstm", "mingru")]


@pytest.mark.parametrize(("name", "changes"), [("cartpole", {}), ("forage", MEMORIES[0])])
def test_a_single_rank_learns_by_nccl_what_a_process_learns_that_is_no_rank(name: str, changes: Settings) -> None:
    found, expected = by_ranks(1, ONE, name, alike=False, **changes), alone(ONE, name, **changes)
    assert difference(found, expected) <= TOLERANCE
    assert found[0].transport == ("Nccl" if ON_GPU else "NoneType")
    assert found[0].recordings == expected.recordings  # sums are in the graphs, which are not cut
    assert (expected.recordings > 0) == ON_GPU


@pytest.mark.parametrize("device", TWO)
@pytest.mark.parametrize(
    ("name", "changes"), [("cartpole", {}), *(("forage", changes) for changes in MEMORIES), ("arena", {})]
)
def test_two_ranks_learn_what_one_process_learns_from_all_their_rows(
    name: str, changes: Settings, device: str
) -> None:
    if name == "arena":
        pytest.importorskip("pettingzoo")
    found, expected = by_ranks(2, device, name, **changes), alone(ONE, name, **changes)
    assert torch.equal(found[0].weights, found[1].weights)
    assert difference(found, expected) <= TOLERANCE
    if device == "cuda:0":
        assert found[0].transport == "Staged"
        assert found[0].recordings > expected.recordings  # graphs were cut


@pytest.mark.parametrize("device", TWO)
@pytest.mark.parametrize(
    ("name", "precision", "changes"),
    [
        ("cartpole", "float32", {"ppo__target_kl": 0.01, "ppo__kl_control": "stop"}),
        ("forage", "bfloat16", {"ppo__prio_alpha": 0.6, "ppo__rho_clip": 1.0}),
    ],
)
def test_ranks_have_the_same_bits_after_200_updates(
    name: str, precision: str, changes: Settings, device: str
) -> None:
    settings = {"ppo__minibatches": 4, **changes} | ({"ppo__segments": 12} if name == "forage" else {})
    updates = 200 if ON_GPU else 20
    first, second = by_ranks(2, device, name, updates=updates, alike=False, precision=precision, **settings)
    pairs = zip([first.weights, *first.moments], [second.weights, *second.moments], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert bool(torch.isfinite(first.weights).all())


def test_ranks_on_a_gpu_save_at_sigterm_and_go_on(tmp_path: Path) -> None:
    """By the command; no process is left."""
    folder, length = tmp_path / "run", {"loop__total_steps": 10**9}
    program, processes = start(folder, device=ONE, **length)
    program.send_signal(signal.SIGTERM)
    assert program.wait() == STOPPED, program.output()
    assert gone(processes)
    newest = newest_intact(folder / "checkpoints", pytest.fail)
    assert (newest / "rank_1.safetensors").exists()
    resumed = run(command("resume", folder, "--total-steps", _soon(folder)))
    assert resumed.returncode == 0, resumed.stderr
    assert (folder / "final").exists()


# Parts ------------------------------------------------------------------------------------------------
def test_a_recording_is_cut_where_something_waits_for_the_gpu(device: str) -> None:
    x, seen = torch.zeros(3, device=device), list[float]()

    def work() -> None:
        y = x + 1
        outside_graphs(lambda: seen.append(float(y.sum())))
        z = y * 2  # which reads what the first graph left
        outside_graphs(lambda: z.add_(1))
        x.copy_(z)

    graphed = Graphed(work, torch.device(device))
    for _ in range(5):
        graphed()
    forget_recordings()
    graphed()
    expected = [0.0]
    for _ in range(6):
        expected.append(2 * (expected[-1] + 1) + 1)
    assert x.tolist() == [expected[-1]] * 3
    assert seen == [3 * (value + 1) for value in expected[:-1]]


def test_numbers_go_through_the_cpu_where_ranks_share_a_gpu(device: str) -> None:
    on_gpu = device == "cuda"
    pairs = on_fresh_ranks(2, staged, device=device) if on_gpu else on_ranks(2, lambda: staged(device))
    for total, gathered in pairs:
        assert total.tolist() == [3.0, 6.0]
        assert gathered.tolist() == [[0, math.inf], [1, math.inf]]


def staged(device: str) -> list[Tensor]:
    numbers = torch.tensor([1.0, 2.0], device=device) * (ranks.rank() + 1)
    transport = Staged()
    transport.add_up(numbers)
    return [numbers.cpu(), transport.gather(torch.tensor([ranks.rank(), math.inf], device=device)).cpu()]
