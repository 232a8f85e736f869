"""A test that asks nothing of the noise: are one sample's readings higher than another's?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import comb


def probability_by_chance(suspect: Sequence[float], reference: Sequence[float]) -> float:
    """One-sided exact p-value of the rank-sum test of Mann and Whitney (1947), ties counted against the suspect.

    Parameters
    ----------
    suspect, reference : sequence of float
        Readings; at least one each.
    """
    wins = sum(s > r for s in suspect for r in reference)
    m, n = len(suspect), len(reference)
    at_least = sum(_orders(m, n, u) for u in range(wins, m * n + 1))
    return at_least / comb(m + n, m)


@cache
def _orders(m: int, n: int, wins: int) -> int:
    """Orders of m suspects and n references in which suspects win so many comparisons."""
    if wins < 0 or wins > m * n:
        return 0
    if m == 0 or n == 0:
        return 1
    return _orders(m - 1, n, wins - n) + _orders(m, n - 1, wins)
