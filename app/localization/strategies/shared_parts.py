"""The stage that looks for what many paths share: leaves, hosts, rails, NICs, and all links of a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from app.localization.adaptive.examiner import Examiner, Found
from app.localization.adaptive.groups import PathSweep, exchange
from app.localization.adaptive.levels import LevelClass, Levels
from app.localization.adaptive.links import LEAST_UNITS, Part, Shared, between_and_within, link_groups
from app.localization.record import Steps
from app.localization.settings import Settings
from app.localization.shapes import Ranks
from app.localization.strategies.base import Note

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
# How much longer a step with a send between leaves may take: beyond it the fabric is not just built so.
SLOW_LEAVES = 1.5


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
        self.notes: list[Note] = []

    def examine(self, ring: Callable[[], Ranks], load: int, severities: int) -> Steps[float | None]:
        """Look for every part; gives the level of the dearest exchanges, log ms, if there were any.

        Parameters
        ----------
        ring : callable
            The GPUs that are not slow, in a random order.
        load : int
            Sequences that every rank sends and receives.
        severities : int
            Hypotheses about the size of a fault.

        Raises
        ------
        OutOfMeasurements, TooManyFaults
            Before everything is decided.
        """
        hosts, levels = self._settings.hosts, []
        for part, hops in WITHOUT_HOSTS if hosts is None or len(set(hosts)) < 2 else ORDER:
            sweep = PathSweep(hops, hosts, load, severities=severities)
            groups = link_groups(ring(), sweep, Shared(part, self._labels(part), self._leaves), self._rng)
            if groups:
                yield from self._examiner.examine(groups, rounds=1)
                levels.append(self._levels.level(groups[0].level_class))
        yield from self._compare_leaves(ring(), load)
        return max((level for level in levels if level is not None), default=None)

    def _labels(self, part: Part) -> Sequence[int]:
        """The unit that each rank is in; -1 where the topology does not say."""
        gpus = self._settings.gpus
        if part == "links":
            return range(gpus)
        if part in {"uplink", "fabric"}:
            return self._settings.hosts or ()
        return self._settings.shared.get(part, (-1,) * gpus)

    def _compare_leaves(self, ring: Ranks, load: int) -> Steps[None]:
        """Of few leaves none tells which is slow: then sends between them are held against sends within them."""
        hosts, leaves = self._settings.hosts, self._leaves
        if hosts is None or not leaves or not 2 <= len({leaves[rank] for rank in ring}) < LEAST_UNITS:
            return
        differences = []
        for pairs in between_and_within(ring, hosts, leaves, self._rng):
            values = []
            for pair in pairs:
                shape = exchange(ring, [pair], load)
                values.append((yield from self._examiner.read_shape(shape, LevelClass("leaves"))))
            differences.append(values[0] - values[1])
        if differences and (ratio := math.exp(median(differences))) > SLOW_LEAVES:
            self.leaves_slower = True
            self.notes.append(_slow_leaves(ratio))


def shared_notes(found: Sequence[Found]) -> list[Note]:
    """What it is of the accused that is slow, where that is not the GPU or the path itself."""
    notes = []
    for part, text in IN_WORDS.items():
        names = ", ".join(str(one.component) for one in found if one.part == part)
        notes += [Note(part, f"{names}: {text}", open=False)] if names else []
    return notes


def _slow_leaves(ratio: float) -> Note:
    return Note(
        "leaves_slower",
        f"sends between leaf switches take {ratio:.1f}x the time of sends under one: the uplinks of a leaf, or the"
        " fabric as it is; with so few leaves no probe tells which, and single paths were not compared",
    )
