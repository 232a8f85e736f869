"""Likelihoods of logarithmic latencies: what a reading says for a slow component and against "nothing is slow"."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A burst raises a reading by anything up to a factor of 4 ...
BURST_LOG = math.log(4)
BURST_RATE = 0.05
# Where the noise has to be learnt, from few readings, bursts may be frequent.
LEARNT_BURST_RATE = 0.2
# ... and whatever no hypothesis explains is as likely under all of them.
FLOOR = 1e-4
# Below this nothing is believed to be exact: clocks and rounding.
LEAST_SIGMA = 0.004


@dataclass(frozen=True, slots=True)
class Noise:
    """Normal around the level, with bursts above it.

    Parameters
    ----------
    sigma : float
        Standard deviation of the logarithm.
    burst : float
        Probability that a reading is raised by a burst.
    """

    sigma: float
    burst: float = BURST_RATE

    @classmethod
    def of(cls, sigma: float) -> Noise:
        """The noise of a given sigma; without any, bursts are not expected either."""
        return cls(max(sigma, LEAST_SIGMA), BURST_RATE if sigma else 1e-6)

    def density(self, residual: Floats | float, spread: Floats | float) -> Floats:
        """Density of a reading's distance from its expected level; ``spread`` is the sigma of both together."""
        x = np.asarray(residual, dtype=np.float64)
        above = (x > 0) * self.burst / BURST_LOG
        density: Floats = (1 - self.burst) * _normal(x, spread) + above + FLOOR
        return density

    def ratios(
        self,
        residual: Floats | float,
        effects: Floats,
        spread: Floats | float,
        *,
        censored: NDArray[np.bool_] | bool = False,
    ) -> Floats:
        """Log-likelihood ratios of effects against none, shape of ``residual`` x shape of ``effects``.

        A reading above the largest effect counts as one of that. A censored one, cut off at its deadline, was
        at least that slow.
        """
        x = np.minimum(residual, effects.max())[..., None]
        narrow = np.asarray(spread)[..., None]
        wide = _reaching(effects, narrow)
        ratios: Floats = np.log(self.density(x - effects, wide)) - np.log(self.density(x, narrow))
        if np.any(censored):
            above = np.log(self._above(x - effects, wide)) - np.log(self._above(x, narrow))
            ratios = np.where(np.asarray(censored)[..., None], above, ratios)
        return ratios

    def undisturbed(self, residual: Floats | float, spread: Floats | float) -> Floats:
        """Probability that no burst raised the reading of a healthy probe."""
        x = np.asarray(residual, dtype=np.float64)
        healthy = (1 - self.burst) * _normal(x, spread)
        clean: Floats = healthy / (healthy + self.burst * (x > 0) / BURST_LOG + FLOOR / 100)
        return clean

    def pair_ratios(self, difference: float, effects: Floats, spread: float) -> Floats:
        """As `ratios`, from a suspect's reading less a reference's."""
        x, wide = min(difference, float(effects.max())), _reaching(effects, spread)
        ratios: Floats = np.log(self._pair(x - effects, wide)) - np.log(self._pair(np.array(x), spread))
        return ratios

    def _pair(self, x: Floats, spread: Floats | float) -> Floats:
        """Density of the difference of two readings: a burst may sit in either."""
        within = (np.abs(x) < BURST_LOG) / (2 * BURST_LOG)
        density: Floats = (1 - 2 * self.burst) * _normal(x, spread) + 2 * self.burst * within + FLOOR
        return density

    def _above(self, x: Floats, spread: Floats | float) -> Floats:
        scaled = np.asarray(x / (spread * math.sqrt(2)))
        tail = np.array([math.erfc(v) / 2 for v in scaled.ravel()]).reshape(scaled.shape)
        burst = np.clip((BURST_LOG - x) / BURST_LOG, 0, 1)
        above: Floats = (1 - self.burst) * tail + self.burst * burst + FLOOR
        return above


def _reaching(effects: Floats, spread: Floats | float) -> Floats:
    """Sigmas that reach from each hypothesis to its neighbours: a fault may be of any size between two."""
    order = np.argsort(effects)
    gaps = np.diff(effects[order])
    reach = np.zeros(len(effects))
    reach[order[1:]] = (gaps + np.append(gaps[1:], gaps[-1])) / 4  # the smallest one does not reach further down
    wide: Floats = np.hypot(spread, reach)
    return wide


def _normal(x: Floats, sigma: Floats | float) -> Floats:
    density: Floats = np.exp(-0.5 * (x / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
    return density


def log_mean(ratios: Floats) -> float:
    """Logarithm of the mean of exponentials: the ratio when every severity is as likely beforehand."""
    return float(log_means(ratios[None, :])[0])


def log_means(rows: Floats) -> Floats:
    """`log_mean` of each row, shape (rows,)."""
    peak = rows.max(axis=1)
    mean: Floats = peak + np.log(np.exp(rows - peak[:, None]).mean(axis=1))
    return mean
