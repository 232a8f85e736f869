"""Parallel classes: which blocks touch every point once, and probes in the order of such classes.

A block shorter than k can be padded with any points. So ``ceil(n / k)`` blocks are enough to touch all points when
what they have in common, counted once a point and block too many, is at most ``k * ceil(n / k) - n``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from app.localization.cover.designs import Blocks

SEARCH_STEPS = 1000
BARRED_STEPS = 20  # for which a block that left the class does not come back
CANDIDATES = 24  # blocks through an untouched point that are compared in one step
OPEN_CLASSES = 64  # a block joins the first of these that it is disjoint from


def class_order(blocks: Iterable[Sequence[int]]) -> list[int]:
    """All points in the order in which the blocks touch them."""
    return list(dict.fromkeys(point for block in blocks for point in block))


def class_first(n: int, k: int, blocks: Blocks, steps: int = SEARCH_STEPS) -> Blocks:
    """The same blocks, those in front that touch all points with the fewest blocks a search finds.

    Where one or two points are over, the first ``n // k`` blocks are disjoint if that can be had: any block with
    the points that are over completes the class, and a larger cover can use the disjoint ones alone.
    """
    count = -(-n // k)
    slack = k * count - n
    masks = _masks(blocks)
    chosen = _chosen(n, blocks, masks, n // k, slack=0, steps=steps) if n % k in {1, 2} else []
    if not chosen or _overlap(masks, chosen):
        chosen = _chosen(n, blocks, masks, count, slack=slack, steps=steps)
    once, twice = _touched(masks, chosen)
    chosen.sort(key=lambda i: ((masks[i] & twice).bit_count(), -len(blocks[i]), i))  # what overlaps comes last
    rest = sorted(set(range(len(blocks))).difference(chosen))
    missing = ((1 << n) - 1) & ~once
    spare = sum(k - len(blocks[i]) for i in chosen)
    while missing.bit_count() > spare:  # the blocks that touch most of what is left come next
        chosen.append(max(rest, key=lambda i: (masks[i] & missing).bit_count()))
        rest.remove(chosen[-1])
        missing &= ~masks[chosen[-1]]
        spare += k - len(blocks[chosen[-1]])
    return [blocks[i] for i in (*chosen, *rest)]


def _chosen(n: int, blocks: Blocks, masks: list[int], count: int, *, slack: int, steps: int) -> list[int]:
    """So many blocks with little in common: the first ones if they will do, or else what a search finds."""
    first = list(range(min(count, len(blocks))))
    if _overlap(masks, first) <= slack:
        return first
    return _search(n, blocks, masks, count, slack=slack, steps=steps)


def _masks(blocks: Blocks) -> list[int]:
    return [sum(1 << point for point in block) for block in blocks]


def _overlap(masks: list[int], chosen: Sequence[int]) -> int:
    touched = total = 0
    for i in chosen:
        touched |= masks[i]
        total += masks[i].bit_count()
    return total - touched.bit_count()


def _search(n: int, blocks: Blocks, masks: list[int], count: int, *, slack: int, steps: int) -> list[int]:
    """Exchange the block that overlaps most for one through an untouched point; who left stays out for a while."""
    through: list[list[int]] = [[] for _ in range(n)]
    for i, block in enumerate(blocks):
        for point in block:
            through[point].append(i)
    rng = np.random.default_rng(n)
    chosen = list(range(count))
    best, least = chosen, _overlap(masks, chosen)
    barred_until = [0] * len(blocks)
    for step in range(steps):
        if least <= slack:
            break
        once, twice = _touched(masks, chosen)
        untouched = [point for point in range(n) if not once >> point & 1]
        offered = through[untouched[rng.integers(len(untouched))]]
        offered = [i for i in offered if barred_until[i] <= step] or offered
        near = _from(offered, int(rng.integers(len(offered))))[:CANDIDATES]
        joins = min(near, key=lambda i: (masks[i] & once).bit_count())
        twice |= once & masks[joins]
        leaves = max(_from(chosen, int(rng.integers(count))), key=lambda i: (masks[i] & twice).bit_count())
        barred_until[leaves] = step + BARRED_STEPS
        chosen = [i for i in chosen if i != leaves] + [joins]
        overlap = _overlap(masks, chosen)
        if overlap < least:
            best, least = chosen, overlap
    return list(best)


def _touched(masks: list[int], chosen: Sequence[int]) -> tuple[int, int]:
    """Masks of the points in at least one and in at least two of the chosen blocks."""
    once = twice = 0
    for i in chosen:
        twice |= once & masks[i]
        once |= masks[i]
    return once, twice


def _from(items: list[int], start: int) -> list[int]:
    return items[start:] + items[:start]


def touching(n: int, k: int, blocks: Blocks) -> int:
    """How many of the first blocks touch all points, once short blocks are filled up with what is missing."""
    touched: set[int] = set()
    free = 0
    for number, block in enumerate(blocks, 1):
        touched.update(block)
        free += k - len(block)
        if len(touched) + free >= n:
            return number
    return len(blocks)


def padded(n: int, k: int, blocks: Blocks) -> Blocks:
    """Fill blocks up to k points: the first ones with what is not touched yet, others with rarely used points."""
    count = touching(n, k, blocks)
    missing = sorted(set(range(n)).difference(*blocks[:count]))
    filled = []
    for block in blocks:
        taken, missing = missing[: k - len(block)], missing[k - len(block) :]
        filled.append([*block, *taken])
    uses = np.bincount([point for block in filled for point in block], minlength=n)
    for block in filled:
        while len(block) < k:
            rare = uses.copy()
            rare[block] = np.iinfo(uses.dtype).max
            block.append(int(rare.argmin()))
            uses[block[-1]] += 1
    return [sorted(block) for block in filled]


def in_classes(blocks: Blocks, first: int, n: int) -> Blocks:
    """Keep the first blocks; put the others into classes of disjoint blocks (first fit), full classes first."""
    everything = (1 << n) - 1
    done: list[Blocks] = []
    still_open: list[tuple[int, Blocks]] = []
    for block, mask in zip(blocks[first:], _masks(blocks[first:]), strict=True):
        for i, (touched, members) in enumerate(still_open):
            if not touched & mask:
                members.append(block)
                still_open[i] = (touched | mask, members)
                if (everything ^ (touched | mask)).bit_count() < len(block):
                    done.append(members)
                    del still_open[i]
                break
        else:
            still_open.append((mask, [block]))
            if len(still_open) > OPEN_CLASSES:
                done.append(still_open.pop(0)[1])
    return blocks[:first] + [block for members in (*done, *(m for _, m in still_open)) for block in members]
