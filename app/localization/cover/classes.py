"""Parallel classes: which blocks touch every point once, and probes in the order of such classes.

A block shorter than k can be padded with any points. So ``ceil(n / k)`` blocks are enough to touch all points when
what they have in common, counted once a point and block too many, is at most ``k * ceil(n / k) - n``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from app.localization.cover.designs import Blocks

SEARCH_STEPS = 3000
CANDIDATES = 12  # blocks through an untouched point that are compared in one step
OPEN_CLASSES = 64  # a block joins the first of these that it is disjoint from


def class_order(blocks: Iterable[Sequence[int]]) -> list[int]:
    """All points in the order in which the blocks touch them."""
    return list(dict.fromkeys(point for block in blocks for point in block))


def class_first(n: int, k: int, blocks: Blocks) -> Blocks:
    """The same blocks, those in front that touch all points with the fewest blocks a search finds."""
    count = -(-n // k)
    slack = k * count - n
    masks = [sum(1 << point for point in block) for block in blocks]
    chosen = list(range(min(count, len(blocks))))
    if _overlap(masks, chosen) > slack:
        chosen = _search(n, k, blocks, masks)
    chosen.sort(key=lambda i: (-len(blocks[i]), i))
    taken = set(chosen)
    return [blocks[i] for i in chosen] + [block for i, block in enumerate(blocks) if i not in taken]


def _overlap(masks: list[int], chosen: Sequence[int]) -> int:
    touched = total = 0
    for i in chosen:
        touched |= masks[i]
        total += masks[i].bit_count()
    return total - touched.bit_count()


def _search(n: int, k: int, blocks: Blocks, masks: list[int]) -> list[int]:
    """Exchange blocks at random, those that overlap most for those through untouched points."""
    through: list[list[int]] = [[] for _ in range(n)]
    for i, block in enumerate(blocks):
        for point in block:
            through[point].append(i)
    count = -(-n // k)
    slack = k * count - n
    rng = np.random.default_rng(n * k)
    chosen = list(range(count))
    best, least = chosen, _overlap(masks, chosen)
    for _ in range(SEARCH_STEPS):
        once = twice = 0
        for i in chosen:
            twice |= once & masks[i]
            once |= masks[i]
        untouched = [point for point in range(n) if not once >> point & 1]
        point = untouched[rng.integers(len(untouched))]
        offered = through[point]
        start = int(rng.integers(len(offered)))
        near = [offered[(start + j) % len(offered)] for j in range(min(CANDIDATES, len(offered)))]
        joins = min(near, key=lambda i: (masks[i] & once).bit_count())
        twice |= once & masks[joins]
        shift = int(rng.integers(count))
        leaves = max(
            (chosen[(shift + j) % count] for j in range(count)), key=lambda i: (masks[i] & twice).bit_count()
        )
        chosen = [i for i in chosen if i != leaves] + [joins]
        overlap = _overlap(masks, chosen)
        if overlap < least:
            best, least = chosen, overlap
            if least <= slack:
                break
    return best


def padded(n: int, k: int, blocks: Blocks) -> tuple[Blocks, int]:
    """Fill blocks up to k points: the first ones with what they do not touch yet, others with rarely used points.

    Returns
    -------
    blocks : list of list of int
        Of ``k`` points each, ascending.
    first_class : int
        How many of the first blocks touch all points.
    """
    count = min(-(-n // k), len(blocks))
    front = [list(block) for block in blocks[:count]]
    missing = sorted(set(range(n)).difference(*front))
    for block in front:
        while len(block) < k and missing:
            block.append(missing.pop(0))
    rest = [list(block) for block in blocks[count:]]
    while missing:  # no class of the least size: the blocks that touch most of what is left come next
        best = max(range(len(rest)), key=lambda i: len(set(missing).intersection(rest[i])))
        front.append(rest.pop(best))
        missing = [point for point in missing if point not in front[-1]]
    uses = np.bincount([point for block in (*front, *rest) for point in block], minlength=n)
    for block in (*front, *rest):
        while len(block) < k:
            rare = np.where(np.isin(np.arange(n), block), np.iinfo(np.int64).max, uses)
            block.append(int(rare.argmin()))
            uses[block[-1]] += 1
    return [sorted(block) for block in (*front, *rest)], len(front)


def in_classes(blocks: Blocks, first: int, n: int) -> Blocks:
    """Keep the first blocks; put the others into classes of disjoint blocks, class after class (first fit)."""
    everything = (1 << n) - 1
    done: list[Blocks] = []
    still_open: list[tuple[int, Blocks]] = []
    for block in blocks[first:]:
        mask = sum(1 << point for point in block)
        for i, (touched, members) in enumerate(still_open):
            if not touched & mask:
                members.append(block)
                still_open[i] = (touched | mask, members)
                if touched | mask == everything or (everything ^ (touched | mask)).bit_count() < len(block):
                    done.append(members)
                    del still_open[i]
                break
        else:
            still_open.append((mask, [block]))
            if len(still_open) > OPEN_CLASSES:
                done.append(still_open.pop(0)[1])
    return blocks[:first] + [block for members in (*done, *(m for _, m in still_open)) for block in members]
