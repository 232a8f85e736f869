"""Components that are tested together, and the probes that test all of them, some, or one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from app.localization.adaptive.beliefs import Beliefs
from app.localization.adaptive.designs import Tiers, hops_between, matchings
from app.localization.adaptive.levels import LevelClass, LogReading
from app.localization.components import Component, gpu, path
from app.localization.shapes import Exchange, Pair, Ranks, Shape, Shift


class Piece(NamedTuple):
    """A GPU, or a host, NIC or switch, that lies under a part with others of its kind."""

    kind: Literal["gpu", "below"]
    number: int


@dataclass(frozen=True, slots=True)
class Test:
    """A probe that touches the items ``low <= i < high`` of a group, and no other suspect.

    Parameters
    ----------
    low, high : int
        Which items.
    shape : Shape
        What is sent.
    dilution : int
        Receivers of a rank: a slow path is one of so many.
    of : LevelClass
        Which level it is held against.
    """

    low: int
    high: int
    shape: Shape
    dilution: int
    of: LevelClass


@dataclass
class TestResult:
    """A reading, the probe it came from, and what it tested."""

    test: Test
    number: int
    reading: LogReading


@dataclass
class Group(ABC):
    """An ordered set of items with all that was read of them.

    Parameters
    ----------
    beliefs : Beliefs
        About the items, in order.
    width : int
        Sequences that every rank in a probe sends and receives.
    results : list of TestResult
        Of sweep, search and second look.
    acquittals : list of (int, float)
        Items that were held against clean references and not confirmed, with the log odds.
    """

    beliefs: Beliefs
    width: int
    results: list[TestResult] = field(default_factory=list)
    acquittals: list[tuple[int, float]] = field(default_factory=list)

    least_turns: ClassVar[int] = 2
    """Pairs of a confirmation, at least."""

    @property
    def part(self) -> str | None:
        """What an item shares, if it is that: what is not confirmed is then left to the sweep over paths."""
        return None

    @abstractmethod
    def component(self, item: int) -> Component:
        """The component at a place."""

    def whole(self) -> Test:
        """The probe of the sweep: every item at once."""
        return self.cut(0, self.beliefs.items)

    @abstractmethod
    def cut(self, low: int, high: int) -> Test:
        """A probe of the items from ``low`` on, without what is excluded: up to ``high``, or near it."""

    @abstractmethod
    def reference(self, item: int, rng: np.random.Generator, slow: frozenset[Component]) -> Shape | None:
        """A probe like the item's own but for the item, with nothing in it that is known to be slow."""

    def pieces(self, item: int, test: Test) -> set[Piece]:  # noqa: ARG002
        """What lies under an item with others of its kind, and is in a test of it; empty: nothing does."""
        return set()

    def items_of(self, test: Test) -> list[Component]:
        """What a test touches and is still a candidate."""
        return [self.component(i) for i in range(test.low, test.high) if not self.beliefs.excluded[i]]


@dataclass
class GpuGroup(Group):
    """GPUs.

    Parameters
    ----------
    ranks : tuple of int
        The items.
    padding : list of int
        GPUs that proved healthy: smaller probes are filled up with them, since the slowest of many healthy GPUs
        is a little slower than the slowest of few.
    """

    ranks: Ranks = ()
    padding: list[int] = field(default_factory=list)

    def component(self, item: int) -> Component:
        return gpu(self.ranks[item])


@dataclass
class LoopGroup(GpuGroup):
    """GPUs that send to themselves only."""

    def cut(self, low: int, high: int) -> Test:
        chosen = [self.ranks[i] for i in range(low, high) if not self.beliefs.excluded[i]]
        return Test(low, high, self._filled(chosen), 1, LevelClass("loops"))

    def reference(self, item: int, rng: np.random.Generator, slow: frozenset[Component]) -> Shape | None:
        own = self.ranks[item]
        pads = set(self.padding[: len(self.ranks) - 1])
        others = [r for r in (*self.padding, *self.ranks) if r != own and r not in pads and gpu(r) not in slow]
        return self._filled([int(rng.choice(others))]) if others else None

    def _filled(self, chosen: Sequence[int]) -> Shape:
        pads = [rank for rank in self.padding if rank not in chosen][: max(0, len(self.ranks) - len(chosen))]
        return Exchange(tuple(sorted({*chosen, *pads})), (), self.width)


@dataclass(frozen=True, slots=True)
class PathSweep:
    """What the groups of a sweep over the paths of one hop class have in common.

    Parameters
    ----------
    hops : str
        Hop class, see `LevelClass`.
    hosts : tuple of int or None
        Host of each rank.
    width : int
        Sequences that every rank in a probe sends and receives.
    most : int
        Paths that a rank may have in one probe.
    diluted : bool
        Whether a slow path shows the less, the more paths a rank has.
    severities : int
        Hypotheses about the size of a fault.
    tiers : mapping of str to sequence of int
        Switches of every tier by which hop classes are told apart, see `hops_between`.
    """

    hops: str = "any"
    hosts: tuple[int, ...] | None = None
    width: int = 1
    most: int = 1
    diluted: bool = True
    severities: int = 1
    tiers: Tiers = field(default_factory=dict)

    def holds(self, pair: Pair) -> bool:
        """Whether a path is of the hop class."""
        return self.hosts is None or self.hops in {"any", self.between(pair)}

    def between(self, pair: Pair) -> str:
        """Hop class of a path."""
        return hops_between(pair, self.hosts, self.tiers)


