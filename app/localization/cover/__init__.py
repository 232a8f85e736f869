"""Covers: sets of size-k probes that together test every GPU and every path.

``greedy_cover`` is the paper's Algorithm 1; ``best_cover`` takes the smallest cover that is known here.
"""

from __future__ import annotations

from app.localization.cover.best import BestCover, best_cover
from app.localization.cover.bounds import (
    MAX_GPUS,
    MAX_PROBE_SIZE,
    Cover,
    CoverError,
    check_gpus,
    schonheim_bound,
    verify_cover,
)
from app.localization.cover.greedy import greedy_cover
from app.localization.cover.small import survive, vertex_cover

__all__ = [
    "MAX_GPUS",
    "MAX_PROBE_SIZE",
    "BestCover",
    "Cover",
    "CoverError",
    "best_cover",
    "check_gpus",
    "greedy_cover",
    "schonheim_bound",
    "survive",
    "verify_cover",
    "vertex_cover",
]
