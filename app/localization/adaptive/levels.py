"""The healthy level of every class of probes, from readings that may be disturbed, while it drifts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.noise import Floats

# Readings after which an old one counts 1/e: the level drifts by about half a percent a reading.
MEMORY = 20.0
# How well the level of one class predicts another's that has no readings of its own: sigma of the logarithm.
BORROWED_SIGMA = 0.05
LEAST_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class LevelClass:
    """Probes that take the same time on a healthy replica.

    Parameters
    ----------
    form : str
        ``loops``, ``light`` (loops of little load), ``links``, ``shift`` or ``exchange``.
    hops : str
        See `hops_between`.
    """

    form: str
    hops: str = "any"

    def lends_to(self, other: LevelClass) -> bool:
        """Whether its level predicts the other's: the same load over the same kind of paths."""
        return self != other and self.hops == other.hops and {self.form, other.form} == {"shift", "exchange"}


@dataclass(slots=True, eq=False)
class LogReading:
    """One logarithmic latency.

    Parameters
    ----------
    at : int
        Place in the session.
    of : LevelClass
        What was measured.
    probe : int
        Number of the probe.
    value : float
        log ms.
    clean : float
        Probability that it shows the healthy level.
    censored : bool
        Cut off at its deadline.
    """

    at: int
    of: LevelClass
    probe: int
    value: float
    clean: float = 1.0
    censored: bool = False


class Levels:
    """Weighted means of what is believed clean, the latest most.

    Parameters
    ----------
    sigma : float
        Noise of one reading.
    known : mapping of LevelClass to float, optional
        Levels that are known beforehand, log ms; the others are measured.
    """

    def __init__(self, sigma: float, known: Mapping[LevelClass, float] | None = None) -> None:
        self.sigma = sigma
        self.known = dict(known or {})
        self._readings: list[LogReading] = []

    def add(self, of: LevelClass, probe: int, value: float, *, censored: bool = False) -> LogReading:
        """Take a reading in."""
        reading = LogReading(len(self._readings), of, probe, value, censored=censored)
        self._readings.append(reading)
        return reading

    def around(self, reading: LogReading) -> tuple[float, float] | None:
        """Mean and variance of the level a reading is held against; None: nothing is known.

        It comes from other probes where there are any: a slow probe, often repeated, must not testify for itself.
        """
        if reading.of in self.known:
            return self.known[reading.of], 0.0
        seen = [r for r in self._readings if r is not reading and not r.censored]
        found = self._from([r for r in seen if r.probe != reading.probe], reading)
        return found if found is not None else self._from(seen, reading)

    def _from(self, others: list[LogReading], reading: LogReading) -> tuple[float, float] | None:
        own = self._mean([r for r in others if r.of == reading.of], reading.at)
        if own is not None and own[1] <= self.sigma**2:
            return own
        lent = self._mean([r for r in others if r.of.lends_to(reading.of)], reading.at)
        if lent is None:
            return own
        lent = lent[0], lent[1] + BORROWED_SIGMA**2
        return lent if own is None else _combined(own, lent)

    def level(self, of: LevelClass) -> float | None:
        """The latest level of a class, log ms."""
        latest = self.latest(of)
        return None if latest is None else latest[0]

    def latest(self, of: LevelClass) -> tuple[float, float] | None:
        """The latest level of a class, log ms, and how well it is known: the sigma of that."""
        if of in self.known:
            return self.known[of], 0.0
        mean = self._mean([r for r in self._readings if r.of == of and not r.censored], len(self._readings))
        return None if mean is None else (mean[0], math.sqrt(mean[1]))

    def _mean(self, readings: list[LogReading], moment: int) -> tuple[float, float] | None:
        if not readings:
            return None
        ages = np.array([abs(moment - r.at) for r in readings])
        weights = np.array([r.clean for r in readings]) * np.exp(-ages / MEMORY)
        total = float(weights.sum())
        if total < LEAST_WEIGHT:
            return None
        mean = float(weights @ np.array([r.value for r in readings])) / total
        return mean, self.sigma**2 * float((weights**2).sum()) / total**2


def lowest_cluster(values: Floats, sigma: float) -> NDArray[np.bool_]:
    """Which of some readings of one class are likely healthy: those within 3 sigma of the lowest decile."""
    ordered = np.sort(values)
    low = float(ordered[: max(1, len(ordered) // 10)].mean())
    near: NDArray[np.bool_] = values <= low + 3 * sigma
    return near


def _combined(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    precision = 1 / a[1] + 1 / b[1]
    return (a[0] / a[1] + b[0] / b[1]) / precision, 1 / precision
