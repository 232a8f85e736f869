"""The paper's Algorithm 1: covers grown greedily, probe by probe."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.localization.cover.bounds import Cover, check_size

TieBreak = Literal["lowest", "busiest"]
TIE_BREAKS: tuple[TieBreak, ...] = ("lowest", "busiest")
BOUND_EVERY = 64  # probes


def greedy_cover(n: int, k: int, hosts: Sequence[int] | None = None) -> Cover:
    """Cover every GPU and path by probes of ``k`` GPUs: the smaller of Algorithm 1's two tie-breaks.

    Parameters
    ----------
    n : int
        Number of GPUs, 2..1024.
    k : int
        Probe size, 2..16. With ``n <= k`` the cover is one probe of all GPUs.
    hosts : sequence of int, shape (n,), optional
        Host index of each rank. When given (and ``k > 2``), every probe spans at least two hosts, so that
        all probes belong to one hop class and can share a baseline (DESIGN: normalise by hop class first).

    Returns
    -------
    tuple of tuple of int
        Probes as ascending ranks; together they contain every pair.

    Raises
    ------
    SettingsError
        When ``n``, ``k`` or the length of ``hosts`` is out of range.
    """
    check_size(n, k, hosts)
    if k == 2:
        return tuple(combinations(range(n), 2))  # every pair: there is nothing to choose
    return _cached(n, k, _spread(k, hosts))


def smaller_greedy_cover(n: int, k: int, hosts: Sequence[int] | None, fewer_than: int) -> Cover | None:
    """The greedy cover if it takes fewer probes than that; given up as soon as it provably does not."""
    found = _race(n, k, _spread(k, hosts), fewer_than)
    return None if found is None or len(found) >= fewer_than else found


def _spread(k: int, hosts: Sequence[int] | None) -> tuple[int, ...] | None:
    """The hosts where they matter: probes of more than two GPUs, and more than one host."""
    return tuple(hosts) if hosts is not None and k > 2 and len(set(hosts)) > 1 else None


@lru_cache(maxsize=64)
def _cached(n: int, k: int, hosts: tuple[int, ...] | None) -> Cover:
    cover = _race(n, k, hosts, None)
    assert cover is not None  # without a limit nothing is given up
    return cover


def _race(n: int, k: int, hosts: tuple[int, ...] | None, fewer_than: int | None) -> Cover | None:
    """The smaller result of the two tie-breaks; None when neither can stay below the limit."""
    if n <= k:
        return (tuple(range(n)),)
    order = list(range(n)) if hosts is None else _spread_order(hosts)
    ranked = None if hosts is None else np.array([hosts[rank] for rank in order])
    covers = [_greedy(n, k, tie, ranked, fewer_than) for tie in TIE_BREAKS]
    best = min((cover for cover in covers if cover is not None), key=len, default=None)
    return None if best is None else tuple(tuple(sorted(order[i] for i in probe)) for probe in best)


def _spread_order(hosts: tuple[int, ...]) -> list[int]:
    """Ranks taken from the hosts in turn, so that neighbours in the greedy's order sit on different hosts."""
    seen: dict[int, int] = {}
    turn = []
    for rank, host in enumerate(hosts):
        turn.append((seen.get(host, 0), rank))
        seen[host] = seen.get(host, 0) + 1
    return [rank for _, rank in sorted(turn)]


def _greedy(n: int, k: int, tie: TieBreak, hosts: NDArray[np.int_] | None, fewer_than: int | None) -> Cover | None:
    """Algorithm 1: start at the GPU with most uncovered paths, then add the one that covers most new ones.

    ``lowest`` breaks ties by rank, ``busiest`` by the number of paths a GPU still has uncovered. None when the
    probes so far and the least that is still needed reach ``fewer_than``.
    """
    uncovered = np.ones((n, n), dtype=np.int32)
    np.fill_diagonal(uncovered, 0)
    degree = uncovered.sum(axis=1, dtype=np.int32)
    weight = np.int32(n + 1) if tie == "busiest" else np.int32(1)
    cover: list[tuple[int, ...]] = []
    while degree.any():
        if fewer_than is not None and len(cover) % BOUND_EVERY == 0:
            # A GPU with d open paths needs d / (k - 1) more probes, rounded up, and a probe holds k GPUs.
            still = -(-int((-(-degree // (k - 1))).sum()) // k)
            if len(cover) + still >= fewer_than:
                return None
        members = _grow_probe(uncovered, degree, k, weight, hosts)
        block = np.ix_(members, members)
        degree[members] -= uncovered[block].sum(axis=1, dtype=np.int32)
        uncovered[block] = 0
        cover.append(tuple(sorted(int(m) for m in members)))
    return tuple(cover)


def _grow_probe(
    uncovered: NDArray[np.int32],
    degree: NDArray[np.int32],
    k: int,
    weight: np.int32,
    hosts: NDArray[np.int_] | None,
) -> NDArray[np.intp]:
    members = np.empty(k, dtype=np.intp)
    members[0] = degree.argmax()
    # One array holds "new paths, then busyness": an integer argmax is exact and takes the lowest rank.
    score = uncovered[members[0]] * weight
    if weight > 1:
        score = score + degree
    score[members[0]] = -1
    for i in range(1, k):
        if i == k - 1 and hosts is not None and (hosts[members[:i]] == hosts[members[0]]).all():
            score[hosts == hosts[members[0]]] = -1
        chosen = score.argmax()
        members[i] = chosen
        score += uncovered[chosen] * weight if weight > 1 else uncovered[chosen]
        score[members[: i + 1]] = -(1 << 30)
    return members
