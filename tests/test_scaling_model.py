"""The model behind docs/scaling.md: cases worked out by hand, and its limits."""

import dataclasses
import math
import sys

import pytest

from pages.figures import RESULTS

sys.path.append(str(RESULTS.parent))
from scaling_model import SHORT, Cluster, Job, Link, advise, evaluation_on, predict, slowest

JOB = Job(
    name="job",
    rows=100,
    steps=1_000,
    rollout=0.6,
    update=0.3,
    rest=0.1,
    half=0.6,
    reductions=10,
    numbers=250_000,
    evaluation=4.0,
    evaluation_half=3.0,
    evaluation_every=20_000,
    checkpoint=0.2,
)
MEMORY = Link(100e-6, 1e9, "memory", call=5e-6)


def test_one_rank_takes_the_time_of_one_process() -> None:
    alone = predict(JOB, Cluster("one", 1, MEMORY, unrest=0.3, jitter=0.3))
    assert alone.training == pytest.approx(1.0)
    assert alone.total == pytest.approx(1.0 + (4.0 + 0.2) / 20)
    assert alone.efficiency == pytest.approx(1.0)


def test_two_ranks_by_hand() -> None:
    two = predict(JOB, Cluster("two", 2, MEMORY, contention=1.5, unrest=0.1, jitter=0.2))
    late = slowest(2)
    assert two.parts["rollout"] == pytest.approx(0.9)
    assert two.parts["waiting"] == pytest.approx(late * (0.1 * (0.9 + 0.45) + 10 * 0.2 * math.sqrt(0.45 / 10)))
    gradient, few = 110e-6 + 2 * 1e6 / 1e9, 110e-6 + 2 * 4 / 1e9
    assert two.parts["reduction"] == pytest.approx(10 * gradient + SHORT * few)
    assert two.parts["evaluation"] == pytest.approx(1.5 * 3.0 / 10)  # half of the episodes, every tenth iteration
    assert two.parts["checkpoint"] == pytest.approx(2 * 0.2 / 10)
    assert two.efficiency == pytest.approx(1.21 / two.total)


@pytest.mark.parametrize(
    ("kind", "ranks", "seconds"),
    [
        ("memory", 4, 1e-3 + 4 * 8e6 / 1e9),  # every rank reads what all have written
        ("ring", 4, 6 * 1e-3 + 1.5 * 8e6 / 1e9),  # 2 (k − 1) hops
        ("nccl", 4, 1e-3 + 1.5 * 8e6 / 1e9),
        ("nccl", 1, 0.0),
    ],
)
def test_a_sum_takes_its_latency_and_its_bytes(kind: str, ranks: int, seconds: float) -> None:
    assert Link(1e-3, 1e9, kind).seconds(ranks, 8_000_000) == pytest.approx(seconds)


def test_machines_add_up_among_them_then_between_then_hand_out() -> None:
    ring = Link(1e-3, 1e9, "ring")
    eight = Cluster("eight", 8, MEMORY, machines=2, between=ring)
    assert eight.reduction(1_000) == pytest.approx(2 * MEMORY.seconds(4, 4_000) + ring.seconds(2, 4_000))


def test_free_reductions_and_steady_ranks_scale_without_loss() -> None:
    job = dataclasses.replace(JOB, evaluation=0.0, evaluation_half=0.0, checkpoint=0.0)
    free = predict(job, Cluster("free", 64, Link(0.0, math.inf, "nccl")))
    assert free.total == pytest.approx(1.0)
    assert free.efficiency == pytest.approx(1.0)


def test_the_slowest_of_more_ranks_is_slower() -> None:
    assert slowest(1) == pytest.approx(0.0, abs=1e-12)
    assert slowest(2) == pytest.approx(1 / math.sqrt(math.pi), rel=0.06)  # the mean of the larger of two
    assert slowest(1_000) == pytest.approx(3.24, rel=0.02)


def test_only_the_episodes_of_an_evaluation_are_shared_out() -> None:
    assert [evaluation_on(JOB, ranks) for ranks in (1, 2, 1_000_000)] == pytest.approx([4.0, 3.0, 2.0], rel=1e-5)


def test_rows_shorten_an_iteration_down_to_its_floor() -> None:
    assert JOB.floor == pytest.approx(0.2)
    assert JOB.knee == 25
    assert JOB.with_rows(50).compute == pytest.approx(JOB.half)
    assert JOB.with_rows(50).floor == pytest.approx(0.2)
    assert JOB.with_rows(25).compute == pytest.approx(2 * JOB.floor)
    assert JOB.with_rows(50).steps == 500
    assert JOB.with_cores(4).compute == pytest.approx(0.15 + 0.3 + 0.1)
    assert JOB.with_cores(4).floor == pytest.approx(JOB.floor)


def test_advice_keeps_its_promises() -> None:
    cluster = Cluster("eight", 8, Link(8e-3, 1e9, "nccl"))
    advised = advise(JOB, cluster)
    then = predict(advised, cluster)
    assert advised.rows == JOB.knee  # an eighth would be fewer
    assert advised.reductions * cluster.reduction(JOB.numbers) <= 0.1 / 0.9 * advised.compute
    assert (advised.reductions + 1) * cluster.reduction(JOB.numbers) > 0.1 / 0.9 * advised.compute
    assert then.parts["evaluation"] + then.parts["checkpoint"] <= 0.05 * then.total
    assert predict(JOB, cluster).limit == "evaluation"


def test_the_page_shows_what_the_model_tells_of_the_kept_pieces() -> None:
    import scaling

    kept = [list(row.values()) for row in scaling.part("beyond")]
    assert kept == [row for name in (*scaling.H200S, *scaling.CPUS) for row in scaling.table(name)]
