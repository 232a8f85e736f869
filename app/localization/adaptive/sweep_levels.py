"""The healthy level of many probes of one size, each measured once or a few times, while it drifts.

As `Levels`, in arrays: a cover of 300 GPUs is thousands of readings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.levels import LEAST_WEIGHT, MEMORY, lowest_cluster
from app.localization.adaptive.noise import Floats

# Readings further away than this in time count nothing: e^-10.
REACH = int(10 * MEMORY)
# Readings among which the lowest cluster is looked for: the level hardly drifts in between.
WINDOW = 80
# Weight of what is outside of the lowest cluster, before anything is judged.
UNLIKELY = 1e-3
# Weight from which on a reading belongs to it.
LOWEST = 0.5
# What the level may have drifted by, where a class has no reading nearby: sigma of the logarithm.
DRIFTED_SIGMA = 0.05


class SweepLevels:
    """Weighted means of what is believed clean, the nearest in time most.

    Parameters
    ----------
    sigma : float
        Noise of one reading.
    capacity : int
        The most readings.
    """

    def __init__(self, sigma: float, capacity: int) -> None:
        self.sigma = sigma
        self.count = 0
        self.clean: Floats = np.ones(capacity)
        """Probability that a reading shows the healthy level, shape (capacity,)."""
        self._censored: NDArray[np.bool_] = np.zeros(capacity, dtype=bool)
        self._values: Floats = np.zeros(capacity)
        self._probes = np.zeros(capacity, dtype=np.intp)
        self._classes = np.zeros(capacity, dtype=np.intp)
        self._names: list[str] = []

    def add(self, of: str, probe: int, value: float, *, censored: bool = False) -> int:
        """Take a reading of a hop class in: log ms; its place in the session."""
        at = self.count
        if of not in self._names:
            self._names.append(of)
        self._values[at], self._probes[at] = value, probe
        self._classes[at], self._censored[at] = self._names.index(of), censored
        self.count += 1
        return at

    def start(self) -> None:
        """Believe the lowest cluster of every class: where most probes are slow they would agree on a level."""
        for kind in range(len(self._names)):
            same = np.flatnonzero(self._classes[: self.count] == kind)
            for low in range(0, len(same), WINDOW):
                some = same[max(0, min(low, len(same) - WINDOW)) : low + WINDOW]
                near = lowest_cluster(self._values[some], self.sigma)
                self.clean[some] = np.where(near, 1.0, UNLIKELY)

    def residual(self, at: int) -> tuple[float, float] | None:
        """Distance of a reading from its level, and the sigma of that; None where no level is known.

        The level comes from other probes where there are any: a slow probe, often repeated, must not testify for
        itself. One that alone makes up the lowest cluster is the level.
        """
        first = max(0, at - REACH)
        near = slice(first, min(self.count, at + REACH))
        ages = np.abs(np.arange(near.start, near.stop) - at)
        level = self._mean(near, at, np.exp(-ages / MEMORY), others=True)
        if level is None or level[1] > self.sigma**2:
            everything = slice(0, self.count)
            wider = self._mean(everything, at, np.ones(self.count), others=True)
            if wider is not None:
                wider = wider[0], wider[1] + DRIFTED_SIGMA**2
                level = wider if level is None or wider[1] < level[1] else level
            elif level is None:
                level = self._mean(everything, at, np.ones(self.count), others=False)
        if level is None and self.clean[at] > LOWEST and not self._censored[at]:
            level = float(self._values[at]), self.sigma**2
        if level is None:
            return None
        return float(self._values[at]) - level[0], float(np.sqrt(self.sigma**2 + level[1]))

    def residuals(self) -> tuple[Floats, Floats]:
        """Of every reading, see `residual`; 0 with an infinite sigma where no level is known."""
        seen = [self.residual(at) or (0.0, np.inf) for at in range(self.count)]
        return np.array([r for r, _ in seen]), np.array([s for _, s in seen])

    def value(self, at: int) -> float:
        """Log ms of a reading."""
        return float(self._values[at])

    def alike(self, at: int, other: int) -> bool:
        """Whether two readings are of one class."""
        return bool(self._classes[at] == self._classes[other])

    def latest(self) -> float | None:
        """Level of the largest class now, log ms."""
        if not self.count:
            return None
        classes = self._classes[: self.count]
        same = np.flatnonzero(classes == np.bincount(classes).argmax())
        weights = self.clean[same] * ~self._censored[same] * np.exp((same - self.count) / MEMORY)
        return float(weights @ self._values[same] / weights.sum()) if weights.sum() > 0 else None

    def _mean(self, within: slice, at: int, weights: Floats, *, others: bool) -> tuple[float, float] | None:
        kept = (self._classes[within] == self._classes[at]) & ~self._censored[within]
        if others:
            kept &= self._probes[within] != self._probes[at]
        elif within.start <= at < within.stop:
            kept[at - within.start] = False
        weights = weights * kept * self.clean[within]
        total = float(weights.sum())
        if total < LEAST_WEIGHT:
            return None
        return float(weights @ self._values[within]) / total, self.sigma**2 * float(weights @ weights) / total**2
