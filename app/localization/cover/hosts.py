"""Put a parallel class on the hosts, so that its probes tell a slow host from a slow path between hosts."""

from __future__ import annotations

from collections.abc import Sequence

from app.localization.cover.designs import Blocks


def aligned(blocks: Blocks, first: int, hosts: Sequence[int]) -> Blocks:
    """Renumber the points of a cover so that the first blocks lie on hosts.

    Hosts of k GPUs get a block each. A larger host gets as many whole blocks as fit. What is left of hosts and of
    blocks, and hosts smaller than a block, are put together in order: a block then spans as few hosts as that
    order gives, which need not be the fewest possible.

    Parameters
    ----------
    blocks : list of list of int
        A cover of ``0..n-1`` whose first ``first`` blocks touch all points.
    first : int
        Number of those blocks.
    hosts : sequence of int, shape (n,)
        Host index of each rank.
    """
    ranks: dict[int, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    rooms = sorted(ranks.values(), key=lambda room: (-len(room), room[0]))
    at: dict[int, int] = {}
    waiting = []
    for points in _own_points(blocks[:first]):
        # Best fit: the smallest room that takes the whole block.
        room = min((room for room in rooms if len(room) >= len(points)), key=len, default=None)
        if room is None:
            waiting.append(points)
        else:
            at.update((point, room.pop(0)) for point in points)
    left = [rank for room in sorted((r for r in rooms if r), key=lambda r: (-len(r), r[0])) for rank in room]
    at.update(zip((point for points in waiting for point in points), left, strict=True))
    return [sorted(at[point] for point in block) for block in blocks]


def _own_points(first: Blocks) -> list[list[int]]:
    """The points of each block that no block before it has, most points first."""
    touched: set[int] = set()
    own = []
    for block in first:
        own.append([point for point in block if point not in touched])
        touched.update(block)
    return sorted((points for points in own if points), key=len, reverse=True)
