"""Finds slow components by probes of exactly k GPUs: sweep, search, confirmation, and a second look at the rest.

Evidence stays soft: a reading moves beliefs about everything it touches, it never clears or accuses alone (DESIGN
section 5).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from app.localization.adaptive.clique_beliefs import CliqueReading
from app.localization.adaptive.clique_readings import CliqueReadings, Effects
from app.localization.adaptive.clique_search import Cluster, clusters, filled, splitting
from app.localization.adaptive.examiner import (
    ACCEPTED,
    CONFIRM_TURNS,
    MAX_FOUND,
    REJECTED,
    REJECTIONS,
    TooManyFaults,
)
from app.localization.adaptive.found import Found
from app.localization.adaptive.noise import Floats, log_mean
from app.localization.components import Component, path
from app.localization.evidence import hitting_set
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.shapes import Ranks

# What is not known is cleared at 100:1: with probes of a fixed size much is tested by few probes.
CLEARED = math.log(0.01)
# Odds at which a suspect is confirmed: a search goes on until it leads all others by so much.
SURE = math.log(50)
SEARCH_STEPS = 60
# Slow readings of a suspect that bursts explain, if clean references then say that it is not slow.
FEW_SLOW = 4
# Faults that are searched for side by side.
CLUSTERS = 4
# A probe is clean when what it holds besides the suspect is slow with no more than this probability ...
CLEAN = 0.1
# ... and never surely so: another fault may sit anywhere.
LEAST_RISK = 1e-3
# Share of what is not known that a probe must be expected to tell; and how much, in nats, about what is sure.
TELLS_NOTHING, TELLS_SURE = 0.02, 0.01
# Slow paths at one GPU that are ruled out before the GPU is accused in their place.
STAR = 2
# Turns of a confirmation in which such paths are ruled out, one explanation at a time.
STAR_TURNS = 24


class CliqueExaminer:
    """Measures sets of k GPUs until every component is cleared or accused.

    Parameters
    ----------
    readings : CliqueReadings
        Takes them, and keeps what they say.
    settings : Settings
        GPUs and k.
    effects : Effects
        How much longer a fault makes a probe.
    rng : numpy.random.Generator
        For orders, padding and references.
    """

    def __init__(
        self, readings: CliqueReadings, settings: Settings, effects: Effects, rng: np.random.Generator
    ) -> None:
        self.found: list[Found] = []
        self.alternatives: dict[Component, list[Component]] = {}
        """Of what is accused: components that explain the same."""
        self.unstable: list[Component] = []
        self.inseparable: list[list[Component]] = []
        """Sets of which one may be slow."""
        self._readings, self.beliefs = readings, readings.beliefs
        self._settings, self._effects, self._rng = settings, effects, rng
        self._rejections: dict[int, int] = {}
        self._searched: dict[int, int] = {}
        self._impossible = np.zeros(len(self.beliefs.rows), dtype=bool)

    def examine(self, cover: Sequence[Ranks], first: int) -> Steps[None]:
        """Clear or accuse every component.

        Parameters
        ----------
        cover : sequence of tuple of int
            Sets of k that touch everything.
        first : int
            How many at its beginning touch every GPU: they are measured first.

        Raises
        ------
        OutOfMeasurements, TooManyFaults
            Before everything is decided.
        """
        order = [*self._rng.permutation(first), *(first + self._rng.permutation(len(cover) - first))]
        yield from self._readings.sweep([cover[place] for place in order])
        while True:
            yield from self._verify()
            if self.beliefs.suspicion() < CLEARED or not (yield from self._step()):
                return

    def untested(self, *, complete: bool) -> list[Component]:
        """What is neither cleared nor accused."""
        still_open = self.beliefs.untested()
        if not complete:
            still_open |= self.beliefs.open(CLEARED)
        return [self.beliefs.component(int(row)) for row in np.flatnonzero(still_open)]

    # --- what comes next

    def _verify(self) -> Steps[None]:
        """Measure what no reading touches: faults masked it."""
        while (wanted := self.beliefs.untested() & ~self._impossible).any():
            row = int(self._rng.choice(np.flatnonzero(wanted)))
            members = self.beliefs.component(row).members
            risk = self.beliefs.risk(self.beliefs.odds, self.beliefs.readings)
            probe = filled(self.beliefs, risk, members, self._settings.k, self._rng, wanted=wanted)
            if probe is None or probe[1] + risk[row] >= 1:
                self._impossible[row] = True
            else:
                yield from self._readings.take(probe[0], "verify")

    def _step(self) -> Steps[bool]:
        """One reading of a search, or one confirmation; False when there is nothing that would tell more."""
        some = clusters(self.beliefs, CLUSTERS, CLEARED - 1, SURE)
        for cluster in some:
            if cluster.margin < SURE or not self._can_confirm(cluster):
                members, gain = splitting(self.beliefs, cluster, self._settings.k, self._rng)
                if gain < (TELLS_NOTHING * cluster.entropy if cluster.margin < SURE else TELLS_SURE):
                    continue
                yield from self._search(cluster, members)
            else:
                yield from self._try(cluster)
            return True
        if not some:
            return False
        yield from self._try_inseparable(some[0])
        return True

    def _search(self, cluster: Cluster, members: Ranks) -> Steps[None]:
        best = cluster.best
        again = any(reading.members == frozenset(members) for reading in self.beliefs.readings)
        yield from self._readings.take(members, "recheck" if again else f"search {self.beliefs.component(best)}")
        self._searched[best] = self._searched.get(best, 0) + 1
        if self._searched[best] > SEARCH_STEPS:
            self._set_aside(best)

    def _set_aside(self, row: int) -> None:
        self._come_and_go(row)
        self.beliefs.exclude(row)

    def _come_and_go(self, row: int) -> None:
        component = self.beliefs.component(row)
        if component not in self.unstable:
            self.unstable.append(component)

    def _try(self, cluster: Cluster) -> Steps[None]:
        """Confirm the likeliest component of a cluster."""
        row = cluster.best
        slow = sum(reading.slow for reading in self.beliefs.holding(row))
        confirmed, odds = yield from self._confirm(cluster)
        if confirmed is not None:
            self._accept(row, confirmed)
            return
        if slow > FEW_SLOW:  # more than bursts: it must not end as healthy
            self._come_and_go(row)
        self.beliefs.acquit(row, odds)
        self._rejections[row] = self._rejections.get(row, 0) + 1
        if self._rejections[row] > REJECTIONS:
            self._set_aside(row)
        self._readings.judge_again()

    def _try_inseparable(self, cluster: Cluster) -> Steps[None]:
        """No probe would separate what is left: accuse one with its equals, or leave it open."""
        row = cluster.best
        alike = cluster.rows[cluster.weights > cluster.weights[0] * CLEAN]
        equals = [self.beliefs.component(int(other)) for other in alike]
        star = [path(row, end) for end in self._star(cluster)]
        confirmed = None
        if cluster.nothing < CLEAN:
            confirmed, _ = yield from self._confirm(cluster, star=False)
        if confirmed is None:
            self.inseparable.append(equals)
            for other in cluster.rows:
                self.beliefs.exclude(int(other))
            return
        self.alternatives[confirmed.component] = [*equals[1:], *star]
        self._accept(row, confirmed)

    def _accept(self, row: int, found: Found) -> None:
        self.beliefs.accuse(row)
        if row < self.beliefs.gpus:  # its paths are masked, were they slow or not
            self.found = [f for f in self.found if row not in f.component.members]
        self.found.append(found)
        self.unstable = [component for component in self.unstable if component != found.component]
        if len(self.found) > MAX_FOUND:
            raise TooManyFaults
        self._readings.judge_again()

    # --- confirmation

    def _star(self, cluster: Cluster) -> tuple[int, ...]:
        """Few slow paths at a GPU that would explain its slow probes as well: their other ends.

        Only probes count that are clean but for the GPU and its paths: what else is slow explains the others.
        """
        row = cluster.best
        if row >= self.beliefs.gpus or not self.beliefs.paths:
            return ()
        own = set(self.beliefs.place[row].tolist())
        ends = []
        for reading in self.beliefs.holding(row):
            rest = [other for other in reading.touched.tolist() if other not in own]
            if reading.slow and cluster.risk[rest].sum() <= CLEAN:
                ends.append(tuple(sorted(reading.members - {row})))
        spare = self._settings.gpus - int(self.beliefs.accused[: self.beliefs.gpus].sum()) - self._settings.k
        for size in range(1, min(STAR, spare) + 1):
            star = hitting_set(ends, size)
            if star:
                return star
        return ()

    def _can_confirm(self, cluster: Cluster) -> bool:
        isolated = self._isolated(cluster)
        return isolated is not None and self._reference(cluster, isolated[0]) is not None

    def _isolated(
        self, cluster: Cluster, used: Collection[int] = (), *, star: bool = True
    ) -> tuple[Ranks, float] | None:
        """A probe of a component in which nothing else is likely to be slow, and how likely; None: there is none.

        With other padding than was ``used`` before, if that is hardly less clean; with ``star`` without the paths
        that a GPU's slow probes may be due to.
        """
        row, risk = cluster.best, cluster.risk
        members = self.beliefs.component(row).members
        if row < self.beliefs.gpus:  # that its paths are slow, untested as they are, is ruled out by `_star`
            own = self.beliefs.place[row]
            risk = risk.copy()
            risk[own[risk[own] <= 2 * np.exp(self.beliefs.prior[own])]] = 0.0
        probe = self._filled(risk, members, self._star(cluster) if star else (), used)
        if probe is None:
            return None
        others = probe[1] + (float(risk[list(members)].sum()) if len(members) == 2 else 0.0)
        return (probe[0], others) if others <= CLEAN else None

    def _reference(self, cluster: Cluster, probe: Ranks) -> Ranks | None:
        """A clean probe without a component, as much like its own as can be."""
        left_out = self.beliefs.component(cluster.best).members[-1]
        for kept in ([rank for rank in probe if rank != left_out], []):
            other = self._filled(cluster.risk, kept, (left_out,))
            if other is not None and other[1] <= CLEAN:
                return other[0]
        return None

    def _filled(
        self, risk: Floats, kept: Sequence[int], avoid: Sequence[int], used: Collection[int] = ()
    ) -> tuple[Ranks, float] | None:
        return filled(self.beliefs, risk, kept, self._settings.k, self._rng, avoid=avoid, used=used)

    def _confirm(self, cluster: Cluster, *, star: bool = True) -> Steps[tuple[Found | None, float]]:
        """Interleaved pairs of a suspect's isolated probe and a clean reference (DESIGN section 5, step 5).

        The padding is another in every turn, so that hardly anything else can have slowed them all; with ``star``
        a GPU is then told from a few slow paths at it. Gives what is confirmed, if it is, and the log odds.
        """
        row = cluster.best
        component = self.beliefs.component(row)
        effects = self._effects.of(component)
        pairs, used = _Pairs(np.log(self.beliefs.speaks_for(row) * len(effects) + 1e-3)), set[int]()
        for turn in range(CONFIRM_TURNS):
            isolated = self._isolated(cluster, used, star=star)
            reference = None if isolated is None else self._reference(cluster, isolated[0])
            if isolated is None or reference is None:
                break
            probe, risk = isolated
            used |= set(probe)
            seen = {}
            for members in (probe, reference) if turn % 2 == 0 else (reference, probe):
                seen[members] = yield from self._readings.take(members, str(component))
            suspect = seen[probe]
            if seen[reference].slow:  # a burst, or another fault: the pair says nothing
                if suspect.slow:
                    continue
                break
            difference = self._readings.difference(suspect, seen[reference])
            noise = self._readings.noise
            ratios = noise.pair_ratios(difference, effects, noise.sigma * math.sqrt(2))
            pairs.add(suspect, difference, ratios, risk, censored=suspect.censored)
            if pairs.odds < REJECTED:
                break
            if len(pairs.differences) > 1 and pairs.odds > ACCEPTED and pairs.by_others < -ACCEPTED:
                if star and not (yield from self._no_star(cluster)):
                    break
                return self._found(row, pairs), pairs.odds
        return None, min(pairs.odds, REJECTED)

    def _no_star(self, cluster: Cluster) -> Steps[bool]:
        """Whether a GPU is slow without the paths, few at a time, that could be slow in its place."""
        for _ in range(STAR_TURNS):
            if not self._star(cluster):
                return True
            isolated = self._isolated(cluster)
            if isolated is None:
                break
            reading = yield from self._readings.take(isolated[0], str(self.beliefs.component(cluster.best)))
            if not reading.slow:
                return False
        star = [path(cluster.best, end) for end in self._star(cluster)]
        if star:
            self.alternatives[self.beliefs.component(cluster.best)] = star
        return True

    def _found(self, row: int, pairs: _Pairs) -> Found:
        touching = self.beliefs.holding(row)
        slow = {reading.number for reading in touching if reading.slow} | pairs.numbers
        fast = {reading.number for reading in touching} - slow
        slowdown = math.exp(float(np.median(pairs.differences)))
        evidence = tuple(sorted(slow)), tuple(sorted(fast))
        return Found(self.beliefs.component(row), pairs.odds, slowdown, pairs.censored, *evidence)


class _Pairs:
    """What pairs of a suspect and a reference say.

    Parameters
    ----------
    expected : ndarray of float
        Logarithm of how likely each severity is by what was read before.
    """

    def __init__(self, expected: Floats) -> None:
        self._ratios = expected
        self.odds = 0.0
        self.by_others = 0.0
        self.differences: list[float] = []
        self.numbers: set[int] = set()
        self.censored = False

    def add(
        self, suspect: CliqueReading, difference: float, ratios: Floats, risk: float, *, censored: bool
    ) -> None:
        """Take a pair in; ``risk`` is that something else slowed the suspect's probe."""
        self.by_others += math.log(min(1.0, risk + LEAST_RISK))
        self._ratios = self._ratios + ratios
        self.odds = log_mean(self._ratios)
        self.differences.append(difference)
        self.numbers.add(suspect.number)
        self.censored |= censored
