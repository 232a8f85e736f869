"""How much longer sends between switches, or two hosts, take, where single paths were compared with their like."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from app.localization.adaptive.costs import certified_effect
from app.localization.adaptive.designs import hop_names
from app.localization.adaptive.groups import PathGroup
from app.localization.adaptive.levels import LevelClass, Levels
from app.localization.strategies.base import Note

TWO = 2
# What a step may take longer and nothing be said of it, log.
WORTH_SAYING = math.log(1.2)


def switches_in_words(kind: str) -> str:
    """The switches of a tier, or the two hosts."""
    if kind == "host":
        return "the two hosts"
    return "leaf switches" if kind == "leaf" else f"switches of {kind}"


def slower_hops(groups: Sequence[PathGroup], levels: Levels, said: Collection[str]) -> list[Note]:
    """Notes of the tiers that sends take longer to cross than to stay below.

    A fabric may be built so, or all of its uplinks be slow alike: nobody is accused, but whoever is on call should
    know.

    Parameters
    ----------
    groups : sequence of PathGroup
        The sweep over the paths.
    levels : Levels
        What they take.
    said : collection of str
        Tiers of which it was said before.
    """
    classes = {group.sweep.hops: group.whole().of for group in groups}
    counts = Counter(group.sweep.hops for group in groups)
    tiers = {kind: at for group in groups for kind, at in group.sweep.tiers.items()}
    hosts = {host for group in groups for host in group.sweep.hosts or ()}
    # Of more hosts the uplinks are compared with each other.
    names = hop_names(tiers)[0 if len(hosts) == TWO else 1 :]
    measured = [(hops, level) for hops in names if (level := _level(hops, classes, levels)) is not None]
    notes = []
    for (below, low), (hops, high) in pairwise(measured):
        kind, least = hops.removeprefix("cross_"), certified_effect(levels.sigma, min(counts[below], counts[hops]))
        if kind not in said and high - low > max(WORTH_SAYING, least):
            notes.append(_slower(kind, math.exp(high - low)))
    return notes


def _level(hops: str, classes: Mapping[str, LevelClass], levels: Levels) -> float | None:
    return levels.level(classes[hops]) if hops in classes else None


def _slower(kind: str, ratio: float) -> Note:
    if kind == "host":
        inside, why = "inside one", "they are built so, or the uplink of either is slow, and no probe tells which"
    else:
        inside, why = "under one", "the fabric is built so, or all uplinks are slow alike"
    return Note(
        "hops_slower",
        f"steps with sends between {switches_in_words(kind)} take {ratio:.1f}x the time of those {inside}: {why};"
        " single paths were compared with their like",
        open=False,
    )
