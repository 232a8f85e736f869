"""The stage that looks for what many paths share: switches, hosts, rails, NICs, and all links of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from app.localization.adaptive.examiner import Examiner
from app.localization.adaptive.groups import PathSweep
from app.localization.adaptive.levels import Levels
from app.localization.adaptive.link_sets import link_groups, units_of
from app.localization.adaptive.links import Part, Shared
from app.localization.adaptive.noise import Floats
from app.localization.components import Component
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.shapes import Ranks
from app.localization.strategies.base import Note
from app.localization.strategies.few_hosts import FewHosts
from app.localization.strategies.few_rails import FewRails
from app.localization.strategies.few_switches import FewSwitches
from app.localization.strategies.folding import equal_parts, fold

# What many share before what few do: else a slow host would be found GPU by GPU. Switches come before all of it.
ORDER: tuple[tuple[Part, str], ...] = (
    ("uplink", "cross_host"),
    ("fabric", "same_host"),
    ("rail", "cross_host"),
    ("nic", "cross_host"),
    ("links", "cross_host"),
    ("links", "same_host"),
)
# Of so few sets one or two readings that something else raised say the opposite: then each is read so often.
FEW_SETS, OFTEN = 3, 3
WITHOUT_HOSTS: tuple[tuple[Part, str], ...] = (("links", "any"),)
IN_WORDS = {
    "switch": "all GPUs under one switch above the leaves, slow at sends to those under others and not at sends"
    " to themselves: its uplinks",
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
    "switch": "switch's uplinks, above the leaves",
    "links": "own NIC or link",
}
EQUAL_SWITCHES = (
    "sends between GPUs under different {what} are slow, and not those under one: the uplinks of one of these"
    " {what}, or the fabric if it is built so; no probe tells which"
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
        self.slower: set[str] = set()
        """Tiers that sends take longer to cross, whatever the reason."""
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
            yield from self._compare_switches(hosts, ring, load, effects)
            yield from self._compare_rails(hosts, ring(), load, effects)
        for shared, hops in self._parts():
            sweep = PathSweep(hops, hosts, load, severities=severities, tiers=self._settings.tiers)
            groups = link_groups(ring(), sweep, shared, self._rng, strict=bool(self.slower))
            if groups:
                try:
                    yield from self._examiner.examine(groups, rounds=1 if len(groups) > FEW_SETS else OFTEN)
                finally:
                    self._fold(hops)
                levels.append(self._levels.level(groups[0].level_class))
        return max((level for level in levels if level is not None), default=None)

    def _parts(self) -> Iterator[tuple[Shared, str]]:
        """What is compared set by set, and by sends of which hop class."""
        hosts, tiers = self._settings.hosts, self._settings.tiers
        if hosts is None or len(set(hosts)) < 2:
            yield from ((Shared(part, self._labels(part)), hops) for part, hops in WITHOUT_HOSTS)
            return
        below = [hosts, *tiers.values()]
        for height, (kind, labels) in reversed([*enumerate(tiers.items())]):
            part: Part = "switch" if height else "leaf"
            yield Shared(part, labels, below=below[height], tier=kind), "cross_host"
        for part, hops in ORDER:
            yield Shared(part, self._labels(part), below=self._labels("nic") if part == "uplink" else ()), hops

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
        above = [labels for kind, labels in self._settings.tiers.items() if kind != "leaf"]
        switches = [unit for labels in above for unit in units_of(ranks, labels)]
        return {**{part: units_of(ranks, self._labels(part)) for part in parts}, "switch": switches}

    def _labels(self, part: Part) -> Sequence[int]:
        """The unit that each rank is in; -1 where the topology does not say."""
        ranks = range(self._settings.gpus)
        if part == "links":
            return ranks
        stated = self._settings.hosts if part in {"uplink", "fabric"} else self._settings.shared.get(part)
        return stated or (-1,) * len(ranks)

    def _compare_hosts(self, hosts: Sequence[int], ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Of three hosts under one leaf, the one whose sends to both others are slow."""
        if any(len({switches[rank] for rank in ring}) > 1 for switches in self._settings.tiers.values()):
            return
        stage = FewHosts(self._examiner, hosts, self._rng)
        yield from stage.compare(ring, load, effects)
        if stage.found is not None:
            self._examiner.found.append(stage.found)
            self.hops[stage.found.component] = "cross_host"

    def _compare_switches(
        self, hosts: Sequence[int], ring: Callable[[], Ranks], load: int, effects: Floats
    ) -> Steps[None]:
        """Of few switches none tells which is slow: then sends between them are held against sends under one."""
        tiers = self._settings.tiers
        for (kind, switches), below in reversed([*zip(tiers.items(), [hosts, *tiers.values()], strict=False)]):
            stage = FewSwitches(self._examiner, kind, below, switches, self._rng)
            yield from stage.compare(ring(), load, effects)
            if stage.found is not None:
                self._examiner.found.append(stage.found)
                self.equals[stage.found.component] = stage.equals
                self.hops[stage.found.component] = "cross_host"
            # With several equals, those that are left are still slow to each other.
            if stage.note is not None or len(stage.equals) > 1:
                self.slower.add(kind)
            if stage.note is not None:
                self.notes.append(stage.note)

    def _compare_rails(self, hosts: Sequence[int], ring: Ranks, load: int, effects: Floats) -> Steps[None]:
        """Of two or three rails, the one along which sends take longer."""
        stage = FewRails(self._examiner, hosts, self._labels("rail"), self._rng)
        yield from stage.compare(ring, load, effects)
        if stage.found is not None:
            self._examiner.found.append(stage.found)
            self.hops[stage.found.component] = "cross_host"

    def words(self) -> list[Note]:
        """What it is of the accused that is slow, where that is not the GPU or the path itself."""
        found = self._examiner.found
        notes = []
        for part, text in IN_WORDS.items():
            named = [one.component for one in found if one.part == part]
            if named and (others := self.equals.get(named[0])):
                why = EQUAL_SWITCHES.format(what="leaves" if part == "leaf" else "switches above the leaves")
                notes.append(Note(part, f"{named[0]} or {', '.join(map(str, others))}: {why}", open=False))
            elif named:
                notes.append(Note(part, f"{', '.join(map(str, named))}: {text}", open=False))
        for one in found:
            if one.component in self.hops:
                notes += [
                    Note(part, f"{one.component}: or its {EQUALLY[part]}, which serves the same GPUs", open=False)
                    for part in equal_parts(one, self.hops[one.component], self.units)
                ]
        return notes
