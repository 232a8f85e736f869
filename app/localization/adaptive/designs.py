"""Orders of the ranks, and of the paths between them, from which probes of any size are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from app.localization.shapes import Pair, Ranks

T = TypeVar("T")


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


def mixed_ring(ranks: Sequence[int], hosts: Sequence[int] | None, rng: np.random.Generator) -> Ranks:
    """A random cyclic order; with hosts, they take turns.

    With H hosts of one size a shift by a multiple of H then stays inside the hosts, and any other leaves them:
    every probe holds one hop class.
    """
    shuffled = [ranks[i] for i in rng.permutation(len(ranks))]
    if hosts is None:
        return tuple(shuffled)
    by_host: dict[int, list[int]] = {}
    for rank in shuffled:
        by_host.setdefault(hosts[rank], []).append(rank)
    turns = [(turn, place, rank) for place, own in enumerate(by_host.values()) for turn, rank in enumerate(own)]
    return tuple(rank for _, _, rank in sorted(turns))


def shift_groups(size: int, r: int, hosts: int = 1) -> list[tuple[int, ...]]:
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
    """
    shifts = range(1, size // 2 + 1)
    if hosts < 2 or size % hosts:
        classes = [list(shifts)]
    else:
        classes = [[s for s in shifts if s % hosts], [s for s in shifts if s % hosts == 0]]
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


def matchings_by_class(ring: Ranks, shifts: Sequence[int], hosts: Sequence[int]) -> dict[str, list[list[Pair]]]:
    """The paths of some shifts that hold both hop classes, as matchings of one class each.

    Large matchings stay what they are; the pairs of small ones are put together anew.
    """
    found: dict[str, list[list[Pair]]] = {"cross_host": [], "same_host": []}
    loose: dict[str, list[Pair]] = {"cross_host": [], "same_host": []}
    for matching in (matching for shift in shifts for matching in matchings(ring, shift)):
        for hops, large in found.items():
            some = [(u, v) for u, v in matching if (hosts[u] == hosts[v]) == (hops == "same_host")]
            if len(some) >= len(ring) // 4:
                large.append(some)
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
