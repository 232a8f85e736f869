"""What many paths share, such as an uplink: it sits in every probe of a sweep over the paths and raises all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.beliefs import Beliefs
from app.localization.adaptive.designs import MANY, mixed_ring, small_sets
from app.localization.adaptive.groups import GpuGroup, PathSweep, Test, exchange
from app.localization.adaptive.levels import LevelClass
from app.localization.components import Component, group_of
from app.localization.shapes import Pair, Ranks, Shape

Part = Literal["leaf", "uplink", "fabric", "rail", "nic", "links"]
"""A leaf's uplinks, a host's uplink, what connects the GPUs inside a host, a rail's switch, a NIC of several GPUs,
and all links of one GPU."""

# With fewer GPUs the sweep over the paths takes them one pair at a time, which a slow NIC cannot hide from; with
# fewer units of a part none is left to compare with.
LEAST_GPUS, LEAST_UNITS = 5, 4
# Parts that are used by paths between GPUs of one unit, of which two are a path; the others by paths to GPUs of
# other units.
INSIDE: frozenset[Part] = frozenset({"fabric", "rail"})
# Sets that are compared, by how many there are to be put into them.
SETS = ((16, 6), (8, 4), (6, 3), (4, 2))
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
    leaves : sequence of int
        The leaf of each rank: exchanges then stay under one, so that its uplinks are no part of them. Empty: they
        do not matter, or are not known.
    strict : bool
        Sends between leaves are slow: who has no partner under its own is left out. Else leaves then do not count.
    """

    part: Part
    labels: Sequence[int]
    leaves: Sequence[int] = ()
    strict: bool = False

    def holds(self, pair: Pair) -> bool:
        """Whether a path uses the part, and no leaf's uplinks if these are to be left out."""
        u, v = pair
        together = self.labels[u] == self.labels[v]
        return together == (self.part in INSIDE) and (not self.leaves or self.leaves[u] == self.leaves[v])


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
    """

    units: tuple[Ranks, ...]
    shared: Shared
    ring: Ranks
    sweep: PathSweep
    rng: np.random.Generator
    _waiting: dict[int | Ranks, list[int]] = field(default_factory=dict)

    least_turns = PARTNERS

    @property
    def part(self) -> Part:
        return self.shared.part

    def component(self, item: int) -> Component:
        return group_of(self.units[item])

    def cut(self, low: int, high: int) -> Test:
        chosen = [self.units[i] for i in range(low, high) if not self.beliefs.excluded[i]]
        if len(chosen) == 1:
            chosen = [self._next_of(chosen[0])]
        shape = exchange(self.ring, self._paired(chosen), self.width)
        return Test(low, high, shape, max(1, shape.degree), self.level_class)

    @property
    def level_class(self) -> LevelClass:
        """What its probes are held against."""
        return LevelClass(self.part, self.sweep.hops)

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
        """A partner for one that is left over: a cleared and idle one if there is any."""
        for among in (self.padding, self.ring):
            idle = [other for other in among if other not in taken and self._holds(rank, other)]
            if idle:
                return idle[int(self.rng.integers(len(idle)))]
        return self._next_partner(rank)

    def _next_of(self, unit: Ranks) -> Ranks:
        """A few of a unit's GPUs in turns: one slow GPU among them is not what they share."""
        waiting = self._waiting.get(unit) or self.rng.permutation(np.array(unit)).tolist()
        self._waiting[unit] = waiting
        return tuple(waiting.pop() for _ in range(min(len(waiting), -(-len(unit) // PARTNERS))))

    def _next_partner(self, rank: int) -> int:
        """Partners in turns, cleared ones first."""
        if not self._waiting.get(rank):
            others = [other for other in self.rng.permutation(self.ring).tolist() if self._holds(rank, other)]
            self._waiting[rank] = sorted(others, key=lambda other: other in self.padding)
        return self._waiting[rank].pop()

    def _holds(self, rank: int, other: int) -> bool:
        return rank != other and self.shared.holds((rank, other)) and self.sweep.holds((rank, other))


def link_groups(ring: Ranks, sweep: PathSweep, shared: Shared, rng: np.random.Generator) -> list[LinkGroup]:
    """Disjoint sets of units that have such a part; empty where there are too few to be compared.

    Parameters
    ----------
    ring : tuple of int
        The GPUs that are not slow.
    sweep : PathSweep
        Hop class and load.
    shared : Shared
        The part; its leaves do not count where a GPU has no partner under its own. GPUs that have none at all are
        in no set.
    """
    if shared.part == "leaf":
        shared = replace(shared, leaves=())
    partnered = _have_partner(ring, sweep, shared)
    if shared.leaves and not (shared.strict or all(partnered)):
        shared = replace(shared, leaves=())
        partnered = _have_partner(ring, sweep, shared)
    able = [rank for rank, has in zip(ring, partnered, strict=True) if has]
    if shared.part == "links":
        units = [(rank,) for rank in _ordered(_with_links(able, sweep), sweep, rng)]
    else:
        some = [unit for unit in units_of(able, shared.labels) if shared.part not in INSIDE or len(unit) > 2]
        units = [some[place] for place in rng.permutation(len(some))]
    if len(units) < (LEAST_GPUS if shared.part == "links" else LEAST_UNITS):
        return []
    small = shared.part == "links" and sweep.hosts is None
    return [_group(own, ring, sweep, shared, rng) for own in _sets(units, shared, small=small)]


def _group(
    units: list[Ranks], ring: Ranks, sweep: PathSweep, shared: Shared, rng: np.random.Generator
) -> LinkGroup:
    ranks = tuple(rank for unit in units for rank in unit)
    beliefs = Beliefs(len(units), sweep.severities)
    return LinkGroup(
        beliefs, sweep.width, ranks=ranks, units=tuple(units), shared=shared, ring=ring, sweep=sweep, rng=rng
    )


def _sets(units: Sequence[Ranks], shared: Shared, *, small: bool) -> list[list[Ranks]]:
    """Sets of units that can exchange among themselves: where leaves count, all of one set are under one."""
    found, rest = small_sets(units) if small and len(units) >= MANY else ([], list(units))
    most = next(count for least, count in SETS if len(units) >= least) - len(found)
    by_leaf: dict[int, list[Ranks]] = {}
    for unit in rest:
        by_leaf.setdefault(shared.leaves[unit[0]] if shared.leaves else 0, []).append(unit)
    for some in by_leaf.values():
        count = max(1, min(len(some) // 2, round(most / len(by_leaf))))
        bounds = np.linspace(0, len(some), count + 1).astype(int)
        found += [some[low:high] for low, high in pairwise(bounds.tolist())]
    return found


def _ordered(ranks: Sequence[int], sweep: PathSweep, rng: np.random.Generator) -> list[int]:
    """In an order whose neighbours have paths of the hop class: those of a set exchange with each other."""
    if sweep.hosts is not None and sweep.hops == "same_host":
        hosts = sweep.hosts
        return sorted(ranks, key=lambda rank: hosts[rank])
    return list(mixed_ring(ranks, sweep.hosts, rng))


def _have_partner(ring: Ranks, sweep: PathSweep, shared: Shared) -> list[bool]:
    """For every GPU whether it can exchange with any: of the hop class, over the part, under its leaf."""

    def equal(labels: Sequence[int]) -> NDArray[np.bool_]:
        own = np.array([labels[rank] for rank in ring])
        found: NDArray[np.bool_] = np.equal.outer(own, own)
        return found

    able = equal(shared.labels) == (shared.part in INSIDE)
    if shared.leaves:
        able &= equal(shared.leaves)
    if sweep.hosts is not None and sweep.hops != "any":
        able &= equal(sweep.hosts) == (sweep.hops == "same_host")
    np.fill_diagonal(able, val=False)
    found: list[bool] = able.any(axis=1).tolist()
    return found


def units_of(ring: Sequence[int], labels: Sequence[int]) -> list[Ranks]:
    """The GPUs of each unit, ascending; -1 is in none."""
    found: dict[int, list[int]] = {}
    for rank in sorted(ring):
        if labels[rank] >= 0:
            found.setdefault(labels[rank], []).append(rank)
    return [tuple(unit) for unit in found.values()]


def _with_links(ring: Sequence[int], sweep: PathSweep) -> list[int]:
    """Those with at least two paths of the hop class: one alone is a path."""
    if sweep.hosts is None or sweep.hops == "any":
        return list(ring)
    own = Counter(sweep.hosts[rank] for rank in ring)
    inside = sweep.hops == "same_host"
    paths = {host: count - 1 if inside else len(ring) - count for host, count in own.items()}
    return [rank for rank in ring if paths[sweep.hosts[rank]] >= 2]
