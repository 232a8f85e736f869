"""The parts that ranks share, and which paths each of them slows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from app.analyses.topology import Ints, Level, Mask, Seats


@dataclass(frozen=True, slots=True)
class Shape:
    """How the parts of one kind show.

    Parameters
    ----------
    word : str
        What such a part is called, before its name.
    level : Level
        The parts, and which of them each rank is at.
    reach : ndarray
        bool, (n, n): the paths on which such a part may lie.
    inward : bool
        It lies on those with both ends at it, not on all with one.
    slow, spared : str
        Where its ranks are slow, and where not.
    around : Level or None
        What such parts are in, with others of the kind: when those are slow, too, it is that, not the part.
    """

    word: str
    level: Level
    reach: Mask
    inward: bool
    slow: str
    spared: str
    around: Level | None = None

    def parts(self) -> Iterator[Part]:
        """Those that can be told from a single rank, a single path, and everything."""
        n = len(self.level.at)
        for number, name in enumerate(self.level.names):
            members = np.flatnonzero(self.level.at == number)
            if (3 if self.inward else 2) <= len(members) <= n / 2:
                yield Part(self, number, name, members)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a shape; ``members`` are the ranks at it, in order."""

    shape: Shape
    number: int
    name: str
    members: Ints

    def paths(self) -> Mask:
        """The paths from its members on which it lies; (members, n)."""
        reach = self.shape.reach[self.members]
        return reach & (self.shape.level.at == self.number) if self.shape.inward else reach

    def mates(self) -> tuple[Ints, Mask]:
        """The ranks beside its own in what is around it, and their paths out of that; (mates, n)."""
        if self.shape.around is None:
            return self.members[:0], self.shape.reach[:0]
        around = self.shape.around.at
        beside = np.flatnonzero((around == around[self.members[0]]) & (self.shape.level.at != self.number))
        return beside, self.shape.reach[beside] & (around != around[self.members[0]])


def shapes(seats: Seats) -> list[Shape]:
    """Every way in which a shared part can show, the commonest first."""
    across = seats.host.differ()
    outside = "to other hosts"
    found = [
        Shape("uplink of", seats.host, across, False, outside, "inside the host", next(iter(seats.tiers), None)),
        Shape("group", seats.host, across | ~across, False, "inside the host and to other hosts", ""),
        Shape("NIC", seats.nic, across, False, outside, "inside their host", seats.host),
        Shape("fabric of", seats.host, ~across, True, "inside the host", outside),
    ]
    for i, tier in enumerate(seats.tiers):
        word, others = ("leaf", "to other leaves") if i == 0 else ("switch", "beyond it")
        above = next(iter(seats.tiers[i + 1 :]), None)
        found.append(Shape(word, tier, across & tier.differ(), False, others, "below it", above))
    if seats.tiers:
        found.append(Shape("leaf", seats.tiers[0], across, False, outside, "inside their hosts"))
    if len(seats.rail.names) > 1:
        found.append(Shape("rail", seats.rail, across, True, "to each other along it", "to other rails"))
        found.append(Shape("rail", seats.rail, across, False, outside, "inside their hosts"))
    return found
