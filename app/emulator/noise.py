"""Noise that depends on what is asked, never on when or in which order it arrives."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

NoiseKey = tuple[int, int, int]
"""(rank, number of the request on that rank, index of the token)."""

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_NORMAL = NormalDist()


def uniform(*parts: int) -> float:
    """Return a number in (0, 1) that is a fixed function of ``parts`` (SplitMix64 finaliser, chained)."""
    state = 0
    for part in parts:
        state = ((state ^ part) + _GOLDEN) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return ((state >> 11) + 0.5) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Noise:
    """Multiplicative step noise: lognormal, and optional bursts.

    A lock-step engine waits for its slowest rank, so a step's lognormal factor is the *largest* among its
    requests. A burst slows one whole request and is drawn from the lowest-numbered rank of the step alone:
    the share of slow probes is ``burst_rate`` whatever the number of ranks in a probe.

    Parameters
    ----------
    sigma : float
        Standard deviation of the log of the factor; 0 for none.
    burst_rate : float
        Probability that a request is in a burst, 0 to 1.
    burst_factor : float
        What a burst multiplies the step by, at least 1.
    seed : int
        Chooses the noise; equal seeds and requests give equal noise.
    """

    sigma: float = 0.02
    burst_rate: float = 0.0
    burst_factor: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.sigma <= 2:
            raise ValueError(f"noise sigma must be 0 to 2, got {self.sigma}")
        if not 0 <= self.burst_rate <= 1 or self.burst_factor < 1:
            raise ValueError("burst_rate must be 0 to 1 and burst_factor at least 1")

    def __bool__(self) -> bool:
        return self.sigma > 0 or self.burst_rate > 0

    def factor(self, keys: Iterable[NoiseKey]) -> float:
        """Return the factor of a step in which the requests ``keys`` take part (1.0 for none)."""
        known = tuple(keys)
        if not known or not self:
            return 1.0
        factor = 1.0
        if self.sigma:
            # The largest uniform gives the largest quantile: one inverse, however many requests.
            highest = max(uniform(self.seed, *key) for key in known)
            factor = math.exp(self.sigma * _NORMAL.inv_cdf(highest))
        rank, number, _ = min(known)
        if self.burst_rate and uniform(self.seed, rank, number) < self.burst_rate:
            factor *= self.burst_factor
        return factor
