"""Where ranks sit: hosts, NICs, rails and leaves; which paths cross a shared part; hop classes.

Paths inside a host use its fabric. A path between hosts leaves through the NIC and the uplink at either end,
and crosses the uplinks of a leaf, or of a switch above leaves, when exactly one end is under it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from app.localization.errors import SettingsError

PartKind = Literal["nic", "host", "fabric", "leaf", "switch", "rail", "all"]
HopClass = Literal["same_host", "cross_host", "cross_rail", "cross_leaf"]

HOP_CLASSES: tuple[HopClass, ...] = get_args(HopClass)
"""Their order is the code in `Placement.hop_codes`."""
DEFAULT_LEAVES = 2
_NAMES_SHOWN = 12


@dataclass(frozen=True, slots=True, order=True)
class SharedPart:
    """Something that several paths use.

    Parameters
    ----------
    kind : {"nic", "host", "fabric", "leaf", "switch", "rail", "all"}
        A NIC, a host's uplink, the fabric inside a host, the uplinks of a leaf or of a switch above leaves, a rail
        switch, or the whole replica.
    name : str
        As the topology writes it; a NIC is ``host/nic``, ``all`` has none.
    """

    kind: PartKind
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.kind != "all" else "all"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one GPU sits; what is None was not stated."""

    host: str
    device: str | None = None
    nic: str | None = None
    rail: str | None = None
    leaf: str | None = None
    rack: str | None = None


PLACE_FIELDS: tuple[str, ...] = tuple(stated.name for stated in fields(Place))
"""What a topology document says of a GPU beside its rank."""


@dataclass(frozen=True)
class Placement:
    """The place of every rank.

    Parameters
    ----------
    places : tuple of Place
        By rank, at least two.
    parents : mapping of str to str
        The switch above a switch; leaves are the lowest. Without cycles.
    """

    places: tuple[Place, ...]
    parents: Mapping[str, str] = field(default_factory=dict, hash=False)

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        """Host number of every rank, in order of first appearance."""
        return _numbered([place.host for place in self.places])

    @cached_property
    def shared(self) -> dict[str, tuple[int, ...]]:
        """By kind the part that each rank is at, -1 where none is stated: what GPUs share.

        NICs, rails, leaves, and by ``tier_2``, ``tier_3``, ... the switches one, two, ... above the leaves.
        """
        kinds: tuple[PartKind, ...] = ("nic", "rail", "leaf")
        labels: dict[str, list[str | None]] = {kind: self._labels(kind) for kind in kinds}
        labels |= self._tiers
        numbered = {kind: _numbered(at) for kind, at in labels.items()}
        return {kind: at for kind, at in numbered.items() if 0 < 1 + max(at) < sum(part >= 0 for part in at)}

    @cached_property
    def _tiers(self) -> dict[str, list[str | None]]:
        """The switch of every tier above the leaves that each rank is under."""
        chains = [self.switches(place.leaf) for place in self.places]
        return {
            f"tier_{tier}": [chain[tier - 1] if len(chain) >= tier else None for chain in chains]
            for tier in range(2, 1 + max(map(len, chains)))
        }

    def document(self) -> dict[str, Any]:
        """The topology document that ``PUT /replicas/{id}/topology`` takes; what was not stated is left out."""
        gpus = [
            {"rank": rank, **{f: getattr(place, f) for f in PLACE_FIELDS if getattr(place, f) is not None}}
            for rank, place in enumerate(self.places)
        ]
        return {"gpus": gpus, **({"parents": dict(self.parents)} if self.parents else {})}

    def switches(self, leaf: str | None) -> tuple[str, ...]:
        """A leaf and the switches above it, the lowest first; none where no leaf is stated."""
        found: list[str] = []
        while leaf is not None:
            found.append(leaf)
            leaf = self.parents.get(leaf)
        return tuple(found)

    def names(self, kind: PartKind) -> tuple[str, ...]:
        """Names of the parts of one kind, in order of first appearance."""
        if kind == "all":
            return ("",)
        if kind == "switch":
            return tuple(dict.fromkeys(name for at in self._tiers.values() for name in at if name is not None))
        return tuple(dict.fromkeys(name for name in self._labels(kind) if name is not None))

    def ranks_at(self, part: SharedPart) -> tuple[int, ...]:
        """The ranks that a part belongs to."""
        return tuple(np.flatnonzero(self._at(part)).tolist())

    def crosses(self, part: SharedPart) -> NDArray[np.bool_]:
        """Whether the path u-v uses a part.

        Returns
        -------
        ndarray of bool, shape (n, n)
            Symmetric, False on the diagonal.
        """
        if part.kind == "all":
            return ~np.eye(len(self.places), dtype=np.bool_)
        at = self._at(part)
        between_hosts = self.hop_codes != HOP_CLASSES.index("same_host")
        if part.kind == "fabric":
            inside: NDArray[np.bool_] = np.logical_and.outer(at, at)
            np.fill_diagonal(inside, val=False)
            return inside
        join = {"leaf": np.logical_xor, "switch": np.logical_xor, "rail": np.logical_and}
        ends = join.get(part.kind, np.logical_or)
        crossing: NDArray[np.bool_] = ends.outer(at, at) & between_hosts
        return crossing

    def hop_class(self, u: int, v: int) -> HopClass:
        """How far apart two ranks are; a rail or leaf that was not stated makes no difference."""
        a, b = self.places[u], self.places[v]
        if a.host == b.host:
            return "same_host"
        if None not in (a.leaf, b.leaf) and a.leaf != b.leaf:
            return "cross_leaf"
        return "cross_rail" if None not in (a.rail, b.rail) and a.rail != b.rail else "cross_host"

    @cached_property
    def hop_codes(self) -> NDArray[np.int8]:
        """Index into `HOP_CLASSES` of every path, shape (n, n); see `hop_class`."""
        host, rail, leaf = (np.array(_numbered(self._labels(kind))) for kind in ("fabric", "rail", "leaf"))

        def differ(numbers: NDArray[np.int_]) -> NDArray[np.bool_]:
            stated = numbers >= 0
            unlike: NDArray[np.bool_] = np.not_equal.outer(numbers, numbers)
            return unlike & np.logical_and.outer(stated, stated)

        codes = np.select(
            [~differ(host), differ(leaf), differ(rail)],
            [HOP_CLASSES.index(name) for name in ("same_host", "cross_leaf", "cross_rail")],
            HOP_CLASSES.index("cross_host"),
        )
        return codes.astype(np.int8)

    def problem_with(self, part: SharedPart) -> str | None:
        """Why a fault on ``part`` is impossible here, listing what exists; None when it is possible."""
        names = self.names(part.kind)
        word = {"nic": "NIC", "fabric": "host", "switch": "switch above leaves"}.get(part.kind, part.kind)
        if not names:
            return f"the topology states no {word}"
        if part.name not in names:
            shown = ", ".join(names[:_NAMES_SHOWN])
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            return f"the topology has no {word} {part.name!r}; it has {shown}{more}"
        return None if self.crosses(part).any() else f"no path crosses {part} in this topology"

    def _at(self, part: SharedPart) -> NDArray[np.bool_]:
        """For every rank whether a part belongs to it."""
        if part.kind == "switch":
            named = [part.name in self.switches(place.leaf)[1:] for place in self.places]
        else:
            named = [label == part.name for label in self._labels(part.kind)]
        return np.array(named, dtype=np.bool_)

    def _labels(self, kind: PartKind) -> list[str | None]:
        """The part of that kind that each rank is at."""
        if kind == "nic":
            return [None if place.nic is None else f"{place.host}/{place.nic}" for place in self.places]
        field = {"fabric": "host"}.get(kind, kind)
        return [getattr(place, field) for place in self.places]


