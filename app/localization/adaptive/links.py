"""All links of a GPU at once: a slow NIC sits in every probe of a sweep over the paths and raises all alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from app.localization.adaptive.beliefs import Beliefs
from app.localization.adaptive.designs import mixed_ring
from app.localization.adaptive.groups import GpuGroup, PathSweep, Test
from app.localization.adaptive.levels import LevelClass
from app.localization.components import Component, gpu
from app.localization.shapes import Exchange, Ranks, Shape

# With fewer GPUs the sweep over the paths takes them one pair at a time, which a slow NIC cannot hide from.
LEAST_GPUS = 5
SETS, MANY, FEW_SETS = 6, 16, 3
# A slow NIC is slow whoever the partner is; that many different ones tell it from a slow path or two.
PARTNERS = 4


@dataclass
class LinkGroup(GpuGroup):
    """GPUs that exchange with one partner each while all others send to themselves, at the same load.

    Parameters
    ----------
    ring : tuple of int
        Everyone who takes part.
    sweep : PathSweep
        Hop class and load.
    rng : numpy.random.Generator
        Draws partners: new ones for every probe, so that no single path is tested over and over.
    """

    ring: Ranks = ()
    sweep: PathSweep = field(default_factory=PathSweep)
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    _partners: dict[int, list[int]] = field(default_factory=dict)

    of_links = True
    least_turns = PARTNERS

    def cut(self, low: int, high: int) -> Test:
        chosen = [self.ranks[i] for i in range(low, high) if not self.beliefs.excluded[i]]
        shape = self._exchange(self._paired(chosen))
        return Test(low, high, shape, max(1, shape.degree), self.level_class)

    @property
    def level_class(self) -> LevelClass:
        """What its probes are held against."""
        return LevelClass("links", self.sweep.hops)

    def reference(self, item: int, rng: np.random.Generator, slow: frozenset[Component]) -> Shape | None:
        own = self.ranks[item]
        clean = [rank for rank in rng.permutation(self.ring).tolist() if rank != own and gpu(rank) not in slow]
        for place, rank in enumerate(clean):
            partner = next((other for other in clean[place + 1 :] if self._holds(rank, other)), None)
            if partner is not None:
                return self._exchange([(rank, partner)])
        return None

    def _paired(self, chosen: Sequence[int]) -> list[tuple[int, int]]:
        """Pairs of the hop class that touch all of ``chosen`` and, but for padding, nobody else."""
        if len(chosen) == 1:
            return [(chosen[0], self._next_partner(chosen[0]))]
        waiting, pairs, used = self.rng.permutation(np.array(chosen, dtype=int)).tolist(), [], set[int]()
        while waiting:
            rank = waiting.pop()
            partner = next((other for other in waiting if self._holds(rank, other)), None)
            if partner is not None:
                waiting.remove(partner)
            else:
                partner = self._outside(rank, used.union(chosen))
            used.add(partner)
            pairs.append((rank, partner))
        return pairs

    def _outside(self, rank: int, taken: set[int]) -> int:
        """A partner for one that is left over: a cleared and idle one if there is any."""
        idle = [other for other in (*self.padding, *self.ring) if other not in taken and self._holds(rank, other)]
        return idle[0] if idle else self._next_partner(rank)

    def _next_partner(self, rank: int) -> int:
        """Partners in turns, cleared ones first."""
        if not self._partners.get(rank):
            others = [other for other in self.rng.permutation(self.ring).tolist() if self._holds(rank, other)]
            self._partners[rank] = sorted(others, key=lambda other: other in self.padding)
        return self._partners[rank].pop()

    def _holds(self, rank: int, other: int) -> bool:
        return rank != other and self.sweep.holds((rank, other))

    def _exchange(self, pairs: Sequence[tuple[int, int]]) -> Exchange:
        ordered = tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
        degree = max(Counter(rank for pair in ordered for rank in pair).values(), default=1)
        return Exchange(tuple(sorted(self.ring)), ordered, max(self.sweep.width, degree))


def link_groups(ring: Ranks, sweep: PathSweep, rng: np.random.Generator) -> list[LinkGroup]:
    """Disjoint sets of the GPUs that have links of the hop class; empty where the paths alone tell.

    Parameters
    ----------
    ring : tuple of int
        The GPUs that are not slow.
    sweep : PathSweep
        Hop class and load.
    """
    ranks = _with_links(ring, sweep)
    if len(ranks) < LEAST_GPUS:
        return []
    if sweep.hosts is not None and sweep.hops == "same_host":
        hosts = sweep.hosts
        ranks = sorted(ranks, key=lambda rank: hosts[rank])
    else:
        ranks = list(mixed_ring(ranks, sweep.hosts, rng))
    count = SETS if len(ranks) >= MANY else FEW_SETS
    sets = [tuple(map(int, some)) for some in np.array_split(np.array(ranks), count)]
    return [
        LinkGroup(Beliefs(len(s), sweep.severities), sweep.width, ranks=s, ring=ring, sweep=sweep, rng=rng)
        for s in sets
    ]


def _with_links(ring: Ranks, sweep: PathSweep) -> list[int]:
    """Those with at least two paths of the hop class: one alone is a path."""
    if sweep.hosts is None or sweep.hops == "any":
        return list(ring)
    own = Counter(sweep.hosts[rank] for rank in ring)
    inside = sweep.hops == "same_host"
    paths = {host: count - 1 if inside else len(ring) - count for host, count in own.items()}
    return [rank for rank in ring if paths[sweep.hosts[rank]] >= 2]
