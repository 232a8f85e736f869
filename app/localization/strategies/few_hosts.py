"""Three hosts: too few to compare their uplinks as sets, but a slow one is slow to both of the others."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import median

import numpy as np

from app.localization.adaptive.examiner import ACCEPTED, Examiner
from app.localization.adaptive.found import Found
from app.localization.adaptive.groups import exchange
from app.localization.adaptive.levels import LevelClass
from app.localization.adaptive.noise import Floats
from app.localization.record import Steps
from app.localization.shapes import Ranks
from app.localization.strategies.few_units import LOOKS, TURNS, UnitPair, accused, beside, members, settled

HOSTS = 3


class FewHosts:
    """Compares three hosts.

    Parameters
    ----------
    examiner : Examiner
        Measures.
    hosts : sequence of int
        Of every rank.
    rng : numpy.random.Generator
        For pairs of GPUs.
    """

    def __init__(self, examiner: Examiner, hosts: Sequence[int], rng: np.random.Generator) -> None:
        self._examiner, self._hosts, self._rng = examiner, hosts, rng
        self.found: Found | None = None

    def compare(self, ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Hold the sends between every two hosts against those of the fastest two; see `FewSwitches.compare`."""
        names = sorted({self._hosts[rank] for rank in ring})
        if len(names) != HOSTS:
            return
        pairs = [UnitPair(units=two) for two in combinations(names, 2)]
        for turn in range(TURNS):
            for pair in pairs:
                one, other = (self._any(ring, host) for host in pair.units)
                shape = exchange(ring, [(one, other)], load)
                number, reading = yield from self._examiner.read_numbered(shape, LevelClass("hosts"))
                pair.numbers.append(number)
                pair.readings.append(reading)
            fastest = min(pairs, key=lambda pair: pair.level)
            slow = [pair for pair in pairs if pair is not fastest]
            odds = [self._examiner.odds(beside(pair.readings, fastest.readings), effects) for pair in slow]
            if turn + 1 >= LOOKS and min(odds) < self._examiner.cleared:
                return
            if settled(turn + 1, odds, self._examiner.cleared):
                break
        if min(odds) > ACCEPTED:
            (host,) = set(slow[0].units) & set(slow[1].units)
            rise = median(pair.level for pair in slow) - fastest.level
            self.found = accused(members(ring, self._hosts, host), "uplink", slow, odds=min(odds), rise=rise)

    def _any(self, ring: Ranks, host: int) -> int:
        there = [rank for rank in ring if self._hosts[rank] == host]
        return there[int(self._rng.integers(len(there)))]
