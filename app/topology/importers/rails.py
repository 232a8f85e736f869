"""TENT rail file: which NIC of this host reaches which NIC of the other.

``{"all": [{"local": "mlx5_0", "remote": "mlx5_1"}], "direct": [...]}``. ``all`` are the eligible pairs, ``direct``
those that are on one rail; either may stand alone. It names no GPU, so it is laid onto a topology that does. TENT
itself falls back to its own mapping when such a file is missing, empty or names a NIC that is not there; here that
is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from app.localization.placement import Placement
from app.topology.errors import ImportRefused
from app.topology.importers import json_text
from app.topology.importers.json_text import Node


@dataclass(frozen=True, slots=True)
class RailPair:
    """A NIC of the local host and one of the remote host, and where the file says so."""

    local: str
    remote: str
    line: int
    column: int

    @property
    def names(self) -> tuple[str, str]:
        """Local and remote NIC."""
        return self.local, self.remote

    def refuse(self, message: str) -> ImportRefused:
        """An error about this pair, for the caller to raise."""
        return ImportRefused(message, self.line, self.column)


@dataclass(frozen=True, slots=True)
class Rails:
    """A rail file: the eligible pairs, and those of them that are on one rail."""

    all: tuple[RailPair, ...]
    direct: tuple[RailPair, ...]

    def check_names(self, local: Collection[str], remote: Collection[str]) -> None:
        """Refuse a NIC that a host does not have.

        Raises
        ------
        ImportRefused
            Naming it, and those that there are.
        """
        for pair in self.all:
            for side, name, known in (("local", pair.local, local), ("remote", pair.remote, remote)):
                if name not in known:
                    there = ", ".join(sorted(known)) or "none"
                    raise pair.refuse(f"the {side} host has no NIC {name!r}; it has {there}")


def parse(text: str) -> Rails:
    """Read a rail file.

    Raises
    ------
    ImportRefused
        Empty, other parts than ``all`` and ``direct``, no pair, a pair that stands twice, a direct pair that is
        not in ``all``, or a local NIC with two direct ones.
    """
    if not text.strip():
        raise ImportRefused("the rail file is empty", 1, 1)
    root = json_text.parse(text)
    members = root.members("a rail file")
    for part, node in members.items():
        if part not in {"all", "direct"}:
            raise node.refuse(f"{part!r} is no part of a rail file; 'all' and 'direct' are")
    direct = _pairs(members["direct"]) if "direct" in members else ()
    every = _pairs(members["all"]) if "all" in members else direct
    if not every:
        raise members.get("all", root).refuse("'all' must name at least one pair of NICs")
    _check_direct(every, direct)
    return Rails(every, direct)


def lay(rails: Rails, onto: Placement, local: str, remote: str) -> Placement:
    """State the rails of two hosts' NICs as a rail file has them.

    NICs of a direct pair are on one rail, called as the one that either is known to be on, else as the local NIC.

    Parameters
    ----------
    rails : Rails
        The file.
    onto : Placement
        A topology that states the NICs.
    local, remote : str
        Its hosts that the file calls so.

    Raises
    ------
    ImportRefused
        A host or NIC that the topology lacks, a pair whose NICs are known to be on two rails, or a file that does
        not say which NICs share a rail.
    """
    nics = {host: _nics(onto, host) for host in (local, remote)}
    if local == remote:
        raise ImportRefused(f"the local and the remote host are both {local!r}")
    rails.check_names(nics[local], nics[remote])
    known = {(place.host, place.nic): place.rail for place in onto.places if place.nic and place.rail}
    for pair in _same_rail(rails):
        ends = ((local, pair.local), (remote, pair.remote))
        stated = {known[end] for end in ends if end in known}
        if len(stated) > 1:
            words = " and ".join(f"{host}/{nic} on rail {known[host, nic]}" for host, nic in ends)
            raise pair.refuse(f"one rail here, but the topology has {words}")
        free = pair.local if pair.local not in known.values() else f"{local}/{pair.local}"
        known.update(dict.fromkeys(ends, stated.pop() if stated else free))
    places = [replace(place, rail=known.get((place.host, place.nic or ""), place.rail)) for place in onto.places]
    return replace(onto, places=tuple(places))


def _pairs(node: Node) -> tuple[RailPair, ...]:
    found: dict[tuple[str, str], RailPair] = {}
    for entry in node.elements("a list of pairs"):
        members = entry.members("a pair")
        if not {"local", "remote"} <= set(members):
            raise entry.refuse("a pair must have 'local' and 'remote'")
        names = (members["local"].string("'local'"), members["remote"].string("'remote'"))
        if names in found:
            raise entry.refuse(f"the pair {names[0]} to {names[1]} stands twice")
        found[names] = RailPair(*names, *entry.place)
    return tuple(found.values())


def _check_direct(every: Sequence[RailPair], direct: Sequence[RailPair]) -> None:
    eligible = {pair.names for pair in every}
    seen: dict[str, str] = {}
    for pair in direct:
        if pair.names not in eligible:
            raise pair.refuse(f"the direct pair {pair.local} to {pair.remote} is not in 'all'")
        if pair.local in seen:
            raise pair.refuse(f"{pair.local} is direct to {seen[pair.local]} and to {pair.remote}")
        seen[pair.local] = pair.remote


def _same_rail(rails: Rails) -> Sequence[RailPair]:
    """Pairs whose NICs share a rail: the direct ones, or all where no NIC has a choice."""
    if rails.direct:
        return rails.direct
    sides = zip(*(pair.names for pair in rails.all), strict=True)
    if all(len(set(side)) == len(rails.all) for side in sides):
        return rails.all
    raise ImportRefused("the file has no 'direct' pairs, so it does not say which NICs share a rail")


def _nics(onto: Placement, host: str) -> set[str]:
    found = [place.nic for place in onto.places if place.host == host]
    if not found:
        hosts = ", ".join(onto.names("host"))
        raise ImportRefused(f"the topology has no host {host!r}; it has {hosts}")
    return {nic for nic in found if nic is not None}
