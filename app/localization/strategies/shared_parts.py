"""The stage that looks for what many paths share: leaves, hosts, rails, NICs, and all links of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from app.localization.adaptive.examiner import Examiner
from app.localization.adaptive.groups import PathSweep
from app.localization.adaptive.levels import Levels
from app.localization.adaptive.links import Part, Shared, link_groups, units_of
from app.localization.adaptive.noise import Floats
from app.localization.components import Component
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.shapes import Ranks
from app.localization.strategies.base import Note
from app.localization.strategies.few_hosts import FewHosts
from app.localization.strategies.few_leaves import FewLeaves
from app.localization.strategies.folding import equal_parts, fold

# What many share before what few do: else a slow host would be found GPU by GPU.
ORDER: tuple[tuple[Part, str], ...] = (
    ("leaf", "cross_host"),
    ("uplink", "cross_host"),
    ("fabric", "same_host"),
    ("rail", "cross_host"),
    ("nic", "cross_host"),
    ("links", "cross_host"),
    ("links", "same_host"),
)
WITHOUT_HOSTS: tuple[tuple[Part, str], ...] = (("links", "any"),)
IN_WORDS = {
    "leaf": "all GPUs under one leaf, slow at sends to other leaves and not at sends to themselves: its uplinks",
    "uplink": "all GPUs of one host, slow at sends to any other host and not at sends to themselves: its uplink",
    "fabric": "all GPUs of one host, slow at sends to each other and not to themselves: what connects them",
    "rail": "all GPUs on one rail, slow at sends along it and not at sends to themselves: its switch",
    "nic": "all GPUs at one NIC, slow at sends to other hosts and not at sends to themselves: the NIC",
    "links": "as fast as others at sends to itself, slow at sends to any other GPU: rather its NIC or link than"
    " the GPU itself",
}
EQUALLY: dict[Part, str] = {
    "nic": "NIC",
    "uplink": "host's uplink",
    "leaf": "leaf's uplinks",
    "links": "own NIC or link",
}
EQUAL_LEAVES = (
    "sends between GPUs under different leaves are slow, and not those under one: the uplinks of one of these"
    " leaves, or the fabric if it is built so; no probe tells which"
)


class SharedParts:
    """Compares sets of hosts, or of GPUs, that exchange at the same load, part by part.

    Parameters
    ----------
    settings : Settings
        The session's settings: what the topology says.
    examiner : Examiner
        Measures and accuses.
    levels : Levels
        The healthy levels.
    rng : numpy.random.Generator
        For sets and partners.
    """

    def __init__(self, settings: Settings, examiner: Examiner, levels: Levels, rng: np.random.Generator) -> None:
        self._settings, self._examiner, self._levels, self._rng = settings, examiner, levels, rng
        self._leaves = settings.shared.get("leaf", ())
        self.leaves_slower = False
        """Whether sends between leaves are so slow that single paths cannot be compared."""
        self.equals: dict[Component, list[Component]] = {}
        """What explains the same as something that is accused."""
        self.notes: list[Note] = []
        self.hops: dict[Component, str] = {}
        """The hop class by which something shared is accused."""

    def examine(
        self, ring: Callable[[], Ranks], load: int, severities: int, effects: Floats
    ) -> Steps[float | None]:
        """Look for every part; gives the level of the dearest exchanges, log ms, if there were any.

        Parameters
        ----------
        ring : callable
            The GPUs that are not slow, in a random order.
        load : int
            Sequences that every rank sends and receives.
        severities : int
            Hypotheses about the size of a fault.
        effects : ndarray of float
            Rise of the log of a step by a slow path, by its severity.

        Raises
        ------
        OutOfMeasurements, TooManyFaults
            Before everything is decided.
        """
        hosts, levels = self._settings.hosts, []
        if hosts is not None:
            yield from self._compare_hosts(hosts, ring(), load, effects)
            yield from self._compare_leaves(hosts, ring(), load, effects)
        for part, hops in WITHOUT_HOSTS if hosts is None or len(set(hosts)) < 2 else ORDER:
            sweep = PathSweep(hops, hosts, load, severities=severities)
            shared = Shared(part, self._labels(part), self._leaves, strict=self.leaves_slower)
            groups = link_groups(ring(), sweep, shared, self._rng)
            if groups:
                try:
                    yield from self._examiner.examine(groups, rounds=1)
                finally:
                    self._fold(hops)
                levels.append(self._levels.level(groups[0].level_class))
        return max((level for level in levels if level is not None), default=None)

    def _fold(self, hops: str) -> None:
        """Take what was just accused by sends of a hop class for the part that it is all of, if there is one."""
        for one in self._examiner.found:
            if one.part is not None:
                self.hops.setdefault(one.component, hops)
        slow = {rank for one in self._examiner.found if one.part is None for rank in one.component.members}
        found = fold(self._examiner.found, self.hops, self.units, frozenset(slow))
        self.hops |= {one.component: hops for one in found if one not in self._examiner.found}
        self._examiner.found[:] = found

    @cached_property
    def units(self) -> dict[Part, list[Ranks]]:
        """The GPUs of every part that the topology states."""
        ranks = range(self._settings.gpus)
        parts: tuple[Part, ...] = ("nic", "uplink", "fabric", "leaf")
        return {part: units_of(ranks, self._labels(part)) for part in parts}

    def _labels(self, part: Part) -> Sequence[int]:
        """The unit that each rank is in; -1 where the topology does not say."""
        ranks = range(self._settings.gpus)
        if part == "links":
            return ranks
        stated = self._settings.hosts if part in {"uplink", "fabric"} else self._settings.shared.get(part)
        return stated or (-1,) * len(ranks)

    def _compare_hosts(self, hosts: Sequence[int], ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Of three hosts under one leaf, the one whose sends to both others are slow."""
        if self._leaves and len({self._leaves[rank] for rank in ring}) > 1:
            return
        stage = FewHosts(self._examiner, hosts, self._rng)
        yield from stage.compare(ring, load, effects)
        if stage.found is not None:
            self._examiner.found.append(stage.found)
            self.hops[stage.found.component] = "cross_host"

    def _compare_leaves(self, hosts: Sequence[int], ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Of few leaves none tells which is slow: then sends between them are held against sends within them."""
        if not self._leaves:
            return
        stage = FewLeaves(self._examiner, hosts, self._leaves, self._rng)
        yield from stage.compare(ring, load, effects)
        if stage.found is not None:
            self._examiner.found.append(stage.found)
            self.equals[stage.found.component] = stage.equals
            self.hops[stage.found.component] = "cross_host"
            # Those that are left are still slow to each other.
            self.leaves_slower = len(stage.equals) > 1
        if stage.note is not None:
            self.leaves_slower = True
            self.notes.append(stage.note)

    def words(self) -> list[Note]:
        """What it is of the accused that is slow, where that is not the GPU or the path itself."""
        found = self._examiner.found
        notes = []
        for part, text in IN_WORDS.items():
            named = [one.component for one in found if one.part == part]
            if named and (others := self.equals.get(named[0])):
                notes.append(
                    Note(part, f"{named[0]} or {', '.join(map(str, others))}: {EQUAL_LEAVES}", open=False)
                )
            elif named:
                notes.append(Note(part, f"{', '.join(map(str, named))}: {text}", open=False))
        for one in found:
            if one.component in self.hops:
                notes += [
                    Note(part, f"{one.component}: or its {EQUALLY[part]}, which serves the same GPUs", open=False)
                    for part in equal_parts(one, self.hops[one.component], self.units)
                ]
        return notes