def layout(
    gpus: int, hosts: int | Sequence[str] = 1, *, nics_per_host: int | None = None, leaves: int | None = None
) -> Placement:
    """A regular placement: ranks fill hosts in order, and hosts fill leaves in order.

    GPUs of a host share its NICs in order and evenly; NIC i of every host is on rail i.

    Parameters
    ----------
    gpus : int
        Number of ranks.
    hosts : int or sequence of str
        A count, over which ranks are spread as evenly as possible (``host-a``, ``host-b``, ...), or one host
        name per rank.
    nics_per_host : int, optional
        By default one a GPU; where hosts are named, none is stated.
    leaves : int, optional
        By default two, or one for a single host; where hosts are named, none is stated.

    Raises
    ------
    SettingsError
        A count out of range, or a list of another length.
    """
    if gpus < 2:
        raise SettingsError("gpus", f"must be at least 2, got {gpus}")
    names, regular = _host_names(gpus, hosts), isinstance(hosts, int)
    sizes = {name: names.count(name) for name in dict.fromkeys(names)}
    if nics_per_host is not None:
        _within("nics_per_host", nics_per_host, min(sizes.values()), "the GPUs of the smallest host")
    if leaves is None and regular:
        leaves = min(DEFAULT_LEAVES, len(sizes))
    if leaves is not None:
        _within("leaves", leaves, len(sizes), "the number of hosts")
    seen = dict.fromkeys(sizes, 0)
    numbers = {name: number for number, name in enumerate(sizes)}
    places = []
    for name in names:
        local, seen[name] = seen[name], seen[name] + 1
        nic = local * nics_per_host // sizes[name] if nics_per_host else (local if regular else None)
        label = None if nic is None else str(nic)
        leaf = None if leaves is None else str(numbers[name] * leaves // len(sizes))
        places.append(Place(name, f"cuda:{local}", label, label, leaf))
    return Placement(tuple(places))


def _host_names(gpus: int, hosts: int | Sequence[str]) -> list[str]:
    if isinstance(hosts, int):
        _within("hosts", hosts, gpus, "the number of GPUs")
        return [f"host-{_letters(rank * hosts // gpus)}" for rank in range(gpus)]
    if len(hosts) != gpus:
        raise SettingsError("hosts", f"must name one host per GPU: {gpus}, not {len(hosts)}")
    return list(hosts)


def _within(field: str, value: int, highest: int, what: str) -> None:
    if not 1 <= value <= highest:
        raise SettingsError(field, f"must be 1 to {highest} ({what}), got {value}")


def _letters(number: int) -> str:
    """Return a, b, ... z, aa, ab, ... as spreadsheet columns do."""
    text = ""
    while number >= 0:
        text = chr(ord("a") + number % 26) + text
        number = number // 26 - 1
    return text


def _numbered(labels: Sequence[str | None]) -> tuple[int, ...]:
    """Small numbers in order of first appearance; -1 for None."""
    numbers: dict[str, int] = {}
    return tuple(-1 if label is None else numbers.setdefault(label, len(numbers)) for label in labels)
