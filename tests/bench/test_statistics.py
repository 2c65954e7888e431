"""Intervals: how they are drawn, what they rest on, and how often they hold the truth."""

import numpy as np
import pytest

from blockdraft_bench.statistics import (
    LEAST_COMPLETIONS,
    Estimate,
    bootstrap,
    estimate,
    identical_share,
    mean,
    median,
    percentiles,
    quartiles,
    resampled_totals,
)


def test_the_bootstrap_is_seeded() -> None:
    counts = np.arange(20).reshape(10, 2)
    first = resampled_totals(counts, 3)
    assert np.array_equal(first, resampled_totals(counts, 3))
    assert not np.array_equal(first, resampled_totals(counts, 4))
    assert first.mean(axis=0) == pytest.approx(counts.sum(axis=0), rel=0.02)


def test_a_ratio_is_one_of_sums() -> None:
    # 1 of 1 in half of the completions, 0 of 3 in the others.
    found = bootstrap([np.array([[1, 1], [0, 3]] * 20)], seed=0)
    assert found.value == 0.25
    assert found.completions == 40
    low, high = found.ci95 or (0.0, 0.0)
    assert 0.1 < low < 0.25 < high < 0.5


def test_few_answers_have_no_interval() -> None:
    for completions in (1, LEAST_COMPLETIONS - 1, LEAST_COMPLETIONS):
        found = bootstrap([np.ones((completions, 2))], seed=0)
        assert (found.value, found.completions) == (1.0, completions)
        assert found.ci95 == ((1.0, 1.0) if completions == LEAST_COMPLETIONS else None)
    assert Estimate(2.0, (1.0, 3.0), LEAST_COMPLETIONS - 1).ci95 is None


def test_only_answers_that_would_define_a_number_are_its_answers() -> None:
    counts = np.array([[1, 2]] * LEAST_COMPLETIONS + [[0, 0]] * 9)
    assert bootstrap([counts], seed=0) == Estimate(0.5, (0.5, 0.5), LEAST_COMPLETIONS)
    assert bootstrap([counts[1:]], seed=0) == Estimate(0.5, None, LEAST_COMPLETIONS - 1)
    assert bootstrap([counts * 0], seed=0) == Estimate(None, None, 0)


def test_undefined_resamples_are_left_out() -> None:
    drawn = np.array([np.nan, *np.linspace(0.0, 1.0, 101)])
    assert estimate(0.5, drawn, 9).ci95 == pytest.approx((0.025, 0.975))
    assert estimate(np.inf, drawn[:1], 9) == Estimate(None, None, 9)


def test_intervals_bracket_the_truth_about_as_often_as_they_say() -> None:
    # Completions with a mean of their own, as real ones have: what they sum up is not independent.
    rng = np.random.default_rng(0)
    hits, trials, right = 0, 60, 0.6
    for trial in range(trials):
        means = np.clip(rng.normal(right, 0.15, 40), 0, 1)
        counts = np.array([[rng.binomial(25, p), 25] for p in means])
        found = bootstrap([counts], seed=trial)
        low, high = found.ci95 or (0.0, 0.0)
        assert low < (found.value or 0.0) < high
        hits += low < right < high
    assert 0.85 < hits / trials < 1.0


def test_a_mean_of_groups_counts_each_the_same() -> None:
    # 1/2, resting on many completions, and 1/4, resting on few.
    large, small = np.array([[1, 2]] * 40), np.array([[1, 4]] * 2)
    found = bootstrap([large, small], seed=0)
    assert found == Estimate(0.375, (0.375, 0.375), 42)
    geometric = bootstrap([large, small], 0, lambda ratios: np.exp(np.log(ratios).mean(0)))
    assert geometric.value == pytest.approx(np.sqrt(0.125))


def test_a_group_without_a_number_is_left_out() -> None:
    known, nothing = np.array([[1, 2]] * LEAST_COMPLETIONS), np.zeros((5, 2), int)
    assert bootstrap([known, nothing], seed=0).value == 0.5
    assert bootstrap([known, nothing], seed=0).completions == LEAST_COMPLETIONS
    assert bootstrap([nothing], seed=0) == Estimate(None, None, 0)


def test_intervals_of_means_bracket_the_truth_about_as_often_as_they_say() -> None:
    """Nine groups of six completions, as the nine test sets have."""
    rng = np.random.default_rng(1)
    hits, trials, rights = 0, 100, np.linspace(0.3, 0.8, 9)
    for trial in range(trials):
        groups = [
            np.array([[rng.binomial(25, p), 25] for p in np.clip(rng.normal(m, 0.1, 6), 0, 1)])
            for m in rights
        ]
        low, high = bootstrap(groups, seed=trial).ci95 or (0.0, 0.0)
        hits += low < rights.mean() < high
    assert 0.85 < hits / trials < 1.0


def test_means_leave_out_what_is_not_known() -> None:
    assert mean([1.0, None, 2.0]) == 1.5
    assert median([5.0, None, 1.0, 2.0]) == 2.0
    assert mean([None]) is median([]) is None
    assert percentiles([1.0, 2.0, 3.0], (0, 25, 100)) == (1.0, 1.5, 3.0)
    assert (quartiles([1.0, 2.0, 3.0]), quartiles([])) == ((1.5, 2.5), None)
    assert identical_share([(1, 1), ("a", "b")]) == 0.5
