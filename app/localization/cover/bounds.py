"""What a cover is, what it can cost at least, and the check that it is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from app.localization.errors import LocalizationError, SettingsError

Cover = tuple[tuple[int, ...], ...]

MAX_GPUS = 1024
MAX_PROBE_SIZE = 16


class CoverError(LocalizationError):
    """A set of probes is not a cover: a defect here, or data that was damaged."""


def check_gpus(n: int) -> None:
    """Refuse numbers of GPUs that are not supported.

    Raises
    ------
    SettingsError
        When ``n`` is out of range.
    """
    if not 2 <= n <= MAX_GPUS:
        raise SettingsError("n", f"{n} GPUs; 2 to {MAX_GPUS} are supported")


def check_size(n: int, k: int, hosts: Sequence[int] | None = None) -> None:
    """Refuse sizes no cover is built for.

    Raises
    ------
    SettingsError
        When ``n`` or ``k`` is out of range, or ``hosts`` does not give one for each GPU.
    """
    check_gpus(n)
    if not 2 <= k <= MAX_PROBE_SIZE:
        raise SettingsError("k", f"probe size {k}; 2 to {MAX_PROBE_SIZE} are supported")
    if hosts is not None and len(hosts) != n:
        raise SettingsError("hosts", f"{len(hosts)} hosts given for {n} GPUs")


def schonheim_bound(n: int, k: int) -> int:
    """The Schonheim lower bound on the number of k-sets that cover all pairs of n points.

    ``ceil(n/k * ceil((n-1)/(k-1)))``, computed in integers.
    """
    check_size(n, k)
    if n <= k:
        return 1
    per_gpu = -(-(n - 1) // (k - 1))
    return -(-n * per_gpu // k)


def verify_cover(probes: Sequence[Sequence[int]], n: int, k: int) -> None:
    """Check that every probe has ``min(n, k)`` different ranks and that every pair is in some probe.

    Raises
    ------
    CoverError
        Names the first probe that is malformed, or the first pair that no probe contains.
    SettingsError
        When ``n`` or ``k`` is out of range.
    """
    check_size(n, k)
    size = min(n, k)
    for number, probe in enumerate(probes):
        if len(probe) != size or len(set(probe)) != size or min(probe) < 0 or max(probe) >= n:
            raise CoverError(f"probe {number} is not {size} different ranks below {n}: {tuple(probe)}")
    pair = missing_pair(probes, n)
    if pair is not None:
        raise CoverError(f"no probe contains both {pair[0]} and {pair[1]}")


def missing_pair(blocks: Sequence[Sequence[int]], n: int) -> tuple[int, int] | None:
    """The first pair of ``0..n-1`` that no block contains; blocks of several sizes are allowed."""
    together = np.eye(n, dtype=bool)
    by_size: dict[int, list[Sequence[int]]] = {}
    for block in blocks:
        by_size.setdefault(len(block), []).append(block)
    for alike in by_size.values():
        ranks = np.array(alike, dtype=np.intp)
        together[ranks[:, :, None], ranks[:, None, :]] = True
    flat = together.argmin()  # the first False, or 0 (on the diagonal) where there is none
    return None if together.flat[flat] else (int(flat) // n, int(flat) % n)
