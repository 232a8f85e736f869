"""How evenly bytes are spread over rails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Shape = Literal["none", "single", "even", "concentrated"]
EVEN_MAX_OVER_MEAN = 1.25
"""Up to here shares are called even: the busiest of two rails carries at most 62.5 %."""


@dataclass(frozen=True)
class Distribution:
    """Shares of the bytes that were *selected*; they prove no traffic.

    Parameters
    ----------
    shape : str
        ``none`` (no bytes), ``single`` (one rail has all, or there is only one), ``even``, ``concentrated``.
    shares : dict
        Fraction of the bytes by rail; all 0 when there are none.
    gini : float
        0 when all rails have the same, (n - 1) / n when one of n has all.
    max_over_mean : float
        The busiest rail against the mean rail, 1 to n; 0 when there are no bytes.
    """

    shape: Shape
    shares: dict[str, float]
    gini: float
    max_over_mean: float

    def to_dict(self) -> dict[str, Any]:
        """As a document."""
        return {
            "basis": "selected, not wire",
            "shape": self.shape,
            "shares": {name: round(share, 6) for name, share in self.shares.items()},
            "gini": round(self.gini, 6),
            "max_over_mean": round(self.max_over_mean, 6),
        }


def distribution(selected: Mapping[str, int]) -> Distribution:
    """Shares of rails, idle ones included.

    Parameters
    ----------
    selected : mapping of str to int
        Bytes by rail.
    """
    total, n = sum(selected.values()), len(selected)
    if not total:
        return Distribution("none", dict.fromkeys(selected, 0.0), 0.0, 0.0)
    ordered = sorted(selected.values())
    # Gini from ranks: sum of (2 i - n - 1) x_i over n times the total, i = 1..n ascending.
    gini = sum((2 * i - n - 1) * x for i, x in enumerate(ordered, start=1)) / (n * total)
    max_over_mean = ordered[-1] * n / total
    shape: Shape = "even" if max_over_mean <= EVEN_MAX_OVER_MEAN else "concentrated"
    if ordered[-1] == total:
        shape = "single"
    return Distribution(shape, {name: x / total for name, x in selected.items()}, gini, max_over_mean)
