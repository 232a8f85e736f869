"""Two or three rails: too few to compare as sets, but sends along one can be held against those along another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import numpy as np

from app.localization.adaptive.examiner import ACCEPTED, Examiner
from app.localization.adaptive.found import Found
from app.localization.adaptive.groups import exchange
from app.localization.adaptive.levels import LevelClass
from app.localization.adaptive.noise import Floats
from app.localization.record import Steps
from app.localization.shapes import Pair, Ranks
from app.localization.strategies.few_units import (
    LOOKS,
    TURNS,
    Readings,
    accused,
    beside,
    members,
    settled,
    throughout,
)

FEWEST, MOST = 2, 3
# With fewer hosts most sends along a rail pass one NIC, which would be taken for the rail.
LEAST_HOSTS = 4


@dataclass
class RailReadings(Readings):
    """Readings of sends along a rail, each between the same two hosts as those of the other rails in its turn."""

    rail: int = -1
    ranks: dict[int, list[int]] = field(default_factory=dict)
    """The rail's GPUs, by host."""


class FewRails:
    """Compares two or three rails.

    Parameters
    ----------
    examiner : Examiner
        Measures.
    hosts, rails : sequence of int
        Of every rank; -1 is not known.
    rng : numpy.random.Generator
        For hosts and GPUs.
    """

    def __init__(
        self, examiner: Examiner, hosts: Sequence[int], rails: Sequence[int], rng: np.random.Generator
    ) -> None:
        self._examiner, self._hosts, self._rails, self._rng = examiner, hosts, rails, rng
        self.found: Found | None = None

    def compare(self, ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Hold sends along every rail against those along the fastest, between the same hosts turn by turn.

        Accused is the one rail whose sends are slow, between nearly all hosts.

        Parameters
        ----------
        ring : tuple of int
            The GPUs that are not slow.
        load : int
            Sequences that every rank sends and receives.
        effects : ndarray of float
            Rise of the log of a step by a slow path, by its severity.
        """
        rails = self._placed(ring)
        common = sorted(set.intersection(*(set(rail.ranks) for rail in rails))) if rails else []
        if not FEWEST <= len(rails) <= MOST or len(common) < LEAST_HOSTS:
            return
        between = list(combinations(common, 2))
        between = [between[i] for i in self._rng.permutation(len(between))]
        for turn in range(TURNS):
            for rail in rails:
                yield from self._read(rail, between[turn % len(between)], ring, load)
            fastest = min(rails, key=lambda rail: rail.level)
            others = [rail for rail in rails if rail is not fastest]
            odds = [self._examiner.odds(beside(rail.readings, fastest.readings), effects) for rail in others]
            if turn + 1 >= LOOKS and all(one < self._examiner.cleared for one in odds):
                return
            if settled(turn + 1, odds, self._examiner.cleared):
                break
        slow = [(rail, one) for rail, one in zip(others, odds, strict=True) if one > ACCEPTED]
        if len(slow) == 1:
            self._accuse(*slow[0], fastest, ring)

    def _placed(self, ring: Ranks) -> list[RailReadings]:
        ranks: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for rank in sorted(ring):
            if self._rails[rank] >= 0:
                ranks[self._rails[rank]][self._hosts[rank]].append(rank)
        return [RailReadings(rail=rail, ranks=dict(by_host)) for rail, by_host in sorted(ranks.items())]

    def _read(self, rail: RailReadings, hosts: Pair, ring: Ranks, load: int) -> Steps[None]:
        one, other = (there[int(self._rng.integers(len(there)))] for there in (rail.ranks[host] for host in hosts))
        shape = exchange(ring, [(min(one, other), max(one, other))], load)
        number, reading = yield from self._examiner.read_numbered(shape, LevelClass("rails"))
        rail.numbers.append(number)
        rail.readings.append(reading)

    def _accuse(self, rail: RailReadings, odds: float, fastest: RailReadings, ring: Ranks) -> None:
        differences = [slow.value - fast.value for slow, fast in beside(rail.readings, fastest.readings)]
        if throughout(differences):
            component = members(ring, self._rails, rail.rail)
            self.found = accused(component, "rail", [rail], odds=odds, rise=median(differences))
