"""Soft evidence about all GPUs and paths, from probes in which every member sends to every other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.noise import Floats, log_means
from app.localization.components import Component, gpu, path

Rows = NDArray[np.intp]

LEAST_ODDS = -100.0


@dataclass(slots=True, eq=False)
class CliqueReading:
    """A reading of a clique, and what it says.

    Parameters
    ----------
    at : int
        Its place in the session.
    number : int
        Of the probe.
    members : frozenset of int
        GPUs in the probe.
    touched : ndarray of int
        Rows of the components in it, GPUs first.
    ratios : ndarray of float, shape (components in it, severities)
        Log-likelihood ratios of "this component is slow" against "nothing is".
    slow : bool
        Rather slow than not.
    censored : bool
        Cut off at its deadline.
    """

    at: int
    number: int
    members: frozenset[int]
    touched: Rows
    ratios: Floats
    slow: bool = False
    censored: bool = False


class CliqueBeliefs:
    """Log-likelihood ratios, against "nothing is slow", of components x severities.

    Rows are components: GPU r is row r, paths follow. Only what a reading touches is computed anew.

    Parameters
    ----------
    gpus : int
        n.
    severities : int
        Hypotheses about the size of a fault.
    paths : bool
        Whether paths can be told apart; else there are only GPUs.
    """

    def __init__(self, gpus: int, severities: int, *, paths: bool) -> None:
        self.gpus, self.severities, self.paths = gpus, severities, paths
        self._ends = np.triu_indices(gpus, 1)
        pairs = len(self._ends[0]) if paths else 0
        # Row of the path between two ranks; on the diagonal that of the GPU.
        self.place = np.zeros((gpus, gpus), dtype=np.intp)
        if paths:
            self.place[self._ends] = np.arange(gpus, gpus + pairs)
            self.place += self.place.T
        np.fill_diagonal(self.place, np.arange(gpus))
        # A fault is as likely as none, and as likely a GPU as a path.
        share = 2 if paths else 1
        self.prior: Floats = np.full(gpus + pairs, -math.log(share * gpus))
        self.prior[gpus:] = -math.log(max(1, share * pairs))
        self.rows: Floats = np.zeros((gpus + pairs, severities))
        self.acquittals: Floats = np.zeros(gpus + pairs)
        """Log odds of confirmations that failed."""
        self.accused: NDArray[np.bool_] = np.zeros(gpus + pairs, dtype=bool)
        self.excluded: NDArray[np.bool_] = np.zeros(gpus + pairs, dtype=bool)
        """What is no candidate any more: accused, masked, or unstable."""
        self.odds: Floats = self.prior.copy()
        """Posterior log odds of every component on its own; -inf where it is excluded."""
        self.readings: list[CliqueReading] = []
        """Those in which nothing accused took part."""
        self.times = np.zeros(gpus + pairs, dtype=np.intp)
        """How many of the readings touch a component."""

    def component(self, row: int) -> Component:
        """The component of a row."""
        if row < self.gpus:
            return gpu(row)
        u, v = (int(ends[row - self.gpus]) for ends in self._ends)
        return path(u, v)

    def touched(self, members: Sequence[int]) -> Rows:
        """Rows of the components in a probe, GPUs first."""
        ranks = np.array(sorted(members), dtype=np.intp)
        if not self.paths:
            return ranks
        inside = self.place[np.ix_(ranks, ranks)][np.triu_indices(len(ranks), 1)]
        return np.concatenate([ranks, inside])

    def forget(self) -> None:
        """Drop all evidence, not what is excluded."""
        self.readings = []
        self.times[:] = 0
        self.rows[:] = self.acquittals[:, None]
        self._refresh(np.arange(len(self.rows)))

    def update(self, reading: CliqueReading) -> None:
        """Believe a reading, unless something accused took part in it."""
        if self.accused[reading.touched].any():
            return
        self.readings.append(reading)
        self.rows[reading.touched] += reading.ratios
        self.times[reading.touched] += 1
        self._refresh(reading.touched)

    def acquit(self, row: int, odds: float) -> None:
        """A component was held against clean references, and was not confirmed."""
        self.acquittals[row] += odds
        self.rows[row] += odds
        self._refresh(np.array([row]))

    def accuse(self, row: int) -> None:
        """A component is slow: what it masks are no candidates. Believe the readings anew after it."""
        self.accused[row] = True
        self.exclude(row)
        if row < self.gpus:
            self.excluded[self.place[row]] = True
            self.odds[self.place[row]] = -np.inf

    def exclude(self, row: int) -> None:
        """A component is no candidate any more."""
        self.excluded[row] = True
        self.odds[row] = -np.inf

    def suspicion(self) -> float:
        """Log odds that anything which readings touch is slow."""
        return _log_sum(self.odds[self.times > 0])

    def leader(self, odds: Floats) -> int:
        """The component with the highest of some odds, among those that readings touch."""
        return int(np.where(self.times > 0, odds, -np.inf).argmax())

    def holding(self, row: int) -> list[CliqueReading]:
        """Readings that touch a component."""
        members = self.component(row).members
        return [reading for reading in self.readings if reading.members.issuperset(members)]

    def without(self, readings: Iterable[CliqueReading]) -> tuple[Rows, Floats]:
        """Rows that some readings touch, and their odds were it not for these."""
        some = list(readings)
        rows, place = np.unique(np.concatenate([r.touched for r in some]), return_inverse=True)
        left = self.rows[rows]
        np.subtract.at(left, place, np.concatenate([r.ratios for r in some]))
        odds = self.prior[rows] + log_means(left)
        odds[self.excluded[rows]] = -np.inf
        return rows, odds

    def speaks_for(self, row: int) -> Floats:
        """Posterior weights of the severities of a component's fault, shape (severities,)."""
        weights: Floats = np.exp(self.rows[row] - self.rows[row].max())
        weights /= weights.sum()
        return weights

    def risk(self, odds: Floats, readings: Iterable[CliqueReading]) -> Floats:
        """Probability that a component slows a probe; 1 for what is no candidate any more.

        Parameters
        ----------
        odds : ndarray of float, shape (components,)
            Of every component on its own.
        readings : iterable of CliqueReading
            Those that are to be explained: components of a slow one share the blame, as one is enough.
        """
        risk: Floats = 1 / (1 + np.exp(-np.clip(odds, -50, 50)))
        for reading in readings:
            if reading.slow:
                own = np.maximum(odds[reading.touched], LEAST_ODDS)
                shares = np.exp(own - _log_sum(own))
                risk[reading.touched] = np.minimum(risk[reading.touched], shares)
        risk[self.excluded] = 1.0
        return risk

    def untested(self) -> NDArray[np.bool_]:
        """Candidates that no reading touches."""
        untested: NDArray[np.bool_] = (self.times == 0) & ~self.excluded
        return untested

    def open(self, cleared: float) -> NDArray[np.bool_]:
        """Candidates that the readings do not speak against by ``cleared``, log odds."""
        still_open: NDArray[np.bool_] = (self.odds - self.prior > cleared) & ~self.excluded
        return still_open

    def _refresh(self, rows: Rows) -> None:
        self.odds[rows] = self.prior[rows] + log_means(self.rows[rows])
        self.odds[rows[self.excluded[rows]]] = -np.inf


def _log_sum(odds: Floats) -> float:
    peak = float(odds.max(initial=-np.inf))
    return peak if peak == -np.inf else peak + math.log(float(np.exp(odds - peak).sum()))
