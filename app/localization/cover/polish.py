"""Take out of a cover what it does not need: points of blocks first, then blocks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.localization.cover.designs import Blocks

ROUNDS = 3


def polished(n: int, k: int, blocks: Blocks) -> Blocks:
    """A cover by the same blocks or fewer; blocks may have become shorter.

    A point leaves a block when all its pairs there are in other blocks too; then short blocks that fit into one of
    k points are joined.
    """
    current = [list(block) for block in blocks]
    for _ in range(ROUNDS):
        shrunk = _shrunk(n, current)
        joined = _joined(k, shrunk)
        finished = len(joined) == len(shrunk)
        current = joined
        if finished:
            break
    return current


def _shrunk(n: int, blocks: Blocks) -> Blocks:
    times = _times_covered(n, blocks)
    for block in sorted(blocks, key=len):
        if len(block) < 2 or not (times[np.ix_(block, block)] > 1).any():
            continue
        for point in list(block):
            others = [other for other in block if other != point]
            if (times[point, others] > 1).all():
                times[point, others] -= 1
                times[others, point] -= 1
                block.remove(point)
    return [block for block in blocks if len(block) > 1]


def _times_covered(n: int, blocks: Blocks) -> NDArray[np.int32]:
    times = np.zeros((n, n), dtype=np.int32)
    for block in blocks:
        times[np.ix_(block, block)] += 1
    return times


def _joined(k: int, blocks: Blocks) -> Blocks:
    """Join short blocks with what shares most points with them, longest first, as long as k points hold both."""
    at = sorted((i for i, block in enumerate(blocks) if len(block) < k), key=lambda i: -len(blocks[i]))
    joined: dict[int, set[int]] = {i: set(blocks[i]) for i in at}
    for i in at:
        while i in joined and len(joined[i]) < k:
            block = joined[i]
            fits = [
                (len(block & other), len(other), -j)
                for j, other in joined.items()
                if j != i and len(other) <= k - len(block) + 2 and len(block | other) <= k
            ]
            if not fits:
                break
            block |= joined.pop(-max(fits)[2])
    return [
        sorted(joined[i]) if i in joined else block
        for i, block in enumerate(blocks)
        if i in joined or len(block) == k
    ]
