"""Robust additive fit of a matrix: class level + row effect + column effect + residual."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.analyses.hop_classes import HopClasses, spread
from app.analyses.records import Matrix

Vector = NDArray[np.float64]

_SWEEPS = 8
#: Nothing is measured better than this.
_LEAST_NOISE = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted matrix.

    Parameters
    ----------
    rows, columns : ndarray
        float64, (n,): effects, median zero.
    residual : ndarray
        float64, (n, n): what is left; NaN where nothing was measured.
    sigma : float
        Robust standard deviation of a residual, corrected for the effects that were fitted
        and for how few cells tell it.
    """

    rows: Vector
    columns: Vector
    residual: Matrix
    sigma: float


def width(effects: Vector) -> float:
    """Distance between the first and the last quarter of some effects, all finite."""
    low, high = np.quantile(effects, [0.25, 0.75])
    return float(high - low)


def fit_effects(badness: Matrix, classes: HopClasses) -> Fit:
    """Median polish with class levels.

    Parameters
    ----------
    badness : ndarray
        Logarithm, higher is worse; (n, n), NaN where unknown.
    classes : HopClasses
        Class of each cell.
    """
    n = len(badness)
    residual = badness.copy()
    rows, columns = np.zeros(n), np.zeros(n)
    of = np.where(np.isfinite(badness), classes.of, -1)
    cells = [of == number for number in range(int(of.max(initial=-1)) + 1)]
    cells = [mask for mask in cells if mask.any()]
    for _ in range(_SWEEPS):
        for mask in cells:
            residual[mask] -= np.median(residual[mask])
        step = _medians(residual, axis=1)
        residual -= step[:, None]
        rows += step
        step = _medians(residual, axis=0)
        residual -= step[None, :]
        columns += step
    finite = int(np.count_nonzero(np.isfinite(residual)))
    fitted = 2 * n - 1 + len(cells) - 1
    free = max(1, finite - fitted)
    # The second factor allows for how badly a few cells tell the spread.
    sigma = spread(residual) * np.sqrt(finite / free) * (1 + 2 / np.sqrt(free))
    return Fit(rows - np.median(rows), columns - np.median(columns), residual, max(_LEAST_NOISE, float(sigma)))


def _medians(residual: Matrix, axis: int) -> Vector:
    """Medians along an axis of what is known; 0 for a row without any. Sorting puts NaN last."""
    ordered = np.sort(residual, axis=axis)
    if axis == 0:
        ordered = ordered.T
    counts = np.isfinite(ordered).sum(axis=1)
    index = np.arange(len(ordered))
    low, high = np.maximum(counts - 1, 0) // 2, np.maximum(counts, 1) // 2
    middle = (ordered[index, low] + ordered[index, np.minimum(high, np.maximum(counts - 1, 0))]) / 2
    return np.where(counts > 0, middle, 0.0)
