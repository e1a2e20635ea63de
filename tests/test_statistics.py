"""The statistics of a comparison against slow references, and what their intervals cover."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from ludus.show.statistics import (
    Estimate,
    interquartile_mean,
    mean,
    median,
    probability_of_improvement,
    t_quantile,
)


def test_the_t_quantile_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for p, freedom in zip(rng.uniform(0.001, 0.999, 100), rng.uniform(1, 60, 100), strict=True):
        assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_mean_and_interval_are_scipys(seed: int) -> None:
    values = np.random.default_rng(seed).normal(300, 40, size=2 + 2 * seed)
    low, high = stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))
    assert mean(values.tolist()) == pytest.approx((values.mean(), low, high))


@pytest.mark.parametrize("n", [5, 6, 8, 11, 20])
def test_the_iqm_is_scipys_trimmed_mean_with_its_interval(n: int) -> None:
    values = np.random.default_rng(n).exponential(size=n).tolist()
    own = interquartile_mean(values)
    assert own.value == pytest.approx(stats.trim_mean(values, 0.25))
    kept = sorted(values)[n // 4 : n - n // 4]
    spread = np.std(np.clip(values, kept[0], kept[-1]), ddof=1) / (len(kept) / n * math.sqrt(n))
    half = stats.t.ppf(0.975, len(kept) - 1) * spread
    assert own[1:] == pytest.approx((own.value - half, own.value + half))
    if n % 4 == 0:  # elsewhere scipy counts the part of a value that is trimmed
        assert own[1:] == pytest.approx(stats.mstats.trimmed_mean_ci(values, (0.25, 0.25)))


@pytest.mark.parametrize("seed", range(5))
def test_the_probability_of_improvement_is_that_of_all_pairs_and_its_interval_that_of_a_search(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.integers(0, 9, 3 + seed), rng.integers(0, 7, 5)  # with equal ones
    own = probability_of_improvement(ours.tolist(), theirs.tolist())
    n, m = len(ours), len(theirs)
    assert own.value == pytest.approx(stats.mannwhitneyu(ours, theirs).statistic / (n * m))
    p = np.linspace(0, 1, 100_001)
    pairs = (n + m) / 2 - 1
    variance = p * (1 - p) * (1 + pairs * (1 - p) / (2 - p) + pairs * p / (1 + p)) / (n * m)
    near = p[np.abs(own.value - p) <= stats.norm.ppf(0.975) * np.sqrt(variance)]
    assert own[1:] == pytest.approx((near.min(), near.max()), abs=2e-5)


def coverage(interval: Callable[[list[float]], Estimate], n: int, truth: float, draws: int = 4_000) -> float:
    rng = np.random.default_rng(17)
    found = (interval(row) for row in rng.normal(truth, 5.0, size=(draws, n)).tolist())
    return sum(low <= truth <= high for _, low, high in found if low is not None and high is not None) / draws


@pytest.mark.parametrize("seeds", [3, 5])
def test_the_interval_of_the_mean_covers_it_with_few_seeds(seeds: int) -> None:
    assert coverage(mean, seeds, 40.0) >= 0.93


def test_the_interval_of_the_iqm_covers_it_with_five_seeds() -> None:
    assert coverage(interquartile_mean, 5, 40.0) >= 0.91


def test_the_interval_of_the_probability_covers_it_with_five_seeds() -> None:
    rng = np.random.default_rng(5)
    truth = stats.norm.cdf(1 / math.sqrt(2))  # that a value one deviation higher on average is higher
    pairs = zip(rng.normal(1, 1, (400, 5)).tolist(), rng.normal(0, 1, (400, 5)).tolist(), strict=True)
    found = [probability_of_improvement(ours, theirs) for ours, theirs in pairs]
    assert sum(low <= truth <= high for _, low, high in found) >= 0.93 * len(found)


def test_complete_separation_of_few_seeds_is_not_certainty() -> None:
    value, low, high = probability_of_improvement([4, 5, 6], [1, 2, 3])
    assert (value, high) == (1.0, 1.0)
    assert low == pytest.approx(0.501, abs=1e-3)


def test_one_value_has_no_interval() -> None:
    assert mean([3.0]) == Estimate(3.0)
    assert probability_of_improvement([3.0], [1.0, 2.0]) == Estimate(1.0)


def test_seeds_that_never_get_there_are_the_slowest_in_the_median() -> None:
    assert median([30.0, math.inf, 10.0]) == 30.0
    assert median([30.0, math.inf, 10.0, 20.0]) == 25.0
    assert median([30.0, math.inf]) == math.inf
