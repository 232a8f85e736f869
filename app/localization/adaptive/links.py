"""What many paths share, such as an uplink: it sits in every probe of a sweep over the paths and raises all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Literal

import numpy as np

from app.localization.adaptive.groups import GpuGroup, PathSweep, Piece, Test, exchange
from app.localization.adaptive.levels import LevelClass
from app.localization.components import Component, group_of
from app.localization.shapes import Exchange, Pair, Ranks, Shape

Part = Literal["switch", "leaf", "uplink", "fabric", "rail", "nic", "links"]
"""The uplinks of a switch above leaves, a leaf's, a host's uplink, what connects the GPUs inside a host, a
rail's switch, a NIC of several GPUs, and all links of one GPU."""

# Parts that are used by paths between GPUs of one unit, of which two are a path; the others by paths to GPUs of
# other units.
INSIDE: frozenset[Part] = frozenset({"fabric", "rail"})
# What is slow is slow whoever the partner is; that many different ones tell it from a slow path or two.
PARTNERS = 4


@dataclass(frozen=True, slots=True)
class Shared:
    """Which part is tested.

    Parameters
    ----------
    part : str
        See `Part`.
    labels : sequence of int
        The unit that each rank is in, -1 for none; for ``links`` the rank itself.
    below : sequence of int
        The host, NIC or switch of each rank that may be slow in the place of the part. Empty: not known.
    tier : str
        Of a switch: which tier it is in.
    """

    part: Part
    labels: Sequence[int]
    below: Sequence[int] = ()
    tier: str = ""

    def holds(self, pair: Pair) -> bool:
        """Whether a path uses the part."""
        return (self.labels[pair[0]] == self.labels[pair[1]]) == (self.part in INSIDE)

    def turns(self, unit: Ranks, rng: np.random.Generator) -> list[Ranks]:
        """A unit's GPUs, a few at a time and those at different parts below in turns.

        What they share is slow with each of them; one slow GPU, host or leaf among them is not what they share.
        """
        each, below = -(-len(unit) // PARTNERS), dict[int, list[int]]()
        for rank in rng.permutation(np.array(unit)).tolist():
            below.setdefault(self.below[rank] if self.below else 0, []).append(rank)
        cut = [[tuple(own[i : i + each]) for i in range(0, len(own), each)] for own in below.values()]
        return [some for turn in zip_longest(*cut) for some in turn if some]


@dataclass(kw_only=True)
class LinkGroup(GpuGroup):
    """Units of GPUs that exchange, while all others send to themselves at the same load.

    Parameters
    ----------
    units : tuple of tuple of int
        The items: single GPUs, or those that share a part.
    shared : Shared
        What of them.
    ring : tuple of int
        Everyone who takes part.
    sweep : PathSweep
        Hop class and load.
    rng : numpy.random.Generator
        Draws partners: new ones for every probe, so that no single path is tested over and over.
    suspected : set of int
        GPUs that may be slow: no partners while others are there.
    accused : set of int
        GPUs that are, or what they share is: no partners while any others are there.
    """

    units: tuple[Ranks, ...]
    shared: Shared
    ring: Ranks
    sweep: PathSweep
    rng: np.random.Generator
    suspected: set[int] = field(default_factory=set)
    accused: set[int] = field(default_factory=set)
    _partners: dict[int, list[int]] = field(default_factory=dict)
    _turns: dict[Ranks, list[Ranks]] = field(default_factory=dict)

    least_turns = PARTNERS

    @property
    def part(self) -> Part:
        return self.shared.part

    def component(self, item: int) -> Component:
        return group_of(self.units[item])

    def pieces(self, item: int, test: Test) -> set[Piece]:
        """The GPUs of a unit, and what of several is below it, whose sends over the part are in a test of it."""
        if len(self.units[item]) < 2 or not isinstance(test.shape, Exchange):
            return set()
        touched = {rank for pair in test.shape.pairs for rank in pair}.intersection(self.units[item])
        below = {self.shared.below[rank] for rank in self.units[item]} if self.shared.below else set()
        found = {Piece("gpu", rank) for rank in touched}
        return found | {Piece("below", self.shared.below[rank]) for rank in touched} if len(below) > 1 else found

    def cut(self, low: int, high: int) -> Test:
        chosen = [self.units[i] for i in range(low, high) if not self.beliefs.excluded[i]]
        if len(chosen) == 1:
            chosen = [self._next_of(chosen[0])]
        shape = exchange(self.ring, self._paired(chosen), self.width)
        return Test(low, high, shape, max(1, shape.degree), self.level_class)

    @property
    def level_class(self) -> LevelClass:
        """What its probes are held against."""
        return LevelClass(self.shared.tier or self.part, self.sweep.hops)

    def reference(self, item: int, rng: np.random.Generator, slow: frozenset[Component]) -> Shape | None:
        bad = {rank for component in slow if component.kind != "path" for rank in component.members}
        bad |= set(self.units[item])
        clean = [rank for rank in rng.permutation(self.ring).tolist() if rank not in bad]
        pairs: list[Pair] = []
        while clean and len(pairs) < -(-len(self.units[item]) // PARTNERS):
            rank = clean.pop()
            partner = next((other for other in clean if self._holds(rank, other)), None)
            if partner is not None:
                clean.remove(partner)
                pairs.append((rank, partner))
        return exchange(self.ring, pairs, self.width) if pairs else None

    def _paired(self, chosen: Sequence[Ranks]) -> list[Pair]:
        """Pairs of the hop class that touch all of ``chosen`` and, but for padding, nobody else."""
        ranks = [rank for unit in chosen for rank in unit]
        if len(ranks) == 1:
            return [(ranks[0], self._next_partner(ranks[0]))]
        waiting, pairs, used = self.rng.permutation(np.array(ranks, dtype=int)).tolist(), [], set[int](ranks)
        while waiting:
            rank = waiting.pop()
            partner = next((other for other in waiting if self._holds(rank, other)), None)
            if partner is not None:
                waiting.remove(partner)
            else:
                partner = self._outside(rank, used)
            used.add(partner)
            pairs.append((rank, partner))
        return pairs

    def _outside(self, rank: int, taken: set[int]) -> int:
        """A partner for one that is left over: a cleared and idle one if there is any, or one not suspected."""
        innocent = [other for other in self.ring if other not in self.accused]
        trusted = [other for other in innocent if other not in self.suspected]
        for among in (self.padding, trusted, innocent, self.ring):
            idle = [other for other in among if other not in taken and self._holds(rank, other)]
            if idle:
                return idle[int(self.rng.integers(len(idle)))]
        return self._next_partner(rank)

    def _next_of(self, unit: Ranks) -> Ranks:
        """A few of a unit's GPUs in turns, see `Shared.turns`."""
        if not self._turns.get(unit):
            self._turns[unit] = self.shared.turns(unit, self.rng)
        return self._turns[unit].pop(0)

    def _next_partner(self, rank: int) -> int:
        """Partners in turns, cleared ones first."""
        left = [other for other in self._partners.get(rank, ()) if other not in self.accused]
        if not left:
            mixed = self.rng.permutation(self.ring).tolist()
            able = [other for other in mixed if self._holds(rank, other)]
            left = [other for other in able if other not in self.accused] or able
        self._partners[rank] = left
        # Cleared ones before others, and the suspected last.
        best = max(left, key=lambda other: (other in self.padding, other not in self.suspected))
        left.remove(best)
        return best

    def _holds(self, rank: int, other: int) -> bool:
        return rank != other and self.shared.holds((rank, other)) and self.sweep.holds((rank, other))
