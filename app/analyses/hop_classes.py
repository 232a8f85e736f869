"""Which paths may be compared with each other.

Paths are not alike: within a host, across sockets, across hosts. Where no topology says which is which, the
values do, if they fall into levels *and* the paths of a level form a structure that a fault does not make: groups
of ranks that are near to each other, or a pattern that every rank takes part in. A slow GPU is a star and a slow
path one edge; neither is a class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.analyses.records import Matrix
from app.analyses.topology import Ints, Mask

_DEEPEST = 3
_CANDIDATES = 6
#: Levels must lie this far apart, in logarithm and in robust standard deviations.
_APART = np.log(1.08)
_APART_SIGMAS = 3.5
_CLEAN_EDGE = 0.1
#: Directed paths that it takes for a class of its own, where a topology tells more than hosts; and how many of
#: them may be those of one rank.
_LEAST_CLASS = 12
_LARGEST_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class HopClasses:
    """Classes of paths.

    Parameters
    ----------
    of : ndarray
        int, (n, n): class of each directed path; -1 on the diagonal.
    blocks : list of ndarray
        Groups of ranks (hosts, sockets), where the classes come from such; empty otherwise.
    given : bool
        Whether the blocks come from a placement.
    """

    of: Ints
    blocks: list[Ints]
    given: bool


def spread(values: Matrix) -> float:
    """Robust standard deviation (from the median absolute deviation); 0 for nothing."""
    finite = values[np.isfinite(values)]
    return float(1.4826 * np.median(np.abs(finite - np.median(finite)))) if finite.size else 0.0


def find_classes(badness: Matrix, placement: Sequence[str] | None, apart: Ints | None = None) -> HopClasses:
    """Tell classes of paths apart.

    Parameters
    ----------
    badness : ndarray
        Logarithm, higher is worse; (n, n), NaN where unknown and on the diagonal.
    placement : sequence of str or None
        Host of each rank.
    apart : ndarray or None
        int, (n, n): classes that the topology tells, at least same host and other host; see `classes_of`.
    """
    n = len(badness)
    both = symmetric(badness)
    upper = np.triu(np.isfinite(both), 1)
    of = np.full((n, n), -1, dtype=np.intp)
    blocks: list[Ints] = []
    hosts = sorted(set(placement or ()))
    if placement is not None and len(hosts) > 1:
        blocks = [np.flatnonzero(np.array(placement) == host) for host in hosts]
        if apart is None:
            apart = np.where(_same_block(n, blocks), 0, 1)
        parts = [upper & (apart == code) for code in np.unique(apart[upper])]
    else:
        parts = [upper]
    finished: list[Mask] = []
    for part in parts:
        finer = _divide(both, part, _DEEPEST)
        finished += finer.parts
        blocks = blocks or finer.blocks
    for number, part in enumerate(finished):
        of[part | part.T] = number
    return HopClasses(of, blocks, given=placement is not None and len(hosts) > 1)


def classes_of(badness: Matrix, distances: Ints) -> Ints:
    """Distances as classes that are large enough to be compared within; (n, n), -1 on the diagonal.

    Parameters
    ----------
    badness : ndarray
        NaN where unknown and on the diagonal.
    distances : ndarray
        int, (n, n): -1 on the diagonal, 0 within a host; an odd number and the next differ by the rail alone.
    """
    known = np.isfinite(badness) | np.isfinite(badness.T)
    classes = distances.copy()
    for odd in np.unique(classes[(classes > 0) & (classes % 2 == 1)]):
        if not all(_comparable(known & (classes == code)) for code in (odd, odd + 1)):
            classes[classes == odd + 1] = odd
    codes = [int(code) for code in np.unique(classes[classes > 0])]
    for number, code in enumerate(codes):
        if len(codes) > 1 and not _comparable(known & (classes == code)):
            near = codes[number + 1] if number + 1 < len(codes) else codes[number - 1]
            classes[classes == code] = near
    return classes


def _comparable(paths: Mask) -> bool:
    """Whether there are enough paths for a class, so that no rank that is slow makes its level."""
    count = np.count_nonzero(paths)
    return bool(count >= _LEAST_CLASS and 2 * paths.sum(axis=0).max() <= _LARGEST_SHARE * count)


def symmetric(badness: Matrix) -> Matrix:
    """Mean of both directions; the one that there is where the other is missing."""
    other = badness.T
    return np.where(np.isnan(badness), other, np.where(np.isnan(other), badness, (badness + other) / 2))


@dataclass(frozen=True, slots=True)
class _Division:
    parts: list[Mask]
    blocks: list[Ints]


def _divide(both: Matrix, part: Mask, depth: int) -> _Division:
    """Split a set of paths into levels as long as the levels are structures."""
    best: tuple[tuple[float, float], Mask, Mask, list[Ints]] | None = None
    if depth and np.count_nonzero(part) >= 6:
        values = np.sort(both[part])
        for cut in _cuts(values):
            near, far = part & (both <= cut), part & (both > cut)
            blocks = _structure(near, far)
            if blocks is None:
                continue
            if blocks:
                blocks = _adopt(both, blocks, float(np.median(both[far]) - np.median(both[near])))
                inside = _same_block(len(both), blocks)
                near, far = part & inside, part & ~inside
            merit = (float(sum(len(block) > 1 for block in blocks)), _explained(values, cut))
            if best is None or merit > best[0]:
                best = (merit, near, far, blocks)
    if best is None:
        return _Division([part], [])
    _, near, far, blocks = best
    parts = _divide(both, near, depth - 1).parts + _divide(both, far, depth - 1).parts
    return _Division(parts, blocks)


def _cuts(values: Matrix) -> list[float]:
    """Candidates: the widest gaps, and the cut that separates two levels best."""
    gaps = np.diff(values)
    order = np.lexsort((np.arange(len(gaps)), -gaps))[:_CANDIDATES]
    places = {int(i) for i in order if gaps[i] > 0} | {_otsu(values)}
    return [
        float((values[i] + values[i + 1]) / 2)
        for i in sorted(places)
        if values[i] < values[i + 1] and _levels_apart(values, i + 1)
    ]


def _levels_apart(values: Matrix, count: int) -> bool:
    near, far = values[:count], values[count:]
    distance = float(far[len(far) // 2] - near[len(near) // 2])
    # Robust spreads overlook what of another level a side holds; its edge shows it. A stray path does not count.
    few = [max(1, len(level) // 50) if len(level) >= 10 else 0 for level in (near, far)]
    edge = float(far[few[1]] - near[-1 - few[0]])
    if distance < _APART or edge < _CLEAN_EDGE * distance:
        return False
    # A level of one or two paths has no spread of its own.
    sigma = max((spread(level) for level in (near, far) if len(level) > 2), default=0.0)
    return distance >= _APART_SIGMAS * sigma


def _otsu(values: Matrix) -> int:
    """Index before the cut with the greatest variance between both sides."""
    counts = np.arange(1, len(values))
    sums = np.cumsum(values)[:-1]
    total, n = float(values.sum()), len(values)
    between = (total * counts / n - sums) ** 2 / (counts * (n - counts))
    return int(np.argmax(np.round(between, 12)))


def _explained(values: Matrix, cut: float) -> float:
    """Share of the variance that a cut explains, rounded so that equals tie."""
    count = int(np.searchsorted(values, cut))
    near, far = values[:count], values[count:]
    within = float(((near - near.mean()) ** 2).sum() + ((far - far.mean()) ** 2).sum())
    total = float(((values - values.mean()) ** 2).sum())
    return round(1 - within / total, 9) if total > 0 else 0.0


def _structure(near: Mask, far: Mask) -> list[Ints] | None:
    """Blocks of ranks, an empty list for a pattern that all take part in, None for what a fault would make."""
    near, far = near | near.T, far | far.T
    active = int(np.count_nonzero((near | far).any(axis=0)))
    for side, other in ((near, far), (far, near)):
        blocks = _cliques(side, other)
        most = sum(map(len, blocks)) >= 0.75 * active
        if len(blocks) >= 2 and most and _joins(other, blocks):
            return _with_rest(blocks, near if side is near else far)
    return [] if _widespread(far, active) and _widespread(near, active) else None


def _cliques(side: Mask, other: Mask) -> list[Ints]:
    """Connected components of one level that hold nearly no path of the other; empty if one does."""
    blocks = []
    for block in _components(side):
        if len(block) < 2:
            continue
        own = np.count_nonzero(side[np.ix_(block, block)])
        foreign = np.count_nonzero(other[np.ix_(block, block)])
        if own < 0.8 * (own + foreign):
            return []
        blocks.append(block)
    return blocks


def _joins(graph: Mask, blocks: list[Ints]) -> bool:
    """Whether most paths of the other level lead from block to block: then the blocks are what divides them."""
    ranks = np.concatenate(blocks)
    among = np.count_nonzero(graph[np.ix_(ranks, ranks)]) - sum(
        np.count_nonzero(graph[np.ix_(block, block)]) for block in blocks
    )
    return bool(among >= 0.5 * np.count_nonzero(graph))


def _with_rest(blocks: list[Ints], side: Mask) -> list[Ints]:
    """Ranks that belong nowhere (their paths are all slow, say) stand alone: their paths are cross paths."""
    placed = np.zeros(len(side), dtype=bool)
    for block in blocks:
        placed[block] = True
    return [*blocks, *([np.array([i], dtype=np.intp) for i in np.flatnonzero(~placed)])]


def _adopt(both: Matrix, blocks: list[Ints], gap: float) -> list[Ints]:
    """A rank alone joins the block that it is clearly nearest to: a slow GPU still sits in its host."""
    homes = [block for block in blocks if len(block) > 1]
    if len(homes) == len(blocks) or not _nearer_inside(both, homes):
        return blocks
    joined: list[list[int]] = [list(map(int, block)) for block in homes]
    alone = []
    for block in blocks:
        if len(block) > 1:
            continue
        levels = [float(np.nanmedian(both[block[0], home])) for home in homes]
        order = np.argsort(levels)
        if levels[order[1]] - levels[order[0]] >= gap / 2:
            joined[int(order[0])].append(int(block[0]))
        else:
            alone.append(block)
    return [*(np.array(sorted(members), dtype=np.intp) for members in joined), *alone]


def _nearer_inside(both: Matrix, homes: list[Ints]) -> bool:
    inside = _same_block(len(both), homes)
    across = np.zeros_like(inside)
    ranks = np.concatenate(homes)
    across[np.ix_(ranks, ranks)] = True
    across &= ~inside
    return bool(np.nanmedian(both[inside]) < np.nanmedian(both[across]))


def _components(graph: Mask) -> list[Ints]:
    unseen = np.ones(len(graph), dtype=bool)
    found = []
    for start in range(len(graph)):
        if not unseen[start]:
            continue
        members = np.zeros(len(graph), dtype=bool)
        frontier = members.copy()
        frontier[start] = True
        while frontier.any():
            members |= frontier
            frontier = graph[frontier].any(axis=0) & ~members
        unseen &= ~members
        found.append(np.flatnonzero(members))
    return found


def _widespread(graph: Mask, active: int) -> bool:
    """Whether nearly every rank has such paths and no few ranks have most of them."""
    degrees = np.sort(graph.sum(axis=0))[::-1]
    if np.count_nonzero(degrees) < 0.75 * active:
        return False
    few = max(1, active // 4)
    # An edge between two of the few counts twice here, which errs on the side of "a few have them all".
    return bool(degrees[:few].sum() < 0.6 * degrees.sum() / 2)


def _same_block(n: int, blocks: Sequence[Ints]) -> Mask:
    same = np.zeros((n, n), dtype=bool)
    for block in blocks:
        same[np.ix_(block, block)] = True
    return same