@dataclass
class PathGroup(Group):
    """Paths of a ring, matching by matching: in every probe all ranks carry the same load.

    Parameters
    ----------
    ring : tuple of int
        A cyclic order of the ranks.
    shifts : tuple of int
        Whose paths are the items, if they are those of whole shifts.
    sweep : PathSweep
        What it has in common with the others of the sweep.
    """

    ring: Ranks = ()
    shifts: tuple[int, ...] = ()
    sweep: PathSweep = field(default_factory=PathSweep)
    pairs: list[Pair] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _ends: list[int] = field(default_factory=list)

    @classmethod
    def of_shifts(cls, ring: Ranks, shifts: tuple[int, ...], sweep: PathSweep) -> PathGroup:
        """The paths of whole shifts."""
        by_shift = [matchings(ring, shift) for shift in shifts]
        group = cls.of_matchings(ring, [matching for some in by_shift for matching in some], sweep)
        group.shifts = shifts
        group._starts = [0, *np.cumsum([sum(map(len, some)) for some in by_shift]).tolist()]
        return group

    @classmethod
    def of_matchings(cls, ring: Ranks, some: Sequence[Sequence[Pair]], sweep: PathSweep) -> PathGroup:
        """Paths in sets in which no rank occurs twice."""
        pairs = [pair for matching in some for pair in matching]
        group = cls(Beliefs(len(pairs), sweep.severities), sweep.width, [], [], ring, (), sweep, pairs)
        group._ends = np.cumsum([len(matching) for matching in some]).tolist()
        return group

    def component(self, item: int) -> Component:
        return path(*self.pairs[item])

    def cut(self, low: int, high: int) -> Test:
        if self.shifts:
            first, last = (int(np.searchsorted(self._starts, at, side="right")) - 1 for at in (low, high - 1))
            end = self._last_start(first, high)
            clean = not self.beliefs.excluded[low : self._starts[end]].any()
            if clean and low == self._starts[first] and (first != last or high == self._starts[last + 1]):
                return self._shifts(first, end)
        return self._pairs(low, high)

    def _last_start(self, first: int, high: int) -> int:
        """The end of whole shifts, not beyond ``high``: else a search asks for all that it suspects."""
        limit = min(len(self.shifts), first + self.sweep.most)
        return max((end for end in range(first + 1, limit + 1) if self._starts[end] <= high), default=first + 1)

    def _shifts(self, first: int, end: int) -> Test:
        count = end - first
        shape = Shift((self.ring,), self.shifts[first:end], max(1, self.width // count))
        return Test(self._starts[first], self._starts[end], shape, count, LevelClass("shift", self.sweep.hops))

    def _pairs(self, low: int, high: int) -> Test:
        # One matching at a time while searching, so that nothing is diluted; what is left of a group that lost an
        # item takes as few probes as it can.
        most = self.sweep.most if self.beliefs.excluded.any() or not self.sweep.diluted else 1
        matching = int(np.searchsorted(self._ends, low, side="right"))
        limit = self._ends[min(len(self._ends), matching + most) - 1]
        high = max(low + 1, min(high, limit))
        shape = self._exchange(
            [p for i, p in enumerate(self.pairs[low:high], low) if not self.beliefs.excluded[i]]
        )
        return Test(low, high, shape, max(1, shape.degree), LevelClass("exchange", self.sweep.hops))

    def reference(self, item: int, rng: np.random.Generator, slow: frozenset[Component]) -> Shape | None:
        u, v = self.pairs[item]
        of_u, of_v = (self._clean_paths(end, (u, v), rng, slow) for end in (u, v))
        both = next(([a, b] for a in of_u for b in of_v if not set(a) & set(b)), None)
        if both is not None:
            return self._exchange(both)
        # A pair alone in its host has no other path of its hop class: then those of other pairs must do.
        either = of_u + of_v or [
            pair
            for pair in combinations(sorted(self.ring), 2)
            if pair != self.pairs[item] and self.sweep.holds(pair) and path(*pair) not in slow
        ]
        return self._exchange([either[int(rng.integers(len(either)))]]) if either else None

    def _clean_paths(
        self, end: int, ends: Pair, rng: np.random.Generator, slow: frozenset[Component]
    ) -> list[Pair]:
        """Paths of the hop class from an end to any other rank, without slow ones, in random order."""
        pairs = [(min(end, w), max(end, w)) for w in rng.permutation(self.ring).tolist() if w not in ends]
        return [pair for pair in pairs if self.sweep.holds(pair) and path(*pair) not in slow]

    def _exchange(self, pairs: Sequence[Pair]) -> Exchange:
        return exchange(self.ring, pairs, self.width)


def exchange(ring: Ranks, pairs: Iterable[Pair], width: int) -> Exchange:
    """Pairs that exchange while the rest of a ring send to themselves; wide enough for each rank's partners."""
    ordered = tuple(sorted({(min(pair), max(pair)) for pair in pairs}))
    degree = int(np.bincount(np.array(ordered, dtype=np.intp).ravel()).max()) if ordered else 0
    return Exchange(tuple(sorted(ring)), ordered, max(width, degree))
