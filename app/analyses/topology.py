"""Where the ranks sit, as far as an analysis needs it: which of them share a NIC, a host, a rail or a switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from app.analyses.records import Label

Ints = NDArray[np.intp]
Mask = NDArray[np.bool_]


class Place(Protocol):
    """Where one GPU sits, in whatever form; what is None was not stated."""

    @property
    def host(self) -> str: ...
    @property
    def nic(self) -> str | None: ...
    @property
    def rail(self) -> str | None: ...
    @property
    def leaf(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Topology:
    """A topology document.

    Parameters
    ----------
    places : mapping of int to Place
        By rank; not every rank need be there.
    parents : mapping of str to str
        The switch above a switch, without cycles.
    """

    places: Mapping[int, Place]
    parents: Mapping[str, str] = field(default_factory=dict)

    def hosts(self) -> dict[Label, str]:
        """Host of each rank."""
        return {rank: place.host for rank, place in self.places.items()}

    def covers(self, labels: Sequence[Label]) -> bool:
        """Whether it says of each of them where it sits."""
        return all(isinstance(label, int) and label in self.places for label in labels)

    def leaves(self) -> dict[Label, str]:
        """Leaf switch of each rank that states one."""
        return {rank: place.leaf for rank, place in self.places.items() if place.leaf is not None}

    def part_of(self, ranks: Sequence[Label]) -> str | None:
        """Name of the host, NIC or leaf whose ranks are exactly these, two or more."""
        if len(ranks) < 2 or not self.covers(ranks):
            return None
        shown = f" {{{','.join(map(str, ranks))}}}"
        for word, name_of, after in (("group", _host, ""), ("NIC", nic_name, shown), ("leaf", _leaf, shown)):
            names: dict[Label, str | None] = {rank: name_of(place) for rank, place in self.places.items()}
            name = names[ranks[0]]
            if name is not None and {rank for rank, at in names.items() if at == name} == set(ranks):
                return f"{word} {name}{after}"
        return None


@dataclass(frozen=True, slots=True)
class Level:
    """Parts of one kind.

    Parameters
    ----------
    at : ndarray
        int, (n,): number of the part that each rank is at; -1 where none is stated.
    names : list of str
        By number.
    """

    at: Ints
    names: list[str]

    def differ(self) -> Mask:
        """Whether the two ends of a path are at different parts; (n, n)."""
        return np.not_equal.outer(self.at, self.at)

    def complete(self) -> bool:
        """Whether every rank is at a part, and not all at one."""
        return len(self.names) > 1 and bool((self.at >= 0).all())


@dataclass(frozen=True, slots=True)
class Seats:
    """Where the ranks of one matrix sit.

    Parameters
    ----------
    host, nic, rail : Level
        Of each rank, in the order of the matrix.
    tiers : list of Level
        Leaves first, then what is above them; only those that tell ranks apart, and none unless every rank has
        a leaf: a path to a rank without one may cross leaves or not.
    """

    host: Level
    nic: Level
    rail: Level
    tiers: list[Level]

    def distances(self) -> Ints:
        """How far apart ranks are; (n, n): 0 in a host, then by tiers crossed, then by rails; -1 to itself."""
        apart = np.zeros((len(self.host.at),) * 2, dtype=np.intp)
        for tier in self.tiers:
            apart += 2 * tier.differ()
        if self.rail.complete():
            apart += self.rail.differ()
        apart = np.where(self.host.differ(), apart + 1, 0)
        np.fill_diagonal(apart, -1)
        return apart


def seats(topology: Topology, labels: Sequence[Label]) -> Seats:
    """Where ranks sit, all of which the topology covers."""
    places = [topology.places[label] for label in labels if isinstance(label, int)]
    host, nic, rail = (
        _numbered([label(place) for place in places]) for label in (_host, nic_name, lambda place: place.rail)
    )
    return Seats(host, nic, rail, _tiers([place.leaf for place in places], topology.parents))


def nic_name(place: Place) -> str | None:
    """A NIC's name counts within its host."""
    return None if place.nic is None else f"{place.host}/{place.nic}"


def _host(place: Place) -> str:
    return place.host


def _leaf(place: Place) -> str | None:
    return place.leaf


def _tiers(leaves: Sequence[str | None], parents: Mapping[str, str]) -> list[Level]:
    found: list[Level] = []
    switches = [leaf for leaf in leaves if leaf is not None]
    while len(switches) == len(leaves):
        level = _numbered(switches)
        if level.complete() and not (found and np.array_equal(level.at, found[-1].at)):
            found.append(level)
        # A switch with nothing above it stays its own top where others go higher.
        above = [parents.get(switch, switch) for switch in switches]
        if above == switches:
            break
        switches = above
    return found


def _numbered(labels: Sequence[str | None]) -> Level:
    """Numbers in order of first appearance."""
    numbers: dict[str, int] = {}
    at = [-1 if label is None else numbers.setdefault(label, len(numbers)) for label in labels]
    return Level(np.array(at, dtype=np.intp), list(numbers))
