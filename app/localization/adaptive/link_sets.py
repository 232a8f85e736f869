"""Which units of a part are compared with each other, and by sends of which hop class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.localization.adaptive.beliefs import Beliefs
from app.localization.adaptive.designs import MANY, hop_names, hops_mask, in_turns, mixed_ring, small_sets
from app.localization.adaptive.groups import PathSweep
from app.localization.adaptive.links import INSIDE, LinkGroup, Shared
from app.localization.shapes import Ranks

# With fewer GPUs the sweep over the paths takes them one pair at a time, which a slow NIC cannot hide from; with
# fewer units of a part none is left to compare with.
LEAST_GPUS, LEAST_UNITS = 5, 4
# Parts of which a host has several.
BELOW_HOST = {"links", "nic"}
# Sets that are compared, by how many there are to be put into them.
SETS = ((16, 6), (8, 4), (6, 3), (4, 2))


def link_groups(
    ring: Ranks, sweep: PathSweep, shared: Shared, rng: np.random.Generator, *, strict: bool = False
) -> list[LinkGroup]:
    """Disjoint sets of units that have such a part; empty where there are too few to be compared.

    Parameters
    ----------
    ring : tuple of int
        The GPUs that are not slow.
    sweep : PathSweep
        Load; hop class without regard to switches, of which the one with the nearest partners is taken.
    shared : Shared
        The part.
    rng : numpy.random.Generator
        For sets and partners.
    strict : bool
        Sends between some switches take longer: GPUs without a partner are left out, not paired in any way.
    """
    sweep = _nearest_class(ring, sweep, shared, strict=strict)
    least = 2 if shared.part == "links" else 1  # a link of one path is that path
    partnered = _have_partners(ring, sweep, shared, least)
    able = [rank for rank, has in zip(ring, partnered, strict=True) if has]
    if shared.part == "links":
        units = [(rank,) for rank in _ordered(able, sweep, rng)]
    else:
        some = [unit for unit in units_of(able, shared.labels) if shared.part not in INSIDE or len(unit) > 2]
        units = [some[place] for place in rng.permutation(len(some))]
    if len(units) < (LEAST_GPUS if shared.part == "links" else LEAST_UNITS):
        return []
    small = shared.part == "links" and sweep.hosts is None
    return [_group(own, ring, sweep, shared, rng) for own in _sets(units, sweep, small=small)]


def _group(
    units: list[Ranks], ring: Ranks, sweep: PathSweep, shared: Shared, rng: np.random.Generator
) -> LinkGroup:
    ranks = tuple(rank for unit in units for rank in unit)
    beliefs = Beliefs(len(units), sweep.severities)
    return LinkGroup(
        beliefs, sweep.width, ranks=ranks, units=tuple(units), shared=shared, ring=ring, sweep=sweep, rng=rng
    )


def _sets(units: Sequence[Ranks], sweep: PathSweep, *, small: bool) -> list[list[Ranks]]:
    """Sets of units that can exchange among themselves.

    Where they stay under a switch, all of a set are under one; where they cross switches, under different ones.
    """
    found, rest = small_sets(units) if small and len(units) >= MANY else ([], list(units))
    most = next(count for least, count in SETS if len(units) >= least) - len(found)
    classes, tiers = hop_names(sweep.tiers)[1:], list(sweep.tiers.values())
    above = dict(zip(classes, tiers, strict=False)).get(sweep.hops, ())
    crossed = dict(zip(classes[1:], tiers, strict=True)).get(sweep.hops)
    by_switch: dict[int, list[Ranks]] = {}
    for unit in rest if crossed is None else in_turns(rest, [crossed]):
        by_switch.setdefault(above[unit[0]] if above else 0, []).append(unit)
    for some in by_switch.values():
        count = max(1, min(len(some) // 2, round(most / len(by_switch))))
        bounds = np.linspace(0, len(some), count + 1).astype(int)
        found += [some[low:high] for low, high in pairwise(bounds.tolist())]
    return found


def _ordered(ranks: Sequence[int], sweep: PathSweep, rng: np.random.Generator) -> list[int]:
    """In an order whose neighbours have paths of the hop class: those of a set exchange with each other."""
    if sweep.hosts is not None and sweep.hops == "same_host":
        hosts = sweep.hosts
        return sorted(ranks, key=lambda rank: hosts[rank])
    return list(mixed_ring(ranks, sweep.hosts, rng))


def _nearest_class(ring: Ranks, sweep: PathSweep, shared: Shared, *, strict: bool) -> PathSweep:
    """The nearest sends over the part for which all have partners: the fewer other parts are in them.

    Sends of several hop classes, which may take differently long, only where nothing else is left.
    """
    anyhow = replace(sweep, tiers={})
    if sweep.hosts is None or sweep.hops != "cross_host":
        return anyhow
    _, *classes = hop_names(sweep.tiers)
    nearest = classes.index(f"cross_{shared.tier}") if shared.tier else 0
    ways = [replace(sweep, hops=hops) for hops in classes[nearest:]] + ([] if strict else [anyhow])
    if shared.part in INSIDE:
        return next((way for way in ways if all(_have_partners(ring, way, shared, 1))), ways[-1])
    # GPUs or NICs of two hosts that exchange with each other only would all look slow where one uplink is.
    hosts = replace(shared, labels=sweep.hosts)
    for one in (hosts, shared) if shared.part in BELOW_HOST else (shared,):
        for way in ways:
            if all(_have_partners(ring, way, one, 2)):
                return way
    return ways[-1]


def _have_partners(ring: Ranks, sweep: PathSweep, shared: Shared, least: int) -> list[bool]:
    """For every GPU whether it has paths of the hop class over the part to at least one unit, or two.

    Where a part lies between units it takes two: of two that exchange, none tells which is slow.
    """
    units = np.array([shared.labels[rank] for rank in ring])
    able = np.equal.outer(units, units) == (shared.part in INSIDE)
    if sweep.hosts is not None:
        able &= hops_mask(ring, sweep.hops, sweep.hosts, sweep.tiers)
    np.fill_diagonal(able, val=False)
    found: NDArray[np.bool_] = able.any(axis=1)
    if least > 1:
        lowest = np.where(able, units, units.max() + 1).min(axis=1)
        found &= lowest < np.where(able, units, -1).max(axis=1)
    several: list[bool] = found.tolist()
    return several


def units_of(ring: Sequence[int], labels: Sequence[int]) -> list[Ranks]:
    """The GPUs of each unit, ascending; -1 is in none."""
    found: dict[int, list[int]] = {}
    for rank in sorted(ring):
        if labels[rank] >= 0:
            found.setdefault(labels[rank], []).append(rank)
    return [tuple(unit) for unit in found.values()]
