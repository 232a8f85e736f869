"""From readings to beliefs: levels, what is clean, and the noise itself, each in the light of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from app.localization.adaptive.calibration import LEAST_SIGMA, refined
from app.localization.adaptive.groups import Group, Test, TestResult
from app.localization.adaptive.levels import Levels, LogReading, lowest_cluster
from app.localization.adaptive.noise import LEARNT_BURST_RATE, Floats, Noise

ROUNDS = 4
# Readings this many sigmas off the level are no part of it.
FAR = 3.5
DISTURBED = 0.02
LEAST_CLEAN = 1e-3
# A group is cleared at 100:1 against anything in it; where the noise is learnt, and bursts are believed to be
# frequent, readings say less for and against: there 20:1 misses as little.
CLEARED, CLEARED_LEARNT = math.log(0.01), math.log(0.05)

Effects = Callable[[Group, Test], Floats]


class Judge:
    """Holds readings against levels.

    Parameters
    ----------
    levels : Levels
        The healthy levels.
    noise : Noise
        Of one reading.
    effects : callable
        Effects of every severity for a test of a group.
    """

    def __init__(self, levels: Levels, noise: Noise, effects: Effects) -> None:
        self.levels = levels
        self.noise = noise
        self.effects = effects
        self._guess: float | None = None

    @property
    def learns(self) -> bool:
        """Whether the noise is taken from the readings."""
        return self._guess is not None

    @property
    def cleared(self) -> float:
        """Log odds of "something is slow" below which nothing is."""
        return CLEARED_LEARNT if self.learns else CLEARED

    def learn(self, sigma: float) -> None:
        """Take the noise from the readings from now on; ``sigma`` is the first guess."""
        self._guess = sigma
        self._set_noise(sigma)

    def residual(self, reading: LogReading) -> tuple[float, float] | None:
        """Distance from the level, and the sigma of it; None where no level is known yet."""
        level = self.levels.around(reading)
        if level is None:
            return None
        return reading.value - level[0], math.sqrt(self.noise.sigma**2 + level[1])

    def ratios(self, group: Group, result: TestResult) -> Floats | None:
        """Log-likelihood ratios by severity of a test's reading."""
        residual = self.residual(result.reading)
        if residual is None:
            return None
        effects, censored = self.effects(group, result.test), result.reading.censored
        return self.noise.ratios(residual[0], effects, residual[1], censored=censored)

    def believe(self, group: Group, result: TestResult) -> None:
        """Take one more reading into a group's beliefs."""
        ratios = self.ratios(group, result)
        if ratios is not None:
            group.beliefs.update(result.test.low, result.test.high, ratios)

    def believe_again(self, group: Group) -> None:
        """Everything about a group anew: what is excluded, or the level, has changed."""
        group.beliefs.forget()
        for result in group.results:
            self.believe(group, result)
        for item, odds in group.acquittals:
            group.beliefs.update(item, item + 1, np.full(group.beliefs.severities, odds))

    def judge_again(self, groups: Sequence[Group]) -> None:
        """Believe the readings of a sweep anew, and weigh what is clean and what the level is, in turns.

        It starts from the lowest cluster: where most groups are slow they would otherwise agree on a level.
        """
        if len(groups) > 1:
            self._start_low(groups)
        for _ in range(ROUNDS):
            for group in groups:
                self.believe_again(group)
            for group in groups:
                suspicion = 0.5 / max(2, len(groups)) * math.exp(min(50.0, group.beliefs.evidence()))
                for result in group.results:
                    clean = self._undisturbed(result.reading) / (1 + suspicion)
                    result.reading.clean = max(LEAST_CLEAN, clean)
            self._learn_from(groups)

    def mark(self, group: Group, result: TestResult) -> None:
        """Say how clean a reading of a search is: only such move the level."""
        weights, _ = group.beliefs.weights()
        hit = float(weights[result.test.low : result.test.high].sum())
        residual = self.residual(result.reading)
        near = residual is None or abs(residual[0]) < FAR * self.noise.sigma
        result.reading.clean = max(LEAST_CLEAN, (1 - hit) * (1.0 if near else DISTURBED))

    def is_slow(self, group: Group, result: TestResult) -> bool:
        """Whether a reading is nearer to the smallest fault than to the level."""
        residual = self.residual(result.reading)
        return residual is not None and residual[0] > self.effects(group, result.test).min() / 2

    def fast(self, groups: Sequence[Group]) -> list[Group]:
        """Groups that are below most of their class by as much as the smallest fault is above a level."""
        found = []
        for group in groups:
            own, test = float(np.median(_values(group))), group.results[0].test
            others = [float(np.median(_values(other))) for other in groups if other.results[0].test.of == test.of]
            least = max(float(self.effects(group, test).min()), FAR * self.noise.sigma)
            if test.of not in self.levels.known and own < float(np.median(others)) - least:
                found.append(group)
        return found

    def _start_low(self, groups: Sequence[Group]) -> None:
        for kind in dict.fromkeys(group.results[-1].test.of for group in groups):
            same = [group for group in groups if group.results[-1].test.of == kind]
            values = np.array([np.median([r.reading.value for r in group.results]) for group in same])
            for group, near in zip(same, lowest_cluster(values, self.noise.sigma), strict=True):
                for result in group.results:
                    result.reading.clean = 1.0 if near else DISTURBED

    def _undisturbed(self, reading: LogReading) -> float:
        """Probability that no burst raised a reading of a healthy probe."""
        residual = self.residual(reading)
        if residual is None:
            return 1.0
        return float(self.noise.undisturbed(*residual))

    def _set_noise(self, sigma: float) -> None:
        self.noise = Noise(max(sigma, LEAST_SIGMA), LEARNT_BURST_RATE)
        self.levels.sigma = self.noise.sigma

    def _learn_from(self, groups: Sequence[Group]) -> None:
        """Noise from how far clean readings are off their level; the first guess counts as a few of them."""
        if self._guess is None:
            return
        readings = [result.reading for group in groups for result in group.results]
        known = [(reading.clean, residual) for reading in readings if (residual := self.residual(reading))]
        clean = np.array([probability for probability, _ in known])
        own = np.array([distance * self.noise.sigma / spread for _, (distance, spread) in known])
        self._set_noise(refined(self._guess, clean, own))


def _values(group: Group) -> list[float]:
    return [result.reading.value for result in group.results]
