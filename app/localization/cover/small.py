"""Covers of GPUs alone, and the additions that small replicas need."""

from __future__ import annotations

from itertools import combinations

from app.localization.cover.bounds import Cover, check_size


def vertex_cover(n: int, k: int) -> Cover:
    """Cover every GPU (no paths) by probes of ``k``: for backends where paths cannot be told apart.

    The last probe is filled up with the lowest ranks, so that all probes have the same size.
    """
    check_size(n, k)
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
