"""What a step costs on this replica and how noisy it is, from probes of the job itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import numpy as np

from app.localization.adaptive.costs import Costs
from app.localization.adaptive.noise import Floats

# Readings of each set of GPUs: their scatter is the noise.
ROUNDS = 3
# Sets that are read at little load: the lowest counts, as a fault may sit in the others.
LIGHT_SETS = 3
# The load of self-loops where the server sets no limit.
LOAD = 1024
# No noise is believed to be smaller: a few readings may agree by chance.
LEAST_SIGMA = 0.02
# Readings that the first guess of the noise counts for, where it is learnt.
GUESS_WEIGHT = 5
LIKELY = 0.5
_NORMAL_MAD = 1.4826


def scatter(repeats: Sequence[Sequence[float]]) -> float:
    """Standard deviation of a reading's logarithm, from repeats of the same probes in the order they were taken.

    By the median of differences in a row: neither a few bursts nor a slow drift count.

    Parameters
    ----------
    repeats : sequence of sequence of float
        Logarithms; at least two of one probe.
    """
    differences = [abs(b - a) for row in repeats for a, b in pairwise(row)]
    return max(LEAST_SIGMA, _NORMAL_MAD * median(differences) / math.sqrt(2))


def refined(guess: float, clean: Floats, residuals: Floats) -> float:
    """Standard deviation of a reading's logarithm, from how far clean readings are off their level.

    Parameters
    ----------
    guess : float
        A first one, which counts as a few readings.
    clean : ndarray of float
        Probability that a reading shows the healthy level; unlikely ones do not count.
    residuals : ndarray of float
        Distances from the level, less what is due to its own uncertainty.
    """
    weights = np.where(clean > LIKELY, clean, 0.0)
    squares = GUESS_WEIGHT * guess**2 + weights @ residuals**2
    return max(LEAST_SIGMA, math.sqrt(squares / (GUESS_WEIGHT + weights.sum())))


def loop_costs(light_ms: float, loops_ms: float, load: int, sigma: float) -> Costs:
    """Fixed and compute cost by self-loops of one sequence and of ``load``; paths are guessed to cost as much."""
    compute = max(0.0, loops_ms - light_ms) / (load - 1) if load > 1 else 0.0
    fixed = max(1e-3, light_ms - compute)
    return Costs(fixed_ms=fixed, compute_ms=compute, path_ms=compute, sigma=sigma)


def with_paths(costs: Costs, shift_ms: float, load: int, sigma: float) -> Costs:
    """The cost of a path and its noise, from exchanges at ``load`` sequences a rank."""
    rest = shift_ms - costs.fixed_ms - costs.compute_ms * load
    return Costs(costs.fixed_ms, costs.compute_ms, max(0.0, rest) / load, sigma)
