"""Intervals against exact sums, and against tables."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from app.localization.intervals import incomplete_beta, mean_interval, rate_interval


def at_least(hits: int, trials: int, p: float) -> float:
    """P(X >= hits) of a binomial, exactly."""
    exact = Fraction(p)
    terms = (comb(trials, x) * exact**x * (1 - exact) ** (trials - x) for x in range(hits, trials + 1))
    return float(sum(terms))


@pytest.mark.parametrize(("hits", "trials"), [(1, 2), (1, 10), (5, 10), (9, 10), (3, 120), (117, 120)])
def test_each_end_of_a_rate_is_missed_by_two_and_a_half_percent(hits: int, trials: int) -> None:
    low, high = rate_interval(hits, trials)
    assert at_least(hits, trials, low) == pytest.approx(0.025, rel=1e-9)
    assert 1 - at_least(hits + 1, trials, high) == pytest.approx(0.025, rel=1e-9)
    assert low < hits / trials < high


def test_rates_of_none_and_all() -> None:
    """Closed forms: 1 - 0.025^(1/n)."""
    assert rate_interval(0, 3000) == [0.0, pytest.approx(1 - 0.025 ** (1 / 3000), rel=1e-9)]
    assert rate_interval(300, 300) == [pytest.approx(0.025 ** (1 / 300), rel=1e-9), 1.0]
    assert rate_interval(0, 1) == [0.0, pytest.approx(0.975)]


def test_a_large_sample_is_nearly_normal() -> None:
    low, high = rate_interval(50_000, 100_000)
    assert [low, high] == pytest.approx([0.5 - 0.0030990, 0.5 + 0.0030990], abs=1e-5)


@pytest.mark.parametrize(
    ("size", "quantile"), [(2, 12.7062), (3, 4.30265), (10, 2.26216), (30, 2.04523), (1001, 1.96234)]
)
def test_means_by_the_table_of_students_distribution(size: int, quantile: float) -> None:
    values = [1.0, *[0.0] * (size - 1)]
    mean = 1 / size
    error = (mean * (1 - mean) / (size - 1)) ** 0.5  # standard deviation over root n
    assert mean_interval(values) == pytest.approx([mean - quantile * error, mean + quantile * error], rel=1e-4)


def test_means_of_equal_values_and_of_one() -> None:
    assert mean_interval([7, 7, 7]) == [7, 7]
    assert mean_interval([7]) is None


def test_incomplete_beta() -> None:
    assert incomplete_beta(1, 1, 0.3) == pytest.approx(0.3)
    assert incomplete_beta(2, 3, 0.9) == pytest.approx(1 - incomplete_beta(3, 2, 0.1))
    assert [incomplete_beta(2, 3, x) for x in (0.0, 1.0)] == [0, 1]
