"""95 % intervals of what simulations count: exact ones for rates, Student's for means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

LEVEL = 0.95
_TINY = 1e-300


def rate_interval(hits: int, trials: int) -> list[float]:
    """Clopper-Pearson interval of a rate (Biometrika 26, 1934): it holds for any number of trials.

    Parameters
    ----------
    hits, trials : int
        0 <= hits <= trials, trials at least 1.

    Returns
    -------
    list of float
        Lower and upper end, each missed by at most 2.5 %.
    """
    tail, misses = (1 - LEVEL) / 2, trials - hits
    low = _where(lambda p: incomplete_beta(hits, misses + 1, p) < tail) if hits else 0.0
    high = _where(lambda p: incomplete_beta(hits + 1, misses, p) < 1 - tail) if misses else 1.0
    return [low, high]


def mean_interval(values: Sequence[float]) -> list[float] | None:
    """Student's interval of a mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean, half = fmean(values), _quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return [mean - half, mean + half]


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22).

    Parameters
    ----------
    a, b : float
        Above 0.
    x : float
        0 to 1.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast
        return 1 - incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) by Lentz's method."""
    value, above, below = 1.0, 1.0, 0.0
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            d = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            d = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        below = 1 / (1 + d * below or _TINY)
        above = 1 + d / above or _TINY
        value *= above * below
        if abs(above * below - 1) < 1e-15:
            break
    return value


def _quantile(freedom: int) -> float:
    """Two-sided quantile of Student's distribution at `LEVEL`."""
    # P(|T| > t) = I_x(freedom / 2, 1 / 2) with x = freedom / (freedom + t^2), which falls as t grows.
    x = _where(lambda x: incomplete_beta(freedom / 2, 0.5, x) < 1 - LEVEL)
    return math.sqrt(freedom * (1 - x) / x)


def _where(below: Callable[[float], bool]) -> float:
    """The place between 0 and 1 up to which something holds."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2
