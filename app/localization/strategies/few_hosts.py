"""Three hosts: too few to compare their uplinks as sets, but a slow one is slow to both of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import numpy as np

from app.localization.adaptive.examiner import ACCEPTED, CLEARED, Examiner, Found
from app.localization.adaptive.groups import exchange
from app.localization.adaptive.levels import LevelClass, LogReading
from app.localization.adaptive.noise import Floats
from app.localization.components import group_of
from app.localization.record import Steps
from app.localization.shapes import Ranks

HOSTS = 3
# Readings of each two hosts: at least, to clear them; and at most, enough to tell slower from slow by chance.
LOOKS, TURNS = 2, 8


@dataclass
class HostPair:
    """Readings of sends between two hosts, by a new pair of GPUs every time."""

    hosts: tuple[int, int]
    numbers: list[int] = field(default_factory=list)
    readings: list[LogReading] = field(default_factory=list)

    @property
    def level(self) -> float:
        """Log ms."""
        return median(reading.value for reading in self.readings)

    def beside(self, other: HostPair) -> list[tuple[LogReading, LogReading]]:
        """Readings of both, turn by turn: what drifts is in both."""
        return list(zip(self.readings, other.readings, strict=True))


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
        """Hold the sends between every two hosts against those of the fastest two; see `FewLeaves.compare`."""
        names = sorted({self._hosts[rank] for rank in ring})
        if len(names) != HOSTS:
            return
        pairs = [HostPair(two) for two in combinations(names, 2)]
        for turn in range(TURNS):
            for pair in pairs:
                one, other = (self._any(ring, host) for host in pair.hosts)
                shape = exchange(ring, [(one, other)], load)
                number, reading = yield from self._examiner.read_numbered(shape, LevelClass("hosts"))
                pair.numbers.append(number)
                pair.readings.append(reading)
            fastest = min(pairs, key=lambda pair: pair.level)
            slow = [pair for pair in pairs if pair is not fastest]
            odds = [self._examiner.odds(pair.beside(fastest), effects) for pair in slow]
            if turn + 1 >= LOOKS and min(odds) < CLEARED:
                return
        if min(odds) > ACCEPTED:
            self._accuse(slow, fastest, min(odds), ring)

    def _any(self, ring: Ranks, host: int) -> int:
        there = [rank for rank in ring if self._hosts[rank] == host]
        return there[int(self._rng.integers(len(there)))]

    def _accuse(self, slow: Sequence[HostPair], fastest: HostPair, odds: float, ring: Ranks) -> None:
        (host,) = set(slow[0].hosts) & set(slow[1].hosts)
        self.found = Found(
            group_of(tuple(sorted(rank for rank in ring if self._hosts[rank] == host))),
            odds,
            math.exp(median(pair.level for pair in slow) - fastest.level),
            any(reading.censored for pair in slow for reading in pair.readings),
            tuple(sorted({number for pair in slow for number in pair.numbers})),
            (),
            part="uplink",
        )
