"""Covers: sets of size-k probes that together test every GPU and every path (paper, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from app.localization.errors import SettingsError

Cover = tuple[tuple[int, ...], ...]
TieBreak = Literal["lowest", "busiest"]

MAX_GPUS = 1024
MAX_PROBE_SIZE = 16


def schonheim_bound(n: int, k: int) -> int:
    """The Schonheim lower bound on the number of k-sets that cover all pairs of n points.

    ``ceil(n/k * ceil((n-1)/(k-1)))``, computed in integers.
    """
    _check(n, k)
    if n <= k:
        return 1
    per_gpu = -(-(n - 1) // (k - 1))
    return -(-n * per_gpu // k)


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
    _check(n, k)
    if hosts is not None and len(hosts) != n:
        raise SettingsError("hosts", f"{len(hosts)} hosts given for {n} GPUs")
    if k == 2:
        return tuple(combinations(range(n), 2))  # every pair: there is nothing to choose
    spread = tuple(hosts) if hosts is not None and k > 2 and len(set(hosts)) > 1 else None
    return _cached(n, k, spread)


def vertex_cover(n: int, k: int) -> Cover:
    """Cover every GPU (no paths) by probes of ``k``: for backends where paths cannot be told apart.

    The last probe is filled up with the lowest ranks, so that all probes have the same size.
    """
    _check(n, k)
    size = min(k, n)
    starts = range(0, n, size)
    return tuple(
        tuple(sorted({*range(start, min(start + size, n)), *range(max(0, start + size - n))})) for start in starts
    )


def survive(cover: Cover, n: int, k: int, faults: int) -> Cover:
    """Add probes until no ``faults`` GPUs together sit in all of them.

    In a small replica a few slow GPUs can be in every probe of a cover; then all probes are alike and the
    fault becomes the baseline. Needs ``n - faults >= k``; returned unchanged otherwise.
    """
    if n - faults < k:
        return cover
    probes = list(cover)
    for group in combinations(range(n), faults):
        if all(not set(group).isdisjoint(probe) for probe in probes):
            probes.append(tuple([rank for rank in range(n) if rank not in group][:k]))
    return tuple(probes)


@lru_cache(maxsize=64)
def _cached(n: int, k: int, hosts: tuple[int, ...] | None) -> Cover:
    if n <= k:
        return (tuple(range(n)),)
    order = list(range(n)) if hosts is None else _spread_order(hosts)
    ranked = None if hosts is None else np.array([hosts[rank] for rank in order])
    ties: tuple[TieBreak, ...] = ("lowest", "busiest")
    best = min((_greedy(n, k, tie, ranked) for tie in ties), key=len)
    return tuple(tuple(sorted(order[i] for i in probe)) for probe in best)


def _spread_order(hosts: tuple[int, ...]) -> list[int]:
    """Ranks taken from the hosts in turn, so that neighbours in the greedy's order sit on different hosts."""
    seen: dict[int, int] = {}
    turn = []
    for rank, host in enumerate(hosts):
        turn.append((seen.get(host, 0), rank))
        seen[host] = seen.get(host, 0) + 1
    return [rank for _, rank in sorted(turn)]


def _greedy(n: int, k: int, tie: TieBreak, hosts: NDArray[np.int_] | None) -> Cover:
    """Algorithm 1: start at the GPU with most uncovered paths, then add the one that covers most new ones.

    ``lowest`` breaks ties by rank, ``busiest`` by the number of paths a GPU still has uncovered.
    """
    uncovered = np.ones((n, n), dtype=np.int32)
    np.fill_diagonal(uncovered, 0)
    degree = uncovered.sum(axis=1, dtype=np.int32)
    weight = np.int32(n + 1) if tie == "busiest" else np.int32(1)
    cover = []
    while degree.any():
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


def _check(n: int, k: int) -> None:
    if not 2 <= n <= MAX_GPUS:
        raise SettingsError("n", f"{n} GPUs; 2 to {MAX_GPUS} are supported")
    if not 2 <= k <= MAX_PROBE_SIZE:
        raise SettingsError("k", f"probe size {k}; 2 to {MAX_PROBE_SIZE} are supported")
