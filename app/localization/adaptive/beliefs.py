"""Soft evidence: what readings say about every item of a group, and of which size a fault is."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.noise import Floats, log_means


class Beliefs:
    """Log-likelihood ratios, against "nothing is slow", of items x severities.

    Items are ordered and every test touches an interval of them, so those between the same cuts share a row.

    Parameters
    ----------
    items : int
        How many.
    severities : int
        Hypotheses about the size of a fault.
    """

    def __init__(self, items: int, severities: int) -> None:
        self.items = items
        self.excluded: NDArray[np.bool_] = np.zeros(items, dtype=bool)
        """Items that are no candidates any more, shape (items,): known to be slow, or masked."""
        self.severities = severities
        self.forget()

    def forget(self) -> None:
        """Drop all evidence, not what is excluded."""
        self._cuts = np.array([0, self.items])
        self._rows: Floats = np.zeros((1, self.severities))

    def update(self, low: int, high: int, ratios: Floats) -> None:
        """A test of the items ``low <= i < high``: log-likelihood ratio by severity, were one of them slow."""
        for cut in (low, high):
            place = int(np.searchsorted(self._cuts, cut))
            if self._cuts[place] != cut:
                self._cuts = np.insert(self._cuts, place, cut)
                self._rows = np.insert(self._rows, place, self._rows[place - 1], axis=0)
        first, last = np.searchsorted(self._cuts, [low, high])
        self._rows[first:last] += ratios

    @property
    def candidates(self) -> int:
        """Items that are not excluded."""
        return self.items - int(self.excluded.sum())

    def ratios(self) -> Floats:
        """Log-likelihood ratio of each item, severities averaged, shape (items,); -inf when excluded."""
        ratios = np.repeat(log_means(self._rows), np.diff(self._cuts))
        ratios[self.excluded] = -np.inf
        return ratios

    def weights(self) -> tuple[Floats, float]:
        """Posterior probability of each item, and of "nothing is slow", at even prior odds."""
        odds = self.ratios() - np.log(max(1, self.candidates))
        peak = max(0.0, float(odds.max(initial=-np.inf)))
        items, nothing = np.exp(odds - peak), float(np.exp(-peak))
        total = float(items.sum()) + nothing
        return items / total, nothing / total

    def evidence(self) -> float:
        """Log-likelihood ratio of "one of them is slow" against "nothing is"."""
        nothing = self.weights()[1]
        return float(np.log(max(1e-300, 1 - nothing)) - np.log(max(1e-300, nothing)))

    def most_telling(self) -> tuple[int, int]:
        """Which items to test next: about half of the suspicion, or all of it while "nothing" is likelier."""
        weights, nothing = self.weights()
        total = float(weights.sum())
        share = np.cumsum(weights) / max(1e-12, total)
        low = int(np.searchsorted(share, 0.003))
        if nothing > 0.5:
            return low, min(len(weights), int(np.searchsorted(share, 0.997)) + 1)
        best = int(weights.argmax())
        if weights[best] > 0.9 * total:
            return best, best + 1
        target = min(1.0, 0.5 / (1 - nothing))
        high = int(np.searchsorted(share, target)) + 1
        if high - low > 1 and abs(share[high - 2] - target) < abs(share[min(high, len(share)) - 1] - target):
            high -= 1
        return low, min(len(weights), max(high, low + 1))
