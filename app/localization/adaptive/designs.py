"""Orders of the ranks, and of the paths between them, from which probes of any size are cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from app.localization.shapes import Pair, Ranks

T = TypeVar("T")
U = TypeVar("U", bound=Sequence[int])
Labels = Sequence[int]
Tiers = Mapping[str, Labels]
"""By the kind of switch, leaves first, the one that each rank is under; -1 where it is not known."""

# Sets so small that one of them is likely healthy even where half of all are slow, where there are so many items.
SMALL_SETS = (1, 1, 2)
MANY = 16


def small_sets(items: Sequence[T]) -> tuple[list[list[T]], list[T]]:
    """The first items in small sets, see `SMALL_SETS`, and the rest."""
    small, rest = [], list(items)
    for size in SMALL_SETS:
        small.append(rest[:size])
        rest = rest[size:]
    return small, rest


def hop_names(tiers: Tiers) -> list[str]:
    """Hop classes that `hops_between` tells apart where hosts are known, the nearest first."""
    return ["same_host", "cross_host", *(f"cross_{kind}" for kind in tiers)]


def hops_between(pair: Pair, hosts: Labels | None, tiers: Tiers) -> str:
    """Hop class of a path: ``same_host``, ``cross_host``, or by the highest switches that it crosses.

    ``any`` where no hosts are known; ``cross_leaf``, ``cross_tier_2``, ... only for the tiers that are given.
    """
    if hosts is None:
        return "any"
    u, v = pair
    if hosts[u] == hosts[v]:
        return "same_host"
    for kind in reversed(list(tiers)):
        one, other = tiers[kind][u], tiers[kind][v]
        if one != other and min(one, other) >= 0:
            return f"cross_{kind}"
    return "cross_host"


def hops_mask(ring: Ranks, hops: str, hosts: Labels, tiers: Tiers) -> NDArray[np.bool_]:
    """Whether the path between each two of a ring is of a hop class, see `hops_between`; shape (ring, ring)."""

    def differ(labels: Labels) -> NDArray[np.bool_]:
        own = np.array([labels[rank] for rank in ring])
        known = own >= 0
        apart: NDArray[np.bool_] = np.not_equal.outer(own, own) & np.logical_and.outer(known, known)
        return apart

    if hops == "any":
        return np.ones((len(ring), len(ring)), dtype=np.bool_)
    left = differ(hosts)
    if hops == "same_host":
        return ~left
    for kind in reversed(list(tiers)):
        crossing = differ(tiers[kind])
        if hops == f"cross_{kind}":
            return left & crossing
        left &= ~crossing
    return left


def mixed_ring(
    ranks: Sequence[int], hosts: Labels | None, rng: np.random.Generator, tiers: Sequence[Labels] = ()
) -> Ranks:
    """A random cyclic order; with hosts, they take turns, those under different switches after each other.

    With H hosts of one size a shift by a multiple of H then stays inside the hosts, and any other leaves them:
    every probe holds one hop class. So it does with L leaves over as many hosts each, and shifts by multiples of
    L, and with every tier above them.
    """
    shuffled = [ranks[i] for i in rng.permutation(len(ranks))]
    if hosts is None:
        return tuple(shuffled)
    by_host: dict[int, list[int]] = {}
    for rank in shuffled:
        by_host.setdefault(hosts[rank], []).append(rank)
    ordered = in_turns(list(by_host.values()), tiers)
    turns = [(turn, place, rank) for place, own in enumerate(ordered) for turn, rank in enumerate(own)]
    return tuple(rank for _, _, rank in sorted(turns))


def in_turns(units: Sequence[U], tiers: Sequence[Labels]) -> list[U]:
    """Sets of ranks in an order in which those under different switches take turns, at the highest tier first."""
    if not tiers:
        return list(units)
    *lower, highest = tiers
    under: dict[int, list[U]] = {}
    for own in units:
        under.setdefault(highest[own[0]], []).append(own)
    ordered = [in_turns(some, lower) for some in under.values()]
    return [own for turn in zip_longest(*ordered) for own in turn if own is not None]


def take_turns(ring: Ranks, labels: Labels) -> bool:
    """Whether the units that the ranks are in follow each other in one order, over and over."""
    count = len({labels[rank] for rank in ring})
    return len(ring) % count == 0 and all(
        labels[rank] == labels[ring[place % count]] for place, rank in enumerate(ring)
    )


def shift_groups(size: int, r: int, hosts: int = 1, switches: Sequence[int] = ()) -> list[tuple[int, ...]]:
    """The shifts of a ring in groups of at most ``r``, one probe each; together they are every path.

    Parameters
    ----------
    size : int
        Ranks of the ring.
    r : int
        Shifts a probe: as many receivers has every rank.
    hosts : int
        Hosts that take turns in the ring, see `mixed_ring`. Where all are of one size, shifts inside the hosts and
        between them come in groups of their own.
    switches : sequence of int
        Switches of every tier that take turns as well, the highest tier first: groups hold shifts between them, or
        none.
    """
    turns = () if size % hosts else (*switches, hosts)
    classes: list[list[int]] = [[] for _ in range(len(turns) + 1)]
    for shift in range(1, size // 2 + 1):
        classes[next((i for i, count in enumerate(turns) if shift % count), len(turns))].append(shift)
    return [tuple(some[i : i + r]) for some in classes for i in range(0, len(some), r)]


def matchings(ring: Ranks, shift: int) -> list[list[Pair]]:
    """The paths of one shift, as sets in which no rank occurs twice.

    A shift splits the ring into cycles; every other path of a cycle is one matching. Cycles of odd length leave
    one path each for a third.
    """
    size = len(ring)
    length = size // math.gcd(size, shift)
    found: list[list[Pair]] = [[], [], []]
    for start in range(size // length):
        steps = 1 if length == 2 else length  # a shift by half of the ring meets every path twice
        for step in range(steps):
            u, v = ring[(start + step * shift) % size], ring[(start + (step + 1) * shift) % size]
            odd_one = step == length - 1 and length % 2
            found[2 if odd_one else step % 2].append((min(u, v), max(u, v)))
    return [matching for matching in found if matching]


def matchings_by_class(
    ring: Ranks, shifts: Sequence[int], hosts: Labels, tiers: Tiers | None = None
) -> dict[str, list[list[Pair]]]:
    """The paths of some shifts that hold several hop classes, as matchings of one class each.

    Large matchings stay what they are; the pairs of small ones are put together anew.
    """
    tiers = tiers or {}
    classes = hop_names(tiers)[::-1]
    found: dict[str, list[list[Pair]]] = {hops: [] for hops in classes}
    loose: dict[str, list[Pair]] = {hops: [] for hops in classes}
    for matching in (matching for shift in shifts for matching in matchings(ring, shift)):
        by_class: dict[str, list[Pair]] = {}
        for pair in matching:
            by_class.setdefault(hops_between(pair, hosts, tiers), []).append(pair)
        for hops, some in by_class.items():
            if len(some) >= len(ring) // 4:
                found[hops].append(some)
            else:
                loose[hops] += some
    return {hops: found[hops] + _colours(loose[hops]) for hops in found if found[hops] or loose[hops]}


def _colours(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Matchings of some pairs, each pair in the first that has room for it."""
    found: list[tuple[set[int], list[Pair]]] = []
    for pair in pairs:
        for taken, some in found:
            if taken.isdisjoint(pair):
                taken.update(pair)
                some.append(pair)
                break
        else:
            found.append((set(pair), [pair]))
    return [some for _, some in found]


def parts(ranks: Sequence[int], count: int, rng: np.random.Generator) -> list[Ranks]:
    """Disjoint random parts of about one size, at most ``count`` of them and none empty."""
    shuffled = rng.permutation(np.array(ranks))
    return [tuple(map(int, part)) for part in np.array_split(shuffled, min(count, len(ranks)))]
