"""Two or three leaf switches: none of them tells which is slow, so sends between them are held against others."""

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
from app.localization.components import Component
from app.localization.record import Steps
from app.localization.shapes import Pair, Ranks
from app.localization.strategies.base import Note
from app.localization.strategies.few_units import LOOKS, TURNS, UnitPair, accused, beside, members, settled

# How much longer a step with a send between leaves may take and nothing be said of it.
SLOW_LEAVES = math.log(1.5)
# Of more leaves each is compared with the rest.
FEWEST, MOST = 2, 3


@dataclass
class LeafPair(UnitPair):
    """Two leaves, with readings of sends under one of them that take turns with those between them."""

    within: list[LogReading] = field(default_factory=list)
    odds: float = 0.0
    """Log odds that sends between them are slow, against that they are not."""

    @property
    def difference(self) -> float:
        """By how much longer sends between them take, log."""
        return median(far.value - near.value for far, near in beside(self.readings, self.within))


class FewLeaves:
    """Compares two or three leaves.

    Parameters
    ----------
    examiner : Examiner
        Measures.
    hosts, leaves : sequence of int
        Of every rank; a leaf of -1 is not known.
    rng : numpy.random.Generator
        For pairs of GPUs.
    """

    def __init__(
        self, examiner: Examiner, hosts: Sequence[int], leaves: Sequence[int], rng: np.random.Generator
    ) -> None:
        self._examiner, self._hosts, self._leaves, self._rng = examiner, hosts, leaves, rng
        self.found: Found | None = None
        self.equals: list[Component] = []
        """What explains the same as what was found."""
        self.note: Note | None = None

    def compare(self, ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Look at every two leaves.

        Accused is a leaf whose sends are slow to both of the others, which are not slow to each other; or, where
        all are slow to each other by as much as a fault that is looked for, the smallest, with equals beside it.
        Any other difference is noted, and nobody accused: a fabric may be built so.

        Parameters
        ----------
        ring : tuple of int
            The GPUs that are not slow.
        load : int
            Sequences that every rank sends and receives.
        effects : ndarray of float
            Rise of the log of a step by a slow path, by its severity.
        """
        names = sorted({self._leaves[rank] for rank in ring if self._leaves[rank] >= 0})
        if not FEWEST <= len(names) <= MOST:
            return
        pairs = [LeafPair(two) for two in combinations(names, 2)]
        for turn in range(TURNS):
            for pair in pairs:
                yield from self._read(pair, ring, load, reverse=turn % 2 == 1)
            pairs = [pair for pair in pairs if pair.readings]
            for pair in pairs:
                pair.odds = self._examiner.odds(beside(pair.readings, pair.within), effects)
            if turn + 1 >= LOOKS and all(pair.odds < CLEARED for pair in pairs):
                return
            if settled(turn + 1, [pair.odds for pair in pairs]):
                break
        self._conclude(pairs, ring, float(effects.min()))

    def _read(self, pair: LeafPair, ring: Ranks, load: int, *, reverse: bool) -> Steps[None]:
        drawn = self._draw(pair.units, ring)
        if drawn is None:
            return
        taken: dict[bool, LogReading] = {}
        for far in (False, True) if reverse else (True, False):
            shape = exchange(ring, [drawn[0 if far else 1]], load)
            number, taken[far] = yield from self._examiner.read_numbered(shape, LevelClass("leaves"))
            if far:
                pair.numbers.append(number)
        pair.readings.append(taken[True])
        pair.within.append(taken[False])

    def _draw(self, two: tuple[int, int], ring: Ranks) -> tuple[Pair, Pair] | None:
        """A path between two leaves, and one under a leaf that begins at the same GPU; both leave the host."""
        order = self._rng.permutation(ring).tolist()
        for rank in order:
            if self._leaves[rank] not in two:
                continue
            others = [other for other in order if self._hosts[other] != self._hosts[rank]]
            there = two[0] if self._leaves[rank] == two[1] else two[1]
            far = next((other for other in others if self._leaves[other] == there), None)
            near = next((other for other in others if self._leaves[other] == self._leaves[rank]), None)
            if far is not None and near is not None:
                return (min(rank, far), max(rank, far)), (min(rank, near), max(rank, near))
        return None

    def _conclude(self, pairs: Sequence[LeafPair], ring: Ranks, least: float) -> None:
        slow = [pair for pair in pairs if pair.odds > ACCEPTED]
        names = sorted({leaf for pair in pairs for leaf in pair.units})
        common = [leaf for leaf in names if all(leaf in pair.units for pair in slow)]
        if len(pairs) == len(slow) + 1 == MOST and len(common) == 1:
            self._accuse(common[0], [], slow, ring)
        elif slow and len(slow) == len(pairs) and min(pair.difference for pair in slow) > least:
            # Equal as they are, the one with the fewest GPUs first: it may be a single host's uplink.
            first, *equals = sorted(names, key=lambda leaf: (sum(self._leaves[r] == leaf for r in ring), leaf))
            self._accuse(first, equals, slow, ring)
        elif slower := [pair for pair in pairs if pair in slow or pair.difference > SLOW_LEAVES]:
            self.note = _slow_leaves(math.exp(median(pair.difference for pair in slower)))

    def _accuse(self, leaf: int, equals: Sequence[int], slow: Sequence[LeafPair], ring: Ranks) -> None:
        self.equals = [members(ring, self._leaves, other) for other in equals]
        odds, rise = min(pair.odds for pair in slow), median(pair.difference for pair in slow)
        self.found = accused(members(ring, self._leaves, leaf), "leaf", slow, odds=odds, rise=rise)


def _slow_leaves(ratio: float) -> Note:
    return Note(
        "leaves_slower",
        f"sends between leaf switches take {ratio:.1f}x the time of sends under one: the uplinks of a leaf, or the"
        " fabric as it is; with so few leaves no probe tells which, and single paths were not compared",
    )
