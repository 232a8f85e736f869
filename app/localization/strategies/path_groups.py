"""The sweep over the paths, cut into groups of one hop class each."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from app.localization.adaptive.designs import Tiers, matchings, matchings_by_class, shift_groups, take_turns
from app.localization.adaptive.groups import PathGroup, PathSweep
from app.localization.shapes import Pair, Ranks

# With fewer groups in a sweep, a fault or two could sit in all of them: then they are made smaller.
FEWEST_GROUPS, ENOUGH_GROUPS = 4, 6
# So few paths are a group each.
FEW_PATHS = 12
# Of so many switches none is compared with sends under it: those between them may take longer.
MANY_SWITCHES = 4


def told_apart(ring: Ranks, tiers: Tiers, slower: Collection[str]) -> Tiers:
    """The tiers by which hop classes are to be told apart.

    Parameters
    ----------
    ring : tuple of int
        The GPUs that are not slow.
    tiers : mapping of str to sequence of int
        What is known.
    slower : collection of str
        Tiers that sends take longer to cross. The others are told apart only where there are many switches, and
        where that costs nothing because they take turns in the ring.
    """
    able = {kind: at for kind, at in tiers.items() if len({at[rank] for rank in ring} - {-1}) > 1}
    free = {kind: at for kind, at in able.items() if len({at[rank] for rank in ring}) >= MANY_SWITCHES}
    wanted = {kind: at for kind, at in able.items() if kind in slower or kind in free}
    if all(take_turns(ring, at) for at in wanted.values()):
        return wanted
    return {kind: at for kind, at in able.items() if kind in slower}


def path_groups(ring: Ranks, sweep: PathSweep) -> list[PathGroup]:
    """Groups of cyclic shifts; of matchings where a shift holds several hop classes.

    Parameters
    ----------
    ring : tuple of int
        A cyclic order of the GPUs, see `mixed_ring`.
    sweep : PathSweep
        What they have in common but for the hop class.
    """
    hosts, tiers = sweep.hosts, sweep.tiers
    by_class: dict[str, list[tuple[int, ...]]] = {}
    mixed: list[int] = []
    for shifts in _shift_groups(ring, sweep):
        hops = _hops(ring, shifts, sweep)
        if len(hops) == 1:
            by_class.setdefault(hops.pop(), []).append(shifts)
        else:
            mixed += shifts
    groups = [_enough_groups(ring, some, replace(sweep, hops=hops)) for hops, some in by_class.items()]
    if hosts and mixed:  # where they differ in size, only exchanges hold one hop class
        by_hops = matchings_by_class(ring, mixed, hosts, tiers)
        groups += [_matching_groups(ring, some, replace(sweep, hops=hops)) for hops, some in by_hops.items()]
    return [group for some in groups for group in some]


def _shift_groups(ring: Ranks, sweep: PathSweep) -> list[tuple[int, ...]]:
    if not sweep.hosts:
        return shift_groups(len(ring), sweep.most)
    switches = [len({at[rank] for rank in ring}) for at in reversed(list(sweep.tiers.values()))]
    return shift_groups(len(ring), sweep.most, len({sweep.hosts[rank] for rank in ring}), switches)


def _hops(ring: Ranks, shifts: Sequence[int], sweep: PathSweep) -> set[str]:
    """Hop classes of the paths of some shifts."""
    ends = ((rank, ring[(place + shift) % len(ring)]) for shift in shifts for place, rank in enumerate(ring))
    return {sweep.between(pair) for pair in ends}


def _enough_groups(ring: Ranks, planned: Sequence[tuple[int, ...]], sweep: PathSweep) -> list[PathGroup]:
    """The planned groups of shifts; where they are too few, smaller ones: of matchings or paths if need be."""
    shifts = [shift for some in planned for shift in some]
    each = min(sweep.most, len(shifts) // FEWEST_GROUPS)
    if each:
        return [PathGroup.of_shifts(ring, tuple(shifts[i : i + each]), sweep) for i in range(0, len(shifts), each)]
    return _matching_groups(ring, [matching for shift in shifts for matching in matchings(ring, shift)], sweep)


def _matching_groups(ring: Ranks, some: list[list[Pair]], sweep: PathSweep) -> list[PathGroup]:
    """A group for each matching; where they are too few, for a part of each, or for each path if those are few."""
    if len(some) < FEWEST_GROUPS:
        paths = sum(map(len, some))
        parts = paths if paths <= FEW_PATHS else -(-ENOUGH_GROUPS // len(some))
        some = [matching[i::parts] for matching in some for i in range(min(parts, len(matching)))]
    return [PathGroup.of_matchings(ring, [matching], sweep) for matching in some]
