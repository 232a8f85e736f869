"""Two or three switches of a tier: none tells which is slow, so sends between them are held against others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

import numpy as np

from app.localization.adaptive.designs import Labels
from app.localization.adaptive.examiner import ACCEPTED, Examiner
from app.localization.adaptive.found import Found
from app.localization.adaptive.groups import exchange
from app.localization.adaptive.levels import LevelClass, LogReading
from app.localization.adaptive.links import Part
from app.localization.adaptive.noise import Floats
from app.localization.components import Component
from app.localization.record import Steps
from app.localization.shapes import Pair, Ranks
from app.localization.strategies.base import Note
from app.localization.strategies.few_units import (
    LOOKS,
    TURNS,
    UnitPair,
    accused,
    beside,
    members,
    settled,
    throughout,
)
from app.localization.strategies.slower_hops import switches_in_words

# How much longer a step with a send between switches may take and nothing be said of it.
SLOW_UPLINKS = math.log(1.5)
# Of more switches each is compared with the rest.
FEWEST, MOST = 2, 3


@dataclass
class SwitchPair(UnitPair):
    """Two switches, with readings of sends under one of them that take turns with those between them."""

    within: list[LogReading] = field(default_factory=list)
    odds: float = 0.0
    """Log odds that sends between them are slow, against that they are not."""

    @property
    def difference(self) -> float:
        """By how much longer sends between them take, log."""
        return median(self._differences)

    @property
    def throughout(self) -> bool:
        """Whether nearly all sends between them take longer."""
        return throughout(self._differences)

    @property
    def _differences(self) -> list[float]:
        return [far.value - near.value for far, near in beside(self.readings, self.within)]


class FewSwitches:
    """Compares two or three switches.

    Parameters
    ----------
    examiner : Examiner
        Measures.
    kind : str
        ``leaf``, or which tier above: ``tier_2``, ...
    below, switches : sequence of int
        Of every rank the host or switch below, and the switch; -1 is not known.
    rng : numpy.random.Generator
        For pairs of GPUs.
    """

    def __init__(
        self, examiner: Examiner, kind: str, below: Labels, switches: Labels, rng: np.random.Generator
    ) -> None:
        self._examiner, self._kind, self._rng = examiner, kind, rng
        self._below, self._switches = below, switches
        self._used = Counter[int]()
        self.found: Found | None = None
        self.equals: list[Component] = []
        """What explains the same as what was found."""
        self.note: Note | None = None

    def compare(self, ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Look at every two switches.

        Accused is one whose sends are slow to both of the others, which are not slow to each other; or, where
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
        names = sorted({self._switches[rank] for rank in ring} - {-1})
        if not FEWEST <= len(names) <= MOST:
            return
        pairs = [SwitchPair(units=two) for two in combinations(names, 2)]
        for turn in range(TURNS):
            for pair in pairs:
                yield from self._read(pair, ring, load, reverse=turn % 2 == 1)
            pairs = [pair for pair in pairs if pair.readings]
            for pair in pairs:
                pair.odds = self._examiner.odds(beside(pair.readings, pair.within), effects)
            if turn + 1 >= LOOKS and all(pair.odds < self._examiner.cleared for pair in pairs):
                return
            if settled(turn + 1, [pair.odds for pair in pairs], self._examiner.cleared):
                break
        self._conclude(pairs, ring, float(effects.min()))

    def _read(self, pair: SwitchPair, ring: Ranks, load: int, *, reverse: bool) -> Steps[None]:
        drawn = self._draw(pair.units, ring)
        if drawn is None:
            return
        taken: dict[bool, LogReading] = {}
        for far in (False, True) if reverse else (True, False):
            shape = exchange(ring, [drawn[0 if far else 1]], load)
            number, taken[far] = yield from self._examiner.read_numbered(shape, LevelClass("uplinks"))
            if far:
                pair.numbers.append(number)
        pair.readings.append(taken[True])
        pair.within.append(taken[False])

    def _draw(self, two: tuple[int, int], ring: Ranks) -> tuple[Pair, Pair] | None:
        """A path between two switches, and one under one of them that begins at the same GPU.

        Both leave what is below: a host, or a switch of the tier below.
        """
        order = self._rng.permutation(ring).tolist()
        order.sort(key=lambda rank: self._used[self._below[rank]])  # all that is below, in turns
        for rank in order:
            own = self._switches[rank]
            if own not in two:
                continue
            others = [other for other in order if self._below[other] != self._below[rank]]
            there = two[0] if own == two[1] else two[1]
            far = next((other for other in others if self._switches[other] == there), None)
            near = next((other for other in others if self._switches[other] == own), None)
            if far is not None and near is not None:
                self._used.update((self._below[rank], self._below[far]))
                return (min(rank, far), max(rank, far)), (min(rank, near), max(rank, near))
        return None

    def _conclude(self, pairs: Sequence[SwitchPair], ring: Ranks, least: float) -> None:
        slow = [pair for pair in pairs if pair.odds > ACCEPTED and pair.throughout]
        names = sorted({switch for pair in pairs for switch in pair.units})
        common = [switch for switch in names if all(switch in pair.units for pair in slow)]
        if len(pairs) == len(slow) + 1 == MOST and len(common) == 1:
            self._accuse(common[0], [], slow, ring)
        elif slow and len(slow) == len(pairs) and min(pair.difference for pair in slow) > least:
            # Equal as they are, the one with the fewest GPUs first: it may be a single host's uplink.
            first, *equals = sorted(names, key=lambda name: (len(self._members(ring, name).members), name))
            self._accuse(first, equals, slow, ring)
        elif slower := [p for p in pairs if p in slow or (p.throughout and p.difference > SLOW_UPLINKS)]:
            self.note = _slow_uplinks(self._kind, math.exp(median(pair.difference for pair in slower)))

    def _members(self, ring: Ranks, switch: int) -> Component:
        return members(ring, self._switches, switch)

    def _accuse(self, switch: int, equals: Sequence[int], slow: Sequence[SwitchPair], ring: Ranks) -> None:
        self.equals = [self._members(ring, other) for other in equals]
        odds, rise = min(pair.odds for pair in slow), median(pair.difference for pair in slow)
        part: Part = "leaf" if self._kind == "leaf" else "switch"
        self.found = accused(self._members(ring, switch), part, slow, odds=odds, rise=rise)


def _slow_uplinks(kind: str, ratio: float) -> Note:
    return Note(
        "leaves_slower" if kind == "leaf" else "switches_slower",
        f"sends between {switches_in_words(kind)} take {ratio:.1f}x the time of sends under one: the uplinks of"
        " one of them, or the fabric as it is; with so few of them no probe tells which; single paths were"
        " compared with their like",
    )
